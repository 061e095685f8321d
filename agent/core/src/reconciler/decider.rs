//! The pipeline that computes the desired state of one copy: from the desired set through each
//! stage to a [`DesiredCopy`].
//!
//! The pipeline only reads. A preview runs the same pipeline over another desired set.
use std::sync::Arc;

use runnel_proto::model::{DeletionPolicy, Revision, SourceRef};

use super::drift::CopyHistory;
use super::job_events::Jobs;
use super::prunes::PruneApprovals;
use super::watches::Watches;
use crate::copy::{CopyError, IntentKey};
use crate::decide::{DesiredCopy, Order, TargetNamespace, WantedCopy};
use crate::desired::Desired;
use crate::live::{Ownership, Sealed};
use crate::policy::Policy;
use crate::records::Records;

/// The state that the pipeline reads.
#[derive(Clone, Copy)]
pub(super) struct Decider<'a> {
    pub(super) desired: &'a Desired,
    pub(super) records: &'a Records,
    pub(super) watches: &'a Watches,
    pub(super) history: &'a CopyHistory,
    pub(super) jobs: &'a Jobs,
    pub(super) prunes: &'a PruneApprovals,
    pub(super) policy: &'a Arc<Policy>,
    /// Whether the hub has revoked this cluster and the policy deletes all copies for that.
    pub(super) purges: bool,
}

/// Whether the watches show enough to decide a copy.
pub(super) enum Visibility {
    Visible,
    /// The first list of the copy's area is not complete.
    Unlisted,
    /// The policy has no watch for the copy.
    Unwatched,
    /// The objects of the area, or the namespaces, cannot be read.
    Unreadable(CopyError),
}

impl Decider<'_> {
    /// Returns the desired state of a copy.
    pub(super) fn desired_copy(&self, copy: &SourceRef) -> DesiredCopy {
        if self.purges {
            return self.purged(copy);
        }
        match self.desired.desired_copy(copy, self.records.live(copy)) {
            DesiredCopy::Copy(wanted) => {
                let wanted = self.with_namespace_failure(copy, *wanted);
                let wanted = self.with_version(copy, wanted);
                let wanted = self.history.add_to(copy, wanted);
                DesiredCopy::Copy(Box::new(self.with_quota(copy, wanted)))
            }
            DesiredCopy::Absent(key, rule, order) => {
                let order = self.with_successors(copy, &key, order);
                if self.desired.keeps(&key, copy, self.records) {
                    return DesiredCopy::Kept(key, !order.deferred);
                }
                let order = self.with_approval(copy, &key, order);
                DesiredCopy::Absent(key, rule, order)
            }
            other => other,
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
        wanted.policies.version = self.desired.version(&wanted.intent, copy, self.records);
        wanted
    }

    /// Denies a copy that would exceed a quota.
    fn with_quota(&self, copy: &SourceRef, mut wanted: WantedCopy) -> WantedCopy {
        if wanted.denied.is_none() {
            wanted.denied = self.beyond_quota(copy, &wanted);
        }
        wanted
    }

    /// Defers a removal until the renamed copies that replace it are applied.
    fn with_successors(&self, copy: &SourceRef, key: &IntentKey, mut order: Order) -> Order {
        let is_applied = |(key, revision, copy): &(IntentKey, Revision, SourceRef)| {
            self.records
                .live(copy)
                .is_some_and(|live| live.holds(&key.rule, &key.source, revision))
        };
        order.deferred |= !self.desired.successors(key, copy).iter().all(is_applied);
        order
    }

    /// Ends the wait for an approval that the hub has given.
    fn with_approval(&self, copy: &SourceRef, key: &IntentKey, mut order: Order) -> Order {
        if order.asks
            && let Some(live) = self.records.live(copy)
        {
            order.asks = !self.prunes.allows(&key.rule, copy, &live.uid);
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
            .acked(rule)
            .map(|acked_rule| acked_rule.rule)
            .unwrap_or_default();
        let order = Order {
            policy: DeletionPolicy::Delete,
            deferred: false,
            asks: false,
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
            DesiredCopy::Nothing | DesiredCopy::Kept(..) | DesiredCopy::Absent(..) => false,
        };
        let unknown = self.watches.namespaces_unknown();
        let watch = self.watches.of(copy).filter(|_| !is_settled);
        if watch.is_none() && unknown.is_none() && matches!(want, DesiredCopy::Absent(..)) {
            return Visibility::Unwatched;
        }
        let unknown = unknown.filter(|_| *want != DesiredCopy::Nothing);
        match unknown.or_else(|| watch?.forbidden.clone()) {
            Some(copy_error) => Visibility::Unreadable(copy_error),
            None if watch.is_some_and(|watch| !watch.complete) => Visibility::Unlisted,
            None => Visibility::Visible,
        }
    }

    /// Whether a copy without a record may exist, because its area is not listed or cannot be read.
    pub(super) fn may_exist_unseen(&self, copy: &SourceRef) -> bool {
        let is_unread = || {
            self.watches
                .of(copy)
                .is_some_and(|watch| watch.forbidden.is_some() || !watch.complete)
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

    /// Returns another intact copy with the same content.
    pub(super) fn twin(
        &self,
        copy: &SourceRef,
        intent: &IntentKey,
        revision: &Revision,
    ) -> Option<SourceRef> {
        let mut copies = self.records.holders(intent);
        copies
            .find(|(other, live)| {
                *other != copy
                    && live.is_whole()
                    && live.holds(&intent.rule, &intent.source, revision)
            })
            .map(|(twin, _)| twin.clone())
    }
}
