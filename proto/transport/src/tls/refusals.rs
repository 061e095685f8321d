//! Logs failed handshakes, with a bound: any client can cause them.
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::identity::IdentityError;

/// The time limit of a handshake.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// The reason why a connection was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// TLS failed.
    #[error("the TLS handshake failed: {0}")]
    Tls(#[from] io::Error),
    /// It took too long.
    #[error("the TLS handshake took longer than {} seconds", HANDSHAKE_LIMIT.as_secs())]
    Timeout,
    /// The certificate is valid, but has no known identity.
    #[error("the client's certificate cannot be used: {0}")]
    Identity(#[from] IdentityError),
    /// The certificate is not a member's.
    #[error("the client's certificate is not a member's")]
    NotMember,
    /// The certificate of a front proxy is valid, but its name is not allowed.
    #[error("the common name {0:?} of the client is not in requestheader-allowed-names")]
    FrontProxyName(String),
}

/// A handshake that has ended, or was abandoned.
type Handshake<C> = Result<(SocketAddr, Result<C, HandshakeError>), tokio::task::JoinError>;

/// Log lines about failed handshakes, which any client can cause: limited per minute.
const REFUSALS_LOGGED: u32 = 60;

/// The handshakes that failed in this minute.
#[derive(Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    count: u32,
}

impl Refusals {
    /// Whether another line may be logged.
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

    /// Returns the connection of a handshake that ended well, with its peer.
    pub(super) fn complete<C>(&mut self, done: Handshake<C>) -> Option<(SocketAddr, C)> {
        match done {
            Ok((peer, Ok(connection))) => return Some((peer, connection)),
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
