//! The stream to the hub: opens it, renews the certificate, and reconnects. It decides nothing
//! about copies.
mod addresses;
mod ended;
mod handover;
mod history_token;
mod renew;
mod trust;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::anyhow;
use runnel_proto::convert::{FrameError, agent_frame_to_wire, hub_frame};
use runnel_proto::model::{AgentFrame, HubFrame, Refusal};
use runnel_proto::wire;
use runnel_proto::{FRAME_LIMIT, PROTOCOL_MAX, PROTOCOL_MIN};
use runnel_transport::grpc::runnel_client::RunnelClient;
use runnel_transport::identity::{MemberKey, PeerCertificate};
use runnel_transport::tls::{Connector, Meter, endpoint, session_config};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use tracing::Instrument;

use crate::join::error_chain;
use crate::lease::WriteRight;
use crate::metrics::Metrics;
use crate::store::{Identity, Store};
use ended::{StreamEnd, from_connect_error, refused};
use handover::{Connected, NextConnection, ReplacedStream, ended};
pub use history_token::HistoryTokenStore;
use history_token::with_history_token;
use runnel_agent_core::backoff::{Backoff, CONNECT, Jitter};
use runnel_agent_core::leader_fence::Fence;

/// Age of a stream after which earlier failures no longer count.
const STABLE: Duration = Duration::from_secs(60);
/// Timeout of the hub's first frame.
const FIRST_FRAME: Duration = Duration::from_secs(30);
/// Limit of the time that the agent stays with a draining hub.
const LONGEST_DRAIN: Duration = Duration::from_secs(600);
/// Backoff for a hub that refuses this agent: only a person can help.
const REFUSED: Backoff = Backoff {
    base: Duration::from_secs(15),
    limit: Duration::from_secs(60),
};
/// Remaining certificate lifetime below which a hub with older state also renews it.
const LAST_RENEWAL: Duration = Duration::from_secs(3600);
/// Delay after a failed renewal.
const RENEWAL_RETRY: Duration = Duration::from_secs(60);

/// An event of the link for the core.
pub enum LinkEvent {
    /// A stream is being opened. The sender takes the frames for it.
    Open(mpsc::Sender<AgentFrame>),
    /// A frame was received, with its items that could not be parsed.
    Frame(HubFrame, Vec<Refusal>),
    /// The stream has ended.
    Closed,
    /// The hub has revoked this cluster, on the stream or by refusing a new one.
    Revoked,
}

/// The connection to the hub, and its dependencies.
pub struct Link {
    /// The identity of the agent.
    pub identity: Identity,
    /// The uid of the cluster.
    pub cluster_uid: String,
    /// The store for new certificates.
    pub store: Store,
    /// The generator of jitter.
    pub jitter: Jitter,
    /// The metrics of the agent.
    pub metrics: Metrics,
    /// The path of the join string, for a certificate that has expired.
    pub join_file: Option<std::path::PathBuf>,
    /// The events for the core.
    pub events: mpsc::Sender<LinkEvent>,
    /// The fence against former leaders of the hub.
    pub fence: Fence,
    /// The hub's history token.
    pub history_token: HistoryTokenStore,
    /// Whether this agent is the active one of its cluster.
    pub right: WriteRight,
}

