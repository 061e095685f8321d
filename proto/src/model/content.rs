//! The content of a source, its payload on the wire, its revision, and the proof that a cluster has it.
//!
//! Hub and agent digest content in one form: the hub the content that it sends, the agent each copy
//! as the member's API server returns it. An agent adds up one digest for each intent of a rule
//! (more, if its copies differ), and sends the sum under the hub's [`ProofKey`]. The digests
//! themselves never leave the process: without the content they would allow guesses.
//! 16 bytes suffice, because a proof detects mistakes (a wrong revision, a changed copy): two
//! contents collide by chance once in 2^128. A malicious agent has content and key, and can forge a
//! proof.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use ring::{digest, hmac};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zstd::bulk::Decompressor;

use crate::json_nodes::{self, CONTENT_NODES};

use super::{
    ContentRules, FieldMap, FieldPath, HUB_LABEL, MANAGED_BY_LABEL, RESERVED_PREFIX, RuleUid,
    SourceRef,
};

/// The maximum size of a decoded payload, in bytes.
/// An API server stores at most 1.5 MiB; JSON escapes of control characters take up to six times as
/// much.
pub const PAYLOAD_LIMIT: usize = 12 * 1024 * 1024;

/// Payloads smaller than this are not worth compressing.
const COMPRESS_FROM: usize = 256;
/// Level 1 takes about 4 microseconds per kibibyte; higher levels gain little on such small
/// documents.
const COMPRESSION_LEVEL: i32 = 1;

/// What the agent does with a copy beyond the fields of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CopyMode {
    /// It removes the fields that others have added.
    Exact,
    /// It creates the copy and never changes it.
    CreateOnly,
}

impl CopyMode {
    /// Its name in the annotation [`MODE_ANNOTATION`](super::MODE_ANNOTATION).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::CreateOnly => "createOnly",
        }
    }

    /// Reads a name. `None` for a name that no agent writes.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Exact, Self::CreateOnly]
            .into_iter()
            .find(|mode| mode.as_str() == name)
    }
}

/// The distributed part of an object. Canonical: equal content has equal bytes.
///
/// Deliberately without `Debug` and `Display`: a value must never reach a log or an error text.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Labels to set on the copy, Runnel's own marks not included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations to set on the copy, Runnel's own marks not included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The API version in which the hub read the fields. Absent for ConfigMaps and Secrets, which have one version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<str>>,
    /// What the agent does with the copy beyond its fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<CopyMode>,
    /// Top-level fields of the object by name, without `apiVersion`, `kind`, `metadata` and `status`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, Value>,
}

/// Why a payload cannot be read. Contains nothing of the payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// Larger than [`PAYLOAD_LIMIT`], or than its declared size.
    #[error("the payload is larger than {limit} bytes")]
    TooLarge {
        /// The bound that was passed.
        limit: usize,
    },
    /// Has more nodes than [`CONTENT_NODES`].
    #[error("the payload has more than {} JSON values", CONTENT_NODES)]
    TooManyNodes,
    /// The payload was not written by an encoder of this protocol.
    #[error("the payload cannot be decoded")]
    Malformed,
    /// An encoding that this build does not support.
    #[error("the payload's encoding is unknown to this agent: upgrade the agent")]
    UnknownEncoding,
}

impl Content {
    /// The canonical bytes: JSON with sorted keys, empty maps left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("maps of texts and JSON values serialize")
    }

    /// Reads canonical bytes.
    ///
    /// # Errors
    /// [`ContentError::TooManyNodes`] before anything is decoded, [`ContentError::Malformed`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ContentError> {
        if json_nodes::count(bytes) > CONTENT_NODES {
            return Err(ContentError::TooManyNodes);
        }
        serde_json::from_slice(bytes).map_err(|_| ContentError::Malformed)
    }
}

impl Content {
    /// Without this field.
    pub fn remove(&mut self, path: &FieldPath) {
        let (map, key) = match path {
            FieldPath::Field(steps) => return steps.remove(&mut self.fields),
            FieldPath::Key { map, key } => (map, key),
        };
        match map {
            FieldMap::Labels => drop(self.labels.remove(key)),
            FieldMap::Annotations => drop(self.annotations.remove(key)),
            FieldMap::Data | FieldMap::BinaryData => {
                let map = map.field().and_then(|field| self.fields.get_mut(field));
                if let Some(map) = map.and_then(Value::as_object_mut) {
                    map.remove(key);
                }
            }
        }
    }

