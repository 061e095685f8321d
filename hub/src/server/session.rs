//! One agent's stream: frames in, frames out. What to say is decided in [`crate::session`].
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use parking_lot::Mutex;
use runnel_proto::model::{AgentFrame, Hello, HubFrame, Refusal, RuleState, SnapshotBegin};
use runnel_proto::{PROTOCOL_MAX, PROTOCOL_MIN, convert, wire};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::{Identity, admission};
use crate::metrics::HubMetrics;
use crate::session::Session;
use crate::shared::{LiveSession, Shared};
use crate::status::SessionFacts;
use crate::writer::Book;

/// How long an agent may take to say what it holds.
const HELLO_LIMIT: Duration = Duration::from_secs(30);
/// Over which time agents come back after a planned close.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// A running session.
pub(super) struct Running {
    shared: Arc<Shared>,
    book: Arc<Book>,
    metrics: Arc<HubMetrics>,
    identity: Identity,
    live: Arc<LiveSession>,
    inbound: Streaming<wire::AgentFrame>,
    shutdown: CancellationToken,
    hello: Option<Hello>,
    held: Vec<RuleState>,
    registered: bool,
    /// The index version up to which claims were taken in.
    version: u64,
    out: VecDeque<HubFrame>,
    started: Instant,
    /// Set when no frame follows the ones in `out`.
    ending: Option<Status>,
    draining: bool,
}

impl Running {
    pub(super) fn new(
        shared: Arc<Shared>,
        book: Arc<Book>,
        metrics: Arc<HubMetrics>,
        identity: Identity,
        number: u64,
        inbound: Streaming<wire::AgentFrame>,
        shutdown: CancellationToken,
    ) -> Self {
        let live = LiveSession { number, session: Mutex::new(Session::default()), wake: Notify::new() };
        Self {
            shared,
            book,
            metrics,
            identity,
            live: Arc::new(live),
            inbound,
            shutdown,
            hello: None,
            held: Vec::new(),
            registered: false,
            version: 0,
            out: VecDeque::new(),
            started: Instant::now(),
            ending: None,
            draining: false,
        }
    }

    /// The frames to the agent, until the session ends.
    pub(super) fn frames(self) -> impl Stream<Item = Result<wire::HubFrame, Status>> + Send {
        futures::stream::unfold(Some(self), |state| async move {
            let mut running = state?;
            match running.next().await {
                Some(Ok(frame)) => Some((Ok(running.sent(&frame)), Some(running))),
                Some(Err(status)) => Some((Err(status), None)),
                None => None,
            }
        })
    }

    fn sent(&self, frame: &HubFrame) -> wire::HubFrame {
        let wire = convert::hub_frame_to_wire(frame);
        self.metrics.frame_sent(frame, &wire);
        wire
    }

    async fn next(&mut self) -> Option<Result<HubFrame, Status>> {
        loop {
            self.fill();
            if let Some(frame) = self.out.pop_front() {
                return Some(Ok(frame));
            }
            if let Some(status) = self.ending.take() {
                return (status.code() != tonic::Code::Ok).then_some(Err(status));
            }
            self.wait().await;
        }
    }

    /// Waits for whatever comes next, and takes it in.
    async fn wait(&mut self) {
        let hello_left = HELLO_LIMIT.saturating_sub(self.started.elapsed());
        let expires = self.identity.certificate.not_after.duration_since(SystemTime::now()).unwrap_or_default();
        tokio::select! {
            frame = self.inbound.next() => match frame {
                Some(Ok(frame)) => self.take_in(frame),
                Some(Err(status)) => {
                    tracing::debug!(cluster = %self.identity.cluster, why = status.message(), "the stream broke");
                    // Heard only where the connection lives, which is where the agent sent what cannot be read.
                    self.end(Status::invalid_argument(format!("the agent's frame cannot be read: {}", status.message())));
                }
                None => self.ending = Some(Status::ok("")),
            },
            () = self.live.wake.notified() => self.woken(),
            () = self.shutdown.cancelled(), if !self.draining => {
                self.draining = true;
                let within = u32::try_from(DRAIN_WITHIN.as_millis()).unwrap_or(u32::MAX);
                self.out.push_back(HubFrame::Drain(within));
                self.ending = Some(Status::ok(""));
            }
            () = tokio::time::sleep(hello_left), if !self.registered => {
                self.end(Status::deadline_exceeded("the agent did not say what it holds"));
            }
            () = tokio::time::sleep(expires) => {
                self.end(Status::unauthenticated("the certificate of this session has expired: connect with the new one"));
            }
        }
    }

