//! Revocation: the hub has said that this cluster is no longer its member.
use std::time::Instant;

use runnel_proto::model::{DeletionPolicy, SourceRef};

use super::Reconciler;
use crate::copy::IntentKey;
use crate::decide::{Order, Want};
use crate::live::{Ownership, Sealed};
use crate::policy::OnRevoke;

impl Reconciler {
    /// The hub has revoked this cluster, until a hub begins a session anew: the copies are kept as they are, as while a hub
    /// is away; or they are deleted, where the member's policy says so.
    pub fn revoked(&mut self, now: Instant) {
        if std::mem::replace(&mut self.revoked, true) {
            return;
        }
        let copies = self.records.intents().map(|(_, copies)| copies.iter().count()).sum::<usize>();
        match self.policy.on_revoke {
            OnRevoke::Keep => {
                tracing::warn!(copies, "the hub has revoked this cluster: the copies here are kept as they are")
            }
            OnRevoke::Purge => {
                tracing::warn!(
                    copies,
                    "the hub has revoked this cluster: the copies here are deleted (onRevoke: Purge)"
                );
                self.look_at_everything(now);
            }
        }
    }

    /// What becomes of a copy of a hub that has revoked this cluster, where copies do not stay.
    pub(super) fn purged(&self, copy: &SourceRef) -> Option<Want> {
        if !self.is_purging() {
            return None;
        }
        let ours = self.records.live(copy).filter(|live| live.ownership == Ownership::Ours);
        let Some(Sealed { rule, source, .. }) = ours.and_then(|live| live.sealed.as_deref()) else {
            return Some(Want::Nothing);
        };
        let name = self.desired.acked(rule).map(|acked_rule| acked_rule.rule).unwrap_or_default();
        let order =
            Order { policy: DeletionPolicy::Delete, deferred: false, asks: false, overwrites: false, dry_run: false };
        Some(Want::Gone(IntentKey { rule: rule.clone(), source: source.clone() }, name, order))
    }

    /// Looks at every copy that anybody wants, or that says that it is ours.
    pub(super) fn look_at_everything(&mut self, now: Instant) {
        let known = self.records.intents().flat_map(|(_, copies)| copies);
        let all: Vec<_> = self.desired.all_copies().chain(known).cloned().collect();
        for copy in all {
            self.reconcile_now(&copy, now);
        }
    }
}
