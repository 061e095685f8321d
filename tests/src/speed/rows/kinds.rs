//! Row 29: what a real agent needs that distributes objects of very many kinds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::json;

use super::agent::{BareWatch, cpu_at_rest};
use super::{MIB, reading};
use crate::fleet::{Fleet, FleetOptions};
use crate::scene::RuleDraft;
use crate::speed::bar::Bar;
use crate::speed::lab::{Lab, PATIENCE, SOURCES, make_namespace};
use crate::speed::process::{at_rest, resident};
use crate::speed::sample::{GROUP, definition_of, resource_of};
use crate::speed::text::noise;
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[29];
/// Objects of each kind.
const OBJECTS: usize = 25;
/// The most kinds that an entry of `sources` may name.
const SELECTED: usize = 16;
const RULE: &str = "kinds";

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (count, time) = if quick { (8, 10) } else { (40, 600) };
    let kinds: Vec<ApiResource> = (0..count).map(kind).collect();
    let resources: Vec<String> = kinds.iter().map(resource_of).collect();
    let options = FleetOptions {
        log: "runnel=warn".to_owned(),
        hub_values: json!({"sources": {"kinds": resources}}),
        agent_values: json!({"policy": {"kinds": resources}}),
        ..FleetOptions::default()
    };
    let lab = Lab::of(Fleet::start(options).await?).await?;
    lab.grant(&resources).await?;
    let member = lab.fleet.member(1).client().await?;
    make_namespace(&member, SOURCES).await?;
    let bar = Bar::of(count, "kinds are defined, with their objects");
    for kind in &kinds {
        lab.define(kind, &definition_of(&kind.kind)).await?;
        write(&lab.client, kind).await?;
        bar.step();
    }
    drop(bar);
    let watch = BareWatch::start(&lab.fleet, &kinds).await?;
    distribute(&lab, &resources).await?;
    watch.knows(count * OBJECTS).await?;
    let (agent, bare) = (lab.fleet.agent_process(1).pid()?, watch.process.pid()?);
    at_rest(agent).await?;
    at_rest(bare).await?;
    let memory = [resident(agent)? / MIB, resident(bare)? / MIB];
    let cpu = cpu_at_rest(&lab, &watch, Duration::from_secs(time)).await?;
    let at = (count, &*format!("kinds of {OBJECTS} objects"));
    Ok(vec![
        reading(29, "agent memory", at, memory[0], Some(memory[1])),
        reading(29, "agent CPU at rest", at, cpu[0], Some(cpu[1])),
    ])
}

fn kind(number: usize) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        GROUP,
        "v1",
        &format!("Gauge{number}"),
    ))
}

/// Writes the objects of one kind on the hub.
async fn write(client: &Client, kind: &ApiResource) -> Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), SOURCES, kind);
    for number in 0..OBJECTS {
        let name = format!("object-{number:02}");
        let marks = json!([{"name": "value", "value": noise(number as u64, 1024)}]);
        let object = json!({
            "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": {"marks": marks},
        });
        api.patch(&name, &PatchParams::apply("speed"), &Patch::Apply(object))
            .await?;
    }
    Ok(())
}

/// A rule for all of them, until the member has all copies.
async fn distribute(lab: &Lab, resources: &[String]) -> Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "runnel.dev",
        "v1alpha1",
        "ClusterDistributionRule",
    ));
    let rules: Api<DynamicObject> = Api::all_with(lab.client.clone(), &kind);
    let mut rule = RuleDraft::cluster_scoped(RULE);
    for part in resources.chunks(SELECTED) {
        rule = rule.source(json!({"resources": part, "names": ["*"], "namespaces": [SOURCES]}));
    }
    let rule = rule.everywhere().json();
    rules
        .patch(RULE, &PatchParams::apply("speed"), &Patch::Apply(rule))
        .await?;
    let wanted = resources.len() * OBJECTS;
    eventually("the copies of all kinds", PATIENCE, async || {
        let rule = rules.get(RULE).await?;
        let summary = rule.data.pointer("/status/summary").context("no summary")?;
        ensure!(summary["copiesApplied"] == wanted, "{summary}");
        Ok(Some(()))
    })
    .await
}
