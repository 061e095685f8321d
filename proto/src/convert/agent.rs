//! Frames of an agent, read by the hub, and their splitting, so that the hub's receive buffer stays small.
use prost::Message;
use prost::encoding::encoded_len_varint;

use super::copies::{copy_list, copy_list_to_wire, listed_copy_to_wire};
use super::inspect::{inspected, inspected_to_wire};
use super::parts::{
    Unreadable, message, named_source, no_source, reason, reason_to_wire, revision, rule_name,
    rule_name_to_wire, rule_uid, source, source_to_wire,
};
use super::preview::{preview_result, preview_result_to_wire, previewed_copy_to_wire};
use super::{FrameError, NAME_LIMIT};
use crate::model::{
    AGENT_FRAME_LIMIT, AckedIntent, AgentFrame, CHANGES_LIMIT, ChangeOrigin, CopyAction,
    CopyChange, CopyList, Counts, FAILURES_LIMIT, Failure, Hello, KINDS, LostWatch, NAMESPACES,
    NAMESPACES_LIMIT, NamespacePrunes, PreviewResult, Proof, PruneDigest, Refusal, RuleState,
    SetDigest, TermsDigest, WaitingNamespaces, is_label, plain_text,
};
use crate::wire;
use crate::wire::agent_frame::Frame;

/// The overhead of a frame: its envelope, a uid of maximum length, a nonce, a flag.
const ENVELOPE: usize = 320;

/// Decodes a frame of an agent, and counts the refused items: unreadable ones, and those with
/// invalid names. They are ignored.
///
/// # Errors
/// [`FrameError`], if the frame is unknown to this hub, or names no rule.
pub fn agent_frame(wire: wire::AgentFrame) -> Result<(AgentFrame, usize), FrameError> {
    let frame = wire.frame.ok_or(FrameError::Unknown {
        peer: "agent",
        own: "hub",
    })?;
    let mut refused = 0;
    let frame = read(frame, &mut refused).map_err(|part| FrameError::Malformed {
        peer: "agent",
        part,
    })?;
    Ok((frame, refused))
}

fn read(frame: Frame, refused: &mut usize) -> Result<AgentFrame, Unreadable> {
    Ok(match frame {
        Frame::Hello(wire) => AgentFrame::Hello(hello(&wire)),
        Frame::AckedRules(wire) => {
            AgentFrame::AckedRules(readable(wire.rules, rule_state, refused), wire.last)
        }
        Frame::Detail(wire) => AgentFrame::Detail(
            rule_uid(wire.rule_uid)?,
            readable(wire.intents, acked_intent, refused),
            wire.last,
        ),
        Frame::Ack(wire) => {
            AgentFrame::Ack(wire.nonce, wire.refused.into_iter().map(refusal).collect())
        }
        Frame::Report(wire) => AgentFrame::Report(readable(wire.rules, rule_state, refused)),
        Frame::ContentRequest(wire) => {
            let sources = readable(wire.sources, |wire| source(Some(wire)), refused);
            AgentFrame::ContentRequest(rule_uid(wire.rule_uid)?, sources)
        }
        Frame::Handover(_) => AgentFrame::Handover,
        Frame::LostWatches(wire) => {
            AgentFrame::LostWatches(wire.watches.iter().filter_map(lost_watch).collect())
        }
        Frame::Inspected(wire) => AgentFrame::Inspected(Box::new(inspected(wire)?)),
        Frame::PreviewResult(wire) => AgentFrame::PreviewResult(preview_result(wire)),
        Frame::CopyList(wire) => AgentFrame::CopyList(copy_list(wire, refused)),
        Frame::Keepalive(_) => AgentFrame::Keepalive,
    })
}

fn readable<W, M>(
    items: Vec<W>,
    read: impl Fn(W) -> Result<M, Unreadable>,
    refused: &mut usize,
) -> Vec<M> {
    let all = items.len();
    let read: Vec<M> = items
        .into_iter()
        .filter_map(|item| read(item).ok())
        .collect();
    *refused += all - read.len();
    read
}

