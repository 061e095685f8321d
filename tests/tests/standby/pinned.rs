//! Agents whose connections all go to the standby, as a load balancer with source affinity sends
//! them.

use anyhow::{Result, ensure};

use super::stage::{self, forget, nothing_was_sent, served_again};

const AGENTS: usize = 3;

#[tokio::test]
async fn agents_pinned_to_the_standby_are_served_and_follow_it() -> Result<()> {
    let stage = stage::stage("pinned").await?;
    let leader = stage.leader().await?;
    let standby = 3 - leader;
    let address = stage.fleet.hub_replica(standby).address().to_owned();
    let sent = stage
        .metric(standby, "runnel_hub_frames_sent_total")
        .await?;
    // The join itself, the session and its content pass the standby, which sees none of it.
    let agents = stage.agents(AGENTS, &address).await?;
    let (source, rule) = stage.rule(AGENTS).await?;
    forget(&agents);
    stage.edit(&source, "second").await?;
    for agent in &agents {
        agent
            .until("the edit", |state| state.record.upserts().len() == 1)
            .await?;
    }
    ensure!(
        stage.metric(standby, "runnel_hub_sessions").await? == 0.0,
        "the standby has sessions of its own"
    );
    let now = stage
        .metric(standby, "runnel_hub_frames_sent_total")
        .await?;
    ensure!(now == sent, "the standby has sent frames of its own");
    ensure!(stage.metric(leader, "runnel_hub_sessions").await? >= AGENTS as f64);
    stage.calm(&rule).await?;

    // The leader leaves: the replica to which they are pinned takes over, and serves them itself.
    forget(&agents);
    stage
        .fleet
        .hub_replica(leader)
        .process()
        .terminate(stage::SOON)
        .await?;
    served_again(&agents).await?;
    nothing_was_sent(&agents)?;
    ensure!(stage.leader().await? == standby);
    ensure!(stage.metric(standby, "runnel_hub_sessions").await? >= AGENTS as f64);

    // And back, without moving: it is the standby again and passes them on.
    stage.revive().await?;
    forget(&agents);
    stage.fleet.hub_replica(standby).process().kill()?;
    stage.fleet.hub_replica(standby).pod().start().await?;
    served_again(&agents).await?;
    nothing_was_sent(&agents)
}

#[tokio::test]
async fn replica_port_serves_only_replicas() -> Result<()> {
    let stage = stage::stage("replicas").await?;
    let leader = stage.leader().await?;
    let credentials = stage.join(1, &stage.balancer.address()).await?;
    let port = |number: usize| stage.fleet.hub_replica(number).pod().port("replica");
    let at = |address: String| {
        let mut credentials = credentials.clone();
        credentials.address = address;
        credentials
    };
    // Only a replica is served on that port. A standby passes nothing on there, so connections
    // cannot run in circles.
    for number in [leader, 3 - leader] {
        ensure!(
            at(port(number)?).channel().await.is_err(),
            "replica {number} serves who is no replica"
        );
    }
    let closed = "runnel_hub_peer_limits_total{limit=\"Replicas\"}";
    ensure!(
        stage.metric(leader, closed).await? >= 1.0,
        "the leader has not counted it"
    );
    Ok(())
}
