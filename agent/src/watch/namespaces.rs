//! Watches namespaces: their labels, whether they stay, and whether they take copies.
use std::sync::Arc;

use futures::stream::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use runnel_proto::model::INBOUND_ANNOTATION;
use tokio::sync::mpsc;

use super::{WATCH_SECONDS, cure, status};
use crate::core::Event;
use crate::desired;

/// The value of the annotation that lets copies in, as its absence does. Any other refuses: who mistypes `deny` did not
/// mean to let Secrets in.
const ALLOW: &str = "allow";

/// Watches namespaces until the receiver is gone.
pub async fn namespaces(client: Client, events: mpsc::Sender<Event>) {
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
    let mut stream = std::pin::pin!(watcher(api, watcher::Config::default().timeout(WATCH_SECONDS)).default_backoff());
    while let Some(next) = stream.next().await {
        let event = match next {
            Ok(watcher::Event::Init) => Some(Event::NamespacesListed),
            Ok(watcher::Event::InitDone) => Some(Event::NamespacesComplete),
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => seen(object),
            Ok(watcher::Event::Delete(object)) => object.metadata.name.map(|name| Event::NamespaceGone(name.into())),
            Err(error) => {
                let code = status(&error).map_or(0, |status| status.code);
                tracing::warn!(status = code, "watching namespaces failed; trying again: {}", cure(code));
                None
            }
        };
        if let Some(event) = event
            && events.send(event).await.is_err()
        {
            return;
        }
    }
}

fn seen(object: PartialObjectMeta<Namespace>) -> Option<Event> {
    let name: Arc<str> = object.metadata.name?.into();
    let terminating = object.metadata.deletion_timestamp.is_some();
    let inbound = object.metadata.annotations.as_ref().and_then(|annotations| annotations.get(INBOUND_ANNOTATION));
    let refuses = inbound.is_some_and(|value| value != ALLOW);
    let labels = object.metadata.labels.unwrap_or_default();
    Some(Event::Namespace(name, desired::Namespace { labels, terminating, refuses }))
}
