//! Handles the events of the watches and of the hub and the results of jobs, and gives the next job.
//! The agent decides nothing before each watch has delivered a complete list or has failed.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{
    Batch, NAMESPACES, ProofKey, Propagation, Reason, Refusal, Revision, RuleName, RuleState,
    RuleUid, SourceRef,
};

use super::history::{CachedDiff, Failed};
use super::jobs::RunningJob;
use super::member::Member;
use super::prunes;
use super::watches::Watch;
use crate::backoff::RECHECK;
use crate::copy::{CopyError, CopyStatus, IntentKey};
use crate::decide::{Action, Decision, DesiredCopy, Done, Job, Key, Recreate, Work, WriteEffect};
use crate::desired::Namespace;
use crate::live::Live;
use crate::policy::Area;
use crate::records::{Observed, Usage};

impl Member {
    /// Handles the begin of an area's list.
    pub(super) fn copies_listed(&mut self, area: &Area) {
        if self.watches.begin_list(area) {
            self.records
                .list_begins(&area.resource, area.namespace.as_deref());
        }
    }

    /// Handles an object that a watch shows.
    pub(super) fn handle_copy_event(&mut self, copy: &SourceRef, live: Live, now: Instant) {
        let is_stranger =
            !self.desired.copies().contains(copy) && self.records.is_foreign(copy, &live);
        let Some(is_listed) = self.watches.shown(copy, !is_stranger) else {
            return;
        };
        self.jobs.record_event(copy, Some(live.version.clone()));
        let before = self.records.live(copy).cloned();
        if is_stranger {
            if before.is_some() {
                self.records.forget(copy);
                self.reconcile_copy(copy, now);
            }
            return;
        }
        let known = |live: &Live| (live.uid.clone(), live.facts.digest);
        let (former_key, current_key) = (before.as_ref().map(known), known(&live));
        let has_other_values =
            before.as_ref().and_then(|before| before.feedback.as_ref()) != live.feedback.as_ref();
        let is_news = if is_listed {
            self.records.listed(copy, live)
        } else {
            self.records.watched(copy, live)
        };
        if !is_news {
            return;
        }
        if let Some(about) = self.decider().rewritten(copy, before.as_ref()) {
            self.history.record_rewritten(copy, about);
        }
        self.reconcile_watched(copy, now);
        if former_key.is_some_and(|former_key| former_key != current_key) {
            // Another object may now wait to be overwritten, with the same message. The proof
            // covers other content.
            self.report.touch_copy(copy);
        }
        if has_other_values {
            self.report.touch_values(copy);
        }
    }

    /// Finds a copy of ours whose own intent neither claims it nor has ordered its removal: the
    /// intent may not be acked, or its rule may have no copies in that namespace.
    pub(super) fn find(&mut self, copy: &SourceRef, now: Instant) {
        let Some(key) = self.records.live(copy).and_then(Live::intent) else {
            return;
        };
        // A copy in a terminating namespace goes with it.
        let stays = self.desired.cluster().has_live_namespace(&copy.namespace);
        let is_known = self.desired.copies().concerns(&key, copy);
        let is_running = self.jobs.running.contains_key(copy);
        if is_known || is_running || !stays || !self.watches.is_complete(copy) || self.revoked {
            return;
        }
        if self.desired.find_intent(&key, copy, &self.records) {
            tracing::warn!(rule = %key.rule, source = %key.source, "copies were found that the hub did not order: requesting their state from it");
            self.report.resync(&key.rule, now);
            self.jobs.outdate_decisions();
        }
        if self.desired.copies().concerns(&key, copy) {
            self.reconcile_copy(copy, now);
        }
    }

    /// Handles an object that a watch does not show any more.
    pub(super) fn handle_copy_deletion(&mut self, copy: &SourceRef, uid: &str, now: Instant) {
        self.jobs.record_event(copy, None);
        if self.records.unwatched(copy, uid) {
            self.reconcile_watched(copy, now);
        }
    }

    /// Reconciles a copy after an event of its watch. While a job for the copy is under way, the
    /// end of the job does that: the event is usually the echo of its write.
    fn reconcile_watched(&mut self, copy: &SourceRef, now: Instant) {
        if !self.jobs.running.contains_key(copy) {
            self.reconcile_copy(copy, now);
        }
    }

