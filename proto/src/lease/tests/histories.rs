//! Any history of some processes over one Lease: requests that are late, lost, or whose answers are lost, processes that
//! are paused, die and come again, a Lease that is removed. Never do two lead at one time, and terms rise.
use proptest::prelude::*;

use super::*;

const MEMBERS: usize = 3;

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Time passes (milliseconds).
    Pass(u64),
    /// A process that is not paused does what it wants to do; the request is answered at once.
    Act(usize),
    /// The same, but the request stays under way.
    Send(usize),
    /// A request under way arrives, and is answered.
    Arrive(usize),
    /// A request under way arrives, and its answer is lost.
    ArriveUnheard(usize),
    /// The process gives up its request, which may arrive later.
    GiveUp(usize),
    /// The watch tells a process of the Lease as it is.
    Tell(usize),
    /// The process looks.
    Look(usize),
    /// The process gives the Lease away.
    Release(usize),
    /// The process dies, and another one of its name starts.
    Restart(usize),
    /// Somebody removes the Lease; the processes are told.
    Remove,
    /// Somebody else writes to the Lease, and changes nothing of what its holder wrote.
    Touch,
}

fn event() -> impl Strategy<Value = Event> {
    let who = || 0..MEMBERS;
    prop_oneof![
        6 => (0u64..6_000).prop_map(Event::Pass),
        1 => (6_000u64..40_000).prop_map(Event::Pass),
        12 => who().prop_map(Event::Act),
        3 => who().prop_map(Event::Send),
        2 => (0usize..4).prop_map(Event::Arrive),
        2 => (0usize..4).prop_map(Event::ArriveUnheard),
        2 => who().prop_map(Event::GiveUp),
        4 => who().prop_map(Event::Tell),
        4 => who().prop_map(Event::Look),
        1 => who().prop_map(Event::Release),
        1 => who().prop_map(Event::Restart),
        1 => Just(Event::Remove),
        2 => Just(Event::Touch),
    ]
}

struct Request {
    from: usize,
    /// Which life of the process sent it, and whether it still waits for the answer.
    waits: bool,
    write: Lease,
    sent: Instant,
}

struct World {
    start: Instant,
    now: Instant,
    lease: Option<Lease>,
    version: u64,
    epoch: u64,
    processes: Vec<Candidate>,
    lives: u64,
    requests: Vec<Request>,
    /// The terms that somebody led in, with who that was (one life of one process).
    led: BTreeMap<(String, u64), String>,
}

impl World {
    fn new(start: Instant) -> Self {
        let mut world = Self {
            start,
            now: start,
            lease: None,
            version: 0,
            epoch: 0,
            processes: vec![],
            lives: 0,
            requests: vec![],
            led: BTreeMap::new(),
        };
        world.processes = (0..MEMBERS).map(|number| world.born(number)).collect();
        world
    }

    fn born(&mut self, number: usize) -> Candidate {
        self.lives += 1;
        let mut born = Candidate::new(NAME, me(&format!("p{number}"), &self.lives.to_string(), true), TIMING);
        born.saw(self.lease.clone(), self.now);
        born
    }

    /// The server's answer to a write: what it makes of it, or a conflict.
    fn take(&mut self, write: &Lease) -> Option<Lease> {
        let (meant, there) = (&write.metadata, self.lease.as_ref().map(|lease| &lease.metadata));
        let fits = match there {
            Some(there) => there.uid == meant.uid && there.resource_version == meant.resource_version,
            None => meant.uid.is_none(),
        };
        if !fits {
            return None;
        }
        self.version += 1;
        self.epoch += u64::from(self.lease.is_none());
        let lease = stored(write.clone(), &format!("e{}", self.epoch), self.version);
        self.lease = Some(lease.clone());
        Some(lease)
    }

    fn waits(&self, number: usize) -> bool {
        self.requests.iter().any(|request| request.from == number && request.waits)
    }

