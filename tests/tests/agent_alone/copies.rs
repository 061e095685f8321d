//! Changes of copies.
use anyhow::Result;
use runnel_proto::model::*;
use runnel_tests::scene::{Draft, Id};
use runnel_tests::wait::steadily;
use serde_json::json;
use std::time::Duration;

use crate::alone::{Alone, source};

#[tokio::test]
async fn copies_are_made_changed_and_put_back() -> Result<()> {
    let alone = Alone::start("put-back", &["a", "b"]).await?;
    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("one", "1"), ("two", "1")]));
    alone.hub.wait_applied("r", 4).await?;
    let id = alone.id("a", "one");
    alone.has_value(&id, "1").await?;

    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("one", "2"), ("two", "1")]));
    for namespace in ["a", "b"] {
        alone.has_value(&alone.id(namespace, "one"), "2").await?;
    }
    alone.hub.wait_applied("r", 4).await?;

    // A surplus key, a changed value, a second field, foreign marks: our fields are restored,
    // others are unchanged.
    alone
        .place
        .change(
            &id,
            json!({"data": {"surplus": "x", "text": "changed"}, "binaryData": {"more": "AA=="}}),
        )
        .await?;
    alone.has_value(&id, "2").await?;
    alone
        .place
        .sees("no surplus", &id, |copy| {
            anyhow::ensure!(copy["binaryData"].is_null());
            Ok(())
        })
        .await?;
    alone
        .place
        .change(
            &id,
            json!({"metadata": {"labels": {"theirs": "x", "app": "y"}}}),
        )
        .await?;
    let copy = alone
        .place
        .sees("our label", &id, |copy| {
            anyhow::ensure!(
                copy["metadata"]["labels"]["app"] == "x",
                "{}",
                copy["metadata"]["labels"]
            );
            Ok(())
        })
        .await?;
    assert_eq!(copy["metadata"]["labels"]["theirs"], "x");

    // Stripped marks.
    let strip = json!({"metadata": {"labels": {"runnel.dev/hub": null, "app.kubernetes.io/managed-by": null}}});
    alone.place.change(&id, strip).await?;
    alone.has_value(&id, "2").await?;
    let strip = json!({"metadata": {
        "labels": {"runnel.dev/hub": null},
        "annotations": {"runnel.dev/seal": null, "runnel.dev/rule": "forged", "runnel.dev/source": null},
    }});
    alone.place.change(&id, strip).await?;
    alone.has_value(&id, "2").await?;

    alone.place.delete(&id).await?;
    alone.has_value(&id, "2").await?;
    alone.place.has_event(&id, "DriftCorrected").await?;

    // When idle nothing is written, not even after events of our own writes.
    let mark = alone.plane.mark();
    steadily("no writes at rest", Duration::from_secs(3), async || {
        let writes = alone.writes(mark)?;
        anyhow::ensure!(writes.is_empty(), "{writes:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn foreign_objects_are_left_alone() -> Result<()> {
    let alone = Alone::start("foreign", &["a", "b", "c"]).await?;
    let foreign = alone
        .place
        .make(
            &Draft::config_map(&alone.ns("b"), "one")
                .data("text", "theirs")
                .json(),
        )
        .await?;
    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("one", "1")]));
    let copy = alone.has_value(&alone.id("a", "one"), "1").await?;
    let settled = |state: &RuleState| (state.counts.failed, state.counts.applied) == (1, 1);
    let state = alone
        .hub
        .wait_for_report("a conflict", "r", settled)
        .await?;
    assert_eq!(state.failures[0].reason, Reason::Conflict);
    alone
        .place
        .has_event(&alone.id("b", "one"), "Conflict")
        .await?;

    // A clone with all our marks in a namespace that no rule names, made by hand.
    let mut clone = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "cloned"}});
    clone["metadata"] = json!({
        "name": "one",
        "namespace": alone.ns("c"),
        "labels": copy["metadata"]["labels"],
        "annotations": copy["metadata"]["annotations"],
    });
    let clone = alone.place.make(&clone).await?;
    alone.hub.remove("r", DeletionPolicy::Delete);
    alone.hub.wait_gone("r").await?;
    alone.place.lacks(&alone.id("a", "one")).await?;
    alone.place.is_untouched(&clone).await?;
    alone.place.is_untouched(&foreign).await?;

    // When the foreign object is deleted, the copy is created, without a watch event.
    alone.hub.want("q", alone.rule(&["b"], &[("one", "1")]));
    alone
        .hub
        .wait_for_report("a conflict", "q", |state| state.counts.failed == 1)
        .await?;
    alone.place.delete(&alone.id("b", "one")).await?;
    alone.has_value(&alone.id("b", "one"), "1").await?;
    alone.hub.wait_applied("q", 1).await.map(drop)
}

