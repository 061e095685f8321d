//! The side of the member cluster: what the hub has ordered, what exists, and what is to be done.
//!
//! Its events come from the watches, from the jobs and from the frames of the hub. It returns jobs,
//! terms to store and the states of rules, and knows no stream.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Reason, SourceRef};

use super::decider::{Computed, Decider, Visibility, definition_of};
use super::history::CopyHistory;
use super::jobs::{Jobs, QueuedDecision};
use super::payloads::Payloads;
use super::prunes::PruneApprovals;
use super::store::Store;
use super::watches::{Watch, Watches};
use super::{Notice, Setup};
use crate::copy::{CopyError, CopyStatus, IntentKey, PlannedChange};
use crate::decide::{
    Action, Decision, DesiredCopy, Key, Limits, WriteEffect, applied_status, decide, is_applied,
    planned,
};
use crate::desired::{Desired, returned_fields};
use crate::feedback::FeedbackPaths;
use crate::live::{Live, Ownership};
use crate::policy::{OnRevoke, Policy};
use crate::records::{Observed, Records};
use crate::report::{Report, ReportedObject};

/// The paths that are read in live objects.
struct ReadPaths {
    paths: FeedbackPaths,
    /// The changes of the rules with which they were computed; `None` before the first caller has them.
    changes: Option<u64>,
}

/// The copies of this cluster.
pub(super) struct Member {
    /// The desired set of this cluster.
    pub(super) desired: Desired,
    /// The known objects of this cluster.
    pub(super) records: Records,
    pub(super) watches: Watches,
    /// The history of the copies, as far as it decides about them.
    pub(super) history: CopyHistory,
    pub(super) jobs: Jobs,
    pub(super) payloads: Payloads,
    /// The outcomes of all copies, for the hub.
    pub(super) report: Report,
    /// The approvals of removals from namespaces that are no longer targets.
    pub(super) prunes: PruneApprovals,
    pub(super) store: Store,
    feedback: ReadPaths,
    /// Whether the hub has revoked this cluster and has not begun a session with it since.
    pub(super) revoked: bool,
    /// How often the pipeline has run.
    #[cfg(test)]
    pub(super) runs: std::cell::Cell<usize>,
}

impl Member {
    /// Returns the state before the first event.
    pub(super) fn new(setup: Setup) -> Self {
        let limits = Limits {
            policy: setup.policy.clone(),
            location: setup.location.namespace.as_str().into(),
        };
        let mut desired = Desired::new(setup.location, setup.policy.clone());
        if let Some(uid) = &setup.hub_cluster_uid {
            desired.set_hub_cluster(uid);
        }
        Self {
            desired,
            records: Records::default(),
            watches: Watches::new(setup.policy),
            history: CopyHistory::default(),
            jobs: Jobs::new(limits, setup.seed),
            payloads: Payloads::default(),
            report: Report::default(),
            prunes: PruneApprovals::default(),
            feedback: ReadPaths {
                paths: FeedbackPaths::of(
                    setup
                        .stored
                        .iter()
                        .flat_map(|rule| returned_fields(&rule.terms)),
                ),
                changes: None,
            },
            store: Store::new(setup.stored),
            revoked: false,
            #[cfg(test)]
            runs: std::cell::Cell::default(),
        }
    }

    /// Returns the paths that are to be read in live objects, if they have changed since the last call. Copies of kinds with
    /// other paths are read again.
    pub(super) fn take_feedback(&mut self, now: Instant) -> Option<FeedbackPaths> {
        let changes = self.desired.rules().feedback_changes();
        if self.feedback.changes == Some(changes) {
            return None;
        }
        let is_first = self.feedback.changes.replace(changes).is_none();
        // The stored terms come into force later.
        if is_first && changes == 0 {
            return Some(self.feedback.paths.clone());
        }
        let paths = FeedbackPaths::of(self.desired.rules().feedback());
        let changed = paths.changed(&self.feedback.paths);
        if changed.is_empty() && !is_first {
            return None;
        }
        self.feedback.paths = paths.clone();
        let copies = changed
            .iter()
            .flat_map(|resource| self.records.names(resource, None));
        for copy in copies.cloned().collect::<Vec<_>>() {
            self.jobs.reread.insert(copy.clone());
            self.reconcile_copy(&copy, now);
        }
        Some(paths)
    }

