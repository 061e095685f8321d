//! The watches of sources, as metadata.
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::{DynamicResourceScope, ObjectMeta};
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt};
use runnel_proto::model::{Kind, Scope, SourceRef};
use serde::{Deserialize, Deserializer};
use tracing::Instrument;

use super::crd_deletion::{CrdMemory, DeletedCrdFilter};
use super::{
    PAGE, RelistingWatch, WatchHealth, events, failure, is_crd_unreadable, is_not_served, refusal,
};
use crate::hub_state::{HubState, until};
use crate::relist_barrier::Watched;
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::index::{Index, ScopeState, version_number};
use runnel_hub_core::plan::{WatchScope, is_never_a_source};

/// Minimum interval between lists of a kind that only new rules need.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the API resource of a kind.
pub fn api_resource(kind: &Kind) -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(&kind.group, &kind.version, &kind.kind),
        &kind.plural,
    )
}

/// Access to the objects of a kind in one namespace; `None`: to all of them, and to those of a kind without namespaces.
pub fn api_in<K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>>(
    client: Client,
    namespace: Option<&str>,
    kind: &Kind,
) -> Api<K> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &api_resource(kind)),
        None => Api::all_with(client, &api_resource(kind)),
    }
}

/// Watches the metadata of one kind in one scope. `crd` is what is known of the CRD of the kind.
pub(super) async fn watch_sources(
    client: Client,
    hub_state: Arc<HubState>,
    kind: Kind,
    place: WatchScope,
    crd: CrdMemory,
) {
    let span = tracing::info_span!(
        "watch",
        resource = &*kind.resource,
        namespace = place.listed_namespace()
    );
    follow(client, hub_state, kind, place, crd)
        .instrument(span)
        .await;
}

async fn follow(
    client: Client,
    hub_state: Arc<HubState>,
    kind: Kind,
    place: WatchScope,
    crd: CrdMemory,
) {
    let api: Api<SourceMeta> = api_in(client.clone(), place.listed_namespace(), &kind);
    let has_no_crd = Kind::by_resource(&kind.resource).is_some();
    let (resource, memory) = (kind.resource.clone(), crd.clone());
    let filter = DeletedCrdFilter::remembering(&crd, move || {
        memory.clone().read(client.clone(), resource.clone())
    });
    let mut events =
        RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), move || {
            let events = events(api.clone(), PAGE).boxed();
            if has_no_crd {
                events
            } else {
                filter.events(events)
            }
        });
    let patience = WatchHealth::new(Instant::now());
    let mut relist = hub_state.relist.subscribe();
    let (mut listed_at, mut relist_at) = (None, None);
    let mut watch = SourceWatch {
        hub_state,
        kind,
        place,
        crd,
        listed: BTreeSet::new(),
        round: events.round,
        patience,
    };
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = until(watch.patience.ends()) => {
                watch.stop_waiting();
                continue;
            }
            Ok(()) = relist.changed() => {
                relist_at.get_or_insert_with(|| listed_at.map_or_else(Instant::now, |at: Instant| at + MIN_LIST_INTERVAL));
                continue;
            }
            () = until(relist_at) => {
                events.relist_unrequested();
                watch.relist(events.round);
                (listed_at, relist_at) = (Some(Instant::now()), None);
                continue;
            }
        };
        let Some(event) = event else {
            watch.relist(events.round);
            continue;
        };
        // A refused watch is started again with a new list. Otherwise it would continue without an
        // event that it is back.
        if watch.observe(event) == WatchActivity::Refusal {
            tokio::select! {
                () = tokio::time::sleep(watch.patience.refusal_delay()) => {}
                _ = events.rounds.requested.changed() => {}
            }
            events.relist();
            watch.relist(events.round);
        }
    }
}

