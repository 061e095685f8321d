//! The hub's end.
use std::collections::VecDeque;
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
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::anonymous::{Anonymous, Stay};
use super::choose::Choices;
use super::verify::MemberVerifier;
use super::{ALPN, TlsError, provider};
use crate::identity::{IdentityError, PeerCertificate, ServingPair, SpiffeId};

/// A handshake that takes longer is given up.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Handshakes at once; more wait in the kernel's queue.
const HANDSHAKES: usize = 1024;
/// When there are so many, each may last so long before it makes room: peers that say nothing keep nobody else out.
const HANDSHAKE_TURN: Duration = Duration::from_secs(2);
/// Connections without a client certificate at once; one more ends the oldest.
const ANONYMOUS: usize = 1024;
/// How long a connection without a client certificate may last.
const ANONYMOUS_LIFE: Duration = Duration::from_secs(60);
/// Pause after an accept error such as too many open files, doubled up to [`PAUSE_LIMIT`].
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// The hub's TLS settings; may be replaced while it serves.
pub struct ServerTls {
    config: ArcSwap<ServerConfig>,
    expires: ArcSwap<SystemTime>,
}

impl ServerTls {
    /// Serves with this pair. A client may show no certificate; one that it shows must be signed by an authority, and may
    /// have expired: each call looks at that.
    ///
    /// # Errors
    /// [`TlsError`], when the parts do not fit.
    pub fn new(authorities: &[CertificateDer<'static>], serving: ServingPair) -> Result<Self, TlsError> {
        Self::of_several(authorities, vec![serving])
    }

    /// The same with several pairs, the newest authority's first: each client gets the newest that it says it can verify,
    /// and the last one if it says nothing.
    ///
    /// # Errors
    /// [`TlsError`], when the parts do not fit.
    pub fn of_several(authorities: &[CertificateDer<'static>], serving: Vec<ServingPair>) -> Result<Self, TlsError> {
        let expires = ArcSwap::from_pointee(expires(&serving));
        Ok(Self { config: ArcSwap::from_pointee(config(authorities, serving)?), expires })
    }

    /// Sets what the next handshakes use, as in [`Self::of_several`]; live connections stay as they are.
    ///
    /// # Errors
    /// [`TlsError`], when the parts do not fit; the settings stay then.
    pub fn set(&self, authorities: &[CertificateDer<'static>], serving: Vec<ServingPair>) -> Result<(), TlsError> {
        let expires = expires(&serving);
        self.config.store(Arc::new(config(authorities, serving)?));
        self.expires.store(Arc::new(expires));
        Ok(())
    }

    /// The settings for the next handshake.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// When the certificate of the newest authority expires, with which it serves now.
    pub fn expires(&self) -> SystemTime {
        **self.expires.load()
    }
}

fn expires(serving: &[ServingPair]) -> SystemTime {
    serving.first().map_or(SystemTime::UNIX_EPOCH, |pair| pair.not_after)
}

fn config(authorities: &[CertificateDer<'static>], serving: Vec<ServingPair>) -> Result<ServerConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
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

/// Who is at the other end. It is an extension of every request of the connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where from; unspecified where that is not known.
    pub address: SocketAddr,
    /// What the verified certificate says; absent: anonymous. Always a member's certificate, and perhaps an expired one.
    pub certificate: Option<Arc<PeerCertificate>>,
}

/// Why a connection was not taken.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// TLS failed.
    #[error("the TLS handshake failed: {0}")]
    Tls(#[from] io::Error),
    /// It took too long.
    #[error("the TLS handshake took longer than {} seconds", HANDSHAKE_LIMIT.as_secs())]
    Timeout,
    /// The certificate is right but says nothing that is known here.
    #[error("the client's certificate cannot be used: {0}")]
    Identity(#[from] IdentityError),
    /// The certificate is not a member's.
    #[error("the client's certificate is not a member's")]
    NotMember,
}

/// A TLS connection with a known peer.
pub struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    /// For how long, where the peer is anonymous.
    stay: Option<Stay>,
}

impl Connection {
    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Looked at before each read and each write, whichever the connection waits for.
    fn go_on(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.stay.as_mut().map_or(Ok(()), |stay| stay.go_on(context))
    }
}

/// Does the handshake of one accepted connection, within a time limit.
///
/// # Errors
/// [`HandshakeError`], which says what failed.
pub async fn handshake(
    tcp: TcpStream,
    address: SocketAddr,
    config: Arc<ServerConfig>,
) -> Result<Connection, HandshakeError> {
    // Frames are small and answered at once; a system that refuses this only answers later.
    let _ = tcp.set_nodelay(true);
    let stream = timeout(HANDSHAKE_LIMIT, TlsAcceptor::from(config).accept(tcp)).await;
    let stream = stream.map_err(|_| HandshakeError::Timeout)??;
    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certificate = leaf.map(|leaf| PeerCertificate::from_der(leaf)).transpose()?;
    let is_member = |read: &PeerCertificate| read.client && matches!(read.id, SpiffeId::Cluster { .. });
    if certificate.as_ref().is_some_and(|read| !is_member(read)) {
        return Err(HandshakeError::NotMember);
    }
    Ok(Connection { stream, peer: Peer { address, certificate: certificate.map(Arc::new) }, stay: None })
}

/// Where connections come from.
pub trait Accept: Send {
    /// The next connection, and who is at its other end.
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
    handshakes: JoinSet<(SocketAddr, Result<Connection, HandshakeError>)>,
    /// The handshakes, the oldest first.
    begun: VecDeque<(Instant, AbortHandle)>,
    anonymous: Anonymous,
    limits: Limits,
    pause: Duration,
}

/// What peers of which nothing is known yet may take.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) handshakes: usize,
    pub(super) turn: Duration,
    pub(super) anonymous: usize,
    pub(super) anonymous_life: Duration,
}

const LIMITS: Limits =
    Limits { handshakes: HANDSHAKES, turn: HANDSHAKE_TURN, anonymous: ANONYMOUS, anonymous_life: ANONYMOUS_LIFE };

/// The connections of a listener, for `serve_with_incoming_shutdown`. Never ends and never gives an error: failed
/// handshakes are logged, failing accepts are tried again after a pause.
pub fn incoming<A: Accept>(listener: A, tls: Arc<ServerTls>) -> impl Stream<Item = io::Result<Connection>> + Send {
    incoming_within(listener, tls, LIMITS)
}

pub(super) fn incoming_within<A: Accept>(
    listener: A,
    tls: Arc<ServerTls>,
    limits: Limits,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let anonymous = Anonymous::new(limits.anonymous, limits.anonymous_life);
    let (handshakes, begun) = (JoinSet::new(), VecDeque::new());
    let state = Incoming { listener, tls, handshakes, begun, anonymous, limits, pause: PAUSE };
    futures::stream::unfold(state, |mut state| async move {
        let connection = state.next().await;
        Some((Ok(connection), state))
    })
}

impl<A: Accept> Incoming<A> {
    async fn next(&mut self) -> Connection {
        loop {
            let full_until = self.full_until();
            tokio::select! {
                // What is done leaves before more comes in.
                biased;
                Some(done) = self.handshakes.join_next() => {
                    if let Some(mut connection) = taken(done) {
                        connection.stay = connection.peer.certificate.is_none().then(|| self.anonymous.enter());
                        return connection;
                    }
                }
                () = sleep_until(full_until.unwrap_or_else(Instant::now)), if full_until.is_some() => {
                    if let Some((_, oldest)) = self.begun.pop_front() {
                        oldest.abort();
                    }
                }
                accepted = self.listener.accept(), if full_until.is_none() => match accepted {
                    Ok((tcp, address)) => {
                        self.pause = PAUSE;
                        let config = self.tls.current();
                        let handshake = async move { (address, handshake(tcp, address, config).await) };
                        self.begun.push_back((Instant::now(), self.handshakes.spawn(handshake)));
                    }
                    Err(error) => self.back_off(&error).await,
                },
            }
        }
    }

    /// When the oldest handshake makes room; none, while there is room.
    fn full_until(&mut self) -> Option<Instant> {
        self.begun.retain(|(_, handshake)| !handshake.is_finished());
        let (begun, _) = self.begun.front().filter(|_| self.begun.len() >= self.limits.handshakes)?;
        Some(*begun + self.limits.turn)
    }

    async fn back_off(&mut self, error: &io::Error) {
        // The peer hung up before it was accepted: nothing is wrong here.
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return;
        }
        tracing::warn!(%error, "cannot accept connections: check the limit of open files; trying again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_LIMIT);
    }
}

type Handshake = Result<(SocketAddr, Result<Connection, HandshakeError>), tokio::task::JoinError>;

fn taken(done: Handshake) -> Option<Connection> {
    match done {
        Ok((_, Ok(connection))) => Some(connection),
        // Probes and load balancers open and close without a word.
        Ok((peer, Err(HandshakeError::Tls(error)))) if error.kind() == io::ErrorKind::UnexpectedEof => {
            tracing::debug!(%peer, "a connection was closed before its TLS handshake ended");
            None
        }
        Ok((peer, Err(error))) => {
            tracing::info!(%peer, %error, "a connection was refused");
            None
        }
        Err(error) if error.is_cancelled() => {
            tracing::debug!("too many TLS handshakes at once: the oldest was given up");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "a TLS handshake was abandoned");
            None
        }
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
        self.go_on(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.go_on(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.go_on(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.go_on(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
