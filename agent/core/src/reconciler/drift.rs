//! Changes of the copies by other clients, and the other history of the copies: failures, contention
//! and lost copies. It determines how a copy is retried and reported.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Reason, Revision, SourceRef};

use super::Reconciler;
use crate::contention::Contentions;
use crate::copy::{CopyError, CopyStatus, IntentKey};
use crate::decide::{DesiredCopy, WantedCopy};
use crate::live::Live;
use crate::records::Observed;

impl Reconciler {
    /// Records whether a copy was correct before another client changed or deleted it.
    pub(super) fn record_drift(&mut self, copy: &SourceRef, want: &DesiredCopy) {
        let DesiredCopy::Copy(wanted) = want else {
            return;
        };
        let outcome = self.report.outcome(copy, &wanted.intent.rule);
        let was_applied = outcome == Some(&CopyStatus::Applied) || is_contended(outcome);
        let (was_correct, others) = match self.records.observed(copy) {
            Observed::Unknown | Observed::Absent => (was_applied, None),
            // The first write of an adopted object corrects no drift.
            Observed::Live(live) if !live.is_own() => return,
            Observed::Live(live) => {
                let was_correct = match &live.sealed {
                    Some(_) if wanted.rewritten => true,
                    Some(sealed) => {
                        Some(sealed.revision) == wanted.revision
                            && sealed.rule == wanted.intent.rule
                            && !live.intact
                    }
                    None => was_applied,
                };
                (was_correct, live.others.clone())
            }
        };
        if was_correct {
            self.history.drifted.insert(copy.clone(), others);
        }
    }

    /// Records that another client wrote another revision over a correct copy, with our marks.
    ///
    /// The client may be another agent of this cluster, or may apply a saved copy. `before`: the
    /// recorded object before the change.
    pub(super) fn record_rewritten(&mut self, copy: &SourceRef, before: Option<&Live>) {
        let Some(Live {
            sealed: Some(last),
            uid,
            ..
        }) = before
        else {
            return;
        };
        let Some(Live {
            sealed: Some(sealed),
            uid: now,
            ..
        }) = self.records.live(copy)
        else {
            return;
        };
        let is_other = last.revision != sealed.revision
            || last.rule != sealed.rule
            || last.source != sealed.source;
        // A job under way may have written it, and reports this at its end.
        if !is_other || uid != now || self.jobs.running.contains_key(copy) {
            return;
        }
        let DesiredCopy::Copy(wanted) = self.decider().desired_copy(copy) else {
            return;
        };
        let Some(revision) = wanted.revision else {
            return;
        };
        if before.is_some_and(|before| {
            before.holds(&wanted.intent.rule, &wanted.intent.source, &revision)
        }) {
            self.history
                .rewritten
                .insert(copy.clone(), (wanted.intent.clone(), revision));
        }
    }

    /// Reconciles the copies whose contention is over.
    pub(super) fn end_contentions(&mut self, now: Instant) {
        for copy in self.history.contentions.take_calm(now) {
            self.reconcile_copy(&copy, now);
        }
    }
}

fn is_contended(outcome: Option<&CopyStatus>) -> bool {
    matches!(
        outcome,
        Some(CopyStatus::Failed(CopyError {
            reason: Reason::Contended,
            ..
        }))
    )
}

/// A failure of one copy, and the intent and revision that failed.
pub(super) struct Failed {
    pub(super) about: (IntentKey, Option<Revision>),
    pub(super) copy_error: CopyError,
}

/// The difference between one version of a live object and the desired revision at that time.
pub(super) struct Compared {
    pub(super) version: Arc<str>,
    pub(super) about: (IntentKey, Option<Revision>),
    pub(super) copy_error: CopyError,
}

/// The change of the record that a copy is lost: it was applied, and then was deleted or lost its
/// marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The record stays as it is.
    Unchanged,
    /// The copy is lost, with this revision.
    Lost(Revision),
    /// The copy is not lost.
    Over,
}

/// The history of the copies.
#[derive(Default)]
pub(super) struct CopyHistory {
    pub(super) failed: BTreeMap<SourceRef, Failed>,
    /// Drifted copies that are to be corrected, with the field managers of the change if they are
    /// known.
    pub(super) drifted: BTreeMap<SourceRef, Option<Arc<str>>>,
    /// The recent corrections.
    pub(super) contentions: Contentions,
    /// Drifted copies that are not corrected, with their differences.
    pub(super) compared: BTreeMap<SourceRef, Compared>,
    /// Copies that were deleted or lost their marks, and are not corrected; with their last intent
    /// and revision.
    pub(super) lost: BTreeMap<SourceRef, (IntentKey, Revision)>,
    /// Correct copies over which another client wrote another revision with our marks; with their
    /// last intent and revision.
    pub(super) rewritten: BTreeMap<SourceRef, (IntentKey, Revision)>,
}

impl CopyHistory {
    /// Adds the history of a copy to its desired state.
    pub(super) fn add_to(&self, copy: &SourceRef, mut wanted: WantedCopy) -> WantedCopy {
        let is_current = |last: Option<&(IntentKey, Revision)>| {
            last.is_some_and(|(intent, revision)| {
                *intent == wanted.intent && Some(*revision) == wanted.revision
            })
        };
        let (lost, rewritten) = (
            is_current(self.lost.get(copy)),
            is_current(self.rewritten.get(copy)),
        );
        let fits =
            |compared: &&Compared| compared.about == (wanted.intent.clone(), wanted.revision);
        let compared = self.compared.get(copy).filter(fits);
        wanted.compared =
            compared.map(|compared| (compared.version.clone(), compared.copy_error.clone()));
        wanted.contention = self.contentions.copy_error(copy);
        (wanted.lost, wanted.rewritten) = (lost, rewritten);
        wanted
    }

    /// Records the change of a copy's loss.
    pub(super) fn record_loss(&mut self, copy: &SourceRef, want: &DesiredCopy, loss: Loss) {
        match (loss, want) {
            (Loss::Lost(revision), DesiredCopy::Copy(wanted)) => {
                let about = (wanted.intent.clone(), revision);
                self.lost.insert(copy.clone(), about);
            }
            (Loss::Unchanged | Loss::Lost(_), _) => {}
            (Loss::Over, _) => drop(self.lost.remove(copy)),
        }
    }

    /// Ends the history of a copy that the agent has just written, in its desired state too.
    pub(super) fn written(&mut self, copy: &SourceRef, wanted: &mut WantedCopy) {
        self.lost.remove(copy);
        (wanted.lost, wanted.rewritten, wanted.compared) = (false, false, None);
        wanted.contention = self.contentions.copy_error(copy);
    }

    /// Records a correction, and returns whether to create an Event for it. A contended copy gets
    /// none.
    pub(super) fn record_correction(
        &mut self,
        copy: &SourceRef,
        others: Option<Arc<str>>,
        now: Instant,
    ) -> bool {
        self.contentions.corrected(copy, others, now);
        self.contentions.copy_error(copy).is_none()
    }

    /// Records that nothing is to be done about a copy.
    pub(super) fn settle(&mut self, copy: &SourceRef, outcome: Option<&CopyStatus>) {
        self.failed.remove(copy);
        self.drifted.remove(copy);
        if !matches!(
            outcome,
            Some(CopyStatus::Drifted(_) | CopyStatus::Planned(..))
        ) {
            self.compared.remove(copy);
            self.rewritten.remove(copy);
        }
        if outcome.is_none() {
            self.contentions.forget(copy);
        }
    }
}
