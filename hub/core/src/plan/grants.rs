//! The grants of a rule by cluster. A namespaced rule sends nothing to a cluster without a grant;
//! cluster-scoped rules need none.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, Grant, NamespaceChoice, Terms};

use super::{ClusterChoice, NamedTerms, Rule};
use runnel_api::limits;

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
    pub fn asks_for_labels(&self) -> bool {
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
    pub all: Option<BTreeMap<String, RuleGrant>>,
    /// The labels of the hub's namespaces; absent while they cannot be read.
    pub namespaces: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

/// The grants of one rule.
pub enum Granted<'a> {
    /// Everything: it is a rule of the whole cluster.
    All,
    /// These grants apply.
    These(Vec<&'a RuleGrant>),
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
    /// The grants of a rule, in any cluster.
    pub fn of(&self, rule: &Rule) -> Granted<'_> {
        if rule.terms.rule.is_cluster_scoped() {
            return Granted::All;
        }
        self.of_namespace(&rule.terms.rule.namespace, rule.runnel_namespace())
    }

    /// The grants of the DistributionRules of a namespace, in any cluster.
    pub fn of_namespace(&self, namespace: &str, runnel_namespace: &str) -> Granted<'_> {
        let Some(grants) = &self.all else {
            return Granted::Unknown;
        };
        let labels = self.namespaces.as_ref().map(|known| known.get(namespace));
        // A namespace with unknown labels may match.
        let unknown = labels.is_none_or(|labels| labels.is_none());
        let labels = labels.flatten();
        let is_for = |grant: &&RuleGrant| grant.is_for(namespace, labels, runnel_namespace);
        if unknown
            && grants
                .values()
                .any(|grant| grant.asks_for_labels() && !is_for(&grant))
        {
            return Granted::Unknown;
        }
        Granted::These(grants.values().filter(is_for).collect())
    }
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
    granted: Granted<'a>,
    resolved: BTreeMap<Vec<usize>, EffectiveTerms>,
}

impl<'a> TermsResolver<'a> {
    /// For a rule to which this is granted.
    pub fn new(rule: &'a Rule, granted: Granted<'a>) -> Self {
        Self {
            rule,
            granted,
            resolved: BTreeMap::new(),
        }
    }

    /// Whether the grants are unknown.
    pub fn are_unknown(&self) -> bool {
        matches!(self.granted, Granted::Unknown)
    }

    /// The rule's lot in a cluster that it chooses.
    pub fn of(
        &mut self,
        cluster: &ClusterName,
        labels: &BTreeMap<String, String>,
    ) -> EffectiveTerms {
        let grants = match &self.granted {
            Granted::All => return EffectiveTerms::Terms(self.rule.terms.clone()),
            Granted::Unknown => return EffectiveTerms::Unknown,
            Granted::These(grants) => grants,
        };
        let speaks = |(_, grant): &(usize, &&RuleGrant)| grant.clusters.chooses(cluster, labels);
        let speaking: Vec<_> = grants
            .iter()
            .enumerate()
            .filter(speaks)
            .map(|(number, _)| number)
            .collect();
        if let Some(effective_terms) = self.resolved.get(&speaking) {
            return effective_terms.clone();
        }
        let effective_terms = effective_terms(
            self.rule,
            speaking.iter().map(|number| &grants[*number].grant),
        );
        self.resolved.insert(speaking, effective_terms.clone());
        effective_terms
    }
}

/// Applies the grants to a rule.
fn effective_terms<'a>(rule: &Rule, grants: impl Iterator<Item = &'a Grant>) -> EffectiveTerms {
    let sent: Vec<_> = rule.resources().collect();
    let mut counting: Vec<_> = grants
        .filter(|grant| sent.iter().any(|resource| grant.is_of_kind(resource)))
        .collect();
    counting.sort();
    counting.dedup();
    counting.truncate(limits::GRANTS);
    if counting.is_empty() {
        return EffectiveTerms::NotGranted;
    }
    let whole = || counting.iter().filter(|grant| grant.is_whole());
    if sent
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