    /// Returns the pipeline over the current state.
    pub(super) fn decider(&self) -> Decider<'_> {
        Decider {
            desired: &self.desired,
            records: &self.records,
            watches: &self.watches,
            history: &self.history,
            jobs: &self.jobs,
            prunes: &self.prunes,
            report: &self.report,
            purges: self.is_purging(),
            #[cfg(test)]
            runs: &self.runs,
        }
    }

    /// Puts another policy in force. Newly allowed writes begin at once, and denied writes stop.
    pub(super) fn set_policy(&mut self, policy: Arc<Policy>, now: Instant) {
        let unlisted = self.watches.unlisted();
        self.watches.set_policy(policy.clone());
        self.jobs.set_policy(policy.clone());
        // The list includes copies whose orders `set_policy` drops, so that their outcomes are
        // updated too.
        let known: BTreeSet<_> = self
            .desired
            .copies()
            .all()
            .chain(self.records.all())
            .cloned()
            .collect();
        self.desired.set_policy(policy, &self.records, &unlisted);
        // A copy without a watch may change at any time, so that its record is useless.
        let unwatched: Vec<_> = self
            .records
            .all()
            .filter(|copy| self.watches.area(copy).is_none())
            .cloned()
            .collect();
        if !unwatched.is_empty() {
            tracing::warn!(
                copies = unwatched.len(),
                "the policy no longer covers these copies: they are left unchanged, also when the hub orders their removal"
            );
        }
        for copy in unwatched {
            self.records.forget(&copy);
            self.reconcile_copy(&copy, now);
        }
        if !self.watches.has_started() {
            return self.start_if_ready(now);
        }
        self.history.audit.policy_changed(now);
        for copy in known {
            self.reconcile_now(&copy, now);
        }
        self.report.touch_all(self.desired.rules().uids());
    }

    /// Handles the revocation of this cluster, until a hub begins a session again.
    ///
    /// The agent keeps the copies as while the hub is unreachable, or deletes them if the member's
    /// policy has `onRevoke: Purge`.
    pub(super) fn revoke(&mut self, now: Instant) {
        if std::mem::replace(&mut self.revoked, true) {
            return;
        }
        let copies = self
            .records
            .intents()
            .map(|(_, copies)| copies.iter().count())
            .sum::<usize>();
        match self.jobs.limits.policy.on_revoke {
            OnRevoke::Keep => {
                tracing::warn!(
                    copies,
                    "the hub has revoked this cluster: the copies here are kept as they are"
                )
            }
            OnRevoke::Purge => {
                tracing::warn!(
                    copies,
                    "the hub has revoked this cluster: the copies here are deleted (onRevoke: Purge)"
                );
                self.history.audit.policy_changed(now);
                self.reconcile_all(now);
            }
        }
    }

    /// Whether the copies of this cluster are deleted because the hub has revoked it.
    pub(super) fn is_purging(&self) -> bool {
        self.revoked && self.jobs.limits.policy.on_revoke == OnRevoke::Purge
    }

    /// Reconciles every copy that an intent claims, and every object with the marks of an intent.
    pub(super) fn reconcile_all(&mut self, now: Instant) {
        let known = self.records.intents().flat_map(|(_, copies)| copies);
        let all: Vec<_> = self.desired.copies().all().chain(known).cloned().collect();
        for copy in all {
            self.reconcile_now(&copy, now);
        }
    }
}

impl Member {
    /// Reconciles a copy whose desired state may have changed, and forgets its failure.
    pub(super) fn reconcile_now(&mut self, copy: &SourceRef, now: Instant) {
        self.jobs.polls.forget(copy);
        if self.history.failed.remove(copy).is_some() {
            self.jobs.add_fresh(copy);
        }
        self.reconcile_copy(copy, now);
        // Copies of a kind wait for its definition only while a rule distributes that.
        if let Some(kind) = copy.as_definition() {
            self.reconcile_unserved(kind, now);
        }
    }

    /// Reconciles the copies of a kind that is not served.
    fn reconcile_unserved(&mut self, resource: &str, now: Instant) {
        let copies = self.desired.copies().of_kind(resource);
        let is_unserved = |copy: &&SourceRef| self.watches.of(copy).is_some_and(Watch::is_unserved);
        for copy in copies.filter(is_unserved).cloned().collect::<Vec<_>>() {
            self.reconcile_copy(&copy, now);
        }
    }

