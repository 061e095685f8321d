//! One line on standard error with the current step and its duration.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EVERY_ON_A_TERMINAL: Duration = Duration::from_secs(1);
const EVERY_IN_A_LOG: Duration = Duration::from_secs(15);

/// A line that is shown, with the seconds so far, until it is dropped.
///
/// It is written to standard error directly, so `cargo test` does not hide it.
#[derive(Debug)]
pub struct Progress {
    stop: Option<Sender<()>>,
    shown: Option<JoinHandle<()>>,
}

impl Progress {
    /// Shows `what` from now on: in place on a terminal, as a line every 15 s otherwise.
    #[must_use]
    pub fn start(what: &str) -> Self {
        let (stop, stopped) = mpsc::channel();
        let what = what.to_owned();
        let shown = std::thread::spawn(move || {
            let terminal = std::io::stderr().is_terminal();
            let every = if terminal {
                EVERY_ON_A_TERMINAL
            } else {
                EVERY_IN_A_LOG
            };
            let begin = Instant::now();
            show(&what, begin, terminal, false);
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                show(&what, begin, terminal, false);
            }
            show(&what, begin, terminal, true);
        });
        Self {
            stop: Some(stop),
            shown: Some(shown),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(shown) = self.shown.take() {
            let _ = shown.join();
        }
    }
}

fn show(what: &str, begin: Instant, terminal: bool, last: bool) {
    let before = if terminal { "\r" } else { "" };
    let after = if terminal && !last { "" } else { "\n" };
    let ended = if last { ", done" } else { "" };
    let seconds = begin.elapsed().as_secs();
    let mut out = std::io::stderr().lock();
    // A closed standard error is no reason to fail a test.
    let _ = write!(out, "{before}{what} ... {seconds} s{ended}{after}");
    let _ = out.flush();
}
