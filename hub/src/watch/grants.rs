//! The watches of grants, and of the labels of the hub's namespaces, by which grants may choose.
//!
//! While one of them is refused, nothing that needs a grant is sent or removed; all else goes on.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;

use super::{Anew, Heard, events, own_events, refusal};
use crate::crd::DistributionGrant;
use crate::index::{Effect, Index, SeenNamespace};
use crate::plan::RuleGrant;
use crate::rounds::Watched;
use crate::shared::Shared;
use crate::writer::make_first_grant;

/// How long to wait before what was refused is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// How what a watch shows comes into the index.
pub(super) struct Into<T> {
    /// What is watched, as its round is called.
    pub resource: &'static str,
    /// One object is as given now; `None`: it is gone.
    pub one: fn(&mut Index, &str, Option<T>) -> Effect,
    /// These are all there are; `None`: they cannot be read.
    pub all: fn(&mut Index, Option<BTreeMap<String, T>>) -> Effect,
    /// What it is like while they cannot be read.
    pub without: &'static str,
}

const WITHOUT: &str = "What needs a grant is neither sent nor removed";

/// Watches the grants for ever. With `first`, a hub that has no grant begins with one for everything.
pub async fn watch_grants(client: Client, shared: Arc<Shared>, first: bool) {
    let into = Into { resource: "distributiongrants", one: Index::set_grant, all: Index::set_grants, without: WITHOUT };
    while first && let Err(why) = make_first_grant(&client, &shared.settings.namespace).await {
        tracing::error!(why, "cannot make the grant for everything; trying again");
        into.unknown(&shared, *shared.rounds.subscribe().asked.borrow());
        wait(&mut shared.rounds.subscribe().asked).await;
    }
    let events = Anew::new(shared.rounds.subscribe(), move || own_events::<DistributionGrant>(client.clone()).boxed());
    into.follow(events, &shared, |grant| RuleGrant::read(&grant)).await;
}

/// Watches the labels of the hub's namespaces for ever.
pub async fn watch_hub_namespaces(client: Client, shared: Arc<Shared>) {
    let (one, all) = (Index::set_seen_namespace, Index::set_seen_namespaces);
    let into = Into { resource: "namespaces", one, all, without: WITHOUT };
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
    let events = Anew::new(shared.rounds.subscribe(), move || events(api.clone()).boxed());
    let read = |namespace: PartialObjectMeta<Namespace>| SeenNamespace {
        labels: namespace.labels().clone(),
        dying: namespace.metadata.deletion_timestamp.is_some(),
    };
    into.follow(events, &shared, read).await;
}

async fn wait(rounds: &mut watch::Receiver<u64>) {
    tokio::select! {
        () = tokio::time::sleep(AFTER_REFUSAL) => {}
        _ = rounds.changed() => {}
    }
}

impl<T: Clone + 'static> Into<T> {
    /// Nobody can tell what there is.
    fn unknown(&self, shared: &Shared, round: u64) {
        shared.change(|index| (self.all)(index, None));
        self.done(shared, round);
    }

    fn done(&self, shared: &Shared, round: u64) {
        shared.rounds.done(Watched::Own(self.resource), round);
        shared.progress.notify_one();
    }

    /// Takes in what a watch shows, for ever.
    pub(super) async fn follow<K: Resource>(&self, mut events: Anew<K>, shared: &Shared, read: impl Fn(K) -> T) {
        let mut seen = BTreeMap::new();
        loop {
            let Some(event) = events.next().await else {
                seen.clear();
                continue;
            };
            if self.take_in(event, &mut seen, shared, events.round, &read) {
                wait(&mut events.rounds.asked).await;
                events.again();
                seen.clear();
            }
        }
    }

    /// Returns whether it was refused.
    fn take_in<K: Resource>(
        &self,
        event: Heard<K>,
        seen: &mut BTreeMap<String, T>,
        shared: &Shared,
        round: u64,
        read: &impl Fn(K) -> T,
    ) -> bool {
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(object)) => drop(seen.insert(object.name_any(), read(object))),
            Ok(Event::InitDone) => {
                let all = std::mem::take(seen);
                shared.change(|index| (self.all)(index, Some(all)));
                self.done(shared, round);
            }
            Ok(Event::Apply(object)) => {
                let name = object.name_any();
                shared.change(|index| (self.one)(index, &name, Some(read(object))));
            }
            Ok(Event::Delete(object)) => shared.change(|index| (self.one)(index, &object.name_any(), None)),
            Err(error) => return self.complain(&error, shared, round),
        }
        false
    }

    fn complain(&self, error: &kube::runtime::watcher::Error, shared: &Shared, round: u64) -> bool {
        let (resource, without) = (self.resource, self.without);
        let Some(why) = refusal(error, "give the hub get, list and watch on it by a ClusterRole") else {
            tracing::warn!(resource, %error, "the watch of {resource} broke; trying again");
            return false;
        };
        tracing::error!(
            resource,
            "cannot watch {resource}: {why}; upgrade the chart with its definitions and rights. {without}"
        );
        self.unknown(shared, round);
        true
    }
}
