//! Logs failed handshakes, with a bound: any client can cause them.
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::server::{Connection, HandshakeError};

/// A handshake that has ended, or was abandoned.
pub(super) type Handshake =
    Result<(SocketAddr, Result<Connection, HandshakeError>), tokio::task::JoinError>;

/// Lines about handshakes that failed, which anybody can cause: so many a minute.
const REFUSALS_LOGGED: u32 = 60;

/// The handshakes that failed in this minute.
#[derive(Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    count: u32,
}

impl Refusals {
    /// Whether one more is logged.
    fn line(&mut self) -> bool {
        let now = Instant::now();
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= Duration::from_secs(60))
        {
            if self.count > REFUSALS_LOGGED {
                tracing::info!(
                    count = self.count - REFUSALS_LOGGED,
                    "more connections were refused"
                );
            }
            (self.since, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= REFUSALS_LOGGED
    }

    pub(super) fn taken(&mut self, done: Handshake) -> Option<Connection> {
        match done {
            Ok((_, Ok(connection))) => return Some(connection),
            // Probes and load balancers open and close without a request.
            Ok((peer, Err(HandshakeError::Tls(error))))
                if error.kind() == io::ErrorKind::UnexpectedEof =>
            {
                tracing::debug!(%peer, "a connection was closed before its TLS handshake ended");
            }
            Ok((peer, Err(error))) if self.line() => {
                tracing::info!(%peer, %error, "a connection was refused")
            }
            Ok((peer, Err(error))) => tracing::debug!(%peer, %error, "a connection was refused"),
            Err(error) if error.is_cancelled() => {
                tracing::debug!(
                    "too many TLS handshakes at once: the oldest of a crowd was closed"
                );
            }
            Err(error) => tracing::warn!(%error, "a TLS handshake was abandoned"),
        }
        None
    }
}
