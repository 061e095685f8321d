//! Work: what to do next, and what came of it.
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{AgentFrame, Reason, RuleName, SourceRef};

use super::reconcile_copy::about;
use super::{Compared, Failed, Notice, PARALLEL, Reconciler, RunningJob};
use crate::backoff::{COPY, RECHECK, UNAVAILABLE};
use crate::copy::{CopyError, CopyStatus};
use crate::decide::{Action, Decision, TargetNamespace, Want, WantedCopy, decide};
use crate::job::{ContentSource, DesiredObject, Done, Job, Limits, Recreate, Work, Wrote};
use crate::queue::Key;
use crate::records::{Observed, Usage};

impl Reconciler {
    /// Sets whether this agent is the active one of its cluster. No other one gives out work about copies.
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// The next piece of work, if fewer than [`PARALLEL`] are under way. Its result must come back as
    /// [`super::Event::Done`].
    pub fn next_job(&mut self, now: Instant) -> Option<Job> {
        self.look_at_calm(now);
        if let Some((number, supposition)) = self.suppositions.pop_front() {
            let key = Key::Question(number);
            return Some(Job { key, work: Work::Foresee(Box::new(supposition)) });
        }
        let limit = if self.active { PARALLEL } else { 0 };
        while let Some(key) = self.pop(now, limit) {
            let work = match &key {
                Key::Namespace(name) => self.namespace_work(name),
                Key::Copy(copy) => self.work(copy, now),
                Key::Question(_) => None,
            };
            if let Some(work) = work {
                return Some(Job { key, work });
            }
            self.queue.done(&key, now);
            // Its content has gone since it was queued: it is asked for again.
            if let Key::Copy(copy) = &key
                && (self.has_lost_content(copy)
                    || self.waits_to_remove(copy, now)
                    || self.lacks_room(copy, &self.want(copy)))
            {
                self.reconcile_copy(copy, now);
            }
        }
        None
    }

    fn pop(&mut self, now: Instant, limit: usize) -> Option<Key> {
        let desired = &self.desired;
        let key = self.queue.pop(now, limit, |key| match key {
            Key::Copy(copy) => desired.rule_of(copy).cloned(),
            Key::Namespace(_) | Key::Question(_) => None,
        });
        // What waits for something that hangs must not hold the hub back.
        for parked in self.queue.take_parked() {
            if let Key::Copy(copy) = parked {
                self.room.leave(&copy);
            }
        }
        key
    }

    fn has_lost_content(&self, copy: &SourceRef) -> bool {
        let Want::Copy(wanted) = self.want(copy) else { return false };
        let WantedCopy { intent, revision, denied, .. } = *wanted;
        let written = revision.filter(|_| denied.is_none() && self.is_watched(copy));
        written.is_some_and(|revision| self.lacks_content(copy, &intent, &revision))
    }

    /// When something may be deleted, if not now: no hub has more deleted than the policy lets. What goes because the hub
    /// has revoked this cluster goes by a word of the hub, too.
    pub(super) fn delete_later(&mut self, action: &Action, now: Instant) -> Option<Instant> {
        if !matches!(action, Action::Delete(_)) {
            return None;
        }
        self.next_delete(now)
    }

    fn next_delete(&mut self, now: Instant) -> Option<Instant> {
        let under_way = self.runs.values().filter(|run| run.deletes).count();
        self.deletes.not_before(self.policy.deletes_per_hour, under_way, now)
    }

    fn waits_to_remove(&mut self, copy: &SourceRef, now: Instant) -> bool {
        let want = self.want(copy);
        match decide(&want, self.records.observed(copy)) {
            Decision::Act(action) => {
                self.waits_for_store(copy, &want, &action) || self.delete_later(&action, now).is_some()
            }
            Decision::Forget | Decision::Noop(_) => false,
        }
    }

    /// A namespace is created while some rule still asks for it.
    fn namespace_work(&mut self, name: &Arc<str>) -> Option<Work> {
        let asks = |copy: &SourceRef| match self.want(copy) {
            Want::Copy(wanted) => {
                matches!(wanted.place, TargetNamespace::ToCreate(_))
                    && !wanted.suspend
                    && !wanted.dry_run
                    && !wanted.is_ambiguous
                    && wanted.denied.is_none()
                    && wanted.revision.is_some()
            }
            Want::Nothing | Want::Kept(..) | Want::Gone(..) => false,
        };
        let known = self.namespaces_unknown().is_none();
        let asked = known && !self.desired.has_namespace(name) && self.desired.copies_in(name).iter().any(asks);
        if !asked {
            self.namespace_failed.remove(name);
        }
        asked.then_some(Work::CreateNamespace)
    }