    fn step(&mut self, number: usize) -> Option<Lease> {
        if self.waits(number) {
            return None;
        }
        let wall = Timestamp::UNIX_EPOCH + (self.now - self.start);
        match self.processes[number].next(true, self.now, wall) {
            Step::Look => self.processes[number].saw(self.lease.clone(), self.now),
            Step::Create(lease) | Step::Replace(lease) => return Some(lease),
            Step::Wait(_) | Step::Remove(_) => {}
        }
        None
    }

    fn arrive(&mut self, index: usize, heard: bool) {
        if index >= self.requests.len() {
            return;
        }
        let request = self.requests.remove(index);
        let answer = self.take(&request.write);
        match answer {
            _ if !request.waits => {}
            Some(lease) if heard => self.processes[request.from].wrote(lease, request.sent, self.now),
            None if heard => self.processes[request.from].failed(true, self.now),
            _ => self.processes[request.from].failed(false, self.now),
        }
    }

    fn happen(&mut self, event: Event) {
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
            Event::Arrive(index) => self.arrive(index, true),
            Event::ArriveUnheard(index) => self.arrive(index, false),
            Event::GiveUp(number) => {
                for request in self.requests.iter_mut().filter(|request| request.from == number && request.waits) {
                    request.waits = false;
                    self.processes[number].failed(false, self.now);
                }
            }
            Event::Tell(number) if !self.waits(number) => {
                self.processes[number].heard(self.lease.clone(), self.now);
            }
            Event::Look(number) if !self.waits(number) => self.processes[number].saw(self.lease.clone(), self.now),
            Event::Release(number) if !self.waits(number) => {
                if let Some(write) = self.processes[number].release() {
                    self.take(&write);
                    self.processes[number].failed(true, self.now);
                }
            }
            // Who starts while there is no Lease cannot know of one that was.
            Event::Restart(number) if self.lease.is_some() => {
                self.requests.iter_mut().filter(|request| request.from == number).for_each(|r| r.waits = false);
                self.processes[number] = self.born(number);
            }
            Event::Remove => {
                let Some(removed) = self.lease.take() else { return };
                self.requests.retain(|request| request.write.metadata.uid.is_some());
                // The others had seen it, and are told; who leads may hear of it late.
                for number in 0..MEMBERS {
                    if self.processes[number].lead(self.now).is_none() {
                        self.processes[number].saw(Some(removed.clone()), self.now);
                        self.processes[number].saw(None, self.now);
                    }
                }
            }
            Event::Touch => {
                self.version += 1;
                let version = Some(self.version.to_string());
                self.lease.iter_mut().for_each(|lease| lease.metadata.resource_version.clone_from(&version));
            }
            Event::Tell(_) | Event::Look(_) | Event::Release(_) | Event::Restart(_) => {}
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let leads: Vec<_> = self
            .processes
            .iter()
            .filter_map(|process| Some((process.me.identity(), process.lead(self.now)?)))
            .collect();
        prop_assert!(leads.len() <= 1, "two lead: {leads:?}");
        for (who, lead) in leads {
            let term = (lead.epoch.clone(), lead.term);
            let higher = self.led.keys().any(|(epoch, known)| *epoch == term.0 && *known > term.1);
            prop_assert!(!higher, "a term lower than one before: {term:?}");
            let known = self.led.entry(term).or_insert_with(|| who.clone());
            prop_assert_eq!(&*known, &who, "one term of two processes");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn never_do_two_lead_and_terms_rise(events in prop::collection::vec(event(), 0..120)) {
        let mut world = World::new(Instant::now() + Duration::from_secs(100));
        for event in events {
            world.happen(event);
            world.check()?;
        }
        // Whatever happened: when all goes well again, somebody leads soon.
        world.requests.clear();
        for number in 0..MEMBERS {
            world.processes[number].failed(true, world.now);
        }
        let limit = world.now + 2 * TIMING.lease + TIMING.renew;
        while !world.processes.iter().any(|process| process.lead(world.now).is_some()) {
            prop_assert!(world.now < limit, "nobody leads");
            for number in 0..MEMBERS {
                world.happen(Event::Act(number));
            }
            world.happen(Event::Pass(500));
            world.check()?;
        }
    }
}
