//! Very many simulated agents in one process: the real protocol over real mutual TLS, and no more kept of what comes than
//! the protocol needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use runnel_proto::convert::split;
use runnel_proto::model::{AgentFrame, Batch, HubFrame, Payload, RuleState};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio::task::JoinSet;

use super::counted::{self, Bytes};
use crate::simulated::{Credentials, Holdings, Line, hello};

/// Handshakes at once: each end has its own work with one, and they share the machine.
const OPENING: usize = 64;
const AGAIN: Duration = Duration::from_millis(100);

/// What the agents have seen, all together.
#[derive(Default)]
struct Seen {
    bytes: Arc<Bytes>,
    /// Agents whose snapshot has ended, and who are connected still.
    up_to_date: AtomicUsize,
    /// Intents that came with their payload, and whose batch was acked.
    intents: AtomicU64,
    complaints: Mutex<Vec<String>>,
    changed: Notify,
    goal: Mutex<Goal>,
}

/// When as many intents have been acked as are awaited.
#[derive(Default)]
struct Goal {
    intents: u64,
    reached: Option<Instant>,
}

/// Connected agents; dropping them cuts their connections.
pub struct Crowd {
    seen: Arc<Seen>,
    opening: Arc<Semaphore>,
    reports: broadcast::Sender<u32>,
    bare: bool,
    agents: JoinSet<()>,
}

impl Crowd {
    /// Nobody yet, for a hub; with `bare` for a bare one, which wants acks and no reports of what was taken in.
    #[must_use]
    pub fn new(bare: bool) -> Self {
        let opening = Arc::new(Semaphore::new(OPENING));
        let (reports, _) = broadcast::channel(1024);
        Self { seen: Arc::default(), opening, reports, bare, agents: JoinSet::new() }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether there is nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// Starts an agent for each of these.
    pub fn add(&mut self, credentials: impl IntoIterator<Item = Credentials>) {
        for credentials in credentials {
            let agent = Agent {
                credentials,
                seen: self.seen.clone(),
                opening: self.opening.clone(),
                bare: self.bare,
                holdings: Holdings::default(),
            };
            self.agents.spawn(agent.run(self.reports.subscribe()));
        }
    }

    /// Waits until every agent is up to date.
    ///
    /// # Errors
    /// When not all are within `limit`, or the hub broke the protocol.
    pub async fn up_to_date(&self, limit: Duration) -> Result<()> {
        let all = async {
            while self.connected() < self.agents.len() {
                self.seen.changed.notified().await;
            }
        };
        let ended = tokio::time::timeout(limit, all).await;
        ended
            .with_context(|| format!("{} of {} are up to date after {limit:?}", self.connected(), self.agents.len()))?;
        self.check()
    }

    /// How many are up to date now.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.seen.up_to_date.load(Ordering::Acquire)
    }

    /// Waits until nobody is connected any more.
    ///
    /// # Errors
    /// When somebody still is after `limit`.
    pub async fn cut_off(&self, limit: Duration) -> Result<()> {
        let all = async {
            while self.connected() > 0 {
                self.seen.changed.notified().await;
            }
        };
        tokio::time::timeout(limit, all).await.with_context(|| format!("{} are connected still", self.connected()))
    }

    /// Intents acked so far.
    #[must_use]
    pub fn intents(&self) -> u64 {
        self.seen.intents.load(Ordering::Acquire)
    }

    /// Bytes so far, from the hub and to it.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let bytes = &self.seen.bytes;
        (bytes.received.load(Ordering::Acquire), bytes.sent.load(Ordering::Acquire))
    }

    /// From now on, the moment is written down at which so many more intents have been acked.
    pub fn expect(&self, intents: u64) {
        let mut goal = self.seen.goal.lock();
        *goal = Goal { intents: self.intents() + intents, reached: None };
    }

    /// When what [`Self::expect`] awaits was reached.
    ///
    /// # Errors
    /// When it was not within `limit`, or the hub broke the protocol.
    pub async fn reached(&self, limit: Duration) -> Result<Instant> {
        let reached = async {
            loop {
                if let Some(at) = self.seen.goal.lock().reached {
                    return at;
                }
                self.seen.changed.notified().await;
            }
        };
        let at = tokio::time::timeout(limit, reached).await;
        let wanted = self.seen.goal.lock().intents;
        let at = at.with_context(|| format!("{} of {wanted} intents were acked within {limit:?}", self.intents()))?;
        self.check()?;
        Ok(at)
    }

    /// Each agent reports once what it holds: all well with an even number, one copy less with an odd one.
    ///
    /// # Errors
    /// When nobody is there.
    pub fn report(&self, number: u32) -> Result<()> {
        self.reports.send(number).map(drop).ok().context("nobody is there to report")
    }

    fn check(&self) -> Result<()> {
        let complaints = self.seen.complaints.lock();
        ensure!(complaints.is_empty(), "the hub broke the protocol: {}", complaints.join("; "));
        Ok(())
    }
}

