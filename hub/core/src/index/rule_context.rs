//! A part of the index for a preview: a rule with everything that affects it. Changes of the part
//! have no effect elsewhere.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, RuleUid};

use super::{Cluster, Effect, Index};
use crate::guard::RemovalGuard;
use crate::plan::{Rule, RuleGrant};
use crate::rollout::Gate;

/// Limit of copied other rules; they matter for transfers of copies.
const OTHERS: usize = 256;

/// A grant or a member cluster as it would be; `None`: it is deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangedObject {
    /// A grant.
    Grant(String, Option<Box<RuleGrant>>),
    /// A member cluster.
    Member(ClusterName, Option<Cluster>),
}

/// Everything that affects a rule, copied from an index. It is planned later, so that the lock of
/// the index is short.
pub struct Around {
    part: Index,
    others: Vec<Rule>,
    former: Vec<(Rule, RemovalGuard, Option<Gate>)>,
}

impl Around {
    /// An index of its own, with the current plans of these rules.
    pub fn plan(self) -> Index {
        let Self {
            mut part,
            others,
            former,
        } = self;
        for other in others {
            part.set_rule(other);
        }
        for (rule, guard, gate) in former {
            let uid = rule.uid.clone();
            part.set_rule(rule);
            if let Some(entry) = part.rules.get_mut(&uid) {
                (entry.guard, entry.gate) = (guard, gate);
            }
        }
        part
    }
}

impl Index {
    /// Copies the part of the index that concerns a rule: clusters, grants, current and former
    /// sources, related rules, and the rule itself with its removal guard. Changes of the copy do
    /// not affect the index. Payloads are shared.
    pub fn around(&self, rule: &Rule) -> Around {
        self.around_all(&BTreeSet::from([rule.uid.clone()]), Some(rule))
    }

    /// As above, for several saved rules and one rule that may be unsaved.
    pub fn around_all(&self, uids: &BTreeSet<RuleUid>, rule: Option<&Rule>) -> Around {
        let former: Vec<_> = uids.iter().filter_map(|uid| self.rules.get(uid)).collect();
        let mut part = Index {
            revision_hasher: self.revision_hasher.clone(),
            scope: self.scope.clone(),
            places: self.places.clone(),
            clusters: self.clusters.clone(),
            grants: self.grants.clone(),
            guard: self.guard.for_part(self.rules.keys().cloned().collect()),
            terminating: self.terminating.clone(),
            ceiling: self.ceiling,
            ..Index::default()
        };
        part.sources = self.sources.part(
            rule.into_iter()
                .chain(former.iter().map(|entry| &entry.rule)),
        );
        let readers = part
            .sources
            .names()
            .flat_map(|source| self.selection.of(source));
        let others: BTreeSet<_> = readers
            .filter(|uid| !uids.contains(*uid))
            .cloned()
            .collect();
        let others = others
            .iter()
            .take(OTHERS)
            .filter_map(|uid| self.rules.get(uid));
        let others = others.map(|other| other.rule.clone()).collect();
        let of_entry = |entry: &super::RuleEntry| {
            (entry.rule.clone(), entry.guard.clone(), entry.gate.clone())
        };
        let former = former.into_iter().map(of_entry).collect();
        Around {
            part,
            others,
            former,
        }
    }

    /// Sets a grant or a member cluster.
    pub fn apply(&mut self, changed: ChangedObject) -> Effect {
        match changed {
            ChangedObject::Grant(name, grant) => self.set_grant(&name, grant.map(|grant| *grant)),
            ChangedObject::Member(name, Some(cluster)) => self.set_cluster(name, cluster),
            ChangedObject::Member(name, None) => self.remove_cluster(&name),
        }
    }

    /// Clusters and grants with a grant or a member cluster as given, to compare rules with ([`Index::is_affected`]). Of a
    /// changed member cluster it has that cluster alone.
    pub fn with_change(&self, changed: ChangedObject) -> Index {
        let clusters = match &changed {
            ChangedObject::Grant(..) => self.clusters.clone(),
            ChangedObject::Member(..) => BTreeMap::new(),
        };
        let mut part = Index {
            clusters,
            grants: self.grants.clone(),
            ..Index::default()
        };
        part.apply(changed);
        part
    }

    /// Whether the clusters of a rule, or its terms in one, would be others, or whether its copies are rendered with labels
    /// of a cluster that would be others.
    pub fn is_affected(
        &self,
        uid: &RuleUid,
        member: Option<&ClusterName>,
        changed: &Index,
    ) -> bool {
        let Some(entry) = self.rules.get(uid) else {
            return false;
        };
        let (before, now) = (&entry.target_clusters, changed.target_clusters(&entry.rule));
        let Some(name) = member else {
            return now != *before;
        };
        let labels = |index: &Index| {
            index
                .clusters
                .get(name)
                .map(|cluster| cluster.labels.clone())
        };
        let renders = !entry.rule.sends_as_selected() && now.clusters.contains_key(name);
        now.clusters.get(name) != before.clusters.get(name)
            || now.not_granted.contains(name) != before.not_granted.contains(name)
            || now.cordoned.contains(name) != before.cordoned.contains(name)
            || (renders && labels(self) != labels(changed))
    }
}
