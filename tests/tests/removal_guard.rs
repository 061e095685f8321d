//! The removal guard: removals above a limit are blocked everywhere until a user approves exactly
//! that set.

#[path = "removal_guard/definition.rs"]
mod definition;
#[path = "removal_guard/edits.rs"]
mod edits;
#[path = "removal_guard/mishaps.rs"]
mod mishaps;
#[path = "removal_guard/namespace_prunes.rs"]
mod namespace_prunes;

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Metrics, RuleDraft, SOON, Scene, condition};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::process::Command;

const HOME: &str = "guarded";
const SOURCES: usize = 12;
const MEMBERS: usize = 2;

struct Stage {
    fleet: Fleet,
    scene: Scene,
    rule: Id,
}

impl Stage {
    fn copy(number: usize) -> Id {
        Id::config_map(HOME, &format!("s{number}"))
    }

    /// Which of the sources have a copy in a member.
    async fn copies(&self, member: usize) -> Result<Vec<usize>> {
        let mut there = vec![];
        for number in 0..SOURCES {
            if self
                .scene
                .member(member)
                .find(&Self::copy(number))
                .await?
                .is_some()
            {
                there.push(number);
            }
        }
        Ok(there)
    }

    /// Waits until this many copies are blocked; returns the digest. Nothing is missing anywhere.
    async fn is_blocked(&self, copies: usize, all: usize) -> Result<String> {
        self.is_blocked_of(&self.rule, copies, all).await
    }

    async fn is_blocked_of(&self, rule: &Id, copies: usize, all: usize) -> Result<String> {
        let what = format!("{copies} copies held");
        let observed = self.scene.hub.sees(&what, rule, |rule| {
            let blocked = condition(rule, "ApprovalRequired")?;
            let removal = &rule["status"]["pendingApproval"];
            ensure!(
                blocked["status"] == "True" && removal["copies"] == copies,
                "{blocked}"
            );
            let digest = removal["digest"].as_str().unwrap_or_default();
            let message = blocked["message"].as_str().unwrap_or_default();
            ensure!(
                digest.len() == 20 && message.contains(&format!("runnel.dev/approve={digest}")),
                "{message}"
            );
            let ready = condition(rule, "Ready")?;
            ensure!(
                ready["status"] == "False" && ready["reason"] == "RemovalLimit",
                "{ready}"
            );
            Ok(())
        });
        let observed = observed.await?;
        for member in 1..=MEMBERS {
            let there = self.copies(member).await?;
            ensure!(there.len() == all, "member {member} has {there:?}");
        }
        Ok(observed["status"]["pendingApproval"]["digest"]
            .as_str()
            .context("no digest")?
            .to_owned())
    }

    async fn is_not_blocked(&self) -> Result<Value> {
        let free = |rule: &Value| {
            ensure!(
                condition(rule, "ApprovalRequired").is_err(),
                "still blocked"
            );
            Ok(())
        };
        self.scene
            .hub
            .sees("nothing blocked", &self.rule, free)
            .await
    }

    async fn approve(&self, rule: &Id, digest: &str) -> Result<()> {
        let change = json!({"metadata": {"annotations": {"runnel.dev/approve": digest}}});
        self.scene.hub.change(rule, change).await.map(|_| ())
    }

    /// The deletion of a blocked rule is carried out after the approval, with all its copies.
    async fn ends(&self, digest: &str) -> Result<()> {
        self.approve(&self.rule, digest).await?;
        self.scene.hub.lacks(&self.rule).await?;
        for member in 1..=MEMBERS {
            ensure!(self.copies(member).await?.is_empty());
        }
        Ok(())
    }

    /// The plugin's exit code and words.
    async fn runnel(&self, words: &[&str]) -> Result<(Option<i32>, String)> {
        let mut command = Command::new(self.plugin());
        command.args(self.arguments(words)).stdin(Stdio::null());
        self.ended(command, words).await
    }

