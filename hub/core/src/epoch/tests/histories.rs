//! Simulates three replicas, one Lease and agents with stored tokens: crashes at any point, a
//! deleted Lease or annotation, any number of former leaders. A member diverges exactly if a
//! restore removed state that it was sent.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;

use super::simulation::{Election, Event as Of, Process};
use super::*;
use crate::lease::Candidate;
use crate::lease::{Holder, Timing};

const REPLICAS: usize = 3;
const AGENTS: usize = 3;
const TIMING: Timing = Timing {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    interval: Duration::from_secs(2),
    retry: Duration::from_secs(2),
};

/// An event of a history.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// To the Lease and the replicas.
    Election(Of),
    /// A replica crashes, and another process of its name starts.
    Crash(usize),
    /// A user deletes the Lease.
    Delete,
    /// A user removes the annotation.
    Strip,
    /// An agent opens a session with a replica.
    Connect(usize, usize),
    /// The replica sends the agent a change.
    Batch(usize),
    /// The agent stores its token.
    Store(usize),
    /// The agent restarts with its stored token.
    Restart(usize),
    /// The hub's etcd is backed up.
    BackUp,
    /// The hub's etcd is restored from the backup.
    Restore,
}

fn event() -> impl Strategy<Value = Event> {
    let agent = || 0..AGENTS;
    prop_oneof![
        36 => simulation::event(REPLICAS).prop_map(Event::Election),
        3 => (0..REPLICAS).prop_map(Event::Crash),
        1 => Just(Event::Delete),
        1 => Just(Event::Strip),
        8 => (agent(), 0..REPLICAS).prop_map(|(agent, replica)| Event::Connect(agent, replica)),
        6 => agent().prop_map(Event::Batch),
        3 => agent().prop_map(Event::Store),
        2 => agent().prop_map(Event::Restart),
        1 => Just(Event::BackUp),
        1 => Just(Event::Restore),
    ]
}

/// A replica, and which process of all that there were it is.
struct Replica {
    candidate: Candidate,
    life: u64,
}

impl Process for Replica {
    fn next(&mut self, now: Instant, wall: Timestamp) -> Step {
        self.candidate.next(true, now, wall)
    }

    fn observed(&mut self, lease: Option<Lease>, now: Instant) {
        self.candidate.observe(lease, now);
    }

    fn watched(&mut self, lease: Option<Lease>, now: Instant) {
        self.candidate.received(lease, now);
    }

    fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.candidate.record_write(lease, sent, now);
    }

    fn failed(&mut self, changed: bool, now: Instant) {
        self.candidate.failed(changed, now);
    }

    fn release(&mut self) -> Option<Lease> {
        self.candidate.release()
    }
}

#[derive(Default)]
struct Agent {
    /// The replica of its session, and which process that was.
    session: Option<(usize, u64)>,
    remembered: Option<Bytes>,
    stored: Option<Bytes>,
}

struct World {
    election: Election<Replica>,
    lives: u64,
    agents: Vec<Agent>,
    key: RevisionKey,
    /// The Lease, and the last version.
    backup: Option<(Lease, u64)>,
    /// The Lease's version in the backup from which the hub was restored. From then on versions are odd.
    restored: Option<u64>,
    /// The replicas that have taken or released the Lease since the restore. The Lease holds the
    /// last version of each.
    leaders_since: BTreeSet<(u64, String)>,
}

fn version(lease: &Lease) -> u64 {
    lease
        .metadata
        .resource_version
        .as_deref()
        .unwrap()
        .parse()
        .unwrap()
}

impl World {
    /// Creates a hub with this many former leaders, and agents with tokens of some of them.
    fn new(leaders: usize) -> Self {
        let mut world = Self {
            election: Election::new(Instant::now() + Duration::from_secs(100)),
            lives: 0,
            agents: (0..AGENTS).map(|_| Agent::default()).collect(),
            key: RevisionKey::new(b"key"),
            backup: None,
            restored: None,
            leaders_since: BTreeSet::new(),
        };
        for leader in 0..leaders {
            world.election.processes = vec![world.started(0)];
            world.happen(Event::Election(Of::Act(0))).unwrap();
            for agent in (0..AGENTS).filter(|agent| agent * leaders / AGENTS == leader) {
                for event in [
                    Event::Connect(agent, 0),
                    Event::Batch(agent),
                    Event::Store(agent),
                ] {
                    world.happen(event).unwrap();
                }
            }
        }
        world.election.processes = (0..REPLICAS).map(|number| world.started(number)).collect();
        world
    }

