//! Rows 27 and 28: the view API as its clients see it through the API server, with lists and watches
//! of the deliveries of one rule.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::io::AsyncBufRead;
use futures::{AsyncBufReadExt, AsyncReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{MIB, milliseconds_since, reading};
use crate::control_plane::ControlPlane;
use crate::fleet::{Fleet, FleetOptions};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{Lab, PATIENCE, make_namespace};
use crate::speed::process::{at_rest, forget_peak, peak, resident};
use crate::speed::text::{any_seed, noise};
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[27, 28];
const RULE: &str = "viewed";
const SOURCE: &str = "viewed";
/// The namespace of the objects that the API server lists itself.
const BARE: &str = "bare";
const DELIVERIES: &str = "/apis/view.runnel.dev/v1alpha1/namespaces/speed/deliveries";
/// As `kubectl get` does.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PAGE: usize = 500;
/// Clients that list all at once.
const LISTS: usize = 16;
/// Requests to the API server at once.
const AT_ONCE: usize = 16;
/// Edits that fan out to watches.
const EDITS: usize = 100;
const KIB: f64 = 1024.0;

pub(super) async fn run(rows: &[u8], quick: bool) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    if rows.contains(&27) {
        let (sizes, rounds): (&[usize], usize) = if quick {
            (&[10, 300], 4)
        } else {
            (&[10, 1000, 10_000], 12)
        };
        readings.extend(pages(sizes, rounds).await?);
    }
    if rows.contains(&28) {
        let (clusters, watches) = if quick { (100, 20) } else { (1000, 100) };
        readings.extend(watchers(clusters, watches).await?);
    }
    Ok(readings)
}

/// A hub whose rule has one copy in each cluster.
struct Views {
    lab: Lab,
    crowd: Crowd,
}

impl Views {
    async fn start() -> Result<Self> {
        let options = FleetOptions {
            views: true,
            ..Lab::options()
        };
        let lab = Lab::of(Fleet::start(options).await?).await?;
        lab.write(SOURCE, "first").await?;
        lab.rule(RULE, &[SOURCE], json!({"all": true})).await?;
        let client = lab.client.clone();
        eventually("the view API", PATIENCE, async || {
            list(&client, DELIVERIES, 1, "").await.map(Some)
        })
        .await?;
        Ok(Self {
            lab,
            crowd: Crowd::new(false),
        })
    }

    /// Connects this many agents, and waits until the rule is ready in all of them.
    async fn gather(&mut self, size: usize) -> Result<()> {
        let members = self.lab.members(size).await?;
        let _bar = Bar::spinner("agents connect to the hub");
        self.crowd.add(members.into_iter().skip(self.crowd.len()));
        self.crowd.up_to_date(PATIENCE).await?;
        self.lab.applied(RULE, size).await?;
        at_rest(self.lab.pid()?).await.map(drop)
    }
}

/// Row 27: lists of the deliveries of one rule, beside lists of as many small objects that the API
/// server has itself.
async fn pages(sizes: &[usize], rounds: usize) -> Result<Vec<Reading>> {
    let mut views = Views::start().await?;
    let client = views.lab.client.clone();
    make_namespace(&client, BARE).await?;
    let (mut made, mut readings) = (0, Vec::new());
    for &size in sizes {
        views.gather(size).await?;
        make_objects(&client, made..size).await?;
        made = size;
        let bar = Bar::of(rounds, "lists, in turns of the hub and of the API server");
        let (mut runnel, mut bare) = (Times::default(), Times::default());
        let others = "fieldSelector=metadata.name!%3Dkube-root-ca.crt";
        let objects = format!("/api/v1/namespaces/{BARE}/configmaps?{others}");
        for _ in 0..rounds {
            runnel.add(&walk(&client, &by_rule(), size).await?);
            bare.add(&walk(&client, &objects, size).await?);
            bar.step();
        }
        drop(bar);
        readings.extend(runnel.beside(&bare, size));
        readings.push(memory_of_lists(&views, size).await?);
    }
    Ok(readings)
}

