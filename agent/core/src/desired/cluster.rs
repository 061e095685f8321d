//! The member cluster as the desired set sees it: its namespaces, its policy, and what the hub's
//! administrator grants there. A changed namespace changes the targets of rules.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    Allowance, ConflictPolicy, Grant, NamespaceChoice, RuleUid, SourceRef, Terms,
};

use super::{Desired, Rule};
use crate::copy::{CopyError, IntentKey};
use crate::decide::{Takeover, TargetNamespace};
use crate::policy::{Area, Facts, Policy, refused_by_namespace};
use crate::records::Records;

/// The agent's own namespace and cluster.
#[derive(Clone, Debug)]
pub struct AgentLocation {
    /// Runnel's own namespace in the member cluster.
    pub namespace: String,
    /// Uid of the member's `kube-system` namespace.
    pub cluster_uid: String,
}

/// A namespace of the member cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// It is being deleted.
    pub terminating: bool,
    /// It accepts no copies: its owners exclude it by an annotation.
    pub refuses: bool,
}

/// The member cluster: decides where a rule may have copies.
#[derive(Clone)]
pub struct Cluster {
    location: AgentLocation,
    pub(super) policy: Arc<Policy>,
    pub(super) hub_cluster_uid: Option<String>,
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

impl Cluster {
    /// A cluster without namespaces.
    pub(super) fn new(home: AgentLocation, policy: Arc<Policy>) -> Self {
        Self {
            location: home,
            policy,
            hub_cluster_uid: None,
            namespaces: BTreeMap::new(),
        }
    }

    /// The uid of the hub's cluster, if it is known.
    pub fn hub_uid(&self) -> Option<&str> {
        self.hub_cluster_uid.as_deref()
    }

    /// Whether this is the hub's own cluster. Only there are sources.
    pub(super) fn is_hub(&self) -> bool {
        self.hub_cluster_uid.as_deref() == Some(self.location.cluster_uid.as_str())
    }

    /// Whether a namespace exists, terminating or not. The place of cluster-scoped copies, which has an empty name, always
    /// exists.
    pub fn has_namespace(&self, name: &str) -> bool {
        name.is_empty() || self.namespaces.contains_key(name)
    }

    /// The namespaces that exist.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.keys()
    }

    /// Whether a namespace is being deleted.
    pub fn is_terminating(&self, name: &str) -> bool {
        self.namespaces
            .get(name)
            .is_some_and(|namespace| namespace.terminating)
    }

    /// Whether a namespace exists and is not being deleted.
    pub fn has_live_namespace(&self, name: &str) -> bool {
        self.has_namespace(name) && !self.is_terminating(name)
    }

    /// Stores a namespace (`None`: it is deleted), and returns the former one.
    pub(super) fn put_namespace(
        &mut self,
        name: &Arc<str>,
        namespace: Option<Namespace>,
    ) -> Option<Namespace> {
        match namespace {
            Some(namespace) => self.namespaces.insert(name.clone(), namespace),
            None => self.namespaces.remove(name),
        }
    }

    /// Whether a choice takes a namespace: a literal one in any case, others while they exist and
    /// are not being deleted.
    pub(super) fn is_target(&self, choice: &NamespaceChoice, name: &str) -> bool {
        choice.wanted_literals().any(|literal| literal == name)
            || self.namespaces.get(name).is_some_and(|namespace| {
                !namespace.terminating
                    && choice.includes(name, &namespace.labels, &self.location.namespace)
            })
    }

    /// All target namespaces of terms; none for terms that leave the choice to the sources.
    pub(super) fn targets(&self, terms: &Terms) -> BTreeSet<Arc<str>> {
        let Some(choice) = &terms.namespaces else {
            return BTreeSet::new();
        };
        let existing = self
            .namespaces
            .keys()
            .filter(|name| self.is_target(choice, name))
            .cloned();
        existing
            .chain(choice.wanted_literals().map(Arc::from))
            .collect()
    }

    /// The copies that a source of a rule becomes: in each target namespace that is granted. A cluster-scoped source has one
    /// copy, whatever namespaces the terms choose.
    pub(super) fn copies_of(&self, rule: &Rule, source: &SourceRef) -> Vec<SourceRef> {
        let Some((terms, _)) = &rule.terms else {
            return vec![];
        };
        if rule.intents.get(source).is_some_and(|intent| intent.found) {
            return vec![];
        }
        let copies: Vec<_> = match &terms.namespaces {
            Some(_) if !source.is_cluster_scoped() => rule
                .targets
                .iter()
                .map(|namespace| source.copy_in(namespace))
                .collect(),
            _ => vec![source.copy_in(&source.namespace)],
        };
        copies
            .into_iter()
            .filter(|copy| self.is_granted(terms, copy) && !self.is_source_of(copy, source))
            .collect()
    }

