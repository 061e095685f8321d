//! Routes incoming connections. The leader serves them; a standby replica forwards them to the
//! leader, unchanged and before any TLS.
//!
//! A connection to the replica port is served or closed, never forwarded, so that connections
//! cannot run in circles. Only a connection that begins with the seal of a replica is served there:
//! see `passed_on`.
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use runnel_transport::tls::Accept;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Leader;
use super::forward_header::{
    PREAMBLE, Service, Stamp, UsedStamps, open_files, origin, passed_on_limit, preamble, unix_now,
};
use crate::hub_state::HubState;
use crate::metrics::{HubMetrics, PeerLimit};
use crate::ordered_lock::LeafMutex;

/// The limit of concurrent connections if the limit of open files is unknown. At the limit a leader
/// accepts no more, and they wait in the kernel's queue; a standby closes them.
const CONNECTIONS: usize = 8192;
/// The limit of connections on the replica port that have not announced their origin. Further ones
/// are closed.
const ARRIVALS: usize = 1024;
/// The share of one address in these.
const ARRIVALS_OF_ADDRESS: usize = 256;
/// The time limit for a replica to announce the origin.
const ARRIVAL: Duration = Duration::from_secs(3);
/// The interval between log lines about connections that are not forwarded.
const COMPLAINTS: Duration = Duration::from_secs(60);
/// Connections that wait for their TLS handshake.
const QUEUE: usize = 64;
/// The time for which a connection waits while there is no leader. Agents do not wait longer.
const ACCEPT_DELAY: Duration = Duration::from_secs(20);
/// The time limit for a connection to the leader.
const DIAL: Duration = Duration::from_secs(3);
/// The interval between attempts to reach the leader.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The time without data after which a connection is dead. Both ends send keepalives more often.
const IDLE: Duration = Duration::from_secs(90);
/// The same for a connection of the API server. A watch lasts for half an hour at most, and its
/// client need not take bookmarks.
const VIEWS_IDLE: Duration = Duration::from_secs(35 * 60);
/// The time for which a connection to a former leader continues, so that its last frames arrive.
const CLOSE_DELAY: Duration = Duration::from_secs(1);
/// Pause after an accept error such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

type Incoming = (TcpStream, SocketAddr);

/// The connections that this process serves itself.
pub struct LocalConnections(mpsc::Receiver<Incoming>);

impl Accept for LocalConnections {
    async fn accept(&mut self) -> io::Result<Incoming> {
        match self.0.recv().await {
            Some(incoming) => Ok(incoming),
            // The router has ended, and the process ends.
            None => std::future::pending().await,
        }
    }
}

/// The listeners of a hub.
pub struct Listeners {
    /// For agents.
    pub public: TcpListener,
    /// For the API server, which forwards requests for views.
    pub views: Option<TcpListener>,
    /// For other replicas.
    pub replicas: Option<TcpListener>,
}

/// Where the connections of each service are served in this process.
#[derive(Clone)]
struct Served {
    agents: mpsc::Sender<Incoming>,
    views: mpsc::Sender<Incoming>,
}

impl Served {
    /// Passes a connection to its service.
    async fn send(&self, service: Service, incoming: Incoming) {
        let queue = match service {
            Service::Agents => &self.agents,
            Service::Views => &self.views,
        };
        _ = queue.send(incoming).await;
    }
}

/// The listeners, and the routing of their connections.
pub struct ConnectionRouter {
    listeners: Listeners,
    hub_state: Arc<HubState>,
    metrics: Arc<HubMetrics>,
    served: Served,
}

impl ConnectionRouter {
    /// Creates a router with these listeners. Returns it with the connections of agents and those
    /// of the API server.
    pub fn new(
        listeners: Listeners,
        hub_state: Arc<HubState>,
        metrics: Arc<HubMetrics>,
    ) -> (Self, LocalConnections, LocalConnections) {
        let (agents, accepted) = mpsc::channel(QUEUE);
        let (views, accepted_views) = mpsc::channel(QUEUE);
        let served = Served { agents, views };
        (
            Self {
                listeners,
                hub_state,
                metrics,
                served,
            },
            LocalConnections(accepted),
            LocalConnections(accepted_views),
        )
    }

