//! Changes of grants and namespaces: they decide where the rules of a namespace may send objects.
//!
//! A narrowed grant takes effect at once. The removals that follow (a kind or a whole cluster here,
//! a namespace in the member) are *indirect*: no rule and no source was deleted. [`Index::follow`]
//! starts them, for one rule at a time.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, RuleUid};

use super::changes::record_goes;
use super::{Effect, Index, RuleEntry};
use crate::guard::{Cause, CauseKind};
use crate::plan::{Granted, Rule, RuleGrant, TargetClusters, TermsResolver};

/// A hub namespace in its watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenNamespace {
    /// Its labels, by which grants may choose.
    pub labels: BTreeMap<String, String>,
    /// Whether it is terminating: its objects were not deleted one by one.
    pub terminating: bool,
}

/// Deleted namespaces that are remembered, besides the existing ones.
const GONE: usize = 1000;

/// How many changed grants or namespaces a cause names that a list has shown.
const NAMES: usize = 3;

impl Index {
    /// Sets a namespace of the hub; `None`: it is deleted. Its objects may be deleted only later,
    /// so it counts as terminating until it exists again.
    pub fn set_seen_namespace(&mut self, name: &str, seen: Option<SeenNamespace>) -> Effect {
        self.set_terminating(name, seen.as_ref().is_none_or(|seen| seen.terminating));
        let effect = self.set_hub_namespace(name, seen.map(|seen| seen.labels));
        if let Some(known) = self
            .grants
            .namespaces
            .as_ref()
            .filter(|known| self.terminating.namespaces.len() > known.len() + GONE)
        {
            self.terminating
                .namespaces
                .retain(|name| known.contains_key(name));
        }
        effect
    }

    /// These are all namespaces of the hub; `None`: they cannot be read.
    pub fn set_seen_namespaces(&mut self, all: Option<BTreeMap<String, SeenNamespace>>) -> Effect {
        for (name, seen) in all.iter().flatten() {
            self.set_terminating(name, seen.terminating);
        }
        self.set_hub_namespaces(all.map(|all| {
            all.into_iter()
                .map(|(name, seen)| (name, seen.labels))
                .collect()
        }))
    }

    /// Sets a grant; `None`: it is deleted. Without effect while grants cannot be read.
    pub fn set_grant(&mut self, name: &str, grant: Option<RuleGrant>) -> Effect {
        let Some(known) = &mut self.grants.all else {
            return Effect::default();
        };
        let same = known.get(name) == grant.as_ref();
        match grant {
            Some(grant) => drop(known.insert(name.to_owned(), grant)),
            None => drop(known.remove(name)),
        }
        if same {
            Effect::default()
        } else {
            self.regrants(&CauseKind::Grants.of(name), |_| true)
        }
    }

    /// These are all the grants there are; `None`: they cannot be read, and so nothing that needs one is sent or removed.
    pub fn set_grants(&mut self, all: Option<BTreeMap<String, RuleGrant>>) -> Effect {
        if self.grants.all == all {
            return Effect::default();
        }
        let names = changed_names(self.grants.all.as_ref(), all.as_ref());
        self.grants.all = all;
        self.regrants(&CauseKind::Grants.of(names), |_| true)
    }

    /// Sets the labels of a namespace of the hub; `None`: it is deleted.
    pub fn set_hub_namespace(
        &mut self,
        name: &str,
        labels: Option<BTreeMap<String, String>>,
    ) -> Effect {
        let Some(known) = &mut self.grants.namespaces else {
            return Effect::default();
        };
        let same = known.get(name) == labels.as_ref();
        match labels {
            Some(labels) => drop(known.insert(name.to_owned(), labels)),
            None => drop(known.remove(name)),
        }
        if same {
            Effect::default()
        } else {
            self.regrants(&CauseKind::HubNamespaces.of(name), |rule| {
                rule.terms.rule.namespace == name
            })
        }
    }

    /// These are the labels of all namespaces of the hub; `None`: they cannot be read.
    pub fn set_hub_namespaces(
        &mut self,
        all: Option<BTreeMap<String, BTreeMap<String, String>>>,
    ) -> Effect {
        if self.grants.namespaces == all {
            return Effect::default();
        }
        let names = changed_names(self.grants.namespaces.as_ref(), all.as_ref());
        self.grants.namespaces = all;
        self.regrants(&CauseKind::HubNamespaces.of(names), |_| true)
    }

