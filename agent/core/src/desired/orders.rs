//! Orders: which copies are to go, and how.
use runnel_proto::model::{DeletionPolicy, RuleUid, SourceRef, is_subdomain};

use super::Desired;
use crate::copy::IntentKey;

/// How a copy is to go, and who decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ordered {
    pub policy: DeletionPolicy,
    /// This agent computed it: the copy's namespace is no longer a target. So it is counted, where the hub brakes what it
    /// orders itself.
    pub namespace_prunes: bool,
    /// The [generation](Desired::generation) that must be stored first.
    pub generation: u64,
}

impl Ordered {
    /// By a message of the hub, or by a deliberate act.
    pub fn by_message(policy: DeletionPolicy) -> Self {
        Self {
            policy,
            namespace_prunes: false,
            generation: 0,
        }
    }

    /// Whether the hub must approve the removal first. A copy that is only left without marks is
    /// not lost.
    pub fn asks(self) -> bool {
        self.namespace_prunes && self.policy == DeletionPolicy::Delete
    }
}

impl Desired {
    /// Orders the removal of a copy, unless its namespace is deleted or terminating, or the policy
    /// has no watch for it. While another rule wants the copy and can have it, the order waits
    /// until it is taken over.
    pub(super) fn order(&mut self, key: &IntentKey, copy: &SourceRef, order: Ordered) {
        if !self.namespace_stays(copy)
            || self.policy.area(copy).is_none()
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
            if self
                .orders
                .entry(copy.clone())
                .or_default()
                .insert(key.clone(), order)
                .is_none()
            {
                rule.removals.ordered(&key.source);
            }
        }
    }

    /// Whether the namespace of a copy is there, and is not being deleted.
    pub(super) fn namespace_stays(&self, copy: &SourceRef) -> bool {
        self.namespaces
            .get(&copy.namespace)
            .is_some_and(|namespace| !namespace.terminating)
    }

    /// Whether a copy is to go only because its namespace is no longer a target, so that the hub is asked first.
    pub fn asks(&self, key: &IntentKey, copy: &SourceRef) -> bool {
        self.order_of(key, copy).is_some_and(Ordered::asks)
    }

    pub(super) fn order_of(&self, key: &IntentKey, copy: &SourceRef) -> Option<Ordered> {
        self.orders.get(copy)?.get(key).copied()
    }

    /// Notes that an intent's order for a copy needs nothing more.
    pub fn resolve(&mut self, key: &IntentKey, copy: &SourceRef) {
        let Some(orders) = self.orders.get_mut(copy) else {
            return;
        };
        let was_ordered = orders.remove(key).is_some();
        let others = orders.keys().any(|other| other.rule == key.rule);
        if orders.is_empty() {
            self.orders.remove(copy);
        }
        let rule = self.rules.get_mut(&key.rule).filter(|_| was_ordered);
        if rule.is_some_and(|rule| rule.removals.resolved(&key.source)) {
            self.note_change();
        }
        if !others {
            self.order_done(&key.rule, copy);
        }
    }

    fn order_done(&mut self, uid: &RuleUid, copy: &SourceRef) {
        if let Some(rule) = self.rules.get_mut(uid) {
            rule.orders.remove(copy);
        }
        self.drop_if_gone(uid);
    }
}