/// The deliveries of the rule.
fn by_rule() -> String {
    format!("{DELIVERIES}?fieldSelector=rule%3D{RULE}")
}

/// Makes small objects for the API server to list.
async fn make_objects(client: &Client, numbers: std::ops::Range<usize>) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), BARE);
    let _bar = Bar::spinner("as many small objects are made");
    let made = numbers.map(|number| {
        let api = &api;
        async move {
            let object: ConfigMap = serde_json::from_value(
                json!({"metadata": {"name": format!("bare-{number:05}"), "labels": {"set": "speed"}}}),
            )?;
            api.create(&PostParams::default(), &object).await?;
            anyhow::Ok(())
        }
    });
    futures::stream::iter(made)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// The part of a list that a client needs to continue.
#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    #[serde(default)]
    rows: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    token: String,
}

/// Lists one page as a table.
async fn list(client: &Client, path: &str, limit: usize, token: &str) -> Result<Page> {
    let mark = if path.contains('?') { '&' } else { '?' };
    let request = http::Request::get(format!("{path}{mark}limit={limit}&continue={token}"))
        .header(http::header::ACCEPT, TABLE)
        .body(Vec::new())?;
    Ok(client.request(request).await?)
}

/// Lists all pages, and returns the milliseconds of each.
async fn walk(client: &Client, path: &str, size: usize) -> Result<Vec<f64>> {
    let (mut times, mut rows, mut token) = (Vec::new(), 0, String::new());
    loop {
        let begin = Instant::now();
        let page = list(client, path, PAGE, &token).await?;
        times.push(milliseconds_since(begin));
        rows += page.rows.len();
        token = page.metadata.token;
        if token.is_empty() {
            break;
        }
    }
    ensure!(rows == size, "{path} lists {rows} objects of {size}");
    Ok(times)
}

/// The times of several walks over a list.
#[derive(Default)]
struct Times {
    pages: Vec<f64>,
    walks: Vec<f64>,
}

impl Times {
    fn add(&mut self, pages: &[f64]) {
        self.walks.push(pages.iter().sum());
        self.pages.extend(pages);
    }

    /// The readings of these, beside the times of the API server's own lists.
    fn beside(&self, bare: &Self, clusters: usize) -> [Reading; 3] {
        let at = (clusters, "clusters");
        let slowest = |times: &Self| times.pages.iter().copied().fold(0.0, f64::max);
        [
            reading(27, "slowest page", at, slowest(self), Some(slowest(bare)))
                .sampled(&self.pages, &bare.pages),
            reading(27, "one page, p50", at, 0.0, None).median_of(&self.pages, &bare.pages),
            reading(27, "all pages, p50", at, 0.0, None).median_of(&self.walks, &bare.walks),
        ]
    }
}

/// The memory of the hub above its memory at rest, while several clients list all at once.
async fn memory_of_lists(views: &Views, size: usize) -> Result<Reading> {
    let pid = views.lab.pid()?;
    at_rest(pid).await?;
    let before = resident(pid)?;
    forget_peak(pid)?;
    let client = &views.lab.client;
    let path = format!("{}&limit=0", by_rule());
    let lists = (0..LISTS).map(|_| async {
        // As clients that take whole objects, and all of them at once.
        let request = http::Request::get(path.as_str()).body(Vec::new())?;
        let mut stream = std::pin::pin!(client.request_stream(request).await?);
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await?;
        ensure!(text.ends_with(b"}}"), "the list is cut off");
        anyhow::Ok(())
    });
    futures::future::try_join_all(lists).await?;
    let above = (peak(pid)? - before).max(0.0) / MIB;
    let what = "hub memory for 16 lists at once";
    Ok(reading(27, what, (size, "clusters"), above, None))
}

