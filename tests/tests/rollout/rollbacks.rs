//! Rollbacks of rules whose grants, clusters and labels have changed since the completed rollout.
use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

use super::{A_WHILE, HOME, SOON, Stage, refuse};

/// Adds another rule, which selects the Secret `settings`, and whose rollouts are rolled back. Returns the Secret.
async fn add_rule(stage: &mut Stage, draft: RuleDraft) -> Result<Value> {
    let rollout = json!({"maxConcurrency": 1, "orderByLabel": "tier", "onFailure": "Revert"});
    let good = Draft::secret(HOME, "settings").data("k", "good").json();
    let good = stage.scene.hub.make(&good).await?;
    let draft = draft.with("rollout", rollout).json();
    stage.scene.hub.make(&draft).await?;
    (stage.rule, stage.source) = (Id::of(&draft)?, Id::of(&good)?);
    Ok(good)
}

/// Both members have these copies of the rule, with this data.
async fn have(stage: &Stage, copies: &[(usize, &str)], data: &Value) -> Result<()> {
    for (member, name) in copies {
        let id = Id::secret(HOME, name);
        eventually("a copy to have the content", SOON, async || {
            let found = stage.scene.member(*member).find(&id).await?;
            Ok(found.filter(|copy| copy["data"] == *data).map(drop))
        })
        .await?;
    }
    Ok(())
}

/// The state of the completed rollout is stored, so that the next one can be rolled back.
async fn is_completed_and_stored(stage: &Stage) -> Result<()> {
    let hub = &stage.scene.hub;
    hub.sees("the completed rollout", &stage.rule, |rule| {
        let rollout = &rule["status"]["rollout"];
        ensure!(rollout["phase"] == "Completed", "{rollout}");
        ensure!(rollout["rollbackBlocker"].is_null(), "{rollout}");
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test]
async fn rollback_sends_no_kind_without_a_grant() -> Result<()> {
    let mut stage = Stage::start(2).await?;
    let internal = Draft::config_map(HOME, "internal").data("k", "x").json();
    stage.scene.hub.make(&internal).await?;
    // Only Secrets are granted.
    let everything = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "everything"}});
    let resources = json!({"spec": {"resources": ["secrets"]}});
    let grant = Id::of(&everything)?;
    stage.scene.hub.change(&grant, resources).await?;
    let entry = json!({"resources": ["secrets", "configmaps"], "names": ["settings", "internal"]});
    let draft = RuleDraft::new(HOME, "granted").source(entry).everywhere();
    let good = add_rule(&mut stage, draft).await?;
    let hub = &stage.scene.hub;
    have(&stage, &[(1, "settings"), (2, "settings")], &good["data"]).await?;
    is_completed_and_stored(&stage).await?;
    refuse(&stage, &[2]).await?;
    // The rule is edited to fit its grant, together with a change that fails.
    let entry = json!({"resources": ["secrets"], "names": ["settings"]});
    hub.change(&stage.rule, json!({"spec": {"sources": [entry]}}))
        .await?;
    stage.edit("poison", "1").await?;
    stage.is_in_phase("Reverted", 1).await?;
    let is_never_sent = async || {
        for member in [1, 2] {
            let place = stage.scene.member(member);
            ensure!(
                place.find(&Id::of(&internal)?).await?.is_none(),
                "it was sent to member-{member}"
            );
        }
        Ok(())
    };
    steadily("the kind is not sent", A_WHILE, is_never_sent).await?;
    have(&stage, &[(1, "settings"), (2, "settings")], &good["data"]).await
}

#[tokio::test]
async fn cluster_that_joined_or_was_relabeled_gets_its_own_values() -> Result<()> {
    let draft = RuleDraft::new(HOME, "zones").named(&["settings"]);
    let draft = draft.with(
        "transform",
        json!({"name": "${source.name}-${cluster.labels.tier}"}),
    );
    let mut stage = Stage::start(2).await?;
    let good = add_rule(&mut stage, draft.to(&["member-2"])).await?;
    let hub = &stage.scene.hub;
    have(&stage, &[(2, "settings-9")], &good["data"]).await?;
    is_completed_and_stored(&stage).await?;
    // Another cluster joins, and both have the good version.
    hub.change(
        &stage.rule,
        json!({"spec": {"clusters": {"names": ["member-1", "member-2"]}}}),
    )
    .await?;
    have(
        &stage,
        &[(1, "settings-10"), (2, "settings-9")],
        &good["data"],
    )
    .await?;
    let labels = json!({"metadata": {"labels": {"tier": "8"}}});
    hub.change(&Id::member("member-2"), labels).await?;
    have(&stage, &[(2, "settings-8")], &good["data"]).await?;
    refuse(&stage, &[2]).await?;
    // The change fails in the first wave. It never reaches the other cluster.
    stage.edit("poison", "1").await?;
    stage.is_in_phase("Reverting", 1).await?;
    stage.kill_leader().await?;
    stage.is_in_phase("Reverted", 1).await?;
    let stays = async || {
        for (member, name) in [(1, "settings-10"), (2, "settings-8")] {
            let copy = stage
                .scene
                .member(member)
                .get(&Id::secret(HOME, name))
                .await?;
            ensure!(copy["data"] == good["data"], "{name} has other data");
        }
        Ok(())
    };
    steadily("each cluster has its own values", A_WHILE, stays).await
}
