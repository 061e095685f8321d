//! Verifies peers. An agent verifies its hub by CA and SPIFFE id; DNS names prove nothing
//! here, because a load balancer has any name. A hub verifies its members by CA, at any time
//! until the certificate's end and after it.
//!
//! Neither checks when a certificate begins. Only the hub's own CA signs. A certificate of
//! the future only shows a clock that was ahead at the signature or is behind now, and must not
//! lock out a peer.
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use super::{TlsError, provider};
use crate::identity::{Fingerprint, PeerCertificate, SpiffeId};

/// The CAs that an agent trusts.
#[derive(Debug)]
pub(super) enum Trust {
    /// The CA with this key, at any position in the presented chain.
    Pin(Fingerprint),
    /// One of several CAs.
    Any(RootCertStore),
}

/// Verifies the certificate of exactly one hub.
#[derive(Debug)]
pub(super) struct HubVerifier {
    pub(super) trust: Trust,
    /// The hint for the hub, so that it serves with a certificate that the agent trusts.
    pub(super) hints: Vec<DistinguishedName>,
    pub(super) hub: SpiffeId,
    pub(super) provider: Arc<CryptoProvider>,
}

impl HubVerifier {
    fn verify_chain(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let begun = period(leaf).map_or(now, |(begin, _)| now.max(begin));
        let verify = |roots: &RootCertStore| {
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, chain, begun, algorithms)
        };
        match &self.trust {
            Trust::Any(roots) => verify(roots).map_err(|why| {
                of_clock(&why).unwrap_or_else(|| refusal(&format!("{UNTRUSTED} ({why})")))
            }),
            Trust::Pin(pin) => {
                let pinned = chain
                    .iter()
                    .find(|ca| Fingerprint::of_certificate(ca).as_ref() == Ok(pin));
                let Some(pinned) = pinned else {
                    return Err(refusal(WRONG_PIN));
                };
                let mut roots = RootCertStore::empty();
                roots.add(pinned.clone().into_owned())?;
                verify(&roots).map_err(|why| of_clock(&why).unwrap_or(why))
            }
        }
    }
}

const WRONG_PIN: &str = "this is not the hub of the join string: it has another key than the pinned one; check the \
                         address, and make a new join string if the hub was installed again";
/// The error text of an agent for a hub with an untrusted CA.
pub const UNTRUSTED: &str = "the hub has a CA that this agent does not trust: check the address; an agent \
                             that was away while the CA was replaced needs a new join string";
const WRONG_CLOCK: &str = "the hub's certificate is not valid at the time of this machine's clock: set the clock of this \
                           machine; if it is right, look at the clock and the log of the hub";
const WRONG_HUB: &str = "this is not the hub of this agent: its certificate is not for that hub";

/// The refusal of a certificate that is not valid now.
fn of_clock(why: &Error) -> Option<Error> {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let is_time = matches!(
        why,
        Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        )
    );
    is_time.then(|| refusal(WRONG_CLOCK))
}

fn refusal(text: &str) -> Error {
    Error::General(text.to_owned())
}

impl ServerCertVerifier for HubVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify_chain(leaf, chain, now)?;
        // A leaf without extended key usage would pass the chain's check.
        match PeerCertificate::from_der(leaf) {
            Ok(read) if read.server && read.id == self.hub => Ok(ServerCertVerified::assertion()),
            _ => Err(refusal(WRONG_HUB)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _leaf: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(refusal("TLS 1.2 is not spoken"))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            leaf,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        (!self.hints.is_empty()).then_some(&self.hints)
    }
}

/// Whether this CA signed a member's certificate, independent of its validity.
pub fn is_signed_by(certificate: &CertificateDer<'_>, ca: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    let Ok(verifier) = roots
        .add(ca.clone())
        .map_err(TlsError::from)
        .and_then(|()| MemberVerifier::new(roots))
    else {
        return false;
    };
    verifier
        .verify_client_cert(certificate, &[], UnixTime::since_unix_epoch(Duration::MAX))
        .is_ok()
}

/// Verifies members of the CAs, and accepts clients without a certificate. An expired certificate
/// is verified as of its last second, because an expired member may renew; each call checks
/// `not_after` for anything else. A certificate that is not valid yet is verified as of its first
/// second.
#[derive(Debug)]
pub(super) struct MemberVerifier(Arc<dyn ClientCertVerifier>);

impl MemberVerifier {
    /// For members of these CAs.
    pub(super) fn new(cas: RootCertStore) -> Result<Self, TlsError> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(cas), provider());
        Ok(Self(builder.allow_unauthenticated().build()?))
    }
}

/// Returns the start of a certificate's validity, and its last second.
fn period(leaf: &CertificateDer<'_>) -> Option<(UnixTime, UnixTime)> {
    let read = PeerCertificate::from_der(leaf).ok()?;
    let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
    let (begin, end) = (
        since(read.not_before)?,
        since(read.not_after)?.saturating_sub(Duration::from_secs(1)),
    );
    Some((
        UnixTime::since_unix_epoch(begin),
        UnixTime::since_unix_epoch(end),
    ))
}

/// The moment at which a member's certificate is judged: now, or the nearest within its period.
fn judged_at(leaf: &CertificateDer<'_>, now: UnixTime) -> UnixTime {
    period(leaf).map_or(now, |(begin, last)| now.max(begin).min(last))
}

impl ClientCertVerifier for MemberVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(leaf, chain, judged_at(leaf, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
