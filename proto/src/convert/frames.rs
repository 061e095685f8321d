//! Frames of the hub, read by an agent, and frames of an agent, read by the hub. An agent's frames are split, so that
//! the hub's receive buffer stays small.
use prost::Message;
use prost::encoding::encoded_len_varint;

use super::copies::{
    copy_list, copy_list_to_wire, list_copies, list_copies_to_wire, listed_copy_to_wire,
};
use super::inspect::{inspect, inspect_to_wire, inspected, inspected_to_wire};
use super::parts::{
    ItemError, Refusals, Unreadable, deletion_policy, deletion_policy_to_wire, feedback_values,
    feedback_values_to_wire, intent, intent_to_wire, message, named_source, no_source, reason,
    reason_to_wire, revision, rule_name, rule_name_to_wire, rule_uid, source, source_to_wire,
    terms, terms_to_wire, text_or_empty, tombstone, tombstone_to_wire,
};
use super::preview::{
    preview_request, preview_request_to_wire, preview_result, preview_result_to_wire,
    previewed_copy_to_wire,
};
use super::{FrameError, NAME_LIMIT};
use crate::model::{
    AGENT_FRAME_LIMIT, AckedIntent, AgentFrame, Batch, CHANGES_LIMIT, ChangeOrigin, CopyAction,
    CopyChange, CopyFeedback, CopyList, Counts, FAILURES_LIMIT, FEEDBACK_BYTES, Failure, Hello,
    HubFrame, KINDS_LIMIT, LostWatch, NAMESPACES_LIMIT, NamespacePrunes, PreviewResult, Proof,
    ProofKey, PruneDigest, Refusal, RuleDelta, RuleState, RuleUid, SetDigest, SnapshotBegin,
    SnapshotEnd, TermsDigest, WaitingNamespaces, is_label, is_subdomain, plain_text,
};
use crate::wire;
use crate::wire::agent_frame::Frame as AgentPart;
use crate::wire::hub_frame::Frame as HubPart;

/// Maximum number of CAs in one frame.
const CA_BUNDLE_LIMIT: usize = 32;

/// Maximum number of lost watches: those of each kind of a policy, and that of namespaces.
const LOST_WATCHES_LIMIT: usize = KINDS_LIMIT + 1;

/// Decodes a frame of the hub, and returns the unreadable items of a batch or a question: they are
/// not in force, and are listed in the ack or the answer. A refusal without source concerns the
/// rule's terms or removal.
/// If the terms of a rule are unreadable, its new content is refused too, because the terms limit
/// its targets. Tombstones are handled nevertheless.
///
/// # Errors
/// [`FrameError`], if the frame is unknown to this agent, or unreadable outside a batch's items.
pub fn hub_frame(wire: wire::HubFrame) -> Result<(HubFrame, Vec<Refusal>), FrameError> {
    let malformed = |part| FrameError::Malformed { peer: "hub", part };
    let unreadable = |part| FrameError::Question { part };
    let mut refused = vec![];
    let frame = match wire.frame.ok_or(FrameError::Unknown {
        peer: "hub",
        own: "agent",
    })? {
        HubPart::SnapshotBegin(wire) => {
            HubFrame::SnapshotBegin(snapshot_begin(wire).map_err(malformed)?)
        }
        HubPart::DetailRequest(wire) => {
            let uids = wire
                .rule_uids
                .into_iter()
                .map(rule_uid)
                .collect::<Result<_, _>>();
            HubFrame::DetailRequest(uids.map_err(malformed)?)
        }
        HubPart::Batch(wire) => {
            let rules = wire
                .rules
                .into_iter()
                .map(|delta| rule_delta(delta, &mut refused))
                .collect();
            HubFrame::Batch(Batch {
                nonce: wire.nonce,
                rules,
            })
        }
        HubPart::SnapshotEnd(wire) => {
            let digest = SetDigest::from_bytes(&wire.digest).ok_or(malformed("digest"))?;
            HubFrame::SnapshotEnd(SnapshotEnd {
                intents: wire.intents,
                digest,
            })
        }
        HubPart::Drain(wire) if wire.handover => HubFrame::HandedOver,
        HubPart::Drain(wire) => HubFrame::Drain(wire.within_milliseconds),
        HubPart::CaBundle(wire) if wire.certificates.len() > CA_BUNDLE_LIMIT => {
            return Err(malformed("certificates"));
        }
        HubPart::CaBundle(wire) => HubFrame::CaBundle(wire.certificates),
        HubPart::Inspect(wire) => HubFrame::Inspect(inspect(wire).map_err(unreadable)?),
        HubPart::PreviewRequest(wire) => {
            HubFrame::PreviewRequest(Box::new(preview_request(wire, &mut refused)))
        }
        HubPart::ListCopies(wire) => {
            HubFrame::ListCopies(Box::new(list_copies(wire).map_err(unreadable)?))
        }
        HubPart::Keepalive(_) => HubFrame::Keepalive,
        HubPart::Revoked(wire) => HubFrame::Revoked(plain_text(&wire.reason, NAME_LIMIT)),
    };
    Ok((frame, refused))
}

