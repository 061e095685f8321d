//! Many simulated agents in one process: the real protocol over real mutual TLS, with minimal
//! memory per agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use runnel_proto::convert::split;
use runnel_proto::model::{AgentFrame, Batch, HubFrame, Payload, SnapshotEnd};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio::task::JoinSet;

use super::counted::{self, Bytes};
use super::goal::{Goal, Way};
use super::states::{fail, made_up};
use crate::scratch::keep_everything;
use crate::simulated::{AgentStream, Credentials, Holdings, digest_of, hello};

/// Handshakes at once: each end has its own work with one, and they share the machine.
const OPENING: usize = 64;
/// The number of a report with failures.
pub const FAILING: u32 = u32::MAX;
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum number of violations in an error: ten thousand agents may have the same one.
const COMPLAINTS: usize = 5;

/// The progress of all agents.
#[derive(Default)]
struct CrowdProgress {
    bytes: Arc<Bytes>,
    /// Connected agents whose snapshot has ended.
    up_to_date: AtomicUsize,
    /// Received intents with payload, in acked batches.
    intents: AtomicU64,
    /// Number of requested reports that were sent.
    reports: AtomicU64,
    /// The number of connections that were lost after the snapshot.
    ends: AtomicUsize,
    complaints: Mutex<Vec<String>>,
    /// The last error of a connection.
    failures: Mutex<Option<String>>,
    changed: Notify,
    goal: Mutex<Goal>,
}

/// Connected agents; dropping them cuts their connections.
pub struct Crowd {
    seen: Arc<CrowdProgress>,
    opening: Arc<Semaphore>,
    reports: broadcast::Sender<u32>,
    bare: bool,
    agents: JoinSet<()>,
    /// Number of intentionally closed connections.
    meant: AtomicUsize,
}

impl Crowd {
    /// Returns an empty crowd for a hub; with `bare` for a bare one, which expects acks and no
    /// reports.
    #[must_use]
    pub fn new(bare: bool) -> Self {
        let opening = Arc::new(Semaphore::new(OPENING));
        let (reports, _) = broadcast::channel(1024);
        Self {
            seen: Arc::default(),
            opening,
            reports,
            bare,
            agents: JoinSet::new(),
            meant: AtomicUsize::new(0),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether it has no agents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// Starts an agent for each of these.
    pub fn add(&mut self, credentials: impl IntoIterator<Item = Credentials>) {
        for credentials in credentials {
            let agent = CrowdAgent {
                credentials,
                seen: self.seen.clone(),
                opening: self.opening.clone(),
                bare: self.bare,
                holdings: Holdings::default(),
                way: Way::default(),
            };
            self.agents.spawn(agent.run(self.reports.subscribe()));
        }
    }

    /// Waits until every agent is up to date: its snapshot has ended, and its intents equal the
    /// hub's.
    ///
    /// # Errors
    /// If not all are within `limit`, the hub violated the protocol, or a connection was lost
    /// meanwhile.
    pub async fn up_to_date(&self, limit: Duration) -> Result<()> {
        let all = async {
            while self.connected() < self.agents.len() {
                self.seen.changed.notified().await;
            }
        };
        let is_late = tokio::time::timeout(limit, all).await.is_err();
        self.check()?;
        self.in_time(!is_late, || {
            format!(
                "{} of {} are up to date after {limit:?}",
                self.connected(),
                self.agents.len()
            )
        })
    }

    /// How many are up to date now.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.seen.up_to_date.load(Ordering::Acquire)
    }

    /// Waits until no agent is connected.
    ///
    /// # Errors
    /// When one still is after `limit`.
    pub async fn cut_off(&self, limit: Duration) -> Result<()> {
        let all = async {
            while self.connected() > 0 {
                self.seen.changed.notified().await;
            }
        };
        let is_late = tokio::time::timeout(limit, all).await.is_err();
        self.meant.fetch_add(self.agents.len(), Ordering::AcqRel);
        self.in_time(!is_late, || {
            format!("{} are connected still", self.connected())
        })
    }

    /// Intents acked so far.
    #[must_use]
    pub fn intents(&self) -> u64 {
        self.seen.intents.load(Ordering::Acquire)
    }

    /// Returns the number of sent reports of [`Self::report`].
    #[must_use]
    pub fn reports(&self) -> u64 {
        self.seen.reports.load(Ordering::Acquire)
    }

    /// Bytes so far, from the hub and to it.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let bytes = &self.seen.bytes;
        (
            bytes.received.load(Ordering::Acquire),
            bytes.sent.load(Ordering::Acquire),
        )
    }

