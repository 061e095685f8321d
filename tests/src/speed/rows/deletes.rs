//! Row 26: a small rule is deleted, and its copies with it, on a hub with three real members.

use std::time::Instant;

use anyhow::{Context, Result};
use futures::future::{try_join, try_join_all};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{await_condition, conditions::is_deleted};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::{milliseconds_since, reading};
use crate::fleet::{Fleet, FleetOptions};
use crate::speed::bar::Bar;
use crate::speed::lab::{Lab, PATIENCE, SOURCES, make_namespace};
use crate::speed::process::at_rest;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[26];
const MEMBERS: usize = 3;
/// Copies of the rule in each member: fewer than any limit of removals.
const COPIES: usize = 3;
const RULE: &str = "deleted";
/// The namespace for deletions without Runnel.
const BARE: &str = "bare";

/// Alternates, so that both run under equal conditions.
pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let rounds = if quick { 5 } else { 20 };
    let options = FleetOptions {
        members: MEMBERS,
        log: "runnel=warn".to_owned(),
        ..FleetOptions::default()
    };
    let lab = Lab::of(Fleet::start(options).await?).await?;
    let members =
        try_join_all((1..=MEMBERS).map(|number| lab.fleet.member(number).client())).await?;
    for member in &members {
        make_namespace(member, SOURCES).await?;
        make_namespace(member, BARE).await?;
    }
    lab.write_all(names().map(|name| (name.clone(), name)))
        .await?;
    let bar = Bar::of(
        rounds,
        "rules deleted, in turns with objects that are deleted one by one",
    );
    let (mut runnel, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        lab.rule(RULE, &["gone-*"], json!({"all": true})).await?;
        lab.applied(RULE, MEMBERS).await?;
        at_rest(lab.pid()?).await?;
        runnel.push(rule_and_copies(&lab, &members).await?);
        bare.push(objects(&members).await?);
        bar.step();
    }
    let at = (COPIES, "copies in 3 members");
    Ok(vec![
        reading(26, "delete to the last copy gone, p50", at, 0.0, None).median_of(&runnel, &bare),
    ])
}

fn names() -> impl Iterator<Item = String> {
    (0..COPIES).map(|number| format!("gone-{number}"))
}

/// Milliseconds from the request to delete the rule until it and all copies are gone.
async fn rule_and_copies(lab: &Lab, members: &[Client]) -> Result<f64> {
    let (rules, params) = (lab.rules(), DeleteParams::default());
    let uid = rules.get(RULE).await?.uid().context("no uid")?;
    let copies = existing(members, SOURCES).await?;
    let begin = Instant::now();
    rules.delete(RULE, &params).await?;
    let rule = async {
        Ok(tokio::time::timeout(
            PATIENCE,
            await_condition(rules.clone(), RULE, is_deleted(&uid)),
        )
        .await??)
    };
    try_join(rule, gone(copies)).await?;
    Ok(milliseconds_since(begin))
}

/// As above, for as many objects that are deleted in the members themselves.
async fn objects(members: &[Client]) -> Result<f64> {
    for member in members {
        let api: Api<ConfigMap> = Api::namespaced(member.clone(), BARE);
        for name in names() {
            let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
            api.create(&PostParams::default(), &object).await?;
        }
    }
    let objects = existing(members, BARE).await?;
    let begin = Instant::now();
    let params = DeleteParams::default();
    try_join_all(
        objects
            .iter()
            .map(|(api, name, _)| api.delete(name, &params)),
    )
    .await?;
    gone(objects).await?;
    Ok(milliseconds_since(begin))
}

type Existing = (Api<ConfigMap>, String, String);

/// The objects of these names, with their uids.
async fn existing(members: &[Client], namespace: &str) -> Result<Vec<Existing>> {
    let mut found = Vec::new();
    for member in members {
        let api: Api<ConfigMap> = Api::namespaced(member.clone(), namespace);
        for name in names() {
            let uid = api.get(&name).await?.uid().context("no uid")?;
            found.push((api.clone(), name, uid));
        }
    }
    Ok(found)
}

async fn gone(objects: Vec<Existing>) -> Result<()> {
    let each = objects.into_iter().map(|(api, name, uid)| async move {
        tokio::time::timeout(PATIENCE, await_condition(api, &name, is_deleted(&uid))).await??;
        anyhow::Ok(())
    });
    try_join_all(each).await.map(drop)
}
