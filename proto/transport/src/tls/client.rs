//! The agent's end.
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, DistinguishedName, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Endpoint;

use super::choose::{hint, hints};
use super::meter::{Meter, Metered};
use super::proxy::Route;
use super::tunnel::{self, CONNECT_LIMIT, ConnectError};
use super::verify::{HubVerifier, Trust};
use super::{ALPN, TlsError, provider};
use crate::identity::{Fingerprint, SpiffeId, is_address};

/// The interval of pings on an idle connection. A dead hub is detected after two of them: not much
/// later than another replica leads.
const KEEPALIVE: Duration = Duration::from_secs(9);
/// A connection on which nothing moves for so long is dead.
const SILENCE: Duration = Duration::from_secs(18);
/// The time limit of a ping's answer behind earlier data: on a slow link that is a whole window.
pub const PING_LIMIT: Duration = Duration::from_secs(20 * 60);
/// The flow-control window of the hub's data. All of it may be in buffers on a slow link, so it
/// bounds the delay of other frames; on a fast link it covers one round trip.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 320 * 1024;

/// Settings to join with: the hub must have the pinned CA and be the hub of that id. Nothing, the token
/// included, is sent before this is proven.
///
/// # Errors
/// [`TlsError`], when the hub's id is none.
pub fn join_config(pin: Fingerprint, hub_id: &str) -> Result<ClientConfig, TlsError> {
    let builder = builder(Trust::Pin(pin), vec![hint(pin)], hub_id)?;
    Ok(finished(builder.with_no_client_auth()))
}

/// Creates settings for a member: the hub must have a certificate of one of the CAs for that hub
/// id.
///
/// # Errors
/// [`TlsError`], if certificates and key do not match.
pub fn session_config(
    cas: &[CertificateDer<'static>],
    hub_id: &str,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for ca in cas {
        roots.add(ca.clone())?;
    }
    let builder = builder(Trust::Any(roots), hints(cas), hub_id)?;
    Ok(finished(builder.with_client_auth_cert(chain, key)?))
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn builder(trust: Trust, hints: Vec<DistinguishedName>, hub_id: &str) -> Result<Builder, TlsError> {
    let verifier = HubVerifier {
        trust,
        hints,
        hub: SpiffeId::hub(hub_id)?,
        provider: provider(),
    };
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

fn finished(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = true;
    config
}

/// Returns a gRPC endpoint for `host:port` with the keepalives of the protocol, to connect with a
/// [`Connector`].
///
/// # Errors
/// [`ConnectError::Address`], when it is no address.
pub fn endpoint(address: &str) -> Result<Endpoint, ConnectError> {
    let wrong = || ConnectError::Address(address.to_owned());
    if !is_address(address) {
        return Err(wrong());
    }
    // tonic refuses `https` without TLS settings of its own, so the URI of the connector's TLS is
    // `http`.
    let origin: Uri = format!("https://{address}").parse().map_err(|_| wrong())?;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| wrong())?;
    Ok(endpoint
        .origin(origin)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(PING_LIMIT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW))
}

/// Connects to the hub over TLS, through the proxy that the environment names, if it names one. Clones share the settings,
/// so a new certificate is used by the next connection.
#[derive(Clone)]
pub struct Connector {
    config: Arc<ArcSwap<ClientConfig>>,
    /// Returns the meter of the newest connection.
    meter: Arc<Meter>,
    /// Overrides the environment.
    route: Option<Arc<Route>>,
}

impl Connector {
    /// A connector with these settings.
    pub fn new(config: ClientConfig) -> Self {
        Self {
            config: Arc::new(ArcSwap::from_pointee(config)),
            meter: Arc::default(),
            route: None,
        }
    }

    /// The traffic of the newest connection.
    pub fn meter(&self) -> Arc<Meter> {
        self.meter.clone()
    }

    /// Returns a connector with this route, which overrides the environment.
    #[must_use]
    pub fn by(self, route: Route) -> Self {
        Self {
            route: Some(Arc::new(route)),
            ..self
        }
    }

    /// Sets the configuration of later connections; open ones are unchanged.
    pub fn set(&self, config: ClientConfig) {
        self.config.store(Arc::new(config));
    }

    /// Opens one connection to `host:port`.
    ///
    /// # Errors
    /// [`ConnectError`], with the cause.
    pub async fn connect(
        &self,
        address: &str,
    ) -> Result<TlsStream<Metered<TcpStream>>, ConnectError> {
        let named = || address.to_owned();
        let config = self.config.load_full();
        let attempt = async {
            let name = server_name(address)?;
            let tcp = match &self.route {
                Some(route) => tunnel::open(route, address).await?,
                None => tunnel::open(&tunnel::route_of_environment()?, address).await?,
            };
            // Frames are small and answered at once; a system that refuses this only answers later.
            let _ = tcp.set_nodelay(true);
            let tcp = Metered::new(tcp, self.meter.clone(), SILENCE);
            let tls = TlsConnector::from(config).connect(name, tcp).await;
            tls.map_err(|source| ConnectError::Tls {
                address: named(),
                source,
            })
        };
        timeout(CONNECT_LIMIT, attempt)
            .await
            .unwrap_or_else(|_| Err(ConnectError::Timeout { address: named() }))
    }
}

/// The name for SNI; it is compared with nothing.
fn server_name(address: &str) -> Result<ServerName<'static>, ConnectError> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| ConnectError::Address(address.to_owned()))
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<Metered<TcpStream>>>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let address = uri
                .authority()
                .map(|authority| authority.as_str().to_owned())
                .unwrap_or_default();
            connector.connect(&address).await.map(TokioIo::new)
        })
    }
}