    /// As above, with a terminal and this input.
    async fn answered(&self, words: &[&str], types: &str) -> Result<(Option<i32>, String)> {
        let quoted = |text: &str| format!("'{text}'");
        let called: Vec<_> = self
            .arguments(words)
            .iter()
            .map(|word| quoted(word))
            .collect();
        let called = format!(
            "{} {}",
            quoted(&self.plugin().display().to_string()),
            called.join(" ")
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &called, "/dev/null"]);
        let typed = self.fleet.hub().folder().join("typed");
        std::fs::write(&typed, types)?;
        command.stdin(std::fs::File::open(typed)?);
        self.ended(command, words).await
    }

    fn plugin(&self) -> PathBuf {
        self.fleet.binaries().folder.join("kubectl-runnel")
    }

    fn arguments(&self, words: &[&str]) -> Vec<String> {
        let kubeconfig = self.fleet.hub().kubeconfig().display().to_string();
        let flags = ["-n", HOME, "--kubeconfig", &kubeconfig];
        words
            .iter()
            .chain(&flags)
            .map(|word| (*word).to_owned())
            .collect()
    }

    async fn ended(&self, mut command: Command, words: &[&str]) -> Result<(Option<i32>, String)> {
        command.kill_on_drop(true);
        let output = tokio::time::timeout(SOON, command.output())
            .await
            .context("the plugin does not end")??;
        let printed = [&output.stdout[..], &output.stderr[..]].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        println!("$ kubectl runnel {}\n{printed}", words.join(" "));
        Ok((output.status.code(), printed))
    }

    async fn select(&self, value: &str) -> Result<()> {
        let entry =
            json!({"resources": ["configmaps"], "selector": {"matchLabels": {"set": value}}});
        self.scene
            .hub
            .change(&self.rule, json!({"spec": {"sources": [entry]}}))
            .await
            .map(|_| ())
    }

    async fn label(&self, number: usize, value: &str) -> Result<()> {
        self.scene
            .hub
            .change(
                &Self::copy(number),
                json!({"metadata": {"labels": {"set": value}}}),
            )
            .await
            .map(|_| ())
    }

    /// The answer of the hub about the removals of the rule that wait for an approval, after the first `skip`.
    async fn review(&self, skip: usize) -> Result<Value> {
        let review = json!({
            "apiVersion": "view.runnel.dev/v1alpha1", "kind": "RemovalReview",
            "metadata": {"namespace": HOME, "name": "all"},
            "spec": {"kind": "DistributionRule", "name": "all", "skip": skip},
        });
        let create = ["create", "-o", "json", "-f", "-"];
        let hub = self.fleet.hub();
        let answer = hub.kubectl_stdin(&create, &review.to_string()).await?;
        Ok(serde_json::from_str(&answer)?)
    }

    async fn blocked_metric(&self, wanted: f64) -> Result<()> {
        eventually("the metric to say what is held", SOON, async || {
            let observed = Metrics::of(&self.fleet.hub_ops_url())
                .await?
                .sum("runnel_removals_blocked")?;
            Ok((observed == wanted).then_some(()))
        })
        .await
    }
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
    scene.member_namespaces(&[HOME]).await?;
    for number in 0..SOURCES {
        let draft = Draft::config_map(HOME, &format!("s{number}"))
            .label("set", "a")
            .data("k", "v");
        scene.hub.make(&draft.json()).await?;
    }
    let draft = RuleDraft::new(HOME, "all").labeled("set", "a");
    let by_label = json!({"selector": {"matchLabels": {"env": "prod"}}});
    scene
        .hub
        .make(&draft.with("clusters", by_label).json())
        .await?;
    let stage = Stage {
        fleet,
        scene,
        rule: Id::rule(HOME, "all"),
    };
    stage
        .scene
        .hub
        .all_applied(&stage.rule, MEMBERS * SOURCES)
        .await?;
    Ok(stage)
}

