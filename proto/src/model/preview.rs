//! The request to preview the copies of a rule, and an agent's answer. Nothing is changed.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ring::hmac;
use serde_json::Value;

use super::{
    Content, ContentRules, DeletionPolicy, FieldMap, FieldPath, Intent, Reason, RuleUid, SourceRef,
    Terms, TermsDigest, Tombstone, is_mark,
};

/// The most copies in one answer, and the most intents in one request.
pub const PREVIEW_LIMIT: usize = 2000;

/// The most differing paths of one copy that are listed; further ones are counted.
pub const DIFF_LIMIT: usize = 20;
/// The most copies of one question that an agent reads only to list the paths in which they differ.
pub const DIFF_COPIES: usize = 200;
/// The most digests of one object in a question.
pub const DIFF_FIELDS: usize = 256;
/// Maximum length of a value in a diff.
const VALUE_LIMIT: usize = 40;

/// Digests of the fields of content, by path.
pub type FieldDigests = BTreeMap<String, [u8; 16]>;

/// The previewed state of a rule in one cluster.
#[derive(Clone)]
pub struct PreviewRequest {
    /// The id of the question, repeated in the answer.
    pub question: u64,
    /// The rule's uid; an unsaved rule has a unique one.
    pub uid: RuleUid,
    /// Its terms, if the rule would be sent to the cluster.
    pub terms: Option<(Terms, TermsDigest)>,
    /// All desired intents.
    pub intents: Vec<PreviewIntent>,
    /// The removed sources.
    pub tombstones: Vec<Tombstone>,
    /// The whole rule is removed.
    pub removal: Option<DeletionPolicy>,
    /// Sources whose removal the hub blocks.
    pub blocked: BTreeSet<SourceRef>,
    /// The hub blocks every removal of the rule.
    pub blocks_all: bool,
    /// Whether each write is tried as a dry run.
    pub dry_run: bool,
    /// The key of field digests, which do not disclose values.
    pub key: FieldsKey,
}

impl PreviewRequest {
    /// Returns an empty request.
    pub fn nothing(question: u64, uid: RuleUid) -> Self {
        Self {
            question,
            uid,
            terms: None,
            intents: vec![],
            tombstones: vec![],
            removal: None,
            blocked: BTreeSet::new(),
            blocks_all: false,
            dry_run: false,
            key: FieldsKey([0; 32]),
        }
    }
}

/// The desired state of one source. Without `Debug`: it may contain content.
#[derive(Clone)]
pub struct PreviewIntent {
    /// The intent; its payload is empty where nothing is tried.
    pub intent: Intent,
    /// Bytes of its values.
    pub bytes: u64,
    /// Its type, for a kind that has types.
    pub object_type: Option<Arc<str>>,
    /// The digest of its fields.
    pub fields: [u8; 32],
    /// Digests of its fields by path; absent if no diff is requested.
    pub digests: Option<Arc<FieldDigests>>,
}

/// The key of one request: equal content has equal digests, and a digest reveals nothing without
/// the content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FieldsKey(pub [u8; 32]);

impl FieldsKey {
    /// Returns the digest of the fields of content, without the ignored ones.
    pub fn name(&self, mut content: Content, ignored: &BTreeSet<FieldPath>) -> [u8; 32] {
        for path in ignored {
            content.remove(path);
        }
        let is_empty = |value: &Value| {
            value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
        };
        let fields: BTreeMap<_, _> = content
            .fields
            .into_iter()
            .filter(|(_, value)| !is_empty(value))
            .collect();
        let canonical = Content {
            fields,
            ..Content::default()
        }
        .to_bytes();
        let mut name = [0; 32];
        name.copy_from_slice(
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), &canonical).as_ref(),
        );
        name
    }

    /// Digests of each key of the maps of content, its labels and annotations included, and of each other field.
    pub fn digests(&self, rules: &ContentRules, content: &Content) -> FieldDigests {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut all = FieldDigests::new();
        let mut add = |path: String, value: &str| {
            let mut context = hmac::Context::with_key(&key);
            context.update(path.as_bytes());
            context.update(&[0]);
            context.update(value.as_bytes());
            let mut digest = [0; 16];
            digest.copy_from_slice(&context.sign().as_ref()[..16]);
            all.insert(path, digest);
        };
        for (field, value) in &content.fields {
            let map = [FieldMap::BinaryData, FieldMap::Data]
                .into_iter()
                .find(|map| map.field() == Some(field));
            match map.filter(|_| rules.exact_maps.contains(&field.as_str())) {
                Some(map) => {
                    for (key, value) in value.as_object().into_iter().flatten() {
                        add(
                            FieldPath::new(map, key.as_str()).to_string(),
                            value.as_str().unwrap_or_default(),
                        );
                    }
                }
                None if value.is_null() => {}
                None => add(format!("/{field}"), &value.to_string()),
            }
        }
        for (map, pairs) in [
            (FieldMap::Labels, &content.labels),
            (FieldMap::Annotations, &content.annotations),
        ] {
            for (key, value) in pairs.iter().filter(|(key, _)| !is_mark(key)) {
                add(FieldPath::new(map, key.as_str()).to_string(), value);
            }
        }
        all
    }
}

