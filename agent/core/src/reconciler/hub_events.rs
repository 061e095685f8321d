//! The stream to the hub: its queued frames, the frames of the hub, and the reports of the agent.
use std::collections::VecDeque;
use std::time::Instant;

use runnel_proto::convert::split;
use runnel_proto::model::{
    AgentFrame, Hello, HubFrame, LostWatch, ProofKey, Refusal, RuleState, SnapshotBegin,
    SnapshotEnd,
};

use super::Reconciler;
use super::preview::{PendingPreviews, preview_job};

impl Reconciler {
    /// Opens a stream. Its first frames report all rules.
    pub(super) fn connected(&mut self, now: Instant) {
        // Approvals of an earlier stream are void in a new one.
        self.disconnected(now);
        let states = self.member.begin_stream(self.hub.proof_key.as_ref());
        self.hub.connect(states);
    }

    /// Ends the stream, and with it all approvals of removals.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.hub.disconnect();
        self.member.end_stream(now);
    }

    /// Handles a frame of the hub. `refused`: its items that could not be decoded.
    pub(super) fn frame(&mut self, frame: HubFrame, refused: Vec<Refusal>, now: Instant) {
        match frame {
            HubFrame::SnapshotBegin(begin) => self.begin(&begin, now),
            // The agent ignores the orders of a hub that has revoked this cluster, until the hub
            // accepts it again.
            _ if self.member.revoked => {}
            HubFrame::DetailRequest(uids) => {
                for uid in uids {
                    let pairs = self.member.desired.rules().pairs(&uid);
                    self.hub.send(AgentFrame::Detail(uid, pairs, true));
                }
            }
            HubFrame::Batch(batch) => {
                let nonce = batch.nonce;
                self.hub.record_batch(nonce);
                let refused = self.member.take(batch, refused, now);
                self.hub.ack(AgentFrame::Ack(nonce, refused));
            }
            HubFrame::SnapshotEnd(end) => self.end(end, now),
            HubFrame::Inspect(question) => {
                let answer = self.member.decider().inspected(&question);
                self.hub.answer(AgentFrame::Inspected(Box::new(answer)));
            }
            HubFrame::ListCopies(question) => {
                let answer = self.member.decider().listed(&question);
                self.hub.answer(AgentFrame::CopyList(answer));
            }
            HubFrame::PreviewRequest(asked) => match preview_job(&self.member, &asked, &refused) {
                Ok(preview_job) => self.hub.previews.add(preview_job),
                Err(answer) => self.hub.send(AgentFrame::PreviewResult(answer)),
            },
            // The connection handles these frames.
            HubFrame::Drain(_) | HubFrame::HandedOver | HubFrame::Revoked(_) => {}
            HubFrame::Authorities(_) | HubFrame::Keepalive => {}
        }
    }

    fn begin(&mut self, begin: &SnapshotBegin, now: Instant) {
        if self.hub.begin(begin.proof_key.as_ref()) {
            let rules = self.member.desired.rules().uids();
            self.member.report.touch_all(rules);
        }
        self.member.begin_session(&begin.hub_cluster_uid, now);
    }

    fn end(&mut self, end: SnapshotEnd, now: Instant) {
        self.member.end_snapshot(now);
        let (intents, digest) = self.member.desired.rules().sum();
        tracing::info!(
            intents = end.intents,
            "the hub's snapshot is applied to the desired set"
        );
        if (intents, digest) != (end.intents, end.digest) {
            tracing::debug!(
                acked = intents,
                announced = end.intents,
                "this cluster has intents that are not part of the hub's snapshot"
            );
        }
    }

    /// Returns the next frame for the hub, if there is one and a stream is open.
    pub fn next_frame(&mut self, now: Instant) -> Option<AgentFrame> {
        let queued = self.hub.next_queued(self.has_room());
        if queued.is_some() || !self.hub.has_begun() {
            return queued;
        }
        self.hub.send_removed(self.member.take_finished());
        let key = self.hub.proof_key.as_ref();
        let found = self.member.take_found(key, now);
        let requests = self.member.payloads.take_requests(now);
        let due = self.member.take_due(key, now);
        if !found.is_empty() {
            self.hub.send(AgentFrame::AckedRules(found, true));
        }
        for (uid, sources) in requests {
            self.hub.send(AgentFrame::ContentRequest(uid, sources));
        }
        self.hub.send(AgentFrame::Report(due));
        // The states come first. So the hub has them when it receives that no watch is lost any
        // more.
        self.hub.send_lost(self.member.watches.lost());
        self.hub.next_queued(false)
    }
}