    /// Routes connections until the process ends.
    pub async fn run(self) {
        let (mut tasks, mut arrivals) = (JoinSet::new(), JoinSet::new());
        let mut shares = Shares::default();
        let used = Arc::new(LeafMutex::<UsedStamps>::default());
        let most = tokio::fs::read_to_string("/proc/self/limits")
            .await
            .ok()
            .and_then(|limits| open_files(&limits));
        let most = most.map_or(CONNECTIONS, passed_on_limit);
        let mut complained: Option<Instant> = None;
        loop {
            tokio::select! {
                Some(_) = tasks.join_next() => {}
                Some(arrived) = arrivals.join_next() => {
                    let (address, is_served) = arrived.unwrap_or((IpAddr::V4(Ipv4Addr::UNSPECIFIED), false));
                    shares.give_back(address);
                    if !is_served {
                        self.metrics.limited(PeerLimit::Replicas, 1);
                    }
                }
                (service, accepted) = self.listeners.accept(), if tasks.len() < most || !self.hub_state.leadership.leads() => match accepted {
                    Ok(incoming) if tasks.len() < most => {
                        drop(tasks.spawn(admit(service, incoming, self.hub_state.clone(), self.served.clone())));
                    }
                    // The connection is closed at once, so that an agent with another address tries
                    // that one.
                    Ok(_) => {
                        self.metrics.limited(PeerLimit::Forwarded, 1);
                        if complained.is_none_or(|at| at.elapsed() >= COMPLAINTS) {
                            tracing::warn!(count = most, "no more connections are passed on to the leader: raise the limit of open files, or spread agents over the replicas");
                            complained = Some(Instant::now());
                        }
                    }
                    Err(error) => log_accept_error(&error).await,
                },
                accepted = accept(self.listeners.replicas.as_ref()) => match accepted {
                    Ok((tcp, from)) if self.hub_state.leadership.leads()
                        && arrivals.len() < ARRIVALS
                        && shares.take(from.ip()) =>
                    {
                        let arrival = arrive(tcp, self.hub_state.clone(), self.served.clone(), used.clone());
                        arrivals.spawn(async move { (from.ip(), arrival.await) });
                    }
                    Ok((_, from)) if self.hub_state.leadership.leads() => {
                        self.metrics.limited(PeerLimit::Replicas, 1);
                        tracing::debug!(peer = %from, "too many connections on the port for replicas: one is closed");
                    }
                    Ok((_, from)) => tracing::debug!(peer = %from, "a replica passed a connection on to one that does not lead"),
                    Err(error) => log_accept_error(&error).await,
                },
            }
        }
    }
}

/// The connections of each address that have not announced their origin.
#[derive(Default)]
struct Shares(BTreeMap<IpAddr, usize>);

impl Shares {
    /// Whether one more connection is within the share of its address, which counts it then.
    fn take(&mut self, address: IpAddr) -> bool {
        let taken = self.0.entry(address).or_default();
        let is_within = *taken < ARRIVALS_OF_ADDRESS;
        *taken += usize::from(is_within);
        is_within
    }

    fn give_back(&mut self, address: IpAddr) {
        if let Entry::Occupied(mut taken) = self.0.entry(address) {
            *taken.get_mut() -= 1;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
    }
}

impl Listeners {
    /// Returns the next connection of an agent or of the API server.
    async fn accept(&self) -> (Service, io::Result<Incoming>) {
        tokio::select! {
            accepted = self.public.accept() => (Service::Agents, accepted),
            accepted = accept(self.views.as_ref()) => (Service::Views, accepted),
        }
    }
}

/// Serves a connection that another replica forwards, with the origin that the replica announces.
/// Returns whether a replica of this hub announced one.
async fn arrive(
    mut tcp: TcpStream,
    hub_state: Arc<HubState>,
    served: Served,
    used: Arc<LeafMutex<UsedStamps>>,
) -> bool {
    let mut preamble = [0; PREAMBLE];
    let message = timeout(ARRIVAL, tcp.read_exact(&mut preamble)).await;
    let from = match message {
        Ok(Ok(_)) => origin(&preamble, &hub_state.settings.revision_key),
        _ => None,
    };
    let Some((service, from, stamp)) = from else {
        return false;
    };
    if !used.lock().redeem(stamp, unix_now()) {
        tracing::warn!(peer = %from, "a header for a forwarded connection was used again, or the clocks of the replicas differ");
        return false;
    }
    served.send(service, (tcp, from)).await;
    true
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<Incoming> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn log_accept_error(error: &io::Error) {
    // The peer closed the connection before it was accepted. That is no error of the hub.
    if matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    ) {
        return;
    }
    tracing::warn!(%error, "cannot accept connections: check the limit of open files; trying again");
    sleep(PAUSE).await;
}

/// Serves a connection, forwards it to the leader, or holds it until there is a leader.
async fn admit(service: Service, (tcp, from): Incoming, hub_state: Arc<HubState>, served: Served) {
    let stop_waiting = Instant::now() + ACCEPT_DELAY;
    let (mut lead, mut leader) = (
        hub_state.leadership.lead.subscribe(),
        hub_state.leadership.leader.subscribe(),
    );
    loop {
        lead.mark_unchanged();
        let known = leader.borrow_and_update().clone();
        if hub_state.leadership.leads() {
            served.send(service, (tcp, from)).await;
            return;
        }
        if let Some((known, address)) =
            known.and_then(|known| known.address.clone().map(|address| (known, address)))
        {
            match timeout(DIAL, TcpStream::connect(&address)).await {
                Ok(Ok(onward)) => {
                    return splice(service, (tcp, from), onward, &known, &hub_state).await;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, address, "cannot reach the replica that leads")
                }
                Err(_) => tracing::debug!(address, "the replica that leads does not answer"),
            }
        }
        tokio::select! {
            _ = lead.changed() => {}
            _ = leader.changed() => {}
            () = sleep(RETRY_INTERVAL) => {}
            () = sleep_until(stop_waiting) => return,
        }
    }
}