    fn started(&mut self, number: usize) -> Replica {
        self.lives += 1;
        let me = Holder {
            name: format!("p{number}"),
            is_unique: true,
            random: random(self.lives),
            address: None,
        };
        Replica {
            candidate: Candidate::new(me, TIMING),
            life: self.lives,
        }
    }

    fn candidate(&self, replica: usize) -> &Candidate {
        &self.election.processes[replica].candidate
    }

    /// Delivers the current Lease to all replicas.
    fn show_all(&mut self) {
        let (lease, now) = (&self.election.lease, self.election.now);
        self.election
            .processes
            .iter_mut()
            .for_each(|replica| replica.observed(lease.clone(), now));
    }

    /// Whether a replica that starts now can read the history.
    fn has_line(&self) -> bool {
        self.election
            .lease
            .as_ref()
            .and_then(LeaderHistory::of)
            .is_some()
    }

    /// Whether a restore removed the state of the token.
    fn is_lost(&self, history_token: &HistoryToken) -> bool {
        self.restored.is_some_and(|backup| {
            history_token.version > backup && history_token.version.is_multiple_of(2)
        })
    }

    /// Whether a replica leads. A leader from before the restore that has not detected it leads
    /// briefly, and does not count.
    fn leads(&self, replica: usize) -> bool {
        let Some(existing) = self.candidate(replica).position(self.election.now) else {
            return false;
        };
        let newest = existing.line.newest().unwrap();
        self.restored.is_none()
            || self
                .leaders_since
                .contains(&(newest.term, newest.random.clone()))
    }

    fn connect(&mut self, agent: usize, replica: usize) -> Result<(), TestCaseError> {
        self.agents[agent].session = None;
        let Some(existing) = self.candidate(replica).position(self.election.now) else {
            return Ok(());
        };
        let session = Some((replica, self.election.processes[replica].life));
        let Some(sealed) = &self.agents[agent].remembered else {
            self.agents[agent].session = session;
            return Ok(());
        };
        let history_token = HistoryToken::open(sealed, &self.key).unwrap();
        let divergence = judge(
            &Facts {
                line: &existing.line,
                since: existing.since,
                to: to(),
            },
            &history_token,
        );
        if self.leads(replica) {
            prop_assert_eq!(
                divergence.is_some(),
                self.is_lost(&history_token),
                "{:?} of {:?}",
                divergence,
                history_token
            );
        }
        if divergence.is_none() {
            self.agents[agent].session = session;
        }
        Ok(())
    }

