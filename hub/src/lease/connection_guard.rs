//! The guard of one connection of an agent: it ends the connection when its sessions are no longer allowed.
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use futures::task::AtomicWaker;
use runnel_transport::identity::{Fingerprint, PeerCertificate, SpiffeId};
use tokio::time::Instant;

use crate::ordered_lock::LeafMutex;

/// The time for which a connection of a member may last without a registered session. A renewal
/// takes seconds. Each new stream restarts the time.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

type Allowed = Arc<dyn Fn() -> bool + Send + Sync>;

/// The member and the key of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberKey {
    /// Uid of the `MemberCluster`.
    pub uid: Arc<str>,
    /// The key.
    pub key: Fingerprint,
}

impl MemberKey {
    /// Returns the member and key of a certificate; `None` if it is not that of a member.
    pub fn of(certificate: &PeerCertificate) -> Option<Self> {
        match &certificate.id {
            SpiffeId::Cluster { uid, .. } => Some(Self {
                uid: uid.as_str().into(),
                key: certificate.key,
            }),
            SpiffeId::Hub { .. } => None,
        }
    }
}

/// The handle by which sessions end their connection. A stream whose peer grants no window is not
/// polled for frames, so it cannot end itself. Then the end of the connection ends it, with all
/// frames that wait for the window.
#[derive(Clone)]
pub struct ConnectionGuard(pub(super) Arc<GuardState>);

/// The state of one connection that its guard checks.
pub(super) struct GuardState {
    /// The member and key of the peer; `None` for a peer without a member certificate, whose
    /// connection is short-lived anyway.
    member: Option<MemberKey>,
    /// The number of registered sessions on the connection.
    sessions: AtomicUsize,
    /// When the connection ends if no session is registered by then.
    idle_until: LeafMutex<Instant>,
    allowed: LeafMutex<Option<Allowed>>,
    /// The result of the last check.
    refused: AtomicBool,
    pub(super) over: AtomicBool,
    /// The task of the connection.
    task: AtomicWaker,
}

/// A registered session on a connection: while there is one, the connection is not idle.
pub struct RegisteredSession(Arc<GuardState>);

impl Drop for RegisteredSession {
    fn drop(&mut self) {
        self.0.extend();
        self.0.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ConnectionGuard {
    /// Ends the connection when `allowed` returns false in two checks in a row.
    pub fn guard_with(&self, allowed: impl Fn() -> bool + Send + Sync + 'static) {
        *self.0.allowed.lock() = Some(Arc::new(allowed));
    }

    /// Registers a session on the connection until the returned value is dropped.
    #[must_use]
    pub fn registered(&self) -> RegisteredSession {
        self.0.sessions.fetch_add(1, Ordering::AcqRel);
        RegisteredSession(self.0.clone())
    }

    /// Restarts the time limit for the registration, because a new stream began.
    pub fn extend(&self) {
        self.0.extend();
    }

    /// Returns an error if the connection has ended. The task is woken when that happens.
    pub(super) fn check_deadline(&self, context: &Context<'_>) -> io::Result<()> {
        self.0.task.register(context.waker());
        if self.0.over.load(Ordering::Acquire) {
            Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the session is not allowed any more",
            ))
        } else {
            Ok(())
        }
    }
}

impl GuardState {
    pub(super) fn new(member: Option<MemberKey>) -> Self {
        Self {
            member,
            sessions: AtomicUsize::new(0),
            idle_until: LeafMutex::new(Instant::now() + IDLE_TIMEOUT),
            allowed: LeafMutex::default(),
            refused: AtomicBool::default(),
            over: AtomicBool::default(),
            task: AtomicWaker::new(),
        }
    }

    /// Returns the member and key of the peer.
    pub(super) fn member(&self) -> Option<&MemberKey> {
        self.member.as_ref()
    }

    /// Whether the connection has no registered session and has not ended.
    pub(super) fn is_idle(&self) -> bool {
        self.sessions.load(Ordering::Acquire) == 0 && !self.over.load(Ordering::Acquire)
    }

    /// Ends the connection.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.task.wake();
    }

    fn extend(&self) {
        *self.idle_until.lock() = Instant::now() + IDLE_TIMEOUT;
    }

    /// Checks the connection, and ends it if it is no longer allowed or idle for too long. Returns
    /// whether it was idle for too long.
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        let is_late = self.member.is_some() && self.is_idle() && *self.idle_until.lock() <= now;
        let allowed = self.allowed.lock().clone();
        let refused = allowed.is_some_and(|allowed| !allowed());
        if (self.refused.swap(refused, Ordering::Relaxed) && refused) || is_late {
            self.end();
        }
        is_late
    }
}