/// The queued frames from which on questions get no answer: more than a hub with its limit of open questions causes.
pub(super) const ANSWERS_LIMIT: usize = 256;

/// An open stream.
#[derive(Default)]
struct HubStream {
    begun: bool,
    /// The nonce of the last batch that was applied to the desired set.
    last_batch: u64,
    outbox: VecDeque<AgentFrame>,
    acks: VecDeque<AgentFrame>,
    /// The lost watches that were last reported.
    sent_lost: Vec<LostWatch>,
}

/// The stream to the hub, and the state that survives a stream.
pub(super) struct HubLink {
    hello: Hello,
    stream: Option<HubStream>,
    pub(super) previews: PendingPreviews,
    /// The hub's key for proofs of content. It is never stored.
    proof_key: Option<ProofKey>,
}

impl HubLink {
    pub(super) fn new(hello: Hello) -> Self {
        Self {
            hello,
            stream: None,
            previews: PendingPreviews::default(),
            proof_key: None,
        }
    }

    /// Opens a stream with the states of all rules.
    fn connect(&mut self, states: Vec<RuleState>) {
        let mut stream = HubStream::default();
        stream
            .outbox
            .push_back(AgentFrame::Hello(self.hello.clone()));
        stream
            .outbox
            .extend(split(AgentFrame::AckedRules(states, true)));
        self.stream = Some(stream);
    }

    /// Ends the stream, and with it the requests of the hub.
    fn disconnect(&mut self) {
        self.stream = None;
        self.previews.clear();
    }

    /// Begins a snapshot. Returns whether the hub has another key for proofs than before.
    fn begin(&mut self, proof_key: Option<&ProofKey>) -> bool {
        if let Some(stream) = &mut self.stream {
            stream.begun = true;
        }
        let is_other = self.proof_key.as_ref() != proof_key;
        if is_other {
            self.proof_key = proof_key.cloned();
        }
        is_other
    }

    /// Whether the hub has begun its snapshot in this stream.
    pub(super) fn has_begun(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.begun)
    }

    /// Records the last batch that was applied to the desired set.
    fn record_batch(&mut self, nonce: u64) {
        if let Some(stream) = &mut self.stream {
            stream.last_batch = nonce;
        }
    }

    /// Queues a frame, if a stream is open.
    pub(super) fn send(&mut self, frame: AgentFrame) {
        if let Some(stream) = &mut self.stream {
            stream.outbox.extend(split(frame));
        }
    }

    /// Queues an answer. It is dropped while a hub that asks does not read.
    fn answer(&mut self, frame: AgentFrame) {
        let queued = self.stream.as_ref().map_or(0, |stream| stream.outbox.len());
        if queued < ANSWERS_LIMIT {
            self.send(frame);
        }
    }

    /// Queues an ack. It is sent only while the agent has room for more payload.
    fn ack(&mut self, frame: AgentFrame) {
        if let Some(stream) = &mut self.stream {
            stream.acks.extend(split(frame));
        }
    }

    /// Returns the next queued frame.
    fn next_queued(&mut self, has_room: bool) -> Option<AgentFrame> {
        let stream = self.stream.as_mut()?;
        stream.outbox.pop_front().or_else(|| {
            if has_room {
                stream.acks.pop_front()
            } else {
                None
            }
        })
    }

    /// Reports the rules that have no copies in this cluster any more.
    fn send_removed(&mut self, mut states: Vec<RuleState>) {
        let last_batch = self.stream.as_ref().map_or(0, |stream| stream.last_batch);
        for state in &mut states {
            state.last_batch = last_batch;
        }
        self.send(AgentFrame::Report(states));
    }

    /// Queues the lost watches, if they have changed.
    fn send_lost(&mut self, lost: Vec<LostWatch>) {
        if let Some(stream) = &mut self.stream
            && lost != stream.sent_lost
        {
            stream.sent_lost.clone_from(&lost);
            self.send(AgentFrame::LostWatches(lost));
        }
    }
}
