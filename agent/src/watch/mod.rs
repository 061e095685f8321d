//! The watches of the agent: copies in the areas of the policy, and namespaces.
//!
//! This module puts a new policy into force, after the end of the watches that it drops and before
//! its new ones begin. So the core receives all events in this order.
mod follow;
mod namespaces;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use kube::Client;
use kube::api::DynamicObject;
use kube::core::{Resource, Status};
use runnel_proto::model::{HUB_LABEL, Kind};
use runnel_transport::ops::WatchTimes;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::apply::resource;
use crate::metrics::Metrics;
use crate::policy_file::{POLL, PolicyFile};
use follow::{Follow, Source};
pub use namespaces::namespaces;
use runnel_agent_core::policy::{Area, Policy};
use runnel_agent_core::reconciler::{Event, WatchScope};
use runnel_agent_core::seal::Sealer;
use runnel_agent_core::{classify, live};

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
        let pages = Kind::resources()
            .map(|resource| (resource.clone(), Arc::new(Semaphore::new(PAGES))))
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
                    for kind in Kind::supported().iter().filter(|kind| areas.iter().all(|area| area.resource != kind.resource)) {
                        self.times.forget(&kind.plural);
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
        pages: &BTreeMap<Arc<str>, Arc<Semaphore>>,
    ) {
        for area in self.policy.areas() {
            if stops.contains_key(&area) {
                continue;
            }
            let Some(pages) = pages.get(&area.resource).cloned() else {
                continue;
            };
            let stop = CancellationToken::new();
            stops.insert(area.clone(), stop.clone());
            let watch = watch_copies(
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

/// Watches the copies of an area until the receiver is dropped. `pages` limits the pages of the
/// kind that are read at once.
async fn watch_copies(
    client: Client,
    area: Area,
    sealer: Sealer,
    events: mpsc::Sender<Event>,
    pages: Arc<Semaphore>,
) {
    let Some(kind) = Kind::by_resource(&area.resource) else {
        return;
    };
    let path = DynamicObject::url_path(&resource(kind), area.namespace.as_deref());
    let labels = format!("{HUB_LABEL}={}", sealer.hub());
    let mut follow = Follow::new(
        client,
        path,
        Copies {
            kind: kind.clone(),
            area,
            sealer,
        },
        events,
        pages,
        WATCH_SECONDS,
    );
    follow.labels = Some(labels);
    follow.run().await;
}

struct Copies {
    kind: Kind,
    area: Area,
    sealer: Sealer,
}

impl Copies {
    fn scope(&self) -> WatchScope {
        WatchScope::Copies(self.area.clone())
    }
}

impl Source for Copies {
    type Object = DynamicObject;

    fn list_started(&self) -> Event {
        Event::CopiesListed(self.area.clone())
    }

    fn object_events(&self, object: DynamicObject, listed: bool) -> Vec<Event> {
        let Some((copy, live)) = live::reduce(&self.kind, &object, &self.sealer) else {
            return vec![];
        };
        // After a restart, the copy may be the only source of the content while the hub is
        // unreachable.
        let content = if listed {
            live::learn(&self.kind, &object, &live)
        } else {
            None
        };
        content
            .map(Event::Content)
            .into_iter()
            .chain([Event::Copy(copy, live)])
            .collect()
    }

    fn deletion_event(&self, object: DynamicObject) -> Option<Event> {
        live::reduce(&self.kind, &object, &self.sealer)
            .map(|(copy, live)| Event::CopyDeleted(copy, live.uid))
    }

    fn complete(&self) -> Event {
        Event::CopiesComplete(self.area.clone())
    }

    fn forbidden(&self, status: &Status) -> Event {
        Event::CopiesForbidden(
            self.area.clone(),
            classify::refused_watch(status, &self.area),
        )
    }

    fn lost(&self, status: u16) -> Event {
        Event::WatchLost(self.scope(), status)
    }

    fn resumed(&self) -> Event {
        Event::WatchResumed(self.scope())
    }

    fn version(object: &DynamicObject) -> Option<&str> {
        object.metadata.resource_version.as_deref()
    }

    fn name(&self) -> (&str, Option<&str>) {
        (&self.area.resource, self.area.namespace.as_deref())
    }
}
