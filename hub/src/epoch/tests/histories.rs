//! Any history of three replicas over one Lease, and of agents that come and go with what they remember: requests that
//! are late or whose answers are lost, replicas that crash at any point, a Lease that is deleted or loses its annotation
//! while a replica lives, any number of leaders before. A member is in doubt exactly when a restore took away what it was
//! told.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;

use super::*;
use crate::lease::decide::{Candidate, Step};
use crate::lease::{Holder, Timing};

const REPLICAS: usize = 3;
const AGENTS: usize = 3;
const TIMING: Timing =
    Timing { lease: Duration::from_secs(15), renew: Duration::from_secs(10), retry: Duration::from_secs(2) };

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Time passes (milliseconds).
    Pass(u64),
    /// A replica does what it decides; its request is answered at once.
    Act(usize),
    /// The same, but the request stays under way.
    Send(usize),
    /// A request under way arrives and is answered, or its answer is lost.
    Arrive(usize, bool),
    /// A replica gives up its request, which may arrive later.
    GiveUp(usize),
    /// The watch tells a replica of the Lease.
    Notice(usize),
    /// A replica gives the Lease away.
    Release(usize),
    /// A replica crashes, and another process of its name starts.
    Crash(usize),
    /// A person deletes the Lease.
    Delete,
    /// A person takes the annotation away.
    Strip,
    /// Somebody else writes to the Lease.
    Touch,
    /// An agent opens a session with a replica.
    Connect(usize, usize),
    /// The replica sends the agent a change.
    Batch(usize),
    /// The agent stores what it remembers.
    Store(usize),
    /// The agent crashes, and begins with what it has stored.
    Restart(usize),
    /// The hub's etcd is backed up.
    BackUp,
    /// The hub's etcd is restored from the backup.
    Restore,
}

fn event() -> impl Strategy<Value = Event> {
    let replica = || 0..REPLICAS;
    let agent = || 0..AGENTS;
    prop_oneof![
        5 => (0u64..6_000).prop_map(Event::Pass),
        2 => (6_000u64..40_000).prop_map(Event::Pass),
        14 => replica().prop_map(Event::Act),
        3 => replica().prop_map(Event::Send),
        3 => (0usize..4, any::<bool>()).prop_map(|(index, heard)| Event::Arrive(index, heard)),
        1 => replica().prop_map(Event::GiveUp),
        4 => replica().prop_map(Event::Notice),
        1 => replica().prop_map(Event::Release),
        3 => replica().prop_map(Event::Crash),
        1 => Just(Event::Delete),
        1 => Just(Event::Strip),
        1 => Just(Event::Touch),
        8 => (agent(), replica()).prop_map(|(agent, replica)| Event::Connect(agent, replica)),
        6 => agent().prop_map(Event::Batch),
        3 => agent().prop_map(Event::Store),
        2 => agent().prop_map(Event::Restart),
        1 => Just(Event::BackUp),
        1 => Just(Event::Restore),
    ]
}

struct Request {
    from: usize,
    waits: bool,
    write: Lease,
    sent: Instant,
}

#[derive(Default)]
struct Agent {
    /// The replica of its session, and which life of it.
    session: Option<(usize, u64)>,
    remembered: Option<Bytes>,
    stored: Option<Bytes>,
}

struct World {
    start: Instant,
    now: Instant,
    lease: Option<Lease>,
    /// Versions are even before a restore and odd after it.
    version: u64,
    epoch: u64,
    replicas: Vec<(Candidate, u64)>,
    lives: u64,
    requests: Vec<Request>,
    agents: Vec<Agent>,
    key: RevisionKey,
    backup: Option<(Lease, u64)>,
    /// The Lease's version in the backup from which the hub was restored.
    restored: Option<u64>,
    /// Who has taken the lead since the restore.
    leaders_since: BTreeSet<(u64, String)>,
}

fn version(lease: &Lease) -> u64 {
    lease.metadata.resource_version.as_deref().unwrap().parse().unwrap()
}

impl World {
    /// A hub that has had so many leaders. The agents remember some of them.
    fn new(leaders: usize) -> Self {
        let now = Instant::now() + Duration::from_secs(100);
        let mut world = Self {
            start: now,
            now,
            lease: None,
            version: 0,
            epoch: 0,
            replicas: vec![],
            lives: 0,
            requests: vec![],
            agents: (0..AGENTS).map(|_| Agent::default()).collect(),
            key: RevisionKey::new(b"key"),
            backup: None,
            restored: None,
            leaders_since: BTreeSet::new(),
        };
        for leader in 0..leaders {
            world.replicas = vec![world.born(0)];
            world.happen(Event::Act(0)).unwrap();
            for agent in (0..AGENTS).filter(|agent| agent * leaders / AGENTS == leader) {
                for event in [Event::Connect(agent, 0), Event::Batch(agent), Event::Store(agent)] {
                    world.happen(event).unwrap();
                }
            }
        }
        world.replicas = (0..REPLICAS).map(|number| world.born(number)).collect();
        world
    }

