//! The hub's own cluster as a member.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, Recorder, RuleDraft};
use runnel_tests::wait::steadily;
use serde_json::json;

use super::scene;

#[tokio::test]
async fn rule_distributes_within_the_hub_and_spares_its_sources() -> Result<()> {
    let scene = scene().await?;
    let hub = &scene.hub;
    scene
        .hub_namespaces(&["inside", "inside-a", "inside-b"])
        .await?;
    let rule = Id::rule("inside", "all");
    let source = hub
        .make(
            &Draft::config_map("inside", "settings")
                .label("inside", "yes")
                .data("k", "v")
                .json(),
        )
        .await?;
    let secret = hub
        .make(
            &Draft::secret("inside", "login")
                .label("inside", "yes")
                .data("k", "v")
                .json(),
        )
        .await?;
    // Its own namespace is among the targets.
    let draft = RuleDraft::new("inside", "all")
        .labeled("inside", "yes")
        .to(&["hub"])
        .into(&["inside*"]);
    hub.make(&draft.json()).await?;
    for namespace in ["inside-a", "inside-b"] {
        hub.has_copy(&source, namespace, &rule).await?;
        hub.has_copy(&secret, namespace, &rule).await?;
    }
    hub.all_applied(&rule, 4).await?;
    hub.is_untouched(&source).await?;

    // Drift, an edit and a deletion in the one cluster that is both.
    hub.change(
        &Id::of(&source)?.within("inside-a"),
        json!({"data": {"k": "mine"}}),
    )
    .await?;
    hub.has_copy(&source, "inside-a", &rule).await?;
    let source = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "w"}}))
        .await?;
    for namespace in ["inside-a", "inside-b"] {
        hub.has_copy(&source, namespace, &rule).await?;
    }
    hub.is_untouched(&source).await?;

    // Without target namespaces the only place is the source itself: no copy at all.
    let own = Id::rule("inside", "own");
    hub.make(
        &RuleDraft::new("inside", "own")
            .labeled("inside", "yes")
            .to(&["hub"])
            .json(),
    )
    .await?;
    hub.all_applied(&own, 0).await?;
    hub.is_untouched(&source).await?;
    hub.delete(&own).await?;
    hub.lacks(&own).await?;
    hub.is_untouched(&source).await?;

    hub.delete(&rule).await?;
    for namespace in ["inside-a", "inside-b"] {
        hub.lacks(&Id::of(&source)?.within(namespace)).await?;
    }
    hub.lacks(&rule).await?;
    hub.is_untouched(&source).await?;
    hub.is_untouched(&secret).await
}

#[tokio::test]
async fn a_copy_is_never_a_source_so_rules_do_not_loop() -> Result<()> {
    let scene = scene().await?;
    let hub = &scene.hub;
    scene
        .hub_namespaces(&["ring-a", "ring-b", "ring-c"])
        .await?;
    scene
        .member(1)
        .make(&Draft::namespace("ring-c").json())
        .await?;
    // Each rule copies everything of one namespace into the next one. Copies are not copied
    // further.
    let rules = [
        ("ring-a", "ring-b"),
        ("ring-b", "ring-c"),
        ("ring-c", "ring-a"),
    ];
    for (from, into) in rules {
        hub.make(
            &RuleDraft::new(from, "on")
                .named(&["*"])
                .to(&["hub", "member-1"])
                .into(&[into])
                .json(),
        )
        .await?;
    }
    let source = hub
        .make(
            &Draft::config_map("ring-a", "settings")
                .data("k", "v")
                .json(),
        )
        .await?;
    hub.has_copy(&source, "ring-b", &Id::rule("ring-a", "on"))
        .await?;
    let own = hub
        .make(&Draft::config_map("ring-b", "own").data("k", "v").json())
        .await?;
    for member in [hub, scene.member(1)] {
        member
            .has_copy(&own, "ring-c", &Id::rule("ring-b", "on"))
            .await?;
    }
    let observed = hub
        .wait_ready(&Id::rule("ring-c", "on"), "False", "NoSources")
        .await?;
    ensure!(
        observed["status"]["summary"]["sources"] == 0,
        "{}",
        observed["status"]
    );
    ensure!(
        hub.all_applied(&Id::rule("ring-b", "on"), 2).await?["status"]["summary"]["sources"] == 1
    );
    let recorders = [
        Recorder::start(hub, &Id::config_map("ring-c", "")).await?,
        Recorder::start(hub, &Id::config_map("ring-a", "")).await?,
    ];
    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "w"}}))
        .await?;
    hub.has_copy(&edited, "ring-b", &Id::rule("ring-a", "on"))
        .await?;
    steadily("nothing travels on", Duration::from_secs(2), async || {
        ensure!(
            hub.find(&Id::config_map("ring-c", "settings"))
                .await?
                .is_none(),
            "a copy was a source"
        );
        ensure!(
            hub.find(&Id::config_map("ring-a", "own")).await?.is_none(),
            "a copy was a source"
        );
        Ok(())
    })
    .await?;
    ensure!(
        recorders[0].so_far()?.is_empty() && recorders[1].so_far()?.len() == 1,
        "somebody wrote"
    );
    Ok(())
}
