//! The order in which the copies of a rule are written and removed: phase by phase. A copy waits
//! only while earlier copies of its rule are under way. One that has failed delays no other.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{RuleUid, SourceRef};

use crate::phase::Phase;

/// The copies of a rule that wait for each other: those that are written, or those that are removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PhaseGroup {
    rule: RuleUid,
    removes: bool,
}

/// The place of a copy in its group, smallest first.
type Rank = u8;

/// The copies under way, by group and rank.
#[derive(Default)]
pub(super) struct Phases {
    places: BTreeMap<SourceRef, (PhaseGroup, Rank)>,
    /// The number of copies under way.
    counts: BTreeMap<PhaseGroup, BTreeMap<Rank, usize>>,
    /// The copies under way whose jobs wait for earlier copies.
    waiting: BTreeMap<PhaseGroup, BTreeSet<(Rank, SourceRef)>>,
}

impl Phases {
    /// Adds a copy that is under way: it is written for a rule, or removed for it. Returns the copies whose wait ends, because
    /// this one had another place before.
    pub(super) fn enter(
        &mut self,
        copy: &SourceRef,
        rule: &RuleUid,
        removes: bool,
    ) -> Vec<SourceRef> {
        let phase = Phase::of(&copy.resource) as Rank;
        let rank = if removes { Rank::MAX - phase } else { phase };
        let group = PhaseGroup {
            rule: rule.clone(),
            removes,
        };
        let place = (group, rank);
        if self.places.get(copy) == Some(&place) {
            self.end_wait(&place, copy);
            return vec![];
        }
        let released = self.leave(copy);
        let counts = self.counts.entry(place.0.clone()).or_default();
        *counts.entry(rank).or_default() += 1;
        self.places.insert(copy.clone(), place);
        released
    }

    /// Removes a copy that is not under way any more. Returns the copies whose wait ends.
    pub(super) fn leave(&mut self, copy: &SourceRef) -> Vec<SourceRef> {
        let Some(place) = self.places.remove(copy) else {
            return vec![];
        };
        self.end_wait(&place, copy);
        let (group, rank) = place;
        let Some(counts) = self.counts.get_mut(&group) else {
            return vec![];
        };
        if let Some(count) = counts.get_mut(&rank) {
            *count -= 1;
            if *count > 0 {
                return vec![];
            }
        }
        counts.remove(&rank);
        let Some((first, _)) = counts.first_key_value() else {
            self.counts.remove(&group);
            return vec![];
        };
        let first = *first;
        let Some(waiting) = self.waiting.get_mut(&group) else {
            return vec![];
        };
        let mut due = vec![];
        while waiting.first().is_some_and(|(rank, _)| *rank <= first) {
            due.extend(waiting.pop_first().map(|(_, copy)| copy));
        }
        if waiting.is_empty() {
            self.waiting.remove(&group);
        }
        due
    }

    /// Has the job of a copy wait, if earlier copies of its rule are under way. Returns whether it waits.
    pub(super) fn delay(&mut self, copy: &SourceRef) -> bool {
        let Some((group, rank)) = self.places.get(copy) else {
            return false;
        };
        let first = self
            .counts
            .get(group)
            .and_then(|counts| counts.keys().next());
        let waits = first.is_some_and(|first| first < rank);
        if waits {
            let waiting = self.waiting.entry(group.clone()).or_default();
            waiting.insert((*rank, copy.clone()));
        }
        waits
    }

    fn end_wait(&mut self, (group, rank): &(PhaseGroup, Rank), copy: &SourceRef) {
        if let Some(waiting) = self.waiting.get_mut(group) {
            waiting.remove(&(*rank, copy.clone()));
            if waiting.is_empty() {
                self.waiting.remove(group);
            }
        }
    }

    /// Whether no copy is under way.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.counts.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [&str; 4] = [
        "configmaps",
        "services",
        "deployments.apps",
        "widgets.example.org",
    ];

    fn copy(kind: usize, name: u8) -> SourceRef {
        SourceRef::new(KINDS[kind], "a", &name.to_string())
    }

    #[test]
    fn removal_is_in_reverse() {
        let (mut phases, rule): (_, RuleUid) = (Phases::default(), "r".into());
        for kind in 0..KINDS.len() {
            phases.enter(&copy(kind, 0), &rule, true);
        }
        for kind in (0..KINDS.len()).rev() {
            assert!(!phases.delay(&copy(kind, 0)), "{kind}");
            if let Some(next) = kind.checked_sub(1) {
                assert!(phases.delay(&copy(next, 0)));
                assert_eq!(phases.leave(&copy(kind, 0)), [copy(next, 0)]);
            } else {
                phases.leave(&copy(kind, 0));
            }
        }
        assert!(phases.is_empty());
    }

    proptest! {
        /// A model: what is under way, and what waits.
        #[test]
        fn waits_end_exactly_when_no_earlier_copy_is_under_way(
            steps in proptest::collection::vec((0usize..4, 0u8..3, 0u8..2, 0u8..4), 0..80),
        ) {
            let mut phases = Phases::default();
            let mut under_way: BTreeMap<SourceRef, (u8, Phase)> = BTreeMap::new();
            let mut waiting: BTreeSet<SourceRef> = BTreeSet::new();
            let earliest = |under_way: &BTreeMap<SourceRef, (u8, Phase)>, rule: u8| {
                under_way.values().filter(|(of, _)| *of == rule).map(|(_, phase)| *phase).min()
            };
            for (kind, name, rule, step) in steps {
                let (copy, uid): (_, RuleUid) = (copy(kind, name), rule.to_string().as_str().into());
                let released = match step {
                    0 | 1 => {
                        waiting.remove(&copy);
                        under_way.insert(copy.clone(), (rule, Phase::of(&copy.resource)));
                        phases.enter(&copy, &uid, false)
                    }
                    2 => {
                        let waits = under_way.get(&copy).is_some_and(|(rule, phase)| {
                            earliest(&under_way, *rule) < Some(*phase)
                        });
                        prop_assert_eq!(phases.delay(&copy), waits);
                        if waits {
                            waiting.insert(copy);
                        }
                        vec![]
                    }
                    _ => {
                        waiting.remove(&copy);
                        under_way.remove(&copy);
                        phases.leave(&copy)
                    }
                };
                for copy in released {
                    prop_assert!(waiting.remove(&copy), "{} did not wait", copy);
                }
                // No copy waits for nothing.
                for copy in &waiting {
                    let (rule, phase) = under_way[copy];
                    prop_assert!(earliest(&under_way, rule) < Some(phase), "{} waits for nothing", copy);
                }
            }
            for copy in under_way.keys() {
                phases.leave(copy);
            }
            prop_assert!(phases.is_empty());
        }
    }
}
