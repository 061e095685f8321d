//! Watches that record when a state was observed in a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cluster::Cluster;
use crate::scratch;

const BEGINS: Duration = Duration::from_secs(60);

/// A kind and a namespace to watch; no namespace for kinds without one.
pub type WatchTarget<'a> = (&'a str, Option<&'a str>);

/// An observation.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The time of the observation.
    pub at: Instant,
    /// The object's kind.
    pub kind: String,
    /// The object's namespace; empty where there is none.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The data of the object; `None` if it was deleted.
    pub data: Option<BTreeMap<String, String>>,
    /// The object's labels.
    pub labels: BTreeMap<String, String>,
    /// Whether the object is being deleted.
    pub deleting: bool,
}

impl Observation {
    /// Whether this is about that object.
    #[must_use]
    pub fn is(&self, kind: &str, namespace: &str, name: &str) -> bool {
        (
            self.kind.as_str(),
            self.namespace.as_str(),
            self.name.as_str(),
        ) == (kind, namespace, name)
    }

    /// Whether the object exists with that value.
    #[must_use]
    pub fn holds(&self, key: &str, value: &str) -> bool {
        self.data
            .as_ref()
            .and_then(|data| data.get(key))
            .is_some_and(|copies_there| copies_there == value)
    }

    // Without the values of any Secret.
    fn describe(&self) -> String {
        let state = match &self.data {
            None => "gone".to_owned(),
            Some(data) if self.kind == "Secret" => {
                format!("with the keys {:?}", data.keys().collect::<Vec<_>>())
            }
            Some(data) => format!("with {data:?}"),
        };
        format!("{} {}/{} {state}", self.kind, self.namespace, self.name)
    }
}

/// The observations in one cluster since the start.
#[derive(Debug)]
pub struct Observer {
    cluster: String,
    seen: Arc<Mutex<Vec<Observation>>>,
    count: watch::Receiver<usize>,
    // Dropping it ends the watches.
    _watches: JoinSet<()>,
}

impl Observer {
    /// Starts to watch, and returns when every watch is open.
    ///
    /// # Errors
    /// When one is not open within 20 s.
    pub async fn start(cluster: &Cluster, places: &[WatchTarget<'_>]) -> Result<Self> {
        let client = cluster.client().await?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (counter, count) = watch::channel(0);
        let (ready, mut readies) = tokio::sync::mpsc::channel(places.len().max(1));
        let counter = Arc::new(counter);
        let mut watches = JoinSet::new();
        for (kind, namespace) in places {
            let api = api(client.clone(), kind, *namespace);
            let kind = (*kind).to_owned();
            watches.spawn(watch_one(
                api,
                kind,
                seen.clone(),
                counter.clone(),
                ready.clone(),
            ));
        }
        let all_ready = async {
            for _ in places {
                readies.recv().await;
            }
        };
        let begun = tokio::time::timeout(BEGINS, all_ready).await;
        begun.with_context(|| {
            format!(
                "the watches on {} do not stand after {BEGINS:?}",
                cluster.name
            )
        })?;
        Ok(Self {
            cluster: cluster.name.clone(),
            seen,
            count,
            _watches: watches,
        })
    }

    /// The position of the next observation in the record.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.seen.lock().len()
    }

    /// Waits for a matching observation at `since` or later, and returns it with its index.
    ///
    /// # Errors
    /// If there is none within `deadline`; with the goal and the last observation.
    pub async fn sees(
        &self,
        what: &str,
        since: usize,
        deadline: Duration,
        wanted: impl Fn(&Observation) -> bool,
    ) -> Result<(usize, Instant)> {
        let mut count = self.count.clone();
        let observe = async {
            loop {
                count.borrow_and_update();
                let found = self
                    .seen
                    .lock()
                    .iter()
                    .enumerate()
                    .skip(since)
                    .find(|(_, seen)| wanted(seen))
                    .map(place);
                if let Some(found) = found {
                    return Ok(found);
                }
                count
                    .changed()
                    .await
                    .map_err(|_| anyhow!("the watches on {} have ended", self.cluster))?;
            }
        };
        match tokio::time::timeout(deadline, observe).await {
            Ok(found) => found,
            Err(_) => {
                scratch::keep_everything();
                bail!(
                    "expected on {}: {what}; within {deadline:?} {}",
                    self.cluster,
                    self.observed(since)
                )
            }
        }
    }

    fn observed(&self, since: usize) -> String {
        let seen = self.seen.lock();
        let last: Vec<String> = seen
            .iter()
            .skip(since)
            .rev()
            .take(3)
            .map(Observation::describe)
            .collect();
        if last.is_empty() {
            "nothing changed there".to_owned()
        } else {
            format!("only seen: {}", last.join("; "))
        }
    }
}

fn place((index, seen): (usize, &Observation)) -> (usize, Instant) {
    (index, seen.at)
}

fn api(client: Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = if kind == "DistributionRule" {
        ("runnel.dev", "v1alpha1")
    } else {
        ("", "v1")
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

async fn watch_one(
    api: Api<DynamicObject>,
    kind: String,
    seen: Arc<Mutex<Vec<Observation>>>,
    counter: Arc<watch::Sender<usize>>,
    ready: tokio::sync::mpsc::Sender<()>,
) {
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
    while let Some(event) = events.next().await {
        let at = Instant::now();
        let (object, gone) = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
            Ok(Event::Delete(object)) => (object, true),
            Ok(Event::InitDone) => {
                let _ = ready.try_send(());
                continue;
            }
            Ok(Event::Init) => continue,
            // The watch restarts; the pause prevents a busy loop.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let mut record = seen.lock();
        record.push(observation(at, &kind, &object, gone));
        counter.send_replace(record.len());
    }
}

fn observation(at: Instant, kind: &str, object: &DynamicObject, gone: bool) -> Observation {
    let pairs = object.data.get("data").and_then(|data| data.as_object());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let data = pairs
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), text(value)))
        .collect();
    Observation {
        at,
        kind: kind.to_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        data: (!gone).then_some(data),
        labels: object.labels().clone(),
        deleting: object.metadata.deletion_timestamp.is_some(),
    }
}
