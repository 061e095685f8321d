//! One agent's stream: frames in, frames out. What to say is decided in [`crate::session`].
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt};
use parking_lot::Mutex;
use runnel_proto::model::{AgentFrame, Hello, HubFrame, RuleState, SnapshotBegin};
use runnel_proto::{AUTHORITIES_SINCE, PROTOCOL_MAX, PROTOCOL_MIN, REASON_METADATA, convert, wire};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::{Status, Streaming};

use super::{Identity, admission, not_leading};
use crate::epoch::{Doubt, To, Witness};
use crate::index::Effect;
use crate::join::decide::Refusal;
use crate::join::refused;
use crate::lease::Lead;
use crate::metrics::HubMetrics;
use crate::session::{Hold, RULES_LIMIT, Session};
use crate::shared::{Inquiries, LiveSession, Shared, until};
use crate::writer::Book;

/// How long an agent may take to say what it holds.
const HELLO_LIMIT: Duration = Duration::from_secs(30);
/// How long a stream that was handed over waits, mute, for the one that replaces it.
const HANDOVER_LIMIT: Duration = Duration::from_secs(30);
/// Over which time agents come back after a planned close.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// A running session.
pub(super) struct Running {
    pub(super) shared: Arc<Shared>,
    pub(super) book: Arc<Book>,
    pub(super) metrics: Arc<HubMetrics>,
    pub(super) identity: Identity,
    pub(super) live: Arc<LiveSession>,
    /// The right to lead under which the session began, and with which it ends.
    lead: Lead,
    lead_changes: watch::Receiver<Option<Lead>>,
    /// The hub's authorities, which the agent hears when they change.
    authorities: watch::Receiver<Vec<Bytes>>,
    inbound: Streaming<wire::AgentFrame>,
    shutdown: CancellationToken,
    pub(super) hello: Option<Hello>,
    pub(super) held: Vec<RuleState>,
    pub(super) registered: bool,
    /// What the agent remembers of the hub.
    pub(super) witness: Option<Witness>,
    /// Whom the agent is to remember that it was told to.
    pub(super) to: To,
    /// What speaks against letting it follow this hub.
    pub(super) doubt: Option<Doubt>,
    /// Whether removals of a cluster that joined anew have been kept back.
    pub(super) kept_back: bool,
    /// Whether the agent gets something to remember at the end of the snapshot, though nothing changes.
    pub(super) gives_witness: bool,
    /// The index version up to which claims were taken in.
    version: u64,
    out: VecDeque<HubFrame>,
    /// When time alone ends the session: the agent says what it holds by then, or, once it has, its certificate ends. It
    /// is set once, as a session waits several times for each frame that it sends.
    limit: Pin<Box<tokio::time::Sleep>>,
    /// Set when no frame follows the ones in `out`.
    ending: Option<Status>,
    draining: bool,
    /// The agent opens another stream, which replaces this one: nothing more is said here. Until when it is waited for.
    handed_over: Option<Instant>,
    /// The agent has said its last word here.
    deaf: bool,
}

