//! The copies of the desired set: which intents claim each, and which have ordered it to be removed.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{DeletionPolicy, KINDS, RuleUid, SourceRef, is_subdomain};

use super::Desired;
use crate::copy::IntentKey;
use crate::live::Live;
use crate::records::Records;
use crate::small_set::SmallSet;

/// The kind of a removal, and who decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderSource {
    pub policy: DeletionPolicy,
    /// The agent computed the removal: the copy's namespace is no longer a target. The hub counts
    /// its own removals, so the agent counts these.
    pub namespace_prunes: bool,
    /// The [generation](super::Desired::generation) that must be stored first.
    pub generation: u64,
}

impl OrderSource {
    /// By a message of the hub, or by a deliberate act.
    pub fn by_message(policy: DeletionPolicy) -> Self {
        Self {
            policy,
            namespace_prunes: false,
            generation: 0,
        }
    }

    /// Whether the hub must approve the removal first. A copy that only loses its marks is not
    /// lost.
    pub fn needs_approval(self) -> bool {
        self.namespace_prunes && self.policy == DeletionPolicy::Delete
    }
}

/// The claims on copies and the orders to remove them.
#[derive(Clone, Default)]
pub struct Copies {
    claims: BTreeMap<SourceRef, SmallSet<IntentKey>>,
    orders: BTreeMap<SourceRef, BTreeMap<IntentKey, OrderSource>>,
}

impl Copies {
    /// Every copy that an intent claims or has ordered to be removed.
    pub fn all(&self) -> impl Iterator<Item = &SourceRef> {
        self.claims.keys().chain(self.orders.keys())
    }

    /// The copies of [`Self::all`] in a namespace.
    pub fn in_namespace(&self, name: &str) -> impl Iterator<Item = &SourceRef> {
        in_namespace(&self.claims, name).chain(self.ordered_in(name))
    }

    /// The copies in a namespace that are ordered to be removed.
    pub(super) fn ordered_in(&self, name: &str) -> impl Iterator<Item = &SourceRef> {
        in_namespace(&self.orders, name)
    }

    /// The copies that are ordered to be removed.
    pub(super) fn ordered(&self) -> impl Iterator<Item = &SourceRef> {
        self.orders.keys()
    }

    /// Whether any intent claims a copy or has ordered its removal.
    pub fn contains(&self, copy: &SourceRef) -> bool {
        self.is_claimed(copy) || self.orders.contains_key(copy)
    }

    /// Whether any intent claims a copy.
    pub(super) fn is_claimed(&self, copy: &SourceRef) -> bool {
        self.claims.contains_key(copy)
    }

    /// Whether an intent claims a copy.
    pub(super) fn is_claimed_by(&self, key: &IntentKey, copy: &SourceRef) -> bool {
        self.claims
            .get(copy)
            .is_some_and(|claims| claims.contains(key))
    }

    /// The intents that claim a copy.
    pub(super) fn claims(&self, copy: &SourceRef) -> impl Iterator<Item = &IntentKey> {
        self.claims.get(copy).into_iter().flatten()
    }

    /// The source of a rule that claims a copy, whether it wins or not.
    pub fn source_of(&self, uid: &RuleUid, copy: &SourceRef) -> Option<SourceRef> {
        self.claims(copy)
            .find(|key| key.rule == *uid)
            .map(|key| key.source.clone())
    }

    /// All claims, for tests.
    #[cfg(test)]
    pub(super) fn all_claims(&self) -> impl Iterator<Item = (IntentKey, SourceRef)> {
        self.claims
            .iter()
            .flat_map(|(copy, keys)| keys.iter().map(|key| (key.clone(), copy.clone())))
    }

