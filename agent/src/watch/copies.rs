//! Watches the copies of one area: the objects with our hub's label. Each is reduced here; of its content only what a
//! list shows of intact copies goes further, into the bounded cache.
use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use runnel_proto::model::{HUB_LABEL, Kind};
use tokio::sync::mpsc;

use super::{WATCH_SECONDS, cure, status};
use crate::apply::resource;
use crate::classify;
use crate::core::Event;
use crate::live;
use crate::policy::Area;
use crate::seal::Sealer;

/// Whole objects come in pages of this many, so that a list of large Secrets fits into little memory.
const PAGE: u32 = 100;

/// How long to wait before a refused watch is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// Watches the copies of an area until the receiver is gone.
pub async fn copies(client: Client, area: Area, sealer: Sealer, events: mpsc::Sender<Event>) {
    let Some(kind) = Kind::by_resource(area.resource) else { return };
    let api: Api<DynamicObject> = match &area.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource(kind)),
        None => Api::all_with(client, &resource(kind)),
    };
    let config = watcher::Config::default()
        .labels(&format!("{HUB_LABEL}={}", sealer.hub()))
        .page_size(PAGE)
        .timeout(WATCH_SECONDS);
    let mut watch = Watch { kind, area, sealer, events, refused: false };
    loop {
        let stream = watcher(api.clone(), config.clone()).default_backoff();
        if watch.follow(stream).await == Followed::ToTheEnd {
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

struct Watch {
    kind: &'static Kind,
    area: Area,
    sealer: Sealer,
    events: mpsc::Sender<Event>,
    /// The last try was refused: that has been said.
    refused: bool,
}

impl Watch {
    async fn follow(
        &mut self,
        stream: impl Stream<Item = Result<watcher::Event<DynamicObject>, watcher::Error>>,
    ) -> Followed {
        let mut stream = std::pin::pin!(stream);
        let kind = self.kind;
        while let Some(next) = stream.next().await {
            let event = match next {
                Ok(watcher::Event::Init) => Some(Event::CopiesListed(self.area.clone())),
                Ok(watcher::Event::InitDone) => {
                    self.refused = false;
                    Some(Event::CopiesComplete(self.area.clone()))
                }
                Ok(watcher::Event::InitApply(object)) => {
                    let reduced = live::reduce(kind, &object, &self.sealer);
                    // After a restart this may be the only place where the content is, as long as the hub is away.
                    let seen = reduced.as_ref().and_then(|(_, live)| live::learn(kind, &object, live));
                    if let Some(seen) = seen
                        && self.events.send(Event::Content(seen)).await.is_err()
                    {
                        return Followed::ToTheEnd;
                    }
                    reduced.map(|(copy, live)| Event::Copy(copy, live))
                }
                Ok(watcher::Event::Apply(object)) => {
                    live::reduce(kind, &object, &self.sealer).map(|(copy, live)| Event::Copy(copy, live))
                }
                Ok(watcher::Event::Delete(object)) => {
                    live::reduce(kind, &object, &self.sealer).map(|(copy, live)| Event::CopyGone(copy, live.uid))
                }
                Err(error) => self.failed(&error),
            };
            let refused = matches!(event, Some(Event::CopiesForbidden(..)));
            if let Some(event) = event
                && self.events.send(event).await.is_err()
            {
                return Followed::ToTheEnd;
            }
            if refused {
                return Followed::Refused;
            }
        }
        Followed::ToTheEnd
    }

    /// Says why the watch failed: a missing right once, as it may stay missing for long.
    fn failed(&mut self, error: &watcher::Error) -> Option<Event> {
        let status = status(error);
        let code = status.map_or(0, |status| status.code);
        let namespace = self.area.namespace.as_deref().unwrap_or("*");
        let Some(status) = status.filter(|status| status.code == 403) else {
            let resource = self.area.resource;
            tracing::warn!(resource, namespace, status = code, "watching copies failed; trying again: {}", cure(code));
            return None;
        };
        let trouble = classify::refused_watch(status, &self.area);
        if !std::mem::replace(&mut self.refused, true) {
            let resource = self.area.resource;
            tracing::warn!(resource, namespace, "copies cannot be watched here yet: {}", trouble.message);
        }
        Some(Event::CopiesForbidden(self.area.clone(), trouble))
    }
}
