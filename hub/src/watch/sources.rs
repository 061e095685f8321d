//! The watches of sources, as metadata.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use runnel_proto::model::{Kind, SourceRef};

use super::{events, refusal};
use crate::index::{KindState, version_number};
use crate::plan::is_never_a_source;
use crate::shared::Shared;

/// How long to wait before a refused watch is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

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
    let mut watch = SourceWatch { shared, kind, seen: BTreeSet::new() };
    loop {
        let mut events = std::pin::pin!(events(api.clone()));
        // A refused watch is begun anew, with a new list: it would go on where it stopped without saying that it is back.
        while let Some(event) = events.next().await {
            if watch.take_in(event) == Heard::Refusal {
                break;
            }
        }
        tokio::time::sleep(AFTER_REFUSAL).await;
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
    seen: BTreeSet<SourceRef>,
}

impl SourceWatch {
    fn take_in(&mut self, event: Result<Event<Metadata>, kube::runtime::watcher::Error>) -> Heard {
        match event {
            Ok(Event::Init) => self.seen.clear(),
            Ok(Event::InitApply(object)) => {
                if let Some(source) = self.seen_now(&object) {
                    self.seen.insert(source);
                }
            }
            Ok(Event::InitDone) => {
                let seen = std::mem::take(&mut self.seen);
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
            Err(error) => return self.complain(&error),
        }
        Heard::Something
    }

    fn reference(&self, object: &Metadata) -> Option<SourceRef> {
        Some(SourceRef::new(self.kind.resource, &object.namespace()?, &object.name_any()))
    }

    /// Takes in an object that is there, and returns its name if it can be a source.
    fn seen_now(&mut self, object: &Metadata) -> Option<SourceRef> {
        let source = self.reference(object)?;
        let labels = object.labels();
        if is_never_a_source(self.kind, &source.name, labels) || object.metadata.deletion_timestamp.is_some() {
            self.vanish(&source);
            return None;
        }
        let version = version_number(object.metadata.resource_version.as_deref());
        self.shared.change(|index| index.saw(&source, version, labels.clone()));
        Some(source)
    }

    fn vanish(&mut self, source: &SourceRef) {
        self.shared.index.write().vanish_source(source, Instant::now());
        self.shared.vanished.notify_one();
    }

    fn complain(&self, error: &kube::runtime::watcher::Error) -> Heard {
        let resource = self.kind.resource;
        match refusal(error) {
            Some(why) => {
                tracing::error!(
                    resource,
                    "cannot watch {resource}: {why}; the rules that need it are stalled, their copies stay"
                );
                self.shared.change(|index| index.set_kind(resource, KindState::Unreadable(why)));
                self.shared.progress.notify_one();
                Heard::Refusal
            }
            None => {
                tracing::warn!(resource, %error, "the watch of sources broke; trying again");
                Heard::Something
            }
        }
    }
}
