//! The next job of the agent, and the results of jobs.
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Reason, RuleName, SourceRef};

use super::history::{CachedDiff, Failed};
use super::jobs::RunningJob;
use super::member::Member;
use crate::backoff::RECHECK;
use crate::copy::CopyStatus;
use crate::decide::{Action, Decision, DesiredCopy};
use crate::job::{Done, Job, Recreate, Work, WriteEffect};
use crate::live::Live;
use crate::queue::Key;
use crate::records::{Observed, Usage};

/// The reason why a queued copy gets no job.
enum Idle {
    /// Nothing is to be done.
    Settled,
    /// The action has to wait. The copy is reconciled, so that its outcome shows why.
    Waits,
}

impl Member {
    /// Returns the next job, if there is room for one.
    pub(super) fn next_job(&mut self, now: Instant) -> Option<Job> {
        for copy in self.history.contentions.take_ended(now) {
            self.reconcile_copy(&copy, now);
        }
        loop {
            let owners = self.desired.owners();
            let key = self.jobs.pop(now, |copy| owners.rule_of(copy).cloned())?;
            let work = match &key {
                Key::Namespace(name) if self.decider().needs_namespace(name) => {
                    Ok(Work::CreateNamespace)
                }
                Key::Namespace(name) => {
                    self.jobs.namespace_failed.remove(name);
                    Err(Idle::Settled)
                }
                Key::Copy(copy) => self.copy_work(copy, now),
                Key::Question(_) => Err(Idle::Settled),
            };
            let idle = match work {
                Ok(work) => return Some(Job { key, work }),
                Err(idle) => idle,
            };
            self.jobs.queue.done(&key, now);
            if let (Key::Copy(copy), Idle::Waits) = (&key, idle) {
                self.reconcile_copy(copy, now);
            }
        }
    }

    /// Returns the job for a copy.
    fn copy_work(&mut self, copy: &SourceRef, now: Instant) -> Result<Work, Idle> {
        if !self.watches.is_complete(copy) {
            return Err(Idle::Settled);
        }
        let (want, decision, depends_on_others) = self.decision(copy);
        let about = want.target().ok_or(Idle::Settled)?;
        let reread = self.jobs.reread.remove(copy);
        let work = match decision {
            _ if reread => Work::Read,
            Decision::Act(Action::Read) => Work::Read,
            // No watch reports changes of this object.
            Decision::Noop(
                CopyStatus::Failed(_) | CopyStatus::Drifted(_) | CopyStatus::Planned(..),
            ) if self.decider().is_unwatched(copy, &want) => Work::Read,
            Decision::Act(action)
                if self.waits_for_store(copy, &want, &action)
                    || self.jobs.delete_later(&action, now).is_some() =>
            {
                return Err(Idle::Waits);
            }
            // The cache may have evicted the content since the copy was queued.
            Decision::Act(action) => {
                let (payloads, records) = (&mut self.payloads, &self.records);
                self.jobs
                    .work(copy, &want, action, payloads, records, now)
                    .ok_or(Idle::Waits)?
            }
            Decision::Noop(_) if self.decider().waits_for_quota(copy, &want) => {
                return Err(Idle::Waits);
            }
            Decision::Forget | Decision::Noop(_) => return Err(Idle::Settled),
        };
        let deletes = match &work {
            Work::Delete(_) => true,
            Work::Change(_, body) | Work::Overwrite(_, body) => body.recreate == Recreate::Yes,
            _ => false,
        };
        let removes = matches!(&work, Work::Delete(_));
        let adds = match &work {
            Work::Create(_) | Work::Change(..) | Work::Adopt(..) | Work::Overwrite(..) => {
                self.decider().growth(copy, &about.0)
            }
            _ => Usage::default(),
        };
        let drifted = self.history.take_drift(copy);
        let others = drifted
            .clone()
            .unwrap_or_else(|| self.records.live(copy).and_then(|live| live.others.clone()));
        let rule = match &want {
            DesiredCopy::Copy(wanted) => wanted.rule.clone(),
            DesiredCopy::Absent(_, rule, _) => rule.clone(),
            DesiredCopy::OlderVersion(..) | DesiredCopy::Nothing => RuleName::default(),
        };
        let drift = drifted.is_some();
        let job = RunningJob {
            want: (!depends_on_others).then_some(want),
            epoch: self.jobs.epoch,
            target: about,
            received: vec![],
            drift,
            others,
            rule,
            deletes,
            removes,
            adds,
        };
        self.jobs.running.insert(copy.clone(), job);
        Ok(work)
    }

