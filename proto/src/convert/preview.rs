//! Converts the preview request and its answer.
use prost::Message;

use super::NAME_LIMIT;
use super::parts::{
    ItemError, Refusals, Unreadable, deletion_policy, deletion_policy_to_wire, intent,
    intent_to_wire, message, reason, reason_to_wire, rule_uid, source, source_to_wire, terms,
    terms_to_wire, text_or_empty, tombstone, tombstone_to_wire,
};
use crate::model::{
    DIFF_FIELDS, DIFF_LIMIT, FieldChange, FieldDiff, FieldDigests, FieldEdit, FieldsKey,
    PREVIEW_LIMIT, PreviewIntent, PreviewOutcome, PreviewRequest, PreviewResult, PreviewedCopy,
    Refusal, RuleUid, plain_text,
};
use crate::wire;

/// Longest path of a field: the longest key with its map. With [`DIFF_LIMIT`] paths a copy still fits into a frame.
const PATH_LIMIT: usize = 340;
/// Longest present value in a diff, see [`short_value`](crate::model::short_value).
const OLD_LIMIT: usize = 170;

/// Reads a preview request. A request must not cost the agent its stream: unreadable items are
/// listed in `all`, as for a batch. A refusal without a source is about the whole request, which
/// cannot be answered then.
pub(super) fn preview_request(
    wire: wire::PreviewRequest,
    all: &mut Vec<Refusal>,
) -> PreviewRequest {
    let mut asked = PreviewRequest::nothing(
        wire.question,
        RuleUid::from(plain_text(&wire.rule_uid, NAME_LIMIT)),
    );
    asked.blocks_all = wire.blocks_all;
    asked.dry_run = wire.dry_run;
    let mut refused = Refusals {
        rule: asked.uid.clone(),
        all,
    };
    let whole = || -> Result<_, Unreadable> {
        rule_uid(wire.rule_uid)?;
        let key = wire.key.as_ref().try_into().map_err(|_| "key")?;
        let removal = wire
            .removal
            .map(|removal| deletion_policy(removal.deletion_policy))
            .transpose()?;
        Ok((FieldsKey(key), removal, wire.terms.map(terms).transpose()?))
    };
    match whole() {
        Ok(read) => (asked.key, asked.removal, asked.terms) = read,
        Err(part) => {
            refused.add_rule(part.into());
            return asked;
        }
    }
    for wire in wire.intents.into_iter().take(PREVIEW_LIMIT) {
        let live_digest = wire
            .intent
            .as_ref()
            .and_then(|intent| intent.source.clone());
        match preview_intent(wire) {
            Ok(intent) => asked.intents.push(intent),
            Err(error) => refused.add_item(live_digest.as_ref(), None, error),
        }
    }
    for wire in wire.tombstones.into_iter().take(PREVIEW_LIMIT) {
        let live_digest = wire.source.clone();
        match tombstone(wire) {
            Ok(tombstone) => asked.tombstones.push(tombstone),
            Err(part) => refused.add_item(live_digest.as_ref(), None, part.into()),
        }
    }
    for wire in wire.blocked.into_iter().take(PREVIEW_LIMIT) {
        let live_digest = wire.clone();
        match source(Some(wire)) {
            Ok(blocked) => drop(asked.blocked.insert(blocked)),
            Err(part) => refused.add_item(Some(&live_digest), None, part.into()),
        }
    }
    asked
}

/// Returns the encoded size of a request, in bytes.
pub fn question_bytes(asked: &PreviewRequest) -> usize {
    preview_request_to_wire(asked).encoded_len()
}

fn preview_intent(wire: wire::PreviewIntent) -> Result<PreviewIntent, ItemError> {
    let object_type = text_or_empty(wire.object_type, NAME_LIMIT, "object_type")?;
    Ok(PreviewIntent {
        intent: intent(wire.intent.ok_or("intent")?)?,
        bytes: wire.bytes,
        object_type: (!object_type.is_empty()).then(|| object_type.into()),
        fields: wire.fields.as_ref().try_into().map_err(|_| "fields")?,
        digests: wire.digests.map(digests).transpose()?.map(Into::into),
    })
}

