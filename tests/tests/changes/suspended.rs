//! A rule that is suspended.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft, condition};
use runnel_tests::wait::steadily;
use serde_json::json;

use super::scene_with;

const WHILE: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn suspended_rule_creates_corrects_and_removes_nothing() -> Result<()> {
    let home = "rests";
    let scene = scene_with(home).await?;
    let hub = &scene.hub;
    scene.member_namespaces(&["rests-too"]).await?;
    let (rule, awake) = (Id::rule(home, "rests"), Id::rule(home, "awake"));
    let draft = RuleDraft::new(home, "rests")
        .labeled("rests", "yes")
        .everywhere()
        .into(&[home, "rests-too"]);
    hub.make(&draft.with("suspend", json!(true)).json()).await?;
    hub.make(
        &RuleDraft::new(home, "awake")
            .named(&["clock-*"])
            .everywhere()
            .json(),
    )
    .await?;
    let source = |name| {
        Draft::config_map(home, name)
            .label("rests", "yes")
            .data("k", "one")
    };
    let mut sources = Vec::new();
    for name in ["edited", "tampered", "removed", "unlabeled", "moved"] {
        sources.push(hub.make(&source(name).json()).await?);
    }
    // The agents have heard of all that when a later source of another rule has arrived.
    let tick = async |name: &str| {
        let tick = hub.make(&Draft::config_map(home, name).json()).await?;
        scene.arrives(&tick, &awake, &[home]).await
    };
    tick("clock-1").await?;
    let observed = hub.wait_ready(&rule, "False", "Suspended").await?;
    ensure!(
        condition(&observed, "Suspended")?["status"] == "True"
            && condition(&observed, "Reconciling").is_err()
    );
    steadily("nothing is created", WHILE, async || {
        for member in &scene.members {
            for source in &sources {
                ensure!(
                    member.find(&Id::of(source)?).await?.is_none(),
                    "{}",
                    Id::of(source)?
                );
            }
        }
        Ok(())
    })
    .await?;

    hub.change(&rule, json!({"spec": {"suspend": false}}))
        .await?;
    for source in &sources {
        scene.arrives(source, &rule, &[home, "rests-too"]).await?;
    }
    let observed = hub.all_applied(&rule, 20).await?;
    ensure!(
        condition(&observed, "Suspended").is_err(),
        "{}",
        observed["status"]
    );

    // Now everything happens at once.
    hub.change(&rule, json!({"spec": {"suspend": true}}))
        .await?;
    hub.wait_ready(&rule, "False", "Suspended").await?;
    tick("clock-2").await?;
    let member = scene.member(1);
    let id = |name: &str| Id::config_map(home, name);
    let edited = hub
        .change(&id("edited"), json!({"data": {"k": "two"}}))
        .await?;
    let added = hub.make(&source("added").json()).await?;
    hub.delete(&id("removed")).await?;
    hub.change(
        &id("unlabeled"),
        json!({"metadata": {"labels": {"rests": "no"}}}),
    )
    .await?;
    let tampered = member
        .change(&id("tampered"), json!({"data": {"k": "mine"}}))
        .await?;
    member.delete(&id("moved")).await?;
    let before = [
        member.get(&id("edited")).await?,
        member.get(&id("removed")).await?,
        member.get(&id("unlabeled")).await?,
        member.get(&id("tampered").within("rests-too")).await?,
        tampered,
    ];
    hub.change(&rule, json!({"spec": {"namespaces": {"names": [home]}}}))
        .await?;
    // Longer than the grace of a deleted source.
    steadily(
        "nothing is created, corrected or removed",
        Duration::from_secs(7),
        async || {
            for object in &before {
                member.is_untouched(object).await?;
            }
            for name in ["added", "moved"] {
                ensure!(member.find(&id(name)).await?.is_none(), "{name}");
            }
            Ok(())
        },
    )
    .await?;
    tick("clock-3").await?;

    hub.change(&rule, json!({"spec": {"suspend": false}}))
        .await?;
    for source in [&edited, &added, &sources[1], &sources[4]] {
        scene.arrives(source, &rule, &[home]).await?;
    }
    for source in [&sources[2], &sources[3]] {
        scene.vanishes(source, &[home]).await?;
    }
    for source in &sources {
        scene.vanishes(source, &["rests-too"]).await?;
    }
    hub.all_applied(&rule, 8).await.map(|_| ())
}

#[tokio::test]
async fn deleted_suspended_rule_is_released() -> Result<()> {
    let home = "rests-in-peace";
    let scene = scene_with(home).await?;
    let rule = Id::rule(home, "all");
    scene
        .hub
        .make(
            &RuleDraft::new(home, "all")
                .named(&["*"])
                .everywhere()
                .json(),
        )
        .await?;
    let source = scene
        .hub
        .make(&Draft::config_map(home, "settings").json())
        .await?;
    scene.arrives(&source, &rule, &[home]).await?;
    scene
        .hub
        .change(&rule, json!({"spec": {"suspend": true}}))
        .await?;
    scene.hub.wait_ready(&rule, "False", "Suspended").await?;
    scene.hub.delete(&rule).await?;
    scene.vanishes(&source, &[home]).await?;
    scene.hub.lacks(&rule).await
}
