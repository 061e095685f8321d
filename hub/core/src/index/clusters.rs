//! The member clusters, and what their changes are to the rules.
use std::collections::{BTreeMap, BTreeSet};

use kube_core::ResourceExt;
use runnel_proto::model::{ClusterName, RuleUid};

use super::{Effect, Index};
use crate::plan::{ClusterPlans, RevisionHasher, Rule, RulePlan};
use crate::rollout::Windows;
use runnel_api::{MemberCluster, MemberRecordSpec, PendingRemoval};

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
    /// The windows in which rollouts may reach it.
    pub windows: Windows,
    /// Orders from rules that were deleted while it was away.
    pub pending: BTreeMap<RuleUid, PendingRemoval>,
    /// Whether there may be copies in it: an agent has connected, or has joined. A cluster that joins again has not connected
    /// since, and has the copies of before.
    pub was_connected: bool,
}

impl Cluster {
    /// Reads a `MemberCluster` and its record.
    pub fn read(object: &MemberCluster, record: &MemberRecordSpec) -> Self {
        let pending = record.pending_removals.iter().cloned();
        let status = object.status.as_ref();
        Self {
            uid: object.uid().unwrap_or_default(),
            labels: object.labels().clone(),
            accepted: object.spec.accepted && object.metadata.deletion_timestamp.is_none(),
            cordoned: object.spec.cordoned,
            leaving: object.spec.leaving,
            windows: Windows::read(&object.spec.windows, "spec.windows"),
            pending: pending
                .map(|removal| (RuleUid::from(removal.rule_uid.as_str()), removal))
                .collect(),
            was_connected: status.is_some_and(|status| status.cluster_uid.is_some())
                || !record.identity.keys.is_empty(),
        }
    }

    /// Whether rules may choose the cluster.
    pub fn is_eligible(&self) -> bool {
        self.accepted && !self.leaving
    }

    /// Whether the cluster leaves as a member: its copies are to be removed.
    pub fn is_leaving(&self) -> bool {
        self.accepted && self.leaving
    }

    /// Whether a rule selects the cluster.
    pub fn is_chosen_by(&self, rule: &Rule, name: &ClusterName) -> bool {
        self.is_eligible() && rule.chooses(name, &self.labels)
    }
}

/// The change of a member cluster.
pub(super) struct ClusterChange<'a> {
    pub(super) name: &'a ClusterName,
    /// Its state; `None`: it is revoked.
    pub(super) cluster: Option<&'a Cluster>,
    /// Whether removals from a leaving cluster are judged.
    pub(super) judges_leaving: bool,
    /// Whether it is another cluster than before, so that rules concern it again.
    pub(super) is_reborn: bool,
}

/// The member clusters.
#[derive(Clone, Default)]
pub struct Clusters(BTreeMap<ClusterName, Cluster>);

impl Clusters {
    /// Returns a cluster.
    pub fn get(&self, name: &ClusterName) -> Option<&Cluster> {
        self.0.get(name)
    }

    /// Every cluster, by its name.
    pub fn by_name(&self) -> &BTreeMap<ClusterName, Cluster> {
        &self.0
    }

    /// Every cluster.
    pub fn iter(&self) -> impl Iterator<Item = (&ClusterName, &Cluster)> {
        self.0.iter()
    }

    /// Every name.
    pub fn names(&self) -> impl Iterator<Item = &ClusterName> {
        self.0.keys()
    }

    /// Whether the hub serves this cluster: it exists, with this uid, and is accepted. Any other
    /// cluster is sent nothing, not even a removal.
    pub fn serves_cluster(&self, name: &ClusterName, uid: &str) -> bool {
        self.get(name)
            .is_some_and(|known| known.accepted && known.uid == uid)
    }

    /// Whether rules may choose a cluster.
    pub(super) fn is_eligible(&self, name: &ClusterName) -> bool {
        self.get(name).is_some_and(Cluster::is_eligible)
    }

