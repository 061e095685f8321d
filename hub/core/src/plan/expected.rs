//! The expected proof of agents that have applied all of a plan: one sum for each kind, updated
//! with the plan, so that a report costs one comparison, independent of the number of sources; and
//! one keyed digest for all clusters that get all of it.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use runnel_proto::model::{
    ContentDigest, FieldPath, Proof, ProofKey, RuleUid, Shown, SourceRef, Terms,
};

use super::SourceContent;

/// Number of cached digests of one content, by ignored fields.
const KEPT: usize = 4;

/// The digests of one content by ignored fields. Plans change under the index lock and share
/// contents, so each content is decoded once per set of ignored fields, for up to four sets.
#[derive(Default)]
pub(crate) struct Without(Mutex<Vec<Kept>>);

type Kept = (Arc<BTreeSet<FieldPath>>, ContentDigest);

impl Without {
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
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((ignored.clone(), digest));
        Some(digest)
    }
}

/// The sums of one plan.
#[derive(Clone, Default)]
pub(super) struct Expected {
    kinds: BTreeMap<Arc<str>, Shown>,
    /// The ignored fields of the rule.
    ignored: Arc<BTreeSet<FieldPath>>,
    /// Intents without a digest of their content.
    unknown: usize,
    /// The proof of all kinds together, computed at the first use after a change.
    whole: OnceLock<Proof>,
}

impl Expected {
    /// Creates empty sums, with these ignored fields.
    pub(super) fn without(ignored: &BTreeSet<FieldPath>) -> Self {
        Self {
            ignored: Arc::new(ignored.clone()),
            ..Self::default()
        }
    }

    /// Creates empty sums with the same ignored fields.
    pub(super) fn begins_again(&self) -> Self {
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
        self.whole = OnceLock::new();
        match content.digest_without(&self.ignored) {
            Some(digest) => self
                .kinds
                .entry(intent.resource.clone())
                .or_default()
                .insert(intent, digest),
            None => self.unknown += 1,
        }
    }

    pub(super) fn take_out(&mut self, intent: &SourceRef, content: &SourceContent) {
        self.whole = OnceLock::new();
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
        let sum = |kinds: &mut dyn Iterator<Item = &Shown>| {
            let mut sum = Shown::default();
            kinds.for_each(|shown| sum.merge(*shown));
            key.proof(rule, sum)
        };
        if self.kinds.keys().all(|kind| terms.grants_kind(kind)) {
            return Some(*self.whole.get_or_init(|| sum(&mut self.kinds.values())));
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

    fn without(key: &str) -> Expected {
        Expected::without(&BTreeSet::from([FieldPath::new(FieldMap::Data, key)]))
    }

    fn shown(expected: &Expected) -> Option<Proof> {
        expected.proof(&"r".into(), &Terms::default(), &ProofKey::new([1; 32]))
    }

    #[test]
    fn content_is_decoded_once_per_set_of_ignored_fields() {
        let (source, mut one) = (SourceRef::new("configmaps", "a", "s"), content(1, "one"));
        let (mut first, mut other) = (without("own"), without("own"));
        first.put_in(&source, &one);
        let right = shown(&first);
        assert!(right.is_some());
        // From now on the payload cannot be decoded.
        one.payload = Payload::from_wire(Encoding::Zstd, Bytes::from_static(b"none"), 4);
        assert!(one.payload.decode().is_err());
        other.put_in(&source, &one);
        assert_eq!(shown(&other), right);
        first.take_out(&source, &one);
        first.put_in(&source, &content(2, "two"));
        assert!(shown(&first).is_some() && shown(&first) != right);
        // Other fields are another digest.
        let mut others = without("k");
        others.put_in(&source, &one);
        assert_eq!(shown(&others), None, "it cannot be told");
    }

    #[test]
    fn more_sets_of_fields_than_are_kept_change_no_sum() {
        let (source, one) = (SourceRef::new("configmaps", "a", "s"), content(1, "one"));
        let names = ["k", "own", "a", "b", "c", "d", "e"];
        let mut plans: Vec<_> = names.iter().map(|name| without(name)).collect();
        plans.iter_mut().for_each(|plan| plan.put_in(&source, &one));
        assert!(one.without.0.lock().len() <= KEPT);
        plans
            .iter_mut()
            .for_each(|plan| plan.take_out(&source, &one));
        for mut plan in plans {
            let mut fresh = plan.begins_again();
            fresh.put_in(&source, &content(2, "two"));
            plan.put_in(&source, &content(2, "two"));
            assert_eq!(shown(&plan), shown(&fresh));
        }
    }
}