fn snapshot_begin(wire: wire::SnapshotBegin) -> Result<SnapshotBegin, Unreadable> {
    Ok(SnapshotBegin {
        protocol: wire.protocol,
        hub_id: text_or_empty(wire.hub_id, NAME_LIMIT, "hub_id")?,
        hub_cluster_uid: text_or_empty(wire.hub_cluster_uid, NAME_LIMIT, "hub_cluster_uid")?,
        behind: wire.behind,
        proof_key: match wire.proof_key.as_ref() {
            [] => None,
            bytes => Some(ProofKey::new(bytes.try_into().map_err(|_| "proof_key")?)),
        },
    })
}

fn rule_delta(wire: wire::RuleDelta, all: &mut Vec<Refusal>) -> RuleDelta {
    let uid = RuleUid::from(plain_text(&wire.rule_uid, NAME_LIMIT));
    let mut delta = RuleDelta::new(uid.clone());
    let mut refused = Refusals { rule: uid, all };
    // A rule without a readable identity cannot be acted on at all: its items are refused one by one.
    let mut usable = match rule_uid(wire.rule_uid) {
        Ok(_) => Ok(()),
        Err(part) => Err(part),
    };
    let identified = usable.is_ok();
    if let (Some(wire), true) = (wire.terms, identified) {
        match terms(wire) {
            Ok(terms) => delta.terms = Some(terms),
            Err(part) => {
                refused.add_rule(part.into());
                usable = Err(part);
            }
        }
    }
    for wire in wire.upserts {
        let (live_digest, bytes) = (wire.source.clone(), wire.revision.clone());
        match usable.map_err(ItemError::from).and_then(|()| intent(wire)) {
            Ok(intent) => delta.upserts.push(intent),
            Err(error) => refused.add_item(live_digest.as_ref(), Some(&bytes), error),
        }
    }
    if !identified {
        refused.add_rule(ItemError::Unreadable("rule_uid"));
        return delta;
    }
    for wire in wire.tombstones {
        let live_digest = wire.source.clone();
        match tombstone(wire) {
            Ok(tombstone) => delta.tombstones.push(tombstone),
            Err(part) => refused.add_item(live_digest.as_ref(), None, part.into()),
        }
    }
    match wire
        .removal
        .map(|removal| deletion_policy(removal.deletion_policy))
    {
        None => {}
        Some(Ok(policy)) => delta.removal = Some(policy),
        Some(Err(part)) => refused.add_rule(part.into()),
    }
    (delta.orphaned, delta.suspend) = (wire.orphaned, wire.suspend);
    match wire.prune.as_ref() {
        [] => {}
        bytes => match bytes.try_into() {
            Ok(digest) => delta.prune = Some(PruneDigest(digest)),
            Err(_) => refused.add_rule(ItemError::Unreadable("prune")),
        },
    }
    delta
}