    /// Handles the end of an area's list.
    pub(super) fn copies_complete(&mut self, area: &Area, now: Instant) {
        let Some(listed) = self.watches.end_list(area) else {
            return;
        };
        let missing =
            self.records
                .missing(&area.resource, area.namespace.as_deref(), &listed.names);
        for copy in missing {
            if self.jobs.running.contains_key(&copy) {
                self.jobs.record_event(&copy, None);
                continue;
            }
            if self.records.is_confirmed_since_list(&copy) && self.desired.copies().contains(&copy)
            {
                // The list may be older than a read or write meanwhile.
                self.jobs.reread.insert(copy.clone());
            } else {
                self.records.forget(&copy);
            }
            self.reconcile_copy(&copy, now);
        }
        if !self.watches.has_started() {
            self.start_if_ready(now);
        } else if listed.is_first {
            // The list may show copies of ours that nothing here concerns.
            self.reconcile_area(area, now);
        }
        if listed.was_lost {
            self.report_resumed(&area.resource);
        }
    }

    /// Continues after a watch has failed. `unreadable`: the area whose copies cannot be read any
    /// more.
    pub(super) fn watch_failed(&mut self, unreadable: Option<&Area>, now: Instant) {
        if !self.watches.has_started() {
            self.start_if_ready(now);
        } else if let Some(area) = unreadable {
            self.reconcile_area(area, now);
        }
    }

    /// Handles an area whose copies cannot be watched, and may exist.
    pub(super) fn copies_forbidden(&mut self, area: &Area, copy_error: CopyError, now: Instant) {
        let was_lost = self.watches.is_lost(area);
        let is_news = self.watches.forbid(area, copy_error, false);
        self.watch_failed(is_news.then_some(area), now);
        if was_lost {
            self.report_resumed(&area.resource);
        }
    }

    /// Handles a kind of which no object can exist in an area.
    pub(super) fn kind_deleted(&mut self, area: &Area, copy_error: CopyError, now: Instant) {
        let was_lost = self.watches.is_lost(area);
        let is_news = self.watches.forbid(area, copy_error, true);
        let recorded = self
            .records
            .names(&area.resource, area.namespace.as_deref());
        let gone: Vec<_> = recorded.cloned().collect();
        let watches = &self.watches;
        let is_of_area = |copy: &SourceRef| watches.area(copy).as_ref() == Some(area);
        self.jobs.reread.retain(|copy| !is_of_area(copy));
        for copy in &gone {
            self.jobs.record_event(copy, None);
            self.records.forget(copy);
        }
        self.watch_failed((is_news || !gone.is_empty()).then_some(area), now);
        for copy in gone {
            self.reconcile_copy(&copy, now);
        }
        if was_lost {
            self.report_resumed(&area.resource);
        }
    }

    /// Handles a namespace that exists.
    pub(super) fn handle_namespace_event(
        &mut self,
        name: &Arc<str>,
        namespace: Namespace,
        now: Instant,
    ) {
        self.watches.namespace_shown(name);
        self.jobs.namespace_failed.remove(name);
        self.set_namespace(name, Some(namespace), now);
    }

    /// Sets a namespace (`None`: it is deleted).
    pub(super) fn set_namespace(
        &mut self,
        name: &Arc<str>,
        namespace: Option<Namespace>,
        now: Instant,
    ) {
        let to_reconcile = self.desired.set_namespace(name, namespace, &self.records);
        if self.watches.has_started() && !to_reconcile.is_empty() {
            self.history.audit.namespace_changed(name, now);
        }
        for copy in to_reconcile {
            self.reconcile_now(&copy, now);
        }
    }

    /// Handles the end of the list of namespaces.
    pub(super) fn namespaces_complete(&mut self, now: Instant) {
        let listed = self.watches.end_namespaces();
        let gone: Vec<_> = self
            .desired
            .cluster()
            .namespaces()
            .filter(|name| !listed.names.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.set_namespace(&name, None, now);
        }
        if !self.watches.has_started() {
            self.start_if_ready(now);
        } else if listed.is_first {
            self.reconcile_all(now);
        }
        if listed.was_lost {
            self.report_resumed(NAMESPACES);
        }
    }

