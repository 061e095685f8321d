//! The orderly end of a process.
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Time limit of the shutdown after the first signal.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// A second signal came: the caller ends the process at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ended at once by a second signal")]
pub struct Aborted;

/// SIGTERM and SIGINT, caught from now on.
pub struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Catches the signals: the first thing that a process does, so that none is missed.
    ///
    /// # Errors
    /// The system's, when a signal cannot be caught.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    /// Cancels `drain` at the first signal and returns at the second.
    pub async fn run(mut self, drain: CancellationToken) -> Aborted {
        let name = self.next().await;
        tracing::info!(signal = name, "ending; a second signal ends at once");
        drain.cancel();
        self.next().await;
        Aborted
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    #[tokio::test]
    async fn the_first_signal_drains_and_the_second_aborts() {
        let drain = CancellationToken::new();
        let mut run = std::pin::pin!(Signals::install().unwrap().run(drain.clone()));
        let kill = || {
            assert!(
                Command::new("kill")
                    .arg(id().to_string())
                    .status()
                    .unwrap()
                    .success()
            )
        };
        kill();
        let first = async {
            tokio::select! {
                _ = &mut run => panic!("aborted by the first signal"),
                () = drain.cancelled() => {}
            }
        };
        tokio::time::timeout(DRAIN_LIMIT, first).await.unwrap();
        kill();
        assert_eq!(tokio::time::timeout(DRAIN_LIMIT, run).await, Ok(Aborted));
    }
}
