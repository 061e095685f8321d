//! Computes the delay before the next try. The random part is an argument.
use std::time::Duration;

/// A doubling delay between two bounds.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first delay.
    pub base: Duration,
    /// The longest delay.
    pub limit: Duration,
}

/// Backoff for a copy that could not be written.
pub const COPY: Backoff = Backoff {
    base: Duration::from_secs(1),
    limit: Duration::from_secs(300),
};
/// Backoff for a contended copy.
pub const CONTENTION: Backoff = Backoff {
    base: Duration::from_secs(10),
    limit: Duration::from_secs(240),
};
/// Backoff for failures that may end without an event: missing permissions and dependencies.
pub const RECHECK: Backoff = Backoff {
    base: Duration::from_secs(5),
    limit: Duration::from_secs(30),
};
/// Intervals between reads of an object whose changes no watch shows.
pub const POLL: Backoff = Backoff {
    base: Duration::from_secs(30),
    limit: Duration::from_secs(300),
};
/// Backoff for an unavailable or overloaded API server; the copy itself may be fine.
pub const UNAVAILABLE: Backoff = Backoff {
    base: Duration::from_secs(1),
    limit: Duration::from_secs(30),
};
/// Backoff for connections to the hub.
pub const CONNECT: Backoff = Backoff {
    base: Duration::from_millis(500),
    limit: Duration::from_secs(10),
};

impl Backoff {
    /// Returns the longest delay after this many failures in a row (1 is the first).
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doubled = 1u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.base.saturating_mul(doubled).min(self.limit)
    }

    /// Returns a delay between half the ceiling and the ceiling. `random` is uniformly distributed
    /// over 0..1.
    pub fn jittered(&self, failures: u32, random: f64) -> Duration {
        self.ceiling(failures)
            .mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }

    /// Returns a delay between zero and the ceiling, so that a fleet does not reconnect in step.
    /// `random` is uniformly distributed over 0..1.
    pub fn full_jitter(&self, failures: u32, random: f64) -> Duration {
        self.ceiling(failures).mul_f64(random.clamp(0.0, 1.0))
    }
}

/// Returns the age at which a certificate is renewed: 40 % to 60 % of its lifetime, so that
/// clusters that joined together do not renew together. `random` is uniformly distributed over
/// 0..1.
pub fn renew_after(life: Duration, random: f64) -> Duration {
    life.mul_f64(0.4 + 0.2 * random.clamp(0.0, 1.0))
}

/// A small generator of random numbers for jitter; not for secrets.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Returns a generator. Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number, uniformly distributed over 0..1 (SplitMix64).
    pub fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        let seconds: Vec<u64> = (1..=10)
            .map(|failures| COPY.ceiling(failures).as_secs())
            .collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(COPY.ceiling(u32::MAX), COPY.limit);
    }

    proptest! {
        #[test]
        fn jitter_is_within_bounds(seed: u64, failures in 1u32..40) {
            let mut jitter = Jitter::new(seed);
            let (half, full) = (COPY.jittered(failures, jitter.draw()), COPY.full_jitter(failures, jitter.draw()));
            prop_assert!(half >= COPY.ceiling(failures) / 2 && half <= COPY.ceiling(failures));
            prop_assert!(full <= COPY.ceiling(failures));
        }

        #[test]
        fn a_fleet_that_joined_at_once_renews_over_a_fifth_of_the_life(seed: u64, hours in 1u64..1000) {
            let life = Duration::from_secs(hours * 3600);
            let mut jitter = Jitter::new(seed);
            let times: Vec<_> = (0..500).map(|_| renew_after(life, jitter.draw())).collect();
            let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
            prop_assert!(*first >= life.mul_f64(0.399) && *last <= life.mul_f64(0.601));
            // Each tenth of that period gets a similar number of renewals.
            for n in 0..10u32 {
                let (from, to) = (life.mul_f64(0.4 + 0.02 * f64::from(n)), life.mul_f64(0.42 + 0.02 * f64::from(n)));
                let busy = times.iter().filter(|time| **time >= from && **time < to).count();
                prop_assert!((15..=90).contains(&busy), "{busy} of 500 in part {n}");
            }
        }
    }
}
