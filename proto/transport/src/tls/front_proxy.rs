//! TLS for requests that the hub's API server forwards: only its front proxy may connect.
//!
//! The API server publishes the CA and the names of its front proxy in the ConfigMap
//! `kube-system/extension-apiserver-authentication`.
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::parse_x509_certificate;

use super::refusals::{HANDSHAKE_LIMIT, HandshakeError};
use super::{TlsError, provider};
use crate::identity::ServingPair;

/// Accepts connections of the front proxy.
#[derive(Clone)]
pub struct FrontProxyTls {
    config: Arc<ServerConfig>,
    /// The allowed common names; empty: every certificate of the CA.
    names: Arc<[String]>,
}

impl FrontProxyTls {
    /// Serves with `serving`. Clients need a certificate of one of the CAs in `cas` (PEM)
    /// with one of the common names; without names each certificate of them is accepted.
    ///
    /// # Errors
    /// [`TlsError`], when the parts do not fit, for example because there is no CA.
    pub fn new(cas: &str, names: Vec<String>, serving: ServingPair) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(cas.as_bytes()) {
            let ca = ca.map_err(|_| rustls::Error::NoCertificatesPresented)?;
            roots.add(ca)?;
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(serving.chain, serving.key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // On resumption the client's chain would not be verified again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            config: Arc::new(config),
            names: names.into(),
        })
    }

    /// Performs the handshake of one connection, within a time limit.
    ///
    /// # Errors
    /// [`HandshakeError`], with the cause.
    pub async fn accept(&self, tcp: TcpStream) -> Result<TlsStream<TcpStream>, HandshakeError> {
        // A system that refuses this only answers later.
        let _ = tcp.set_nodelay(true);
        let accepted = TlsAcceptor::from(self.config.clone()).accept(tcp);
        let stream = timeout(HANDSHAKE_LIMIT, accepted)
            .await
            .map_err(|_| HandshakeError::Timeout)??;
        let leaf = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(<[_]>::first);
        let name = leaf.and_then(|leaf| common_name(leaf)).unwrap_or_default();
        if !self.names.is_empty() && !self.names.contains(&name) {
            return Err(HandshakeError::FrontProxyName(name));
        }
        Ok(stream)
    }
}

fn common_name(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}
