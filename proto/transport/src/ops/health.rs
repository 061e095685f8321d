//! The port for probes and metrics.
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::Registry;

/// The parts that a process waits for before it is ready. Clones share them.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<String, usize>>>);

impl Readiness {
    /// The process is not ready while the returned guard lives.
    #[must_use]
    pub fn wait_for(&self, part: &str) -> PendingPart {
        *self.parts().entry(part.to_owned()).or_default() += 1;
        PendingPart {
            part: part.to_owned(),
            readiness: self.clone(),
        }
    }

    /// Returns the awaited parts, sorted.
    pub fn awaited(&self) -> Vec<String> {
        self.parts().keys().cloned().collect()
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One part that is not ready; dropping it marks the part as ready.
pub struct PendingPart {
    part: String,
    readiness: Readiness,
}

impl Drop for PendingPart {
    fn drop(&mut self) {
        let mut parts = self.readiness.parts();
        if let Some(count) = parts.get_mut(&self.part) {
            *count -= 1;
            if *count == 0 {
                parts.remove(&self.part);
            }
        }
    }
}

/// Time without a move after which a part stands still: several times what its longest step takes.
const STALL_LIMIT: Duration = Duration::from_secs(180);

/// The parts of a process that must move, with their last moves. Clones share them.
#[derive(Clone, Default)]
pub struct Liveness(Arc<Mutex<BTreeMap<&'static str, Instant>>>);

impl Liveness {
    /// Records that a part moves. It must move again within three minutes, or the process is not alive.
    pub fn moved(&self, part: &'static str) {
        self.parts().insert(part, Instant::now());
    }

    /// Records that a part has nothing to do, so that it need not move.
    pub fn ended(&self, part: &'static str) {
        self.parts().remove(part);
    }

    /// Returns the parts that stand still, sorted.
    fn stalled(&self) -> Vec<&'static str> {
        let parts = self.parts();
        let stalled = parts.iter().filter(|(_, at)| at.elapsed() > STALL_LIMIT);
        stalled.map(|(part, _)| *part).collect()
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<&'static str, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of a port on which the process cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process has it.
    #[error("cannot listen on {address}: the port is in use: choose another {flag}")]
    InUse {
        /// The requested address.
        address: SocketAddr,
        /// The flag to change.
        flag: &'static str,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}: choose another {flag}")]
    Other {
        /// The requested address.
        address: SocketAddr,
        /// The flag to change.
        flag: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Listens on an address; `flag` is the flag of the address, such as `--ops-listen`.
///
/// # Errors
/// [`BindError`], whose text names the address, the reason and the flag.
pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address, flag },
            _ => BindError::Other {
                address,
                flag,
                source,
            },
        })
}

#[derive(Clone)]
struct ReadyLabel {
    registry: Arc<Registry>,
    readiness: Readiness,
    liveness: Liveness,
    shutdown: CancellationToken,
}

/// Serves `/livez`, `/readyz`, `/healthz` and `/metrics`.
pub fn router(
    registry: Arc<Registry>,
    readiness: Readiness,
    liveness: Liveness,
    shutdown: CancellationToken,
) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(ReadyLabel {
            registry,
            readiness,
            liveness,
            shutdown,
        })
}

/// Serves [`router`] until `shutdown`.
///
/// # Errors
/// The error of the listener.
pub async fn serve(
    listener: TcpListener,
    registry: Arc<Registry>,
    readiness: Readiness,
    liveness: Liveness,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let router = router(registry, readiness, liveness, shutdown.clone());
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
}

async fn live(State(shown): State<ReadyLabel>) -> Response {
    answer("stands still:", &shown.liveness.stalled())
}

async fn ready(State(shown): State<ReadyLabel>) -> Response {
    if shown.shutdown.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    answer("waiting for", &shown.readiness.awaited())
}

/// Returns the answer of a probe: the parts with a problem.
fn answer(problem: &str, parts: &[impl AsRef<str>]) -> Response {
    if parts.is_empty() {
        return "ok\n".into_response();
    }
    let lines = parts
        .iter()
        .map(|part| format!("{problem} {}\n", part.as_ref()));
    (StatusCode::SERVICE_UNAVAILABLE, lines.collect::<String>()).into_response()
}

async fn metrics(State(shown): State<ReadyLabel>) -> Response {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &shown.registry).is_err() {
        return (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics cannot be written\n",
        )
            .into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt;

    async fn answer(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_lists_what_is_awaited() {
        let (readiness, shutdown) = (Readiness::default(), CancellationToken::new());
        let registry = Arc::new(crate::ops::registry("test", "0"));
        let router = router(
            registry,
            readiness.clone(),
            Liveness::default(),
            shutdown.clone(),
        );
        let (one, two, again) = (
            readiness.wait_for("watches"),
            readiness.wait_for("the hub"),
            readiness.wait_for("watches"),
        );
        let waiting = "waiting for the hub\nwaiting for watches\n".to_owned();
        assert_eq!(
            answer(&router, "/readyz").await,
            (StatusCode::SERVICE_UNAVAILABLE, waiting)
        );
        assert_eq!(answer(&router, "/livez").await.0, StatusCode::OK);
        drop((one, two));
        assert_eq!(answer(&router, "/readyz").await.1, "waiting for watches\n");
        drop(again);
        assert_eq!(answer(&router, "/readyz").await.0, StatusCode::OK);
        assert!(answer(&router, "/metrics").await.1.ends_with("# EOF\n"));
        shutdown.cancel();
        assert_eq!(
            answer(&router, "/readyz").await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert_eq!(answer(&router, "/elsewhere").await.0, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn part_that_stands_still_is_not_alive() {
        let liveness = Liveness::default();
        let registry = Arc::new(crate::ops::registry("test", "0"));
        let shutdown = CancellationToken::new();
        let router = router(
            registry,
            Readiness::default(),
            liveness.clone(),
            shutdown.clone(),
        );
        assert_eq!(answer(&router, "/livez").await.0, StatusCode::OK);
        liveness.moved("watches");
        liveness.moved("policy");
        assert_eq!(answer(&router, "/livez").await.0, StatusCode::OK);
        for at in liveness.parts().values_mut() {
            *at -= STALL_LIMIT;
        }
        liveness.moved("policy");
        let text = "stands still: watches\n".to_owned();
        assert_eq!(
            answer(&router, "/livez").await,
            (StatusCode::SERVICE_UNAVAILABLE, text)
        );
        liveness.ended("watches");
        assert_eq!(answer(&router, "/livez").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_its_flag() {
        let first = bind(([127, 0, 0, 1], 0).into(), "--ops-listen")
            .await
            .unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, "--ops-listen").await.unwrap_err().to_string();
        assert_eq!(
            error,
            format!("cannot listen on {address}: the port is in use: choose another --ops-listen")
        );
    }

    #[tokio::test]
    async fn serving_ends_with_the_shutdown() {
        let listener = bind(([127, 0, 0, 1], 0).into(), "--ops-listen")
            .await
            .unwrap();
        let shutdown = CancellationToken::new();
        let registry = Arc::new(crate::ops::registry("test", "0"));
        let serving = serve(
            listener,
            registry,
            Readiness::default(),
            Liveness::default(),
            shutdown.clone(),
        );
        shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(20), serving)
            .await
            .unwrap()
            .unwrap();
    }
}
