//! Objects of every kind that a member serves: distributed, equal, quiet, corrected field by field, edited, pruned, removed.

#[path = "every_kind/samples.rs"]
mod samples;
#[path = "every_kind/values.rs"]
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::discovery::{Discovery, verbs};
use runnel_tests::control_plane::Options;
use runnel_tests::files::is_generated;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Id, RuleDraft, SOON, Scene, TestCluster};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

use samples::{Sample, samples};
use values::{differences, is_key, leaves, other_value};

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

/// Waits until both members have this content of the source.
async fn is_equal_everywhere(scene: &Scene, sample: &Sample, wanted: &Value) -> Result<()> {
    let source = scene.hub.get(&Id::of(wanted)?).await?;
    for number in 1..=MEMBERS {
        let what = format!("{} as on the hub", sample.resource);
        let id = Id::of(wanted)?;
        let seen = scene.member(number).sees(&what, &id, |copy| {
            let differences = differences(wanted, &source, copy);
            ensure!(differences.is_empty(), "{differences:?}");
            for pointer in &sample.prune {
                let is_pruned = wanted.pointer(pointer).is_none();
                ensure!(
                    !is_pruned || source.pointer(pointer) == copy.pointer(pointer),
                    "{pointer} is still there"
                );
            }
            Ok(())
        });
        seen.await?;
    }
    Ok(())
}

