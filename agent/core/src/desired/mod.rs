//! The desired set of this cluster: terms and intents per rule, the claims of intents on copies,
//! and the orders to remove copies. It takes in the batches of the hub: all upserts before all
//! tombstones.
//!
//! A revision stands for a payload; the payloads are in the reconciler. Reverse indexes limit the
//! cost of an edit to the copies of its source, and the cost of a namespace event to the copies of
//! that namespace.
//!
//! # Files
//! - `cluster`: namespaces, policy and grants of the member, and what follows from a changed namespace.
//! - `copies`: which intents claim a copy, which ordered its removal, and which rule owns it.
//! - `preview`: applies a preview to a clone.
//! - `restore`: restores the set after a restart.
//! - `rules`: the acked state of each rule, the digests of its copies, and the rules that have ended.
//! - `tombstones`: tombstones that survive a restart.
//! - `versions`: versioned names.
mod cluster;
mod copies;
mod preview;
mod restore;
mod rules;
#[cfg(test)]
mod tests;
mod tombstones;
mod versions;

use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{
    Batch, ContentError, ContentRules, DeletionPolicy, FIXED_FIELDS, Intent, LiveDigest, Payload,
    Reason, Refusal, Revision, RuleDelta, RuleName, RuleUid, SourceRef, Terms, TermsDigest,
    is_object_name, is_place,
};