    /// The number of its JSON nodes, as [`json_nodes::count`] counts them in [`Content::to_bytes`].
    pub fn nodes(&self) -> usize {
        fn below(value: &Value) -> usize {
            1 + match value {
                Value::Array(elements) => elements.iter().map(below).sum(),
                Value::Object(members) => members.values().map(below).sum(),
                _ => 0,
            }
        }
        let map = |len: usize| len + usize::from(len > 0);
        let fields: usize = self.fields.values().map(below).sum();
        1 + map(self.labels.len())
            + map(self.annotations.len())
            + usize::from(self.version.is_some())
            + usize::from(self.mode.is_some())
            + usize::from(!self.fields.is_empty())
            + fields
    }

    /// Bytes of the values, as Kubernetes counts them; the bytes of the fields as JSON for kinds without listed fields.
    pub fn value_bytes(&self, rules: &ContentRules) -> u64 {
        if rules.is_owned() {
            return serde_json::to_vec(&self.fields).map_or(0, |bytes| bytes.len() as u64);
        }
        let maps = ["data", "binaryData"]
            .into_iter()
            .filter_map(|map| Some((map, self.fields.get(map)?.as_object()?)));
        let bytes = maps.flat_map(|(map, values)| values.values().map(move |value| (map, value)));
        let bytes = bytes.map(|(map, value)| {
            let text = value.as_str().unwrap_or_default();
            let (length, padding) = (
                text.len() as u64,
                text.bytes().rev().take_while(|byte| *byte == b'=').count() as u64,
            );
            // Base64 encodes 3 bytes as 4.
            let encoded = rules.sensitive || map == "binaryData";
            if encoded {
                (length / 4 * 3).saturating_sub(padding)
            } else {
                length
            }
        });
        bytes.sum()
    }
}

/// The encoding of a payload's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The bytes are not compressed.
    Plain,
    /// The bytes are one zstd frame.
    Zstd,
}

/// Canonical content, compressed where that shrinks it. Cloning shares the bytes.
///
/// Deliberately without `Debug` and `Display`.
#[derive(Clone, PartialEq)]
pub struct Payload {
    encoding: Encoding,
    bytes: Bytes,
    size: u32,
}

impl Payload {
    /// Encodes canonical bytes.
    pub fn encode(canonical: Vec<u8>) -> Self {
        let size = u32::try_from(canonical.len()).unwrap_or(u32::MAX);
        if canonical.len() >= COMPRESS_FROM
            && let Ok(compressed) = zstd::bulk::compress(&canonical, COMPRESSION_LEVEL)
            && compressed.len() < canonical.len()
        {
            return Self {
                encoding: Encoding::Zstd,
                bytes: exactly(compressed),
                size,
            };
        }
        Self {
            encoding: Encoding::Plain,
            bytes: exactly(canonical),
            size,
        }
    }

    /// Returns a copy with its own memory. Content from the wire is a part of its whole frame, and
    /// keeps the frame in memory.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self {
            encoding: self.encoding,
            bytes: Bytes::copy_from_slice(&self.bytes),
            size: self.size,
        }
    }

    /// Creates a payload from the wire; it is checked on decoding.
    pub fn from_wire(encoding: Encoding, bytes: Bytes, size: u32) -> Self {
        Self {
            encoding,
            bytes,
            size,
        }
    }

    /// Returns the encoding of [`Payload::bytes`].
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the encoded bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the decoded size in bytes, as declared by the sender.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the content. Uses at most the announced size, itself bounded by [`PAYLOAD_LIMIT`].
    ///
    /// # Errors
    /// [`ContentError`], for bytes that [`Payload::encode`] did not write.
    pub fn decode(&self) -> Result<Content, ContentError> {
        let size = self.size as usize;
        if size > PAYLOAD_LIMIT {
            return Err(ContentError::TooLarge {
                limit: PAYLOAD_LIMIT,
            });
        }
        match self.encoding {
            Encoding::Plain if self.bytes.len() == size => Content::from_bytes(&self.bytes),
            Encoding::Plain => Err(ContentError::Malformed),
            Encoding::Zstd => {
                let plain = decompressed(&self.bytes, size)?;
                if plain.len() != size {
                    Err(ContentError::Malformed)
                } else {
                    Content::from_bytes(&plain)
                }
            }
        }
    }
}

