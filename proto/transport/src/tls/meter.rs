//! Detects dead connections by the bytes that move, not by timely answers. On a slow link a ping
//! waits behind earlier data, perhaps for minutes, although the peer is alive.
//!
//! Both ends send HTTP/2 pings, so a connection without incoming data for [`Metered`]'s silence is
//! dead. On a link that is slow in one direction, the pings wait there. An end that receives much
//! and sends nothing owes a sign of life ([`Meter::needs_ping`]), and sends an empty frame.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

/// An end that has received more than this since it last sent anything must send a ping. Pings and
/// their answers are less.
const PING_BYTES: u64 = 512;
/// And that has sent nothing for this long. The limit of the other end is more than three times as
/// long.
const PING_AFTER: Duration = Duration::from_secs(5);

/// The traffic of the newest connection of a connector, or of one connection of a hub.
#[derive(Debug)]
pub struct Meter {
    start: Instant,
    /// Bytes received since something was last sent.
    received: AtomicU64,
    /// The time of the last sent data, in milliseconds since the start.
    sent_at: AtomicU64,
    needs_ping: Notify,
}

impl Default for Meter {
    fn default() -> Self {
        let (received, sent_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            start: Instant::now(),
            received,
            sent_at,
            needs_ping: Notify::new(),
        }
    }
}

impl Meter {
    /// Completes when this end must send a ping.
    pub async fn needs_ping(&self) {
        self.needs_ping.notified().await;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn sent(&self, now: u64) {
        self.received.store(0, Ordering::Relaxed);
        self.sent_at.store(now, Ordering::Relaxed);
    }

    /// Returns whether a sign of life is owed now.
    fn received(&self, bytes: usize, now: u64) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let received = self
            .received
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        let silent =
            Duration::from_millis(now.saturating_sub(self.sent_at.load(Ordering::Relaxed)));
        let needs_ping = received > PING_BYTES && silent >= PING_AFTER;
        if needs_ping {
            self.sent(now);
            self.needs_ping.notify_one();
        }
        needs_ping
    }
}

/// The time of the last activity.
#[derive(Debug)]
struct Activity {
    /// The time of the last received data, or of the last progress of blocked data.
    moved_at: Instant,
    /// Data waits to be sent, because the peer does not accept earlier data.
    blocked: bool,
}

impl Activity {
    /// Records received data.
    fn read(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// Records sent data. Only progress after a wait proves that the peer receives: the kernel
    /// buffers a lot.
    fn wrote(&mut self, now: Instant) {
        if std::mem::take(&mut self.blocked) {
            self.moved_at = now;
        }
    }
}

/// A connection that ends when nothing has moved for a while.
#[derive(Debug)]
pub struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
    silence: Duration,
    flow: Activity,
    deadline: Pin<Box<Sleep>>,
}

impl<S> Metered<S> {
    /// Ends `stream` when no bytes have moved for `silence`, and counts on `meter`.
    pub fn new(stream: S, meter: Arc<Meter>, silence: Duration) -> Self {
        meter.sent(meter.now());
        let flow = Activity {
            moved_at: Instant::now(),
            blocked: false,
        };
        Self {
            stream,
            meter,
            silence,
            flow,
            deadline: Box::pin(sleep(silence)),
        }
    }

    /// The connection itself.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Checks a waiting stream: an error after a time without activity. Registers the task to be
    /// woken then.
    fn wait(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.deadline.as_mut().poll(context).is_ready() {
            let end = self.flow.moved_at + self.silence;
            if end <= Instant::now() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "nothing was received from the other end for too long",
                ));
            }
            self.deadline.as_mut().reset(end);
        }
        Ok(())
    }

    /// Records the result of a write.
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match done {
            Poll::Ready(Ok(bytes)) if bytes > 0 => {
                self.flow.wrote(Instant::now());
                self.meter.sent(self.meter.now());
            }
            Poll::Pending => {
                self.flow.blocked = true;
                self.wait(context)?;
            }
            Poll::Ready(_) => {}
        }
        done
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let done = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len().saturating_sub(before);
        if bytes > 0 {
            let now = Instant::now();
            self.flow.read(now);
            self.meter.received(bytes, self.meter.now());
            // Updated only while the task is awake, so that a live connection is never woken by it.
            if self.deadline.deadline() < now + self.silence / 2 {
                let end = now + self.silence;
                self.deadline.as_mut().reset(end);
            }
        }
        if done.is_pending() {
            self.wait(context)?;
        }
        done
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn flow_counts_reads_and_writes_that_had_to_wait() {
        let start = Instant::now();
        let mut flow = Activity {
            moved_at: start,
            blocked: false,
        };
        // Data that the kernel accepts at once proves nothing.
        flow.wrote(start + second(5));
        assert_eq!(flow.moved_at, start);
        flow.read(start + second(7));
        assert_eq!(flow.moved_at, start + second(7));
        flow.blocked = true;
        flow.wrote(start + second(20));
        flow.wrote(start + second(30));
        assert_eq!(flow.moved_at, start + second(20));
    }

    #[test]
    fn silent_receiver_sends_a_ping() {
        let meter = Meter::default();
        // 1 KB a second for a minute.
        let owed = (1..=60)
            .filter(|second| meter.received(1000, second * 1000))
            .count();
        assert_eq!(owed, 12);
        // An end that answers needs no ping.
        for second in 61..120 {
            assert!(!meter.received(1000, second * 1000));
            meter.sent(second * 1000);
        }
        // Nor does an end that only receives pings, each of which it answers.
        for second in (120..300).step_by(9) {
            assert!(!meter.received(64, second * 1000));
            meter.sent(second * 1000);
        }
        // A little data after a long pause needs no ping either.
        assert!(!meter.received(64, 900_000));
    }

    #[tokio::test]
    async fn silent_connection_ends() {
        let (near, mut far) = duplex(64);
        let mut near = Metered::new(near, Arc::default(), SHORT);
        far.write_all(b"x").await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), b'x');
        let begun = Instant::now();
        assert_eq!(
            near.read_u8().await.unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        assert!(begun.elapsed() >= SHORT / 2, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn connection_whose_writes_are_not_taken_ends() {
        let (near, _far) = duplex(64);
        let mut near = Metered::new(near, Arc::default(), SHORT);
        assert_eq!(
            near.write_all(&[0; 640]).await.unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
    }

    #[tokio::test]
    async fn connection_lives_as_long_as_bytes_move() {
        let (near, mut far) = duplex(64);
        let mut near = Metered::new(near, Arc::default(), 20 * SHORT);
        let begun = Instant::now();
        // Longer than the limit, in steps that are far shorter.
        let slow = async {
            while begun.elapsed() < 30 * SHORT {
                tokio::time::sleep(SHORT).await;
                far.write_all(b"x").await.unwrap();
            }
            drop(far);
        };
        let mut all = Vec::new();
        let (read, ()) = tokio::join!(near.read_to_end(&mut all), slow);
        assert!(read.is_ok() && !all.is_empty());
    }
}
