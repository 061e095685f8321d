//! A live object of the member cluster, reduced to the little that decisions need. Its content stays at the edge.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{DynamicObject, ObjectMeta};
use runnel_proto::model::{
    Content, FieldMap, FieldPath, FieldsKey, HUB_LABEL, IGNORED_ANNOTATION, Kind, MANAGED_BY_LABEL, NEWEST_LABEL,
    Payload, RETAINED_ANNOTATION, RULE_ANNOTATION, Revision, RuleUid, SEAL_ANNOTATION, SOURCE_ANNOTATION, SourceRef,
    VERSION_ANNOTATION, is_mark,
};
use serde_json::Value;

use crate::desired::NewPayload;
use crate::ignore;
use crate::policy::Facts;
use crate::records::IntentKey;
use crate::seal::{self, Identity, Seal, Sealer};

pub use crate::seal::Sealed;

/// The name under which the agent applies.
pub const FIELD_MANAGER: &str = "runnel-agent";

/// Whose a live object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Our copy.
    Ours,
    /// Was our copy once and was left on purpose; taken back by an intent with equal content.
    Retained,
    /// Carries our seal of another object: a clone that somebody made.
    Clone,
    /// A copy of another hub.
    OtherHub,
    /// A credential or another object that this cluster made itself: never taken over.
    Untouchable,
    /// Somebody else's.
    Foreign,
}

/// A live object, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// The object's uid.
    pub uid: Arc<str>,
    /// Its resourceVersion, compared for equality only.
    pub version: Arc<str>,
    /// Whose it is.
    pub ownership: Ownership,
    /// What was written, if it is ours and says so.
    pub sealed: Option<Box<Sealed>>,
    /// It is ours, and every mark and all content are exactly as they were written.
    pub intact: bool,
    /// What the policy judges of what was written, if it is intact.
    pub facts: Facts,
    /// Who else writes it, the latest first, unless it is an intact copy: field managers, for a person.
    pub others: Option<Arc<str>>,
    /// It is being deleted.
    pub terminating: bool,
    /// Which of several versions it is, where versions are kept; the highest became the newest last.
    pub number: u64,
    /// It is labelled as the newest of several versions.
    pub newest: bool,
    /// When our fields were last applied, in seconds since 1970.
    pub applied_at: i64,
}

impl Live {
    /// Whether the copy holds exactly this revision of this rule's source.
    pub fn holds(&self, rule: &RuleUid, source: &SourceRef, revision: &Revision) -> bool {
        let equal = |sealed: &Sealed| sealed.rule == *rule && sealed.source == *source && sealed.revision == *revision;
        self.ownership == Ownership::Ours && self.intact && self.sealed.as_deref().is_some_and(equal)
    }

    /// Whether all of its content is what was written, so that another copy can be made of it.
    pub fn is_whole(&self) -> bool {
        self.intact && self.sealed.as_ref().is_some_and(|sealed| sealed.ignored.is_empty())
    }
}

/// The name of a live object of a kind; `None` for one without a name or a namespace.
pub fn copy_of(kind: &Kind, metadata: &ObjectMeta) -> Option<SourceRef> {
    Some(SourceRef::new(kind.resource, metadata.namespace.as_deref()?, metadata.name.as_deref()?))
}

/// Reduces a live object. `None` for one without name, namespace, uid or resourceVersion, which no API server sends.
pub fn reduce(kind: &Kind, object: &DynamicObject, sealer: &Sealer) -> Option<(SourceRef, Live)> {
    let metadata = &object.metadata;
    let copy = copy_of(kind, metadata)?;
    let entry = apply_entry(metadata);
    let seal = annotation(metadata, SEAL_ANNOTATION).and_then(Seal::parse);
    let identity = seal.as_ref().map(|seal| sealer.check_identity(seal, &copy));
    let ownership = match ownership(metadata, identity, entry.is_some(), sealer.hub()) {
        Ownership::Foreign if is_untouchable(kind, object) => Ownership::Untouchable,
        other => other,
    };
    let source = annotation(metadata, SOURCE_ANNOTATION).and_then(SourceRef::parse);
    let source = source.map(|source| source.as_copy(&copy.name));
    let (mut sealed, mut intact, mut facts) = (None, false, Facts::default());
    if let (Some(Identity::Ours), Some(seal), Some(source)) = (identity, seal, source) {
        let owned = Owned::of(entry);
        let content = content(kind, object, &owned);
        let ignored = annotation(metadata, IGNORED_ANNOTATION).map(ignore::parse).unwrap_or_default();
        let written = Sealed { rule: seal.rule.clone(), source, revision: seal.revision, ignored };
        facts = Facts::of(kind, &content).digested(&content, &written.ignored);
        intact = owned.has_all_marks()
            && annotation(metadata, RETAINED_ANNOTATION).is_none()
            && sealer.check_content(&seal, &copy, &written, &ignore::mask(content, &written.ignored));
        sealed = Some(Box::new(written));
    }
    let live = Live {
        uid: metadata.uid.as_deref()?.into(),
        version: metadata.resource_version.as_deref()?.into(),
        ownership,
        sealed,
        intact,
        facts,
        others: if intact { None } else { others(kind, metadata) },
        terminating: metadata.deletion_timestamp.is_some(),
        number: annotation(metadata, VERSION_ANNOTATION).and_then(|number| number.parse().ok()).unwrap_or_default(),
        newest: metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(NEWEST_LABEL)),
        applied_at: entry.and_then(|entry| entry.time.as_ref()).map_or(0, |time| time.0.as_second()),
    };
    Some((copy, live))
}

