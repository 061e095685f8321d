//! A watch that records every event, so that a test can check what happened in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::StreamExt;
use kube::Api;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;

use super::cluster::{Id, TestCluster};

/// Shorter than the client's patience.
const WATCH_SECONDS: u32 = 20;
const AGAIN: Duration = Duration::from_millis(50);

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object was created.
    Added,
    /// The object was changed.
    Modified,
    /// The object was deleted.
    Deleted,
}

/// A watch event.
#[derive(Clone, Debug)]
pub struct RecordedEvent {
    /// When it was received.
    pub at: Instant,
    /// The change.
    pub change: Change,
    /// The object then.
    pub object: Value,
}

#[derive(Default)]
struct Log {
    records: Vec<RecordedEvent>,
    broken: Option<String>,
}

/// Writes down every event of one kind in one namespace, or in all, from its start on and without gaps.
pub struct Recorder {
    what: String,
    at_start: BTreeMap<(String, String), String>,
    log: Arc<Mutex<Log>>,
    // Dropping it ends the watch.
    _watch: JoinSet<()>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Recorder of {}", self.what)
    }
}

impl Recorder {
    /// Starts to record the changes of objects of the kind of `like`, in its namespace.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn start(place: &TestCluster, like: &Id) -> Result<Self> {
        let api = place.api(like);
        let list = api.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        let known = list
            .items
            .iter()
            .map(|object| (key(object), object.metadata.uid.clone().unwrap_or_default()));
        let log = Arc::new(Mutex::new(Log::default()));
        let mut watch = JoinSet::new();
        watch.spawn(record(api, version, log.clone()));
        let what = format!("{} in {}", like.kind(), place.name());
        Ok(Self {
            what,
            at_start: known.collect(),
            log,
            _watch: watch,
        })
    }

    /// Returns the recorded events.
    ///
    /// # Errors
    /// If the watch broke, so that events may be missing.
    pub fn so_far(&self) -> Result<Vec<RecordedEvent>> {
        let log = self.log.lock();
        if let Some(why) = &log.broken {
            bail!("the record of {} has a gap: {why}", self.what);
        }
        Ok(log.records.clone())
    }

    /// Checks that an object which was there at the start was there all the time, and always the same one.
    ///
    /// # Errors
    /// When it was not, or the record has a gap.
    pub fn was_never_missing(&self, namespace: &str, name: &str) -> Result<()> {
        let key = (namespace.to_owned(), name.to_owned());
        let uid = self.at_start.get(&key);
        ensure!(
            uid.is_some(),
            "{namespace}/{name} was not there at the start of the record of {}",
            self.what
        );
        for record in self
            .so_far()?
            .iter()
            .filter(|record| is_about(record, namespace, name))
        {
            let same = record.object["metadata"]["uid"].as_str() == uid.map(String::as_str);
            ensure!(
                record.change != Change::Deleted && same,
                "{namespace}/{name} was missing: {:?}",
                record.change
            );
        }
        Ok(())
    }

    /// Returns the events of one object.
    ///
    /// # Errors
    /// If events may be missing.
    pub fn about(&self, namespace: &str, name: &str) -> Result<Vec<RecordedEvent>> {
        Ok(self
            .so_far()?
            .into_iter()
            .filter(|record| is_about(record, namespace, name))
            .collect())
    }
}

fn is_about(record: &RecordedEvent, namespace: &str, name: &str) -> bool {
    let metadata = &record.object["metadata"];
    metadata["name"] == name && metadata["namespace"].as_str().unwrap_or_default() == namespace
}

fn key(object: &DynamicObject) -> (String, String) {
    let metadata = &object.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

async fn record(api: Api<DynamicObject>, mut version: String, log: Arc<Mutex<Log>>) {
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    while log.lock().broken.is_none() {
        // A watch that cannot be opened or ends is opened again where it ended; only a version that is gone is a gap.
        let Ok(watch) = api.watch(&params, &version).await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let mut events = std::pin::pin!(watch);
        while let Some(Ok(event)) = events.next().await {
            let at = Instant::now();
            let (change, object) = match event {
                WatchEvent::Added(object) => (Change::Added, object),
                WatchEvent::Modified(object) => (Change::Modified, object),
                WatchEvent::Deleted(object) => (Change::Deleted, object),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => {
                    log.lock().broken = Some(status.message.clone());
                    return;
                }
            };
            version = object.metadata.resource_version.clone().unwrap_or_default();
            let object = serde_json::to_value(object).unwrap_or_default();
            log.lock()
                .records
                .push(RecordedEvent { at, change, object });
        }
    }
}