fn hello(wire: &wire::Hello) -> Hello {
    let text = |text: &str| plain_text(text, NAME_LIMIT);
    Hello {
        protocol_min: wire.protocol_min,
        protocol_max: wire.protocol_max,
        agent_version: text(&wire.agent_version),
        kubernetes_version: text(&wire.kubernetes_version),
        boot_id: text(&wire.boot_id),
        cluster_uid: text(&wire.cluster_uid),
    }
}

/// Returns the first names of namespaces.
fn labels(names: Vec<String>) -> Vec<String> {
    let first = names.into_iter().take(NAMESPACES_LIMIT);
    first.filter(|name| is_label(name)).collect()
}

/// The rules and intents must be readable. Other unreadable items count as not sent.
fn rule_state(wire: wire::RuleState) -> Result<RuleState, Unreadable> {
    let namespace_prunes =
        prune_digest(&wire.namespace_prunes_digest).map(|digest| NamespacePrunes {
            copies: wire.namespace_prunes,
            digest,
            namespaces: labels(wire.pruned_namespaces),
        });
    let counts = wire.counts.unwrap_or_default();
    Ok(RuleState {
        uid: rule_uid(wire.rule_uid)?,
        rule: rule_name(wire.rule)?,
        intents_digest: SetDigest::from_bytes(&wire.intents_digest).ok_or("intents_digest")?,
        intents: wire.intents,
        terms_digest: wire.terms_digest.as_ref().try_into().ok().map(TermsDigest),
        counts: Counts {
            copies: counts.copies,
            applied: counts.applied,
            failed: counts.failed,
            waiting: counts.waiting,
            removing: counts.removing,
            drifted: counts.drifted,
            to_create: counts.to_create,
            to_update: counts.to_update,
            to_delete: counts.to_delete,
            absent: counts.absent,
        },
        failures: wire
            .failures
            .into_iter()
            .take(FAILURES_LIMIT)
            .filter_map(|wire| failure(wire).ok())
            .collect(),
        gone: wire.gone,
        last_batch: wire.last_batch,
        namespace_prunes,
        waiting: WaitingNamespaces {
            first: labels(wire.waiting_namespaces),
            count: wire.waiting_namespace_count,
        },
        suspended: wire.suspended,
        proof: wire.proof.as_ref().try_into().ok().map(Proof),
        changes: wire
            .changes
            .into_iter()
            .take(CHANGES_LIMIT)
            .filter_map(copy_change)
            .collect(),
    })
}

/// A change of a kind that this hub does not know is dropped.
fn copy_change(wire: wire::CopyChange) -> Option<CopyChange> {
    let action = match wire::CopyAction::try_from(wire.action).ok()? {
        wire::CopyAction::Unspecified => return None,
        wire::CopyAction::Created => CopyAction::Created,
        wire::CopyAction::Updated => CopyAction::Updated,
        wire::CopyAction::Adopted => CopyAction::Adopted,
        wire::CopyAction::Overwritten => CopyAction::Overwritten,
        wire::CopyAction::Recreated => CopyAction::Recreated,
        wire::CopyAction::Removed => CopyAction::Removed,
        wire::CopyAction::Retained => CopyAction::Retained,
        wire::CopyAction::Restored => CopyAction::Restored,
    };
    let origin = match wire::ChangeOrigin::try_from(wire.origin).ok()? {
        wire::ChangeOrigin::Unspecified => return None,
        wire::ChangeOrigin::Hub => ChangeOrigin::Hub,
        wire::ChangeOrigin::Namespace => ChangeOrigin::Namespace,
        wire::ChangeOrigin::Policy => ChangeOrigin::Policy,
        wire::ChangeOrigin::Drift => ChangeOrigin::Drift,
        wire::ChangeOrigin::Resync => ChangeOrigin::Resync,
    };
    let copies = wire.copies;
    (copies > 0).then_some(CopyChange {
        action,
        origin,
        copies,
    })
}

