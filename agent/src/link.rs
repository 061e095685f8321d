//! The stream to the hub: opened, kept, renewed, and opened again. It decides nothing about copies.
use std::time::{Duration, Instant, SystemTime};

use anyhow::anyhow;
use runnel_proto::convert::{agent_frame_to_wire, hub_frame};
use runnel_proto::identity::{MemberKey, PeerCertificate};
use runnel_proto::model::{AgentFrame, HubFrame, Refusal};
use runnel_proto::tls::{Connector, endpoint, session_config};
use runnel_proto::wire::runnel_client::RunnelClient;
use runnel_proto::wire::{self, RenewRequest};
use runnel_proto::{FRAME_LIMIT, PROTOCOL_MAX, PROTOCOL_MIN};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::backoff::{Backoff, CONNECT, Jitter};
use crate::fence::Fence;
use crate::join::{self, whole};
use crate::metrics::Metrics;
use crate::store::{Identity, Store};

/// A stream that lived so long ends a series of failures.
const STABLE: Duration = Duration::from_secs(60);
/// The hub's first frame must have come by then.
const FIRST_FRAME: Duration = Duration::from_secs(30);
/// For a hub that refuses this agent: only a person can help.
const REFUSED: Backoff = Backoff { base: Duration::from_secs(15), limit: Duration::from_secs(60) };
/// After a failed renewal.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// What the link tells the core.
pub enum LinkEvent {
    /// A stream is being opened; frames for it go here.
    Open(mpsc::Sender<AgentFrame>),
    /// A frame came, with the items that could not be read.
    Frame(HubFrame, Vec<Refusal>),
    /// The stream has ended.
    Closed,
    /// The hub has revoked this cluster: it says so on the stream, or refuses a new one for this reason.
    Revoked,
}

/// Where an agent's stream goes, and what it needs on the way.
pub struct Link {
    /// Who the agent is.
    pub identity: Identity,
    /// Where a new certificate is stored.
    pub store: Store,
    /// For jitter.
    pub jitter: Jitter,
    /// What is counted.
    pub metrics: Metrics,
    /// Where the join string lies, for a certificate that has expired.
    pub join_file: Option<std::path::PathBuf>,
    /// To the core.
    pub events: mpsc::Sender<LinkEvent>,
    /// Which leader of the hub is obeyed.
    pub fence: Fence,
}

/// Why a stream ended.
enum Ended {
    /// As planned; reconnect after this.
    Planned(Duration),
    /// The hub does not want this agent.
    Refused(String),
    /// Anything that passes.
    Failed(String),
    /// The core is gone.
    Over,
}

