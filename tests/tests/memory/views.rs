//! Requests of the view API that are small on the wire and large once decoded, by users with few rights.

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use kube::Client;
use runnel_tests::control_plane::client_of;
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{PATIENCE, Stage};

/// Requests at once.
const FLOOD: usize = 50;
/// Edits that are timed.
const EDITS: usize = 15;
const SPACE: &str = "flood";

/// Returns a plan whose rule has this many maps of one value.
fn plan(maps: usize) -> String {
    let rule = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "big", "namespace": SPACE}, "spec": {"x": vec![json!({"a": 0}); maps]},
    });
    let kind = json!({
        "apiVersion": "view.runnel.dev/v1alpha1", "kind": "RulePlan", "metadata": {"namespace": SPACE},
        "spec": {"object": rule},
    });
    kind.to_string()
}

/// Creates a user of the namespace with this ClusterRole.
async fn user(stage: &Stage, name: &str, role: &str) -> Result<Client> {
    let hub = stage.fleet.hub();
    hub.kubectl(&["create", "serviceaccount", name, "-n", SPACE])
        .await?;
    let (role, account) = (
        format!("--clusterrole={role}"),
        format!("--serviceaccount={SPACE}:{name}"),
    );
    hub.kubectl(&["create", "rolebinding", name, &role, &account, "-n", SPACE])
        .await?;
    client_of(&hub.token_kubeconfig(SPACE, name).await?).await
}

/// Sends a request, which is refused, and returns why.
async fn refused(client: &Client, body: &str) -> Result<String> {
    let path = format!("/apis/view.runnel.dev/v1alpha1/namespaces/{SPACE}/ruleplans");
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body.as_bytes().to_vec())?;
    let answer = client.request::<serde_json::Value>(request).await;
    Ok(answer.err().context("it is planned")?.to_string())
}

/// Sends the same request many times at once; each is refused with one of these texts.
async fn flood(client: &Client, body: &str, texts: &[&str]) -> Result<()> {
    let sent = stream::iter(0..FLOOD).map(|_| refused(client, body));
    let all: Vec<_> = sent.buffer_unordered(FLOOD).collect().await;
    for why in all {
        let why = why?;
        ensure!(texts.iter().any(|text| why.contains(text)), "{why}");
    }
    Ok(())
}

#[tokio::test]
async fn flood_of_plans_leaves_the_hub_alive() -> Result<()> {
    let stage = Stage::start(&[SPACE]).await?;
    let process = stage.fleet.hub_process().pid()?;
    let watcher = user(&stage, "watcher", "view").await?;
    let author = user(&stage, "author", "runnel-hub-edit").await?;
    let (large, largest) = (plan(260_000), plan(30_000));
    eventually("the right to plan", PATIENCE, async || {
        let why = refused(&author, &large).await?;
        ensure!(why.contains("values: plan fewer"), "{why}");
        Ok(Some(()))
    })
    .await?;
    flood(&watcher, &large, &["cannot create"]).await?;
    let busy = "one such request of a user at a time";
    flood(&author, &large, &["values: plan fewer", busy]).await?;
    flood(&author, &largest, &["the rule cannot be read", busy]).await?;
    // How much slower an edit is beside them depends on the machine: it is printed, not judged.
    let alone = stage.typical_edit("alone", EDITS).await?;
    let floods = async {
        loop {
            flood(&author, &largest, &["the rule cannot be read", busy]).await?;
        }
    };
    let beside = tokio::select! {
        edit = stage.typical_edit("beside plans", EDITS) => edit?,
        Err::<(), anyhow::Error>(error) = floods => return Err(error),
    };
    println!("an edit takes {alone:?} alone and {beside:?} beside {FLOOD} plans at once");
    stage.is_served("after the flood").await?;
    stage.hub_is_within_its_limit(process).await
}
