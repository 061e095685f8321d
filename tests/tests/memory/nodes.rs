//! Objects of many small JSON values, each of which costs eight bytes as text and several hundred when it is decoded.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Id, RuleDraft};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::stage::{PATIENCE, Stage};

/// The largest rules: about 1.2 MB of text each. Six of them, decoded, were more than the limit of the hub.
const RULES: usize = 12;
const RULE_VALUES: usize = 150_000;
/// The largest bundles: about 1 MB of text each.
const BUNDLES: usize = 20;
const BUNDLE_VALUES: usize = 130_000;
/// As many values as hub and agents accept, of 50,000.
const ACCEPTED_VALUES: usize = 24_500;

fn values(count: usize) -> Value {
    vec![json!({"a": 0}); count].into()
}

fn rule(number: usize) -> Value {
    let patch = json!([{"op": "add", "path": "/data/x", "value": values(RULE_VALUES)}]);
    RuleDraft::new("crowd", &format!("large-{number}"))
        .source(json!({"resources": ["configmaps"], "names": ["no-such"]}))
        .to(&["nowhere"])
        .with("suspend", json!(true))
        .with(
            "overrides",
            json!([{"clusters": {"names": ["nowhere"]}, "jsonPatch": patch}]),
        )
        .json()
}

fn bundle(name: &str, count: usize) -> Value {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}], "x": values(count)},
    });
    json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ManifestBundle",
        "metadata": {"namespace": "crowd", "name": name}, "spec": {"manifests": [service]},
    })
}

fn bundle_rule() -> Value {
    let bundles = json!({"resources": ["manifestbundles.runnel.dev"], "names": ["*"]});
    RuleDraft::new("crowd", "bundles")
        .source(bundles)
        .to(&["member-1"])
        .json()
}

async fn stage() -> Result<Stage> {
    let kinds = json!(["configmaps", "secrets", "services"]);
    Stage::start_with(&["crowd"], json!({"policy": {"kinds": kinds}})).await
}

#[tokio::test]
async fn rules_of_many_values_do_not_fill_the_hub() -> Result<()> {
    let stage = stage().await?;
    let watching = stage.fleet.hub_process().pid()?;
    stage.make_all((0..RULES).map(rule)).await?;
    stage.is_served("beside large rules").await?;
    let id = Id::rule("crowd", "large-0");
    eventually("the refusal of a large rule", PATIENCE, async || {
        let status = stage.scene.hub.get(&id).await?["status"].to_string();
        ensure!(
            status.contains("SpecTooLarge") && status.contains("Stalled"),
            "{status}"
        );
        Ok(Some(()))
    })
    .await?;
    stage.hub_is_within_its_limit(watching).await?;
    // A hub that starts lists all of them.
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    let listing = stage.fleet.hub_process().pid()?;
    stage
        .is_served("beside large rules that are listed")
        .await?;
    stage.hub_is_within_its_limit(listing).await
}

#[tokio::test]
async fn bundles_of_many_values_fill_neither_hub_nor_agent() -> Result<()> {
    let stage = stage().await?;
    let hub = stage.fleet.hub_process().pid()?;
    let agent = stage.fleet.agent_process(1).pid()?;
    stage.scene.hub.make(&bundle_rule()).await?;
    let large = (0..BUNDLES).map(|number| bundle(&format!("large-{number}"), BUNDLE_VALUES));
    stage.make_all(large).await?;
    stage.is_served("beside bundles that are refused").await?;
    let accepted =
        (0..BUNDLES).map(|number| bundle(&format!("accepted-{number}"), ACCEPTED_VALUES));
    stage.make_all(accepted).await?;
    stage.is_served("beside bundles that are sent").await?;
    stage.hub_is_within_its_limit(hub).await?;
    stage.agent_is_alive(agent)?;
    // A process that starts reads all of them at once.
    stage.fleet.kill_hub()?;
    stage.fleet.kill_agent(1)?;
    stage.fleet.start_hub().await?;
    stage.fleet.start_agent(1).await?;
    let hub = stage.fleet.hub_process().pid()?;
    let agent = stage.fleet.agent_process(1).pid()?;
    stage.is_served("after a restart").await?;
    stage.hub_is_within_its_limit(hub).await?;
    stage.agent_is_alive(agent)
}