    /// Starts, once each watch has delivered its first list or has failed.
    pub(super) fn start_if_ready(&mut self, now: Instant) {
        if !self.watches.start() {
            return;
        }
        // Without a list of namespaces, those of recorded copies are assumed to exist.
        if self.watches.namespaces_unknown().is_some() {
            let copies = self.records.all();
            let copies = copies.filter(|copy| !copy.is_cluster_scoped());
            let names: BTreeSet<_> = copies.map(|copy| copy.namespace.clone()).collect();
            for name in names {
                self.desired
                    .set_namespace(&name, Some(Namespace::default()), &self.records);
            }
        }
        let stored = self.store.take_initial();
        self.history.restore_finished(&stored);
        let rules = stored.len();
        self.desired.restore_terms(stored);
        for copy in self
            .desired
            .restore_intents(&self.watches.complete_areas(), &self.records)
        {
            self.reconcile_copy(&copy, now);
        }
        let all: Vec<_> = self.desired.copies().all().cloned().collect();
        tracing::info!(
            rules,
            copies = all.len(),
            "watching this cluster's copies and namespaces"
        );
        for copy in all {
            self.reconcile_copy(&copy, now);
        }
    }

    fn reconcile_area(&mut self, area: &Area, now: Instant) {
        let known = self.desired.copies().all().chain(self.records.all());
        let shown = known.filter(|copy| self.watches.area(copy).as_ref() == Some(area));
        for copy in shown.cloned().collect::<BTreeSet<_>>() {
            self.reconcile_copy(&copy, now);
        }
    }

    /// Reports the rules that may have proved nothing while the watch of these objects was lost.
    pub(super) fn report_resumed(&mut self, resource: &str) {
        let rules = self.desired.rules();
        let blind = rules
            .uids()
            .filter(|uid| rules.may_have_kind(uid, resource));
        self.report.report_all(blind.cloned());
    }
}

/// The reason why a queued copy gets no job.
enum Idle {
    /// Nothing is to be done.
    Settled,
    /// The action has to wait. The copy is reconciled, so that its outcome shows why.
    Waits,
    /// Earlier copies of the same rule are under way. The copy is queued again after them.
    Follows,
}

impl Member {
    /// Returns the next job, if there is room for one.
    pub(super) fn next_job(&mut self, now: Instant) -> Option<Job> {
        for copy in self.history.contentions.take_ended(now) {
            self.reconcile_copy(&copy, now);
        }
        loop {
            let (owners, records) = (self.desired.owners(), &self.records);
            let rule_of = |copy: &SourceRef| owners.rule_of(copy, records.live(copy)).cloned();
            let key = self.jobs.pop(now, rule_of)?;
            let job = match &key {
                Key::Namespace(name) => self.namespace_job(&key, name),
                Key::Copy(copy) if self.follows(copy) => Err(Idle::Follows),
                Key::Copy(copy) => self.copy_job(copy, now),
                Key::Question(_) => Err(Idle::Settled),
            };
            let idle = match job {
                Ok(job) => return Some(job),
                Err(idle) => idle,
            };
            self.jobs.queue.done(&key, now);
            match (&key, idle) {
                (Key::Copy(copy), Idle::Waits) => self.reconcile_copy(copy, now),
                (Key::Copy(copy), Idle::Settled) => {
                    self.jobs.polls.forget(copy);
                    self.jobs.leave_phase(copy);
                }
                (_, _) => {}
            }
        }
    }

    /// Returns the job for a missing namespace. After a failure the next account of the rules that need it tries.
    fn namespace_job(&mut self, key: &Key, name: &Arc<str>) -> Result<Job, Idle> {
        let accounts = self.decider().accounts_for_namespace(name);
        let failures = usize::try_from(self.jobs.queue.failures(key)).unwrap_or_default();
        let turn = failures.saturating_sub(1) % accounts.len().max(1);
        let Some(account) = accounts.into_iter().nth(turn) else {
            self.jobs.namespace_failed.remove(name);
            return Err(Idle::Settled);
        };
        Ok(Job {
            key: key.clone(),
            work: Work::CreateNamespace,
            account,
            propagation: Propagation::default(),
            corrects_drift: false,
            nodes: 0,
        })
    }

