//! Where rules send objects: to the member clusters that they choose and the grants allow.
use std::collections::BTreeMap;

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use super::RuleEntry;
use super::clusters::{Cluster, Clusters};
use crate::plan::{
    EffectiveTerms, Grants, Rule, RuleGrant, SourceState, TargetClusters, TermsResolver,
};

/// An object as it would be; `None`: it is deleted.
#[derive(Clone)]
pub enum ChangedObject {
    /// A grant.
    Grant(String, Option<Box<RuleGrant>>),
    /// A member cluster.
    Member(ClusterName, Option<Cluster>),
    /// A bundle, with its labels and content.
    Bundle(SourceRef, Option<(BTreeMap<String, String>, SourceState)>),
}

/// The member clusters and the grants.
#[derive(Clone, Default)]
pub struct Targets {
    pub(super) clusters: Clusters,
    pub(super) grants: Grants,
}

impl Targets {
    /// Returns the grants.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns the chosen clusters of a rule, by their grants.
    pub(super) fn of(&self, rule: &Rule) -> TargetClusters {
        let mut resolver = TermsResolver::new(rule, self.grants.of(rule));
        let mut target_clusters = TargetClusters {
            unknown: resolver.are_unknown(),
            ..TargetClusters::default()
        };
        for (name, cluster) in self.clusters.chosen_by(rule) {
            let terms = resolver.of(name, &cluster.labels);
            target_clusters.set(rule, name, Some(terms), cluster.cordoned);
        }
        target_clusters
    }

    /// Returns the terms of a rule in a cluster that it chooses.
    pub(super) fn terms(
        &self,
        rule: &Rule,
        name: &ClusterName,
        cluster: &Cluster,
    ) -> EffectiveTerms {
        TermsResolver::new(rule, self.grants.of(rule)).of(name, &cluster.labels)
    }

    /// Returns the terms of each rule in a cluster; `None` where the rule does not choose it.
    pub(super) fn choices<'a>(
        &self,
        rules: impl Iterator<Item = (&'a RuleUid, &'a RuleEntry)>,
        name: &ClusterName,
        cluster: &Cluster,
    ) -> Vec<(RuleUid, Option<EffectiveTerms>)> {
        let choice = |rule: &Rule| {
            cluster
                .is_chosen_by(rule, name)
                .then(|| self.terms(rule, name, cluster))
        };
        rules
            .map(|(uid, entry)| (uid.clone(), choice(&entry.rule)))
            .collect()
    }

    /// Returns the targets with a grant or a member cluster as given, to compare rules with
    /// ([`Targets::differ_for`]). Of a changed member cluster they have that cluster alone.
    #[must_use]
    pub fn with_change(&self, changed: ChangedObject) -> Targets {
        let (mut clusters, mut grants) = (Clusters::default(), self.grants.clone());
        match changed {
            ChangedObject::Grant(name, grant) => {
                clusters = self.clusters.clone();
                grants.set(&name, grant.map(|grant| *grant));
            }
            ChangedObject::Member(name, Some(cluster)) => drop(clusters.set(name, cluster)),
            ChangedObject::Member(_, None) => {}
            ChangedObject::Bundle(..) => clusters = self.clusters.clone(),
        }
        Targets { clusters, grants }
    }

    /// Whether the clusters of a rule, or its terms in one, would be others, or whether its copies are rendered with labels
    /// of a cluster that would be others.
    pub fn differ_for(
        &self,
        entry: &RuleEntry,
        member: Option<&ClusterName>,
        changed: &Targets,
    ) -> bool {
        let (before, now) = (&entry.target_clusters, changed.of(&entry.rule));
        let Some(name) = member else {
            return now != *before;
        };
        let labels = |targets: &Targets| {
            let cluster = targets.clusters.get(name);
            cluster.map(|cluster| cluster.labels.clone())
        };
        let renders = !entry.rule.sends_as_selected() && now.clusters.contains_key(name);
        now.clusters.get(name) != before.clusters.get(name)
            || now.not_granted.contains(name) != before.not_granted.contains(name)
            || now.cordoned.contains(name) != before.cordoned.contains(name)
            || (renders && labels(self) != labels(changed))
    }
}