#[tokio::test]
async fn tombstones_delete_or_retain_and_equal_objects_are_taken_back() -> Result<()> {
    let alone = Alone::start("tombs", &["a", "b"]).await?;
    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("one", "1"), ("two", "1")]));
    alone.hub.wait_applied("r", 4).await?;
    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("two", "1")]));
    alone.hub.wait_applied("r", 2).await?;
    alone.place.lacks(&alone.id("a", "one")).await?;

    let (left, changed) = (alone.id("a", "two"), alone.id("b", "two"));
    let uid = alone.place.get(&left).await?["metadata"]["uid"].clone();
    alone.hub.remove("r", DeletionPolicy::Retain);
    alone.hub.wait_gone("r").await?;
    let object = alone.place.get(&left).await?;
    let notes = object["metadata"]["annotations"]
        .as_object()
        .map(|notes| notes.keys().collect::<Vec<_>>());
    assert_eq!(
        notes.unwrap_or_default(),
        ["runnel.dev/retained-from", "runnel.dev/retained-proof"]
    );
    assert_eq!(
        object["metadata"]["annotations"]["runnel.dev/retained-from"],
        "team/settings"
    );
    assert_eq!(object["metadata"]["labels"], json!({"app": "x"}));
    assert_eq!(
        (&object["metadata"]["uid"], &object["data"]),
        (&uid, &json!({"text": "1"}))
    );
    assert!(
        !object["metadata"]["managedFields"]
            .to_string()
            .contains("\"Apply\"")
    );

    alone
        .place
        .change(&changed, json!({"data": {"text": "theirs now"}}))
        .await?;
    alone
        .hub
        .want("q", alone.rule(&["a", "b"], &[("two", "1")]));
    let taken = alone.has_value(&left, "1").await?;
    assert_eq!(taken["metadata"]["uid"], uid);
    // The marks of a copy are written first; what it was retained from is taken off after that.
    let without = alone.place.sees(
        "without the annotation of a retained object",
        &left,
        |copy| {
            let annotations = &copy["metadata"]["annotations"];
            anyhow::ensure!(
                annotations["runnel.dev/retained-from"].is_null(),
                "{annotations}"
            );
            Ok(())
        },
    );
    without.await?;
    let state = alone
        .hub
        .wait_for_report("one taken back, one not", "q", |state| {
            state.counts.applied == 1 && state.counts.failed == 1
        })
        .await?;
    assert_eq!(state.failures[0].reason, Reason::Conflict);
    assert_eq!(
        alone.place.get(&changed).await?["data"]["text"],
        "theirs now"
    );
    Ok(())
}

#[tokio::test]
async fn a_suspended_rule_touches_nothing_and_catches_up() -> Result<()> {
    let alone = Alone::start("suspended", &["a", "b"]).await?;
    let mut wanted = alone.rule(&["a"], &[("one", "1")]);
    alone.hub.want("r", wanted.clone());
    alone.hub.wait_applied("r", 1).await?;
    wanted.terms = Terms {
        suspend: true,
        ..alone.terms(&["b"])
    };
    alone.hub.want("r", wanted.clone());
    alone
        .hub
        .wait_for_report("the new terms", "r", |state| state.counts.applied == 0)
        .await?;
    alone
        .place
        .change(&alone.id("a", "one"), json!({"data": {"text": "changed"}}))
        .await?;
    let mark = alone.plane.mark();
    steadily("nothing is written", Duration::from_secs(3), async || {
        anyhow::ensure!(alone.writes(mark)?.is_empty(), "{:?}", alone.writes(mark)?);
        Ok(())
    })
    .await?;
    wanted.terms.suspend = false;
    alone.hub.want("r", wanted);
    alone.has_value(&alone.id("b", "one"), "1").await?;
    alone.place.lacks(&alone.id("a", "one")).await
}

