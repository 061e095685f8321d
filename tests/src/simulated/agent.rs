//! An agent that behaves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use parking_lot::Mutex;
use runnel_proto::convert::split;
use runnel_proto::model::{AgentFrame, HubFrame, SnapshotEnd};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::stream::hello;
use super::{AgentStream, Credentials, Holdings, Record};
use crate::wait::eventually;

/// How long an agent waits before it connects again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a test waits for something that the hub does within milliseconds.
const SOON: Duration = Duration::from_secs(30);

/// The intents and observations of an agent.
#[derive(Clone, Default)]
pub struct AgentState {
    /// The desired set.
    pub holdings: Holdings,
    /// Everything that the hub sent.
    pub record: Record,
    /// Whether the snapshot of the present session has ended, so that the agent is up to date.
    pub up_to_date: bool,
}

/// A running agent; dropping it ends it. It reconnects whenever its stream ends, until it is
/// stopped or the hub refuses it.
pub struct SimulatedAgent {
    credentials: Credentials,
    state: Arc<Mutex<AgentState>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl SimulatedAgent {
    /// Starts an agent with these intents.
    #[must_use]
    pub fn start(credentials: &Credentials, holdings: Holdings) -> Self {
        let state = Arc::new(Mutex::new(AgentState {
            holdings,
            ..AgentState::default()
        }));
        let stop = CancellationToken::new();
        let running = run(credentials.clone(), state.clone());
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = running => {}
                () = stopped => {}
            }
        });
        Self {
            credentials: credentials.clone(),
            state,
            stop,
            task,
        }
    }

    /// Starts an agent with these intents, and returns when it is up to date.
    ///
    /// # Errors
    /// If it is not within 30 s.
    pub async fn up_to_date(credentials: &Credentials, holdings: Holdings) -> Result<Self> {
        let agent = Self::start(credentials, holdings);
        agent
            .until("the end of the snapshot", |state| state.up_to_date)
            .await?;
        Ok(agent)
    }

    /// Waits until `reached` is true.
    ///
    /// # Errors
    /// When it is not within 30 s, or the hub broke the protocol; with what came so far.
    pub async fn until(&self, what: &str, reached: impl Fn(&AgentState) -> bool) -> Result<()> {
        let what = format!("{what} at {}", self.credentials.cluster);
        let seen = eventually(&what, SOON, async || {
            let state = self.state.lock();
            if reached(&state) {
                return Ok(Some(()));
            }
            bail!("{}", state.record.sketch())
        });
        seen.await?;
        self.check()
    }

    /// Checks that the hub followed the protocol.
    ///
    /// # Errors
    /// If it did not.
    pub fn check(&self) -> Result<()> {
        let complaints = &self.state.lock().record.complaints;
        ensure!(
            complaints.is_empty(),
            "the hub broke the protocol: {}",
            complaints.join("; ")
        );
        Ok(())
    }

    /// Returns the agent's state.
    #[must_use]
    pub fn state(&self) -> AgentState {
        self.state.lock().clone()
    }

    /// Returns what the hub sent so far, and clears the record.
    #[must_use]
    pub fn take_record(&self) -> Record {
        std::mem::take(&mut self.state.lock().record)
    }

    /// Calls a function with the state, without copying it.
    pub fn inspect<V>(&self, inspect: impl FnOnce(&AgentState) -> V) -> V {
        inspect(&self.state.lock())
    }

    /// Ends the agent as a lost connection would, and returns what it has and has seen.
    pub async fn stop(mut self) -> AgentState {
        self.stop.cancel();
        let _ = (&mut self.task).await;
        self.state()
    }
}

impl Drop for SimulatedAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(credentials: Credentials, state: Arc<Mutex<AgentState>>) {
    loop {
        let end = match AgentStream::open(&credentials).await {
            Ok(line) => session(line, &credentials, &state).await,
            Err(status) => {
                state
                    .lock()
                    .record
                    .ends
                    .push((status.code(), status.message().to_owned()));
                status.code()
            }
        };
        state.lock().up_to_date = false;
        if matches!(
            end,
            Code::Unauthenticated | Code::FailedPrecondition | Code::Aborted
        ) {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn session(
    mut line: AgentStream,
    credentials: &Credentials,
    state: &Mutex<AgentState>,
) -> Code {
    line.send(&AgentFrame::Hello(hello(&credentials.cluster)));
    let copies_there = state.lock().holdings.states();
    send_all(&line, AgentFrame::AckedRules(copies_there, true));
    loop {
        let next = line.next().await;
        let mut state = state.lock();
        let answers = match &next {
            Ok(Some(frame)) => answers(&mut state, frame),
            Ok(None) | Err(_) => Vec::new(),
        };
        state.record.absorb(line.take_record());
        drop(state);
        match next {
            Ok(Some(_)) => answers
                .into_iter()
                .for_each(|answer| send_all(&line, answer)),
            Ok(None) => return Code::Ok,
            Err(status) => return status.code(),
        }
    }
}

fn answers(state: &mut AgentState, frame: &HubFrame) -> Vec<AgentFrame> {
    match frame {
        HubFrame::DetailRequest(uids) => uids
            .iter()
            .map(|uid| AgentFrame::Detail(uid.clone(), state.holdings.detail(uid), true))
            .collect(),
        HubFrame::Batch(batch) => {
            let states = state.holdings.apply_batch(batch);
            vec![
                AgentFrame::Ack(batch.nonce, Vec::new()),
                AgentFrame::Report(states),
            ]
        }
        HubFrame::SnapshotEnd(end) => {
            state.up_to_date = true;
            compare(state, end);
            // The states from before it had the proof key.
            let states = state.holdings.states();
            if states.is_empty() {
                Vec::new()
            } else {
                vec![AgentFrame::Report(states)]
            }
        }
        HubFrame::SnapshotBegin(begin) => {
            state.holdings.prove_with(begin.proof_key.clone());
            Vec::new()
        }
        HubFrame::Drain(_)
        | HubFrame::HandedOver
        | HubFrame::Keepalive
        | HubFrame::Revoked(_)
        | HubFrame::Inspect(_)
        | HubFrame::PreviewRequest(_)
        | HubFrame::ListCopies(_)
        | HubFrame::CaBundle(_) => Vec::new(),
    }
}

/// At the end of a snapshot both sides must agree.
fn compare(state: &mut AgentState, end: &SnapshotEnd) {
    let (intents, digest) = state.holdings.account();
    if (intents, digest) != (end.intents, end.digest) {
        let complaint = format!(
            "SnapshotEnd says {} intents, the agent holds {intents}",
            end.intents
        );
        state.record.complaints.push(complaint);
    }
}

fn send_all(line: &AgentStream, frame: AgentFrame) {
    for frame in split(frame) {
        line.send(&frame);
    }
}