    /// Returns the job for a copy.
    fn copy_job(&mut self, copy: &SourceRef, now: Instant) -> Result<Job, Idle> {
        if !self.watches.is_complete(copy) {
            return Err(Idle::Settled);
        }
        let (want, decision, depends_on_others) = self.decision(copy);
        let about = want.target().ok_or(Idle::Settled)?;
        let account = self.decider().account_of(&want);
        let reread = self.jobs.reread.remove(copy);
        let work = match decision {
            _ if reread => Work::Read,
            Decision::Act(Action::Read) => Work::Read,
            // No watch reports changes of this object.
            Decision::Noop(
                CopyStatus::Failed(_) | CopyStatus::Drifted(_) | CopyStatus::Planned(..),
            ) if self.decider().is_unwatched(copy, &want) => Work::Read,
            Decision::Act(action)
                if (action.is_removal() && account.is_err())
                    || self.waits_for_store(copy, &want, &action)
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
            Decision::Noop(_)
                if self.is_terminating(copy) || self.decider().waits_for_quota(copy, &want) =>
            {
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
        let overwrites = matches!(&work, Work::Overwrite(..));
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
            DesiredCopy::OlderVersion(key, _) => self.desired.rules().name(&key.rule),
            DesiredCopy::Nothing => RuleName::default(),
        };
        let drift = drifted.is_some();
        let wanted = self.desired.rules().facts(&about.0);
        let live = self.records.live(copy).map(|live| &live.facts);
        let known = [wanted, live]
            .into_iter()
            .flatten()
            .map(|facts| facts.nodes);
        let nodes = known.max().unwrap_or_default();
        let propagation = self.desired.rules().propagation(&about.0.rule);
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
            overwrites,
            adds,
        };
        self.jobs.running.insert(copy.clone(), job);
        Ok(Job {
            key: Key::Copy(copy.clone()),
            work,
            // A read is the agent's own.
            account: account.unwrap_or_default(),
            propagation,
            corrects_drift: drift,
            nodes,
        })
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
        let effect = self.history.recreated(copy, done.wrote, &mut job);
        self.history
            .count(effect, done.copy_error.is_some(), job.drift);
        if let Some(observed) = done.observed.filter(|_| self.watches.area(copy).is_some()) {
            self.copy_observed(copy, &job, observed, done.passed, done.wrote.is_none());
        } else if self.watches.of(copy).is_some_and(Watch::is_deleted) {
            self.records.forget(copy);
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
                if self.is_blocked(copy, &copy_error) {
                    self.jobs.queue.done(&done.key, now);
                } else {
                    self.jobs
                        .retry(&done.key, &copy_error, done.retry_after, now);
                }
                self.record_failure(copy, job.target, copy_error);
            }
            None => {
                let had_failed = self.history.failed.remove(copy).is_some();
                if had_failed && done.wrote.is_none() {
                    self.jobs.queue.read(&done.key, now);
                } else {
                    self.jobs.queue.done(&done.key, now);
                }
                self.desired.copies_mut().permit(copy, &job.target.0.rule);
                if let Some(wrote) = effect {
                    job.drift &= !done.resealed;
                    tracing::debug!(%copy, ?wrote, drift = job.drift, "a copy was written");
                    // The outcome may be the same as before, as that of a contended copy is.
                    self.report.touch(&job.target.0.rule);
                    self.history
                        .record_write(copy, wrote, job, done.corrected, now);
                }
            }
        }
        let is_settled =
            written.is_some_and(|(want, wrote)| self.settle_written(copy, want, wrote, now));
        if is_settled {
            #[cfg(test)]
            self.decider().assert_settled(copy);
        } else {
            self.reconcile_copy(copy, now);
        }
    }

    /// Records the failure of a job. Where the rules write as accounts of their own, a rule whose account may not write a copy
    /// leaves it to the others that claim it.
    fn record_failure(
        &mut self,
        copy: &SourceRef,
        target: (IntentKey, Option<Revision>),
        copy_error: CopyError,
    ) {
        let before = self.history.failed.get(copy);
        let again = before.is_some_and(|failed| failed.target == target);
        let has_accounts = !self.jobs.limits.policy.impersonate.is_empty();
        if has_accounts && copy_error.reason == Reason::Forbidden {
            let copies = self.desired.copies_mut();
            copies.forbid(copy, &target.0.rule, again);
        }
        let failed = Failed { target, copy_error };
        self.history.failed.insert(copy.clone(), failed);
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
        let values = |live: Option<&Live>| live.and_then(|live| live.feedback.clone());
        if values(before.as_ref()) != values(self.records.live(copy)) {
            self.report.touch_values(copy);
        }
        if before.as_ref().is_some_and(|before| !is_same(before)) {
            // Another object of the same name may now wait to be overwritten.
            self.report.touch(&job.target.0.rule);
        }
    }
}