/// The content of a live object as far as it is ours: the kind's fields, and the labels and annotations that our
/// Apply owns. `None` unless the seal proves that it is what was written for this rule, source and revision.
pub fn proven_content(kind: &Kind, object: &DynamicObject, sealer: &Sealer, expected: &Sealed) -> Option<Content> {
    let (_, live) = reduce(kind, object, sealer)?;
    if !live.holds(&expected.rule, &expected.source, &expected.revision) || !live.is_whole() {
        return None;
    }
    Some(content(kind, object, &Owned::of(apply_entry(&object.metadata))))
}

/// The content of an intact copy, for as long as nobody else has it: should the copy be damaged while the hub is away,
/// it can be put back.
pub fn learn(kind: &Kind, object: &DynamicObject, live: &Live) -> Option<NewPayload> {
    let sealed = live.sealed.as_ref().filter(|_| live.is_whole() && live.ownership == Ownership::Ours)?;
    let content = seal::canonical(&content(kind, object, &Owned::of(apply_entry(&object.metadata))));
    Some(NewPayload {
        key: IntentKey { rule: sealed.rule.clone(), source: sealed.source.clone() },
        revision: sealed.revision,
        payload: Payload::encode(content.to_bytes()),
    })
}

/// What an intact copy holds of an intent, and in which revision.
pub fn held(kind: &Kind, object: &DynamicObject, sealer: &Sealer, intent: &IntentKey) -> Option<(Revision, Payload)> {
    let (_, live) = reduce(kind, object, sealer)?;
    let learned = learn(kind, object, &live).filter(|learned| learned.key == *intent)?;
    Some((learned.revision, learned.payload))
}

/// Whether the fields of a live object equal the content's, labels and annotations and what is left alone aside.
pub fn has_equal_fields(kind: &Kind, object: &DynamicObject, content: &Content, ignored: &BTreeSet<FieldPath>) -> bool {
    let masked = |content: Content| seal::canonical(&ignore::mask(content, ignored)).fields;
    let live = Content { fields: fields(kind, object), ..Content::default() };
    masked(live) == masked(seal::canonical(content))
}

/// Names what [`has_equal_fields`] compares, by the key of a question.
pub fn named_fields(kind: &Kind, object: &DynamicObject, ignored: &BTreeSet<FieldPath>, key: &FieldsKey) -> [u8; 32] {
    key.name(Content { fields: fields(kind, object), ..Content::default() }, ignored)
}

/// Whether a field is ours: applied by us, and not changed by anybody since.
pub fn owns(object: &DynamicObject, path: &FieldPath) -> bool {
    let fields = apply_entry(&object.metadata).and_then(|entry| entry.fields_v1.as_ref()).map(|fields| &fields.0);
    let map = match path.map {
        FieldMap::Data | FieldMap::BinaryData => path.map.field().and_then(|field| fields?.get(format!("f:{field}"))),
        FieldMap::Labels => fields.and_then(|fields| fields.get("f:metadata")?.get("f:labels")),
        FieldMap::Annotations => fields.and_then(|fields| fields.get("f:metadata")?.get("f:annotations")),
    };
    map.is_some_and(|map| map.get(format!("f:{}", path.key)).is_some())
}

/// Whether it is of a name or type that no rule ever writes.
fn is_untouchable(kind: &Kind, object: &DynamicObject) -> bool {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    kind.refuses_name(name) || kind.refuses_type(object.data.get("type").and_then(Value::as_str))
}

