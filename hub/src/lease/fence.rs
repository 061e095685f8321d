//! The fence around every connection of an agent: no byte is written after the right to lead has
//! ended.
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt};
use runnel_transport::identity::PeerCertificate;
use runnel_transport::tls::{Connection, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::transport::server::Connected;

use super::Lead;
use super::connection_guard::{ConnectionGuard, GuardState, MemberKey};
use super::connections::MemberConnections;
use crate::hub_state::HubState;
use crate::metrics::{HubMetrics, PeerLimit};
use crate::ordered_lock::LeafMutex;

/// The interval at which a connection checks whether its session is still allowed. The second
/// failed check in a row ends it, which leaves the session time for its last frame.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The states of all connections. One timer checks all of them: waking each connection would cost
/// more than the data that it sends.
#[derive(Clone, Default)]
pub struct ConnectionGuards(Arc<LeafMutex<Table>>, Arc<HubMetrics>);

#[derive(Default)]
struct Table {
    all: Vec<Weak<GuardState>>,
    members: MemberConnections,
}

impl ConnectionGuards {
    /// Creates an empty table. Ended connections are counted in `metrics`.
    pub fn counting(metrics: Arc<HubMetrics>) -> Self {
        Self(Arc::default(), metrics)
    }

    /// Creates the guard of a new connection. Above its limits the member loses its oldest
    /// connection without a session.
    fn guard(&self, peer: Option<&PeerCertificate>) -> ConnectionGuard {
        let member = peer.and_then(MemberKey::of);
        let guard = ConnectionGuard(Arc::new(GuardState::new(member)));
        let mut table = self.0.lock();
        let ended = table.members.enter(&guard.0);
        table.all.push(Arc::downgrade(&guard.0));
        self.1.limited(PeerLimit::Connections, ended);
        guard
    }

    /// Checks all connections at the interval, until the process ends.
    pub async fn watch(&self) -> Infallible {
        self.watch_every(CHECK_INTERVAL).await
    }

    async fn watch_every(&self, every: Duration) -> Infallible {
        let mut interval = interval_at(Instant::now() + every, every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let now = Instant::now();
            let late = self
                .all()
                .into_iter()
                .filter(|guard_state| guard_state.has_expired(now))
                .count();
            self.1.limited(PeerLimit::IdleConnections, late as u64);
        }
    }

    fn all(&self) -> Vec<Arc<GuardState>> {
        let mut all = Vec::new();
        let mut table = self.0.lock();
        table.all.retain(|guard_state| {
            let guard_state = guard_state.upgrade();
            let is_taken = guard_state.is_some();
            all.extend(guard_state);
            is_taken
        });
        table.members.drop_closed();
        all
    }
}

/// The peer and the guard of a connection. Every request on the connection has it as an extension.
#[derive(Clone)]
pub struct Caller {
    /// The peer.
    pub peer: Peer,
    /// Ends the connection.
    pub guard: ConnectionGuard,
}

/// A connection that belongs to one lead and ends with it. It checks the clock before each write,
/// so data that was buffered while the process was paused is not sent.
pub struct Fenced {
    connection: Connection,
    lead: Lead,
    hub_state: Arc<HubState>,
    guard: ConnectionGuard,
}

/// Wraps the connections that are accepted while this process leads. Each gets a guard.
pub fn fenced(
    connections: impl Stream<Item = io::Result<Connection>> + Send,
    hub_state: Arc<HubState>,
    guards: ConnectionGuards,
) -> impl Stream<Item = io::Result<Fenced>> + Send {
    connections.filter_map(move |connection| {
        let (hub_state, lead) = (hub_state.clone(), hub_state.leadership.current_lead());
        let peer = connection
            .as_ref()
            .ok()
            .and_then(|connection| connection.peer().certificate.as_deref());
        let guard = guards.guard(peer);
        async move {
            lead.map(|lead| {
                connection.map(|connection| Fenced {
                    connection,
                    lead,
                    hub_state,
                    guard,
                })
            })
        }
    })
}

impl Fenced {
    fn check(&self) -> io::Result<()> {
        if self.hub_state.leadership.is_leading(&self.lead) {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "this replica does not lead any more",
            ))
        }
    }
}