/// Each thread keeps its decompression context: for 1 KiB, creating one costs more than the
/// decompression.
fn decompressed(bytes: &[u8], size: usize) -> Result<Vec<u8>, ContentError> {
    thread_local! {
        static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new().map_err(|_| ContentError::Malformed)?),
        };
        decompressor
            .decompress(bytes, size)
            .map_err(|_| ContentError::Malformed)
    })
}

/// Trims the allocation, because payloads are stored for long.
fn exactly(bytes: Vec<u8>) -> Bytes {
    bytes.into_boxed_slice().into()
}

/// The version of the revision's input format; part of the digest, so that a new format never equals an old one.
const REVISION_FORMAT: &[u8] = b"runnel revision 1\0";

/// The prefix of sealed inputs; no revision's input begins with it.
const SEAL_FORMAT: &[u8] = b"runnel seal 1\0";

/// The hub's key for revisions. It lies in the hub's identity Secret, so revisions survive a restart.
#[derive(Clone)]
pub struct RevisionKey(pub(super) hmac::Key);

impl RevisionKey {
    /// A key from secret bytes.
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Returns the revision of canonical content of a kind: the first 16 bytes of HMAC-SHA-256 over
    /// a format version, the kind and the content. Without the key it reveals nothing about a
    /// value.
    pub fn revision(&self, resource: &str, canonical: &[u8]) -> Revision {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(REVISION_FORMAT);
        context.update(resource.as_bytes());
        context.update(b"\0");
        context.update(canonical);
        short(context)
    }

    /// Returns the seal of a text that other processes store for the hub: the first 16 bytes of
    /// HMAC-SHA-256.
    pub fn seal(&self, words: &[u8]) -> [u8; 16] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(SEAL_FORMAT);
        context.update(words);
        short(context).0
    }
}

/// Whether a label or annotation is a mark of Runnel's own, never content.
pub fn is_mark(key: &str) -> bool {
    key == MANAGED_BY_LABEL || key == HUB_LABEL || key.starts_with(RESERVED_PREFIX)
}

fn short(context: hmac::Context) -> Revision {
    let mut short = [0; 16];
    short.copy_from_slice(&context.sign().as_ref()[..16]);
    Revision(short)
}

/// Opaque keyed digest of an intent's content: equal revision, nothing to send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub [u8; 16]);

impl Revision {
    /// Reads what [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// The version of the form that is digested.
const CONTENT_FORMAT: &[u8] = b"runnel content 1\0";
/// The version of the form in which a revision stands for its content.
const REVISION_DIGEST_FORMAT: &[u8] = b"runnel content by revision 1\0";
/// The version of the input for the key of proofs. No input of a revision or seal begins with it.
const PROOF_KEY_FORMAT: &[u8] = b"runnel proof key 1\0";
/// The format version of a proof.
const PROOF_FORMAT: &[u8] = b"runnel proof 1\0";

/// A digest of content in an object. Not keyed: it is for memory only, and is never sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentDigest([u8; 16]);

impl ContentDigest {
    /// Returns the digest by which an agent proves a copy of this content and revision to the hub, without these fields.
    ///
    /// Of content with an API version it is a digest of the revision: the API server may store defaults and normalized
    /// values, which the hub cannot compute. The agent's seal proves then that the copy has this revision.
    pub fn of_copy(content: &Content, revision: &Revision, ignored: &BTreeSet<FieldPath>) -> Self {
        if content.version.is_none() {
            return Self::of(content, ignored);
        }
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(REVISION_DIGEST_FORMAT);
        context.update(&revision.0);
        Self::finish(context)
    }

    fn finish(context: digest::Context) -> Self {
        let mut short = [0; 16];
        short.copy_from_slice(&context.finish().as_ref()[..16]);
        Self(short)
    }

