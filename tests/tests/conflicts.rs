//! Ownership of copies: drift is corrected, foreign objects are left alone, rules with the same
//! copy have a precedence, and one failing object does not delay others.

#[path = "conflicts/foreign.rs"]
mod foreign;
#[path = "conflicts/imported.rs"]
mod imported;
#[path = "conflicts/own_cluster.rs"]
mod own_cluster;
#[path = "conflicts/precedence.rs"]
mod precedence;
#[path = "conflicts/refused.rs"]
mod refused;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{
    Draft, HUB_LABEL, Id, MARKS, RuleDraft, SEAL, SOON, Scene, is_about_copies,
};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

/// Two members of their own, and the hub's cluster as the third, called `hub`.
async fn fleet() -> Result<&'static Fleet> {
    let options = FleetOptions {
        members: 2,
        hub_is_member: true,
        ..FleetOptions::default()
    };
    FLEET.get_or_try_init(|| Fleet::start(options)).await
}

async fn scene() -> Result<Scene> {
    Scene::of(fleet().await?).await
}

/// A namespace of this name on the hub and in both members.
async fn scene_with(home: &str) -> Result<Scene> {
    let scene = scene().await?;
    scene.member_namespaces(&[home]).await?;
    Ok(scene)
}

/// Waits until the object of `source` in member-1 is a copy again; returns it.
async fn is_mended(scene: &Scene, source: &Value, rule: &Id, what: &str) -> Result<Value> {
    let namespace = rule.own_namespace().unwrap_or_default();
    scene
        .member(1)
        .has_copy(source, namespace, rule)
        .await
        .with_context(|| format!("after {what}"))
}

#[tokio::test]
async fn copies_that_people_change_or_delete_are_put_back() -> Result<()> {
    let home = "drift";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let everything = json!({"data": {"k": null, "more": "bXk="}, "metadata": {"labels": null, "annotations": null}});
    let edits = [
        ("a-value-changed", json!({"data": {"k": "bXk="}})),
        ("a-key-added", json!({"data": {"surplus": "bXk="}})),
        ("a-key-removed", json!({"data": {"l": null}})),
        ("all-data-removed", json!({"data": null})),
        (
            "a-label-changed",
            json!({"metadata": {"labels": {"team": "b"}}}),
        ),
        (
            "a-label-removed",
            json!({"metadata": {"labels": {"team": null}}}),
        ),
        (
            "an-annotation-changed",
            json!({"metadata": {"annotations": {"example.com/note": "y"}}}),
        ),
        ("everything-at-once", everything),
        (
            "binary-data-changed",
            json!({"binaryData": {"b": null, "more": "AAE="}}),
        ),
    ];
    // Each kind of edit on a separate copy: the agent backs off from one that is edited again and
    // again.
    for of_kind in [Draft::config_map, Draft::secret] {
        let drafts = edits.iter().map(|(what, _)| {
            let draft = of_kind(home, what)
                .data("k", "v")
                .data("l", "w")
                .label("team", "a");
            let draft = draft.annotation("example.com/note", "x");
            let has_bytes = draft.json()["kind"] == "ConfigMap";
            if has_bytes {
                draft.with("binaryData", json!({"b": "AAE="})).json()
            } else {
                draft.json()
            }
        });
        let sources =
            try_join_all(drafts.map(|draft| async move { hub.make(&draft).await })).await?;
        for (source, (what, edit)) in sources.iter().zip(&edits) {
            let copy = is_mended(&scene, source, &rule, "nothing").await?;
            member.change(&Id::of(source)?, edit.clone()).await?;
            let mended = is_mended(&scene, source, &rule, what).await?;
            ensure!(
                mended["metadata"]["uid"] == copy["metadata"]["uid"],
                "{what}: it was created again"
            );
        }
        member.delete(&Id::of(&sources[0])?).await?;
        is_mended(&scene, &sources[0], &rule, "a deletion").await?;
    }
    hub.all_applied(&rule, 2 * edits.len()).await?;
    for copy in [
        Id::config_map(home, "a-key-added"),
        Id::secret(home, "a-value-changed"),
    ] {
        let observed = member.has_event(&copy, "DriftCorrected").await?;
        ensure!(
            observed.kind == "Normal" && observed.note.contains("source on the hub"),
            "{observed:?}"
        );
    }
    let observed = hub.has_event(&rule, "CopiesRestored").await?;
    ensure!(observed.kind == "Normal", "{observed:?}");
    let observed = hub.events_about(&rule).await?;
    ensure!(observed.iter().all(is_about_copies), "{observed:?}");
    Ok(())
}

