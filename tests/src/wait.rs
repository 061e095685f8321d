//! The only ways to wait in a test: for a condition, with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::{memory, scratch};

const BETWEEN: Duration = Duration::from_millis(50);
/// How much slower a busy or small machine may be than those that the deadlines in tests are meant for. It costs only the
/// tests that fail.
const SLOWER: u32 = 3;

/// Calls `probe` every 50 ms until it returns `Some`, and returns that value.
/// The deadline is what an idle machine needs at most: three times as long is waited.
/// `None` means "not yet". An error means the same, and the last one is part of the message at the
/// deadline, so a probe should describe its observation. A probe that hangs is aborted at the
/// deadline.
///
/// # Errors
/// At the deadline, with the goal, the time and the last observation. The folders of this test run,
/// with their logs, are kept then.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let (begin, deadline) = (Instant::now(), deadline * SLOWER);
    let mut seen = anyhow!("the condition was never met");
    while let Some(left) = deadline.checked_sub(begin.elapsed()) {
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(Some(answer))) => return Ok(answer),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => seen = error,
            Err(_) => seen = seen.context("the last look at it did not return in time"),
        }
        tokio::time::sleep(BETWEEN.min(deadline.saturating_sub(begin.elapsed()))).await;
    }
    scratch::keep_everything();
    Err(timed_out(what, deadline, seen))
}

/// The error of a wait that ended at its deadline. It names the processes of this test run that the
/// kernel killed at their memory limit, which often are the cause.
#[must_use]
pub fn timed_out(what: &str, deadline: Duration, seen: anyhow::Error) -> anyhow::Error {
    let kills: String = memory::kills()
        .iter()
        .map(|kill| format!(" ({kill})"))
        .collect();
    seen.context(format!(
        "waited {deadline:?} in vain for {what}{kills}; seen last"
    ))
}

/// Checks every 50 ms, for the whole of `duration`, that `probe` returns without an error.
///
/// # Errors
/// The first error of `probe`, with the goal and the time. The folders of this test run, with their
/// logs, are kept then.
pub async fn steadily(
    what: &str,
    duration: Duration,
    mut probe: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let begin = Instant::now();
    loop {
        let checked = probe().await;
        if checked.is_err() {
            scratch::keep_everything();
        }
        checked.with_context(|| {
            format!(
                "{what}: true for {:?} of {duration:?} only",
                begin.elapsed()
            )
        })?;
        if begin.elapsed() >= duration {
            return Ok(());
        }
        tokio::time::sleep(BETWEEN).await;
    }
}
