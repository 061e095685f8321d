//! Creation, change and removal of member clusters.
use std::collections::{BTreeMap, BTreeSet};

use kube_core::ResourceExt;
use runnel_proto::model::{ClusterName, RuleUid};

use super::changes::record_choice;
use super::{Effect, Index};
use crate::guard::{CauseKind, Item};
use crate::plan::{EffectiveTerms, Rule, TermsResolver};
use runnel_api::{MemberCluster, PendingRemoval};

/// A member cluster in the index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Uid of the `MemberCluster`: a name that is joined again is another cluster.
    pub uid: String,
    /// Its labels, chosen by the hub's administrator.
    pub labels: BTreeMap<String, String>,
    /// Whether the cluster is accepted.
    pub accepted: bool,
    /// Whether the cluster is cordoned.
    pub cordoned: bool,
    /// Whether the cluster leaves: it gets nothing new, and its copies are removed.
    pub leaving: bool,
    /// Orders from rules that were deleted while it was away.
    pub pending: BTreeMap<RuleUid, PendingRemoval>,
    /// Whether there may be copies in it: an agent has connected, or has joined. A cluster that joins again has not connected
    /// since, and has the copies of before.
    pub was_connected: bool,
}

impl Cluster {
    /// Reads a `MemberCluster`.
    pub fn read(object: &MemberCluster) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let pending = status.pending_removals.into_iter();
        Self {
            uid: object.uid().unwrap_or_default(),
            labels: object.labels().clone(),
            accepted: object.spec.accepted && object.metadata.deletion_timestamp.is_none(),
            cordoned: object.spec.cordoned,
            leaving: object.spec.leaving,
            pending: pending
                .map(|removal| (RuleUid::from(removal.rule_uid.as_str()), removal))
                .collect(),
            was_connected: status.cluster_uid.is_some()
                || status
                    .identity
                    .is_some_and(|identity| !identity.keys.is_empty()),
        }
    }

    /// Whether rules may choose the cluster.
    pub fn takes_part(&self) -> bool {
        self.accepted && !self.leaving
    }

    /// Whether a rule selects the cluster.
    pub fn is_chosen_by(&self, rule: &Rule, name: &ClusterName) -> bool {
        self.takes_part() && rule.chooses(name, &self.labels)
    }
}

impl Index {
    /// Sets a cluster.
    pub fn set_cluster(&mut self, name: ClusterName, cluster: Cluster) -> Effect {
        let mut effect = Effect::default();
        let former = self.clusters.insert(name.clone(), cluster.clone());
        if former.as_ref() == Some(&cluster) {
            return effect;
        }
        let before: BTreeSet<_> = former
            .iter()
            .flat_map(|former| former.pending.keys().cloned())
            .collect();
        let reborn = former
            .is_none_or(|former| former.uid != cluster.uid || former.leaving != cluster.leaving);
        for (uid, chosen) in self.choices(&name, &cluster) {
            self.choose(&uid, &name, chosen, reborn, &mut effect);
        }
        // The orders of deleted rules follow from their absence in the index.
        for uid in cluster.pending.keys().filter(|uid| !before.contains(*uid)) {
            if !self.rules.contains_key(uid) {
                self.changes.forget(uid);
            }
        }
        effect.clusters.insert(name);
        effect
    }

    /// A cluster is no longer on the hub: it is revoked.
    pub fn remove_cluster(&mut self, name: &ClusterName) -> Effect {
        let mut effect = Effect::default();
        if self.clusters.remove(name).is_some() {
            let uids: Vec<_> = self.rules.keys().cloned().collect();
            for uid in uids {
                self.choose(&uid, name, None, false, &mut effect);
            }
            // Their statuses name the missing cluster.
            let naming = self
                .rules
                .iter()
                .filter(|(_, entry)| entry.rule.names_cluster(name));
            effect.rules.extend(naming.map(|(uid, _)| uid.clone()));
            effect.clusters.insert(name.clone());
        }
        effect
    }

