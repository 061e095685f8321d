//! Copies that do not take a change.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft, entry_of};
use serde_json::json;

use super::scene_with;

#[tokio::test]
async fn immutable_copies_are_reported_or_recreated() -> Result<()> {
    let home = "immutable";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let frozen = hub
        .make(
            &Draft::config_map(home, "frozen")
                .data("k", "1")
                .with("immutable", json!(true))
                .json(),
        )
        .await?;
    let typed = hub
        .make(
            &Draft::secret(home, "typed")
                .data("k", "1")
                .with("type", json!("example.com/a"))
                .json(),
        )
        .await?;
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let mut before = vec![];
    for source in [&frozen, &typed] {
        before.push(member.has_copy(source, home, &rule).await?);
    }
    // On the hub, too, they can only be deleted and created again: within the grace period this is
    // an edit.
    let frozen_again = Draft::config_map(home, "frozen")
        .data("k", "2")
        .with("immutable", json!(true))
        .json();
    let typed_again = Draft::secret(home, "typed")
        .data("k", "1")
        .with("type", json!("example.com/b"))
        .json();
    let mut sources = vec![];
    for again in [&frozen_again, &typed_again] {
        hub.delete(&Id::of(again)?).await?;
        sources.push(hub.make(again).await?);
    }
    let observed = hub.wait_failed(&rule, "Immutable", 2).await?;
    let entry = entry_of(&observed, "member-1")?;
    ensure!(entry["failed"] == 2, "{entry}");
    ensure!(
        entry["message"]
            .as_str()
            .is_some_and(|output| output.contains("delete the copy")),
        "{entry}"
    );
    for object in &before {
        member.is_untouched(object).await?;
    }
    // The fix that the message names.
    member.delete(&Id::of(&frozen)?).await?;
    member.has_copy(&sources[0], home, &rule).await?;
    hub.change(&rule, json!({"spec": {"immutablePolicy": "Recreate"}}))
        .await?;
    let made = member.has_copy(&sources[1], home, &rule).await?;
    ensure!(made["metadata"]["uid"] != before[1]["metadata"]["uid"]);
    let observed = member.has_event(&Id::of(&typed)?, "Recreated").await?;
    ensure!(
        observed.kind == "Normal" && observed.note.contains("restart"),
        "{observed:?}"
    );
    hub.all_applied(&rule, 2).await.map(|_| ())
}