struct Agent {
    credentials: Credentials,
    seen: Arc<Seen>,
    opening: Arc<Semaphore>,
    bare: bool,
    holdings: Holdings,
}

impl Agent {
    async fn run(mut self, mut reports: broadcast::Receiver<u32>) {
        loop {
            if let Ok(line) = self.open().await {
                let mut was_up_to_date = false;
                self.session(line, &mut reports, &mut was_up_to_date).await;
                if was_up_to_date {
                    self.seen.up_to_date.fetch_sub(1, Ordering::AcqRel);
                    self.seen.changed.notify_one();
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn open(&self) -> Result<Line> {
        let _turn = self.opening.acquire().await?;
        let channel = counted::channel(&self.credentials, &self.seen.bytes).await?;
        let line = Line::over(channel).await?;
        send(&line, AgentFrame::Hello(hello(&self.credentials.cluster)));
        send(&line, AgentFrame::HeldRules(self.holdings.states(), true));
        Ok(line)
    }

    async fn session(&mut self, mut line: Line, reports: &mut broadcast::Receiver<u32>, up_to_date: &mut bool) {
        loop {
            let frame = tokio::select! {
                frame = line.next() => frame,
                number = reports.recv() => {
                    self.report(&line, number.unwrap_or_default());
                    continue;
                }
            };
            let complaints = line.take_record().complaints;
            self.seen.complaints.lock().extend(complaints);
            match frame {
                Ok(Some(HubFrame::Batch(batch))) => self.take_in(&line, batch),
                Ok(Some(HubFrame::SnapshotEnd(_))) if !*up_to_date => {
                    *up_to_date = true;
                    self.seen.up_to_date.fetch_add(1, Ordering::AcqRel);
                    self.seen.changed.notify_one();
                }
                Ok(Some(HubFrame::WantDetail(uids))) => {
                    for uid in uids {
                        send(&line, AgentFrame::Detail(uid.clone(), self.holdings.detail(&uid), true));
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn take_in(&mut self, line: &Line, mut batch: Batch) {
        let intents = batch.rules.iter().map(|rule| rule.upserts.len() as u64).sum();
        send(line, AgentFrame::Ack(batch.nonce, Vec::new()));
        if !self.bare {
            // What was in it is of no use here, and ten thousand agents would keep it ten thousand times.
            let nothing = Payload::encode(Vec::new());
            for intent in batch.rules.iter_mut().flat_map(|rule| &mut rule.upserts) {
                intent.payload = nothing.clone();
            }
            send(line, AgentFrame::Report(self.holdings.take_in(&batch)));
        }
        self.seen.took(intents);
    }

    fn report(&self, line: &Line, number: u32) {
        let mut states = self.holdings.states();
        if states.is_empty() {
            // A bare hub has no rules; it reads and counts a report of the same length.
            states.push(made_up());
        }
        for state in &mut states {
            state.counts.applied = state.counts.copies.saturating_sub(number % 2);
        }
        send(line, AgentFrame::Report(states));
    }
}

impl Seen {
    fn took(&self, intents: u64) {
        let mut goal = self.goal.lock();
        let so_far = self.intents.fetch_add(intents, Ordering::AcqRel) + intents;
        if goal.intents > 0 && so_far >= goal.intents && goal.reached.is_none() {
            goal.reached = Some(Instant::now());
            self.changed.notify_one();
        }
    }
}

fn made_up() -> RuleState {
    RuleState {
        uid: "00000000-0000-4000-8000-000000000000".to_owned().into(),
        rule: Default::default(),
        intents_digest: Default::default(),
        intents: 1,
        terms_digest: None,
        takeovers: None,
        given_up: None,
        counts: runnel_proto::model::Counts { copies: 1, applied: 1, ..Default::default() },
        failures: Vec::new(),
        gone: false,
    }
}

fn send(line: &Line, frame: AgentFrame) {
    for frame in split(frame) {
        line.send(&frame);
    }
}