    fn end(&mut self, status: Status) {
        self.out.clear();
        self.ending = Some(status);
    }

    /// The index changed: is the session still allowed, and is there something to say?
    fn woken(&mut self) {
        let newest = self.shared.sessions.get(&self.identity.cluster).map(|live| live.number);
        if newest.is_some_and(|newest| newest > self.live.number) {
            self.end(Status::aborted("another session of this cluster took over"));
        } else if let Err(status) = admission(&self.shared, &self.book, &self.identity) {
            tracing::warn!(cluster = %self.identity.cluster, why = status.message(), "a session is cut");
            self.end(status);
        } else {
            self.update();
        }
    }

    fn update(&mut self) {
        let index = self.shared.index.read();
        let (claims, version) = index.claims_since(&self.identity.cluster, self.version);
        self.version = version;
        drop(index);
        self.live.session.lock().update(claims);
    }

    /// Puts what is to be said now into `out`.
    fn fill(&mut self) {
        if !self.registered || !self.out.is_empty() || self.ending.is_some() {
            return;
        }
        let mut session = self.live.session.lock();
        let questions = session.take_questions();
        if !questions.is_empty() {
            self.out.push_back(HubFrame::WantDetail(questions));
        } else if let Some(batch) = session.next_batch() {
            self.out.push_back(HubFrame::Batch(batch));
        } else if let Some(end) = session.take_snapshot_end() {
            self.out.push_back(HubFrame::SnapshotEnd(end));
        }
    }

    fn take_in(&mut self, frame: wire::AgentFrame) {
        let frame = match convert::agent_frame(frame) {
            Ok(frame) => frame,
            Err(error) => return self.end(Status::invalid_argument(error.to_string())),
        };
        match (frame, self.hello.is_some(), self.registered) {
            (AgentFrame::Hello(hello), false, _) => self.greet(hello),
            (AgentFrame::HeldRules(rules, last), true, false) => {
                self.held.extend(rules);
                if last {
                    self.register();
                }
            }
            (AgentFrame::Detail(uid, intents, last), _, true) => self.live.session.lock().detail(&uid, intents, last),
            (AgentFrame::Ack(nonce, refused), _, true) => {
                self.live.session.lock().ack(nonce);
                self.refused(&refused);
            }
            (AgentFrame::Report(rules), _, true) => self.reported(rules),
            (AgentFrame::Want(uid, sources), _, true) => self.live.session.lock().want(&uid, sources),
            _ => self.end(Status::failed_precondition("a frame out of order: Hello, HeldRules, then all others")),
        }
    }

    fn greet(&mut self, hello: Hello) {
        if hello.protocol_max < PROTOCOL_MIN || hello.protocol_min > PROTOCOL_MAX {
            let message = format!(
                "the agent speaks protocols {} to {}, this hub {PROTOCOL_MIN} to {PROTOCOL_MAX}: upgrade the older one",
                hello.protocol_min, hello.protocol_max
            );
            return self.end(Status::failed_precondition(message));
        }
        self.out.push_back(HubFrame::SnapshotBegin(SnapshotBegin {
            protocol: hello.protocol_max.min(PROTOCOL_MAX),
            hub_id: self.shared.settings.hub_id.clone(),
            hub_cluster_uid: self.shared.settings.cluster_uid.clone(),
        }));
        self.hello = Some(hello);
    }

