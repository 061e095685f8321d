//! Splitting of an agent's frames, so that the hub's receive buffer stays small.
use prost::Message;
use prost::encoding::encoded_len_varint;

use super::agent::{acked_intent_to_wire, refusal_to_wire, rule_state_to_wire};
use super::parts::source_to_wire;
use super::preview::previewed_copy_to_wire;
use crate::model::{AGENT_FRAME_LIMIT, AgentFrame, PreviewResult};

/// What a frame costs beside its items: its envelope, a uid of the longest kind, a nonce, a flag.
const ENVELOPE: usize = 320;

/// The frames that say what this one says, each at most [`AGENT_FRAME_LIMIT`] encoded, in the order to send them.
///
/// A `last` flag stands on the last one only. An ack becomes several acks of one nonce, whose refusals add up.
/// A report or a want without items becomes no frame.
pub fn split(frame: AgentFrame) -> Vec<AgentFrame> {
    match frame {
        alone @ (AgentFrame::Hello(_)
        | AgentFrame::Handover
        | AgentFrame::Inspected(_)
        | AgentFrame::LostWatches(_)
        | AgentFrame::Alive) => vec![alone],
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
        AgentFrame::Want(uid, sources) => {
            pack(sources, |source| source_to_wire(source).encoded_len())
                .into_iter()
                .map(|sources| AgentFrame::Want(uid.clone(), sources))
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
