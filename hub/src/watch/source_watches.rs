//! Starts and stops the watches of sources by what rules select.
//!
//! One task per watch scope follows the metadata of a kind, from the moment that a rule names the kind until no rule has
//! named it for [`UNNEEDED_LIMIT`]. A stop removes no copy: it happens only while no rule selects anything in the scope, and
//! a later rule first lists it again.
//!
//! ConfigMaps and Secrets are always served. For other kinds the hub reads what its API server serves ([`super::kinds`]).
//! A kind that is not served is a state of its scope, and does not affect the other sources of a rule.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use runnel_hub_core::index::ScopeState;
use runnel_hub_core::plan::WatchScope;
use runnel_proto::model::{Kind, Kinds, split_resource};
use runnel_transport::discovery::{DiscoverySchedule, ServedKinds};
use runnel_transport::ops::WatchTimes;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::crd_deletion::CrdMemory;
use super::kind_places::{KindPlaces, Namespaces};
use super::kinds::{DiscoveryError, read_kinds};
use super::sources::watch_sources;
use crate::hub_state::{HubState, until};
use crate::relist_barrier::Watched;

/// The time after which a watch stops that no rule needs.
const UNNEEDED_LIMIT: Duration = Duration::from_secs(300);
/// Minimum interval between two comparisons of the watches with the rules.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30);

/// A scope that a rule needs, or has needed.
#[derive(Default)]
struct NeededScope {
    /// The kind and the end of its watch.
    watch: Option<(Kind, CancellationToken)>,
    /// What is known of the CRD of its kind.
    crd: CrdMemory,
    /// Since when no rule needs it.
    unneeded_since: Option<Instant>,
}

/// Why a scope has no watch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unwatched {
    /// The kinds are being read.
    Awaited,
    /// This is the state of the scope.
    State(ScopeState),
}

/// Watches the sources that rules need. Returns only if a watch ended. `times` are those of the client.
pub async fn watch_needed_sources(client: Client, hub_state: Arc<HubState>, times: WatchTimes) {
    SourceWatches::new(client, hub_state, times).run().await;
}

/// A watch ended by itself.
struct WatchEnded;

struct SourceWatches {
    client: Client,
    hub_state: Arc<HubState>,
    times: WatchTimes,
    scopes: BTreeMap<WatchScope, NeededScope>,
    tasks: JoinSet<WatchScope>,
    schedule: DiscoverySchedule,
    /// Why the last read of the kinds failed.
    failure: Option<String>,
    /// The API groups of which kinds may be missing, because the API server could not reach them at the last read.
    stale: BTreeSet<String>,
}

impl SourceWatches {
    fn new(client: Client, hub_state: Arc<HubState>, times: WatchTimes) -> Self {
        Self {
            client,
            hub_state,
            times,
            scopes: BTreeMap::new(),
            tasks: JoinSet::new(),
            schedule: DiscoverySchedule::default(),
            failure: None,
            stale: BTreeSet::new(),
        }
    }

