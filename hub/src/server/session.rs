//! The stream of one agent: it receives and sends frames. [`runnel_hub_core::session`] decides
//! their content. tonic serves every call but this one.
//!
//! tonic keeps a buffer of the size of the largest sent frame while a stream is open. So a hub with
//! ten thousand agents would keep gigabytes of unused memory after their first delivery. Here a
//! frame is encoded when the connection requests it, and dropped when it is sent. An idle stream
//! has no buffer.
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use prost::Message;
use runnel_proto::model::{Hello, HubFrame, RuleUid, SnapshotBegin};
use runnel_proto::{FRAME_LIMIT, PROTOCOL_MAX, PROTOCOL_MIN, convert, wire};
use runnel_transport::grpc::runnel_server::{Runnel, RunnelServer};
use runnel_transport::tls::Meter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataMap};
use tonic::server::NamedService;
use tonic::{Status, Streaming};
use tower::Service;
use tracing::Instrument;

use super::epoch_check::EpochCheck;
use super::limits::{Bounds, Peers};
use super::{PeerIdentity, Server, admission, not_leading};
use crate::hub_state::{HubState, LiveSession, until};
use crate::join::{expired, refused, with_reason};
use crate::lease::Lead;
use crate::membership::Member;
use crate::membership::decide::JoinRefusal;
use crate::metrics::HubMetrics;
use crate::object_cache::ObjectCache;
use runnel_hub_core::epoch::HistoryToken;
use runnel_hub_core::index::Effect;
use runnel_hub_core::session::{HelloStates, SendRestriction};

/// The time limit for each frame of an agent's report. These frames are small.
const HELLO_LIMIT: Duration = Duration::from_secs(30);
/// The time over which agents reconnect after a planned close.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// What a session shares with the other tasks of the hub, and whose it is. Its methods change the hub, not the stream.
pub(super) struct SessionContext {
    pub(super) hub_state: Arc<HubState>,
    pub(super) object_cache: Arc<ObjectCache>,
    pub(super) metrics: Arc<HubMetrics>,
    pub(super) peers: Arc<Peers>,
    pub(super) identity: PeerIdentity,
    pub(super) live: Arc<LiveSession>,
}

/// The stream of a session: what the agent has reported, the limits of what it sends, and what it is sent next.
pub(super) struct Running {
    pub(super) context: SessionContext,
    /// The right to lead under which the session began. The session ends with it.
    lead: Lead,
    inbound: Streaming<wire::AgentFrame>,
    signals: Signals,
    pub(super) hello: Option<Hello>,
    pub(super) acked: HelloStates,
    pub(super) registered: bool,
    pub(super) bounds: Bounds,
    pub(super) epoch: EpochCheck,
    pub(super) out: Outgoing,
    /// The time limit of the session: the limit for the report of the agent, and after it the end
    /// of the certificate. It is set once, because a session waits several times for each frame
    /// that it sends.
    limit: Pin<Box<tokio::time::Sleep>>,
    /// Whether the agent has closed its half of a stream after a handover.
    half_closed: bool,
    /// The span for the session's log lines, with the name of the cluster.
    span: tracing::Span,
}

impl SessionContext {
    /// Judges the agent's intents that are not desired. Approved removals are sent with the next
    /// update.
    pub(super) fn judge_orphaned(&self) {
        let orphaned_intents = self.live.session.lock().take_orphaned_intents();
        if orphaned_intents.is_empty() {
            return;
        }
        let cluster = &self.identity.cluster;
        self.hub_state.change(|index| {
            let mut effect = Effect::default();
            for (uid, sources) in orphaned_intents {
                effect.merge(if sources.is_empty() {
                    index.orphaned_cluster(&uid, cluster)
                } else {
                    index.orphaned_intents(&uid, cluster, sources)
                });
            }
            effect
        });
    }
}

