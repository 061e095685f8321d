//! How an agent knows its hub: by authority and SPIFFE id. Names in DNS prove nothing here, as load balancers have any.
//! And how a hub knows its members: by authority, at any time up to the certificate's end and after it.
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::{TlsError, provider};
use crate::identity::{Fingerprint, PeerCertificate, SpiffeId};

/// Whom the agent believes.
#[derive(Debug)]
pub(super) enum Trust {
    /// The authority with this key, wherever it stands in the presented chain.
    Pin(Fingerprint),
    /// These authorities.
    Authorities(RootCertStore),
}

/// Takes exactly one hub.
#[derive(Debug)]
pub(super) struct HubVerifier {
    pub(super) trust: Trust,
    /// What the hub is told of it, so that it can serve with a certificate that will be believed.
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
        let verify =
            |roots: &RootCertStore| verify_server_cert_signed_by_trust_anchor(&parsed, roots, chain, now, algorithms);
        match &self.trust {
            Trust::Authorities(roots) => verify(roots).map_err(|why| refusal(&format!("{UNTRUSTED} ({why})"))),
            Trust::Pin(pin) => {
                let pinned = chain.iter().find(|ca| Fingerprint::of_certificate(ca).as_ref() == Ok(pin));
                let Some(pinned) = pinned else { return Err(refusal(WRONG_PIN)) };
                let mut roots = RootCertStore::empty();
                roots.add(pinned.clone().into_owned())?;
                verify(&roots)
            }
        }
    }
}

const WRONG_PIN: &str = "this is not the hub of the join string: it has another key than the pinned one; check the \
                         address, and make a new join string if the hub was set up anew";
/// What an agent says of a hub whose authority it does not trust.
pub const UNTRUSTED: &str = "the hub has another authority than those that this agent trusts: check the address; an agent \
                             that was away while the authority was replaced needs a new join string";
const WRONG_HUB: &str = "this is not the hub of this agent: its certificate is for something else";

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
        verify_tls13_signature(message, leaf, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        (!self.hints.is_empty()).then_some(&self.hints)
    }
}

/// Whether this authority signed a member's certificate, whatever the time.
pub fn is_signed_by(certificate: &CertificateDer<'_>, authority: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    let Ok(verifier) = roots.add(authority.clone()).map_err(TlsError::from).and_then(|()| MemberVerifier::new(roots))
    else {
        return false;
    };
    verifier.verify_client_cert(certificate, &[], UnixTime::since_unix_epoch(Duration::MAX)).is_ok()
}

/// Takes members of the authorities, and clients without a certificate. A certificate that has expired is judged as it
/// was in its last second, because an expired member may still renew: what else it may do, each call decides by
/// `not_after`.
#[derive(Debug)]
pub(super) struct MemberVerifier(Arc<dyn ClientCertVerifier>);

impl MemberVerifier {
    /// For members of these authorities.
    pub(super) fn new(authorities: RootCertStore) -> Result<Self, TlsError> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider());
        Ok(Self(builder.allow_unauthenticated().build()?))
    }
}

/// The moment at which a certificate is judged: now, or its last second where that has passed.
fn judged_at(leaf: &CertificateDer<'_>, now: UnixTime) -> UnixTime {
    let end = PeerCertificate::from_der(leaf).map(|read| read.not_after);
    let end = end.ok().and_then(|end| end.duration_since(SystemTime::UNIX_EPOCH).ok());
    let last = end.map(|end| UnixTime::since_unix_epoch(end.saturating_sub(Duration::from_secs(1))));
    last.map_or(now, |last| last.min(now))
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