/// The right that a refused watch needs, and where to give it.
fn missing_right(place: &WatchScope) -> String {
    let resource = &place.resource;
    if place.is_cluster() {
        return format!("add {resource} to `sources.clusterKinds` of the hub's chart");
    }
    if Kind::by_resource(resource).is_none() {
        return format!("add {resource} to `sources.kinds` of the hub's chart");
    }
    match place.listed_namespace() {
        Some(namespace) => {
            format!(
                "give the hub's ServiceAccount get, list and watch on {resource} by a Role in the namespace {namespace}"
            )
        }
        None => format!(
            "give the hub's ServiceAccount get, list and watch on {resource} by a ClusterRole"
        ),
    }
}

#[derive(PartialEq, Eq)]
enum WatchActivity {
    Something,
    Refusal,
}

struct SourceWatch {
    hub_state: Arc<HubState>,
    kind: Kind,
    place: WatchScope,
    crd: CrdMemory,
    listed: BTreeSet<SourceRef>,
    round: u64,
    patience: WatchHealth,
}

impl SourceWatch {
    /// The watch starts again, in this round.
    fn relist(&mut self, round: u64) {
        self.listed.clear();
        if self.round != round {
            self.round = round;
            self.patience.begin(Instant::now());
            self.hub_state
                .change_quietly(|index| index.sources_mut().mark_stale(&self.place));
        }
    }

    fn received_all(&mut self) {
        self.patience.settle();
        self.hub_state
            .leadership
            .relist_barrier
            .done(Watched::Sources(self.place.clone()), self.round);
        self.hub_state.queues.to_read.wake();
        self.hub_state.leadership.progress.notify_one();
    }

    /// The list of this round is not waited for any longer: rules that need this place are stalled, and all others served.
    fn stop_waiting(&mut self) {
        let why = self.patience.error_message();
        tracing::error!(
            "cannot list {}: {why}; the rules that need it are stalled, and their copies are left unchanged",
            self.place
        );
        self.patience.stop_waiting();
        self.cannot_read(ScopeState::Unreadable(why));
    }

    fn cannot_read(&mut self, state: ScopeState) {
        self.hub_state.change(|index| {
            let mut effect = index.set_scope(self.place.clone(), state);
            effect.merge(index.invalidate_stale(&self.place));
            effect
        });
        self.received_all();
    }

    fn observe(
        &mut self,
        event: Result<Event<SourceMeta>, kube::runtime::watcher::Error>,
    ) -> WatchActivity {
        if self.patience.record(&event, Instant::now()) {
            tracing::info!("can watch {} again", self.place);
        }
        match event {
            Ok(Event::Init) => {
                self.listed.clear();
                self.crd.forget_lost();
            }
            Ok(Event::InitApply(object)) => {
                if let Some(source) = self.observe_object(&object, false) {
                    self.listed.insert(source);
                }
            }
            Ok(Event::InitDone) => {
                let seen = std::mem::take(&mut self.listed);
                self.hub_state.change_quietly(|index| {
                    index
                        .sources_mut()
                        .retain(&self.place, &seen, Instant::now())
                });
                self.hub_state.deadline_changed.notify_one();
                self.hub_state.change(|index| {
                    let mut effect = index.keep_lost(&self.place);
                    effect.merge(index.set_scope(self.place.clone(), ScopeState::Known));
                    effect
                });
                self.received_all();
            }
            Ok(Event::Apply(object)) => {
                self.observe_object(&object, true);
            }
            Ok(Event::Delete(object)) => {
                if let Some(source) = self.reference(&object) {
                    self.mark_deleted(&source);
                }
            }
            Err(error) => return self.log_watch_error(&error),
        }
        WatchActivity::Something
    }

    /// Whether a refusal counts: it is repeated, or there was no earlier state.
    fn is_refusal_confirmed(&mut self) -> bool {
        let known = matches!(
            self.hub_state.index.read().scopes().state(&self.place),
            ScopeState::Unreadable(_) | ScopeState::NotServed | ScopeState::Mismatched
        );
        self.patience.refused(Instant::now()) || known
    }

    fn reference(&self, object: &SourceMeta) -> Option<SourceRef> {
        let namespace = match self.kind.scope {
            Scope::Namespaced => object.namespace()?,
            Scope::Cluster => String::new(),
        };
        Some(SourceRef::new(
            &self.kind.resource,
            &namespace,
            &object.name_any(),
        ))
    }

