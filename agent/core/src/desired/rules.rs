//! The rules of the desired set, and those that have ended.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{AckedIntent, RuleName, RuleUid, SetDigest, Terms, TermsDigest};

use super::rule::{AckedRule, IntentState, Rule};
use super::tombstones::{STORED_LIMIT, Tombstones};
use crate::copy::IntentKey;
use crate::records::Records;

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

/// The terms of one rule as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    /// The rule.
    pub uid: RuleUid,
    /// Its terms.
    pub terms: Terms,
    /// Their digest, as the hub gave it.
    pub digest: TermsDigest,
    /// The hub has reported that it does not have the rule.
    pub orphaned: bool,
    /// Sources whose copies were being removed.
    pub tombstones: Tombstones,
}

/// The rules with any state.
#[derive(Clone, Default)]
pub struct Rules {
    by_uid: BTreeMap<RuleUid, Rule>,
    /// Rules that choose namespaces, or are granted them, by glob or label: a namespace's event may
    /// change their targets.
    broad: BTreeSet<RuleUid>,
    /// Finished rules since the last call.
    finished_rules: Vec<FinishedRule>,
}

impl Rules {
    /// The uids of the rules.
    pub fn uids(&self) -> impl Iterator<Item = &RuleUid> {
        self.by_uid.keys()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&RuleUid, &Rule)> {
        self.by_uid.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&RuleUid, &mut Rule)> {
        self.by_uid.iter_mut()
    }

    pub(super) fn get(&self, uid: &RuleUid) -> Option<&Rule> {
        self.by_uid.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &RuleUid) -> Option<&mut Rule> {
        self.by_uid.get_mut(uid)
    }

    pub(super) fn get_or_default(&mut self, uid: &RuleUid) -> &mut Rule {
        self.by_uid.entry(uid.clone()).or_default()
    }

    pub(super) fn insert(&mut self, uid: RuleUid, rule: Rule) {
        self.by_uid.insert(uid, rule);
    }

    /// Forgets a rule that has no state.
    pub(super) fn forget(&mut self, uid: &RuleUid) {
        self.by_uid.remove(uid);
        self.broad.remove(uid);
    }

    /// The rules whose targets depend on the namespaces that exist.
    pub(super) fn broad(&self) -> impl Iterator<Item = &RuleUid> {
        self.broad.iter()
    }

    /// Records whether the targets of a rule depend on the namespaces that exist.
    pub(super) fn set_broad(&mut self, uid: &RuleUid, is_broad: bool) {
        if is_broad {
            self.broad.insert(uid.clone());
        } else {
            self.broad.remove(uid);
        }
    }

    /// Records that nothing of a rule is left.
    pub(super) fn finish(&mut self, finished: FinishedRule) {
        self.finished_rules.push(finished);
    }

    /// Records that a rule is not removed any more.
    pub(super) fn reopen(&mut self, uid: &RuleUid) {
        self.finished_rules.retain(|gone| gone.uid != *uid);
    }

    /// The acked state of a rule.
    pub fn acked(&self, uid: &RuleUid) -> Option<AckedRule> {
        self.by_uid.get(uid).map(|rule| rule.acked(uid))
    }

    /// The intents of a rule.
    pub fn intents_of<'a>(&'a self, uid: &'a RuleUid) -> impl Iterator<Item = IntentKey> + 'a {
        self.by_uid
            .get(uid)
            .into_iter()
            .flat_map(|rule| rule.keys(uid))
    }

    /// The (source, revision) pairs of a rule.
    pub fn pairs(&self, uid: &RuleUid) -> Vec<AckedIntent> {
        self.by_uid.get(uid).map(Rule::pairs).unwrap_or_default()
    }

    /// The number of intents of all rules except orphaned ones, and the sum of their digests.
    pub fn sum(&self) -> (u64, SetDigest) {
        let known = self
            .by_uid
            .values()
            .filter(|rule| !rule.orphaned && !rule.leaving);
        known.fold((0, SetDigest::default()), |(count, mut digest), rule| {
            digest.merge(rule.digest);
            (count + rule.intents.len() as u64, digest)
        })
    }

    pub(super) fn intent_of(&self, key: &IntentKey) -> Option<&IntentState> {
        self.by_uid.get(&key.rule)?.intents.get(&key.source)
    }

