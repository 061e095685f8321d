//! `spec.enforcement: DryRun` of a saved rule: agents report each change and write nothing. With
//! `Enforce` they make exactly these changes.
use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use runnel_tests::audit::Mark;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, condition, entry_of};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::{Name, became, objects};

const HOME: &str = "saved";
const OPEN: &str = "saved-open";
const OLD: &str = "saved-old";
/// The members' policies deny this namespace.
const CLOSED: &str = "saved-closed";

/// The counts of a dry run in one cluster.
#[derive(Debug, PartialEq, Eq)]
struct Planned {
    create: u64,
    update: u64,
    delete: u64,
    failed: u64,
}

impl Planned {
    /// Reads the counts of an entry of `status.clusters`.
    fn of(entry: &Value) -> Self {
        let count = |field: &str| entry[field].as_u64().unwrap_or_default();
        Self {
            create: count("toCreate"),
            update: count("toUpdate"),
            delete: count("toDelete"),
            failed: count("failed"),
        }
    }
}

/// The rule applies `edited` in two namespaces of both members. One member has another `taken`.
async fn set_up(scene: &Scene) -> Result<Value> {
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[OPEN, OLD, CLOSED]).await?;
    for name in ["edited", "fresh", "taken"] {
        let source = Draft::config_map(HOME, name).data("k", "first").json();
        scene.hub.make(&source).await?;
    }
    let theirs = Draft::config_map(OPEN, "taken").data("k", "theirs").json();
    scene.member(1).make(&theirs).await?;
    let rule = RuleDraft::new(HOME, "all")
        .named(&["edited"])
        .everywhere()
        .into(&[OPEN, OLD])
        .json();
    scene.hub.make(&rule).await?;
    scene.hub.all_applied(&Id::of(&rule)?, 4).await?;
    Ok(rule)
}

/// Returns the writes of the agents to copies since a mark of each audit log.
fn writes(fleet: &Fleet, marks: &[Mark]) -> Result<Vec<String>> {
    let mut all = vec![];
    for (number, mark) in (1..).zip(marks) {
        let ours = fleet.member(number).writes_since(*mark)?;
        let copies = ours
            .into_iter()
            .filter(|write| write.resource == "configmaps" && write.namespace.starts_with(HOME));
        all.extend(copies.map(|write| format!("{write:?}")));
    }
    Ok(all)
}

#[tokio::test]
async fn dry_run_reports_what_enforce_does() -> Result<()> {
    let agent_values = json!({"policy": {"deniedNamespaces": [CLOSED]}});
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        agent_values,
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    let rule = set_up(&scene).await?;
    let id = Id::of(&rule)?;
    let before = objects(&scene, HOME).await?;
    let marks = [fleet.member(1).mark(), fleet.member(2).mark()];

    let dry_run = RuleDraft::new(HOME, "all")
        .named(&["edited", "fresh", "taken"])
        .everywhere()
        .into(&[OPEN, CLOSED])
        .with("enforcement", json!("DryRun"))
        .json();
    let spec = json!([{"op": "replace", "path": "/spec", "value": dry_run["spec"]}]);
    scene.hub.json_patch(&id, spec).await?;
    let edit = json!({"data": {"k": "second"}});
    scene
        .hub
        .change(&Id::config_map(HOME, "edited"), edit)
        .await?;
    let expected = [
        // What fails: the object of another client, and three copies in the closed namespace.
        Planned {
            create: 1,
            update: 1,
            delete: 1,
            failed: 4,
        },
        Planned {
            create: 2,
            update: 1,
            delete: 1,
            failed: 3,
        },
    ];
    let reported = scene
        .hub
        .sees("the planned changes", &id, |object| {
            ensure!(
                object["status"]["observedGeneration"] == object["metadata"]["generation"],
                "not looked at"
            );
            for (member, expected) in scene.members.iter().zip(&expected) {
                let entry = entry_of(object, member.name())?;
                ensure!(Planned::of(entry) == *expected, "it is {entry}");
            }
            Ok(())
        })
        .await?;
    let summary = &reported["status"]["summary"];
    for (field, sum) in [
        ("copiesToCreate", 3),
        ("copiesToUpdate", 2),
        ("copiesToDelete", 2),
        ("copiesFailed", 7),
    ] {
        ensure!(summary[field] == sum, "{field}: {summary}");
    }
    ensure!(condition(&reported, "DryRun")?["status"] == "True");
    let ready = condition(&reported, "Ready")?;
    ensure!(
        ready["status"] == "False" && ready["reason"] == "DryRun",
        "{ready}"
    );
    ensure!(
        objects(&scene, HOME).await? == before,
        "the dry run has changed something"
    );
    let tried = writes(&fleet, &marks)?;
    ensure!(tried.is_empty(), "the dry run has written: {tried:?}");

    scene
        .hub
        .change(&id, json!({"spec": {"enforcement": "Enforce"}}))
        .await?;
    let is = eventually("the planned changes to be made", SOON, async || {
        let object = scene.hub.get(&id).await?;
        let is_settled = object["status"]["observedGeneration"] == object["metadata"]["generation"]
            && object["status"]["summary"]["copiesApplied"] == 5
            && object["status"]["summary"]["copiesFailed"] == 7;
        // Read after the status, so that it has at least the copies that the status counts.
        let after = objects(&scene, HOME).await?;
        let names = before.keys().chain(after.keys());
        let is: BTreeMap<Name, &str> = names
            .map(|name| (name.clone(), became(before.get(name), after.get(name))))
            .collect();
        let is_gone = !is
            .iter()
            .any(|((_, copy), is)| copy.contains(OLD) && *is != "gone");
        Ok((is_settled && is_gone).then_some(is))
    })
    .await?;
    let of = |member: usize, namespace: &str, name: &str| {
        let cluster = scene.member(member).name().to_owned();
        (cluster, format!("configmaps/{namespace}/{name}"))
    };
    let mut should = BTreeMap::new();
    for member in [1, 2] {
        should.insert(of(member, OPEN, "edited"), "written");
        should.insert(of(member, OPEN, "fresh"), "made");
        should.insert(of(member, OLD, "edited"), "gone");
    }
    should.insert(of(1, OPEN, "taken"), "same");
    should.insert(of(2, OPEN, "taken"), "made");
    ensure!(is == should, "{is:#?}");
    let done = writes(&fleet, &marks)?;
    // Each change is one write: three in one member, four in the other.
    ensure!(done.len() == 7, "{done:#?}");
    scene
        .member(1)
        .get(&Id::config_map(OPEN, "taken"))
        .await
        .context("the object of another client")
        .map(drop)
}