    /// What there is to do about a copy now.
    fn work(&mut self, copy: &SourceRef, now: Instant) -> Option<Work> {
        if !self.is_watched(copy) {
            return None;
        }
        let want = self.want(copy);
        let about = about(&want)?;
        let reread = self.reread.remove(copy);
        let work = match decide(&want, self.records.observed(copy)) {
            _ if reread => Work::Read,
            Decision::Act(Action::Read) => Work::Read,
            // Nobody tells what becomes of it.
            Decision::Noop(CopyStatus::Failed(_) | CopyStatus::Drifted(_) | CopyStatus::Planned(..))
                if self.is_unseen(copy, &want) =>
            {
                Work::Read
            }
            Decision::Act(action) if self.waits_for_store(copy, &want, &action) => return None,
            Decision::Act(action) if self.delete_later(&action, now).is_some() => return None,
            Decision::Act(action) => self.write(copy, &want, action, now)?,
            Decision::Forget | Decision::Noop(_) => return None,
        };
        let deletes = match &work {
            Work::Delete(_) => true,
            Work::Change(_, body) | Work::Overwrite(_, body) => body.recreate == Recreate::Yes,
            _ => false,
        };
        let removes = matches!(&work, Work::Delete(_));
        let adds = match &work {
            Work::Create(_) | Work::Change(..) | Work::Adopt(..) | Work::Overwrite(..) => self.growth(copy, &about.0),
            _ => Usage::default(),
        };
        let drifted = self.drifted.remove(copy);
        let others = drifted.clone().unwrap_or_else(|| self.records.live(copy).and_then(|live| live.others.clone()));
        let rule = match want {
            Want::Copy(wanted) => wanted.rule,
            Want::Gone(_, rule, _) => rule,
            Want::Kept(..) | Want::Nothing => RuleName::default(),
        };
        let drift = drifted.is_some();
        self.runs
            .insert(copy.clone(), RunningJob { about, received: vec![], drift, others, rule, deletes, removes, adds });
        Some(work)
    }

    fn write(&mut self, copy: &SourceRef, want: &Want, action: Action, now: Instant) -> Option<Work> {
        Some(match (action, want) {
            (Action::Create, Want::Copy(wanted)) => Work::Create(self.body(copy, wanted, now)?),
            (Action::Change(target), Want::Copy(wanted)) => Work::Change(target, self.body(copy, wanted, now)?),
            (Action::Adopt(target), Want::Copy(wanted)) => Work::Adopt(target, self.body(copy, wanted, now)?),
            (Action::Overwrite(target), Want::Copy(wanted)) => Work::Overwrite(target, self.body(copy, wanted, now)?),
            (Action::Compare(target), Want::Copy(wanted)) => Work::Compare(target, self.body(copy, wanted, now)?),
            (Action::Demote(target), _) => Work::Demote(target),
            (Action::Delete(target), _) => Work::Delete(target),
            (Action::Retain(target), Want::Gone(_, rule, _)) => Work::Retain(target, rule.clone()),
            _ => return None,
        })
    }

    fn body(&mut self, copy: &SourceRef, wanted: &WantedCopy, now: Instant) -> Option<DesiredObject> {
        let revision = wanted.revision?;
        let content = match self.cache.get(&wanted.intent, &revision) {
            Some(payload) => ContentSource::Payload(payload),
            None => ContentSource::Twin(self.twin(copy, &wanted.intent, &revision)?),
        };
        let limits = Limits { policy: self.policy.clone(), home: self.home.clone() };
        let (intent, rule) = (wanted.intent.clone(), wanted.rule.clone());
        let ignored = wanted.policies.ignored.clone();
        let recreate = if !wanted.policies.recreate {
            Recreate::No
        } else if self.next_delete(now).is_some() {
            Recreate::Later(self.policy.deletes_per_hour)
        } else {
            Recreate::Yes
        };
        // What is the newest already keeps its number, though its label was lost.
        let number = self.records.live(copy).map_or(0, |live| live.number);
        let version = wanted.policies.version.map(|least| least.max(number));
        let dry_run = wanted.dry_run;
        Some(DesiredObject { intent, rule, revision, content, ignored, version, recreate, dry_run, limits })
    }