impl Connected for Fenced {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller {
            peer: self.connection.connect_info(),
            guard: self.guard.clone(),
        }
    }
}

impl AsyncRead for Fenced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.guard.check_deadline(context)?;
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Fenced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        self.guard.check_deadline(context)?;
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        self.guard.check_deadline(context)?;
        Pin::new(&mut self.connection).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        self.guard.check_deadline(context)?;
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::lease::connection_guard::IDLE_TIMEOUT;
    use crate::lease::connections::{PER_KEY, PER_MEMBER};
    use runnel_transport::identity::Fingerprint;
    use tokio::time::timeout;

    #[tokio::test]
    async fn connection_ends_with_its_session_without_frames() {
        let (interval, several_checks) = (Duration::from_millis(50), Duration::from_millis(300));
        let guards = ConnectionGuards::default();
        let guard = guards.guard(None);
        let all = guard.clone();
        let over = std::future::poll_fn(move |context| match all.check_deadline(context) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        });
        let over = async {
            tokio::select! {
                error = over => error,
                never = guards.watch_every(interval) => match never {},
            }
        };
        let mut over = Box::pin(over);
        // First without a session, then with an allowed one.
        assert!(timeout(several_checks, &mut over).await.is_err());
        let allowed = Arc::new(AtomicBool::new(true));
        let asked = allowed.clone();
        guard.guard_with(move || asked.load(Ordering::Relaxed));
        assert!(timeout(several_checks, &mut over).await.is_err());
        allowed.store(false, Ordering::Relaxed);
        let began = Instant::now();
        timeout(Duration::from_secs(20), &mut over)
            .await
            .expect("the end of the connection");
        assert!(began.elapsed() >= interval, "no time for a last word");
        drop((guard, over));
        assert!(
            guards.all().is_empty(),
            "a closed connection is still checked"
        );
    }

    fn guard_state_of(key: u8) -> Arc<GuardState> {
        Arc::new(GuardState::new(Some(MemberKey {
            uid: "uid".into(),
            key: Fingerprint::of_key(&[key]),
        })))
    }

    #[test]
    fn connection_without_a_session_ends_after_its_time() {
        let guard_state = guard_state_of(0);
        let (before, after) = (
            Instant::now() + IDLE_TIMEOUT / 2,
            Instant::now() + 2 * IDLE_TIMEOUT,
        );
        assert!(!guard_state.has_expired(before) && guard_state.is_idle());
        let session = ConnectionGuard(guard_state.clone()).registered();
        assert!(!guard_state.has_expired(after), "it has a session");
        // The session has ended, and the connection stays open for a while.
        drop(session);
        assert!(
            !guard_state.has_expired(before)
                && guard_state.has_expired(after)
                && !guard_state.is_idle()
        );
    }

    #[test]
    fn member_with_many_connections_loses_its_oldest() {
        let mut members = MemberConnections::default();
        let registered = guard_state_of(0);
        let session = ConnectionGuard(registered.clone()).registered();
        assert_eq!(members.enter(&registered), 0);
        let own = guard_state_of(1);
        assert_eq!(members.enter(&own), 0);
        // An attacker has an old key of the member, or opens a hundred connections with one key.
        let many: Vec<_> = (0..100).map(|_| guard_state_of(2)).collect();
        let ended: u64 = many
            .iter()
            .map(|guard_state| members.enter(guard_state))
            .sum();
        let left = many
            .iter()
            .filter(|guard_state| guard_state.is_idle())
            .count();
        assert_eq!((left, ended), (PER_KEY, (100 - PER_KEY) as u64));
        assert!(own.is_idle() && many[99].is_idle() && !registered.over.load(Ordering::Acquire));
        let others: Vec<_> = (3..60).map(guard_state_of).collect();
        for guard_state in &others {
            members.enter(guard_state);
        }
        let idle = many
            .iter()
            .chain(&others)
            .chain([&own])
            .filter(|guard_state| guard_state.is_idle())
            .count();
        assert!(
            idle <= PER_MEMBER && !registered.over.load(Ordering::Acquire),
            "{idle}"
        );
        drop((many, others, own, registered, session));
        members.drop_closed();
        assert!(members.is_empty());
    }
}
