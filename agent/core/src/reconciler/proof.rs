//! Proof to the hub of what stands here.
use runnel_proto::model::{Proof, RuleUid, SourceRef};

use super::Reconciler;
use crate::copy::CopyStatus;
use crate::desired::Shows;

impl Reconciler {
    /// What stands of a rule, under the hub's key; `None` while not every copy is applied or waiting for its namespace, and
    /// while a watch is lost.
    pub(super) fn proof(&mut self, uid: &RuleUid) -> Option<Proof> {
        let key = self.proof_key.clone()?;
        if !self.lost_watches().is_empty() {
            return None;
        }
        let counts = self.report.counts(uid);
        if counts.applied.saturating_add(counts.waiting) != counts.copies {
            return None;
        }
        let (report, records) = (&self.report, &self.records);
        let shows = |copy: &SourceRef| match report.outcome(copy, uid) {
            Some(CopyStatus::Applied) => Shows::Content(records.live(copy).and_then(|live| live.facts.digest)),
            _ => Shows::Nothing,
        };
        Some(key.proof(uid, self.desired.shown(uid, shows)?))
    }
}
