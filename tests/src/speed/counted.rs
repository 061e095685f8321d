//! A connection that counts its bytes, after TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use hyper_util::rt::TokioIo;
use runnel_transport::tls::{Connector, Route, endpoint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::Channel;

use crate::simulated::Credentials;

/// Bytes in both directions.
#[derive(Debug, Default)]
pub struct Bytes {
    /// Bytes from the hub.
    pub received: AtomicU64,
    /// Bytes to the hub.
    pub sent: AtomicU64,
}

/// Opens a connection with the member's certificate. Adds its bytes to `bytes`.
///
/// # Errors
/// When there is no hub, or another one.
pub async fn channel(credentials: &Credentials, bytes: &Arc<Bytes>) -> Result<Channel> {
    let connector = Connector::new(credentials.config()?).by(Route::direct());
    let (address, bytes) = (credentials.address.clone(), bytes.clone());
    let connect = tower::service_fn(move |_: http::Uri| {
        let (connector, address, bytes) = (connector.clone(), address.clone(), bytes.clone());
        async move {
            let stream = connector.connect(&address).await?;
            Ok::<_, runnel_transport::tls::ConnectError>(TokioIo::new(Counted { stream, bytes }))
        }
    });
    let connected = endpoint(&credentials.address)?
        .connect_with_connector(connect)
        .await;
    connected.with_context(|| format!("no connection to {}", credentials.address))
}

struct Counted<S> {
    stream: S,
    bytes: Arc<Bytes>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        self.bytes
            .received
            .fetch_add((into.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, from);
        if let Poll::Ready(Ok(written)) = &polled {
            self.bytes
                .sent
                .fetch_add(*written as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