/// Writes a frame of the hub. Payload bytes are shared, not copied. The sender fills in epoch, term
/// and history token.
pub fn hub_frame_to_wire(frame: &HubFrame) -> wire::HubFrame {
    let frame = match frame {
        HubFrame::SnapshotBegin(begin) => HubPart::SnapshotBegin(wire::SnapshotBegin {
            protocol: begin.protocol,
            hub_id: begin.hub_id.clone(),
            hub_cluster_uid: begin.hub_cluster_uid.clone(),
            behind: begin.behind,
            proof_key: begin
                .proof_key
                .as_ref()
                .map(|key| key.bytes().to_vec().into())
                .unwrap_or_default(),
        }),
        HubFrame::DetailRequest(uids) => HubPart::DetailRequest(wire::DetailRequest {
            rule_uids: uids.iter().map(RuleUid::to_string).collect(),
        }),
        HubFrame::Batch(batch) => HubPart::Batch(wire::Batch {
            nonce: batch.nonce,
            rules: batch.rules.iter().map(rule_delta_to_wire).collect(),
        }),
        HubFrame::SnapshotEnd(end) => HubPart::SnapshotEnd(wire::SnapshotEnd {
            intents: end.intents,
            digest: end.digest.to_bytes().to_vec().into(),
        }),
        HubFrame::Drain(within_milliseconds) => HubPart::Drain(wire::Drain {
            within_milliseconds: *within_milliseconds,
            handover: false,
        }),
        HubFrame::Keepalive => HubPart::Keepalive(wire::Keepalive {}),
        HubFrame::HandedOver => HubPart::Drain(wire::Drain {
            within_milliseconds: 0,
            handover: true,
        }),
        HubFrame::CaBundle(all) => HubPart::CaBundle(wire::CaBundle {
            certificates: all.clone(),
        }),
        HubFrame::Inspect(question) => HubPart::Inspect(inspect_to_wire(question)),
        HubFrame::PreviewRequest(question) => {
            HubPart::PreviewRequest(preview_request_to_wire(question))
        }
        HubFrame::ListCopies(question) => HubPart::ListCopies(list_copies_to_wire(question)),
        HubFrame::Revoked(reason) => HubPart::Revoked(wire::Revoked {
            reason: reason.clone(),
        }),
    };
    wire::HubFrame {
        frame: Some(frame),
        ..wire::HubFrame::default()
    }
}

fn rule_delta_to_wire(delta: &RuleDelta) -> wire::RuleDelta {
    wire::RuleDelta {
        rule_uid: delta.uid.to_string(),
        terms: delta
            .terms
            .as_ref()
            .map(|(terms, digest)| terms_to_wire(terms, digest)),
        upserts: delta.upserts.iter().map(intent_to_wire).collect(),
        tombstones: delta.tombstones.iter().map(tombstone_to_wire).collect(),
        removal: delta.removal.map(|policy| wire::Removal {
            deletion_policy: deletion_policy_to_wire(policy),
        }),
        orphaned: delta.orphaned,
        prune: delta
            .prune
            .map(|digest| digest.0.to_vec().into())
            .unwrap_or_default(),
        suspend: delta.suspend,
    }
}

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

fn read(frame: AgentPart, refused: &mut usize) -> Result<AgentFrame, Unreadable> {
    Ok(match frame {
        AgentPart::Hello(wire) => AgentFrame::Hello(hello(&wire)),
        AgentPart::AckedRules(wire) => {
            AgentFrame::AckedRules(readable(wire.rules, rule_state, refused), wire.last)
        }
        AgentPart::Detail(wire) => AgentFrame::Detail(
            rule_uid(wire.rule_uid)?,
            readable(wire.intents, acked_intent, refused),
            wire.last,
        ),
        AgentPart::Ack(wire) => {
            AgentFrame::Ack(wire.nonce, wire.refused.into_iter().map(refusal).collect())
        }
        AgentPart::Report(wire) => AgentFrame::Report(readable(wire.rules, rule_state, refused)),
        AgentPart::ContentRequest(wire) => {
            let sources = readable(wire.sources, |wire| source(Some(wire)), refused);
            AgentFrame::ContentRequest(rule_uid(wire.rule_uid)?, sources)
        }
        AgentPart::Handover(_) => AgentFrame::Handover,
        AgentPart::LostWatches(wire) => {
            let watches = wire.watches.iter().filter_map(lost_watch);
            AgentFrame::LostWatches(watches.take(LOST_WATCHES_LIMIT).collect())
        }
        AgentPart::Inspected(wire) => AgentFrame::Inspected(Box::new(inspected(wire)?)),
        AgentPart::PreviewResult(wire) => AgentFrame::PreviewResult(preview_result(wire)),
        AgentPart::CopyList(wire) => AgentFrame::CopyList(copy_list(wire, refused)),
        AgentPart::Keepalive(_) => AgentFrame::Keepalive,
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
            with_health: counts.with_health,
            healthy: counts.healthy,
            unhealthy: counts.unhealthy,
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
        feedback: feedback(wire.feedback),
    })
}

