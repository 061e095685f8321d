//! Make before break: the agent gets a new certificate, opens a second connection with it, and
//! waits until the hub sends nothing more on the old stream. The old stream continues until then,
//! and also if a step fails.
use std::sync::Arc;
use std::time::Duration;

use runnel_proto::model::AgentFrame;
use runnel_proto::wire;
use runnel_transport::grpc::runnel_client::RunnelClient;
use runnel_transport::tls::Meter;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Streaming;
use tonic::transport::Channel;

use super::ended::StreamEnd;
use super::renew::{NotRenewed, Renewal};
use super::{Link, RENEWAL_RETRY, channel, from_now};
use crate::store::Identity;

/// Timeout of the hub's last frame on a stream that is handed over.
const HANDOVER_LIMIT: Duration = Duration::from_secs(30);

/// A connection to the hub.
pub(super) struct Connected {
    /// The channel for calls.
    pub(super) channel: Channel,
    /// The meter of its traffic.
    pub(super) meter: Arc<Meter>,
}

/// A connection on which the next stream is opened.
pub(super) struct NextConnection {
    /// The connection.
    pub(super) connected: Connected,
    /// The stream that it replaces. The hub ends that stream when it has the new one.
    pub(super) before: Option<ReplacedStream>,
}

/// A replaced stream without further frames. It keeps its connection open.
pub(super) struct ReplacedStream {
    pub(super) inbound: Streaming<wire::HubFrame>,
    pub(super) _client: RunnelClient<Channel>,
}

/// Completes when the stream has ended; never without a stream.
pub(super) async fn ended(before: &mut Option<ReplacedStream>) {
    match before {
        Some(before) => while let Ok(Some(_)) = before.inbound.message().await {},
        None => std::future::pending().await,
    }
}

type Work<T> = futures::future::BoxFuture<'static, T>;

/// The state of the replacement of a stream.
pub(super) enum StreamReplacement {
    /// The certificate is renewed at this time.
    Renew(Instant),
    /// The agent has requested a new certificate from the hub.
    Renewing(Work<Result<Identity, NotRenewed>>),
    /// The second connection is opened at this time.
    Connect(Instant),
    /// The second connection is being opened.
    Connecting(Work<Result<Connected, StreamEnd>>),
    /// The second connection is open. The agent sends `Handover` as soon as the stream has room.
    SendingHandover(Connected, Work<Option<mpsc::OwnedPermit<AgentFrame>>>),
    /// The agent has sent `Handover`, and waits for the hub's last frame until this time.
    Awaiting(Connected, Instant),
}

/// The next event of the replacement.
pub(super) enum HandoverEvent {
    Due,
    Renewed(Box<Result<Identity, NotRenewed>>),
    Connected(Result<Connected, StreamEnd>),
    StreamPermit(Option<mpsc::OwnedPermit<AgentFrame>>),
}

impl StreamReplacement {
    /// Waits for the next step. The future may be dropped, and a later call continues.
    pub(super) async fn next(&mut self) -> HandoverEvent {
        match self {
            StreamReplacement::Renew(at)
            | StreamReplacement::Connect(at)
            | StreamReplacement::Awaiting(_, at) => {
                tokio::time::sleep_until(*at).await;
                HandoverEvent::Due
            }
            StreamReplacement::Renewing(work) => HandoverEvent::Renewed(Box::new(work.await)),
            StreamReplacement::Connecting(work) => HandoverEvent::Connected(work.await),
            StreamReplacement::SendingHandover(_, work) => HandoverEvent::StreamPermit(work.await),
        }
    }

    /// Returns the connection on which the hub expects the next stream.
    pub(super) fn second(self) -> Option<Connected> {
        match self {
            StreamReplacement::Awaiting(channel, _) => Some(channel),
            _ => None,
        }
    }
}

impl Link {
    /// Returns the state that waits for the renewal of the certificate.
    pub(super) fn swap(&self) -> StreamReplacement {
        StreamReplacement::Renew(from_now(self.renew_time()))
    }

    /// Continues the replacement of the stream after an event.
    pub(super) fn advance(
        &mut self,
        swap: StreamReplacement,
        step: HandoverEvent,
        address: &str,
        (client, frames): (&RunnelClient<Channel>, &mpsc::Sender<AgentFrame>),
    ) -> StreamReplacement {
        match (swap, step) {
            (StreamReplacement::Renew(_), _) => {
                let renewal = Renewal::of(self);
                StreamReplacement::Renewing(Box::pin(renewal.request_certificate(client.clone())))
            }
            (_, HandoverEvent::Renewed(renewed)) => match *renewed {
                Ok(renewed) => {
                    self.identity = renewed;
                    tracing::info!(cluster = %self.identity.cluster, "renewed the certificate");
                    self.connect(address)
                }
                Err(error) => {
                    tracing::warn!("renewing the certificate failed; trying again: {error}");
                    StreamReplacement::Renew(self.retry_at())
                }
            },
            (StreamReplacement::Connect(_), _) => self.connect(address),
            (_, HandoverEvent::Connected(Ok(channel))) => {
                let frames = frames.clone();
                StreamReplacement::SendingHandover(
                    channel,
                    Box::pin(async move { frames.reserve_owned().await.ok() }),
                )
            }
            (_, HandoverEvent::Connected(Err(ended))) => {
                let cause = match ended {
                    StreamEnd::Refused(text) | StreamEnd::Failed(text) => text,
                    _ => "the hub is not reached".to_owned(),
                };
                tracing::warn!(
                    "no second connection to the hub yet, the first one continues: {cause}"
                );
                StreamReplacement::Connect(self.retry_at())
            }
            (
                StreamReplacement::SendingHandover(channel, _),
                HandoverEvent::StreamPermit(Some(permit)),
            ) => {
                permit.send(AgentFrame::Handover);
                StreamReplacement::Awaiting(channel, Instant::now() + HANDOVER_LIMIT)
            }
            (StreamReplacement::Awaiting(..), _) => {
                tracing::warn!(
                    "the hub does not hand the stream over: it continues until its certificate ends"
                );
                self.swap()
            }
            // The stream is ending, so that its frames are not read any more.
            _ => self.swap(),
        }
    }

    /// Opens the second connection.
    fn connect(&self, address: &str) -> StreamReplacement {
        let (identity, address) = (self.identity.clone(), address.to_owned());
        StreamReplacement::Connecting(Box::pin(async move { channel(&identity, &address).await }))
    }

    fn retry_at(&mut self) -> Instant {
        let again = RENEWAL_RETRY
            .min(self.remaining_validity() / 4)
            .max(Duration::from_millis(100));
        from_now(again.mul_f64(0.5 + self.jitter.draw()))
    }
}