    /// A process that starts, and which life of its name it is.
    fn born(&mut self, number: usize) -> (Candidate, u64) {
        self.lives += 1;
        let name = format!("p{number}");
        let me = Holder { name, is_unique: true, random: random(self.lives), address: None };
        (Candidate::new(me, TIMING), self.lives)
    }

    /// The server's answer to a write: what it makes of it, or a conflict.
    fn take(&mut self, write: &Lease) -> Option<Lease> {
        let (wanted, there) = (&write.metadata, self.lease.as_ref().map(|lease| &lease.metadata));
        let fits = match there {
            Some(there) => there.uid == wanted.uid && there.resource_version == wanted.resource_version,
            None => wanted.uid.is_none(),
        };
        if !fits {
            return None;
        }
        self.version += 2;
        let mut lease = write.clone();
        if self.lease.is_none() {
            self.epoch += 1;
            lease.metadata.uid = Some(format!("{:08x}-0000-4000-8000-000000000001", self.epoch));
        }
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        if self.restored.is_some() {
            let newest = Line::of(&lease).and_then(|line| line.newest().cloned());
            self.leaders_since.extend(newest.map(|leader| (leader.term, leader.random)));
        }
        Some(lease)
    }

    fn waits(&self, number: usize) -> bool {
        self.requests.iter().any(|request| request.from == number && request.waits)
    }

    /// The write that a replica decides to send.
    fn step(&mut self, number: usize) -> Option<Lease> {
        if self.waits(number) {
            return None;
        }
        let wall = Timestamp::UNIX_EPOCH + (self.now - self.start);
        loop {
            match self.replicas[number].0.next(true, self.now, wall) {
                Step::Look => self.replicas[number].0.saw(self.lease.clone(), self.now),
                Step::Create(lease) | Step::Replace(lease) => return Some(lease),
                Step::Wait(_) | Step::Remove(_) => return None,
            }
        }
    }

    fn arrive(&mut self, index: usize, heard: bool) {
        if index >= self.requests.len() {
            return;
        }
        let Request { from, waits, write, sent } = self.requests.remove(index);
        let answer = self.take(&write);
        match answer {
            _ if !waits => {}
            Some(lease) if heard => self.replicas[from].0.wrote(lease, sent, self.now),
            None if heard => self.replicas[from].0.failed(true, self.now),
            _ => self.replicas[from].0.failed(false, self.now),
        }
    }

    /// All replicas have seen the Lease as it is now.
    fn notice_all(&mut self) {
        for (replica, _) in &mut self.replicas {
            replica.saw(self.lease.clone(), self.now);
        }
    }

    /// Whether who starts now learns who has led.
    fn has_line(&self) -> bool {
        self.lease.as_ref().and_then(Line::of).is_some()
    }

    /// Whether a restore took away what the witness says.
    fn is_lost(&self, witness: &Witness) -> bool {
        self.restored.is_some_and(|backup| witness.version > backup && witness.version.is_multiple_of(2))
    }

    /// Whether a replica leads. Who led before the restore and has not noticed it leads for a moment more, and does not count.
    fn leads(&self, replica: usize) -> bool {
        let Some(standing) = self.replicas[replica].0.standing(self.now) else { return false };
        let newest = standing.line.newest().unwrap();
        self.restored.is_none() || self.leaders_since.contains(&(newest.term, newest.random.clone()))
    }

    fn connect(&mut self, agent: usize, replica: usize) -> Result<(), TestCaseError> {
        self.agents[agent].session = None;
        let (candidate, life) = &self.replicas[replica];
        let Some(standing) = candidate.standing(self.now) else { return Ok(()) };
        let session = Some((replica, *life));
        let Some(sealed) = &self.agents[agent].remembered else {
            self.agents[agent].session = session;
            return Ok(());
        };
        let witness = Witness::open(sealed, &self.key).unwrap();
        let doubt = judge(&Facts { line: &standing.line, since: standing.since, to: to() }, &witness);
        if self.leads(replica) {
            prop_assert_eq!(doubt.is_some(), self.is_lost(&witness), "{:?} of {:?}", doubt, witness);
        }
        if doubt.is_none() {
            self.agents[agent].session = session;
        }
        Ok(())
    }

