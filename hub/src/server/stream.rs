//! The HTTP call of a session. tonic serves every other call.
//!
//! tonic keeps a buffer of the size of the largest sent frame while a stream is open. So a hub with
//! ten thousand agents would keep gigabytes of unused memory after their first delivery. Here a
//! frame is encoded when the connection requests it, and dropped when it is sent. An idle stream
//! has no buffer.
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use prost::Message;
use runnel_proto::FRAME_LIMIT;
use runnel_proto::wire::{AgentFrame, HubFrame};
use runnel_transport::grpc::runnel_server::{Runnel, RunnelServer};
use tonic::body::Body;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataMap};
use tonic::server::NamedService;
use tonic::{Status, Streaming};
use tower::Service;

use super::Server;

/// The path of the session call.
const SESSION: &str = "/runnel.v1.Runnel/Session";
/// The limit of an agent's frame. It is small, because the receive buffer keeps the size of the
/// largest frame.
const RECEIVE_LIMIT: usize = 64 * 1024;
/// The initial size of the receive buffer, because most agents send little.
const RECEIVE_BUFFER: usize = 512;
/// The size of the header of each message: a compression flag and its length.
const HEADER: usize = 5;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

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
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
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
    type Item = AgentFrame;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<AgentFrame>, Status> {
        AgentFrame::decode(message)
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

impl<S: Stream<Item = Result<HubFrame, Status>> + Unpin> http_body::Body for FrameBody<S> {
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
fn bytes_of(frame: &HubFrame) -> Result<Bytes, Status> {
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
    use super::*;
    use futures::FutureExt;
    use futures::stream;

    /// Returns the frames of a body in order: lengths of data, and the status at the end.
    fn frames(text: Vec<Result<HubFrame, Status>>) -> Vec<String> {
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

    fn frame(epoch: &str) -> HubFrame {
        HubFrame {
            epoch: epoch.to_owned(),
            ..HubFrame::default()
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
