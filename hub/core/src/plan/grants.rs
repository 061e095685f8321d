//! The grants of a rule by cluster. A namespaced rule sends nothing to a cluster without a grant;
//! cluster-scoped rules need none.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, Grant, NamespaceChoice, Terms};

use super::{ClusterChoice, NamedTerms, Rule};
use crate::guard::{Cause, CauseKind};
use runnel_api::limits;

/// Number of changed grants or namespaces that the cause of a relist names.
const NAMES: usize = 3;

/// A `DistributionGrant` in the planner's form.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleGrant {
    /// The covered hub namespaces; `None` covers all.
    pub rules: Option<NamespaceChoice>,
    /// The clusters.
    pub clusters: ClusterChoice,
    /// The grant.
    pub grant: Grant,
}

impl RuleGrant {
    /// Reads a `DistributionGrant`.
    pub fn read(object: &runnel_api::DistributionGrant) -> Self {
        let spec = &object.spec;
        let mut resources: Vec<_> = spec.resources.clone();
        resources.sort();
        Self {
            rules: spec.rules.namespaces.choice(),
            clusters: ClusterChoice::from(&spec.clusters),
            grant: Grant {
                resources,
                namespaces: spec.namespaces.choice(),
                overwrite: spec.policies.overwrite,
                create_namespaces: spec.policies.create_namespaces,
                adopt: spec.policies.adopt,
                max_copies: spec.max_copies.map(quota),
                max_bytes: spec.max_bytes.map(quota),
            },
        }
    }

    /// Whether the labels of the hub's namespaces matter to it.
    pub fn needs_labels(&self) -> bool {
        self.rules
            .as_ref()
            .is_some_and(|choice| choice.selector.is_some())
    }

    /// Whether it is for the rules of a namespace. Without `labels` they are not known; then only its name counts.
    fn is_for(
        &self,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
        runnel_namespace: &str,
    ) -> bool {
        self.rules
            .as_ref()
            .is_none_or(|choice| choice.allows_hub_namespace(namespace, labels, runnel_namespace))
    }
}

/// A limit of a grant. A negative one, which the schema refuses, allows nothing: no limit would allow everything.
fn quota(limit: i64) -> u64 {
    u64::try_from(limit).unwrap_or(0)
}

/// The grants of the hub.
#[derive(Clone, Default)]
pub struct Grants {
    /// Every grant by its name; absent while they cannot be read.
    all: Option<BTreeMap<String, RuleGrant>>,
    /// The labels of the hub's namespaces; absent while they cannot be read.
    namespaces: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

/// A change of the grants, whose rules must resolve their grants again.
pub struct GrantChange {
    /// The cause of the removals that follow.
    pub cause: Cause,
    /// The hub namespace of the concerned rules; `None`: every one.
    pub namespace: Option<String>,
}

impl GrantChange {
    /// Whether the change concerns a rule.
    pub fn concerns(&self, rule: &Rule) -> bool {
        let namespace = &rule.terms.rule.namespace;
        let is_here = |changed: &String| changed == namespace;
        !rule.terms.rule.is_cluster_scoped() && self.namespace.as_ref().is_none_or(is_here)
    }
}

/// The grants of one rule.
pub enum RuleGrants<'a> {
    /// Everything: it is a rule of the whole cluster.
    All,
    /// The grants that apply to its namespace.
    Granted(Vec<&'a RuleGrant>),
    /// The grants are unknown.
    Unknown,
}

/// The terms of a rule in a cluster that it selects.
#[derive(Clone, PartialEq)]
pub enum EffectiveTerms {
    /// The rule is sent with these terms.
    Terms(NamedTerms),
    /// No grant covers the rule there.
    NotGranted,
    /// The terms are unknown: nothing is sent and nothing removed.
    Unknown,
}

impl Grants {
    /// Returns a grant, if it is known.
    pub fn get(&self, name: &str) -> Option<&RuleGrant> {
        self.all.as_ref()?.get(name)
    }

    /// Whether grants can be read.
    pub fn are_readable(&self) -> bool {
        self.all.is_some()
    }

    /// Returns the number of hub namespaces; `None`: they cannot be read.
    pub fn namespaces(&self) -> Option<usize> {
        self.namespaces.as_ref().map(BTreeMap::len)
    }

    /// Whether a hub namespace is known to exist.
    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces
            .as_ref()
            .is_some_and(|known| known.contains_key(name))
    }

