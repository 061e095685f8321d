//! What clients may send, and what the API server passes on of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::{Method, StatusCode};
use runnel_tests::scene::Scene;
use runnel_tests::wait::eventually;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{SOON, ask_as_a_front_proxy, deliver, fleet, get, status_of, stranger};

#[tokio::test]
async fn kubectl_reads_in_every_form_and_deletes_nothing() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "forms", "kinds").await?;
    let hub = fleet.hub();
    let names =
        "delivery.view.runnel.dev/kinds:member-1\ndelivery.view.runnel.dev/kinds:member-2\n";
    for chunk in ["0", "1", "2", "500"] {
        let size = format!("--chunk-size={chunk}");
        let listed = hub
            .kubectl(&["get", "deliveries", "-n", "forms", "-o", "name", &size])
            .await?;
        ensure!(listed == names, "{chunk}: {listed}");
    }
    let own = ["get", "deliveries", "-n", "forms"];
    let columns = "-o=custom-columns=C:.spec.cluster,S:.status.state";
    let table = hub.kubectl(&[&own[..], &[columns]].concat()).await?;
    ensure!(table.contains("member-2   Ready"), "{table}");
    let json = hub.kubectl(&[&own[..], &["-o", "json"]].concat()).await?;
    let list: Value = serde_json::from_str(&json)?;
    ensure!(list["items"][1]["status"]["applied"] == 1, "{json}");
    let gone = hub
        .kubectl(&["delete", "delivery", "kinds:member-1", "-n", "forms"])
        .await;
    let gone = gone.err().context("it is deleted")?.to_string();
    ensure!(gone.contains("does not support this method"), "{gone}");
    for (arguments, answer) in [
        (["get", "deliveries.view.runnel.dev"], "yes"),
        (["create", "ruleplans.view.runnel.dev"], "yes"),
    ] {
        let can = hub
            .kubectl(&[&["auth", "can-i"][..], &arguments].concat())
            .await?;
        ensure!(can.trim() == answer, "{arguments:?}: {can}");
    }
    Ok(())
}

#[tokio::test]
async fn methods_and_formats_that_are_none_are_refused() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "methods", "verbs").await?;
    let client = fleet.hub().client().await?;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let list = "namespaces/methods/deliveries";
    let (accept, content) = ("accept", "content-type");
    for (method, path, headers, code) in [
        (Method::GET, list, [(accept, "*/*")], 200),
        (Method::GET, list, [(accept, protobuf)], 406),
        (Method::POST, list, [(content, "application/json")], 405),
        (Method::PUT, list, [(accept, "*/*")], 405),
        (Method::DELETE, list, [(accept, "*/*")], 405),
        (Method::HEAD, list, [(accept, "*/*")], 405),
        (Method::OPTIONS, list, [(accept, "*/*")], 405),
        (Method::POST, "", [(accept, "*/*")], 405),
        (
            Method::GET,
            "namespaces/methods/pods",
            [(accept, "*/*")],
            404,
        ),
        (Method::GET, "clusterruleplans", [(accept, "*/*")], 405),
        (Method::POST, "clusterruleplans", [(content, protobuf)], 415),
    ] {
        let answer = status_of(&client, method.clone(), path, &headers).await?;
        ensure!(
            answer.as_u16() == code,
            "{method} {path} {headers:?}: {answer}"
        );
    }
    Ok(())
}

/// The front proxy sends one header for each group.
#[tokio::test]
async fn user_of_many_groups_is_known_by_all_of_them() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "grouped", "teams").await?;
    let hub = fleet.hub();
    let bind = ["create", "rolebinding", "last", "-n", "grouped"];
    let to = ["--clusterrole=runnel-hub-view", "--group=équipe-299"];
    hub.kubectl(&[&bind[..], &to].concat()).await?;
    let groups: Vec<_> = (0..300)
        .map(|number| format!("--as-group=équipe-{number}"))
        .collect();
    let mut arguments = vec!["get", "deliveries", "-n", "grouped", "--as=josé"];
    arguments.extend(groups.iter().map(String::as_str));
    let table = eventually("the binding takes effect", SOON, async || {
        hub.kubectl(&arguments).await.map(Some)
    })
    .await?;
    ensure!(table.contains("teams"), "{table}");
    Ok(())
}

/// A role may name the objects of which it is about.
#[tokio::test]
async fn right_to_one_delivery_is_enough_to_wait_for_it() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "single", "waited").await?;
    let hub = fleet.hub();
    let role = ["create", "role", "one", "-n", "single"];
    let rules = [
        "--verb=get,list,watch",
        "--resource=deliveries.view.runnel.dev",
        "--resource-name=waited:member-1",
    ];
    hub.kubectl(&[&role[..], &rules].concat()).await?;
    let bind = ["create", "rolebinding", "one", "-n", "single"];
    hub.kubectl(&[&bind[..], &["--role=one", "--user=carol"]].concat())
        .await?;
    let wait = |delivery: &'static str| {
        let arguments = [
            "wait",
            "--for=condition=Ready",
            delivery,
            "--timeout=10s",
            "-n",
            "single",
            "--as=carol",
        ];
        async move { hub.kubectl(&arguments).await }
    };
    eventually("the binding takes effect", SOON, async || {
        wait("delivery/waited:member-1").await.map(Some)
    })
    .await?;
    let refused = wait("delivery/waited:member-2").await;
    let refused = refused.err().context("it is allowed")?.to_string();
    ensure!(refused.contains("forbidden"), "{refused}");
    Ok(())
}

/// They do not even delay the handshakes of others by the time limit of a handshake.
#[tokio::test]
async fn silent_connections_delay_no_other_client() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let address = fleet.hub_replica(1).pod().port("view")?;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(&address).await?);
    }
    let config = stranger(&scene).await?;
    let answer = tokio::time::timeout(
        Duration::from_secs(5),
        ask_as_a_front_proxy(&address, config),
    );
    let refused = answer.await.context("no handshake")?;
    let refused = refused.err().context("a stranger got an answer")?;
    ensure!(
        format!("{refused:#}").contains("CertificateRequired"),
        "{refused:#}"
    );
    let client = fleet.hub().client().await?;
    get(&client, "deliveries?limit=1").await.map(drop)
}

#[tokio::test]
async fn names_of_any_length_are_not_found() -> Result<()> {
    let fleet = fleet().await?;
    let client = fleet.hub().client().await?;
    for name in ["a".repeat(5000), "a:".repeat(2000), "%2e%2e".to_owned()] {
        for resource in ["deliveries", "copies"] {
            let path = format!("namespaces/{}/{resource}/{name}", "n".repeat(300));
            let code = status_of(&client, Method::GET, &path, &[]).await?;
            ensure!(code == StatusCode::NOT_FOUND, "{path}: {code}");
        }
    }
    Ok(())
}
