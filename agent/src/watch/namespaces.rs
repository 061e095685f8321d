//! Watches namespaces: their labels, their deletion, and whether they accept copies.
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::core::{PartialObjectMeta, Resource, Status};
use runnel_proto::model::{INBOUND_ANNOTATION, NAMESPACES};
use runnel_transport::ops::Liveness;
use tokio::sync::{Semaphore, mpsc};

use super::HEARTBEAT_SECONDS;
use super::follow::{Follow, Source};
use runnel_agent_core::desired;
use runnel_agent_core::reconciler::{Event, WatchScope};

/// The value of the annotation that allows copies, as a missing annotation does. Any other value
/// denies them, because a mistyped `deny` must not let Secrets in.
const ALLOW: &str = "allow";

/// Watches namespaces until the receiver is dropped.
pub async fn namespaces(client: Client, liveness: Liveness, events: mpsc::Sender<Event>) {
    let (path, pages) = (Namespace::url_path(&(), None), Arc::new(Semaphore::new(1)));
    let mut follow = Follow::new(client, path, Namespaces, events, pages, HEARTBEAT_SECONDS);
    follow.metadata = true;
    follow.part = Some(liveness.part("watch of namespaces"));
    follow.run().await;
}

struct Namespaces;

impl Source for Namespaces {
    type Object = PartialObjectMeta<Namespace>;

    fn list_started(&self) -> Event {
        Event::NamespacesListed
    }

    fn object_events(&self, object: Self::Object, _: bool) -> Vec<Event> {
        namespace_event(object).into_iter().collect()
    }

    fn deletion_event(&self, object: Self::Object) -> Option<Event> {
        object
            .metadata
            .name
            .map(|name| Event::NamespaceDeleted(name.into()))
    }

    fn complete(&self) -> Event {
        Event::NamespacesComplete
    }

    fn forbidden(&self, status: &Status) -> Event {
        Event::WatchLost(WatchScope::Namespaces, status.code)
    }

    fn lost(&self, status: u16) -> Event {
        Event::WatchLost(WatchScope::Namespaces, status)
    }

    fn resumed(&self) -> Event {
        Event::WatchResumed(WatchScope::Namespaces)
    }

    fn version(object: &Self::Object) -> Option<&str> {
        object.metadata.resource_version.as_deref()
    }

    fn object_name(object: &Self::Object) -> Option<&str> {
        object.metadata.name.as_deref()
    }

    fn name(&self) -> (&str, Option<&str>) {
        (NAMESPACES, None)
    }
}

fn namespace_event(object: PartialObjectMeta<Namespace>) -> Option<Event> {
    let name: Arc<str> = object.metadata.name?.into();
    let terminating = object.metadata.deletion_timestamp.is_some();
    let inbound = object
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(INBOUND_ANNOTATION));
    let refuses = inbound.is_some_and(|value| value != ALLOW);
    let labels = object.metadata.labels.unwrap_or_default();
    Some(Event::Namespace(
        name,
        desired::Namespace {
            labels,
            terminating,
            refuses,
        },
    ))
}

#[cfg(test)]
#[path = "namespaces_tests.rs"]
mod tests;