impl Link {
    /// Keeps a stream open until the core is dropped. `start` fires when the first lists are
    /// complete.
    pub async fn run(&mut self, start: tokio::sync::oneshot::Receiver<()>) {
        if start.await.is_err() {
            return;
        }
        let (mut failures, mut turn, mut expired, mut addresses) = (0, 0, false, vec![]);
        loop {
            let now = self.candidates();
            if now != addresses {
                (addresses, turn) = (now, 0);
            }
            let address = addresses.get(turn % addresses.len().max(1)).cloned();
            turn += 1;
            let opened = Instant::now();
            let address = address.unwrap_or_default();
            let ended = match self.expired(&address, expired).await {
                Some(ended) => ended,
                None => self.stream(&address).await,
            };
            let over = Instant::now();
            let ended = self.unwanted(ended).await;
            expired = matches!(ended, StreamEnd::Expired);
            let replaced = matches!(ended, StreamEnd::Replaced);
            self.metrics.connected.set(0);
            if opened.elapsed() >= STABLE {
                failures = 0;
            }
            let delay = match ended {
                StreamEnd::Over => return,
                StreamEnd::Planned(delay) => {
                    tracing::info!(reconnect_in = ?delay, "the stream to the hub ends as planned");
                    delay
                }
                StreamEnd::Refused(text) | StreamEnd::Revoked(text) => {
                    failures += 1;
                    let delay = REFUSED.jittered(failures, self.jitter.draw());
                    tracing::error!(retry_in = ?delay, "the hub refuses this agent: {text}");
                    delay
                }
                StreamEnd::Expired => {
                    failures += 1;
                    CONNECT.full_jitter(failures, self.jitter.draw())
                }
                StreamEnd::Replaced => {
                    failures += 1;
                    let delay = CONNECT.full_jitter(failures, self.jitter.draw());
                    tracing::warn!(retry_in = ?delay, "another session of this cluster has replaced this one");
                    delay
                }
                StreamEnd::Failed(text) => {
                    failures += 1;
                    let delay = CONNECT.full_jitter(failures, self.jitter.draw());
                    tracing::warn!(retry_in = ?delay, "no stream to the hub: {text}; existing copies are kept in sync");
                    delay
                }
            };
            // The time of an attempt to join again counts as delay.
            tokio::select! {
                () = tokio::time::sleep(delay.saturating_sub(over.elapsed())) => {}
                () = self.events.closed() => return,
                never = self.history_token.store_when_due() => match never {},
            }
            // The other session's agent holds the Lease. Without the Lease, this agent would only
            // alternate with it.
            if replaced && !self.right.may_write() {
                tokio::select! {
                    () = self.right.acquired() => {}
                    () = self.events.closed() => return,
                }
            }
        }
    }

    /// Stores a history token that is not stored yet, because the agent ends.
    pub async fn end(mut self) {
        self.history_token.store_now().await;
    }

    /// Runs one stream from its opening to its end, including the streams that replace it.
    async fn stream(&mut self, address: &str) -> StreamEnd {
        let mut next = match channel(&self.identity, address).await {
            Ok(connected) => NextConnection {
                connected,
                before: None,
            },
            Err(ended) => return ended,
        };
        let ended = loop {
            let span = tracing::info_span!("session", hub = address);
            match self.session(next, address).instrument(span).await {
                Ok(second) => next = second,
                Err(ended) => break ended,
            }
        };
        self.fence.closed(Instant::now());
        if matches!(ended, StreamEnd::Revoked(_))
            && self.events.send(LinkEvent::Revoked).await.is_err()
        {
            return StreamEnd::Over;
        }
        if self.events.send(LinkEvent::Closed).await.is_err() {
            return StreamEnd::Over;
        }
        ended
    }

