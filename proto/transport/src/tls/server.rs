//! The hub's end.
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use futures::Stream;
use rustls::pki_types::CertificateDer;
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::accept_queue::Origin;
use super::anonymous::{Anonymous, ConnectionTimeout};
use super::choose::Choices;
use super::handshakes::{HANDSHAKE_TURN, HANDSHAKES, Handshakes};
use super::meter::{Meter, Metered};
use super::refusals::{HANDSHAKE_LIMIT, HandshakeError};
use super::verify::MemberVerifier;
use super::{ALPN, TlsError, provider};
use crate::identity::{PeerCertificate, ServingPair, SpiffeId};

/// Connections without a client certificate at once; one more ends the oldest.
const ANONYMOUS: usize = 1024;
/// Time limit of a connection without a client certificate.
const ANONYMOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// A connection on which nothing moves for so long is dead: the hub pings each after 15 s, and agents after 9 s.
const SILENCE: Duration = Duration::from_secs(25);
/// Pause after an accept error such as too many open files, doubled up to [`PAUSE_LIMIT`].
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// The hub's TLS settings; may be replaced while it serves.
pub struct ServerTls {
    config: ArcSwap<ServerConfig>,
    expires: ArcSwap<SystemTime>,
}

impl ServerTls {
    /// Serves with this pair. A client certificate is optional. It must be signed by a trusted CA,
    /// and may have expired: each call checks that.
    ///
    /// # Errors
    /// [`TlsError`], when the parts do not fit.
    pub fn new(cas: &[CertificateDer<'static>], serving: ServingPair) -> Result<Self, TlsError> {
        Self::of_several(cas, vec![serving])
    }

    /// Creates settings with several certificates, the newest CA's first: each client gets the
    /// newest one that it can verify by its hint, and without a hint the last one.
    ///
    /// # Errors
    /// [`TlsError`], if the parts do not match.
    pub fn of_several(
        cas: &[CertificateDer<'static>],
        serving: Vec<ServingPair>,
    ) -> Result<Self, TlsError> {
        let expires = ArcSwap::from_pointee(expires(&serving));
        Ok(Self {
            config: ArcSwap::from_pointee(config(cas, serving)?),
            expires,
        })
    }

    /// Sets the certificates of later handshakes, as in [`Self::of_several`]; open connections are
    /// unchanged.
    ///
    /// # Errors
    /// [`TlsError`], if the parts do not match; the settings are unchanged then.
    pub fn set(
        &self,
        cas: &[CertificateDer<'static>],
        serving: Vec<ServingPair>,
    ) -> Result<(), TlsError> {
        let expires = expires(&serving);
        self.config.store(Arc::new(config(cas, serving)?));
        self.expires.store(Arc::new(expires));
        Ok(())
    }

    /// The settings for the next handshake.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Returns the expiry of the newest CA's serving certificate.
    pub fn expires(&self) -> SystemTime {
        **self.expires.load()
    }
}

fn expires(serving: &[ServingPair]) -> SystemTime {
    serving
        .first()
        .map_or(SystemTime::UNIX_EPOCH, |pair| pair.not_after)
}

fn config(
    cas: &[CertificateDer<'static>],
    serving: Vec<ServingPair>,
) -> Result<ServerConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for ca in cas {
        roots.add(ca.clone())?;
    }
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(MemberVerifier::new(roots)?))
        .with_cert_resolver(Arc::new(Choices::new(serving)?));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // On resumption the client's chain would not be verified again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// The peer of a connection, an extension of each of its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address; unspecified if it is unknown.
    pub address: SocketAddr,
    /// The fields of the verified certificate; absent: anonymous. Always a member's certificate,
    /// perhaps an expired one.
    pub certificate: Option<Arc<PeerCertificate>>,
    /// The traffic of the connection.
    pub meter: Arc<Meter>,
}

/// A TLS connection with a known peer.
pub struct Connection {
    stream: TlsStream<Metered<TcpStream>>,
    peer: Peer,
    /// For how long, where the peer is anonymous.
    stay: Option<ConnectionTimeout>,
}

impl Connection {
    /// Returns the peer.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Checked before each read and each write, because the connection may wait for either.
    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.stay
            .as_mut()
            .map_or(Ok(()), |stay| stay.check_deadline(context))
    }
}

/// Performs the handshake of one accepted connection, within a time limit.
///
/// # Errors
/// [`HandshakeError`], with the cause.
pub async fn handshake(
    tcp: TcpStream,
    address: SocketAddr,
    config: Arc<ServerConfig>,
) -> Result<Connection, HandshakeError> {
    // Frames are small and answered at once; a system that refuses this only answers later.
    let _ = tcp.set_nodelay(true);
    let meter = Arc::new(Meter::default());
    let tcp = Metered::new(tcp, meter.clone(), SILENCE);
    let stream = timeout(HANDSHAKE_LIMIT, TlsAcceptor::from(config).accept(tcp)).await;
    let stream = stream.map_err(|_| HandshakeError::Timeout)??;
    let leaf = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first);
    let certificate = leaf
        .map(|leaf| PeerCertificate::from_der(leaf))
        .transpose()?;
    let is_member =
        |read: &PeerCertificate| read.client && matches!(read.id, SpiffeId::Cluster { .. });
    if certificate.as_ref().is_some_and(|read| !is_member(read)) {
        return Err(HandshakeError::NotMember);
    }
    Ok(Connection {
        stream,
        peer: Peer {
            address,
            certificate: certificate.map(Arc::new),
            meter,
        },
        stay: None,
    })
}