    /// Handles the result of a job for a namespace.
    pub(super) fn namespace_done(&mut self, name: &Arc<str>, done: &Done, now: Instant) {
        let Some(copy_error) = &done.copy_error else {
            self.jobs.queue.done(&done.key, now);
            self.jobs.namespace_failed.remove(name);
            // The watch delivers the namespace, unless it was deleted again.
            return self.jobs.queue.add_at(&done.key, now + RECHECK.base);
        };
        self.jobs
            .retry(&done.key, copy_error, done.retry_after, now);
        self.jobs
            .namespace_failed
            .insert(name.clone(), copy_error.clone());
        let copies: Vec<_> = self.desired.copies().in_namespace(name).cloned().collect();
        for copy in copies {
            self.reconcile_copy(&copy, now);
        }
    }

    /// Handles the result of a job for a copy.
    pub(super) fn copy_done(&mut self, copy: &SourceRef, done: Done, now: Instant) {
        let Some(mut job) = self.jobs.finish(copy) else {
            return;
        };
        let written = job
            .want
            .take()
            .zip(done.wrote.filter(|_| done.copy_error.is_none()));
        if job.removes {
            self.desired.removal_ended(&job.target.0);
        }
        if let Some(learned) = done.learned {
            self.payloads.learn(learned);
        }
        if let Some((version, copy_error)) = done.compared.map(|compared| *compared) {
            let compared = CachedDiff {
                version,
                target: job.target.clone(),
                copy_error,
            };
            self.history.record_compared(copy, compared);
        }
        if matches!(
            done.wrote,
            Some(WriteEffect::Deleted | WriteEffect::Recreated)
        ) || done.deleted
        {
            self.jobs.deletes.done(now);
        }
        self.history
            .count(done.wrote, done.copy_error.is_some(), job.drift);
        if let Some(observed) = done.observed.filter(|_| self.watches.area(copy).is_some()) {
            self.copy_observed(copy, &job, observed, done.passed, done.wrote.is_none());
        } else if done.copy_error.is_some() && *self.records.observed(copy) == Observed::Absent {
            // The request may have succeeded despite the error, so that the existence of the object
            // is unknown.
            self.records.forget(copy);
        }
        match done.copy_error {
            Some(copy_error) => {
                tracing::debug!(%copy, reason = copy_error.reason.as_str(), "a copy failed");
                if copy_error.reason == Reason::Unavailable && self.records.live(copy).is_some() {
                    // The recorded object may be stale too: it may have another owner now.
                    self.jobs.reread.insert(copy.clone());
                }
                self.jobs
                    .retry(&done.key, &copy_error, done.retry_after, now);
                self.history.failed.insert(
                    copy.clone(),
                    Failed {
                        target: job.target,
                        copy_error,
                    },
                );
            }
            None => {
                self.jobs.queue.done(&done.key, now);
                self.history.failed.remove(copy);
                if let Some(wrote) = done.wrote {
                    tracing::debug!(%copy, ?wrote, drift = job.drift, "a copy was written");
                    // The outcome may be the same as before, as that of a contended copy is.
                    self.report.touch(&job.target.0.rule);
                    self.history.record_write(copy, wrote, job, now);
                }
            }
        }
        self.find(copy, now);
        let is_settled =
            written.is_some_and(|(want, wrote)| self.settle_written(copy, want, wrote, now));
        if is_settled {
            #[cfg(test)]
            self.decider().assert_settled(copy);
        } else {
            self.reconcile_copy(copy, now);
        }
    }

    /// Records the object that a job has read or written.
    fn copy_observed(
        &mut self,
        copy: &SourceRef,
        job: &RunningJob,
        observed: Observed,
        passed: Vec<Arc<str>>,
        is_read: bool,
    ) {
        if job.has_unexplained_version(&observed, &passed) {
            self.jobs.reread.insert(copy.clone());
        }
        let before = self.records.live(copy).cloned();
        self.records.record_result(copy, observed, passed);
        if is_read && let Some(about) = self.decider().rewritten(copy, before.as_ref()) {
            self.history.record_rewritten(copy, about);
        }
        let is_same = |before: &Live| {
            self.records
                .live(copy)
                .is_some_and(|live| live.uid == before.uid)
        };
        if before.as_ref().is_some_and(|before| !is_same(before)) {
            // Another object of the same name may now wait to be overwritten.
            self.report.touch(&job.target.0.rule);
        }
    }
}
