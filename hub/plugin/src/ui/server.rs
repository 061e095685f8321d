//! The HTTP server of the page.
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::serve::Listener;
use futures::{Stream, StreamExt, stream};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use kube::Client;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::hints::{self, Endpoint};
use super::feed::{Feed, Frame};
use super::request::{Gate, Route};

/// The number of connections at a time. Further ones wait.
const CONNECTIONS: usize = 64;
/// The number of open pages. A browser has six connections to one server, and one of them is for single requests.
const STREAMS: usize = 5;
/// The number of requests to the API server at a time. Further ones wait.
const CALLS: usize = 8;
/// The time limit of a call.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The largest error message of the API server in bytes.
const ERROR_LIMIT: usize = 64 * 1024;
/// The interval at which a comment finds out whether a page is still open.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// What every response has: nothing is stored, framed, sent elsewhere or loaded from elsewhere.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::CACHE_CONTROL, "no-store"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// What the server needs to answer.
pub(super) struct Page {
    gate: Gate,
    feed: Arc<Feed>,
    client: Client,
    place: Endpoint,
    streams: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

impl Page {
    /// Creates the page of a hub.
    pub(super) fn new(gate: Gate, feed: Arc<Feed>, client: Client, place: Endpoint) -> Arc<Self> {
        Arc::new(Self {
            gate,
            feed,
            client,
            place,
            streams: Arc::new(Semaphore::new(STREAMS)),
            calls: Arc::new(Semaphore::new(CALLS)),
        })
    }

    async fn answer(&self, request: Request) -> Response {
        let (request, _) = request.into_parts();
        let response = match self.gate.route(&request) {
            Err(refusal) => error(refusal.status(), &refusal.text()),
            Ok(Route::Asset(asset)) => typed(asset.kind, Body::from(asset.text)),
            // The body of HEAD is dropped.
            Ok(Route::Stream | Route::Api(_)) if request.method == Method::HEAD => {
                typed("application/json", Body::empty())
            }
            Ok(Route::Stream) => self.stream(),
            Ok(Route::Api(path)) => self.api(&path).await,
        };
        secured(response)
    }

    fn stream(&self) -> Response {
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            let text = format!("{STREAMS} pages are open: close one of them");
            return error(StatusCode::SERVICE_UNAVAILABLE, &text);
        };
        let (snapshot, updates) = self.feed.subscribe();
        let frames = frames(snapshot, updates).map(move |frame| {
            let _ = &permit;
            Ok::<_, std::convert::Infallible>(frame.as_bytes().to_vec())
        });
        typed("text/event-stream", Body::from_stream(frames))
    }

    async fn api(&self, path: &str) -> Response {
        let unreachable = |cause: &str| {
            let text = hints::unreachable(&self.place, cause);
            error(StatusCode::BAD_GATEWAY, &text)
        };
        let call = async {
            let permit = self.calls.clone().acquire_owned().await.ok()?;
            let request = http::Request::get(path).body(kube::client::Body::empty());
            Some((self.client.send(request.ok()?).await, permit))
        };
        let (answer, permit) = match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(Some((Ok(answer), permit))) => (answer, permit),
            Ok(Some((Err(failed), _))) => return unreachable(&hints::error_chain(&failed)),
            Ok(None) | Err(_) => return unreachable("timed out"),
        };
        let (parts, body) = answer.into_parts();
        if !parts.status.is_success() {
            let body = axum::body::to_bytes(Body::new(body), ERROR_LIMIT).await;
            let text = message(parts.status, &body.unwrap_or_default(), &self.place);
            return error(parts.status, &text);
        }
        let body = Body::new(body).into_data_stream().map(move |part| {
            let _ = &permit;
            part
        });
        let mut response = typed("application/json", Body::from_stream(body));
        // Copies that are missing are named there.
        if let Some(warning) = parts.headers.get(header::WARNING) {
            response
                .headers_mut()
                .insert(header::WARNING, warning.clone());
        }
        response
    }
}

/// Returns the snapshot and the updates after it. The stream ends if the page lags too far, and the browser begins again.
fn frames(snapshot: Vec<Frame>, updates: Receiver<Frame>) -> impl Stream<Item = Frame> + Send {
    let updates = stream::unfold(updates, |mut updates| async {
        match tokio::time::timeout(KEEPALIVE, updates.recv()).await {
            Ok(Ok(frame)) => Some((frame, updates)),
            Ok(Err(_)) => None,
            Err(_) => Some((Frame::from(":\n\n"), updates)),
        }
    });
    let begin = stream::iter([Frame::from("retry: 500\n\n")]);
    begin.chain(stream::iter(snapshot)).chain(updates)
}

