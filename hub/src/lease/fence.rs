//! The fence around every connection of an agent: not one byte is written when the right to lead is over.
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use runnel_proto::tls::{Connection, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::transport::server::Connected;

use super::Lead;
use crate::shared::Shared;

/// How often a connection looks whether its session is still allowed. The second look in a row that finds that it is not
/// ends it, so the session's own last word has the time between the two.
const LOOK: Duration = Duration::from_secs(1);

type Allowed = Arc<dyn Fn() -> bool + Send + Sync>;

/// By which the sessions on a connection hold it. A stream whose peer gives it no window is not asked for frames, and so
/// cannot end itself: the connection ends under it then, with all that was handed over and waits for the window.
#[derive(Clone, Default)]
pub struct Leash(Arc<Tie>);

#[derive(Default)]
struct Tie {
    allowed: Mutex<Option<Allowed>>,
    /// What the last look found.
    refused: AtomicBool,
    over: AtomicBool,
    /// The connection's task.
    task: AtomicWaker,
}

impl Leash {
    /// From now on the connection lasts only while this is so.
    pub fn hold(&self, allowed: impl Fn() -> bool + Send + Sync + 'static) {
        *self.0.allowed.lock() = Some(Arc::new(allowed));
    }

    /// An error when the connection is over. The task is woken when it is.
    fn go_on(&self, context: &Context<'_>) -> io::Result<()> {
        self.0.task.register(context.waker());
        match self.0.over.load(Ordering::Acquire) {
            true => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the session is not allowed any more")),
            false => Ok(()),
        }
    }
}

impl Tie {
    fn look(&self) {
        let allowed = self.allowed.lock().clone();
        let refused = allowed.is_some_and(|allowed| !allowed());
        if self.refused.swap(refused, Ordering::Relaxed) && refused {
            self.over.store(true, Ordering::Release);
            self.task.wake();
        }
    }
}

/// The leashes of all connections. One look goes over all of them: connections that were woken for it one by one would
/// cost more than all that they are sent.
#[derive(Clone, Default)]
pub struct Leashes(Arc<Mutex<Vec<Weak<Tie>>>>);

impl Leashes {
    fn leash(&self) -> Leash {
        let leash = Leash::default();
        self.0.lock().push(Arc::downgrade(&leash.0));
        leash
    }

    /// Looks after them for ever.
    pub async fn watch(&self) -> Infallible {
        self.watch_every(LOOK).await
    }

    async fn watch_every(&self, every: Duration) -> Infallible {
        let mut look = interval_at(Instant::now() + every, every);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            for tie in self.held() {
                tie.look();
            }
        }
    }

    fn held(&self) -> Vec<Arc<Tie>> {
        let mut held = Vec::new();
        self.0.lock().retain(|tie| {
            let tie = tie.upgrade();
            let is_held = tie.is_some();
            held.extend(tie);
            is_held
        });
        held
    }
}

/// Who is at the other end of a connection, and its leash. It is an extension of every request of the connection.
#[derive(Clone)]
pub struct Caller {
    /// Who.
    pub peer: Peer,
    /// Ends the connection.
    pub leash: Leash,
}

/// A connection that belongs to one right to lead and ends with it. The clock is looked at before each write, so what
/// lay in buffers while the process was paused goes nowhere.
pub struct Fenced {
    connection: Connection,
    lead: Lead,
    shared: Arc<Shared>,
    leash: Leash,
}

/// The connections that were made while this process leads, each on one of these leashes.
pub fn fenced(
    connections: impl Stream<Item = io::Result<Connection>> + Send,
    shared: Arc<Shared>,
    leashes: Leashes,
) -> impl Stream<Item = io::Result<Fenced>> + Send {
    connections.filter_map(move |connection| {
        let (shared, lead) = (shared.clone(), shared.current_lead());
        let leash = leashes.leash();
        async move { lead.map(|lead| connection.map(|connection| Fenced { connection, lead, shared, leash })) }
    })
}

impl Fenced {
    fn check(&self) -> io::Result<()> {
        match self.shared.holds(&self.lead) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::BrokenPipe, "this replica does not lead any more")),
        }
    }
}

impl Connected for Fenced {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller { peer: self.connection.connect_info(), leash: self.leash.clone() }
    }
}

impl AsyncRead for Fenced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.leash.go_on(context)?;
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Fenced {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        self.leash.go_on(context)?;
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        self.leash.go_on(context)?;
        Pin::new(&mut self.connection).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        self.leash.go_on(context)?;
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_connection_ends_with_the_leave_of_its_session_though_nobody_asks_for_frames() {
        let (look, some_looks) = (Duration::from_millis(50), Duration::from_millis(300));
        let leashes = Leashes::default();
        let leash = leashes.leash();
        let held = leash.clone();
        let over = std::future::poll_fn(move |context| match held.go_on(context) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        });
        let over = async {
            tokio::select! {
                error = over => error,
                never = leashes.watch_every(look) => match never {},
            }
        };
        let mut over = Box::pin(over);
        // Without a session, and with one that is allowed.
        assert!(timeout(some_looks, &mut over).await.is_err());
        let allowed = Arc::new(AtomicBool::new(true));
        let asked = allowed.clone();
        leash.hold(move || asked.load(Ordering::Relaxed));
        assert!(timeout(some_looks, &mut over).await.is_err());
        allowed.store(false, Ordering::Relaxed);
        let began = Instant::now();
        timeout(Duration::from_secs(20), &mut over).await.expect("the end of the connection");
        assert!(began.elapsed() >= look, "no time for a last word");
        drop((leash, over));
        assert!(leashes.held().is_empty(), "a connection that is gone is looked after");
    }
}