    /// The agent has said what it holds: from now on the hub counts it as connected.
    fn register(&mut self) {
        let Some(hello) = self.hello.clone() else { return };
        self.registered = true;
        let cluster = self.identity.cluster.clone();
        let held = std::mem::take(&mut self.held);
        tracing::info!(%cluster, agent = hello.agent_version, rules = held.len(), "agent connected");
        let facts = SessionFacts {
            agent_version: hello.agent_version,
            kubernetes_version: hello.kubernetes_version,
            cluster_uid: hello.cluster_uid,
            certificate_expires: Timestamp::try_from(self.identity.certificate.not_after).unwrap_or(Timestamp::MAX),
        };
        {
            let mut session = self.live.session.lock();
            session.hello(held.clone());
            session.hello_done();
        }
        let replaced = self.shared.sessions.insert(cluster.clone(), self.live.clone());
        if let Some(older) = replaced {
            older.wake.notify_one();
        }
        {
            let mut ledger = self.shared.ledger.lock();
            ledger.connected(&cluster, facts);
            ledger.replace_reports(&cluster, held);
        }
        self.shared.mark_rules_of(&cluster);
        self.metrics.connected(1);
        self.update();
        self.claim_held();
    }

    /// What the hub says about rules that only the agent, or only an order written down for it, speaks of.
    fn claim_held(&self) {
        let index = self.shared.index.read();
        let cluster = &self.identity.cluster;
        let mut session = self.live.session.lock();
        let held: Vec<_> = session.held_rules().cloned().collect();
        let unknown = held.iter().filter(|uid| index.rule(uid).is_none());
        let claims: Vec<_> = unknown.map(|uid| (uid.clone(), index.claim(uid, cluster))).collect();
        session.update(claims);
        let pending = index.cluster(cluster).into_iter().flat_map(|known| known.pending.keys());
        let done: Vec<_> =
            pending.filter(|uid| !held.contains(uid)).map(|uid| (cluster.clone(), uid.clone())).collect();
        drop(session);
        drop(index);
        self.settle(done);
    }

    fn settle(&self, done: Vec<(runnel_proto::model::ClusterName, runnel_proto::model::RuleUid)>) {
        if !done.is_empty() {
            self.shared.settled_removals.add(done);
            self.shared.dirty_members.add([self.identity.cluster.clone()]);
        }
    }

    fn reported(&mut self, rules: Vec<RuleState>) {
        let cluster = self.identity.cluster.clone();
        let mut changed = Vec::new();
        for state in rules {
            let uid = state.uid.clone();
            if state.gone && self.live.session.lock().gone(&uid) {
                let ordered = self.shared.index.read().cluster(&cluster).is_some_and(|c| c.pending.contains_key(&uid));
                if ordered {
                    self.settle(vec![(cluster.clone(), uid.clone())]);
                }
            }
            let unknown = self.shared.index.read().rule(&uid).is_none();
            if self.shared.ledger.lock().report(&cluster, state) {
                changed.push(uid);
                if unknown {
                    self.shared.dirty_members.add([cluster.clone()]);
                }
            }
        }
        let leaving = self.shared.index.read().cluster(&cluster).is_some_and(|cluster| cluster.leaving);
        if leaving {
            self.shared.dirty_members.add([cluster]);
        }
        self.shared.dirty_rules.add(changed);
    }

    fn refused(&self, refused: &[Refusal]) {
        for refusal in refused {
            let Refusal { rule, source, reason, message, .. } = refusal;
            let cluster = &self.identity.cluster;
            tracing::warn!(%cluster, %rule, %source, reason = reason.as_str(), message, "the agent refused an intent");
        }
    }
}

impl Drop for Running {
    /// A dying session may only remove itself.
    fn drop(&mut self) {
        if !self.registered {
            return;
        }
        self.metrics.connected(-1);
        let cluster = &self.identity.cluster;
        let own = |_: &_, live: &Arc<LiveSession>| live.number == self.live.number;
        if self.shared.sessions.remove_if(cluster, own).is_some() {
            tracing::info!(%cluster, "session ended");
            self.shared.ledger.lock().disconnected(cluster, Instant::now());
            self.shared.dirty_members.add([cluster.clone()]);
        }
    }
}
