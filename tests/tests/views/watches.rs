//! Watches of deliveries, as informers use them.

use std::pin::Pin;

use anyhow::{Context, Result, bail, ensure};
use futures::io::AsyncBufRead;
use futures::{AsyncBufReadExt, StreamExt};
use http::StatusCode;
use kube::Client;
use runnel_tests::fleet::Fleet;
use runnel_tests::scene::{Draft, Id, Scene};
use runnel_tests::wait::eventually;
use serde_json::Value;

use super::{SOON, deliver, fleet, get, status_of};

/// A watch that a client reads event by event.
pub(super) struct Events(futures::io::Lines<Pin<Box<dyn AsyncBufRead + Send>>>);

impl Events {
    /// Watches the deliveries of a namespace from a version on.
    async fn of(client: &Client, path: &str, version: &str) -> Result<Self> {
        let path = format!(
            "/apis/view.runnel.dev/v1alpha1/{path}&watch=true&resourceVersion={version}&allowWatchBookmarks=true"
        );
        let request = http::Request::get(path).body(Vec::new())?;
        let events: Pin<Box<dyn AsyncBufRead + Send>> =
            Box::pin(client.request_stream(request).await?);
        Ok(Self(events.lines()))
    }

    /// Returns the type and the cluster of the next event that is no bookmark.
    async fn next(&mut self) -> Result<(String, String)> {
        let read = async {
            loop {
                let line = self.0.next().await.context("the watch has ended")??;
                let event: Value = serde_json::from_str(&line)?;
                let text = |path: &str| event.pointer(path).and_then(Value::as_str);
                let kind = text("/type").context("an event without a type")?;
                if kind != "BOOKMARK" {
                    let name = text("/object/metadata/name").unwrap_or_default();
                    let cluster = name.split(':').nth(1).unwrap_or_default();
                    return anyhow::Ok((kind.to_owned(), cluster.to_owned()));
                }
            }
        };
        tokio::time::timeout(SOON, read).await.context("no event")?
    }
}

/// Lists deliveries, and returns the version of the list.
async fn listed(client: &Client, path: &str) -> Result<String> {
    let list = get(client, path).await?;
    let version = list["metadata"]["resourceVersion"].as_str();
    Ok(version.context("no version")?.to_owned())
}

/// Puts an object of a stranger in the way of a copy in the first member.
async fn obstruct(scene: &Scene, namespace: &str, rule: &str) -> Result<()> {
    let foreign = Draft::config_map(namespace, "blocked").data("a", "stranger");
    scene.member(1).make(&foreign.json()).await?;
    let source = Draft::config_map(namespace, "blocked")
        .data("a", "b")
        .label("rule", rule);
    scene.hub.make(&source.json()).await?;
    let id = Id::rule(namespace, rule);
    scene
        .hub
        .wait_for_cluster(&id, "member-1", "Failed", "Conflict")
        .await
        .map(drop)
}

#[tokio::test]
async fn watch_shows_no_delivery_that_its_selector_excludes() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "excluded", "names").await?;
    let client = fleet.hub().client().await?;
    let path = "namespaces/excluded/deliveries?fieldSelector=cluster!%3Dmember-1";
    let version = listed(&client, path).await?;
    let mut events = Events::of(&client, path, &version).await?;
    obstruct(&scene, "excluded", "names").await?;
    scene.hub.delete(&Id::rule("excluded", "names")).await?;
    loop {
        let (kind, cluster) = events.next().await?;
        ensure!(cluster == "member-2", "{kind} {cluster}");
        if kind == "DELETED" {
            return Ok(());
        }
    }
}

/// An informer that lost its connection watches again from the last version that it has seen.
#[tokio::test]
async fn watch_by_state_ends_what_ceased_to_match_before_it_began() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "resumed", "states").await?;
    let client = fleet.hub().client().await?;
    let path = "namespaces/resumed/deliveries?fieldSelector=state%3DReady";
    let version = listed(&client, path).await?;
    obstruct(&scene, "resumed", "states").await?;
    eventually("the failed delivery", SOON, async || {
        let failed = "namespaces/resumed/deliveries/states:member-1";
        let state = get(&client, failed).await?["status"]["state"].clone();
        Ok((state == "Failed").then_some(()))
    })
    .await?;
    let mut events = Events::of(&client, path, &version).await?;
    loop {
        let (kind, cluster) = events.next().await?;
        match (&*kind, &*cluster) {
            ("DELETED", "member-1") => return Ok(()),
            ("ADDED" | "MODIFIED" | "DELETED", "member-2") => {}
            _ => bail!("{kind} {cluster}"),
        }
    }
}

/// A rule is created between two lists, of which the second one is the first to see it.
#[tokio::test]
async fn watch_shows_a_new_rule_that_another_client_listed_first() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    scene.hub_namespaces(&["announced"]).await?;
    scene.member_namespaces(&["announced"]).await?;
    let client = fleet.hub().client().await?;
    let path = "namespaces/announced/deliveries?";
    let version = listed(&client, path).await?;
    let mut events = Events::of(&client, path, &version).await?;
    let other = tokio::spawn({
        let client = client.clone();
        // The gaps are shorter than the time for which the hub gathers changes.
        async move { while get(&client, "deliveries?limit=1").await.is_ok() {} }
    });
    super::add_rule(&scene, "announced", "news").await?;
    let (mut first, mut second) = (false, false);
    while !(first && second) {
        let (kind, cluster) = events.next().await?;
        ensure!(matches!(&*kind, "ADDED" | "MODIFIED"), "{kind} {cluster}");
        first |= cluster == "member-1";
        second |= cluster == "member-2";
    }
    ensure!(!other.is_finished(), "the other client could not list");
    other.abort();
    Ok(())
}

/// The log of changes of the former process is gone.
pub(super) async fn restart_of_the_hub_expires_versions(fleet: &Fleet) -> Result<()> {
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "expired", "ages").await?;
    let client = fleet.hub().client().await?;
    let path = "namespaces/expired/deliveries?";
    let version = listed(&client, path).await?;
    fleet.kill_hub()?;
    fleet.start_hub().await?;
    let watch = format!("{path}watch=true&resourceVersion={version}");
    let code = eventually("an answer", SOON, async || {
        let code = status_of(&client, http::Method::GET, &watch, &[]).await?;
        Ok((code != StatusCode::SERVICE_UNAVAILABLE).then_some(code))
    })
    .await?;
    ensure!(code == StatusCode::GONE, "{code}");
    let later = listed(&client, path).await?;
    ensure!(
        later.parse::<u64>()? > version.parse::<u64>()?,
        "{later} is not later than {version}"
    );
    Ok(())
}
