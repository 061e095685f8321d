//! The view API, as kubectl and its users see it.

#[path = "views/clients.rs"]
mod clients;
#[path = "views/copies.rs"]
mod copies;
#[path = "views/member_targets.rs"]
mod member_targets;
#[path = "views/requests.rs"]
mod requests;
#[path = "views/wait.rs"]
mod wait;
#[path = "views/watches.rs"]
mod watches;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{AsyncBufReadExt, TryStreamExt};
use kube::Client;
use runnel_tests::control_plane::client_of;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene};
use runnel_tests::wait::eventually;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();
const SOON: Duration = Duration::from_secs(30);
/// A value that no answer may contain.
const CANARY: &str = "canary-7f31";

/// A fleet of two members whose API server forwards requests for views to the hub.
async fn fleet() -> Result<&'static Fleet> {
    FLEET.get_or_try_init(started).await
}

async fn started() -> Result<Fleet> {
    Fleet::start(FleetOptions {
        members: 2,
        views: true,
        ..FleetOptions::default()
    })
    .await
}

/// Creates a rule with one ConfigMap that goes to both members, and waits until it is applied.
async fn deliver(scene: &Scene, namespace: &str, rule: &str) -> Result<()> {
    scene.hub_namespaces(&[namespace]).await?;
    scene.member_namespaces(&[namespace]).await?;
    add_rule(scene, namespace, rule).await
}

async fn add_rule(scene: &Scene, namespace: &str, rule: &str) -> Result<()> {
    let source = Draft::config_map(namespace, rule)
        .data("color", "blue")
        .label("rule", rule);
    scene.hub.make(&source.json()).await?;
    let draft = RuleDraft::new(namespace, rule)
        .labeled("rule", rule)
        .everywhere();
    scene.hub.make(&draft.json()).await?;
    let id = Id::rule(namespace, rule);
    scene.hub.wait_ready(&id, "True", "AllApplied").await?;
    Ok(())
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    let path = format!("/apis/view.runnel.dev/v1alpha1/{path}");
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request(request).await?)
}

/// Returns the status of the answer to a request with these headers.
async fn status_of(
    client: &Client,
    method: http::Method,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<http::StatusCode> {
    let path = format!("/apis/view.runnel.dev/v1alpha1/{path}");
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(kube::client::Body::empty())?;
    Ok(client.send(request).await?.status())
}

#[tokio::test]
async fn kubectl_prints_waits_for_and_explains_deliveries() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "printed", "colors").await?;
    let hub = fleet.hub();

    let table = hub.kubectl(&["get", "deliveries", "-n", "printed"]).await?;
    let mut lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let columns = [
        "RULE", "CLUSTER", "STATE", "APPLIED", "FAILED", "WAITING", "REASON", "AGE",
    ];
    ensure!(lines.next().is_some_and(|line| line == columns), "{table}");
    for cluster in ["member-1", "member-2"] {
        let line = lines.next().context("a line is missing")?;
        let expected = ["colors", cluster, "Ready", "1/1", "0", "0", "AllApplied"];
        ensure!(line.starts_with(&expected), "{table}");
    }
    let one = ["get", "deliveries", "-A", "-o", "name", "--field-selector"];
    let named = hub
        .kubectl(&[&one[..], &["cluster=member-2,rule=colors"]].concat())
        .await?;
    ensure!(
        named.trim() == "delivery.view.runnel.dev/colors:member-2",
        "{named}"
    );
    let labeled = ["get", "deliveries", "-n", "printed", "-o", "name", "-l"];
    for (selector, count) in [("env=prod", 2), ("env in (test)", 0), ("!env", 0)] {
        let names = hub.kubectl(&[&labeled[..], &[selector]].concat()).await?;
        ensure!(names.lines().count() == count, "{selector}: {names}");
    }
    let condition = "--for=condition=Ready";
    let delivery = "delivery/colors:member-1";
    hub.kubectl(&[
        "wait",
        condition,
        delivery,
        "-n",
        "printed",
        "--timeout=10s",
    ])
    .await?;
    let wide = hub
        .kubectl(&["get", delivery, "-n", "printed", "-o", "wide"])
        .await?;
    ensure!(wide.contains("NEWEST") && wide.contains("true"), "{wide}");
    let explained = hub.kubectl(&["explain", "deliveries.status.state"]).await?;
    ensure!(explained.contains("every copy"), "{explained}");
    let missing = hub
        .kubectl(&["get", "delivery", "colors:nowhere", "-n", "printed"])
        .await;
    let missing = missing
        .err()
        .context("a delivery that is not there")?
        .to_string();
    ensure!(missing.contains("not found"), "{missing}");
    Ok(())
}

