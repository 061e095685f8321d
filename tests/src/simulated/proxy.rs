//! A link that breaks where a test wants it to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::ports::local;

/// No limit.
const WHOLE: u64 = u64::MAX;

/// Stands between an agent and its hub, and cuts each connection after so many bytes from the hub. Dropping it cuts
/// everything.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    limit: AtomicU64,
    cuts: AtomicUsize,
}

impl Proxy {
    /// A proxy to `hub`, which cuts nothing yet.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start(hub: &str) -> Result<Self> {
        let listener = TcpListener::bind(local(0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { limit: AtomicU64::new(WHOLE), cuts: AtomicUsize::new(0) });
        let mut task = JoinSet::new();
        task.spawn(accept(listener, hub.to_owned(), shared.clone()));
        Ok(Self { address, shared, _task: task })
    }

    /// Where agents connect to.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Cuts every connection that is opened from now on after so many bytes; `None` cuts none.
    pub fn cut_after(&self, bytes: Option<u64>) {
        self.shared.limit.store(bytes.unwrap_or(WHOLE), Ordering::SeqCst);
    }

    /// How many connections were cut.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, hub: String, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((agent, _)) = listener.accept().await {
        let (hub, shared) = (hub.clone(), shared.clone());
        connections.spawn(async move {
            let limit = shared.limit.load(Ordering::SeqCst);
            if let Ok(hub) = TcpStream::connect(&hub).await
                && pass(agent, hub, limit).await
            {
                shared.cuts.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

/// Returns whether the limit ended it.
async fn pass(mut agent: TcpStream, mut hub: TcpStream, limit: u64) -> bool {
    let (mut from_agent, mut to_agent) = agent.split();
    let (mut from_hub, mut to_hub) = hub.split();
    let up = tokio::io::copy(&mut from_agent, &mut to_hub);
    let down = async {
        let mut from_hub = (&mut from_hub).take(limit);
        let _ = tokio::io::copy(&mut from_hub, &mut to_agent).await;
        let _ = to_agent.flush().await;
        from_hub.limit() == 0
    };
    tokio::select! {
        _ = up => false,
        cut = down => cut,
    }
}
