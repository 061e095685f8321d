//! The seal of a copy. It identifies a copy of this agent, and shows whether the copy has changed
//! since the last write.
//!
//! The seal consists of two truncated HMACs under a key that never leaves the member cluster. The
//! first HMAC binds the mark to one object name, so that a clone in another namespace is no copy.
//! The second HMAC binds the written state: rule, source, revision and content. It does not cover
//! the terms, because a changed policy must not rewrite copies.
//!
//! The first HMAC also records who created the object. The seal of an adopted object includes that
//! object's uid. Its first content was foreign, so that it keeps the protection of foreign objects.
use std::collections::BTreeSet;
use std::fmt;

use data_encoding::HEXLOWER;
use ring::{digest, hmac};
use runnel_proto::model::{Content, FieldPath, Revision, RuleUid, SourceRef, is_mark};
use serde_json::Value;

const VERSION: &str = "v1";
/// The version of a seal on an object that was adopted.
const ADOPTED: &str = "v1a";
const MAC_LENGTH: usize = 16;

/// A truncated HMAC.
type Mac = [u8; MAC_LENGTH];

/// Makes and checks the seals of one agent for one hub. Without `Debug`: it contains a key.
#[derive(Clone)]
pub struct Sealer {
    key: hmac::Key,
    key_id: String,
    hub: String,
    members: [String; 2],
}

/// A parsed seal. It is not proved before [`Sealer`] has checked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The id of the agent-local key that made it.
    pub key_id: String,
    /// The object was adopted: Runnel did not create it.
    pub adopted: bool,
    /// The owning rule.
    pub rule: RuleUid,
    /// The revision that was written.
    pub revision: Revision,
    identity: Mac,
    content: Mac,
}

/// The sealed state of a copy, besides its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The owning rule.
    pub rule: RuleUid,
    /// The source.
    pub source: SourceRef,
    /// The revision.
    pub revision: Revision,
    /// The ignored fields, which are not part of the sealed content.
    pub ignored: BTreeSet<FieldPath>,
}

/// The owner of an object by its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// This agent sealed this object, and Runnel created it.
    Ours,
    /// This agent sealed this object, and adopted it.
    Adopted,
    /// This agent sealed another object, and another client cloned it.
    Clone,
    /// Another key made the seal. It proves nothing here.
    OtherKey,
}

impl Seal {
    /// Parses a seal; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, content) = text.rsplit_once('.')?;
        let (rest, identity) = rest.rsplit_once('.')?;
        let (rest, revision) = rest.rsplit_once('.')?;
        let (version, rest) = rest.split_once('.')?;
        let (key_id, rule) = rest.split_once('.')?;
        if ![VERSION, ADOPTED].contains(&version) || key_id.is_empty() || rule.is_empty() {
            return None;
        }
        Some(Self {
            key_id: key_id.to_owned(),
            adopted: version == ADOPTED,
            rule: rule.into(),
            revision: Revision::parse(revision)?,
            identity: parse_mac(identity)?,
            content: parse_mac(content)?,
        })
    }
}

impl fmt::Display for Seal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (identity, content) = (
            HEXLOWER.encode(&self.identity),
            HEXLOWER.encode(&self.content),
        );
        let version = if self.adopted { ADOPTED } else { VERSION };
        write!(
            out,
            "{version}.{}.{}.{}.{identity}.{content}",
            self.key_id, self.rule, self.revision
        )
    }
}

fn parse_mac(text: &str) -> Option<Mac> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