    /// Notes that an intent's order for a copy needs nothing more. The definition of its kind may wait for that.
    fn resolve(&mut self, key: &IntentKey, copy: &SourceRef, now: Instant) {
        self.desired.resolve(key, copy);
        self.report.touch(&key.rule);
        // The kinds of definitions have a group.
        let definition = copy
            .resource
            .contains('.')
            .then(|| definition_of(&copy.resource));
        if let Some(definition) = definition.filter(|one| self.desired.copies().contains(one)) {
            self.reconcile_copy(&definition, now);
        }
    }

    /// Reconciles a copy after an event. Only this function decides about a copy after an event.
    pub(super) fn reconcile_copy(&mut self, copy: &SourceRef, now: Instant) {
        if !self.watches.has_started() {
            return;
        }
        // The job under way may change the owner of the copy. The copy is reconciled when the job
        // has ended. If the job does not know whether its write succeeded, the copy is read and
        // reconciled again.
        let is_running = self.jobs.touch(copy);
        if !is_running && !self.jobs.reread.contains(copy) {
            self.drop_stale_orders(copy);
        }
        let Computed {
            desired: want,
            loss,
            depends_on_others,
        } = self.decider().compute(copy);
        self.history.record_loss(copy, &want, loss);
        let live = self.records.live(copy);
        if self.history.record_finished(copy, &want, live) {
            self.desired.mark_changed();
        }
        // Drops the approval of a removal that is not due, because it may stay deferred for long.
        if !matches!(&want, DesiredCopy::Absent(_, _, order) if !order.deferred) {
            self.prunes.forget(copy);
        }
        let decision = match self.decider().visibility(copy, &want) {
            Visibility::Visible => decide(&want, self.records.observed(copy)),
            Visibility::Unwatched => Decision::Forget,
            Visibility::Unlisted => {
                self.jobs.budget.leave(copy);
                match want {
                    // Later copies of its rule wait for it: its list may show that it must be written.
                    DesiredCopy::Copy(_) => self.enter_phase(copy, &want, false),
                    DesiredCopy::Absent(..)
                    | DesiredCopy::OlderVersion(..)
                    | DesiredCopy::Nothing => self.jobs.leave_phase(copy),
                }
                return self.record_outcome(copy, &want, Some(CopyStatus::UnderWay), now);
            }
            Visibility::Unreadable(copy_error) => {
                let copy_error = self.decider().with_definition(copy, &want, copy_error);
                self.jobs.cancel_queued(copy);
                self.history.failed.remove(copy);
                // Its object may exist.
                if let Some(end) = self.await_removal(copy, &want, Some(&Arc::default()), now) {
                    self.jobs.queue.add_at(&Key::Copy(copy.clone()), end);
                }
                self.prunes.forget(copy);
                return self.record_outcome(copy, &want, Some(failure(&want, copy_error)), now);
            }
        };
        if let Decision::Act(action) = decision {
            self.queue_action(copy, &want, &action, now);
            // The next event that concerns other copies may change the decision.
            if !depends_on_others {
                self.jobs.keep_decision(copy, want, action);
            }
            return;
        }
        match (decision, &want) {
            (Decision::Forget, DesiredCopy::Absent(key, ..)) => {
                if is_running || self.jobs.must_read(copy, &self.records, &self.watches) {
                    return self.settle(copy, &want, Some(CopyStatus::Removing(None)), now);
                }
                self.resolve(key, copy, now);
                self.reconcile_copy(copy, now);
            }
            (Decision::Forget, _) => {
                self.settle(copy, &want, None, now);
                // Such a rule is gone with its last copy.
                if let DesiredCopy::Copy(wanted) = &want
                    && self.records.marked_copies(&wanted.intent).next().is_none()
                {
                    self.report.resync(&wanted.intent.rule, now);
                }
                self.find(copy, now);
            }
            (Decision::Noop(outcome), _) => {
                // Another rule's marks on the copy are part of its drift.
                let has_drifted = matches!(outcome, CopyStatus::Drifted(_));
                self.settle(copy, &want, Some(outcome), now);
                if !has_drifted {
                    self.find(copy, now);
                }
            }
            (Decision::Act(_), _) => {}
        }
    }

    /// Drops the orders for a copy that now belongs to another intent.
    fn drop_stale_orders(&mut self, copy: &SourceRef) {
        let stale = self
            .records
            .live(copy)
            .map(|live| self.desired.copies().stale_orders(copy, live))
            .unwrap_or_default();
        if stale.is_empty() || self.jobs.must_read(copy, &self.records, &self.watches) {
            return;
        }
        for key in stale {
            self.desired.resolve(&key, copy);
            self.report.touch(&key.rule);
        }
    }