/// The source of connections.
pub trait Accept: Send {
    /// Returns the next connection with its peer.
    fn accept(&mut self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send;
}

impl Accept for TcpListener {
    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        TcpListener::accept(self).await
    }
}

struct Incoming<A> {
    listener: A,
    tls: Arc<ServerTls>,
    handshakes: Handshakes<Connection>,
    anonymous: Anonymous,
    pause: Duration,
}

/// The limits for peers without a verified certificate.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) handshakes: usize,
    pub(super) turn: Duration,
    pub(super) anonymous: usize,
    pub(super) anonymous_timeout: Duration,
}

const LIMITS: Limits = Limits {
    handshakes: HANDSHAKES,
    turn: HANDSHAKE_TURN,
    anonymous: ANONYMOUS,
    anonymous_timeout: ANONYMOUS_TIMEOUT,
};

/// The connections of a listener, for `serve_with_incoming_shutdown`. Never ends and never gives an error: failed
/// handshakes are logged, failing accepts are tried again after a pause.
pub fn incoming<A: Accept>(
    listener: A,
    tls: Arc<ServerTls>,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    incoming_within(listener, tls, LIMITS)
}

pub(super) fn incoming_within<A: Accept>(
    listener: A,
    tls: Arc<ServerTls>,
    limits: Limits,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let anonymous = Anonymous::new(limits.anonymous, limits.anonymous_timeout);
    let state = Incoming {
        listener,
        tls,
        handshakes: Handshakes::within(limits.handshakes, limits.turn),
        anonymous,
        pause: PAUSE,
    };
    futures::stream::unfold(state, |mut state| async move {
        let connection = state.next().await;
        Some((Ok(connection), state))
    })
}

impl<A: Accept> Incoming<A> {
    async fn next(&mut self) -> Connection {
        loop {
            let tls = &self.tls;
            let begin = |tcp, address| handshake(tcp, address, tls.current());
            tokio::select! {
                // Finished handshakes are returned before new connections are accepted.
                biased;
                (_, mut connection) = self.handshakes.next(begin) => {
                    let origin = Origin::of(connection.peer.address);
                    connection.stay = connection.peer.certificate.is_none().then(|| self.anonymous.enter(origin));
                    return connection;
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((tcp, address)) => {
                        self.pause = PAUSE;
                        self.handshakes.push(tcp, address);
                    }
                    Err(error) => self.back_off(&error).await,
                },
            }
        }
    }

    async fn back_off(&mut self, error: &io::Error) {
        // The peer disconnected before it was accepted: not an error.
        if matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
        ) {
            return;
        }
        tracing::warn!(%error, "cannot accept connections: check the limit of open files; trying again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_LIMIT);
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
