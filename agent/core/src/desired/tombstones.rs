//! Tombstones that outlive a restart.
//!
//! After a restart an agent knows only the terms of a rule and the seals of its copies. In the
//! middle of a removal these imply that the remaining copies are wanted. Each of them is a twin
//! from which the deleted ones could be created again. So the agent stores the tombstones with the
//! terms before it deletes the first copy. After a restart it writes nothing for these sources
//! until the hub has sent content or a tombstone. A stored tombstone deletes nothing: the hub may
//! have changed the rule since.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::SourceRef;

/// Limit of tombstones stored by name, over all rules.
pub(super) const STORED_LIMIT: usize = 1_024;

/// The tombstones of a rule that are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstones {
    /// Of these sources.
    pub sources: BTreeSet<SourceRef>,
    /// There were too many to store each: it may be any source of the rule.
    pub any: bool,
}

impl Tombstones {
    /// Whether a tombstone of this source may exist.
    pub fn cover(&self, source: &SourceRef) -> bool {
        self.any || self.sources.contains(source)
    }

    /// Whether there are no tombstones.
    pub fn is_empty(&self) -> bool {
        !self.any && self.sources.is_empty()
    }
}

/// The removals of a rule that are under way.
#[derive(Clone, Default)]
pub(super) struct Removals {
    /// Number of ordered removals by source.
    orders: BTreeMap<SourceRef, usize>,
    /// The last stored tombstones.
    stored: Tombstones,
    /// Number of stored sources with orders.
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

    /// Returns the last stored tombstones.
    pub fn stored(&self) -> &Tombstones {
        &self.stored
    }

    /// Records an ordered removal of a copy.
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

    /// Whether copies of a source are being removed.
    pub fn has_orders(&self, source: &SourceRef) -> bool {
        self.orders.contains_key(source)
    }

    /// Renews what is to be stored, of which there is room for so many. A removal that is under way
    /// is carried out even if the hub has sent the source again meanwhile.
    ///
    /// `is_open`: whether the hub has not sent anything about a source since a restart. `has_open`:
    /// whether there is such a source. `under_way`: the sources with a removal under way.
    pub fn renew<'a>(
        &mut self,
        is_open: impl Fn(&SourceRef) -> bool,
        has_open: bool,
        is_removed: impl Fn(&SourceRef) -> bool,
        under_way: impl Iterator<Item = &'a SourceRef>,
        room: &mut usize,
    ) {
        let Self { orders, stored, .. } = &*self;
        let old = stored.sources.iter().filter(|source| is_open(source));
        let now = orders.keys().filter(|source| is_removed(source));
        let sources: BTreeSet<_> = old
            .chain(now)
            .cloned()
            .chain(under_way.cloned())
            .take(*room + 1)
            .collect();
        let any = stored.any && has_open;
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
        self.open = stored
            .sources
            .iter()
            .filter(|source| self.orders.contains_key(*source))
            .count();
        self.stored = stored;
    }
}
