//! The value of a Secret is only in the Secret and in its copies: not in a log at any level, a
//! status, an Event, an annotation, a metric, an error or in Runnel's own Secrets.

#[path = "secrets/canary.rs"]
mod canary;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, TestCluster};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use canary::Canary;

const TARGET: &str = "birdhouse";
/// Of member 1: an API server whose own messages quote the refused value.
const TELLTALE: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: telltale}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [secrets]}
  matchConditions:
  - {name: refused, expression: "object.metadata.name == 'refused'"}
  validations:
  - {expression: "false", messageExpression: "'refused: ' + object.data.value"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: telltale}
spec: {policyName: telltale, validationActions: [Deny]}
"#;

/// Exercises every path on which a value could leak, and checks that it was used.
async fn let_it_sing(scene: &Scene, canary: &Canary) -> Result<()> {
    let (hub, member) = (&scene.hub, scene.member(1));
    let secret = |name: &str| Draft::secret("aviary", name).data("value", canary.text());
    let rule = |name: &str| {
        RuleDraft::new("aviary", name)
            .named(&[name])
            .everywhere()
            .into(&[TARGET])
    };
    scene.hub_namespaces(&["aviary"]).await?;
    scene.member_namespaces(&[TARGET]).await?;
    let rule_of = async |name: &str| Id::of(&hub.make(&rule(name).json()).await?);

    // Applied, edited, spoiled with another value, deleted.
    let applied = hub.make(&secret("applied").json()).await?;
    let good = rule_of("applied").await?;
    scene.arrives(&applied, &good, &[TARGET]).await?;
    let longer = format!("{0}{0}{0}", canary.text());
    let edit = json!({"stringData": {"longer": longer}});
    let applied = hub.change(&Id::of(&applied)?, edit).await?;
    scene.arrives(&applied, &good, &[TARGET]).await?;
    let copy = Id::secret(TARGET, "applied");
    for drift in [
        json!({"stringData": {"value": canary.other()}}),
        json!({"stringData": {"more": canary.text()}}),
    ] {
        member.change(&copy, drift).await?;
        member.has_copy(&applied, TARGET, &good).await?;
    }
    member.has_event(&copy, "DriftCorrected").await?;

    // Refused by the member's API server, in words that hold the value.
    hub.make(&secret("refused").json()).await?;
    let refused = rule_of("refused").await?;
    let entry = hub
        .wait_for_cluster(&refused, "member-1", "Failed", "Denied")
        .await?;
    ensure!(
        entry["message"]
            .as_str()
            .is_some_and(|text| text.contains("telltale")),
        "{entry}"
    );

    // A foreign object has the name of the copy.
    member
        .make(
            &Draft::secret(TARGET, "conflict")
                .data("value", canary.other())
                .json(),
        )
        .await?;
    hub.make(&secret("conflict").json()).await?;
    let conflict = rule_of("conflict").await?;
    hub.wait_for_cluster(&conflict, "member-1", "Failed", "Conflict")
        .await?;

    // Immutable in the member, and another type.
    let fixed = Draft::secret("aviary", "fixed")
        .data("value", canary.text())
        .with("immutable", json!(true));
    let made = hub.make(&fixed.json()).await?;
    let fixed = rule_of("fixed").await?;
    scene.arrives(&made, &fixed, &[TARGET]).await?;
    hub.delete(&Id::of(&made)?).await?;
    let other = Draft::secret("aviary", "fixed")
        .data("value", canary.other())
        .with("type", json!("example.com/other"));
    hub.make(&other.json()).await?;
    hub.wait_for_cluster(&fixed, "member-1", "Failed", "Immutable")
        .await?;

    // Never distributed.
    let release = Draft::secret("aviary", "release").data("release", canary.text());
    hub.make(&release.with("type", json!("helm.sh/release.v1")).json())
        .await?;
    let release = rule_of("release").await?;
    hub.wait_ready(&release, "False", "NoSources").await?;

    // Large, binary, and an object that is none.
    let large = Draft::secret("aviary", "large").data("value", &canary.text().repeat(10_000));
    let large = hub.make(&large.json()).await?;
    let rule = rule_of("large").await?;
    scene.arrives(&large, &rule, &[TARGET]).await?;
    Ok(())
}

/// Reads everything that Runnel writes and stores.
async fn check_everywhere(fleet: &Fleet, scene: &Scene, canary: &Canary) -> Result<()> {
    for log in [fleet.hub_log(), fleet.agent_log(1), fleet.agent_log(2)] {
        canary.is_not_in(&log.display().to_string(), &std::fs::read(log)?)?;
        ensure!(
            std::fs::read_to_string(log)?.contains("\"TRACE\""),
            "{} is not at its finest",
            log.display()
        );
    }
    for url in [
        fleet.hub_ops_url(),
        fleet.agent_ops_url(1),
        fleet.agent_ops_url(2),
    ] {
        for path in ["/metrics", "/readyz", "/healthz", "/livez", "/anything"] {
            canary.is_not_in(&format!("{url}{path}"), &answer(&url, path).await?)?;
        }
    }
    for cluster in
        std::iter::once(fleet.hub()).chain((1..=fleet.size()).map(|number| fleet.member(number)))
    {
        let everything = "configmaps,events,events.events.k8s.io,namespaces,leases,serviceaccounts";
        let kinds = if cluster.name() == "hub" {
            format!("{everything},drule,cdrule,member")
        } else {
            everything.into()
        };
        let text = cluster
            .kubectl(&["get", &kinds, "-A", "-o", "json", "--show-managed-fields"])
            .await?;
        canary.is_not_in(&format!("objects of {}", cluster.name()), text.as_bytes())?;
        // In member 1 the API server itself repeats the value.
        if cluster.name() != "member-1" {
            canary.is_not_in(
                "an audit log",
                &std::fs::read(cluster.folder().join("audit.log"))?,
            )?;
        }
    }
    for place in std::iter::once(&scene.hub).chain(&scene.members) {
        for mut secret in place.list(&Id::secret(TARGET, "any")).await? {
            // The copy itself may contain it.
            secret["data"] = Value::Null;
            canary.is_not_in(
                &format!("the metadata of {}", secret["metadata"]),
                secret.to_string().as_bytes(),
            )?;
        }
        own_secrets(place, canary).await?;
    }
    Ok(())
}