impl Sealer {
    /// Returns a sealer with an agent-local secret, for copies of one hub. `members`: the name of the
    /// agent's `MemberCluster`, and the one that it replaces, or an empty name.
    pub fn new(secret: &[u8], hub: &str, members: [&str; 2]) -> Self {
        let whole = digest::digest(&digest::SHA256, secret);
        let key_id = HEXLOWER.encode(&whole.as_ref()[..4]);
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            key_id,
            hub: hub.to_owned(),
            members: members.map(str::to_owned),
        }
    }

    /// Returns the hub of the copies.
    pub fn hub(&self) -> &str {
        &self.hub
    }

    /// Returns the name of the agent's `MemberCluster`.
    pub fn member(&self) -> &str {
        &self.members[0]
    }

    /// Whether copies of a `MemberCluster` with this name are the agent's own. Older copies have no
    /// name.
    pub fn has_copies_of(&self, member: Option<&str>) -> bool {
        member.is_none_or(|member| self.members.iter().any(|own| own == member))
    }

    /// Returns the seal of a copy with this content, which must not include ignored fields.
    /// `adopted`: the uid of an object that Runnel did not create.
    pub fn seal(
        &self,
        copy: &SourceRef,
        sealed: &Sealed,
        content: &Content,
        adopted: Option<&str>,
    ) -> Seal {
        Seal {
            key_id: self.key_id.clone(),
            adopted: adopted.is_some(),
            rule: sealed.rule.clone(),
            revision: sealed.revision,
            identity: self.identity(copy, adopted),
            content: self.content(copy, sealed, content),
        }
    }

    /// Returns the owner of the object with this name and uid, as its seal proves.
    pub fn check_identity(&self, seal: &Seal, copy: &SourceRef, uid: &str) -> Identity {
        let adopted = seal.adopted.then_some(uid);
        if seal.key_id != self.key_id {
            Identity::OtherKey
        } else if !equal(&seal.identity, &self.identity(copy, adopted)) {
            Identity::Clone
        } else if seal.adopted {
            Identity::Adopted
        } else {
            Identity::Ours
        }
    }

    /// Returns the proof that Runnel created the object with this name and uid. It marks an object
    /// that Runnel leaves.
    pub fn retained_proof(&self, copy: &SourceRef, uid: &str) -> String {
        HEXLOWER.encode(&self.mac(&[b"retained", copy.to_string().as_bytes(), uid.as_bytes()]))
    }

    /// Whether a text is the [proof](Self::retained_proof) for the object of this name and uid.
    pub fn check_retained(&self, proof: &str, copy: &SourceRef, uid: &str) -> bool {
        let expected = self.mac(&[b"retained", copy.to_string().as_bytes(), uid.as_bytes()]);
        parse_mac(proof).is_some_and(|proof| equal(&proof, &expected))
    }

    /// Whether this is exactly the content that was sealed.
    pub fn check_content(
        &self,
        seal: &Seal,
        copy: &SourceRef,
        sealed: &Sealed,
        content: &Content,
    ) -> bool {
        seal.key_id == self.key_id && equal(&seal.content, &self.content(copy, sealed, content))
    }

    fn identity(&self, copy: &SourceRef, adopted: Option<&str>) -> Mac {
        let copy = copy.to_string();
        match adopted {
            None => self.mac(&[b"identity", self.hub.as_bytes(), copy.as_bytes()]),
            Some(uid) => self.mac(&[
                b"adopted",
                self.hub.as_bytes(),
                copy.as_bytes(),
                uid.as_bytes(),
            ]),
        }
    }

    fn content(&self, copy: &SourceRef, sealed: &Sealed, content: &Content) -> Mac {
        let (copy, source) = (copy.to_string(), sealed.source.to_string());
        let (content, ignored) = (
            canonical(content).to_bytes(),
            crate::managed_fields::format_ignored(&sealed.ignored),
        );
        let mut parts = vec![
            b"content",
            self.hub.as_bytes(),
            copy.as_bytes(),
            sealed.rule.as_str().as_bytes(),
            source.as_bytes(),
            &sealed.revision.0,
            &content,
        ];
        // Only with ignored fields, so that older seals stay valid.
        if !ignored.is_empty() {
            parts.push(ignored.as_bytes());
        }
        self.mac(&parts)
    }

    fn mac(&self, parts: &[&[u8]]) -> Mac {
        let mut context = hmac::Context::with_key(&self.key);
        for part in parts {
            // The lengths separate the parts: different lists of parts are different inputs.
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let tag = context.sign();
        let mut short = [0; MAC_LENGTH];
        short.copy_from_slice(&tag.as_ref()[..MAC_LENGTH]);
        short
    }
}

fn equal(left: &Mac, right: &Mac) -> bool {
    left.iter()
        .zip(right)
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}