#[tokio::test]
async fn stripped_marks_are_restored() -> Result<()> {
    let home = "marks";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let with = |marks: &[(&str, &str)], value: Value, data: Value| {
        marks.iter().fold(
            json!({"metadata": {}, "data": data}),
            |mut change, (place, mark)| {
                change["metadata"][place][mark] = value.clone();
                change
            },
        )
    };
    let (none, same) = (|| Value::Null, || json!({}));
    let mut changes: Vec<_> = MARKS
        .iter()
        .map(|mark| (format!("no {}", mark.1), with(&[*mark], none(), same())))
        .collect();
    for mark in MARKS.iter().filter(|(_, mark)| *mark != HUB_LABEL) {
        changes.push((
            format!("another {}", mark.1),
            with(&[*mark], json!("other"), same()),
        ));
    }
    changes.push(("no marks".to_owned(), with(&MARKS, none(), same())));
    changes.push((
        "no marks, more data".to_owned(),
        with(&MARKS, none(), json!({"more": "mine"})),
    ));
    changes.push(("no labels".to_owned(), with(&MARKS[..2], none(), same())));
    for (number, (what, change)) in changes.iter().enumerate() {
        let source = hub
            .make(
                &Draft::config_map(home, &format!("settings-{number}"))
                    .data("k", "v")
                    .json(),
            )
            .await?;
        let copy = is_mended(&scene, &source, &rule, "nothing").await?;
        member.change(&Id::of(&source)?, change.clone()).await?;
        let mended = is_mended(&scene, &source, &rule, what).await?;
        ensure!(
            mended["metadata"]["uid"] == copy["metadata"]["uid"],
            "{what}: it was created again"
        );
        let seals = (
            &mended["metadata"]["annotations"][SEAL],
            &copy["metadata"]["annotations"][SEAL],
        );
        ensure!(
            seals.0 == seals.1,
            "{what}: equal content has an equal seal"
        );
    }
    // Deleted while no rule showed that it is a copy.
    let source = hub.get(&Id::config_map(home, "settings-0")).await?;
    member
        .change(&Id::of(&source)?, with(&MARKS, none(), same()))
        .await?;
    member.delete(&Id::of(&source)?).await?;
    is_mended(&scene, &source, &rule, "a deletion without marks").await?;
    hub.all_applied(&rule, changes.len()).await.map(|_| ())
}

#[tokio::test]
async fn contended_copy_is_not_corrected_without_end() -> Result<()> {
    let home = "fight";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "ours").json())
        .await?;
    let id = Id::of(&source)?;
    member.has_copy(&source, home, &rule).await?;
    let mut turns = 0;
    let mut contend = async || {
        if member.get(&id).await?["data"]["k"] == "ours" {
            member.change(&id, json!({"data": {"k": "theirs"}})).await?;
            turns += 1;
        }
        anyhow::Ok(turns)
    };
    // However long each correction takes.
    eventually("six turns", SOON, async || {
        Ok((contend().await? >= 6).then_some(()))
    })
    .await?;
    steadily("they fight no faster", Duration::from_secs(8), async || {
        let turns = contend().await?;
        ensure!(turns <= 8, "{turns} turns");
        Ok(())
    })
    .await?;
    // They stop, and another source was not delayed by it.
    let other = hub.make(&Draft::config_map(home, "other").json()).await?;
    member.has_copy(&other, home, &rule).await?;
    is_mended(&scene, &source, &rule, "the fight").await?;
    member.has_event(&id, "Contended").await?;
    let observed = member.has_event(&id, "DriftCorrected").await?;
    let events = member.events_about(&id).await?;
    ensure!(
        observed.times > 1 && events.len() == 2,
        "repeats are merged: {events:?}"
    );
    // It counts as contention until it has been quiet for a while.
    let counts = hub.sees("one fought for and one applied", &rule, |observed| {
        let summary = &observed["status"]["summary"];
        ensure!(
            summary["copiesApplied"] == 1 && summary["copiesFailed"] == 1,
            "{summary}"
        );
        Ok(())
    });
    counts.await?;
    hub.wait_ready(&rule, "False", "Contended")
        .await
        .map(|_| ())
}
