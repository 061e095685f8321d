//! Reconnects: nothing is sent twice, and no order is lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::api::DeleteParams;
use runnel_proto::model::{DeletionPolicy, HubFrame, SourceRef};
use runnel_tests::simulated::{Holdings, Record, SimulatedAgent};
use runnel_tests::wait::{eventually, steadily};
use serde_json::json;

use super::stage::{SOON, Stage, alone, shared, value};

/// A stream of an agent that has everything: it gets the greeting, the CAs, and the end of the
/// snapshot.
fn is_silent(record: &Record) -> Result<()> {
    let frames: Vec<_> = record
        .frames
        .iter()
        .filter(|frame| !matches!(frame, HubFrame::CaBundle(_)))
        .collect();
    let silent = matches!(
        frames[..],
        [HubFrame::SnapshotBegin(_), HubFrame::SnapshotEnd(_)]
    );
    ensure!(silent, "{}", record.sketch());
    Ok(())
}

async fn ten_sources(stage: &Stage) -> Result<Vec<SourceRef>> {
    let names: Vec<String> = (0..10).map(|number| format!("source-{number}")).collect();
    try_join_all(names.iter().map(|name| stage.write(name, "first"))).await
}

#[tokio::test]
async fn returning_agent_gets_only_what_it_lacks() -> Result<()> {
    let stage = shared("resume").await?;
    let sources = ten_sources(&stage).await?;
    stage.write("kept-back", "first").await?;
    stage
        .rule(
            "all",
            &["source-*"],
            json!({"clusters": {"names": ["resume-a"]}}),
        )
        .await?;
    let untouched = stage
        .rule(
            "other",
            &["kept-back"],
            json!({"clusters": {"names": ["resume-a"]}}),
        )
        .await?;
    let credentials = stage.join("resume-a").await?;
    let agent = SimulatedAgent::up_to_date(&credentials, Holdings::default()).await?;
    agent
        .until("all sources", |state| {
            state.holdings.sources().count() == 11
        })
        .await?;
    let first = agent.stop().await;
    ensure!(
        first.record.upserts().len() == 11,
        "{}",
        first.record.sketch()
    );

    // The agent has everything.
    let agent = SimulatedAgent::up_to_date(&credentials, first.holdings).await?;
    is_silent(&agent.inspect(|state| state.record.clone()))?;
    let second = agent.stop().await;

    // One edit, one addition and one deletion while it is away.
    stage.write("source-3", "second").await?;
    stage.write("source-new", "first").await?;
    stage.delete_source("source-7").await?;
    let agent = SimulatedAgent::up_to_date(&credentials, second.holdings).await?;
    agent
        .until("the deletion", |state| {
            !state.record.tombstones().is_empty()
        })
        .await?;
    agent
        .until("the edit", |state| {
            value(&state.holdings, &sources[3]).as_deref() == Some("second")
        })
        .await?;
    let third = agent.stop().await;
    let mut sent: Vec<_> = third
        .record
        .upserts()
        .into_iter()
        .map(|(_, source)| source.name.to_string())
        .collect();
    sent.sort();
    ensure!(sent == ["source-3", "source-new"], "{sent:?}");
    let gone: Vec<_> = third
        .record
        .tombstones()
        .into_iter()
        .map(|(_, source, policy)| (source, policy))
        .collect();
    ensure!(
        gone == [(sources[7].clone(), DeletionPolicy::Delete)],
        "{gone:?}"
    );
    // The rule that did not change was not asked about.
    let asked = third.record.frames.iter().any(|frame| match frame {
        HubFrame::DetailRequest(uids) => uids.contains(&untouched),
        _ => false,
    });
    ensure!(!asked, "{}", third.record.sketch());
    Ok(())
}

