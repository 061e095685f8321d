//! The watches of the agent: copies in the areas of the policy, and namespaces. A watch that cannot
//! continue lists again: after the API server has dropped the version, and after its versions went
//! back, as after a restore of etcd. The latter is checked after each irregular end of a watch,
//! because an API server accepts a watch from a future version and sends nothing.
//!
//! This module puts a new policy into force, after the end of the watches that it drops and before
//! its new ones begin. So the core receives all events in this order.
//!
//! Each watch is a task of its own: all of them send into one channel, which may be full, and a task
//! that waits for room in it must not keep others from taking theirs.
#[cfg(test)]
mod areas_tests;
mod follow;
mod namespaces;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use kube::Client;
use kube::api::{DynamicObject, Request};
use kube::core::{Resource, Status};
use runnel_proto::model::{CUSTOM_RESOURCE_DEFINITIONS, HUB_LABEL, Kind, SourceRef};
use runnel_transport::discovery::DiscoverySchedule;
use runnel_transport::ops::{Liveness, WatchTimes};
use runnel_transport::readable::Identity;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::apply::resource;
use crate::call::Call;
use crate::event_loop::until;
use crate::kinds::{KindRegistry, KindsRead, discover};
use crate::metrics::Metrics;
use crate::newest_object::NewestObject;
use crate::policy_file::{POLL, PolicyFile};
use follow::{Follow, ReceiverDropped, Source, hint};
pub use namespaces::namespaces;
use runnel_agent_core::copy::CopyError;
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

/// The part that puts policies and kinds into force, for the liveness of the agent.
const POLICY: &str = "policy and kinds of the watches";

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
    /// Whether the watches move.
    pub liveness: Liveness,
    /// The kinds that the cluster serves.
    pub kinds: KindRegistry,
    /// The object of the newest event.
    pub newest: NewestObject,
    /// The kinds that are not served, and whose definitions are known to be deleted.
    pub deleted: BTreeSet<Arc<str>>,
    /// The events for the core.
    pub events: mpsc::Sender<Event>,
}

/// A read of the kinds that is under way.
type Reading = Option<Pin<Box<dyn Future<Output = Call<KindsRead>> + Send>>>;

