//! The times of the election.
use std::time::Duration;

/// No Lease of Runnel is longer. A longer one was written by another program.
pub const LONGEST_LEASE: Duration = Duration::from_secs(120);
/// Shorter ones cannot be written down: the Lease counts whole seconds.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Why the times of the election do not fit together: the flag, and what to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The lease is shorter than [`SHORTEST_LEASE`] or longer than [`LONGEST_LEASE`].
    #[error("--lease-duration is {0:?}: give 1s to 60s")]
    Lease(Duration),
    /// The holder would lead for longer than the others wait.
    #[error("--renew-deadline ({renew:?}) must be shorter than --lease-duration ({lease:?})")]
    Renew {
        /// The renew deadline.
        renew: Duration,
        /// The lease duration.
        lease: Duration,
    },
    /// The holder would not try a renewal before its deadline.
    #[error(
        "--retry-period ({retry:?}) must be shorter than --renew-deadline ({renew:?}), and not 0"
    )]
    Retry {
        /// The retry period.
        retry: Duration,
        /// The renew deadline.
        renew: Duration,
    },
}

/// The times of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The time that other candidates wait after the last change of the Lease.
    pub lease: Duration,
    /// The time that the holder leads without a successful renewal.
    pub renew: Duration,
    /// The interval of renewals.
    pub interval: Duration,
    /// The interval of retries after a failure.
    pub retry: Duration,
}

impl Timing {
    /// Checks that the times fit together. Renewals are as frequent as retries.
    ///
    /// # Errors
    /// [`TimingError`], which names the flag.
    pub fn new(lease: Duration, renew: Duration, retry: Duration) -> Result<Self, TimingError> {
        if lease < SHORTEST_LEASE || lease > LONGEST_LEASE {
            return Err(TimingError::Lease(lease));
        }
        if renew >= lease {
            return Err(TimingError::Renew { renew, lease });
        }
        if retry.is_zero() || retry >= renew {
            return Err(TimingError::Retry { retry, renew });
        }
        Ok(Self {
            lease,
            renew,
            interval: retry,
            retry,
        })
    }
}