    /// Returns those copies that the watches of some areas show.
    pub(super) fn watched_by<'a>(
        &self,
        areas: &BTreeSet<Area>,
        copies: impl Iterator<Item = &'a SourceRef>,
    ) -> Vec<SourceRef> {
        let is_watched = |copy: &&SourceRef| {
            let area = self.policy.area(copy);
            area.is_some_and(|area| areas.contains(&area))
        };
        copies.filter(is_watched).cloned().collect()
    }

    /// Whether a copy would be its own source, in the hub's cluster. A renamed copy has another
    /// name there.
    pub(super) fn is_source_of(&self, copy: &SourceRef, source: &SourceRef) -> bool {
        copy == source && self.is_hub()
    }

    /// Returns the grant for a copy; `None`: it is not allowed.
    pub(super) fn allowance(&self, terms: &Terms, copy: &SourceRef) -> Option<Allowance> {
        let labels = self
            .namespaces
            .get(&copy.namespace)
            .map(|namespace| &namespace.labels);
        terms.allowance(
            &copy.resource,
            &copy.namespace,
            labels,
            &self.location.namespace,
        )
    }

    /// Whether the hub's administrator grants that a copy is there.
    pub(super) fn is_granted(&self, terms: &Terms, copy: &SourceRef) -> bool {
        let is_unlimited = terms.grants.is_none() && !copy.is_cluster_scoped();
        is_unlimited || self.allowance(terms, copy).is_some()
    }

    /// How a rule may take over an object that Runnel did not create: its conflict policy, limited
    /// by its grants and by the member's policy.
    pub(super) fn takeover(&self, terms: &Terms, copy: &SourceRef) -> Takeover {
        let allowance = || self.allowance(terms, copy);
        match terms.conflict_policy {
            ConflictPolicy::Fail => Takeover::Never,
            ConflictPolicy::AdoptIfEqual if !allowance().is_some_and(|granted| granted.adopt) => {
                Takeover::Never
            }
            ConflictPolicy::AdoptIfEqual => match self.policy.denies_adopting() {
                Some(denied) => Takeover::Denied(denied),
                None => Takeover::IfEqual,
            },
            // Without a grant, which the hub reports, it is as Fail.
            ConflictPolicy::Overwrite if !allowance().is_some_and(|granted| granted.overwrite) => {
                Takeover::Never
            }
            ConflictPolicy::Overwrite => match self.policy.denies_overwriting() {
                Some(denied) => Takeover::Denied(denied),
                None => Takeover::Always,
            },
        }
    }

    /// Why this cluster does not let a copy with these facts be written: by its policy, or because
    /// the namespace refuses copies.
    pub(super) fn denies(
        &self,
        rule: &Rule,
        facts: Option<&Facts>,
        copy: &SourceRef,
    ) -> Option<CopyError> {
        self.denies_place(copy)
            .or_else(|| self.policy.denies_kind(copy))
            .or_else(|| self.policy.denies_content(facts?))
            .or_else(|| self.denies_creation(copy, &self.target_namespace(rule, copy)))
    }

    /// Why no copy may be where this one should be: its namespace, or the namespace that it is itself, takes none.
    pub fn denies_place(&self, copy: &SourceRef) -> Option<CopyError> {
        let home = &self.location.namespace;
        let by_namespace = || {
            let own = copy.as_namespace().map(|name| &**name);
            let name = own.or(copy.optional_namespace())?;
            let namespace = self.namespaces.get(name)?;
            namespace.refuses.then(|| refused_by_namespace(name))
        };
        self.policy.denies_place(copy, home).or_else(by_namespace)
    }

    /// Returns why a missing namespace may not be created for a copy.
    fn denies_creation(&self, copy: &SourceRef, target: &TargetNamespace) -> Option<CopyError> {
        match target {
            TargetNamespace::ToCreate(_) => self.policy.denies_creation(&copy.namespace),
            TargetNamespace::Ready | TargetNamespace::Missing | TargetNamespace::Terminating => {
                None
            }
        }
    }

    /// The state of a copy's namespace.
    pub(super) fn target_namespace(&self, rule: &Rule, copy: &SourceRef) -> TargetNamespace {
        if copy.is_cluster_scoped() {
            return TargetNamespace::Ready;
        }
        match self.namespaces.get(&copy.namespace) {
            Some(namespace) if namespace.terminating => TargetNamespace::Terminating,
            Some(_) => TargetNamespace::Ready,
            None if self.may_create_namespace(rule, copy) => TargetNamespace::ToCreate(None),
            None => TargetNamespace::Missing,
        }
    }

    /// Whether the rule has a missing namespace created, and is granted that.
    fn may_create_namespace(&self, rule: &Rule, copy: &SourceRef) -> bool {
        let Some((terms, _)) = &rule.terms else {
            return false;
        };
        terms.create_namespaces
            && self
                .allowance(terms, copy)
                .is_some_and(|allowance| allowance.create_namespaces)
    }
}