fn digests(wire: wire::FieldDigests) -> Result<FieldDigests, Unreadable> {
    if wire.fields.len() > DIFF_FIELDS {
        return Err("digests");
    }
    let read = |one: wire::FieldDigest| {
        let digest = one.digest.as_ref().try_into().map_err(|_| "digests")?;
        if one.path.len() > PATH_LIMIT {
            Err("digests")
        } else {
            Ok((one.path, digest))
        }
    };
    wire.fields.into_iter().map(read).collect()
}

fn digests_to_wire(digests: &FieldDigests) -> wire::FieldDigests {
    let field = |(path, digest): (&String, &[u8; 16])| wire::FieldDigest {
        path: path.clone(),
        digest: digest.to_vec().into(),
    };
    wire::FieldDigests {
        fields: digests.iter().map(field).collect(),
    }
}

pub(super) fn preview_request_to_wire(asked: &PreviewRequest) -> wire::PreviewRequest {
    let intent = |one: &PreviewIntent| wire::PreviewIntent {
        intent: Some(intent_to_wire(&one.intent)),
        bytes: one.bytes,
        object_type: one.object_type.as_deref().unwrap_or_default().to_owned(),
        fields: one.fields.to_vec().into(),
        digests: one.digests.as_deref().map(digests_to_wire),
    };
    wire::PreviewRequest {
        question: asked.question,
        rule_uid: asked.uid.to_string(),
        terms: asked
            .terms
            .as_ref()
            .map(|(terms, digest)| terms_to_wire(terms, digest)),
        intents: asked
            .intents
            .iter()
            .take(PREVIEW_LIMIT)
            .map(intent)
            .collect(),
        tombstones: asked.tombstones.iter().map(tombstone_to_wire).collect(),
        removal: asked.removal.map(|policy| wire::Removal {
            deletion_policy: deletion_policy_to_wire(policy),
        }),
        blocked: asked.blocked.iter().map(source_to_wire).collect(),
        blocks_all: asked.blocks_all,
        dry_run: asked.dry_run,
        key: asked.key.0.to_vec().into(),
    }
}

pub(super) fn preview_result(wire: wire::PreviewResult) -> PreviewResult {
    // A copy without a readable part is left out.
    let all = wire.copies.len();
    let copies: Vec<_> = wire
        .copies
        .into_iter()
        .take(PREVIEW_LIMIT)
        .filter_map(|copy| previewed_copy(copy).ok())
        .collect();
    let unread = u32::try_from(all - copies.len()).unwrap_or(u32::MAX);
    let unanswered = message(&wire.unanswered);
    PreviewResult {
        question: wire.question,
        copies,
        more: wire.more.saturating_add(unread),
        last: wire.last,
        unanswered,
    }
}

fn previewed_copy(wire: wire::PreviewedCopy) -> Result<PreviewedCopy, Unreadable> {
    use wire::PreviewOutcome as Wire;
    let previewed = match wire.previewed() {
        Wire::Create => PreviewOutcome::Create,
        Wire::Change => PreviewOutcome::Change,
        Wire::Unchanged => PreviewOutcome::Unchanged,
        Wire::Adopt => PreviewOutcome::Adopt,
        Wire::AdoptIfEqual => PreviewOutcome::AdoptIfEqual,
        Wire::Overwrite => PreviewOutcome::Overwrite,
        Wire::Remove => PreviewOutcome::Remove,
        Wire::Prune => PreviewOutcome::Prune,
        Wire::Retain => PreviewOutcome::Retain,
        Wire::HandOver => PreviewOutcome::HandOver,
        Wire::Blocked => PreviewOutcome::Blocked,
        Wire::Wait => PreviewOutcome::Wait,
        // An outcome of a newer agent that this hub does not support.
        Wire::Noop | Wire::Unspecified => PreviewOutcome::Noop,
        Wire::Refused => PreviewOutcome::Refused,
    };
    let copy_error = (wire.reason != 0).then(|| (reason(wire.reason), message(&wire.message)));
    let mut diff = FieldDiff {
        more: wire.more_changes,
        ..FieldDiff::default()
    };
    wire.changes
        .into_iter()
        .filter_map(field_change)
        .for_each(|change| diff.push(change));
    Ok(PreviewedCopy {
        copy: source(wire.copy)?,
        source: source(wire.source)?,
        previewed,
        copy_error,
        diff,
    })
}