/// Runnel's own Secrets contain no content.
async fn own_secrets(place: &TestCluster, canary: &Canary) -> Result<()> {
    for secret in place.list(&Id::secret(NAMESPACE, "any")).await? {
        let what = format!("{} in {}", secret["metadata"]["name"], place.name());
        for (key, value) in secret["data"].as_object().into_iter().flatten() {
            let bytes = BASE64.decode(value.as_str().unwrap_or_default().as_bytes())?;
            canary.is_not_in(&format!("{what}, {key}"), &bytes)?;
            if let Ok(plain) = zstd::stream::decode_all(&bytes[..]) {
                canary.is_not_in(&format!("{what}, {key}, decompressed"), &plain)?;
            }
        }
    }
    Ok(())
}

async fn answer(url: &str, path: &str) -> Result<Vec<u8>> {
    let address = url.strip_prefix("http://").context("an odd address")?;
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    ensure!(!answer.is_empty(), "{url}{path} says nothing");
    Ok(answer)
}

/// Keys and tokens of Runnel's own that must not be in a log either.
async fn own_secrets_are_not_logged(fleet: &Fleet, scene: &Scene) -> Result<()> {
    let mut needles = Vec::new();
    for (place, name) in [
        (&scene.hub, "runnel-hub-identity"),
        (scene.member(1), "runnel-agent-identity"),
    ] {
        let secret = place.get(&Id::secret(NAMESPACE, name)).await?;
        for key in ["tls.key", "seal.key", "revision-key"] {
            let Some(encoded) = secret["data"][key].as_str() else {
                continue;
            };
            let bytes = BASE64.decode(encoded.as_bytes())?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            // Of PEM, a line of the key itself.
            let line = text
                .lines()
                .find(|line| line.len() > 40 && !line.starts_with('-'));
            needles.push((
                format!("{key} of {name}"),
                line.map_or(encoded.to_owned(), ToOwned::to_owned),
            ));
        }
    }
    let (hub, agent) = (fleet.hub_replica(1).pod(), fleet.agent(1).pod());
    let join = std::fs::read_to_string(agent.folder().join("root/etc/runnel/join/join-string"))?;
    let join = runnel_transport::identity::JoinString::parse(&join)?;
    needles.push(("the join token".to_owned(), join.token.expose().to_owned()));
    for pod in [hub, agent] {
        let kubeconfig: Value =
            serde_json::from_str(&std::fs::read_to_string(pod.folder().join("kubeconfig"))?)?;
        let token = kubeconfig
            .pointer("/users/0/user/token")
            .and_then(Value::as_str)
            .context("a token")?;
        needles.push((
            format!("the bearer token of {}", pod.name()),
            token.to_owned(),
        ));
    }
    ensure!(needles.len() >= 6, "{} things to look for", needles.len());
    for log in [fleet.hub_log(), fleet.agent_log(1)] {
        let output = read(log)?;
        for (what, needle) in &needles {
            ensure!(!output.contains(needle), "{what} is in {}", log.display());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

#[tokio::test]
async fn secret_value_is_only_in_the_secret_and_its_copies() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        log: "trace".to_owned(),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    let canary = Canary::new();
    canary.is_found_where_it_is()?;
    fleet
        .member(1)
        .kubectl_stdin(&["apply", "-f", "-"], TELLTALE)
        .await?;
    is_in_force(scene.member(1)).await?;
    let_it_sing(&scene, &canary).await?;
    // A restart, which reads everything again, discloses as little.
    fleet.kill_agent(1)?;
    fleet.start_agent(1).await?;
    fleet.kill_hub()?;
    fleet.start_hub().await?;
    let copy = Id::secret(TARGET, "applied");
    scene
        .member(1)
        .change(&copy, json!({"stringData": {"value": canary.other()}}))
        .await?;
    let source = scene.hub.get(&Id::secret("aviary", "applied")).await?;
    scene
        .member(1)
        .has_copy(&source, TARGET, &Id::rule("aviary", "applied"))
        .await?;
    fleet.connected(1).await?;
    check_everywhere(&fleet, &scene, &canary).await?;
    own_secrets_are_not_logged(&fleet, &scene).await
}

/// A policy takes effect a few seconds after it was made.
async fn is_in_force(member: &TestCluster) -> Result<()> {
    let probe = Draft::secret("default", "refused")
        .data("value", "probe")
        .json();
    runnel_tests::wait::eventually(
        "the policy to be in force",
        runnel_tests::scene::SOON,
        async || match member.make(&probe).await {
            Ok(_) => {
                member.delete(&Id::of(&probe)?).await?;
                Ok(None)
            }
            Err(error) => {
                let output = format!("{error:#}");
                ensure!(
                    output.contains(&BASE64.encode(b"probe")),
                    "the policy does not quote the value: {output}"
                );
                Ok(Some(()))
            }
        },
    )
    .await
}
