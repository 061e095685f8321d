//! Computes the pending removals of one member, without I/O.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::RuleUid;

use runnel_api::{PendingRemoval, limits};

/// The pending removals of one member.
pub(super) struct PendingList {
    /// The removals for the record of the member.
    pub(super) removals: Vec<PendingRemoval>,
    /// The removals above the limit. The finalizers of their rules stay.
    pub(super) overflow: Vec<PendingRemoval>,
}

impl PendingList {
    /// Returns the known removals without those that the member has carried out, and with the added
    /// ones.
    pub(super) fn new(
        known: &[PendingRemoval],
        done: &BTreeSet<RuleUid>,
        added: Vec<PendingRemoval>,
    ) -> Self {
        let uid = |removal: &PendingRemoval| RuleUid::from(removal.rule_uid.as_str());
        let removals: Vec<_> = known
            .iter()
            .filter(|removal| !done.contains(&uid(removal)))
            .cloned()
            .collect();
        let mut listed: BTreeSet<_> = removals.iter().map(uid).collect();
        let mut list = Self {
            removals,
            overflow: Vec::new(),
        };
        for removal in added {
            if !done.contains(&uid(&removal)) && listed.insert(uid(&removal)) {
                list.removals.push(removal);
            }
        }
        list.move_overflow();
        list
    }

    /// Moves the removals above the limit to `overflow`: the newest ones of the namespace with the
    /// most. So a user who deletes many rules does not use up the quota of others.
    fn move_overflow(&mut self) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for removal in &self.removals {
            *counts.entry(namespace_of(removal).to_owned()).or_default() += 1;
        }
        while self.removals.len() > limits::PENDING_REMOVALS {
            let Some((largest, count)) = counts.iter_mut().max_by_key(|(_, count)| **count) else {
                return;
            };
            let Some(newest) = self
                .removals
                .iter()
                .rposition(|removal| namespace_of(removal) == largest)
            else {
                return;
            };
            *count -= 1;
            self.overflow.push(self.removals.remove(newest));
        }
    }
}

/// Returns the namespace of a rule; empty for a cluster-scoped one.
fn namespace_of(removal: &PendingRemoval) -> &str {
    removal
        .rule
        .split_once('/')
        .map_or("", |(namespace, _)| namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(rule: &str) -> PendingRemoval {
        PendingRemoval {
            rule_uid: format!("uid of {rule}"),
            rule: rule.to_owned(),
            ..PendingRemoval::default()
        }
    }

    fn of(namespace: &str, count: usize) -> Vec<PendingRemoval> {
        (0..count)
            .map(|number| removal(&format!("{namespace}/{number}")))
            .collect()
    }

    #[test]
    fn removals_are_added_once_and_dropped_when_carried_out() {
        let done = BTreeSet::from([RuleUid::from("uid of a/0")]);
        let added = vec![
            removal("a/1"),
            removal("a/2"),
            removal("a/0"),
            removal("a/2"),
        ];
        let list = PendingList::new(&of("a", 2), &done, added);
        let rules: Vec<_> = list
            .removals
            .iter()
            .map(|removal| removal.rule.as_str())
            .collect();
        assert_eq!(rules, ["a/1", "a/2"]);
        assert!(list.overflow.is_empty());
    }

    #[test]
    fn many_deletes_of_one_namespace_do_not_use_up_the_quota() {
        let limit = limits::PENDING_REMOVALS;
        let known = PendingList::new(&[], &BTreeSet::new(), of("greedy", limit + 5));
        assert_eq!((known.removals.len(), known.overflow.len()), (limit, 5));
        let list = PendingList::new(
            &known.removals,
            &BTreeSet::new(),
            vec![removal("other/0"), removal("cluster-rule")],
        );
        assert_eq!(list.removals.len(), limit);
        assert_eq!(list.overflow.len(), 2);
        assert!(
            list.overflow
                .iter()
                .all(|removal| namespace_of(removal) == "greedy")
        );
        assert_eq!(list.removals[0], removal("greedy/0"), "the oldest stay");
        let kept = |rule: &str| list.removals.contains(&removal(rule));
        assert!(kept("other/0") && kept("cluster-rule"));
    }
}
