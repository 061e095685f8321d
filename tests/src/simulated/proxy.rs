//! A link that a test can cut or slow down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::ports::local;

/// No limit.
const WHOLE: u64 = u64::MAX;

/// Number of pieces per second on a slow link.
const PIECES: u64 = 20;
/// One of this many pieces is lost, and delayed with all that follow.
const LOST: u64 = 50;
const SENT_AGAIN: Duration = Duration::from_millis(300);

/// Forwards connections between an agent and its hub, and cuts each after a number of bytes from
/// the hub, or limits its rate. Cuts all connections on drop.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct ProxyState {
    limit: AtomicU64,
    rate: AtomicU64,
    cuts: AtomicUsize,
    opened: AtomicUsize,
}

impl Proxy {
    /// A proxy to `hub`, which cuts nothing yet.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start(hub: &str) -> Result<Self> {
        let listener = TcpListener::bind(local(0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ProxyState {
            limit: AtomicU64::new(WHOLE),
            rate: AtomicU64::new(WHOLE),
            cuts: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
        });
        let mut task = JoinSet::new();
        task.spawn(accept(listener, hub.to_owned(), shared.clone()));
        Ok(Self {
            address,
            shared,
            _task: task,
        })
    }

    /// Returns the address for agents.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Cuts every connection that is opened from now on after so many bytes; `None` cuts none.
    pub fn cut_after(&self, bytes: Option<u64>) {
        self.shared
            .limit
            .store(bytes.unwrap_or(WHOLE), Ordering::SeqCst);
    }

    /// Passes on so many bytes a second each way, with losses, of every connection that is opened from now on; `None`: all.
    pub fn slow_down_to(&self, bytes: Option<u64>) {
        self.shared
            .rate
            .store(bytes.unwrap_or(WHOLE), Ordering::SeqCst);
    }

    /// How many connections were opened.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// How many connections were cut.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, hub: String, shared: Arc<ProxyState>) {
    let mut connections = JoinSet::new();
    while let Ok((agent, _)) = listener.accept().await {
        let (hub, shared) = (hub.clone(), shared.clone());
        connections.spawn(async move {
            let (limit, rate) = (
                shared.limit.load(Ordering::SeqCst),
                shared.rate.load(Ordering::SeqCst),
            );
            shared.opened.fetch_add(1, Ordering::SeqCst);
            if let Ok(hub) = TcpStream::connect(&hub).await
                && pass(agent, hub, limit, rate).await
            {
                shared.cuts.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

/// Returns whether the limit ended it.
async fn pass(mut agent: TcpStream, mut hub: TcpStream, limit: u64, rate: u64) -> bool {
    let (mut from_agent, mut to_agent) = agent.split();
    let (mut from_hub, mut to_hub) = hub.split();
    let up = copy(&mut from_agent, &mut to_hub, rate);
    let down = async {
        let mut from_hub = (&mut from_hub).take(limit);
        let _ = copy(&mut from_hub, &mut to_agent, rate).await;
        let _ = to_agent.flush().await;
        from_hub.limit() == 0
    };
    tokio::select! {
        _ = up => false,
        cut = down => cut,
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    rate: u64,
) -> std::io::Result<u64> {
    if rate == WHOLE {
        return tokio::io::copy(from, to).await;
    }
    let mut piece = vec![0; usize::try_from(rate / PIECES).unwrap_or(1).max(1)];
    for number in 1_u64.. {
        let bytes = from.read(&mut piece).await?;
        if bytes == 0 {
            break;
        }
        let lost = if number.is_multiple_of(LOST) {
            SENT_AGAIN
        } else {
            Duration::ZERO
        };
        let part = bytes as f64 / rate as f64;
        tokio::time::sleep(Duration::from_secs_f64(part) + lost).await;
        to.write_all(&piece[..bytes]).await?;
    }
    Ok(0)
}
