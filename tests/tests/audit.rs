//! The audit trail: log lines and Events about what was done to copies, and why.

use std::path::Path;

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, ObservedEvent, RuleDraft, SOON, Scene, TestCluster};
use runnel_tests::wait::eventually;
use serde_json::json;

/// Waits until a log has a line with all these texts.
async fn has_line(log: &Path, texts: &[&str]) -> Result<()> {
    eventually(&format!("a line with {texts:?}"), SOON, async || {
        let log = std::fs::read_to_string(log)?;
        let is_it = |line: &str| texts.iter().all(|text| line.contains(text));
        ensure!(log.lines().any(is_it), "the log has none");
        Ok(Some(()))
    })
    .await
}

/// Waits until an Event about an object names this cluster.
async fn names_cluster(
    place: &TestCluster,
    id: &Id,
    reason: &str,
    cluster: &str,
) -> Result<ObservedEvent> {
    eventually(
        &format!("an Event {reason} with {cluster}"),
        SOON,
        async || {
            let observed = place.events_about(id).await?;
            let is_it = |event: &&ObservedEvent| {
                event.reason == reason && event.cluster.as_deref() == Some(cluster)
            };
            let found = observed.iter().find(is_it).cloned();
            ensure!(found.is_some(), "{observed:?}");
            Ok(found)
        },
    )
    .await
}

async fn history(fleet: &Fleet, words: &[&str]) -> Result<String> {
    let fixed = ["history", "audit/all"];
    fleet.runnel(&[&fixed[..], words].concat()).await
}

/// One story, because a fleet is expensive: created, edited by others, narrowed, lost, deleted.
#[tokio::test]
async fn changes_of_copies_are_logged_and_events() -> Result<()> {
    let options = FleetOptions {
        members: 2,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start(options).await?;
    let scene = Scene::of(&fleet).await?;
    let (home, hub, rule) = ("audit", &scene.hub, Id::rule("audit", "all"));
    scene.hub_namespaces(&[home]).await?;
    for member in &scene.members {
        member.make(&Draft::namespace(home).json()).await?;
    }
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .everywhere()
            .json(),
    )
    .await?;
    let event = hub.has_event(&rule, "NoSources").await?;
    ensure!(event.kind == "Warning", "{event:?}");
    let mut sources = Vec::new();
    for name in ["a", "b", "c"] {
        let source = Draft::config_map(home, name).data("k", "v4lue");
        sources.push(hub.make(&source.json()).await?);
    }
    hub.all_applied(&rule, 6).await?;
    let event = names_cluster(hub, &rule, "CopiesCreated", "member-2").await?;
    ensure!(
        event.kind == "Normal" && event.note.contains("in member-2: source"),
        "{event:?}"
    );
    has_line(
        fleet.agent_log(2),
        &["INFO", "of audit/all: the hub ordered it"],
    )
    .await?;

    let copy = Id::of(&sources[0])?;
    scene
        .member(1)
        .change(&copy, json!({"data": {"k": "else"}}))
        .await?;
    let event = names_cluster(hub, &rule, "CopiesRestored", "member-1").await?;
    ensure!(
        event.note == "restored 1 copy in member-1: another client changed or deleted it",
        "{event:?}"
    );
    let line = [
        "restored 1 copy of audit/all: changed or deleted by",
        "configmaps/audit/a",
    ];
    has_line(fleet.agent_log(1), &line).await?;
    let event = scene.member(1).has_event(&copy, "DriftCorrected").await?;
    ensure!(
        event.note.contains(
            "changed this copy of audit/all (/data/k is another), and the agent restored it"
        ),
        "{event:?}"
    );

    // The rule does not choose member-2 any more.
    let narrow = json!({"spec": {"clusters": {"all": null, "names": ["member-1"]}}});
    hub.change(&rule, narrow).await?;
    let event = names_cluster(hub, &rule, "CopiesRemoved", "member-2").await?;
    ensure!(
        event.kind == "Normal" && event.note == "removed 3 copies in member-2: the rule was edited",
        "{event:?}"
    );
    let line = [
        "INFO",
        "removed 3 copies of audit/all in member-2: the rule was edited",
    ];
    has_line(fleet.hub_log(), &line).await?;
    let line = [
        "INFO",
        "removed 3 copies of audit/all: the hub ordered it (configmaps/audit/",
    ];
    has_line(fleet.agent_log(2), &line).await?;

    // A copy that cannot be written is logged by the agent.
    let foreign = Draft::config_map(home, "taken").data("k", "theirs");
    scene.member(1).make(&foreign.json()).await?;
    hub.make(&Draft::config_map(home, "taken").data("k", "ours").json())
        .await?;
    let line = [
        "WARN",
        "cannot write 1 copy of audit/all: Conflict: ",
        "configmaps/audit/taken",
    ];
    has_line(fleet.agent_log(1), &line).await?;

    // A lost cluster is one Event, on its MemberCluster, and names this cluster.
    let member = Id::member("member-2");
    fleet.stop_agent(2).await?;
    let event = hub.has_event(&member, "ClusterLost").await?;
    ensure!(
        event.kind == "Warning" && event.note.contains("member-2"),
        "{event:?}"
    );
    fleet.start_agent(2).await?;
    hub.has_event(&member, "ClusterBack").await?;
    let observed = hub.events_about(&member).await?;
    ensure!(observed.len() == 2, "{observed:?}");
    let of_rule = hub.events_about(&rule).await?;
    ensure!(
        of_rule
            .iter()
            .all(|event| !event.reason.starts_with("Cluster")),
        "{of_rule:?}"
    );

    hub.delete(&rule).await?;
    let event = names_cluster(hub, &rule, "CopiesRemoved", "member-1").await?;
    ensure!(
        event.note == "removed 3 copies in member-1: the rule was deleted",
        "{event:?}"
    );
    has_line(
        fleet.hub_log(),
        &["finalizer removed from deleted rule", "audit/all"],
    )
    .await?;
    let text = history(&fleet, &[]).await?;
    let removed = text.lines().filter(|line| line.contains("CopiesRemoved"));
    ensure!(
        removed.count() == 2 && text.contains("NoSources") && !text.contains("v4lue"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&history(&fleet, &["-o", "json"]).await?)?;
    let last = json.as_array().and_then(|all| all.last()).cloned();
    ensure!(
        last.as_ref()
            .is_some_and(|last| last["copies"] == 3 && last["cluster"] == "member-1"),
        "{last:?}"
    );
    Ok(())
}
