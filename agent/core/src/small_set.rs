//! A set that usually has one member. An index of many such sets needs no tree for each.
use std::collections::BTreeSet;
use std::iter::{Chain, Flatten};
use std::{mem, option};

/// An ordered set that allocates nothing for a single member, and is a tree for several members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SmallSet<T> {
    /// At most one member.
    One(Option<T>),
    /// Two or more members.
    Many(BTreeSet<T>),
}

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        SmallSet::One(None)
    }
}

impl<T: Ord> SmallSet<T> {
    /// Adds a member.
    pub fn insert(&mut self, member: T) {
        match self {
            SmallSet::One(one) if one.as_ref().is_none_or(|one| *one == member) => {
                *one = Some(member)
            }
            SmallSet::One(one) => {
                *self = SmallSet::Many(one.take().into_iter().chain([member]).collect())
            }
            SmallSet::Many(many) => _ = many.insert(member),
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, member: &T) {
        match self {
            SmallSet::One(one) => _ = one.take_if(|one| one == member),
            SmallSet::Many(many) => {
                many.remove(member);
                if many.len() <= 1 {
                    *self = SmallSet::One(mem::take(many).pop_first());
                }
            }
        }
    }

    /// Whether the set contains a member.
    pub fn contains(&self, member: &T) -> bool {
        match self {
            SmallSet::One(one) => one.as_ref() == Some(member),
            SmallSet::Many(many) => many.contains(member),
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        matches!(self, SmallSet::One(None))
    }

    /// Iterates over all members, in order.
    pub fn iter(&self) -> Iter<'_, T> {
        self.into_iter()
    }
}

/// All members of a [`SmallSet`], in order.
pub type Iter<'a, T> = Chain<option::IntoIter<&'a T>, Flatten<option::IntoIter<&'a BTreeSet<T>>>>;

impl<'a, T> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many): (Option<&T>, Option<&BTreeSet<T>>) = match self {
            SmallSet::One(one) => (one.as_ref(), None),
            SmallSet::Many(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn small_set_equals_a_btree_set(steps in proptest::collection::vec((0u8..4, any::<bool>()), 0..40)) {
            let (mut few, mut set) = (SmallSet::default(), BTreeSet::new());
            for (member, inserts) in steps {
                if inserts {
                    few.insert(member);
                    set.insert(member);
                } else {
                    few.remove(&member);
                    set.remove(&member);
                }
                prop_assert!(few.iter().eq(&set));
                prop_assert_eq!(few.is_empty(), set.is_empty());
                prop_assert!((0..4).all(|member| few.contains(&member) == set.contains(&member)));
                prop_assert_eq!(matches!(few, SmallSet::Many(_)), set.len() > 1);
            }
        }
    }
}
