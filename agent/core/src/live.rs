//! A live object of the member cluster, reduced to what decisions need. Its content stays outside
//! the core.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube_core::{DynamicObject, ObjectMeta};
use runnel_proto::model::{
    BOOTSTRAPPING_LABEL, Content, CopyMode, FieldsKey, HUB_LABEL, IGNORED_ANNOTATION, Kind,
    MANAGED_BY, MANAGED_BY_LABEL, MEMBER_ANNOTATION, MODE_ANNOTATION, NAMESPACES, NEWEST_LABEL,
    ObservedHealth, Payload, RETAINED_ANNOTATION, RETAINED_PROOF_ANNOTATION, RULE_ANNOTATION,
    RULE_LABEL, Revision, RuleUid, SEAL_ANNOTATION, SOURCE_ANNOTATION, Scope, SourceRef,
    VERSION_ANNOTATION, is_mark, is_object_name, is_place, is_widened_by_additions,
};
use serde_json::Value;

use crate::copy::IntentKey;
use crate::copy::{NewPayload, rule_label};
use crate::feedback::PathValues;
use crate::health;
use crate::managed_fields::{self, FIELD_MANAGER, apply_entry};
use crate::policy::Facts;
use crate::seal::{self, Identity, Seal, Sealer};

pub use crate::seal::Sealed;

/// Limit of the length of a rule's uid that is accepted without a proof, in bytes.
const UID_LIMIT: usize = 64;

/// The owner of a live object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Our copy: Runnel created or [adopted](Live::adopted) it.
    Ours,
    /// A former copy that Runnel created and left on purpose. An intent with equal content takes it
    /// over again.
    Retained,
    /// A clone that another client made: it has our seal of another object.
    Clone,
    /// A copy of another hub.
    OtherHub,
    /// A copy of the agent of another `MemberCluster` of this hub.
    OtherMember,
    /// A credential or another object that this cluster created for itself. It is never taken over.
    Untouchable,
    /// Any other object.
    Foreign,
}

/// A live object, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// The object's uid.
    pub uid: Arc<str>,
    /// Its resourceVersion, compared only for equality.
    pub version: Arc<str>,
    /// Its owner.
    pub ownership: Ownership,
    /// Whether it is ours without a proof that Runnel created it: it was adopted, or its seal is
    /// missing.
    pub adopted: bool,
    /// The sealed state, if the agent's key made the seal for this object.
    pub sealed: Option<Box<Sealed>>,
    /// The intent that our copy names under a seal key that the agent no longer has. It is not
    /// proved: the agent reports it, and obeys orders to remove exactly this intent.
    pub unproved: Option<Box<IntentKey>>,
    /// Whether it is ours, and all marks and content are as the agent wrote them.
    pub intact: bool,
    /// The policy facts of its content, if it has such a seal.
    pub facts: Facts,
    /// Its other field managers, the latest first, for a person. `None` for an intact copy.
    pub others: Option<Arc<str>>,
    /// Whether other managers own fields of the agent's apply, too.
    pub is_shared: bool,
    /// Whether other clients have added fields to a copy that is not exact, of a kind that can allow more with each field.
    pub is_widened: bool,
    /// If it is being deleted: since when, and by which finalizers it still exists. For a person.
    pub terminating: Option<Arc<str>>,
    /// Its version number, if the rule keeps versions. The highest number was the last to become
    /// the newest.
    pub number: u64,
    /// Whether it has the label of the newest version.
    pub newest: bool,
    /// Whether it names the agent's `MemberCluster`. Copies of older agents name none.
    pub names_member: bool,
    /// The time of our last apply, in seconds since 1970.
    pub applied_at: i64,
    /// Its health, if it has one.
    pub health: Option<Box<ObservedHealth>>,
    /// Whether it has run to its end, as Jobs do.
    pub finished: bool,
    /// The values of the fields that rules have returned. [`reduce`] leaves them out.
    pub feedback: Option<Arc<PathValues>>,
}

