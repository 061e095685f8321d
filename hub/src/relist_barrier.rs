//! Relists: a new leader relists everything before it serves agents.
//!
//! A watch may lag behind without an error: its connection hangs, or it waits for its next retry
//! after the API server was unreachable. In a standby that does no harm. A leader with stale
//! watches would treat unknown sources as deleted, and send former contents. So each lead begins a
//! round: every watch starts with a new, consistent list, and nothing is served before all lists of
//! the round are complete.
//!
//! A process that starts while no other one leads lists everything once: if it takes the Lease as it was
//! before its first lists, no other process has sent anything since.
//!
//! A watch also relists by itself when it cannot continue. If the API server was restored from a
//! backup, that list is older, and nothing of it may be sent. So such a list takes effect only
//! after a renewal of the Lease that began after the list was read. That renewal fails if the Lease
//! is older too.
use std::collections::BTreeMap;
use std::time::Instant;

use tokio::sync::watch;

use crate::ordered_lock::LeafMutex;
use runnel_hub_core::plan::WatchScope;

/// One of the hub's watches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watched {
    /// The objects of one of Runnel's own kinds, by its plural.
    Own(&'static str),
    /// The sources in a scope.
    Sources(WatchScope),
}

/// The current round, and the round of the last list of each watch.
#[derive(Default)]
pub struct RelistBarrier {
    requested: watch::Sender<u64>,
    renewed: watch::Sender<Option<Instant>>,
    done: LeafMutex<BTreeMap<Watched, u64>>,
    /// When the lists of this round began, at the earliest.
    begun: LeafMutex<Option<Instant>>,
    /// Since when no other process has led.
    free_since: LeafMutex<Option<Instant>>,
}

impl RelistBarrier {
    /// Starts a round: every watch relists. Not if the lists of this one are newer than all that another process has sent.
    pub fn begin(&self) {
        let free_since = *self.free_since.lock();
        let begun = *self.begun.lock();
        if free_since.is_none_or(|since| begun.is_none_or(|begun| begun < since)) {
            self.lists_begin();
            self.requested.send_modify(|round| *round += 1);
        }
    }

    /// The lists of this round begin now.
    pub fn lists_begin(&self) {
        *self.begun.lock() = Some(Instant::now());
    }

    /// Records since when no other process has led; `None` if one may have led until this process did.
    pub fn free(&self, since: Option<Instant>) {
        *self.free_since.lock() = since;
    }

    /// Records when the last successful renewal of the right to lead was sent; `None` if this
    /// process does not lead.
    pub fn renewed(&self, sent: Option<Instant>) {
        self.renewed.send_if_modified(|known| {
            let changed = *known != sent;
            *known = sent;
            changed
        });
    }

    /// Returns receivers of the current round and of the renewals.
    pub fn subscribe(&self) -> RelistSubscription {
        RelistSubscription {
            requested: self.requested.subscribe(),
            renewed: self.renewed.subscribe(),
        }
    }

    /// Returns the current round.
    pub fn round(&self) -> u64 {
        *self.requested.borrow()
    }

    /// Forgets a watch that has ended: when it begins again, it has to deliver a list first.
    pub fn forget(&self, watched: &Watched) {
        self.done.lock().remove(watched);
    }

    /// Records that a watch has delivered its list of a round, or was refused in it.
    pub fn done(&self, watched: Watched, round: u64) {
        self.done.lock().insert(watched, round);
    }

    /// Whether all these watches have delivered their list in the current round.
    pub fn have_all(&self, watches: impl IntoIterator<Item = Watched>) -> bool {
        let round = self.round();
        let done = self.done.lock();
        watches
            .into_iter()
            .all(|watched| done.get(&watched) == Some(&round))
    }
}

/// The signals that a watch follows.
pub struct RelistSubscription {
    /// The current round.
    pub requested: watch::Receiver<u64>,
    /// When the last successful renewal was sent.
    pub renewed: watch::Receiver<Option<Instant>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_a_free_lease_are_not_read_again() {
        let rounds = RelistBarrier::default();
        let before = Instant::now();
        rounds.free(Some(before));
        rounds.begin();
        assert_eq!(rounds.round(), 1, "nothing is known of its lists");
        rounds.begin();
        assert_eq!(rounds.round(), 1);
        rounds.free(Some(Instant::now()));
        rounds.begin();
        assert_eq!(rounds.round(), 2, "another has led since they began");
        rounds.free(None);
        rounds.begin();
        assert_eq!(rounds.round(), 3);
    }

    #[test]
    fn a_round_is_over_when_each_has_had_its_own_list() {
        let rounds = RelistBarrier::default();
        let (a, b) = (Watched::Own("a"), Watched::Own("b"));
        let both = || rounds.have_all([a.clone(), b.clone()]);
        rounds.done(a.clone(), 0);
        assert!(!both());
        rounds.done(b.clone(), 0);
        assert!(both());
        rounds.begin();
        assert!(!both());
        rounds.done(a.clone(), 1);
        // A list of the previous round arrives late.
        rounds.done(b.clone(), 0);
        assert!(!both());
        rounds.done(b.clone(), 1);
        assert!(both() && rounds.have_all([]));
        rounds.forget(&a);
        assert!(!both());
    }
}
