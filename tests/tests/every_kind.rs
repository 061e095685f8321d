//! Objects of every kind that a member serves: distributed, equal, quiet, corrected field by field, edited, pruned, removed.

#[path = "every_kind/samples.rs"]
mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::discovery::{Discovery, verbs};
use runnel_tests::control_plane::Options;
use runnel_tests::files::is_generated;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Id, RuleDraft, SOON, TestCluster};
use runnel_tests::specimens::{Specimen, Specimens, differences, leaves, other_value};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use samples::samples;

const NAMESPACE: &str = "kinds";
const MEMBERS: usize = 2;
/// The time in which nothing may be written.
const QUIET: Duration = Duration::from_secs(60);
/// Kinds that are dealt with at a time.
const AT_ONCE: usize = 6;

/// Kinds that no cluster takes from another one.
const LOCAL: &[&str] = &[
    "certificatesigningrequests.certificates.k8s.io",
    "controllerrevisions.apps",
    "csinodes.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "events",
    "events.events.k8s.io",
    "ipaddresses.networking.k8s.io",
    "leases.coordination.k8s.io",
    "nodes",
    "resourceslices.resource.k8s.io",
    "servicecidrs.networking.k8s.io",
    "volumeattachments.storage.k8s.io",
];

/// What was found for one kind.
#[derive(Default)]
struct Finding {
    /// Number of fields that were changed in a copy, and corrected.
    corrected: usize,
    /// Fields that the API server makes immutable.
    fixed: usize,
}

/// Returns the kinds that an API server creates, changes and lists.
async fn served(cluster: &TestCluster) -> Result<BTreeSet<String>> {
    let discovery = Discovery::new(cluster.client()).run_aggregated().await?;
    let mut kinds = BTreeSet::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            let needed = [verbs::CREATE, verbs::PATCH, verbs::LIST];
            if needed
                .iter()
                .all(|verb| capabilities.supports_operation(verb))
            {
                kinds.insert(match resource.group.as_str() {
                    "" => resource.plural,
                    group => format!("{}.{group}", resource.plural),
                });
            }
        }
    }
    Ok(kinds)
}

/// Changes every field of a copy that can be changed, and waits until each has its value again.
async fn is_corrected(member: &TestCluster, sample: &Specimen) -> Result<Finding> {
    let wanted = &sample.source;
    let id = Id::of(wanted)?;
    let before = member.get(&id).await?;
    let mut finding = Finding::default();
    let mut changes = Vec::new();
    for pointer in sample.values() {
        let value = before
            .pointer(&pointer)
            .with_context(|| format!("no {pointer} in {id}"))?;
        let change = json!({"op": "replace", "path": pointer, "value": other_value(value)});
        if member.accepts(&id, json!([change])).await? {
            changes.push((pointer, change));
        } else {
            finding.fixed += 1;
        }
    }
    let all: Vec<&Value> = changes.iter().map(|(_, change)| change).collect();
    let all = json!(all);
    // Some fields depend on each other: then the first half or the other is changed.
    let changed = if member.accepts(&id, all.clone()).await? {
        member.json_patch(&id, all).await?;
        changes.len()
    } else {
        let mut changed = 0;
        for (pointer, change) in &changes {
            if member.json_patch(&id, json!([change])).await.is_err() {
                continue;
            }
            changed += 1;
            let value = before.pointer(pointer);
            member
                .sees(&format!("{pointer} corrected"), &id, |copy| {
                    ensure!(
                        copy.pointer(pointer) == value,
                        "it is {:?}",
                        copy.pointer(pointer)
                    );
                    Ok(())
                })
                .await?;
        }
        changed
    };
    finding.corrected = changed;
    member
        .sees("every field corrected", &id, |copy| {
            let differences = differences(wanted, &before, copy);
            ensure!(differences.is_empty(), "{differences:?}");
            Ok(())
        })
        .await?;
    Ok(finding)
}

/// Checks that the fields of another manager stay.
async fn has_foreign_fields(member: &TestCluster, fields: &Value) -> Result<()> {
    let copy = member.get(&Id::of(fields)?).await?;
    for pointer in leaves(fields) {
        // Items of lists with keys have other places in the copy.
        let in_list = pointer.split('/').any(|part| part.parse::<usize>().is_ok());
        ensure!(
            in_list || copy.pointer(&pointer) == fields.pointer(&pointer),
            "{pointer} is {:?} in {}",
            copy.pointer(&pointer),
            Id::of(fields)?
        );
    }
    for metadata in ["labels", "annotations"] {
        ensure!(
            copy["metadata"][metadata]["example.com/local"] == "yes",
            "the {metadata} of another manager are gone from {}",
            Id::of(fields)?
        );
    }
    Ok(())
}

/// Returns the table of the manual.
fn table(findings: &BTreeMap<&str, Finding>) -> String {
    let mut text = String::from(
        "# Kinds\n\n\
         This page is generated by `cargo test -p runnel-tests --test every_kind`. Two members with a real API server take one object of\n\
         each kind. Each copy equals its source, and nothing is written for 60 s. Each field that can be changed in a copy is\n\
         corrected; fields of other managers stay. Edits arrive, fields that leave the source leave the copy, and the removal of\n\
         the rule removes the copies.\n\n\
         Then the copies live a second time. Clients and controllers replace them, with and without marks. `kubectl` applies them, and\n\
         another server-side manager. Their items are renumbered and reordered. They are deleted with each propagation and with a\n\
         finalizer. Custom kinds move to another version. At last the copies are retained, adopted back and overwritten.\n\n\
         | kind | fields changed and corrected | fields that the API server makes immutable |\n|---|---|---|\n",
    );
    for (resource, finding) in findings {
        let Finding { corrected, fixed } = finding;
        _ = writeln!(text, "| `{resource}` | {corrected} | {fixed} |");
    }
    text
}

