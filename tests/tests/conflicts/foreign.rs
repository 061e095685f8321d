//! Objects that are not Runnel's.

use anyhow::{Context, Result, ensure};
use runnel_tests::scene::{
    Draft, HUB_LABEL, Id, RuleDraft, SEAL, TestCluster, condition, entry_of,
};
use serde_json::{Value, json};

use super::{fleet, scene_with};

#[tokio::test]
async fn foreign_object_is_untouched_until_it_is_deleted() -> Result<()> {
    let home = "foreign";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let mut before = Vec::new();
    let foreign = Draft::config_map(home, "settings")
        .data("k", "theirs")
        .label("owner", "somebody")
        .json();
    before.push(member.make(&foreign).await?);
    // Applied by another tool, also with a label that looks like ours, and with exactly the content
    // of the source.
    let applied = Draft::secret(home, "login")
        .data("k", "v")
        .label("app.kubernetes.io/managed-by", "runnel")
        .json();
    before.push(member.make(&applied).await?);
    let rule = Id::rule(home, "all");
    let settings = hub
        .make(&Draft::config_map(home, "settings").data("k", "ours").json())
        .await?;
    let login = hub
        .make(&Draft::secret(home, "login").data("k", "v").json())
        .await?;
    let free = hub.make(&Draft::config_map(home, "free").json()).await?;
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1", "member-2"])
            .json(),
    )
    .await?;
    member.has_copy(&free, home, &rule).await?;
    for source in [&settings, &login, &free] {
        scene.member(2).has_copy(source, home, &rule).await?;
    }
    let observed = hub.wait_counted(&rule, "Conflict", (4, 2)).await?;
    ensure!(
        observed["status"]["display"] == json!({"clusters": "1/2", "copies": "4/6"}),
        "{}",
        observed["status"]
    );
    ensure!(condition(&observed, "Applied")?["status"] == "False");
    let message = condition(&observed, "Ready")?["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(
        message.contains("member-1") && message.contains("configmaps/foreign/settings"),
        "{message}"
    );
    let entry = entry_of(&observed, "member-1")?;
    ensure!(
        entry["state"] == "Failed" && entry["reason"] == "Conflict" && entry["failed"] == 2,
        "{entry}"
    );
    ensure!(
        observed["status"]["clusters"][0] == *entry,
        "the worst stands first: {}",
        observed["status"]
    );
    let event = hub.has_event(&rule, "Conflict").await?;
    // An Event keeps its first note, which names the copy that failed first.
    let names = ["configmaps/foreign/settings", "secrets/foreign/login"];
    ensure!(
        event.kind == "Warning" && names.iter().any(|name| event.note.contains(name)),
        "{event:?}"
    );
    for object in &before {
        let event = member.has_event(&Id::of(object)?, "Conflict").await?;
        ensure!(
            event.kind == "Warning" && event.note.contains("not Runnel's"),
            "{event:?}"
        );
    }

    // An edit of the source does not change that, and neither does one of the foreign object.
    let settings = hub
        .change(&Id::of(&settings)?, json!({"data": {"k": "ours again"}}))
        .await?;
    scene.member(2).has_copy(&settings, home, &rule).await?;
    before[0] = member
        .change(&Id::of(&settings)?, json!({"data": {"k": "theirs again"}}))
        .await?;
    let later = hub.make(&Draft::config_map(home, "later").json()).await?;
    member.has_copy(&later, home, &rule).await?;
    for object in &before {
        member.is_untouched(object).await?;
    }

    // The foreign object is deleted, and the copy is created automatically. Then the source is
    // deleted, and the foreign object is kept.
    member.delete(&Id::of(&settings)?).await?;
    member.has_copy(&settings, home, &rule).await?;
    hub.delete(&Id::of(&login)?).await?;
    scene.member(2).lacks(&Id::of(&login)?).await?;
    hub.all_applied(&rule, 6).await?;
    member.is_untouched(&before[1]).await?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    member.is_untouched(&before[1]).await
}