/// Row 28: what watches of the deliveries of one rule cost the hub.
async fn watchers(clusters: usize, watches: usize) -> Result<Vec<Reading>> {
    let mut views = Views::start().await?;
    views.gather(clusters).await?;
    let client = patient(views.lab.fleet.hub()).await?;
    let pid = views.lab.pid()?;
    let at = (watches, "watches");

    // What the first watch costs, the log of changes included, is no cost of the others.
    let mut first = Watchers::start(&client, 1, clusters).await?;
    fan_out(&views, EDITS, &first.seen).await?;
    at_rest(pid).await?;
    let before = resident(pid)?;
    let silent = silent_watch(&client).await?;
    fan_out(&views, EDITS, &first.seen).await?;
    at_rest(pid).await?;
    let of_silent = (resident(pid)? - before).max(0.0) / MIB;
    drop(silent);

    at_rest(pid).await?;
    let before = resident(pid)?;
    let bar = Bar::spinner("clients watch");
    let mut all = Watchers::start(&client, watches, clusters).await?;
    at_rest(pid).await?;
    drop(bar);
    let idle = resident(pid)?;
    forget_peak(pid)?;
    let delays = fan_out(&views, EDITS, &all.seen).await?;
    let most = peak(pid)?;
    at_rest(pid).await?;
    let after = resident(pid)?;
    all.tasks.shutdown().await;
    first.tasks.shutdown().await;
    let each = |memory: f64| (memory - before).max(0.0) / KIB / watches as f64;
    Ok(vec![
        reading(28, "memory per idle watch", at, each(idle), None),
        reading(
            28,
            "memory per watch after 100 edits",
            at,
            each(after),
            None,
        ),
        reading(28, "memory per watch at the peak", at, each(most), None),
        reading(28, "change to the last watch, p50", at, 0.0, None).median_of(&delays, &[]),
        reading(
            28,
            "memory of a watch that reads nothing",
            (clusters, "clusters, 100 edits"),
            of_silent,
            None,
        ),
    ])
}

/// Edits the source, each time after the last agent has acked it. Then all agents report one copy less, and all again.
/// Waits until each watch has seen both; returns how long that took, in milliseconds.
async fn fan_out(views: &Views, edits: usize, watches: &[Arc<Seen>]) -> Result<Vec<f64>> {
    let (crowd, bar) = (&views.crowd, Bar::of(edits, "edits"));
    for _ in 0..edits {
        crowd.expect(1, crowd.len());
        let text = noise(any_seed()?, 64);
        views.lab.write(SOURCE, &text).await?;
        crowd.reached(PATIENCE).await?;
        bar.step();
    }
    let mut delays = Vec::new();
    for (number, applied) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        let begin = Instant::now();
        crowd.report(number)?;
        for seen in watches {
            seen.all_have(applied, crowd.len()).await?;
        }
        delays.push(milliseconds_since(begin));
    }
    Ok(delays)
}

