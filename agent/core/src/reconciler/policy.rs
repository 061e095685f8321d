//! The member's policy in the core: what is watched under it, and what a change of it does.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::SourceRef;

use super::{Reconciler, Watched};
use crate::policy::Policy;

impl Reconciler {
    /// Puts another policy in force: what it newly allows goes on at once, and what it no longer allows stops.
    pub(super) fn set_policy(&mut self, policy: Arc<Policy>, now: Instant) {
        self.policy = policy.clone();
        let areas = policy.areas();
        self.areas.retain(|area, _| areas.contains(area));
        for area in areas {
            self.areas.entry(area).or_default();
        }
        // Orders for what goes out of sight are dropped; what was reported of them ends, too.
        let known: BTreeSet<_> = self.desired.all_copies().chain(self.records.all()).cloned().collect();
        self.desired.set_policy(policy);
        // Who is not watched any more may change unseen: what is known of it is worth nothing from now on.
        let unseen: Vec<_> = self.records.all().filter(|copy| self.policy.area(copy).is_none()).cloned().collect();
        if !unseen.is_empty() {
            tracing::warn!(
                copies = unseen.len(),
                "the policy no longer has these copies looked at: they stay as they are, and are not removed by the hub"
            );
        }
        for copy in unseen {
            self.records.forget(&copy);
            self.reconcile_copy(&copy, now);
        }
        if !self.started {
            return self.start_if_ready(now);
        }
        for copy in known {
            self.reconcile_now(&copy, now);
        }
        for uid in self.desired.rules().cloned().collect::<Vec<_>>() {
            self.report.touch(&uid);
        }
    }

    /// What the watch that shows a copy has said; `None` where nothing is watched.
    pub(super) fn watched(&self, copy: &SourceRef) -> Option<&Watched> {
        self.areas.get(&self.policy.area(copy)?)
    }

    /// Whether everything is known of what stands where a copy should.
    pub(super) fn is_watched(&self, copy: &SourceRef) -> bool {
        self.namespaces_unknown().is_none() && self.watched(copy).is_some_and(|watched| watched.complete)
    }
}