    /// Stores the metadata of an existing object, and returns its name if it can be a source.
    /// `fresh`: the event follows the list, so the version is new.
    fn observe_object(&mut self, object: &SourceMeta, fresh: bool) -> Option<SourceRef> {
        let source = self.reference(object)?;
        let labels = object.labels();
        if is_never_a_source(&self.kind, &source.name, labels)
            || object.meta().deletion_timestamp.is_some()
        {
            self.mark_deleted(&source);
            return None;
        }
        let version = version_number(object.meta().resource_version.as_deref());
        let cause = || ChangeCause::of(ChangeKind::SourceChanged, source.to_string());
        let observe = |index: &mut Index| {
            let effect = index.observe(&source, version, labels.clone());
            if fresh && effect.read.contains(&source) {
                self.hub_state
                    .edits
                    .lock()
                    .entry(source.clone())
                    .or_insert_with(Instant::now);
            }
            effect
        };
        // What a list shows was there before.
        if fresh {
            self.hub_state.change_because(cause, observe);
        } else {
            self.hub_state.change(observe);
        }
        Some(source)
    }

    fn mark_deleted(&mut self, source: &SourceRef) {
        self.hub_state.edits.lock().remove(source);
        self.hub_state
            .change_quietly(|index| index.sources_mut().mark_deleted(source, Instant::now()));
        self.hub_state.deadline_changed.notify_one();
    }

    fn log_watch_error(&mut self, error: &kube::runtime::watcher::Error) -> WatchActivity {
        if is_not_served(error) || is_crd_unreadable(error) {
            self.hub_state
                .change_quietly(|index| index.sources_mut().mark_lost(&self.place));
        }
        if is_not_served(error) {
            self.hub_state.kind_missing.notify_one();
        }
        match refusal(error, &missing_right(&self.place)) {
            Some(_) if !self.is_refusal_confirmed() => WatchActivity::Refusal,
            Some(why) => {
                if self.patience.is_news(&why) {
                    tracing::error!(
                        "cannot watch {}: {why}; the rules that need it are stalled, and their copies are left unchanged",
                        self.place
                    );
                }
                self.cannot_read(if is_not_served(error) {
                    ScopeState::NotServed
                } else {
                    ScopeState::Unreadable(why)
                });
                WatchActivity::Refusal
            }
            None => {
                let why = failure(error);
                if self.patience.is_news(&why) {
                    tracing::warn!(%error, "watch of sources failed; retrying");
                }
                self.patience.failed(why);
                WatchActivity::Something
            }
        }
    }
}

/// The metadata of an object without annotations and `managedFields`. A user who may create an
/// object can give it some megabytes of both, and parsed they take a multiple of that: they are
/// skipped.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SourceMeta {
    #[serde(deserialize_with = "retained_metadata")]
    metadata: ObjectMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RetainedMetadata {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<Time>,
}

fn retained_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let RetainedMetadata {
        name,
        namespace,
        resource_version,
        labels,
        deletion_timestamp,
    } = RetainedMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        resource_version,
        labels,
        deletion_timestamp,
        ..ObjectMeta::default()
    })
}

impl Resource for SourceMeta {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn metadata_api() -> bool {
        true
    }

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(kind)
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(kind)
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(kind)
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;
    use serde_json::json;

    #[test]
    fn metadata_of_a_source_is_read_without_annotations() {
        let object = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {
                "name": "a", "namespace": "team", "uid": "u", "resourceVersion": "7", "labels": {"app": "x"},
                "annotations": {"note": "large"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {}}}],
            },
        });
        let read: SourceMeta = serde_json::from_value(object).unwrap();
        assert_eq!(
            (read.name_any(), read.namespace(), read.resource_version()),
            ("a".into(), Some("team".into()), Some("7".into()))
        );
        assert_eq!(read.labels().get("app").map(String::as_str), Some("x"));
        assert!(read.metadata.deletion_timestamp.is_some());
        assert!(read.annotations().is_empty() && read.managed_fields().is_empty());
        assert!(SourceMeta::metadata_api());
    }
}
