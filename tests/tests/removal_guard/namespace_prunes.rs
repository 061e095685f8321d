//! Copies in former target namespaces, which only the members' agents know, wait for the approval
//! of exactly that set: after a namespace was relabeled, a grant was narrowed, or `spec.namespaces`
//! was edited.
use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, condition};
use serde_json::{Value, json};

use super::{HOME, MEMBERS, SOURCES, Stage};

/// Two namespaces by label, two by name.
const NAMESPACES: [&str; 4] = ["one", "two", "lit-1", "lit-2"];
const EVERYTHING: &str = "everything";

/// The copies of a namespace in each member, by uid.
type Copies = BTreeMap<(usize, String, String), String>;

fn by_name(names: &[&str]) -> Value {
    json!({"spec": {"namespaces": {"names": names}}})
}

async fn stage() -> Result<Stage> {
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS,
        views: true,
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&NAMESPACES).await?;
    for number in 0..SOURCES {
        let draft = Draft::config_map(HOME, &format!("s{number}"))
            .label("set", "a")
            .data("k", "v");
        scene.hub.make(&draft.json()).await?;
    }
    let stage = Stage {
        fleet,
        scene,
        rule: Id::rule(HOME, "all"),
    };
    for member in 1..=MEMBERS {
        for name in &NAMESPACES[..2] {
            stage.relabel(member, name, "yes").await?;
        }
    }
    let choice = json!({"selector": {"matchLabels": {"copies": "yes"}}, "names": &NAMESPACES[2..]});
    let rule = RuleDraft::new(HOME, "all")
        .labeled("set", "a")
        .with("clusters", json!({"all": true}));
    let limit = json!({"count": 10, "percent": 0});
    stage
        .scene
        .hub
        .make(
            &rule
                .with("namespaces", choice)
                .with("removalLimit", limit)
                .json(),
        )
        .await?;
    stage
        .scene
        .hub
        .all_applied(&stage.rule, MEMBERS * SOURCES * NAMESPACES.len())
        .await?;
    Ok(stage)
}

impl Stage {
    async fn relabel(&self, member: usize, namespace: &str, value: &str) -> Result<()> {
        let change = json!({"metadata": {"labels": {"copies": value}}});
        self.scene
            .member(member)
            .change(&Id::namespace(namespace), change)
            .await
            .map(|_| ())
    }