/// Reads the values of copies, as far as they are within the limit. Unreadable ones are dropped.
fn feedback(wire: Vec<wire::CopyFeedback>) -> Vec<CopyFeedback> {
    let read = wire.into_iter().filter_map(|wire| {
        Some(CopyFeedback {
            copy: source(wire.copy).ok()?.plain(),
            values: feedback_values(wire.values),
        })
    });
    within_limit(read)
}

fn within_limit(all: impl Iterator<Item = CopyFeedback>) -> Vec<CopyFeedback> {
    let mut bytes = 0;
    all.take_while(|feedback| {
        bytes += feedback.bytes();
        bytes <= FEEDBACK_BYTES
    })
    .collect()
}

fn feedback_to_wire(feedback: &CopyFeedback) -> wire::CopyFeedback {
    wire::CopyFeedback {
        copy: Some(source_to_wire(&feedback.copy)),
        values: feedback_values_to_wire(&feedback.values),
    }
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

/// A watch of a name that no kind can have belongs to no rule.
fn lost_watch(wire: &wire::LostWatch) -> Option<LostWatch> {
    is_subdomain(&wire.resource).then(|| LostWatch {
        resource: wire.resource.as_str().into(),
        status: u16::try_from(wire.status).unwrap_or(u16::MAX),
    })
}

fn lost_watch_to_wire(watch: &LostWatch) -> wire::LostWatch {
    wire::LostWatch {
        resource: watch.resource.to_string(),
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
        AgentFrame::Hello(hello) => AgentPart::Hello(wire::Hello {
            protocol_min: hello.protocol_min,
            protocol_max: hello.protocol_max,
            agent_version: hello.agent_version.clone(),
            kubernetes_version: hello.kubernetes_version.clone(),
            boot_id: hello.boot_id.clone(),
            cluster_uid: hello.cluster_uid.clone(),
        }),
        AgentFrame::AckedRules(rules, last) => AgentPart::AckedRules(wire::AckedRules {
            rules: rules.iter().map(rule_state_to_wire).collect(),
            last: *last,
        }),
        AgentFrame::Detail(uid, intents, last) => AgentPart::Detail(wire::Detail {
            rule_uid: uid.to_string(),
            intents: intents.iter().map(acked_intent_to_wire).collect(),
            last: *last,
        }),
        AgentFrame::Ack(nonce, refused) => AgentPart::Ack(wire::Ack {
            nonce: *nonce,
            refused: refused.iter().map(refusal_to_wire).collect(),
        }),
        AgentFrame::Report(rules) => AgentPart::Report(wire::Report {
            rules: rules.iter().map(rule_state_to_wire).collect(),
        }),
        AgentFrame::ContentRequest(uid, sources) => {
            AgentPart::ContentRequest(wire::ContentRequest {
                rule_uid: uid.to_string(),
                sources: sources.iter().map(source_to_wire).collect(),
            })
        }
        AgentFrame::Handover => AgentPart::Handover(wire::Handover {}),
        AgentFrame::LostWatches(watches) => AgentPart::LostWatches(wire::LostWatches {
            watches: watches.iter().map(lost_watch_to_wire).collect(),
        }),
        AgentFrame::Inspected(answer) => AgentPart::Inspected(inspected_to_wire(answer)),
        AgentFrame::PreviewResult(answer) => {
            AgentPart::PreviewResult(preview_result_to_wire(answer))
        }
        AgentFrame::CopyList(answer) => AgentPart::CopyList(copy_list_to_wire(answer)),
        AgentFrame::Keepalive => AgentPart::Keepalive(wire::Keepalive {}),
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
            with_health: counts.with_health,
            healthy: counts.healthy,
            unhealthy: counts.unhealthy,
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
        feedback: within_limit(state.feedback.iter().cloned())
            .iter()
            .map(feedback_to_wire)
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
