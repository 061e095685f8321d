//! Orders the removal of copies.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{RuleUid, SourceRef, is_subdomain};

use super::{Desired, Ordered};
use crate::copy::IntentKey;
use crate::records::Records;

impl Desired {
    /// Orders the removal of a copy, unless its namespace is deleted or terminating, or the policy
    /// has no watch for it. While another rule selects the copy and can have it, the order waits
    /// for the takeover.
    pub(super) fn order(&mut self, key: &IntentKey, copy: &SourceRef, order: Ordered) {
        if !self.cluster.has_live_namespace(&copy.namespace)
            || self.cluster.policy.area(copy).is_none()
            || !is_subdomain(&copy.name)
        {
            return;
        }
        if let Some(rule) = self.rules.get_mut(&key.rule) {
            let order = Ordered {
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
            self.order_done(&key.rule, copy);
        }
    }

    fn order_done(&mut self, uid: &RuleUid, copy: &SourceRef) {
        if let Some(rule) = self.rules.get_mut(uid) {
            rule.orders.remove(copy);
        }
        self.drop_if_finished(uid);
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
        let order = Ordered {
            namespace_prunes,
            ..Ordered::by_message(terms.deletion_policy)
        };
        if terms.suspend || rule.orphaned || (rule.unconfirmed && !order.needs_approval()) {
            return;
        }
        // A removal that is ordered already continues, with the older versions beside it.
        let goes = |known: &Ordered| !known.needs_approval() && known.policy == order.policy;
        if self
            .copies
            .order_of(key, copy)
            .as_ref()
            .is_none_or(|known| !goes(known))
        {
            self.order(key, copy, order);
            self.order_versions_beside(key, copy, order, records);
        }
    }
}
