//! Copies that agents report and no rule selects.
use std::collections::BTreeSet;

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use super::clusters::Cluster;
use super::{Effect, Index};
use crate::guard::{CauseKind, Item};
use crate::plan::UnsupportedSource;

impl Index {
    /// An agent has unwanted intents of a rule, and their removal is not judged yet.
    pub fn orphaned_intents(
        &mut self,
        uid: &RuleUid,
        cluster: &ClusterName,
        sources: BTreeSet<SourceRef>,
    ) -> Effect {
        let mut effect = Effect::default();
        let absent = |source: &SourceRef| {
            self.scopes.knows(source) && self.sources.get(&source.plain()).is_none()
        };
        let causes: Vec<_> = sources
            .into_iter()
            .map(|source| {
                let refused = self
                    .rules()
                    .get(uid)
                    .and_then(|entry| entry.plan.refused.get(&source.plain()));
                let cause = match refused {
                    Some(UnsupportedSource::Annotation) => {
                        CauseKind::Refused.of(source.namespace.clone())
                    }
                    Some(refused) => refused.cause(source.namespace.clone()),
                    None if absent(&source) => CauseKind::Missed.of(source.namespace.clone()),
                    None => CauseKind::Reconnected.of(cluster.as_str()),
                };
                (source, cause)
            })
            .collect();
        let Some(entry) = self.rules_mut().get_mut(uid) else {
            return effect;
        };
        let carried = entry.guard.was_awaited(cluster);
        let mut room = entry.guard.room();
        for (intent, cause) in causes {
            let item = if entry.guard.decision().is_uncounted(cluster, &intent) {
                Some(Item::Copy(cluster.clone(), intent))
            } else {
                entry.orphaned_intent(cluster, &intent)
            };
            let Some(item) = item.filter(|item| entry.guard.is_new(item)) else {
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
        let judges_leaving = self.fleet_guard.terms.limits_deliberate_deletes;
        let takes_part =
            |known: &Cluster| known.is_eligible() || (judges_leaving && known.is_leaving());
        if self.clusters().get(cluster).is_some_and(takes_part)
            && let Some(entry) = self.rules_mut().get_mut(uid)
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
}
