//! The TLS handshakes of a listener, with bounds: many connections of one address delay no other
//! address.
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::accept_queue::{AcceptQueue, Origin};
use super::refusals::{HandshakeError, Refusals};

/// Maximum number of concurrent handshakes; others wait.
pub(super) const HANDSHAKES: usize = 1024;
/// Connections that wait for it. Of more, the newest of the largest crowd is closed.
const WAITING: usize = 2048;
/// With this many handshakes, each may last this long before it makes room, so that idle peers do
/// not exclude others.
pub(super) const HANDSHAKE_TURN: Duration = Duration::from_secs(2);

/// The handshakes of accepted connections, which end as a `C`.
pub struct Handshakes<C> {
    running: JoinSet<(SocketAddr, Result<C, HandshakeError>)>,
    /// The running ones, the oldest first.
    begun: VecDeque<(Instant, Origin, AbortHandle)>,
    waiting: AcceptQueue<(TcpStream, SocketAddr)>,
    refusals: Refusals,
    /// The limit of running ones.
    limit: usize,
    turn: Duration,
}

impl<C: Send + 'static> Default for Handshakes<C> {
    fn default() -> Self {
        Self::within(HANDSHAKES, HANDSHAKE_TURN)
    }
}

impl<C: Send + 'static> Handshakes<C> {
    pub(super) fn within(limit: usize, turn: Duration) -> Self {
        Self {
            running: JoinSet::new(),
            begun: VecDeque::new(),
            waiting: AcceptQueue::new(WAITING),
            refusals: Refusals::default(),
            limit,
            turn,
        }
    }

    /// Adds an accepted connection, which waits for its handshake.
    pub fn push(&mut self, tcp: TcpStream, address: SocketAddr) {
        if self
            .waiting
            .push(Origin::of(address), (tcp, address))
            .is_some()
        {
            tracing::debug!(
                "too many connections wait for their TLS handshake: the newest of a crowd is closed"
            );
        }
    }

    /// Begins handshakes with `handshake` as far as the limit allows. Returns the next connection
    /// whose handshake ends well, and never without handshakes. May be canceled.
    pub async fn next<F>(
        &mut self,
        handshake: impl Fn(TcpStream, SocketAddr) -> F,
    ) -> (SocketAddr, C)
    where
        F: Future<Output = Result<C, HandshakeError>> + Send + 'static,
    {
        loop {
            self.begin(&handshake);
            let full_until = self.full_until();
            tokio::select! {
                biased;
                Some(done) = self.running.join_next() => {
                    if let Some(connection) = self.refusals.complete(done) {
                        return connection;
                    }
                }
                () = sleep_until(full_until.unwrap_or_else(Instant::now)), if full_until.is_some() => self.close_oldest(),
                else => std::future::pending().await,
            }
        }
    }

    /// Starts handshakes up to the limit. A connection from an origin with few others replaces the
    /// oldest one of the largest origin.
    fn begin<F>(&mut self, handshake: &impl Fn(TcpStream, SocketAddr) -> F)
    where
        F: Future<Output = Result<C, HandshakeError>> + Send + 'static,
    {
        self.begun
            .retain(|(_, _, handshake)| !handshake.is_finished());
        while !self.waiting.is_empty() {
            let running = self.running_by_origin();
            let count = |origin: Origin| running.get(&origin).copied().unwrap_or_default();
            if self.begun.len() >= self.limit {
                let next = self.waiting.next_origin(count).map(count);
                let most = running.values().max().copied().unwrap_or_default();
                if next.is_none_or(|next| next + 1 >= most) {
                    return;
                }
                self.close_oldest();
            }
            let Some((origin, (tcp, address))) = self.waiting.pop(count) else {
                return;
            };
            let handshake = handshake(tcp, address);
            let handshake = self
                .running
                .spawn(async move { (address, handshake.await) });
            self.begun.push_back((Instant::now(), origin, handshake));
        }
    }

    fn running_by_origin(&self) -> BTreeMap<Origin, usize> {
        let mut running = BTreeMap::new();
        self.begun
            .iter()
            .for_each(|(_, origin, _)| *running.entry(*origin).or_default() += 1);
        running
    }

    /// Drops the oldest handshake of the address with the most, when another client waits.
    fn full_until(&self) -> Option<Instant> {
        let (begun, ..) = self
            .begun
            .get(self.oldest_of_largest_origin()?)
            .filter(|_| !self.waiting.is_empty())?;
        Some(*begun + self.turn)
    }

    fn oldest_of_largest_origin(&self) -> Option<usize> {
        let running = self.running_by_origin();
        let most = running.values().max();
        self.begun
            .iter()
            .position(|(_, origin, _)| running.get(origin) == most)
    }

    fn close_oldest(&mut self) {
        if let Some((_, _, oldest)) = self
            .oldest_of_largest_origin()
            .and_then(|oldest| self.begun.remove(oldest))
        {
            oldest.abort();
        }
    }
}