/// Changes every field of a copy that can be changed, and waits until each has its value again.
async fn is_corrected(member: &TestCluster, sample: &Sample) -> Result<Finding> {
    let wanted = &sample.source(NAMESPACE);
    let id = Id::of(wanted)?;
    let before = member.get(&id).await?;
    let mut finding = Finding::default();
    let mut changes = Vec::new();
    let in_set = |pointer: &str| sample.sets.iter().any(|set| pointer.starts_with(set));
    let leaves = leaves(wanted).into_iter();
    for pointer in leaves.filter(|pointer| !is_key(pointer) && !in_set(pointer)) {
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

/// Lets another manager apply fields to a copy.
async fn add_foreign_fields(member: &TestCluster, sample: &Sample) -> Result<Value> {
    let source = sample.source(NAMESPACE);
    let mut fields = json!({
        "apiVersion": source["apiVersion"],
        "kind": source["kind"],
        "metadata": {
            "name": sample.name(),
            "labels": {"example.com/local": "yes"},
            "annotations": {"example.com/local": "yes"},
        },
    });
    if let Some(namespace) = source["metadata"].get("namespace") {
        fields["metadata"]["namespace"] = namespace.clone();
    }
    if let Some(Value::Object(foreign)) = &sample.foreign {
        for (field, value) in foreign {
            fields[field] = value.clone();
        }
    }
    member.apply_as("local-team", &fields).await?;
    Ok(fields)
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

/// Waits until an object is gone. A finalizer of the cluster may hold it longer.
async fn is_removed(member: &TestCluster, id: &Id) -> Result<()> {
    eventually(&format!("{id} removed"), SOON, async || {
        if let Some(copy) = member.find(id).await? {
            let metadata = &copy["metadata"];
            ensure!(
                metadata["deletionTimestamp"].is_string() && metadata["finalizers"].is_array(),
                "it is still there"
            );
        }
        Ok(Some(()))
    })
    .await
}

/// Returns the table of the manual.
fn table(findings: &BTreeMap<&str, Finding>) -> String {
    let mut text = String::from(
        "# Kinds\n\n\
         This page is generated by `cargo test -p runnel-tests --test every_kind`. Two members with a real API server take one object of\n\
         each kind. Each copy equals its source, and nothing is written for 60 s. Each field that can be changed in a copy is\n\
         corrected; fields of other managers stay. Edits arrive, fields that leave the source leave the copy, and the removal of\n\
         the rule removes the copies.\n\n\
         | kind | fields changed and corrected | fields that the API server makes immutable |\n|---|---|---|\n",
    );
    for (resource, finding) in findings {
        let Finding { corrected, fixed } = finding;
        _ = writeln!(text, "| `{resource}` | {corrected} | {fixed} |");
    }
    text
}

#[tokio::test]
async fn every_kind_is_distributed_corrected_and_removed() -> Result<()> {
    let samples = samples()?;
    let resources: Vec<&str> = samples.iter().map(|sample| &*sample.resource).collect();
    let of_scope = |cluster: bool| -> Vec<&str> {
        let kinds = samples.iter().filter(|sample| sample.cluster == cluster);
        kinds.map(|sample| &*sample.resource).collect()
    };
    let (kinds, cluster_kinds) = (of_scope(false), of_scope(true));
    // Who removes the finalizers of these kinds: the removal of later copies waits for them.
    let protection = [
        "persistentvolumeclaim",
        "persistentvolume",
        "volumeattributesclass",
    ];
    let control_plane = Options {
        controllers: protection
            .map(|kind| format!("{kind}-protection-controller"))
            .to_vec(),
        ..Options::default()
    };
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS,
        control_plane,
        hub_values: json!({"sources": {"kinds": kinds, "clusterKinds": cluster_kinds}}),
        agent_values: json!({"policy": {
            "kinds": kinds, "clusterKinds": cluster_kinds, "allowPrivileged": resources, "deleteNamespaces": true,
        }}),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    scene.lift_fleet_limits().await?;
    scene.hub_namespaces(&[NAMESPACE]).await?;
    scene.member_namespaces(&[NAMESPACE]).await?;
    for definition in samples.iter().filter_map(Sample::definition) {
        for cluster in std::iter::once(&scene.hub).chain(&scene.members) {
            cluster.make(&definition).await?;
        }
    }

    // No kind is forgotten.
    let known: BTreeSet<&str> = resources
        .iter()
        .copied()
        .chain(LOCAL.iter().copied())
        .collect();
    let all_served = eventually("the custom kinds to be served", SOON, async || {
        let served = served(scene.member(1)).await?;
        ensure!(
            resources.iter().all(|resource| served.contains(*resource)),
            "{served:?}"
        );
        Ok(Some(served))
    })
    .await?;
    let forgotten: Vec<_> = all_served
        .iter()
        .filter(|kind| !known.contains(kind.as_str()) && !kind.ends_with("runnel.dev"))
        .collect();
    ensure!(
        forgotten.is_empty(),
        "kinds without a sample: {forgotten:?}"
    );

    for sample in &samples {
        scene.hub.make_soon(&sample.source(NAMESPACE)).await?;
    }
    let mut rule = RuleDraft::cluster_scoped(NAMESPACE).everywhere();
    let names: BTreeSet<&str> = samples.iter().map(Sample::name).collect();
    for resources in kinds.chunks(10) {
        rule = rule.source(json!({
            "namespaces": [NAMESPACE],
            "resources": resources,
            "names": names,
        }));
    }
    for resources in cluster_kinds.chunks(10) {
        rule = rule.source(json!({"resources": resources, "names": names}));
    }
    let rule = Id::of(&scene.hub.make(&rule.json()).await?)?;
    scene
        .hub
        .all_written(&rule, samples.len() * MEMBERS)
        .await?;
    for sample in &samples {
        is_equal_everywhere(&scene, sample, &sample.source(NAMESPACE)).await?;
    }

    // Controllers write statuses; the agents write nothing.
    let marks: Vec<_> = (1..=MEMBERS)
        .map(|number| fleet.member(number).mark())
        .collect();
    steadily("no agent writes", QUIET, async || {
        for (number, mark) in (1..=MEMBERS).zip(&marks) {
            let writes = fleet.member(number).writes_since(*mark)?;
            let ours: Vec<_> = writes
                .iter()
                .filter(|write| write.user.contains("runnel-agent"))
                .filter(|write| write.namespace == NAMESPACE || names.contains(&*write.name))
                .collect();
            ensure!(ours.is_empty(), "{ours:?}");
        }
        Ok(())
    })
    .await?;

    let member = scene.member(1);
    let mut foreign = Vec::new();
    for sample in &samples {
        foreign.push(
            add_foreign_fields(member, sample)
                .await
                .with_context(|| sample.resource.clone())?,
        );
    }
    let findings: BTreeMap<&str, Finding> = stream::iter(&samples)
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
    scene
        .hub
        .all_written(&rule, samples.len() * MEMBERS)
        .await?;

    for sample in &samples {
        let mut wanted = sample.source(NAMESPACE);
        let id = Id::of(&wanted)?;
        let note = json!({"metadata": {"labels": {"tier": "silver", "color": null}}});
        for change in sample.edit.iter().chain([&note]) {
            scene.hub.change(&id, change.clone()).await?;
            json_patch::merge(&mut wanted, change);
        }
        is_equal_everywhere(&scene, sample, &wanted).await?;
        ensure!(
            member.get(&id).await?["metadata"]["labels"]["color"].is_null(),
            "a label that left the source of {} stays",
            sample.resource
        );
    }
    for sample in &samples {
        let mut wanted = sample.source(NAMESPACE);
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
        is_equal_everywhere(&scene, sample, &wanted).await?;
    }
    for fields in &foreign {
        has_foreign_fields(member, fields).await?;
    }

    scene
        .hub
        .change(&rule, json!({"spec": {"removalLimit": {"percent": 100}}}))
        .await?;
    scene.hub.delete(&rule).await?;
    scene.hub.lacks(&rule).await?;
    for sample in &samples {
        for number in 1..=MEMBERS {
            is_removed(scene.member(number), &Id::of(&sample.source(NAMESPACE))?).await?;
        }
    }
    is_generated(
        "deploy/manual/src/reference/kinds.md",
        &table(&findings),
        "cargo test -p runnel-tests --test every_kind",
    )
}
