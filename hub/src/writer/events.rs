//! Events on rules (events.k8s.io), beside the path of the statuses: a slow API for Events delays nothing else.
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use super::within;
use crate::status::Notice;

/// Events that may wait.
pub const WAITING: usize = 256;

/// Publishes Events for ever; repeats are merged by the recorder. `instance` names this process.
pub async fn publish_events(client: Client, instance: String, mut events: mpsc::Receiver<(ObjectReference, Notice)>) {
    let reporter = Reporter { controller: "runnel.dev/hub".into(), instance: Some(instance) };
    let recorder = Recorder::new(client, reporter);
    while let Some((reference, notice)) = events.recv().await {
        let event = Event {
            type_: if notice.warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.as_str().to_owned(),
            note: Some(notice.message),
            action: "Distribute".to_owned(),
            secondary: None,
        };
        if let Err(error) = within(recorder.publish(&event, &reference)).await {
            tracing::debug!(rule = ?reference.name, %error, "cannot publish an Event");
        }
    }
}
