//! Publishes Events on rules (events.k8s.io). It is separate from the writes of statuses, so a slow
//! API for Events delays nothing else.
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use super::within;
use runnel_hub_core::status::Notice;

/// The limit of queued Events.
pub const WAITING: usize = 256;

/// The limit of stored notes, by which a repeat is distinguished from a new note.
const NOTES: usize = 4096;

/// The last note under each reason of each object.
#[derive(Default)]
struct Notes(BTreeMap<(String, &'static str), String>);

impl Notes {
    /// Stores a note. Returns whether it replaces a different one. The recorder keeps the first
    /// note of an Event that is repeated.
    fn replaces(&mut self, reference: &ObjectReference, notice: &Notice) -> bool {
        if self.0.len() >= NOTES {
            self.0.clear();
        }
        let object = reference
            .uid
            .clone()
            .or_else(|| reference.name.clone())
            .unwrap_or_default();
        let before = self
            .0
            .insert((object, notice.reason.as_str()), notice.message.clone());
        before.is_some_and(|before| before != notice.message)
    }
}

/// Publishes Events until the process ends. The recorder merges repeats; a different note becomes
/// an Event of its own. `instance` is the name of this process.
pub async fn publish_events(
    client: Client,
    instance: String,
    mut events: mpsc::Receiver<(ObjectReference, Notice)>,
) {
    let reporter = Reporter {
        controller: "runnel.dev/hub".into(),
        instance: Some(instance),
    };
    let mut recorder = Recorder::new(client.clone(), reporter.clone());
    let mut notes = Notes::default();
    while let Some((reference, notice)) = events.recv().await {
        if notes.replaces(&reference, &notice) {
            // A new recorder starts a new series for every Event.
            recorder = Recorder::new(client.clone(), reporter.clone());
        }
        let event = Event {
            type_: if notice.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
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

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_hub_core::status::EventReason;

    #[test]
    fn lost_cluster_with_another_name_is_an_event_of_its_own() {
        let rule = |uid: &str| ObjectReference {
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let lost = |cluster: &str| Notice {
            warning: true,
            reason: EventReason::ClusterLost,
            message: format!("cluster {cluster} is not connected"),
        };
        let mut notes = Notes::default();
        let mut replaces = |uid, cluster| notes.replaces(&rule(uid), &lost(cluster));
        assert!(!replaces("r1", "eu-1"));
        assert!(!replaces("r1", "eu-1"), "a repeat");
        assert!(replaces("r1", "eu-2") && replaces("r1", "eu-1"));
        assert!(!replaces("r2", "eu-2"), "another rule");
        for number in 0..3 * NOTES {
            notes.replaces(&rule(&number.to_string()), &lost("eu-1"));
        }
        assert!(notes.0.len() <= NOTES);
    }
}
