//! A rule whose copies differ in each of many clusters, as a tenant with the right to make one rule can write it.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft};
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{PATIENCE, Stage};

/// With [`SOURCES`] far more than the 128 MiB that one rule may take.
const CLUSTERS: usize = 100;
const SOURCES: usize = 4;
const TEXT: usize = 900_000;

/// Text that does not shrink much.
fn text(seed: u64) -> String {
    let mut state = seed.wrapping_add(1);
    let mut text = "cluster: ${cluster.name}\n".to_owned();
    while text.len() < TEXT {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("{:08x}", state >> 32));
    }
    text
}

#[tokio::test]
async fn rule_that_differs_in_every_cluster_does_not_fill_the_hub() -> Result<()> {
    let stage = Stage::start(&["crowd"]).await?;
    let process = stage.fleet.hub_process().pid()?;
    let member = |number: usize| {
        json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
            "metadata": {"name": format!("absent-{number}")}, "spec": {"accepted": true}})
    };
    stage.make_all((0..CLUSTERS).map(member)).await?;
    let source = |number: usize| {
        Draft::config_map("crowd", &format!("shaped-{number}"))
            .data("value", &text(number as u64))
            .json()
    };
    stage.make_all((0..SOURCES).map(source)).await?;
    let rule = RuleDraft::new("crowd", "all")
        .named(&["shaped-*"])
        .everywhere();
    stage
        .scene
        .hub
        .make(&rule.with("substitute", json!({"keys": ["value"]})).json())
        .await?;
    let id = Id::rule("crowd", "all");
    eventually("the limit in the rule's status", PATIENCE, async || {
        let status = stage.scene.hub.get(&id).await?["status"].to_string();
        ensure!(
            status.contains("RenderBudgetExceeded")
                && status.contains("4 sources for 101 clusters"),
            "{status}"
        );
        Ok(Some(()))
    })
    .await?;
    stage.is_served("beside the rule").await?;
    stage.hub_is_within_its_limit(process).await
}
