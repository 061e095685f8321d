//! Handles the frames of the hub, and builds the reports of the agent.
use std::time::Instant;

use runnel_proto::model::{
    AgentFrame, Batch, HubFrame, Proof, Refusal, RuleState, RuleUid, SnapshotBegin, SnapshotEnd,
    SourceRef,
};

use super::Reconciler;
use crate::copy::CopyStatus;
use crate::desired::Shows;

impl Reconciler {
    /// Opens a stream. Its first frames report all rules.
    pub(super) fn connected(&mut self, now: Instant) {
        let rules: Vec<_> = self.desired.rules().cloned().collect();
        // Approvals of an earlier stream are void in a new one.
        self.disconnected(now);
        let states = self.states(&rules);
        self.hub.connect(states);
        for uid in &rules {
            self.report.reported(uid, now);
        }
    }

    /// Ends the stream, and with it all approvals of removals.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.hub.stream = None;
        self.previews.clear();
        for copy in self.prunes.end_stream() {
            self.reconcile_now(&copy, now);
        }
    }

    /// Returns the states of rules, and records the digests that they report.
    fn states(&mut self, rules: &[RuleUid]) -> Vec<RuleState> {
        let states: Vec<_> = rules.iter().filter_map(|uid| self.state(uid)).collect();
        for state in &states {
            let digest = state.namespace_prunes.as_ref().map(|prunes| prunes.digest);
            self.prunes.report(&state.uid, digest);
        }
        states
    }

    /// Returns the state of a rule.
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

    /// Returns the proof of a rule's copies under the hub's key. `None` while a copy is neither
    /// applied nor waiting for its namespace, and while a watch is lost.
    fn proof(&mut self, uid: &RuleUid) -> Option<Proof> {
        let key = self.hub.proof_key.clone()?;
        if !self.watches.lost().is_empty() {
            return None;
        }
        let counts = self.report.counts(uid);
        if counts.applied.saturating_add(counts.waiting) != counts.copies {
            return None;
        }
        let (report, records) = (&self.report, &self.records);
        let shows = |copy: &SourceRef| match report.outcome(copy, uid) {
            Some(CopyStatus::Applied) => {
                Shows::Content(records.live(copy).and_then(|live| live.facts.digest))
            }
            _ => Shows::Nothing,
        };
        Some(key.proof(uid, self.desired.shown(uid, shows)?))
    }

    pub(super) fn frame(&mut self, frame: HubFrame, refused: Vec<Refusal>, now: Instant) {
        match frame {
            HubFrame::SnapshotBegin(begin) => self.begin(&begin, now),
            // The agent ignores the orders of a hub that has revoked this cluster, until the hub
            // accepts it again.
            _ if self.revoked => {}
            HubFrame::WantDetail(uids) => {
                for uid in uids {
                    let pairs = self.desired.pairs(&uid);
                    self.hub.send(AgentFrame::Detail(uid, pairs, true));
                }
            }
            HubFrame::Batch(batch) => self.batch(batch, refused, now),
            HubFrame::SnapshotEnd(end) => self.end(end, now),
            HubFrame::Inspect(question) => {
                let answer = self.inspected(&question);
                self.hub.send(AgentFrame::Inspected(Box::new(answer)));
            }
            HubFrame::PreviewRequest(asked) => self.preview(&asked, &refused),
            // The connection handles these frames.
            HubFrame::Drain(_) | HubFrame::HandedOver | HubFrame::Revoked(_) => {}
            HubFrame::Authorities(_) | HubFrame::Alive => {}
        }
    }

    fn begin(&mut self, begin: &SnapshotBegin, now: Instant) {
        if let Some(stream) = &mut self.hub.stream {
            stream.begun = true;
        }
        if self.hub.proof_key != begin.proof_key {
            self.hub.proof_key.clone_from(&begin.proof_key);
            self.desired.rules().for_each(|uid| self.report.touch(uid));
        }
        let accepted = std::mem::take(&mut self.revoked);
        let moved = self.desired.set_hub_cluster(&begin.hub_cluster_uid);
        if moved {
            self.desired.mark_changed();
        }
        self.store.end_purge(&mut self.desired);
        if accepted || moved {
            self.reconcile_all(now);
        }
    }

    fn end(&mut self, end: SnapshotEnd, now: Instant) {
        for copy in self.desired.confirm(&self.records) {
            self.reconcile_now(&copy, now);
        }
        for uid in self.desired.rules().cloned().collect::<Vec<_>>() {
            // The approval may have arrived before the terms were confirmed.
            self.apply_approval(&uid, now);
            // The hub waits for a report of the complete snapshot.
            self.report.touch(&uid);
        }
        let (intents, digest) = self.desired.sum();
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

    fn batch(&mut self, batch: Batch, unreadable: Vec<Refusal>, now: Instant) {
        let nonce = batch.nonce;
        if let Some(stream) = &mut self.hub.stream {
            stream.last_batch = nonce;
        }
        // An approval covers the copies that wait now. A tombstone in the same batch may remove
        // some of them.
        for (uid, digest) in batch
            .rules
            .iter()
            .filter_map(|delta| Some((&delta.uid, delta.prune?)))
        {
            self.handle_approval(uid, digest, now);
        }
        let taken = self.desired.take(batch, unreadable, &self.records);
        for new in taken.payloads {
            self.hub.end_request(&new.key);
            self.cache.insert(new.key, new.revision, new.payload);
        }
        for key in &taken.dropped {
            self.hub.end_request(key);
            self.cache.remove(key);
        }
        for copy in &taken.looks {
            self.reconcile_now(copy, now);
        }
        for uid in &taken.rules {
            self.apply_approval(uid, now);
            self.report.touch(uid);
        }
        self.hub.ack(AgentFrame::Ack(nonce, taken.refused));
    }

    /// Returns the next frame for the hub, if there is one and a stream is open.
    pub fn next_frame(&mut self, now: Instant) -> Option<AgentFrame> {
        let queued = self.hub.next_queued(self.jobs.has_room());
        if queued.is_some() || !self.hub.has_begun() {
            return queued;
        }
        self.send_removed_rules();
        self.send_resync(now);
        self.hub.send_requests(now);
        self.send_states(now);
        // The states come first. So the hub has them when it receives that no watch is lost any
        // more.
        self.hub.send_lost(self.watches.lost());
        self.hub.next_queued(false)
    }

    /// Reports the rules that have no copies in this cluster any more.
    fn send_removed_rules(&mut self) {
        // An unlisted namespace may still have copies of a rule.
        let gone = self
            .desired
            .take_finished(&self.watches.unlisted_namespaces());
        let last_batch = self
            .hub
            .stream
            .as_ref()
            .map_or(0, |stream| stream.last_batch);
        let mut states = vec![];
        for gone in gone {
            self.report.forget(&gone.uid);
            self.prunes.report(&gone.uid, None);
            self.desired.mark_changed();
            states.push(RuleState {
                rule: gone.rule,
                gone: true,
                last_batch,
                ..RuleState::new(gone.uid)
            });
        }
        self.hub.send(AgentFrame::Report(states));
    }

    /// Reports the intents of the rules of found copies, which the hub did not send in this stream.
    fn send_resync(&mut self, now: Instant) {
        let rules = self.hub.take_resync(now);
        for uid in &rules {
            self.desired.forget_deleted(uid, &self.records);
        }
        let states: Vec<_> = rules.iter().filter_map(|uid| self.state(uid)).collect();
        if !states.is_empty() {
            self.hub.send(AgentFrame::AckedRules(states, true));
        }
    }

    fn send_states(&mut self, now: Instant) {
        let due = self.report.take_due(now);
        for uid in &due {
            self.apply_approval(uid, now);
        }
        let states = self.states(&due);
        self.hub.send(AgentFrame::Report(states));
    }
}
