//! The intents that wait to be sent, by rule.
//!
//! When a rule first goes to very many clusters, all its intents wait in each of their sessions.
//! The sessions share the chunks of the plan until they send from them, so that waiting takes
//! almost no memory.
use std::collections::BTreeMap;
use std::sync::Arc;

use runnel_proto::model::{DeletionPolicy, RuleUid, SourceRef};

use crate::plan::{CowSortedMap, SourceContent};

type Upserts = CowSortedMap<SourceRef, Arc<SourceContent>>;

/// What waits to be sent: one change of a source at most.
#[derive(Default)]
pub(super) struct Unsent {
    /// None is empty.
    upserts: BTreeMap<RuleUid, Upserts>,
    /// None is empty.
    tombstones: BTreeMap<RuleUid, BTreeMap<SourceRef, DeletionPolicy>>,
}

impl Unsent {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.tombstones.is_empty()
    }

    /// Whether anything of a rule waits.
    pub(super) fn has(&self, uid: &RuleUid) -> bool {
        self.upserts.contains_key(uid) || self.tombstones.contains_key(uid)
    }

    /// Whether any source is to go.
    pub(super) fn has_tombstones(&self) -> bool {
        !self.tombstones.is_empty()
    }

    /// All of these wait, of a rule of which nothing did.
    pub(super) fn put_all(&mut self, uid: &RuleUid, upserts: &Upserts) {
        if !upserts.is_empty() {
            self.upserts.insert(uid.clone(), upserts.clone());
        }
    }

    /// The content of a source is to be sent.
    pub(super) fn put(&mut self, uid: &RuleUid, source: SourceRef, content: Arc<SourceContent>) {
        if let Some(tombstones) = self.tombstones.get_mut(uid) {
            tombstones.remove(&source);
            if tombstones.is_empty() {
                self.tombstones.remove(uid);
            }
        }
        self.upserts
            .entry(uid.clone())
            .or_default()
            .insert(source, content);
    }

    /// A source is to go.
    pub(super) fn remove(&mut self, uid: &RuleUid, source: SourceRef, policy: DeletionPolicy) {
        if let Some(upserts) = self.upserts.get_mut(uid) {
            upserts.remove(&source);
            if upserts.is_empty() {
                self.upserts.remove(uid);
            }
        }
        self.tombstones
            .entry(uid.clone())
            .or_default()
            .insert(source, policy);
    }

    /// The sources of a rule that are to go.
    pub(super) fn tombstones(&self, uid: &RuleUid) -> impl Iterator<Item = &SourceRef> {
        self.tombstones
            .get(uid)
            .into_iter()
            .flat_map(BTreeMap::keys)
    }

    /// Nothing of a rule waits any more. Returns whether anything did.
    pub(super) fn drop_of(&mut self, uid: &RuleUid) -> bool {
        self.upserts.remove(uid).is_some() | self.tombstones.remove(uid).is_some()
    }

    /// The first rule that has contents to be sent, with them.
    pub(super) fn first(&self) -> Option<(&RuleUid, &Upserts)> {
        self.upserts.first_key_value()
    }

    /// Takes out so many of the first contents of a rule.
    pub(super) fn take(
        &mut self,
        uid: &RuleUid,
        count: usize,
    ) -> Vec<(SourceRef, Arc<SourceContent>)> {
        let Some(upserts) = self.upserts.get_mut(uid) else {
            return Vec::new();
        };
        let taken = upserts.take_first(count);
        if upserts.is_empty() {
            self.upserts.remove(uid);
        }
        taken
    }

    /// Takes out at most so many sources that are to go.
    pub(super) fn take_tombstones(
        &mut self,
        count: usize,
    ) -> Vec<(RuleUid, SourceRef, DeletionPolicy)> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(mut first) = self.tombstones.first_entry()
        {
            match first.get_mut().pop_first() {
                Some((source, policy)) => taken.push((first.key().clone(), source, policy)),
                None => drop(first.remove()),
            }
        }
        self.tombstones.retain(|_, of_rule| !of_rule.is_empty());
        taken
    }
}
