//! Handles the frames of an agent within the limits of its session ([`Bounds`](super::bounds::Bounds)). Frames that
//! cannot be read after the Hello are ignored.
use std::collections::BTreeSet;
use std::time::Instant;

use runnel_proto::convert::FrameError;
use runnel_proto::model::{AgentFrame, HubFrame, Refusal, RuleUid};
use runnel_proto::{convert, wire};
use tonic::Status;

use super::session::{Running, SessionContext};
use crate::metrics::PeerLimit;
use runnel_hub_core::session::RULES_LIMIT;

/// The number of refusals that one session logs.
const REFUSALS_LOGGED: u64 = 10;
/// The number of pairs of a rule that cost as much as one state.
const PAIRS: usize = 16;
/// The agent must reconnect as soon as this many of the rules that were left out of its report fit,
/// or all of them.
const RECONNECT_RULES: usize = 1000;

/// Returns the cost of a frame in rule states, besides one for the frame itself.
fn cost_of(frame: &AgentFrame) -> usize {
    match frame {
        AgentFrame::AckedRules(states, _) | AgentFrame::Report(states) => states.len(),
        AgentFrame::Ack(_, refused) => refused.len(),
        AgentFrame::Detail(_, pairs, _) => pairs.len() / PAIRS,
        AgentFrame::ContentRequest(_, sources) => sources.len() / PAIRS,
        AgentFrame::PreviewResult(answer) => answer.copies.len() / PAIRS,
        AgentFrame::CopyList(answer) => answer.copies.len() / PAIRS,
        AgentFrame::Hello(_)
        | AgentFrame::Handover
        | AgentFrame::Inspected(_)
        | AgentFrame::LostWatches(_)
        | AgentFrame::Keepalive => 0,
    }
}

impl SessionContext {
    /// Whether a line about this member may be logged now. Logs the number of lines that were
    /// skipped since the last one.
    pub(super) fn may_log(&self) -> bool {
        let line = self.peers.line(self.identity.uid(), Instant::now());
        if let Some(skipped) = line.filter(|skipped| *skipped > 0) {
            tracing::info!(skipped, "lines about this member were not logged");
        }
        line.is_some()
    }

    /// Counts and ignores a frame of a newer or broken agent that cannot be read.
    fn pass_over_frame(&self, error: &FrameError) {
        self.metrics.limited(PeerLimit::Frames, 1);
        tracing::debug!(%error, "a frame of an agent is passed over");
    }

    /// Counts and ignores items of a frame that cannot be read.
    fn pass_over_items(&self, items: usize) {
        self.metrics.limited(PeerLimit::Items, items as u64);
        if items > 0 {
            tracing::debug!(count = items, "items of an agent's frame are passed over");
        }
    }
}

