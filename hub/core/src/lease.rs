//! The hub's part of the election: the Lease has the history of leaders. The rules of the election
//! are in [`runnel_proto::lease`]. Pure.
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use runnel_proto::lease::{self, LeaseName, term};
pub use runnel_proto::lease::{Holder, Lead, Leader, Step, Timing};

use crate::epoch::{LEADER_HISTORY, LeaderHistory, LeaderPosition};

/// The name of the Lease, in Runnel's own namespace on the hub.
pub const LEASE: &str = "runnel-hub";
/// The state of the election in one process, with the leader history.
pub struct Candidate {
    election: lease::Candidate,
    /// Random per process.
    random: String,
    /// The leader history, as last read from the Lease.
    line: LeaderHistory,
}

impl Candidate {
    /// Creates a candidate that has not observed the Lease.
    pub fn new(me: Holder, timing: Timing) -> Self {
        let (random, name) = (
            me.random.clone(),
            LeaseName {
                name: LEASE,
                component: "hub",
            },
        );
        Self {
            election: lease::Candidate::new(name, me, timing),
            random,
            line: LeaderHistory::default(),
        }
    }

    /// Returns the lead of this process, if it leads.
    pub fn lead(&self, now: Instant) -> Option<&Lead> {
        self.election.lead(now)
    }

    /// Returns since when no other process has led, if this process took the Lease just as it was then.
    pub fn free_since(&self) -> Option<Instant> {
        self.election.free_since()
    }

    /// Returns the position of this process, if it leads.
    pub fn position(&self, now: Instant) -> Option<LeaderPosition> {
        self.lead(now)?;
        self.election.lease().and_then(LeaderPosition::of)
    }

    /// Returns the other process that leads, by the last observation.
    pub fn leader(&self) -> Option<Leader> {
        self.election.leader()
    }

    /// A watch has delivered the Lease.
    pub fn received(&mut self, lease: Option<Lease>, now: Instant) {
        self.election.received(lease, now);
        if let Some(line) = self.election.lease().and_then(LeaderHistory::of) {
            self.line = line;
        }
    }

    /// The Lease was read. The read ended at `now`.
    pub fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        if let Some(lease) = &lease
            && (self.election.is_older(lease) || LeaderHistory::of(lease).is_some())
        {
            self.line = LeaderHistory::of(lease).unwrap_or_default();
        }
        self.election.observe(lease, now);
    }

    /// A write that was sent at `sent` gave this Lease.
    pub fn record_write(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.line = LeaderHistory::of(&lease).unwrap_or_default();
        self.election.record_write(lease, sent, now);
    }

    /// A write or a read failed; `changed`: because the Lease differs from the last observed one.
    pub fn failed(&mut self, changed: bool, now: Instant) {
        self.election.failed(changed, now);
    }

    /// Removes the holder from the Lease, if this process leads; from now on it does not. The Lease
    /// records the last version of its term. The write itself has a higher version, which may equal
    /// that of a renewal that a restore removed.
    pub fn release(&mut self) -> Option<Lease> {
        let released = self.election.release()?;
        let line = LeaderHistory::of(&released)
            .unwrap_or_else(|| self.line.clone())
            .ended(Some(&released));
        Some(if line.newest().is_none() {
            released
        } else {
            with_line(released, &line)
        })
    }

    /// Returns the next step. `eligible`: the process has enough state to lead. `wall` is the time
    /// for people.
    pub fn next(&mut self, eligible: bool, now: Instant, wall: Timestamp) -> Step {
        let step = self.election.next(eligible, now, wall);
        let renews = self.election.lead(now).is_some();
        match step {
            Step::Replace(lease) if renews => Step::Replace(self.renewed(lease)),
            Step::Replace(lease) => Step::Replace(self.taken(lease)),
            Step::Create(lease) => Step::Create(self.taken(lease)),
            Step::Wait(_) | Step::Read | Step::Remove(_) => step,
        }
    }

    fn renewed(&self, lease: Lease) -> Lease {
        // The creator of the Lease did not know its uid. A deleted history is written again.
        let line = LeaderHistory::of(&lease).unwrap_or_else(|| self.line.clone());
        if line.newest().is_none() {
            lease
        } else {
            with_line(lease, &line)
        }
    }

    fn taken(&self, lease: Lease) -> Lease {
        let epoch = lease.metadata.uid.clone().unwrap_or_default();
        let line = self.line.clone().with_new_term(
            self.election.lease(),
            (&epoch, term(&lease)),
            &self.random,
        );
        with_line(lease, &line)
    }
}

