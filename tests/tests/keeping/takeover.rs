//! Objects that are not Runnel's where copies should be.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, HUB_LABEL, Id, RuleDraft, entry_of};
use serde_json::json;

use super::{CANARY, apply_as, gives_away, scene_with};

#[tokio::test]
async fn objects_owned_by_helm_or_argo_cd_are_adopted_or_refused() -> Result<()> {
    let home = "takeover";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let sources = [
        hub.make(
            &Draft::config_map(home, "equal")
                .data("k", "v")
                .with("binaryData", json!({"b": "AAE="}))
                .json(),
        )
        .await?,
        hub.make(&Draft::config_map(home, "differs").data("k", "ours").json())
            .await?,
        hub.make(&Draft::secret(home, "login").data("password", CANARY).json())
            .await?,
        hub.make(
            &Draft::secret(home, "typed")
                .data("k", "v")
                .with("type", json!("example.com/a"))
                .json(),
        )
        .await?,
    ];
    apply_as(
        "helm",
        &Draft::config_map(home, "equal")
            .data("k", "v")
            .with("binaryData", json!({"b": "AAE="}))
            .json(),
    )
    .await?;
    apply_as(
        "argocd-controller",
        &Draft::config_map(home, "differs")
            .data("k", "theirs")
            .data("more", "x")
            .json(),
    )
    .await?;
    apply_as(
        "helm",
        &Draft::secret(home, "login")
            .data("password", "theirs")
            .label("theirs", "stays")
            .json(),
    )
    .await?;
    apply_as(
        "helm",
        &Draft::secret(home, "typed")
            .data("k", "v")
            .with("type", json!("example.com/b"))
            .json(),
    )
    .await?;
    let before: Vec<_> = futures::future::try_join_all(sources.iter().map(async |source| {
        let id = Id::of(source)?;
        member.get(&id).await
    }))
    .await?;

    // Fail: all stay, and their field managers are named, but no value.
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let counts = |observed: &serde_json::Value, applied: u64, failed: u64| {
        let summary = &observed["status"]["summary"];
        let has = [
            ("sources", 4),
            ("copies", 4),
            ("copiesApplied", applied),
            ("copiesFailed", failed),
        ];
        ensure!(
            has.iter().all(|(name, number)| summary[name] == *number),
            "{summary}, not {has:?}"
        );
        Ok(())
    };
    // The first of them may be reported before the others are read.
    hub.sees("a conflict for all four", &rule, |observed| {
        counts(observed, 0, 4)
    })
    .await?;
    hub.wait_ready(&rule, "False", "Conflict").await?;
    for (object, who) in before
        .iter()
        .zip(["helm", "argocd-controller", "helm", "helm"])
    {
        let observed = member.has_event(&Id::of(object)?, "Conflict").await?;
        ensure!(
            observed.note.contains(&format!("written by {who}")) && !gives_away(&observed.note),
            "{observed:?}"
        );
        member.is_untouched(object).await?;
    }

    // AdoptIfEqual: what is equal is taken over, the others are a conflict as ever.
    hub.change(&rule, json!({"spec": {"conflictPolicy": "AdoptIfEqual"}}))
        .await?;
    let adopted = member.has_copy(&sources[0], home, &rule).await?;
    ensure!(
        adopted["metadata"]["uid"] == before[0]["metadata"]["uid"],
        "it was created again"
    );
    let observed = hub.wait_counted(&rule, "Conflict", (1, 3)).await?;
    let entry = entry_of(&observed, "member-1")?;
    ensure!(entry["failed"] == 3 && entry["applied"] == 1, "{entry}");
    counts(&observed, 1, 3)?;
    for object in &before[1..] {
        member.is_untouched(object).await?;
    }
    // One becomes equal without an event for the agent.
    member
        .change(
            &Id::of(&sources[1])?,
            json!({"data": {"k": "ours", "more": null}}),
        )
        .await?;
    member.has_copy(&sources[1], home, &rule).await?;

    // Overwrite: the data are the source's alone, foreign labels stay, and an Event names the
    // former manager. A Secret of another type cannot be changed; that has its own reason, and its
    // own policy.
    hub.change(&rule, json!({"spec": {"conflictPolicy": "Overwrite"}}))
        .await?;
    let login = Id::of(&sources[2])?;
    let observed = member.has_event(&login, "Overwritten").await?;
    ensure!(
        observed.kind == "Warning" && observed.note.contains("helm") && !gives_away(&observed.note),
        "{observed:?}"
    );
    let taken = member.get(&login).await?;
    ensure!(
        taken["data"] == sources[2]["data"] && taken["metadata"]["labels"]["theirs"] == "stays"
    );
    ensure!(
        taken["metadata"]["labels"][HUB_LABEL].is_string()
            && taken["metadata"]["uid"] == before[2]["metadata"]["uid"]
    );
    let observed = hub.wait_counted(&rule, "Immutable", (3, 1)).await?;
    counts(&observed, 3, 1)?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(
        message.contains("secrets/takeover/typed") && message.contains("immutablePolicy"),
        "{message}"
    );
    member.is_untouched(&before[3]).await?;
    hub.change(&rule, json!({"spec": {"immutablePolicy": "Recreate"}}))
        .await?;
    let made = member.has_copy(&sources[3], home, &rule).await?;
    ensure!(made["metadata"]["uid"] != before[3]["metadata"]["uid"]);
    hub.all_applied(&rule, 4).await?;
    Ok(())
}

