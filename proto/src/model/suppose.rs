//! A question what would become of the copies of a rule, and an agent's answer. Nothing is changed by it.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ring::hmac;
use serde_json::Value;

use super::{Content, DeletionPolicy, FieldPath, Intent, Reason, RuleUid, SourceRef, Terms, TermsDigest, Tombstone};

/// The most copies of which one answer speaks, and the most intents of one question.
pub const SUPPOSED_LIMIT: usize = 2000;

/// What would be said of a rule to one cluster.
#[derive(Clone)]
pub struct Suppose {
    /// Comes back with the answer.
    pub question: u64,
    /// The rule. One that is not saved has a uid that no rule has.
    pub uid: RuleUid,
    /// Its terms, where the cluster would hear of it.
    pub terms: Option<(Terms, TermsDigest)>,
    /// All that would be sent.
    pub intents: Vec<SupposedIntent>,
    /// What would go.
    pub tombstones: Vec<Tombstone>,
    /// The whole rule would go.
    pub removal: Option<DeletionPolicy>,
    /// What should go and is held by the hub.
    pub blocked: BTreeSet<SourceRef>,
    /// The hub holds whatever is there of the rule.
    pub holds_all: bool,
    /// Whether each write is tried as a dry run.
    pub rehearse: bool,
    /// Names fields without telling them.
    pub key: FieldsKey,
}

impl Suppose {
    /// A question in which nothing is said yet.
    pub fn nothing(question: u64, uid: RuleUid) -> Self {
        Self {
            question,
            uid,
            terms: None,
            intents: vec![],
            tombstones: vec![],
            removal: None,
            blocked: BTreeSet::new(),
            holds_all: false,
            rehearse: false,
            key: FieldsKey([0; 32]),
        }
    }
}

/// One source as a cluster would have it. Without `Debug`: it may hold content.
#[derive(Clone)]
pub struct SupposedIntent {
    /// The intent; its payload is empty where nothing is tried.
    pub intent: Intent,
    /// Bytes of its values.
    pub bytes: u64,
    /// Its type, for a kind that has types.
    pub object_type: Option<Arc<str>>,
    /// Names its fields.
    pub fields: [u8; 32],
}

/// The key of one question: what is equal has equal digests, and without the content a digest says nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FieldsKey(pub [u8; 32]);

impl FieldsKey {
    /// Names the fields of content but for those that are left alone.
    pub fn name(&self, mut content: Content, ignored: &BTreeSet<FieldPath>) -> [u8; 32] {
        for path in ignored {
            content.take_out(path);
        }
        let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
        let fields: BTreeMap<_, _> = content.fields.into_iter().filter(|(_, value)| !is_empty(value)).collect();
        let canonical = Content { fields, ..Content::default() }.to_bytes();
        let mut name = [0; 32];
        name.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), &canonical).as_ref());
        name
    }
}

/// What would become of the copies of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supposed {
    /// As asked.
    pub question: u64,
    /// Copy by copy.
    pub copies: Vec<SupposedCopy>,
    /// How many more there are.
    pub more: u32,
    /// Nothing of this answer follows.
    pub last: bool,
    /// Why there is no answer, in a sentence for a person; empty where there is one.
    pub unanswered: String,
}

/// What would become of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupposedCopy {
    /// The copy.
    pub copy: SourceRef,
    /// Its source, with the name of its copies.
    pub source: SourceRef,
    /// What would become of it.
    pub foreseen: Foreseen,
    /// Why, and a sentence for a person that never holds content.
    pub copy_error: Option<(Reason, String)>,
}

/// What would become of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Foreseen {
    /// It is made.
    Create,
    /// It is written.
    Change,
    /// It stays as it is.
    Unchanged,
    /// An object that is not ours is equal and becomes the copy.
    Adopt,
    /// An object that is not ours becomes the copy if it is equal; whether it is, is not told.
    AdoptIfEqual,
    /// An object that is not ours is overwritten, once the hub says so.
    Overwrite,
    /// It is deleted.
    Remove,
    /// Its namespace is no longer a target: it is deleted, once the hub says so.
    GiveUp,
    /// It stays, without marks.
    Retain,
    /// Another rule takes it over.
    HandOver,
    /// It should go, and the hub holds that.
    Blocked,
    /// Its namespace does not exist.
    Wait,
    /// Nothing is done about it.
    Rest,
    /// It cannot be as the rule wants it.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FieldMap;
    use serde_json::json;

    fn content(data: Value) -> Content {
        Content { fields: BTreeMap::from([("data".to_owned(), data)]), ..Content::default() }
    }

    #[test]
    fn named_field_depends_on_key_and_skips_ignored_ones() {
        let (key, other) = (FieldsKey([1; 32]), FieldsKey([2; 32]));
        let none = BTreeSet::new();
        let name = key.name(content(json!({"a": "1"})), &none);
        assert_eq!(name, key.name(content(json!({"a": "1"})), &none));
        assert_ne!(name, other.name(content(json!({"a": "1"})), &none));
        assert_ne!(name, key.name(content(json!({"a": "2"})), &none));
        let ignored = BTreeSet::from([FieldPath::new(FieldMap::Data, "a")]);
        assert_eq!(key.name(content(json!({"a": "1"})), &ignored), key.name(content(json!({"a": "2"})), &ignored));
        assert_eq!(key.name(content(json!({"a": "1"})), &ignored), key.name(Content::default(), &none));
    }
}
