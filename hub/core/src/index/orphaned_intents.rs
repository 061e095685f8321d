//! Copies that agents report and no rule selects, and the proofs of reconnected agents about
//! earlier removals.
use std::collections::BTreeSet;

use runnel_proto::model::{ClusterName, KINDS, RuleUid, SourceRef};

use super::{Cluster, Effect, Index};
use crate::guard::{CauseKind, Item};

impl Index {
    /// An agent has unwanted intents of a rule, and their removal is not judged yet.
    pub fn orphaned_intents(
        &mut self,
        uid: &RuleUid,
        cluster: &ClusterName,
        sources: BTreeSet<SourceRef>,
    ) -> Effect {
        let mut effect = Effect::default();
        // Sources outside of all watches are unknown to the hub.
        let known = |source: &SourceRef| {
            let kind = KINDS.iter().find(|kind| kind.resource == &*source.resource);
            kind.is_some_and(|kind| {
                self.is_known(&self.scope.place(kind.resource, &source.namespace))
            })
        };
        let absent =
            |source: &SourceRef| known(source) && self.sources.get(&source.plain()).is_none();
        let causes: Vec<_> = sources
            .into_iter()
            .map(|source| {
                let refused = self
                    .rules
                    .get(uid)
                    .is_some_and(|entry| entry.plan.refused.contains_key(&source.plain()));
                let cause = if refused || absent(&source) {
                    CauseKind::Missed.of(source.namespace.clone())
                } else {
                    CauseKind::Reconnected.of(cluster.as_str())
                };
                (source, cause)
            })
            .collect();
        let Some(entry) = self.rules.get_mut(uid) else {
            return effect;
        };
        let carried = entry.guard.was_awaited(cluster);
        let mut room = entry.guard.room();
        for (intent, cause) in causes {
            let Some(item) = entry
                .orphaned_intent(cluster, &intent)
                .filter(|item| entry.guard.is_new(item))
            else {
                continue;
            };
            if cause.kind == CauseKind::Missed {
                // Orphaned intents over the limit are not reported until there is room.
                let Some(left) = room.checked_sub(1) else {
                    continue;
                };
                room = left;
            }
            let cause = if carried {
                CauseKind::Carried.of(cluster.as_str())
            } else {
                cause
            };
            entry.guard.remove(item, cause);
            effect.judge.insert(uid.clone());
        }
        effect
    }

    /// A cluster has copies of a rule that does not select it, and their removal is not judged yet.
    pub fn orphaned_cluster(&mut self, uid: &RuleUid, cluster: &ClusterName) -> Effect {
        let mut effect = Effect::default();
        let leaves = |cluster: &Cluster| {
            cluster.accepted && cluster.leaving && self.guard.terms.holds_deliberate
        };
        let leaves = self.clusters.get(cluster).is_some_and(leaves);
        let takes_part = leaves || self.clusters.get(cluster).is_some_and(Cluster::takes_part);
        if let Some(entry) = self.rules.get_mut(uid)
            && takes_part
            && !entry.target_clusters.clusters.contains_key(cluster)
        {
            let cause = if entry.guard.was_awaited(cluster) {
                CauseKind::Carried
            } else {
                CauseKind::Reconnected
            };
            entry
                .guard
                .remove(Item::Cluster(cluster.clone()), cause.of(cluster.as_str()));
            if entry.guard.is_open() {
                effect.judge.insert(uid.clone());
            }
        }
        effect
    }

    /// Handles the report of a reconnected cluster: it has no copies of rules other than these.
    pub fn holds_only(&mut self, cluster: &ClusterName, rules: &BTreeSet<RuleUid>) -> Effect {
        let mut effect = Effect::default();
        let others = self
            .rules
            .iter_mut()
            .filter(|(uid, _)| !rules.contains(*uid));
        for (uid, entry) in others.filter(|(_, entry)| entry.guard.blocks_in(cluster)) {
            entry.guard.forget(cluster);
            effect.rules.insert(uid.clone());
        }
        effect
    }

    /// Every agent has reported its intents, except those in `away`: copies of an earlier process
    /// are reported by now, or removed.
    pub fn settle_guard(&mut self, uid: &RuleUid, away: &BTreeSet<ClusterName>) -> Effect {
        let mut effect = Effect::default();
        if self
            .rules
            .get_mut(uid)
            .is_some_and(|entry| entry.guard.settle(away))
        {
            effect.rules.insert(uid.clone());
            effect.judge.insert(uid.clone());
        }
        effect
    }
}
