//! A rule goes back to an earlier completed rollout, through the waves, and stays there.
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use runnel_tests::scene::condition;
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{A_WHILE, HOME, SOON, Stage, stored};

impl Stage {
    /// Runs the plugin with these words about the rule; returns what it prints.
    async fn plugin(&self, words: &[&str]) -> Result<String> {
        let kubeconfig = self.fleet.hub().kubeconfig().display().to_string();
        let mut command = Command::new(self.fleet.binaries().folder.join("kubectl-runnel"));
        command
            .args(words)
            .args([self.rule.name(), "-n", HOME, "--kubeconfig", &kubeconfig])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(SOON, command.output())
            .await
            .context("the plugin does not end")??;
        let printed = [&output.stdout[..], &output.stderr[..]].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        ensure!(output.status.success(), "{words:?}: {printed}");
        Ok(printed)
    }

    /// Waits until so many states are listed; returns their revisions, the newest first.
    async fn keeps(&self, number: usize) -> Result<Vec<String>> {
        let what = format!("{number} kept states");
        let rule = self.scene.hub.sees(&what, &self.rule, |rule| {
            let kept = &rule["status"]["rollout"]["history"];
            ensure!(kept.as_array().map_or(0, Vec::len) == number, "{kept}");
            Ok(())
        });
        let kept = rule.await?["status"]["rollout"]["history"].clone();
        let kept = kept.as_array().into_iter().flatten();
        let revision = |kept: &Value| kept["revision"].as_str().unwrap_or_default().to_owned();
        Ok(kept.map(revision).collect())
    }
}

#[tokio::test]
async fn rule_is_reverted_through_the_waves_and_stays_so() -> Result<()> {
    let stage = Stage::start(3).await?;
    let rollout = json!({"maxConcurrency": 1, "orderByLabel": "tier", "history": 3});
    stage.wants(rollout.clone()).await?;
    stage.keeps(1).await?;
    let good = stage.edit("k", "1").await?;
    stage.is_completed(3).await?;
    stage.keeps(2).await?;
    let newer = stage.edit("k", "2").await?;
    stage.has(stage.last(), &newer).await?;
    stage.is_completed(3).await?;
    let kept = stage.keeps(3).await?;
    let listed = stage.plugin(&["history", "--revisions"]).await?;
    ensure!(
        kept.iter().all(|revision| listed.contains(revision)),
        "{listed}"
    );

    // The first wave alone gets the former content at first.
    stage.fleet.agent_process(2).pause()?;
    stage.plugin(&["revert", "--to", "2", "--yes"]).await?;
    steadily("the last wave waits", A_WHILE, async || {
        let seen = stage.last().get(&stage.source).await?;
        ensure!(seen["data"] == newer["data"], "{seen}");
        Ok(())
    })
    .await?;
    stage.fleet.agent_process(2).resume()?;
    for member in 1..=3 {
        stage.has(stage.scene.member(member), &good).await?;
    }
    let observed = stage.is_in_phase("Completed", 3).await?;
    ensure!(observed["revision"] == kept[1].as_str(), "{observed}");
    let rule = stage.scene.hub.get(&stage.rule).await?;
    let reverted = condition(&rule, "Reverted")?;
    ensure!(reverted["status"] == "True", "{reverted}");

    // Edits are not sent, also not by another leader.
    let edited = stage.edit("k", "3").await?;
    let unsent = async || {
        let seen = stage.first().get(&stage.source).await?;
        ensure!(seen["data"] == good["data"], "{seen}");
        Ok(())
    };
    steadily("the edit is not sent", A_WHILE, unsent).await?;
    stage.kill_leader().await?;
    steadily("the edit is not sent", A_WHILE, unsent).await?;
    stage.fleet.start_hub().await?;

    // Nothing is sent for a state that is not kept.
    let unknown = json!({"metadata": {"annotations": {"runnel.dev/revert-to": "none"}}});
    stage.scene.hub.change(&stage.rule, unknown).await?;
    let what = "the missing state";
    let lacks = stage.scene.hub.sees(what, &stage.rule, |rule| {
        let reverted = condition(rule, "Reverted")?;
        let message = reverted["message"].as_str().unwrap_or_default();
        ensure!(
            reverted["reason"] == "RevisionUnavailable" && message.contains(&kept[0]),
            "{reverted}"
        );
        Ok(())
    });
    lacks.await?;
    steadily("nothing is sent", A_WHILE, unsent).await?;

    stage.plugin(&["revert", "--end", "--yes"]).await?;
    for member in 1..=3 {
        stage.has(stage.scene.member(member), &edited).await?;
    }
    stage.is_completed(3).await?;

    // Fewer kept states, and none at last.
    let mut fewer = rollout;
    fewer["history"] = json!(1);
    stage.wants(fewer.clone()).await?;
    stage.keeps(1).await?;
    fewer["history"] = Value::Null;
    stage.wants(fewer).await?;
    eventually("the states to be deleted", SOON, async || {
        let is_empty = |secret: &Value| secret["data"].as_object().is_none_or(|all| all.is_empty());
        Ok(stored(&stage).await?.iter().all(is_empty).then_some(()))
    })
    .await
}
