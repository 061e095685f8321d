//! Publishes Events (events.k8s.io). It is separate from the writes of statuses, so a slow API for
//! Events delays nothing else. Each occurrence is an Event of its own, so that `kubectl runnel
//! history` shows it. The number of Events per object and minute is bounded.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, CustomResourceExt, Resource};
use runnel_api::{COPY_COUNT, MemberCluster, limits};
use runnel_hub_core::rate_limit::{Rate, RateLimit, RateLimits};
use runnel_proto::model::clip;
use tokio::sync::mpsc;

use super::with_timeout;
use runnel_hub_core::status::{EventReason, Notice};

/// The limit of queued Events.
pub const WAITING: usize = 256;

/// The limit of the Events of one object about copies that were created or updated: an ordinary
/// edit costs one write of the status, and no more.
const EDITS_OF_OBJECT: Rate = Rate {
    burst: 4,
    every: Duration::from_secs(120),
};
/// The limit of the Events of one object in each other class.
const OF_OBJECT: Rate = Rate {
    burst: 10,
    every: Duration::from_secs(6),
};
/// The limit of the Events of all objects about copies that were created or updated.
const OF_EDITS: Rate = Rate {
    burst: 20,
    every: Duration::from_millis(500),
};
/// The limit of all other Events.
const OF_OTHERS: Rate = Rate {
    burst: 100,
    every: Duration::from_millis(100),
};

/// A class of Events, so that frequent ones do not displace others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Copies were created or updated.
    Edit,
    /// Something else was done to copies.
    Copies,
    /// The state of an object.
    State,
}

impl Class {
    fn of(notice: &Notice) -> Self {
        match notice.reason {
            EventReason::CopiesCreated | EventReason::CopiesUpdated => Self::Edit,
            _ if notice.copies.is_some() => Self::Copies,
            _ => Self::State,
        }
    }
}

/// Limits the number of Events.
struct Budget {
    objects: RateLimits<(String, Class)>,
    edited_objects: RateLimits<(String, Class)>,
    edits: RateLimit,
    others: RateLimit,
}

impl Budget {
    fn new() -> Self {
        Self {
            objects: RateLimits::new(OF_OBJECT),
            edited_objects: RateLimits::new(EDITS_OF_OBJECT),
            edits: RateLimit::new(OF_EDITS),
            others: RateLimit::new(OF_OTHERS),
        }
    }

    /// Counts an Event, if there is room for it.
    fn take(&mut self, regarding: &ObjectReference, notice: &Notice, now: Instant) -> bool {
        let object = regarding.uid.clone().or_else(|| regarding.name.clone());
        let key = (object.unwrap_or_default(), Class::of(notice));
        let (all, of_object) = match key.1 {
            Class::Edit => (&mut self.edits, &mut self.edited_objects),
            Class::Copies | Class::State => (&mut self.others, &mut self.objects),
        };
        all.room_at(now).is_none() && of_object.take(&key, now) && all.take(now)
    }
}

/// Publishes Events until the process ends. `instance` is the name of this process.
pub async fn publish_events(
    client: Client,
    instance: String,
    mut events: mpsc::Receiver<(ObjectReference, Notice)>,
) {
    let mut budget = Budget::new();
    while let Some((regarding, notice)) = events.recv().await {
        if !budget.take(&regarding, &notice, Instant::now()) {
            tracing::debug!(name = ?regarding.name, reason = %notice.reason, "too many Events: one is dropped");
            continue;
        }
        let event = event(regarding, notice, &instance, jiff::Timestamp::now());
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let params = PostParams::default();
        if let Err(error) = with_timeout(api.create(&params, &event)).await {
            tracing::debug!(name = ?event.metadata.name, %error, "cannot publish an Event");
        }
    }
}

fn event(
    regarding: ObjectReference,
    notice: Notice,
    instance: &str,
    now: jiff::Timestamp,
) -> Event {
    let member = |cluster: String| ObjectReference {
        api_version: Some(MemberCluster::api_resource().api_version),
        kind: Some(MemberCluster::kind(&()).into_owned()),
        name: Some(cluster),
        ..ObjectReference::default()
    };
    let name = regarding.name.clone().unwrap_or_default();
    // Events of an object without a namespace are in `default`.
    let namespace = regarding.namespace.clone();
    let copies = notice
        .copies
        .map(|copies| (COPY_COUNT.to_owned(), copies.to_string()));
    let metadata = ObjectMeta {
        name: Some(format!("{}.{:x}", clip(&name, NAME), now.as_nanosecond())),
        namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
        annotations: copies.map(|copies| BTreeMap::from([copies])),
        ..ObjectMeta::default()
    };
    Event {
        metadata,
        action: Some("Distribute".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(clip(&notice.message, limits::MESSAGE).to_owned()),
        reason: Some(notice.reason.as_str().to_owned()),
        regarding: Some(regarding),
        related: notice.cluster.map(|cluster| member(cluster.to_string())),
        reporting_controller: Some("runnel.dev/hub".to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(if notice.warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}

/// The most bytes of an object's name in the name of its Event.
const NAME: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(uid: &str) -> ObjectReference {
        ObjectReference {
            uid: Some(uid.to_owned()),
            name: Some("x".to_owned()),
            namespace: Some("shop".to_owned()),
            ..ObjectReference::default()
        }
    }

    fn removed(cluster: &str, copies: u64) -> Notice {
        Notice {
            cluster: Some(cluster.into()),
            copies: Some(copies),
            ..Notice::new(false, EventReason::CopiesRemoved, "x".repeat(2000))
        }
    }

    #[test]
    fn event_names_cluster_and_number_of_copies() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let event = event(rule("u"), removed("eu-1", 12), "hub-0", now);
        let value = serde_json::to_value(&event).unwrap();
        assert_eq!(
            (&value["related"]["kind"], &value["related"]["name"]),
            (&"MemberCluster".into(), &"eu-1".into())
        );
        assert_eq!(value["metadata"]["annotations"][COPY_COUNT], "12");
        assert_eq!(value["metadata"]["namespace"], "shop");
        assert_eq!(value["note"].as_str().unwrap().len(), limits::MESSAGE);
    }

    #[test]
    fn events_of_an_object_are_bounded() {
        let (mut budget, start) = (Budget::new(), Instant::now());
        let mut taken = (0, 0, 0);
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            for number in 0..1000 {
                let copies = removed(&format!("eu-{number}"), 1);
                let state = Notice {
                    copies: None,
                    ..copies.clone()
                };
                let edit = Notice {
                    reason: EventReason::CopiesUpdated,
                    ..copies.clone()
                };
                taken.0 += usize::from(budget.take(&rule("u"), &copies, now));
                taken.1 += usize::from(budget.take(&rule("u"), &state, now));
                taken.2 += usize::from(budget.take(&rule("u"), &edit, now));
            }
        }
        assert_eq!(taken, (19, 19, 4));
        let now = start + Duration::from_secs(60);
        let others = (0..1000).filter(|number| {
            let rule = rule(&number.to_string());
            budget.take(&rule, &removed("eu-1", 1), now)
        });
        assert_eq!(others.count(), 100, "the burst of all objects");
    }
}
