//! A Lease that is deleted, overwritten or restored, and an unreachable API server: the hub
//! recovers from each.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use runnel_hub::lease::LEASE;
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::stage::{self, Calm, SOON, Stage, forget, nothing_was_sent, served_again};

const AGENTS: usize = 3;
/// Longer than anything of the hub's waits for its API server.
const AWAY: Duration = Duration::from_secs(60);

async fn overwrite(stage: &Stage, patch: Value) -> Result<()> {
    let params = PatchParams::default();
    stage
        .leases()
        .patch(LEASE, &params, &Patch::Merge(patch))
        .await?;
    Ok(())
}

#[tokio::test]
async fn deleted_restored_or_malformed_lease_blocks_no_agent() -> Result<()> {
    let stage = stage::stage("lease").await?;
    let agents = stage.agents(AGENTS, &stage.balancer.address()).await?;
    let (_, rule) = stage.rule(AGENTS).await?;
    stage.calm(&rule).await?;
    let calm = Calm::start(&stage, &rule).await?;
    let epoch = || async {
        stage
            .lease()
            .await?
            .and_then(|lease| lease.metadata.uid)
            .context("no Lease")
    };

    let before = epoch().await?;
    forget(&agents);
    stage
        .leases()
        .delete(LEASE, &DeleteParams::default())
        .await?;
    served_again(&agents).await?;
    stage.leader().await?;
    ensure!(epoch().await? != before, "the epoch is the old one");
    nothing_was_sent(&agents)?;

    // As from a backup: an old holder that is long dead, and a term that has been used.
    let taken = stage
        .lease()
        .await?
        .and_then(|lease| lease.spec?.lease_transitions)
        .context("no term")?;
    forget(&agents);
    overwrite(
        &stage,
        json!({"spec": {"holderIdentity": "runnel-hub-7_0123", "leaseTransitions": 0}}),
    )
    .await?;
    served_again(&agents).await?;
    let now = stage
        .lease()
        .await?
        .and_then(|lease| lease.spec?.lease_transitions)
        .context("no term")?;
    ensure!(now > taken, "term {now} after {taken}");
    nothing_was_sent(&agents)?;

    // Rubbish, with no term left to take: the next one begins a new epoch.
    let before = epoch().await?;
    forget(&agents);
    let rubbish = json!({"holderIdentity": "???", "leaseTransitions": i32::MAX, "leaseDurationSeconds": i32::MAX});
    overwrite(
        &stage,
        json!({"metadata": {"annotations": null}, "spec": rubbish}),
    )
    .await?;
    served_again(&agents).await?;
    ensure!(epoch().await? != before, "the epoch is the old one");
    nothing_was_sent(&agents)?;
    calm.check()
}

#[tokio::test]
async fn absent_api_server_ends_the_lead_and_nothing_else() -> Result<()> {
    let stage = stage::stage("away").await?;
    let agents = stage.agents(AGENTS, &stage.balancer.address()).await?;
    let (source, rule) = stage.rule(AGENTS).await?;
    stage.calm(&rule).await?;
    let before = stage.scene.hub.get(&rule).await?;
    forget(&agents);
    stage.fleet.hub().stop_api_server()?;
    let begin = tokio::time::Instant::now();
    eventually("nobody to lead", SOON, async || {
        Ok((!stage.leads(1).await && !stage.leads(2).await).then_some(()))
    })
    .await?;
    for agent in &agents {
        agent
            .until("the end of the stream", |state| !state.up_to_date)
            .await?;
    }
    tokio::time::sleep_until(begin + AWAY).await;
    stage.fleet.hub().start_api_server().await?;
    served_again(&agents).await?;
    nothing_was_sent(&agents)?;
    // The copies are untouched, and the status is the same.
    stage.fleet.connected(1).await?;
    stage.calm(&rule).await?;
    let after = stage.scene.hub.get(&rule).await?;
    ensure!(
        after["status"] == before["status"],
        "{} was {}",
        after["status"],
        before["status"]
    );
    for number in [1, 2] {
        stage.fleet.hub_replica(number).process().check()?;
    }
    stage.edit(&source, "second").await?;
    for agent in &agents {
        eventually("the edit", SOON, async || {
            Ok(agent
                .inspect(|state| state.record.upserts().len() == 1)
                .then_some(()))
        })
        .await?;
    }
    Ok(())
}
