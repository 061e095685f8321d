//! The expected proof of agents that have applied all of a plan: one sum for each kind, updated
//! with the plan, so that a report costs one comparison, independent of the number of sources; and
//! one keyed digest for all clusters that get all of it.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use runnel_proto::model::{
    ContentDigest, FieldPath, LiveDigest, Proof, ProofKey, RuleUid, SourceRef, Terms,
};

use super::SourceContent;

/// Number of cached digests of one content, by ignored fields.
const CACHED_DIGESTS: usize = 4;

/// The digests of one content by ignored fields. Plans change under the index lock and share
/// contents, so each content is decoded once per set of ignored fields, for up to four sets.
#[derive(Default)]
pub(crate) struct IgnoredFieldDigests(Mutex<Vec<CachedDigest>>);

type CachedDigest = (Arc<BTreeSet<FieldPath>>, ContentDigest);

impl IgnoredFieldDigests {
    /// Returns the digest without these fields. A failed computation is not cached.
    pub(super) fn get(
        &self,
        ignored: &Arc<BTreeSet<FieldPath>>,
        compute: impl FnOnce() -> Option<ContentDigest>,
    ) -> Option<ContentDigest> {
        let mut kept = self.0.lock();
        if let Some((_, digest)) = kept
            .iter()
            .find(|(fields, _)| Arc::ptr_eq(fields, ignored) || fields == ignored)
        {
            return Some(*digest);
        }
        let digest = compute()?;
        if kept.len() >= CACHED_DIGESTS {
            kept.remove(0);
        }
        kept.push((ignored.clone(), digest));
        Some(digest)
    }
}

/// The sums of one plan.
#[derive(Clone, Default)]
pub(super) struct Expected {
    kinds: BTreeMap<Arc<str>, LiveDigest>,
    /// The ignored fields of the rule.
    ignored: Arc<BTreeSet<FieldPath>>,
    /// Intents without a digest of their content.
    unknown: usize,
    /// The proof of all kinds together, computed at the first use after a change.
    total: OnceLock<Proof>,
}

impl Expected {
    /// Creates empty sums, with these ignored fields.
    pub(super) fn with_ignored(ignored: &BTreeSet<FieldPath>) -> Self {
        Self {
            ignored: Arc::new(ignored.clone()),
            ..Self::default()
        }
    }

    /// Creates empty sums with the same ignored fields.
    pub(super) fn emptied(&self) -> Self {
        Self {
            ignored: self.ignored.clone(),
            ..Self::default()
        }
    }

    /// Whether both ignore the same fields.
    pub(super) fn is_like(&self, other: &Expected) -> bool {
        self.ignored == other.ignored
    }

    pub(super) fn put_in(&mut self, intent: &SourceRef, content: &SourceContent) {
        self.total = OnceLock::new();
        match content.digest_without(&self.ignored) {
            Some(digest) => self
                .kinds
                .entry(intent.resource.clone())
                .or_default()
                .insert(intent, digest),
            None => self.unknown += 1,
        }
    }

    pub(super) fn remove(&mut self, intent: &SourceRef, content: &SourceContent) {
        self.total = OnceLock::new();
        match content.digest_without(&self.ignored) {
            Some(digest) => self
                .kinds
                .entry(intent.resource.clone())
                .or_default()
                .remove(intent, digest),
            None => self.unknown = self.unknown.saturating_sub(1),
        }
    }

    /// The proof of an agent that has applied everything that is sent under these terms; `None` if
    /// the hub cannot compute it.
    pub(super) fn proof(&self, rule: &RuleUid, terms: &Terms, key: &ProofKey) -> Option<Proof> {
        if self.unknown > 0 {
            return None;
        }
        let sum = |kinds: &mut dyn Iterator<Item = &LiveDigest>| {
            let mut sum = LiveDigest::default();
            kinds.for_each(|shown| sum.merge(*shown));
            key.proof(rule, sum)
        };
        if self.kinds.keys().all(|kind| terms.grants_kind(kind)) {
            return Some(*self.total.get_or_init(|| sum(&mut self.kinds.values())));
        }
        let granted = self
            .kinds
            .iter()
            .filter(|(kind, _)| terms.grants_kind(kind));
        Some(sum(&mut granted.map(|(_, shown)| shown)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use runnel_proto::model::{Encoding, FieldMap, Payload, Revision};

    use super::*;

    fn content(revision: u8, text: &str) -> SourceContent {
        let text = format!(r#"{{"fields":{{"data":{{"k":"{text}","own":"x"}}}}}}"#);
        SourceContent::new(Revision([revision; 16]), Payload::encode(text.into_bytes()))
    }

    fn with_ignored(key: &str) -> Expected {
        Expected::with_ignored(&BTreeSet::from([FieldPath::new(FieldMap::Data, key)]))
    }

    fn proof(expected: &Expected) -> Option<Proof> {
        expected.proof(&"r".into(), &Terms::default(), &ProofKey::new([1; 32]))
    }

    #[test]
    fn content_is_decoded_once_per_set_of_ignored_fields() {
        let (source, mut one) = (SourceRef::new("configmaps", "a", "s"), content(1, "one"));
        let (mut first, mut other) = (with_ignored("own"), with_ignored("own"));
        first.put_in(&source, &one);
        let right = proof(&first);
        assert!(right.is_some());
        // From now on the payload cannot be decoded.
        one.payload = Payload::from_wire(Encoding::Zstd, Bytes::from_static(b"none"), 4);
        assert!(one.payload.decode().is_err());
        other.put_in(&source, &one);
        assert_eq!(proof(&other), right);
        first.remove(&source, &one);
        first.put_in(&source, &content(2, "two"));
        assert!(proof(&first).is_some() && proof(&first) != right);
        // Other fields are another digest.
        let mut others = with_ignored("k");
        others.put_in(&source, &one);
        assert_eq!(proof(&others), None, "it cannot be told");
    }

    #[test]
    fn more_sets_of_fields_than_are_kept_change_no_sum() {
        let (source, one) = (SourceRef::new("configmaps", "a", "s"), content(1, "one"));
        let names = ["k", "own", "a", "b", "c", "d", "e"];
        let mut plans: Vec<_> = names.iter().map(|name| with_ignored(name)).collect();
        plans.iter_mut().for_each(|plan| plan.put_in(&source, &one));
        assert!(one.without.0.lock().len() <= CACHED_DIGESTS);
        plans.iter_mut().for_each(|plan| plan.remove(&source, &one));
        for mut plan in plans {
            let mut fresh = plan.emptied();
            fresh.put_in(&source, &content(2, "two"));
            plan.put_in(&source, &content(2, "two"));
            assert_eq!(proof(&plan), proof(&fresh));
        }
    }
}