    /// Sets a grant; `None`: it is deleted. No effect while grants cannot be read.
    pub fn set(&mut self, name: &str, grant: Option<RuleGrant>) -> Option<GrantChange> {
        set_one(self.all.as_mut()?, name, grant).then(|| GrantChange {
            cause: CauseKind::Grants.of(name),
            namespace: None,
        })
    }

    /// Sets all grants; `None`: they cannot be read, and nothing that needs one is sent or removed.
    pub fn set_all(&mut self, all: Option<BTreeMap<String, RuleGrant>>) -> Option<GrantChange> {
        let cause = CauseKind::Grants.of(set_every(&mut self.all, all)?);
        let namespace = None;
        Some(GrantChange { cause, namespace })
    }

    /// Sets the labels of a hub namespace; `None`: it is deleted. No effect while namespaces cannot
    /// be read.
    pub fn set_namespace(
        &mut self,
        name: &str,
        labels: Option<BTreeMap<String, String>>,
    ) -> Option<GrantChange> {
        set_one(self.namespaces.as_mut()?, name, labels).then(|| GrantChange {
            cause: CauseKind::HubNamespaces.of(name),
            namespace: Some(name.to_owned()),
        })
    }

    /// Sets the labels of all hub namespaces; `None`: they cannot be read.
    pub fn set_namespaces(
        &mut self,
        all: Option<BTreeMap<String, BTreeMap<String, String>>>,
    ) -> Option<GrantChange> {
        let cause = CauseKind::HubNamespaces.of(set_every(&mut self.namespaces, all)?);
        let namespace = None;
        Some(GrantChange { cause, namespace })
    }

    /// The grants of a rule, in any cluster.
    pub fn of(&self, rule: &Rule) -> RuleGrants<'_> {
        if rule.terms.rule.is_cluster_scoped() {
            return RuleGrants::All;
        }
        self.of_namespace(&rule.terms.rule.namespace, rule.runnel_namespace())
    }

    /// The grants of the DistributionRules of a namespace, in any cluster.
    pub fn of_namespace(&self, namespace: &str, runnel_namespace: &str) -> RuleGrants<'_> {
        let Some(grants) = &self.all else {
            return RuleGrants::Unknown;
        };
        let labels = self.namespaces.as_ref().map(|known| known.get(namespace));
        // A namespace with unknown labels may match.
        let unknown = labels.is_none_or(|labels| labels.is_none());
        let labels = labels.flatten();
        let is_for = |grant: &&RuleGrant| grant.is_for(namespace, labels, runnel_namespace);
        if unknown
            && grants
                .values()
                .any(|grant| grant.needs_labels() && !is_for(&grant))
        {
            return RuleGrants::Unknown;
        }
        RuleGrants::Granted(grants.values().filter(is_for).collect())
    }
}

/// Sets or deletes one value. Returns whether that changes anything.
fn set_one<T: PartialEq>(known: &mut BTreeMap<String, T>, name: &str, value: Option<T>) -> bool {
    let is_changed = known.get(name) != value.as_ref();
    match value {
        Some(value) => drop(known.insert(name.to_owned(), value)),
        None => drop(known.remove(name)),
    }
    is_changed
}

/// Sets all values. Returns the first names of what differs; `None`: nothing does.
fn set_every<T: PartialEq>(
    known: &mut Option<BTreeMap<String, T>>,
    all: Option<BTreeMap<String, T>>,
) -> Option<String> {
    if *known == all {
        return None;
    }
    let names = changed_names(known.as_ref(), all.as_ref());
    *known = all;
    Some(names)
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

/// The chosen clusters of a rule, by their grants.
#[derive(Clone, Default, PartialEq)]
pub struct TargetClusters {
    /// The clusters of the rule, with the terms in each.
    pub clusters: BTreeMap<ClusterName, NamedTerms>,
    /// Chosen clusters without a grant.
    pub not_granted: BTreeSet<ClusterName>,
    /// The cordoned ones among `clusters`.
    pub cordoned: BTreeSet<ClusterName>,
    /// Whether grants are unknown: the selection of clusters is kept, and nothing is sent or
    /// removed.
    pub unknown: bool,
}

impl TargetClusters {
    /// Puts a cluster where it belongs; `None`: the rule does not choose it. Returns whether that is news.
    pub fn set(
        &mut self,
        rule: &Rule,
        name: &ClusterName,
        effective_terms: Option<EffectiveTerms>,
        cordoned: bool,
    ) -> bool {
        let before = (
            self.clusters.remove(name),
            self.not_granted.remove(name),
            self.cordoned.remove(name),
        );
        let now = match effective_terms {
            None => (None, false, false),
            Some(EffectiveTerms::Terms(terms)) => (Some(terms), false, cordoned),
            Some(EffectiveTerms::Unknown) => (Some(rule.terms.clone()), false, cordoned),
            Some(EffectiveTerms::NotGranted) => (None, true, false),
        };
        let news = before != now;
        if let Some(terms) = now.0 {
            self.clusters.insert(name.clone(), terms);
        }
        if now.1 {
            self.not_granted.insert(name.clone());
        }
        if now.2 {
            self.cordoned.insert(name.clone());
        }
        news
    }
}

/// Resolves the terms of one rule. Clusters with the same grants share their terms.
pub struct TermsResolver<'a> {
    rule: &'a Rule,
    granted: RuleGrants<'a>,
    resolved: BTreeMap<Vec<usize>, EffectiveTerms>,
}

