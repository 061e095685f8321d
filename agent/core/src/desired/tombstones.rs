//! Tombstones that outlive a restart.
//!
//! After a restart an agent knows only the terms of a rule and the seals of its copies. In the
//! middle of a removal these imply that the remaining copies are wanted. Each of them is a twin
//! from which the deleted ones could be created again. So the agent stores the tombstones with the
//! terms before it deletes the first copy. After a restart it writes nothing for these sources
//! until the hub has sent content or a tombstone. A stored tombstone deletes nothing: the hub may
//! have changed the rule since.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{RuleUid, SourceRef};

use super::{Desired, Rule};
use crate::copy::IntentKey;
use crate::records::Records;

/// How many tombstones are stored by name, of all rules together.
const STORED_LIMIT: usize = 1_024;

/// The tombstones of a rule that are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstones {
    /// Of these sources.
    pub sources: BTreeSet<SourceRef>,
    /// There were too many to store each: it may be any source of the rule.
    pub any: bool,
}

impl Tombstones {
    /// Whether there may be one of this source.
    pub fn cover(&self, source: &SourceRef) -> bool {
        self.any || self.sources.contains(source)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        !self.any && self.sources.is_empty()
    }
}

/// The removals of a rule that are under way.
#[derive(Clone, Default)]
pub(super) struct Removals {
    /// How many orders there are for copies of each source.
    orders: BTreeMap<SourceRef, usize>,
    /// What was stored last.
    stored: Tombstones,
    /// How many of the stored sources have orders.
    open: usize,
}

impl Removals {
    /// After a restart.
    pub fn restored(stored: Tombstones) -> Self {
        Self {
            stored,
            ..Self::default()
        }
    }

    /// What was stored last.
    pub fn stored(&self) -> &Tombstones {
        &self.stored
    }

    /// A copy of a source was ordered to go.
    pub fn ordered(&mut self, source: &SourceRef) {
        *self.orders.entry(source.clone()).or_default() += 1;
    }

    /// An order for a copy of a source needs nothing more. Returns whether other tombstones are to be stored for that.
    pub fn resolved(&mut self, source: &SourceRef) -> bool {
        let Some(count) = self.orders.get_mut(source) else {
            return false;
        };
        *count = count.saturating_sub(1);
        if *count > 0 {
            return false;
        }
        self.orders.remove(source);
        if self.stored.any {
            return self.orders.len() == STORED_LIMIT / 2 || self.orders.is_empty();
        }
        let was_stored = self.stored.sources.contains(source);
        self.open = self.open.saturating_sub(usize::from(was_stored));
        was_stored && self.open == 0
    }
}

impl Rule {
    /// Whether a source without an acked intent is removed: another version of it may be acked.
    fn is_removed(&self, uid: &RuleUid, source: &SourceRef) -> bool {
        let key = || IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        };
        !self.intents.contains_key(source)
            && (self.versions().is_none() || self.beside(&key()).next().is_none())
    }

    /// Renews what is to be stored, of which there is room for so many. A removal that is under way is carried out even if the
    /// hub has sent the source again meanwhile.
    fn renew_tombstones(
        &mut self,
        uid: &RuleUid,
        removals: &BTreeSet<IntentKey>,
        room: &mut usize,
    ) {
        // Rules about which the hub has not sent anything since a restart.
        let is_open = |source: &&SourceRef| {
            self.intents
                .get(*source)
                .map_or(self.unconfirmed, |intent| intent.found)
        };
        let stored = &self.removals.stored;
        let old = stored.sources.iter().filter(is_open);
        let now = self
            .removals
            .orders
            .keys()
            .filter(|source| self.is_removed(uid, source));
        let under_way = removals
            .iter()
            .filter(|key| key.rule == *uid)
            .map(|key| &key.source);
        let sources: BTreeSet<_> = old
            .chain(now)
            .chain(under_way)
            .take(*room + 1)
            .cloned()
            .collect();
        let any =
            stored.any && (self.unconfirmed || self.intents.values().any(|intent| intent.found));
        let stored = if any || sources.len() > *room {
            Tombstones {
                sources: BTreeSet::new(),
                any: true,
            }
        } else {
            Tombstones {
                sources,
                any: false,
            }
        };
        *room -= stored.sources.len();
        self.removals.open = stored
            .sources
            .iter()
            .filter(|source| self.removals.orders.contains_key(*source))
            .count();
        self.removals.stored = stored;
    }
}

impl Desired {
    /// How often what is to be stored has changed. An order is carried out when what is stored is not older than it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What is to be stored has changed.
    pub fn mark_changed(&mut self) {
        self.generation = self.generation.saturating_add(1);
    }

    /// Renews the tombstones that are to be stored, while these removals are under way.
    pub(super) fn renew_tombstones(&mut self, removals: &BTreeSet<IntentKey>) {
        let mut room = STORED_LIMIT;
        for (uid, rule) in &mut self.rules {
            rule.renew_tombstones(uid, removals, &mut room);
        }
    }

    /// A removal that was under way has ended. Where the hub has sent the source again, its tombstone is over.
    pub fn removal_ended(&mut self, key: &IntentKey) {
        let is_over = |rule: &Rule| {
            rule.intents.contains_key(&key.source) && rule.removals.stored().cover(&key.source)
        };
        if self.rules.get(&key.rule).is_some_and(is_over) {
            self.mark_changed();
        }
    }

    /// Whether a copy of an intent could be created again from another one while they are being removed.
    pub(super) fn has_twins(&self, key: &IntentKey, records: &Records) -> bool {
        let is_open = |rule: &Rule| rule.removals.orders.contains_key(&key.source);
        let holders = || records.holders(key).map(|(copy, _)| copy.clone());
        self.rules.get(&key.rule).is_some_and(is_open)
            || self
                .copies_of_intent(key)
                .into_iter()
                .chain(holders())
                .collect::<BTreeSet<_>>()
                .len()
                > 1
    }

    /// Records tombstones of a rule that must be stored before they are carried out, where twins
    /// exist. If another version of a source stays, its copies show after a restart which one is
    /// the newest.
    pub(super) fn record_tombstones(
        &mut self,
        uid: &RuleUid,
        sources: &BTreeSet<SourceRef>,
        records: &Records,
    ) {
        let Some(rule) = self.rules.get(uid) else {
            return;
        };
        let is_edit = |key: &IntentKey| {
            rule.versions().is_some() && rule.beside(key).any(|source| !sources.contains(source))
        };
        let mut keys = sources.iter().map(|source| IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        });
        if keys.any(|key| !is_edit(&key) && self.has_twins(&key, records)) {
            self.mark_changed();
        }
    }
}
