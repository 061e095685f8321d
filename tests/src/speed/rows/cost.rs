//! Rows 23 and 24: what hub and agent ask of the API servers, per edit and while nothing happens.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;

use super::{GAP, reading};
use crate::audit::{Mark, Write};
use crate::control_plane::{ControlPlane, Options};
use crate::fleet::{AGENT, Fleet, FleetOptions, HUB};
use crate::speed::bar::Bar;
use crate::speed::lab::{Lab, PATIENCE, SOURCES, make_namespace};
use crate::speed::seen::WatchedEvents;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[23, 24];
const RULE: &str = "counted";
/// Verbs of requests that only read.
const READS: [&str; 3] = ["get", "list", "watch"];

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let control_plane = Options {
        audit_reads: true,
        ..Options::default()
    };
    let log = "runnel=warn".to_owned();
    let lab = Lab::of(
        Fleet::start(FleetOptions {
            log,
            control_plane,
            ..FleetOptions::default()
        })
        .await?,
    )
    .await?;
    let member = lab.fleet.member(1).client().await?;
    make_namespace(&member, SOURCES).await?;
    let edits = if quick { 15 } else { 100 };
    let written = edited(&lab, member, edits).await?;
    // The hub's status writes, and the token that an agent stores once a minute, belong to the edits.
    let (calm, minutes) = if quick { (5, 0.5) } else { (70, 5.0) };
    Bar::wait(Duration::from_secs(calm), "hub and agent come to rest").await;
    let marks = [lab.fleet.hub().mark(), lab.fleet.member(1).mark()];
    Bar::wait(Duration::from_secs_f64(60.0 * minutes), "nothing happens").await;
    let hub = asked(lab.fleet.hub(), marks[0], HUB)?.len() as f64 / minutes;
    let agent = asked(lab.fleet.member(1), marks[1], AGENT)?.len() as f64 / minutes;
    let at = (1, "member");
    Ok(vec![
        reading(
            23,
            "member writes per edit",
            (edits, "edits"),
            written,
            None,
        ),
        reading(24, "hub requests a minute", at, hub, None),
        reading(24, "agent requests a minute", at, agent, None),
    ])
}

/// Requests of a process since a mark; Leases are not audited.
fn asked(cluster: &ControlPlane, mark: Mark, who: &str) -> Result<Vec<Write>> {
    let requests = cluster.writes_since(mark)?.into_iter();
    Ok(requests
        .filter(|request| request.user_agent.starts_with(who))
        .collect())
}

/// One source is edited again and again: the agent's writes per edit, its own Secrets and Events included.
async fn edited(lab: &Lab, member: Client, edits: usize) -> Result<f64> {
    let mut watches = JoinSet::new();
    let seen = WatchedEvents::of(member, lab.sample, &mut watches);
    let sources: Api<ConfigMap> = Api::namespaced(lab.client.clone(), SOURCES);
    lab.rule(RULE, &[RULE], json!({"all": true})).await?;
    let edit = async |value: String| {
        let mark = seen.mark();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": RULE}, "data": {"value": value}});
        sources
            .patch(
                RULE,
                &PatchParams::apply("speed").force(),
                &Patch::Apply(object),
            )
            .await?;
        seen.count(mark, 1, PATIENCE, |event| {
            event.name == RULE && event.value == value
        })
        .await?;
        anyhow::Ok(())
    };
    edit("first".to_owned()).await?;
    tokio::time::sleep(GAP * 2).await;
    let bar = Bar::of(edits, "edits of one source");
    let mark = lab.fleet.member(1).mark();
    for number in 0..edits {
        edit(format!("edit {number}.")).await?;
        tokio::time::sleep(GAP).await;
        bar.step();
    }
    tokio::time::sleep(GAP * 2).await;
    let written = asked(lab.fleet.member(1), mark, AGENT)?;
    let written = written
        .iter()
        .filter(|request| !READS.contains(&request.verb.as_str()))
        .count();
    ensure!(
        written >= edits,
        "the audit log shows {written} writes of the agent for {edits} edits"
    );
    lab.delete_rule(RULE).await?;
    Ok(written as f64 / edits as f64)
}