    /// Records that nothing is to be done about a copy until the next event.
    fn settle(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        outcome: Option<CopyStatus>,
        now: Instant,
    ) {
        self.history.settle(copy, outcome.as_ref());
        let (outcome, recheck_at) = self.await_deletion(copy, want, outcome, now);
        if self.jobs.reread.contains(copy) {
            self.jobs.queue.add(&Key::Copy(copy.clone()));
            return self.record_outcome(copy, want, outcome, now);
        }
        self.jobs.cancel_queued(copy);
        if let Some(at) = recheck_at {
            self.jobs.queue.add_at(&Key::Copy(copy.clone()), at);
        }
        if *want == DesiredCopy::Nothing && self.records.is_needless(copy) {
            self.records.forget(copy);
        }
        if let (DesiredCopy::Copy(wanted), Some(CopyStatus::Applied)) = (want, &outcome) {
            for before in self.desired.owners().predecessors(&wanted.intent, copy) {
                self.reconcile_copy(&before, now);
            }
        }
        // No event reports a free quota, or a change of an object without our label.
        if self.decider().is_unwatched(copy, want) {
            self.jobs.poll(copy, now);
        } else {
            self.jobs.polls.forget(copy);
            if self.decider().waits_for_quota(copy, want) {
                self.jobs.recheck(copy, now);
            }
        }
        self.record_outcome(copy, want, outcome, now);
    }

    /// Returns the desired state of a copy whose job is to start, the decision about it, and whether
    /// they depend on other copies. The stored decision counts while it holds: other jobs may have
    /// used up the quota since.
    pub(super) fn decision(&mut self, copy: &SourceRef) -> (DesiredCopy, Decision, bool) {
        let decided = self.jobs.take_decision(copy);
        let fits = |decided: &QueuedDecision| match &decided.desired {
            DesiredCopy::Copy(wanted) => self.decider().exceeded_quota(copy, wanted).is_none(),
            _ => true,
        };
        if let Some(QueuedDecision {
            desired: want,
            action,
            ..
        }) = decided.filter(fits)
        {
            #[cfg(test)]
            self.decider().assert_current(copy, &want, &action);
            return (want, Decision::Act(action), false);
        }
        let computed = self.decider().compute(copy);
        let decision = decide(&computed.desired, self.records.observed(copy));
        (computed.desired, decision, computed.depends_on_others)
    }

    /// Records the outcome of a copy that a job has written or removed as it was decided. Returns
    /// whether that was everything, so that the copy needs no decision.
    pub(super) fn settle_written(
        &mut self,
        copy: &SourceRef,
        want: DesiredCopy,
        wrote: WriteEffect,
        now: Instant,
    ) -> bool {
        let observed = self.records.observed(copy);
        match want {
            _ if self.jobs.reread.contains(copy) => return false,
            DesiredCopy::Copy(mut wanted) if !wrote.is_removal() => {
                if !is_applied(&wanted, observed) {
                    return false;
                }
                self.history.written(copy, &mut wanted);
                self.prunes.forget(copy);
                // The copy may have been another rule's, whose removal of it is over now.
                self.drop_stale_orders(copy);
                let outcome = applied_status(&wanted);
                self.settle(copy, &DesiredCopy::Copy(wanted), Some(outcome), now);
            }
            DesiredCopy::Absent(key, ..) if wrote.is_removal() => {
                let is_removed = match observed {
                    Observed::Unknown => false,
                    Observed::Absent => true,
                    Observed::Live(live) => !live.is_removable_for(&key),
                };
                if !is_removed {
                    return false;
                }
                self.resolve(&key, copy, now);
                if self.desired.copies().contains(copy) {
                    self.reconcile_copy(copy, now);
                } else {
                    self.prunes.forget(copy);
                    self.settle(copy, &DesiredCopy::Nothing, None, now);
                }
            }
            _ => return false,
        }
        true
    }

