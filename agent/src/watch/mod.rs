//! The watches of the agent: copies in the areas of the policy, and namespaces.
//!
//! This module puts a new policy into force, after the end of the watches that it drops and before
//! its new ones begin. So the core receives all events in this order.
mod copies;
mod follow;
mod namespaces;
mod pages;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use kube::Client;
use runnel_proto::model::KINDS;
use runnel_transport::ops::WatchTimes;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::policy_file::{POLL, PolicyFile};
use runnel_agent_core::policy::{Area, Policy};
use runnel_agent_core::reconciler::Event;
use runnel_agent_core::seal::Sealer;

pub use namespaces::namespaces;

/// Duration of a watch, in seconds. A dead connection is detected 5 s later. The next watch
/// continues from the last version, which costs one small request.
const WATCH_SECONDS: u32 = 50;

/// Duration of the watch of namespaces, in seconds. It is shorter, so that a hanging API server is
/// detected within 30 seconds, which concerns all watches.
const HEARTBEAT_SECONDS: u32 = 20;

/// Limit of the pages of a kind that are read at once: with literal namespaces, each namespace has
/// its own list.
const PAGES: usize = 2;

/// The watches of copies in the areas of the policy.
pub struct Watches {
    /// The client for the member cluster.
    pub client: Client,
    /// The sealer that identifies our copies.
    pub sealer: Sealer,
    /// The policy file, if there is one.
    pub file: Option<PolicyFile>,
    /// The policy in force.
    pub policy: Arc<Policy>,
    /// The metrics of the agent.
    pub metrics: Metrics,
    /// The times at which the watches last received data.
    pub times: WatchTimes,
    /// The events for the core.
    pub events: mpsc::Sender<Event>,
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

impl Watches {
    /// Watches until the receiver is dropped.
    pub async fn run(mut self) {
        let (mut running, mut stops) = (Running::new(), BTreeMap::new());
        let pages = KINDS
            .iter()
            .map(|kind| (kind.resource, Arc::new(Semaphore::new(PAGES))))
            .collect();
        self.begin(&mut running, &mut stops, &pages);
        let mut tick = tokio::time::interval(POLL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.events.closed() => return,
                Some(()) = running.next() => {}
                _ = tick.tick() => {
                    let Some(policy) = self.changed().await else { continue };
                    self.policy = Arc::new(policy);
                    let areas = self.policy.areas();
                    // A cancelled watch sends no more events, because its cancellation is polled
                    // first.
                    stops.retain(|area, stop: &mut CancellationToken| {
                        let stays = areas.contains(area);
                        if !stays {
                            stop.cancel();
                        }
                        stays
                    });
                    if self.events.send(Event::Policy(self.policy.clone())).await.is_err() {
                        return;
                    }
                    for kind in KINDS.iter().filter(|kind| areas.iter().all(|area| area.resource != kind.resource)) {
                        self.times.forget(kind.plural);
                    }
                    self.begin(&mut running, &mut stops, &pages);
                }
            }
        }
    }

    /// Starts the watches of the policy that do not run yet.
    fn begin(
        &self,
        running: &mut Running,
        stops: &mut BTreeMap<Area, CancellationToken>,
        pages: &BTreeMap<&'static str, Arc<Semaphore>>,
    ) {
        for area in self.policy.areas() {
            if stops.contains_key(&area) {
                continue;
            }
            let Some(pages) = pages.get(area.resource).cloned() else {
                continue;
            };
            let stop = CancellationToken::new();
            stops.insert(area.clone(), stop.clone());
            let watch = copies::copies(
                self.client.clone(),
                area,
                self.sealer.clone(),
                self.events.clone(),
                pages,
            );
            running.push(Box::pin(async move {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = watch => {}
                }
            }));
        }
    }

    /// Returns the policy of the file, if it differs from the one in force.
    async fn changed(&mut self) -> Option<Policy> {
        let file = self.file.as_mut()?;
        match file.poll().await? {
            Ok(policy) => {
                self.metrics.policy_broken.set(0);
                if policy == *self.policy {
                    return None;
                }
                tracing::info!(file = %file.path().display(), "the policy has changed: the new one is in force");
                Some(policy)
            }
            Err(cause) => {
                self.metrics.policy_broken.set(1);
                let file = file.path().display();
                tracing::error!(%file, "the new policy is invalid, and the former one stays in force: {cause}");
                None
            }
        }
    }
}

fn hint(code: u16) -> &'static str {
    match code {
        0 => "the API server does not answer",
        401 => "the API server does not accept the agent's credentials",
        403 => "grant the agent the rights of its chart",
        410 => "the watch was too old and starts again",
        _ => "see the API server's log",
    }
}