    async fn run(mut self) {
        let hub_state = self.hub_state.clone();
        let mut needed = hub_state.needed.subscribe();
        let mut rounds = hub_state.leadership.relist_barrier.subscribe();
        let mut reading: Option<BoxFuture<'static, Result<ServedKinds, DiscoveryError>>> = None;
        let mut compare_at = None;
        loop {
            needed.mark_unchanged();
            rounds.requested.mark_unchanged();
            if self.update().await.is_err() {
                return;
            }
            let now = Instant::now();
            let due = self.due(now).filter(|_| reading.is_none());
            if due.is_some_and(|due| due <= now) {
                let known = hub_state.kinds.borrow().clone();
                reading = Some(read_kinds(self.client.clone(), known).boxed());
            }
            let read = async {
                match &mut reading {
                    Some(reading) => reading.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Ok(()) = needed.changed() => {}
                // The scopes without a watch count as listed in the new round.
                Ok(()) = rounds.requested.changed() => {}
                read = read => {
                    reading = None;
                    self.set_kinds(read);
                }
                () = hub_state.kind_missing.notified() => self.schedule.request(),
                () = hub_state.needs_changed.notified() => {
                    compare_at.get_or_insert(now + COMPARE_INTERVAL);
                }
                () = until(compare_at) => {
                    match self.release_unneeded(Instant::now(), UNNEEDED_LIMIT).await {
                        Ok(next) => compare_at = next,
                        Err(WatchEnded) => return,
                    }
                }
                () = until(due) => {}
                Some(_) = self.tasks.join_next() => return,
            }
        }
    }

    /// Returns when the kinds are to be read.
    fn due(&self, now: Instant) -> Option<Instant> {
        let named = self.named_kinds();
        self.schedule
            .due(now, &named, &self.hub_state.kinds.borrow())
    }

    /// The kinds that rules name, without those that are always served.
    fn named_kinds(&self) -> BTreeSet<Arc<str>> {
        let named = self.scopes.keys().map(|scope| &scope.resource);
        named
            .filter(|resource| Kind::by_resource(resource).is_none())
            .cloned()
            .collect()
    }

    fn set_kinds(&mut self, read: Result<ServedKinds, DiscoveryError>) {
        let named = self.named_kinds();
        match read {
            Ok(read) => {
                let is_missing = |resource: &Arc<str>| read.kinds.preferred(resource).is_none();
                let missing = named.into_iter().filter(is_missing).collect();
                self.schedule.read(Instant::now(), missing);
                (self.failure, self.stale) = (None, read.stale);
                self.hub_state.set_kinds(read.kinds);
            }
            Err(error) => {
                tracing::error!(%error, "cannot read the kinds that the API server serves; retrying");
                self.schedule.failed(Instant::now(), named);
                self.failure = Some(error.to_string());
            }
        }
    }

    /// Starts and stops watches by the needed scopes and the served kinds.
    async fn update(&mut self) -> Result<(), WatchEnded> {
        let needed = self.hub_state.needed.borrow().clone();
        for scope in &needed {
            self.scopes.entry(scope.clone()).or_default();
        }
        for (scope, wanted) in self.all_wanted(needed) {
            self.set_watch(&scope, wanted).await?;
        }
        Ok(())
    }

    /// Returns the kind of each scope, or why it is not watched.
    fn all_wanted(
        &self,
        needed: BTreeSet<WatchScope>,
    ) -> Vec<(WatchScope, Result<Kind, Unwatched>)> {
        let kinds = self.hub_state.kinds.borrow();
        let running: BTreeSet<_> = self
            .scopes
            .iter()
            .filter(|(_, known)| known.watch.is_some())
            .map(|(scope, _)| scope.resource.clone())
            .collect();
        let is_new = |scope: &WatchScope| !running.contains(&scope.resource);
        let namespaces = if needed.iter().any(is_new) {
            self.hub_state.index.read().namespaces_by_kind()
        } else {
            Namespaces::new()
        };
        let needs_place = |kind: &Arc<str>| Kind::by_resource(kind).is_none();
        let mut places = KindPlaces::of(running.into_iter().filter(needs_place), namespaces);
        needed
            .into_iter()
            .filter(|scope| self.is_in_reach(scope))
            .map(|scope| {
                let wanted = self.wanted(&scope, &kinds, &mut places);
                (scope, wanted)
            })
            .collect()
    }

    /// Whether the hub may watch a scope. A namespace outside its source namespaces has no watch.
    fn is_in_reach(&self, scope: &WatchScope) -> bool {
        let namespace = scope.namespace.as_deref();
        namespace.is_none_or(|name| self.hub_state.settings.scope.reads(name))
    }

    /// Returns the kind with which a scope is to be watched, or why it is not.
    fn wanted(
        &self,
        scope: &WatchScope,
        kinds: &Kinds,
        places: &mut KindPlaces,
    ) -> Result<Kind, Unwatched> {
        let unreadable = |why: String| Err(Unwatched::State(ScopeState::Unreadable(why)));
        let resource = &scope.resource;
        let Some(kind) = kinds.preferred(resource) else {
            return match &self.failure {
                _ if self.stale.contains(split_resource(resource).1) => unreadable(format!(
                    "the API server of the hub cannot reach the group of {resource}, so it is not known whether it serves the kind: \
                     check the APIServices of the group"
                )),
                _ if self.schedule.has_read() => Err(Unwatched::State(ScopeState::NotServed)),
                Some(why) => unreadable(format!(
                    "the hub cannot read which kinds its API server serves: {why}"
                )),
                None => Err(Unwatched::Awaited),
            };
        };
        if !scope.fits(kind) {
            return Err(Unwatched::State(ScopeState::Mismatched));
        }
        if Kind::by_resource(resource).is_none()
            && let Err(why) = places.take(resource)
        {
            let state = ScopeState::Unreadable(why);
            if self.hub_state.index.read().scopes().state(scope) != state {
                tracing::error!(%scope, count = places.users(), "a kind is not watched: too many are");
            }
            return Err(Unwatched::State(state));
        }
        Ok(kind.clone())
    }

    async fn set_watch(
        &mut self,
        scope: &WatchScope,
        wanted: Result<Kind, Unwatched>,
    ) -> Result<(), WatchEnded> {
        let running = self
            .scopes
            .get(scope)
            .and_then(|known| known.watch.as_ref())
            .map(|(kind, _)| kind.clone());
        match (running, wanted) {
            (Some(running), Ok(kind)) if running == kind => return Ok(()),
            (running, Ok(kind)) => {
                if running.is_some() {
                    tracing::info!(%scope, version = %kind.version, "the API server prefers another version of a kind");
                    self.stop(scope).await?;
                    // The content is read again in the new version.
                    self.hub_state.change(|index| {
                        index.sources_mut().mark_stale(scope);
                        index.invalidate_stale(scope)
                    });
                }
                self.start(scope, kind);
            }
            (_, Err(Unwatched::Awaited)) => {}
            (running, Err(Unwatched::State(state))) => {
                if running.is_some() {
                    tracing::error!(%scope, "the API server does not serve the kind any more: its copies are left unchanged");
                    self.stop(scope).await?;
                }
                self.hub_state.change(|index| {
                    if state == ScopeState::NotServed {
                        index.sources_mut().mark_lost(scope);
                    }
                    index.set_scope(scope.clone(), state)
                });
                self.count_as_listed(scope);
            }
        }
        Ok(())
    }

    fn start(&mut self, scope: &WatchScope, kind: Kind) {
        let token = CancellationToken::new();
        let known = self.scopes.entry(scope.clone()).or_default();
        known.watch = Some((kind.clone(), token.clone()));
        let watch = watch_sources(
            self.client.clone(),
            self.hub_state.clone(),
            kind,
            scope.clone(),
            known.crd.clone(),
        );
        let scope = scope.clone();
        self.tasks.spawn(async move {
            token.run_until_cancelled(watch).await;
            scope
        });
    }

    /// Stops a watch, and waits until it has stopped: it changes nothing afterwards.
    async fn stop(&mut self, scope: &WatchScope) -> Result<(), WatchEnded> {
        let known = self.scopes.get_mut(scope);
        let Some((kind, token)) = known.and_then(|known| known.watch.take()) else {
            return Ok(());
        };
        token.cancel();
        match self.tasks.join_next().await {
            Some(Ok(ended)) if ended == *scope => {}
            _ => return Err(WatchEnded),
        }
        let mut watched = self
            .scopes
            .values()
            .filter_map(|known| known.watch.as_ref());
        if !watched.any(|(other, _)| other.plural == kind.plural) {
            self.times.forget(&kind.plural);
        }
        Ok(())
    }

    /// A scope without a watch does not keep the leader from serving.
    fn count_as_listed(&self, scope: &WatchScope) {
        let barrier = &self.hub_state.leadership.relist_barrier;
        barrier.done(Watched::Sources(scope.clone()), barrier.round());
        self.hub_state.queues.to_read.wake();
        self.hub_state.leadership.progress.notify_one();
    }

    /// Stops the watches that no rule has needed for `limit`. Returns when to compare again.
    async fn release_unneeded(
        &mut self,
        now: Instant,
        limit: Duration,
    ) -> Result<Option<Instant>, WatchEnded> {
        let needed = self.hub_state.index.read().needed_scopes();
        let mut expired = Vec::new();
        let mut next = None;
        for (scope, known) in &mut self.scopes {
            if needed.contains(scope) {
                known.unneeded_since = None;
                continue;
            }
            let ends = *known.unneeded_since.get_or_insert(now) + limit;
            if ends <= now {
                expired.push(scope.clone());
            } else {
                next = Some(next.map_or(ends, |next: Instant| next.min(ends)));
            }
        }
        for scope in expired {
            self.stop(&scope).await?;
            if self.hub_state.release(&scope) {
                tracing::info!(%scope, "no rule selects sources there any more: the watch has ended");
                self.scopes.remove(&scope);
            }
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use runnel_api::{ClusterDistributionRule, DistributionRule};
    use runnel_hub_core::plan::Rule;
    use runnel_proto::model::{RuleUid, Scope};
    use serde_json::json;

    use super::super::kind_places::NAMESPACE_LIMIT;
    use super::*;
    use crate::hub_state::Settings;

    /// Watches of an API server that does not answer.
    fn watches() -> SourceWatches {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<
                Result<http::Response<kube::client::Body>, std::convert::Infallible>,
            >()
        });
        SourceWatches::new(
            Client::new(service, "default"),
            HubState::new(Settings::for_tests()),
            WatchTimes::default(),
        )
    }

    fn kind(number: usize) -> Kind {
        let plural = format!("kind{number:03}s");
        Kind::new("example.org", "v1", "Any", &plural, Scope::Namespaced)
    }

    fn served(kinds: impl IntoIterator<Item = Kind>) -> Kinds {
        Kind::supported().iter().cloned().chain(kinds).collect()
    }

    /// A discovery with these kinds, and with the group of the kinds of this test, which the API server may not reach.
    fn read(kinds: impl IntoIterator<Item = Kind>, is_stale: bool) -> ServedKinds {
        let group = is_stale.then(|| "example.org".to_owned());
        ServedKinds {
            kinds: served(kinds),
            stale: group.into_iter().collect(),
            ..ServedKinds::default()
        }
    }

    fn add_rule(watches: &SourceWatches, uid: &str, resources: &[String]) {
        let entries: Vec<_> = resources
            .chunks(16)
            .map(|resources| json!({"resources": resources, "names": ["*"]}))
            .collect();
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": uid, "namespace": "shop", "uid": uid, "generation": 1},
            "spec": {"sources": entries, "clusters": {"all": true}},
        });
        let object: DistributionRule = serde_json::from_value(object).unwrap();
        let rule = Rule::namespaced(&object, "runnel-system").unwrap();
        let places = rule.places(watches.hub_state.index.read().scopes().watched());
        watches.hub_state.change(|index| index.set_rule(rule));
        watches.hub_state.need(places);
    }

    fn add_cluster_rule(watches: &SourceWatches, uid: &str, resource: &str) {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
            "metadata": {"name": uid, "uid": uid, "generation": 1},
            "spec": {"sources": [{"resources": [resource], "names": ["*"]}], "clusters": {"all": true}},
        });
        let object: ClusterDistributionRule = serde_json::from_value(object).unwrap();
        let rule = Rule::cluster_scoped(&object, "runnel-system").unwrap();
        let places = rule.places(watches.hub_state.index.read().scopes().watched());
        watches.hub_state.change(|index| index.set_rule(rule));
        watches.hub_state.need(places);
    }

    fn state(watches: &SourceWatches, resource: &str) -> ScopeState {
        let scope = WatchScope::everywhere(resource);
        watches.hub_state.index.read().scopes().state(&scope)
    }

    fn is_watched(watches: &SourceWatches, resource: &str) -> bool {
        let known = watches.scopes.get(&WatchScope::everywhere(resource));
        known.is_some_and(|known| known.watch.is_some())
    }

    async fn update(watches: &mut SourceWatches) {
        assert!(watches.update().await.is_ok());
    }

    #[tokio::test]
    async fn kind_above_the_limit_ends_no_running_watch() {
        let mut watches = watches();
        let kinds: Vec<_> = (0..=NAMESPACE_LIMIT).map(kind).collect();
        let named: Vec<_> = kinds.iter().map(ToString::to_string).collect();
        watches.hub_state.set_kinds(served(kinds.clone()));
        add_rule(&watches, "many", &named[1..]);
        update(&mut watches).await;
        assert!(
            named[1..]
                .iter()
                .all(|resource| is_watched(&watches, resource))
        );
        // It comes first by its name. Secrets need no place.
        add_rule(&watches, "one", &["secrets".to_owned(), named[0].clone()]);
        update(&mut watches).await;
        assert!(is_watched(&watches, "secrets"));
        assert!(
            named[1..]
                .iter()
                .all(|resource| is_watched(&watches, resource))
        );
        let ScopeState::Unreadable(why) = state(&watches, &named[0]) else {
            panic!("{} is watched", named[0]);
        };
        assert!(why.contains("50 of the 200 kinds"), "{why}");
        // For a rule of another kind there is room.
        add_cluster_rule(&watches, "cluster", &named[0]);
        update(&mut watches).await;
        assert!(is_watched(&watches, &named[0]));
    }

    #[tokio::test]
    async fn kind_that_is_not_served_keeps_no_leader_from_serving() {
        let mut watches = watches();
        let widgets = kind(0).to_string();
        add_rule(&watches, "r", std::slice::from_ref(&widgets));
        update(&mut watches).await;
        assert_eq!(state(&watches, &widgets), ScopeState::Unwatched);
        watches.set_kinds(Err(DiscoveryError::Timeout));
        update(&mut watches).await;
        assert!(matches!(
            state(&watches, &widgets),
            ScopeState::Unreadable(_)
        ));
        watches.set_kinds(Ok(read([], false)));
        let hub_state = watches.hub_state.clone();
        let barrier = &hub_state.leadership.relist_barrier;
        barrier.begin();
        update(&mut watches).await;
        assert_eq!(state(&watches, &widgets), ScopeState::NotServed);
        let scope = WatchScope::everywhere(widgets.as_str());
        assert!(barrier.have_all([Watched::Sources(scope.clone())]));
        watches.set_kinds(Ok(read([kind(0)], false)));
        update(&mut watches).await;
        assert!(is_watched(&watches, &widgets));
        // It is not served any more.
        watches.set_kinds(Ok(read([], false)));
        update(&mut watches).await;
        assert!(!is_watched(&watches, &widgets) && watches.tasks.is_empty());
        assert_eq!(state(&watches, &widgets), ScopeState::NotServed);
    }

    #[tokio::test]
    async fn kind_of_a_group_that_is_not_reached_is_unknown() {
        let mut watches = watches();
        let widgets = kind(0).to_string();
        add_rule(&watches, "r", std::slice::from_ref(&widgets));
        watches.set_kinds(Ok(read([], true)));
        update(&mut watches).await;
        let ScopeState::Unreadable(why) = state(&watches, &widgets) else {
            panic!("{:?}", state(&watches, &widgets));
        };
        assert!(why.contains("cannot reach the group"), "{why}");
        watches.set_kinds(Ok(read([kind(0)], false)));
        update(&mut watches).await;
        assert!(is_watched(&watches, &widgets));
        // The discovery that is read then has the known kinds.
        watches.set_kinds(Ok(read([kind(0)], true)));
        update(&mut watches).await;
        assert!(is_watched(&watches, &widgets));
        // The group is reached, and the kind is not in it.
        watches.set_kinds(Ok(read([], false)));
        update(&mut watches).await;
        assert_eq!(state(&watches, &widgets), ScopeState::NotServed);
    }

    #[tokio::test]
    async fn kind_is_watched_in_its_own_scope() {
        let mut watches = watches();
        let resource = kind(0).to_string();
        let whole = Kind::new("example.org", "v1", "Any", "kind000s", Scope::Cluster);
        let (in_namespaces, in_cluster) = (
            WatchScope::everywhere(resource.as_str()),
            WatchScope::in_cluster(resource.as_str()),
        );
        add_rule(&watches, "r", std::slice::from_ref(&resource));
        add_cluster_rule(&watches, "c", &resource);
        for (kind, watched, other) in [
            (whole, &in_cluster, &in_namespaces),
            (kind(0), &in_namespaces, &in_cluster),
        ] {
            watches.set_kinds(Ok(read([kind], false)));
            update(&mut watches).await;
            let has_watch = |scope: &WatchScope| {
                let known = watches.scopes.get(scope);
                known.is_some_and(|known| known.watch.is_some())
            };
            assert!(has_watch(watched) && !has_watch(other), "{watched:?}");
            let state = watches.hub_state.index.read().scopes().state(other);
            assert_eq!(state, ScopeState::Mismatched, "{other}");
        }
    }

    #[tokio::test]
    async fn watch_ends_some_time_after_its_last_rule() {
        let mut watches = watches();
        let widgets = kind(0).to_string();
        watches.hub_state.set_kinds(served([kind(0)]));
        add_rule(&watches, "r", std::slice::from_ref(&widgets));
        update(&mut watches).await;
        let (start, limit) = (Instant::now(), Duration::from_secs(300));
        let next = watches.release_unneeded(start, limit).await;
        assert!(matches!(next, Ok(None)));
        let uid = RuleUid::from("r");
        watches.hub_state.change(|index| index.remove_rule(&uid));
        let next = watches.release_unneeded(start, limit).await;
        assert!(matches!(next, Ok(Some(at)) if at == start + limit));
        // A rule that comes back in time keeps it.
        add_rule(&watches, "r", std::slice::from_ref(&widgets));
        let late = start + limit;
        assert!(matches!(
            watches.release_unneeded(late, limit).await,
            Ok(None)
        ));
        assert!(is_watched(&watches, &widgets));
        watches.hub_state.change(|index| index.remove_rule(&uid));
        assert!(watches.release_unneeded(late, limit).await.is_ok());
        assert!(watches.release_unneeded(late + limit, limit).await.is_ok());
        assert!(watches.scopes.is_empty() && watches.tasks.is_empty());
        assert!(watches.hub_state.needed.borrow().is_empty());
        // It is watched again for a later rule.
        add_rule(&watches, "r", std::slice::from_ref(&widgets));
        update(&mut watches).await;
        assert!(is_watched(&watches, &widgets));
    }
}