/// The live object of an action. The action fails if the object was replaced or has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedObject {
    /// Its uid.
    pub uid: Arc<str>,
    /// Its resourceVersion.
    pub version: Arc<str>,
    /// Whether other managers own fields of the agent's apply, too: they would stay when they leave the source.
    pub is_shared: bool,
}

impl ExpectedObject {
    /// The object as it is.
    pub fn of(live: &Live) -> Self {
        Self {
            uid: live.uid.clone(),
            version: live.version.clone(),
            is_shared: live.is_shared,
        }
    }
}

impl Live {
    /// Describes an object that is not ours, for an error.
    pub(crate) fn describe(&self) -> String {
        let what = match self.ownership {
            Ownership::Retained => {
                "an object that was retained from an earlier copy exists here with other content"
            }
            Ownership::Clone => "an object that was cloned from another copy exists here",
            Ownership::OtherHub => "a copy of another hub exists here",
            Ownership::OtherMember => {
                "a copy of another MemberCluster of this hub exists here, whose agent is or was in this cluster"
            }
            Ownership::Untouchable => {
                "the object is created by this cluster itself, and is never taken over"
            }
            Ownership::Ours => {
                "an object that Runnel did not create exists here and differs from the source"
            }
            Ownership::Foreign => "an object that is not Runnel's exists here",
        };
        let who = self
            .others
            .as_ref()
            .map(|who| format!(" (written by {who})"))
            .unwrap_or_default();
        format!("{what}{who}")
    }

    /// Whether Runnel created this copy, so that its rule may change and delete it.
    pub fn is_own(&self) -> bool {
        self.ownership == Ownership::Ours && !self.adopted
    }

    /// Whether the copy is intact and contains exactly this revision of this rule's source.
    pub fn has_revision(&self, rule: &RuleUid, source: &SourceRef, revision: &Revision) -> bool {
        let equal = |sealed: &Sealed| {
            sealed.rule == *rule && sealed.source == *source && sealed.revision == *revision
        };
        self.ownership == Ownership::Ours
            && self.intact
            && self.sealed.as_deref().is_some_and(equal)
    }

    /// Returns the intent that our copy names, proved or not.
    pub fn intent(&self) -> Option<IntentKey> {
        let sealed = || {
            self.sealed
                .as_deref()
                .map(|sealed| (&sealed.rule, &sealed.source))
        };
        let unproved = || self.unproved.as_deref().map(|key| (&key.rule, &key.source));
        let (rule, source) = sealed()
            .or_else(unproved)
            .filter(|_| self.ownership == Ownership::Ours)?;
        Some(IntentKey {
            rule: rule.clone(),
            source: source.clone(),
        })
    }

    /// Whether an order to remove a copy of this intent applies to this object. Our copy without an
    /// intent has lost its marks.
    pub fn is_removable_for(&self, key: &IntentKey) -> bool {
        self.ownership == Ownership::Ours && self.intent().is_none_or(|own| own == *key)
    }

    /// Whether the copy is intact, and Runnel wrote all of its content, so that this can be used for
    /// another copy.
    pub fn has_full_content(&self) -> bool {
        self.intact
            && !self.adopted
            && self
                .sealed
                .as_ref()
                .is_some_and(|sealed| sealed.ignored.is_empty())
    }
}

/// Returns the name of a live object of a kind; `None` without a name, or without the namespace that an object of the kind
/// has.
pub fn copy_of(kind: &Kind, metadata: &ObjectMeta) -> Option<SourceRef> {
    let namespace = match kind.scope {
        Scope::Namespaced => metadata.namespace.as_deref()?,
        Scope::Cluster => "",
    };
    let name = metadata.name.as_deref()?;
    Some(SourceRef::new(&kind.resource, namespace, name))
}

