//! Watches grants, and the labels of the hub's namespaces, by which grants may select.
//!
//! While one of the watches is refused, the hub sends and removes nothing that needs a grant.
//! Everything else continues.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use tokio::sync::watch;

use super::WatchHealth;
use super::crd_deletion::{DeletedCrdFilter, read_crd};
use super::first_grant::make_first_grant;
use super::{
    DecodedObject, PAGE, RelistingWatch, WatchEvent, events, events_of, failure, mapped,
    own_events, refusal,
};
use crate::hub_state::{HubState, until};
use crate::relist_barrier::Watched;
use runnel_api::{DistributionGrant, FLEET, Fleet};
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::guard::FleetTerms;
use runnel_hub_core::index::{Effect, HubNamespace, Index};
use runnel_hub_core::plan::RuleGrant;

/// Delay before the first grant is made again after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Functions that store watched objects of one kind in the index.
pub(super) struct WatchSink<T> {
    /// The resource, by its name in the relist barrier.
    pub resource: &'static str,
    /// Sets one object; `None`: it is deleted.
    pub one: fn(&mut Index, &str, Option<T>) -> Effect,
    /// Sets all of them; `None`: they cannot be read.
    pub all: fn(&mut Index, Option<BTreeMap<String, T>>) -> Effect,
    /// Returns the known state of an object that this build cannot decode.
    pub known: fn(&Index, &str) -> Option<T>,
    /// The effect while the objects cannot be read, for the log.
    pub refused_effect: &'static str,
}

const REFUSED_EFFECT: &str = "Nothing that needs a grant is sent or removed";

/// Watches the grants for ever. With `first`, a hub that has no grant begins with one for everything.
pub async fn watch_grants(client: Client, hub_state: Arc<HubState>, first: bool) {
    let into = WatchSink {
        resource: "distributiongrants",
        one: Index::set_grant,
        all: Index::set_grants,
        known: |index, name| index.targets().grants().get(name).cloned(),
        refused_effect: REFUSED_EFFECT,
    };
    while first && let Err(why) = make_first_grant(&client, &hub_state.settings.namespace).await {
        tracing::error!(%why, "cannot make the grant for everything; trying again");
        into.unknown(
            &hub_state,
            *hub_state
                .leadership
                .relist_barrier
                .subscribe()
                .requested
                .borrow(),
        );
        let mut rounds = hub_state.leadership.relist_barrier.subscribe();
        wait(&mut rounds.requested, AFTER_FAILURE).await;
    }
    let reader_client = client.clone();
    let defined = DeletedCrdFilter::by(move || {
        read_crd(reader_client.clone(), DistributionGrant::crd_name())
    })
    .trusting_the_first_list();
    let grants =
        move || defined.events(own_events::<DistributionGrant>(client.clone(), PAGE).boxed());
    let events = RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), grants);
    into.follow(events, &hub_state, |grant| RuleGrant::read(&grant))
        .await;
}

/// Watches the `Fleet`. While it cannot be read, its last state applies.
pub async fn watch_fleet(client: Client, hub_state: Arc<HubState>) {
    let into = WatchSink::<FleetTerms> {
        resource: "fleets",
        one: |index, name, terms| match name {
            FLEET => index.set_fleet_terms(terms.unwrap_or_default()),
            _ => Effect::default(),
        },
        all: |index, all| match all {
            Some(mut all) => index.set_fleet_terms(all.remove(FLEET).unwrap_or_default()),
            None => Effect::default(),
        },
        known: |_, _| None,
        refused_effect: "The limits are unchanged",
    };
    let reader_client = client.clone();
    let defined = DeletedCrdFilter::by(move || read_crd(reader_client.clone(), Fleet::crd_name()))
        .trusting_the_first_list();
    let fleets = move || defined.events(own_events::<Fleet>(client.clone(), PAGE).boxed());
    let events = RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), fleets);
    let read = |fleet: Fleet| {
        if fleet.metadata.name.as_deref() == Some(FLEET) {
            hub_state.fleet_status.send_replace(fleet.status.clone());
        }
        FleetTerms::of(Some(&fleet))
    };
    into.follow(events, &hub_state, read).await;
}

/// Watches the labels of the hub's namespaces for ever.
pub async fn watch_hub_namespaces(client: Client, hub_state: Arc<HubState>) {
    let (one, all) = (
        Index::set_hub_namespace_state,
        Index::set_hub_namespace_states,
    );
    let into = WatchSink {
        resource: "namespaces",
        one,
        all,
        known: |_, _| None,
        refused_effect: REFUSED_EFFECT,
    };
    let api: Api<DecodedObject<PartialObjectMeta<Namespace>>> = Api::all(client);
    let events = RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), move || {
        events(api.clone(), PAGE).boxed()
    });
    let read = |namespace: PartialObjectMeta<Namespace>| HubNamespace {
        labels: namespace.labels().clone(),
        terminating: namespace.metadata.deletion_timestamp.is_some(),
    };
    into.follow(events, &hub_state, read).await;
}

async fn wait(rounds: &mut watch::Receiver<u64>, delay: Duration) {
    tokio::select! {
        () = tokio::time::sleep(delay) => {}
        _ = rounds.changed() => {}
    }
}