fn copy_change_to_wire(change: &CopyChange) -> wire::CopyChange {
    let action = match change.action {
        CopyAction::Created => wire::CopyAction::Created,
        CopyAction::Updated => wire::CopyAction::Updated,
        CopyAction::Adopted => wire::CopyAction::Adopted,
        CopyAction::Overwritten => wire::CopyAction::Overwritten,
        CopyAction::Recreated => wire::CopyAction::Recreated,
        CopyAction::Removed => wire::CopyAction::Removed,
        CopyAction::Retained => wire::CopyAction::Retained,
        CopyAction::Restored => wire::CopyAction::Restored,
    };
    let origin = match change.origin {
        ChangeOrigin::Hub => wire::ChangeOrigin::Hub,
        ChangeOrigin::Namespace => wire::ChangeOrigin::Namespace,
        ChangeOrigin::Policy => wire::ChangeOrigin::Policy,
        ChangeOrigin::Drift => wire::ChangeOrigin::Drift,
        ChangeOrigin::Resync => wire::ChangeOrigin::Resync,
    };
    wire::CopyChange {
        action: action as i32,
        origin: origin as i32,
        copies: change.copies,
    }
}

/// A watch of an unsupported kind belongs to no rule here.
fn lost_watch(wire: &wire::LostWatch) -> Option<LostWatch> {
    let known = KINDS.iter().map(|kind| kind.resource).chain([NAMESPACES]);
    let resource = known.into_iter().find(|known| *known == wire.resource)?;
    Some(LostWatch {
        resource,
        status: u16::try_from(wire.status).unwrap_or(u16::MAX),
    })
}

fn lost_watch_to_wire(watch: &LostWatch) -> wire::LostWatch {
    wire::LostWatch {
        resource: watch.resource.to_owned(),
        status: watch.status.into(),
    }
}

fn prune_digest(bytes: &[u8]) -> Option<PruneDigest> {
    bytes.try_into().ok().map(PruneDigest)
}

/// A failure names a copy, or nothing where it is of the rule itself.
fn failure(wire: wire::Failure) -> Result<Failure, Unreadable> {
    let wire::Failure {
        resource,
        namespace,
        name,
        ..
    } = wire;
    let copy = if resource.is_empty() && namespace.is_empty() && name.is_empty() {
        no_source()
    } else {
        source(Some(wire::Source {
            resource,
            namespace,
            name,
            ..wire::Source::default()
        }))?
    };
    Ok(Failure {
        reason: reason(wire.reason),
        copy,
        message: message(&wire.message),
    })
}

fn acked_intent(wire: wire::AckedIntent) -> Result<AckedIntent, Unreadable> {
    Ok(AckedIntent {
        source: source(wire.source)?,
        revision: revision(&wire.revision)?,
    })
}

/// A refusal repeats the hub's item, which may be unreadable: every part is optional.
fn refusal(wire: wire::Refusal) -> Refusal {
    Refusal {
        rule: plain_text(&wire.rule_uid, NAME_LIMIT).into(),
        source: named_source(wire.source.as_ref()),
        revision: revision(&wire.revision).unwrap_or(crate::model::Revision([0; 16])),
        reason: reason(wire.reason),
        message: message(&wire.message),
    }
}