    /// Removes all clusters that are not in a complete list.
    pub fn retain_clusters(&mut self, listed: &BTreeSet<ClusterName>) -> Effect {
        let gone: Vec<_> = self
            .clusters
            .keys()
            .filter(|name| !listed.contains(*name))
            .cloned()
            .collect();
        let mut effect = Effect::default();
        for name in gone {
            effect.merge(self.remove_cluster(&name));
        }
        effect
    }

    /// The lot of each rule in a cluster, where it chooses it.
    fn choices(
        &self,
        name: &ClusterName,
        cluster: &Cluster,
    ) -> Vec<(RuleUid, Option<EffectiveTerms>)> {
        let effective_terms =
            |rule: &Rule| TermsResolver::new(rule, self.grants.of(rule)).of(name, &cluster.labels);
        let choice = |rule: &Rule| {
            cluster
                .is_chosen_by(rule, name)
                .then(|| effective_terms(rule))
        };
        self.rules
            .iter()
            .map(|(uid, entry)| (uid.clone(), choice(&entry.rule)))
            .collect()
    }

    fn choose(
        &mut self,
        uid: &RuleUid,
        name: &ClusterName,
        effective_terms: Option<EffectiveTerms>,
        always: bool,
        effect: &mut Effect,
    ) {
        let waits = if effective_terms.is_some() {
            self.defer_cluster(uid, name, effect)
        } else {
            None
        };
        if waits == Some(false) {
            // The cluster gets the rule when its content is rendered.
            if always {
                self.renew(uid);
            }
            effect.rules.insert(uid.clone());
            return;
        }
        let Some(entry) = self.rules.get_mut(uid) else {
            return;
        };
        let cordoned = self
            .clusters
            .get(name)
            .is_some_and(|cluster| cluster.cordoned);
        let labels = self
            .clusters
            .get(name)
            .filter(|_| effective_terms.is_some())
            .map(|cluster| &cluster.labels);
        let former = (
            entry.target_clusters.clusters.get(name).cloned(),
            entry.cluster_plans.plan(name, &entry.plan).cloned(),
        );
        let exceeded = entry.cluster_plans.exceeds();
        let dealt = waits.is_none()
            && entry.cluster_plans.set_cluster(
                &entry.rule,
                &entry.plan,
                name,
                labels,
                &self.revision_hasher,
            );
        if dealt && labels.is_none() && entry.cluster_plans.exceeds() {
            // Perhaps not any more, without this cluster.
            if self.rendering.is_aside() {
                entry.unrendered.set_again();
                effect.render.insert(uid.clone());
            } else {
                entry.cluster_plans.begin_again(
                    &entry.rule,
                    &entry.plan,
                    Vec::new(),
                    &self.revision_hasher,
                );
            }
        }
        let all = exceeded != entry.cluster_plans.exceeds();
        let chosen = entry
            .target_clusters
            .set(&entry.rule, name, effective_terms, cordoned);
        let takes_part = self.clusters.get(name).is_some_and(Cluster::takes_part);
        let leaves = |cluster: &Cluster| {
            cluster.accepted && cluster.leaving && self.guard.terms.holds_deliberate
        };
        let leaves = self.clusters.get(name).is_some_and(leaves);
        if !takes_part && !leaves && entry.guard.blocks_in(name) {
            // Nothing that is blocked there needs a decision any more.
            entry.guard.forget(name);
            effect.rules.insert(uid.clone());
        }
        if chosen || dealt {
            let was_chosen = former.0.is_some();
            record_choice(entry, name, former, takes_part || leaves);
            if leaves && was_chosen {
                entry
                    .guard
                    .remove(Item::Cluster(name.clone()), CauseKind::Deleted.of(""));
            }
            if entry.guard.is_open() {
                effect.judge.insert(uid.clone());
            }
        }
        if chosen || dealt || always {
            // No other cluster is concerned, so only this one is woken; the version informs its
            // session.
            self.renew(uid);
            effect.rules.insert(uid.clone());
        }
        if all {
            self.touch(uid, effect);
        }
    }
}