    /// Queues a job that carries out an action, unless the action must wait.
    fn queue_action(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        action: &Action,
        now: Instant,
    ) {
        let key = Key::Copy(copy.clone());
        if *action == Action::CreateNamespace {
            self.jobs.leave_phase(copy);
            self.jobs.queue.add(&Key::Namespace(copy.namespace.clone()));
            return self.record_outcome(copy, want, Some(CopyStatus::UnderWay), now);
        }
        if let DesiredCopy::Copy(wanted) = want
            && let Some(revision) = wanted.revision
            && !self
                .payloads
                .has(copy, &wanted.intent, &revision, &self.records)
        {
            self.jobs.cancel(copy);
            self.payloads.request(&wanted.intent);
            let outcome = match action {
                Action::Compare(_) if wanted.dry_run => {
                    planned(PlannedChange::Change, "would be updated")
                }
                // Only the content shows whether others, or new defaults, made the difference.
                Action::Compare(_) => CopyStatus::UnderWay,
                _ => {
                    let message = "the content is needed and only the hub has it";
                    CopyStatus::Failed(CopyError::new(Reason::WaitingForHub, message))
                }
            };
            return self.record_outcome(copy, want, Some(outcome), now);
        }
        if action.is_removal()
            && let Err(copy_error) = self.decider().account_of(want)
        {
            self.jobs.cancel(copy);
            return self.record_outcome(copy, want, Some(failure(want, copy_error)), now);
        }
        if self.waits_for_store(copy, want, action) {
            self.jobs.queue.cancel(&key);
            self.jobs.leave_phase(copy);
            return self.record_outcome(
                copy,
                want,
                Some(CopyStatus::Removing(self.store.error())),
                now,
            );
        }
        if let Some(later) = self.jobs.delete_later(action, now) {
            self.jobs.queue.add_at(&key, later);
            // The limit is that of all copies, so that no later one goes before.
            self.enter_phase(copy, want, true);
            let waits = self.jobs.delete_limit();
            return self.record_outcome(copy, want, Some(CopyStatus::Removing(Some(waits))), now);
        }
        match self.history.failed.get(copy) {
            Some(failed) if Some(&failed.target) == want.target().as_ref() => {
                let copy_error = failed.copy_error.clone();
                let uid = match action {
                    Action::Delete(target) => Some(&target.uid),
                    _ => None,
                };
                let end = self.await_removal(copy, want, uid, now);
                if self.is_blocked(copy, &copy_error) {
                    self.jobs.poll(copy, now);
                } else {
                    self.jobs.queue.add(&key);
                }
                if let Some(end) = end {
                    self.jobs.queue.add_at(&key, end);
                }
                let copy_error = match want {
                    DesiredCopy::Absent(..) => {
                        self.decider().with_definition(copy, want, copy_error)
                    }
                    _ => copy_error,
                };
                return self.record_outcome(copy, want, Some(failure(want, copy_error)), now);
            }
            Some(_) => {
                self.history.failed.remove(copy);
                self.jobs.add_fresh(copy);
            }
            None => {}
        }
        self.history.take_drift(copy);
        if let DesiredCopy::Copy(wanted) = want
            && !matches!(action, Action::Compare(_))
        {
            let outcome = self.report.outcome(copy, &wanted.intent.rule);
            let observed = self.records.observed(copy);
            self.history.record_drift(copy, wanted, outcome, observed);
        }
        match self.history.correct_later(copy, now) {
            Some(later) => {
                self.jobs.queue.add_at(&key, later);
                // The correction may wait for minutes, and must not delay the stream of the hub.
                self.jobs.leave(copy);
            }
            None => {
                self.jobs.queue.add_now(&key);
                match action {
                    Action::Create
                    | Action::Change(_)
                    | Action::Adopt(_)
                    | Action::Overwrite(_) => self.enter_phase(copy, want, false),
                    Action::Delete(_) => self.enter_phase(copy, want, true),
                    Action::CreateNamespace
                    | Action::Read
                    | Action::Compare(_)
                    | Action::Demote(_)
                    | Action::Retain(_) => self.jobs.leave_phase(copy),
                }
                if let DesiredCopy::Copy(wanted) = want {
                    let bytes = self.payloads.size(&wanted.intent);
                    self.jobs.budget.enter(copy, &wanted.intent, bytes);
                }
            }
        }
        let outcome = match want {
            DesiredCopy::Absent(..) => CopyStatus::Removing(None),
            DesiredCopy::Copy(wanted) => wanted
                .contention
                .clone()
                .map_or(CopyStatus::UnderWay, CopyStatus::Failed),
            DesiredCopy::Nothing | DesiredCopy::OlderVersion(..) => CopyStatus::UnderWay,
        };
        self.record_outcome(copy, want, Some(outcome), now);
    }

    /// Whether a job has failed because of a foreign object, which has no watch.
    pub(super) fn is_blocked(&self, copy: &SourceRef, copy_error: &CopyError) -> bool {
        copy_error.reason == Reason::Conflict && self.records.live(copy).is_some_and(is_foreign)
    }