impl<T: Clone + 'static> WatchSink<T> {
    /// The grants are unknown.
    fn unknown(&self, hub_state: &HubState, round: u64) {
        hub_state.change(|index| (self.all)(index, None));
        self.done(hub_state, round);
    }

    /// The cause of what a change of such an object changes.
    fn cause(&self, name: &str, is_deleted: bool) -> ChangeCause {
        let kind = match self.resource {
            "namespaces" => ChangeKind::HubNamespaceChanged,
            "fleets" => ChangeKind::FleetChanged,
            _ if is_deleted => ChangeKind::GrantDeleted,
            _ => ChangeKind::GrantChanged,
        };
        ChangeCause::of(kind, name)
    }

    fn done(&self, hub_state: &HubState, round: u64) {
        hub_state
            .leadership
            .relist_barrier
            .done(Watched::Own(self.resource), round);
        hub_state.leadership.progress.notify_one();
    }

    /// Follows a watch and stores its objects in the index. Never returns.
    pub(super) async fn follow<K: Resource>(
        &self,
        mut events: RelistingWatch<DecodedObject<K>>,
        hub_state: &HubState,
        read: impl Fn(K) -> T,
    ) {
        let mut seen = Some(BTreeMap::new());
        let mut patience = WatchHealth::new(Instant::now());
        let mut round = events.round;
        loop {
            // A watch that ends by itself is still the same wait for a list.
            if events.round != round {
                round = events.round;
                patience.begin(Instant::now());
            }
            let event = tokio::select! {
                event = events.next() => event,
                () = until(patience.ends()) => {
                    let (resource, why) = (self.resource, patience.error_message());
                    tracing::error!(resource, "cannot list {resource}: {why}. {}", self.refused_effect);
                    patience.settle();
                    self.unknown(hub_state, events.round);
                    continue;
                }
            };
            let Some(event) = event else {
                seen = Some(BTreeMap::new());
                continue;
            };
            if self.observe(
                event,
                (&mut seen, &mut patience),
                hub_state,
                events.round,
                &read,
            ) {
                wait(&mut events.rounds.requested, patience.refusal_delay()).await;
                events.relist();
                seen = Some(BTreeMap::new());
            }
        }
    }

    /// Returns the spec of an object; the former one if this build cannot read the new one.
    fn read<K: Resource>(
        &self,
        object: DecodedObject<K>,
        hub_state: &HubState,
        read: &impl Fn(K) -> T,
    ) -> Option<T> {
        match object {
            DecodedObject::Read(object) => Some(read(*object)),
            unread => (self.known)(&hub_state.index.read(), &unread.name()),
        }
    }

    /// Returns whether it was refused.
    fn observe<K: Resource>(
        &self,
        event: WatchEvent<DecodedObject<K>>,
        (seen, patience): (&mut Option<BTreeMap<String, T>>, &mut WatchHealth),
        hub_state: &HubState,
        round: u64,
        read: &impl Fn(K) -> T,
    ) -> bool {
        if patience.record(&event, Instant::now()) {
            tracing::info!(
                resource = self.resource,
                "can watch {} again",
                self.resource
            );
        }
        match event {
            Ok(Event::Init) => *seen = Some(BTreeMap::new()),
            Ok(Event::InitApply(object)) => {
                let name = object.name();
                // The rights of an unreadable grant are unknown, and so are those of all grants
                // together.
                *seen = self.read(object, hub_state, read).and_then(|one| {
                    let mut all = seen.take()?;
                    all.insert(name, one);
                    Some(all)
                });
            }
            Ok(Event::InitDone) => {
                let all = seen.replace(BTreeMap::new());
                patience.settle();
                hub_state.change_because(|| self.cause("", false), |index| (self.all)(index, all));
                self.done(hub_state, round);
            }
            Ok(Event::Apply(object)) => {
                let name = object.name();
                if let Some(one) = self.read(object, hub_state, read) {
                    hub_state.change_because(
                        || self.cause(&name, false),
                        |index| (self.one)(index, &name, Some(one)),
                    );
                }
            }
            Ok(Event::Delete(object)) => {
                let name = object.name();
                hub_state.change_because(
                    || self.cause(&name, true),
                    |index| (self.one)(index, &name, None),
                )
            }
            Err(error) => return self.log_watch_error(&error, patience, hub_state, round),
        }
        false
    }

    fn log_watch_error(
        &self,
        error: &kube::runtime::watcher::Error,
        patience: &mut WatchHealth,
        hub_state: &HubState,
        round: u64,
    ) -> bool {
        let (resource, without) = (self.resource, self.refused_effect);
        let Some(why) = refusal(
            error,
            "give the hub get, list and watch on it by a ClusterRole",
        ) else {
            let why = failure(error);
            if patience.is_news(&why) {
                tracing::warn!(resource, %error, "watch of {resource} failed; retrying");
            }
            patience.failed(why);
            return false;
        };
        if !patience.refused(Instant::now()) {
            return true;
        }
        if patience.is_news(&why) {
            tracing::error!(
                resource,
                "cannot watch {resource}: {why}; upgrade the chart with its CRDs and rights. {without}"
            );
        }
        patience.settle();
        self.unknown(hub_state, round);
        true
    }
}

/// Watches the CRD of this kind for ever.
pub async fn watch_crd<K: CustomResourceExt>(client: Client, hub_state: Arc<HubState>) {
    let into = WatchSink {
        resource: K::crd_name(),
        one: |index, name, terminating| {
            let scopes = &mut index.fleet_guard_mut().terminating;
            scopes.set_crd(name, terminating);
            Effect::default()
        },
        all: |index, all| {
            index
                .fleet_guard_mut()
                .terminating
                .set_crds(K::crd_name(), all);
            Effect::default()
        },
        known: |_, _| None,
        refused_effect: "Deletions of rules are under the limits of removals",
    };
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let events = RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), move || {
        events_of(api.clone(), K::crd_name())
            .map(|event| mapped(event, DecodedObject::from))
            .boxed()
    });
    let is_terminating = |crd: PartialObjectMeta<CustomResourceDefinition>| {
        crd.metadata.deletion_timestamp.is_some()
    };
    into.follow(events, &hub_state, is_terminating).await;
}
