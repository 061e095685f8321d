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
/// Interval at which a task that is polled moves.
const POLLED: Duration = Duration::from_secs(20);

/// The parts of a process that must move, with their last moves. Clones share them.
#[derive(Clone, Default)]
pub struct Liveness(Arc<Mutex<BTreeMap<u64, (String, Instant)>>>);

impl Liveness {
    /// Returns a part. Until it is dropped it must move at least once within three minutes, or the process is not alive.
    #[must_use]
    pub fn part(&self, name: impl Into<String>) -> MovingPart {
        let mut parts = self.parts();
        let number = parts.last_key_value().map_or(0, |(last, _)| last + 1);
        parts.insert(number, (name.into(), Instant::now()));
        MovingPart {
            number,
            liveness: self.clone(),
        }
    }

    /// Runs a task as a part that moves while it is polled. A poll that does not return is seen, such as one that waits for a lock. A
    /// future that never becomes ready is not seen.
    pub async fn polled<T>(&self, name: &str, task: impl Future<Output = T>) -> T {
        let (part, mut task) = (self.part(name), std::pin::pin!(task));
        let mut tick = tokio::time::interval(POLLED);
        loop {
            tokio::select! {
                biased;
                ended = &mut task => return ended,
                _ = tick.tick() => part.moved(),
            }
        }
    }

    /// Returns the parts that stand still, sorted.
    fn stalled(&self) -> Vec<String> {
        let parts = self.parts();
        let stalled = parts.values().filter(|(_, at)| at.elapsed() > STALL_LIMIT);
        let mut names: Vec<_> = stalled.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<u64, (String, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One part that must move; dropping it ends that.
pub struct MovingPart {
    number: u64,
    liveness: Liveness,
}

impl MovingPart {
    /// Records that the part moves.
    pub fn moved(&self) {
        if let Some((_, at)) = self.liveness.parts().get_mut(&self.number) {
            *at = Instant::now();
        }
    }
}

impl Drop for MovingPart {
    fn drop(&mut self) {
        self.liveness.parts().remove(&self.number);
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
        let stopped = liveness.part("watch of secrets in a");
        let others = [
            liveness.part("watch of secrets in b"),
            liveness.part("watch of secrets in a"),
        ];
        assert_eq!(answer(&router, "/livez").await.0, StatusCode::OK);
        for (_, at) in liveness.parts().values_mut() {
            *at -= STALL_LIMIT;
        }
        others.iter().for_each(MovingPart::moved);
        let text = "stands still: watch of secrets in a\n".to_owned();
        assert_eq!(
            answer(&router, "/livez").await,
            (StatusCode::SERVICE_UNAVAILABLE, text)
        );
        drop(stopped);
        assert_eq!(answer(&router, "/livez").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn task_is_alive_as_long_as_its_polls_return() {
        let liveness = Liveness::default();
        let task = async {
            for (_, at) in liveness.parts().values_mut() {
                *at -= STALL_LIMIT;
            }
            let in_long_poll = liveness.stalled();
            while !liveness.stalled().is_empty() {
                tokio::task::yield_now().await;
            }
            in_long_poll
        };
        assert_eq!(liveness.polled("writer", task).await, ["writer"]);
        assert!(liveness.parts().is_empty());
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