impl Running {
    pub(super) fn new(
        context: SessionContext,
        (lead, history_token): (Lead, Option<HistoryToken>),
        bounds: Bounds,
        (inbound, signals): (Streaming<wire::AgentFrame>, Signals),
    ) -> Self {
        let identity = &context.identity;
        let limit = HELLO_LIMIT.min(remaining_validity(identity));
        let span = tracing::info_span!("session", cluster = %identity.cluster);
        Self {
            context,
            lead,
            inbound,
            signals,
            hello: None,
            acked: HelloStates::default(),
            registered: false,
            bounds,
            epoch: EpochCheck::new(history_token),
            out: Outgoing::default(),
            limit: Box::pin(tokio::time::sleep(limit)),
            half_closed: false,
            span,
        }
    }

    /// Returns the frames to the agent, until the session ends.
    pub(super) fn frames(self) -> impl Stream<Item = Result<wire::HubFrame, Status>> + Send {
        futures::stream::unfold(Some(self), |state| async move {
            let mut running = state?;
            let span = running.span.clone();
            match running.next().instrument(span).await {
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
        wire.history_token = self.token_for(frame);
        self.context.metrics.frame_sent(frame, &wire);
        wire
    }

    async fn next(&mut self) -> Option<Result<HubFrame, Status>> {
        loop {
            self.check_admission();
            self.record_withheld();
            self.fill();
            match self.out.next() {
                Some(NextItem::Frame(frame)) => return Some(Ok(frame)),
                Some(NextItem::End(status)) => {
                    return (status.code() != tonic::Code::Ok).then_some(Err(status));
                }
                None => self.wait().await,
            }
        }
    }

    /// Waits for the next event, and handles it.
    async fn wait(&mut self) {
        tokio::select! {
            // The end of the session has priority over frames of the agent.
            biased;
            () = self.context.live.wake.notified() => self.woken(),
            Some(signal) = self.signals.next() => self.take_signal(&signal),
            () = &mut self.limit => self.time_is_up(),
            () = until(self.out.handover_deadline()) => self.out.finish(),
            () = self.bounds.superseded() => self.superseded(),
            () = until(self.bounds.deferred_until) => self.handle_deferred(),
            () = until(self.bounds.read_at), if self.bounds.read_at.is_some() => self.bounds.read_at = None,
            frame = self.inbound.next(), if !self.half_closed && self.bounds.read_at.is_none() => match frame {
                Some(Ok(frame)) => self.handle_frame(frame),
                Some(Err(status)) => {
                    tracing::debug!(why = status.message(), "the stream broke");
                    // The agent receives this status only if the connection still works. Then the
                    // cause is a frame that cannot be read.
                    self.end(Status::invalid_argument(format!("the agent's frame cannot be read: {}", status.message())));
                }
                // The session stays open until the next one replaces it, so that the member always
                // has one.
                None if self.out.is_handed_over() => self.half_closed = true,
                None => self.out.finish(),
            },
        }
    }

    fn take_signal(&mut self, signal: &Signal) {
        // After a handover the last frame was sent. Before its Hello an agent is sent nothing.
        let is_open = self.hello.is_some() && !self.out.is_handed_over();
        match signal {
            // The session checks its right to lead before each frame.
            Signal::Lead => {}
            Signal::CaBundle if is_open => self.send_ca_bundle(),
            Signal::KeepaliveDue if is_open => self.out.push(HubFrame::Keepalive),
            Signal::CaBundle | Signal::KeepaliveDue => {}
            Signal::Shutdown => {
                let within = u32::try_from(DRAIN_WITHIN.as_millis()).unwrap_or(u32::MAX);
                if !self.out.is_handed_over() {
                    self.out.push(HubFrame::Drain(within));
                }
                self.out.finish();
            }
        }
    }

    /// Extends the session to the end of its certificate, after the agent has reported its acked
    /// set.
    pub(super) fn lasts(&mut self) {
        self.limit
            .as_mut()
            .reset(tokio::time::Instant::now() + remaining_validity(&self.context.identity));
    }

    /// Restarts the time limit, because the agent continues its report. A slow link takes longer
    /// for the whole report.
    pub(super) fn extend_hello(&mut self) {
        self.limit.as_mut().reset(
            tokio::time::Instant::now()
                + HELLO_LIMIT.min(remaining_validity(&self.context.identity)),
        );
    }

    fn time_is_up(&mut self) {
        if self.context.identity.certificate.not_after <= SystemTime::now() {
            self.end(expired());
        } else if self.registered {
            // The clock was set back.
            self.lasts();
        } else {
            self.end(Status::deadline_exceeded(
                "the agent did not report its intents",
            ));
        }
    }

    /// Checks for a revocation, an expiry, or the end of the right to lead. A session with much to
    /// send does so before each frame. It reads the clock itself, because the process may have been
    /// paused.
    fn check_admission(&mut self) {
        if !self.leads() || self.out.is_ending() {
            return;
        }
        if self.context.live.wake.notified().now_or_never().is_some() {
            self.woken();
        }
        if self.context.identity.certificate.not_after <= SystemTime::now() {
            self.end(expired());
        }
    }

    /// Whether the right to lead under which the session began is still valid. If not, the session
    /// ends.
    pub(super) fn leads(&mut self) -> bool {
        let leads = self.context.hub_state.leadership.is_leading(&self.lead);
        if !leads {
            self.end(not_leading());
        }
        leads
    }

    pub(super) fn end(&mut self, status: Status) {
        self.out.end(status);
    }

    /// Ends a session that is no longer allowed. The last frame to a revoked cluster is the
    /// revocation.
    pub(super) fn cut(&mut self, refusal: &JoinRefusal) {
        if self.context.may_log() {
            tracing::warn!(why = %refusal, "a session is cut");
        }
        let status = refused(refusal);
        if refusal.is_revocation() {
            let frame = HubFrame::Revoked(refusal.code().to_owned());
            self.out.end_with(frame, status);
        } else {
            self.end(status);
        }
    }

    /// Handles a change of the index: checks whether the session is still allowed, and whether it
    /// must send something.
    fn woken(&mut self) {
        let newest = self
            .context
            .hub_state
            .sessions
            .get(&self.context.identity.cluster)
            .map(|live| live.number);
        if newest.is_some_and(|newest| newest > self.context.live.number) {
            self.end(with_reason(
                Status::aborted("another session of this cluster took over"),
                "replaced",
            ));
        } else if let Err(refusal) = admission(
            &self.context.hub_state,
            &self.context.object_cache,
            &self.context.identity,
        ) {
            if !self.may_be_leaving(&refusal) {
                self.cut(&refusal);
            }
        } else if let Some(first) = self.context.live.replaced_by.get() {
            self.refuse_second(first.clone());
        } else if self.is_confirmed() {
            self.require_reconnect();
        } else {
            self.update();
        }
    }

    /// Whether the cluster has no keys because its record is absent. The record goes with the `MemberCluster`, of which the watch
    /// may show it later: whether the cluster is revoked is not known until then.
    fn may_be_leaving(&self, refusal: &JoinRefusal) -> bool {
        let cluster = &self.context.identity.cluster;
        let lacks_record =
            |member: Option<&Member>| member.is_some_and(|member| member.stored().is_none());
        matches!(refusal, JoinRefusal::UnknownKey(_))
            && self.context.object_cache.with_member(cluster, lacks_record)
    }

    pub(super) fn update(&mut self) {
        let index = self.context.hub_state.index.read();
        // The index may be newer than the state that the admission check read.
        if !index
            .clusters()
            .serves_cluster(&self.context.identity.cluster, self.context.identity.uid())
        {
            return;
        }
        let (before, waiting) = {
            let session = self.context.live.session.lock();
            (session.version(), session.handovers())
        };
        let has_forgotten = index.rules().has_forgotten_since(before);
        let cluster = &self.context.identity.cluster;
        let is_known = |uid: &RuleUid| self.context.live.session.lock().knows_copies(uid);
        let (directives, version) = index.directives_for(cluster, before, waiting, is_known);
        let is_deleted = |uid: &RuleUid| {
            index
                .rules()
                .get(uid)
                .is_some_and(|entry| entry.rule.deleting)
        };
        let deleted: Vec<_> = directives
            .iter()
            .map(|(uid, _)| uid)
            .filter(|uid| is_deleted(uid))
            .cloned()
            .collect();
        drop(index);
        let mut session = self.context.live.session.lock();
        session.catch_up(directives, version);
        // No other report shows that this cluster has no copies of a rule that waits for its
        // release.
        let free: Vec<_> = deleted
            .into_iter()
            .filter(|uid| session.is_free_of(uid, version))
            .collect();
        drop(session);
        if !free.is_empty() {
            self.context.hub_state.queues.dirty_rules.add(free);
        }
        self.send_rules_beyond_limit();
        self.context.judge_orphaned();
        if has_forgotten {
            // The list does not contain rules that were dropped long ago.
            self.context.claim_acked();
        }
    }

    /// Adds the next frames to `out`.
    fn fill(&mut self) {
        if !self.registered || !self.out.is_idle() {
            return;
        }
        if let Some(asked) = self.context.live.inquiries.next() {
            return self.out.push(asked.into());
        }
        let mut session = self.context.live.session.lock();
        let questions = session.take_questions();
        if !questions.is_empty() {
            self.out.push(HubFrame::DetailRequest(questions));
        } else if let Some(batch) = session.next_batch() {
            self.out.push(HubFrame::Batch(batch));
        } else if let Some(end) = session.take_snapshot_end() {
            drop(session);
            self.end_empty_restriction();
            self.out.push(HubFrame::SnapshotEnd(end));
        }
    }

    pub(super) fn start_session(&mut self, hello: Hello) {
        if hello.protocol_max < PROTOCOL_MIN || hello.protocol_min > PROTOCOL_MAX {
            let message = format!(
                "the agent uses protocols {} to {}, this hub {PROTOCOL_MIN} to {PROTOCOL_MAX}: upgrade the {}",
                hello.protocol_min,
                hello.protocol_max,
                if hello.protocol_min > PROTOCOL_MAX {
                    "hub"
                } else {
                    "agent"
                },
            );
            return self.end(Status::failed_precondition(message));
        }
        self.judge_member(&hello.cluster_uid);
        if self.out.is_ending() {
            return;
        }
        self.out.push(HubFrame::SnapshotBegin(SnapshotBegin {
            protocol: hello.protocol_max.min(PROTOCOL_MAX),
            hub_id: self.context.hub_state.settings.hub_id.clone(),
            hub_cluster_uid: self.context.hub_state.settings.cluster_uid.clone(),
            behind: self.epoch.restriction() == SendRestriction::Everything,
            proof_key: Some(self.context.hub_state.proof_key.clone()),
        }));
        self.hello = Some(hello);
        self.send_ca_bundle();
    }
}

/// Returns for how long the certificate of a session is still valid.
fn remaining_validity(identity: &PeerIdentity) -> Duration {
    identity
        .certificate
        .not_after
        .duration_since(SystemTime::now())
        .unwrap_or_default()
}

impl Drop for Running {
    /// An ending session must not remove a later one.
    fn drop(&mut self) {
        if !self.registered {
            return;
        }
        let _in_session = self.span.clone().entered();
        self.context.metrics.connected(-1);
        let cluster = &self.context.identity.cluster;
        let own = |_: &_, live: &Arc<LiveSession>| live.number == self.context.live.number;
        if self
            .context
            .hub_state
            .sessions
            .remove_if(cluster, own)
            .is_some()
        {
            if self.context.may_log() {
                tracing::info!("session ended");
            }
            self.context
                .metrics
                .rules_delivered(self.context.hub_state.deliveries.lock().lost(cluster));
            self.context.hub_state.report_store.lock().disconnected(
                cluster,
                self.context.live.number,
                Instant::now(),
            );
            self.context
                .hub_state
                .queues
                .dirty_members
                .add([cluster.clone()]);
        }
    }
}

/// A rare signal.
pub(super) enum Signal {
    /// The right to lead has changed.
    Lead,
    /// The hub's CAs have changed.
    CaBundle,
    /// The agent must be sent a keepalive frame: see [`Meter::needs_ping`].
    KeepaliveDue,
    /// The process ends.
    Shutdown,
}

/// The signals of one session. A session waits again after each frame. A new subscription to every
/// signal would cost more than the frame, so the session subscribes once.
pub(super) type Signals = SelectAll<BoxStream<'static, Signal>>;

/// Returns the signals of a session on a connection with this meter, until `shutdown` is cancelled.
pub(super) fn signals(
    hub_state: &HubState,
    meter: Arc<Meter>,
    shutdown: CancellationToken,
) -> Signals {
    let owed = stream::unfold(meter, |meter| async {
        meter.needs_ping().await;
        Some((Signal::KeepaliveDue, meter))
    });
    stream::select_all([
        changes(hub_state.leadership.lead.subscribe())
            .map(|()| Signal::Lead)
            .boxed(),
        changes(hub_state.ca_bundle.subscribe())
            .map(|()| Signal::CaBundle)
            .boxed(),
        owed.boxed(),
        stream::once(shutdown.cancelled_owned())
            .map(|()| Signal::Shutdown)
            .boxed(),
    ])
}

fn changes<T>(receiver: watch::Receiver<T>) -> impl Stream<Item = ()> {
    stream::unfold(receiver, |mut receiver| async {
        receiver.changed().await.ok()?;
        Some(((), receiver))
    })
}

/// The time for which a stream stays open after the handover, for the stream that replaces it.
const HANDOVER_LIMIT: Duration = Duration::from_secs(30);

/// The frames to send, in order, and the status that follows them.
///
/// After a handover the stream sends nothing more: the agent opens another stream.
#[derive(Default)]
pub(super) struct Outgoing {
    frames: VecDeque<HubFrame>,
    status: Option<Status>,
    handover_deadline: Option<Instant>,
}

/// The next item of a stream.
pub(super) enum NextItem {
    Frame(HubFrame),
    End(Status),
}

impl Outgoing {
    /// Appends a frame. The caller checks [`Self::is_handed_over`] where that can be the case.
    pub(super) fn push(&mut self, frame: HubFrame) {
        self.frames.push_back(frame);
    }

    /// Drops the pending frames, and ends the stream with `status`.
    pub(super) fn end(&mut self, status: Status) {
        self.frames.clear();
        self.status = Some(status);
    }

    /// Drops the pending frames, sends `frame`, and ends the stream with `status`.
    pub(super) fn end_with(&mut self, frame: HubFrame, status: Status) {
        self.end(status);
        self.push(frame);
    }

    /// Ends the stream without an error after the pending frames.
    pub(super) fn finish(&mut self) {
        self.status = Some(Status::ok(""));
    }

    /// Announces the handover to the agent as the last frame, unless the stream is at its end.
    pub(super) fn hand_over(&mut self, now: Instant) {
        if !self.is_handed_over() && !self.is_ending() {
            self.handover_deadline = Some(now + HANDOVER_LIMIT);
            self.push(HubFrame::HandedOver);
        }
    }

    /// Removes and returns what the stream sends next; `None` if it has nothing to send.
    pub(super) fn next(&mut self) -> Option<NextItem> {
        let frame = self.frames.pop_front().map(NextItem::Frame);
        frame.or_else(|| self.status.take().map(NextItem::End))
    }

    /// Whether no frame is pending and frames may follow.
    pub(super) fn is_idle(&self) -> bool {
        self.frames.is_empty() && !self.is_ending() && !self.is_handed_over()
    }

    /// Whether the stream ends after the pending frames.
    pub(super) fn is_ending(&self) -> bool {
        self.status.is_some()
    }

    /// Whether the handover was announced.
    pub(super) fn is_handed_over(&self) -> bool {
        self.handover_deadline.is_some()
    }

    /// Returns when a stream ends after a handover, even without the stream that replaces it.
    pub(super) fn handover_deadline(&self) -> Option<Instant> {
        self.handover_deadline
    }
}

/// The path of the session call.
const SESSION: &str = "/runnel.v1.Runnel/Session";
/// The limit of an agent's frame. It is small, because the receive buffer keeps the size of the
/// largest frame.
const RECEIVE_LIMIT: usize = 64 * 1024;
/// The initial size of the receive buffer, because most agents send little.
const RECEIVE_BUFFER: usize = 512;
/// The size of the header of each message: a compression flag and its length.
const HEADER: usize = 5;

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The gRPC service, with its own handler for sessions.
#[derive(Clone)]
pub struct Calls {
    server: Arc<Server>,
    others: RunnelServer<Server>,
}

impl Calls {
    /// Creates the service of this server.
    pub(super) fn of(server: Server) -> Self {
        let server = Arc::new(server);
        let others = RunnelServer::from_arc(server.clone());
        Self {
            others: others
                .max_decoding_message_size(RECEIVE_LIMIT)
                .max_encoding_message_size(FRAME_LIMIT),
            server,
        }
    }
}

impl NamedService for Calls {
    const NAME: &'static str = <RunnelServer<Server> as NamedService>::NAME;
}

impl Service<Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        if request.uri().path() != SESSION {
            return self.others.call(request);
        }
        let server = self.server.clone();
        Box::pin(async move {
            Ok(open(&server, request)
                .await
                .unwrap_or_else(Status::into_http))
        })
    }
}

async fn open(server: &Server, request: Request<Body>) -> Result<Response<Body>, Status> {
    let (head, body) = request.into_parts();
    let received = Streaming::new_request(FrameDecoder, body, None, Some(RECEIVE_LIMIT));
    let metadata = MetadataMap::from_headers(head.headers);
    let frames = server
        .session(tonic::Request::from_parts(
            metadata,
            head.extensions,
            received,
        ))
        .await?
        .into_inner();
    let mut response = Response::new(Body::new(FrameBody {
        frames: Some(frames),
    }));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    Ok(response)
}

struct FrameDecoder;

impl Decoder for FrameDecoder {
    type Item = wire::AgentFrame;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<wire::AgentFrame>, Status> {
        wire::AgentFrame::decode(message)
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(RECEIVE_BUFFER, RECEIVE_LIMIT)
    }
}

/// A response body with the frames to the agent, and the status in the trailers.
struct FrameBody<S> {
    frames: Option<S>,
}

impl<S: Stream<Item = Result<wire::HubFrame, Status>> + Unpin> http_body::Body for FrameBody<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(frames) = &mut self.frames else {
            return Poll::Ready(None);
        };
        let text = ready!(Pin::new(frames).poll_next(context));
        let status = match text
            .unwrap_or_else(|| Err(Status::ok("")))
            .and_then(|frame| bytes_of(&frame))
        {
            Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Err(status) => status,
        };
        self.frames = None;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(
            status
                .add_header(&mut trailers)
                .map(|()| Frame::trailers(trailers)),
        ))
    }
}

