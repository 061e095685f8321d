//! The side of the member cluster: what the hub has ordered, what exists, and what is to be done.
//!
//! Its events come from the watches, from the jobs and from the frames of the hub. It returns jobs,
//! terms to store and the states of rules, and knows no stream.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::Setup;
use super::decider::Decider;
use super::history::CopyHistory;
use super::jobs::Jobs;
use super::payloads::Payloads;
use super::prunes::PruneApprovals;
use super::store::Store;
use super::watches::Watches;
use crate::desired::Desired;
use crate::job::Limits;
use crate::policy::{OnRevoke, Policy};
use crate::records::Records;
use crate::report::Report;

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
            store: Store::new(setup.stored),
            revoked: false,
            #[cfg(test)]
            runs: std::cell::Cell::default(),
        }
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
        self.desired.set_policy(policy);
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
                "the policy no longer covers these copies: they are left unchanged, and the hub does not remove them"
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
