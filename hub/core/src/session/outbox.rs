//! The messages that wait to be sent to one agent.
//!
//! When a rule first goes to very many clusters, all its intents wait in each of their sessions.
//! The sessions share the chunks of the plan until they send from them, so that waiting takes
//! almost no memory.
use std::collections::BTreeMap;
use std::sync::Arc;

use runnel_proto::model::{
    AskedDigest, DeletionPolicy, Intent, RuleDelta, RuleUid, SourceRef, Terms, TermsDigest,
};

use crate::plan::{CowSortedMap, SourceContent};

type Upserts = CowSortedMap<SourceRef, Arc<SourceContent>>;

/// A batch is closed when its payloads reach this many bytes. A single larger payload is sent
/// alone. Each connection has one batch until the agent has room for it, so this bounds the memory
/// of a delivery to very many agents at once.
pub(super) const BATCH_BYTES: usize = 32 * 1024;
/// A batch is closed when it has this many items.
pub(super) const BATCH_ITEMS: usize = 1000;

/// The message about a rule itself.
#[derive(Default)]
pub(super) struct Heading {
    pub terms: Option<(Arc<Terms>, TermsDigest)>,
    pub orphaned: bool,
    /// The approved removals of copies in namespaces that are no longer targets.
    pub prune: Option<AskedDigest>,
    /// The suspension of the rule, if its terms are not sent.
    pub suspend: Option<bool>,
}

impl Heading {
    pub fn is_empty(&self) -> bool {
        self.terms.is_none() && !self.orphaned && self.prune.is_none() && self.suspend.is_none()
    }
}

/// The messages that wait to be sent.
#[derive(Default)]
pub(super) struct Outbox {
    /// None is empty.
    pub headings: BTreeMap<RuleUid, Heading>,
    /// Rules that are to be removed as a whole.
    pub removals: BTreeMap<RuleUid, DeletionPolicy>,
    pub intents: Intents,
}

impl Outbox {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.intents.is_empty() && self.headings.is_empty() && self.removals.is_empty()
    }

    /// Whether anything about a rule waits.
    pub fn has(&self, uid: &RuleUid) -> bool {
        self.headings.contains_key(uid) || self.removals.contains_key(uid) || self.intents.has(uid)
    }

    /// Whether any removal waits.
    pub fn has_removals(&self) -> bool {
        self.intents.has_tombstones() || !self.removals.is_empty()
    }
}

/// The intents that wait to be sent: at most one change of each source.
#[derive(Default)]
pub(super) struct Intents {
    /// None is empty.
    upserts: BTreeMap<RuleUid, Upserts>,
    /// None is empty.
    tombstones: BTreeMap<RuleUid, BTreeMap<SourceRef, DeletionPolicy>>,
}

impl Intents {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.tombstones.is_empty()
    }

    /// Whether anything of a rule waits.
    pub(super) fn has(&self, uid: &RuleUid) -> bool {
        self.upserts.contains_key(uid) || self.tombstones.contains_key(uid)
    }

    /// Whether any tombstone waits.
    pub(super) fn has_tombstones(&self) -> bool {
        !self.tombstones.is_empty()
    }

    /// Adds all intents of a rule of which nothing waited.
    pub(super) fn put_all(&mut self, uid: &RuleUid, upserts: &Upserts) {
        if !upserts.is_empty() {
            self.upserts.insert(uid.clone(), upserts.clone());
        }
    }

    /// Adds the content of a source.
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

    /// Adds a tombstone of a source.
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

    /// The sources of the tombstones of a rule.
    pub(super) fn tombstones(&self, uid: &RuleUid) -> impl Iterator<Item = &SourceRef> {
        self.tombstones
            .get(uid)
            .into_iter()
            .flat_map(BTreeMap::keys)
    }

    /// Drops everything about a rule. Returns whether anything waited.
    pub(super) fn drop_of(&mut self, uid: &RuleUid) -> bool {
        self.upserts.remove(uid).is_some() | self.tombstones.remove(uid).is_some()
    }

    /// The first rule with contents to send, and its contents.
    fn first(&self) -> Option<(&RuleUid, &Upserts)> {
        self.upserts.first_key_value()
    }

    /// Takes the first `count` contents of a rule.
    fn take(&mut self, uid: &RuleUid, count: usize) -> Vec<(SourceRef, Arc<SourceContent>)> {
        let Some(upserts) = self.upserts.get_mut(uid) else {
            return Vec::new();
        };
        let taken = upserts.take_first(count);
        if upserts.is_empty() {
            self.upserts.remove(uid);
        }
        taken
    }

    /// Takes at most `count` tombstones.
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

    /// Fills a batch with upserts. Returns whether some are left for another batch.
    pub(super) fn take_upserts(
        &mut self,
        deltas: &mut BTreeMap<RuleUid, RuleDelta>,
        mut bytes: usize,
    ) -> bool {
        let (first, mut items) = (bytes == 0, 0);
        while let Some((uid, upserts)) = self.first() {
            let mut count = 0;
            for (_, content) in upserts.iter() {
                let size = content.payload.bytes().len();
                let alone = first && items + count == 0;
                if items + count >= BATCH_ITEMS || (!alone && bytes + size > BATCH_BYTES) {
                    break;
                }
                bytes += size;
                count += 1;
            }
            let (uid, is_whole) = (uid.clone(), count == upserts.len());
            if count > 0 {
                let intent = |(source, content): (SourceRef, Arc<SourceContent>)| Intent {
                    source,
                    revision: content.revision,
                    payload: content.payload.clone(),
                };
                let taken = self.take(&uid, count).into_iter().map(intent);
                delta_of(deltas, &uid).upserts.extend(taken);
            }
            if !is_whole {
                return true;
            }
            items += count;
        }
        false
    }
}

/// The delta of a rule in a batch.
pub(super) fn delta_of<'a>(
    deltas: &'a mut BTreeMap<RuleUid, RuleDelta>,
    uid: &RuleUid,
) -> &'a mut RuleDelta {
    deltas
        .entry(uid.clone())
        .or_insert_with(|| RuleDelta::new(uid.clone()))
}
