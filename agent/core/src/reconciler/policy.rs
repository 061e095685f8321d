//! Changes of the member's policy, and the revocation of the cluster.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::Reconciler;
use crate::policy::{OnRevoke, Policy};

impl Reconciler {
    /// Puts another policy in force. Newly allowed writes begin at once, and denied writes stop.
    pub(super) fn set_policy(&mut self, policy: Arc<Policy>, now: Instant) {
        self.policy = policy.clone();
        self.watches.set_policy(policy.clone());
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
            .filter(|copy| self.policy.area(copy).is_none())
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
        if !self.started {
            return self.start_if_ready(now);
        }
        self.audit.policy_changed(now);
        for copy in known {
            self.reconcile_now(&copy, now);
        }
        for uid in self.desired.rules().uids().cloned().collect::<Vec<_>>() {
            self.report.touch(&uid);
        }
    }

    /// Handles the revocation of this cluster, until a hub begins a session again.
    ///
    /// The agent keeps the copies as while the hub is unreachable, or deletes them if the member's
    /// policy has `onRevoke: Purge`.
    pub fn revoked(&mut self, now: Instant) {
        if std::mem::replace(&mut self.revoked, true) {
            return;
        }
        let copies = self
            .records
            .intents()
            .map(|(_, copies)| copies.iter().count())
            .sum::<usize>();
        match self.policy.on_revoke {
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
                self.audit.policy_changed(now);
                self.reconcile_all(now);
            }
        }
    }

    /// Whether the copies of this cluster are deleted because the hub has revoked it.
    pub(super) fn is_purging(&self) -> bool {
        self.revoked && self.policy.on_revoke == OnRevoke::Purge
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
