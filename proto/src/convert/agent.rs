//! Frames of an agent, read by the hub.
use super::inspect::{inspected, inspected_to_wire};
use super::parts::{
    Unreadable, bounded, message, named_source, reason, reason_to_wire, revision, rule_name, rule_name_to_wire,
    rule_uid, source, source_to_wire, travel, travel_to_wire,
};
use super::suppose::{supposed, supposed_to_wire};
use super::{FrameError, NAME_LIMIT};
use crate::model::{
    AgentFrame, Asked, AskedDigest, Counts, FAILURES_LIMIT, Failure, GivenUp, HeldIntent, Hello, NAMESPACES_LIMIT,
    Proof, Refusal, RuleState, SetDigest, TermsDigest, Travel,
};
use crate::wire;
use crate::wire::agent_frame::Frame;

/// Reads a frame of an agent.
///
/// # Errors
/// [`FrameError`], when the frame is of a kind this hub does not know, or a part of it breaks the protocol.
pub fn agent_frame(wire: wire::AgentFrame) -> Result<AgentFrame, FrameError> {
    let frame = wire.frame.ok_or(FrameError::Unknown { peer: "agent", own: "hub" })?;
    read(frame).map_err(|part| FrameError::Malformed { peer: "agent", part })
}

fn read(frame: Frame) -> Result<AgentFrame, Unreadable> {
    Ok(match frame {
        Frame::Hello(wire) => AgentFrame::Hello(hello(wire)?),
        Frame::HeldRules(wire) => AgentFrame::HeldRules(all(wire.rules, rule_state)?, wire.last),
        Frame::Detail(wire) => AgentFrame::Detail(rule_uid(wire.rule_uid)?, all(wire.intents, held_intent)?, wire.last),
        Frame::Ack(wire) => AgentFrame::Ack(wire.nonce, wire.refused.into_iter().map(refusal).collect()),
        Frame::Report(wire) => AgentFrame::Report(all(wire.rules, rule_state)?),
        Frame::Want(wire) => AgentFrame::Want(rule_uid(wire.rule_uid)?, all(wire.sources, |wire| source(Some(wire)))?),
        Frame::Handover(_) => AgentFrame::Handover,
        Frame::Inspected(wire) => AgentFrame::Inspected(Box::new(inspected(wire)?)),
        Frame::Supposed(wire) => AgentFrame::Supposed(supposed(wire)),
    })
}

fn all<W, M>(items: Vec<W>, read: impl Fn(W) -> Result<M, Unreadable>) -> Result<Vec<M>, Unreadable> {
    items.into_iter().map(read).collect()
}

fn hello(wire: wire::Hello) -> Result<Hello, Unreadable> {
    Ok(Hello {
        protocol_min: wire.protocol_min,
        protocol_max: wire.protocol_max,
        agent_version: bounded(wire.agent_version, NAME_LIMIT, "agent_version")?,
        kubernetes_version: bounded(wire.kubernetes_version, NAME_LIMIT, "kubernetes_version")?,
        boot_id: bounded(wire.boot_id, NAME_LIMIT, "boot_id")?,
        cluster_uid: bounded(wire.cluster_uid, NAME_LIMIT, "cluster_uid")?,
    })
}

fn rule_state(wire: wire::RuleState) -> Result<RuleState, Unreadable> {
    let terms_digest = match wire.terms_digest.as_ref() {
        [] => None,
        bytes => Some(TermsDigest(bytes.try_into().map_err(|_| "terms_digest")?)),
    };
    let takeovers = match wire.takeovers_digest.as_ref() {
        [] => None,
        bytes => Some(Asked {
            objects: wire.takeovers,
            digest: AskedDigest(bytes.try_into().map_err(|_| "takeovers_digest")?),
        }),
    };
    let given_up = match wire.given_up_digest.as_ref() {
        [] => None,
        bytes => Some(GivenUp {
            copies: wire.given_up,
            digest: AskedDigest(bytes.try_into().map_err(|_| "given_up_digest")?),
            namespaces: wire
                .given_up_namespaces
                .into_iter()
                .take(NAMESPACES_LIMIT)
                .filter(|name| name.len() <= NAME_LIMIT)
                .collect(),
        }),
    };
    let counts = wire.counts.unwrap_or_default();
    Ok(RuleState {
        uid: rule_uid(wire.rule_uid)?,
        rule: rule_name(wire.rule)?,
        intents_digest: SetDigest::from_bytes(&wire.intents_digest).ok_or("intents_digest")?,
        intents: wire.intents,
        terms_digest,
        counts: Counts {
            copies: counts.copies,
            applied: counts.applied,
            failed: counts.failed,
            waiting: counts.waiting,
            removing: counts.removing,
            drifted: counts.drifted,
        },
        failures: wire.failures.into_iter().take(FAILURES_LIMIT).map(failure).collect(),
        gone: wire.gone,
        takeovers,
        given_up,
        travel: wire.travel.map_or(Ok(Travel::Plain), travel)?,
        left: wire.left,
        suspended: wire.suspended,
        proof: match wire.proof.as_ref() {
            [] => None,
            bytes => Some(Proof(bytes.try_into().map_err(|_| "proof")?)),
        },
    })
}

