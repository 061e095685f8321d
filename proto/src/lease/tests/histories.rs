//! Simulates any history of some processes over one Lease: requests that are late or lost, lost
//! answers, processes that pause, die and restart, a deleted Lease. No two processes lead at one
//! time, and terms rise.
use proptest::prelude::*;

use super::simulation::{Election, Process};
use super::*;

const PROCESSES: usize = 3;

/// An event of a history.
#[derive(Clone, Copy, Debug)]
enum Event {
    Of(simulation::Event),
    /// A process dies, and another one with its name starts.
    Restart(usize),
    /// A user deletes the Lease. The watch delivers that to all processes that do not lead.
    Remove,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        38 => simulation::event(PROCESSES).prop_map(Event::Of),
        1 => (0..PROCESSES).prop_map(Event::Restart),
        1 => Just(Event::Remove),
    ]
}

impl Process for Candidate {
    fn next(&mut self, now: Instant, wall: Timestamp) -> Step {
        self.next(true, now, wall)
    }

    fn observed(&mut self, lease: Option<Lease>, now: Instant) {
        self.observe(lease, now);
    }

    fn watched(&mut self, lease: Option<Lease>, now: Instant) {
        self.received(lease, now);
    }

    fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.record_write(lease, sent, now);
    }

    fn failed(&mut self, changed: bool, now: Instant) {
        self.failed(changed, now);
    }

    fn release(&mut self) -> Option<Lease> {
        self.release()
    }
}

struct World {
    election: Election<Candidate>,
    starts: u64,
    /// The terms in which a process led, with which process that was (one life of one process), and until when.
    led: BTreeMap<(String, u64), (String, Instant)>,
}

impl World {
    fn new(start: Instant) -> Self {
        let mut world = Self {
            election: Election::new(start),
            starts: 0,
            led: BTreeMap::new(),
        };
        world.election.processes = (0..PROCESSES).map(|number| world.started(number)).collect();
        world
    }

    fn started(&mut self, number: usize) -> Candidate {
        self.starts += 1;
        let mut started = Candidate::new(
            NAME,
            me(&format!("p{number}"), &self.starts.to_string(), true),
            TIMING,
        );
        started.observe(self.election.lease.clone(), self.election.now);
        started
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Of(event) => self.election.happen(event),
            // A process that starts while there is no Lease cannot know a former one.
            Event::Restart(number) if self.election.lease.is_some() => {
                let started = self.started(number);
                self.election.replace(number, started);
            }
            Event::Restart(_) => {}
            Event::Remove => {
                let election = &mut self.election;
                let Some(removed) = election.lease.take() else {
                    return;
                };
                election
                    .requests
                    .retain(|request| request.write.metadata.uid.is_some());
                for process in &mut election.processes {
                    if process.lead(election.now).is_none() {
                        process.observe(Some(removed.clone()), election.now);
                        process.observe(None, election.now);
                    }
                }
            }
        }
    }

    fn leads(&self) -> Vec<(String, &Lead, Option<Instant>)> {
        let processes = self.election.processes.iter();
        processes
            .filter_map(|process| {
                let lead = process.lead(self.election.now)?;
                Some((process.me.identity(), lead, process.free_since()))
            })
            .collect()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let leads = self.leads();
        prop_assert!(leads.len() <= 1, "two lead: {leads:?}");
        let leads: Vec<_> = leads
            .into_iter()
            .map(|(who, lead, free_since)| (who, (lead.epoch.clone(), lead.term), free_since))
            .collect();
        for (who, term, free_since) in leads {
            let higher = self
                .led
                .keys()
                .any(|(epoch, known)| *epoch == term.0 && *known > term.1);
            prop_assert!(!higher, "a term lower than one before: {term:?}");
            let (now, others) = (self.election.now, self.led.values());
            let last = others
                .filter(|(other, _)| *other != who)
                .map(|(_, at)| *at)
                .max();
            prop_assert!(
                free_since.is_none_or(|since| last.is_none_or(|last| last <= since)),
                "{who} takes it for free while another leads"
            );
            let known = self.led.entry(term).or_insert_with(|| (who.clone(), now));
            prop_assert_eq!(&known.0, &who, "one term of two processes");
            known.1 = now;
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
        // After any history, a process leads soon once requests succeed again.
        world.election.settle();
        let limit = world.election.now + 2 * TIMING.lease + TIMING.renew;
        while world.leads().is_empty() {
            prop_assert!(world.election.now < limit, "no process leads");
            for number in 0..PROCESSES {
                world.happen(Event::Of(simulation::Event::Act(number)));
            }
            world.happen(Event::Of(simulation::Event::Pass(500)));
            world.check()?;
        }
    }
}
