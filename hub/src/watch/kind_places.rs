//! Which kinds the hub watches, if rules name more than it can watch.
//!
//! A watch that runs keeps its place. The rules of one namespace get only a part of the places, so that they cannot keep the
//! kinds of others from being watched. The kinds that are always served need no place.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of watched kinds.
pub(super) const KINDS_LIMIT: usize = 200;
/// Maximum number of watched kinds that only the rules of one namespace name.
pub(super) const NAMESPACE_LIMIT: usize = 50;

/// The namespaces whose rules name a kind; empty for ClusterDistributionRules.
pub(super) type Namespaces = BTreeMap<Arc<str>, BTreeSet<String>>;

/// The kinds that have a place.
pub(super) struct KindPlaces {
    taken: BTreeSet<Arc<str>>,
    namespaces: Namespaces,
    /// The number of kinds with a place that the rules of each namespace name.
    counts: BTreeMap<String, usize>,
}

impl KindPlaces {
    /// The places of the kinds whose watches run.
    pub(super) fn of(running: impl IntoIterator<Item = Arc<str>>, namespaces: Namespaces) -> Self {
        let mut places = Self {
            taken: BTreeSet::new(),
            namespaces,
            counts: BTreeMap::new(),
        };
        for kind in running {
            places.insert(&kind);
        }
        places
    }

    /// Takes a place for a kind, unless it has one.
    ///
    /// # Errors
    /// Why there is none, for the status of rules.
    pub(super) fn take(&mut self, kind: &Arc<str>) -> Result<(), String> {
        if self.taken.contains(kind) {
            return Ok(());
        }
        if self.taken.len() >= KINDS_LIMIT {
            return Err(format!(
                "the hub watches {KINDS_LIMIT} other kinds, which is its limit, and the watches that run go on: remove kinds from \
                 rules; the hub's log has the number of each namespace"
            ));
        }
        let is_full = |namespace: &String| {
            let count = self.counts.get(namespace).copied().unwrap_or_default();
            !namespace.is_empty() && count >= NAMESPACE_LIMIT
        };
        let namespaces = self.namespaces.get(kind);
        if namespaces.is_some_and(|all| !all.is_empty() && all.iter().all(is_full)) {
            return Err(format!(
                "the rules of one namespace may use {NAMESPACE_LIMIT} of the {KINDS_LIMIT} kinds that the hub watches, and those \
                 that name this kind use as many others: remove kinds from them"
            ));
        }
        self.insert(kind);
        Ok(())
    }

    /// The number of kinds of each namespace, the largest first.
    pub(super) fn users(&self) -> String {
        let mut users: Vec<_> = self.counts.iter().collect();
        users.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named = users.into_iter().take(10).map(|(namespace, count)| {
            let name = if namespace.is_empty() {
                "ClusterDistributionRules"
            } else {
                namespace
            };
            format!("{name} {count}")
        });
        named.collect::<Vec<_>>().join(", ")
    }

    fn insert(&mut self, kind: &Arc<str>) {
        if self.taken.insert(kind.clone()) {
            for namespace in self.namespaces.get(kind).into_iter().flatten() {
                *self.counts.entry(namespace.clone()).or_default() += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(number: usize) -> Arc<str> {
        format!("kind{number:03}s.example.org").into()
    }

    /// The namespaces of rules that name these kinds.
    fn named(all: &[(&str, std::ops::Range<usize>)]) -> Namespaces {
        let mut namespaces = Namespaces::new();
        for (namespace, kinds) in all {
            for number in kinds.clone() {
                let of_kind = namespaces.entry(kind(number)).or_default();
                of_kind.insert((*namespace).to_owned());
            }
        }
        namespaces
    }

    fn taken(places: &mut KindPlaces, kinds: std::ops::Range<usize>) -> usize {
        kinds
            .filter(|number| places.take(&kind(*number)).is_ok())
            .count()
    }

    #[test]
    fn running_watch_keeps_its_place() {
        let namespaces = named(&[("", 0..300)]);
        let running = (100..300).map(kind);
        let mut places = KindPlaces::of(running, namespaces.clone());
        assert_eq!(taken(&mut places, 100..300), 200);
        let refused = places.take(&kind(0)).unwrap_err();
        assert!(refused.contains("watches 200 other kinds"), "{refused}");
        assert_eq!(places.users(), "ClusterDistributionRules 200");
        let mut places = KindPlaces::of((101..300).map(kind), namespaces);
        assert_eq!(taken(&mut places, 0..3), 1);
    }

    #[test]
    fn namespace_leaves_places_for_others() {
        let namespaces = named(&[("greedy", 0..120), ("small", 119..121), ("", 200..202)]);
        let mut places = KindPlaces::of([], namespaces);
        assert_eq!(taken(&mut places, 0..119), NAMESPACE_LIMIT);
        let refused = places.take(&kind(60)).unwrap_err();
        assert!(refused.contains("50 of the 200 kinds"), "{refused}");
        // A kind that another namespace names too is its own.
        assert_eq!(taken(&mut places, 119..121), 2);
        assert_eq!(taken(&mut places, 200..202), 2);
        assert_eq!(
            places.users(),
            "greedy 51, ClusterDistributionRules 2, small 2"
        );
    }
}
