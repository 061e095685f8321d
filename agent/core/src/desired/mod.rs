//! The desired set of this cluster: terms and intents per rule, the claims of intents on copies,
//! and the orders to remove copies.
//!
//! A revision stands for a payload; the payloads are in [`crate::cache`]. Reverse indexes limit the
//! cost of an edit to the copies of its source, and the cost of a namespace event to the copies of
//! that namespace.
//!
//! # Files
//! - `apply_delta`: takes in a batch of the hub.
//! - `cluster`: namespaces, policy and grants of the member.
//! - `copies`: which intents claim a copy, and which ordered its removal.
//! - `desired_copy`: `Owners`, the rule that owns a copy and the desired state by that.
//! - `namespaces`: changes of namespaces.
//! - `preview`: applies a preview to a clone.
//! - `restore`: restores the set after a restart.
//! - `rule`: the acked state of one rule, and the digests of its copies.
//! - `rules`: all rules, and those that have ended.
//! - `tombstones`: tombstones that survive a restart.
//! - `versions`: versioned names.
mod apply_delta;
mod cluster;
mod copies;
mod desired_copy;
mod namespaces;
mod preview;
mod restore;
mod rule;
mod rules;
#[cfg(test)]
mod tests;
mod tombstones;
mod versions;

use std::sync::Arc;

use runnel_proto::model::{LiveDigest, RuleUid, SourceRef};

use crate::copy::IntentKey;
use crate::policy::Policy;

pub use apply_delta::BatchResult;
pub use cluster::{AgentLocation, Cluster, Namespace};
pub use copies::Copies;
use copies::OrderSource;
pub use desired_copy::Owners;
pub use rule::{AckedRule, CopyDigest};
use rule::{IntentState, Rule};
pub use rules::{FinishedRule, Rules, StoredRule};
pub use tombstones::Tombstones;

/// The desired set of this cluster.
#[derive(Clone)]
pub struct Desired {
    cluster: Cluster,
    copies: Copies,
    rules: Rules,
    /// The number of changes of the state to store.
    generation: u64,
}

impl Desired {
    /// An empty set, under a policy.
    pub fn new(home: AgentLocation, policy: Arc<Policy>) -> Self {
        Self {
            cluster: Cluster::new(home, policy),
            copies: Copies::default(),
            rules: Rules::default(),
            generation: 0,
        }
    }

    /// The member cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The number of changes. An order is carried out once a generation at least as new is stored.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Marks the tombstones as changed.
    pub fn mark_changed(&mut self) {
        self.generation = self.generation.saturating_add(1);
    }

    /// The rules with any state.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The rules, for changes that concern nothing else.
    pub fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// The sum of the digests of a rule's intents, given the state of its copies; `None` if it is
    /// unknown.
    pub fn intents_digest(
        &mut self,
        uid: &RuleUid,
        shows: impl Fn(&SourceRef) -> CopyDigest,
    ) -> Option<LiveDigest> {
        let cluster = &self.cluster;
        self.rules
            .get_mut(uid)?
            .intents_digest(|rule, source| cluster.copies_of(rule, source), shows)
    }

    /// The rules that own the copies.
    pub fn owners(&self) -> Owners<'_> {
        Owners {
            rules: &self.rules,
            copies: &self.copies,
            cluster: &self.cluster,
        }
    }

    /// The copies that are claimed or ordered to be removed.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Puts another policy in force. Copies that it no longer watches need no orders.
    pub fn set_policy(&mut self, policy: Arc<Policy>) {
        let unwatched: Vec<_> = self
            .copies
            .ordered()
            .filter(|copy| policy.area(copy).is_none())
            .cloned()
            .collect();
        self.cluster.policy = policy;
        for copy in unwatched {
            self.drop_orders(&copy);
        }
    }

    /// Drops every order for a copy.
    fn drop_orders(&mut self, copy: &SourceRef) {
        let keys: Vec<_> = self
            .copies
            .orders(copy)
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.resolve(&key, copy);
        }
    }

    fn claim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.rules.recompute_digest(key);
        self.copies.claim(key, copy);
        self.resolve(key, copy);
        self.restore_versions(key, copy);
    }

    fn unclaim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.rules.recompute_digest(key);
        self.copies.unclaim(key, copy);
    }
}
