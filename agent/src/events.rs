//! Writes Kubernetes Events for copies, for people in the member cluster. Best effort, rate
//! limited, without content.
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use runnel_proto::closed_list;
use runnel_proto::model::{Reason, SourceRef};
use tokio::sync::mpsc;

use crate::kinds::KindRegistry;
use runnel_agent_core::managed_fields::FIELD_MANAGER;
use runnel_agent_core::reconciler::Notice;

closed_list! {
    /// The reason of an Event for a copy.
    pub enum EventReason {
        /// Another client changed or deleted the copy, and the agent has corrected it.
        DriftCorrected,
        /// An object that was not ours has been overwritten, as the rule requires.
        Overwritten,
        /// The copy could not be changed, and has been deleted and created again, as the rule
        /// requires.
        Recreated,
        ..
        /// The error of a copy.
        Copy(Reason),
    }
}

/// Number of Events at once; then one Event per [`REFILL`].
const BURST: u32 = 75;
const REFILL: Duration = Duration::from_secs(2);
/// Number of these Events that are reserved for notices other than corrected drift, so that people
/// see those.
const RESERVE: u32 = 25;
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Writes Events until the sender is dropped. Events above the limit are dropped; repeats are
/// merged into a series.
pub async fn run(client: Client, kinds: KindRegistry, mut notices: mpsc::Receiver<Notice>) {
    let reporter = Reporter {
        controller: "runnel.dev/agent".to_owned(),
        instance: Some(FIELD_MANAGER.to_owned()),
    };
    let recorder = Recorder::new(client, reporter);
    let (mut tokens, mut last) = (BURST, Instant::now());
    while let Some(notice) = notices.recv().await {
        let refilled =
            u32::try_from(last.elapsed().as_secs() / REFILL.as_secs()).unwrap_or(u32::MAX);
        if refilled > 0 {
            tokens = tokens.saturating_add(refilled).min(BURST);
            last = Instant::now();
        }
        let reserve = if matches!(notice, Notice::DriftCorrected(..)) {
            RESERVE
        } else {
            0
        };
        if tokens <= reserve {
            continue;
        }
        tokens -= 1;
        let (copy, event) = event(notice);
        let Some(reference) = reference(&kinds, &copy) else {
            continue;
        };
        let call = tokio::time::timeout(CALL_LIMIT, recorder.publish(&event, &reference));
        if !matches!(call.await, Ok(Ok(()))) {
            tracing::debug!(%copy, "an Event could not be written");
        }
    }
}

fn event(notice: Notice) -> (SourceRef, Event) {
    let event = |type_, reason: EventReason, action: &str, note: String| Event {
        type_,
        reason: reason.as_str().to_owned(),
        note: Some(note),
        action: action.to_owned(),
        secondary: None,
    };
    match notice {
        Notice::DriftCorrected(copy, rule, drift) => {
            let who = drift.others.as_deref().unwrap_or("another client");
            let did = if drift.deleted { "deleted" } else { "changed" };
            let what = drift
                .fields
                .map(|fields| format!(" ({fields})"))
                .unwrap_or_default();
            let note = format!(
                "{who} {did} this copy of {rule}{what}, and the agent restored it; change its source on the hub instead"
            );
            (
                copy,
                event(
                    EventType::Normal,
                    EventReason::DriftCorrected,
                    "Correct",
                    note,
                ),
            )
        }
        Notice::Overwritten(copy, rule, others) => {
            let who = others
                .map(|who| format!(", written by {who},"))
                .unwrap_or_default();
            let note = format!(
                "the existing object{who} was overwritten by {rule} (conflictPolicy: Overwrite)"
            );
            (
                copy,
                event(
                    EventType::Warning,
                    EventReason::Overwritten,
                    "Overwrite",
                    note,
                ),
            )
        }
        Notice::Recreated(copy, rule) => {
            let note = format!(
                "this copy of {rule} could not be changed and has been deleted and created again (immutablePolicy: \
                 Recreate); restart what has it mounted, as nodes may serve the old values"
            );
            (
                copy,
                event(EventType::Normal, EventReason::Recreated, "Recreate", note),
            )
        }
        Notice::Failed(copy, rule, copy_error) => {
            let note = format!("{} (rule {rule})", copy_error.message);
            let failed = event(EventType::Warning, copy_error.reason.into(), "Apply", note);
            (copy, failed)
        }
    }
}

fn reference(kinds: &KindRegistry, copy: &SourceRef) -> Option<ObjectReference> {
    let kind = kinds.get(&copy.resource)?;
    Some(ObjectReference {
        api_version: Some(kind.api_version.to_string()),
        kind: Some(kind.kind.to_string()),
        namespace: copy.optional_namespace().map(str::to_owned),
        name: Some(copy.name.to_string()),
        ..ObjectReference::default()
    })
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod snapshots;