#[tokio::test]
async fn removal_above_the_limit_waits_for_its_digest() -> Result<()> {
    let stage = stage().await?;
    let hub = &stage.scene.hub;

    // A selector that fits nothing; a digest that fits nothing; the mistake undone.
    stage.select("nothing").await?;
    let first = stage.is_blocked(24, 12).await?;
    stage.blocked_metric(1.0).await?;
    stage.approve(&stage.rule, "00000000000000000000").await?;
    stage.select("a").await?;
    stage.is_not_blocked().await?;
    stage.blocked_metric(0.0).await?;
    hub.all_applied(&stage.rule, MEMBERS * SOURCES).await?;

    // A grant is deleted and created again.
    let everything = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "everything"}});
    let grant = hub.get(&Id::of(&everything)?).await.context("no grant")?;
    hub.delete(&Id::of(&everything)?).await?;
    stage.is_blocked(24, 12).await?;
    let mut remade = everything;
    remade["spec"] = grant["spec"].clone();
    hub.make(&remade).await?;
    stage.is_not_blocked().await?;
    hub.all_applied(&stage.rule, MEMBERS * SOURCES).await?;

    // Labels change one after another: removals below the limit pass, the others of the same minute
    // are blocked.
    for number in 0..3 {
        stage.label(number, "b").await?;
        for member in 1..=MEMBERS {
            stage
                .scene
                .member(member)
                .lacks(&Stage::copy(number))
                .await?;
        }
    }
    for number in 3..8 {
        stage.label(number, "b").await?;
    }
    // 6 copies were removed; at most 4 of the next 10 may be.
    let observed = hub.sees("the rest held", &stage.rule, |rule| {
        let copies = rule["status"]["pendingApproval"]["copies"]
            .as_u64()
            .unwrap_or_default();
        ensure!(
            (6..=10).contains(&copies) && condition(rule, "ApprovalRequired").is_ok(),
            "{}",
            rule["status"]
        );
        Ok(())
    });
    observed.await?;
    let left = stage.copies(1).await?;
    ensure!(left.len() >= 7, "{left:?}");
    for number in 0..8 {
        stage.label(number, "a").await?;
    }
    stage.is_not_blocked().await?;
    hub.all_applied(&stage.rule, MEMBERS * SOURCES).await?;

    // The hub is killed with a blocked removal; the next one, which did not observe the edit,
    // blocks it too; an edit while no hub runs is blocked as well.
    stage.select("nothing").await?;
    let blocked = stage.is_blocked(24, 12).await?;
    ensure!(
        blocked != first,
        "the same change, made again, needs approval again"
    );
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    for member in 1..=MEMBERS {
        stage.fleet.connected(member).await?;
    }
    ensure!(
        stage.is_blocked(24, 12).await? == blocked,
        "another digest after a restart"
    );
    stage.fleet.kill_hub()?;
    let narrow = json!({"names": ["member-1"], "selector": null});
    hub.change(&stage.rule, json!({"spec": {"clusters": narrow}}))
        .await?;
    stage.fleet.start_hub().await?;
    for member in 1..=MEMBERS {
        stage.fleet.connected(member).await?;
    }
    let grown = eventually("both in one digest", SOON, async || {
        let digest = stage.is_blocked(24, 12).await?;
        Ok((digest != blocked).then_some(digest))
    });
    let grown = grown.await?;

    // The former digest approves nothing; the published one approves the set everywhere.
    stage.fleet.views_are_served().await?;
    stage.approve(&stage.rule, &blocked).await?;
    ensure!(stage.is_blocked(24, 12).await? == grown);
    let (code, printed) = stage.runnel(&["approve", "all"]).await?;
    ensure!(code == Some(2) && printed.contains("--yes"), "{printed}");
    for line in [
        "configmaps/guarded/s0 everywhere: no longer selected",
        "all copies in member-2: no longer chosen",
    ] {
        ensure!(printed.contains(line), "{printed}");
    }
    ensure!(
        stage.is_blocked(24, 12).await? == grown,
        "released though nobody said yes"
    );
    // The same by kubectl, from the eleventh removal of thirteen.
    let answer = stage.review(10).await?;
    let status = &answer["status"];
    ensure!(
        status["digest"] == grown.as_str()
            && status["copies"] == 24
            && status["remaining"] == 0
            && status["removals"].as_array().map(Vec::len) == Some(3),
        "{answer}"
    );
    let (code, printed) = stage.runnel(&["approve", "all", "--yes"]).await?;
    ensure!(
        code == Some(0) && printed.contains("Approved: 24 copies"),
        "{printed}"
    );
    let (code, printed) = stage.runnel(&["approve", "all", "--yes"]).await?;
    ensure!(
        code == Some(1) && printed.contains("nothing of rule guarded/all waits"),
        "{printed}"
    );
    for member in 1..=MEMBERS {
        for number in 0..SOURCES {
            stage
                .scene
                .member(member)
                .lacks(&Stage::copy(number))
                .await?;
        }
    }
    let observed = stage.is_not_blocked().await?;
    ensure!(
        observed["status"]["pendingApproval"].is_null(),
        "{}",
        observed["status"]
    );

    // The same mistake again is another removal: the old digest does not fit.
    stage.select("a").await?;
    hub.change(
        &stage.rule,
        json!({"spec": {"clusters": {"names": null, "all": true}}}),
    )
    .await?;
    hub.all_applied(&stage.rule, MEMBERS * SOURCES).await?;
    stage.select("nothing").await?;
    let again = stage.is_blocked(24, 12).await?;
    ensure!(again != grown && again != blocked);
    stage.select("a").await?;
    stage.is_not_blocked().await?;

    // Deliberate: one source, one literal name, one rule.
    hub.delete(&Stage::copy(11)).await?;
    for member in 1..=MEMBERS {
        stage.scene.member(member).lacks(&Stage::copy(11)).await?;
    }
    hub.all_applied(&stage.rule, MEMBERS * 11).await?;
    hub.change(
        &stage.rule,
        json!({"spec": {"clusters": {"all": null, "names": ["member-1", "member-2"]}}}),
    )
    .await?;
    hub.change(
        &stage.rule,
        json!({"spec": {"clusters": {"names": ["member-1"]}}}),
    )
    .await?;
    for number in 0..11 {
        stage.scene.member(2).lacks(&Stage::copy(number)).await?;
    }
    hub.change(
        &stage.rule,
        json!({"spec": {"clusters": {"names": ["member-1", "member-2"]}}}),
    )
    .await?;
    hub.all_applied(&stage.rule, MEMBERS * 11).await?;
    hub.delete(&stage.rule).await?;
    hub.lacks(&stage.rule).await?;
    for number in 0..11 {
        stage.scene.member(1).lacks(&Stage::copy(number)).await?;
    }
    Ok(())
}