    /// Starts to record when each agent has acked this many more intents.
    pub fn expect(&self, each: usize, agents: usize) {
        let mut goal = self.seen.goal.lock();
        let (number, each) = (goal.number + 1, each as u64);
        *goal = Goal::new(number, each, agents);
    }

    /// The time at which the goal of [`Self::expect`] was reached.
    ///
    /// # Errors
    /// When it was not within `limit`, the hub broke the protocol, or a connection was lost.
    pub async fn reached(&self, limit: Duration) -> Result<Instant> {
        let reached = async {
            loop {
                if let Some(at) = self.seen.goal.lock().reached {
                    return at;
                }
                self.seen.changed.notified().await;
            }
        };
        let at = tokio::time::timeout(limit, reached).await.ok();
        self.check()?;
        let (done, agents) = {
            let goal = self.seen.goal.lock();
            (goal.done, goal.agents)
        };
        self.in_time(at.is_some(), || {
            format!("{done} of {agents} agents have acked all within {limit:?}")
        })?;
        at.context("not reached")
    }

    /// Lets each agent report its intents once: all applied for an even number, one copy less for
    /// an odd one, and the maximum of failures for [`FAILING`].
    ///
    /// # Errors
    /// If no agent is connected.
    pub fn report(&self, number: u32) -> Result<()> {
        self.reports
            .send(number)
            .map(drop)
            .ok()
            .context("nobody is there to report")
    }

    /// Checks that the hub followed the protocol, and that no connection was lost unexpectedly.
    fn check(&self) -> Result<()> {
        let checked = self.checked();
        if checked.is_err() {
            keep_everything();
        }
        checked
    }

    fn checked(&self) -> Result<()> {
        let complaints = self.seen.complaints.lock();
        let some = &complaints[..complaints.len().min(COMPLAINTS)];
        ensure!(
            some.is_empty(),
            "the hub broke the protocol {} times: {}",
            complaints.len(),
            some.join("; ")
        );
        let (ends, meant) = (
            self.seen.ends.load(Ordering::Acquire),
            self.meant.load(Ordering::Acquire),
        );
        ensure!(
            ends == meant,
            "{ends} connections were lost where {meant} were meant to be; {}",
            self.failures()
        );
        Ok(())
    }

    fn in_time(&self, is_in_time: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
        if !is_in_time {
            keep_everything();
        }
        ensure!(is_in_time, "{}; {}", otherwise(), self.failures());
        Ok(())
    }

    fn failures(&self) -> String {
        let failures = self.seen.failures.lock();
        failures.as_ref().map_or_else(
            || "no connection failed".to_owned(),
            |last| format!("the last trouble: {last}"),
        )
    }
}

struct CrowdAgent {
    credentials: Credentials,
    seen: Arc<CrowdProgress>,
    opening: Arc<Semaphore>,
    bare: bool,
    holdings: Holdings,
    way: Way,
}

