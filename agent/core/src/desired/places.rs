//! Target namespaces: which there are, and which copies a rule's intents become in them.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{Allowance, Grant, KINDS, NamespaceChoice, RuleUid, SourceRef, Terms};

use super::{Desired, Ordered, Rule};
use crate::copy::IntentKey;
use crate::records::Records;

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

impl Desired {
    /// Whether a namespace exists, terminating or not.
    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    /// Whether a namespace is being deleted.
    pub fn is_terminating(&self, name: &str) -> bool {
        self.namespaces
            .get(name)
            .is_some_and(|namespace| namespace.terminating)
    }

    /// The namespaces that exist.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.keys()
    }

    /// Sets a namespace (`None`: it is deleted), and returns the copies to reconcile.
    pub fn set_namespace(
        &mut self,
        name: &str,
        now: Option<Namespace>,
        records: &Records,
    ) -> BTreeSet<SourceRef> {
        let name: Arc<str> = name.into();
        let same = self.namespaces.get(&name) == now.as_ref();
        let was_there = self.namespaces.contains_key(&name);
        let stays = now.as_ref().is_some_and(|namespace| !namespace.terminating);
        match now {
            Some(namespace) => drop(self.namespaces.insert(name.clone(), namespace)),
            None => drop(self.namespaces.remove(&name)),
        }
        if same {
            return BTreeSet::new();
        }
        // A deleted namespace deletes its copies: orders there are done.
        if was_there && !stays {
            self.drop_orders_in(&name);
        }
        let mut looks = BTreeSet::new();
        for uid in self.broad.clone() {
            self.retarget(&uid, &name, records, &mut looks);
        }
        self.add_copies_in(&name, records, &mut looks);
        looks
    }

    /// Adds or removes one target namespace of a rule, by its choice and its grants.
    fn retarget(
        &mut self,
        uid: &RuleUid,
        name: &Arc<str>,
        records: &Records,
        looks: &mut BTreeSet<SourceRef>,
    ) {
        let Some((terms, _)) = self.rules.get(uid).and_then(|rule| rule.terms.clone()) else {
            return;
        };
        let is_target = terms
            .namespaces
            .as_ref()
            .is_some_and(|choice| self.is_target(choice, name));
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
            .filter(|source| terms.namespaces.is_some() || source.namespace == *name)
        {
            let copy = source.copy_in(name);
            let wants = is_target || terms.namespaces.is_none();
            let wanted = wants && self.is_granted(&terms, &copy) && !self.is_source(&copy, &source);
            let key = IntentKey {
                rule: uid.clone(),
                source,
            };
            let was_wanted = self
                .claims
                .get(&copy)
                .is_some_and(|claims| claims.contains(&key));
            if wanted == was_wanted {
                continue;
            }
            if wanted {
                self.claim(&key, &copy);
            } else {
                self.unclaim(&key, &copy);
                self.order_orphan(&key, &copy, &BTreeSet::new(), records);
            }
            looks.insert(copy);
        }
    }

    /// What the hub's administrator grants for a copy; `None`: it may not be there.
    pub(super) fn allowance(&self, terms: &Terms, copy: &SourceRef) -> Option<Allowance> {
        let labels = self
            .namespaces
            .get(&copy.namespace)
            .map(|namespace| &namespace.labels);
        terms.allowance(
            &copy.resource,
            &copy.namespace,
            labels,
            &self.home.namespace,
        )
    }

    pub(super) fn is_granted(&self, terms: &Terms, copy: &SourceRef) -> bool {
        terms.grants.is_none() || self.allowance(terms, copy).is_some()
    }

    /// Orders away a copy in a namespace that the terms of its rule no longer name, unless the rule is suspended or
    /// unknown to the hub. Unless its namespace is one of those that were `dropped` on purpose, it waits for the hub's word,
    /// and so do the older versions beside it. By terms that are only remembered nothing but that is ordered. It is
    /// not asked whose the copy is: what is just being written there may make it this intent's, and an order for what is
    /// another's is moot at the next look.
    pub(super) fn order_orphan(
        &mut self,
        key: &IntentKey,
        copy: &SourceRef,
        dropped: &BTreeSet<Arc<str>>,
        records: &Records,
    ) {
        let Some(rule) = self.rules.get(&key.rule) else {
            return;
        };
        let Some((terms, _)) = rule.terms.clone() else {
            return;
        };
        // What a dry run would remove waits for the hub's approval once the rule is enforced.
        let namespace_prunes = terms.is_dry_run() || !dropped.contains(&copy.namespace);
        let order = Ordered {
            namespace_prunes,
            ..Ordered::by_message(terms.deletion_policy)
        };
        if terms.suspend || rule.orphaned || (rule.unconfirmed && !order.asks()) {
            return;
        }
        // A removal that is ordered already continues, with the older versions beside it.
        let goes = |known: &Ordered| !known.asks() && known.policy == order.policy;
        if self
            .order_of(key, copy)
            .as_ref()
            .is_none_or(|known| !goes(known))
        {
            self.order(key, copy, order);
            self.order_versions_beside(key, copy, order, records);
        }
    }

    fn drop_orders_in(&mut self, name: &str) {
        for copy in copies_in(&self.orders, name).cloned().collect::<Vec<_>>() {
            self.drop_orders(&copy);
        }
    }

    fn add_copies_in(&self, name: &str, records: &Records, looks: &mut BTreeSet<SourceRef>) {
        looks.extend(copies_in(&self.claims, name).cloned());
        looks.extend(copies_in(&self.orders, name).cloned());
        for kind in KINDS {
            looks.extend(records.names(kind.resource, Some(name)).cloned());
        }
    }

    /// The copies that are wanted or ordered to go in a namespace.
    pub fn copies_in(&self, name: &str) -> Vec<SourceRef> {
        copies_in(&self.claims, name)
            .chain(copies_in(&self.orders, name))
            .cloned()
            .collect()
    }

    /// Whether a choice takes a namespace: a literal one in any case, others while they exist and stay.
    fn is_target(&self, choice: &NamespaceChoice, name: &str) -> bool {
        choice.wanted_literals().any(|literal| literal == name)
            || self.namespaces.get(name).is_some_and(|namespace| {
                !namespace.terminating
                    && choice.includes(name, &namespace.labels, &self.home.namespace)
            })
    }

    /// All targets of a choice.
    pub(super) fn targets(&self, choice: &NamespaceChoice) -> BTreeSet<Arc<str>> {
        let existing = self
            .namespaces
            .keys()
            .filter(|name| self.is_target(choice, name))
            .cloned();
        existing
            .chain(choice.wanted_literals().map(Arc::from))
            .collect()
    }

    /// The copies that a source of a rule becomes: where they are wanted and granted.
    pub(super) fn expand(&self, rule: &Rule, source: &SourceRef) -> Vec<SourceRef> {
        let Some((terms, _)) = &rule.terms else {
            return vec![];
        };
        if rule.intents.get(source).is_some_and(|intent| intent.found) {
            return vec![];
        }
        let copies: Vec<_> = match &terms.namespaces {
            None => vec![source.copy_in(&source.namespace)],
            Some(_) => rule
                .targets
                .iter()
                .map(|namespace| source.copy_in(namespace))
                .collect(),
        };
        copies
            .into_iter()
            .filter(|copy| self.is_granted(terms, copy) && !self.is_source(copy, source))
            .collect()
    }

    /// Whether the object is the source of any rule, as far as this cluster knows: only the hub's
    /// own cluster has sources.
    pub(super) fn is_any_source(&self, object: &SourceRef) -> bool {
        let is_hub = self.hub_cluster_uid.as_deref() == Some(self.home.cluster_uid.as_str());
        // A renamed source sorts right behind the plain one.
        let first = |rule: &Rule| {
            rule.intents
                .range(object.plain()..)
                .next()
                .map(|(source, _)| source.plain())
        };
        is_hub
            && self
                .rules
                .values()
                .any(|rule| first(rule).as_ref() == Some(object))
    }

    /// In the hub's own cluster a source is never its own copy. One that is renamed has another name there.
    fn is_source(&self, copy: &SourceRef, source: &SourceRef) -> bool {
        copy == source && self.hub_cluster_uid.as_deref() == Some(self.home.cluster_uid.as_str())
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

fn copies_in<'a, T>(
    map: &'a BTreeMap<SourceRef, T>,
    name: &'a str,
) -> impl Iterator<Item = &'a SourceRef> {
    KINDS.iter().flat_map(move |kind| {
        map.range(SourceRef::new(kind.resource, name, "")..)
            .map(|(copy, _)| copy)
            .take_while(move |copy| *copy.resource == *kind.resource && *copy.namespace == *name)
    })
}
