//! Copies that an apply alone cannot put back: what others have put there makes the whole illegal.
use anyhow::{Result, ensure};
use runnel_proto::model::{ConflictPolicy, Content, Terms};
use runnel_tests::scene::{Draft, Id};
use serde_json::{Value, json};

use crate::alone::{Alone, source};

impl Alone {
    async fn json_patch(&self, name: &str, patch: Value) -> Result<()> {
        let (namespace, text) = (self.ns("a"), patch.to_string());
        let arguments = [
            "-n",
            &namespace,
            "patch",
            "configmap",
            name,
            "--type=json",
            "-p",
            &text,
        ];
        self.plane.kubectl(&arguments).await.map(drop)
    }

    /// Waits until a copy holds exactly this text, and nothing in `binaryData`.
    async fn is_exact(&self, id: &Id, text: &str) -> Result<()> {
        let copy = self.has_value(id, text).await?;
        ensure!(copy["binaryData"].is_null(), "{}", copy["binaryData"]);
        Ok(())
    }
}

#[tokio::test]
async fn key_moved_to_binary_data_is_put_back() -> Result<()> {
    let alone = Alone::start("moved", &["a"]).await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.hub.wait_applied("r", 1).await?;
    let id = alone.id("a", "one");
    let moved = json!([
        {"op": "remove", "path": "/data/text"},
        {"op": "add", "path": "/binaryData", "value": {"text": "AAAA"}},
    ]);
    alone.json_patch("one", moved).await?;
    alone.is_exact(&id, "1").await?;
    // An edit of the source comes through as well.
    alone
        .json_patch(
            "one",
            json!([
                {"op": "remove", "path": "/data/text"},
                {"op": "add", "path": "/binaryData", "value": {"text": "AAAA"}},
            ]),
        )
        .await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "2")]));
    alone.is_exact(&id, "2").await?;
    alone.hub.wait_applied("r", 1).await.map(drop)
}

#[tokio::test]
async fn junk_that_fills_a_copy_is_removed() -> Result<()> {
    let alone = Alone::start("junk", &["a"]).await?;
    let large = "x".repeat(600 * 1024);
    alone.hub.want("r", alone.rule(&["a"], &[("one", &large)]));
    alone.hub.wait_applied("r", 1).await?;
    let id = alone.id("a", "one");
    let junk = json!({"data": {"text": null, "junk": "y".repeat(900 * 1024)}});
    alone.place.change(&id, junk).await?;
    alone.is_exact(&id, &large).await?;
    alone.hub.wait_applied("r", 1).await.map(drop)
}

#[tokio::test]
async fn annotations_that_leave_no_room_for_the_seal_are_removed() -> Result<()> {
    let alone = Alone::start("notes", &["a"]).await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.hub.wait_applied("r", 1).await?;
    let id = alone.id("a", "one");
    let strip = json!({"metadata": {"annotations": {
        "runnel.dev/seal": null, "runnel.dev/rule": null, "runnel.dev/source": null, "runnel.dev/member": null,
        "example.com/small": "stays", "example.com/large": "z".repeat(262_144 - 60),
    }}});
    alone.place.change(&id, strip).await?;
    alone.is_exact(&id, "1").await?;
    let notes = alone.place.get(&id).await?["metadata"]["annotations"].clone();
    ensure!(
        notes["example.com/small"] == "stays" && notes["example.com/large"].is_null(),
        "{notes}"
    );
    alone.hub.wait_applied("r", 1).await.map(drop)
}

#[tokio::test]
async fn foreign_object_with_the_key_in_another_map_is_overwritten() -> Result<()> {
    let alone = Alone::start("overwritten", &["a"]).await?;
    let mut foreign = Draft::config_map(&alone.ns("a"), "one").json();
    foreign["binaryData"] = json!({"text": "AAAA"});
    alone.place.make(&foreign).await?;
    let mut large = Draft::config_map(&alone.ns("a"), "two").json();
    large["data"] = json!({"theirs": "y".repeat(600 * 1024)});
    alone.place.make(&large).await?;
    let text = "x".repeat(600 * 1024);
    let mut wanted = alone.rule(&["a"], &[("one", "1"), ("two", &text)]);
    wanted.terms = Terms {
        conflict_policy: ConflictPolicy::Overwrite,
        ..wanted.terms
    };
    alone.hub.want("r", wanted);
    alone.hub.wait_applied("r", 2).await?;
    alone.is_exact(&alone.id("a", "one"), "1").await?;
    alone.is_exact(&alone.id("a", "two"), &text).await
}

#[tokio::test]
async fn illegal_source_changes_nothing_of_the_copy() -> Result<()> {
    let alone = Alone::start("illegal", &["a"]).await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.hub.wait_applied("r", 1).await?;
    let id = alone.id("a", "one");
    let before = alone.place.get(&id).await?;
    let mut wanted = alone.rule(&["a"], &[]);
    let fields = [("data".to_owned(), json!({"not/a/key": "x"}))];
    wanted.intents.insert(
        source("configmaps", "one"),
        Content {
            fields: fields.into(),
            ..Content::default()
        },
    );
    alone.hub.want("r", wanted);
    alone
        .hub
        .wait_for_report("a failure", "r", |state| state.counts.failed == 1)
        .await?;
    let after = alone.place.get(&id).await?;
    ensure!(
        after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"],
        "{after}"
    );
    Ok(())
}
