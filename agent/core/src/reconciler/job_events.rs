//! The jobs of the agent: the queued copies, the next job to run, the jobs under way, and their
//! results.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{AgentFrame, Reason, Revision, RuleName, RuleUid, SourceRef};

use super::drift::{Compared, Failed};
use super::{Notice, PARALLEL, Reconciler};
use crate::audit::Written;
use crate::backoff::{COPY, Jitter, RECHECK, UNAVAILABLE};
use crate::cache::{InflightBudget, ROOM_BYTES};
use crate::copy::{CopyError, CopyStatus, IntentKey};
use crate::decide::{Action, Decision, DesiredCopy, TargetNamespace, WantedCopy};
use crate::delete_limit::Deletes;
use crate::job::{ContentSource, DesiredObject, Done, Job, Limits, Recreate, Work, Wrote};
use crate::live::Live;
use crate::queue::{Key, Queue};
use crate::records::{Observed, Usage};

/// The reason why a queued copy gets no job.
enum Idle {
    /// Nothing is to be done.
    Settled,
    /// The action has to wait. The copy is reconciled, so that its outcome shows why.
    Waits,
}

impl Reconciler {
    /// Sets whether this agent is the active one of its cluster. Only the active agent returns jobs
    /// that write copies.
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// Returns the next job, if fewer than [`PARALLEL`] are under way. The caller must return its
    /// result as [`super::Event::Done`].
    pub fn next_job(&mut self, now: Instant) -> Option<Job> {
        self.end_contentions(now);
        if let Some((number, preview_job)) = self.previews.pop() {
            let key = Key::Question(number);
            return Some(Job {
                key,
                work: Work::Preview(Box::new(preview_job)),
            });
        }
        let limit = if self.active { PARALLEL } else { 0 };
        loop {
            let desired = &self.desired;
            let key = self
                .jobs
                .pop(now, limit, |copy| desired.owners().rule_of(copy).cloned())?;
            let work = match &key {
                Key::Namespace(name) => self.namespace_work(name).ok_or(Idle::Settled),
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

    /// Returns the job that creates a namespace, if a rule still needs it.
    fn namespace_work(&mut self, name: &Arc<str>) -> Option<Work> {
        let decider = self.decider();
        let needs = |copy: &SourceRef| match decider.desired_copy(copy) {
            DesiredCopy::Copy(wanted) => {
                matches!(wanted.place, TargetNamespace::ToCreate(_))
                    && !wanted.suspend
                    && !wanted.dry_run
                    && !wanted.is_ambiguous
                    && wanted.denied.is_none()
                    && wanted.revision.is_some()
            }
            DesiredCopy::Nothing | DesiredCopy::Kept(..) | DesiredCopy::Absent(..) => false,
        };
        let known = self.watches.namespaces_unknown().is_none();
        let is_needed = known
            && !self.desired.cluster().has_namespace(name)
            && self.desired.copies().in_namespace(name).any(needs);
        if !is_needed {
            self.jobs.namespace_failed.remove(name);
        }
        is_needed.then_some(Work::CreateNamespace)
    }

    /// Returns the job for a copy.
    fn copy_work(&mut self, copy: &SourceRef, now: Instant) -> Result<Work, Idle> {
        if !self.watches.is_complete(copy) {
            return Err(Idle::Settled);
        }
        let (want, decision, depends_on_others) = self.decision(copy);
        let about = want.about().ok_or(Idle::Settled)?;
        let reread = self.jobs.reread.remove(copy);
        let work = match decision {
            _ if reread => Work::Read,
            Decision::Act(Action::Read) => Work::Read,
            // No watch reports changes of this object.
            Decision::Noop(
                CopyStatus::Failed(_) | CopyStatus::Drifted(_) | CopyStatus::Planned(..),
            ) if self.decider().is_unwatched(copy, &want) => Work::Read,
            Decision::Act(action) if self.waits_for_store(copy, &want, &action) => {
                return Err(Idle::Waits);
            }
            Decision::Act(action) if self.delete_later(&action, now).is_some() => {
                return Err(Idle::Waits);
            }
            // The cache may have evicted the content since the copy was queued.
            Decision::Act(action) => self.write(copy, &want, action, now).ok_or(Idle::Waits)?,
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
        let drifted = self.history.drifted.remove(copy);
        let others = drifted
            .clone()
            .unwrap_or_else(|| self.records.live(copy).and_then(|live| live.others.clone()));
        let rule = match &want {
            DesiredCopy::Copy(wanted) => wanted.rule.clone(),
            DesiredCopy::Absent(_, rule, _) => rule.clone(),
            DesiredCopy::Kept(..) | DesiredCopy::Nothing => RuleName::default(),
        };
        let drift = drifted.is_some();
        let job = RunningJob {
            want: (!depends_on_others).then_some(want),
            epoch: self.jobs.epoch,
            about,
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

    fn write(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        action: Action,
        now: Instant,
    ) -> Option<Work> {
        Some(match (action, want) {
            (Action::Create, DesiredCopy::Copy(wanted)) => {
                Work::Create(self.body(copy, wanted, now)?)
            }
            (Action::Change(target), DesiredCopy::Copy(wanted)) => {
                Work::Change(target, self.body(copy, wanted, now)?)
            }
            (Action::Adopt(target), DesiredCopy::Copy(wanted)) => {
                Work::Adopt(target, self.body(copy, wanted, now)?)
            }
            (Action::Overwrite(target), DesiredCopy::Copy(wanted)) => {
                Work::Overwrite(target, self.body(copy, wanted, now)?)
            }
            (Action::Compare(target), DesiredCopy::Copy(wanted)) => {
                Work::Compare(target, self.body(copy, wanted, now)?)
            }
            (Action::Demote(target), _) => Work::Demote(target),
            (Action::Delete(target), _) => Work::Delete(target),
            (Action::Retain(target), DesiredCopy::Absent(_, rule, _)) => {
                Work::Retain(target, rule.clone())
            }
            _ => return None,
        })
    }

    fn body(
        &mut self,
        copy: &SourceRef,
        wanted: &WantedCopy,
        now: Instant,
    ) -> Option<DesiredObject> {
        let revision = wanted.revision?;
        let content = match self.cache.get(&wanted.intent, &revision) {
            Some(payload) => ContentSource::Payload(payload),
            None => ContentSource::Twin(self.decider().twin(copy, &wanted.intent, &revision)?),
        };
        let limits = Limits {
            policy: self.policy.clone(),
            home: self.home.clone(),
        };
        let (intent, rule) = (wanted.intent.clone(), wanted.rule.clone());
        let ignored = wanted.policies.ignored.clone();
        let recreate = if !wanted.policies.recreate {
            Recreate::No
        } else if self
            .jobs
            .next_delete(self.policy.deletes_per_hour, now)
            .is_some()
        {
            Recreate::Later(self.policy.deletes_per_hour)
        } else {
            Recreate::Yes
        };
        // The newest version keeps its number even if its label was lost.
        let number = self.records.live(copy).map_or(0, |live| live.number);
        let version = wanted.policies.version.map(|least| least.max(number));
        let dry_run = wanted.dry_run;
        Some(DesiredObject {
            intent,
            rule,
            revision,
            content,
            ignored,
            version,
            recreate,
            dry_run,
            limits,
        })
    }

    /// Handles the result of a job.
    pub(super) fn done(&mut self, done: Done, now: Instant) {
        match done.key.clone() {
            Key::Namespace(name) => self.namespace_done(&name, &done, now),
            Key::Copy(copy) => self.copy_done(&copy, done, now),
            Key::Question(number) => {
                // A preview that an earlier stream requested is dropped.
                if let Some(preview_result) =
                    done.preview_result.filter(|_| self.previews.close(number))
                {
                    self.hub.send(AgentFrame::PreviewResult(preview_result));
                }
            }
        }
    }

    fn namespace_done(&mut self, name: &Arc<str>, done: &Done, now: Instant) {
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

    fn copy_done(&mut self, copy: &SourceRef, done: Done, now: Instant) {
        let Some(mut job) = self.jobs.running.remove(copy) else {
            return;
        };
        let want = job.want.take().filter(|_| job.epoch == self.jobs.epoch);
        let written = want.zip(done.wrote.filter(|_| done.copy_error.is_none()));
        if job.removes {
            self.desired.removal_ended(&job.about.0);
        }
        if let Some(learned) = done.learned {
            self.cache
                .insert(learned.key, learned.revision, learned.payload);
        }
        if let Some((version, copy_error)) = done.compared.map(|compared| *compared) {
            let compared = Compared {
                version,
                about: job.about.clone(),
                copy_error,
            };
            self.history.compared.insert(copy.clone(), compared);
        }
        if matches!(done.wrote, Some(Wrote::Deleted | Wrote::Recreated)) || done.deleted {
            self.jobs.deletes.done(now);
        }
        self.totals
            .count(done.wrote, done.copy_error.is_some(), job.drift);
        if let Some(observed) = done.observed.filter(|_| self.policy.area(copy).is_some()) {
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
                    // The recorded object is doubtful too: it may have another owner now.
                    self.jobs.reread.insert(copy.clone());
                }
                self.jobs
                    .retry(&done.key, &copy_error, done.retry_after, now);
                self.history.failed.insert(
                    copy.clone(),
                    Failed {
                        about: job.about,
                        copy_error,
                    },
                );
            }
            None => {
                self.jobs.queue.done(&done.key, now);
                self.history.failed.remove(copy);
                if let Some(wrote) = done.wrote {
                    tracing::debug!(%copy, ?wrote, drift = job.drift, "a copy was written");
                    self.notify_written(copy, wrote, job, now);
                }
            }
        }
        self.find(copy, now);
        let is_settled =
            written.is_some_and(|(want, wrote)| self.settle_written(copy, want, wrote, now));
        if is_settled {
            #[cfg(test)]
            self.assert_settled(copy);
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
        self.records.shown(copy, observed, passed);
        if is_read {
            self.record_rewritten(copy, before.as_ref());
        }
        let is_same = |before: &Live| {
            self.records
                .live(copy)
                .is_some_and(|live| live.uid == before.uid)
        };
        if before.as_ref().is_some_and(|before| !is_same(before)) {
            // Another object of the same name may now wait to be overwritten.
            self.report.touch(&job.about.0.rule);
        }
    }

    /// Records a write for the log and the hub, and queues its Events.
    fn notify_written(&mut self, copy: &SourceRef, wrote: Wrote, job: RunningJob, now: Instant) {
        // The label of an older version is no change that people look for.
        if job.rule != RuleName::default() {
            let written = Written {
                uid: &job.about.0.rule,
                rule: &job.rule,
                wrote,
                drifted: job.drift,
                by: job.others.as_ref(),
            };
            self.audit.wrote(copy, &written, now);
        }
        if job.drift
            && self
                .history
                .record_correction(copy, job.others.clone(), now)
        {
            self.notices.push(Notice::DriftCorrected(
                copy.clone(),
                job.rule.clone(),
                job.others.clone(),
            ));
        }
        match wrote {
            Wrote::Overwrote => {
                self.notices
                    .push(Notice::Overwritten(copy.clone(), job.rule, job.others))
            }
            Wrote::Recreated => self.notices.push(Notice::Recreated(copy.clone(), job.rule)),
            _ => {}
        }
    }
}

/// Limit of the stored decisions. Copies beyond it are decided again when their jobs start.
const DECISIONS_LIMIT: usize = 4096;

/// The decision about a queued copy.
pub(super) struct Decided {
    pub(super) want: DesiredCopy,
    pub(super) action: Action,
    /// The number of the last wide event before the decision.
    epoch: u64,
}

/// A job under way.
pub(super) struct RunningJob {
    /// The desired state that the job carries out, unless an event has concerned the copy since.
    want: Option<DesiredCopy>,
    /// The number of the last wide event before the job.
    epoch: u64,
    pub(super) about: (IntentKey, Option<Revision>),
    /// The versions that the watch has delivered since the job began; `None` for a deletion.
    pub(super) received: Vec<Option<Arc<str>>>,
    /// Whether the job corrects a copy that was correct before.
    pub(super) drift: bool,
    /// The other field managers of the object before the job, if they are known.
    pub(super) others: Option<Arc<str>>,
    pub(super) rule: RuleName,
    /// Whether the job deletes the object, or may have to.
    pub(super) deletes: bool,
    /// Whether the job carries out a removal.
    pub(super) removes: bool,
    pub(super) adds: Usage,
}

impl RunningJob {
    /// Whether the watch has delivered a version that is neither the result of the job nor older
    /// than that.
    pub(super) fn has_unexplained_version(&self, observed: &Observed, passed: &[Arc<str>]) -> bool {
        self.received
            .iter()
            .any(|received| match (received, observed) {
                (Some(version), Observed::Live(live)) => {
                    *version != live.version && !passed.contains(version)
                }
                (Some(version), _) => !passed.contains(version),
                (None, Observed::Live(_)) => true,
                (None, _) => false,
            })
    }
}

/// The jobs of the agent.
pub(super) struct Jobs {
    pub(super) queue: Queue,
    pub(super) running: BTreeMap<SourceRef, RunningJob>,
    /// Copies to be read again: the result of a job and the events of the watch do not match.
    pub(super) reread: BTreeSet<SourceRef>,
    /// The size of the payloads that wait to be applied.
    pub(super) budget: InflightBudget,
    budget_limit: usize,
    jitter: Jitter,
    pub(super) namespace_failed: BTreeMap<Arc<str>, CopyError>,
    /// The deletions of the last hour.
    pub(super) deletes: Deletes,
    /// The decisions about queued copies, unless an event has concerned the copy since.
    decisions: BTreeMap<SourceRef, Decided>,
    /// The number of wide events: events that may concern any copy.
    epoch: u64,
}

impl Jobs {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            queue: Queue::default(),
            running: BTreeMap::new(),
            reread: BTreeSet::new(),
            budget: InflightBudget::default(),
            budget_limit: ROOM_BYTES,
            jitter: Jitter::new(seed),
            namespace_failed: BTreeMap::new(),
            deletes: Deletes::default(),
            decisions: BTreeMap::new(),
            epoch: 0,
        }
    }

    /// Outdates all earlier decisions, because an event may concern any copy.
    pub(super) fn outdate_decisions(&mut self) {
        self.epoch += 1;
    }

    /// Outdates the decision about a copy. Returns whether a job for it is under way.
    pub(super) fn touch(&mut self, copy: &SourceRef) -> bool {
        self.decisions.remove(copy);
        let job = self.running.get_mut(copy);
        job.map(|job| job.want = None).is_some()
    }

    /// Stores the decision about a copy, if it is queued, for the start of its job.
    pub(super) fn keep_decision(&mut self, copy: &SourceRef, want: DesiredCopy, action: Action) {
        let key = Key::Copy(copy.clone());
        if self.decisions.len() < DECISIONS_LIMIT && self.queue.contains(&key) {
            let epoch = self.epoch;
            let decided = Decided {
                want,
                action,
                epoch,
            };
            self.decisions.insert(copy.clone(), decided);
        }
    }

    /// Takes the decision about a copy, if it still holds.
    pub(super) fn take_decision(&mut self, copy: &SourceRef) -> Option<Decided> {
        self.decisions
            .remove(copy)
            .filter(|decided| decided.epoch == self.epoch)
    }

    pub(super) fn set_budget(&mut self, bytes: usize) {
        self.budget_limit = bytes;
    }

    /// Whether the budget has room for more payloads.
    pub(super) fn has_room(&self) -> bool {
        self.budget.bytes() <= self.budget_limit
    }

    /// Returns the next key that is due, while fewer than `limit` jobs are under way.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        limit: usize,
        rule_of: impl Fn(&SourceRef) -> Option<RuleUid>,
    ) -> Option<Key> {
        let key = self.queue.pop(now, limit, |key| match key {
            Key::Copy(copy) => rule_of(copy),
            Key::Namespace(_) | Key::Question(_) => None,
        });
        // Copies behind a slow namespace or rule must not delay the stream of the hub.
        for parked in self.queue.take_parked() {
            if let Key::Copy(copy) = parked {
                self.budget.leave(&copy);
            }
        }
        key
    }

    /// Removes a copy from the queue and the budget.
    pub(super) fn cancel(&mut self, copy: &SourceRef) {
        self.decisions.remove(copy);
        self.queue.cancel(&Key::Copy(copy.clone()));
        self.budget.leave(copy);
    }

    /// Resets the failures of a copy, because its desired state has changed.
    pub(super) fn add_fresh(&mut self, copy: &SourceRef) {
        self.queue.add_fresh(&Key::Copy(copy.clone()));
    }

    /// Queues a copy after a delay, because no event reports the change that it waits for.
    pub(super) fn recheck(&mut self, copy: &SourceRef, now: Instant) {
        let delay = RECHECK.jittered(u32::MAX, self.jitter.draw());
        self.queue.add_at(&Key::Copy(copy.clone()), now + delay);
    }

    /// Delays the next try after a failure, at least for as long as the API server asks.
    pub(super) fn retry(
        &mut self,
        key: &Key,
        copy_error: &CopyError,
        after: Option<Duration>,
        now: Instant,
    ) {
        let backoff = match copy_error.reason {
            Reason::Conflict | Reason::Forbidden | Reason::NamespaceTerminating => RECHECK,
            Reason::Unavailable => UNAVAILABLE,
            _ => COPY,
        };
        let delay = backoff.jittered(self.queue.failures(key), self.jitter.draw());
        self.queue
            .failed(key, now + delay.max(after.unwrap_or_default()), now);
    }

    /// Records an event of a watch for the job that is under way for the copy.
    pub(super) fn record_event(&mut self, copy: &SourceRef, version: Option<Arc<str>>) {
        if let Some(job) = self.running.get_mut(copy) {
            job.received.push(version);
        }
    }

    /// Returns when the next copy may be deleted under a limit per hour; `None` means at once.
    pub(super) fn next_delete(&mut self, deletes_per_hour: usize, now: Instant) -> Option<Instant> {
        let under_way = self.running.values().filter(|job| job.deletes).count();
        self.deletes.not_before(deletes_per_hour, under_way, now)
    }

    /// Returns the intents with a removal under way.
    pub(super) fn removals(&self) -> BTreeSet<IntentKey> {
        self.running
            .values()
            .filter(|job| job.removes)
            .map(|job| job.about.0.clone())
            .collect()
    }
}