/// Writes a frame of an agent. Messages are cut to their limit, failures to their number.
pub fn agent_frame_to_wire(frame: &AgentFrame) -> wire::AgentFrame {
    let frame = match frame {
        AgentFrame::Hello(hello) => Frame::Hello(wire::Hello {
            protocol_min: hello.protocol_min,
            protocol_max: hello.protocol_max,
            agent_version: hello.agent_version.clone(),
            kubernetes_version: hello.kubernetes_version.clone(),
            boot_id: hello.boot_id.clone(),
            cluster_uid: hello.cluster_uid.clone(),
        }),
        AgentFrame::AckedRules(rules, last) => Frame::AckedRules(wire::AckedRules {
            rules: rules.iter().map(rule_state_to_wire).collect(),
            last: *last,
        }),
        AgentFrame::Detail(uid, intents, last) => Frame::Detail(wire::Detail {
            rule_uid: uid.to_string(),
            intents: intents.iter().map(acked_intent_to_wire).collect(),
            last: *last,
        }),
        AgentFrame::Ack(nonce, refused) => Frame::Ack(wire::Ack {
            nonce: *nonce,
            refused: refused.iter().map(refusal_to_wire).collect(),
        }),
        AgentFrame::Report(rules) => Frame::Report(wire::Report {
            rules: rules.iter().map(rule_state_to_wire).collect(),
        }),
        AgentFrame::ContentRequest(uid, sources) => Frame::ContentRequest(wire::ContentRequest {
            rule_uid: uid.to_string(),
            sources: sources.iter().map(source_to_wire).collect(),
        }),
        AgentFrame::Handover => Frame::Handover(wire::Handover {}),
        AgentFrame::LostWatches(watches) => Frame::LostWatches(wire::LostWatches {
            watches: watches.iter().map(lost_watch_to_wire).collect(),
        }),
        AgentFrame::Inspected(answer) => Frame::Inspected(inspected_to_wire(answer)),
        AgentFrame::PreviewResult(answer) => Frame::PreviewResult(preview_result_to_wire(answer)),
        AgentFrame::CopyList(answer) => Frame::CopyList(copy_list_to_wire(answer)),
        AgentFrame::Keepalive => Frame::Keepalive(wire::Keepalive {}),
    };
    wire::AgentFrame { frame: Some(frame) }
}

fn rule_state_to_wire(state: &RuleState) -> wire::RuleState {
    let (counts, namespace_prunes) = (&state.counts, state.namespace_prunes.as_ref());
    wire::RuleState {
        rule_uid: state.uid.to_string(),
        rule: Some(rule_name_to_wire(&state.rule)),
        intents_digest: state.intents_digest.to_bytes().to_vec().into(),
        terms_digest: state
            .terms_digest
            .map(|digest| digest.0.to_vec().into())
            .unwrap_or_default(),
        counts: Some(wire::Counts {
            copies: counts.copies,
            applied: counts.applied,
            failed: counts.failed,
            waiting: counts.waiting,
            removing: counts.removing,
            drifted: counts.drifted,
            to_create: counts.to_create,
            to_update: counts.to_update,
            to_delete: counts.to_delete,
            absent: counts.absent,
        }),
        failures: state
            .failures
            .iter()
            .take(FAILURES_LIMIT)
            .map(failure_to_wire)
            .collect(),
        gone: state.gone,
        last_batch: state.last_batch,
        intents: state.intents,
        namespace_prunes: namespace_prunes.map_or(0, |namespace_prunes| namespace_prunes.copies),
        namespace_prunes_digest: namespace_prunes
            .map(|namespace_prunes| namespace_prunes.digest.0.to_vec().into())
            .unwrap_or_default(),
        pruned_namespaces: namespace_prunes
            .map(|namespace_prunes| namespace_prunes.namespaces.clone())
            .unwrap_or_default(),
        waiting_namespaces: state.waiting.first.clone(),
        waiting_namespace_count: state.waiting.count,
        suspended: state.suspended,
        proof: state
            .proof
            .map(|proof| proof.0.to_vec().into())
            .unwrap_or_default(),
        changes: state
            .changes
            .iter()
            .take(CHANGES_LIMIT)
            .map(copy_change_to_wire)
            .collect(),
    }
}

fn failure_to_wire(failure: &Failure) -> wire::Failure {
    let copy = source_to_wire(&failure.copy);
    wire::Failure {
        reason: reason_to_wire(failure.reason),
        resource: copy.resource,
        namespace: copy.namespace,
        name: copy.name,
        message: message(&failure.message),
    }
}

fn acked_intent_to_wire(acked: &AckedIntent) -> wire::AckedIntent {
    wire::AckedIntent {
        source: Some(source_to_wire(&acked.source)),
        revision: acked.revision.0.to_vec().into(),
    }
}