#[tokio::test]
async fn watch_shows_each_change_of_a_delivery() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "watched", "shapes").await?;
    let client = fleet.hub().client().await?;
    let list = get(&client, "namespaces/watched/deliveries").await?;
    let version = list["metadata"]["resourceVersion"]
        .as_str()
        .context("no version")?;
    let path = format!(
        "/apis/view.runnel.dev/v1alpha1/namespaces/watched/deliveries?watch=true&resourceVersion={version}"
    );
    let request = http::Request::get(path).body(Vec::new())?;
    let events = std::pin::pin!(client.request_stream(request).await?);
    let mut lines = events.lines();
    let mut next = async |kind: &str, fits: &dyn Fn(&Value) -> bool| -> Result<Value> {
        let read = async {
            loop {
                let line = lines.try_next().await?.context("the watch has ended")?;
                let event: Value = serde_json::from_str(&line)?;
                if event["type"] == kind && fits(&event["object"]) {
                    return anyhow::Ok(event["object"].clone());
                }
            }
        };
        tokio::time::timeout(SOON, read)
            .await
            .with_context(|| format!("no event {kind}"))?
    };
    // An object of a stranger is in the way of one copy.
    let foreign = Draft::config_map("watched", "more").data("a", "stranger");
    scene.member(1).make(&foreign.json()).await?;
    let source = Draft::config_map("watched", "more")
        .data("a", "b")
        .label("rule", "shapes");
    scene.hub.make(&source.json()).await?;
    // The members report in any order.
    let (mut failure, mut is_ready) = (None, false);
    while failure.is_none() || !is_ready {
        let object = next("MODIFIED", &|_| true).await?;
        let (cluster, status) = (&object["spec"]["cluster"], &object["status"]);
        is_ready |= cluster == "member-2" && status["applied"] == 2 && status["state"] == "Ready";
        if cluster == "member-1" && status["state"] == "Failed" {
            failure = Some(object);
        }
    }
    let failed = failure.context("no failure")?;
    ensure!(failed["status"]["reason"] == "Conflict", "{failed}");
    ensure!(
        failed["status"]["failures"][0]["copy"] == "configmaps/watched/more",
        "{failed}"
    );
    scene.hub.delete(&Id::rule("watched", "shapes")).await?;
    next("DELETED", &|object| object["spec"]["cluster"] == "member-2").await?;
    Ok(())
}

#[tokio::test]
async fn lists_are_paged_and_selected_by_state() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "paged", "first").await?;
    add_rule(&scene, "paged", "second").await?;
    let client = fleet.hub().client().await?;
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let path = format!("namespaces/paged/deliveries?limit=1&continue={token}");
        let page = get(&client, &path).await?;
        let items = page["items"].as_array().context("no items")?;
        names.extend(items.iter().map(|item| item["metadata"]["name"].clone()));
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    let all = [
        "first:member-1",
        "first:member-2",
        "second:member-1",
        "second:member-2",
    ];
    ensure!(names == all, "{names:?}");
    let failed = get(
        &client,
        "namespaces/paged/deliveries?fieldSelector=state%3DFailed",
    )
    .await?;
    ensure!(failed["items"] == json!([]), "{failed}");
    let wrong = get(
        &client,
        "namespaces/paged/deliveries?fieldSelector=color%3Dblue",
    )
    .await;
    let wrong = wrong.err().context("a field that is none")?.to_string();
    ensure!(wrong.contains("color"), "{wrong}");
    Ok(())
}

#[tokio::test]
async fn tenant_sees_the_deliveries_of_its_namespace_only() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "tenant", "own").await?;
    deliver(&scene, "neighbor", "foreign").await?;
    let hub = fleet.hub();
    hub.kubectl(&["create", "serviceaccount", "alice", "-n", "tenant"])
        .await?;
    let account = "--serviceaccount=tenant:alice";
    let role = "--clusterrole=runnel-hub-edit";
    hub.kubectl(&[
        "create",
        "rolebinding",
        "alice",
        role,
        account,
        "-n",
        "tenant",
    ])
    .await?;
    let kubeconfig = hub.token_kubeconfig("tenant", "alice").await?;
    let alice = client_of(&kubeconfig).await?;
    let own = eventually("the binding takes effect", SOON, async || {
        get(&alice, "namespaces/tenant/deliveries").await.map(Some)
    })
    .await?;
    ensure!(
        own["items"]
            .as_array()
            .is_some_and(|items| items.len() == 2),
        "{own}"
    );
    for path in [
        "namespaces/neighbor/deliveries",
        "deliveries",
        "clusterdeliveries",
    ] {
        let refused = get(&alice, path).await;
        let refused = refused
            .err()
            .with_context(|| format!("{path} is allowed"))?;
        ensure!(refused.to_string().contains("cannot list"), "{refused}");
    }
    Ok(())
}

/// These end the hub, an agent and a grant, so they have a fleet of their own.
#[tokio::test]
async fn members_that_are_away_or_not_granted_are_left_out() -> Result<()> {
    let fleet = started().await?;
    watches::restart_of_the_hub_expires_versions(&fleet).await?;
    copies::unreachable_member_is_named(&fleet).await?;
    member_targets::tenant_sees_what_its_grants_open(&fleet).await
}

#[tokio::test]
async fn only_the_front_proxy_may_connect() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let config = stranger(&scene).await?;
    let address = fleet.hub_replica(1).pod().port("view")?;
    let answer = ask_as_a_front_proxy(&address, config).await;
    // TLS 1.3: the server's refusal arrives after the handshake of the client.
    let refused = answer
        .err()
        .context("a client without a certificate got an answer")?;
    ensure!(
        format!("{refused:#}").contains("CertificateRequired"),
        "{refused:#}"
    );
    Ok(())
}

/// A client that trusts the hub and has no certificate.
async fn stranger(scene: &Scene) -> Result<rustls::ClientConfig> {
    let secret = scene
        .hub
        .get(&Id::secret("runnel-system", "runnel-hub-identity"))
        .await?;
    let ca = secret["data"]["tls.crt"].as_str().context("no CA")?;
    let ca = data_encoding::BASE64.decode(ca.as_bytes())?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca)?)?;
    let config = rustls::ClientConfig::builder_with_provider(runnel_transport::tls::provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// Names a user in headers, as the front proxy does.
async fn ask_as_a_front_proxy(address: &str, config: rustls::ClientConfig) -> Result<String> {
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("runnel-hub-view.runnel-system.svc")?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, tcp).await?;
    let request = "GET /apis/view.runnel.dev/v1alpha1/deliveries HTTP/1.1\r\nHost: hub\r\nX-Remote-User: admin\r\n\
                   X-Remote-Group: system:masters\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
