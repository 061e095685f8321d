//! The digest of a set of (source, revision) pairs.
use std::fmt;

use ring::digest;

use super::{Revision, SourceRef};

/// A digest of a set of (source, revision) pairs, independent of order, and updated by one pair at constant cost.
///
/// The sum modulo 2^128 of the first half of SHA-256 over each pair. Both ends are honest about their own set (a
/// member that lies harms only itself), so resistance to crafted collisions is not needed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SetDigest(u128);

impl SetDigest {
    /// The digest with this pair added.
    pub fn insert(&mut self, source: &SourceRef, revision: &Revision) {
        self.0 = self.0.wrapping_add(pair(source, revision));
    }

    /// The digest with this pair, which was in it, taken away.
    pub fn remove(&mut self, source: &SourceRef, revision: &Revision) {
        self.0 = self.0.wrapping_sub(pair(source, revision));
    }

    /// The digest of the union of two disjoint sets.
    pub fn merge(&mut self, other: SetDigest) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// The digest of a set without a part of it.
    pub fn subtract(&mut self, part: SetDigest) {
        self.0 = self.0.wrapping_sub(part.0);
    }

    /// Returns the bytes for the wire.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Reads what [`SetDigest::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
    }
}

impl<'a> FromIterator<(&'a SourceRef, &'a Revision)> for SetDigest {
    fn from_iter<I: IntoIterator<Item = (&'a SourceRef, &'a Revision)>>(pairs: I) -> Self {
        let mut whole = Self::default();
        for (source, revision) in pairs {
            whole.insert(source, revision);
        }
        whole
    }
}

fn pair(source: &SourceRef, revision: &Revision) -> u128 {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [&source.resource, &source.namespace, &source.name] {
        context.update(part.as_bytes());
        context.update(b"\0");
    }
    // A source that is not renamed counts as it did before there were renames.
    if source.is_renamed() {
        context.update(source.copy_name().as_bytes());
        context.update(b"\0");
    }
    context.update(&revision.0);
    let mut half = [0; 16];
    half.copy_from_slice(&context.finish().as_ref()[..16]);
    u128::from_be_bytes(half)
}

impl fmt::Display for SetDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl fmt::Debug for SetDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs() -> impl Strategy<Value = Vec<(SourceRef, Revision)>> {
        let one = ("[a-c]{1,2}", "[a-c]{1,2}", any::<[u8; 16]>());
        let set = proptest::collection::btree_map((one.0, one.1), one.2, 0..8);
        set.prop_map(|set| {
            set.into_iter()
                .map(|((ns, name), r)| (SourceRef::new("configmaps", &ns, &name), Revision(r)))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_removal_undoes_insertion(pairs in pairs()) {
            let forward: SetDigest = pairs.iter().map(|(s, r)| (s, r)).collect();
            let backward: SetDigest = pairs.iter().rev().map(|(s, r)| (s, r)).collect();
            prop_assert_eq!(forward, backward);
            let mut emptied = forward;
            for (source, revision) in &pairs {
                emptied.remove(source, revision);
            }
            prop_assert_eq!(emptied, SetDigest::default());
            prop_assert_eq!(SetDigest::from_bytes(&forward.to_bytes()), Some(forward));
        }
    }
}