/// Reduces a live object. Returns `None` without a name, the namespace of its kind, a uid or resourceVersion, which
/// no API server sends.
pub fn reduce(kind: &Kind, object: &DynamicObject, sealer: &Sealer) -> Option<(SourceRef, Live)> {
    let metadata = &object.metadata;
    let copy = copy_of(kind, metadata)?;
    let entry = apply_entry(metadata);
    let seal = annotation(metadata, SEAL_ANNOTATION).and_then(Seal::parse);
    let uid = metadata.uid.as_deref()?;
    let identity = seal
        .as_ref()
        .map(|seal| sealer.check_identity(seal, &copy, uid));
    let proof = annotation(metadata, RETAINED_PROOF_ANNOTATION);
    let retained = proof.is_some_and(|proof| sealer.check_retained(proof, &copy, uid));
    let ownership = match ownership(metadata, identity, retained, entry.is_some(), sealer) {
        Ownership::Foreign if is_untouchable(kind, object) => Ownership::Untouchable,
        other => other,
    };
    let source = annotation(metadata, SOURCE_ANNOTATION).and_then(SourceRef::parse);
    let source = source.map(|source| source.as_copy(&copy.name));
    let (mut sealed, mut intact, mut facts) = (None, false, Facts::default());
    let mut is_widened = false;
    // Only the text of another key's seal is known. Without a seal, nothing proves the origin of
    // the content.
    let is_unproved = seal.as_ref().is_none_or(|seal| seal.adopted);
    let adopted = ownership == Ownership::Ours && identity != Some(Identity::Ours) && is_unproved;
    let unproved = match (identity, &seal, &source) {
        (Some(Identity::OtherKey), Some(seal), Some(source)) if ownership == Ownership::Ours => {
            unproved(metadata, &seal.rule, source, sealer.hub())
        }
        _ => None,
    };
    if let (Some(Identity::Ours | Identity::Adopted), Some(seal), Some(source)) =
        (identity, seal, source)
    {
        let owned = Owned::of(entry);
        let content = if seal.adopted {
            compared_content(kind, object)
        } else {
            content(kind, object, &owned)
        };
        // The fields of another version may have other names.
        let is_of_version = !kind.content.is_owned()
            || entry.and_then(|entry| entry.api_version.as_deref()) == Some(&*kind.api_version);
        let ignored = annotation(metadata, IGNORED_ANNOTATION)
            .map(managed_fields::parse_ignored)
            .unwrap_or_default();
        let written = Sealed {
            rule: seal.rule.clone(),
            source,
            revision: seal.revision,
            ignored,
        };
        facts = Facts::of(kind.content, &content).digested(
            &content,
            &written.revision,
            &written.ignored,
        );
        facts.mode = mode(metadata);
        if seal.adopted {
            // The labels of its owner are nothing that a policy for copies denies.
            facts.labels = Arc::default();
        }
        intact = is_of_version
            && owned.has_all_marks(&seal.rule)
            && managed_fields::additions(kind, object, &content, &written.ignored).is_none()
            && annotation(metadata, RETAINED_ANNOTATION).is_none()
            && sealer.check_content(
                &seal,
                &copy,
                &written,
                &managed_fields::mask_ignored(content, &written.ignored),
            );
        is_widened = !seal.adopted
            && facts.mode.is_none()
            && is_widened_by_additions(&kind.resource)
            && managed_fields::added_by_others(object, &written.ignored).is_some();
        sealed = Some(Box::new(written));
    }
    let live = Live {
        uid: uid.into(),
        version: metadata.resource_version.as_deref()?.into(),
        ownership,
        adopted,
        sealed,
        unproved,
        intact,
        facts,
        others: if intact { None } else { others(kind, metadata) },
        is_shared: managed_fields::is_shared(metadata),
        is_widened,
        terminating: terminating(metadata),
        number: number(metadata, entry),
        newest: metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(NEWEST_LABEL)),
        names_member: annotation(metadata, MEMBER_ANNOTATION) == Some(sealer.member()),
        applied_at: entry
            .and_then(|entry| entry.time.as_ref())
            .map_or(0, |time| time.0.as_second()),
        health: health::observe(kind, object).map(Box::new),
        finished: health::is_finished(kind, object),
        feedback: None,
    };
    Some((copy, live))
}