impl Member {
    /// Returns the states of all rules for a new stream.
    pub(super) fn begin_stream(&mut self, key: Option<&ProofKey>) -> Vec<RuleState> {
        let known: Vec<_> = self.desired.rules().uids().cloned().collect();
        self.forget_deleted(&known);
        let rules: Vec<_> = self.desired.rules().uids().cloned().collect();
        let states = self.states(&rules, key);
        self.prunes.reported(&states);
        self.payloads.request_again();
        self.report.reported_all(&rules);
        states
    }

    /// Ends all approvals of removals, because the stream has ended.
    pub(super) fn end_stream(&mut self, now: Instant) {
        for copy in self.prunes.end_stream() {
            self.reconcile_now(&copy, now);
        }
    }

    /// Handles the begin of a session with this hub cluster.
    pub(super) fn begin_session(&mut self, hub_cluster_uid: &str, now: Instant) {
        let accepted = std::mem::take(&mut self.revoked);
        let moved = self.desired.set_hub_cluster(hub_cluster_uid);
        if moved {
            self.desired.mark_changed();
        }
        self.store.end_purge(&mut self.desired);
        if accepted || moved {
            self.reconcile_all(now);
        }
    }

    /// Puts the terms in force that the hub's snapshot does not contain.
    pub(super) fn end_snapshot(&mut self, now: Instant) {
        for copy in self.desired.confirm(&self.records) {
            self.reconcile_now(&copy, now);
        }
        for uid in self.desired.rules().uids().cloned().collect::<Vec<_>>() {
            // The approval may have arrived before the terms were confirmed.
            self.apply_approval(&uid, now);
            // The hub waits for a report of the complete snapshot.
            self.report.touch(&uid);
        }
    }

    /// Applies a batch, and returns the items that are not in force. `unreadable` are its items
    /// that could not be decoded.
    pub(super) fn take(
        &mut self,
        batch: Batch,
        unreadable: Vec<Refusal>,
        now: Instant,
    ) -> Vec<Refusal> {
        // An approval covers the copies that wait now. A tombstone in the same batch may remove
        // some of them.
        for delta in &batch.rules {
            if let Some(digest) = delta.prune
                && self.prunes.offer(&delta.uid, digest)
            {
                self.apply_approval(&delta.uid, now);
            }
        }
        let result = self.desired.take(batch, unreadable, &self.records);
        for new in result.payloads {
            self.payloads.insert(new);
        }
        for key in &result.dropped {
            self.payloads.remove(key);
        }
        for uid in &result.rules {
            self.history.audit.ordered(uid, now);
        }
        for copy in &result.changed_copies {
            self.reconcile_now(copy, now);
        }
        for uid in &result.rules {
            self.apply_approval(uid, now);
            self.report.touch(uid);
        }
        result.refused
    }

    /// Removes the copies that the hub has approved, if exactly these copies wait. Terms that the
    /// hub has not confirmed remove nothing.
    pub(super) fn apply_approval(&mut self, rule: &RuleUid, now: Instant) {
        if !self.prunes.has_offer(rule) || self.desired.rules().is_unconfirmed(rule) {
            return;
        }
        let waiting = prunes::waiting(rule, &self.report, &self.records);
        if self.prunes.take(rule, &waiting) {
            tracing::info!(%rule, copies = waiting.len(), "the hub has approved the removal of copies from namespaces that are no longer targets");
            for copy in waiting.keys() {
                self.reconcile_now(copy, now);
            }
        }
    }
}
