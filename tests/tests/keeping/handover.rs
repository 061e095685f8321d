//! Copies that change hands, and copies to which others have tied something.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, Recorder, RuleDraft};
use serde_json::{Value, json};

use super::scene_with;

/// A cluster-scoped rule for the object `common` of one namespace.
fn reading(name: &str, from: &str, target: &str) -> RuleDraft {
    let sources = json!([{"namespaces": [from], "resources": ["configmaps"], "names": ["common"]}]);
    RuleDraft::cluster_scoped(name)
        .to(&["member-1"])
        .into(&[target])
        .with("sources", sources)
}

#[tokio::test]
async fn transfers_and_selector_edits_leave_no_gap() -> Result<()> {
    let home = "handed-over";
    let scene = scene_with(home).await?;
    scene.hub_namespaces(&["handed-a", "handed-b"]).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let (first, second) = (
        Id::cluster_rule("handover-a"),
        Id::cluster_rule("handover-b"),
    );
    let from = |namespace: &str| {
        Draft::config_map(namespace, "common")
            .data("from", namespace)
            .json()
    };
    let in_a = hub.make(&from("handed-a")).await?;
    hub.make(&reading("handover-a", "handed-a", home).json())
        .await?;
    let copy = member.has_copy(&in_a, home, &first).await?;
    let recorder = Recorder::start(member, &Id::config_map(home, "")).await?;

    // To another rule with another source: when its rule is deleted, the other one adopts the same
    // object.
    let in_b = hub.make(&from("handed-b")).await?;
    hub.make(&reading("handover-b", "handed-b", home).json())
        .await?;
    hub.wait_ready(&second, "False", "Superseded").await?;
    hub.delete(&first).await?;
    hub.lacks(&first).await?;
    member.has_copy(&in_b, home, &second).await?;
    hub.all_applied(&second, 1).await?;

    // To another source of the same rule, by one edit; and to another rule, by one edit each, in the wrong order.
    let sources =
        json!([{"namespaces": ["handed-a"], "resources": ["configmaps"], "names": ["comm*"]}]);
    hub.change(&second, json!({"spec": {"sources": sources}}))
        .await?;
    member.has_copy(&in_a, home, &second).await?;
    hub.all_applied(&second, 1).await?;
    let third = Id::cluster_rule("handover-c");
    hub.make(&reading("handover-c", "handed-a", home).json())
        .await?;
    hub.wait_ready(&third, "False", "Superseded").await?;
    let label = json!([{"namespaces": ["handed-a"], "resources": ["configmaps"], "selector": {"matchLabels": {"none": "such"}}}]);
    hub.change(&second, json!({"spec": {"sources": label}}))
        .await?;
    member.has_copy(&in_a, home, &third).await?;
    hub.wait_ready(&second, "False", "NoSources").await?;
    recorder.was_never_missing(home, "common")?;
    ensure!(
        member.get(&Id::of(&in_a)?.within(home)).await?["metadata"]["uid"]
            == copy["metadata"]["uid"]
    );
    for rule in [&second, &third] {
        hub.delete(rule).await?;
        hub.lacks(rule).await?;
    }
    member.lacks(&Id::of(&in_a)?.within(home)).await
}

