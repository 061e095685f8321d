//! Limits the deletions per hour, independent of the hub's orders. Pure: time is an argument.
//!
//! This is the last protection against a faulty or malicious hub. The limit is part of the member's
//! own policy, and no hub can raise it. Further deletions wait, and are reported with the reason
//! `DeleteLimit`.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use runnel_proto::model::Reason;

use crate::copy::CopyError;

/// The period of the limit.
const WINDOW: Duration = Duration::from_secs(3600);
/// The delay while every allowed deletion is still under way.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The deletions of the last hour.
#[derive(Default)]
pub struct Deletes {
    times: VecDeque<Instant>,
}

impl Deletes {
    /// Records a deletion.
    pub fn done(&mut self, now: Instant) {
        self.times.push_back(now);
    }

    /// Returns when the next copy may be deleted; `None` means at once. `under_way`: the number of
    /// deletions under way.
    pub fn not_before(&mut self, limit: usize, under_way: usize, now: Instant) -> Option<Instant> {
        while self
            .times
            .front()
            .is_some_and(|time| now.saturating_duration_since(*time) >= WINDOW)
        {
            self.times.pop_front();
        }
        if self.times.len() + under_way < limit {
            return None;
        }
        // The time at which enough recorded deletions have expired.
        let last = (self.times.len() + under_way - limit).min(self.times.len().saturating_sub(1));
        Some(
            self.times
                .get(last)
                .map_or(now + RETRY_DELAY, |time| *time + WINDOW),
        )
    }
}

/// Returns the error of a deletion that waits for the limit.
pub fn waits(limit: usize) -> CopyError {
    let text = format!(
        "this cluster has deleted {limit} copies within an hour, as many as its own policy allows (deletesPerHour): the \
         others wait; raise it there if they are meant to go"
    );
    CopyError::new(Reason::DeleteLimit, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_deletes_wait_until_the_oldest_is_an_hour_old() {
        let (mut deletes, begin) = (Deletes::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(deletes.not_before(2, 1, at(0)), None);
        assert_eq!(deletes.not_before(2, 2, at(0)), Some(at(1)));
        deletes.done(at(0));
        deletes.done(at(10));
        assert_eq!(deletes.not_before(2, 0, at(20)), Some(at(3600)));
        assert_eq!(deletes.not_before(2, 1, at(20)), Some(at(3610)));
        assert_eq!(deletes.not_before(3, 0, at(20)), None);
        assert_eq!(deletes.not_before(2, 0, at(3600)), None);
        assert_eq!(deletes.not_before(2, 1, at(3600)), Some(at(3610)));
    }
}
