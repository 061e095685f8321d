//! The watches of sources, as metadata.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use runnel_proto::model::{Kind, SourceRef};

use super::{events, refusal};
use crate::index::KindState;
use crate::plan::{Body, is_never_a_source};
use crate::shared::Shared;

type Metadata = PartialObjectMeta<DynamicObject>;

/// How the API server calls a kind.
pub(super) fn api_resource(kind: &Kind) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(kind.group, kind.version, kind.kind), kind.plural)
}

/// Watches the metadata of one kind for ever, from the moment that some rule needs it.
pub async fn watch_sources(client: Client, shared: Arc<Shared>, kind: &'static Kind) {
    let mut needed = shared.needed.subscribe();
    if needed.wait_for(|needed| needed.contains(kind.resource)).await.is_err() {
        return;
    }
    let api: Api<Metadata> = Api::all_with(client, &api_resource(kind));
    let mut watch = SourceWatch { shared, kind, versions: BTreeMap::new(), seen: BTreeSet::new() };
    let mut events = std::pin::pin!(events(api));
    while let Some(event) = events.next().await {
        watch.take_in(event);
    }
}

struct SourceWatch {
    shared: Arc<Shared>,
    kind: &'static Kind,
    /// The versions that were seen, so that a new list does not mean to read everything again.
    versions: BTreeMap<SourceRef, String>,
    seen: BTreeSet<SourceRef>,
}

impl SourceWatch {
    fn take_in(&mut self, event: Result<Event<Metadata>, kube::runtime::watcher::Error>) {
        match event {
            Ok(Event::Init) => self.seen.clear(),
            Ok(Event::InitApply(object)) => {
                if let Some(source) = self.seen_now(&object) {
                    self.seen.insert(source);
                }
            }
            Ok(Event::InitDone) => {
                let seen = std::mem::take(&mut self.seen);
                self.versions.retain(|source, _| seen.contains(source));
                self.shared.index.write().retain_sources(self.kind.resource, &seen, Instant::now());
                self.shared.vanished.notify_one();
                self.shared.change(|index| index.set_kind(self.kind.resource, KindState::Known));
                self.shared.progress.notify_one();
            }
            Ok(Event::Apply(object)) => {
                self.seen_now(&object);
            }
            Ok(Event::Delete(object)) => {
                if let Some(source) = self.reference(&object) {
                    self.vanish(&source);
                }
            }
            Err(error) => self.complain(&error),
        }
    }

    fn reference(&self, object: &Metadata) -> Option<SourceRef> {
        Some(SourceRef::new(self.kind.resource, &object.namespace()?, &object.name_any()))
    }

    /// Takes in an object that is there, and returns its name if it can be a source.
    fn seen_now(&mut self, object: &Metadata) -> Option<SourceRef> {
        let source = self.reference(object)?;
        let labels = object.labels();
        let namespace = &self.shared.settings.namespace;
        if is_never_a_source(self.kind, &source.namespace, &source.name, labels, namespace)
            || object.metadata.deletion_timestamp.is_some()
        {
            self.vanish(&source);
            return None;
        }
        let version = object.resource_version().unwrap_or_default();
        let known_version = self.versions.insert(source.clone(), version.clone()) == Some(version);
        let index = self.shared.index.read();
        let selected = index.is_selected(&source, labels);
        let known = index.source(&source).map(|known| matches!(known.body, Body::Read(_) | Body::Refused(_)));
        drop(index);
        if known.is_none() {
            // From the first look on the plan says that it is there and unread: a source that only the agents know of
            // would count as gone.
            self.shared.change(|index| index.set_source(source.clone(), labels.clone(), None));
        } else if selected && !(known_version && known == Some(true)) {
            // Labels and content are taken in together, once the content has been read.
            self.shared.to_read.add([source.clone()]);
        } else {
            self.shared.change(|index| index.set_source(source.clone(), labels.clone(), None));
        }
        Some(source)
    }

    fn vanish(&mut self, source: &SourceRef) {
        self.versions.remove(source);
        self.shared.index.write().vanish_source(source, Instant::now());
        self.shared.vanished.notify_one();
    }

    fn complain(&self, error: &kube::runtime::watcher::Error) {
        let resource = self.kind.resource;
        match refusal(error) {
            Some(why) => {
                tracing::error!(
                    resource,
                    "cannot watch {resource}: {why}; the rules that need it are stalled, their copies stay"
                );
                self.shared.change(|index| index.set_kind(resource, KindState::Unreadable(why)));
                self.shared.progress.notify_one();
            }
            None => tracing::warn!(resource, %error, "the watch of sources broke; trying again"),
        }
    }
}
