//! A middlebox that forgets flows: it drops their bytes without notice to either end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::ports::local;

/// Forwards connections between an agent and its hub. Closes every flow on drop.
#[derive(Debug)]
pub struct Middlebox {
    address: SocketAddr,
    /// How often flows were dropped. A flow that began before the last time is dead.
    drops: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Middlebox {
    /// A middlebox before `hub`, which passes everything on.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start(hub: &str) -> Result<Self> {
        let listener = TcpListener::bind(local(0)).await?;
        let address = listener.local_addr()?;
        let drops = Arc::new(AtomicU64::new(0));
        let mut task = JoinSet::new();
        task.spawn(accept(listener, hub.to_owned(), drops.clone()));
        Ok(Self {
            address,
            drops,
            _task: task,
        })
    }

    /// Returns the address for agents.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Silently drops every flow that is open now. The connections stay open, and new ones pass.
    pub fn drop_flows(&self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, hub: String, drops: Arc<AtomicU64>) {
    let mut flows = JoinSet::new();
    while let Ok((agent, _)) = listener.accept().await {
        let (hub, drops) = (hub.clone(), drops.clone());
        flows.spawn(async move {
            let born = drops.load(Ordering::SeqCst);
            let is_dead = || drops.load(Ordering::SeqCst) > born;
            if let Ok(hub) = TcpStream::connect(&hub).await {
                let (mut agent, mut hub) = (agent, hub);
                let ((from_agent, to_agent), (from_hub, to_hub)) = (agent.split(), hub.split());
                tokio::select! {
                    () = pass(from_agent, to_hub, &is_dead) => {}
                    () = pass(from_hub, to_agent, &is_dead) => {}
                }
            }
        });
    }
}

/// Forwards bytes until the flow ends. A dead flow never ends, and drops its bytes.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    is_dead: &impl Fn() -> bool,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or_default();
        match (read, is_dead()) {
            (0, true) => std::future::pending().await,
            (0, false) => return,
            (_, true) => {}
            (read, false) => {
                if to.write_all(&bytes[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}