fn with_line(mut lease: Lease, line: &LeaderHistory) -> Lease {
    lease
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(LEADER_HISTORY.to_owned(), line.to_string());
    lease
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    const TIMING: Timing = Timing {
        lease: Duration::from_secs(15),
        renew: Duration::from_secs(10),
        interval: Duration::from_secs(2),
        retry: Duration::from_secs(2),
    };

    fn candidate(name: &str) -> Candidate {
        let me = Holder {
            name: name.into(),
            is_unique: true,
            random: "0".into(),
            address: None,
        };
        Candidate::new(me, TIMING)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn stored(mut lease: Lease, uid: &str, version: u64) -> Lease {
        lease.metadata.uid = Some(uid.into());
        lease.metadata.resource_version = Some(version.to_string());
        lease
    }

    fn foreign(uid: &str, version: u64, holder: &str, term: i32) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_transitions: Some(term),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        stored(
            Lease {
                spec: Some(spec),
                ..Lease::default()
            },
            uid,
            version,
        )
    }

    fn next(candidate: &mut Candidate, now: Instant) -> Step {
        candidate.next(true, now, Timestamp::UNIX_EPOCH)
    }

    fn replaced(step: Step) -> Lease {
        match step {
            Step::Replace(lease) | Step::Create(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn survivor_of_a_restore_leads_and_records_the_gap() {
        let (start, mut a) = (Instant::now(), candidate("a"));
        a.observe(Some(foreign("e1", 5, "", 7)), start);
        let taken = stored(replaced(next(&mut a, start)), "e1", 6);
        a.record_write(taken.clone(), start, start);
        let renewed = stored(replaced(next(&mut a, start + at(2))), "e1", 9);
        a.record_write(renewed, start + at(2), start + at(2));
        assert_eq!(
            a.position(start + at(3)).map(|position| position.version),
            Some(9)
        );
        // An own write of the same term with a lower version than the observed one.
        a.observe(Some(taken), start + at(3));
        assert_eq!(
            (a.lead(start + at(3)), a.position(start + at(3))),
            (None, None)
        );
        let again = replaced(next(&mut a, start + at(4)));
        assert_eq!(term(&again), 9);
        assert_eq!(
            again.metadata.annotations.unwrap()[LEADER_HISTORY],
            "e1/8/0/6 =/9/0/"
        );
    }

    #[test]
    fn survivor_of_a_restore_releases_the_former_lease() {
        let (start, mut a) = (Instant::now(), candidate("a"));
        a.observe(Some(foreign("e1", 5, "", 7)), start);
        let taken = stored(replaced(next(&mut a, start)), "e1", 6);
        a.record_write(taken.clone(), start, start);
        let renewed = stored(replaced(next(&mut a, start + at(2))), "e1", 7);
        a.record_write(renewed, start + at(2), start + at(2));
        assert_eq!(
            a.release().unwrap().metadata.annotations.unwrap()[LEADER_HISTORY],
            "e1/8/0/7"
        );
        // The API server refused it: it was restored, and does not have the version 7 that members
        // have received.
        a.failed(true, start + at(3));
        a.observe(Some(taken), start + at(3));
        let released = stored(a.release().unwrap(), "e1", 8);
        let mut b = candidate("b");
        b.observe(Some(released), start + at(3));
        let taken = replaced(next(&mut b, start + at(3)));
        assert_eq!(
            taken.metadata.annotations.unwrap()[LEADER_HISTORY],
            "e1/8/0/6 =/9/0/"
        );
    }

    #[test]
    fn history_outlives_the_lease_while_a_replica_has_it() {
        let (start, mut a) = (Instant::now(), candidate("a"));
        a.observe(None, start);
        let made = stored(replaced(next(&mut a, start)), "e1", 1);
        a.record_write(made, start, start);
        a.observe(None, start + at(1));
        let made = stored(replaced(next(&mut a, start + at(3))), "e2", 4);
        a.record_write(made, start + at(3), start + at(3));
        let renewed = replaced(next(&mut a, start + at(5)));
        assert_eq!(
            renewed.metadata.annotations.unwrap()[LEADER_HISTORY],
            format!("e1/1/0/{} e2/1/0/", u64::MAX)
        );
    }

    #[test]
    fn removed_history_returns_with_the_next_renewal() {
        let (start, mut a) = (Instant::now(), candidate("a"));
        a.observe(Some(foreign("e1", 5, "", 7)), start);
        let mut taken = stored(replaced(next(&mut a, start)), "e1", 6);
        a.record_write(taken.clone(), start, start);
        let line = taken.metadata.annotations.take();
        a.observe(Some(stored(taken, "e1", 7)), start + at(1));
        let renewed = replaced(next(&mut a, start + at(2)));
        assert_eq!(
            renewed.metadata.annotations.unwrap()[LEADER_HISTORY],
            line.unwrap()[LEADER_HISTORY]
        );
    }
}
