//! The grants of a rule by cluster. A namespaced rule sends nothing to a cluster without a grant;
//! cluster-scoped rules need none.
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use runnel_proto::model::{ClusterName, Grant, NamespaceChoice, Terms};

use super::{ClusterChoice, NamedTerms, Rule, RulePlan};
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
    pub grant: Arc<Grant>,
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
            grant: Arc::new(Grant {
                resources,
                namespaces: spec.namespaces.choice(),
                overwrite: spec.policies.overwrite,
                create_namespaces: spec.policies.create_namespaces,
                adopt: spec.policies.adopt,
                max_copies: spec.max_copies.map(quota),
                max_bytes: spec.max_bytes.map(quota),
            }),
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

/// The grants of a rule in one cluster, of every kind.
#[derive(Clone, Debug, PartialEq)]
enum ClusterGrants {
    /// Everything.
    All,
    /// These.
    Only(Arc<[Arc<Grant>]>),
}

/// The kinds of a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentKinds {
    /// Any kind may be among them.
    Any,
    /// These.
    Only(Arc<BTreeSet<Arc<str>>>),
}

impl ContentKinds {
    /// The kinds that a rule may send. The manifests of a bundle may have any kind.
    pub fn of(rule: &Rule) -> Self {
        if rule.selects_bundles() {
            Self::Any
        } else {
            Self::Only(Arc::new(rule.resources().map(Arc::from).collect()))
        }
    }

    fn has(&self, kind: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(kinds) => kinds.contains(kind),
        }
    }
}

/// Terms as the grants of this moment allow them in one cluster, for content of some kinds. Only a [`TermsResolver`] makes
/// them. Terms without grants are unrestricted for those kinds, and allow nothing of any other kind.
#[derive(Clone, Debug)]
pub struct GrantedTerms {
    terms: NamedTerms,
    kinds: ContentKinds,
    grants: ClusterGrants,
}

impl GrantedTerms {
    /// Applies the grants of a cluster to terms, for content of these kinds; `None`: no grant covers any of them.
    fn of(terms: &NamedTerms, kinds: &ContentKinds, grants: &ClusterGrants) -> Option<Self> {
        let with = |terms, kinds: &ContentKinds| {
            let (kinds, grants) = (kinds.clone(), grants.clone());
            Some(Self {
                terms,
                kinds,
                grants,
            })
        };
        let ClusterGrants::Only(granted) = grants else {
            return with(terms.clone(), &ContentKinds::Any);
        };
        let mut counting: Vec<&Grant> = granted.iter().map(|grant| &**grant).collect();
        if let ContentKinds::Only(kinds) = kinds {
            counting.retain(|grant| kinds.iter().any(|kind| grant.is_of_kind(kind)));
        }
        counting.sort();
        counting.dedup();
        counting.truncate(limits::GRANTS);
        if counting.is_empty() {
            return None;
        }
        let whole = || counting.iter().filter(|grant| grant.is_unlimited());
        let is_whole = |kind: &Arc<str>| whole().any(|grant| grant.is_of_kind(kind));
        if let ContentKinds::Only(all) = kinds
            && all.iter().all(is_whole)
        {
            return with(terms.clone(), kinds);
        }
        let counting = counting.into_iter().cloned().collect();
        let restricted = NamedTerms::new(Terms {
            grants: Some(counting),
            ..Terms::clone(terms)
        });
        with(restricted, &ContentKinds::Any)
    }

    /// Terms that allow no content.
    pub fn nothing(terms: NamedTerms) -> Self {
        Self {
            terms,
            kinds: ContentKinds::Only(Arc::default()),
            grants: ClusterGrants::Only([].into()),
        }
    }

    /// Terms that allow all content.
    #[cfg(test)]
    pub(crate) fn unrestricted(terms: NamedTerms) -> Self {
        Self {
            terms,
            kinds: ContentKinds::Any,
            grants: ClusterGrants::All,
        }
    }

    /// Whether any copy of a kind is granted at all.
    pub fn grants_kind(&self, kind: &str) -> bool {
        self.kinds.has(kind) && self.terms.grants_kind(kind)
    }

    /// Makes a plan sendable under these terms.
    pub fn authorize(&self, plan: &Arc<RulePlan>) -> Authorized {
        Authorized {
            plan: plan.clone(),
            terms: self.clone(),
        }
    }

    /// Whether both follow from the same grants, those of kinds without effect included.
    fn has_same_grants(&self, other: &Self) -> bool {
        self.grants == other.grants
    }
}

impl PartialEq for GrantedTerms {
    fn eq(&self, other: &Self) -> bool {
        (&self.terms, &self.kinds) == (&other.terms, &other.kinds)
    }
}

impl Eq for GrantedTerms {}