/// An edit that this hub does not support is left out.
fn field_change(wire: wire::FieldChange) -> Option<FieldChange> {
    let edit = match wire.edit() {
        wire::FieldEdit::Add => FieldEdit::Add,
        wire::FieldEdit::Change => FieldEdit::Change,
        wire::FieldEdit::Remove => FieldEdit::Remove,
        wire::FieldEdit::Unspecified => return None,
    };
    let old = wire.old.map(|old| plain_text(&old, OLD_LIMIT));
    Some(FieldChange {
        path: plain_text(&wire.path, PATH_LIMIT),
        edit,
        old,
    })
}

fn field_change_to_wire(change: &FieldChange) -> wire::FieldChange {
    let edit = match change.edit {
        FieldEdit::Add => wire::FieldEdit::Add,
        FieldEdit::Change => wire::FieldEdit::Change,
        FieldEdit::Remove => wire::FieldEdit::Remove,
    };
    let old = change.old.as_deref().map(|old| plain_text(old, OLD_LIMIT));
    wire::FieldChange {
        path: plain_text(&change.path, PATH_LIMIT),
        edit: edit.into(),
        old,
    }
}

pub(super) fn preview_result_to_wire(answer: &PreviewResult) -> wire::PreviewResult {
    wire::PreviewResult {
        question: answer.question,
        copies: answer.copies.iter().map(previewed_copy_to_wire).collect(),
        more: answer.more,
        last: answer.last,
        unanswered: message(&answer.unanswered),
    }
}

