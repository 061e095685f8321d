//! TLS of both ends: version 1.3 only, HTTP/2 only, no resumption and no early data, ring as the
//! only provider.
//! TLS authenticates the peer at the handshake only: the hub ends a session at the end of its
//! certificate.
mod accept_queue;
mod anonymous;
mod choose;
mod client;
mod front_proxy;
mod handshakes;
mod meter;
mod proxy;
mod refusals;
mod server;
#[cfg(test)]
mod tests;
mod tunnel;
#[cfg(test)]
mod tunnel_tests;
mod verify;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

pub use client::{Connector, PING_LIMIT, endpoint, join_config, session_config};
pub use front_proxy::FrontProxyTls;
pub use handshakes::Handshakes;
pub use meter::{Meter, Metered};
pub use proxy::{Proxy, ProxyError, Route};
pub use refusals::HandshakeError;
pub use server::{Accept, Connection, Peer, ServerTls, handshake, incoming};
pub use tunnel::ConnectError;
pub use verify::{UNTRUSTED, is_signed_by};

/// The protocol inside TLS, for both ends.
const ALPN: &[u8] = b"h2";

/// The one crypto provider of every TLS configuration.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}

/// Why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key does not fit.
    #[error("the certificates do not make a TLS configuration: {0}")]
    Configuration(#[from] rustls::Error),
    /// The CAs do not make a verifier.
    #[error("the CAs cannot verify clients: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The hub's id is none.
    #[error(transparent)]
    Identity(#[from] crate::identity::IdentityError),
}