#[tokio::test]
async fn own_objects_of_a_cluster_and_other_hubs_are_not_adopted() -> Result<()> {
    let home = "untouchable";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let token = hub
        .make(&Draft::secret(home, "token").data("k", "v").json())
        .await?;
    let other = hub
        .make(&Draft::config_map(home, "other-hub").data("k", "v").json())
        .await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": home}});
    member.make(&account).await?;
    let made =
        Draft::secret(home, "token").annotation("kubernetes.io/service-account.name", "robot");
    member
        .make(
            &made
                .with("type", json!("kubernetes.io/service-account-token"))
                .json(),
        )
        .await?;
    // The token controller fills it in by itself.
    let is_filled = |made: &serde_json::Value| {
        ensure!(made["data"]["token"].is_string(), "not yet");
        Ok(())
    };
    let made = member.sees("filled", &Id::of(&token)?, is_filled).await?;
    let theirs = Draft::config_map(home, "other-hub")
        .data("k", "v")
        .label(HUB_LABEL, "another-hub");
    let theirs = member
        .make(
            &theirs
                .label("app.kubernetes.io/managed-by", "runnel")
                .json(),
        )
        .await?;
    let draft = RuleDraft::new(home, "all").named(&["*"]).to(&["member-1"]);
    let draft = draft
        .with("conflictPolicy", json!("AdoptIfEqual"))
        .with("immutablePolicy", json!("Recreate"));
    hub.make(&draft.json()).await?;
    hub.wait_ready(&rule, "False", "Conflict").await?;
    // The first message may be about only one of them.
    hub.sees("failed twice", &rule, |object| {
        ensure!(
            entry_of(object, "member-1")?["failed"] == 2,
            "{}",
            object["status"]
        );
        Ok(())
    })
    .await?;
    member.is_untouched(&theirs).await?;
    // Overwrite takes the other hub's copy; never a credential of this cluster.
    hub.change(&rule, json!({"spec": {"conflictPolicy": "Overwrite"}}))
        .await?;
    member.has_copy(&other, home, &rule).await?;
    hub.wait_ready(&rule, "False", "Conflict").await?;
    hub.sees("failed for the credential", &rule, |object| {
        let message = entry_of(object, "member-1")?["message"]
            .as_str()
            .unwrap_or_default();
        ensure!(
            message.contains("secrets/untouchable/token") && message.contains("never taken over"),
            "{message}"
        );
        Ok(())
    })
    .await?;
    member.is_untouched(&made).await
}

#[tokio::test]
async fn client_side_applied_object_is_taken_over_whole() -> Result<()> {
    let home = "client-side";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let theirs = Draft::config_map(home, "settings")
        .data("k", "theirs")
        .data("only-theirs", "x")
        .label("team", "b");
    let kubectl = super::fleet().await?.member(1);
    kubectl
        .kubectl_stdin(&["apply", "-f", "-"], &theirs.json().to_string())
        .await?;
    let id = Id::config_map(home, "settings");
    let before = member.get(&id).await?;
    let last_applied = "kubectl.kubernetes.io/last-applied-configuration";
    ensure!(
        before["metadata"]["annotations"][last_applied].is_string(),
        "{}",
        before["metadata"]
    );
    let source = hub
        .make(
            &Draft::config_map(home, "settings")
                .data("k", "ours")
                .label("team", "a")
                .json(),
        )
        .await?;
    let draft = RuleDraft::new(home, "all").named(&["*"]).to(&["member-1"]);
    hub.make(&draft.with("conflictPolicy", json!("Overwrite")).json())
        .await?;
    let observed = member.has_event(&id, "Overwritten").await?;
    ensure!(
        observed.note.contains("kubectl-client-side-apply"),
        "{observed:?}"
    );
    // No key of theirs is left, though a server-side apply alone would leave it; it is the same object.
    let is_ours = |copy: &serde_json::Value| {
        ensure!(
            copy["data"] == source["data"] && copy["metadata"]["labels"]["team"] == "a",
            "{copy}"
        );
        ensure!(
            copy["metadata"]["uid"] == before["metadata"]["uid"],
            "it was created again"
        );
        Ok(())
    };
    member.sees("ours alone", &id, is_ours).await?;
    hub.all_applied(&rule, 1).await?;
    // Their next apply is drift like any other, and one of equal content is none.
    kubectl
        .kubectl_stdin(&["apply", "-f", "-"], &theirs.json().to_string())
        .await?;
    member.sees("ours again", &id, is_ours).await?;
    member.has_event(&id, "DriftCorrected").await?;
    // And the source's own edits reach it, with no trace of what was applied there.
    let source = hub
        .change(&id, json!({"data": {"k": null, "l": "ours"}}))
        .await?;
    member
        .sees("edited", &id, |copy| {
            ensure!(copy["data"] == source["data"], "{}", copy["data"]);
            Ok(())
        })
        .await?;
    hub.all_applied(&rule, 1).await.map(|_| ())
}
