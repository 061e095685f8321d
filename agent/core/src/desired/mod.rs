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
//! - `desired_copy`: the desired state of one copy, and the rule that owns it.
//! - `namespaces`: changes of namespaces.
//! - `preview`: applies a preview to a clone.
//! - `restore`: restores the set after a restart.
//! - `rule`: the acked state of one rule, and the digests of its copies.
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
#[cfg(test)]
mod tests;
mod tombstones;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{AckedIntent, Revision, RuleName, RuleUid, SetDigest, SourceRef};

use crate::copy::IntentKey;
use crate::policy::Policy;

pub use apply_delta::Taken;
pub use cluster::{Cluster, Home, Namespace};
pub use copies::Copies;
use copies::Ordered;
pub use restore::StoredRule;
pub use rule::{AckedRule, Shows};
use rule::{IntentState, Rule};
pub use tombstones::Tombstones;

/// The desired set of this cluster.
#[derive(Clone)]
pub struct Desired {
    cluster: Cluster,
    copies: Copies,
    rules: BTreeMap<RuleUid, Rule>,
    /// Rules that choose namespaces, or are granted them, by glob or label: a namespace's event may change their targets.
    broad: BTreeSet<RuleUid>,
    /// Finished rules since the last call.
    gone: Vec<FinishedRule>,
    /// The number of changes of the state to store.
    generation: u64,
}

/// A rule without remaining copies, as far as the agent knows.
#[derive(Clone, Debug)]
pub struct FinishedRule {
    /// The rule.
    pub uid: RuleUid,
    /// The display name.
    pub rule: RuleName,
    /// The namespaces of its copies, if the rule named any.
    pub targets: Option<BTreeSet<Arc<str>>>,
}

impl Desired {
    /// An empty set, under a policy.
    pub fn new(home: Home, policy: Arc<Policy>) -> Self {
        Self {
            cluster: Cluster::new(home, policy),
            copies: Copies::default(),
            rules: BTreeMap::new(),
            broad: BTreeSet::new(),
            gone: vec![],
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

    /// The copies that are claimed or ordered to be removed.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// The rules with any state.
    pub fn rules(&self) -> impl Iterator<Item = &RuleUid> {
        self.rules.keys()
    }

    /// The acked state of a rule.
    pub fn acked(&self, uid: &RuleUid) -> Option<AckedRule> {
        self.rules.get(uid).map(|rule| rule.acked(uid))
    }

    /// The intents of a rule.
    pub fn intents_of<'a>(&'a self, uid: &'a RuleUid) -> impl Iterator<Item = IntentKey> + 'a {
        self.rules
            .get(uid)
            .into_iter()
            .flat_map(|rule| rule.keys(uid))
    }

    /// The (source, revision) pairs of a rule.
    pub fn pairs(&self, uid: &RuleUid) -> Vec<AckedIntent> {
        self.rules.get(uid).map(Rule::pairs).unwrap_or_default()
    }

    /// The number of intents of all rules except orphaned ones, and the sum of their digests.
    pub fn sum(&self) -> (u64, SetDigest) {
        let known = self
            .rules
            .values()
            .filter(|rule| !rule.orphaned && !rule.leaving);
        known.fold((0, SetDigest::default()), |(count, mut digest), rule| {
            digest.merge(rule.digest);
            (count + rule.intents.len() as u64, digest)
        })
    }

    /// The revision of an intent that is in force.
    pub fn in_force(&self, key: &IntentKey) -> Option<&Revision> {
        self.intent_of(key)?.in_force.as_ref()
    }

    /// Whether an intent is acked.
    pub fn has(&self, key: &IntentKey) -> bool {
        self.intent_of(key).is_some()
    }

    fn intent_of(&self, key: &IntentKey) -> Option<&IntentState> {
        self.rules.get(&key.rule)?.intents.get(&key.source)
    }

    /// The copies that an intent claims.
    pub fn copies_of_intent(&self, key: &IntentKey) -> Vec<SourceRef> {
        self.rules
            .get(&key.rule)
            .map(|rule| self.cluster.copies_of(rule, &key.source))
            .unwrap_or_default()
    }

    /// The rules without any remaining state since the last call, except those that may have copies
    /// in a namespace of `unseen`; a rule without named namespaces may have copies in any.
    pub fn take_finished(&mut self, unseen: &BTreeSet<Option<Arc<str>>>) -> Vec<FinishedRule> {
        let hidden = |gone: &FinishedRule| match &gone.targets {
            _ if unseen.contains(&None) => true,
            Some(targets) => targets
                .iter()
                .any(|target| unseen.contains(&Some(target.clone()))),
            None => !unseen.is_empty(),
        };
        let (kept, reported) = std::mem::take(&mut self.gone).into_iter().partition(hidden);
        self.gone = kept;
        reported
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

    fn set_intent(&mut self, key: &IntentKey, intent: Option<IntentState>) {
        if let Some(rule) = self.rules.get_mut(&key.rule) {
            rule.set_intent(&key.source, intent);
        }
    }

    fn claim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.show_again(key);
        self.copies.claim(key, copy);
        self.resolve(key, copy);
        self.take_versions_back(key, copy);
    }

    fn unclaim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.show_again(key);
        self.copies.unclaim(key, copy);
    }

    /// Returns claims that differ from a computation from scratch. For tests: the claims are
    /// derived from rules, intents and namespaces, and updated with each of them.
    #[cfg(test)]
    pub fn wrong_claims(&self) -> Vec<(IntentKey, SourceRef)> {
        let kept: BTreeSet<_> = self.copies.all_claims().collect();
        let keys = self.rules.keys().flat_map(|uid| self.intents_of(uid));
        let wanted = keys.flat_map(|key| {
            self.copies_of_intent(&key)
                .into_iter()
                .map(move |copy| (key.clone(), copy))
        });
        kept.symmetric_difference(&wanted.collect())
            .cloned()
            .collect()
    }

    /// Whether the terms of a rule are only remembered.
    pub fn is_unconfirmed(&self, uid: &RuleUid) -> bool {
        self.rules.get(uid).is_some_and(|rule| rule.unconfirmed)
    }

    fn drop_if_finished(&mut self, uid: &RuleUid) {
        let Some(rule) = self.rules.get(uid) else {
            return;
        };
        if rule.is_removed_completely() {
            let targets = rule
                .terms
                .as_ref()
                .and_then(|(terms, _)| terms.namespaces.as_ref());
            let targets = targets.map(|_| rule.targets.clone());
            self.gone.push(FinishedRule {
                uid: uid.clone(),
                rule: rule.name(uid),
                targets,
            });
            self.rules.remove(uid);
            self.broad.remove(uid);
        }
    }
}
