//! The rule states that are due for the hub.
use std::time::Instant;

use runnel_proto::model::{
    CopyFeedback, FEEDBACK_BYTES, LostWatch, Proof, ProofKey, RuleState, RuleUid, SourceRef,
};

use super::member::Member;
use super::prunes;
use crate::copy::CopyStatus;
use crate::desired::{CopyDigest, Desired};
use crate::feedback;
use crate::records::Records;
use crate::report::Report;

impl Member {
    /// Returns the last states of the rules that have no copies in this cluster any more.
    pub(super) fn take_finished(&mut self) -> Vec<RuleState> {
        let unlisted = self.watches.unlisted();
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
        self.forget_deleted(&rules);
        self.states(&rules, key)
    }

    /// Forgets the found intents of rules whose copies are deleted or taken over again.
    pub(super) fn forget_deleted<'a>(&mut self, rules: impl IntoIterator<Item = &'a RuleUid>) {
        for uid in rules {
            self.desired.forget_deleted(uid, &self.records);
            self.jobs.outdate_decisions();
        }
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

    /// Returns the states of rules. While a watch of their copies is lost, they prove nothing.
    pub(super) fn states<'a>(
        &mut self,
        rules: impl IntoIterator<Item = &'a RuleUid>,
        key: Option<&ProofKey>,
    ) -> Vec<RuleState> {
        let mut states = RuleStates {
            desired: &mut self.desired,
            records: &self.records,
            report: &self.report,
            key,
            lost: &self.watches.lost(),
        };
        let rules = rules.into_iter();
        rules.filter_map(|uid| states.state(uid)).collect()
    }
}

/// Computes the states of rules for reports.
struct RuleStates<'a> {
    /// It keeps the digests of copies for later.
    desired: &'a mut Desired,
    records: &'a Records,
    report: &'a Report,
    key: Option<&'a ProofKey>,
    lost: &'a [LostWatch],
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
            feedback: self.feedback(uid),
        })
    }

    /// Returns the fields that a rule has returned, of its first copies.
    fn feedback(&self, uid: &RuleUid) -> Vec<CopyFeedback> {
        let fields = self.desired.rules().feedback_of(uid);
        if fields.is_empty() {
            return vec![];
        }
        let mut bytes = 0;
        let copies = self.records.intents_of(uid);
        let copies = copies.flat_map(|(_, copies)| copies.iter());
        let values = copies.filter_map(|copy| {
            // An adopted object is that of others: no value of it is for the rule.
            let live = self.records.live(copy).filter(|live| live.is_own())?;
            let values = feedback::named(fields, copy, live.feedback.as_deref());
            let copy = copy.clone();
            (!values.is_empty()).then_some(CopyFeedback { copy, values })
        });
        values
            .take_while(|feedback| {
                bytes += feedback.bytes();
                bytes <= FEEDBACK_BYTES
            })
            .collect()
    }

    /// Returns the proof of a rule's copies under the hub's key. `None` while a copy is neither
    /// applied nor waiting for its namespace.
    fn proof(&mut self, uid: &RuleUid) -> Option<Proof> {
        let rules = self.desired.rules();
        let is_blind = |watch: &LostWatch| rules.may_have_kind(uid, &watch.resource);
        let key = self.key.filter(|_| !self.lost.iter().any(is_blind))?;
        let counts = self.report.counts(uid);
        if counts.applied.saturating_add(counts.waiting) != counts.copies {
            return None;
        }
        let (report, records) = (self.report, self.records);
        let shows = |copy: &SourceRef| match (report.outcome(copy, uid), records.live(copy)) {
            // The agent wrote nothing of an adopted object, which may lack labels of the source.
            (Some(CopyStatus::Applied), Some(live)) if !live.adopted => {
                CopyDigest::Content(live.facts.digest)
            }
            // Without an object, the copy ran to its end and was deleted.
            _ => CopyDigest::Nothing,
        };
        Some(key.proof(uid, self.desired.intents_digest(uid, shows)?))
    }
}
