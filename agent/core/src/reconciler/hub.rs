//! The stream: what is said to the hub, and what is taken from it.
use std::collections::BTreeMap;
use std::time::Instant;

use runnel_proto::convert::split;
use runnel_proto::model::{
    AgentFrame, AskedDigest, Batch, HubFrame, Refusal, RuleState, RuleUid, SnapshotBegin, SnapshotEnd,
};

use super::{ASK_AGAIN, HubStream, Reconciler};

impl Reconciler {
    pub(super) fn connected(&mut self, now: Instant) {
        let rules: Vec<_> = self.desired.rules().cloned().collect();
        // A new stream says anew what may be overwritten, and what may go.
        self.lost(now);
        let states: Vec<_> = rules.iter().filter_map(|uid| self.state(uid)).collect();
        for state in &states {
            self.note_approved(&state.uid, digest_in(state));
        }
        let mut session = HubStream::default();
        session.outbox.push_back(AgentFrame::Hello(self.hello.clone()));
        session.outbox.extend(split(AgentFrame::AckedRules(states, true)));
        // That speaks of everything.
        self.resync.clear();
        self.resync_at = None;
        self.sent_lost.clear();
        self.session = Some(session);
        for uid in &rules {
            self.report.reported(uid, now);
        }
    }

    /// The stream has ended: nothing goes whose namespace is no longer a target before the hub names it in another one.
    pub(super) fn lost(&mut self, now: Instant) {
        self.session = None;
        self.suppositions.clear();
        self.questions.clear();
        self.approved.clear();
        for copy in self.namespace_prunes.end_stream() {
            self.reconcile_now(&copy, now);
        }
    }

    /// How a rule is.
    fn state(&mut self, uid: &RuleUid) -> Option<RuleState> {
        let acked_rule = self.desired.acked(uid)?;
        let proof = self.proof(uid);
        Some(RuleState {
            uid: uid.clone(),
            rule: acked_rule.rule,
            intents_digest: acked_rule.digest,
            intents: acked_rule.intents,
            terms_digest: acked_rule.terms,
            counts: self.report.counts(uid),
            failures: self.report.failures(uid),
            gone: false,
            last_batch: 0,
            namespace_prunes: self.namespace_prunes_of(uid),
            suspended: acked_rule.suspended,
            proof,
        })
    }

    pub(super) fn frame(&mut self, frame: HubFrame, refused: Vec<Refusal>, now: Instant) {
        match frame {
            HubFrame::SnapshotBegin(begin) => self.begin(&begin, now),
            // A hub that has revoked this cluster gives no orders before it accepts it again.
            _ if self.revoked => {}
            HubFrame::WantDetail(uids) => {
                for uid in uids {
                    let pairs = self.desired.pairs(&uid);
                    self.send(AgentFrame::Detail(uid, pairs, true));
                }
            }
            HubFrame::Batch(batch) => self.batch(batch, refused, now),
            HubFrame::SnapshotEnd(end) => self.end(end, now),
            HubFrame::Inspect(question) => self.answer(&question),
            HubFrame::Suppose(asked) => self.suppose(&asked, &refused),
            // The connection is the link's affair.
            HubFrame::Drain(_) | HubFrame::HandedOver | HubFrame::Revoked(_) => {}
            HubFrame::Authorities(_) | HubFrame::Alive => {}
        }
    }

    fn begin(&mut self, begin: &SnapshotBegin, now: Instant) {
        if let Some(session) = &mut self.session {
            session.begun = true;
        }
        if self.proof_key != begin.proof_key {
            self.proof_key.clone_from(&begin.proof_key);
            self.desired.rules().for_each(|uid| self.report.touch(uid));
        }
        let accepted = std::mem::take(&mut self.revoked);
        let moved = self.desired.set_hub_cluster(&begin.hub_cluster_uid);
        if moved {
            self.desired.note_change();
        }
        self.end_purge();
        if accepted || moved {
            self.look_at_everything(now);
        }
    }

    fn end(&mut self, end: SnapshotEnd, now: Instant) {
        for copy in self.desired.confirm(&self.records) {
            self.reconcile_now(&copy, now);
        }
        for uid in self.desired.rules().cloned().collect::<Vec<_>>() {
            // What was named before the terms were known to be in force.
            self.take_approvals(&uid, now);
            // The hub waits to hear what it is asked for now that everything is known of it.
            self.report.touch(&uid);
        }
        let (intents, digest) = self.desired.sum();
        tracing::info!(intents = end.intents, "the hub's snapshot is taken in");
        if (intents, digest) != (end.intents, end.digest) {
            tracing::debug!(
                acked = intents,
                announced = end.intents,
                "the hub does not speak of everything that is held here"
            );
        }
    }

