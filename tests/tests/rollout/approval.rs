//! Waves that wait for a person, approved by the plugin and by an annotation.
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use runnel_tests::scene::condition;
use runnel_tests::wait::steadily;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{A_WHILE, HOME, SOON, Stage};

impl Stage {
    /// Waits until the next wave waits for approval; returns it.
    async fn awaits_approval(&self, wave: u64, clusters: &[&str]) -> Result<Value> {
        let what = format!("wave {wave} of {clusters:?} to wait");
        let observed = self.scene.hub.sees(&what, &self.rule, |rule| {
            let rollout = &rule["status"]["rollout"];
            let pending = &rollout["pendingWave"];
            ensure!(
                rollout["phase"] == "AwaitingApproval"
                    && pending["wave"] == wave
                    && pending["names"] == json!(clusters),
                "{rollout}"
            );
            let digest = pending["digest"].as_str().unwrap_or_default();
            for (kind, status) in [("Ready", "False"), ("Reconciling", "True")] {
                let condition = condition(rule, kind)?;
                let message = condition["message"].as_str().unwrap_or_default();
                ensure!(
                    condition["status"] == status
                        && condition["reason"] == "AwaitingApproval"
                        && message.contains(&format!("runnel.dev/approve={digest}")),
                    "{condition}"
                );
            }
            ensure!(condition(rule, "Stalled").is_err(), "stalled");
            Ok(())
        });
        Ok(observed.await?["status"]["rollout"]["pendingWave"].clone())
    }

    async fn approve(&self, digest: &Value) -> Result<()> {
        let change = json!({"metadata": {"annotations": {"runnel.dev/approve": digest}}});
        self.scene.hub.change(&self.rule, change).await.map(drop)
    }

    /// Runs `kubectl runnel approve` with these words; returns its exit code and what it prints.
    async fn runs_approve(&self, words: &[&str]) -> Result<(Option<i32>, String)> {
        let kubeconfig = self.fleet.hub().kubeconfig().display().to_string();
        let mut command = Command::new(self.fleet.binaries().folder.join("kubectl-runnel"));
        command
            .args(["approve", self.rule.name(), "-n", HOME])
            .args(["--kubeconfig", &kubeconfig])
            .args(words)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(SOON, command.output())
            .await
            .context("the plugin does not end")??;
        let printed = [&output.stdout[..], &output.stderr[..]].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        println!("$ kubectl runnel approve\n{printed}");
        Ok((output.status.code(), printed))
    }
}

#[tokio::test]
async fn wave_begins_only_when_a_person_approves_it() -> Result<()> {
    let stage = Stage::start_with(3, 16, true).await?;
    stage.wants(json!({"approval": "PerWave"})).await?;
    let before = stage.scene.hub.get(&stage.source).await?;
    let unseen = async || {
        for member in [1, 3] {
            let seen = stage.scene.member(member).get(&stage.source).await?;
            ensure!(seen["data"] == before["data"], "member-{member} has it");
        }
        Ok(())
    };
    // The first wave needs no approval.
    let first = stage.edit("k", "1").await?;
    stage.has(stage.first(), &first).await?;
    let shown = stage.awaits_approval(2, &["member-3"]).await?;
    steadily("the second wave waits", A_WHILE, unseen).await?;
    stage
        .scene
        .hub
        .has_event(&stage.rule, "AwaitingApproval")
        .await?;

    // Another change needs another approval, under any leader.
    let second = stage.edit("k", "2").await?;
    stage.has(stage.first(), &second).await?;
    let again = stage.awaits_approval(2, &["member-3"]).await?;
    ensure!(again["digest"] != shown["digest"], "{again}");
    stage.approve(&shown["digest"]).await?;
    steadily("it is not approved", A_WHILE, unseen).await?;
    stage.kill_leader().await?;
    steadily("it waits under another leader", A_WHILE, unseen).await?;
    let after = stage.awaits_approval(2, &["member-3"]).await?;
    ensure!(after["digest"] == again["digest"], "{after}");
    stage.fleet.start_hub().await?;
    stage.fleet.views_are_served().await?;

    // Without a terminal and --yes nothing is approved.
    let (code, printed) = stage.runs_approve(&[]).await?;
    ensure!(code != Some(0), "{printed}");
    unseen().await?;
    let (code, printed) = stage.runs_approve(&["--yes"]).await?;
    ensure!(code == Some(0), "{code:?}: {printed}");
    for text in [
        "wave 2 waits for approval: 1 cluster (member-3)",
        "change 1",
        "member-3",
        "Approved: wave 2 begins.",
    ] {
        ensure!(printed.contains(text), "{text}: {printed}");
    }
    ensure!(!printed.contains("member-1"), "{printed}");
    stage.has(stage.scene.member(3), &second).await?;
    let last = stage.awaits_approval(3, &["member-1"]).await?;
    stage
        .scene
        .hub
        .has_event(&stage.rule, "ApprovalSettled")
        .await?;
    ensure!(
        stage.last().get(&stage.source).await?["data"] == before["data"],
        "the last wave has it"
    );
    stage.approve(&last["digest"]).await?;
    stage.has(stage.last(), &second).await?;
    stage.is_completed(3).await.map(drop)
}