/// A client that waits for its watches as long as they last.
async fn patient(cluster: &ControlPlane) -> Result<Client> {
    let read = Kubeconfig::read_from(cluster.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

/// Starts a watch of the rule's deliveries, which begins with all of them.
async fn watch(client: &Client) -> Result<Pin<Box<dyn AsyncBufRead + Send>>> {
    let path = format!("{}&watch=true&allowWatchBookmarks=true", by_rule());
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(Box::pin(client.request_stream(request).await?))
}

/// A watch whose client reads its first event, and nothing more.
async fn silent_watch(client: &Client) -> Result<Pin<Box<dyn AsyncBufRead + Send>>> {
    let mut events = watch(client).await?;
    let mut line = String::new();
    events.read_line(&mut line).await?;
    ensure!(line.contains("ADDED"), "no event: {line}");
    Ok(events)
}

/// What one watch has shown: the applied copies in each cluster.
#[derive(Default)]
struct Seen {
    applied: Mutex<BTreeMap<String, i64>>,
    changed: Notify,
    end: Mutex<Option<String>>,
}

impl Seen {
    /// Waits until all clusters have so many copies applied.
    async fn all_have(&self, applied: i64, clusters: usize) -> Result<()> {
        let all = async {
            loop {
                if let Some(end) = self.end.lock().clone() {
                    anyhow::bail!("a watch has ended: {end}");
                }
                let count = {
                    let all = self.applied.lock();
                    all.values().filter(|present| **present == applied).count()
                };
                if count == clusters {
                    return Ok(());
                }
                self.changed.notified().await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, all).await;
        in_time.context("a watch does not show all changes")?
    }

    async fn follow(&self, mut events: Pin<Box<dyn AsyncBufRead + Send>>) -> Result<()> {
        let mut line = String::new();
        while events.read_line(&mut line).await? > 0 {
            let event: Event = serde_json::from_str(&line)?;
            match (event.kind.as_str(), event.object.spec, event.object.status) {
                ("BOOKMARK", ..) => {}
                ("ADDED" | "MODIFIED", Some(spec), Some(status)) => {
                    self.applied.lock().insert(spec.cluster, status.applied);
                    self.changed.notify_one();
                }
                _ => anyhow::bail!("unexpected: {line}"),
            }
            line.clear();
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: ListedDelivery,
}

#[derive(Deserialize)]
struct ListedDelivery {
    spec: Option<ListedSpec>,
    status: Option<ListedStatus>,
}

#[derive(Deserialize)]
struct ListedSpec {
    cluster: String,
}

#[derive(Deserialize)]
struct ListedStatus {
    applied: i64,
}

/// Watches that read all their events.
struct Watchers {
    seen: Vec<Arc<Seen>>,
    tasks: JoinSet<()>,
}

impl Watchers {
    /// Starts watches, and waits until each has shown all clusters.
    async fn start(client: &Client, count: usize, clusters: usize) -> Result<Self> {
        let (mut seen, mut tasks) = (Vec::new(), JoinSet::new());
        for _ in 0..count {
            let (own, events) = (Arc::new(Seen::default()), watch(client).await?);
            seen.push(own.clone());
            tasks.spawn(async move {
                let end = own.follow(events).await;
                let why = end.map_or_else(|error| format!("{error:#}"), |()| "closed".to_owned());
                *own.end.lock() = Some(why);
                own.changed.notify_one();
            });
        }
        for seen in &seen {
            seen.all_have(1, clusters).await?;
        }
        Ok(Self { seen, tasks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_page_and_medians_are_read() {
        let (mut runnel, mut bare) = (Times::default(), Times::default());
        runnel.add(&[90.0, 10.0]);
        runnel.add(&[20.0, 10.0]);
        bare.add(&[5.0, 5.0]);
        let [slowest, page, all] = runnel.beside(&bare, 1000);
        assert_eq!((slowest.runnel, slowest.bare), (90.0, Some(5.0)));
        assert_eq!((page.runnel, page.bare), (15.0, Some(5.0)));
        assert_eq!((all.runnel, all.bare), (65.0, Some(10.0)));
    }

    #[tokio::test]
    async fn watch_shows_the_newest_state_of_each_cluster() {
        let event = |kind: &str, cluster: &str, applied: i64| {
            let object = json!({"spec": {"cluster": cluster}, "status": {"applied": applied}});
            json!({"type": kind, "object": object}).to_string() + "\n"
        };
        let text = [
            event("ADDED", "a", 0),
            event("ADDED", "b", 1),
            event("BOOKMARK", "", 0),
            event("MODIFIED", "a", 1),
        ];
        let seen = Seen::default();
        let text: &'static [u8] = text.concat().leak().as_bytes();
        assert!(seen.follow(Box::pin(text)).await.is_ok());
        assert!(seen.all_have(1, 2).await.is_ok());
        let error = event("ERROR", "a", 1).leak().as_bytes();
        assert!(seen.follow(Box::pin(error)).await.is_err());
    }
}