impl Running {
    pub(super) fn handle_frame(&mut self, frame: wire::AgentFrame) {
        self.bounds.spend_reads(1, &self.context.metrics);
        let (frame, refused) = match convert::agent_frame(frame) {
            Ok(read) => read,
            Err(error) if self.hello.is_none() => {
                return self.end(Status::invalid_argument(error.to_string()));
            }
            Err(error) => return self.context.pass_over_frame(&error),
        };
        self.context.pass_over_items(refused);
        self.bounds
            .spend_reads(cost_of(&frame), &self.context.metrics);
        match (frame, self.hello.is_some(), self.registered) {
            (AgentFrame::Hello(hello), false, _) => self.start_session(hello),
            (AgentFrame::AckedRules(rules, last), true, false) => {
                self.bounds.extend();
                self.extend_hello();
                let index = self.context.hub_state.index.read();
                self.acked
                    .add(rules, |uid| index.rules().get(uid).is_some());
                drop(index);
                if last {
                    self.register();
                }
            }
            (AgentFrame::AckedRules(rules, _), true, true) => self.resynced(rules),
            (AgentFrame::LostWatches(watches), _, true) => self.context.lost_watches(watches),
            (AgentFrame::Detail(uid, intents, last), _, true) => {
                self.context.live.session.lock().detail(&uid, intents, last);
                self.context.judge_orphaned();
            }
            (AgentFrame::Ack(nonce, refused), _, true) => {
                self.context.live.session.lock().ack(nonce);
                self.refused(&refused);
            }
            (AgentFrame::Report(rules), _, true) => self.reported(rules),
            (AgentFrame::ContentRequest(uid, sources), _, true) => self
                .context
                .live
                .session
                .lock()
                .request_content(&uid, sources),
            (AgentFrame::Inspected(answer), _, true) => {
                self.context.live.inquiries.answered(*answer)
            }
            (AgentFrame::PreviewResult(answer), _, true) => {
                self.context.live.inquiries.preview_result(answer)
            }
            (AgentFrame::CopyList(answer), _, true) => {
                self.context.live.inquiries.copy_list(answer)
            }
            (AgentFrame::Handover, _, true) => self.out.hand_over(Instant::now()),
            (AgentFrame::Keepalive, true, _) => {}
            _ => self.end(Status::failed_precondition(
                "a frame out of order: Hello, AckedRules, then all others",
            )),
        }
    }

    /// Ends the stream, because newer streams of this member began before the agent reported its
    /// acked set on this one.
    pub(super) fn superseded(&mut self) {
        let text = "other streams of this cluster began before the agent had reported its intents on this one";
        self.end(Status::resource_exhausted(text));
    }

    /// Handles the refusals of the agent. A session logs the first few; the others are only
    /// counted.
    fn refused(&mut self, refused: &[Refusal]) {
        for refusal in refused {
            self.bounds.refusals += 1;
            if self.bounds.refusals > REFUSALS_LOGGED {
                continue;
            }
            let Refusal {
                rule,
                source,
                reason,
                message: why,
                ..
            } = refusal;
            tracing::warn!(%rule, %source, reason = reason.as_str(), why, "the agent refused an intent");
            if self.bounds.refusals == REFUSALS_LOGGED {
                tracing::warn!("further refusals of this session are only counted");
            }
        }
        self.context.metrics.refused_by_agents(refused.len() as u64);
    }

    /// Marks the statuses of these rules as stale. Above the rate limit the statuses are marked
    /// later.
    pub(super) fn mark_statuses(&mut self, rules: Vec<RuleUid>) {
        let soon = self.bounds.statuses_now(rules, &self.context.metrics);
        self.context.hub_state.queues.dirty_rules.add(soon);
    }

    /// Returns the rules that may be judged now. The others are judged later.
    pub(super) fn judged_now(&mut self, rules: BTreeSet<RuleUid>) -> BTreeSet<RuleUid> {
        self.bounds.judgments_now(rules, &self.context.metrics)
    }

    /// Handles the delayed rules that are due.
    pub(super) fn handle_deferred(&mut self) {
        let late = std::mem::take(&mut self.bounds.deferred_statuses);
        self.mark_statuses(late.into_iter().collect());
        let late: Vec<_> = std::mem::take(&mut self.bounds.deferred_judgments)
            .into_iter()
            .collect();
        let cluster = self.context.identity.cluster.clone();
        self.judge_prune_requests(&cluster, &late);
        self.bounds.defer(Instant::now());
    }

    /// Makes an agent with more rules than a session stores reconnect when enough of the left-out
    /// rules fit.
    pub(super) fn reconnect_for_left_out_rules(&mut self) {
        let session = self.context.live.session.lock();
        let left_out = session.left_out_rules().min(RECONNECT_RULES);
        let has_room = left_out > 0 && session.acked_rules().count() + left_out <= RULES_LIMIT;
        drop(session);
        if has_room {
            self.out.end_with(HubFrame::Drain(0), Status::ok(""));
        }
    }
}