/// What `kubectl get -o yaml`, an edited name, and `kubectl apply` make of an object.
fn clone_of(object: &Value, namespace: &str, name: &str) -> Result<Value> {
    let metadata = object["metadata"].as_object().context("metadata")?;
    let kept = metadata
        .iter()
        .filter(|(key, _)| matches!(key.as_str(), "labels" | "annotations"));
    let mut clone = object.clone();
    clone["metadata"] = kept
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    clone["metadata"]["namespace"] = json!(namespace);
    clone["metadata"]["name"] = json!(name);
    Ok(clone)
}

async fn has_clone(
    member: &TestCluster,
    copy: &Value,
    namespace: &str,
    name: &str,
) -> Result<Value> {
    let clone = member.make(&clone_of(copy, namespace, name)?).await?;
    ensure!(
        !clone["metadata"]["annotations"][SEAL].is_null()
            && !clone["metadata"]["labels"][HUB_LABEL].is_null()
    );
    Ok(clone)
}

#[tokio::test]
async fn cloned_copy_is_left_alone() -> Result<()> {
    let home = "cloned";
    let scene = scene_with(home).await?;
    scene
        .member_namespaces(&["cloned-elsewhere", "cloned-target"])
        .await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .into(&[home])
            .json(),
    )
    .await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "v").json())
        .await?;
    let copy = member.has_copy(&source, home, &rule).await?;
    let clones = [
        has_clone(member, &copy, "cloned-elsewhere", "settings").await?,
        has_clone(member, &copy, "cloned-target", "settings").await?,
        has_clone(member, &copy, home, "settings-copied").await?,
    ];

    // Edits, a rule that selects the clone's name, and the deletion of the rule: they stay what
    // they are.
    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "w"}}))
        .await?;
    member.has_copy(&edited, home, &rule).await?;
    hub.change(
        &rule,
        json!({"spec": {"namespaces": {"names": [home, "cloned-target"]}}}),
    )
    .await?;
    let observed = hub.wait_ready(&rule, "False", "Conflict").await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("configmaps/cloned-target/settings") && message.contains("cloned"),
        "{message}"
    );
    hub.change(&rule, json!({"spec": {"namespaces": {"names": [home]}}}))
        .await?;
    hub.all_applied(&rule, 1).await?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    member.lacks(&Id::of(&source)?).await?;
    for clone in &clones {
        member.is_untouched(clone).await?;
    }
    Ok(())
}

#[tokio::test]
async fn replaced_copy_is_foreign_and_reported() -> Result<()> {
    let home = "replaced";
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
    member.has_copy(&source, home, &rule).await?;
    // No mark, label or value is as it was written: nothing shows that this was a copy.
    let theirs = Draft::config_map(home, "settings")
        .data("k", "theirs")
        .json();
    fleet()
        .await?
        .member(1)
        .kubectl_stdin(&["replace", "-f", "-"], &theirs.to_string())
        .await?;
    let replaced = member.get(&Id::of(&source)?).await?;
    let observed = hub.wait_ready(&rule, "False", "Conflict").await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("configmaps/replaced/settings"),
        "{message}"
    );
    member.has_event(&Id::of(&source)?, "Conflict").await?;
    member.is_untouched(&replaced).await?;
    member.delete(&Id::of(&source)?).await?;
    member.has_copy(&source, home, &rule).await?;
    hub.all_applied(&rule, 1).await.map(|_| ())
}

#[tokio::test]
async fn member_policy_against_overwriting_is_reported() -> Result<()> {
    let home = "not-overwritten";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let theirs = member
        .make(
            &Draft::config_map(home, "settings")
                .data("k", "theirs")
                .json(),
        )
        .await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "ours").json())
        .await?;
    let draft = RuleDraft::new(home, "all")
        .named(&["*"])
        .to(&["member-1"])
        .with("conflictPolicy", json!("Overwrite"));
    hub.make(&draft.json()).await?;
    let observed = hub.wait_ready(&rule, "False", "Denied").await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("configmaps/not-overwritten/settings")
            && message.contains("(policy.overwrite=false)"),
        "{message}"
    );
    member.is_untouched(&theirs).await?;
    // The name becomes free, and the copy is created.
    member.delete(&Id::of(&theirs)?).await?;
    member.has_copy(&source, home, &rule).await?;
    hub.all_applied(&rule, 1).await.map(|_| ())
}
