//! A stream under the control of a test.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use prost::Message;
use runnel_proto::convert::{agent_frame_to_wire, hub_frame};
use runnel_proto::model::{AgentFrame, Hello, HubFrame, RuleState};
use runnel_proto::{FRAME_LIMIT, wire};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status, Streaming};

use super::{Credentials, Record, sketch};

/// The call of a session.
const SESSION: &str = "/runnel.v1.Runnel/Session";
/// How long a test waits for a frame that must come.
const FRAME: Duration = Duration::from_secs(90);

/// An open stream. Frames of the hub stay in the connection until [`AgentStream::next`].
pub struct AgentStream {
    out: Option<UnboundedSender<Bytes>>,
    inbound: Streaming<Bytes>,
    record: Record,
    lead: Option<(String, u64)>,
}

impl AgentStream {
    /// Opens a stream without a first frame.
    ///
    /// # Errors
    /// The answer of the hub, or why it was not reached.
    pub async fn open(credentials: &Credentials) -> Result<Self, Status> {
        let channel = credentials
            .channel()
            .await
            .map_err(|error| Status::unavailable(format!("{error:#}")))?;
        Self::over(channel).await
    }

    /// As above, over an existing connection.
    ///
    /// # Errors
    /// The hub's answer.
    pub async fn over(channel: tonic::transport::Channel) -> Result<Self, Status> {
        let (out, frames) = unbounded_channel();
        let mut grpc = Grpc::new(channel).max_decoding_message_size(FRAME_LIMIT);
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let request = Request::new(UnboundedReceiverStream::new(frames));
        let path = PathAndQuery::from_static(SESSION);
        let inbound = grpc.streaming(request, path, Plain).await?.into_inner();
        Ok(Self {
            out: Some(out),
            inbound,
            record: Record {
                sessions: 1,
                ..Record::default()
            },
            lead: None,
        })
    }

    /// Opens a stream, reports the intents, and returns when the hub has answered with the begin of
    /// its snapshot.
    ///
    /// # Errors
    /// When the hub refuses.
    pub async fn greeted(credentials: &Credentials, copies_there: Vec<RuleState>) -> Result<Self> {
        let mut line = Self::open(credentials).await?;
        line.send(&AgentFrame::Hello(hello(&credentials.cluster)));
        line.send(&AgentFrame::AckedRules(copies_there, true));
        let first = line.must().await?;
        ensure!(
            matches!(first, HubFrame::SnapshotBegin(_)),
            "the first frame is {}",
            sketch(&first)
        );
        Ok(line)
    }

    /// Sends a frame as it is, even if it is longer than it may be. What is sent on an ended stream is lost.
    pub fn send(&self, frame: &AgentFrame) {
        self.send_wire(&agent_frame_to_wire(frame));
    }

    /// Sends a frame in the wire's own words.
    pub fn send_wire(&self, frame: &wire::AgentFrame) {
        self.send_bytes(frame.encode_to_vec().into());
    }

    /// Sends any bytes as one message.
    pub fn send_bytes(&self, bytes: Bytes) {
        if let Some(out) = &self.out {
            let _ = out.send(bytes);
        }
    }

    /// Half-closes the stream; the hub may continue.
    pub fn finish(&mut self) {
        self.out = None;
    }

    /// The next frame; `None` at the end of the stream.
    ///
    /// # Errors
    /// The status with which the hub ended the stream, or that no agent could read what it sent.
    pub async fn next(&mut self) -> Result<Option<HubFrame>, Status> {
        let message = self.inbound.message().await;
        let ended = |status: &Status| (status.code(), status.message().to_owned());
        let bytes = match message {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                self.record.ends.push(ended(&Status::ok("")));
                return Ok(None);
            }
            Err(status) => {
                self.record.ends.push(ended(&status));
                return Err(status);
            }
        };
        self.record.bytes.push(bytes.clone());
        let frame =
            wire::HubFrame::decode(bytes).map_err(|error| Status::internal(error.to_string()))?;
        let lead = (frame.epoch.clone(), frame.term);
        if self.lead.as_ref().is_some_and(|before| *before != lead) {
            self.record
                .complaints
                .push(format!("the term changed to {} within a stream", lead.1));
        }
        self.lead = Some(lead.clone());
        self.record.led_by(lead);
        let (frame, refused) =
            hub_frame(frame).map_err(|error| Status::internal(error.to_string()))?;
        let complaints = refused
            .iter()
            .map(|refusal| format!("unreadable: {}", refusal.message));
        self.record.complaints.extend(complaints);
        self.record.frames.push(frame.clone());
        Ok(Some(frame))
    }

    /// The next frame, which must come within 30 s.
    ///
    /// # Errors
    /// When the stream ends first, or nothing comes.
    pub async fn must(&mut self) -> Result<HubFrame> {
        let next = tokio::time::timeout(FRAME, self.next()).await;
        next.context("no frame within 30 s")??
            .context("the stream ended")
    }

    /// Returns the end of the stream, which must come within `limit`; frames before it are only
    /// recorded.
    ///
    /// # Errors
    /// When the stream continues.
    pub async fn end(&mut self, limit: Duration) -> Result<Status> {
        let drained = async {
            loop {
                match self.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Status::ok(""),
                    Err(status) => return status,
                }
            }
        };
        tokio::time::timeout(limit, drained)
            .await
            .with_context(|| format!("the stream goes on after {limit:?}"))
    }

    /// Returns the record of all received frames.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the record, and clears it.
    pub fn take_record(&mut self) -> Record {
        std::mem::take(&mut self.record)
    }
}

/// The first frame of a simulated agent of this cluster.
#[must_use]
pub(crate) fn hello(cluster: &str) -> Hello {
    Hello {
        protocol_min: runnel_proto::PROTOCOL_MIN,
        protocol_max: runnel_proto::PROTOCOL_MAX,
        agent_version: "simulated".to_owned(),
        kubernetes_version: "v1.36.0".to_owned(),
        boot_id: format!("boot of {cluster}"),
        cluster_uid: format!("uid-of-{cluster}"),
    }
}

/// Messages as the bytes they are.
#[derive(Clone, Copy, Debug)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