#[tokio::test]
async fn edited_renamed_or_recreated_rule_leaves_no_gap() -> Result<()> {
    let (home, target) = ("rewritten", "rewritten-there");
    let scene = scene_with(home).await?;
    scene.member_namespaces(&[target]).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let (first, second) = (Id::rule(home, "first"), Id::rule(home, "second"));
    let source = hub
        .make(
            &Draft::config_map(home, "settings")
                .label("part", "a")
                .data("k", "v")
                .json(),
        )
        .await?;
    let draft = |name| {
        RuleDraft::new(home, name)
            .named(&["settings"])
            .to(&["member-1"])
            .into(&[target])
    };
    hub.make(&draft("first").json()).await?;
    let copy = member.has_copy(&source, target, &first).await?;
    let recorder = Recorder::start(member, &Id::config_map(target, "")).await?;

    // Edited: every choice is written differently, and so are the policies.
    let by_label =
        json!([{"resources": ["configmaps"], "selector": {"matchLabels": {"part": "a"}}}]);
    for edit in [
        json!({"sources": by_label}),
        json!({"clusters": {"names": null, "all": true}}),
        json!({"namespaces": {"names": ["rewritten*"], "exclude": [home]}}),
        json!({"namespaces": {"names": null, "selector": {"matchLabels": {"kubernetes.io/metadata.name": target}}}}),
        json!({"driftPolicy": "Report", "conflictPolicy": "AdoptIfEqual", "deletionPolicy": "Retain"}),
        json!({"suspend": true}),
        json!({"suspend": false, "deletionPolicy": "Delete"}),
    ] {
        hub.change(&first, json!({"spec": edit})).await?;
        if edit["suspend"] == true {
            _ = hub.wait_ready(&first, "False", "Suspended").await?
        } else {
            _ = hub.all_applied(&first, 1).await?
        }
        member.has_copy(&source, target, &first).await?;
    }

    // Renamed: the rule is created under another name, then the old one is deleted.
    hub.make(&draft("second").json()).await?;
    hub.wait_ready(&second, "False", "Superseded").await?;
    hub.delete(&first).await?;
    hub.lacks(&first).await?;
    member.has_copy(&source, target, &second).await?;
    hub.all_applied(&second, 1).await?;

    // Created again: it takes over what it left by Retain. If another rule selects the copy
    // meanwhile, that rule has it.
    hub.change(&second, json!({"spec": {"deletionPolicy": "Retain"}}))
        .await?;
    hub.all_applied(&second, 1).await?;
    hub.delete(&second).await?;
    hub.lacks(&second).await?;
    hub.make(&draft("second").json()).await?;
    member.has_copy(&source, target, &second).await?;
    hub.all_applied(&second, 1).await?;
    let third = Id::rule(home, "third");
    hub.make(&draft("third").json()).await?;
    hub.wait_ready(&third, "False", "Superseded").await?;
    hub.delete(&second).await?;
    hub.lacks(&second).await?;
    member.has_copy(&source, target, &third).await?;
    hub.all_applied(&third, 1).await?;
    recorder.was_never_missing(target, "settings")?;
    ensure!(
        member.get(&Id::of(&source)?.within(target)).await?["metadata"]["uid"]
            == copy["metadata"]["uid"]
    );
    Ok(())
}

#[tokio::test]
async fn finalizers_and_owners_of_others_are_kept_and_block_no_other() -> Result<()> {
    let home = "tied";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let source = hub
        .make(&Draft::config_map(home, "held").data("k", "1").json())
        .await?;
    let other = hub.make(&Draft::config_map(home, "other").json()).await?;
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    hub.all_applied(&rule, 2).await?;
    let id = Id::of(&source)?;
    let owner = member
        .make(&Draft::config_map(home, "owner").json())
        .await?;
    let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]);
    member
        .change(
            &id,
            json!({"metadata": {"finalizers": ["example.com/hold"], "ownerReferences": owners}}),
        )
        .await?;
    hub.change(&id, json!({"data": {"k": "2"}})).await?;
    let tied = |copy: &Value| {
        ensure!(
            copy["data"]["k"] == "2"
                && copy["metadata"]["finalizers"] == json!(["example.com/hold"])
        );
        ensure!(
            copy["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|owners| owners.len() == 1)
        );
        Ok(())
    };
    member.sees("changed and still tied", &id, tied).await?;
    hub.all_applied(&rule, 2).await?;
    // The copy is deleted: an owner reference does not prevent it, a finalizer does, and that
    // delays nothing else.
    hub.delete(&id).await?;
    let is_going = |copy: &Value| {
        ensure!(
            copy["metadata"]["deletionTimestamp"].is_string(),
            "{}",
            copy["metadata"]
        );
        Ok(())
    };
    member.sees("on its way out", &id, is_going).await?;
    let other = hub
        .change(&Id::of(&other)?, json!({"data": {"k": "2"}}))
        .await?;
    member.has_copy(&other, home, &rule).await?;
    member
        .change(&id, json!({"metadata": {"finalizers": null}}))
        .await?;
    member.lacks(&id).await?;
    hub.all_applied(&rule, 1).await.map(|_| ())
}
