//! The times of the election.
use std::time::Duration;

/// No lease of ours is longer; one that says so was not written by us.
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// Shorter ones cannot be written down: the Lease counts whole seconds.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// The times of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the others wait after they last saw the Lease change.
    pub lease: Duration,
    /// How long the holder leads without a renewal that succeeded.
    pub renew: Duration,
    /// How often the holder renews, and how long to wait after what failed.
    pub retry: Duration,
}

impl Timing {
    /// Checks that the times fit together.
    ///
    /// # Errors
    /// A sentence that names the flag and the cure.
    pub fn new(lease: Duration, renew: Duration, retry: Duration) -> Result<Self, String> {
        if lease < SHORTEST_LEASE || lease > LONGEST_LEASE {
            return Err(format!("--lease-duration is {lease:?}: give 1s to 60s"));
        }
        if renew >= lease {
            return Err(format!("--renew-deadline ({renew:?}) must be shorter than --lease-duration ({lease:?})"));
        }
        if retry.is_zero() || retry >= renew {
            return Err(format!(
                "--retry-period ({retry:?}) must be shorter than --renew-deadline ({renew:?}), and not 0"
            ));
        }
        Ok(Self { lease, renew, retry })
    }
}