impl Desired {
    /// Sets a namespace (`None`: it is deleted), and returns the copies to reconcile.
    pub fn set_namespace(
        &mut self,
        name: &str,
        now: Option<Namespace>,
        records: &Records,
    ) -> BTreeSet<SourceRef> {
        let name: Arc<str> = name.into();
        let stays = now.as_ref().is_some_and(|namespace| !namespace.terminating);
        let before = self.cluster.put_namespace(&name, now.clone());
        if before == now {
            return BTreeSet::new();
        }
        // A deleted namespace deletes its copies: orders there are done.
        if before.is_some() && !stays {
            for copy in self.copies.ordered_in(&name).cloned().collect::<Vec<_>>() {
                self.drop_orders(&copy);
            }
        }
        let mut to_reconcile = BTreeSet::new();
        for uid in self.rules.broad().cloned().collect::<Vec<_>>() {
            self.retarget(&uid, &name, records, &mut to_reconcile);
        }
        to_reconcile.extend(self.copies.in_namespace(&name).cloned());
        to_reconcile.extend(records.in_namespace(&name).cloned());
        to_reconcile
    }

    /// Adds or removes one target namespace of a rule, by its choice and its grants.
    fn retarget(
        &mut self,
        uid: &RuleUid,
        name: &Arc<str>,
        records: &Records,
        to_reconcile: &mut BTreeSet<SourceRef>,
    ) {
        let Some((terms, _)) = self.rules.get(uid).and_then(|rule| rule.terms.clone()) else {
            return;
        };
        let is_target = terms
            .namespaces
            .as_ref()
            .is_some_and(|choice| self.cluster.is_target(choice, name));
        let Some(rule) = self.rules.get_mut(uid) else {
            return;
        };
        let changed = if is_target {
            rule.targets.insert(name.clone())
        } else {
            rule.targets.remove(name)
        };
        if !changed && terms.grants.is_none() {
            return;
        }
        let known = rule
            .intents
            .iter()
            .filter(|(_, intent)| !intent.found)
            .map(|(source, _)| source);
        let sources: Vec<_> = known.cloned().collect();
        for source in sources
            .into_iter()
            .filter(|source| !source.is_cluster_scoped())
            .filter(|source| terms.namespaces.is_some() || source.namespace == *name)
        {
            let copy = source.copy_in(name);
            let wants = is_target || terms.namespaces.is_none();
            let wanted = wants
                && self.cluster.is_granted(&terms, &copy)
                && !self.cluster.is_source_of(&copy, &source);
            let key = IntentKey {
                rule: uid.clone(),
                source,
            };
            let was_wanted = self.copies.is_claimed_by(&key, &copy);
            if wanted == was_wanted {
                continue;
            }
            if wanted {
                self.claim(&key, &copy);
            } else {
                self.unclaim(&key, &copy);
                self.order_orphan(&key, &copy, &BTreeSet::new(), records);
            }
            to_reconcile.insert(copy);
        }
    }
}

/// Whether it depends on which namespaces there are where a rule has copies.
pub(super) fn is_broad(terms: &Terms) -> bool {
    let chosen = |choice: &NamespaceChoice| {
        choice.selector.is_some() || choice.names.iter().any(|n| !n.is_literal())
    };
    let granted = terms.grants.iter().flatten().any(Grant::has_selector);
    granted || terms.namespaces.as_ref().is_some_and(chosen)
}