    pub(super) fn set_intent(&mut self, key: &IntentKey, intent: Option<IntentState>) {
        if let Some(rule) = self.by_uid.get_mut(&key.rule) {
            rule.set_intent(&key.source, intent);
        }
    }

    /// Whether the terms of a rule are only remembered.
    pub fn is_unconfirmed(&self, uid: &RuleUid) -> bool {
        self.by_uid.get(uid).is_some_and(|rule| rule.unconfirmed)
    }

    /// Whether a rule keeps versions.
    pub fn has_versions(&self, uid: &RuleUid) -> bool {
        self.by_uid
            .get(uid)
            .is_some_and(|rule| rule.versions().is_some())
    }

    /// How many bytes the values of an intent's copies have, if that is known.
    pub fn bytes(&self, key: &IntentKey) -> Option<u64> {
        Some(self.intent_of(key)?.facts.as_ref()?.bytes)
    }

    /// The rules of the same namespace of the hub, a rule itself included, and that namespace.
    pub fn rules_of_namespace(&self, uid: &RuleUid) -> (String, BTreeSet<RuleUid>) {
        let namespace = |rule: &Rule| {
            rule.terms
                .as_ref()
                .map(|(terms, _)| terms.rule.namespace.clone())
        };
        let Some(own) = self.by_uid.get(uid).and_then(namespace) else {
            return Default::default();
        };
        let beside = self
            .by_uid
            .iter()
            .filter(|(_, rule)| namespace(rule).as_ref() == Some(&own));
        let beside = beside.map(|(uid, _)| uid.clone()).collect();
        (own, beside)
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
        let (kept, reported) = std::mem::take(&mut self.finished_rules)
            .into_iter()
            .partition(hidden);
        self.finished_rules = kept;
        reported
    }

    /// The terms to store, while these removals are under way.
    pub fn stored(&mut self, removals: &BTreeSet<IntentKey>) -> Vec<StoredRule> {
        let mut room = STORED_LIMIT;
        for (uid, rule) in self.by_uid.iter_mut() {
            rule.renew_tombstones(uid, removals, &mut room);
        }
        let rules = self.by_uid.iter().filter(|(_, rule)| !rule.leaving);
        rules
            .filter_map(|(uid, rule)| {
                let (terms, digest) = rule.terms.as_ref()?;
                let (terms, orphaned) = (Terms::clone(terms), rule.orphaned);
                let tombstones = rule.removals.stored().clone();
                Some(StoredRule {
                    uid: uid.clone(),
                    terms,
                    digest: *digest,
                    orphaned,
                    tombstones,
                })
            })
            .collect()
    }

    /// Marks the digests of an intent's copies as outdated.
    pub fn recompute_digest(&mut self, key: &IntentKey) {
        if let Some(rule) = self.get_mut(&key.rule) {
            rule.recompute_digest(&key.source);
        }
    }

    /// Records an intent of which only copies were found.
    pub(super) fn restore_found(&mut self, key: &IntentKey) {
        self.set_intent(
            key,
            Some(IntentState {
                restored: true,
                found: true,
                ..IntentState::default()
            }),
        );
    }

    /// Forgets the found copies of a rule that are deleted again: a late event of a watch about a
    /// removed copy.
    pub fn forget_deleted(&mut self, uid: &RuleUid, records: &Records) {
        let Some(rule) = self.get(uid) else {
            return;
        };
        let found = rule.intents.iter().filter(|(_, intent)| intent.found);
        let keys = found.map(|(source, _)| IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        });
        let deleted: Vec<_> = keys
            .filter(|key| records.marked_copies(key).next().is_none())
            .collect();
        for key in &deleted {
            self.set_intent(key, None);
        }
        let is_empty =
            |rule: &Rule| rule.intents.is_empty() && rule.orders.is_empty() && rule.terms.is_none();
        if self.get(uid).is_some_and(is_empty) {
            self.forget(uid);
        }
        self.drop_if_finished(uid);
    }

    pub(super) fn drop_if_finished(&mut self, uid: &RuleUid) {
        let Some(rule) = self.by_uid.get(uid) else {
            return;
        };
        if rule.is_removed_completely() {
            let targets = rule
                .terms
                .as_ref()
                .and_then(|(terms, _)| terms.namespaces.as_ref());
            let targets = targets.map(|_| rule.targets.clone());
            self.finished_rules.push(FinishedRule {
                uid: uid.clone(),
                rule: rule.name(uid),
                targets,
            });
            self.forget(uid);
        }
    }
}
