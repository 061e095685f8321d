//! The order of clusters in a rollout.
use std::cmp::Ordering;

use runnel_proto::model::ClusterName;

/// The position of a cluster: by the value of the label in natural order (`2` before `10`),
/// clusters without the label last; then by name in natural order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutPosition {
    /// The value of the label that orders; none where the cluster has none, or nothing orders.
    pub value: Option<String>,
    /// The cluster.
    pub cluster: ClusterName,
}

impl Ord for RolloutPosition {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_value = match (&self.value, &other.value) {
            (Some(one), Some(two)) => natural(one, two),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        };
        by_value.then_with(|| natural(self.cluster.as_str(), other.cluster.as_str()))
    }
}

impl PartialOrd for RolloutPosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares runs of digits as numbers, and all other characters byte by byte. Texts that differ
/// only in leading zeros compare as plain texts.
fn natural(one: &str, two: &str) -> Ordering {
    let (mut left, mut right) = (one.as_bytes(), two.as_bytes());
    while let (Some(a), Some(b)) = (left.first(), right.first()) {
        let ordering = match (a.is_ascii_digit(), b.is_ascii_digit()) {
            (true, true) => {
                let (number, rest) = take_number(left);
                let (other, other_rest) = take_number(right);
                (left, right) = (rest, other_rest);
                number
                    .len()
                    .cmp(&other.len())
                    .then_with(|| number.cmp(other))
            }
            _ => {
                let ordering = a.cmp(b);
                (left, right) = (&left[1..], &right[1..]);
                ordering
            }
        };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
    left.len().cmp(&right.len()).then_with(|| one.cmp(two))
}

/// The digits at the beginning, without leading zeros, and what follows.
fn take_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    (&digits[zeros..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turn(value: Option<&str>, cluster: &str) -> RolloutPosition {
        RolloutPosition {
            value: value.map(ToOwned::to_owned),
            cluster: cluster.into(),
        }
    }

    #[test]
    fn order_is_natural_with_unlabeled_clusters_last() {
        let order = [
            turn(Some(""), "z"),
            turn(Some("1"), "b"),
            turn(Some("2"), "eu-2"),
            turn(Some("2"), "eu-10"),
            turn(Some("10"), "a"),
            turn(Some("canary"), "a"),
            turn(Some("tier-9"), "a"),
            turn(Some("tier-10"), "a"),
            turn(None, "a"),
            turn(None, "b"),
        ];
        let mut sorted = order.to_vec();
        sorted.reverse();
        sorted.sort();
        assert_eq!(sorted, order);
        assert!(turn(Some("01"), "a") < turn(Some("1"), "a"));
    }

    proptest! {
        #[test]
        fn rollout_order_is_total(texts in proptest::collection::vec("[0-9a-b-]{0,4}", 3)) {
            let (a, b, c) = (texts[0].as_str(), texts[1].as_str(), texts[2].as_str());
            prop_assert_eq!(natural(a, b), natural(b, a).reverse());
            prop_assert_eq!(natural(a, b) == Ordering::Equal, a == b);
            if natural(a, b) == Ordering::Less && natural(b, c) == Ordering::Less {
                prop_assert_eq!(natural(a, c), Ordering::Less);
            }
        }
    }
}
