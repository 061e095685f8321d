//! The question about the copies of a rule, and its answer.
use super::inspect::{copy_outcome, copy_outcome_to_wire, health, health_to_wire};
use super::parts::{
    Unreadable, feedback_values, feedback_values_to_wire, message, reason, reason_to_wire,
    rule_uid, source, source_to_wire,
};
use crate::model::{COPIES_LIMIT, CopyList, ListCopies, ListedCopy, SourceRef};
use crate::wire;

pub(super) fn list_copies(wire: wire::ListCopies) -> Result<ListCopies, Unreadable> {
    Ok(ListCopies {
        question: wire.question,
        rule: rule_uid(wire.rule_uid)?,
        after: copy(wire.after)?,
        only: copy(wire.only)?,
        limit: wire.limit,
    })
}

fn copy(wire: Option<wire::Source>) -> Result<Option<SourceRef>, Unreadable> {
    wire.map(|wire| Ok(source(Some(wire))?.plain())).transpose()
}

pub(super) fn list_copies_to_wire(asked: &ListCopies) -> wire::ListCopies {
    wire::ListCopies {
        question: asked.question,
        rule_uid: asked.rule.to_string(),
        after: asked.after.as_ref().map(source_to_wire),
        only: asked.only.as_ref().map(source_to_wire),
        limit: asked.limit,
    }
}

/// Reads a part of an answer. Unreadable copies are added to `refused`.
pub(super) fn copy_list(wire: wire::CopyList, refused: &mut usize) -> CopyList {
    let all = wire.copies.len();
    let copies: Vec<_> = wire
        .copies
        .into_iter()
        .take(COPIES_LIMIT)
        .filter_map(|copy| listed_copy(copy).ok())
        .collect();
    *refused += all - copies.len();
    CopyList {
        question: wire.question,
        copies,
        more: wire.more,
        last: wire.last,
    }
}

fn listed_copy(wire: wire::ListedCopy) -> Result<ListedCopy, Unreadable> {
    let outcome = copy_outcome(wire.outcome());
    let copy_error = (wire.reason != 0).then(|| (reason(wire.reason), message(&wire.message)));
    let health = health(wire.health(), &wire.health_message);
    Ok(ListedCopy {
        copy: source(wire.copy)?.plain(),
        source: copy(wire.source)?,
        outcome,
        copy_error,
        applied_at: wire.applied_at,
        health,
        feedback: feedback_values(wire.feedback),
    })
}

pub(super) fn copy_list_to_wire(list: &CopyList) -> wire::CopyList {
    wire::CopyList {
        question: list.question,
        copies: list.copies.iter().map(listed_copy_to_wire).collect(),
        more: list.more,
        last: list.last,
    }
}

pub(super) fn listed_copy_to_wire(listed: &ListedCopy) -> wire::ListedCopy {
    let copy_error = listed.copy_error.as_ref();
    let (health, health_message) = health_to_wire(listed.health.as_ref());
    wire::ListedCopy {
        copy: Some(source_to_wire(&listed.copy)),
        source: listed.source.as_ref().map(source_to_wire),
        outcome: copy_outcome_to_wire(listed.outcome).into(),
        reason: copy_error.map_or(0, |(reason, _)| reason_to_wire(*reason)),
        message: copy_error
            .map(|(_, text)| message(text))
            .unwrap_or_default(),
        applied_at: listed.applied_at,
        health,
        health_message,
        feedback: feedback_values_to_wire(&listed.feedback),
    }
}
