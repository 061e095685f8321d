//! Proofs that a cluster has the content that it was sent.
//! Hub and agent digest content in one form: the hub the content that it sends, the agent each copy
//! as the member's API server returns it. An agent adds up one digest for each intent of a rule
//! (more, if its copies differ), and sends the sum under the hub's [`ProofKey`]. The digests
//! themselves never leave the process: without the content they would allow guesses.
//! 16 bytes suffice, because a proof detects mistakes (a wrong revision, a changed copy): two
//! contents collide by chance once in 2^128. A malicious agent has content and key, and can forge a
//! proof.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ring::{digest, hmac};
use serde_json::Value;

use super::{Content, FieldMap, FieldPath, Revision, RevisionKey, RuleUid, SourceRef, is_mark};

/// The version of the form that is digested.
const CONTENT_FORMAT: &[u8] = b"runnel content 1\0";
/// The version of the input for the key of proofs. No input of a revision or seal begins with it.
const PROOF_KEY_FORMAT: &[u8] = b"runnel proof key 1\0";
/// The format version of a proof.
const PROOF_FORMAT: &[u8] = b"runnel proof 1\0";

/// A digest of content in an object. Not keyed: it is for memory only, and is never sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentDigest([u8; 16]);

impl ContentDigest {
    /// Digests content without these fields: the labels and annotations of it, every key of its maps, its other fields.
    /// Runnel's own marks are not part of it, nor are maps without keys.
    pub fn of(content: &Content, ignored: &BTreeSet<FieldPath>) -> Self {
        let counts =
            |map, key: &str| ignored.is_empty() || !ignored.contains(&FieldPath::new(map, key));
        let mut sum = Sum(digest::Context::new(&digest::SHA256));
        sum.0.update(CONTENT_FORMAT);
        for (map, pairs) in [
            (FieldMap::Labels, &content.labels),
            (FieldMap::Annotations, &content.annotations),
        ] {
            for (key, value) in pairs
                .iter()
                .filter(|(key, _)| !is_mark(key) && counts(map, key))
            {
                sum.entry(map.pointer(), key, value);
            }
        }
        for (field, value) in &content.fields {
            let map = [FieldMap::Data, FieldMap::BinaryData]
                .into_iter()
                .find(|map| map.field() == Some(field));
            match value {
                Value::Null => {}
                Value::Object(keys) => {
                    let sorted: BTreeMap<_, _> = keys.iter().collect();
                    let counted = sorted
                        .into_iter()
                        .filter(|(key, _)| map.is_none_or(|map| counts(map, key)));
                    counted.for_each(|(key, value)| sum.value(field, key, value));
                }
                value => sum.value(field, "", value),
            }
        }
        let mut short = [0; 16];
        short.copy_from_slice(&sum.0.finish().as_ref()[..16]);
        Self(short)
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ContentDigest")
    }
}

/// The digest input, entry by entry.
struct Sum(digest::Context);

impl Sum {
    /// Length prefixes separate the parts: different lists of entries have different inputs.
    fn entry(&mut self, map: &str, key: &str, value: &str) {
        for part in [map, key, value] {
            self.0.update(&(part.len() as u64).to_be_bytes());
            self.0.update(part.as_bytes());
        }
    }

    fn value(&mut self, field: &str, key: &str, value: &Value) {
        match value.as_str() {
            Some(text) => self.entry(field, key, text),
            // Only newer API servers than this build write anything else than a text or a boolean
            // here.
            None => self.entry(field, key, &format!("json {value}")),
        }
    }
}

/// A digest of a set of (source, revision) pairs, independent of order, and updated by one pair at constant cost.
///
/// The sum modulo 2^128 of the first half of SHA-256 over each pair. Both ends are honest about their own set (a
/// member that lies harms only itself), so resistance to crafted collisions is not needed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SetDigest(u128);

impl SetDigest {
    /// The digest with this pair added.
    pub fn insert(&mut self, source: &SourceRef, revision: &Revision) {
        self.0 = self.0.wrapping_add(pair_sum(source, revision));
    }

