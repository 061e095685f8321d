//! Statuses that another program writes.

use anyhow::{Result, ensure};
use runnel_tests::scene::Id;
use serde_json::{Value, json};

use super::stage::{MEMBERS, stage};

#[tokio::test]
async fn patched_rule_status_is_corrected() -> Result<()> {
    let stage = stage().await?;
    stage.places("patched", &["patched-target"]).await?;
    stage.source("patched", "settings", "first").await?;
    let rule = stage
        .rule("patched", "all", |draft| {
            draft.named(&["settings"]).into(&["patched-target"])
        })
        .await?;
    stage.scene.hub.all_applied(&rule, MEMBERS).await?;
    stage.calm().await?;
    // Also by a hub that has not written it itself.
    for restarts in [false, true] {
        if restarts {
            stage.restart_hub(MEMBERS).await?;
            stage.calm().await?;
        }
        let before = stage.scene.hub.get(&rule).await?;
        let lie = json!({"status": {"summary": {"copiesApplied": 7}, "display": {"copies": "7/7"}, "conditions": null}});
        stage.scene.hub.change_status(&rule, lie).await?;
        let corrected = |object: &Value| {
            ensure!(
                object["status"]["summary"] == before["status"]["summary"],
                "{}",
                object["status"]
            );
            ensure!(
                object["status"]["conditions"] == before["status"]["conditions"],
                "{}",
                object["status"]
            );
            Ok(())
        };
        stage.scene.hub.sees("corrected", &rule, corrected).await?;
        let marks = stage.calm().await?;
        ensure!(
            stage.writes(&marks)?.is_empty(),
            "it is written again and again"
        );
    }
    // And of a member.
    let member = Id::member(stage.fleet.member_name(1));
    let lie = json!({"status": {"agentVersion": "7", "conditions": []}});
    stage.scene.hub.change_status(&member, lie).await?;
    let corrected = |object: &Value| {
        ensure!(
            object["status"]["agentVersion"] != "7",
            "{}",
            object["status"]
        );
        ensure!(
            object["status"]["conditions"]
                .as_array()
                .is_some_and(|all| !all.is_empty()),
            "{}",
            object["status"]
        );
        Ok(())
    };
    stage
        .scene
        .hub
        .sees("corrected", &member, corrected)
        .await
        .map(drop)
}