/// Returns content in the form that is sealed and written: without marks, and without empty maps,
/// which the API server drops from kinds with one version.
pub fn canonical(content: &Content) -> Content {
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        map.iter()
            .filter(|(key, _)| !is_mark(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    Content {
        version: content.version.clone(),
        mode: content.mode,
        labels: pairs(&content.labels),
        annotations: pairs(&content.annotations),
        fields: content
            .fields
            .iter()
            .filter(|(_, value)| content.version.is_some() || !is_empty(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
    }
}

/// Whether a field's value is equivalent to a missing field.
pub fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use runnel_proto::model::MANAGED_BY_LABEL;
    use std::collections::BTreeMap;

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

    fn copy(namespace: &str) -> SourceRef {
        SourceRef::new("configmaps", namespace, "settings")
    }

    fn sealed(rule: &str, source: SourceRef, revision: u8) -> Sealed {
        Sealed {
            rule: rule.into(),
            source,
            revision: Revision([revision; 16]),
            ignored: BTreeSet::new(),
        }
    }

    #[test]
    fn clone_is_no_copy() {
        let sealer = Sealer::new(b"secret", "hub-1", ["eu-1", ""]);
        let seal = sealer.seal(
            &copy("a"),
            &sealed("uid", copy("team"), 1),
            &Content::default(),
            None,
        );
        assert_eq!(
            sealer.check_identity(&seal, &copy("a"), "u"),
            Identity::Ours
        );
        assert_eq!(
            sealer.check_identity(&seal, &copy("b"), "u"),
            Identity::Clone
        );
        assert_eq!(
            Sealer::new(b"other", "hub-1", ["eu-1", ""]).check_identity(&seal, &copy("a"), "u"),
            Identity::OtherKey
        );
        assert_eq!(
            Sealer::new(b"secret", "hub-2", ["eu-1", ""]).check_identity(&seal, &copy("a"), "u"),
            Identity::Clone
        );
    }

    #[test]
    fn adopted_seal_fits_only_the_adopted_object() {
        let sealer = Sealer::new(b"secret", "hub-1", ["eu-1", ""]);
        let seal = sealer.seal(
            &copy("a"),
            &sealed("uid", copy("team"), 1),
            &Content::default(),
            Some("u1"),
        );
        assert_eq!(
            sealer.check_identity(&seal, &copy("a"), "u1"),
            Identity::Adopted
        );
        assert_eq!(
            sealer.check_identity(&seal, &copy("a"), "u2"),
            Identity::Clone
        );
        // A changed text does not turn an adopted object into a created one.
        let forged = Seal::parse(&seal.to_string().replacen("v1a.", "v1.", 1)).unwrap();
        assert_eq!(
            sealer.check_identity(&forged, &copy("a"), "u1"),
            Identity::Clone
        );
    }

    #[test]
    fn retained_proof_fits_only_the_same_object() {
        let sealer = Sealer::new(b"secret", "hub-1", ["eu-1", ""]);
        let proof = sealer.retained_proof(&copy("a"), "u1");
        assert!(sealer.check_retained(&proof, &copy("a"), "u1"));
        assert!(
            !sealer.check_retained(&proof, &copy("a"), "u2")
                && !sealer.check_retained(&proof, &copy("b"), "u1")
        );
        assert!(!sealer.check_retained("", &copy("a"), "u1"));
        assert!(
            !Sealer::new(b"other", "hub-1", ["eu-1", ""]).check_retained(&proof, &copy("a"), "u1")
        );
    }

    #[test]
    fn each_sealed_thing_matters() {
        let sealer = Sealer::new(b"secret", "hub", ["eu-1", ""]);
        let written = content(&[("k".into(), "v".into())]);
        let right = sealed("uid", copy("team"), 1);
        let seal = sealer.seal(&copy("a"), &right, &written, None);
        assert!(sealer.check_content(&seal, &copy("a"), &right, &written));
        assert!(!sealer.check_content(
            &seal,
            &copy("a"),
            &right,
            &content(&[("k".into(), "w".into())])
        ));
        assert!(!sealer.check_content(&seal, &copy("b"), &right, &written));
        let ignored = BTreeSet::from([FieldPath::parse("/data/other").unwrap()]);
        for other in [
            sealed("uid", copy("other"), 1),
            sealed("uid2", copy("team"), 1),
            sealed("uid", copy("team"), 2),
            Sealed { ignored, ..right },
        ] {
            assert!(
                !sealer.check_content(&seal, &copy("a"), &other, &written),
                "{other:?}"
            );
        }
    }

    #[test]
    fn marks_and_empty_maps_are_no_content() {
        let sealer = Sealer::new(b"secret", "hub", ["eu-1", ""]);
        let plain = content(&[("k".into(), "v".into())]);
        let mut marked = plain.clone();
        marked.labels.insert(MANAGED_BY_LABEL.into(), "x".into());
        marked
            .annotations
            .insert("runnel.dev/anything".into(), "x".into());
        marked
            .fields
            .insert("binaryData".into(), Value::Object(serde_json::Map::new()));
        let right = sealed("uid", copy("s"), 0);
        let seal = sealer.seal(&copy("a"), &right, &plain, None);
        assert!(sealer.check_content(&seal, &copy("a"), &right, &marked));
    }

    proptest! {
        #[test]
        fn a_seal_reads_back_what_it_wrote(
            secret: Vec<u8>, rule in "[a-z0-9.-]{1,36}", revision: u8, pairs: Vec<(String, String)>,
        ) {
            let sealer = Sealer::new(&secret, "hub", ["eu-1", ""]);
            let content = content(&pairs);
            let right = sealed(&rule, copy("s"), revision);
            let seal = sealer.seal(&copy("a"), &right, &content, None);
            prop_assert_eq!(Seal::parse(&seal.to_string()), Some(seal.clone()));
            prop_assert!(sealer.check_content(&seal, &copy("a"), &right, &content));
        }

        #[test]
        fn any_text_parses_without_a_panic(text: String) {
            let _ = Seal::parse(&text);
        }
    }
}
