//! What a rule is to overwrite: it waits until the hub has named it; see [`crate::takeovers`].
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Asked, Reason, RuleUid, SourceRef};

use super::Reconciler;
use crate::copy::{CopyError, CopyStatus};
use crate::decide::{Takeover, Want, waits};
use crate::takeovers::digest_of;

impl Reconciler {
    /// What a rule may overwrite, it overwrites only where the hub has named the object that stands there.
    pub(super) fn ask_first(&self, copy: &SourceRef, want: &mut Want) {
        if let Want::Copy(wanted) = want
            && wanted.policies.takeover == Takeover::Always
            && let Some(live) = self.records.live(copy)
            && !self.takeovers.allows(&wanted.intent.rule, copy, &live.uid)
        {
            wanted.policies.takeover = Takeover::Asked;
        }
    }

    /// What was found to wait goes on waiting while nothing can be found out about it: that it cannot be read now does not
    /// mean that fewer objects would be lost.
    pub(super) fn still_waits(
        &mut self,
        copy: &SourceRef,
        want: &Want,
        outcome: Option<CopyStatus>,
    ) -> Option<CopyStatus> {
        if outcome == Some(CopyStatus::UnderWay) {
            return outcome;
        }
        let asks = match (want, self.records.live(copy)) {
            (Want::Copy(wanted), Some(live)) => Some((&wanted.intent.rule, live, &wanted.policies.takeover)),
            _ => None,
        };
        match (asks, &outcome) {
            (Some((rule, live, _)), Some(CopyStatus::Failed(copy_error)))
                if copy_error.reason == Reason::TakeoverWaiting =>
            {
                self.takeovers.find(rule, copy, &live.uid);
            }
            (Some((rule, live, Takeover::Asked)), Some(CopyStatus::Failed(copy_error)))
                if is_passing(copy_error.reason) && self.takeovers.was_found(rule, copy, &live.uid) =>
            {
                let CopyError { reason, message } = waits(live);
                return Some(CopyStatus::Failed(CopyError::new(
                    reason,
                    format!("{message}; now: {}", copy_error.message),
                )));
            }
            // What may be overwritten and could not be is asked about again.
            (Some((.., Takeover::Always)), Some(CopyStatus::Failed(_))) => {}
            _ => self.takeovers.unfind(copy),
        }
        outcome
    }

    /// The objects of a rule that wait to be overwritten.
    fn waiting(&self, rule: &RuleUid) -> BTreeMap<SourceRef, Arc<str>> {
        let copies = self.report.failed_by(rule, Reason::TakeoverWaiting);
        copies.filter_map(|copy| Some((copy.clone(), self.records.live(copy)?.uid.clone()))).collect()
    }

    /// The same, for the hub.
    pub(super) fn takeovers_of(&self, rule: &RuleUid) -> Option<Asked> {
        let waiting = self.waiting(rule);
        let objects = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        (objects > 0).then(|| Asked { objects, digest: digest_of(rule, &waiting) })
    }

    /// Overwrites what the hub has named, if it is what waits. While anything is still being looked into, what is known to
    /// wait is a part: a part may be within a limit that the whole is not.
    pub(super) fn take_offer(&mut self, rule: &RuleUid, now: Instant) {
        if !self.takeovers.has_offer(rule) || self.report.counts(rule).under_way() > 0 {
            return;
        }
        let waiting = self.waiting(rule);
        if self.takeovers.take(rule, &waiting) {
            for copy in waiting.keys() {
                self.reconcile_now(copy, now);
            }
        }
    }
}

/// Whether a failure says nothing about the object.
fn is_passing(reason: Reason) -> bool {
    matches!(reason, Reason::Unavailable | Reason::Forbidden | Reason::WaitingForHub)
}