#[tokio::test]
async fn restarted_hub_sends_and_writes_nothing_that_is_there() -> Result<()> {
    let stage = alone("restart").await?;
    let sources = ten_sources(&stage).await?;
    let names = ["restart-1", "restart-2", "restart-3"];
    stage
        .rule("all", &["source-*"], json!({"clusters": {"names": names}}))
        .await?;
    let joined = try_join_all(names.map(|name| stage.join(name))).await?;
    let up = joined
        .iter()
        .map(|credentials| SimulatedAgent::up_to_date(credentials, Holdings::default()));
    let agents = try_join_all(up).await?;
    for agent in &agents {
        agent
            .until("all sources", |state| {
                state.holdings.sources().count() == sources.len()
            })
            .await?;
    }
    stage.ready("all", 3).await?;
    let mark = stage.calm().await?;
    agents.iter().for_each(|agent| drop(agent.take_record()));
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    for agent in &agents {
        agent
            .until("a session with the new hub", |state| {
                state.record.sessions == 1 && state.up_to_date
            })
            .await?;
    }
    steadily(
        "no write after the restart",
        Duration::from_secs(2),
        async || {
            let writes = stage.hub_writes(mark)?;
            ensure!(writes.is_empty(), "{writes:?}");
            Ok(())
        },
    )
    .await?;
    for agent in &agents {
        let record = agent.take_record();
        is_silent(&record)?;
        agent.check()?;
    }

    // The rule is distributed: an edit reaches every agent.
    stage.write("source-5", "second").await?;
    for agent in &agents {
        agent
            .until("an edit", |state| {
                value(&state.holdings, &sources[5]).as_deref() == Some("second")
            })
            .await?;
        ensure!(agent.take_record().upserts().len() == 1);
    }
    Ok(())
}

#[tokio::test]
async fn removals_wait_for_an_absent_member_through_a_restart() -> Result<()> {
    let stage = alone("away").await?;
    for name in ["deleted", "retained", "kept"] {
        stage.write(name, "first").await?;
    }
    let cluster = json!({"names": ["away-a"]});
    let deleted = stage
        .rule("deleted", &["deleted"], json!({"clusters": cluster}))
        .await?;
    let spec = json!({"clusters": cluster, "deletionPolicy": "Retain"});
    let retained = stage.rule("retained", &["retained"], spec).await?;
    let kept = stage
        .rule("kept", &["kept"], json!({"clusters": cluster}))
        .await?;
    let credentials = stage.join("away-a").await?;
    let agent = SimulatedAgent::up_to_date(&credentials, Holdings::default()).await?;
    agent
        .until("all sources", |state| state.holdings.sources().count() == 3)
        .await?;
    stage.ready("kept", 1).await?;
    let away = agent.stop().await;

    for rule in ["deleted", "retained"] {
        stage.rules().delete(rule, &DeleteParams::default()).await?;
    }
    eventually("the rules to be removed", SOON, async || {
        let left = stage.rules().list(&Default::default()).await?.items.len();
        Ok((left == 1).then_some(()))
    })
    .await?;
    let pending = async || anyhow::Ok(stage.record("away-a").await?.pending_removals);
    let written = pending().await?;
    ensure!(written.len() == 2, "{written:?}");
    let names: Vec<_> = written
        .iter()
        .map(|removal| removal.rule.as_str())
        .collect();
    ensure!(
        names.contains(&"away/deleted") && names.contains(&"away/retained"),
        "{names:?}"
    );

    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    let agent = SimulatedAgent::up_to_date(&credentials, away.holdings).await?;
    agent
        .until("both orders", |state| state.record.removals().len() == 2)
        .await?;
    let mut orders = agent.inspect(|state| state.record.removals());
    orders.sort_by_key(|(uid, _)| *uid != deleted);
    ensure!(
        orders
            == [
                (deleted, DeletionPolicy::Delete),
                (retained, DeletionPolicy::Retain)
            ],
        "{orders:?}"
    );
    eventually("the orders to be struck out", SOON, async || {
        Ok(pending().await?.is_empty().then_some(()))
    })
    .await?;
    let record = agent.take_record();
    ensure!(
        record.upserts().is_empty() && record.tombstones().is_empty(),
        "{}",
        record.sketch()
    );
    ensure!(
        agent.inspect(|state| state.holdings.rules().keys().eq([&kept])),
        "the rule that was kept is not held alone"
    );
    let member = stage.members().get("away-a").await?;
    let orphaned = member
        .status
        .context("a status")?
        .conditions
        .iter()
        .any(|c| c.type_ == "OrphanedCopies");
    ensure!(!orphaned, "what was ordered counts as orphaned");

    // And again: nothing is repeated.
    let copies_there = agent.stop().await.holdings;
    let agent = SimulatedAgent::up_to_date(&credentials, copies_there).await?;
    is_silent(&agent.inspect(|state| state.record.clone()))
}