/// A fleet that allows every kind.
async fn start() -> Result<Specimens> {
    let samples = samples(NAMESPACE)?;
    let resources: BTreeSet<&str> = samples.iter().map(|sample| &*sample.resource).collect();
    let of_scope = |cluster: bool| -> Vec<&str> {
        let is_of =
            |sample: &&Specimen| sample.source["metadata"]["namespace"].is_null() == cluster;
        let kinds = samples.iter().filter(is_of);
        kinds.map(|sample| &*sample.resource).collect()
    };
    let (kinds, cluster_kinds) = (of_scope(false), of_scope(true));
    // Who removes the finalizers of these kinds: the removal of later copies waits for them.
    let controllers = [
        "namespace",
        "persistentvolumeclaim-protection",
        "persistentvolume-protection",
        "volumeattributesclass-protection",
    ];
    let control_plane = Options {
        controllers: controllers
            .map(|name| format!("{name}-controller"))
            .to_vec(),
        ..Options::default()
    };
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS,
        control_plane,
        hub_values: json!({"sources": {"kinds": kinds, "clusterKinds": cluster_kinds}}),
        agent_values: json!({"policy": {
            "kinds": kinds, "clusterKinds": cluster_kinds, "allowPrivileged": resources, "deleteNamespaces": true, "overwrite": true,
        }}),
        ..FleetOptions::default()
    })
    .await?;
    let world = Specimens::make(fleet, NAMESPACE, samples.clone()).await?;

    // No kind is forgotten.
    let known: BTreeSet<&str> = resources.into_iter().chain(LOCAL.iter().copied()).collect();
    let served = eventually("the custom kinds to be served", SOON, async || {
        let served = served(world.scene.member(1)).await?;
        ensure!(
            samples
                .iter()
                .all(|sample| served.contains(&sample.resource)),
            "{served:?}"
        );
        Ok(Some(served))
    })
    .await?;
    let forgotten: Vec<_> = served
        .iter()
        .filter(|kind| !known.contains(kind.as_str()) && !kind.ends_with("runnel.dev"))
        .collect();
    ensure!(
        forgotten.is_empty(),
        "kinds without a sample: {forgotten:?}"
    );
    Ok(world)
}

#[tokio::test]
async fn every_kind_is_distributed_corrected_and_removed() -> Result<()> {
    let mut world = start().await?;
    world
        .distribute(RuleDraft::cluster_scoped(NAMESPACE).everywhere())
        .await?;
    for sample in &world.all {
        world.is_equal_everywhere(sample, &sample.source).await?;
    }

    world.is_quiet(QUIET).await?;

    let (scene, samples) = (&world.scene, &world.all);
    let member = scene.member(1);
    let mut foreign = Vec::new();
    for sample in samples {
        foreign.push(sample.add_foreign_fields(member).await?);
    }
    let findings: BTreeMap<&str, Finding> = stream::iter(samples)
        .map(async |sample| {
            let finding = is_corrected(member, sample).await;
            let finding = finding.with_context(|| sample.resource.clone())?;
            anyhow::Ok((&*sample.resource, finding))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    for fields in &foreign {
        has_foreign_fields(member, fields).await?;
    }
    world.has_all_written().await?;

    for sample in samples {
        let mut wanted = sample.source.clone();
        let id = Id::of(&wanted)?;
        let note = json!({"metadata": {"labels": {"tier": "silver", "color": null}}});
        for change in sample.edit.iter().chain([&note]) {
            scene.hub.change(&id, change.clone()).await?;
            json_patch::merge(&mut wanted, change);
        }
        world.is_equal_everywhere(sample, &wanted).await?;
        ensure!(
            member.get(&id).await?["metadata"]["labels"]["color"].is_null(),
            "a label that left the source of {} stays",
            sample.resource
        );
    }
    for sample in samples {
        let mut wanted = sample.source.clone();
        let id = Id::of(&wanted)?;
        if let Some(edit) = &sample.edit {
            json_patch::merge(&mut wanted, edit);
        }
        wanted["metadata"]["labels"] = json!({"tier": "silver"});
        for pointer in &sample.prune {
            if wanted.pointer(pointer).is_none() {
                continue;
            }
            let remove = json!([{"op": "remove", "path": pointer}]);
            scene.hub.json_patch(&id, remove.clone()).await?;
            json_patch::patch(
                &mut wanted,
                &serde_json::from_value::<json_patch::Patch>(remove)?,
            )?;
        }
        world.is_equal_everywhere(sample, &wanted).await?;
    }
    for fields in &foreign {
        has_foreign_fields(member, fields).await?;
    }

    world.delete_rule().await?;
    world.is_empty().await?;
    is_generated(
        "deploy/manual/src/reference/kinds.md",
        &table(&findings),
        "cargo test -p runnel-tests --test every_kind",
    )
}

#[tokio::test]
async fn every_kind_is_kept_through_a_second_life() -> Result<()> {
    let mut world = start().await?;
    world
        .distribute(RuleDraft::cluster_scoped("second").everywhere())
        .await?;
    world.live_again().await
}