    fn batch(&mut self, agent: usize) {
        let Some((replica, life)) = self.agents[agent].session else { return };
        let Some((candidate, _)) = self.replicas.get(replica).filter(|(_, now)| *now == life) else { return };
        let Some(standing) = candidate.standing(self.now) else { return };
        let newest = standing.line.newest().unwrap();
        let witness = Witness::of(newest, (standing.version, standing.renewed_at), to());
        self.agents[agent].remembered = Some(witness.seal(&self.key));
    }

    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Pass(milliseconds) => self.now += Duration::from_millis(milliseconds),
            Event::Act(number) => {
                if let Some(write) = self.step(number) {
                    self.requests.push(Request { from: number, waits: true, write, sent: self.now });
                    self.arrive(self.requests.len() - 1, true);
                }
            }
            Event::Send(number) => {
                if let Some(write) = self.step(number) {
                    self.requests.push(Request { from: number, waits: true, write, sent: self.now });
                }
            }
            Event::Arrive(index, heard) => self.arrive(index, heard),
            Event::GiveUp(number) => {
                for request in self.requests.iter_mut().filter(|request| request.from == number && request.waits) {
                    request.waits = false;
                    self.replicas[number].0.failed(false, self.now);
                }
            }
            Event::Notice(number) if !self.waits(number) => {
                self.replicas[number].0.heard(self.lease.clone(), self.now);
            }
            Event::Release(number) if !self.waits(number) => {
                if let Some(write) = self.replicas[number].0.release() {
                    self.take(&write);
                    self.replicas[number].0.failed(true, self.now);
                }
            }
            // The manual: the Lease is left alone while no hub runs.
            Event::Crash(number) if self.has_line() => {
                self.requests.iter_mut().filter(|request| request.from == number).for_each(|r| r.waits = false);
                self.replicas[number] = self.born(number);
            }
            // What a deleted Lease said cannot be restored from a backup either.
            Event::Delete if self.backup.is_none() => {
                self.notice_all();
                self.lease = None;
                self.requests.retain(|request| request.write.metadata.uid.is_some());
                for (replica, _) in &mut self.replicas {
                    if replica.lead(self.now).is_none() {
                        replica.saw(None, self.now);
                    }
                }
            }
            Event::Strip if self.restored.is_none() => {
                self.notice_all();
                self.version += 2;
                let version = Some(self.version.to_string());
                if let Some(lease) = &mut self.lease {
                    lease.metadata.resource_version.clone_from(&version);
                    lease.metadata.annotations = None;
                }
            }
            Event::Touch if self.restored.is_none() || !self.leaders_since.is_empty() => {
                self.version += 2;
                let version = Some(self.version.to_string());
                self.lease.iter_mut().for_each(|lease| lease.metadata.resource_version.clone_from(&version));
            }
            Event::Connect(agent, replica) => self.connect(agent, replica)?,
            Event::Batch(agent) => self.batch(agent),
            Event::Store(agent) => self.agents[agent].stored = self.agents[agent].remembered.clone(),
            Event::Restart(agent) => {
                let stored = self.agents[agent].stored.clone();
                self.agents[agent] = Agent { session: None, remembered: stored.clone(), stored };
            }
            Event::BackUp if self.has_line() && self.restored.is_none() => {
                self.backup = self.lease.clone().map(|lease| (lease, self.version));
            }
            Event::Restore if self.restored.is_none() => {
                let Some((lease, counted)) = self.backup.clone() else { return Ok(()) };
                (self.restored, self.version) = (Some(version(&lease)), counted + 1);
                self.lease = Some(lease);
                for request in std::mem::take(&mut self.requests).into_iter().filter(|request| request.waits) {
                    self.replicas[request.from].0.failed(false, self.now);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn members_are_in_doubt_exactly_after_a_restore(
        leaders in prop_oneof![99 => 0usize..4, 1 => 250usize..300],
        events in proptest::collection::vec(event(), 0..150),
    ) {
        let mut world = World::new(leaders);
        for event in events {
            world.happen(event)?;
        }
        // Whatever happened: when all goes well again, somebody leads soon, and judges everybody.
        world.requests.clear();
        for (replica, _) in &mut world.replicas {
            replica.failed(true, world.now);
        }
        let limit = world.now + 3 * TIMING.lease;
        loop {
            for number in 0..REPLICAS {
                world.happen(Event::Act(number))?;
            }
            if let Some(leader) = (0..REPLICAS).find(|number| world.leads(*number)) {
                for agent in 0..AGENTS {
                    world.happen(Event::Connect(agent, leader))?;
                }
                break;
            }
            prop_assert!(world.now < limit, "nobody leads");
            world.happen(Event::Pass(500))?;
        }
    }
}
