//! The cost of an edit on the hub's API, and the isolation from slow agents.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use futures::future::try_join_all;
use ring::rand::{SecureRandom, SystemRandom};
use runnel_proto::model::{AgentFrame, HubFrame, SourceRef};
use runnel_tests::simulated::{AgentStream, Holdings, SimulatedAgent};
use runnel_tests::wait::{eventually, steadily};
use serde_json::json;

use super::stage::{SOON, Stage, alone, shared, value};

const EDITS: usize = 3;

/// The number of writes that each of several edits costs.
async fn writes_per_edit(
    stage: &Stage,
    agents: &[SimulatedAgent],
    source: &SourceRef,
) -> Result<Vec<usize>> {
    let revision = async || {
        let status = stage.rules().get("all").await?.status.context("a status")?;
        anyhow::Ok(status.revision.context("a revision")?)
    };
    let mut counts = Vec::new();
    // An edit that is not everywhere within a second may cost a second write: another one is made.
    for number in 0..10 * EDITS {
        if counts.len() == EDITS {
            break;
        }
        let begin = Instant::now();
        let (mark, before) = (stage.mark(), revision().await?);
        let text = format!("{} agents, edit {number}", agents.len());
        stage.write("settings", &text).await?;
        for agent in agents {
            let arrived =
                |holdings: &Holdings| value(holdings, source).as_deref() == Some(text.as_str());
            agent.until(&text, |state| arrived(&state.holdings)).await?;
        }
        eventually("the edit in the status", SOON, async || {
            Ok((revision().await? != before).then_some(()))
        })
        .await?;
        if begin.elapsed() > Duration::from_millis(900) {
            stage.calm().await?;
            continue;
        }
        // Late writes arrive within the second between two writes.
        let calm = Duration::from_millis(1500);
        steadily("one write for one edit", calm, async || {
            let writes = stage.hub_writes(mark)?;
            ensure!(writes.len() <= 1, "{writes:?}");
            Ok(())
        })
        .await?;
        counts.push(stage.hub_writes(mark)?.len());
    }
    ensure!(counts.len() == EDITS, "too few edits arrived in a second");
    Ok(counts)
}

#[tokio::test]
async fn edit_costs_one_hub_write_with_one_or_twenty_agents() -> Result<()> {
    let stage = alone("writes").await?;
    let source = stage.write("settings", "first").await?;
    stage
        .rule(
            "all",
            &["settings"],
            json!({"clusters": {"selector": {"matchLabels": {"set": "writes"}}}}),
        )
        .await?;
    let mut agents = vec![start(&stage, 1).await?];
    stage.ready("all", 1).await?;
    stage.calm().await?;
    let with_one = writes_per_edit(&stage, &agents, &source).await?;
    agents.extend(try_join_all((2..=20).map(|number| start(&stage, number))).await?);
    stage.ready("all", 20).await?;
    stage.calm().await?;
    let with_twenty = writes_per_edit(&stage, &agents, &source).await?;
    ensure!(
        with_one == with_twenty,
        "{with_one:?} with one agent, {with_twenty:?} with twenty"
    );
    ensure!(with_one == [1; EDITS], "{with_one:?}");
    Ok(())
}

async fn start(stage: &Stage, number: usize) -> Result<SimulatedAgent> {
    let credentials = stage.join(&format!("writes-{number}")).await?;
    SimulatedAgent::up_to_date(&credentials, Holdings::default()).await
}

/// Text that no compression makes shorter.
pub(super) fn noise(bytes: usize) -> Result<String> {
    let mut noise = vec![0; bytes];
    SystemRandom::new()
        .fill(&mut noise)
        .map_err(|_| anyhow::anyhow!("no random numbers"))?;
    Ok(BASE64.encode(&noise))
}

#[tokio::test]
async fn slow_agent_skips_to_the_newest_and_delays_no_other() -> Result<()> {
    const ROUNDS: usize = 30;
    let stage = shared("slow").await?;
    let big = stage.write("big", &noise(300_000)?).await?;
    stage
        .rule(
            "all",
            &["big"],
            json!({"clusters": {"names": ["slow-one", "slow-other"]}}),
        )
        .await?;
    let other =
        SimulatedAgent::up_to_date(&stage.join("slow-other").await?, Holdings::default()).await?;
    // It has opened its stream, and reads nothing any more.
    let mut slow = AgentStream::greeted(&stage.join("slow-one").await?, Vec::new()).await?;
    let mut newest = String::new();
    for round in 0..ROUNDS {
        newest = format!("{round} {}", noise(300_000)?);
        stage.write("big", &newest).await?;
        let arrived =
            |holdings: &Holdings| value(holdings, &big).as_deref() == Some(newest.as_str());
        other
            .until(&format!("edit {round}"), |state| arrived(&state.holdings))
            .await?;
    }
    let mut copies_there = Holdings::default();
    let mut sizes = BTreeSet::new();
    while value(&copies_there, &big).as_deref() != Some(newest.as_str()) {
        if let HubFrame::Batch(batch) = slow.must().await? {
            copies_there.apply_batch(&batch);
            sizes.insert(batch.nonce);
            slow.send(&AgentFrame::Ack(batch.nonce, Vec::new()));
        }
    }
    let got = slow.record().upserts().len();
    ensure!(
        got <= ROUNDS / 2,
        "the slow agent was sent {got} of {ROUNDS} edits"
    );
    // And it is whole: the next edit comes as the only one.
    stage.write("big", "after").await?;
    while value(&copies_there, &big).as_deref() != Some("after") {
        if let HubFrame::Batch(batch) = slow.must().await? {
            copies_there.apply_batch(&batch);
        }
    }
    ensure!(
        slow.record().upserts().len() == got + 1,
        "{}",
        slow.record().sketch()
    );
    Ok(())
}
