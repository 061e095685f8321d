//! Fields that a rule leaves to others.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft};
use runnel_tests::wait::steadily;
use serde_json::json;

use super::{apply_as, scene_with};

#[tokio::test]
async fn ignored_fields_are_written_at_creation_and_never_again() -> Result<()> {
    let home = "ignored";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let draft = Draft::config_map(home, "settings")
        .data("ours", "1")
        .data("theirs", "first")
        .data("unset", "first");
    let source = hub
        .make(
            &draft
                .label("team", "a")
                .annotation("example.com/note", "x")
                .json(),
        )
        .await?;
    let ignored = [
        "/data/theirs",
        "/data/unset",
        "/metadata/labels/team",
        "/metadata/annotations/example.com~1note",
    ];
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .with("ignoreFields", json!(ignored))
            .json(),
    )
    .await?;
    let id = Id::of(&source)?;
    hub.all_applied(&rule, 1).await?;
    let made = member.get(&id).await?;
    ensure!(
        made["data"] == source["data"] && made["metadata"]["labels"]["team"] == "a",
        "all is written at creation"
    );

    // Others change them, by hand and by an apply of their own, or take them away: that is no drift.
    apply_as("tuner", &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": home, "labels": {"team": "b"}}, "data": {"theirs": "tuned"}})).await?;
    let theirs = member
        .change(&id, json!({"data": {"unset": null}, "metadata": {"annotations": {"example.com/note": "y"}}}))
        .await?;
    steadily("it is left alone", Duration::from_secs(3), async || {
        member.is_untouched(&theirs).await
    })
    .await?;
    hub.all_applied(&rule, 1).await?;

    // An edit of the source, of those fields too, and drift in others: only the others are written.
    let change = json!({"data": {"ours": "2", "theirs": "second", "unset": "second", "more": "x"}, "metadata": {"labels": {"team": "c"}}});
    hub.change(&id, change).await?;
    let copy = member.sees("changed", &id, |copy| {
        ensure!(
            copy["data"] == json!({"ours": "2", "theirs": "tuned", "more": "x"}),
            "{}",
            copy["data"]
        );
        ensure!(
            copy["metadata"]["labels"]["team"] == "b"
                && copy["metadata"]["annotations"]["example.com/note"] == "y"
        );
        Ok(())
    });
    copy.await?;
    member
        .change(
            &id,
            json!({"data": {"ours": "drift", "surplus": "x", "theirs": "tuned again"}}),
        )
        .await?;
    let copy = member.sees("put back", &id, |copy| {
        ensure!(
            copy["data"] == json!({"ours": "2", "theirs": "tuned again", "more": "x"}),
            "{}",
            copy["data"]
        );
        Ok(())
    });
    let copy = copy.await?;
    // The other manager still has its field: its own apply does not conflict with ours.
    let managers = copy["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let ours = managers
        .iter()
        .find(|entry| entry["manager"] == "runnel-agent" && entry["operation"] == "Apply");
    let ours = ours
        .map(|entry| entry["fieldsV1"]["f:data"].clone())
        .unwrap_or_default();
    ensure!(
        ours["f:theirs"].is_null() && ours["f:ours"].is_object(),
        "we own {ours}"
    );
    hub.all_applied(&rule, 1).await?;

    // No longer ignored, they are the source's again.
    hub.change(&rule, json!({"spec": {"ignoreFields": null}}))
        .await?;
    let source = hub.get(&id).await?;
    member.has_copy(&source, home, &rule).await?;
    hub.all_applied(&rule, 1).await.map(|_| ())
}

#[tokio::test]
async fn path_that_is_no_copy_field_cannot_be_ignored() -> Result<()> {
    let home = "ignored-wrongly";
    let scene = scene_with(home).await?;
    for (pointer, expected_text) in [
        ("/status/x", "are the copy's own"),
        ("/metadata/name", "are the copy's own"),
        ("data/x", "write a JSON pointer"),
        ("/data/", "write a JSON pointer"),
        ("/spec/x/0", "an index names no item"),
        ("/metadata/labels/runnel.dev~1hub", "Runnel's own"),
        (
            "/metadata/labels/app.kubernetes.io~1managed-by",
            "Runnel's own",
        ),
    ] {
        let draft = RuleDraft::new(home, "all")
            .named(&["*"])
            .everywhere()
            .with("ignoreFields", json!([pointer]));
        let refused = format!(
            "{:#}",
            scene.hub.make(&draft.json()).await.expect_err(pointer)
        );
        ensure!(
            refused.contains("ignoreFields") && refused.contains(expected_text),
            "{pointer}: {refused}"
        );
    }
    Ok(())
}