use crate::copy::{CopyError, IntentKey, NewPayload};
use crate::policy::{Area, Facts, Policy};
use crate::records::Records;
use cluster::is_broad;
pub use cluster::{AgentLocation, Cluster, Namespace};
use copies::OrderSource;
pub use copies::{Copies, Owners};
pub use rules::{
    AckedRule, CopyDigest, FinishedCopy, FinishedRule, Rules, StoredRule, returned_fields,
};
use rules::{IntentState, Rule};
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

    /// The claims on copies, to record which rules may write them.
    pub fn copies_mut(&mut self) -> &mut Copies {
        &mut self.copies
    }

    /// Puts another policy in force. Copies in namespaces that it no longer watches need no orders. `unlisted`: the areas whose
    /// copies are unknown.
    pub fn set_policy(
        &mut self,
        policy: Arc<Policy>,
        records: &Records,
        unlisted: &BTreeSet<Area>,
    ) {
        self.cluster.policy = policy.clone();
        self.rules.close_kinds(&policy, records, unlisted);
        // The kinds that the policy allows are stored with the rules.
        self.mark_changed();
        let unwatched = self.copies.ordered();
        let unwatched = unwatched.filter(|copy| policy.area(copy).is_none());
        let orders =
            unwatched.flat_map(|copy| self.copies.orders(copy).map(move |(key, _)| (key, copy)));
        let over = orders.filter(|(key, copy)| !self.rules.is_closed(&key.rule, copy));
        let over: Vec<_> = over
            .map(|(key, copy)| (key.clone(), copy.clone()))
            .collect();
        for (key, copy) in over {
            self.resolve(&key, &copy);
        }
        for uid in self.rules.uids().cloned().collect::<Vec<_>>() {
            self.rules.drop_if_finished(&uid);
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

/// Limit of names removed from a list at once that counts as deliberate.
const DELIBERATE: usize = 10;

/// The result of a batch. Without `Debug`: it contains content.
#[derive(Default)]
pub struct BatchResult {
    /// The copies to reconcile.
    pub changed_copies: BTreeSet<SourceRef>,
    /// The items that are not in force, for the ack.
    pub refused: Vec<Refusal>,
    /// The payloads to keep.
    pub payloads: Vec<NewPayload>,
    /// Deleted intents, whose payloads can be dropped.
    pub dropped: Vec<IntentKey>,
    /// The rules of which something changed.
    pub rules: BTreeSet<RuleUid>,
}

impl Desired {
    /// Applies a batch. `unreadable` are its items that could not be decoded.
    pub fn take(
        &mut self,
        batch: Batch,
        unreadable: Vec<Refusal>,
        records: &Records,
    ) -> BatchResult {
        let mut result = BatchResult::default();
        let mut removals = vec![];
        for mut delta in batch.rules {
            let (tombstones, removal) =
                (std::mem::take(&mut delta.tombstones), delta.removal.take());
            removals.push((delta.uid.clone(), tombstones, removal));
            self.take_upserts(delta, removal.is_some(), records, &mut result);
        }
        for refusal in unreadable {
            self.refuse(refusal, &mut result);
        }
        for (uid, tombstones, removal) in removals {
            let sources = tombstones
                .iter()
                .map(|tombstone| tombstone.source.clone())
                .collect();
            if self.owners().need_storing(&uid, &sources, records) {
                self.mark_changed();
            }
            for tombstone in tombstones {
                let key = IntentKey {
                    rule: uid.clone(),
                    source: tombstone.source,
                };
                self.drop_intent(&key, tombstone.deletion_policy, records, &mut result);
            }
            if let Some(policy) = removal {
                self.remove(&uid, policy, records, &mut result);
            }
        }
        // Copies that waited for a new name may not have to wait any more.
        for rule in result.rules.iter().filter_map(|uid| self.rules.get(uid)) {
            result.changed_copies.extend(rule.orders.iter().cloned());
        }
        result
    }

    fn take_upserts(
        &mut self,
        delta: RuleDelta,
        removal: bool,
        records: &Records,
        result: &mut BatchResult,
    ) {
        let RuleDelta {
            uid,
            terms,
            upserts,
            orphaned,
            suspend,
            ..
        } = delta;
        result.rules.insert(uid.clone());
        if removal && self.rules.get(&uid).is_none() && terms.is_none() && upserts.is_empty() {
            return;
        }
        let is_selected = terms.is_some() || !upserts.is_empty();
        if is_selected {
            self.rules.reopen(&uid);
        }
        let rule = self.rules.get_or_new(&uid);
        rule.leaving &= !is_selected;
        if rule.orphaned != orphaned {
            rule.orphaned = orphaned;
            self.mark_changed();
            result.changed_copies.extend(self.owners().copies_of(&uid));
        }
        if let Some((terms, digest)) = terms {
            self.set_terms(&uid, terms, digest, records, result);
        }
        if let Some(suspend) = suspend {
            self.set_suspended(&uid, suspend, records, result);
        }
        for intent in upserts {
            self.upsert(&uid, intent, records, result);
        }
    }

    /// Puts new terms of a rule in force.
    fn set_terms(
        &mut self,
        uid: &RuleUid,
        terms: Terms,
        digest: TermsDigest,
        records: &Records,
        result: &mut BatchResult,
    ) {
        // Removals by these terms wait until they are stored.
        self.mark_changed();
        let Some(rule) = self.rules.get(uid) else {
            return;
        };
        let sources: Vec<_> = rule.intents.keys().cloned().collect();
        let before: Vec<_> = sources
            .iter()
            .map(|source| self.cluster.copies_of(rule, source))
            .collect();
        let targets = self.cluster.targets(&terms);
        self.rules.set_broad(uid, is_broad(&terms));
        self.rules.set_feedback(uid, &terms.feedback);
        let mut dropped = BTreeSet::new();
        if let Some(rule) = self.rules.get_mut(uid) {
            dropped = dropped_names(rule, &terms);
            dropped.append(&mut rule.dropped);
            dropped.retain(|name| !targets.contains(name));
            if terms.is_frozen() {
                rule.dropped.clone_from(&dropped);
            }
            // All names that were dropped from a suspended rule count as one change when it is
            // resumed.
            if dropped.len() > DELIBERATE {
                dropped.clear();
            }
            rule.terms = Some((Arc::new(terms), digest));
            rule.unconfirmed = false;
            rule.targets = targets;
            rule.recompute_all_digests();
        }
        for (source, before) in sources.into_iter().zip(before) {
            let key = IntentKey {
                rule: uid.clone(),
                source,
            };
            let after = self.owners().copies_of_intent(&key);
            for copy in &after {
                self.claim(&key, copy);
            }
            let kept: BTreeSet<_> = after.iter().collect();
            for copy in before.iter().filter(|copy| !kept.contains(copy)) {
                self.unclaim(&key, copy);
                self.order_orphan(&key, copy, &dropped, records);
                result.changed_copies.insert(copy.clone());
            }
        }
        self.order_orphans(uid, &dropped, records);
        result.changed_copies.extend(self.owners().copies_of(uid));
    }

    /// Sets whether a rule is suspended, under its current terms.
    fn set_suspended(
        &mut self,
        uid: &RuleUid,
        suspend: bool,
        records: &Records,
        result: &mut BatchResult,
    ) {
        let Some(rule) = self.rules.get_mut(uid) else {
            return;
        };
        let Some((terms, _)) = rule
            .terms
            .as_mut()
            .filter(|(terms, _)| terms.suspend != suspend)
        else {
            return;
        };
        *terms = Arc::new(Terms {
            suspend,
            ..Terms::clone(terms)
        });
        self.mark_changed();
        if !suspend && let Some(rule) = self.rules.get_mut(uid) {
            // All names that were dropped from a suspended rule count as one change when it is
            // resumed.
            let mut dropped = std::mem::take(&mut rule.dropped);
            dropped.retain(|name| !rule.targets.contains(name));
            if dropped.len() > DELIBERATE {
                dropped.clear();
            }
            self.order_orphans(uid, &dropped, records);
        }
        result.changed_copies.extend(self.owners().copies_of(uid));
    }

    /// Orders the removal of the live copies of a rule's intents in namespaces without copies by
    /// its terms. `dropped` are the namespaces that were deliberately dropped from its terms.
    fn order_orphans(&mut self, uid: &RuleUid, dropped: &BTreeSet<Arc<str>>, records: &Records) {
        for (key, copies) in records.intents_of(uid) {
            let Some(rule) = self.rules.get(uid) else {
                return;
            };
            if !rule.intents.contains_key(&key.source) {
                continue;
            }
            for copy in copies {
                if !self.copies.is_claimed_by(key, copy) {
                    self.order_orphan(key, copy, dropped, records);
                }
            }
        }
    }

    fn upsert(
        &mut self,
        uid: &RuleUid,
        intent: Intent,
        records: &Records,
        result: &mut BatchResult,
    ) {
        let Intent {
            source,
            revision,
            payload,
        } = intent;
        let facts = match check(&source, &revision, &payload) {
            Ok(facts) => Some(facts),
            Err(copy_error) => {
                let (reason, message) = (copy_error.reason, copy_error.message.to_string());
                return self.refuse(
                    Refusal {
                        rule: uid.clone(),
                        source,
                        revision,
                        reason,
                        message,
                    },
                    result,
                );
            }
        };
        let key = IntentKey {
            rule: uid.clone(),
            source,
        };
        self.put(&key, revision, facts, records, result);
        result.payloads.push(NewPayload {
            key,
            revision,
            payload,
        });
    }

    /// Puts a revision of an intent in force.
    fn put(
        &mut self,
        key: &IntentKey,
        revision: Revision,
        facts: Option<Facts>,
        records: &Records,
        result: &mut BatchResult,
    ) {
        let rule = self.rules.get(&key.rule);
        let known = rule.and_then(|rule| rule.intents.get(&key.source));
        if known.is_some_and(|intent| intent.found) {
            // Found copies outside the targets are to be removed.
            let found = records.marked_copies(key).map(|(copy, _)| copy.clone());
            result.changed_copies.extend(found);
        }
        let has_kind = |kinds: &BTreeSet<_>| kinds.contains(&key.source.resource);
        let is_covered = rule.is_some_and(|rule| rule.removals.stored().cover(&key.source));
        let kinds = rule.and_then(|rule| rule.kinds.as_ref());
        if is_covered || kinds.is_some_and(|kinds| !has_kind(kinds)) {
            self.mark_changed();
        }
        self.rules.set_intent(
            key,
            Some(IntentState {
                mode: facts.as_ref().and_then(|facts| facts.mode),
                facts,
                ..IntentState::of(revision)
            }),
        );
        self.claim_all(key, result);
        let policy = self
            .rules
            .get(&key.rule)
            .and_then(|rule| Some(rule.terms.as_ref()?.0.deletion_policy));
        self.order_versions(
            key,
            policy.unwrap_or_default(),
            records,
            &mut result.changed_copies,
        );
    }

    fn claim_all(&mut self, key: &IntentKey, result: &mut BatchResult) {
        for copy in self.owners().copies_of_intent(key) {
            self.claim(key, &copy);
            result.changed_copies.insert(copy);
        }
    }

    /// Records a refused item. The former state stays in force.
    fn refuse(&mut self, refusal: Refusal, result: &mut BatchResult) {
        let key = IntentKey {
            rule: refusal.rule.clone(),
            source: refusal.source.clone(),
        };
        // A refusal without a source is of the rule's terms, without a revision of a tombstone:
        // neither counts as acked.
        let is_intent = !key.source.name.is_empty() && refusal.revision != Revision([0; 16]);
        if is_intent && let Some(rule) = self.rules.get(&key.rule) {
            let intent_state = rule.intents.get(&key.source);
            let former = intent_state.cloned().unwrap_or_default();
            let copy_error = CopyError::new(refusal.reason, refusal.message.as_str());
            self.rules.set_intent(
                &key,
                Some(IntentState {
                    in_force: former.in_force,
                    facts: former.facts,
                    mode: former.mode,
                    refused: Some((refusal.revision, copy_error)),
                    ..IntentState::default()
                }),
            );
            self.claim_all(&key, result);
            result.rules.insert(key.rule);
        }
        result.refused.push(refusal);
    }

    /// Drops an intent and orders the removal of its copies.
    fn drop_intent(
        &mut self,
        key: &IntentKey,
        policy: DeletionPolicy,
        records: &Records,
        result: &mut BatchResult,
    ) {
        let mut copies: BTreeSet<_> = self.owners().copies_of_intent(key).into_iter().collect();
        self.rules.set_intent(key, None);
        for copy in &copies {
            self.unclaim(key, copy);
        }
        copies.extend(records.marked_copies(key).map(|(copy, _)| copy.clone()));
        for copy in &copies {
            self.order(key, copy, self.owners().order_for(key, copy, policy));
        }
        self.order_versions(key, policy, records, &mut copies);
        result.changed_copies.append(&mut copies);
        result.dropped.push(key.clone());
        result.rules.insert(key.rule.clone());
    }

    /// Removes a whole rule. An unknown rule is reported as removed at once.
    fn remove(
        &mut self,
        uid: &RuleUid,
        policy: DeletionPolicy,
        records: &Records,
        result: &mut BatchResult,
    ) {
        // A copy may have been found after the rule was forgotten: the policy hid it when its
        // removal was ordered.
        if self.rules.get(uid).is_none() && records.intents_of(uid).next().is_none() {
            let (targets, kinds) = (None, None);
            self.rules.finish(FinishedRule {
                uid: uid.clone(),
                rule: RuleName::default(),
                targets,
                kinds,
            });
            return;
        }
        let rule = self.rules.get_or_default(uid);
        rule.leaving = true;
        let intent_state = rule.intents.keys().map(|source| IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        });
        let mut keys: BTreeSet<_> = intent_state.collect();
        keys.extend(records.intents_of(uid).map(|(key, _)| key.clone()));
        let orders = rule.orders.clone();
        let owners = self.owners();
        let has_twins = keys.iter().any(|key| owners.has_twins(key, records));
        // The rule is not stored any more. Where twins exist, that must be stored before the orders
        // are carried out.
        if has_twins {
            self.mark_changed();
        }
        for key in keys {
            self.drop_intent(&key, policy, records, result);
        }
        result.changed_copies.extend(orders);
        if !has_twins {
            self.mark_changed();
        }
        self.rules.drop_if_finished(uid);
    }
}

/// Returns the namespaces that new terms drop deliberately: exact names that were removed from the
/// list, a few at a time, without another change of the choice. Empty for unconfirmed terms.
fn dropped_names(rule: &Rule, now: &Terms) -> BTreeSet<Arc<str>> {
    let before = rule
        .terms
        .as_ref()
        .filter(|_| !rule.unconfirmed)
        .map(|(terms, _)| terms);
    let (Some(before), Some(now)) = (
        before.and_then(|terms| terms.namespaces.as_ref()),
        &now.namespaces,
    ) else {
        return BTreeSet::new();
    };
    let dropped = now.dropped_literals(before);
    if dropped.len() > DELIBERATE {
        BTreeSet::new()
    } else {
        dropped.into_iter().map(Arc::from).collect()
    }
}

/// Checks the names of an intent by the rules of Kubernetes.
fn check_name(source: &SourceRef) -> Result<(), CopyError> {
    let is_name = |name: &str| is_object_name(&source.resource, name);
    if !is_name(&source.name) || !is_name(source.copy_name()) || !is_place(&source.namespace) {
        return Err(CopyError::new(
            Reason::Invalid,
            "the name is not valid in Kubernetes",
        ));
    }
    Ok(())
}

/// Checks an intent, and returns the policy facts of its content. The member's API server checks
/// the content itself.
fn check(source: &SourceRef, revision: &Revision, payload: &Payload) -> Result<Facts, CopyError> {
    let rules = ContentRules::of(&source.resource);
    check_name(source)?;
    let content = payload.decode().map_err(|error| {
        let reason = match error {
            ContentError::TooLarge { .. } | ContentError::TooManyNodes => Reason::TooLarge,
            ContentError::Malformed | ContentError::UnknownEncoding => Reason::Unsupported,
        };
        CopyError::new(reason, error.to_string())
    })?;
    let is_known = |field: &str| {
        if rules.is_owned() {
            !FIXED_FIELDS.contains(&field)
        } else {
            rules.fields.contains(&field)
        }
    };
    if !content.fields.keys().all(|field| is_known(field)) {
        return Err(CopyError::new(
            Reason::Unsupported,
            "the content has a field that this agent does not support",
        ));
    }
    if rules.is_owned() != content.version.is_some() {
        let message = format!(
            "the content of {} names no API version, or one too many: use the same version of Runnel on hub and member",
            source.resource
        );
        return Err(CopyError::new(Reason::Unsupported, message));
    }
    let refuses = |name: &str| rules.refuses_name(name);
    if refuses(&source.name)
        || refuses(source.copy_name())
        || rules.refuses_type(content.fields.get("type").and_then(|kind| kind.as_str()))
    {
        return Err(CopyError::new(
            Reason::Denied,
            "objects of this name or type are never distributed",
        ));
    }
    Ok(Facts::of(rules, &content).digested(&content, revision, &BTreeSet::new()))
}