    fn batch(&mut self, agent: usize) {
        let Some((replica, life)) = self.agents[agent].session else {
            return;
        };
        let Some(replica) = self
            .election
            .processes
            .get(replica)
            .filter(|replica| replica.life == life)
        else {
            return;
        };
        let Some(existing) = replica.candidate.position(self.election.now) else {
            return;
        };
        let newest = existing.line.newest().unwrap();
        let history_token = HistoryToken::of(newest, (existing.version, existing.renewed_at), to());
        self.agents[agent].remembered = Some(history_token.seal(&self.key));
    }

    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            // A Lease that no replica has taken or released since the restore names the former
            // leader.
            Event::Election(Of::Touch)
                if self.restored.is_some() && self.leaders_since.is_empty() => {}
            // A replica of the hub reads the Lease only when it decides to.
            Event::Election(Of::Read(_)) => {}
            Event::Election(event) => {
                let before = self.election.version;
                self.election.happen(event);
                let written = self
                    .election
                    .lease
                    .as_ref()
                    .filter(|lease| version(lease) > before);
                if self.restored.is_some() {
                    let newest = written
                        .and_then(LeaderHistory::of)
                        .and_then(|line| line.newest().cloned());
                    self.leaders_since
                        .extend(newest.map(|leader| (leader.term, leader.random)));
                }
            }
            // The manual: the Lease is left alone while no hub runs.
            Event::Crash(number) if self.has_line() => {
                let started = self.started(number);
                self.election.replace(number, started);
            }
            // The history of a deleted Lease cannot be restored from a backup either.
            Event::Delete if self.backup.is_none() => {
                self.show_all();
                let Election {
                    lease,
                    now,
                    requests,
                    processes,
                    ..
                } = &mut self.election;
                *lease = None;
                requests.retain(|request| request.write.metadata.uid.is_some());
                let others = processes
                    .iter_mut()
                    .filter(|replica| replica.candidate.lead(*now).is_none());
                others.for_each(|replica| replica.observed(None, *now));
            }
            Event::Strip if self.restored.is_none() => {
                self.show_all();
                self.election.touch();
                self.election
                    .lease
                    .iter_mut()
                    .for_each(|lease| lease.metadata.annotations = None);
            }
            Event::Connect(agent, replica) => self.connect(agent, replica)?,
            Event::Batch(agent) => self.batch(agent),
            Event::Store(agent) => {
                self.agents[agent].stored = self.agents[agent].remembered.clone()
            }
            Event::Restart(agent) => {
                let stored = self.agents[agent].stored.clone();
                self.agents[agent] = Agent {
                    session: None,
                    remembered: stored.clone(),
                    stored,
                };
            }
            Event::BackUp if self.has_line() && self.restored.is_none() => {
                self.backup = self
                    .election
                    .lease
                    .clone()
                    .map(|lease| (lease, self.election.version));
            }
            Event::Restore if self.restored.is_none() => {
                let Some((lease, counted)) = self.backup.clone() else {
                    return Ok(());
                };
                self.restored = Some(version(&lease));
                (self.election.version, self.election.lease) = (counted + 1, Some(lease));
                (0..REPLICAS).for_each(|number| self.election.happen(Of::Abandon(number)));
                self.election.requests.clear();
            }
            _ => {}
        }
        Ok(())
    }
}

/// After any history without further failures, a process leads soon and checks every agent.
fn check(leaders: usize, events: impl IntoIterator<Item = Event>) -> Result<(), TestCaseError> {
    let mut world = World::new(leaders);
    for event in events {
        world.happen(event)?;
    }
    world.election.settle();
    let limit = world.election.now + 3 * TIMING.lease;
    loop {
        for number in 0..REPLICAS {
            world.happen(Event::Election(Of::Act(number)))?;
        }
        if let Some(leader) = (0..REPLICAS).find(|number| world.leads(*number)) {
            for agent in 0..AGENTS {
                world.happen(Event::Connect(agent, leader))?;
            }
            return Ok(());
        }
        prop_assert!(world.election.now < limit, "no process leads");
        world.happen(Event::Election(Of::Pass(500)))?;
    }
}

/// The leader issues a token with a version that a restore removes. It detects the restore, and
/// releases the Lease before it has taken it again: its write gives the Lease a version above the
/// lost one.
#[test]
fn lease_released_after_a_restore_hides_nothing() {
    let leads_and_renews = [Of::Act(0), Of::Touch, Of::Pass(2000), Of::Act(0)].map(Event::Election);
    let restored = [Event::BackUp, Event::Election(Of::Act(0)), Event::Restore];
    let tells = [
        Event::Election(Of::Pass(2000)),
        Event::Election(Of::Watch(0)),
        Event::Connect(2, 0),
        Event::Batch(2),
    ];
    let gives_away = [Of::Send(0), Of::Abandon(0), Of::Release(0)].map(Event::Election);
    let events = leads_and_renews
        .into_iter()
        .chain(restored)
        .chain(tells)
        .chain(gives_away);
    check(0, events).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn members_diverge_exactly_after_a_restore(
        leaders in prop_oneof![99 => 0usize..4, 1 => 250usize..300],
        events in proptest::collection::vec(event(), 0..150),
    ) {
        check(leaders, events)?;
    }
}
