//! Rules with the same copy, and sources with the same copy.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use runnel_tests::scene::{Draft, Id, Recorder, RuleDraft, SOON, TestCluster, condition, entry_of};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

use super::{scene, scene_with};

/// Waits until a rule made now is younger than `rule`: ages count in whole seconds.
async fn grow_older(hub: &TestCluster, rule: &Id) -> Result<()> {
    let created = hub.get(rule).await?["metadata"]["creationTimestamp"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let created: Timestamp = created.parse()?;
    eventually("the next second", SOON, async || {
        Ok((Timestamp::now().as_second() > created.as_second()).then_some(()))
    })
    .await
}

/// Waits until `loser` reports in these words that `winner` has the copy.
async fn gives_way(hub: &TestCluster, loser: &Id, winner: &Id, words: &str) -> Result<Value> {
    let observed = hub.wait_ready(loser, "False", "Superseded").await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains(&format!("{} wins this copy: {words}", winner.path())),
        "{message}"
    );
    Ok(observed)
}

#[tokio::test]
async fn older_rule_wins_until_it_is_deleted() -> Result<()> {
    let home = "contest";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "v").json())
        .await?;
    let draft = |name| RuleDraft::new(home, name).named(&["*"]).to(&["member-1"]);
    // Neither names nor uids decide: the older is the last by name.
    let (older, younger) = (Id::rule(home, "z-older"), Id::rule(home, "a-younger"));
    hub.make(&draft("z-older").json()).await?;
    let copy = member.has_copy(&source, home, &older).await?;
    grow_older(hub, &older).await?;
    hub.make(&draft("a-younger").json()).await?;
    let observed = gives_way(hub, &younger, &older, "it is older").await?;
    ensure!(
        observed["status"]["summary"]["copiesFailed"] == 1,
        "{}",
        observed["status"]
    );
    hub.all_applied(&older, 1).await?;
    member.is_untouched(&copy).await?;

    let recorder = Recorder::start(member, &Id::config_map(home, "")).await?;
    // The winner may be deleted, no longer select this copy, or no longer choose the cluster. Each
    // time the other rule adopts it at once.
    hub.change(
        &older,
        json!({"spec": {"clusters": {"names": ["member-2"]}}}),
    )
    .await?;
    member.has_copy(&source, home, &younger).await?;
    hub.all_applied(&younger, 1).await?;
    hub.change(
        &older,
        json!({"spec": {"clusters": {"names": ["member-1"]}}}),
    )
    .await?;
    // The rule that has the copy keeps it, also from an older one that comes back.
    gives_way(hub, &older, &younger, "it has this copy already").await?;
    member.has_copy(&source, home, &younger).await?;
    hub.all_applied(&younger, 1).await?;
    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "w"}}))
        .await?;
    member.has_copy(&edited, home, &younger).await?;
    let sources = json!([{"resources": ["configmaps"], "names": ["other"]}]);
    hub.change(&younger, json!({"spec": {"sources": sources}}))
        .await?;
    let source = member
        .has_copy(&edited, home, &older)
        .await
        .map(|_| edited)?;
    let sources = json!([{"resources": ["configmaps"], "names": ["settings"]}]);
    hub.change(&younger, json!({"spec": {"sources": sources}}))
        .await?;
    gives_way(hub, &younger, &older, "it is older").await?;
    hub.delete(&older).await?;
    hub.lacks(&older).await?;
    member.has_copy(&source, home, &younger).await?;
    hub.all_applied(&younger, 1).await?;

    // The loser is deleted: the copy is unchanged.
    grow_older(hub, &younger).await?;
    let third = Id::rule(home, "third");
    hub.make(&draft("third").json()).await?;
    gives_way(hub, &third, &younger, "it is older").await?;
    let copy = member.get(&Id::of(&source)?).await?;
    hub.delete(&third).await?;
    hub.lacks(&third).await?;
    hub.all_applied(&younger, 1).await?;
    member.is_untouched(&copy).await?;
    recorder.was_never_missing(home, "settings")
}