impl Deref for GrantedTerms {
    type Target = NamedTerms;

    fn deref(&self) -> &NamedTerms {
        &self.terms
    }
}

/// A plan and the terms under which the grants of this moment allow it in one cluster. Sessions send nothing else. Only
/// [`GrantedTerms::authorize`] makes it, so no content, be it current, former or stored, is sent under terms that were resolved
/// for another one.
#[derive(Clone)]
pub struct Authorized {
    plan: Arc<RulePlan>,
    terms: GrantedTerms,
}

impl Authorized {
    /// The plan.
    pub fn plan(&self) -> &Arc<RulePlan> {
        &self.plan
    }

    /// The terms.
    pub fn terms(&self) -> &GrantedTerms {
        &self.terms
    }
}

/// The terms of a rule in a cluster that it selects.
#[derive(Clone, PartialEq)]
pub enum EffectiveTerms {
    /// The rule is sent with these terms.
    Terms(GrantedTerms),
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
        let kind = match grant {
            Some(_) => CauseKind::Grants,
            None => CauseKind::GrantDeleted,
        };
        set_one(self.all.as_mut()?, name, grant).then(|| GrantChange {
            cause: kind.of(name),
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
        let kind = match labels {
            Some(_) => CauseKind::HubNamespaces,
            None => CauseKind::NamespaceDeleted,
        };
        set_one(self.namespaces.as_mut()?, name, labels).then(|| GrantChange {
            cause: kind.of(name),
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
    pub clusters: BTreeMap<ClusterName, GrantedTerms>,
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
            Some(EffectiveTerms::Unknown) => {
                self.unknown = true;
                let nothing = GrantedTerms::nothing(rule.terms.clone());
                (Some(nothing), false, cordoned)
            }
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

    /// The same clusters with other terms, for content of other kinds: each as its grants of this moment allow it. A cluster
    /// whose grants cover none of the kinds is among those without a grant.
    #[must_use]
    pub fn with_content(&self, terms: &NamedTerms, kinds: &ContentKinds) -> Self {
        let mut other = Self {
            clusters: BTreeMap::new(),
            ..self.clone()
        };
        if self.unknown {
            let nothing = GrantedTerms::nothing(terms.clone());
            let all = self.clusters.keys();
            other.clusters = all.map(|name| (name.clone(), nothing.clone())).collect();
            return other;
        }
        let mut resolved: Vec<(&ClusterGrants, Option<GrantedTerms>)> = Vec::new();
        for (cluster, granted) in &self.clusters {
            let is_same = |(grants, _): &&(&ClusterGrants, _)| match (grants, &granted.grants) {
                (ClusterGrants::All, ClusterGrants::All) => true,
                (ClusterGrants::Only(one), ClusterGrants::Only(two)) => Arc::ptr_eq(one, two),
                _ => false,
            };
            let known = resolved
                .iter()
                .find(is_same)
                .map(|(_, known)| known.clone());
            let granted = known.unwrap_or_else(|| {
                let fresh = GrantedTerms::of(terms, kinds, &granted.grants);
                resolved.push((&granted.grants, fresh.clone()));
                fresh
            });
            match granted {
                Some(granted) => drop(other.clusters.insert(cluster.clone(), granted)),
                None => drop(other.not_granted.insert(cluster.clone())),
            }
        }
        other
    }

    /// Whether both follow from the same grants, those of kinds without effect included.
    pub fn has_same_grants(&self, other: &Self) -> bool {
        let both = self.clusters.values().zip(other.clusters.values());
        self.clusters.len() == other.clusters.len()
            && both.into_iter().all(|(one, two)| one.has_same_grants(two))
    }
}

/// Resolves the terms of one rule. Clusters with the same grants share their terms.
pub struct TermsResolver<'a> {
    rule: &'a Rule,
    kinds: ContentKinds,
    granted: RuleGrants<'a>,
    resolved: BTreeMap<Vec<usize>, EffectiveTerms>,
}

impl<'a> TermsResolver<'a> {
    /// For a rule to which this is granted.
    pub fn new(rule: &'a Rule, granted: RuleGrants<'a>) -> Self {
        Self {
            rule,
            kinds: ContentKinds::of(rule),
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
        let resolve = |grants: &ClusterGrants| {
            GrantedTerms::of(&self.rule.terms, &self.kinds, grants)
                .map_or(EffectiveTerms::NotGranted, EffectiveTerms::Terms)
        };
        let grants = match &self.granted {
            RuleGrants::All => return resolve(&ClusterGrants::All),
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
        let in_cluster = applicable
            .iter()
            .map(|number| grants[*number].grant.clone());
        let effective_terms = resolve(&ClusterGrants::Only(in_cluster.collect()));
        self.resolved.insert(applicable, effective_terms.clone());
        effective_terms
    }
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
