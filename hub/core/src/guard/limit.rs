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
        Self::RULE
    }
}

/// More removals than this are never within a default limit, if they are more than half of the copies.
const FEW: u64 = 3;

impl Limit {
    /// No limit at all.
    pub const NONE: Limit = Limit::new(u64::MAX, 100);
    /// The limit of a rule that sets none.
    pub const RULE: Limit = Limit::new(10, 20);
    /// The limit of a member cluster, if the Fleet sets none.
    pub const MEMBER: Limit = Limit::new(25, 20);
    /// The limit of the fleet, if it sets none.
    pub const FLEET: Limit = Limit::new(50, 10);

    const fn new(count: u64, percent: u64) -> Self {
        Self { count, percent }
    }

    /// The limit of fields that may be absent. One that is absent limits nothing if the other one is there.
    pub fn of(count: Option<i64>, percent: Option<i64>, default: Limit) -> Self {
        let number = |value: Option<i64>| value.map_or(0, |value| value.try_into().unwrap_or(0));
        match (count, percent) {
            (None, None) => default,
            _ => Self::new(number(count), number(percent)),
        }
    }

    /// This limit, where nothing may be above `ceiling`.
    #[must_use]
    pub fn capped_at(self, ceiling: Limit) -> Self {
        Self {
            count: self.count.min(ceiling.count),
            percent: self.percent.min(ceiling.percent),
        }
    }

    /// Whether the limit allows this many removals; `all` is called only if the number does not
    /// suffice. A default limit allows no more than half of the copies. An earlier version stored the defaults with each
    /// object, so its numbers alone tell that a limit is a default.
    pub fn allows(self, copies: u64, all: impl FnOnce() -> u64) -> bool {
        let is_default = [Self::RULE, Self::MEMBER, Self::FLEET].contains(&self);
        if copies <= self.count && (copies <= FEW || !is_default) {
            return true;
        }
        let all = u128::from(all());
        let copies = u128::from(copies);
        let is_within =
            copies <= self.count.into() || copies * 100 <= all * u128::from(self.percent);
        is_within && !(is_default && copies > FEW.into() && copies * 2 > all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_limit_is_the_limit_and_a_default_one_spares_half() {
        let of = |count, percent| Limit::of(count, percent, Limit::MEMBER);
        assert_eq!(of(None, None), Limit::MEMBER);
        assert!(of(Some(5), None).allows(5, || 5) && !of(Some(5), None).allows(6, || 60));
        assert!(of(None, Some(50)).allows(5, || 10) && !of(None, Some(50)).allows(6, || 10));
        assert!(of(Some(5), Some(50)).allows(30, || 60));
        for limit in [Limit::RULE, Limit::MEMBER, Limit::FLEET] {
            assert!(limit.allows(3, || 3) && !limit.allows(4, || 7) && limit.allows(4, || 8));
            assert!(!limit.allows(10, || 10));
        }
    }

    #[test]
    fn larger_of_count_and_percent_counts_below_the_ceiling() {
        let limit = Limit::default();
        assert!(limit.allows(10, || 20) && !limit.allows(11, || 50));
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