impl Link {
    /// Keeps a stream open until the core is gone. `start` says when the agent knows what it holds.
    pub async fn run(mut self, start: tokio::sync::oneshot::Receiver<()>) {
        if start.await.is_err() {
            return;
        }
        let (mut failures, mut turn) = (0, 0);
        loop {
            let address = self.identity.addresses.get(turn % self.identity.addresses.len().max(1)).cloned();
            turn += 1;
            let opened = Instant::now();
            let ended = match self.expired().await {
                Some(ended) => ended,
                None => self.stream(&address.unwrap_or_default()).await,
            };
            self.metrics.connected.set(0);
            if opened.elapsed() >= STABLE {
                failures = 0;
            }
            let delay = match ended {
                Ended::Over => return,
                Ended::Planned(delay) => {
                    tracing::info!(reconnect_in = ?delay, "the stream to the hub ends as planned");
                    delay
                }
                Ended::Refused(text) => {
                    failures += 1;
                    let delay = REFUSED.jittered(failures, self.jitter.draw());
                    tracing::error!(retry_in = ?delay, "the hub refuses this agent: {text}");
                    delay
                }
                Ended::Failed(text) => {
                    failures += 1;
                    let delay = CONNECT.full_jitter(failures, self.jitter.draw());
                    tracing::warn!(retry_in = ?delay, "no stream to the hub: {text}; copies here are kept as they should be");
                    delay
                }
            };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.events.closed() => return,
            }
        }
    }

    /// A certificate that has expired needs a new join string.
    async fn expired(&mut self) -> Option<Ended> {
        let not_after = not_after(&self.identity)?;
        if SystemTime::now() < not_after {
            return None;
        }
        if let Ok(string) = join::read_join_string(self.join_file.as_deref())
            && string.token.id() != self.identity.token_id
            && string.hub == self.identity.hub
        {
            match join::join(&self.store, &string, Some(self.identity.clone()), &mut self.jitter).await {
                Ok(identity) => {
                    self.identity = identity;
                    return None;
                }
                Err(error) => return Some(Ended::Refused(error.to_string())),
            }
        }
        let cure = format!(
            "this agent's certificate has expired: make a new join string with `runnel-hub token create {}` and give it to the agent",
            self.identity.cluster
        );
        Some(Ended::Refused(cure))
    }

    /// One stream, from its opening to its end.
    async fn stream(&mut self, address: &str) -> Ended {
        let connector = match connector(&self.identity) {
            Ok(connector) => connector,
            Err(error) => return Ended::Refused(format!("the stored identity cannot be used: {error}")),
        };
        let channel = match endpoint(address) {
            Ok(endpoint) => endpoint.connect_with_connector(connector).await,
            Err(error) => return Ended::Failed(error.to_string()),
        };
        let channel = match channel {
            Ok(channel) => channel,
            Err(error) => return Ended::Failed(whole(&error)),
        };
        let (frames, outbound) = mpsc::channel(8);
        if self.events.send(LinkEvent::Open(frames)).await.is_err() {
            return Ended::Over;
        }
        let ended = self.session(client(channel.clone()), address, outbound).await;
        self.fence.closed(Instant::now());
        if self.events.send(LinkEvent::Closed).await.is_err() {
            return Ended::Over;
        }
        ended
    }

    async fn session(
        &mut self,
        mut client: RunnelClient<Channel>,
        address: &str,
        outbound: mpsc::Receiver<AgentFrame>,
    ) -> Ended {
        let metrics = self.metrics.clone();
        let outbound = ReceiverStream::new(outbound).map(move |frame| {
            metrics.frames_sent.inc();
            agent_frame_to_wire(&frame)
        });
        let opening = tokio::time::timeout(FIRST_FRAME, client.session(outbound));
        let mut inbound = match opening.await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return early(&status),
            Err(_) => return Ended::Failed(format!("the hub at {address} accepted the stream but did not answer")),
        };
        match self.first(&mut inbound).await {
            Ok(()) => {}
            Err(ended) => return ended,
        }
        tracing::info!(hub = address, cluster = %self.identity.cluster, "connected to the hub");
        self.metrics.connected.set(1);
        if let Some(at) = not_after(&self.identity) {
            self.metrics.certificate_expires(at);
        }
        self.serve(client, inbound).await
    }

    /// The first frame says which hub this is and which protocol it speaks.
    async fn first(&mut self, inbound: &mut Streaming<wire::HubFrame>) -> Result<(), Ended> {
        let frame = match tokio::time::timeout(FIRST_FRAME, inbound.message()).await {
            Ok(Ok(Some(frame))) => frame,
            Ok(Ok(None)) => return Err(Ended::Failed("the hub closed the stream at once".to_owned())),
            Ok(Err(status)) => return Err(early(&status)),
            Err(_) => return Err(Ended::Failed("the hub accepted the stream but said nothing".to_owned())),
        };
        self.fence.admit(&frame.epoch, frame.term, Instant::now()).map_err(Ended::Failed)?;
        let (frame, refused) = hub_frame(frame).map_err(|error| Ended::Failed(error.to_string()))?;
        let HubFrame::SnapshotBegin(begin) = &frame else {
            return Err(Ended::Failed("the hub's first frame is not the beginning of a snapshot".to_owned()));
        };
        if begin.hub_id != self.identity.hub {
            let text = format!("this is hub {}, but the agent joined hub {}", begin.hub_id, self.identity.hub);
            return Err(Ended::Refused(text));
        }
        if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&begin.protocol) {
            let text = format!("the hub speaks protocol {}: upgrade the older of the two", begin.protocol);
            return Err(Ended::Refused(text));
        }
        self.metrics.frames_received.inc();
        self.events.send(LinkEvent::Frame(frame, refused)).await.map_err(|_| Ended::Over)
    }

    /// Passes frames on until the stream ends, and renews the certificate at its time.
    async fn serve(&mut self, client: RunnelClient<Channel>, mut inbound: Streaming<wire::HubFrame>) -> Ended {
        let mut leave_at = self.leave_at();
        let mut renew_at = from_now(self.renew_time());
        let mut draining = false;
        loop {
            tokio::select! {
                frame = inbound.message() => {
                    let frame = match frame {
                        Ok(Some(frame)) => frame,
                        // As it said it would. Another replica is there at once, and not all agents should be.
                        Ok(None) | Err(_) if draining => {
                            return Ended::Planned(leave_at.saturating_duration_since(tokio::time::Instant::now()));
                        }
                        Ok(None) => return Ended::Failed("the hub closed the stream".to_owned()),
                        Err(status) => return refused(&status),
                    };
                    match self.pass(frame).await {
                        Ok(None) => {}
                        // The hub is going: stay for a random part of the time that it gives.
                        Ok(Some(within)) => {
                            draining = true;
                            leave_at = leave_at.min(tokio::time::Instant::now() + within.mul_f64(self.jitter.draw()));
                        }
                        Err(ended) => return ended,
                    }
                }
                () = tokio::time::sleep_until(leave_at) => return Ended::Planned(Duration::ZERO),
                () = tokio::time::sleep_until(renew_at) => {
                    renew_at = match self.renew(client.clone()).await {
                        Ok(()) => from_now(self.renew_time()),
                        Err(error) => {
                            tracing::warn!("renewing the certificate failed; trying again: {error:#}");
                            tokio::time::Instant::now() + RENEW_AGAIN.mul_f64(0.5 + self.jitter.draw())
                        }
                    };
                }
            }
        }
    }

    /// Hands a frame to the core; this waits while the core has no room, and so holds the hub back.
    async fn pass(&mut self, frame: wire::HubFrame) -> Result<Option<Duration>, Ended> {
        self.fence.admit(&frame.epoch, frame.term, Instant::now()).map_err(Ended::Failed)?;
        let (frame, refused) = hub_frame(frame).map_err(|error| Ended::Failed(error.to_string()))?;
        self.metrics.frames_received.inc();
        if let HubFrame::Batch(batch) = &frame {
            let bytes = batch.rules.iter().flat_map(|rule| &rule.upserts).map(|intent| intent.payload.bytes().len());
            self.metrics.payload_bytes.inc_by(bytes.sum::<usize>() as u64);
        }
        let drain = match &frame {
            HubFrame::Drain(milliseconds) => Some(Duration::from_millis(u64::from(*milliseconds))),
            _ => None,
        };
        self.events.send(LinkEvent::Frame(frame, refused)).await.map_err(|_| Ended::Over)?;
        Ok(drain)
    }

    fn renew_time(&self) -> Duration {
        let renew_at = self.identity.certificate.as_ref().map(|certificate| certificate.renew_at);
        renew_at.and_then(|at| at.duration_since(SystemTime::now()).ok()).unwrap_or_default()
    }

    /// When this stream must be replaced: the hub ends it at its certificate's end.
    fn leave_at(&self) -> tokio::time::Instant {
        let left = not_after(&self.identity).and_then(|end| end.duration_since(SystemTime::now()).ok());
        let left = left.unwrap_or_default();
        from_now(left.saturating_sub(Duration::from_secs(300).min(left / 10)))
    }

    /// Gets a certificate for a new key; it is used when the next stream starts.
    async fn renew(&mut self, mut client: RunnelClient<Channel>) -> anyhow::Result<()> {
        let key = MemberKey::generate()?;
        let request = RenewRequest { certificate_request: key.certificate_request()?.into() };
        let call = tokio::time::timeout(FIRST_FRAME, client.renew(request)).await?;
        let response = call.map_err(|status| anyhow!("{}", status.message()))?.into_inner();
        let certificate = join::certificate(response, &key, SystemTime::now()).map_err(|text| anyhow!(text))?;
        let renewed = Identity { key: key.to_pem(), certificate: Some(certificate), ..self.identity.clone() };
        // Unusable or unstored, it must not take the place of one that works.
        connector(&renewed)?;
        self.store.save_identity(&renewed).await.map_err(|_| anyhow!("it cannot be stored"))?;
        self.identity = renewed;
        tracing::info!(cluster = %self.identity.cluster, "renewed the certificate");
        Ok(())
    }
}