/// The outcome of a rule's copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewResult {
    /// The id of the question.
    pub question: u64,
    /// Copy by copy.
    pub copies: Vec<PreviewedCopy>,
    /// Number of further copies.
    pub more: u32,
    /// No more frames of this answer follow.
    pub last: bool,
    /// The reason why there is no answer; empty if there is one.
    pub unanswered: String,
}

/// The outcome of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewedCopy {
    /// The copy.
    pub copy: SourceRef,
    /// Its source, with the name of its copies.
    pub source: SourceRef,
    /// The outcome.
    pub previewed: PreviewOutcome,
    /// The reason, and a message that never contains content.
    pub copy_error: Option<(Reason, String)>,
    /// The differences from the existing object.
    pub diff: FieldDiff,
}

/// The paths in which a copy would change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldDiff {
    /// At most [`DIFF_LIMIT`] of them.
    pub changes: Vec<FieldChange>,
    /// Number of further paths.
    pub more: u32,
}

/// A path that would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// The path, such as `/data/color`.
    pub path: String,
    /// The change at the path.
    pub edit: FieldEdit,
    /// The present value as [`short_value`] has it; absent where it is not shown.
    pub old: Option<String>,
}

/// The change at one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldEdit {
    /// The path is added.
    Add,
    /// The value changes.
    Change,
    /// The path is removed.
    Remove,
}

impl FieldDiff {
    /// Adds a path.
    pub fn push(&mut self, change: FieldChange) {
        if self.changes.len() < DIFF_LIMIT {
            self.changes.push(change);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }
}

/// A value on one line in quotes, cut to 40 characters, with control characters escaped.
pub fn short_value(value: &str) -> String {
    let (mut quoted, mut room, mut cut) = (String::from('"'), VALUE_LIMIT, false);
    for c in value.chars() {
        let escaped = c.escape_debug();
        cut = escaped.len() > room;
        if cut {
            break;
        }
        room -= escaped.len();
        quoted.extend(escaped);
    }
    quoted.push_str(if cut { "\"..." } else { "\"" });
    quoted
}

/// The outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreviewOutcome {
    /// The copy is created.
    Create,
    /// The copy is updated.
    Change,
    /// The copy is unchanged.
    Unchanged,
    /// An object that is not ours is equal and becomes the copy.
    Adopt,
    /// An object that is not ours becomes the copy if it is equal. The answer does not disclose
    /// whether it is.
    AdoptIfEqual,
    /// An object that is not ours is overwritten.
    Overwrite,
    /// The copy is deleted.
    Remove,
    /// Its namespace is no longer a target: it is deleted after the hub has approved it.
    Prune,
    /// The copy is retained, without marks.
    Retain,
    /// Another rule adopts the copy.
    HandOver,
    /// The removal is blocked by the hub.
    Blocked,
    /// Its namespace does not exist.
    Wait,
    /// No action is needed.
    Noop,
    /// It cannot be as the rule requires.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn content(data: Value) -> Content {
        Content {
            fields: BTreeMap::from([("data".to_owned(), data)]),
            ..Content::default()
        }
    }

    #[test]
    fn digests_name_each_path_and_depend_on_its_value() {
        let key = FieldsKey([1; 32]);
        let rules = ContentRules::of("configmaps");
        let labels = BTreeMap::from([("team".to_owned(), "x".to_owned())]);
        let of = |data: Value| {
            key.digests(
                rules,
                &Content {
                    labels: labels.clone(),
                    ..content(data)
                },
            )
        };
        let (one, two) = (
            of(json!({"a": "1", "b/c": "2"})),
            of(json!({"a": "1", "b/c": "3"})),
        );
        assert_eq!(
            one.keys().collect::<Vec<_>>(),
            ["/data/a", "/data/b~1c", "/metadata/labels/team"]
        );
        assert!(one["/data/a"] == two["/data/a"] && one["/data/b~1c"] != two["/data/b~1c"]);
        assert_ne!(
            one["/data/a"],
            FieldsKey([2; 32]).digests(rules, &content(json!({"a": "1"})))["/data/a"]
        );
    }

    #[test]
    fn diff_lists_paths_up_to_its_limit_and_counts_the_others() {
        let mut diff = FieldDiff::default();
        for number in 0..DIFF_LIMIT + 3 {
            diff.push(FieldChange {
                path: format!("/data/{number}"),
                edit: FieldEdit::Add,
                old: None,
            });
        }
        assert_eq!((diff.changes.len(), diff.more), (DIFF_LIMIT, 3));
        let quoted = short_value(&"a\n".repeat(30));
        assert!(
            quoted.ends_with("\"...") && !quoted.contains('\n') && quoted.len() <= 46,
            "{quoted}"
        );
        assert_eq!(short_value("x"), "\"x\"");
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
        assert_eq!(
            key.name(content(json!({"a": "1"})), &ignored),
            key.name(content(json!({"a": "2"})), &ignored)
        );
        assert_eq!(
            key.name(content(json!({"a": "1"})), &ignored),
            key.name(Content::default(), &none)
        );
    }
}