/// The rule was not deleted itself, and the deletion of a namespace is too fast to observe.
#[tokio::test]
async fn deletion_of_a_namespace_waits_for_approval() -> Result<()> {
    let stage = stage().await?;
    let hub = &stage.scene.hub;
    hub.delete(&Id::namespace(HOME)).await?;
    // Its sources were deleted with it, and so was the rule.
    let digest = stage.is_blocked(24, 12).await?;
    stage.ends(&digest).await
}

/// What waits for approval does not go with the namespace of its rule, though the rule selects no cluster any more.
#[tokio::test]
async fn blocked_copies_stay_when_their_namespace_is_deleted() -> Result<()> {
    let stage = stage().await?;
    let hub = &stage.scene.hub;
    let nowhere = json!({"selector": {"matchLabels": {"env": "typo"}}, "all": null});
    hub.change(&stage.rule, json!({"spec": {"clusters": nowhere}}))
        .await?;
    let first = stage.is_blocked(24, 12).await?;
    hub.delete(&Id::namespace(HOME)).await?;
    let grown = eventually("both in one digest", SOON, async || {
        let digest = stage.is_blocked(24, 12).await?;
        Ok((digest != first).then_some(digest))
    });
    stage.ends(&grown.await?).await
}

#[tokio::test]
async fn rule_with_indirect_delete_stays_until_approved() -> Result<()> {
    let stage = stage().await?;
    let hub = &stage.scene.hub;
    let limit = json!({"spec": {"removalLimit": {"onRuleDelete": "Hold"}}});
    hub.change(&stage.rule, limit).await?;
    hub.all_applied(&stage.rule, MEMBERS * SOURCES).await?;
    hub.delete(&stage.rule).await?;
    let digest = stage.is_blocked(24, 12).await?;
    // The user answers no, nothing, or cannot be asked; only a yes approves it.
    let question = "Remove these 24 copies of rule guarded/all? [y/N]";
    for answer in ["n\n", "\n", "no\n", "yess\n", ""] {
        let (code, printed) = stage.answered(&["approve", "all"], answer).await?;
        ensure!(
            printed.contains("the rule is deleted") && printed.contains(question),
            "{answer:?}: {printed}"
        );
        ensure!(
            code == Some(1) && printed.contains("nothing was changed"),
            "{answer:?}: {code:?} {printed}"
        );
    }
    let rule = hub.get(&stage.rule).await?;
    ensure!(
        rule["metadata"]["annotations"]["runnel.dev/approve"].is_null(),
        "{}",
        rule["metadata"]
    );
    ensure!(
        stage.is_blocked(24, 12).await? == digest,
        "a no changed what is held"
    );
    let (code, printed) = stage.answered(&["approve", "all"], "y\n").await?;
    ensure!(printed.contains(question), "{printed}");
    ensure!(
        code == Some(0) && printed.contains("Approved: 24 copies are being removed"),
        "{code:?} {printed}"
    );
    hub.lacks(&stage.rule).await?;
    for member in 1..=MEMBERS {
        ensure!(
            stage.copies(member).await?.is_empty(),
            "not all is gone from member {member}"
        );
    }
    Ok(())
}