fn client(channel: Channel) -> RunnelClient<Channel> {
    RunnelClient::new(channel).max_decoding_message_size(FRAME_LIMIT).max_encoding_message_size(FRAME_LIMIT)
}

fn connector(identity: &Identity) -> anyhow::Result<Connector> {
    let certificate = identity.certificate.as_ref().ok_or_else(|| anyhow!("there is no certificate"))?;
    let key = MemberKey::from_pem(&identity.key)?.to_der();
    let config = session_config(&certificate.authorities, &identity.hub, vec![certificate.own.clone()], key)?;
    Ok(Connector::new(config))
}

/// When the agent's certificate ends.
fn not_after(identity: &Identity) -> Option<SystemTime> {
    let certificate = identity.certificate.as_ref()?;
    PeerCertificate::from_der(&certificate.own).ok().map(|read| read.not_after)
}

fn from_now(after: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + after
}

/// A failure before the first frame: with TLS 1.3 a refused certificate shows only here.
fn early(status: &Status) -> Ended {
    match status.code() {
        Code::Unknown | Code::Cancelled | Code::Unavailable | Code::Internal if status.message().contains("error") => {
            let text = "the hub ended the connection before it said anything: it may not accept this agent's certificate; \
                        see the hub's log, and whether the MemberCluster is there and accepted";
            Ended::Failed(format!("{text} ({})", whole(status)))
        }
        _ => refused(status),
    }
}

fn refused(status: &Status) -> Ended {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Ended::Refused(format!(
            "{}: see that the MemberCluster is there and has spec.accepted: true, or join again with a new join string",
            status.message()
        )),
        _ if status.message().is_empty() => Ended::Failed(format!("the stream ended ({:?})", status.code())),
        _ => Ended::Failed(status.message().to_owned()),
    }
}
