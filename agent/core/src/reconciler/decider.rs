//! The pipeline that computes the desired state of one copy: from the desired set through each
//! stage to a [`Computed`].
//!
//! The pipeline only reads. A preview runs the same pipeline over another desired set.
use std::collections::BTreeSet;

use runnel_proto::model::{
    CUSTOM_RESOURCE_DEFINITIONS, DeletionPolicy, DriftPolicy, Reason, Revision, RuleName, RuleUid,
    SourceRef,
};

use super::history::{CopyHistory, Loss};
use super::jobs::Jobs;
use super::prunes::PruneApprovals;
use super::watches::{Watch, Watches};
use crate::classify;
use crate::copy::{CopyError, CopyStatus, IntentKey};
use crate::decide::{Decision, DesiredCopy, Order, TargetNamespace, WantedCopy, decide};
use crate::desired::Desired;
use crate::live::{Live, Ownership, Sealed};
use crate::policy::ServiceAccount;
use crate::records::{Observed, Records};
use crate::report::Report;

/// The state that the pipeline reads.
#[derive(Clone, Copy)]
pub(super) struct Decider<'a> {
    pub(super) desired: &'a Desired,
    pub(super) records: &'a Records,
    pub(super) watches: &'a Watches,
    pub(super) history: &'a CopyHistory,
    pub(super) jobs: &'a Jobs,
    pub(super) prunes: &'a PruneApprovals,
    pub(super) report: &'a Report,
    /// Whether the hub has revoked this cluster and the policy deletes all copies for that.
    pub(super) purges: bool,
    /// How often the pipeline has run.
    #[cfg(test)]
    pub(super) runs: &'a std::cell::Cell<usize>,
}

/// Returns the object that defines a kind, if the kind is a custom one.
pub(super) fn definition_of(resource: &str) -> SourceRef {
    SourceRef::new(CUSTOM_RESOURCE_DEFINITIONS, "", resource)
}

/// The result of the pipeline for one copy.
pub(super) struct Computed {
    /// The desired state.
    pub(super) desired: DesiredCopy,
    /// What changes about the recorded loss of the copy.
    pub(super) loss: Loss,
    /// Whether the result depends on the records of other copies, so that it is outdated when they
    /// change: versions of the same source, or copies under a new name.
    pub(super) depends_on_others: bool,
}

impl Computed {
    /// Returns a result that depends on no other copy.
    fn alone(want: DesiredCopy, loss: Loss) -> Self {
        Self {
            desired: want,
            loss,
            depends_on_others: false,
        }
    }
}

/// Whether the watches show enough to decide a copy.
pub(super) enum Visibility {
    Visible,
    /// The first list of the copy's area is not complete.
    Unlisted,
    /// The policy has no watch for the copy, or no object of its kind can exist.
    Unwatched,
    /// The objects of the area, or the namespaces, cannot be read.
    Unreadable(CopyError),
}