    /// Removes a pair from the set.
    pub fn remove(&mut self, source: &SourceRef, revision: &Revision) {
        self.0 = self.0.wrapping_sub(pair_sum(source, revision));
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

fn pair_sum(source: &SourceRef, revision: &Revision) -> u128 {
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

/// The live state of a rule's intents: the sum of one digest for each intent and each content of
/// its copies. Like [`ContentDigest`] it never leaves the process.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveDigest(SetDigest);

impl LiveDigest {
    /// With this content of an intent added.
    pub fn insert(&mut self, intent: &SourceRef, content: ContentDigest) {
        self.0.insert(intent, &Revision(content.0));
    }

    /// Removes a content of an intent.
    pub fn remove(&mut self, intent: &SourceRef, content: ContentDigest) {
        self.0.remove(intent, &Revision(content.0));
    }

    /// The sum of two.
    pub fn merge(&mut self, other: LiveDigest) {
        self.0.merge(other.0);
    }

    /// The sum without a part that was in it.
    pub fn subtract(&mut self, part: LiveDigest) {
        self.0.subtract(part.0);
    }
}

/// An agent's proof for one rule: a keyed digest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Proof(pub [u8; 16]);

impl fmt::Debug for Proof {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Proof")
    }
}

/// The key that a hub gives its agents for proofs. It is derived from the hub's key for revisions,
/// which stays secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ProofKey([u8; ProofKey::LENGTH]);

impl ProofKey {
    /// Bytes of a key.
    pub const LENGTH: usize = 32;

    /// A key of these bytes.
    pub fn new(bytes: [u8; ProofKey::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Returns the key, which only agents may receive.
    pub fn bytes(&self) -> &[u8; ProofKey::LENGTH] {
        &self.0
    }

    /// Returns the proof of a rule: the first 16 bytes of HMAC-SHA-256 over a format version, the
    /// rule and the sum.
    pub fn proof(&self, rule: &RuleUid, live_digest: LiveDigest) -> Proof {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        context.update(PROOF_FORMAT);
        context.update(rule.as_str().as_bytes());
        context.update(b"\0");
        context.update(&live_digest.0.to_bytes());
        let mut short = [0; 16];
        short.copy_from_slice(&context.sign().as_ref()[..16]);
        Proof(short)
    }
}

impl fmt::Debug for ProofKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ProofKey")
    }
}

impl RevisionKey {
    /// Returns the key that agents get for proofs. This key cannot be derived from it.
    pub fn proof_key(&self) -> ProofKey {
        let mut bytes = [0; ProofKey::LENGTH];
        bytes.copy_from_slice(hmac::sign(&self.0, PROOF_KEY_FORMAT).as_ref());
        ProofKey::new(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn content(labels: &[(&str, &str)], fields: Value) -> Content {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let fields = fields
            .as_object()
            .unwrap()
            .iter()
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect();
        Content {
            labels: labels.iter().map(pair).collect(),
            annotations: BTreeMap::new(),
            fields,
        }
    }

    fn digest(content: &Content) -> ContentDigest {
        ContentDigest::of(content, &BTreeSet::new())
    }

    #[test]
    fn digest_covers_exactly_the_distributed_fields() {
        let right = content(
            &[("team", "a")],
            json!({"data": {"a": "1", "b": "2"}, "type": "Opaque"}),
        );
        let others = [
            content(
                &[("team", "b")],
                json!({"data": {"a": "1", "b": "2"}, "type": "Opaque"}),
            ),
            content(&[], json!({"data": {"a": "1", "b": "2"}, "type": "Opaque"})),
            content(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "3"}, "type": "Opaque"}),
            ),
            content(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "2", "c": ""}, "type": "Opaque"}),
            ),
            content(
                &[("team", "a")],
                json!({"data": {"a": "1b", "": "2"}, "type": "Opaque"}),
            ),
            content(
                &[("team", "a")],
                json!({"binaryData": {"a": "1", "b": "2"}, "type": "Opaque"}),
            ),
            content(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "2"}, "type": "another"}),
            ),
            content(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "2"}, "type": "Opaque", "immutable": true}),
            ),
        ];
        for (number, other) in others.iter().enumerate() {
            assert!(digest(other) != digest(&right), "{number}");
        }
        let mut same = content(
            &[
                ("team", "a"),
                ("runnel.dev/hub", "h"),
                ("app.kubernetes.io/managed-by", "runnel"),
            ],
            json!({"data": {"b": "2", "a": "1"}, "binaryData": {}, "immutable": null, "type": "Opaque"}),
        );
        same.annotations
            .insert("runnel.dev/seal".into(), "s".into());
        assert!(digest(&same) == digest(&right));
    }

    #[test]
    fn ignored_fields_do_not_count() {
        let of = |label: &str, key: &str| {
            content(&[("team", label)], json!({"data": {"a": "1", "b": key}}))
        };
        let ignored = BTreeSet::from([
            FieldPath::parse("/data/b").unwrap(),
            FieldPath::parse("/metadata/labels/team").unwrap(),
        ]);
        let all = ContentDigest::of(&of("x", "2"), &ignored);
        assert!(all == ContentDigest::of(&of("y", "3"), &ignored));
        assert!(all == digest(&content(&[], json!({"data": {"a": "1"}}))));
        assert!(all != ContentDigest::of(&content(&[], json!({"data": {"a": "2"}})), &ignored));
    }

    #[test]
    fn a_proof_is_of_one_key_one_rule_and_one_sum() {
        let (one, two) = (ProofKey::new([1; 32]), ProofKey::new([2; 32]));
        let (none, mut some) = (LiveDigest::default(), LiveDigest::default());
        some.insert(
            &SourceRef::new("configmaps", "a", "b"),
            digest(&Content::default()),
        );
        let proof = one.proof(&"r".into(), some);
        assert_eq!(proof, ProofKey::new([1; 32]).proof(&"r".into(), some));
        for other in [
            two.proof(&"r".into(), some),
            one.proof(&"s".into(), some),
            one.proof(&"r".into(), none),
        ] {
            assert!(proof != other);
        }
        assert_eq!(
            format!("{proof:?} {one:?}"),
            "Proof ProofKey",
            "neither is ever shown"
        );
    }

    proptest! {
        #[test]
        fn the_sum_is_of_what_is_in_it_in_any_order(
            items in proptest::collection::vec(("[a-c]{1,2}", "[a-c]{0,2}"), 0..8),
        ) {
            let items: Vec<_> = items
                .iter()
                .map(|(name, value)| {
                    (SourceRef::new("secrets", "n", name), digest(&content(&[], json!({"data": {"k": value}}))))
                })
                .collect();
            let (mut forward, mut backward) = (LiveDigest::default(), LiveDigest::default());
            items.iter().for_each(|(source, content)| forward.insert(source, *content));
            items.iter().rev().for_each(|(source, content)| backward.insert(source, *content));
            prop_assert!(forward == backward);
            items.iter().for_each(|(source, content)| forward.remove(source, *content));
            prop_assert!(forward == LiveDigest::default());
            forward.merge(backward);
            forward.subtract(backward);
            prop_assert!(forward == LiveDigest::default());
        }
    }

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