impl<'a> TermsResolver<'a> {
    /// For a rule to which this is granted.
    pub fn new(rule: &'a Rule, granted: RuleGrants<'a>) -> Self {
        Self {
            rule,
            granted,
            resolved: BTreeMap::new(),
        }
    }

    /// Whether the grants are unknown.
    pub fn are_unknown(&self) -> bool {
        matches!(self.granted, RuleGrants::Unknown)
    }

    /// The rule's lot in a cluster that it chooses.
    pub fn of(
        &mut self,
        cluster: &ClusterName,
        labels: &BTreeMap<String, String>,
    ) -> EffectiveTerms {
        let grants = match &self.granted {
            RuleGrants::All => return EffectiveTerms::Terms(self.rule.terms.clone()),
            RuleGrants::Unknown => return EffectiveTerms::Unknown,
            RuleGrants::Granted(grants) => grants,
        };
        let applies = |(_, grant): &(usize, &&RuleGrant)| grant.clusters.chooses(cluster, labels);
        let applicable: Vec<_> = grants
            .iter()
            .enumerate()
            .filter(applies)
            .map(|(number, _)| number)
            .collect();
        if let Some(effective_terms) = self.resolved.get(&applicable) {
            return effective_terms.clone();
        }
        let effective_terms = effective_terms(
            self.rule,
            applicable.iter().map(|number| &grants[*number].grant),
        );
        self.resolved.insert(applicable, effective_terms.clone());
        effective_terms
    }
}

/// Applies the grants to a rule.
fn effective_terms<'a>(rule: &Rule, grants: impl Iterator<Item = &'a Grant>) -> EffectiveTerms {
    let sent: Vec<_> = rule.resources().collect();
    // The manifests of a bundle may have any kind, and each needs a grant for its own.
    let any = rule.selects_bundles();
    let mut counting: Vec<_> = grants
        .filter(|grant| any || sent.iter().any(|resource| grant.is_of_kind(resource)))
        .collect();
    counting.sort();
    counting.dedup();
    counting.truncate(limits::GRANTS);
    if counting.is_empty() {
        return EffectiveTerms::NotGranted;
    }
    let whole = || counting.iter().filter(|grant| grant.is_unlimited());
    if !any
        && sent
            .iter()
            .all(|resource| whole().any(|grant| grant.is_of_kind(resource)))
    {
        return EffectiveTerms::Terms(rule.terms.clone());
    }
    let grants = counting.into_iter().cloned().collect();
    EffectiveTerms::Terms(NamedTerms::new(Terms {
        grants: Some(grants),
        ..Terms::clone(&rule.terms)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn negative_quota_of_a_grant_allows_nothing() {
        let read = |limit: Option<i64>| {
            let object = json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"},
                "spec": {
                    "rules": {"namespaces": {"all": true}}, "resources": ["configmaps"], "clusters": {"all": true},
                    "namespaces": {"all": true}, "maxCopies": limit, "maxBytes": limit,
                },
            });
            let grant = RuleGrant::read(&serde_json::from_value(object).unwrap()).grant;
            (grant.max_copies, grant.max_bytes)
        };
        assert_eq!(read(Some(-1)), (Some(0), Some(0)));
        assert_eq!(read(Some(7)), (Some(7), Some(7)));
        assert_eq!(read(None), (None, None));
    }
}
