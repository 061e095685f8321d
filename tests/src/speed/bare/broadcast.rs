//! A bare hub: it keeps streams over mutual TLS, broadcasts payloads and counts acks.
//! It has the same HTTP/2 keepalives and windows as Runnel's hub, and no TLS tickets.
//! It uses Runnel's frames, so that the same simulated agents can connect. The call `Renew`
//! broadcasts the payload in its request, and returns when the last stream has acked.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context as Poller, Poll};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use runnel_proto::wire::agent_frame::Frame as Output;
use runnel_proto::wire::hub_frame::Frame;
use runnel_proto::wire::{self, HubFrame};
use runnel_transport::grpc::runnel_server::{Runnel, RunnelServer};
use runnel_transport::identity::Ca;
use runnel_transport::tls::provider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

/// The file in the folder where the server reads its CA: certificate and key.
pub const CA: [&str; 2] = ["ca.pem", "ca.key"];
/// The file in the folder with the server's address: it listens where a former one did.
pub const ADDRESS: &str = "address";
/// The file that exists once the server listens.
pub const READY: &str = "ready";
/// The id in its certificate.
pub const HUB_ID: &str = "00000000-0000-4000-8000-000000000000";

type FrameResult = Result<HubFrame, Status>;

/// The state that all streams share.
#[derive(Default)]
struct BroadcastState {
    streams: Mutex<Vec<mpsc::Sender<FrameResult>>>,
    nonce: AtomicU64,
    acks: AtomicUsize,
    acked: Notify,
    tasks: Mutex<JoinSet<()>>,
}

/// Serves until it is killed.
///
/// # Errors
/// When the folder holds no CA, or there is no port.
pub async fn serve(folder: &Path) -> Result<()> {
    let read = |name: &str| {
        std::fs::read_to_string(folder.join(name)).with_context(|| format!("no {name}"))
    };
    let ca = Ca::from_pem(&read(CA[0])?, &read(CA[1])?)?;
    let pair = ca.sign_hub(HUB_ID, SystemTime::now(), Duration::from_secs(24 * 3600))?;
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate().clone())?;
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
    let mut tls = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(pair.chain, pair.key)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    // As in Runnel's hub: unused tickets are avoidable.
    tls.send_tls13_tickets = 0;
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    let listener = TcpListener::bind(read(ADDRESS).unwrap_or("127.0.0.1:0".to_owned())).await?;
    std::fs::write(folder.join(ADDRESS), listener.local_addr()?.to_string())?;
    std::fs::write(folder.join(READY), "")?;
    let (opened, connections) = mpsc::channel(1024);
    let accepting = accept(listener, TlsAcceptor::from(Arc::new(tls)), opened);
    let service = RunnelServer::new(Server::default());
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(15)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .initial_stream_window_size(64 * 1024)
        .initial_connection_window_size(128 * 1024)
        .max_concurrent_streams(8)
        .add_service(service)
        .serve_with_incoming(ReceiverStream::new(connections));
    tokio::select! {
        served = serving => served.context("the server ended"),
        () = accepting => Ok(()),
    }
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    opened: mpsc::Sender<std::io::Result<Secure>>,
) {
    let mut handshakes = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        let (tls, opened) = (tls.clone(), opened.clone());
        handshakes.spawn(async move {
            let _ = tcp.set_nodelay(true);
            if let Ok(stream) = tls.accept(tcp).await {
                let _ = opened.send(Ok(Secure(stream))).await;
            }
        });
        while handshakes.try_join_next().is_some() {}
    }
}

fn frame(frame: Frame) -> HubFrame {
    HubFrame {
        frame: Some(frame),
        epoch: "bare".to_owned(),
        term: 1,
        ..HubFrame::default()
    }
}

/// The service, and each of its streams.
#[derive(Clone, Default)]
struct Server {
    bare: Arc<BroadcastState>,
}

impl Server {
    async fn listen(self, mut output: Streaming<wire::AgentFrame>, out: mpsc::Sender<FrameResult>) {
        while let Some(Ok(one)) = output.next().await {
            match one.frame {
                Some(Output::AckedRules(_)) => {
                    let end = wire::SnapshotEnd {
                        intents: 0,
                        digest: Bytes::from_static(&[0; 16]),
                    };
                    let _ = out.send(Ok(frame(Frame::SnapshotEnd(end)))).await;
                    self.bare.streams.lock().push(out.clone());
                }
                Some(Output::Ack(_)) => {
                    self.bare.acks.fetch_add(1, Ordering::AcqRel);
                    self.bare.acked.notify_one();
                }
                _ => {}
            }
        }
    }
}

impl BroadcastState {
    /// Sends the payload on every stream, and returns when each has acked.
    async fn broadcast(&self, payload: Bytes) {
        let streams = self.streams.lock().clone();
        let nonce = self.nonce.fetch_add(1, Ordering::AcqRel) + 1;
        self.acks.store(0, Ordering::Release);
        let source = wire::Source {
            resource: "configmaps".to_owned(),
            namespace: "bare".to_owned(),
            name: "bare".to_owned(),
            ..wire::Source::default()
        };
        let intent = wire::Intent {
            source: Some(source),
            revision: Bytes::copy_from_slice(&u128::from(nonce).to_be_bytes()),
            encoding: wire::Encoding::Plain.into(),
            size: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            payload,
        };
        let rule = wire::RuleDelta {
            rule_uid: "bare".to_owned(),
            upserts: vec![intent],
            ..wire::RuleDelta::default()
        };
        let batch = frame(Frame::Batch(wire::Batch {
            nonce,
            rules: vec![rule],
        }));
        let mut reached = 0;
        for stream in &streams {
            reached += usize::from(stream.send(Ok(batch.clone())).await.is_ok());
        }
        while self.acks.load(Ordering::Acquire) < reached {
            self.acked.notified().await;
        }
    }
}

type Session = Pin<Box<dyn futures::Stream<Item = FrameResult> + Send>>;

#[tonic::async_trait]
impl Runnel for Server {
    type SessionStream = Session;

    async fn join(
        &self,
        _: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::CertificateResponse>, Status> {
        Err(Status::unimplemented(
            "a bare hub takes everybody whom its CA has signed",
        ))
    }

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::CertificateResponse>, Status> {
        self.bare
            .broadcast(request.into_inner().certificate_request)
            .await;
        Ok(Response::new(wire::CertificateResponse::default()))
    }

    async fn session(
        &self,
        request: Request<Streaming<wire::AgentFrame>>,
    ) -> Result<Response<Session>, Status> {
        let (out, answers) = mpsc::channel(4);
        self.bare
            .tasks
            .lock()
            .spawn(self.clone().listen(request.into_inner(), out));
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}

/// A connection for tonic without tonic's own settings.
struct Secure(TlsStream<TcpStream>);

impl Connected for Secure {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Secure {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Poller<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Secure {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Poller<'_>,
        from: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Poller<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Poller<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