/// Limit of the finalizers that are named.
const FINALIZERS_LIMIT: usize = 5;

/// Describes the deletion of an object, if it is being deleted.
fn terminating(metadata: &ObjectMeta) -> Option<Arc<str>> {
    let since = metadata.deletion_timestamp.as_ref()?.0;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    let is_plain = |name: &&String| name.len() <= 100 && name.bytes().all(plain);
    let names = metadata.finalizers.iter().flatten().filter(is_plain);
    let names: Vec<_> = names.take(FINALIZERS_LIMIT).map(String::as_str).collect();
    let reason = if names.is_empty() {
        "it has no finalizers and still stops".to_owned()
    } else {
        format!(
            "it exists until the controllers of its finalizers remove them: {}",
            names.join(", ")
        )
    };
    Some(format!("is being deleted here since {since}; {reason}").into())
}

/// Returns the version number if the agent owns the annotation. The API server removes our
/// ownership when another client changes it.
fn number(metadata: &ObjectMeta, entry: Option<&ManagedFieldsEntry>) -> u64 {
    let number = annotation(metadata, VERSION_ANNOTATION)
        .filter(|_| Owned::of(entry).has_annotation(VERSION_ANNOTATION));
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Returns the intent that a copy names under a seal key that no longer exists, if all its parts
/// are safe for a report.
fn unproved(
    metadata: &ObjectMeta,
    rule: &RuleUid,
    source: &SourceRef,
    hub: &str,
) -> Option<Box<IntentKey>> {
    let labeled = metadata
        .labels
        .as_ref()?
        .get(HUB_LABEL)
        .is_some_and(|label| label == hub);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let uid = rule.as_str();
    let is_uid = (1..=UID_LIMIT).contains(&uid.len()) && uid.bytes().all(plain);
    let is_name = |name: &str| is_object_name(&source.resource, name);
    let named = is_name(&source.name) && is_name(source.copy_name());
    let fits = labeled && is_uid && named && is_place(&source.namespace);
    fits.then(|| {
        Box::new(IntentKey {
            rule: rule.clone(),
            source: source.clone(),
        })
    })
}

/// Returns the content that our apply owns in an object, in the form in which the API server stores it. For the answer to
/// an apply.
pub fn applied_content(kind: &Kind, object: &DynamicObject) -> Content {
    let owned = Owned::of(apply_entry(&object.metadata));
    seal::canonical(&content(kind, object, &owned))
}

/// Returns our content of a live object: the kind's fields, and the labels and annotations that our
/// apply owns.
///
/// Returns `None` unless the seal proves that the agent wrote it for this rule, source and
/// revision.
pub fn proven_content(
    kind: &Kind,
    object: &DynamicObject,
    sealer: &Sealer,
    expected: &Sealed,
) -> Option<Content> {
    let (_, live) = reduce(kind, object, sealer)?;
    if !live.has_revision(&expected.rule, &expected.source, &expected.revision)
        || !live.has_full_content()
    {
        return None;
    }
    Some(content(
        kind,
        object,
        &Owned::of(apply_entry(&object.metadata)),
    ))
}

/// Returns the content of an intact copy. With it, the agent can correct the copy while the hub is
/// unreachable.
pub fn learn(kind: &Kind, object: &DynamicObject, live: &Live) -> Option<NewPayload> {
    let sealed = live
        .sealed
        .as_ref()
        .filter(|_| live.has_full_content() && live.ownership == Ownership::Ours)?;
    let content = applied_content(kind, object);
    Some(NewPayload {
        key: IntentKey {
            rule: sealed.rule.clone(),
            source: sealed.source.clone(),
        },
        revision: sealed.revision,
        payload: Payload::encode(content.to_bytes()),
    })
}

/// Returns the content of an adopted object that its seal covers: all fields of its owner but the status, and the labels and
/// annotations of a namespace, which has no other content. Runnel owns none of it.
pub fn compared_content(kind: &Kind, object: &DynamicObject) -> Content {
    let mut fields = fields_of(kind, object, |object| match &object.data {
        Value::Object(fields) => fields.clone().into_iter().collect(),
        _ => BTreeMap::new(),
    });
    if kind.content.is_owned() {
        fields.remove("status");
    }
    let metadata = &object.metadata;
    let of_namespace = |map: &Option<BTreeMap<String, String>>| {
        let map = map.as_ref().filter(|_| &*kind.resource == NAMESPACES);
        map.cloned().unwrap_or_default()
    };
    seal::canonical(&Content {
        version: kind.content.is_owned().then(|| kind.version.clone()),
        mode: None,
        labels: of_namespace(&metadata.labels),
        annotations: of_namespace(&metadata.annotations),
        fields,
    })
}

/// Returns what the agent's former apply owns in an object that is to be adopted, which an apply of marks alone would remove.
/// `None` if it was applied in another version, whose fields may have other names.
pub fn kept_content(kind: &Kind, object: &DynamicObject) -> Option<Content> {
    let entry = apply_entry(&object.metadata);
    let is_of_version =
        entry.is_none_or(|entry| entry.api_version.as_deref() == Some(&*kind.api_version));
    let kept = Content {
        fields: managed_fields::applied_fields(object),
        ..content(kind, object, &Owned::of(entry))
    };
    (is_of_version || kept.fields.is_empty()).then_some(kept)
}

/// Returns what a dry run sends to compare an object with content, given its [kept content](kept_content): labels and annotations
/// are compared without it, because an adoption adds none.
pub fn dry_content(kept: &Content, content: &Content) -> Content {
    Content {
        labels: kept.labels.clone(),
        annotations: kept.annotations.clone(),
        ..content.clone()
    }
}

/// Whether content has anything that an object can be compared with: the value of a field, or a label or annotation of a
/// namespace. No foreign object is adopted without.
pub fn is_comparable(kind: &Kind, content: &Content) -> bool {
    fn has_value(value: &Value) -> bool {
        match value {
            Value::Null => false,
            Value::Object(fields) => fields.values().any(has_value),
            Value::Array(items) => items.iter().any(has_value),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        }
    }
    let content = seal::canonical(content);
    let is_labeled = !content.labels.is_empty() || !content.annotations.is_empty();
    content.fields.values().any(has_value) || (&*kind.resource == NAMESPACES && is_labeled)
}

/// Whether an object equals this content, so that it can be adopted.
///
/// Its fields must be equal, including fields that a rule ignores. No label or annotation may have
/// another value. Missing labels and annotations are allowed, except those of a namespace: an adoption adds none. `applied` is the
/// answer to a dry run of an apply of the fields, for a kind without listed fields: its object equals the content if the apply
/// changes nothing.
pub fn is_adoptable(
    kind: &Kind,
    object: &DynamicObject,
    content: &Content,
    applied: Option<&DynamicObject>,
) -> bool {
    let content = seal::canonical(content);
    // Labels and annotations are all that a copy of a namespace has.
    let needs_all = &*kind.resource == NAMESPACES;
    let agrees = |present: Option<&BTreeMap<String, String>>, wanted: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| {
            present
                .and_then(|present| present.get(key))
                .map_or(!needs_all, |is| is == value)
        })
    };
    let (labels, annotations) = (
        object.metadata.labels.as_ref(),
        object.metadata.annotations.as_ref(),
    );
    // Our mark would replace the label of another managing tool.
    let manager = labels
        .and_then(|labels| labels.get(MANAGED_BY_LABEL))
        .is_none_or(|manager| manager == MANAGED_BY);
    let has_equal_fields = match applied {
        Some(applied) => applied.data == object.data,
        None if kind.content.is_owned() => false,
        None => {
            let live = Content {
                fields: fields(kind, object),
                ..Content::default()
            };
            seal::canonical(&live).fields == content.fields
        }
    };
    manager
        && has_equal_fields
        && agrees(labels, &content.labels)
        && agrees(annotations, &content.annotations)
}

