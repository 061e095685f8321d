//! Connections without a client certificate. Any client can open them, and a join takes only
//! seconds. So each has a short time limit, and above a maximum number the oldest one of the
//! largest group is closed.
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::accept_queue::Origin;

/// Limits of the number and the duration of connections.
pub(super) struct Anonymous {
    most: usize,
    lifetime: Duration,
    /// The oldest first. A connection that is dropped here ends.
    connections: VecDeque<(Origin, oneshot::Sender<()>)>,
}

impl Anonymous {
    pub(super) fn new(most: usize, life: Duration) -> Self {
        Self {
            most,
            lifetime: life,
            connections: VecDeque::new(),
        }
    }

    /// Adds a connection. Above the limit, the oldest one of the largest group is closed.
    pub(super) fn enter(&mut self, origin: Origin) -> ConnectionTimeout {
        self.connections.retain(|(_, stay)| !stay.is_closed());
        let (here, ended) = oneshot::channel();
        self.connections.push_back((origin, here));
        if self.connections.len() > self.most {
            tracing::debug!(
                "too many connections without a client certificate: the oldest of a crowd is closed"
            );
            let mut crowds: BTreeMap<Origin, usize> = BTreeMap::new();
            self.connections
                .iter()
                .for_each(|(origin, _)| *crowds.entry(*origin).or_default() += 1);
            let most = crowds.values().max();
            let oldest = self
                .connections
                .iter()
                .position(|(origin, _)| crowds.get(origin) == most);
            oldest.and_then(|oldest| self.connections.remove(oldest));
        }
        ConnectionTimeout {
            limit: Box::pin(sleep(self.lifetime)),
            ended,
            over: false,
        }
    }
}

/// The time limit of one connection.
pub(super) struct ConnectionTimeout {
    limit: Pin<Box<Sleep>>,
    ended: oneshot::Receiver<()>,
    over: bool,
}

impl ConnectionTimeout {
    /// Returns an error after the time limit; before, registers the task to be woken then.
    pub(super) fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.over = self.over
            || self.limit.as_mut().poll(context) == Poll::Ready(())
            || Pin::new(&mut self.ended).poll(context).is_ready();
        if self.over {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the connection showed no client certificate",
            ))
        } else {
            Ok(())
        }
    }
}
