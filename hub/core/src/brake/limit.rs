//! How much may be removed indirectly at a time.
use std::collections::VecDeque;
use std::time::Instant;

use super::WINDOW;

/// How many copies may go at a time: the larger of a number and a part of all copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// This many copies.
    pub count: u64,
    /// This part of all copies of the rule, in percent.
    pub percent: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Self { count: 10, percent: 20 }
    }
}

impl Limit {
    /// No limit at all.
    pub const NONE: Limit = Limit { count: u64::MAX, percent: 100 };

    /// This limit, where nothing may be above `ceiling`.
    pub fn under(self, ceiling: Limit) -> Self {
        Self { count: self.count.min(ceiling.count), percent: self.percent.min(ceiling.percent) }
    }

    /// Whether so many copies of all may go.
    pub fn allows(self, copies: u64, all: u64) -> bool {
        let part = u64::try_from(u128::from(all) * u128::from(self.percent) / 100).unwrap_or(u64::MAX);
        copies <= self.count.max(part)
    }
}

/// What passed without a release, within [`WINDOW`].
#[derive(Clone, Default)]
pub struct Spent(VecDeque<(Instant, u64)>);

impl Spent {
    /// Whether so many of all may pass besides.
    pub fn allows(&mut self, limit: Limit, copies: u64, all: u64, now: Instant) -> bool {
        while self.0.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
        let spent = self.0.iter().map(|(_, copies)| copies).fold(0, |sum: u64, copies| sum.saturating_add(*copies));
        limit.allows(spent.saturating_add(copies), all)
    }

    /// So many pass.
    pub fn add(&mut self, copies: u64, now: Instant) {
        if copies > 0 {
            self.0.push_back((now, copies));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_of_count_and_percent_counts_below_the_ceiling() {
        let limit = Limit::default();
        assert!(limit.allows(10, 10) && !limit.allows(11, 50));
        assert!(limit.allows(200, 1000) && !limit.allows(201, 1000));
        let generous = Limit { count: 500, percent: 100 };
        assert!(generous.allows(1000, 1000));
        let capped = generous.under(Limit { count: 20, percent: 5 });
        assert!(capped.allows(50, 1000) && !capped.allows(51, 1000));
        assert!(Limit::NONE.allows(u64::MAX, 0));
        assert!(Limit { count: 0, percent: 0 }.allows(0, 9) && !Limit { count: 0, percent: 0 }.allows(1, 9));
    }
}
