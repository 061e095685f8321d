//! The content of a source, its payload on the wire, and its revision.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zstd::bulk::Decompressor;

use super::{FieldMap, FieldPath, HUB_LABEL, Kind, MANAGED_BY_LABEL, RESERVED_PREFIX};

/// The maximum size of a decoded payload, in bytes.
/// An API server stores at most 1.5 MiB; JSON escapes of control characters take up to six times as
/// much.
pub const PAYLOAD_LIMIT: usize = 12 * 1024 * 1024;

/// Payloads smaller than this are not worth compressing.
const COMPRESS_FROM: usize = 256;
/// Level 1 takes about 4 microseconds per kibibyte; higher levels gain little on such small
/// documents.
const COMPRESSION_LEVEL: i32 = 1;

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
    /// Top-level fields of the object by name, those of the kind's table row only.
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
    /// [`ContentError::Malformed`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ContentError> {
        serde_json::from_slice(bytes).map_err(|_| ContentError::Malformed)
    }
}

impl Content {
    /// Without this field.
    pub fn remove(&mut self, path: &FieldPath) {
        match (path.map.field(), path.map) {
            (Some(field), _) => {
                if let Some(map) = self.fields.get_mut(field).and_then(Value::as_object_mut) {
                    map.remove(&path.key);
                }
            }
            (None, FieldMap::Labels) => drop(self.labels.remove(&path.key)),
            (None, _) => drop(self.annotations.remove(&path.key)),
        }
    }

    /// Bytes of the values, as Kubernetes counts them.
    pub fn value_bytes(&self, kind: &Kind) -> u64 {
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
            let encoded = kind.content.sensitive || map == "binaryData";
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
}
