//! What the member side takes from the hub's frames, and the states of rules that it reports.
use std::time::Instant;

use runnel_proto::model::{Batch, Proof, ProofKey, Refusal, RuleState, RuleUid, SourceRef};

use super::member::Member;
use super::prunes;
use crate::copy::CopyStatus;
use crate::desired::{CopyDigest, Desired};
use crate::records::Records;
use crate::report::Report;

impl Member {
    /// Returns the states of all rules for a new stream.
    pub(super) fn begin_stream(&mut self, key: Option<&ProofKey>) -> Vec<RuleState> {
        let rules: Vec<_> = self.desired.rules().uids().cloned().collect();
        let states = self.states(&rules, key);
        self.prunes.reported(&states);
        self.payloads.request_again();
        self.report.reported_all(&rules);
        states
    }

    /// Ends all approvals of removals, because the stream has ended.
    pub(super) fn end_stream(&mut self, now: Instant) {
        for copy in self.prunes.end_stream() {
            self.reconcile_now(&copy, now);
        }
    }

    /// Handles the begin of a session with this hub cluster.
    pub(super) fn begin_session(&mut self, hub_cluster_uid: &str, now: Instant) {
        let accepted = std::mem::take(&mut self.revoked);
        let moved = self.desired.set_hub_cluster(hub_cluster_uid);
        if moved {
            self.desired.mark_changed();
        }
        self.store.end_purge(&mut self.desired);
        if accepted || moved {
            self.reconcile_all(now);
        }
    }

    /// Puts the terms in force that the hub's snapshot does not contain.
    pub(super) fn end_snapshot(&mut self, now: Instant) {
        for copy in self.desired.confirm(&self.records) {
            self.reconcile_now(&copy, now);
        }
        for uid in self.desired.rules().uids().cloned().collect::<Vec<_>>() {
            // The approval may have arrived before the terms were confirmed.
            self.apply_approval(&uid, now);
            // The hub waits for a report of the complete snapshot.
            self.report.touch(&uid);
        }
    }

    /// Applies a batch, and returns the items that are not in force. `unreadable` are its items
    /// that could not be decoded.
    pub(super) fn take(
        &mut self,
        batch: Batch,
        unreadable: Vec<Refusal>,
        now: Instant,
    ) -> Vec<Refusal> {
        // An approval covers the copies that wait now. A tombstone in the same batch may remove
        // some of them.
        for delta in &batch.rules {
            if let Some(digest) = delta.prune
                && self.prunes.offer(&delta.uid, digest)
            {
                self.apply_approval(&delta.uid, now);
            }
        }
        let result = self.desired.take(batch, unreadable, &self.records);
        for new in result.payloads {
            self.payloads.insert(new);
        }
        for key in &result.dropped {
            self.payloads.remove(key);
        }
        for uid in &result.rules {
            self.history.audit.ordered(uid, now);
        }
        for copy in &result.changed_copies {
            self.reconcile_now(copy, now);
        }
        for uid in &result.rules {
            self.apply_approval(uid, now);
            self.report.touch(uid);
        }
        result.refused
    }

    /// Removes the copies that the hub has approved, if exactly these copies wait. Terms that the
    /// hub has not confirmed remove nothing.
    fn apply_approval(&mut self, rule: &RuleUid, now: Instant) {
        if !self.prunes.has_offer(rule) || self.desired.rules().is_unconfirmed(rule) {
            return;
        }
        let waiting = prunes::waiting(rule, &self.report, &self.records);
        if self.prunes.take(rule, &waiting) {
            tracing::info!(%rule, copies = waiting.len(), "the hub has approved the removal of copies from namespaces that are no longer targets");
            for copy in waiting.keys() {
                self.reconcile_now(copy, now);
            }
        }
    }

    /// Returns the last states of the rules that have no copies in this cluster any more.
    pub(super) fn take_finished(&mut self) -> Vec<RuleState> {
        // An unlisted namespace may still have copies of a rule.
        let unlisted = self.watches.unlisted_namespaces();
        let finished = self.desired.rules_mut().take_finished(&unlisted);
        let mut states = vec![];
        for gone in finished {
            self.report.forget(&gone.uid);
            self.prunes.report(&gone.uid, None);
            self.desired.mark_changed();
            let changes = self.history.audit.take_unreported(&gone.uid);
            self.history.audit.forget(&gone.uid);
            states.push(RuleState {
                rule: gone.rule,
                changes,
                gone: true,
                ..RuleState::new(gone.uid)
            });
        }
        states
    }

    /// Returns the states of the rules of found copies, which the hub did not send in this stream.
    pub(super) fn take_found(&mut self, key: Option<&ProofKey>, now: Instant) -> Vec<RuleState> {
        let rules = self.report.take_resync(now);
        for uid in &rules {
            self.desired.rules_mut().forget_deleted(uid, &self.records);
            self.jobs.outdate_decisions();
        }
        self.states(&rules, key)
    }

    /// Returns the states of the rules whose report is due.
    pub(super) fn take_due(&mut self, key: Option<&ProofKey>, now: Instant) -> Vec<RuleState> {
        let due = self.report.take_due(now);
        for uid in &due {
            self.apply_approval(uid, now);
        }
        let mut states = self.states(&due, key);
        self.prunes.reported(&states);
        for state in &mut states {
            state.changes = self.history.audit.take_unreported(&state.uid);
        }
        states
    }

    /// Returns the states of rules. While a watch is lost, they prove nothing.
    fn states<'a>(
        &mut self,
        rules: impl IntoIterator<Item = &'a RuleUid>,
        key: Option<&ProofKey>,
    ) -> Vec<RuleState> {
        let mut states = RuleStates {
            desired: &mut self.desired,
            records: &self.records,
            report: &self.report,
            key: key.filter(|_| self.watches.lost().is_empty()),
        };
        let rules = rules.into_iter();
        rules.filter_map(|uid| states.state(uid)).collect()
    }
}

/// What the states of rules show.
struct RuleStates<'a> {
    /// It keeps the digests of copies for later.
    desired: &'a mut Desired,
    records: &'a Records,
    report: &'a Report,
    key: Option<&'a ProofKey>,
}

impl RuleStates<'_> {
    /// Returns the state of a rule.
    fn state(&mut self, uid: &RuleUid) -> Option<RuleState> {
        let acked_rule = self.desired.rules().acked(uid)?;
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
            namespace_prunes: prunes::summary(uid, self.report, self.records),
            waiting: self.report.waiting(uid),
            suspended: acked_rule.suspended,
            proof: self.proof(uid),
            changes: vec![],
        })
    }

    /// Returns the proof of a rule's copies under the hub's key. `None` while a copy is neither
    /// applied nor waiting for its namespace.
    fn proof(&mut self, uid: &RuleUid) -> Option<Proof> {
        let key = self.key?;
        let counts = self.report.counts(uid);
        if counts.applied.saturating_add(counts.waiting) != counts.copies {
            return None;
        }
        let (report, records) = (self.report, self.records);
        let shows = |copy: &SourceRef| match report.outcome(copy, uid) {
            Some(CopyStatus::Applied) => {
                CopyDigest::Content(records.live(copy).and_then(|live| live.facts.digest))
            }
            _ => CopyDigest::Nothing,
        };
        Some(key.proof(uid, self.desired.intents_digest(uid, shows)?))
    }
}