    /// Takes in what came of a piece of work.
    pub(super) fn done(&mut self, done: Done, now: Instant) {
        match done.key.clone() {
            Key::Namespace(name) => {
                match done.copy_error {
                    Some(copy_error) => {
                        self.retry(&done.key, &copy_error, done.retry_after, now);
                        self.namespace_failed.insert(name.clone(), copy_error);
                        for copy in self.desired.copies_in(&name) {
                            self.reconcile_copy(&copy, now);
                        }
                    }
                    None => {
                        self.queue.done(&done.key, now);
                        self.namespace_failed.remove(&name);
                        // The watch will show it; should it not, somebody has deleted it again.
                        self.queue.add_at(&done.key, now + RECHECK.base);
                    }
                }
            }
            Key::Copy(copy) => self.copy_done(&copy, done, now),
            Key::Question(number) => {
                // Whoever asked on another stream does not hear us any more, and somebody else would.
                let is_open = self.questions.remove(&number);
                if let Some(supposed) = done.supposed.filter(|_| is_open) {
                    self.send(AgentFrame::Supposed(supposed));
                }
            }
        }
    }

    fn copy_done(&mut self, copy: &SourceRef, done: Done, now: Instant) {
        let Some(run) = self.runs.remove(copy) else { return };
        if run.removes {
            self.desired.removal_ended(&run.about.0);
        }
        if let Some(learned) = done.learned {
            self.cache.insert(learned.key, learned.revision, learned.payload);
        }
        if let Some((version, copy_error)) = done.compared.map(|compared| *compared) {
            self.note_compared(copy, Compared { version, about: run.about.clone(), copy_error });
        }
        if matches!(done.wrote, Some(Wrote::Deleted | Wrote::Recreated)) || done.deleted {
            self.deletes.done(now);
        }
        self.count(done.wrote, done.copy_error.is_some(), run.drift);
        if let Some(observed) = done.observed.filter(|_| self.policy.area(copy).is_some()) {
            if is_puzzling(&run, &observed, &done.passed) {
                self.reread.insert(copy.clone());
            }
            let before = self.records.live(copy).cloned();
            let stood = before.as_ref().map(|live| live.uid.clone());
            self.records.shown(copy, observed, done.passed);
            if done.wrote.is_none() {
                self.note_rewritten(copy, before.as_ref());
            }
            let stands = self.records.live(copy).map(|live| live.uid.clone());
            if stood.is_some() && stood != stands {
                // What waits to be overwritten may be another object of the same name.
                self.report.touch(&run.about.0.rule);
            }
        } else if done.copy_error.is_some() && *self.records.observed(copy) == Observed::Absent {
            // The request may have done its work all the same: what is there is not known any more.
            self.records.forget(copy);
        }
        match done.copy_error {
            Some(copy_error) => {
                tracing::debug!(%copy, reason = copy_error.reason.as_str(), "a copy failed");
                if copy_error.reason == Reason::Unavailable && self.records.live(copy).is_some() {
                    // The same, where the object that is known may be another's now.
                    self.reread.insert(copy.clone());
                }
                self.retry(&done.key, &copy_error, done.retry_after, now);
                self.failed.insert(copy.clone(), Failed { about: run.about, copy_error });
            }
            None => {
                self.queue.done(&done.key, now);
                self.failed.remove(copy);
                if let Some(wrote) = done.wrote {
                    tracing::debug!(%copy, ?wrote, drift = run.drift, "a copy was written");
                    if run.drift && self.note_corrected(copy, run.others.clone(), now) {
                        self.notices.push(Notice::DriftCorrected(copy.clone()));
                    }
                    match wrote {
                        Wrote::Overwrote => {
                            self.notices.push(Notice::Overwritten(copy.clone(), run.rule, run.others));
                        }
                        Wrote::Recreated => self.notices.push(Notice::Recreated(copy.clone())),
                        _ => {}
                    }
                }
            }
        }
        self.find(copy, now);
        self.reconcile_copy(copy, now);
    }

    /// Waits before the next try, at least for as long as the API server asks.
    pub(super) fn retry(&mut self, key: &Key, copy_error: &CopyError, after: Option<Duration>, now: Instant) {
        let backoff = match copy_error.reason {
            Reason::Conflict | Reason::Forbidden | Reason::NamespaceTerminating => RECHECK,
            Reason::Unavailable => UNAVAILABLE,
            _ => COPY,
        };
        let delay = backoff.jittered(self.queue.failures(key), self.jitter.draw());
        self.queue.failed(key, now + delay.max(after.unwrap_or_default()), now);
    }
}

/// Whether a watch named something meanwhile that is neither the result of the run nor older than it.
fn is_puzzling(run: &RunningJob, observed: &Observed, passed: &[std::sync::Arc<str>]) -> bool {
    run.received.iter().any(|received| match (received, observed) {
        (Some(version), Observed::Live(live)) => *version != live.version && !passed.contains(version),
        (Some(version), _) => !passed.contains(version),
        (None, Observed::Live(_)) => true,
        (None, _) => false,
    })
}
