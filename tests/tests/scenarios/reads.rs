//! The reads of the hub: many sources of a namespace in pages, and only watch events when idle.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use runnel_hub::ca::{CA_BUNDLE_SECRET, IDENTITY_SECRET};
use runnel_tests::audit::{Mark, Write};
use runnel_tests::control_plane::Options;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene};
use runnel_tests::wait::steadily;
use serde_json::json;

const HOME: &str = "many";
const SOURCES: usize = 300;
/// Longer than any interval at which the hub checks its own Secrets.
const REST: Duration = Duration::from_secs(12);

/// The reads of a hub since a mark.
fn reads(fleet: &Fleet, mark: Mark, wanted: impl Fn(&Write) -> bool) -> Result<Vec<Write>> {
    let all = fleet.hub().writes_since(mark)?.into_iter();
    let by_hub = all.filter(|one| {
        one.user_agent.starts_with("runnel-hub/") && ["get", "list"].contains(&&*one.verb)
    });
    Ok(by_hub.filter(wanted).collect())
}

#[tokio::test]
async fn restarted_hub_reads_in_pages_and_idles_without_reads() -> Result<()> {
    let audited = Options {
        audit_reads: true,
        ..Options::default()
    };
    let fleet = Fleet::start(FleetOptions {
        control_plane: audited,
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let name = |number: usize| format!("source-{number}");
    let drafts: Vec<_> = (0..SOURCES)
        .map(|n| Draft::config_map(HOME, &name(n)).data("k", "v").json())
        .collect();
    try_join_all(drafts.iter().map(|draft| scene.hub.make(draft))).await?;
    let rule = Id::rule(HOME, "all");
    scene
        .hub
        .make(
            &RuleDraft::new(HOME, "all")
                .named(&["source-*"])
                .everywhere()
                .json(),
        )
        .await?;
    scene.hub.all_applied(&rule, SOURCES).await?;

    let mark = fleet.hub().mark();
    fleet.kill_hub()?;
    fleet.start_hub().await?;
    let edited = scene
        .hub
        .change(&Id::config_map(HOME, &name(0)), json!({"data": {"k": "w"}}))
        .await?;
    scene.arrives(&edited, &rule, &[HOME]).await?;
    scene.hub.all_applied(&rule, SOURCES).await?;
    let of_sources = |one: &Write| one.resource == "configmaps" && one.namespace == HOME;
    let read = reads(&fleet, mark, of_sources)?;
    let lists = read.iter().filter(|one| one.verb == "list").count();
    // Pages of 100 and 200 objects, and the edit.
    ensure!(
        (1..=4).contains(&lists) && read.len() <= 10,
        "{lists} lists and {} reads in all: {read:#?}",
        read.len()
    );

    let mark = fleet.hub().mark();
    let own = |one: &Write| {
        one.resource == "secrets" && [IDENTITY_SECRET, CA_BUNDLE_SECRET].contains(&&*one.name)
    };
    steadily("the hub does not read its own Secrets", REST, async || {
        let read = reads(&fleet, mark, own)?;
        ensure!(read.is_empty(), "{read:#?}");
        Ok(())
    })
    .await
}