    /// Records that a copy is written or removed, if other copies of its rule may come before or after it.
    pub(super) fn enter_phase(&mut self, copy: &SourceRef, want: &DesiredCopy, removes: bool) {
        match want.rule_uid() {
            Some(rule) if removes || self.desired.rules().has_phases(rule) => {
                self.jobs.enter_phase(copy, rule, removes);
            }
            // It may have the place of another rule, or of one that had more phases.
            Some(_) | None => self.jobs.leave_phase(copy),
        }
    }

    /// Has the job of a copy wait, while earlier copies of its rule are under way. A copy whose last try failed has a time of
    /// its own, and a copy that must be read is read.
    pub(super) fn follows(&mut self, copy: &SourceRef) -> bool {
        !self.history.failed.contains_key(copy)
            && !self.jobs.reread.contains(copy)
            && !self.is_terminating(copy)
            && self.jobs.phases.delay(copy)
    }

    /// Whether the removal of a copy waits until its reason is stored.
    pub(super) fn waits_for_store(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        action: &Action,
    ) -> bool {
        let purges = self.is_purging();
        self.store
            .delays(copy, want, action, purges, &mut self.desired)
    }

    /// Reports the outcome of a copy, for every rule that it concerns.
    fn record_outcome(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        outcome: Option<CopyStatus>,
        now: Instant,
    ) {
        self.history
            .record_outcome(copy, want, outcome.as_ref(), &self.report, now);
        let mut outcomes = self.desired.owners().others(copy, self.records.live(copy));
        match (want, outcome) {
            (DesiredCopy::Copy(wanted), Some(outcome)) => {
                let before = self.report.outcome(copy, &wanted.intent.rule);
                if let CopyStatus::Failed(copy_error) | CopyStatus::Drifted(copy_error) = &outcome
                    && is_news(copy_error.reason)
                    && before != Some(&outcome)
                    // The agent writes no Event into a closed namespace either.
                    && self.desired.cluster().denies_place(copy).is_none()
                {
                    self.history.notify(Notice::Failed(
                        copy.clone(),
                        wanted.rule.clone(),
                        copy_error.clone(),
                    ));
                }
                outcomes.push((wanted.intent.rule.clone(), outcome));
                self.desired.rules_mut().recompute_digest(&wanted.intent);
            }
            (DesiredCopy::Absent(key, ..), Some(removing)) => {
                for (_, outcome) in outcomes.iter_mut().filter(|(uid, _)| *uid == key.rule) {
                    *outcome = removing.clone();
                }
                outcomes.extend(self.decider().idle_winner(copy, &removing));
            }
            // The report counts the newer copies of the rule, and not its older versions.
            (DesiredCopy::OlderVersion(key, _), _) => outcomes.retain(|(uid, _)| *uid != key.rule),
            (DesiredCopy::Nothing, _) | (_, None) => {}
        }
        let live = self.records.live(copy);
        let finished = match want {
            DesiredCopy::Copy(wanted) if wanted.finished => Some(&wanted.intent.rule),
            _ => None,
        };
        let owner = self.decider().owner(copy, live, want).or(finished.cloned());
        let object = owner.as_ref().map(|rule| ReportedObject {
            rule,
            health: match finished {
                Some(_) => self.history.finished_health(copy),
                None => live
                    .filter(|live| live.is_own())
                    .and_then(|live| live.health.as_deref()),
            },
        });
        self.report.set(copy, outcomes, object);
    }
}

/// Whether the agent creates an Event for a failure, because people in this cluster can fix it.
fn is_news(reason: Reason) -> bool {
    use Reason::{Conflict, Contended, Denied, Drifted, Immutable, Invalid};
    matches!(
        reason,
        Conflict | Denied | Invalid | Immutable | Drifted | Contended
    )
}

fn is_foreign(live: &Live) -> bool {
    live.ownership != Ownership::Ours
}

/// Returns the outcome of a copy that fails so.
pub(super) fn failure(want: &DesiredCopy, copy_error: CopyError) -> CopyStatus {
    match want {
        DesiredCopy::Absent(..) => CopyStatus::Removing(Some(copy_error)),
        _ if copy_error.reason == Reason::WaitingForDependency => CopyStatus::Delayed(copy_error),
        DesiredCopy::Copy(_) | DesiredCopy::OlderVersion(..) | DesiredCopy::Nothing => {
            CopyStatus::Failed(copy_error)
        }
    }
}
