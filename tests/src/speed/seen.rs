//! Objects in the watches on the members, with times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::sample::Sample;

/// An object in a watch.
#[derive(Clone, Debug)]
pub struct WatchedEvent {
    /// The time of the event.
    pub at: Instant,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// All events of one member's watch, in order.
#[derive(Clone, Default)]
pub struct WatchedEvents {
    events: Arc<Mutex<Vec<WatchedEvent>>>,
    more: Arc<Notify>,
}

impl WatchedEvents {
    /// Watches the objects of one kind in a cluster as long as `tasks` are.
    pub fn of(client: Client, sample: Sample, tasks: &mut JoinSet<()>) -> Self {
        let seen = Self::default();
        tasks.spawn(record(client, sample, seen.clone()));
        seen
    }

    /// The number of records so far, as a mark for later reads.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.events.lock().len()
    }

    /// The number of records for which `is` is true.
    #[must_use]
    pub fn shown(&self, is: impl Fn(&WatchedEvent) -> bool) -> usize {
        self.events.lock().iter().filter(|event| is(event)).count()
    }

    /// Waits until the records since `mark` contain this many for which `is` is true; returns the
    /// time of the last one.
    ///
    /// # Errors
    /// When they do not within `limit`.
    pub async fn count(
        &self,
        mark: usize,
        wanted: usize,
        limit: Duration,
        mut is: impl FnMut(&WatchedEvent) -> bool,
    ) -> Result<Instant> {
        let (mut next, mut found) = (mark, 0);
        let all = async {
            loop {
                let more = self.more.notified();
                for event in self.events.lock().iter().skip(next) {
                    next += 1;
                    found += usize::from(is(event));
                    if found >= wanted {
                        return event.at;
                    }
                }
                more.await;
            }
        };
        let at = tokio::time::timeout(limit, all).await.ok();
        at.ok_or_else(|| {
            anyhow::anyhow!(
                "a member has shown fewer than {wanted} of what was awaited for {limit:?}"
            )
        })
    }
}

async fn record(client: Client, sample: Sample, seen: WatchedEvents) {
    let api: Api<DynamicObject> = Api::all_with(client, &sample.api());
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else {
            continue;
        };
        let (at, name) = (Instant::now(), object.name_any());
        let value = sample.value(&object).to_owned();
        let namespace = object.namespace().unwrap_or_default();
        seen.events.lock().push(WatchedEvent {
            at,
            namespace,
            name,
            value,
        });
        seen.more.notify_one();
    }
}
