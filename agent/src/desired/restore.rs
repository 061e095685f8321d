//! What an agent holds after its restart: terms from its own Secret, revisions from the seals of its copies.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{Revision, RuleUid, SourceRef, Terms, TermsDigest, Travel};

use super::places::is_broad;
use super::{Desired, Held, Rule};
use crate::policy::{Area, Facts};
use crate::records::{IntentKey, Records};

/// The terms of one rule as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    /// The rule.
    pub uid: RuleUid,
    /// Its terms.
    pub terms: Terms,
    /// Their digest, as the hub gave it.
    pub digest: TermsDigest,
    /// The hub has said that it does not know the rule.
    pub unclaimed: bool,
    /// What becomes of what copies held before.
    pub travel: Travel,
}

impl Desired {
    /// Sets the hub cluster's uid; an agent in that very cluster never touches a source.
    /// Returns whether that is news.
    pub fn set_hub_cluster(&mut self, uid: &str) -> bool {
        if self.hub_cluster_uid.as_deref() == Some(uid) {
            return false;
        }
        self.hub_cluster_uid = Some(uid.to_owned());
        let own = self.home.cluster_uid == uid;
        let sources: Vec<_> = self
            .rules
            .iter()
            .flat_map(|(uid, rule)| rule.intents.keys().map(|source| (uid.clone(), source.clone())))
            .collect();
        for (rule, source) in sources.into_iter().filter(|_| own) {
            let copy = source.clone();
            self.unclaim(&IntentKey { rule, source }, &copy);
        }
        true
    }

    /// The uid of the hub's cluster, if it is known.
    pub fn hub_cluster(&self) -> Option<&str> {
        self.hub_cluster_uid.as_deref()
    }

    /// The terms to store.
    pub fn stored(&self) -> Vec<StoredRule> {
        let rules = self.rules.iter().filter(|(_, rule)| !rule.leaving);
        rules
            .filter_map(|(uid, rule)| {
                let (terms, digest) = rule.terms.as_ref()?;
                let (terms, unclaimed) = (Terms::clone(terms), rule.unclaimed);
                let travel = rule.travel.clone();
                Some(StoredRule { uid: uid.clone(), terms, digest: *digest, unclaimed, travel })
            })
            .collect()
    }

    /// Takes in stored terms. Nothing is held by intents yet.
    pub fn restore_terms(&mut self, stored: Vec<StoredRule>) {
        for StoredRule { uid, terms, digest, unclaimed, travel } in stored {
            let targets = terms.namespaces.as_ref().map(|choice| self.targets(choice)).unwrap_or_default();
            if is_broad(&terms) {
                self.broad.insert(uid.clone());
            }
            let terms = Some((Arc::new(terms), digest));
            self.rules.insert(uid, Rule { terms, unclaimed, travel, unconfirmed: true, targets, ..Rule::default() });
        }
    }

    /// Something is kept of these rules, whatever was stored of them: it is kept until the hub says otherwise.
    pub fn restore_kept(&mut self, rules: BTreeMap<RuleUid, String>) {
        for (uid, base) in rules {
            let rule = self.rules.entry(uid).or_default();
            if rule.travel == Travel::Plain {
                rule.travel = Travel::Keep(base);
            }
        }
    }

    /// An intent is held in this revision, unless it is held already.
    pub fn restore_intent(&mut self, key: &IntentKey, revision: Revision) {
        let is_missing = |rule: &Rule| !rule.leaving && !rule.intents.contains_key(&key.source);
        if self.rules.get(&key.rule).is_some_and(is_missing) {
            self.set_held(key, Some(Held { restored: true, ..Held::of(revision) }));
            for copy in self.copies(key) {
                self.claim(key, &copy);
            }
        }
    }

    /// The hub has said everything: the terms that it did not say anew are in force. Returns the copies to look at.
    pub fn confirm(&mut self, records: &Records) -> BTreeSet<SourceRef> {
        let confirmed = self.rules.iter_mut().filter(|(_, rule)| rule.unconfirmed && !rule.unclaimed);
        let confirmed: Vec<_> = confirmed
            .map(|(uid, rule)| {
                rule.unconfirmed = false;
                uid.clone()
            })
            .collect();
        let mut looks = BTreeSet::new();
        for uid in confirmed {
            self.order_strays(&uid, &BTreeSet::new(), records);
            looks.extend(self.rules.get(&uid).into_iter().flat_map(|rule| rule.orders.iter().cloned()));
        }
        looks
    }

    /// Takes in the intents that live copies of some areas say they hold, unless the hub has spoken of them already,
    /// and returns the copies to look at. A damaged copy counts too: its intent is held, but its content must come
    /// from a twin or from the hub.
    pub fn restore_intents(&mut self, areas: &BTreeSet<Area>, records: &Records) -> BTreeSet<SourceRef> {
        let mut looks = BTreeSet::new();
        let mut touched = BTreeSet::new();
        for (key, copies) in records.intents() {
            let shown = |copy: &&SourceRef| self.policy.area(copy).is_some_and(|area| areas.contains(&area));
            let copies: Vec<_> = copies.iter().filter(shown).cloned().collect();
            // What the hub has ordered to go while nobody could see it is not held again.
            let ordered = |copy: &SourceRef| self.order_of(key, copy).is_some_and(|order| !order.given_up);
            let held_again = !copies.is_empty() && !copies.iter().any(ordered);
            looks.extend(copies);
            if !held_again {
                continue;
            }
            let rule = self.rules.entry(key.rule.clone()).or_default();
            touched.insert(key.rule.clone());
            if rule.leaving || rule.intents.contains_key(&key.source) {
                continue;
            }
            if self.is_older_version(key, records, &mut looks) {
                continue;
            }
            if let Some(revision) = newest(key, records) {
                let facts = facts(key, &revision, records);
                self.set_held(key, Some(Held { facts, restored: true, ..Held::of(revision) }));
                for copy in self.copies(key) {
                    self.claim(key, &copy);
                    looks.insert(copy);
                }
            }
        }
        for uid in touched {
            self.order_strays(&uid, &BTreeSet::new(), records);
        }
        looks
    }
}

/// What the policy judges of a revision, as an intact copy shows it.
fn facts(key: &IntentKey, revision: &Revision, records: &Records) -> Option<Facts> {
    let mut holders = records.holders(key);
    let (_, live) = holders.find(|(_, live)| live.holds(&key.rule, &key.source, revision))?;
    let digest = live.facts.digest.filter(|_| live.is_whole());
    Some(Facts { digest, ..live.facts.clone() })
}

/// The revision that was applied last: after a stop half-way through an edit it is the new one.
fn newest(key: &IntentKey, records: &Records) -> Option<Revision> {
    let mut revisions: BTreeMap<Revision, (i64, bool)> = BTreeMap::new();
    for (_, live) in records.holders(key) {
        let revision = live.sealed.as_ref()?.revision;
        let best = revisions.entry(revision).or_default();
        *best = (*best).max((live.applied_at, live.intact));
    }
    revisions.into_iter().max_by_key(|(_, best)| *best).map(|(revision, _)| revision)
}
