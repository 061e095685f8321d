//! Row 30: an edit that is rolled out in waves without soaks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::await_condition;
use runnel_api::{DistributionRule, RolloutPhase};
use serde_json::json;

use super::{milliseconds, reading};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::at_rest;
use crate::speed::text::noise;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[30];
const RULE: &str = "waves";
const CLUSTERS: usize = 100;
/// Six waves of the clusters.
const AT_A_TIME: usize = 17;
/// Then the hub may write the ends of all waves at once again: in the long run it writes a status once a second.
const REST: Duration = Duration::from_secs(10);

/// The change that a rule has completed.
fn completed(rule: Option<&DistributionRule>) -> Option<String> {
    let rollout = rule?.status.as_ref()?.rollout.as_ref()?;
    (rollout.phase == RolloutPhase::Completed).then(|| rollout.revision.clone())
}

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let edits = if quick { 3 } else { 20 };
    let mut lab = Lab::start().await?;
    lab.write(RULE, "first").await?;
    lab.rule(RULE, &[RULE], json!({"all": true})).await?;
    let rollout = json!({"maxConcurrency": AT_A_TIME, "soakSeconds": 0, "gate": "Applied"});
    let patch = Patch::Merge(json!({"spec": {"rollout": rollout}}));
    lab.rules()
        .patch(RULE, &PatchParams::default(), &patch)
        .await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(CLUSTERS).await?);
    crowd.up_to_date(PATIENCE).await?;
    lab.applied(RULE, CLUSTERS).await?;
    let ends = async |former: Option<String>| {
        let is_new = |rule: Option<&DistributionRule>| {
            completed(rule).is_some_and(|revision| Some(revision) != former)
        };
        let ended = await_condition(lab.rules(), RULE, is_new);
        let rule = tokio::time::timeout(PATIENCE, ended).await;
        let rule = rule.context("the waves came to no end")??;
        anyhow::Ok((completed(rule.as_ref()), Instant::now()))
    };
    let (mut former, _) = ends(None).await?;
    let bar = Bar::of(edits, "edits in six waves");
    let mut times = Vec::new();
    for number in 0..edits {
        tokio::time::sleep(REST).await;
        at_rest(lab.pid()?).await?;
        let begin = Instant::now();
        lab.write(RULE, &noise(number as u64, 1024)).await?;
        let (revision, end) = ends(former).await?;
        times.push(milliseconds(end.duration_since(begin)));
        former = revision;
        bar.step();
    }
    let at = (CLUSTERS, "agents");
    let reading = reading(
        30,
        "edit to the end of the last of 6 waves, p50",
        at,
        0.0,
        None,
    );
    Ok(vec![reading.median_of(&times, &[])])
}