/// Who else writes the object's content, by the names of their field managers: the latest first, at most three.
fn others(kind: &Kind, metadata: &ObjectMeta) -> Option<Arc<str>> {
    let writes = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let has = |field: &str| fields.is_some_and(|fields| fields.get(format!("f:{field}")).is_some());
        let of_whole_object = entry.subresource.as_deref().unwrap_or_default().is_empty();
        of_whole_object && (has("metadata") || kind.fields.iter().any(|field| has(field)))
    };
    let all = metadata.managed_fields.iter().flatten();
    let mut entries: Vec<_> =
        all.filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER)).filter(writes).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.time.as_ref().map(|time| time.0)));
    let mut names: Vec<String> = vec![];
    for entry in entries {
        let plain = |c: &char| c.is_ascii_alphanumeric() || "-_.:/".contains(*c);
        let name: String = entry.manager.iter().flat_map(|name| name.chars()).filter(plain).take(60).collect();
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(3);
    names.truncate(3);
    match (names.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(names.join(", ").into()),
        (false, more) => Some(format!("{} and {more} more", names.join(", ")).into()),
    }
}

/// The annotations of an object by key.
fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn ownership(metadata: &ObjectMeta, identity: Option<Identity>, applied: bool, hub: &str) -> Ownership {
    match identity {
        Some(Identity::Ours) => return Ownership::Ours,
        Some(Identity::Clone) => return Ownership::Clone,
        Some(Identity::OtherKey) | None => {}
    }
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(HUB_LABEL));
    if annotation(metadata, RETAINED_ANNOTATION).is_some() {
        Ownership::Retained
    } else if label.is_some_and(|label| label != hub) {
        Ownership::OtherHub
    } else if applied {
        Ownership::Ours
    } else {
        Ownership::Foreign
    }
}

fn apply_entry(metadata: &ObjectMeta) -> Option<&ManagedFieldsEntry> {
    metadata.managed_fields.as_ref()?.iter().find(|entry| is_our_apply(entry))
}

/// Whether this entry of `managedFields` is our server-side apply.
pub fn is_our_apply(entry: &ManagedFieldsEntry) -> bool {
    let of_whole_object = entry.subresource.as_deref().unwrap_or_default().is_empty();
    entry.manager.as_deref() == Some(FIELD_MANAGER) && entry.operation.as_deref() == Some("Apply") && of_whole_object
}

/// The labels and annotations that our Apply owns. The API server takes a field from us when somebody else changes
/// its value, so what is owned has the value that we gave it.
#[derive(Default)]
struct Owned<'a> {
    labels: BTreeSet<&'a str>,
    annotations: BTreeSet<&'a str>,
}

impl<'a> Owned<'a> {
    fn of(entry: Option<&'a ManagedFieldsEntry>) -> Self {
        let Some(fields) = entry.and_then(|entry| entry.fields_v1.as_ref()) else { return Self::default() };
        let keys = |part: &str| {
            let map = fields.0.get("f:metadata").and_then(|metadata| metadata.get(part)).and_then(Value::as_object);
            map.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix("f:")).collect()
        };
        Self { labels: keys("f:labels"), annotations: keys("f:annotations") }
    }

    fn has_all_marks(&self) -> bool {
        [MANAGED_BY_LABEL, HUB_LABEL].iter().all(|mark| self.labels.contains(mark))
            && [RULE_ANNOTATION, SOURCE_ANNOTATION, SEAL_ANNOTATION].iter().all(|mark| self.annotations.contains(mark))
    }
}

fn content(kind: &Kind, object: &DynamicObject, owned: &Owned<'_>) -> Content {
    let pick = |map: &Option<BTreeMap<String, String>>, keys: &BTreeSet<&str>| {
        let pairs = map.iter().flatten();
        pairs
            .filter(|(key, _)| keys.contains(key.as_str()) && !is_mark(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    Content {
        labels: pick(&object.metadata.labels, &owned.labels),
        annotations: pick(&object.metadata.annotations, &owned.annotations),
        fields: fields(kind, object),
    }
}

fn fields(kind: &Kind, object: &DynamicObject) -> BTreeMap<String, Value> {
    let present = kind.fields.iter().filter_map(|field| Some((*field, object.data.get(field)?)));
    present
        .filter(|(_, value)| !seal::is_empty(value))
        .map(|(field, value)| (field.to_owned(), value.clone()))
        .collect()
}
