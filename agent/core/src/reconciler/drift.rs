//! What others did to our copies: whether it is put back, how soon, and what is remembered of it.
use std::time::Instant;

use runnel_proto::model::{DriftPolicy, SourceRef};

use super::{Compared, Reconciler};
use crate::copy::{CopyError, CopyStatus};
use crate::decide::{TargetNamespace, Want, WantedCopy};
use crate::live::{Live, Ownership};
use crate::records::Observed;

impl Reconciler {
    /// Adds to what is wanted what became of the copy so far.
    pub(super) fn add_history(&self, copy: &SourceRef, want: &mut Want) {
        let Want::Copy(wanted) = want else { return };
        wanted.contention = self.contentions.copy_error(copy);
        let lost_copy = self.lost.get(copy);
        wanted.lost =
            lost_copy.is_some_and(|(intent, revision)| *intent == wanted.intent && Some(*revision) == wanted.revision);
        wanted.rewritten = self.is_rewritten(copy, wanted);
        let fits = |compared: &&Compared| compared.about == (wanted.intent.clone(), wanted.revision);
        let compared = self.compared.get(copy).filter(fits);
        wanted.compared = compared.map(|compared| (compared.version.clone(), compared.copy_error.clone()));
    }

    /// Notes what is lost of a copy that held what it should: where drift is only reported, it is not made again. A copy
    /// that went with its namespace is not drift.
    pub(super) fn note_lost(&mut self, copy: &SourceRef, want: &mut Want) {
        let Want::Copy(wanted) = want else {
            self.lost.remove(copy);
            return;
        };
        let gone = match self.records.observed(copy) {
            Observed::Unknown | Observed::Absent => true,
            Observed::Live(live) => live.ownership == Ownership::Ours && live.sealed.is_none(),
        };
        let reports = wanted.policies.drift == DriftPolicy::Report && wanted.place == TargetNamespace::Ready;
        match wanted.revision {
            // Nothing is known of what is not watched; what is just being written says how it is when it is done.
            _ if !self.is_watched(copy) || self.runs.contains_key(copy) => {}
            Some(revision) if reports && gone => {
                let was_applied = self.report.outcome(copy, &wanted.intent.rule) == Some(&CopyStatus::Applied);
                if was_applied && !self.failed.contains_key(copy) {
                    self.lost.insert(copy.clone(), (wanted.intent.clone(), revision));
                    wanted.lost = true;
                }
            }
            _ => drop(self.lost.remove(copy)),
        }
    }

    /// Whether no watch will tell what becomes of the object that stands where a copy should, so that it is looked at
    /// again.
    pub(super) fn is_unseen(&self, copy: &SourceRef, want: &Want) -> bool {
        let Want::Copy(wanted) = want else { return false };
        let foreign = self.records.live(copy).is_some_and(|live| live.ownership != Ownership::Ours);
        // Nobody tells of an object that stands in the way of a planned copy.
        let planned = wanted.dry_run && wanted.denied.is_none() && self.records.live(copy).is_none();
        (foreign || wanted.lost || planned)
            && wanted.place == TargetNamespace::Ready
            && !wanted.suspend
            && !wanted.is_ambiguous
    }

    /// Notes whether the copy was as it is wanted before somebody changed or deleted it.
    pub(super) fn note_drift(&mut self, copy: &SourceRef, want: &Want) {
        let Want::Copy(wanted) = want else { return };
        let outcome = self.report.outcome(copy, &wanted.intent.rule);
        let was_applied = outcome == Some(&CopyStatus::Applied) || is_fought_for(outcome);
        let (same, others) = match self.records.observed(copy) {
            Observed::Unknown | Observed::Absent => (was_applied, None),
            // What was adopted is not put back.
            Observed::Live(live) if !live.is_own() => return,
            Observed::Live(live) => {
                let same = match &live.sealed {
                    Some(_) if wanted.rewritten => true,
                    Some(sealed) => {
                        Some(sealed.revision) == wanted.revision && sealed.rule == wanted.intent.rule && !live.intact
                    }
                    None => was_applied,
                };
                (same, live.others.clone())
            }
        };
        if same {
            self.drifted.insert(copy.clone(), others);
        }
    }

    /// Notes that somebody wrote another revision over a copy that held what it should, though with our marks: another
    /// agent of this cluster, or who applies a saved copy again. `before` is what was known to stand there.
    pub(super) fn note_rewritten(&mut self, copy: &SourceRef, before: Option<&Live>) {
        let Some(Live { sealed: Some(lost_copy), uid, .. }) = before else { return };
        let Some(Live { sealed: Some(sealed), uid: now, .. }) = self.records.live(copy) else { return };
        let is_other =
            lost_copy.revision != sealed.revision || lost_copy.rule != sealed.rule || lost_copy.source != sealed.source;
        // A run under way may have written it, and says so when it ends.
        if !is_other || uid != now || self.runs.contains_key(copy) {
            return;
        }
        let Want::Copy(wanted) = self.want(copy) else { return };
        let Some(revision) = wanted.revision else { return };
        if before.is_some_and(|before| before.holds(&wanted.intent.rule, &wanted.intent.source, &revision)) {
            self.rewritten.insert(copy.clone(), (wanted.intent.clone(), revision));
        }
    }

    fn is_rewritten(&self, copy: &SourceRef, wanted: &WantedCopy) -> bool {
        let lost_copy = self.rewritten.get(copy);
        lost_copy.is_some_and(|(intent, revision)| *intent == wanted.intent && Some(*revision) == wanted.revision)
    }

    /// Notes that a copy was put back. Returns whether that is worth an Event of its own.
    pub(super) fn note_corrected(
        &mut self,
        copy: &SourceRef,
        others: Option<std::sync::Arc<str>>,
        now: Instant,
    ) -> bool {
        self.contentions.corrected(copy, others, now);
        self.contentions.copy_error(copy).is_none()
    }

    /// Looks at the copies about which there is peace again.
    pub(super) fn look_at_calm(&mut self, now: Instant) {
        for copy in self.contentions.take_calm(now) {
            self.reconcile_copy(&copy, now);
        }
    }

    /// Notes in what a copy differs.
    pub(super) fn note_compared(&mut self, copy: &SourceRef, compared: Compared) {
        self.compared.insert(copy.clone(), compared);
    }
}

fn is_fought_for(outcome: Option<&CopyStatus>) -> bool {
    let reason = runnel_proto::model::Reason::Contended;
    matches!(outcome, Some(CopyStatus::Failed(CopyError { reason: message, .. })) if *message == reason)
}
