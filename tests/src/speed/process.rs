//! What the system says of a process: its memory and the time that it computed.

use std::time::Duration;

use anyhow::{Context, Result};

/// Resident memory of a process in bytes.
///
/// # Errors
/// When there is no such process.
pub fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024.0)
}

/// The time for which a process has computed, all its threads together, in nanoseconds' resolution. Threads that have
/// ended are not counted: those of a runtime stay.
///
/// # Errors
/// When there is no such process.
pub fn computed(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the two looks.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let first = text.split_whitespace().next().context("an empty schedstat")?;
        nanoseconds += first.parse::<u64>().with_context(|| format!("an odd schedstat: {text}"))?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Waits until a process computes less than a fiftieth of the time, and returns what it has computed by then.
///
/// # Errors
/// When it does not come to rest within a minute, or has ended.
pub async fn at_rest(pid: u32) -> Result<Duration> {
    let mut before = computed(pid)?;
    let every = Duration::from_millis(500);
    for _ in 0..120 {
        tokio::time::sleep(every).await;
        let now = computed(pid)?;
        if now.saturating_sub(before) < every / 50 {
            return Ok(now);
        }
        before = now;
    }
    anyhow::bail!("the process {pid} does not come to rest")
}