    /// Digests content without these fields: the labels and annotations of it, every key of its maps, its other fields.
    /// Runnel's own marks are not part of it, nor are maps without keys.
    pub fn of(content: &Content, ignored: &BTreeSet<FieldPath>) -> Self {
        // Other fields than keys of listed maps, which come last, are below what is digested as one value.
        if let Some(FieldPath::Field(_)) = ignored.last() {
            let mut rest = content.clone();
            ignored.iter().for_each(|path| rest.remove(path));
            return Self::of(&rest, &BTreeSet::new());
        }
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
        Self::finish(sum.0)
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
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn content(pairs: &[(String, String)]) -> Content {
        let data = pairs
            .iter()
            .map(|(k, v)| (k.clone(), Value::String(v.clone())))
            .collect();
        Content {
            fields: BTreeMap::from([("data".to_owned(), Value::Object(data))]),
            ..Content::default()
        }
    }

    #[test]
    fn the_revision_depends_on_key_kind_and_content() {
        let (one, two) = (RevisionKey::new(b"one"), RevisionKey::new(b"two"));
        let revision = one.revision("configmaps", b"{}");
        assert_eq!(
            revision,
            RevisionKey::new(b"one").revision("configmaps", b"{}")
        );
        assert_ne!(revision, two.revision("configmaps", b"{}"));
        assert_ne!(revision, one.revision("secrets", b"{}"));
        assert_ne!(revision, one.revision("configmaps", b"{ }"));
        assert_eq!(Revision::parse(&revision.to_string()), Some(revision));
        assert_eq!(one.proof_key(), RevisionKey::new(b"one").proof_key());
        assert_ne!(one.proof_key(), two.proof_key());
    }

    #[test]
    fn unreadable_event_does_not_affect_the_next() {
        let whole = Payload::encode(content(&[("key".to_owned(), "text ".repeat(500))]).to_bytes());
        let cut = Payload::from_wire(
            Encoding::Zstd,
            whole.bytes().slice(..whole.bytes().len() - 3),
            whole.size(),
        );
        let mixed = Payload::from_wire(
            Encoding::Zstd,
            Bytes::from_static(b"no frame"),
            whole.size(),
        );
        for bad in [&cut, &mixed, &cut] {
            assert!(bad.decode().is_err());
            assert!(whole.decode().is_ok());
        }
    }

    #[test]
    fn payload_with_many_nodes_is_refused_before_it_is_decoded() {
        let list = |elements: usize| {
            let elements = vec![serde_json::json!({"a": 0}); elements];
            Content {
                version: Some("v1".into()),
                fields: BTreeMap::from([("x".to_owned(), elements.into())]),
                ..Content::default()
            }
        };
        let most = list((CONTENT_NODES - 4) / 2);
        assert_eq!(most.nodes(), CONTENT_NODES);
        assert_eq!(json_nodes::count(&most.to_bytes()), CONTENT_NODES);
        assert!(
            Payload::encode(most.to_bytes())
                .decode()
                .is_ok_and(|read| read == most)
        );
        let more = Payload::encode(list(CONTENT_NODES / 2).to_bytes());
        assert!(more.size() < 1 << 20 && more.bytes().len() < 1000);
        assert_eq!(more.decode().err(), Some(ContentError::TooManyNodes));
    }

    #[test]
    fn a_payload_that_lies_about_its_size_is_refused() {
        let honest = Payload::encode(vec![b' '; 4096]);
        assert_eq!(honest.encoding(), Encoding::Zstd);
        for size in [0, 1, 4095, 4097] {
            let lying = Payload::from_wire(Encoding::Zstd, honest.bytes().clone(), size);
            assert!(lying.decode().is_err(), "{size}");
        }
        let huge = Payload::from_wire(Encoding::Zstd, honest.bytes().clone(), u32::MAX);
        assert!(
            huge.decode().err()
                == Some(ContentError::TooLarge {
                    limit: PAYLOAD_LIMIT
                })
        );
    }

    proptest! {
        #[test]
        fn a_payload_decodes_to_what_was_encoded(pairs: Vec<(String, String)>) {
            let content = content(&pairs);
            let payload = Payload::encode(content.to_bytes());
            prop_assert!(payload.decode().ok() == Some(content));
        }

        #[test]
        fn any_bytes_decode_without_a_panic(bytes: Vec<u8>, size: u32, compressed: bool) {
            let encoding = if compressed { Encoding::Zstd } else { Encoding::Plain };
            let _ = Payload::from_wire(encoding, bytes.into(), size).decode();
        }
    }

    fn labeled(labels: &[(&str, &str)], fields: Value) -> Content {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let fields = fields
            .as_object()
            .unwrap()
            .iter()
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect();
        Content {
            version: None,
            mode: None,
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
        let right = labeled(
            &[("team", "a")],
            json!({"data": {"a": "1", "b": "2"}, "type": "Opaque"}),
        );
        let others = [
            labeled(
                &[("team", "b")],
                json!({"data": {"a": "1", "b": "2"}, "type": "Opaque"}),
            ),
            labeled(&[], json!({"data": {"a": "1", "b": "2"}, "type": "Opaque"})),
            labeled(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "3"}, "type": "Opaque"}),
            ),
            labeled(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "2", "c": ""}, "type": "Opaque"}),
            ),
            labeled(
                &[("team", "a")],
                json!({"data": {"a": "1b", "": "2"}, "type": "Opaque"}),
            ),
            labeled(
                &[("team", "a")],
                json!({"binaryData": {"a": "1", "b": "2"}, "type": "Opaque"}),
            ),
            labeled(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "2"}, "type": "another"}),
            ),
            labeled(
                &[("team", "a")],
                json!({"data": {"a": "1", "b": "2"}, "type": "Opaque", "immutable": true}),
            ),
        ];
        for (number, other) in others.iter().enumerate() {
            assert!(digest(other) != digest(&right), "{number}");
        }
        let mut same = labeled(
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
    fn copy_of_a_versioned_kind_is_proven_by_its_revision() {
        let none = BTreeSet::new();
        let exact = labeled(&[], json!({"data": {"a": "1"}}));
        let of = |content: &Content, revision: u8| {
            ContentDigest::of_copy(content, &Revision([revision; 16]), &none)
        };
        assert!(of(&exact, 1) == of(&exact, 2) && of(&exact, 1) == digest(&exact));
        let owned = |replicas: u8| Content {
            version: Some("v1".into()),
            ..labeled(&[], json!({"spec": {"replicas": replicas}}))
        };
        assert!(of(&owned(1), 1) == of(&owned(2), 1));
        assert!(of(&owned(1), 1) != of(&owned(1), 2));
        assert!(of(&owned(1), 1) != digest(&owned(1)));
        let fields = serde_json::to_vec(&owned(1).fields).unwrap();
        let rules = ContentRules::of("deployments.apps");
        assert_eq!(owned(1).value_bytes(rules), fields.len() as u64);
    }

    #[test]
    fn ignored_fields_do_not_count() {
        let of = |label: &str, key: &str| {
            labeled(&[("team", label)], json!({"data": {"a": "1", "b": key}}))
        };
        let ignored = BTreeSet::from([
            FieldPath::parse("/data/b").unwrap(),
            FieldPath::parse("/metadata/labels/team").unwrap(),
        ]);
        let all = ContentDigest::of(&of("x", "2"), &ignored);
        assert!(all == ContentDigest::of(&of("y", "3"), &ignored));
        assert!(all == digest(&labeled(&[], json!({"data": {"a": "1"}}))));
        assert!(all != ContentDigest::of(&labeled(&[], json!({"data": {"a": "2"}})), &ignored));
        let scaled = |replicas: u8, key: &str| {
            let spec = json!({"replicas": replicas, "paused": false});
            labeled(&[], json!({"data": {"a": "1", "b": key}, "spec": spec}))
        };
        let ignored = BTreeSet::from([
            FieldPath::parse("/data/b").unwrap(),
            FieldPath::parse("/spec/replicas").unwrap(),
        ]);
        let all = ContentDigest::of(&scaled(1, "1"), &ignored);
        assert!(all == ContentDigest::of(&scaled(2, "2"), &ignored));
        assert!(all != digest(&scaled(1, "1")));
        assert!(
            all == digest(&labeled(
                &[],
                json!({"data": {"a": "1"}, "spec": {"paused": false}})
            ))
        );
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
                    (SourceRef::new("secrets", "n", name), digest(&labeled(&[], json!({"data": {"k": value}}))))
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
