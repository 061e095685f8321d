//! Rate limits of peers: a burst, then a rate. Pure.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A burst of items at once, and one more in each `every`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The burst.
    pub burst: u32,
    /// The interval of one more item.
    pub every: Duration,
}

/// The usage of one peer.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    rate: Rate,
    /// The time at which the usage so far is compensated.
    paid_at: Option<Instant>,
}

impl RateLimit {
    /// A limit of which nothing is used.
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            paid_at: None,
        }
    }

    /// Counts items, whether there is room for them or not.
    pub fn consume(&mut self, items: u32, now: Instant) {
        let from = self.paid_at.map_or(now, |paid| paid.max(now));
        self.paid_at = from.checked_add(self.rate.every.saturating_mul(items));
    }

    /// Returns when the next item is allowed; `None`: now.
    pub fn room_at(&self, now: Instant) -> Option<Instant> {
        let spare = self
            .rate
            .every
            .saturating_mul(self.rate.burst.saturating_sub(1));
        self.paid_at?.checked_sub(spare).filter(|at| *at > now)
    }

    /// Counts one item, if there is room for it.
    pub fn take(&mut self, now: Instant) -> bool {
        let has_room = self.room_at(now).is_none();
        if has_room {
            self.consume(1, now);
        }
        has_room
    }
}

/// The limits of many peers, at most `LIMIT` of them: when more than that are busy, all begin again.
#[derive(Debug)]
pub struct RateLimits<K> {
    rate: Rate,
    known: BTreeMap<K, RateLimit>,
}

/// Number of distinguished peers.
const LIMIT: usize = 16_384;

impl<K: Ord + Clone> RateLimits<K> {
    /// Limits of which nothing is used.
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            known: BTreeMap::new(),
        }
    }

    /// Counts one item of a peer, if there is room for it.
    pub fn take(&mut self, peer: &K, now: Instant) -> bool {
        if !self.known.contains_key(peer) && self.known.len() >= LIMIT {
            self.known
                .retain(|_, limit| limit.paid_at.is_some_and(|paid| paid > now));
            if self.known.len() >= LIMIT {
                self.known.clear();
            }
        }
        self.known
            .entry(peer.clone())
            .or_insert_with(|| RateLimit::new(self.rate))
            .take(now)
    }

    /// Whether there is room for one more item of a peer.
    pub fn has_room(&self, peer: &K, now: Instant) -> bool {
        self.known
            .get(peer)
            .is_none_or(|limit| limit.room_at(now).is_none())
    }
}

/// Log lines about many peers.
#[derive(Debug)]
pub struct LogLimits<K> {
    limits: RateLimits<K>,
    skipped: BTreeMap<K, u64>,
}

impl<K: Ord + Clone> LogLimits<K> {
    /// Limits of which nothing is used.
    pub fn new(rate: Rate) -> Self {
        Self {
            limits: RateLimits::new(rate),
            skipped: BTreeMap::new(),
        }
    }

    /// Whether a line about a peer may be written: then how many were not written since the last one.
    pub fn line(&mut self, peer: &K, now: Instant) -> Option<u64> {
        if self.limits.take(peer, now) {
            return Some(self.skipped.remove(peer).unwrap_or_default());
        }
        if self.skipped.contains_key(peer) || self.skipped.len() < LIMIT {
            *self.skipped.entry(peer.clone()).or_default() += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate {
        burst: 3,
        every: Duration::from_secs(1),
    };

    #[test]
    fn burst_is_taken_at_once_and_the_rest_at_the_rate() {
        let (mut limit, start) = (RateLimit::new(RATE), Instant::now());
        let taken = |limit: &mut RateLimit, at: u64| limit.take(start + Duration::from_millis(at));
        assert_eq!(
            [0, 0, 0, 0].map(|at| taken(&mut limit, at)),
            [true, true, true, false]
        );
        assert_eq!(limit.room_at(start), Some(start + Duration::from_secs(1)));
        assert_eq!(
            [999, 1000, 1001, 2000].map(|at| taken(&mut limit, at)),
            [false, true, false, true]
        );
        // Idle for long, it has its burst again and no more.
        assert_eq!(
            [60_000; 4].map(|at| taken(&mut limit, at)),
            [true, true, true, false]
        );
    }

    #[test]
    fn skipped_lines_are_counted_with_the_next() {
        let (mut lines, start) = (LogLimits::new(RATE), Instant::now());
        let message: Vec<_> = (0..5).map(|_| lines.line(&"a", start)).collect();
        assert_eq!(message, [Some(0), Some(0), Some(0), None, None]);
        assert_eq!(lines.line(&"b", start), Some(0), "each peer has its own");
        assert_eq!(lines.line(&"a", start + Duration::from_secs(1)), Some(2));
    }

    #[test]
    fn distinguished_peers_are_bounded() {
        let (mut limits, start) = (RateLimits::new(RATE), Instant::now());
        for peer in 0..3 * LIMIT {
            assert!(limits.take(&peer, start));
        }
        assert!(limits.known.len() <= LIMIT);
    }

    proptest! {
        #[test]
        fn no_more_than_burst_and_rate_is_taken(steps in prop::collection::vec(0u64..3000, 1..60)) {
            let (mut limit, start) = (RateLimit::new(RATE), Instant::now());
            let (mut at, mut taken) = (0, 0);
            for step in steps {
                at += step;
                taken += u64::from(limit.take(start + Duration::from_millis(at)));
                prop_assert!(taken <= 3 + at / 1000);
            }
        }
    }
}