/// Encodes a message with its gRPC header.
fn bytes_of(frame: &wire::HubFrame) -> Result<Bytes, Status> {
    let length = frame.encoded_len();
    let length_prefix = u32::try_from(length).ok().filter(|_| length <= FRAME_LIMIT);
    let length_prefix = length_prefix.ok_or_else(|| {
        Status::out_of_range(format!(
            "a frame of {length} bytes: the limit is {FRAME_LIMIT}"
        ))
    })?;
    let mut bytes = BytesMut::with_capacity(HEADER + length);
    bytes.put_u8(0);
    bytes.put_u32(length_prefix);
    frame.encode_raw(&mut bytes);
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};
    use tonic::Code;

    use super::*;

    fn drain_frames(outgoing: &mut Outgoing) -> Vec<String> {
        std::iter::from_fn(|| outgoing.next())
            .map(|next| match next {
                NextItem::Frame(HubFrame::Keepalive) => "Keepalive".to_owned(),
                NextItem::Frame(HubFrame::Drain(_)) => "Drain".to_owned(),
                NextItem::Frame(HubFrame::HandedOver) => "HandedOver".to_owned(),
                NextItem::Frame(_) => "another frame".to_owned(),
                NextItem::End(status) => format!("{:?}", status.code()),
            })
            .collect()
    }

    #[test]
    fn error_drops_the_frames_that_wait() {
        let mut outgoing = Outgoing::default();
        outgoing.push(HubFrame::Keepalive);
        outgoing.end(Status::new(Code::Aborted, "replaced"));
        assert_eq!(drain_frames(&mut outgoing), ["Aborted"]);
    }

    #[test]
    fn last_frame_of_an_ended_stream_precedes_its_status() {
        let mut outgoing = Outgoing::default();
        outgoing.push(HubFrame::Keepalive);
        outgoing.end_with(HubFrame::Drain(0), Status::ok(""));
        assert_eq!(drain_frames(&mut outgoing), ["Drain", "Ok"]);
    }

    #[test]
    fn finished_stream_sends_the_frames_that_wait() {
        let mut outgoing = Outgoing::default();
        outgoing.push(HubFrame::Keepalive);
        outgoing.finish();
        assert_eq!(drain_frames(&mut outgoing), ["Keepalive", "Ok"]);
    }

    #[test]
    fn handover_is_announced_once_and_not_after_the_end() {
        let (mut outgoing, now) = (Outgoing::default(), Instant::now());
        outgoing.push(HubFrame::Keepalive);
        outgoing.hand_over(now);
        let deadline = outgoing.handover_deadline();
        outgoing.hand_over(now + Duration::from_secs(1));
        assert_eq!(outgoing.handover_deadline(), deadline);
        assert_eq!(drain_frames(&mut outgoing), ["Keepalive", "HandedOver"]);
        assert!(!outgoing.is_idle());

        let mut ended = Outgoing::default();
        ended.finish();
        ended.hand_over(now);
        assert!(!ended.is_handed_over());
    }

    /// Returns the frames of a body in order: lengths of data, and the status at the end.
    fn frames(text: Vec<Result<wire::HubFrame, Status>>) -> Vec<String> {
        let mut body = FrameBody {
            frames: Some(stream::iter(text)),
        };
        let mut seen = Vec::new();
        loop {
            let next = std::future::poll_fn(|context| {
                http_body::Body::poll_frame(Pin::new(&mut body), context)
            });
            let Some(Some(frame)) = next.now_or_never() else {
                return seen;
            };
            let frame = frame.unwrap();
            let status = |trailers: &HeaderMap| {
                format!("status {}", trailers["grpc-status"].to_str().unwrap())
            };
            seen.push(frame.data_ref().map_or_else(
                || status(frame.trailers_ref().unwrap()),
                |data| format!("{data:?}"),
            ));
        }
    }

    fn frame(epoch: &str) -> wire::HubFrame {
        wire::HubFrame {
            epoch: epoch.to_owned(),
            ..wire::HubFrame::default()
        }
    }

    #[test]
    fn frames_go_out_one_by_one_and_the_status_is_last() {
        let epoch = frame("a").encode_to_vec();
        assert_eq!(epoch.len(), 3);
        let header = [0, 0, 0, 0, 3];
        let whole: Bytes = [&header[..], &epoch].concat().into();
        assert_eq!(
            frames(vec![Ok(frame("a"))]),
            [format!("{whole:?}"), "status 0".to_owned()]
        );
        assert_eq!(
            frames(vec![Err(Status::aborted("over")), Ok(frame("a"))]),
            ["status 10"]
        );
    }

    #[test]
    fn oversized_frame_ends_the_stream() {
        assert_eq!(
            frames(vec![Ok(frame(&"x".repeat(FRAME_LIMIT + 1)))]),
            ["status 11"]
        );
    }
}