    /// A grant, if it is known.
    pub fn grant(&self, name: &str) -> Option<&RuleGrant> {
        self.grants.all.as_ref()?.get(name)
    }

    /// The grants of the DistributionRules of a namespace.
    pub fn grants_of(&self, namespace: &str, runnel_namespace: &str) -> Granted<'_> {
        self.grants.of_namespace(namespace, runnel_namespace)
    }

    /// Whether grants can be read.
    pub fn can_read_grants(&self) -> bool {
        self.grants.all.is_some()
    }

    /// Resolves the grants of these rules again.
    fn regrants(&mut self, cause: &Cause, concerned: impl Fn(&Rule) -> bool) -> Effect {
        let concerned = |entry: &RuleEntry| {
            !entry.rule.terms.rule.is_cluster_scoped() && concerned(&entry.rule)
        };
        let uids = self
            .rules
            .iter()
            .filter(|(_, entry)| concerned(entry))
            .map(|(uid, _)| uid.clone());
        let follow = uids.collect();
        self.guard.set_changed(&follow, cause);
        self.follow_here(Effect {
            follow,
            ..Effect::default()
        })
    }

    /// A rule follows what is known of grants and places now. Rules may do so one by one: each is as if that had come a
    /// moment later.
    pub fn follow(&mut self, uid: &RuleUid) -> Effect {
        let mut effect = self.follow_scopes(uid);
        effect.merge(self.regrant(uid));
        effect
    }

    /// Lets all concerned rules follow at once, if no other task does.
    pub(super) fn follow_here(&mut self, mut effect: Effect) -> Effect {
        while !self.is_aside()
            && let Some(uid) = effect.follow.pop_first()
        {
            effect.merge(self.follow(&uid));
        }
        effect
    }

    /// Resolves the grants of a rule again.
    fn regrant(&mut self, uid: &RuleUid) -> Effect {
        let mut effect = Effect::default();
        let cause = self.guard.take_changed(uid);
        let namespaced = self
            .rules
            .get(uid)
            .filter(|entry| !entry.rule.terms.rule.is_cluster_scoped());
        let Some(target_clusters) = namespaced.map(|entry| self.target_clusters(&entry.rule))
        else {
            return effect;
        };
        let Some(entry) = self
            .rules
            .get_mut(uid)
            .filter(|entry| entry.target_clusters != target_clusters)
        else {
            return effect;
        };
        let former = std::mem::replace(&mut entry.target_clusters, target_clusters);
        let takes_part = |name: &ClusterName| {
            self.clusters
                .get(name)
                .is_some_and(super::Cluster::takes_part)
        };
        let cause = cause.unwrap_or_else(|| CauseKind::Grants.of(""));
        record_goes(&former, entry, takes_part, |_| cause.clone());
        entry.keep_wanted();
        if entry.guard.is_open() {
            effect.judge.insert(uid.clone());
        }
        effect.clusters.extend(former.clusters.into_keys());
        self.touch(uid, &mut effect);
        effect
    }

    /// Returns the chosen clusters of a rule, by their grants.
    pub(super) fn target_clusters(&self, rule: &Rule) -> TargetClusters {
        let mut resolver = TermsResolver::new(rule, self.grants.of(rule));
        let mut target_clusters = TargetClusters {
            unknown: resolver.are_unknown(),
            ..TargetClusters::default()
        };
        for (name, cluster) in self
            .clusters
            .iter()
            .filter(|(name, cluster)| cluster.is_chosen_by(rule, name))
        {
            target_clusters.set(
                rule,
                name,
                Some(resolver.of(name, &cluster.labels)),
                cluster.cordoned,
            );
        }
        target_clusters
    }
}

/// The first names of what differs between two states, with commas between them.
fn changed_names<T: PartialEq>(
    before: Option<&BTreeMap<String, T>>,
    now: Option<&BTreeMap<String, T>>,
) -> String {
    fn value<'a, T>(of: Option<&'a BTreeMap<String, T>>, name: &str) -> Option<&'a T> {
        of?.get(name)
    }
    let all = before.into_iter().chain(now).flat_map(BTreeMap::keys);
    let names: BTreeSet<_> = all
        .filter(|name| value(before, name) != value(now, name))
        .map(String::as_str)
        .collect();
    let first = names.into_iter().take(NAMES).collect::<Vec<_>>();
    first.join(", ")
}