async fn read_end(reading: &mut Reading) -> Call<KindsRead> {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

/// The kind of an area, as the core knows it.
#[derive(Clone, Debug, PartialEq)]
enum AreaKind {
    /// It is watched.
    Served(Kind),
    /// It is not served, and may have objects.
    Unserved,
    /// It has no objects in the area: its definition is deleted, or gives it another scope.
    Deleted,
}

/// The state of an area.
struct AreaState {
    kind: AreaKind,
    /// The task of the watch.
    watch: Option<AbortHandle>,
}

/// The watches that run.
struct Running {
    watches: JoinSet<()>,
    states: BTreeMap<Area, AreaState>,
    /// The limits of the pages that are read at once, of the kinds that every cluster serves.
    pages: BTreeMap<Arc<str>, Arc<Semaphore>>,
    /// The common limit of all other kinds.
    shared_pages: Arc<Semaphore>,
}

impl Running {
    fn new() -> Self {
        let limit = || Arc::new(Semaphore::new(PAGES));
        Self {
            watches: JoinSet::new(),
            states: BTreeMap::new(),
            pages: Kind::resources()
                .map(|resource| (resource.clone(), limit()))
                .collect(),
            shared_pages: limit(),
        }
    }

    /// Ends the watches outside of these areas. Returns the areas that are dropped.
    async fn retain(&mut self, areas: &BTreeSet<Area>) -> Vec<Area> {
        let (mut dropped, mut watches) = (vec![], vec![]);
        self.states.retain(|area, state| {
            let stays = areas.contains(area);
            if !stays {
                dropped.push(area.clone());
                watches.extend(state.watch.take());
            }
            stays
        });
        self.end(watches.into_iter()).await;
        dropped
    }

    /// Ends watches. Afterwards they send no more events.
    async fn end(&mut self, watches: impl Iterator<Item = AbortHandle>) {
        let ended: Vec<_> = watches.inspect(AbortHandle::abort).collect();
        while !ended.iter().all(AbortHandle::is_finished) {
            self.join_next().await;
        }
    }

    /// Waits until a watch has ended.
    async fn join_next(&mut self) {
        match self.watches.join_next().await {
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(_) => {}
            None => std::future::pending().await,
        }
    }

    /// Forgets when the watch of an area last received data, unless a watch with the same plural runs. The areas of several
    /// namespaces, and kinds of several groups, have one.
    fn forget_times(&self, ended: &Area, times: &WatchTimes) {
        let plural = ended.plural();
        let is_served = |state: &AreaState| matches!(state.kind, AreaKind::Served(_));
        let mut running = self.states.iter().filter(|(_, state)| is_served(state));
        if running.all(|(area, _)| area.plural() != plural) {
            times.forget(plural);
        }
    }
}

impl Watches {
    /// Watches until the receiver is dropped.
    pub async fn run(mut self) {
        let Err(ReceiverDropped) = self.run_until_dropped().await;
    }

    async fn run_until_dropped(&mut self) -> Result<Infallible, ReceiverDropped> {
        let mut running = Running::new();
        let mut schedule = DiscoverySchedule::default();
        let mut reading: Reading = None;
        self.begin(&mut running, &schedule).await?;
        let mut tick = tokio::time::interval(POLL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (kinds, part) = (self.kinds.clone(), self.liveness.part(POLICY));
        loop {
            part.moved();
            let now = Instant::now().into_std();
            let due = schedule.due(now, &self.named(), &kinds.current());
            tokio::select! {
                () = self.events.closed() => return Err(ReceiverDropped),
                () = running.join_next() => {}
                () = kinds.recheck_requested() => schedule.request(),
                () = kinds.definition_changed() => schedule.request_for_definition(),
                () = until(due.map(Instant::from_std)), if reading.is_none() => {
                    let known = kinds.current().clone();
                    reading = Some(Box::pin(discover(self.client.clone(), self.named(), known)));
                }
                read = read_end(&mut reading) => {
                    reading = None;
                    self.kinds_read(read, &mut schedule).await?;
                    self.begin(&mut running, &schedule).await?;
                }
                _ = tick.tick() => {
                    let Some(policy) = self.changed().await else { continue };
                    self.policy = Arc::new(policy);
                    let areas = self.policy.areas();
                    let dropped = running.retain(&areas).await;
                    self.send(Event::Policy(self.policy.clone())).await?;
                    for area in dropped {
                        running.forget_times(&area, &self.times);
                    }
                    // The policy may name other kinds, whose areas wait until they are read.
                    (schedule, reading) = (DiscoverySchedule::default(), None);
                    self.begin(&mut running, &schedule).await?;
                }
            }
        }
    }

    async fn send(&self, event: Event) -> Result<(), ReceiverDropped> {
        self.events.send(event).await.map_err(|_| ReceiverDropped)
    }

    /// Returns the kinds of the policy that must be read: without those that every cluster serves.
    fn named(&self) -> BTreeSet<Arc<str>> {
        let kinds = self.policy.all_kinds();
        kinds
            .filter(|kind| Kind::by_resource(kind).is_none())
            .cloned()
            .collect()
    }

    /// Puts the kinds that were read into force.
    async fn kinds_read(
        &mut self,
        read: Call<KindsRead>,
        schedule: &mut DiscoverySchedule,
    ) -> Result<(), ReceiverDropped> {
        let (named, now) = (self.named(), Instant::now().into_std());
        match read {
            Ok(KindsRead { kinds, deleted }) => {
                let missing: BTreeSet<_> = named
                    .into_iter()
                    .filter(|kind| kinds.preferred(kind).is_none())
                    .collect();
                let is_news = !schedule.has_read() || missing != *schedule.missing();
                if let Some(first) = missing.first().filter(|_| is_news) {
                    tracing::warn!(
                        resource = %first,
                        count = missing.len(),
                        "this cluster does not serve kinds of the policy, the first of which is named"
                    );
                }
                schedule.read(now, missing);
                self.kinds.replace(kinds);
                self.deleted = deleted;
            }
            Err(error) => {
                let code = error.code();
                tracing::warn!(
                    status = code,
                    "the kinds of this cluster cannot be read; trying again: {}",
                    hint(code)
                );
                // The copies of other kinds do not wait for them.
                let areas = self.policy.areas().into_iter();
                for area in
                    areas.filter(|area| !schedule.has_read() && named.contains(&area.resource))
                {
                    self.send(Event::WatchLost(WatchScope::Copies(area), code))
                        .await?;
                }
                schedule.failed(now, named);
            }
        }
        Ok(())
    }

    /// Returns the kind of an area, and the error of its copies unless it is served; `None` while the kinds have not been read.
    fn kind_of(
        &self,
        area: &Area,
        schedule: &DiscoverySchedule,
    ) -> Option<(AreaKind, Option<CopyError>)> {
        let not_served = || Some(classify::not_served(&area.resource));
        match self.kinds.get(&area.resource) {
            Some(kind) if self.policy.scope_of(&area.resource) == Some(kind.scope) => {
                Some((AreaKind::Served(kind), None))
            }
            Some(kind) => Some((AreaKind::Deleted, Some(classify::other_scope(&kind)))),
            None if !schedule.has_read() => None,
            None if self.deleted.contains(&area.resource) => {
                Some((AreaKind::Deleted, not_served()))
            }
            None => Some((AreaKind::Unserved, not_served())),
        }
    }

    /// Starts the watches of the policy that do not run yet, ends those of kinds that are not served any more, and reports
    /// to the core which kinds are not served.
    async fn begin(
        &self,
        running: &mut Running,
        schedule: &DiscoverySchedule,
    ) -> Result<(), ReceiverDropped> {
        for area in self.policy.areas() {
            let Some((area_kind, copy_error)) = self.kind_of(&area, schedule) else {
                continue;
            };
            let known = running.states.get(&area);
            if known.is_some_and(|known| known.kind == area_kind) {
                continue;
            }
            let ended = running.states.remove(&area);
            running
                .end(ended.and_then(|state| state.watch).into_iter())
                .await;
            let mut state = AreaState {
                kind: area_kind.clone(),
                watch: None,
            };
            let AreaKind::Served(kind) = area_kind else {
                let is_deleted = area_kind == AreaKind::Deleted;
                running.states.insert(area.clone(), state);
                running.forget_times(&area, &self.times);
                if let Some(copy_error) = copy_error {
                    let event = if is_deleted {
                        Event::KindDeleted
                    } else {
                        Event::CopiesForbidden
                    };
                    self.send(event(area, copy_error)).await?;
                }
                continue;
            };
            let pages = running.pages.get(&kind.resource);
            let pages = pages.unwrap_or(&running.shared_pages).clone();
            let copies = Copies {
                kind,
                area: area.clone(),
                sealer: self.sealer.clone(),
                kinds: self.kinds.clone(),
                newest: self.newest.clone(),
            };
            let watch = self.follow(copies, pages).run();
            state.watch = Some(running.watches.spawn(watch));
            running.states.insert(area, state);
        }
        Ok(())
    }

    /// Returns the watch of the copies of an area. `pages` limits the pages of the kind that are read at once.
    fn follow(&self, copies: Copies, pages: Arc<Semaphore>) -> Follow<Copies> {
        let namespace = copies.area.namespace.as_deref();
        let path = DynamicObject::url_path(&resource(&copies.kind), namespace);
        let place = namespace.unwrap_or("the cluster");
        let name = format!("watch of {} in {place}", copies.area.resource);
        let labels = format!("{HUB_LABEL}={}", copies.sealer.hub());
        let client = self.client.clone();
        let mut follow = Follow::new(
            client,
            path,
            copies,
            self.events.clone(),
            pages,
            WATCH_SECONDS,
        );
        follow.labels = Some(labels);
        follow.part = Some(self.liveness.part(name));
        follow
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

struct Copies {
    kind: Kind,
    area: Area,
    sealer: Sealer,
    kinds: KindRegistry,
    newest: NewestObject,
}

impl Copies {
    fn scope(&self) -> WatchScope {
        WatchScope::Copies(self.area.clone())
    }

    /// Returns the kind in the version of an object.
    fn kind_of(&self, object: &DynamicObject) -> Kind {
        let version = object.types.as_ref().map(|types| &*types.api_version);
        let other = version.filter(|version| **version != *self.kind.api_version);
        let other = other.and_then(|version| version.rsplit('/').next());
        let other = other.and_then(|version| self.kinds.in_version(&self.kind.resource, version));
        other.unwrap_or_else(|| self.kind.clone())
    }
}

impl Source for Copies {
    type Object = DynamicObject;

    fn list_started(&self) -> Event {
        Event::CopiesListed(self.area.clone())
    }

    fn object_events(&self, object: DynamicObject, listed: bool) -> Vec<Event> {
        let kind = self.kind_of(&object);
        let Some((copy, live)) = self.kinds.reduce(&kind, &object, &self.sealer) else {
            return vec![];
        };
        if !listed && *kind.resource == *CUSTOM_RESOURCE_DEFINITIONS {
            self.kinds.definition_seen(&object);
        }
        // After a restart, the copy may be the only source of the content while the hub is
        // unreachable.
        let content = if listed {
            live::learn(&kind, &object, &live)
        } else {
            self.newest.set(kind, object);
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

    fn unreadable(&self, object: Identity) -> Option<Event> {
        // A read of the copy gives the reason.
        let namespace = object.namespace.unwrap_or_default();
        let copy = SourceRef::new(&self.kind.resource, &namespace, &object.name?);
        Some(Event::CopyDeleted(copy, object.uid?.into()))
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

    fn object_name(object: &DynamicObject) -> Option<&str> {
        object.metadata.name.as_deref()
    }

    fn other_version(&self, object: &DynamicObject) -> Option<Request> {
        let kind = self.kinds.applied_in(&self.kind, &object.metadata)?;
        let namespace = object.metadata.namespace.as_deref();
        Some(Request::new(DynamicObject::url_path(
            &resource(&kind),
            namespace,
        )))
    }

    fn not_found(&self) {
        self.kinds.request_recheck();
    }

    fn name(&self) -> (&str, Option<&str>) {
        (&self.area.resource, self.area.namespace.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use runnel_proto::model::Scope;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn unserved_kind_keeps_the_times_of_a_like_named_plural() {
        let times = WatchTimes::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(times.clone()));
        let is_reported = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text.contains("resource=\"services\"")
        };
        let area = |resource: &str| Area {
            resource: resource.into(),
            namespace: None,
        };
        let state = |kind: AreaKind| AreaState { kind, watch: None };
        let (core, custom) = (area("services"), area("services.example.org"));
        let kind = Kind::new("", "v1", "Service", "services", Scope::Namespaced);
        let mut running = Running::new();
        running
            .states
            .insert(core.clone(), state(AreaKind::Served(kind)));
        running
            .states
            .insert(custom.clone(), state(AreaKind::Unserved));
        let server = service_fn(|_: Request<()>| async {
            Ok::<_, std::io::Error>(Response::new(kube::client::Body::empty()))
        });
        let watch = Request::get("/api/v1/services?watch=true").body(());
        let answer = times.layer(server).oneshot(watch.unwrap()).await;
        drop(answer.map_err(|error| error.to_string()).unwrap());

        running.forget_times(&custom, &times);
        assert!(is_reported());
        running.states.remove(&core);
        running.forget_times(&custom, &times);
        assert!(!is_reported());
    }
}
