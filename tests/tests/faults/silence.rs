//! Clusters that become unreachable, and return.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use runnel_tests::fleet::condition_of;
use runnel_tests::scene::{Id, Recorder, RuleDraft, SOON, condition};
use runnel_tests::wait::eventually;
use serde_json::Value;

use super::stage::{Stage, stage};

/// Seconds from the fault to the status of an unreachable cluster.
const REPORTED: i64 = 45;

/// The states of `Ready`, change by change.
fn output(recorder: &Recorder, rule: &Id) -> Result<Vec<(String, Instant)>> {
    let mut output: Vec<(String, Instant)> = Vec::new();
    for record in recorder.about(rule.own_namespace().unwrap_or_default(), rule.name())? {
        let ready = condition_of(&record.object, "Ready");
        if output.last().is_none_or(|(last, _)| *last != ready) {
            output.push((ready, record.at));
        }
    }
    Ok(output)
}

/// Checks by the hub's own clock when a condition changed: what a slow test does in between does not count.
fn are_in_time(object: &Value, kind: &str, fault: Timestamp) -> Result<()> {
    let observed = condition(object, kind)?;
    let at: Timestamp = observed["lastTransitionTime"]
        .as_str()
        .context("no time")?
        .parse()?;
    let seconds = at.as_second() - fault.as_second();
    ensure!(
        (0..=REPORTED).contains(&seconds),
        "{kind} changed {seconds} s after the fault: {observed}"
    );
    Ok(())
}

async fn rule_to(stage: &Stage, number: usize) -> Result<Id> {
    let name = format!("to-{number}");
    let draft = |draft: RuleDraft| {
        draft
            .named(&["settings"])
            .to(&[stage.fleet.member_name(number)])
    };
    let rule = stage
        .rule("silence", &name, |d| draft(d).into(&["silence-target"]))
        .await?;
    stage.scene.hub.all_applied(&rule, 1).await?;
    Ok(rule)
}

#[tokio::test]
async fn silent_cluster_is_reported_within_45_seconds() -> Result<()> {
    let stage = stage().await?;
    stage.places("silence", &["silence-target"]).await?;
    stage.source("silence", "settings", "first").await?;
    let rules = [rule_to(&stage, 1).await?, rule_to(&stage, 2).await?];
    stage.calm().await?;
    let recorder = Recorder::start(&stage.scene.hub, &rules[0]).await?;

    // One is gone, and the other one's link is frozen: its connection stays open without answers.
    let fault = Timestamp::now();
    stage.fleet.kill_agent(1)?;
    stage.fleet.agent_process(2).pause()?;
    for (number, rule) in (1..).zip(&rules) {
        let object = stage
            .scene
            .hub
            .wait_ready(rule, "Unknown", "ClustersUnreachable")
            .await?;
        are_in_time(&object, "Ready", fault)?;
        let name = stage.fleet.member_name(number);
        let message = object["status"]["conditions"].to_string();
        ensure!(message.contains(name), "{message}");
        stage
            .scene
            .hub
            .wait_for_cluster(rule, name, "Unreachable", "SessionLost")
            .await?;
        // A rule never reports it before the cluster's own status.
        let member = stage.scene.hub.get(&Id::member(name)).await?;
        ensure!(
            condition_of(&member, "Connected") == "Unknown",
            "{}",
            member["status"]
        );
        are_in_time(&member, "Connected", fault)?;
    }

    stage.fleet.start_agent(1).await?;
    stage.fleet.agent_process(2).resume()?;
    for (number, rule) in (1..).zip(&rules) {
        stage.scene.hub.all_applied(rule, 1).await?;
        stage.fleet.connected(number).await?;
    }
    // Each state was reported once.
    for rule in &rules {
        // The watch may show the last write later than a read does.
        let words = eventually("the record of the last state", SOON, async || {
            let words: Vec<String> = output(&recorder, rule)?
                .into_iter()
                .map(|(word, _)| word)
                .collect();
            let is_last = words.last().is_some_and(|last| last == "True");
            Ok(is_last.then_some(words))
        })
        .await?;
        ensure!(words == ["Unknown", "True"], "{rule} said {words:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_restart_of_the_hub_flaps_nothing() -> Result<()> {
    let stage = stage().await?;
    stage.places("flaps", &["flaps-target"]).await?;
    stage.source("flaps", "settings", "first").await?;
    let rule = stage
        .rule("flaps", "all", |draft| {
            draft.named(&["settings"]).into(&["flaps-target"])
        })
        .await?;
    stage.scene.hub.all_applied(&rule, 2).await?;
    stage.calm().await?;
    let recorders = [
        Recorder::start(&stage.scene.hub, &rule).await?,
        Recorder::start(&stage.scene.hub, &Id::member("any")).await?,
    ];
    // Away for so long that a running hub would report it.
    stage.fleet.kill_agent(2)?;
    stage.restart_hub(1).await?;
    stage.calm().await?;
    stage.restart_hub(1).await?;
    stage.calm().await?;
    for recorder in &recorders {
        let records = recorder.so_far()?;
        let what: Vec<&Value> = records
            .iter()
            .map(|record| &record.object["status"])
            .collect();
        ensure!(what.is_empty(), "{what:?}");
    }
    stage.fleet.start_agent(2).await?;
    stage.connected(2).await?;
    stage.calm().await?;
    let records = recorders
        .iter()
        .map(Recorder::so_far)
        .collect::<Result<Vec<_>>>()?
        .concat();
    ensure!(
        records.is_empty(),
        "{:?}",
        records.first().context("a record")?.object["status"]
    );
    Ok(())
}