fn refusal_to_wire(refusal: &Refusal) -> wire::Refusal {
    wire::Refusal {
        rule_uid: refusal.rule.to_string(),
        source: Some(source_to_wire(&refusal.source)),
        revision: refusal.revision.0.to_vec().into(),
        reason: reason_to_wire(refusal.reason),
        message: message(&refusal.message),
    }
}

/// Splits a frame into frames of at most [`AGENT_FRAME_LIMIT`] bytes, in the order to send them.
/// The `last` flag is set on the last one only. An ack becomes several acks of one nonce, whose
/// refusals add up. A report or a want without items becomes no frame.
pub fn split(frame: AgentFrame) -> Vec<AgentFrame> {
    match frame {
        alone @ (AgentFrame::Hello(_)
        | AgentFrame::Handover
        | AgentFrame::Inspected(_)
        | AgentFrame::LostWatches(_)
        | AgentFrame::Keepalive) => vec![alone],
        AgentFrame::AckedRules(rules, last) => with_last(
            pack(rules, |rule| rule_state_to_wire(rule).encoded_len()),
            last,
        )
        .map(|(rules, last)| AgentFrame::AckedRules(rules, last))
        .collect(),
        AgentFrame::Detail(uid, intents, last) => with_last(
            pack(intents, |acked| acked_intent_to_wire(acked).encoded_len()),
            last,
        )
        .map(|(intents, last)| AgentFrame::Detail(uid.clone(), intents, last))
        .collect(),
        AgentFrame::Ack(nonce, refused) => {
            let packs = pack(refused, |refusal| refusal_to_wire(refusal).encoded_len());
            with_last(packs, true)
                .map(|(refused, _)| AgentFrame::Ack(nonce, refused))
                .collect()
        }
        AgentFrame::Report(rules) => pack(rules, |rule| rule_state_to_wire(rule).encoded_len())
            .into_iter()
            .map(AgentFrame::Report)
            .collect(),
        AgentFrame::PreviewResult(PreviewResult {
            question,
            copies,
            more,
            last,
            unanswered,
        }) => with_last(
            pack(copies, |copy| previewed_copy_to_wire(copy).encoded_len()),
            last,
        )
        .map(|(copies, last)| {
            let unanswered = unanswered.clone();
            AgentFrame::PreviewResult(PreviewResult {
                question,
                copies,
                more,
                last,
                unanswered,
            })
        })
        .collect(),
        AgentFrame::CopyList(CopyList {
            question,
            copies,
            more,
            last,
        }) => with_last(
            pack(copies, |copy| listed_copy_to_wire(copy).encoded_len()),
            last,
        )
        .map(|(copies, last)| {
            AgentFrame::CopyList(CopyList {
                question,
                copies,
                more,
                last,
            })
        })
        .collect(),
        AgentFrame::ContentRequest(uid, sources) => {
            pack(sources, |source| source_to_wire(source).encoded_len())
                .into_iter()
                .map(|sources| AgentFrame::ContentRequest(uid.clone(), sources))
                .collect()
        }
    }
}

/// The items in order, in runs that fit one frame each. One item alone always fits, as its parts are bounded.
fn pack<T>(items: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut packs: Vec<Vec<T>> = vec![];
    let mut room = 0;
    for item in items {
        let inner = size(&item);
        let cost = 1 + encoded_len_varint(inner as u64) + inner;
        match packs.last_mut() {
            Some(pack) if cost <= room => pack.push(item),
            _ => {
                packs.push(vec![item]);
                room = AGENT_FRAME_LIMIT - ENVELOPE;
            }
        }
        room = room.saturating_sub(cost);
    }
    packs
}

/// At least one pack, and the flag on the last of them only.
fn with_last<T>(mut packs: Vec<Vec<T>>, last: bool) -> impl Iterator<Item = (Vec<T>, bool)> {
    if packs.is_empty() {
        packs.push(vec![]);
    }
    let end = packs.len();
    packs
        .into_iter()
        .enumerate()
        .map(move |(at, pack)| (pack, last && at + 1 == end))
}
