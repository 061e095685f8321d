//! A leader that is paused for longer than its lease, and wakes.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::simulated::{AgentStream, Holdings, SimulatedAgent};
use runnel_tests::wait::{eventually, steadily};

use super::stage::{self, SOON, forget};

#[tokio::test]
async fn paused_leader_beyond_its_lease_sends_nothing() -> Result<()> {
    let stage = stage::usual("paused").await?;
    let leader = stage.revive().await?;
    let other = 3 - leader;
    // One agent stays with the leader; another one connects to any leader.
    let copies_there = stage
        .join(1, stage.fleet.hub_replica(leader).address())
        .await?;
    let free = stage
        .join(2, stage.fleet.hub_replica(other).address())
        .await?;
    let faithful = SimulatedAgent::up_to_date(&copies_there, Holdings::default()).await?;
    let agent = SimulatedAgent::up_to_date(&free, Holdings::default()).await?;
    let (source, rule) = stage.rule(2).await?;
    stage.calm(&rule).await?;
    // The same member as `faithful`, without frames since it received the source.
    let holdings = faithful.stop().await.holdings;
    let mut line = AgentStream::greeted(&copies_there, holdings.states()).await?;
    while !matches!(
        line.must().await?,
        runnel_proto::model::HubFrame::SnapshotEnd(_)
    ) {}

    let process = stage.fleet.hub_replica(leader).process();
    process.pause()?;
    // The first frames after it continues.
    forget(std::slice::from_ref(&agent));
    stage.edit(&source, "while it slept").await?;
    agent
        .until("the edit from the new leader", |state| {
            state.record.upserts().len() == 1
        })
        .await?;
    ensure!(stage.leads(other).await, "the other one does not lead");
    let terms = stage
        .lease()
        .await?
        .and_then(|lease| lease.spec)
        .and_then(|spec| spec.lease_transitions);

    line.take_record();
    process.resume()?;
    let end = line.end(SOON).await;
    let record = line.take_record();
    ensure!(record.frames.is_empty(), "it sent {}", record.sketch());
    end?;
    // It is the standby, and passes connections on.
    eventually("the woken one to stand by", SOON, async || {
        Ok((!stage.leads(leader).await).then_some(()))
    })
    .await?;
    steadily(
        "only the other one leads",
        Duration::from_secs(3),
        async || {
            ensure!(stage.leads(other).await && !stage.leads(leader).await);
            Ok(())
        },
    )
    .await?;
    let now = stage
        .lease()
        .await?
        .and_then(|lease| lease.spec)
        .and_then(|spec| spec.lease_transitions);
    ensure!(
        now == terms,
        "the Lease was taken again: {terms:?}, {now:?}"
    );
    let again = SimulatedAgent::up_to_date(&copies_there, holdings).await?;
    ensure!(
        again.state().record.upserts().len() == 1,
        "it gets what it missed"
    );
    stage
        .scene
        .hub
        .wait_ready(&rule, "True", "AllApplied")
        .await?;
    agent.check()
}