#[tokio::test]
async fn cluster_rule_comes_first_and_reads_named_namespaces() -> Result<()> {
    let scene = scene().await?;
    scene
        .hub_namespaces(&["precede-a", "precede-b", "precede-c"])
        .await?;
    for member in &scene.members[..2] {
        member.make(&Draft::namespace("precede").json()).await?;
    }
    let (hub, member) = (&scene.hub, scene.member(1));
    let config = |namespace, name, text| Draft::config_map(namespace, name).data("k", text).json();
    let common = hub.make(&config("precede-a", "common", "from a")).await?;
    let (first, rule) = (Id::cluster_rule("precede"), Id::rule("precede-a", "own"));
    hub.make(
        &RuleDraft::new("precede-a", "own")
            .named(&["*"])
            .to(&["member-1"])
            .into(&["precede"])
            .json(),
    )
    .await?;
    member.has_copy(&common, "precede", &rule).await?;
    let recorder = Recorder::start(member, &Id::config_map("precede", "")).await?;
    grow_older(hub, &rule).await?;

    let in_b = hub.make(&config("precede-b", "only-b", "from b")).await?;
    hub.make(&config("precede-c", "only-c", "from c")).await?;
    let sources = json!([
        {"namespaces": ["precede-a"], "resources": ["configmaps"], "names": ["common"]},
        {"namespaces": ["precede-b*"], "resources": ["configmaps"], "names": ["*"]},
    ]);
    let draft = RuleDraft::cluster_scoped("precede")
        .to(&["member-1"])
        .into(&["precede"]);
    hub.make(&draft.with("sources", sources).json()).await?;
    // The younger one wins, as it is cluster-scoped.
    member.has_copy(&common, "precede", &first).await?;
    member.has_copy(&in_b, "precede", &first).await?;
    hub.all_applied(&first, 2).await?;
    gives_way(hub, &rule, &first, "it is cluster-scoped").await?;
    ensure!(
        member
            .find(&Id::config_map("precede", "only-c"))
            .await?
            .is_none()
    );

    // A namespace that comes to the glob later; and the rule's end hands the copy back.
    hub.make(&Draft::namespace("precede-b-too").json()).await?;
    let late = hub.make(&config("precede-b-too", "late", "late")).await?;
    member.has_copy(&late, "precede", &first).await?;
    hub.delete(&first).await?;
    hub.lacks(&first).await?;
    member.has_copy(&common, "precede", &rule).await?;
    member.lacks(&Id::of(&late)?.within("precede")).await?;
    hub.all_applied(&rule, 1).await?;
    recorder.was_never_missing("precede", "common")
}

#[tokio::test]
async fn sources_with_one_copy_are_refused_or_the_first_wins() -> Result<()> {
    let scene = scene().await?;
    scene.hub_namespaces(&["twice-a", "twice-b"]).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    member.make(&Draft::namespace("twice").json()).await?;
    let config = |namespace, name, text| Draft::config_map(namespace, name).data("k", text).json();
    let (first, other) = (
        config("twice-a", "settings", "from a"),
        config("twice-b", "settings", "from b"),
    );
    let first = hub.make(&first).await?;
    let alone = hub.make(&config("twice-b", "alone", "v")).await?;
    let rule = Id::cluster_rule("twice");
    let sources = json!([{"namespaces": ["twice-*"], "resources": ["configmaps"], "names": ["*"]}]);
    let draft = RuleDraft::cluster_scoped("twice")
        .to(&["member-1"])
        .into(&["twice"]);
    hub.make(&draft.with("sources", sources).json()).await?;
    let copy = member.has_copy(&first, "twice", &rule).await?;

    let second = hub.make(&other).await?;
    let observed = hub.wait_ready(&rule, "False", "AmbiguousSource").await?;
    let message = condition(&observed, "Ready")?["message"]
        .as_str()
        .unwrap_or_default();
    for part in [
        "configmaps/twice-a/settings",
        "configmaps/twice-b/settings",
        "left unchanged",
    ] {
        ensure!(message.contains(part), "{message}");
    }
    // The existing copy stays, whatever either rule holds; and the others are not delayed.
    hub.change(&Id::of(&first)?, json!({"data": {"k": "edited a"}}))
        .await?;
    let second = hub
        .change(&Id::of(&second)?, json!({"data": {"k": "edited b"}}))
        .await?;
    let edited = hub
        .change(&Id::of(&alone)?, json!({"data": {"k": "w"}}))
        .await?;
    member.has_copy(&edited, "twice", &rule).await?;
    steadily(
        "the copy stays as it is",
        Duration::from_secs(1),
        async || member.is_untouched(&copy).await,
    )
    .await?;

    // The namespace that is named first has it. The copy changes hands in place.
    let recorder = Recorder::start(member, &Id::config_map("twice", "")).await?;
    let named = |namespaces: [&str; 2]| {
        let sources =
            json!([{"namespaces": namespaces, "resources": ["configmaps"], "names": ["*"]}]);
        json!({"spec": {"sources": sources}})
    };
    hub.change(&rule, named(["twice-b", "twice-*"])).await?;
    member.has_copy(&second, "twice", &rule).await?;
    hub.all_applied(&rule, 2).await?;
    hub.change(&rule, named(["twice-a", "twice-*"])).await?;
    let first = hub.get(&Id::of(&first)?).await?;
    member.has_copy(&first, "twice", &rule).await?;
    hub.all_applied(&rule, 2).await?;
    hub.delete(&Id::of(&first)?).await?;
    member.has_copy(&second, "twice", &rule).await?;
    hub.all_applied(&rule, 2).await?;
    recorder.was_never_missing("twice", "settings")?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await
}
