//! The history of the copies: failures, changes by other clients, contention and lost copies. It
//! determines how a copy is retried and reported.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{ObservedHealth, Reason, Revision, RuleName, RuleUid, SourceRef};

use super::jobs::RunningJob;
use super::{CorrectedDrift, Notice, Totals};
use crate::audit::{Audit, Written};
use crate::contention::Contentions;
use crate::copy::{CopyError, CopyStatus, IntentKey};
use crate::decide::{DesiredCopy, WantedCopy, WriteEffect};
use crate::desired::{FinishedCopy, StoredRule};
use crate::live::Live;
use crate::records::Observed;
use crate::report::Report;

fn error_of(outcome: Option<&CopyStatus>) -> Option<&CopyError> {
    match outcome? {
        CopyStatus::Failed(copy_error) | CopyStatus::Removing(Some(copy_error)) => Some(copy_error),
        _ => None,
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
    pub(super) target: (IntentKey, Option<Revision>),
    pub(super) copy_error: CopyError,
}

/// The difference between one version of a live object and the desired revision at that time.
pub(super) struct CachedDiff {
    pub(super) version: Arc<str>,
    pub(super) target: (IntentKey, Option<Revision>),
    pub(super) copy_error: CopyError,
}

/// Limit of the copies that have run to their end and are stored.
const STORED_LIMIT: usize = 1_024;

/// A copy that has run to its end.
struct Finished {
    target: (IntentKey, Revision),
    health: Option<Box<ObservedHealth>>,
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

/// The deletion of an object, by others or for a rule.
struct Deletion {
    /// The uid of the object.
    uid: Arc<str>,
    /// Since when the agent has seen it, or cannot delete the object.
    since: Instant,
    /// Whether the copy was applied before.
    was_applied: bool,
}

/// The recreation of a copy whose object is deleted and not created again yet.
struct Recreation {
    /// Whether the object was one of others, which the copy overwrites.
    overwrites: bool,
    drift: bool,
    others: Option<Arc<str>>,
}

/// The history of the copies.
#[derive(Default)]
pub(super) struct CopyHistory {
    pub(super) failed: BTreeMap<SourceRef, Failed>,
    /// Drifted copies that are to be corrected, with the field managers of the change if they are
    /// known.
    drifted: BTreeMap<SourceRef, Option<Arc<str>>>,
    /// The recent corrections.
    pub(super) contentions: Contentions,
    /// Drifted copies that are not corrected, with their differences.
    compared: BTreeMap<SourceRef, CachedDiff>,
    /// Copies that were deleted or lost their marks, and are not corrected; with their last intent
    /// and revision.
    lost: BTreeMap<SourceRef, (IntentKey, Revision)>,
    /// Correct copies over which another client wrote another revision with our marks; with their
    /// last intent and revision.
    rewritten: BTreeMap<SourceRef, (IntentKey, Revision)>,
    /// Copies that are being deleted, or whose removal is refused.
    terminating: BTreeMap<SourceRef, Deletion>,
    /// Copies that a later job creates again: finalizers keep the deleted object for a while, or the creation has failed.
    recreations: BTreeMap<SourceRef, Recreation>,
    /// Copies that have run to their end; with their intent and revision, and their health then.
    finished: BTreeMap<SourceRef, Finished>,
    /// The notices that were not taken yet.
    notices: Vec<Notice>,
    /// What is done to the copies, for the log and the hub.
    pub(super) audit: Audit,
    totals: Totals,
}

impl CopyHistory {
    /// Adds the history of a copy to its desired state. `is_gone`: no object is known.
    pub(super) fn add_to(
        &self,
        copy: &SourceRef,
        mut wanted: WantedCopy,
        is_gone: bool,
    ) -> WantedCopy {
        let is_current = |last: Option<&(IntentKey, Revision)>| {
            last.is_some_and(|(intent, revision)| {
                *intent == wanted.intent && Some(*revision) == wanted.revision
            })
        };
        let finished = self.finished.get(copy).map(|finished| &finished.target);
        let finished = is_gone && is_current(finished);
        let (lost, rewritten) = (
            is_current(self.lost.get(copy)),
            is_current(self.rewritten.get(copy)),
        );
        let fits =
            |compared: &&CachedDiff| compared.target == (wanted.intent.clone(), wanted.revision);
        let compared = self.compared.get(copy).filter(fits);
        wanted.compared =
            compared.map(|compared| (compared.version.clone(), compared.copy_error.clone()));
        wanted.contention = self.contentions.copy_error(copy);
        (wanted.lost, wanted.rewritten, wanted.finished) = (lost, rewritten, finished);
        wanted
    }

    /// Records that a copy has run to its end with the desired revision. A copy that no rule sends is forgotten. Returns whether
    /// that is to be stored.
    pub(super) fn record_finished(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        live: Option<&Live>,
    ) -> bool {
        let DesiredCopy::Copy(wanted) = want else {
            return self.finished.remove(copy).is_some();
        };
        let sealed = |live: &Live| {
            let sealed = live.sealed.as_deref()?;
            let is_wanted = sealed.rule == wanted.intent.rule
                && sealed.source == wanted.intent.source
                && Some(sealed.revision) == wanted.revision;
            (is_wanted && live.is_own()).then_some(sealed.revision)
        };
        if let Some(live) = live.filter(|live| live.finished)
            && let Some(revision) = sealed(live)
        {
            let finished = Finished {
                target: (wanted.intent.clone(), revision),
                health: live.health.clone(),
            };
            let target = finished.target.clone();
            let before = self.finished.insert(copy.clone(), finished);
            return before.is_none_or(|before| before.target != target);
        }
        false
    }

    /// Adds the copies that have run to their end to the rules that are to be stored.
    pub(super) fn add_finished(&self, rules: &mut [StoredRule]) {
        let mut by_rule: BTreeMap<&RuleUid, Vec<FinishedCopy>> = BTreeMap::new();
        for (copy, Finished { target, .. }) in self.finished.iter().take(STORED_LIMIT) {
            let finished = FinishedCopy {
                copy: copy.clone(),
                source: target.0.source.clone(),
                revision: target.1,
            };
            by_rule.entry(&target.0.rule).or_default().push(finished);
        }
        for rule in rules {
            rule.finished = by_rule.remove(&rule.uid).unwrap_or_default();
        }
    }

    /// Restores the copies that ran to their end before a restart.
    pub(super) fn restore_finished(&mut self, rules: &[StoredRule]) {
        for rule in rules {
            for FinishedCopy {
                copy,
                source,
                revision,
            } in &rule.finished
            {
                let intent = IntentKey {
                    rule: rule.uid.clone(),
                    source: source.clone(),
                };
                let finished = Finished {
                    target: (intent, *revision),
                    health: None,
                };
                self.finished.insert(copy.clone(), finished);
            }
        }
    }

    /// Returns the last health of a copy that has run to its end and is deleted.
    pub(super) fn finished_health(&self, copy: &SourceRef) -> Option<&ObservedHealth> {
        self.finished.get(copy)?.health.as_deref()
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

    /// Records whether a copy was correct before another client changed or deleted it. `outcome`:
    /// its last outcome.
    pub(super) fn record_drift(
        &mut self,
        copy: &SourceRef,
        wanted: &WantedCopy,
        outcome: Option<&CopyStatus>,
        observed: &Observed,
    ) {
        let was_applied = self.was_applied(copy, outcome) || is_contended(outcome);
        let (was_correct, others) = match observed {
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
            self.drifted.insert(copy.clone(), others);
        }
    }

    /// Removes the record that a copy has drifted.
    pub(super) fn take_drift(&mut self, copy: &SourceRef) -> Option<Option<Arc<str>>> {
        self.drifted.remove(copy)
    }

    /// Returns when the drift of a copy may be corrected; `None` means at once.
    pub(super) fn correct_later(&self, copy: &SourceRef, now: Instant) -> Option<Instant> {
        let later = self.contentions.not_before(copy, now);
        later.filter(|_| self.drifted.contains_key(copy))
    }

    /// Records that another client has written another revision over a correct copy, with our
    /// marks. `about`: the last intent and revision.
    pub(super) fn record_rewritten(&mut self, copy: &SourceRef, about: (IntentKey, Revision)) {
        self.rewritten.insert(copy.clone(), about);
    }

    /// Records how a copy differs from its desired revision.
    pub(super) fn record_compared(&mut self, copy: &SourceRef, compared: CachedDiff) {
        self.compared.insert(copy.clone(), compared);
    }

    /// Records a write, with the notices for people. A contended copy gets none for its drift. `corrected`: the differences that
    /// the write has corrected.
    pub(super) fn record_write(
        &mut self,
        copy: &SourceRef,
        wrote: WriteEffect,
        job: RunningJob,
        corrected: Option<String>,
        now: Instant,
    ) {
        // The label of an older version is no change that people look for.
        if job.rule != RuleName::default() {
            let written = Written {
                uid: &job.target.0.rule,
                rule: &job.rule,
                wrote,
                drifted: job.drift,
                by: job.others.as_ref(),
            };
            self.audit.wrote(copy, &written, now);
        }
        if job.drift {
            let others = job.others.clone();
            self.contentions
                .corrected(copy, others, corrected.as_deref(), now);
            if self.contentions.copy_error(copy).is_none() {
                let drift = CorrectedDrift {
                    others: job.others.clone(),
                    deleted: wrote == WriteEffect::Created,
                    fields: corrected,
                };
                let notice = Notice::DriftCorrected(copy.clone(), job.rule.clone(), drift);
                self.notices.push(notice);
            }
        }
        match wrote {
            WriteEffect::Overwrote => {
                self.notices
                    .push(Notice::Overwritten(copy.clone(), job.rule, job.others))
            }
            WriteEffect::Recreated => self.notices.push(Notice::Recreated(copy.clone(), job.rule)),
            _ => {}
        }
    }

    /// Records for the log that a copy begins to fail, or fails for another reason than before.
    /// `report`: the outcomes before.
    pub(super) fn record_outcome(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        outcome: Option<&CopyStatus>,
        report: &Report,
        now: Instant,
    ) {
        let (uid, rule) = match want {
            DesiredCopy::Copy(wanted) => (&wanted.intent.rule, &wanted.rule),
            DesiredCopy::Absent(key, rule, _) => (&key.rule, rule),
            DesiredCopy::OlderVersion(..) | DesiredCopy::Nothing => return,
        };
        let Some(copy_error) = error_of(outcome) else {
            return;
        };
        // The hub sends the content within moments, or reports that it cannot.
        let is_passing = copy_error.reason == Reason::WaitingForHub;
        let before = error_of(report.outcome(copy, uid));
        if !is_passing && before.is_none_or(|before| before.reason != copy_error.reason) {
            self.audit.failed(copy, (uid, rule), copy_error, now);
        }
    }

    /// Adds a notice for people.
    pub(super) fn notify(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Returns the notices since the last call.
    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Returns what a job did, where one job has deleted an object and a later one creates it again: the first has done nothing yet.
    pub(super) fn recreated(
        &mut self,
        copy: &SourceRef,
        wrote: Option<WriteEffect>,
        job: &mut RunningJob,
    ) -> Option<WriteEffect> {
        match wrote {
            Some(WriteEffect::Deleted) if !job.removes => {
                let recreation = Recreation {
                    overwrites: job.overwrites,
                    drift: job.drift,
                    others: job.others.clone(),
                };
                self.recreations.insert(copy.clone(), recreation);
                None
            }
            Some(WriteEffect::Created) => {
                let Some(begun) = self.recreations.remove(copy) else {
                    return wrote;
                };
                (job.drift, job.others) = (begun.drift, begun.others);
                let overwrote = begun.overwrites.then_some(WriteEffect::Overwrote);
                overwrote.or(Some(WriteEffect::Recreated))
            }
            _ => wrote,
        }
    }

    /// Counts the result of a job. `drift`: the job corrected a copy that was correct before.
    pub(super) fn count(&mut self, wrote: Option<WriteEffect>, failed: bool, drift: bool) {
        self.totals.count(wrote, failed, drift);
    }

    /// Returns the counters since the start.
    pub(super) fn totals(&self) -> Totals {
        Totals {
            contentions: self.contentions.count() as u64,
            ..self.totals
        }
    }

    /// Returns since when the agent has seen that an object is being deleted, or cannot delete it. `None` forgets a copy that is not. `outcome`: its last
    /// one.
    pub(super) fn terminating_since(
        &mut self,
        copy: &SourceRef,
        uid: Option<&Arc<str>>,
        outcome: Option<&CopyStatus>,
        now: Instant,
    ) -> Option<Instant> {
        let Some(uid) = uid else {
            self.terminating.remove(copy);
            return None;
        };
        let begun = || Deletion {
            uid: uid.clone(),
            since: now,
            was_applied: outcome == Some(&CopyStatus::Applied),
        };
        let known = self.terminating.entry(copy.clone()).or_insert_with(begun);
        if known.uid != *uid {
            *known = begun();
        }
        Some(known.since)
    }

    /// Whether a copy was applied when it was seen last, or when its deletion began. `outcome`: its last one.
    pub(super) fn was_applied(&self, copy: &SourceRef, outcome: Option<&CopyStatus>) -> bool {
        let deletion = self.terminating.get(copy);
        outcome == Some(&CopyStatus::Applied)
            || deletion.is_some_and(|deletion| deletion.was_applied)
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
        if matches!(outcome, None | Some(CopyStatus::Applied)) {
            self.recreations.remove(copy);
        }
    }
}
