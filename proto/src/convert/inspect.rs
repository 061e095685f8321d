//! The question about one copy, and its answer.
use super::NAME_LIMIT;
use super::parts::{
    Unreadable, feedback_values, feedback_values_to_wire, message, reason, reason_to_wire,
    revision, rule_uid, source, source_to_wire,
};
use crate::model::{
    CopyHealth, CopyOutcome, CopyState, HEALTH_MESSAGE_LIMIT, Inspect, Inspected, LiveObject,
    NamespaceState, ObservedHealth, STATES_LIMIT, plain_text,
};
use crate::wire;

pub(super) fn inspect(wire: wire::Inspect) -> Result<Inspect, Unreadable> {
    Ok(Inspect {
        question: wire.question,
        copy: source(wire.copy)?.plain(),
    })
}

pub(super) fn inspect_to_wire(inspect: &Inspect) -> wire::Inspect {
    wire::Inspect {
        question: inspect.question,
        copy: Some(source_to_wire(&inspect.copy)),
    }
}

pub(super) fn inspected(wire: wire::Inspected) -> Result<Inspected, Unreadable> {
    use wire::NamespaceState as Wire;
    let namespace = match Wire::try_from(wire.namespace).unwrap_or_default() {
        Wire::Unspecified => NamespaceState::Unknown,
        Wire::Ready => NamespaceState::Ready,
        Wire::Missing => NamespaceState::Missing,
        Wire::Terminating => NamespaceState::Terminating,
        Wire::Closed => NamespaceState::Closed,
    };
    let states = wire
        .states
        .into_iter()
        .take(STATES_LIMIT)
        .map(state)
        .collect::<Result<_, _>>()?;
    Ok(Inspected {
        question: wire.question,
        namespace,
        states,
        live: wire.live.map(live).transpose()?,
    })
}

fn state(wire: wire::CopyState) -> Result<CopyState, Unreadable> {
    let outcome = copy_outcome(wire.outcome());
    let copy_error = (wire.reason != 0).then(|| (reason(wire.reason), message(&wire.message)));
    Ok(CopyState {
        rule: rule_uid(wire.rule_uid)?,
        outcome,
        copy_error,
    })
}

pub(super) fn copy_outcome(wire: wire::CopyOutcome) -> CopyOutcome {
    use wire::CopyOutcome as Wire;
    match wire {
        Wire::Unspecified | Wire::UnderWay => CopyOutcome::UnderWay,
        Wire::Applied => CopyOutcome::Applied,
        Wire::Failed => CopyOutcome::Failed,
        Wire::Waiting => CopyOutcome::Waiting,
        Wire::Drifted => CopyOutcome::Drifted,
        Wire::Removing => CopyOutcome::Removing,
        Wire::PruneRequested => CopyOutcome::PruneRequested,
    }
}

/// Returns the health of a live object; `None` without one.
pub(super) fn health(wire: wire::CopyHealth, text: &str) -> Option<ObservedHealth> {
    let health = match wire {
        wire::CopyHealth::Unspecified => return None,
        wire::CopyHealth::Current => CopyHealth::Current,
        wire::CopyHealth::InProgress => CopyHealth::InProgress,
        wire::CopyHealth::Failed => CopyHealth::Failed,
    };
    let message = plain_text(text, HEALTH_MESSAGE_LIMIT).into();
    Some(ObservedHealth { health, message })
}

/// Returns the health and its message.
pub(super) fn health_to_wire(observed: Option<&ObservedHealth>) -> (i32, String) {
    let Some(ObservedHealth { health, message }) = observed else {
        return Default::default();
    };
    let health = match health {
        CopyHealth::Current => wire::CopyHealth::Current,
        CopyHealth::InProgress => wire::CopyHealth::InProgress,
        CopyHealth::Failed => wire::CopyHealth::Failed,
    };
    (health.into(), plain_text(message, HEALTH_MESSAGE_LIMIT))
}

fn live(wire: wire::LiveObject) -> Result<LiveObject, Unreadable> {
    let health = health(wire.health(), &wire.health_message);
    let sealed = if wire.rule_uid.is_empty() {
        None
    } else {
        Some((
            rule_uid(wire.rule_uid)?,
            source(wire.source)?,
            revision(&wire.revision)?,
        ))
    };
    Ok(LiveObject {
        ours: wire.ours,
        intact: wire.intact,
        sealed,
        applied_at: wire.applied_at,
        uid: plain_text(&wire.uid, NAME_LIMIT),
        health,
        feedback: feedback_values(wire.feedback),
        widened: wire.widened,
    })
}

pub(super) fn inspected_to_wire(inspected: &Inspected) -> wire::Inspected {
    use wire::NamespaceState as Wire;
    let namespace = match inspected.namespace {
        NamespaceState::Unknown => Wire::Unspecified,
        NamespaceState::Ready => Wire::Ready,
        NamespaceState::Missing => Wire::Missing,
        NamespaceState::Terminating => Wire::Terminating,
        NamespaceState::Closed => Wire::Closed,
    };
    wire::Inspected {
        question: inspected.question,
        namespace: namespace.into(),
        states: inspected
            .states
            .iter()
            .take(STATES_LIMIT)
            .map(state_to_wire)
            .collect(),
        live: inspected.live.as_ref().map(live_to_wire),
    }
}

fn state_to_wire(state: &CopyState) -> wire::CopyState {
    let outcome = copy_outcome_to_wire(state.outcome);
    let copy_error = state.copy_error.as_ref();
    wire::CopyState {
        rule_uid: state.rule.to_string(),
        outcome: outcome.into(),
        reason: copy_error.map_or(0, |(reason, _)| reason_to_wire(*reason)),
        message: copy_error
            .map(|(_, text)| message(text))
            .unwrap_or_default(),
    }
}

pub(super) fn copy_outcome_to_wire(outcome: CopyOutcome) -> wire::CopyOutcome {
    use wire::CopyOutcome as Wire;
    match outcome {
        CopyOutcome::UnderWay => Wire::UnderWay,
        CopyOutcome::Applied => Wire::Applied,
        CopyOutcome::Failed => Wire::Failed,
        CopyOutcome::Waiting => Wire::Waiting,
        CopyOutcome::Drifted => Wire::Drifted,
        CopyOutcome::Removing => Wire::Removing,
        CopyOutcome::PruneRequested => Wire::PruneRequested,
    }
}

fn live_to_wire(live: &LiveObject) -> wire::LiveObject {
    let sealed = live.sealed.as_ref();
    let (health, health_message) = health_to_wire(live.health.as_ref());
    wire::LiveObject {
        ours: live.ours,
        intact: live.intact,
        rule_uid: sealed
            .map(|(rule, ..)| rule.to_string())
            .unwrap_or_default(),
        source: sealed.map(|(_, source, _)| source_to_wire(source)),
        revision: sealed
            .map(|(.., revision)| revision.0.to_vec().into())
            .unwrap_or_default(),
        applied_at: live.applied_at,
        uid: live.uid.clone(),
        health,
        health_message,
        feedback: feedback_values_to_wire(&live.feedback),
        widened: live.widened,
    }
}