    async fn uids(&self) -> Result<Copies> {
        let mut all = Copies::new();
        for member in 1..=MEMBERS {
            for namespace in NAMESPACES {
                let like = Id::config_map(namespace, "s0");
                for object in self.scene.member(member).list(&like).await? {
                    let name = object["metadata"]["name"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned();
                    if name.starts_with('s') {
                        let uid = object["metadata"]["uid"]
                            .as_str()
                            .unwrap_or_default()
                            .to_owned();
                        all.insert((member, namespace.to_owned(), name), uid);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Waits until this many copies in former target namespaces are blocked in these members;
    /// returns the digest.
    async fn wait_for_blocked(&self, copies: u64, members: &[&str]) -> Result<String> {
        let what = format!("{copies} copies in former namespaces blocked");
        let observed = self.scene.hub.sees(&what, &self.rule, |rule| {
            let (blocked, namespace_prunes) = (
                condition(rule, "ApprovalRequired")?,
                &rule["status"]["pendingApproval"],
            );
            ensure!(
                namespace_prunes["copies"] == copies,
                "{blocked} {namespace_prunes}"
            );
            let digest = namespace_prunes["digest"].as_str().unwrap_or_default();
            let message = blocked["message"].as_str().unwrap_or_default();
            ensure!(
                digest.len() == 20
                    && message.contains("runnel.dev/approve=")
                    && message.contains(digest),
                "{message}"
            );
            ensure!(message.contains("namespaces in cluster"), "{message}");
            ensure!(
                members.iter().all(|member| message.contains(member)),
                "{message}"
            );
            let ready = condition(rule, "Ready")?;
            ensure!(
                ready["status"] == "False" && ready["reason"] == "RemovalLimit",
                "{ready}"
            );
            Ok(())
        });
        Ok(observed.await?["status"]["pendingApproval"]["digest"]
            .as_str()
            .context("no digest")?
            .to_owned())
    }

    async fn lacks_all(&self, member: usize, namespace: &str) -> Result<()> {
        for number in 0..SOURCES {
            self.scene
                .member(member)
                .lacks(&Id::config_map(namespace, &format!("s{number}")))
                .await?;
        }
        Ok(())
    }
}

fn without(all: &Copies, gone: &[(usize, &str)]) -> Copies {
    let is_gone = |member: usize, name: &str| gone.contains(&(member, name));
    all.iter()
        .filter(|((member, name, _), _)| !is_gone(*member, name))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

#[tokio::test]
async fn prunes_above_the_limit_wait_for_their_digest() -> Result<()> {
    let stage = stage().await?;
    let hub = &stage.scene.hub;
    let whole = stage.uids().await?;
    let all = MEMBERS * SOURCES * NAMESPACES.len();
    ensure!(whole.len() == all, "{whole:?}");

    // Relabeled by mistake, in one member; and undone. Nothing was touched.
    stage.relabel(1, "one", "no").await?;
    let first = stage.wait_for_blocked(12, &["member-1"]).await?;
    stage.blocked_metric(1.0).await?;
    let observed = hub.get(&stage.rule).await?;
    ensure!(
        observed["status"]["summary"]["copiesFailed"] == 0,
        "{}",
        observed["status"]["summary"]
    );
    stage.relabel(1, "one", "yes").await?;
    stage.is_not_blocked().await?;
    hub.all_applied(&stage.rule, all).await?;
    ensure!(stage.uids().await? == whole);

    // A grant that names fewer namespaces, in all members; and undone.
    let everything = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": EVERYTHING}});
    let everything = Id::of(&everything)?;
    let granted = |namespaces: Value| json!({"spec": {"namespaces": namespaces}});
    hub.change(
        &everything,
        granted(json!({"all": null, "names": ["one", "lit-*"]})),
    )
    .await?;
    stage
        .wait_for_blocked(24, &["member-1", "member-2"])
        .await?;
    hub.change(&everything, granted(json!({"all": true, "names": null})))
        .await?;
    stage.is_not_blocked().await?;
    hub.all_applied(&stage.rule, all).await?;
    ensure!(stage.uids().await? == whole);

    // The same set needs a new approval.
    stage.relabel(1, "one", "no").await?;
    ensure!(
        stage.wait_for_blocked(12, &["member-1"]).await? != first,
        "the former digest fits again"
    );

    // A literal name is deleted on purpose: its copies are removed at once, and no others.
    hub.change(&stage.rule, by_name(&["lit-1"])).await?;
    for member in 1..=MEMBERS {
        stage.lacks_all(member, "lit-2").await?;
    }
    let left = without(&whole, &[(1, "lit-2"), (2, "lit-2")]);
    ensure!(stage.uids().await? == left);

    // Hub and agent die. What is relabeled while there is no hub joins it. All of it has the same name before and after.
    stage.fleet.kill_hub()?;
    stage.relabel(2, "two", "no").await?;
    stage.fleet.start_hub().await?;
    for member in 1..=MEMBERS {
        stage.fleet.connected(member).await?;
    }
    let grown = stage
        .wait_for_blocked(24, &["member-1", "member-2"])
        .await?;
    ensure!(grown != first);
    stage.fleet.kill_agent(1)?;
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    stage.fleet.start_agent(1).await?;
    for member in 1..=MEMBERS {
        stage.fleet.connected(member).await?;
    }
    ensure!(
        stage
            .wait_for_blocked(24, &["member-1", "member-2"])
            .await?
            == grown,
        "another digest after restarts"
    );
    ensure!(stage.uids().await? == left);

    // The former digest approves nothing, and neither does a read. Then exactly that set is
    // removed, and nothing else.
    stage.approve(&stage.rule, &first).await?;
    stage.fleet.views_are_served().await?;
    let shown = runnel_tests::wait::eventually(
        "both members to have spoken",
        runnel_tests::scene::SOON,
        async || {
            let (code, output) = stage.runnel(&["approve", "all"]).await?;
            ensure!(code == Some(2) && output.contains("--yes"), "{output}");
            let lines = [
                "12 copies in member-1: in namespaces that are no longer targets (one)",
                "12 copies in member-2: in namespaces that are no longer targets (two)",
            ];
            Ok(lines.iter().all(|line| output.contains(line)).then_some(()))
        },
    );
    shown.await?;
    ensure!(stage.wait_for_blocked(24, &[]).await? == grown && stage.uids().await? == left);
    let (code, output) = stage.runnel(&["approve", "all", "--yes"]).await?;
    ensure!(
        code == Some(0) && output.contains("Approved: 24 copies"),
        "{output}"
    );
    stage.lacks_all(1, "one").await?;
    stage.lacks_all(2, "two").await?;
    let observed = stage.is_not_blocked().await?;
    ensure!(
        observed["status"]["pendingApproval"].is_null(),
        "{}",
        observed["status"]
    );
    hub.all_applied(&stage.rule, 4 * SOURCES).await?;
    ensure!(stage.uids().await? == without(&left, &[(1, "one"), (2, "two")]));
    stage.blocked_metric(0.0).await?;

    // Selected again they are created again; deselected again they are another set. A removal
    // within the limit needs no approval.
    stage.relabel(1, "one", "yes").await?;
    hub.all_applied(&stage.rule, 5 * SOURCES).await?;
    stage.relabel(1, "one", "no").await?;
    ensure!(![first, grown].contains(&stage.wait_for_blocked(12, &["member-1"]).await?));
    stage.relabel(1, "one", "yes").await?;
    stage.is_not_blocked().await?;
    hub.change(
        &stage.rule,
        json!({"spec": {"removalLimit": {"count": 12}}}),
    )
    .await?;
    hub.all_applied(&stage.rule, 5 * SOURCES).await?;
    stage.relabel(1, "one", "no").await?;
    stage.lacks_all(1, "one").await?;
    hub.all_applied(&stage.rule, 4 * SOURCES).await?;

    // Two sources are deselected as well, which only the hub knows: one approval shows both
    // removals, and carries both out.
    hub.change(&stage.rule, json!({"spec": {"removalLimit": {"count": 0}}}))
        .await?;
    let before = stage.uids().await?;
    for number in 0..2 {
        stage.label(number, "b").await?;
    }
    let deselected = hub.sees("8 copies of deselected sources held", &stage.rule, |rule| {
        ensure!(
            rule["status"]["pendingApproval"]["copies"] == 8,
            "{}",
            rule["status"]
        );
        Ok(())
    });
    deselected.await?;
    stage.relabel(2, "one", "no").await?;
    stage
        .wait_for_blocked(20, &["member-2", "configmaps/guarded/s0"])
        .await?;
    let (code, output) = stage.runnel(&["approve", "all"]).await?;
    ensure!(code == Some(2), "{output}");
    for line in [
        "configmaps/guarded/s1 everywhere: no longer selected",
        "12 copies in member-2: in namespaces that are no longer targets (one)",
    ] {
        ensure!(output.contains(line), "{output}");
    }
    ensure!(stage.uids().await? == before);
    let (code, output) = stage.runnel(&["approve", "all", "--yes"]).await?;
    ensure!(
        code == Some(0) && output.contains("Approved: 20 copies are being removed"),
        "{output}"
    );
    let observed = stage.is_not_blocked().await?["status"].clone();
    ensure!(observed["pendingApproval"].is_null(), "{observed}");
    hub.all_applied(&stage.rule, 3 * (SOURCES - 2)).await?;
    let goes = |(member, namespace, name): &(usize, String, String)| {
        ["s0", "s1"].contains(&name.as_str()) || (*member, namespace.as_str()) == (2, "one")
    };
    let left: Copies = before.into_iter().filter(|(copy, _)| !goes(copy)).collect();
    ensure!(stage.uids().await? == left);
    Ok(())
}
