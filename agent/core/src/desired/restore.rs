//! The state that outlives a restart: terms and tombstones in the agent's own Secret, revisions in
//! the seals of the copies.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{Revision, RuleUid, SourceRef};

use super::cluster::is_broad;
use super::rules::StoredRule;
use super::tombstones::Removals;
use super::{Desired, IntentState, Owners, Rule};
use crate::copy::IntentKey;
use crate::policy::{Area, Facts};
use crate::records::Records;

impl Owners<'_> {
    /// Whether a copy of an intent could be created again from another one while they are being
    /// removed.
    pub(super) fn has_twins(self, key: &IntentKey, records: &Records) -> bool {
        let is_open = |rule: &Rule| rule.removals.has_orders(&key.source);
        let holders = || records.marked_copies(key).map(|(copy, _)| copy.clone());
        self.rules.get(&key.rule).is_some_and(is_open)
            || self
                .copies_of_intent(key)
                .into_iter()
                .chain(holders())
                .collect::<BTreeSet<_>>()
                .len()
                > 1
    }

    /// Whether tombstones of a rule must be stored before they are carried out, because twins
    /// exist. If another version of a source stays, its copies show after a restart which one is
    /// the newest.
    pub(super) fn need_storing(
        self,
        uid: &RuleUid,
        sources: &BTreeSet<SourceRef>,
        records: &Records,
    ) -> bool {
        let Some(rule) = self.rules.get(uid) else {
            return false;
        };
        let is_edit = |key: &IntentKey| {
            rule.versions().is_some()
                && rule
                    .other_versions(key)
                    .any(|source| !sources.contains(source))
        };
        let mut keys = sources.iter().map(|source| IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        });
        keys.any(|key| !is_edit(&key) && self.has_twins(&key, records))
    }
}

impl Desired {
    /// Sets the hub cluster's uid; an agent in that very cluster never touches a source.
    /// Returns whether that is news.
    pub fn set_hub_cluster(&mut self, uid: &str) -> bool {
        if self.cluster.hub_uid() == Some(uid) {
            return false;
        }
        self.cluster.hub_cluster_uid = Some(uid.to_owned());
        let own = self.cluster.is_hub();
        let sources: Vec<_> = self
            .rules
            .iter()
            .flat_map(|(uid, rule)| {
                rule.intents
                    .keys()
                    .map(|source| (uid.clone(), source.clone()))
            })
            .collect();
        for (rule, source) in sources.into_iter().filter(|_| own) {
            let copy = source.clone();
            self.unclaim(&IntentKey { rule, source }, &copy);
        }
        true
    }

    /// The terms to store, while these removals are under way.
    pub fn stored(&mut self, removals: &BTreeSet<IntentKey>) -> Vec<StoredRule> {
        self.rules.stored(removals, &self.cluster.policy)
    }

    /// Records the end of a removal. If the hub has sent the source again, its tombstone ends.
    pub fn removal_ended(&mut self, key: &IntentKey) {
        let is_over = |rule: &Rule| {
            rule.intents.contains_key(&key.source) && rule.removals.stored().cover(&key.source)
        };
        if self.rules.get(&key.rule).is_some_and(is_over) {
            self.mark_changed();
        }
    }

    /// Restores stored terms. No intents are known yet.
    pub fn restore_terms(&mut self, stored: Vec<StoredRule>) {
        for StoredRule {
            uid,
            terms,
            digest,
            orphaned,
            tombstones,
            kinds,
            finished: _,
        } in stored
        {
            let targets = self.cluster.targets(&terms);
            self.rules.set_broad(&uid, is_broad(&terms));
            self.rules.set_feedback(&uid, &terms.feedback);
            let terms = Some((Arc::new(terms), digest));
            let removals = Removals::restored(tombstones);
            let stored = kinds.iter().flatten();
            let closed = stored.filter(|kind| !self.cluster.policy.allows_kind(kind));
            let rule = Rule {
                closed: closed.cloned().collect(),
                terms,
                orphaned,
                unconfirmed: true,
                targets,
                removals,
                kinds,
                ..Rule::default()
            };
            self.rules.insert(uid, rule);
        }
    }

    /// The hub's snapshot is complete: the terms that it did not send again are in force. Returns
    /// the copies to reconcile.
    pub fn confirm(&mut self, records: &Records) -> BTreeSet<SourceRef> {
        // The unsent rest of a removal under way is removed.
        if self
            .rules
            .iter()
            .map(|(_, rule)| rule)
            .any(|rule| rule.unconfirmed && !rule.removals.stored().is_empty())
        {
            self.mark_changed();
        }
        let confirmed = self
            .rules
            .iter_mut()
            .filter(|(_, rule)| rule.unconfirmed && !rule.orphaned);
        let confirmed: Vec<_> = confirmed
            .map(|(uid, rule)| {
                rule.unconfirmed = false;
                uid.clone()
            })
            .collect();
        let mut to_reconcile = BTreeSet::new();
        for uid in confirmed {
            self.order_orphans(&uid, &BTreeSet::new(), records);
            to_reconcile.extend(
                self.rules
                    .get(&uid)
                    .into_iter()
                    .flat_map(|rule| rule.orders.iter().cloned()),
            );
        }
        to_reconcile
    }