fn failure(wire: wire::Failure) -> Failure {
    let wire::Failure { resource, namespace, name, .. } = wire;
    let copy = wire::Source { resource, namespace, name, ..wire::Source::default() };
    Failure { reason: reason(wire.reason), copy: named_source(Some(&copy)), message: message(&wire.message) }
}

fn held_intent(wire: wire::HeldIntent) -> Result<HeldIntent, Unreadable> {
    Ok(HeldIntent { source: source(wire.source)?, revision: revision(&wire.revision)? })
}

/// A refusal gives back what the hub sent, which may be what the agent could not read: so every part is optional.
fn refusal(wire: wire::Refusal) -> Refusal {
    Refusal {
        rule: super::parts::cut(&wire.rule_uid, NAME_LIMIT).into(),
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
        AgentFrame::HeldRules(rules, last) => {
            Frame::HeldRules(wire::HeldRules { rules: rules.iter().map(rule_state_to_wire).collect(), last: *last })
        }
        AgentFrame::Detail(uid, intents, last) => Frame::Detail(wire::Detail {
            rule_uid: uid.to_string(),
            intents: intents.iter().map(held_intent_to_wire).collect(),
            last: *last,
        }),
        AgentFrame::Ack(nonce, refused) => {
            Frame::Ack(wire::Ack { nonce: *nonce, refused: refused.iter().map(refusal_to_wire).collect() })
        }
        AgentFrame::Report(rules) => {
            Frame::Report(wire::Report { rules: rules.iter().map(rule_state_to_wire).collect() })
        }
        AgentFrame::Want(uid, sources) => {
            Frame::Want(wire::Want { rule_uid: uid.to_string(), sources: sources.iter().map(source_to_wire).collect() })
        }
        AgentFrame::Handover => Frame::Handover(wire::Handover {}),
        AgentFrame::Inspected(answer) => Frame::Inspected(inspected_to_wire(answer)),
        AgentFrame::Supposed(answer) => Frame::Supposed(supposed_to_wire(answer)),
    };
    wire::AgentFrame { frame: Some(frame) }
}

pub(super) fn rule_state_to_wire(state: &RuleState) -> wire::RuleState {
    let (counts, given_up) = (&state.counts, state.given_up.as_ref());
    wire::RuleState {
        rule_uid: state.uid.to_string(),
        rule: Some(rule_name_to_wire(&state.rule)),
        intents_digest: state.intents_digest.to_bytes().to_vec().into(),
        terms_digest: state.terms_digest.map(|digest| digest.0.to_vec().into()).unwrap_or_default(),
        counts: Some(wire::Counts {
            copies: counts.copies,
            applied: counts.applied,
            failed: counts.failed,
            waiting: counts.waiting,
            removing: counts.removing,
            drifted: counts.drifted,
        }),
        failures: state.failures.iter().take(FAILURES_LIMIT).map(failure_to_wire).collect(),
        gone: state.gone,
        intents: state.intents,
        takeovers: state.takeovers.map_or(0, |takeovers| takeovers.objects),
        takeovers_digest: state.takeovers.map(|takeovers| takeovers.digest.0.to_vec().into()).unwrap_or_default(),
        given_up: given_up.map_or(0, |given_up| given_up.copies),
        given_up_digest: given_up.map(|given_up| given_up.digest.0.to_vec().into()).unwrap_or_default(),
        given_up_namespaces: given_up.map(|given_up| given_up.namespaces.clone()).unwrap_or_default(),
        travel: (state.travel != Travel::Plain).then(|| travel_to_wire(&state.travel)),
        left: state.left,
        suspended: state.suspended,
        proof: state.proof.map(|proof| proof.0.to_vec().into()).unwrap_or_default(),
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

pub(super) fn held_intent_to_wire(held: &HeldIntent) -> wire::HeldIntent {
    wire::HeldIntent { source: Some(source_to_wire(&held.source)), revision: held.revision.0.to_vec().into() }
}

pub(super) fn refusal_to_wire(refusal: &Refusal) -> wire::Refusal {
    wire::Refusal {
        rule_uid: refusal.rule.to_string(),
        source: Some(source_to_wire(&refusal.source)),
        revision: refusal.revision.0.to_vec().into(),
        reason: reason_to_wire(refusal.reason),
        message: message(&refusal.message),
    }
}
