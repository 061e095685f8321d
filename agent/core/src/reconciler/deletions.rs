//! Deletions that take long: how long later copies wait for them, and when people learn of it.
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{Reason, SourceRef};

use super::Notice;
use super::member::{Member, failure};
use crate::copy::{CopyError, CopyStatus};
use crate::decide::DesiredCopy;

/// Time after which a deletion takes long, so that the outcome of the copy names what it waits for.
const LONG_DELETION: Duration = Duration::from_secs(30);
/// Longest time for which a deletion, also a refused one, delays the removal of the later copies of its rule.
const REMOVAL_WAIT: Duration = Duration::from_secs(300);

impl Member {
    /// Reports a deletion that takes long, and holds the removal of later copies until it ends: the controller that removes the
    /// finalizers may be one of them. Both are bounded in time. Returns the outcome, and when it is to be checked again.
    pub(super) fn await_deletion(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        outcome: Option<CopyStatus>,
        now: Instant,
    ) -> (Option<CopyStatus>, Option<Instant>) {
        let is_idle = |outcome: &CopyStatus| {
            matches!(outcome, CopyStatus::UnderWay | CopyStatus::Removing(None))
        };
        let live = self.records.live(copy);
        let live = live.filter(|_| outcome.as_ref().is_some_and(is_idle));
        let deletion = live.and_then(|live| Some((live.uid.clone(), live.terminating.clone()?)));
        let uid = deletion.as_ref().map(|(uid, _)| uid);
        let before = match want {
            DesiredCopy::Copy(wanted) => self.report.outcome(copy, &wanted.intent.rule),
            _ => None,
        };
        let since = self.history.terminating_since(copy, uid, before, now);
        let Some((since, (uid, message))) = since.zip(deletion) else {
            self.jobs.leave(copy);
            return (outcome, None);
        };
        self.await_removal(copy, want, Some(&uid), now);
        let outcome = if now < since + LONG_DELETION {
            outcome
        } else {
            let copy_error = CopyError::new(Reason::WaitingForDependency, message);
            Some(self.long_deletion(copy, want, copy_error))
        };
        let mut ends = [LONG_DELETION, REMOVAL_WAIT]
            .into_iter()
            .map(|wait| since + wait);
        (outcome, ends.find(|end| now < *end))
    }

    /// Has the later copies of a rule wait for the removal of a copy, for a bounded time. `uid`: the object that is not deleted yet.
    /// Returns when the wait ends.
    pub(super) fn await_removal(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        uid: Option<&Arc<str>>,
        now: Instant,
    ) -> Option<Instant> {
        self.jobs.budget.leave(copy);
        let uid = uid.filter(|_| matches!(want, DesiredCopy::Absent(..)));
        let since = uid.and_then(|_| self.history.terminating_since(copy, uid, None, now));
        let end = since.map(|since| since + REMOVAL_WAIT);
        let end = end.filter(|end| now < *end);
        if end.is_some() {
            self.enter_phase(copy, want, true);
        } else {
            self.jobs.leave_phase(copy);
        }
        end
    }

    /// Returns the outcome of a copy whose deletion takes long. People get one Event about it.
    fn long_deletion(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        copy_error: CopyError,
    ) -> CopyStatus {
        let outcome = failure(want, copy_error.clone());
        let rule = match want {
            DesiredCopy::Copy(wanted) => Some((&wanted.intent.rule, &wanted.rule)),
            DesiredCopy::Absent(key, rule, _) => Some((&key.rule, rule)),
            DesiredCopy::Nothing | DesiredCopy::OlderVersion(..) => None,
        };
        if let Some((uid, rule)) = rule
            && self.report.outcome(copy, uid) != Some(&outcome)
            && self.desired.cluster().denies_place(copy).is_none()
        {
            let notice = Notice::Failed(copy.clone(), rule.clone(), copy_error);
            self.history.notify(notice);
        }
        outcome
    }

    /// Whether the object of a copy is being deleted.
    pub(super) fn is_terminating(&self, copy: &SourceRef) -> bool {
        let live = self.records.live(copy);
        live.is_some_and(|live| live.terminating.is_some())
    }
}