/// Returns the sentence for a failed call.
fn message(status: StatusCode, body: &[u8], place: &Endpoint) -> String {
    let status = match serde_json::from_slice::<kube::core::Status>(body) {
        Ok(read) => read,
        Err(_) => kube::core::Status::failure(&String::from_utf8_lossy(body), "")
            .with_code(status.as_u16()),
    };
    hints::call(place, "read it", &kube::Error::Api(Box::new(status)))
}

fn typed(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn error(status: StatusCode, text: &str) -> Response {
    let mut response = typed(
        "application/json",
        Body::from(json!({"message": text}).to_string()),
    );
    *response.status_mut() = status;
    response
}

fn secured(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn respond(State(page): State<Arc<Page>>, request: Request) -> Response {
    page.answer(request).await
}

/// Serves the page without end.
pub(super) async fn serve(listener: TcpListener, page: Arc<Page>) -> io::Result<()> {
    let router = Router::new().fallback(respond).with_state(page);
    let listener = BoundedListener {
        listener,
        permits: Arc::new(Semaphore::new(CONNECTIONS)),
    };
    axum::serve(listener, router).await
}

/// A listener with a limit of connections at a time.
struct BoundedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

impl Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                // The semaphore is never closed.
                std::future::pending::<()>().await;
                continue;
            };
            let (stream, from) = Listener::accept(&mut self.listener).await;
            let stream = BoundedStream {
                stream,
                _permit: permit,
            };
            return (stream, from);
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that counts while it is open.
struct BoundedStream {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::resource::Resource;
    use crate::ui::state::About;

    fn page(status: u16, body: &'static str) -> Arc<Page> {
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
            let response = http::Response::builder().status(status);
            response.body(kube::client::Body::from(body.as_bytes().to_vec()))
        });
        let feed = Feed::new(About {
            version: "0",
            context: "hub".to_owned(),
            server: "https://hub".to_owned(),
            namespace: None,
            clock_ahead_ms: 0,
        });
        let place = Endpoint {
            role: "the hub",
            context: "hub".to_owned(),
            server: "https://hub".to_owned(),
        };
        let client = Client::new(service, "default");
        Page::new(Gate::new("t", 1), Arc::new(feed), client, place)
    }

    async fn get(page: &Page, path: &str) -> Response {
        let request = http::Request::get(format!("/t/{path}")).header("host", "localhost:1");
        page.answer(request.body(Body::empty()).unwrap()).await
    }

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn every_response_forbids_other_sources() {
        let page = page(200, "{}");
        for path in [
            "",
            "app.js",
            "nothing",
            "stream",
            "delivery?rule=a/b&cluster=c",
        ] {
            let response = get(&page, path).await;
            for (name, value) in HEADERS {
                assert_eq!(response.headers()[&name], value, "{path}");
            }
        }
    }

    #[tokio::test]
    async fn pages_beyond_the_limit_are_refused() {
        let page = page(200, "{}");
        let mut open = Vec::new();
        for _ in 0..STREAMS {
            let response = get(&page, "stream").await;
            assert_eq!(response.status(), StatusCode::OK);
            open.push(response);
        }
        let refused = get(&page, "stream").await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        open.pop();
        assert_eq!(get(&page, "stream").await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn stream_has_the_snapshot_and_then_updates() {
        let page = page(200, "{}");
        let mut body = get(&page, "stream").await.into_body().into_data_stream();
        page.feed
            .change(|state, now| state.set_source(Resource::Rules, "live", "", now));
        let mut read = String::new();
        while !read.contains("\"live\"") {
            let part = body.next().await.unwrap().unwrap();
            read.push_str(std::str::from_utf8(&part).unwrap());
        }
        let about = read.find("\"about\"").unwrap();
        assert!(about < read.find("\"ready\"").unwrap(), "{read}");
    }

    #[tokio::test]
    async fn errors_of_the_api_server_are_sentences() {
        let body = r#"{"kind":"Status","status":"Failure","message":"no right","reason":"Forbidden","code":403}"#;
        let page = page(403, body);
        let response = get(&page, "delivery?rule=a/b&cluster=c").await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let text = text(response).await;
        assert!(text.contains("no right; ask its administrator"), "{text}");
        let plain = message(StatusCode::SERVICE_UNAVAILABLE, b"away", &page.place);
        assert!(plain.contains("away"), "{plain}");
    }
}
