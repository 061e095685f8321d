//! A simulated API server with one Lease, and the processes that compete for it. Requests can be late, and their answers lost.
//! The hub's tests use this file, too.
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use proptest::prelude::*;

use super::Step;

/// An event of a history.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Time passes (milliseconds).
    Pass(u64),
    /// A process sends what it decides to send; the request is answered at once.
    Act(usize),
    /// A process sends a request that stays under way.
    Send(usize),
    /// A request under way arrives; whether its answer arrives, too.
    Arrive(usize, bool),
    /// A process stops waiting for its request, which may still arrive.
    Abandon(usize),
    /// The watch delivers the Lease to a process.
    Watch(usize),
    /// A process reads the Lease.
    Read(usize),
    /// A process releases the Lease.
    Release(usize),
    /// Another program writes to the Lease, and changes nothing that its holder wrote.
    Touch,
}

/// Returns events of a number of processes.
pub fn event(processes: usize) -> impl Strategy<Value = Event> {
    let process = || 0..processes;
    prop_oneof![
        6 => (0u64..6_000).prop_map(Event::Pass),
        1 => (6_000u64..40_000).prop_map(Event::Pass),
        14 => process().prop_map(Event::Act),
        3 => process().prop_map(Event::Send),
        4 => (0usize..4, any::<bool>()).prop_map(|(request, is_answered)| Event::Arrive(request, is_answered)),
        2 => process().prop_map(Event::Abandon),
        4 => process().prop_map(Event::Watch),
        3 => process().prop_map(Event::Read),
        1 => process().prop_map(Event::Release),
        2 => Just(Event::Touch),
    ]
}

/// A process that competes for the Lease.
pub trait Process {
    fn next(&mut self, now: Instant, wall: Timestamp) -> Step;
    fn observed(&mut self, lease: Option<Lease>, now: Instant);
    fn watched(&mut self, lease: Option<Lease>, now: Instant);
    fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant);
    fn failed(&mut self, changed: bool, now: Instant);
    fn release(&mut self) -> Option<Lease>;
}

pub struct Request {
    from: usize,
    /// Whether the process that sent it waits for the answer.
    waits: bool,
    pub write: Lease,
    sent: Instant,
}

pub struct Election<P> {
    start: Instant,
    pub now: Instant,
    pub lease: Option<Lease>,
    /// The version of the Lease. It rises by two, so that versions after a restore differ from
    /// those before.
    pub version: u64,
    leases: u64,
    pub processes: Vec<P>,
    pub requests: Vec<Request>,
}

impl<P: Process> Election<P> {
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            now: start,
            lease: None,
            version: 0,
            leases: 0,
            processes: vec![],
            requests: vec![],
        }
    }

    /// Handles a write as the API server does; `None`: a conflict.
    fn write(&mut self, write: &Lease) -> Option<Lease> {
        let (wanted, there) = (
            &write.metadata,
            self.lease.as_ref().map(|lease| &lease.metadata),
        );
        let fits = match there {
            Some(there) => {
                there.uid == wanted.uid && there.resource_version == wanted.resource_version
            }
            None => wanted.uid.is_none(),
        };
        if !fits {
            return None;
        }
        let mut lease = write.clone();
        if self.lease.is_none() {
            self.leases += 1;
            lease.metadata.uid = Some(format!("{:08x}-0000-4000-8000-000000000001", self.leases));
        }
        self.lease = Some(lease);
        self.touch();
        self.lease.clone()
    }

    /// The Lease gets a new version.
    pub fn touch(&mut self) {
        self.version += 2;
        let version = Some(self.version.to_string());
        self.lease
            .iter_mut()
            .for_each(|lease| lease.metadata.resource_version.clone_from(&version));
    }

    fn waits(&self, process: usize) -> bool {
        self.requests
            .iter()
            .any(|request| request.from == process && request.waits)
    }

    /// A process sends the write that it decides on, if any.
    fn send(&mut self, from: usize) -> bool {
        if self.waits(from) {
            return false;
        }
        let wall = Timestamp::UNIX_EPOCH + (self.now - self.start);
        loop {
            match self.processes[from].next(self.now, wall) {
                Step::Read => self.processes[from].observed(self.lease.clone(), self.now),
                Step::Create(write) | Step::Replace(write) => {
                    self.requests.push(Request {
                        from,
                        waits: true,
                        write,
                        sent: self.now,
                    });
                    return true;
                }
                Step::Wait(_) | Step::Remove(_) => return false,
            }
        }
    }

    fn arrive(&mut self, request: usize, is_answered: bool) {
        if request >= self.requests.len() {
            return;
        }
        let Request {
            from,
            waits,
            write,
            sent,
        } = self.requests.remove(request);
        let written = self.write(&write);
        match written {
            _ if !waits => {}
            Some(lease) if is_answered => self.processes[from].wrote(lease, sent, self.now),
            None if is_answered => self.processes[from].failed(true, self.now),
            _ => self.processes[from].failed(false, self.now),
        }
    }

    /// Replaces a dead process.
    pub fn replace(&mut self, number: usize, process: P) {
        self.requests
            .iter_mut()
            .filter(|request| request.from == number)
            .for_each(|request| request.waits = false);
        self.processes[number] = process;
    }

    /// Requests under way are lost, and every process reads the Lease before it does anything else.
    pub fn settle(&mut self) {
        self.requests.clear();
        for process in &mut self.processes {
            process.failed(true, self.now);
        }
    }

    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Pass(milliseconds) => self.now += Duration::from_millis(milliseconds),
            Event::Act(from) => {
                if self.send(from) {
                    self.arrive(self.requests.len() - 1, true);
                }
            }
            Event::Send(from) => drop(self.send(from)),
            Event::Arrive(request, is_answered) => self.arrive(request, is_answered),
            Event::Abandon(number) => {
                for request in self
                    .requests
                    .iter_mut()
                    .filter(|request| request.from == number && request.waits)
                {
                    request.waits = false;
                    self.processes[number].failed(false, self.now);
                }
            }
            Event::Watch(number) if !self.waits(number) => {
                self.processes[number].watched(self.lease.clone(), self.now);
            }
            Event::Read(number) if !self.waits(number) => {
                self.processes[number].observed(self.lease.clone(), self.now)
            }
            Event::Release(number) if !self.waits(number) => {
                if let Some(write) = self.processes[number].release() {
                    self.write(&write);
                    self.processes[number].failed(true, self.now);
                }
            }
            Event::Touch if self.lease.is_some() => self.touch(),
            Event::Watch(_) | Event::Read(_) | Event::Release(_) | Event::Touch => {}
        }
    }
}
