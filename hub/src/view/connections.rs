//! The connections of the API server: TLS, and HTTP on it.
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use runnel_transport::tls::{Accept, Handshakes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::server::TlsStream;

use super::front_proxy::FrontProxy;
use super::{BODY_TIME, ViewServer};
use crate::lease::LocalConnections;

/// The limit of connections. The API server opens one for each request at a time, also for each
/// watch. At the limit a new one is closed.
const CONNECTIONS: usize = 4096;
/// The limit of headers of a request. The front proxy sends one for each group of the user.
const HEADERS: usize = 4096;
/// The size limit of the rest of a request that was refused, in bytes: the API server takes objects of 3 MiB.
const REST_LIMIT: usize = 4 * 1024 * 1024;
/// How long a client may leave an answer that waits for it.
const WRITE_LIMIT: Duration = Duration::from_secs(5 * 60);

impl ViewServer {
    /// Accepts connections and serves them until the process ends.
    pub(super) async fn serve(self: &Arc<Self>, mut incoming: LocalConnections) {
        let (mut handshakes, mut connections) = (Handshakes::default(), JoinSet::new());
        let handshake = |tcp, _| {
            let front_proxy = self.front_proxy.load_full();
            async move {
                let front_proxy = front_proxy.ok_or_else(|| {
                    io::Error::other("the front proxy of the API server is not known yet")
                })?;
                let stream = front_proxy.1.accept(tcp).await?;
                Ok((stream, front_proxy.0.clone()))
            }
        };
        loop {
            tokio::select! {
                biased;
                Some(_) = connections.join_next() => {}
                (peer, (stream, front_proxy)) = handshakes.next(handshake) => {
                    if connections.len() < CONNECTIONS {
                        connections.spawn(self.clone().serve_connection(stream, front_proxy));
                    } else {
                        tracing::warn!(%peer, count = CONNECTIONS, "too many requests for views at a time: a connection is closed");
                    }
                }
                // A slow handshake must not delay this: the router waits for it.
                Ok((tcp, address)) = incoming.accept() => handshakes.push(tcp, address),
            }
        }
    }

    /// Serves requests on a connection that was accepted with the settings `accepted`.
    async fn serve_connection(self: Arc<Self>, stream: TlsStream<TcpStream>, accepted: FrontProxy) {
        let accepted = Arc::new(accepted);
        let served = serve_http(stream, async |request: Request<Body>| {
            let (request, mut body) = request.into_parts();
            let answer = self.answer(&request, &mut body, &accepted).await;
            (answer.unwrap_or_else(IntoResponse::into_response), body)
        });
        if let Err(error) = served.await {
            tracing::debug!(%error, "a connection of the API server has ended");
        }
    }
}

/// Serves requests on one connection. `answer` returns the body, too, as far as it is not read. A client that does not
/// take an answer for [`WRITE_LIMIT`] is cut, so that it does not keep a watch for good.
async fn serve_http<S, F>(
    stream: S,
    answer: impl Fn(Request<Body>) -> F,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = (Response, Body)>,
{
    let stream = WriteTimeout {
        stream,
        limit: Box::pin(sleep(WRITE_LIMIT)),
        waits: false,
    };
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request.map(Body::new));
        async move {
            let (answer, rest) = answer.await;
            take(rest).await;
            Ok::<_, Infallible>(answer)
        }
    });
    http1::Builder::new()
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// Takes what an answer left of the request, within limits: the front proxy that still writes the request when its
/// connection ends reports that, and the client gets no answer.
async fn take(rest: Body) {
    let mut rest = Limited::new(rest, REST_LIMIT);
    let taken = async { while let Some(Ok(_)) = rest.frame().await {} };
    _ = timeout(BODY_TIME, taken).await;
}

/// A stream on which a write may wait for [`WRITE_LIMIT`].
struct WriteTimeout<S> {
    stream: S,
    /// The end of the present wait.
    limit: Pin<Box<Sleep>>,
    waits: bool,
}

impl<S> WriteTimeout<S> {
    /// Returns the result of a write, or an error if it has waited for too long.
    fn within_limit<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !std::mem::replace(&mut self.waits, true) {
            self.limit.as_mut().reset(Instant::now() + WRITE_LIMIT);
        }
        let late = || Err(io::ErrorKind::TimedOut.into());
        self.limit.as_mut().poll(context).map(|()| late())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within_limit(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.within_limit(context, written)
    }

    /// Without vectored writes each connection keeps a buffer of its largest part.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(context);
        self.within_limit(context, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within_limit(context, written)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// An answer without an end, as of a watch in which much happens.
    async fn endless(request: Request<Body>) -> (Response, Body) {
        let chunks = stream::repeat_with(|| Ok::<_, Infallible>(vec![b'x'; 1024]));
        (
            Response::new(Body::from_stream(chunks)),
            request.into_body(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_reads_nothing_is_cut() {
        let (mut client, server) = duplex(4096);
        let served = serve_http(server, endless);
        let begin = Instant::now();
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n")
            .await
            .unwrap();
        assert!(served.await.is_err());
        assert_eq!(begin.elapsed(), WRITE_LIMIT);
    }

    #[tokio::test]
    async fn request_may_have_a_header_for_each_of_many_groups() {
        let (mut client, server) = duplex(1024 * 1024);
        let groups = "X-Remote-Group: team\r\n".repeat(HEADERS - 2);
        let request = format!("GET / HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n{groups}\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let count = async |request: Request<Body>| {
            let groups = request.headers().get_all("x-remote-group").iter().count();
            (
                Response::new(Body::from(groups.to_string())),
                request.into_body(),
            )
        };
        assert!(serve_http(server, count).await.is_ok());
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with(&(HEADERS - 2).to_string()),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn client_that_still_writes_gets_the_refusal() {
        let (mut client, server) = duplex(4096);
        let body = "x".repeat(REST_LIMIT / 2);
        let length = body.len();
        let request = format!(
            "POST / HTTP/1.1\r\nHost: hub\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let refuse = async |request: Request<Body>| {
            (Response::new(Body::from("too large")), request.into_body())
        };
        let client = async {
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let (served, answer) = tokio::join!(serve_http(server, refuse), client);
        assert!(served.is_ok() && answer.ends_with("too large"), "{answer}");
    }
}