    /// Restores the intents of the live copies in some areas, unless the hub has sent them already,
    /// and returns the copies to reconcile. A damaged copy counts too: its intent is acked, but its
    /// content must come from a twin or from the hub.
    pub fn restore_intents(
        &mut self,
        areas: &BTreeSet<Area>,
        records: &Records,
    ) -> BTreeSet<SourceRef> {
        let mut to_reconcile = BTreeSet::new();
        let mut touched = BTreeSet::new();
        for (key, copies) in records.intents() {
            let copies = self.cluster.watched_by(areas, copies.iter());
            if copies.is_empty() {
                continue;
            }
            let ordered = self.copies.is_ordered(key, &copies);
            to_reconcile.extend(copies);
            if ordered {
                continue;
            }
            let rule = self.rules.get_or_default(&key.rule);
            touched.insert(key.rule.clone());
            if rule.leaving || rule.intents.contains_key(&key.source) {
                continue;
            }
            if rule.removals.stored().cover(&key.source) {
                self.rules.restore_found(key);
                continue;
            }
            if self.is_older_version(key, records, &mut to_reconcile) {
                continue;
            }
            // A copy in a terminating namespace exists whether its intent was removed or not.
            let stays = records
                .marked_copies(key)
                .any(|(copy, _)| self.cluster.has_live_namespace(&copy.namespace));
            let Some(revision) = restored_revision(key, records).filter(|_| stays) else {
                self.rules.restore_found(key);
                continue;
            };
            let facts = facts(key, &revision, records);
            let mut holders = records.marked_copies(key);
            let mode = holders.find_map(|(_, live)| live.facts.mode);
            self.rules.set_intent(
                key,
                Some(IntentState {
                    facts,
                    mode,
                    restored: true,
                    ..IntentState::of(revision)
                }),
            );
            for copy in self.owners().copies_of_intent(key) {
                self.claim(key, &copy);
                to_reconcile.insert(copy);
            }
        }
        for uid in touched {
            self.order_orphans(&uid, &BTreeSet::new(), records);
        }
        to_reconcile
    }

    /// Forgets the found copies of a rule that are deleted or taken over again, as after a late event of a watch about a
    /// removed copy. Of a rule that the hub does not know, all copies count as found.
    pub fn forget_deleted(&mut self, uid: &RuleUid, records: &Records) {
        let Some(rule) = self.rules.get(uid) else {
            return;
        };
        let is_found = |intent: &IntentState| intent.found || rule.orphaned;
        let found = rule.intents.iter().filter(|(_, intent)| is_found(intent));
        let keys = found.map(|(source, _)| IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        });
        let deleted: Vec<_> = keys
            .filter(|key| records.marked_copies(key).next().is_none())
            .collect();
        for key in &deleted {
            for copy in self.owners().copies_of_intent(key) {
                self.unclaim(key, &copy);
            }
            self.rules.set_intent(key, None);
        }
        let is_unknown = |rule: &Rule| rule.is_empty() && rule.terms.is_none();
        if self.rules.get(uid).is_some_and(is_unknown) {
            self.rules.forget(uid);
        }
        self.rules.drop_if_finished(uid);
    }

    /// Records a copy of an intent that was found while the agent runs: in an area that is watched
    /// again, or created by another client. Nothing is written for an intent that the hub has not
    /// named. Returns whether the hub must be asked about it.
    pub fn find_intent(&mut self, key: &IntentKey, copy: &SourceRef, records: &Records) -> bool {
        let rule = self.rules.get_or_default(&key.rule);
        match rule.intents.get(&key.source) {
            // Also of a rule that is being removed: the hub names the removals.
            None => {
                self.rules.restore_found(key);
                true
            }
            // The hub's answer is about all its copies.
            Some(intent) if intent.found => false,
            Some(_) => {
                self.order_orphan(key, copy, &BTreeSet::new(), records);
                false
            }
        }
    }
}

/// Returns the policy facts of a revision, from an intact copy.
fn facts(key: &IntentKey, revision: &Revision, records: &Records) -> Option<Facts> {
    let mut holders = records.marked_copies(key);
    let (_, live) =
        holders.find(|(_, live)| live.has_revision(&key.rule, &key.source, revision))?;
    let digest = live.facts.digest.filter(|_| live.has_full_content());
    Some(Facts {
        digest,
        ..live.facts.clone()
    })
}

/// Returns the revision in force after a restart: the one that intact copies prove. If they prove
/// several, as after a stop during an edit, none is in force, and the hub decides. If no copy is
/// intact, the copy's mark decides: nothing is written, because only the hub has the content.
fn restored_revision(key: &IntentKey, records: &Records) -> Option<Revision> {
    let sealed = || {
        records
            .marked_copies(key)
            .filter_map(|(_, live)| Some((live, live.sealed.as_ref()?.revision)))
    };
    let intact: BTreeSet<_> = sealed()
        .filter(|(live, _)| live.intact)
        .map(|(_, revision)| revision)
        .collect();
    match intact.len() {
        0 => sealed()
            .max_by_key(|(live, revision)| (live.applied_at, *revision))
            .map(|(_, revision)| revision),
        1 => intact.into_iter().next(),
        _ => None,
    }
}