    pub(super) fn claim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.claims
            .entry(copy.clone())
            .or_default()
            .insert(key.clone());
    }

    pub(super) fn unclaim(&mut self, key: &IntentKey, copy: &SourceRef) {
        if let Some(claims) = self.claims.get_mut(copy) {
            claims.remove(key);
            if claims.is_empty() {
                self.claims.remove(copy);
            }
        }
    }

    /// The orders for a copy, by intent.
    pub(super) fn orders(
        &self,
        copy: &SourceRef,
    ) -> impl Iterator<Item = (&IntentKey, OrderSource)> {
        self.orders
            .get(copy)
            .into_iter()
            .flatten()
            .map(|(key, order)| (key, *order))
    }

    /// The orders for a copy, to change them.
    pub(super) fn orders_mut(
        &mut self,
        copy: &SourceRef,
    ) -> impl Iterator<Item = (&IntentKey, &mut OrderSource)> {
        self.orders.get_mut(copy).into_iter().flatten()
    }

    /// The order of an intent for a copy.
    pub(super) fn order_of(&self, key: &IntentKey, copy: &SourceRef) -> Option<OrderSource> {
        self.orders.get(copy)?.get(key).copied()
    }

    /// Whether the hub has ordered the removal of one of these copies of an intent.
    pub(super) fn is_ordered(&self, key: &IntentKey, copies: &[SourceRef]) -> bool {
        copies.iter().any(|copy| {
            self.order_of(key, copy)
                .is_some_and(|order| !order.namespace_prunes)
        })
    }

    /// The order for a copy that counts: the one of the intent that wrote it, or the first.
    pub(super) fn order_for(
        &self,
        copy: &SourceRef,
        live: Option<&Live>,
    ) -> Option<(&IntentKey, OrderSource)> {
        let orders = self.orders.get(copy)?;
        let written_by = live.and_then(Live::intent);
        let (key, order) = written_by
            .and_then(|key| orders.get_key_value(&key))
            .or_else(|| orders.first_key_value())?;
        Some((key, *order))
    }

    /// Adds an order. Returns whether the intent had none for this copy.
    pub(super) fn order(&mut self, key: &IntentKey, copy: &SourceRef, order: OrderSource) -> bool {
        let orders = self.orders.entry(copy.clone()).or_default();
        orders.insert(key.clone(), order).is_none()
    }

    /// Drops an order. Returns whether there was one.
    pub(super) fn drop_order(&mut self, key: &IntentKey, copy: &SourceRef) -> bool {
        let Some(orders) = self.orders.get_mut(copy) else {
            return false;
        };
        let was_ordered = orders.remove(key).is_some();
        if orders.is_empty() {
            self.orders.remove(copy);
        }
        was_ordered
    }

    /// Whether the hub must approve the removal of a copy, because only its namespace is no longer
    /// a target.
    pub fn needs_approval(&self, key: &IntentKey, copy: &SourceRef) -> bool {
        self.order_of(key, copy)
            .is_some_and(OrderSource::needs_approval)
    }

    /// The generation that must be stored before a copy is removed for an intent.
    pub fn generation_of(&self, key: &IntentKey, copy: &SourceRef) -> u64 {
        self.order_of(key, copy).map_or(0, |order| order.generation)
    }

    /// The orders for a copy that no longer apply, because the live object is not theirs.
    pub fn stale_orders(&self, copy: &SourceRef, live: &Live) -> Vec<IntentKey> {
        self.orders(copy)
            .map(|(key, _)| key)
            .filter(|key| !live.is_removable_for(key))
            .cloned()
            .collect()
    }
}

fn in_namespace<'a, T>(
    map: &'a BTreeMap<SourceRef, T>,
    name: &str,
) -> impl Iterator<Item = &'a SourceRef> + use<'a, T> {
    let name: std::sync::Arc<str> = name.into();
    KINDS.iter().flat_map(move |kind| {
        let name = name.clone();
        map.range(SourceRef::new(kind.resource, &name, "")..)
            .map(|(copy, _)| copy)
            .take_while(move |copy| *copy.resource == *kind.resource && *copy.namespace == *name)
    })
}

impl Desired {
    /// Orders the removal of a copy, unless its namespace is deleted or terminating, or the policy
    /// has no watch for it. While another rule selects the copy and can have it, the order waits
    /// for the takeover.
    pub(super) fn order(&mut self, key: &IntentKey, copy: &SourceRef, order: OrderSource) {
        if !self.cluster.has_live_namespace(&copy.namespace)
            || self.cluster.policy.area(copy).is_none()
            || !is_subdomain(&copy.name)
        {
            return;
        }
        if let Some(rule) = self.rules.get_mut(&key.rule) {
            let order = OrderSource {
                generation: self.generation,
                ..order
            };
            rule.orders.insert(copy.clone());
            if self.copies.order(key, copy, order) {
                rule.removals.ordered(&key.source);
            }
        }
    }

    /// Notes that an intent's order for a copy needs nothing more.
    pub fn resolve(&mut self, key: &IntentKey, copy: &SourceRef) {
        let was_ordered = self.copies.drop_order(key, copy);
        let others = self
            .copies
            .orders(copy)
            .any(|(other, _)| other.rule == key.rule);
        let rule = self.rules.get_mut(&key.rule).filter(|_| was_ordered);
        if rule.is_some_and(|rule| rule.removals.resolved(&key.source)) {
            self.mark_changed();
        }
        if !others {
            if let Some(rule) = self.rules.get_mut(&key.rule) {
                rule.orders.remove(copy);
            }
            self.rules.drop_if_finished(&key.rule);
        }
    }

    /// Orders the removal of a copy in a namespace that the terms of its rule no longer name, unless
    /// the rule is suspended or orphaned.
    ///
    /// The removal, and that of the older versions beside the copy, needs the hub's approval, unless
    /// the namespace was `dropped` deliberately. Unconfirmed terms order only removals that need an
    /// approval. The owner of the live object is not checked here: a write under way may make it this
    /// intent's, and [`super::Copies::stale_orders`] drops orders for objects of others.
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
        let order = OrderSource {
            namespace_prunes,
            ..OrderSource::by_message(terms.deletion_policy)
        };
        if terms.suspend || rule.orphaned || (rule.unconfirmed && !order.needs_approval()) {
            return;
        }
        // A removal that is ordered already continues, with the older versions beside it.
        let goes = |known: &OrderSource| !known.needs_approval() && known.policy == order.policy;
        if self
            .copies
            .order_of(key, copy)
            .as_ref()
            .is_none_or(|known| !goes(known))
        {
            self.order(key, copy, order);
            self.order_other_versions(key, copy, order, records);
        }
    }
}