impl CrowdAgent {
    async fn run(mut self, mut reports: broadcast::Receiver<u32>) {
        loop {
            match self.open().await {
                Ok(line) => {
                    let mut was_up_to_date = false;
                    let end = self.session(line, &mut reports, &mut was_up_to_date).await;
                    self.has_failures(&end);
                    if was_up_to_date {
                        self.seen.ends.fetch_add(1, Ordering::AcqRel);
                        self.seen.up_to_date.fetch_sub(1, Ordering::AcqRel);
                        self.seen.changed.notify_one();
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => self.has_failures(&format!("{error:#}")),
            }
        }
    }

    /// An agent without a hub keeps its slot while it waits. Otherwise ten thousand agents would
    /// use the processors that the starting hub needs.
    async fn open(&self) -> Result<AgentStream> {
        let _turn = self.opening.acquire().await?;
        let line = self.try_to_open().await;
        if line.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
        line
    }

    async fn try_to_open(&self) -> Result<AgentStream> {
        let channel = counted::channel(&self.credentials, &self.seen.bytes).await?;
        let line = AgentStream::over(channel).await?;
        send(&line, AgentFrame::Hello(hello(&self.credentials.cluster)));
        send(&line, AgentFrame::AckedRules(self.holdings.states(), true));
        Ok(line)
    }

    /// Returns how it ended.
    async fn session(
        &mut self,
        mut line: AgentStream,
        reports: &mut broadcast::Receiver<u32>,
        up_to_date: &mut bool,
    ) -> String {
        loop {
            let frame = tokio::select! {
                frame = line.next() => frame,
                number = reports.recv() => {
                    match number {
                        Ok(number) => self.report(&line, number),
                        Err(error) => self.record_failure(format!("a report was left out: {error}")),
                    }
                    continue;
                }
            };
            let record = line.take_record();
            if let (Err(status), true) = (&frame, record.ends.is_empty()) {
                self.record_failure(format!("unreadable: {}", status.message()));
            }
            self.seen.complaints.lock().extend(record.complaints);
            match frame {
                Ok(Some(HubFrame::Batch(batch))) => self.apply_batch(&line, batch),
                Ok(Some(HubFrame::SnapshotEnd(end))) => {
                    self.compare(&end);
                    if !std::mem::replace(up_to_date, true) {
                        self.seen.up_to_date.fetch_add(1, Ordering::AcqRel);
                        self.seen.changed.notify_one();
                    }
                }
                Ok(Some(HubFrame::DetailRequest(uids))) => {
                    for uid in uids {
                        send(
                            &line,
                            AgentFrame::Detail(uid.clone(), self.holdings.detail(&uid), true),
                        );
                    }
                }
                Ok(Some(HubFrame::SnapshotBegin(begin))) => {
                    self.holdings.prove_with(begin.proof_key)
                }
                Ok(Some(_)) => {}
                Ok(None) => return "the hub ended the stream".to_owned(),
                Err(status) => return format!("{:?}: {}", status.code(), status.message()),
            }
        }
    }

    fn has_failures(&self, why: &str) {
        *self.seen.failures.lock() = Some(format!("{}: {why}", self.credentials.cluster));
    }

    fn record_failure(&self, complaint: String) {
        self.seen
            .complaints
            .lock()
            .push(format!("{}: {complaint}", self.credentials.cluster));
    }

    /// At the end of a snapshot both sides must have the same intents; a bare hub sends none.
    fn compare(&self, end: &SnapshotEnd) {
        let (intents, digest) = self.holdings.account();
        if (intents, digest) != (end.intents, end.digest) {
            self.record_failure(format!(
                "SnapshotEnd says {} intents, the agent holds {intents}",
                end.intents
            ));
        }
    }

    fn apply_batch(&mut self, line: &AgentStream, mut batch: Batch) {
        let intents = batch
            .rules
            .iter()
            .map(|rule| rule.upserts.len() as u64)
            .sum();
        send(line, AgentFrame::Ack(batch.nonce, Vec::new()));
        if !self.bare {
            // The content is not needed, and ten thousand agents would store it ten thousand times.
            let nothing = Payload::encode(Vec::new());
            for intent in batch.rules.iter_mut().flat_map(|rule| &mut rule.upserts) {
                // But its report is proved.
                let _ = digest_of(&intent.revision, &intent.payload);
                intent.payload = nothing.clone();
            }
            send(line, AgentFrame::Report(self.holdings.apply_batch(&batch)));
        }
        self.seen.took(intents, &mut self.way);
    }

    fn report(&self, line: &AgentStream, number: u32) {
        let mut states = self.holdings.states();
        if states.is_empty() {
            // A bare hub has no rules; it reads and counts a report of the same length.
            states.push(made_up());
        }
        for state in &mut states {
            state.counts.applied = state.counts.copies.saturating_sub(number % 2);
            if number == FAILING {
                fail(state, &self.credentials.cluster);
            }
        }
        send(line, AgentFrame::Report(states));
        self.seen.reports.fetch_add(1, Ordering::AcqRel);
    }
}

impl CrowdProgress {
    fn took(&self, intents: u64, way: &mut Way) {
        self.intents.fetch_add(intents, Ordering::AcqRel);
        let mut goal = self.goal.lock();
        if goal.took(intents, way) {
            goal.reached = Some(Instant::now());
            self.changed.notify_one();
        }
    }
}

fn send(line: &AgentStream, frame: AgentFrame) {
    for frame in split(frame) {
        line.send(&frame);
    }
}