/// Whether an object has any of the fields that [`is_adoptable`] compares.
pub fn has_fields(kind: &Kind, object: &DynamicObject) -> bool {
    !fields(kind, object).is_empty()
}

/// Returns the keyed digest of the fields that [`is_adoptable`] compares.
pub fn named_fields(kind: &Kind, object: &DynamicObject, key: &FieldsKey) -> [u8; 32] {
    key.name(
        Content {
            fields: fields(kind, object),
            ..Content::default()
        },
        &BTreeSet::new(),
    )
}

/// Whether no rule may write an object of this name or type.
fn is_untouchable(kind: &Kind, object: &DynamicObject) -> bool {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let labels = object.metadata.labels.as_ref();
    kind.content.refuses_name(name)
        || labels.is_some_and(|labels| labels.contains_key(BOOTSTRAPPING_LABEL))
        || kind
            .content
            .refuses_type(object.data.get("type").and_then(Value::as_str))
}

/// The API server's own entry for the fields that an object had before its first apply.
const BEFORE_APPLY: &str = "before-first-apply";

/// Returns the names of the other field managers of the object's content: the latest first, at most
/// three.
fn others(kind: &Kind, metadata: &ObjectMeta) -> Option<Arc<str>> {
    let writes = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let has =
            |field: &str| fields.is_some_and(|fields| fields.get(format!("f:{field}")).is_some());
        // Autoscalers write through the subresource scale.
        let is_of_content = matches!(entry.subresource.as_deref(), None | Some("" | "scale"));
        let has_content = || match kind.content.fields {
            [] => fields
                .and_then(Value::as_object)
                .is_some_and(|fields| fields.keys().any(|field| field != "f:status")),
            fields => fields.iter().any(|field| has(field)),
        };
        is_of_content && (has("metadata") || has_content())
    };
    let all = metadata.managed_fields.iter().flatten();
    let mut entries: Vec<_> = all
        .filter(|entry| !matches!(entry.manager.as_deref(), Some(FIELD_MANAGER | BEFORE_APPLY)))
        .filter(writes)
        .collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.time.as_ref().map(|time| time.0)));
    let mut names: Vec<String> = vec![];
    for entry in entries {
        let plain = |c: &char| c.is_ascii_alphanumeric() || "-_.:/".contains(*c);
        let name: String = entry
            .manager
            .iter()
            .flat_map(|name| name.chars())
            .filter(plain)
            .take(60)
            .collect();
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

/// Returns the annotation of an object with this key.
fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the mode that an object names.
fn mode(metadata: &ObjectMeta) -> Option<CopyMode> {
    CopyMode::parse(annotation(metadata, MODE_ANNOTATION)?)
}

fn ownership(
    metadata: &ObjectMeta,
    identity: Option<Identity>,
    retained: bool,
    applied: bool,
    sealer: &Sealer,
) -> Ownership {
    match identity {
        Some(Identity::Ours | Identity::Adopted) => return Ownership::Ours,
        Some(Identity::Clone) => return Ownership::Clone,
        Some(Identity::OtherKey) | None => {}
    }
    let label = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(HUB_LABEL));
    if retained && annotation(metadata, RETAINED_ANNOTATION).is_some() {
        Ownership::Retained
    } else if label.is_some_and(|label| label != sealer.hub()) {
        Ownership::OtherHub
    } else if applied && !sealer.has_copies_of(annotation(metadata, MEMBER_ANNOTATION)) {
        Ownership::OtherMember
    } else if applied {
        Ownership::Ours
    } else {
        Ownership::Foreign
    }
}

