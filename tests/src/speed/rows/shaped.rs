//! Row 25: a rule whose copies differ in each of many clusters.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use runnel_api::MemberCluster;
use serde_json::{Value, json};

use super::{MIB, milliseconds_since, reading};
use crate::fleet::NAMESPACE;
use crate::scene::Metrics;
use crate::speed::bar::Bar;
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::peak;
use crate::speed::text::noise;
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[25];
const RULE: &str = "shaped";
const SOURCES: usize = 20;
/// Bytes of text in each source.
const TEXT: usize = 100 * 1024;
/// Requests to the API server at once.
const AT_ONCE: usize = 16;

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let clusters = if quick { 100 } else { 1000 };
    let lab = Lab::start().await?;
    let bar = Bar::of(clusters, "clusters are registered");
    let members: Api<MemberCluster> = Api::all(lab.client.clone());
    let made = (0..clusters).map(|number| {
        let (members, bar) = (&members, &bar);
        async move {
            let member: MemberCluster = serde_json::from_value(json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
                "metadata": {"name": format!("shaped-{number:05}")}, "spec": {"accepted": true},
            }))?;
            members.create(&PostParams::default(), &member).await?;
            bar.step();
            anyhow::Ok(())
        }
    });
    futures::stream::iter(made)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    lab.write_all((0..SOURCES).map(|number| (format!("{RULE}-{number}"), text(number))))
        .await?;
    drop(bar);
    let _bar = Bar::spinner("a rule renders all sources for all clusters, then is edited");
    let leads = transitions(&lab).await?;
    let begin = Instant::now();
    write(&lab, &["value"]).await?;
    planned(&lab, SOURCES).await?;
    let first = milliseconds_since(begin);
    let begin = Instant::now();
    let generation = write(&lab, &["value", "other"]).await?;
    eventually("the plan of the edited rule", PATIENCE, async || {
        let status = lab.rules().get(RULE).await?.status.unwrap_or_default();
        Ok((status.observed_generation >= generation).then_some(()))
    })
    .await?;
    let edit = milliseconds_since(begin);
    let lost = transitions(&lab).await? - leads;
    let metrics = Metrics::of(&lab.fleet.hub_ops_url()).await?;
    let longest = metrics.sum("runnel_index_lock_longest_seconds")?;
    ensure!(
        longest > 0.0,
        "the hub has not counted how long its index was held"
    );
    let at = (clusters, "clusters, 20 sources of 100 KiB");
    Ok(vec![
        reading(25, "rule to its plan", at, first, None),
        reading(25, "edit of the rule to its plan", at, edit, None),
        reading(
            25,
            "longest hold of the index lock",
            at,
            longest * 1000.0,
            None,
        ),
        reading(
            25,
            "hub memory at its peak",
            at,
            peak(lab.pid()?)? / MIB,
            None,
        ),
        reading(25, "leads lost", at, lost as f64, None),
    ])
}

/// Text as configuration has it: one line after another, of which each copy fills in one.
fn text(number: usize) -> String {
    let line = format!("upstream-{number}: {}\n", noise(number as u64, 200));
    let mut text = "cluster: ${cluster.name}\n".to_owned();
    while text.len() < TEXT {
        text.push_str(&line);
    }
    text
}

/// Writes the rule, and returns its generation.
async fn write(lab: &Lab, keys: &[&str]) -> Result<Option<i64>> {
    let rule: Value = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": {"name": RULE},
        "spec": {
            "sources": [{"resources": ["configmaps"], "names": [format!("{RULE}-*")]}],
            "clusters": {"all": true}, "substitute": {"keys": keys},
        },
    });
    let written = lab
        .rules()
        .patch(
            RULE,
            &PatchParams::apply("speed").force(),
            &Patch::Apply(rule),
        )
        .await?;
    Ok(written.metadata.generation)
}

/// Waits until so many sources are rendered: they count as intents from then on.
async fn planned(lab: &Lab, sources: usize) -> Result<()> {
    eventually("the plan of the rule", PATIENCE, async || {
        let metrics = Metrics::of(&lab.fleet.hub_ops_url()).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok((metrics.sum("runnel_hub_intents")? >= sources as f64).then_some(()))
    })
    .await
}

/// How often the lead has changed.
async fn transitions(lab: &Lab) -> Result<i32> {
    let leases: Api<Lease> = Api::namespaced(lab.client.clone(), NAMESPACE);
    let all = leases.list(&kube::api::ListParams::default()).await?;
    Ok(all
        .items
        .into_iter()
        .filter_map(|lease| lease.spec?.lease_transitions)
        .sum())
}
