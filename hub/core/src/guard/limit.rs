//! The limit of indirect removals at a time.

/// The limit of removals at a time: the larger of a number and a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Number of copies.
    pub count: u64,
    /// This part of all copies, in percent.
    pub percent: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            count: 10,
            percent: 20,
        }
    }
}

impl Limit {
    /// No limit at all.
    pub const NONE: Limit = Limit {
        count: u64::MAX,
        percent: 100,
    };

    /// This limit, where nothing may be above `ceiling`.
    #[must_use]
    pub fn capped_at(self, ceiling: Limit) -> Self {
        Self {
            count: self.count.min(ceiling.count),
            percent: self.percent.min(ceiling.percent),
        }
    }

    /// Whether the limit allows this many removals; `all` is called only if the number does not
    /// suffice.
    pub fn allows(self, copies: u64, all: impl FnOnce() -> u64) -> bool {
        let part = || {
            u64::try_from(u128::from(all()) * u128::from(self.percent) / 100).unwrap_or(u64::MAX)
        };
        copies <= self.count || copies <= part()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_of_count_and_percent_counts_below_the_ceiling() {
        let limit = Limit::default();
        assert!(limit.allows(10, || 10) && !limit.allows(11, || 50));
        assert!(limit.allows(200, || 1000) && !limit.allows(201, || 1000));
        let generous = Limit {
            count: 500,
            percent: 100,
        };
        assert!(generous.allows(1000, || 1000));
        let capped = generous.capped_at(Limit {
            count: 20,
            percent: 5,
        });
        assert!(capped.allows(50, || 1000) && !capped.allows(51, || 1000));
        assert!(
            Limit {
                count: 0,
                percent: 0
            }
            .allows(0, || 9)
                && !Limit {
                    count: 0,
                    percent: 0
                }
                .allows(1, || 9)
        );
    }
}