    /// Runs one stream on a connection. Returns the connection on which the next stream must be
    /// opened at once, if the stream was handed over. The core is not notified of the end of a
    /// replaced stream, only of the new stream.
    async fn session(
        &mut self,
        NextConnection { connected, before }: NextConnection,
        address: &str,
    ) -> Result<NextConnection, StreamEnd> {
        let mut client = client(connected.channel);
        let (frames, outbound) = mpsc::channel(8);
        if self
            .events
            .send(LinkEvent::Open(frames.clone()))
            .await
            .is_err()
        {
            return Err(StreamEnd::Over);
        }
        let metrics = self.metrics.clone();
        let outbound = ReceiverStream::new(outbound).map(move |frame| {
            metrics.frames_sent.inc();
            agent_frame_to_wire(&frame)
        });
        let opening = tokio::time::timeout(
            FIRST_FRAME,
            client.session(with_history_token(
                self.history_token.newest().as_ref(),
                outbound,
            )),
        );
        let mut inbound = match opening.await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return Err(from_connect_error(&status)),
            Err(_) => {
                return Err(StreamEnd::Failed(format!(
                    "the hub at {address} accepted the stream but did not answer"
                )));
            }
        };
        let stay = match self.receive_first_frame(&mut inbound).await {
            Ok(behind) => self.history_token.stay(behind, &mut self.jitter),
            Err(ended) => return Err(ended),
        };
        self.reached(address).await;
        tracing::info!(cluster = %self.identity.cluster, "connected to the hub");
        self.metrics.connected.set(1);
        if let Some(at) = not_after(&self.identity) {
            self.metrics.certificate_expires(at);
        }
        self.serve(
            (client, frames),
            (inbound, connected.meter),
            before,
            (address, stay),
        )
        .await
    }

    /// Checks the first frame: the hub's id, its protocol, and its term. Returns whether the hub
    /// has older state than the history token.
    async fn receive_first_frame(
        &mut self,
        inbound: &mut Streaming<wire::HubFrame>,
    ) -> Result<bool, StreamEnd> {
        let frame = match tokio::time::timeout(FIRST_FRAME, inbound.message()).await {
            Ok(Ok(Some(frame))) => frame,
            Ok(Ok(None)) => {
                return Err(StreamEnd::Failed(
                    "the hub closed the stream at once".to_owned(),
                ));
            }
            Ok(Err(status)) => return Err(from_connect_error(&status)),
            Err(_) => {
                return Err(StreamEnd::Failed(
                    "the hub accepted the stream but sent nothing".to_owned(),
                ));
            }
        };
        self.fence
            .admit(&frame.epoch, frame.term, Instant::now())
            .map_err(|error| StreamEnd::Failed(error.to_string()))?;
        let (frame, refused) =
            hub_frame(frame).map_err(|error| StreamEnd::Failed(error.to_string()))?;
        if let HubFrame::Revoked(reason) = &frame {
            return Err(StreamEnd::Revoked(format!(
                "it has revoked cluster {} ({reason})",
                self.identity.cluster
            )));
        }
        let HubFrame::SnapshotBegin(begin) = &frame else {
            return Err(StreamEnd::Failed(
                "the hub's first frame is not the beginning of a snapshot".to_owned(),
            ));
        };
        if begin.hub_id != self.identity.hub {
            let text = format!(
                "this is hub {}, but the agent joined hub {}",
                begin.hub_id, self.identity.hub
            );
            return Err(StreamEnd::Refused(text));
        }
        if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&begin.protocol) {
            let older = if begin.protocol > PROTOCOL_MAX {
                "agent"
            } else {
                "hub"
            };
            let text = format!(
                "the hub uses protocol {}, this agent {PROTOCOL_MIN} to {PROTOCOL_MAX}: upgrade the {older}",
                begin.protocol
            );
            return Err(StreamEnd::Refused(text));
        }
        let behind = begin.behind;
        if behind {
            self.fence.drop_term();
            tracing::warn!(
                "this hub does not have state that this agent has received: it was restored from a backup, or there are two hubs. Copies stay \
                 as they are until an administrator confirms: see the conditions of the MemberCluster on the hub"
            );
        }
        self.metrics.frames_received.inc();
        self.events
            .send(LinkEvent::Frame(frame, refused))
            .await
            .map_err(|_| StreamEnd::Over)?;
        Ok(behind)
    }

    /// Forwards frames until the stream ends, and renews the certificate when it is due.
    async fn serve(
        &mut self,
        (client, frames): (RunnelClient<Channel>, mpsc::Sender<AgentFrame>),
        (mut inbound, meter): (Streaming<wire::HubFrame>, Arc<Meter>),
        mut before: Option<ReplacedStream>,
        (address, stay): (&str, Option<Duration>),
    ) -> Result<NextConnection, StreamEnd> {
        let mut leave_at = self.leave_at();
        // A hub with older state may be one of two. The other hub must still know this agent's key.
        let behind = stay.is_some();
        let is_overdue = |left: Duration| behind && left > LAST_RENEWAL;
        if let Some(stay) = stay {
            leave_at = leave_at.min(tokio::time::Instant::now() + stay);
        }
        let mut swap = self.swap();
        let (mut draining, mut reported) = (false, None);
        loop {
            swap = self.trust(swap, &mut reported).await;
            tokio::select! {
                frame = inbound.message() => {
                    let frame = match frame {
                        Ok(Some(frame)) => frame,
                        // The hub drains as announced. Another replica serves at once, and not all
                        // agents should reconnect at the same time.
                        Ok(None) | Err(_) if draining => {
                            return Err(StreamEnd::Planned(leave_at.saturating_duration_since(tokio::time::Instant::now())));
                        }
                        Ok(None) => return Err(StreamEnd::Failed("the hub closed the stream".to_owned())),
                        Err(status) => return Err(refused(&status)),
                    };
                    match self.pass(frame).await {
                        Ok(FrameEffect::NoEffect) => {}
                        Ok(FrameEffect::CaBundle(all)) => reported = Some(all).filter(|_| !behind).or(reported.take()),
                        Ok(FrameEffect::HandedOver) => {
                            // Without a second connection, this is an ordinary planned end.
                            let Some(connected) = swap.second() else { return Err(StreamEnd::Planned(Duration::ZERO)) };
                            let before = Some(ReplacedStream { inbound, _client: client });
                            return Ok(NextConnection { connected, before });
                        }
                        // The hub drains: the agent stays for a random part of the time that the
                        // hub gives.
                        Ok(FrameEffect::Drain(within)) => {
                            draining = true;
                            leave_at = leave_at.min(tokio::time::Instant::now() + within.mul_f64(self.jitter.draw()));
                        }
                        Err(ended) => return Err(ended),
                    }
                }
                () = tokio::time::sleep_until(leave_at) => return Err(StreamEnd::Planned(Duration::ZERO)),
                () = ended(&mut before) => before = None,
                // If frames are queued, the hub receives data from this agent anyway.
                () = meter.needs_ping() => drop(frames.try_send(AgentFrame::Keepalive)),
                never = self.history_token.store_when_due() => match never {},
                step = swap.next(), if !draining && !is_overdue(self.remaining_validity()) => swap = self.advance(swap, step, address, (&client, &frames)),
            }
        }
    }

    /// Hands a frame to the core. It waits while the core has no room, which stops the hub by flow
    /// control.
    async fn pass(&mut self, frame: wire::HubFrame) -> Result<FrameEffect, StreamEnd> {
        self.fence
            .admit(&frame.epoch, frame.term, Instant::now())
            .map_err(|error| StreamEnd::Failed(error.to_string()))?;
        let (hello, leader) = (
            frame.history_token.clone(),
            (frame.epoch.clone(), frame.term),
        );
        let (frame, refused) = match hub_frame(frame) {
            Ok(read) => read,
            Err(error @ FrameError::Question { .. }) => {
                tracing::warn!(%error, "a question of the hub is ignored");
                return Ok(FrameEffect::NoEffect);
            }
            Err(error) => return Err(StreamEnd::Failed(error.to_string())),
        };
        self.metrics.frames_received.inc();
        if let HubFrame::Revoked(reason) = &frame {
            return Err(StreamEnd::Revoked(format!(
                "it has revoked cluster {} ({reason})",
                self.identity.cluster
            )));
        }
        if let HubFrame::CaBundle(all) = frame {
            return Ok(FrameEffect::CaBundle(all));
        }
        if let HubFrame::Batch(batch) = &frame {
            let bytes = batch
                .rules
                .iter()
                .flat_map(|rule| &rule.upserts)
                .map(|intent| intent.payload.bytes().len());
            self.metrics
                .payload_bytes
                .inc_by(bytes.sum::<usize>() as u64);
        }
        let passed = match &frame {
            HubFrame::Drain(milliseconds) => FrameEffect::Drain(
                Duration::from_millis(u64::from(*milliseconds)).min(LONGEST_DRAIN),
            ),
            HubFrame::HandedOver => FrameEffect::HandedOver,
            _ => FrameEffect::NoEffect,
        };
        let is_end = matches!(frame, HubFrame::SnapshotEnd(_));
        self.events
            .send(LinkEvent::Frame(frame, refused))
            .await
            .map_err(|_| StreamEnd::Over)?;
        self.history_token.receive(&hello, leader);
        if is_end {
            self.history_token.mark_store_due();
        }
        Ok(passed)
    }

    fn renew_time(&self) -> Duration {
        self.renews_at()
            .and_then(|at| at.duration_since(SystemTime::now()).ok())
            .unwrap_or_default()
    }

    /// Returns when this stream must be replaced. The hub ends it when its certificate expires.
    fn leave_at(&self) -> tokio::time::Instant {
        let left = self.remaining_validity();
        from_now(left.saturating_sub(Duration::from_secs(300).min(left / 10)))
    }

    /// Returns how long the agent's certificate is still valid.
    ///
    /// If it is not valid by the local clock, and the hub accepts it, the clock is wrong. Then this
    /// is its whole lifetime, because the hub ends the stream when the certificate expires.
    fn remaining_validity(&self) -> Duration {
        let read = self
            .identity
            .certificate
            .as_ref()
            .and_then(|acked| PeerCertificate::from_der(&acked.own).ok());
        read.map(|read| read.remaining_validity(SystemTime::now()))
            .unwrap_or_default()
    }
}