    fn batch(&mut self, batch: Batch, unreadable: Vec<Refusal>, now: Instant) {
        let nonce = batch.nonce;
        if let Some(session) = &mut self.session {
            session.last_batch = nonce;
        }
        // What was named is what waits now: a tombstone beside it may take a part of that along.
        for (uid, digest) in batch.rules.iter().filter_map(|delta| Some((&delta.uid, delta.prune?))) {
            self.handle_approvals(uid, digest, now);
        }
        let taken = self.desired.take(batch, unreadable, &self.records);
        for new in taken.payloads {
            self.wanting.remove(&new.key);
            self.cache.insert(new.key, new.revision, new.payload);
        }
        for key in &taken.dropped {
            self.wanting.remove(key);
            self.cache.remove(key);
        }
        for copy in &taken.looks {
            self.reconcile_now(copy, now);
        }
        for uid in &taken.rules {
            self.take_approvals(uid, now);
            self.report.touch(uid);
        }
        if let Some(session) = &mut self.session {
            session.acks.extend(split(AgentFrame::Ack(nonce, taken.refused)));
        }
    }

    pub(super) fn send(&mut self, frame: AgentFrame) {
        if let Some(session) = &mut self.session {
            session.outbox.extend(split(frame));
        }
    }

    /// The next frame for the hub, if there is one and a stream is open.
    pub fn next_frame(&mut self, now: Instant) -> Option<AgentFrame> {
        let room = self.has_room();
        let session = self.session.as_mut()?;
        if let Some(frame) = session.outbox.pop_front() {
            return Some(frame);
        }
        if room && let Some(ack) = session.acks.pop_front() {
            return Some(ack);
        }
        if session.begun {
            self.say_gone();
            self.send_resync(now);
            self.ask_for_content(now);
            self.say_states(now);
            self.send_lost();
        }
        self.session.as_mut()?.outbox.pop_front()
    }

    fn say_gone(&mut self) {
        // What the agent cannot see may still hold copies of a rule.
        let unseen = self.areas.iter().filter(|(_, watched)| !watched.complete);
        let unseen = unseen.map(|(area, _)| area.namespace.clone()).collect();
        let gone = self.desired.take_gone(&unseen);
        let last_batch = self.session.as_ref().map_or(0, |session| session.last_batch);
        let states: Vec<_> = gone
            .into_iter()
            .map(|gone| {
                self.report.forget(&gone.uid);
                self.note_approved(&gone.uid, None);
                self.desired.note_change();
                RuleState { rule: gone.rule, gone: true, last_batch, ..RuleState::new(gone.uid) }
            })
            .collect();
        self.send(AgentFrame::Report(states));
    }

    /// Tells the hub what is held of the rules of which copies came to light: it did not send that on this stream.
    fn send_resync(&mut self, now: Instant) {
        if self.resync_at.is_none_or(|at| at > now) {
            return;
        }
        self.resync_at = None;
        let rules = std::mem::take(&mut self.resync);
        for uid in &rules {
            self.desired.forget_deleted(uid, &self.records);
        }
        let states: Vec<_> = rules.iter().filter_map(|uid| self.state(uid)).collect();
        if !states.is_empty() {
            self.send(AgentFrame::AckedRules(states, true));
        }
    }

    fn ask_for_content(&mut self, now: Instant) {
        let Some(session) = &mut self.session else { return };
        if session.ask_again.is_none_or(|at| at <= now) {
            session.ask.clone_from(&self.wanting);
            session.ask_again = Some(now + ASK_AGAIN);
        }
        let mut wants: BTreeMap<RuleUid, Vec<_>> = BTreeMap::new();
        for key in std::mem::take(&mut session.ask) {
            if self.wanting.contains(&key) {
                wants.entry(key.rule).or_default().push(key.source);
            }
        }
        for (uid, sources) in wants {
            self.send(AgentFrame::Want(uid, sources));
        }
    }

    fn say_states(&mut self, now: Instant) {
        let due = self.report.take_due(now);
        for uid in &due {
            self.take_approvals(uid, now);
        }
        let states: Vec<_> = due.iter().filter_map(|uid| self.state(uid)).collect();
        for state in &states {
            self.note_approved(&state.uid, digest_in(state));
        }
        self.send(AgentFrame::Report(states));
    }
}

/// What a rule's state says of the copies in namespaces given up.
fn digest_in(state: &RuleState) -> Option<AskedDigest> {
    state.namespace_prunes.as_ref().map(|namespace_prunes| namespace_prunes.digest)
}
