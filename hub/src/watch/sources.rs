//! The watches of sources, as metadata.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use runnel_proto::model::{Kind, SourceRef};

use super::{Anew, events, refusal};
use crate::index::{PlaceState, version_number};
use crate::plan::{Place, is_never_a_source};
use crate::rounds::Watched;
use crate::shared::Shared;

/// How long to wait before a refused watch is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

type Metadata = PartialObjectMeta<DynamicObject>;

/// How the API server calls a kind.
pub fn api_resource(kind: &Kind) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(kind.group, kind.version, kind.kind), kind.plural)
}

/// Watches the metadata of one kind in one place for ever, from the moment that some rule looks for sources there.
pub async fn watch_sources(client: Client, shared: Arc<Shared>, kind: &'static Kind, place: Place) {
    let mut needed = shared.needed.subscribe();
    if needed.wait_for(|needed| needed.contains(&place)).await.is_err() {
        return;
    }
    let api: Api<Metadata> = match &place.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &api_resource(kind)),
        None => Api::all_with(client, &api_resource(kind)),
    };
    let mut events = Anew::new(shared.rounds.subscribe(), move || events(api.clone()).boxed());
    let mut watch = SourceWatch { shared, kind, place, seen: BTreeSet::new(), round: events.round };
    loop {
        let Some(event) = events.next().await else {
            watch.anew(events.round);
            continue;
        };
        // A refused watch is begun anew, with a new list: it would go on where it stopped without saying that it is back.
        if watch.take_in(event) == Heard::Refusal {
            tokio::select! {
                () = tokio::time::sleep(AFTER_REFUSAL) => {}
                _ = events.rounds.asked.changed() => {}
            }
            events.again();
            watch.anew(events.round);
        }
    }
}

/// The right that a refused watch needs, and where to give it.
fn missing_right(place: &Place) -> String {
    let resource = place.resource;
    match &place.namespace {
        Some(namespace) => {
            format!(
                "give the hub's ServiceAccount get, list and watch on {resource} by a Role in the namespace {namespace}"
            )
        }
        None => format!("give the hub's ServiceAccount get, list and watch on {resource} by a ClusterRole"),
    }
}

#[derive(PartialEq, Eq)]
enum Heard {
    Something,
    Refusal,
}

struct SourceWatch {
    shared: Arc<Shared>,
    kind: &'static Kind,
    place: Place,
    seen: BTreeSet<SourceRef>,
    round: u64,
}

impl SourceWatch {
    /// The watch begins anew, in this round.
    fn anew(&mut self, round: u64) {
        self.seen.clear();
        if self.round != round {
            self.round = round;
            self.shared.index.write().doubt(&self.place);
        }
    }

    fn heard_all(&self) {
        self.shared.rounds.done(Watched::Sources(self.place.clone()), self.round);
        self.shared.progress.notify_one();
    }

    fn take_in(&mut self, event: Result<Event<Metadata>, kube::runtime::watcher::Error>) -> Heard {
        match event {
            Ok(Event::Init) => self.seen.clear(),
            Ok(Event::InitApply(object)) => {
                if let Some(source) = self.seen_now(&object, false) {
                    self.seen.insert(source);
                }
            }
            Ok(Event::InitDone) => {
                let seen = std::mem::take(&mut self.seen);
                self.shared.index.write().retain_sources(&self.place, &seen, Instant::now());
                self.shared.vanished.notify_one();
                self.shared.change(|index| index.set_place(self.place.clone(), PlaceState::Known));
                self.heard_all();
            }
            Ok(Event::Apply(object)) => {
                self.seen_now(&object, true);
            }
            Ok(Event::Delete(object)) => {
                if let Some(source) = self.reference(&object) {
                    self.vanish(&source);
                }
            }
            Err(error) => return self.complain(&error),
        }
        Heard::Something
    }

    fn reference(&self, object: &Metadata) -> Option<SourceRef> {
        Some(SourceRef::new(self.kind.resource, &object.namespace()?, &object.name_any()))
    }

    /// Takes in an object that is there, and returns its name if it can be a source. What a list shows may have been
    /// written at any time; what comes afterwards is `fresh`.
    fn seen_now(&mut self, object: &Metadata, fresh: bool) -> Option<SourceRef> {
        let source = self.reference(object)?;
        let labels = object.labels();
        if is_never_a_source(self.kind, &source.name, labels) || object.metadata.deletion_timestamp.is_some() {
            self.vanish(&source);
            return None;
        }
        let version = version_number(object.metadata.resource_version.as_deref());
        self.shared.change(|index| {
            let effect = index.saw(&source, version, labels.clone());
            if fresh && effect.read.contains(&source) {
                self.shared.edits.lock().entry(source.clone()).or_insert_with(Instant::now);
            }
            effect
        });
        Some(source)
    }

    fn vanish(&mut self, source: &SourceRef) {
        self.shared.edits.lock().remove(source);
        self.shared.index.write().vanish_source(source, Instant::now());
        self.shared.vanished.notify_one();
    }

    fn complain(&self, error: &kube::runtime::watcher::Error) -> Heard {
        let resource = self.kind.resource;
        match refusal(error, &missing_right(&self.place)) {
            Some(why) => {
                tracing::error!(
                    resource,
                    "cannot watch {}: {why}; the rules that need it are stalled, their copies stay",
                    self.place
                );
                self.shared.change(|index| {
                    let mut effect = index.set_place(self.place.clone(), PlaceState::Unreadable(why));
                    effect.merge(index.disbelieve(&self.place));
                    effect
                });
                self.heard_all();
                Heard::Refusal
            }
            None => {
                tracing::warn!(resource, namespace = self.place.namespace.as_deref(), %error, "the watch of sources broke; trying again");
                Heard::Something
            }
        }
    }
}