/// The effect of a frame on the stream.
enum FrameEffect {
    /// The hub has sent its current CAs.
    CaBundle(Vec<bytes::Bytes>),
    /// The hub closes the stream within this time.
    Drain(Duration),
    /// The stream is handed over: the next one must be opened.
    HandedOver,
    /// No effect.
    NoEffect,
}

/// Opens a connection to the hub, and verifies its certificate.
async fn channel(identity: &Identity, address: &str) -> Result<Connected, StreamEnd> {
    let connector = connector(identity).map_err(|error| {
        StreamEnd::Refused(format!("the stored identity cannot be used: {error}"))
    })?;
    let endpoint = endpoint(address).map_err(|error| StreamEnd::Failed(error.to_string()))?;
    let meter = connector.meter();
    let channel = endpoint.connect_with_connector(connector).await;
    channel
        .map(|channel| Connected { channel, meter })
        .map_err(|error| StreamEnd::Failed(error_chain(&error)))
}

fn client(channel: Channel) -> RunnelClient<Channel> {
    RunnelClient::new(channel)
        .max_decoding_message_size(FRAME_LIMIT)
        .max_encoding_message_size(FRAME_LIMIT)
}

fn connector(identity: &Identity) -> anyhow::Result<Connector> {
    let certificate = identity
        .certificate
        .as_ref()
        .ok_or_else(|| anyhow!("there is no certificate"))?;
    let key = MemberKey::from_pem(&identity.key)?.to_der();
    let config = session_config(
        &certificate.ca_certificates,
        &identity.hub,
        vec![certificate.own.clone()],
        key,
    )?;
    Ok(Connector::new(config))
}

/// Returns when the agent's certificate expires.
fn not_after(identity: &Identity) -> Option<SystemTime> {
    let certificate = identity.certificate.as_ref()?;
    PeerCertificate::from_der(&certificate.own)
        .ok()
        .map(|read| read.not_after)
}

fn from_now(after: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + after
}
