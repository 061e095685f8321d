//! A member's report counts only with a proof.

use anyhow::{Context, Result, bail, ensure};
use runnel_proto::model::{AgentFrame, HubFrame, Proof, RuleState};
use runnel_tests::scene::Metrics;
use runnel_tests::simulated::{AgentStream, Holdings, SimulatedAgent};
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{SOON, Stage, alone};

/// Receives frames up to the next batch; returns the states to report.
async fn takes_in(line: &mut AgentStream, copies_there: &mut Holdings) -> Result<Vec<RuleState>> {
    loop {
        if let HubFrame::Batch(batch) = line.must().await? {
            line.send(&AgentFrame::Ack(batch.nonce, Vec::new()));
            return Ok(copies_there.apply_batch(&batch));
        }
    }
}

/// Waits until the rule's condition Ready has this reason; with its message.
async fn wait_for_condition(stage: &Stage, reason: &str) -> Result<String> {
    eventually(&format!("the rule to say {reason}"), SOON, async || {
        let status = stage
            .rules()
            .get("all")
            .await?
            .status
            .context("no status")?;
        let ready = status
            .conditions
            .iter()
            .find(|known| known.type_ == "Ready")
            .context("no Ready")?;
        ensure!(
            ready.reason == reason,
            "{}",
            serde_json::to_string(&status)?
        );
        Ok(Some(ready.message.clone()))
    })
    .await
}

async fn differing(stage: &Stage) -> Result<f64> {
    Metrics::of(&stage.fleet.hub_ops_url())
        .await?
        .sum("runnel_rule_clusters_differ")
}

#[tokio::test]
async fn member_with_a_wrong_digest_is_not_ready() -> Result<()> {
    let stage = alone("proof").await?;
    stage.write("settings", "first").await?;
    stage.write_secret("login", "first").await?;
    let names = ["proof-honest", "proof-wrong"];
    stage
        .rule(
            "all",
            &["settings", "login"],
            json!({"clusters": {"names": names}}),
        )
        .await?;
    let honest =
        SimulatedAgent::up_to_date(&stage.join(names[0]).await?, Holdings::default()).await?;
    let credentials = stage.join(names[1]).await?;
    let mut line = AgentStream::greeted(&credentials, Vec::new()).await?;
    let mut copies_there = Holdings::default();
    let Some(HubFrame::SnapshotBegin(begin)) = line.record().frames.first() else {
        bail!("no begin")
    };
    ensure!(begin.proof_key.is_some(), "the hub asks for no proof");
    copies_there.prove_with(begin.proof_key.clone());

    let right = takes_in(&mut line, &mut copies_there).await?;
    ensure!(right.len() == 1 && right[0].proof.is_some(), "{right:?}");
    let with = |proof| RuleState {
        proof,
        ..right[0].clone()
    };
    line.send(&AgentFrame::Report(vec![with(Some(Proof([7; 16])))]));
    let message = wait_for_condition(&stage, "DigestMismatch").await?;
    ensure!(message.contains("in proof-wrong"), "{message}");
    ensure!(differing(&stage).await? == 1.0);
    // It reconnects and reports the same from the beginning.
    drop(line);
    let mut line = AgentStream::greeted(&credentials, vec![with(Some(Proof([7; 16])))]).await?;
    while !matches!(line.must().await?, HubFrame::SnapshotEnd(_)) {}
    ensure!(differing(&stage).await? == 1.0);
    // A report without a proof is accepted, and proves nothing.
    line.send(&AgentFrame::Report(vec![with(None)]));
    wait_for_condition(&stage, "AllApplied").await?;
    line.send(&AgentFrame::Report(vec![with(Some(Proof([8; 16])))]));
    wait_for_condition(&stage, "DigestMismatch").await?;
    line.send(&AgentFrame::Report(right.clone()));
    stage.ready("all", 2).await?;
    ensure!(differing(&stage).await? == 0.0);

    // It reports an edit as applied, and shows the former content.
    stage.write("settings", "second").await?;
    let next = takes_in(&mut line, &mut copies_there).await?;
    line.send(&AgentFrame::Report(vec![RuleState {
        proof: right[0].proof,
        ..next[0].clone()
    }]));
    wait_for_condition(&stage, "DigestMismatch").await?;
    line.send(&AgentFrame::Report(next.clone()));
    stage.ready("all", 2).await?;

    // A proof of another hub or rule is invalid.
    stage
        .rule("other", &["login"], json!({"clusters": {"names": names}}))
        .await?;
    let other = takes_in(&mut line, &mut copies_there).await?;
    ensure!(other[0].proof.is_some() && other[0].proof != next[0].proof);
    line.send(&AgentFrame::Report(other));
    stage.ready("other", 2).await?;
    honest.check()
}
