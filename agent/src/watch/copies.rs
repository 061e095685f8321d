//! Watches the copies of one area: the objects with our hub's label. It reduces each object. Only
//! the content of listed, intact copies is kept, in the bounded cache.
use std::sync::Arc;

use kube::Client;
use kube::api::DynamicObject;
use kube::core::{Resource, Status};
use runnel_proto::model::{HUB_LABEL, Kind};
use tokio::sync::{Semaphore, mpsc};

use super::WATCH_SECONDS;
use super::follow::{Follow, Source};
use crate::apply::resource;
use runnel_agent_core::classify;
use runnel_agent_core::live;
use runnel_agent_core::policy::Area;
use runnel_agent_core::reconciler::{Event, WatchScope};
use runnel_agent_core::seal::Sealer;

/// Watches the copies of an area until the receiver is dropped. `pages` limits the pages of the
/// kind that are read at once.
pub async fn copies(
    client: Client,
    area: Area,
    sealer: Sealer,
    events: mpsc::Sender<Event>,
    pages: Arc<Semaphore>,
) {
    let Some(kind) = Kind::by_resource(area.resource) else {
        return;
    };
    let path = DynamicObject::url_path(&resource(kind), area.namespace.as_deref());
    let labels = format!("{HUB_LABEL}={}", sealer.hub());
    let mut follow = Follow::new(
        client,
        path,
        Copies { kind, area, sealer },
        events,
        pages,
        WATCH_SECONDS,
    );
    follow.labels = Some(labels);
    follow.run().await;
}

struct Copies {
    kind: &'static Kind,
    area: Area,
    sealer: Sealer,
}

impl Copies {
    fn scope(&self) -> WatchScope {
        WatchScope::Copies(self.area.clone())
    }
}

impl Source for Copies {
    type Object = DynamicObject;

    fn list_started(&self) -> Event {
        Event::CopiesListed(self.area.clone())
    }

    fn object_events(&self, object: DynamicObject, listed: bool) -> Vec<Event> {
        let Some((copy, live)) = live::reduce(self.kind, &object, &self.sealer) else {
            return vec![];
        };
        // After a restart, the copy may be the only source of the content while the hub is
        // unreachable.
        let content = if listed {
            live::learn(self.kind, &object, &live)
        } else {
            None
        };
        content
            .map(Event::Content)
            .into_iter()
            .chain([Event::Copy(copy, live)])
            .collect()
    }

    fn deletion_event(&self, object: DynamicObject) -> Option<Event> {
        live::reduce(self.kind, &object, &self.sealer)
            .map(|(copy, live)| Event::CopyDeleted(copy, live.uid))
    }

    fn complete(&self) -> Event {
        Event::CopiesComplete(self.area.clone())
    }

    fn forbidden(&self, status: &Status) -> Event {
        Event::CopiesForbidden(
            self.area.clone(),
            classify::refused_watch(status, &self.area),
        )
    }

    fn lost(&self, status: u16) -> Event {
        Event::WatchLost(self.scope(), status)
    }

    fn resumed(&self) -> Event {
        Event::WatchResumed(self.scope())
    }

    fn version(object: &DynamicObject) -> Option<&str> {
        object.metadata.resource_version.as_deref()
    }

    fn name(&self) -> (&'static str, Option<&str>) {
        (self.area.resource, self.area.namespace.as_deref())
    }
}