impl Running {
    pub(super) fn new(
        shared: Arc<Shared>,
        book: Arc<Book>,
        metrics: Arc<HubMetrics>,
        identity: Identity,
        (lead, number, witness): (Lead, u64, Option<Witness>),
        inbound: Streaming<wire::AgentFrame>,
        shutdown: CancellationToken,
    ) -> Self {
        let live = LiveSession {
            number,
            session: Mutex::new(Session::default()),
            inquiries: Inquiries::of_a_session(),
            wake: Notify::new(),
        };
        let lead_changes = shared.lead.subscribe();
        let authorities = shared.authorities.subscribe();
        let limit = HELLO_LIMIT.min(life_left(&identity));
        Self {
            authorities,
            shared,
            book,
            metrics,
            identity,
            live: Arc::new(live),
            lead,
            lead_changes,
            inbound,
            shutdown,
            hello: None,
            held: Vec::new(),
            registered: false,
            witness,
            to: To::new("", ""),
            doubt: None,
            kept_back: false,
            gives_witness: false,
            version: 0,
            out: VecDeque::new(),
            limit: Box::pin(tokio::time::sleep(limit)),
            ending: None,
            draining: false,
            handed_over: None,
            deaf: false,
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
        let mut wire = convert::hub_frame_to_wire(frame);
        wire.epoch.clone_from(&self.lead.epoch);
        wire.term = self.lead.term;
        wire.witness = self.remembered(frame);
        self.metrics.frame_sent(frame, &wire);
        wire
    }

    async fn next(&mut self) -> Option<Result<HubFrame, Status>> {
        loop {
            self.heed();
            self.note_kept_back();
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
        tokio::select! {
            // What ends the session comes before what the agent says.
            biased;
            () = self.live.wake.notified() => self.woken(),
            _ = self.lead_changes.changed() => {}
            _ = self.authorities.changed(), if self.hello.is_some() && self.handed_over.is_none() => self.say_authorities(),
            () = &mut self.limit => self.time_is_up(),
            () = until(self.handed_over) => self.ending = Some(Status::ok("")),
            () = self.shutdown.cancelled(), if !self.draining => {
                self.draining = true;
                let within = u32::try_from(DRAIN_WITHIN.as_millis()).unwrap_or(u32::MAX);
                // A stream that was handed over has had its last frame.
                if self.handed_over.is_none() {
                    self.out.push_back(HubFrame::Drain(within));
                }
                self.ending = Some(Status::ok(""));
            }
            frame = self.inbound.next(), if !self.deaf => match frame {
                Some(Ok(frame)) => self.take_in(frame),
                Some(Err(status)) => {
                    tracing::debug!(cluster = %self.identity.cluster, why = status.message(), "the stream broke");
                    // Heard only where the connection lives, which is where the agent sent what cannot be read.
                    self.end(Status::invalid_argument(format!("the agent's frame cannot be read: {}", status.message())));
                }
                // So that the member is not without a session for even a moment.
                None if self.handed_over.is_some() => self.deaf = true,
                None => self.ending = Some(Status::ok("")),
            },
        }
    }

    /// The agent has said what it holds: from now on the session lasts as long as its certificate.
    pub(super) fn lasts(&mut self) {
        self.limit.as_mut().reset(tokio::time::Instant::now() + life_left(&self.identity));
    }

    fn time_is_up(&mut self) {
        if self.identity.certificate.not_after <= SystemTime::now() {
            self.end(expired());
        } else if self.registered {
            // The clock was set back.
            self.lasts();
        } else {
            self.end(Status::deadline_exceeded("the agent did not say what it holds"));
        }
    }

    /// A session that has much to say looks up before each frame: a revocation, an expiry, or the end of the right to
    /// lead comes first. It looks at the clock itself, as the process may have been paused.
    fn heed(&mut self) {
        if !self.leads() || self.ending.is_some() {
            return;
        }
        if self.live.wake.notified().now_or_never().is_some() {
            self.woken();
        }
        if self.identity.certificate.not_after <= SystemTime::now() {
            self.end(expired());
        }
    }

    /// Whether the right to lead under which the session began still holds; the session ends where it does not.
    pub(super) fn leads(&mut self) -> bool {
        let leads = self.shared.holds(&self.lead);
        if !leads {
            self.end(not_leading());
        }
        leads
    }

    pub(super) fn end(&mut self, status: Status) {
        self.out.clear();
        self.ending = Some(status);
    }

    /// The session is no longer allowed. A revoked cluster is told so, and that is the last that it hears.
    pub(super) fn cut(&mut self, refusal: &Refusal) {
        tracing::warn!(cluster = %self.identity.cluster, why = %refusal, "a session is cut");
        self.end(refused(refusal));
        if refusal.is_revocation() {
            self.out.push_back(HubFrame::Revoked(refusal.code().to_owned()));
        }
    }

    /// The index changed: is the session still allowed, and is there something to say?
    fn woken(&mut self) {
        let newest = self.shared.sessions.get(&self.identity.cluster).map(|live| live.number);
        if newest.is_some_and(|newest| newest > self.live.number) {
            self.end(Status::aborted("another session of this cluster took over"));
        } else if let Err(refusal) = admission(&self.shared, &self.book, &self.identity) {
            self.cut(&refusal);
        } else if self.is_confirmed() {
            self.out.clear();
            self.out.push_back(HubFrame::Drain(0));
            self.ending = Some(Status::ok(""));
        } else {
            self.update();
        }
    }

    pub(super) fn update(&mut self) {
        let index = self.shared.index.read();
        // The index may be a moment ahead of what the admission looked at.
        if !index.talks_to(&self.identity.cluster, self.identity.uid()) {
            return;
        }
        let (claims, version) = index.claims_since(&self.identity.cluster, self.version);
        self.version = version;
        drop(index);
        self.live.session.lock().update(claims);
        self.ask_brake();
    }

    /// Has judged what the agent holds and nobody wants. Whatever may go is said with the next update.
    fn ask_brake(&self) {
        let strays = self.live.session.lock().take_strays();
        if strays.is_empty() {
            return;
        }
        let cluster = &self.identity.cluster;
        self.shared.change(|index| {
            let mut effect = Effect::default();
            for (uid, sources) in strays {
                effect.merge(match sources.is_empty() {
                    true => index.stray_cluster(&uid, cluster),
                    false => index.strays(&uid, cluster, sources),
                });
            }
            effect
        });
    }

    /// Puts what is to be said now into `out`.
    fn fill(&mut self) {
        if !self.registered || !self.out.is_empty() || self.ending.is_some() || self.handed_over.is_some() {
            return;
        }
        if let Some(asked) = self.live.inquiries.next() {
            return self.out.push_back(asked.into());
        }
        let mut session = self.live.session.lock();
        let questions = session.take_questions();
        if !questions.is_empty() {
            self.out.push_back(HubFrame::WantDetail(questions));
        } else if let Some(batch) = session.next_batch() {
            self.out.push_back(HubFrame::Batch(batch));
        } else if let Some(end) = session.take_snapshot_end() {
            drop(session);
            self.end_hold_of_nothing();
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
                self.held.extend(self.modest(rules));
                if self.held.len() > RULES_LIMIT {
                    self.end(Status::resource_exhausted(format!("the agent holds more than {RULES_LIMIT} rules")));
                } else if last {
                    self.register();
                }
            }
            (AgentFrame::Detail(uid, intents, last), _, true) => {
                let taken = self.live.session.lock().detail(&uid, intents, last);
                if let Err(too_much) = taken {
                    tracing::warn!(cluster = %self.identity.cluster, "a session is ended: {too_much}");
                    self.end(Status::resource_exhausted(too_much.to_string()));
                }
                self.ask_brake();
            }
            (AgentFrame::Ack(nonce, refused), _, true) => {
                self.live.session.lock().ack(nonce);
                self.refused(&refused);
            }
            (AgentFrame::Report(rules), _, true) => self.reported(rules),
            (AgentFrame::Want(uid, sources), _, true) => self.live.session.lock().want(&uid, sources),
            (AgentFrame::Inspected(answer), _, true) => self.live.inquiries.answered(*answer),
            (AgentFrame::Supposed(answer), _, true) => self.live.inquiries.supposed(answer),
            (AgentFrame::Handover, _, true) => self.hand_over(),
            _ => self.end(Status::failed_precondition("a frame out of order: Hello, HeldRules, then all others")),
        }
    }

    /// What is in `out` goes first; then nothing but the word that nothing follows.
    fn hand_over(&mut self) {
        if self.handed_over.is_none() && self.ending.is_none() {
            self.handed_over = Some(Instant::now() + HANDOVER_LIMIT);
            self.out.push_back(HubFrame::HandedOver);
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
        self.weigh(&hello.cluster_uid);
        if self.ending.is_some() {
            return;
        }
        self.out.push_back(HubFrame::SnapshotBegin(SnapshotBegin {
            protocol: hello.protocol_max.min(PROTOCOL_MAX),
            hub_id: self.shared.settings.hub_id.clone(),
            hub_cluster_uid: self.shared.settings.cluster_uid.clone(),
            behind: self.hold() == Hold::Everything,
            proof_key: Some(self.shared.proof_key.clone()),
        }));
        self.hello = Some(hello);
        self.say_authorities();
    }

    fn say_authorities(&mut self) {
        let all = self.authorities.borrow_and_update().clone();
        let knows = self.hello.as_ref().is_some_and(|hello| hello.protocol_max >= AUTHORITIES_SINCE);
        // Of a hub that is one of two the agent takes no other authorities.
        if knows && !all.is_empty() && self.hold() != Hold::Everything {
            self.out.push_back(HubFrame::Authorities(all));
        }
    }
}

/// For how long a session's certificate is still good.
fn life_left(identity: &Identity) -> Duration {
    identity.certificate.not_after.duration_since(SystemTime::now()).unwrap_or_default()
}

fn expired() -> Status {
    let mut status = Status::unauthenticated("the certificate of this session has expired: connect with the new one");
    status.metadata_mut().insert(REASON_METADATA, MetadataValue::from_static("expired"));
    status
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
            self.metrics.rules_delivered(self.shared.deliveries.lock().lost(cluster));
            self.shared.ledger.lock().disconnected(cluster, self.live.number, Instant::now());
            self.shared.dirty_members.add([cluster.clone()]);
        }
    }
}
