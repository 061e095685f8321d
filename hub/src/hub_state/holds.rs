//! Measures how long the lock of the index is held, because all other tasks of the hub wait for it.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::Histogram;

/// Bucket limits in seconds: from the usual time of an edit to the time at which a renewal of the
/// Lease would be late.
const BUCKETS: [f64; 8] = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Durations for which a lock was held.
#[derive(Debug)]
pub struct Holds {
    histogram: Histogram,
    /// In nanoseconds.
    longest: AtomicU64,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            histogram: Histogram::new(BUCKETS),
            longest: AtomicU64::new(0),
        }
    }
}

impl Holds {
    /// Starts a measurement, which ends when the returned guard is dropped.
    pub fn begin(&self) -> Hold<'_> {
        Hold {
            holds: self,
            since: Instant::now(),
        }
    }

    /// Returns the histogram of all durations.
    pub fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// Returns the longest duration since the start of the process.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}

/// Measures one lock until it is dropped.
pub struct Hold<'h> {
    holds: &'h Holds,
    since: Instant,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        self.holds.histogram.observe(took.as_secs_f64());
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.holds.longest.fetch_max(nanoseconds, Ordering::Relaxed);
    }
}
