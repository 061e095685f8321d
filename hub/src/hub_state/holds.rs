//! Measures how long the lock of the index was held, which delays everything else in the hub.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::Histogram;

/// From what an edit takes to what would cost the lead.
const BUCKETS: [f64; 8] = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// How long a lock was held.
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
    /// The lock is taken; it is held until what this returns is dropped.
    pub fn begin(&self) -> Hold<'_> {
        Hold {
            holds: self,
            since: Instant::now(),
        }
    }

    /// How long it was held, each time.
    pub fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// The longest that it was held since the start.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}

/// A lock that is held.
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