/// The labels and annotations that our apply owns.
///
/// The API server removes our ownership when another client changes a value. So an owned field has
/// the value that the agent wrote.
#[derive(Default)]
struct Owned<'a> {
    labels: BTreeSet<&'a str>,
    annotations: BTreeSet<&'a str>,
}

impl<'a> Owned<'a> {
    fn of(entry: Option<&'a ManagedFieldsEntry>) -> Self {
        let Some(fields) = entry.and_then(|entry| entry.fields_v1.as_ref()) else {
            return Self::default();
        };
        let keys = |part: &str| {
            let map = fields
                .0
                .get("f:metadata")
                .and_then(|metadata| metadata.get(part))
                .and_then(Value::as_object);
            map.into_iter()
                .flatten()
                .filter_map(|(key, _)| key.strip_prefix("f:"))
                .collect()
        };
        Self {
            labels: keys("f:labels"),
            annotations: keys("f:annotations"),
        }
    }

    fn has_annotation(&self, key: &str) -> bool {
        self.annotations.contains(key)
    }

    fn has_all_marks(&self, rule: &RuleUid) -> bool {
        let of_rule = rule_label(rule).map(|_| RULE_LABEL);
        [MANAGED_BY_LABEL, HUB_LABEL]
            .into_iter()
            .chain(of_rule)
            .all(|mark| self.labels.contains(mark))
            && [RULE_ANNOTATION, SOURCE_ANNOTATION, SEAL_ANNOTATION]
                .iter()
                .all(|mark| self.annotations.contains(mark))
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
        version: kind.content.is_owned().then(|| kind.version.clone()),
        mode: mode(&object.metadata).filter(|_| owned.has_annotation(MODE_ANNOTATION)),
        labels: pick(&object.metadata.labels, &owned.labels),
        annotations: pick(&object.metadata.annotations, &owned.annotations),
        fields: fields(kind, object),
    }
}

