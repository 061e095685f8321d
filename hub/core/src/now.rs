//! The time as an argument of pure code.
use std::time::Instant;

use jiff::Timestamp;

/// One moment by two clocks: the monotonic one decides, the wall clock is shown.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For durations.
    pub instant: Instant,
    /// For display.
    pub wall: Timestamp,
}