/// Copies bytes in both directions until both ends are closed, no data arrives for long, or another
/// replica leads.
async fn splice(
    service: Service,
    (tcp, from): Incoming,
    mut onward: TcpStream,
    leader: &Leader,
    hub_state: &HubState,
) {
    // Without this option data is only sent later, so an error is ignored.
    let _ = (tcp.set_nodelay(true), onward.set_nodelay(true));
    let Some(stamp) = Stamp::new() else { return };
    let header = preamble(service, from, stamp, &hub_state.settings.revision_key);
    if onward.write_all(&header).await.is_err() {
        return;
    }
    let moved = AtomicU64::new(0);
    let (mut near, mut far) = (
        CountingConnection { tcp, moved: &moved },
        CountingConnection {
            tcp: onward,
            moved: &moved,
        },
    );
    let mut known = hub_state.leadership.leader.subscribe();
    let deposed = async {
        let other = |now: &Option<Leader>| {
            now.as_ref()
                .is_none_or(|now| now.identity != leader.identity)
        };
        _ = known.wait_for(other).await;
        sleep(CLOSE_DELAY).await;
    };
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        () = idle(&moved, idle_limit(service)) => tracing::debug!("a spliced connection on which nothing moved is closed"),
        () = deposed => {}
    }
}

/// Returns the time without data after which a connection is dead.
fn idle_limit(service: Service) -> Duration {
    match service {
        Service::Agents => IDLE,
        Service::Views => VIEWS_IDLE,
    }
}

/// Completes when the number of bytes in `moved` stays the same for `limit`.
async fn idle(moved: &AtomicU64, limit: Duration) {
    let mut before = moved.load(Ordering::Relaxed);
    loop {
        sleep(limit).await;
        let now = moved.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// A connection that counts the bytes that it reads.
struct CountingConnection<'a> {
    tcp: TcpStream,
    moved: &'a AtomicU64,
}

impl AsyncRead for CountingConnection<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.tcp).poll_read(context, buffer);
        self.moved
            .fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for CountingConnection<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_of_one_address_leave_room_for_others() {
        let [one, other] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let mut shares = Shares::default();
        let taken = (0..ARRIVALS).filter(|_| shares.take(one)).count();
        assert_eq!(taken, ARRIVALS_OF_ADDRESS);
        assert!(!shares.take(one) && shares.take(other));
        shares.give_back(one);
        assert!(shares.take(one));
        (0..ARRIVALS_OF_ADDRESS).for_each(|_| shares.give_back(one));
        shares.give_back(other);
        assert!(shares.0.is_empty(), "no address is remembered for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn watch_in_which_nothing_changes_is_not_cut() {
        let moved = AtomicU64::new(0);
        for (service, limit) in [
            (Service::Agents, Duration::from_secs(90)),
            (Service::Views, Duration::from_secs(35 * 60)),
        ] {
            let begin = Instant::now();
            idle(&moved, idle_limit(service)).await;
            assert_eq!(begin.elapsed(), limit);
        }
    }
}