pub(super) fn previewed_copy_to_wire(copy: &PreviewedCopy) -> wire::PreviewedCopy {
    use wire::PreviewOutcome as Wire;
    let previewed = match copy.previewed {
        PreviewOutcome::Create => Wire::Create,
        PreviewOutcome::Change => Wire::Change,
        PreviewOutcome::Unchanged => Wire::Unchanged,
        PreviewOutcome::Adopt => Wire::Adopt,
        PreviewOutcome::AdoptIfEqual => Wire::AdoptIfEqual,
        PreviewOutcome::Overwrite => Wire::Overwrite,
        PreviewOutcome::Remove => Wire::Remove,
        PreviewOutcome::Prune => Wire::Prune,
        PreviewOutcome::Retain => Wire::Retain,
        PreviewOutcome::HandOver => Wire::HandOver,
        PreviewOutcome::Blocked => Wire::Blocked,
        PreviewOutcome::Wait => Wire::Wait,
        PreviewOutcome::Noop => Wire::Noop,
        PreviewOutcome::Refused => Wire::Refused,
    };
    let copy_error = copy.copy_error.as_ref();
    wire::PreviewedCopy {
        copy: Some(source_to_wire(&copy.copy)),
        source: Some(source_to_wire(&copy.source)),
        previewed: previewed.into(),
        reason: copy_error.map_or(0, |(reason, _)| reason_to_wire(*reason)),
        message: copy_error
            .map(|(_, text)| message(text))
            .unwrap_or_default(),
        changes: copy
            .diff
            .changes
            .iter()
            .take(DIFF_LIMIT)
            .map(field_change_to_wire)
            .collect(),
        more_changes: copy.diff.more,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::convert::{agent_frame, agent_frame_to_wire, hub_frame, hub_frame_to_wire, split};
    use crate::model::{
        AGENT_FRAME_LIMIT, AgentFrame, Content, DeletionPolicy, HubFrame, Intent, Payload, Reason,
        Revision, SourceRef, Terms, TermsDigest, Tombstone,
    };

    fn copy(number: usize) -> SourceRef {
        SourceRef::new("secrets", "team", &format!("login-{number}"))
    }

    #[test]
    fn a_question_reads_back_what_was_written() {
        let payload = Payload::encode(Content::default().to_bytes());
        let intent = Intent {
            source: copy(1).as_copy("other"),
            revision: Revision([3; 16]),
            payload,
        };
        let asked = PreviewRequest {
            question: 7,
            uid: "r".into(),
            terms: Some((Terms::default(), TermsDigest([1; 16]))),
            intents: vec![PreviewIntent {
                intent,
                bytes: 9,
                object_type: Some("Opaque".into()),
                fields: [4; 32],
                digests: Some(Arc::new(FieldDigests::from([(
                    "/data/a".to_owned(),
                    [7; 16],
                )]))),
            }],
            tombstones: vec![Tombstone {
                source: copy(2),
                deletion_policy: DeletionPolicy::Retain,
            }],
            removal: Some(DeletionPolicy::Delete),
            blocked: BTreeSet::from([copy(3)]),
            blocks_all: true,
            dry_run: true,
            key: FieldsKey([5; 32]),
        };
        let wire = hub_frame_to_wire(&HubFrame::PreviewRequest(Box::new(asked)));
        let (read, refused) = hub_frame(wire.clone()).ok().unwrap();
        assert!(refused.is_empty() && hub_frame_to_wire(&read) == wire);
    }

    #[test]
    fn diff_beyond_its_limit_is_cut_and_counted() {
        let change = |path: &str| wire::FieldChange {
            path: path.into(),
            edit: 1,
            old: Some("\u{1b}[1m".repeat(200)),
        };
        let read = previewed_copy(wire::PreviewedCopy {
            copy: Some(source_to_wire(&copy(1))),
            source: Some(source_to_wire(&copy(1))),
            changes: (0..DIFF_LIMIT + 5)
                .map(|_| change(&"p".repeat(PATH_LIMIT + 1)))
                .collect(),
            more_changes: 2,
            message: "m".repeat(9999),
            reason: 1,
            ..wire::PreviewedCopy::default()
        });
        let read = read.unwrap();
        assert!(previewed_copy_to_wire(&read).encoded_len() + 1024 < AGENT_FRAME_LIMIT);
        let diff = read.diff;
        assert_eq!((diff.changes.len(), diff.more), (DIFF_LIMIT, 7));
        let within = |one: &FieldChange| {
            let old = one.old.as_deref().unwrap_or_default();
            one.path.len() == PATH_LIMIT && old.len() <= OLD_LIMIT && !old.contains('\u{1b}')
        };
        assert!(diff.changes.iter().all(within));
    }

    #[test]
    fn object_with_too_many_digests_is_refused() {
        let of = |count: usize| wire::FieldDigests {
            fields: (0..count)
                .map(|n| wire::FieldDigest {
                    path: n.to_string(),
                    digest: vec![0; 16].into(),
                })
                .collect(),
        };
        assert_eq!(
            digests(of(DIFF_FIELDS)).map(|all| all.len()),
            Ok(DIFF_FIELDS)
        );
        assert_eq!(digests(of(DIFF_FIELDS + 1)), Err("digests"));
    }

    #[test]
    fn unreadable_items_of_a_question_are_refused_alone() {
        let read = |wire: wire::PreviewRequest| {
            let frame = wire::hub_frame::Frame::PreviewRequest(wire);
            match hub_frame(wire::HubFrame {
                frame: Some(frame),
                ..wire::HubFrame::default()
            }) {
                Ok((HubFrame::PreviewRequest(asked), refused)) => (asked, refused),
                _ => panic!("the stream would end"),
            }
        };
        let asked = || wire::PreviewRequest {
            question: 7,
            rule_uid: "r".into(),
            key: vec![1; 32].into(),
            ..wire::PreviewRequest::default()
        };
        let of = |name: &str| wire::Source {
            resource: "secrets".into(),
            ..source_to_wire(&copy(1).as_copy(name))
        };
        let whole = [
            wire::PreviewRequest {
                key: vec![].into(),
                ..asked()
            },
            wire::PreviewRequest {
                rule_uid: "x".repeat(NAME_LIMIT + 1),
                ..asked()
            },
            wire::PreviewRequest {
                removal: Some(wire::Removal {
                    deletion_policy: 99,
                }),
                ..asked()
            },
            wire::PreviewRequest {
                terms: Some(wire::Terms {
                    conflict_policy: 99,
                    ..wire::Terms::default()
                }),
                ..asked()
            },
        ];
        for wire in whole {
            let (asked, refused) = read(wire);
            assert_eq!((asked.question, refused.len()), (7, 1));
            assert!(refused[0].source.name.is_empty() && refused[0].reason == Reason::Unsupported);
        }
        let intent = |encoding, name: &str| wire::PreviewIntent {
            intent: Some(wire::Intent {
                source: Some(of(name)),
                revision: vec![1; 16].into(),
                encoding,
                ..wire::Intent::default()
            }),
            fields: vec![1; 32].into(),
            ..wire::PreviewIntent::default()
        };
        let (asked, refused) = read(wire::PreviewRequest {
            intents: vec![intent(99, "a"), intent(1, "b")],
            tombstones: vec![wire::Tombstone {
                source: Some(of("c")),
                deletion_policy: 99,
            }],
            blocked: vec![
                wire::Source {
                    resource: String::new(),
                    ..of("d")
                },
                of("e"),
            ],
            ..asked()
        });
        assert_eq!(
            (
                asked.intents.len(),
                asked.tombstones.len(),
                asked.blocked.len()
            ),
            (1, 0, 1)
        );
        let names: Vec<_> = refused
            .iter()
            .map(|one| one.source.copy_name().to_string())
            .collect();
        assert_eq!(names, ["a", "c", "d"]);
    }

    #[test]
    fn long_answer_is_split_and_ends_with_a_flag() {
        let one = |number| PreviewedCopy {
            copy: copy(number),
            source: copy(number).as_copy("other"),
            previewed: PreviewOutcome::Refused,
            copy_error: Some((Reason::Conflict, "x".repeat(200))),
            diff: FieldDiff {
                changes: vec![FieldChange {
                    path: "/data/a".into(),
                    edit: FieldEdit::Change,
                    old: Some("\"1\"".into()),
                }],
                more: 2,
            },
        };
        let copies: Vec<_> = (0..500).map(one).collect();
        let answer = PreviewResult {
            question: 8,
            copies: copies.clone(),
            more: 3,
            last: true,
            unanswered: String::new(),
        };
        let frames: Vec<_> = split(AgentFrame::PreviewResult(answer))
            .iter()
            .map(agent_frame_to_wire)
            .collect();
        assert!(
            frames.len() > 1
                && frames
                    .iter()
                    .all(|frame| frame.encoded_len() <= AGENT_FRAME_LIMIT)
        );
        let read = frames.into_iter().map(|frame| match agent_frame(frame) {
            Ok((AgentFrame::PreviewResult(part), 0)) => part,
            _ => panic!("another frame"),
        });
        let parts: Vec<PreviewResult> = read.collect();
        let last: Vec<_> = parts.iter().map(|part| part.last).collect();
        assert!(last.iter().rev().skip(1).all(|last| !last) && last.last() == Some(&true));
        assert!(
            parts
                .iter()
                .all(|part| (part.question, part.more) == (8, 3))
        );
        assert_eq!(
            parts
                .into_iter()
                .flat_map(|part| part.copies)
                .collect::<Vec<_>>(),
            copies
        );
    }
}
