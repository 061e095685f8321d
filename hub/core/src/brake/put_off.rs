//! What would have passed in clusters that are away.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Item, WINDOW};

/// What was below the limit, within [`WINDOW`], and is judged again when its cluster is back, as nobody knows what is
/// there. Until then it counts as what it may be, so that many small edits are not less than a large one.
#[derive(Clone, Default)]
pub(super) struct PutOff(BTreeMap<Item, (Instant, u64)>);

impl PutOff {
    /// How many copies it is, but for these items, which are judged now.
    pub(super) fn besides(&mut self, items: &BTreeSet<Item>, now: Instant) -> u64 {
        self.0.retain(|item, (at, _)| now.saturating_duration_since(*at) < WINDOW && !items.contains(item));
        self.0.values().fold(0, |sum, (_, copies)| sum.saturating_add(*copies))
    }

    /// One more, which may be so many copies.
    pub(super) fn add(&mut self, item: Item, copies: u64, now: Instant) {
        self.0.insert(item, (now, copies));
    }
}
