//! Decides whether the absence of a `MemberCluster` revokes its cluster.
//!
//! A person deletes one member, or a few. A script, a prune or a restore can delete all of them, and then the policy
//! `onRevoke: Purge` would delete the copies of the whole fleet. So members that go together with more copies than the
//! fleet's limit are unknown: the hub serves their agents nothing, and revokes nobody.
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use runnel_hub_core::guard::{Limit, WINDOW};

/// The number of members whose departure is stored. Of others nothing is known.
const LIMIT: usize = 4096;

/// The members that are absent or terminating, by uid.
#[derive(Default)]
pub struct Departures {
    /// Whether each of them is revoked.
    revoked: BTreeMap<String, bool>,
    /// The members that went within [`WINDOW`], with the copies that they had.
    recent: VecDeque<(Instant, u64)>,
    /// The number of those that went before this process began.
    strangers: u64,
}

impl Departures {
    /// Records members that went at once, with the number of their copies; `None` if it is not known. `all` is the number of
    /// copies in the fleet. Returns whether those that were not recorded before are revoked.
    pub fn record(
        &mut self,
        gone: impl IntoIterator<Item = (String, Option<u64>)>,
        limit: Limit,
        all: u64,
        now: Instant,
    ) -> bool {
        self.recent
            .retain(|(at, _)| now.saturating_duration_since(*at) < WINDOW);
        let mut uids = vec![];
        for (uid, copies) in gone {
            if !self.revoked.contains_key(&uid) {
                self.recent.push_back((now, copies.unwrap_or(u64::MAX)));
                uids.push(uid);
            }
        }
        if uids.is_empty() {
            return true;
        }
        let copies = self.recent.iter().map(|(_, copies)| *copies);
        let copies = copies.fold(0, u64::saturating_add);
        let is_revoked = self.recent.len() < 2 || limit.allows(copies, || all);
        uids.into_iter().for_each(|uid| self.set(uid, is_revoked));
        is_revoked
    }

    /// Whether the absence of a member revokes it. One that was absent when this process began is revoked while such members
    /// are few: at most this part of the known `members`, in percent, or one.
    pub fn is_revoked(&mut self, uid: &str, members: usize, percent: u64) -> bool {
        if let Some(revoked) = self.revoked.get(uid) {
            return *revoked;
        }
        let members = members as u64;
        let most = (members.saturating_mul(percent) / 100).max(members.min(1));
        let is_revoked = self.strangers < most && self.revoked.len() < LIMIT;
        self.strangers = self.strangers.saturating_add(1);
        self.set(uid.to_owned(), is_revoked);
        is_revoked
    }

    fn set(&mut self, uid: String, is_revoked: bool) {
        if self.revoked.len() < LIMIT {
            self.revoked.insert(uid, is_revoked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FEW: Limit = Limit {
        count: 10,
        percent: 20,
    };

    fn uids(range: std::ops::Range<usize>, copies: u64) -> Vec<(String, Option<u64>)> {
        range
            .map(|number| (number.to_string(), Some(copies)))
            .collect()
    }

    #[test]
    fn members_that_go_together_above_the_limit_are_not_revoked() {
        let (now, mut departures) = (Instant::now(), Departures::default());
        assert!(
            departures.record(uids(0..1, 50), FEW, 100, now),
            "one alone"
        );
        assert!(!departures.record(uids(1..3, 1), FEW, 100, now));
        let later = now + WINDOW;
        assert!(departures.record(uids(3..5, 5), FEW, 100, later));
        assert!(
            departures.record(uids(5..6, 5), FEW, 100, later),
            "15 of 100"
        );
        assert!(!departures.record(uids(6..8, 5), FEW, 100, later));
        // Neither a repetition nor time changes a decision.
        let much_later = later + Duration::from_secs(3600);
        departures.record(uids(0..8, 1), FEW, 100, much_later);
        let revoked = (0..8).map(|number| departures.is_revoked(&number.to_string(), 10, 20));
        let expected = [true, false, false, true, true, true, false, false];
        assert_eq!(revoked.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn members_with_unknown_copies_are_above_every_limit() {
        let mut departures = Departures::default();
        let unknown = ["a", "b"].map(|uid| (uid.to_owned(), None));
        assert!(!departures.record(unknown, FEW, 1000, Instant::now()));
    }

    #[test]
    fn few_members_absent_since_before_the_start_are_revoked() {
        let count = |members, percent| {
            let mut departures = Departures::default();
            let all = (0..50)
                .filter(|number| departures.is_revoked(&number.to_string(), members, percent));
            all.count()
        };
        assert_eq!(count(40, 10), 4);
        assert_eq!(count(3, 10), 1, "one is never many");
        assert_eq!(count(0, 10), 0, "a hub without members has lost them");
    }
}