impl Decider<'_> {
    /// Returns the desired state of a copy.
    pub(super) fn desired_copy(&self, copy: &SourceRef) -> DesiredCopy {
        self.compute(copy).desired
    }

    /// Runs the pipeline for a copy.
    pub(super) fn compute(&self, copy: &SourceRef) -> Computed {
        #[cfg(test)]
        self.runs.set(self.runs.get() + 1);
        if self.purges {
            return Computed::alone(self.purged(copy), Loss::Over);
        }
        match self
            .desired
            .owners()
            .desired_copy(copy, self.records.live(copy))
        {
            DesiredCopy::Copy(wanted) => {
                let wanted = self.with_namespace_failure(copy, *wanted);
                let wanted = self.with_version(copy, wanted);
                let is_gone = self.records.live(copy).is_none();
                let wanted = self.history.add_to(copy, wanted, is_gone);
                let wanted = self.with_quota(copy, wanted);
                let (wanted, loss) = self.with_loss(copy, wanted);
                Computed {
                    depends_on_others: self.desired.rules().has_versions(&wanted.intent.rule),
                    ..Computed::alone(DesiredCopy::Copy(Box::new(wanted)), loss)
                }
            }
            DesiredCopy::Absent(key, rule, order) => {
                let successors = self.desired.owners().successors(&key, copy);
                let depends_on_others =
                    !successors.is_empty() || self.desired.rules().has_versions(&key.rule);
                let order = self.with_successors(&successors, order);
                let (order, is_definition) = self.with_objects(copy, order);
                let depends_on_others = depends_on_others || is_definition;
                let want = if self
                    .desired
                    .owners()
                    .keeps_older_version(&key, copy, self.records)
                {
                    DesiredCopy::OlderVersion(key, !order.deferred)
                } else {
                    let order = self.with_approval(copy, &key, order);
                    DesiredCopy::Absent(key, rule, order)
                };
                Computed {
                    depends_on_others,
                    ..Computed::alone(want, Loss::Over)
                }
            }
            other => Computed::alone(other, Loss::Over),
        }
    }

    /// Adds the error of the last creation of the copy's namespace.
    fn with_namespace_failure(&self, copy: &SourceRef, mut wanted: WantedCopy) -> WantedCopy {
        if let TargetNamespace::ToCreate(failed) = &mut wanted.place {
            *failed = self.jobs.namespace_failed.get(&copy.namespace).cloned();
        }
        wanted
    }

    /// Adds the version number, if the rule keeps versions.
    fn with_version(&self, copy: &SourceRef, mut wanted: WantedCopy) -> WantedCopy {
        wanted.policies.version = self
            .desired
            .owners()
            .version(&wanted.intent, copy, self.records);
        wanted
    }

    /// Denies a copy that would exceed a quota.
    fn with_quota(&self, copy: &SourceRef, mut wanted: WantedCopy) -> WantedCopy {
        if wanted.denied.is_none() {
            wanted.denied = self.exceeded_quota(copy, &wanted);
        }
        wanted
    }

    /// Marks a copy as lost that was applied and does not exist any more, if its rule only reports
    /// drift. Returns the change of the record, too.
    ///
    /// A copy that was deleted with its namespace has not drifted.
    fn with_loss(&self, copy: &SourceRef, mut wanted: WantedCopy) -> (WantedCopy, Loss) {
        // The state of an unwatched copy is unknown. A job under way reports its own result.
        if !self.watches.is_complete(copy) || self.jobs.running.contains_key(copy) {
            return (wanted, Loss::Unchanged);
        }
        let is_gone = match self.records.observed(copy) {
            Observed::Unknown | Observed::Absent => true,
            Observed::Live(live) => live.ownership == Ownership::Ours && live.sealed.is_none(),
        };
        let reports = wanted.policies.drift == DriftPolicy::Report
            && wanted.place == TargetNamespace::Ready
            && !wanted.finished;
        let Some(revision) = wanted.revision.filter(|_| reports && is_gone) else {
            wanted.lost = false;
            return (wanted, Loss::Over);
        };
        let outcome = self.report.outcome(copy, &wanted.intent.rule);
        let was_applied = self.history.was_applied(copy, outcome);
        if !was_applied || self.history.failed.contains_key(copy) {
            return (wanted, Loss::Unchanged);
        }
        wanted.lost = true;
        (wanted, Loss::Lost(revision))
    }

    /// Defers a removal until the renamed copies that replace it are applied.
    fn with_successors(
        &self,
        successors: &[(IntentKey, Revision, SourceRef)],
        mut order: Order,
    ) -> Order {
        let is_applied = |(key, revision, copy): &(IntentKey, Revision, SourceRef)| {
            self.records
                .live(copy)
                .is_some_and(|live| live.has_revision(&key.rule, &key.source, revision))
        };
        order.deferred |= !successors.iter().all(is_applied);
        order
    }

    /// Ends the wait for an approval that the hub has given.
    fn with_approval(&self, copy: &SourceRef, key: &IntentKey, mut order: Order) -> Order {
        if order.needs_approval
            && let Some(live) = self.records.live(copy)
        {
            order.needs_approval = !self.prunes.allows(&key.rule, copy, &live.uid);
        }
        order
    }

    /// Returns the desired state of a copy after the hub has revoked this cluster and the policy
    /// deletes all copies.
    fn purged(&self, copy: &SourceRef) -> DesiredCopy {
        let ours = self
            .records
            .live(copy)
            .filter(|live| live.ownership == Ownership::Ours);
        let Some(Sealed { rule, source, .. }) = ours.and_then(|live| live.sealed.as_deref()) else {
            return DesiredCopy::Nothing;
        };
        let name = self
            .desired
            .rules()
            .acked(rule)
            .map(|acked_rule| acked_rule.rule)
            .unwrap_or_default();
        let order = Order {
            policy: DeletionPolicy::Delete,
            deferred: false,
            needs_approval: false,
            overwrites: false,
            dry_run: false,
        };
        DesiredCopy::Absent(
            IntentKey {
                rule: rule.clone(),
                source: source.clone(),
            },
            name,
            order,
        )
    }

    /// Returns whether the watches show enough to decide a copy.
    pub(super) fn visibility(&self, copy: &SourceRef, want: &DesiredCopy) -> Visibility {
        // The copy is denied or its namespace does not exist, so that it is not written.
        let is_settled = match want {
            DesiredCopy::Copy(wanted) => {
                wanted.denied.is_some() || !self.desired.cluster().has_namespace(&copy.namespace)
            }
            DesiredCopy::Nothing | DesiredCopy::OlderVersion(..) | DesiredCopy::Absent(..) => false,
        };
        let unknown = self.watches.namespaces_unknown();
        let watch = self.watches.of(copy).filter(|_| !is_settled);
        let is_unwatched = watch.is_none_or(Watch::is_deleted);
        if is_unwatched && unknown.is_none() && matches!(want, DesiredCopy::Absent(..)) {
            return if self.is_closed(copy, want) {
                Visibility::Unreadable(classify::removal_of_closed_kind(&copy.resource))
            } else {
                Visibility::Unwatched
            };
        }
        let unknown = unknown.filter(|_| *want != DesiredCopy::Nothing);
        match unknown.or_else(|| watch?.forbidden.clone()) {
            Some(copy_error) => Visibility::Unreadable(copy_error),
            None if watch.is_some_and(|watch| !watch.complete) => Visibility::Unlisted,
            None => Visibility::Visible,
        }
    }

    /// Returns the error of a copy whose kind is not served. A removal waits until it is known whether the object exists. While a
    /// rule distributes the definition of the kind to this cluster, a copy waits for it.
    pub(super) fn with_definition(
        &self,
        copy: &SourceRef,
        want: &DesiredCopy,
        copy_error: CopyError,
    ) -> CopyError {
        if copy_error.reason != Reason::KindNotServed {
            return copy_error;
        }
        if matches!(want, DesiredCopy::Absent(..)) {
            return classify::removal_waits_for_kind(&copy.resource);
        }
        let definition = definition_of(&copy.resource);
        let is_wanted = matches!(self.desired_copy(&definition), DesiredCopy::Copy(wanted) if wanted.denied.is_none());
        if is_wanted {
            classify::waits_for_definition(&copy.resource)
        } else {
            copy_error
        }
    }

    /// Defers the removal of the definition of a kind while copies of this kind are to be removed: their deletion may need
    /// their controller, and would not be counted otherwise.
    fn with_objects(&self, copy: &SourceRef, mut order: Order) -> (Order, bool) {
        let Some(kind) = copy.as_definition() else {
            return (order, false);
        };
        let exists = |copy: &SourceRef| self.records.live(copy).is_some();
        order.deferred |= self.desired.copies().ordered_of(kind).any(exists);
        (order, true)
    }

    /// Whether the policy allows the kind of a copy no more, of which its rule may still have copies.
    fn is_closed(&self, copy: &SourceRef, want: &DesiredCopy) -> bool {
        let rule = want.rule_uid();
        rule.is_some_and(|rule| self.desired.rules().is_closed(rule, copy))
    }

    /// Whether a copy without a record may exist, because its area is not listed or cannot be read.
    fn may_exist_unseen(&self, copy: &SourceRef, want: &DesiredCopy) -> bool {
        let is_unread = || match self.watches.of(copy) {
            Some(watch) => watch.may_hide_objects(),
            None => self.is_closed(copy, want),
        };
        self.watches.namespaces_unknown().is_some()
            || (self.desired.cluster().has_namespace(&copy.namespace) && is_unread())
    }

    /// Whether no watch reports changes of the object with the name of a copy, so that the agent
    /// must read it again.
    pub(super) fn is_unwatched(&self, copy: &SourceRef, want: &DesiredCopy) -> bool {
        let DesiredCopy::Copy(wanted) = want else {
            return false;
        };
        let foreign = self
            .records
            .live(copy)
            .is_some_and(|live| live.ownership != Ownership::Ours);
        // An object that conflicts with a planned copy has no label of ours.
        let planned =
            wanted.dry_run && wanted.denied.is_none() && self.records.live(copy).is_none();
        (foreign || wanted.lost || planned)
            && wanted.place == TargetNamespace::Ready
            && !wanted.suspend
            && !wanted.is_ambiguous
    }

    /// Returns the account under which the copies of a rule are written; `None` for the agent's own.
    pub(super) fn account(&self, rule: &RuleName) -> Option<ServiceAccount> {
        let policy = &self.jobs.limits.policy;
        policy.impersonate.account(rule).cloned()
    }

    /// Returns the account under which a job for a copy writes; `None` for the agent's own.
    ///
    /// # Errors
    /// The error of the copy, if its rule is not known, and with it the account.
    pub(super) fn account_of(
        &self,
        want: &DesiredCopy,
    ) -> Result<Option<ServiceAccount>, CopyError> {
        let rules = self.desired.rules();
        let rule = match want {
            DesiredCopy::Nothing => return Ok(None),
            DesiredCopy::Copy(wanted) => wanted.rule.clone(),
            DesiredCopy::Absent(key, ..) if !rules.has_terms(&key.rule) => {
                let policy = &self.jobs.limits.policy;
                return policy
                    .impersonate
                    .account_of_unknown_rule()
                    .map(|account| account.cloned());
            }
            DesiredCopy::Absent(_, rule, _) => rule.clone(),
            DesiredCopy::OlderVersion(key, _) => rules.name(&key.rule),
        };
        Ok(self.account(&rule))
    }

    /// Returns the accounts of the rules that need a missing namespace to be created. `None` is the agent's own, and the
    /// first one if a rule has it.
    pub(super) fn accounts_for_namespace(&self, name: &str) -> BTreeSet<Option<ServiceAccount>> {
        if self.watches.namespaces_unknown().is_some() || self.desired.cluster().has_namespace(name)
        {
            return BTreeSet::new();
        }
        let account = |copy: &SourceRef| match self.desired_copy(copy) {
            DesiredCopy::Copy(wanted) => {
                let is_needed = matches!(wanted.place, TargetNamespace::ToCreate(_))
                    && !wanted.suspend
                    && !wanted.dry_run
                    && !wanted.orphaned
                    && !wanted.is_ambiguous
                    && wanted.denied.is_none()
                    && wanted.revision.is_some();
                is_needed.then(|| self.account(&wanted.rule))
            }
            DesiredCopy::Nothing | DesiredCopy::OlderVersion(..) | DesiredCopy::Absent(..) => None,
        };
        // Without other accounts the first copy decides.
        let limit = if self.jobs.limits.policy.impersonate.is_empty() {
            1
        } else {
            usize::MAX
        };
        let copies = self.desired.copies().in_namespace(name);
        copies.filter_map(account).take(limit).collect()
    }

    /// Returns the intent and revision of a correct copy over which another client has written
    /// another revision, with our marks. `before`: the recorded object before the change.
    ///
    /// The client may be another agent of this cluster, or may apply a saved copy.
    pub(super) fn rewritten(
        &self,
        copy: &SourceRef,
        before: Option<&Live>,
    ) -> Option<(IntentKey, Revision)> {
        let before = before?;
        let (last, live) = (before.sealed.as_ref()?, self.records.live(copy)?);
        let sealed = live.sealed.as_ref()?;
        let is_other = last.revision != sealed.revision
            || last.rule != sealed.rule
            || last.source != sealed.source;
        // A job under way may have written it, and reports this at its end.
        if !is_other || before.uid != live.uid || self.jobs.running.contains_key(copy) {
            return None;
        }
        let DesiredCopy::Copy(wanted) = self.desired_copy(copy) else {
            return None;
        };
        let revision = wanted.revision?;
        before
            .has_revision(&wanted.intent.rule, &wanted.intent.source, &revision)
            .then_some((wanted.intent, revision))
    }

    /// Returns the rule to which the live object of a copy belongs. An object that no watch can
    /// show counts as one of the rule that is to have the copy, and so does our copy that has lost
    /// its seal.
    pub(super) fn owner(
        &self,
        copy: &SourceRef,
        live: Option<&Live>,
        want: &DesiredCopy,
    ) -> Option<RuleUid> {
        let wanting = || want.rule_uid().cloned();
        match live {
            Some(live) if live.ownership == Ownership::Ours => {
                live.intent().map(|intent| intent.rule).or_else(wanting)
            }
            Some(_) => None,
            None if self.may_exist_unseen(copy, want) => wanting(),
            None => None,
        }
    }

    /// Returns the outcome for the rule that wins a copy while another rule's removal of the copy
    /// is pending.
    pub(super) fn idle_winner(
        &self,
        copy: &SourceRef,
        removing: &CopyStatus,
    ) -> Option<(RuleUid, CopyStatus)> {
        let (rule, wanted) = self
            .desired
            .owners()
            .idle_winner(copy, self.records.live(copy))?;
        // The removal may wait for an approval. Nothing is under way until then.
        let wanted = wanted.filter(|_| *removing == CopyStatus::PruneRequested);
        let decision = wanted.map(|wanted| {
            decide(
                &DesiredCopy::Copy(Box::new(wanted)),
                self.records.observed(copy),
            )
        });
        match decision {
            Some(Decision::Noop(outcome)) => Some((rule, outcome)),
            _ => Some((rule, CopyStatus::UnderWay)),
        }
    }

    /// Asserts that a stored decision is the one that would be made now.
    #[cfg(test)]
    pub(super) fn assert_current(
        &self,
        copy: &SourceRef,
        want: &DesiredCopy,
        action: &crate::decide::Action,
    ) {
        let runs = self.runs.get();
        let now = self.desired_copy(copy);
        self.runs.set(runs);
        assert_eq!(&now, want, "{copy}: the stored desired state is outdated");
        let decision = decide(&now, self.records.observed(copy));
        let stored = Decision::Act(action.clone());
        assert_eq!(decision, stored, "{copy}: the stored decision is outdated");
    }

    /// Asserts that a decision now would leave a copy and its outcomes as they are.
    #[cfg(test)]
    pub(super) fn assert_settled(&self, copy: &SourceRef) {
        let runs = self.runs.get();
        let want = self.desired_copy(copy);
        self.runs.set(runs);
        let stale = |live| self.desired.copies().stale_orders(copy, live);
        let stale = self.records.live(copy).map(stale).unwrap_or_default();
        assert_eq!(stale, [], "{copy}: an order for it is over");
        let decision = decide(&want, self.records.observed(copy));
        match (&want, decision) {
            (DesiredCopy::Copy(wanted), Decision::Noop(outcome)) => {
                let reported = self.report.outcome(copy, &wanted.intent.rule);
                assert_eq!(reported, Some(&outcome), "{copy}: the outcome is outdated");
            }
            (DesiredCopy::Nothing, Decision::Forget) => {
                let others = self.desired.owners().others(copy, self.records.live(copy));
                assert_eq!(self.report.of_copy(copy), others, "{copy} is of no rule");
            }
            // The end of a removal may have begun another change of the copy.
            (_, Decision::Act(_) | Decision::Noop(CopyStatus::Removing(_))) => {
                let key = crate::decide::Key::Copy(copy.clone());
                assert!(self.jobs.queue.contains(&key), "{copy}: an action is due");
            }
            (_, _) => {}
        }
    }
}