#[tokio::test]
async fn created_and_deleted_namespaces_are_followed() -> Result<()> {
    let alone = Alone::start("places", &["a"]).await?;
    let mut wanted = alone.rule(&["a", "late", "x-*"], &[("one", "1")]);
    alone.hub.want("r", wanted.clone());
    let state = alone
        .hub
        .wait_for_report("a waiting copy", "r", |state| state.counts.applied == 1)
        .await?;
    assert_eq!((state.counts.copies, state.counts.waiting), (2, 1));
    for late in ["late", "x-1"] {
        alone.make_namespace(late).await?;
        alone.has_value(&alone.id(late, "one"), "1").await?;
    }
    alone.hub.wait_applied("r", 3).await?;

    // A namespace whose deletion is blocked by an object with a finalizer.
    let blocker = Draft::config_map(&alone.ns("late"), "blocker").json();
    let blocker = alone.place.make(&blocker).await?;
    let blocker = Id::of(&blocker)?;
    alone
        .place
        .change(
            &blocker,
            json!({"metadata": {"finalizers": ["example.com/hold"]}}),
        )
        .await?;
    alone
        .place
        .delete(&Id::namespace(&alone.ns("late")))
        .await?;
    let state = alone
        .hub
        .wait_for_report("a terminating namespace", "r", |state| {
            state.counts.failed == 1
        })
        .await?;
    assert_eq!(state.failures[0].reason, Reason::NamespaceTerminating);
    alone
        .place
        .change(&blocker, json!({"metadata": {"finalizers": null}}))
        .await?;
    alone
        .hub
        .wait_for_report("a waiting copy again", "r", |state| {
            state.counts.waiting == 1 && state.counts.failed == 0
        })
        .await?;
    wanted.terms.create_namespaces = true;
    alone.hub.want("r", wanted);
    alone.has_value(&alone.id("late", "one"), "1").await?;
    alone.hub.wait_applied("r", 3).await.map(drop)
}

#[tokio::test]
async fn bad_object_is_named_without_content_and_delays_no_other() -> Result<()> {
    let alone = Alone::start("bad", &["a"]).await?;
    let canary = "c2VjcmV0LWNhbmFyeQ==";
    let texts: Vec<_> = (0..30).map(|n| format!("n{n:02}")).collect();
    let pairs: Vec<_> = texts.iter().map(|name| (name.as_str(), "1")).collect();
    let mut wanted = alone.rule(&["a"], &pairs);
    let fields = [
        ("type".to_owned(), json!("kubernetes.io/tls")),
        ("data".to_owned(), json!({"wrong": canary})),
    ];
    let bad = Content {
        fields: fields.into(),
        ..Content::default()
    };
    wanted.intents.insert(source("secrets", "a-bad"), bad);
    let fields = [("data".to_owned(), json!({"not/a/key": "x"}))];
    wanted.intents.insert(
        source("configmaps", "a-key"),
        Content {
            fields: fields.into(),
            ..Content::default()
        },
    );
    alone.hub.want("r", wanted.clone());
    let state = alone
        .hub
        .wait_for_report("all but two", "r", |state| {
            state.counts.applied == 30 && state.counts.failed == 2
        })
        .await?;
    assert!(
        state
            .failures
            .iter()
            .all(|failure| failure.reason == Reason::Invalid),
        "{:?}",
        state.failures
    );
    let received = alone.hub.received();
    assert!(
        !received.contains(canary)
            && !received.contains("secret-canary")
            && !received.contains("not/a/key"),
        "{received}"
    );

    // An immutable copy cannot be changed. The message has a hint, and the hint works.
    let content = |text: &str| {
        let fields = [
            ("data".to_owned(), json!({"text": text})),
            ("immutable".to_owned(), json!(true)),
        ];
        Content {
            fields: fields.into(),
            ..Content::default()
        }
    };
    wanted.intents = [(source("configmaps", "fixed"), content("1"))].into();
    alone.hub.want("r", wanted.clone());
    alone.hub.wait_applied("r", 1).await?;
    wanted.intents = [(source("configmaps", "fixed"), content("2"))].into();
    alone.hub.want("r", wanted);
    alone.hub.wait_failed("r", Reason::Immutable).await?;
    alone.place.delete(&alone.id("a", "fixed")).await?;
    alone
        .has_value(&alone.id("a", "fixed"), "2")
        .await
        .map(drop)
}
