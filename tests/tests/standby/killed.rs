//! A killed leader, and one that releases the Lease.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use runnel_tests::scene::{Id, Metrics, Recorder};
use runnel_tests::simulated::SimulatedAgent;
use runnel_tests::wait::eventually;

use super::stage::{
    self, Calm, LEASE_TIME, SOON, Stage, figures, forget, nothing_was_sent, served_again,
};

const AGENTS: usize = 10;
/// More of them show the same and take longer.
const ROUNDS: usize = 5;
/// Beyond the lease, by when all are served again.
const MORE: Duration = Duration::from_secs(5);
/// The chart's own lease.
const USUAL: Duration = Duration::from_secs(15);
/// A leader that leaves in order takes no longer: its agents come back within a second.
const AT_ONCE: Duration = Duration::from_secs(4);

/// What the real agent has received of content, in bytes.
async fn received(stage: &Stage) -> Result<f64> {
    Metrics::of(&stage.fleet.agent_ops_url(1))
        .await?
        .sum("runnel_payload_received_bytes_total")
}

/// Waits until a replica has so many sessions.
async fn sessions(stage: &Stage, replica: usize, wanted: usize) -> Result<()> {
    eventually(&format!("{wanted} sessions"), SOON, async || {
        let sessions = stage.metric(replica, "runnel_hub_sessions").await?;
        ensure!(sessions == wanted as f64, "{sessions} sessions");
        Ok(Some(()))
    })
    .await
}

/// An edit arrives, once.
async fn goes_on(
    stage: &Stage,
    source: &serde_json::Value,
    agents: &[SimulatedAgent],
) -> Result<()> {
    forget(agents);
    stage.edit(source, "second").await?;
    for agent in agents {
        agent
            .until("the edit", |state| !state.record.upserts().is_empty())
            .await?;
        ensure!(agent.state().record.upserts().len() == 1);
    }
    Ok(())
}

#[tokio::test]
async fn leader_kill_serves_all_again_and_repeats_nothing() -> Result<()> {
    let stage = stage::stage("killed").await?;
    let agents = stage.agents(AGENTS, &stage.balancer.address()).await?;
    let (source, rule) = stage.rule(AGENTS).await?;
    stage.calm(&rule).await?;
    let calm = Calm::start(&stage, &rule).await?;
    let copies = Recorder::start(stage.scene.member(1), &Id::of(&source)?).await?;
    let before = received(&stage).await?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let leader = stage.revive().await?;
        sessions(&stage, leader, AGENTS + 1).await?;
        forget(&agents);
        let begin = Instant::now();
        stage.fleet.hub_replica(leader).process().kill()?;
        served_again(&agents).await?;
        sessions(&stage, 3 - leader, AGENTS + 1).await?;
        times.push(begin.elapsed());
        nothing_was_sent(&agents)?;
    }
    let worst = times.iter().max().copied().unwrap_or_default();
    println!(
        "{}",
        figures(
            "fail-over with a lease of 4 s, from kill -9 to all served",
            times
        )
    );
    // With so short a lease the agents' own pauses between tries, up to 10 s, are what counts.
    ensure!(
        worst < LEASE_TIME + 2 * MORE,
        "served again after {worst:?}"
    );
    ensure!(
        received(&stage).await? == before,
        "content was sent to the real agent again"
    );
    ensure!(
        copies.about(&stage.namespace, "settings")?.is_empty(),
        "the copy in the real member was touched"
    );
    calm.check()?;
    goes_on(&stage, &source, &agents).await
}

#[tokio::test]
async fn leaving_leader_hands_over_and_killed_one_within_lease() -> Result<()> {
    let stage = stage::usual("usual").await?;
    let agents = stage.agents(AGENTS, &stage.balancer.address()).await?;
    let (source, rule) = stage.rule(AGENTS).await?;
    stage.calm(&rule).await?;
    let calm = Calm::start(&stage, &rule).await?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let leader = stage.revive().await?;
        sessions(&stage, leader, AGENTS).await?;
        forget(&agents);
        let begin = Instant::now();
        let process = stage.fleet.hub_replica(leader).process();
        let (served, ended) = tokio::join!(served_again(&agents), process.terminate(SOON));
        served?;
        times.push(begin.elapsed());
        ensure!(ended? == 0, "the leader did not end well");
        nothing_was_sent(&agents)?;
    }
    let worst = times.iter().max().copied().unwrap_or_default();
    println!(
        "{}",
        figures("hand-over, from SIGTERM to all served", times)
    );
    ensure!(worst < AT_ONCE, "served again after {worst:?}");

    let leader = stage.revive().await?;
    sessions(&stage, leader, AGENTS).await?;
    forget(&agents);
    let begin = Instant::now();
    stage.fleet.hub_replica(leader).process().kill()?;
    served_again(&agents).await?;
    let took = begin.elapsed();
    println!(
        "fail-over with the usual lease, from kill -9 to all served: {:.2} s",
        took.as_secs_f64()
    );
    ensure!(took < USUAL + MORE, "served again after {took:?}");
    nothing_was_sent(&agents)?;
    calm.check()?;
    goes_on(&stage, &source, &agents).await
}