pub(crate) fn fields(kind: &Kind, object: &DynamicObject) -> BTreeMap<String, Value> {
    fields_of(kind, object, managed_fields::applied_fields)
}

/// Returns the listed fields of an object, or those that `of_others` gives for a kind without.
fn fields_of(
    kind: &Kind,
    object: &DynamicObject,
    of_others: impl FnOnce(&DynamicObject) -> BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    if kind.content.is_owned() {
        return of_others(object);
    }
    let present = kind
        .content
        .fields
        .iter()
        .filter_map(|field| Some((*field, object.data.get(field)?)));
    present
        .filter(|(_, value)| !seal::is_empty(value))
        .map(|(field, value)| (field.to_owned(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deletion_names_its_time_and_the_finalizers() {
        let metadata = |finalizers: Value| {
            let deleted =
                json!({"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": finalizers});
            terminating(&serde_json::from_value(deleted).unwrap()).unwrap()
        };
        assert_eq!(terminating(&ObjectMeta::default()), None);
        assert_eq!(
            &*metadata(json!(["example.org/db", "no name", "foregroundDeletion"])),
            "is being deleted here since 2026-01-02T03:04:05Z; it exists until the controllers of its finalizers remove them: \
             example.org/db, foregroundDeletion"
        );
        assert!(metadata(json!(null)).ends_with("; it has no finalizers and still stops"));
        let many: Vec<_> = (0..99).map(|n| format!("{n}{}", "x".repeat(90))).collect();
        assert!(metadata(json!(many)).len() <= runnel_proto::model::MESSAGE_LIMIT + 100);
    }

    #[test]
    fn roles_of_the_api_server_are_untouchable_by_name_or_label() {
        let (resource, group) = ("clusterroles", "rbac.authorization.k8s.io");
        let scope = runnel_proto::model::Scope::Cluster;
        let kind = Kind::new(group, "v1", "ClusterRole", resource, scope);
        let is_kept = |name: &str, labels: Value| {
            let metadata = json!({"name": name, "labels": labels});
            let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata});
            is_untouchable(&kind, &serde_json::from_value(role).unwrap())
        };
        assert!(is_kept("system:node", json!({})));
        assert!(is_kept(
            "system:of-a-newer-version",
            json!({"kubernetes.io/bootstrapping": "rbac-defaults"})
        ));
        assert!(!is_kept(
            "system:metrics-server",
            json!({"k8s-app": "metrics-server"})
        ));
    }
}
