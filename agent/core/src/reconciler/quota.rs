//! The quotas of copies and bytes: the member's policy, and the grants to the rules of one
//! namespace of the hub. The agent writes no copy that would exceed a quota. Existing copies stay.
use std::sync::Arc;

use runnel_proto::model::{Reason, RuleUid, SourceRef};

use super::decider::Decider;
use crate::copy::{CopyError, IntentKey};
use crate::decide::{DesiredCopy, WantedCopy};
use crate::live::Ownership;
use crate::records::Usage;

impl Decider<'_> {
    /// Returns the usage that a write of a copy would add.
    pub(super) fn growth(&self, copy: &SourceRef, intent: &IntentKey) -> Usage {
        let live = self
            .records
            .live(copy)
            .filter(|live| live.ownership == Ownership::Ours && live.sealed.is_some());
        let bytes = self.desired.rules().bytes(intent).unwrap_or_default();
        match live {
            Some(live) => Usage {
                copies: 0,
                bytes: bytes.saturating_sub(live.facts.bytes),
            },
            None => Usage { copies: 1, bytes },
        }
    }

    /// Returns the error if a copy would exceed a quota.
    pub(super) fn exceeded_quota(
        &self,
        copy: &SourceRef,
        wanted: &WantedCopy,
    ) -> Option<CopyError> {
        let adds = self.growth(copy, &wanted.intent);
        if adds == Usage::default() {
            return None;
        }
        let running = |of: &dyn Fn(&RuleUid) -> bool| {
            let others = self
                .jobs
                .running
                .iter()
                .filter(|(other, run)| *other != copy && of(&run.target.0.rule));
            // A watch may show a copy before its write has ended. The records then contain the copy
            // already.
            let adds = others.filter(|(_, run)| run.adds != Usage::default());
            adds.map(|(other, run)| self.growth(other, &run.target.0))
                .fold(Usage::default(), Usage::plus)
        };
        let total = self.records.total().plus(running(&|_| true));
        let policy = exceeded_limit(
            total,
            adds,
            Some(self.jobs.limits.policy.max_copies),
            Some(self.jobs.limits.policy.max_bytes),
        );
        if let Some((field, limit)) = policy {
            return Some(denied(format!(
                "this member's policy allows {limit} in all ({field}), and that many are here: raise it there, or narrow the \
                 rules"
            )));
        }
        let (max_copies, max_bytes) = self
            .desired
            .owners()
            .granted_limits(&wanted.intent.rule, copy);
        if max_copies.is_none() && max_bytes.is_none() {
            return None;
        }
        let (namespace, rules) = self.desired.rules().rules_of_namespace(&wanted.intent.rule);
        let used = rules
            .iter()
            .map(|rule| self.records.usage(rule))
            .fold(Usage::default(), Usage::plus);
        let used = used.plus(running(&|rule| rules.contains(rule)));
        let (field, limit) = exceeded_limit(used, adds, max_copies, max_bytes)?;
        Some(denied(format!(
            "the rules of {namespace} are granted {limit} in this cluster ({field} of the DistributionGrant), and have that \
             many: an administrator of the hub can raise it"
        )))
    }

    /// Whether a copy waits because of a quota.
    pub(super) fn waits_for_quota(&self, copy: &SourceRef, want: &DesiredCopy) -> bool {
        matches!(want, DesiredCopy::Copy(wanted) if wanted.denied.is_some() && self.exceeded_quota(copy, wanted).is_some())
    }
}

/// Returns the limit that would be exceeded, with its field.
fn exceeded_limit(
    used: Usage,
    adds: Usage,
    copies: Option<u64>,
    bytes: Option<u64>,
) -> Option<(&'static str, String)> {
    let next = used.plus(adds);
    if let Some(limit) = copies.filter(|limit| adds.copies > 0 && next.copies > *limit) {
        return Some(("maxCopies", format!("{limit} copies")));
    }
    let limit = bytes.filter(|limit| adds.bytes > 0 && next.bytes > *limit)?;
    Some(("maxBytes", format!("{limit} bytes of copies")))
}

fn denied(message: impl Into<Arc<str>>) -> CopyError {
    CopyError::new(Reason::Denied, message)
}