    /// Whether a rule selects a cluster.
    pub(super) fn is_chosen(&self, rule: &Rule, name: &ClusterName) -> bool {
        self.get(name)
            .is_some_and(|cluster| cluster.is_chosen_by(rule, name))
    }

    /// The clusters that a rule selects.
    pub(super) fn chosen_by(&self, rule: &Rule) -> impl Iterator<Item = (&ClusterName, &Cluster)> {
        self.iter()
            .filter(|(name, cluster)| cluster.is_chosen_by(rule, name))
    }

    /// Drops clusters that a rule has left while its copies were rendered. Returns whether there were any.
    pub(super) fn drop_unchosen(
        &self,
        rule: &Rule,
        plan: &RulePlan,
        cluster_plans: &mut ClusterPlans,
        revision_hasher: &RevisionHasher,
    ) -> bool {
        let gone: Vec<_> = cluster_plans
            .clusters()
            .filter(|name| !self.is_chosen(rule, name))
            .cloned()
            .collect();
        for name in &gone {
            cluster_plans.set_cluster(rule, plan, name, None, revision_hasher);
        }
        !gone.is_empty()
    }

    /// Sets a cluster. Returns its former state.
    pub(super) fn set(&mut self, name: ClusterName, cluster: Cluster) -> Option<Cluster> {
        self.0.insert(name, cluster)
    }

    /// Removes a cluster. Returns whether it existed.
    pub(super) fn remove(&mut self, name: &ClusterName) -> bool {
        self.0.remove(name).is_some()
    }
}

impl Index {
    /// Sets a cluster.
    pub fn set_cluster(&mut self, name: ClusterName, cluster: Cluster) -> Effect {
        let mut effect = Effect::default();
        let former = self.targets.clusters.set(name.clone(), cluster.clone());
        if former.as_ref() == Some(&cluster) {
            return effect;
        }
        // Rollouts that wait for a window.
        if former.as_ref().map(|former| &former.windows) != Some(&cluster.windows) {
            let rules = self.planner.rules.iter();
            let waiting = rules.filter(|(_, entry)| {
                entry.rule.rollout.is_some() && entry.target_clusters.clusters.contains_key(&name)
            });
            effect.statuses.extend(waiting.map(|(uid, _)| uid.clone()));
        }
        let before: BTreeSet<_> = former
            .iter()
            .flat_map(|former| former.pending.keys().cloned())
            .collect();
        let change = ClusterChange {
            name: &name,
            cluster: Some(&cluster),
            judges_leaving: self.fleet_guard.terms.limits_deliberate_deletes,
            is_reborn: former.is_none_or(|former| {
                former.uid != cluster.uid || former.leaving != cluster.leaving
            }),
        };
        for (uid, terms) in self
            .targets
            .choices(self.planner.rules.iter(), &name, &cluster)
        {
            self.planner.choose(&uid, &change, terms, &mut effect);
        }
        // The orders of deleted rules follow from their absence in the index.
        for uid in cluster.pending.keys().filter(|uid| !before.contains(*uid)) {
            self.planner.rules.note_absent(uid);
        }
        effect.clusters.insert(name);
        self.render_former(&mut effect);
        self.render_here(&mut effect);
        effect
    }

    /// A cluster is no longer on the hub: it is revoked.
    pub fn remove_cluster(&mut self, name: &ClusterName) -> Effect {
        let mut effect = Effect::default();
        if self.targets.clusters.remove(name) {
            let change = ClusterChange {
                name,
                cluster: None,
                judges_leaving: false,
                is_reborn: false,
            };
            let uids: Vec<_> = self.planner.rules.uids().cloned().collect();
            for uid in uids {
                self.planner.choose(&uid, &change, None, &mut effect);
            }
            // Their statuses name the missing cluster.
            let naming = self
                .planner
                .rules
                .iter()
                .filter(|(_, entry)| entry.rule.names_cluster(name));
            effect.statuses.extend(naming.map(|(uid, _)| uid.clone()));
            effect.clusters.insert(name.clone());
        }
        effect
    }
}
