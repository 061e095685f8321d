//! Reads the memory and the processor time of a process from the system.

use std::time::Duration;

use anyhow::{Context, Result};

/// In which the system accounts for time.
const TICK: Duration = Duration::from_millis(10);
/// The interval between two readings of the processor time.
const SAMPLE: Duration = Duration::from_millis(500);
/// The readings in the time of two keepalives, which are 9 s apart.
const KEEPALIVES: usize = 36;

/// Resident memory of a process in bytes.
///
/// # Errors
/// When there is no such process.
pub fn resident(pid: u32) -> Result<f64> {
    memory(pid, "VmRSS:")
}

/// The most resident memory that a process had so far, in bytes.
///
/// # Errors
/// When there is no such process.
pub fn peak(pid: u32) -> Result<f64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, which: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    let line = line.with_context(|| format!("no {which} in /proc"))?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024.0)
}

/// Forgets the most resident memory that a process had: from now on [`peak`] begins with what it has.
///
/// # Errors
/// When the system refuses.
pub fn forget_peak(pid: u32) -> Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").with_context(|| {
        format!(
            "cannot reset the peak of {pid}: that needs root, as hub and agent forbid core dumps"
        )
    })
}

/// The time for which a process has computed, all its threads together, in nanoseconds' resolution. What threads have
/// computed that ended is known in hundredths of a second only: those of a runtime stay.
///
/// # Errors
/// When there is no such process.
pub fn computed(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the two readings.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        let first = text
            .split_whitespace()
            .next()
            .context("an empty schedstat")?;
        nanoseconds += first
            .parse::<u64>()
            .with_context(|| format!("an odd schedstat: {text}"))?;
    }
    Ok(Duration::from_nanos(nanoseconds).max(accounted(pid)?))
}

/// The same as the system accounts for it, threads that have ended included.
fn accounted(pid: u32) -> Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program is in parentheses, and may have any character.
    let (_, rest) = text.rsplit_once(')').context("an odd stat in /proc")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |place: usize| {
        fields
            .get(place)
            .and_then(|field| field.parse::<u64>().ok())
    };
    let (user, system) = ticks(11)
        .zip(ticks(12))
        .context("a stat without times in /proc")?;
    Ok(TICK * u32::try_from(user + system)?)
}

/// Waits until a process is idle, and returns its processor time by then. Very many connections
/// keep it busy all the time, a little and evenly, with their keepalives.
///
/// # Errors
/// When it does not become idle in time.
pub async fn at_rest(pid: u32) -> Result<Duration> {
    let mut before = computed(pid)?;
    let mut shares = Vec::new();
    for _ in 0..240 {
        tokio::time::sleep(SAMPLE).await;
        let now = computed(pid)?;
        shares.push(now.saturating_sub(before).as_secs_f64() / SAMPLE.as_secs_f64());
        if is_idle(&shares) {
            return Ok(now);
        }
        before = now;
    }
    let newest = shares.last().copied().unwrap_or_default() * 100.0;
    anyhow::bail!("the process {pid} does not come to rest: it computes {newest:.0} % of the time")
}

/// Whether these CPU shares, the newest last, are those of an idle process: less than 2 % twice, or
/// at most 20 % for three seconds without variation. Connections that were used at the same moment
/// have simultaneous keepalives: then equal sums over two keepalive intervals, below 20 %.
fn is_idle(shares: &[f64]) -> bool {
    let newest = |count: usize| shares.len().checked_sub(count).map(|from| &shares[from..]);
    let most = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max);
    let least = |shares: &[f64]| shares.iter().copied().fold(f64::MAX, f64::min);
    let is_idle = newest(2).is_some_and(|shares| most(shares) < 0.02);
    let is_even = newest(6)
        .is_some_and(|shares| most(shares) < 0.2 && most(shares) < 2.0 * least(shares) + 0.02);
    let is_periodic = newest(2 * KEEPALIVES).is_some_and(|shares| {
        let (before, now) = shares.split_at(KEEPALIVES);
        let mean = |shares: &[f64]| shares.iter().sum::<f64>() / KEEPALIVES as f64;
        let (before, now) = (mean(before), mean(now));
        now < 0.2 && (now - before).abs() < 0.1 * now + 0.01
    });
    is_idle || is_even || is_periodic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_idle_when_evenly_busy_a_little() {
        assert!(is_idle(&[0.9, 0.01, 0.01]) && !is_idle(&[0.01]) && !is_idle(&[0.9, 0.01]));
        assert!(is_idle(&[0.08, 0.1, 0.06, 0.07, 0.1, 0.09]));
        assert!(
            !is_idle(&[0.08, 0.1, 0.06, 0.07, 0.19, 0.09])
                && !is_idle(&[0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
        );
        let waves = |heights: [f64; 2]| {
            heights
                .map(|height| [height, 0.03, 0.03, 0.03].repeat(KEEPALIVES / 4))
                .concat()
        };
        assert!(
            is_idle(&waves([0.4, 0.4])) && !is_idle(&waves([0.6, 0.4])),
            "the second still calms down"
        );
        assert!(!is_idle(&waves([0.4, 0.4])[1..]), "too early to say");
    }

    #[test]
    fn time_of_an_ended_thread_counts() {
        let own = std::process::id();
        let before = computed(own).unwrap_or_default();
        let busy = std::thread::spawn(|| {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_millis(200) {
                std::hint::spin_loop();
            }
        });
        assert!(busy.join().is_ok());
        let after = computed(own).unwrap_or_default();
        assert!(
            after >= before + Duration::from_millis(50),
            "{before:?}, then {after:?}"
        );
    }

    #[test]
    fn process_reads_its_own_usage() {
        let own = std::process::id();
        assert!(
            resident(own).is_ok_and(|bytes| bytes > 1e5)
                && computed(own).is_ok_and(|time| !time.is_zero())
        );
    }
}
