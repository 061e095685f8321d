//! Frames of the hub, read by an agent.
use super::copies::{list_copies, list_copies_to_wire};
use super::inspect::{inspect, inspect_to_wire};
use super::intent::{ItemError, Refusals, intent, intent_to_wire, tombstone, tombstone_to_wire};
use super::parts::{
    Unreadable, deletion_policy, deletion_policy_to_wire, rule_uid, terms, terms_to_wire,
    text_or_empty,
};
use super::preview::{preview_request, preview_request_to_wire};
use super::{FrameError, NAME_LIMIT};
use crate::model::{
    Batch, HubFrame, ProofKey, PruneDigest, Refusal, RuleDelta, RuleUid, SetDigest, SnapshotBegin,
    SnapshotEnd, plain_text,
};
use crate::wire;
use crate::wire::hub_frame::Frame;

/// Maximum number of CAs in one frame.
const AUTHORITIES_LIMIT: usize = 32;

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
        Frame::SnapshotBegin(wire) => {
            HubFrame::SnapshotBegin(snapshot_begin(wire).map_err(malformed)?)
        }
        Frame::DetailRequest(wire) => {
            let uids = wire
                .rule_uids
                .into_iter()
                .map(rule_uid)
                .collect::<Result<_, _>>();
            HubFrame::DetailRequest(uids.map_err(malformed)?)
        }
        Frame::Batch(wire) => {
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
        Frame::SnapshotEnd(wire) => {
            let digest = SetDigest::from_bytes(&wire.digest).ok_or(malformed("digest"))?;
            HubFrame::SnapshotEnd(SnapshotEnd {
                intents: wire.intents,
                digest,
            })
        }
        Frame::Drain(wire) if wire.handover => HubFrame::HandedOver,
        Frame::Drain(wire) => HubFrame::Drain(wire.within_milliseconds),
        Frame::Authorities(wire) if wire.certificates.len() > AUTHORITIES_LIMIT => {
            return Err(malformed("certificates"));
        }
        Frame::Authorities(wire) => HubFrame::Authorities(wire.certificates),
        Frame::Inspect(wire) => HubFrame::Inspect(inspect(wire).map_err(unreadable)?),
        Frame::PreviewRequest(wire) => {
            HubFrame::PreviewRequest(Box::new(preview_request(wire, &mut refused)))
        }
        Frame::ListCopies(wire) => {
            HubFrame::ListCopies(Box::new(list_copies(wire).map_err(unreadable)?))
        }
        Frame::Keepalive(_) => HubFrame::Keepalive,
        Frame::Revoked(wire) => HubFrame::Revoked(plain_text(&wire.reason, NAME_LIMIT)),
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
        HubFrame::SnapshotBegin(begin) => Frame::SnapshotBegin(wire::SnapshotBegin {
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
        HubFrame::DetailRequest(uids) => Frame::DetailRequest(wire::DetailRequest {
            rule_uids: uids.iter().map(RuleUid::to_string).collect(),
        }),
        HubFrame::Batch(batch) => Frame::Batch(wire::Batch {
            nonce: batch.nonce,
            rules: batch.rules.iter().map(rule_delta_to_wire).collect(),
        }),
        HubFrame::SnapshotEnd(end) => Frame::SnapshotEnd(wire::SnapshotEnd {
            intents: end.intents,
            digest: end.digest.to_bytes().to_vec().into(),
        }),
        HubFrame::Drain(within_milliseconds) => Frame::Drain(wire::Drain {
            within_milliseconds: *within_milliseconds,
            handover: false,
        }),
        HubFrame::Keepalive => Frame::Keepalive(wire::Keepalive {}),
        HubFrame::HandedOver => Frame::Drain(wire::Drain {
            within_milliseconds: 0,
            handover: true,
        }),
        HubFrame::Authorities(all) => Frame::Authorities(wire::Authorities {
            certificates: all.clone(),
        }),
        HubFrame::Inspect(question) => Frame::Inspect(inspect_to_wire(question)),
        HubFrame::PreviewRequest(question) => {
            Frame::PreviewRequest(preview_request_to_wire(question))
        }
        HubFrame::ListCopies(question) => Frame::ListCopies(list_copies_to_wire(question)),
        HubFrame::Revoked(reason) => Frame::Revoked(wire::Revoked {
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
