//! Identities of peers: SPIFFE names, fingerprints of keys, the join string, and the CA.
//! Pure but for randomness: the time is an argument everywhere.
mod ca;
mod certificate;
mod join_string;
mod key;
mod names;
mod spiffe;
mod token;

pub use ca::{CA_LIFETIME, Ca, SKEW, ServingPair, SignedCertificate};
pub use certificate::{Fingerprint, PeerCertificate, certificate_end};
pub use join_string::{JOIN_PREFIX, JoinString, JoinStringError};
pub use key::MemberKey;
pub use names::{is_address, is_cluster_name, is_hub_id, new_hub_id};
pub use spiffe::SpiffeId;
pub use token::{TOKEN_HASH_PREFIX, Token};

/// Why a key, a request, a certificate or a name cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not one whole DER certificate.
    #[error("this is not a readable X.509 certificate")]
    Certificate,
    /// A certificate needs exactly one URI name.
    #[error("the certificate names {0} identities instead of one")]
    NotOneIdentity(usize),
    /// The name is not a SPIFFE id of Runnel.
    #[error("the name is not of the form spiffe://HUB/hub or spiffe://HUB/cluster/NAME/UID")]
    SpiffeId,
    /// Not a fingerprint as this system writes it.
    #[error("a key's fingerprint is `sha256:` and 64 lower-case hexadecimal digits")]
    Fingerprint,
    /// Not a token as this system writes it.
    #[error("a token is 8 characters, a dot, and 26 more, of a-z and 2-7")]
    Token,
    /// The certificate request is unreadable, or its signature is invalid.
    #[error("the certificate request is unreadable or not signed by its own key")]
    Request,
    /// The request's key is of another kind than ECDSA P-256.
    #[error("the certificate request's key must be ECDSA P-256")]
    RequestKey,
    /// The PEM of a CA or its key is not readable.
    #[error("the CA's {0} is not readable PEM (a key must be PKCS#8)")]
    CaPem(&'static str),
    /// The key is not the one in the certificate.
    #[error("the CA's key does not belong to its certificate")]
    CaKey,
    /// The certificate may not sign others.
    #[error("the certificate is not a CA certificate")]
    NotCa,
    /// The CA's certificate has expired, or is not valid yet.
    #[error("the CA's certificate is not valid now: check the clock, or replace the CA")]
    CaExpired,
    /// The system gives no random numbers, or signing failed.
    #[error("making a key or a signature failed")]
    Crypto,
}

/// Random bytes from the system.
fn random<const N: usize>() -> Result<[u8; N], IdentityError> {
    ring::rand::generate(&ring::rand::SystemRandom::new())
        .map(ring::rand::Random::expose)
        .map_err(|_| IdentityError::Crypto)
}
