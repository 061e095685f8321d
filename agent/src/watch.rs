//! Watches: copies by kind (those with our hub's label), and namespaces. Each object is reduced here; of its content
//! only what a list shows of intact copies goes further, into the bounded cache.
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use runnel_proto::model::{HUB_LABEL, Kind};
use tokio::sync::mpsc;

use crate::apply::resource;
use crate::core::Event;
use crate::desired;
use crate::live;
use crate::seal::Sealer;

/// Whole objects come in pages of this many, so that a list of large Secrets fits into little memory.
const PAGE: u32 = 100;

/// How long to wait before a refused watch is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// Watches the copies of a kind until the receiver is gone.
pub async fn copies(client: Client, kind: &'static Kind, sealer: Sealer, events: mpsc::Sender<Event>) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let config = watcher::Config::default().labels(&format!("{HUB_LABEL}={}", sealer.hub())).page_size(PAGE);
    loop {
        let stream = watcher(api.clone(), config.clone()).default_backoff();
        if follow_copies(stream, kind, &sealer, &events).await == Followed::ToTheEnd {
            return;
        }
        // Begun anew, with a list: a watch that was refused would go on where it stopped without saying that it is back.
        tokio::time::sleep(AFTER_REFUSAL).await;
    }
}

#[derive(PartialEq, Eq)]
enum Followed {
    ToTheEnd,
    Refused,
}

async fn follow_copies(
    stream: impl Stream<Item = Result<watcher::Event<DynamicObject>, watcher::Error>>,
    kind: &'static Kind,
    sealer: &Sealer,
    events: &mpsc::Sender<Event>,
) -> Followed {
    let mut stream = std::pin::pin!(stream);
    while let Some(next) = stream.next().await {
        let event = match next {
            Ok(watcher::Event::Init) => Some(Event::CopiesListed(kind.resource)),
            Ok(watcher::Event::InitDone) => Some(Event::CopiesComplete(kind.resource)),
            Ok(watcher::Event::InitApply(object)) => {
                let reduced = live::reduce(kind, &object, sealer);
                // After a restart this may be the only place where the content is, as long as the hub is away.
                let seen = reduced.as_ref().and_then(|(_, live)| live::learn(kind, &object, live));
                if let Some(seen) = seen
                    && events.send(Event::Content(seen)).await.is_err()
                {
                    return Followed::ToTheEnd;
                }
                reduced.map(|(copy, live)| Event::Copy(copy, live))
            }
            Ok(watcher::Event::Apply(object)) => {
                live::reduce(kind, &object, sealer).map(|(copy, live)| Event::Copy(copy, live))
            }
            Ok(watcher::Event::Delete(object)) => {
                live::reduce(kind, &object, sealer).map(|(copy, live)| Event::CopyGone(copy, live.uid))
            }
            Err(error) => {
                let code = code(&error);
                tracing::warn!(
                    kind = kind.resource,
                    status = code,
                    "watching copies failed; trying again: {}",
                    cure(code)
                );
                (code == 403).then_some(Event::CopiesForbidden(kind.resource))
            }
        };
        let refused = matches!(event, Some(Event::CopiesForbidden(_)));
        if let Some(event) = event
            && events.send(event).await.is_err()
        {
            return Followed::ToTheEnd;
        }
        if refused {
            return Followed::Refused;
        }
    }
    Followed::ToTheEnd
}

/// Watches namespaces until the receiver is gone.
pub async fn namespaces(client: Client, events: mpsc::Sender<Event>) {
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
    let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(next) = stream.next().await {
        let event = match next {
            Ok(watcher::Event::Init) => Some(Event::NamespacesListed),
            Ok(watcher::Event::InitDone) => Some(Event::NamespacesComplete),
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => seen(object),
            Ok(watcher::Event::Delete(object)) => object.metadata.name.map(|name| Event::NamespaceGone(name.into())),
            Err(error) => {
                let code = code(&error);
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
    let labels = object.metadata.labels.unwrap_or_default();
    Some(Event::Namespace(name, desired::Namespace { labels, terminating }))
}

/// The status of a failed watch, 0 for none. The error's text is not used: it may quote an object.
fn code(error: &watcher::Error) -> u16 {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code,
        _ => 0,
    }
}

fn cure(code: u16) -> &'static str {
    match code {
        0 => "the API server does not answer",
        401 => "the API server does not accept the agent's credentials",
        403 => "grant the agent the rights of its ClusterRole",
        410 => "the watch was too old and begins anew",
        _ => "see the API server's log",
    }
}
