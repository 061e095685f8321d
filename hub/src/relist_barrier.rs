//! Relists: a new leader relists everything before it serves agents.
//!
//! A watch may lag behind without an error: its connection hangs, or it waits for its next retry
//! after the API server was unreachable. In a standby that does no harm. A leader with stale
//! watches would treat unknown sources as deleted, and send former contents. So each lead begins a
//! round: every watch starts with a new, consistent list, and nothing is served before all lists of
//! the round are complete.
//!
//! A watch also relists by itself when it cannot continue. If the API server was restored from a
//! backup, that list is older, and nothing of it may be sent. So such a list takes effect only
//! after a renewal of the Lease that began after the list was read. That renewal fails if the Lease
//! is older too.
use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;

use runnel_hub_core::plan::WatchScope;

/// A watch of the hub's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watched {
    /// The objects of one of Runnel's own kinds, by its plural.
    Own(&'static str),
    /// The sources in a place.
    Sources(WatchScope),
}

/// Which round is on, and which lists it has had.
#[derive(Default)]
pub struct RelistBarrier {
    asked: watch::Sender<u64>,
    renewed: watch::Sender<Option<Instant>>,
    done: Mutex<BTreeMap<Watched, u64>>,
}

impl RelistBarrier {
    /// Asks every watch for a new list.
    pub fn begin(&self) {
        self.asked.send_modify(|round| *round += 1);
    }

    /// The renewal of the right to lead that was sent at this moment succeeded; `None`: this process does not lead.
    pub fn renewed(&self, sent: Option<Instant>) {
        self.renewed.send_if_modified(|known| {
            let changed = *known != sent;
            *known = sent;
            changed
        });
    }

    /// The round that is on and its changes, and the renewals.
    pub fn subscribe(&self) -> RelistSubscription {
        RelistSubscription {
            asked: self.asked.subscribe(),
            renewed: self.renewed.subscribe(),
        }
    }

    /// A watch has delivered the list of this round, or was refused in it.
    pub fn done(&self, watched: Watched, round: u64) {
        self.done.lock().insert(watched, round);
    }

    /// Whether all of these have had their list in the round that is on.
    pub fn have_all(&self, watches: impl IntoIterator<Item = Watched>) -> bool {
        let round = *self.asked.borrow();
        let done = self.done.lock();
        watches
            .into_iter()
            .all(|watched| done.get(&watched) == Some(&round))
    }
}

/// What a watch follows.
pub struct RelistSubscription {
    /// The round that is on.
    pub asked: watch::Receiver<u64>,
    /// When the last renewal that succeeded was sent.
    pub renewed: watch::Receiver<Option<Instant>>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // The list of the round before comes late.
        rounds.done(b.clone(), 0);
        assert!(!both());
        rounds.done(b.clone(), 1);
        assert!(both() && rounds.have_all([]));
    }
}
