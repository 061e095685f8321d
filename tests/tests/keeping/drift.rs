//! Copies with tolerated drift, and copies under contention.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft, condition, entry_of};
use runnel_tests::wait::{eventually, steadily};
use serde_json::json;

use super::{CANARY, apply_as, fleet, gives_away, scene_with};

#[tokio::test]
async fn edited_and_deleted_copies_are_reported_as_drift() -> Result<()> {
    let home = "reported";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let config = hub
        .make(
            &Draft::config_map(home, "settings")
                .data("color", "red")
                .data("size", "1")
                .json(),
        )
        .await?;
    let login = hub
        .make(&Draft::secret(home, "login").data("password", CANARY).json())
        .await?;
    let gone = hub
        .make(&Draft::config_map(home, "gone").data("k", "v").json())
        .await?;
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .with("driftPolicy", json!("Report"))
            .json(),
    )
    .await?;
    hub.all_applied(&rule, 3).await?;

    // An edit of a ConfigMap is shown with its values and its author.
    apply_as(
        "kubectl-edit",
        &Draft::config_map(home, "settings")
            .data("color", "blue")
            .data("new", "x")
            .json(),
    )
    .await?;
    let observed = hub.wait_ready(&rule, "False", "Drifted").await?;
    let summary = &observed["status"]["summary"];
    ensure!(
        summary["copiesDrifted"] == 1
            && summary["copiesApplied"] == 2
            && summary["copiesFailed"] == 0,
        "{summary}"
    );
    let entry = entry_of(&observed, "member-1")?;
    ensure!(
        entry["state"] == "Drifted" && entry["drifted"] == 1,
        "{entry}"
    );
    let message = entry["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains(
            "configmaps/reported/settings: its agent reports: changed here by kubectl-edit"
        ),
        "{message}"
    );
    ensure!(
        message.contains(r#"/data/color is "blue" instead of "red""#)
            && message.contains("/data/new"),
        "{message}"
    );
    ensure!(
        condition(&observed, "Ready")?["message"]
            .as_str()
            .is_some_and(|output| output.contains("1 copy drifted"))
    );
    member.has_event(&Id::of(&config)?, "Drifted").await?;

    // For a Secret only paths, no values; the deleted copy is not created again.
    member
        .change(
            &Id::of(&login)?,
            json!({"stringData": {"password": "theirs", "more": CANARY}}),
        )
        .await?;
    member.delete(&Id::of(&gone)?).await?;
    let drifted = hub.sees("drifted thrice", &rule, |observed| {
        ensure!(
            observed["status"]["summary"]["copiesDrifted"] == 3,
            "{}",
            observed["status"]["summary"]
        );
        Ok(())
    });
    let observed = drifted.await?;
    ensure!(
        !gives_away(&observed.to_string()),
        "the status holds a value of a Secret"
    );
    let event = member.has_event(&Id::of(&login)?, "Drifted").await?;
    ensure!(
        event.note.contains("/data/password is another")
            && event.note.contains("/data/more was added"),
        "{event:?}"
    );
    ensure!(
        !gives_away(&event.note) && !event.note.contains("theirs"),
        "{event:?}"
    );
    let event = member.has_event(&Id::of(&gone)?, "Drifted").await?;
    ensure!(event.note.contains("deleted here"), "{event:?}");
    steadily(
        "the deleted copy is not made again",
        Duration::from_secs(3),
        async || {
            ensure!(member.find(&Id::of(&gone)?).await?.is_none());
            Ok(())
        },
    )
    .await?;
    let fleet = fleet().await?;
    for log in [fleet.hub_log(), fleet.agent_log(1)] {
        ensure!(
            !gives_away(&std::fs::read_to_string(log)?),
            "a log holds a value of a Secret"
        );
    }

    // An edit of the source ends it.
    for (source, change) in [
        (&config, json!({"data": {"color": "green"}})),
        (&login, json!({"metadata": {"labels": {"new": "1"}}})),
        (&gone, json!({"data": {"k": "w"}})),
    ] {
        let source = hub.change(&Id::of(source)?, change).await?;
        member.has_copy(&source, home, &rule).await?;
    }
    hub.all_applied(&rule, 3).await?;

    // So does the policy.
    member
        .change(&Id::of(&config)?, json!({"data": {"color": "blue"}}))
        .await?;
    hub.wait_ready(&rule, "False", "Drifted").await?;
    hub.change(&rule, json!({"spec": {"driftPolicy": "Correct"}}))
        .await?;
    let source = hub.get(&Id::of(&config)?).await?;
    member.has_copy(&source, home, &rule).await?;
    hub.all_applied(&rule, 3).await.map(|_| ())
}

#[tokio::test]
async fn contending_controller_is_reported() -> Result<()> {
    let home = "fought-for";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "ours").json())
        .await?;
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let id = Id::of(&source)?;
    member.has_copy(&source, home, &rule).await?;
    let theirs = Draft::config_map(home, "settings")
        .data("k", "theirs")
        .json();
    let mut turns = 0;
    eventually(
        "the fight to be noticed",
        Duration::from_secs(60),
        async || {
            if member.get(&id).await?["data"]["k"] == "ours" {
                apply_as("argocd-controller", &theirs).await?;
                turns += 1;
            }
            let observed = hub.get(&rule).await?;
            let ready = condition(&observed, "Ready")?;
            ensure!(ready["reason"] == "Contended", "{ready}");
            Ok(Some(()))
        },
    )
    .await?;
    ensure!(turns >= 6, "noticed after {turns} turns");
    let observed = hub.get(&rule).await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("argocd-controller keeps changing"),
        "{message}"
    );
    // It is slowed down, others are not, and it is reported once.
    let other = hub.make(&Draft::config_map(home, "other").json()).await?;
    member.has_copy(&other, home, &rule).await?;
    member.has_event(&id, "Contended").await?;
    let events = member.events_about(&id).await?;
    let contentions: Vec<_> = events
        .iter()
        .filter(|event| event.reason == "Contended")
        .collect();
    ensure!(
        contentions.len() == 1 && contentions[0].times == 1,
        "{events:?}"
    );
    // The contention ends: the copy is corrected, and the status does not flap meanwhile.
    member.has_copy(&source, home, &rule).await?;
    ensure!(condition(&hub.get(&rule).await?, "Ready")?["reason"] == "Contended");
    // Orders of the hub do not wait.
    let source = hub
        .change(&id, json!({"data": {"k": "ours again"}}))
        .await?;
    member.has_copy(&source, home, &rule).await?;
    // It ends as the message says: when the object leaves the rule. When it returns there is no
    // contention.
    let sources = |exclude: &[&str]| json!({"spec": {"sources": [{"resources": ["configmaps"], "names": ["*"], "exclude": exclude}]}});
    hub.change(&rule, sources(&["settings"])).await?;
    member.lacks(&id).await?;
    hub.all_applied(&rule, 1).await?;
    hub.change(&rule, sources(&[])).await?;
    member.has_copy(&source, home, &rule).await?;
    hub.all_applied(&rule, 2).await?;
    member.change(&id, json!({"data": {"k": "theirs"}})).await?;
    member.has_copy(&source, home, &rule).await?;
    hub.all_applied(&rule, 2).await.map(|_| ())
}
