//! Builds the body of an apply, and the patches that an apply cannot express. Pure.
use std::collections::{BTreeMap, BTreeSet};

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube_core::DynamicObject;
use runnel_proto::model::{
    Content, FieldPath, HUB_LABEL, IGNORED_ANNOTATION, Kind, MANAGED_BY, MANAGED_BY_LABEL,
    MEMBER_ANNOTATION, MODE_ANNOTATION, NEWEST_LABEL, RETAINED_ANNOTATION,
    RETAINED_PROOF_ANNOTATION, RULE_ANNOTATION, RULE_LABEL, Revision, RuleName, SEAL_ANNOTATION,
    SOURCE_ANNOTATION, SourceRef, VERSION_ANNOTATION,
};
use serde_json::{Map, Value, json};

use crate::copy::{IntentKey, rule_label};
use crate::decide::ExpectedObject;
use crate::seal::{Sealed, Sealer, canonical};
use crate::{live, managed_fields};

/// The input of an apply. Without `Debug`: it contains content.
#[derive(Clone, Copy)]
pub struct ApplyInput<'a> {
    /// The kind of the copy.
    pub kind: &'a Kind,
    /// The copy.
    pub copy: &'a SourceRef,
    /// The intent of the copy.
    pub intent: &'a IntentKey,
    /// The name of the rule.
    pub rule: &'a RuleName,
    /// The revision of the content.
    pub revision: &'a Revision,
    /// The content.
    pub content: &'a Content,
    /// The content as the API server stores it, if it may differ from the sent one. The seal is for this form.
    pub stored: Option<&'a Content>,
    /// The fields that are written only when the copy is created.
    pub ignored: &'a BTreeSet<FieldPath>,
    /// The version number if the rule keeps versions. The copy is the newest version.
    pub version: Option<u64>,
    /// Whether the existing object is adopted: Runnel did not create it.
    pub adopted: bool,
}

/// The existing object that an apply changes.
pub struct ReplacedObject<'a> {
    /// Its uid and resourceVersion.
    pub target: &'a ExpectedObject,
    /// The object itself, needed only for ignored fields.
    pub object: Option<&'a DynamicObject>,
}

/// Returns the body of the apply. Without `over`, the apply creates the copy, and fails if an
/// object exists.
pub fn apply(
    written: &ApplyInput<'_>,
    over: Option<&ReplacedObject<'_>>,
    sealer: &Sealer,
) -> Value {
    let ApplyInput {
        kind,
        copy,
        intent,
        rule,
        revision,
        content,
        stored,
        ignored,
        version,
        adopted,
    } = written;
    let content = canonical(content);
    let (of, source) = (intent.rule.clone(), intent.source.clone());
    let sealed = Sealed {
        rule: of,
        source,
        revision: **revision,
        ignored: (*ignored).clone(),
    };
    let adopted = over.filter(|_| *adopted).map(|over| &*over.target.uid);
    let seal = sealer.seal(
        copy,
        &sealed,
        &managed_fields::mask_ignored(stored.map_or_else(|| content.clone(), canonical), ignored),
        adopted,
    );
    let content = match over.and_then(|over| over.object) {
        Some(object) => canonical(&managed_fields::with_ignored_values(
            content, ignored, object,
        )),
        None => content,
    };
    let (mut labels, mut annotations) = (content.labels, content.annotations);
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    labels.insert(HUB_LABEL.to_owned(), sealer.hub().to_owned());
    labels.extend(rule_label(&intent.rule).map(|uid| (RULE_LABEL.to_owned(), uid.to_owned())));
    annotations.insert(RULE_ANNOTATION.to_owned(), rule.to_string());
    annotations.insert(
        SOURCE_ANNOTATION.to_owned(),
        intent.source.plain().to_string(),
    );
    annotations.insert(SEAL_ANNOTATION.to_owned(), seal.to_string());
    annotations.insert(MEMBER_ANNOTATION.to_owned(), sealer.member().to_owned());
    if !ignored.is_empty() {
        annotations.insert(
            IGNORED_ANNOTATION.to_owned(),
            managed_fields::format_ignored(ignored),
        );
    }
    if let Some(mode) = content.mode {
        annotations.insert(MODE_ANNOTATION.to_owned(), mode.as_str().to_owned());
    }
    if let Some(version) = version {
        labels.insert(NEWEST_LABEL.to_owned(), "true".to_owned());
        annotations.insert(VERSION_ANNOTATION.to_owned(), version.to_string());
    }
    let mut metadata = json!({
        "name": &*copy.name,
        "labels": labels,
        "annotations": annotations,
        // No object has this version: the apply creates the object or fails, and never merges into
        // an existing object.
        "resourceVersion": "1",
    });
    if let Some(namespace) = copy.optional_namespace() {
        metadata["namespace"] = json!(namespace);
    }
    if let Some(ReplacedObject { target, .. }) = over {
        metadata["resourceVersion"] = json!(&*target.version);
        metadata["uid"] = json!(&*target.uid);
    }
    let mut body = Map::new();
    body.insert("apiVersion".to_owned(), json!(&*kind.api_version));
    body.insert("kind".to_owned(), json!(&*kind.kind));
    body.insert("metadata".to_owned(), metadata);
    body.extend(content.fields);
    Value::Object(body)
}

/// Returns the apply that adopts an object: it adds Runnel's marks and changes nothing else. `kept` is what a former apply of the
/// agent owns in the object. The seal covers the object as it is.
pub fn mark(
    written: &ApplyInput<'_>,
    kept: &Content,
    over: &ReplacedObject<'_>,
    object: &DynamicObject,
    sealer: &Sealer,
) -> Value {
    let compared = live::compared_content(written.kind, object);
    let kept = Content {
        mode: written.content.mode,
        ..kept.clone()
    };
    let marks = ApplyInput {
        content: &kept,
        stored: Some(&compared),
        adopted: true,
        ..*written
    };
    apply(&marks, Some(over), sealer)
}

/// Returns the JSON patch that removes what an apply leaves: surplus keys and fields of others, and
/// stale annotations.
///
/// The stale annotations are those of an earlier retention, and the list of ignored fields if there
/// are none now. Returns `None` if nothing is to be removed.
pub fn surplus(
    kind: &Kind,
    object: &DynamicObject,
    content: &Content,
    ignored: &BTreeSet<FieldPath>,
) -> Option<Patch> {
    let wanted = canonical(content).fields;
    let is_left = |field: &str, key: &str| ignored.iter().any(|path| path.is_key(field, key));
    let leaves = |field: &str| ignored.iter().any(|path| path.top_field() == Some(field));
    let mut removals = vec![];
    for field in kind.content.fields {
        let Some(present) = object.data.get(field) else {
            continue;
        };
        match (present.as_object(), wanted.get(*field)) {
            (_, None) if present.is_null() || present.as_object().is_some_and(Map::is_empty) => {}
            (Some(present), wanted)
                if kind.content.exact_maps.contains(field)
                    && (wanted.is_some() || leaves(field)) =>
            {
                let is_wanted = |key: &str| wanted.is_some_and(|wanted| wanted.get(key).is_some());
                let keys = present
                    .keys()
                    .filter(|key| !is_wanted(key) && !is_left(field, key));
                removals.extend(keys.map(|key| remove(&[field, key])));
            }
            (_, None) if leaves(field) => {}
            (_, None) => removals.push(remove(&[field])),
            (_, Some(_)) => {}
        }
    }
    let annotations = object.metadata.annotations.as_ref();
    let stale = [
        (RETAINED_ANNOTATION, true),
        (RETAINED_PROOF_ANNOTATION, true),
        (IGNORED_ANNOTATION, ignored.is_empty()),
        (MODE_ANNOTATION, content.mode.is_none()),
    ];
    for (annotation, _) in stale.into_iter().filter(|(_, is_stale)| *is_stale) {
        if annotations.is_some_and(|annotations| annotations.contains_key(annotation)) {
            removals.push(remove(&["metadata", "annotations", annotation]));
        }
    }
    (!removals.is_empty()).then(|| guarded(object, removals))
}

/// Kubernetes limit for the keys and values of all annotations of an object, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Returns the JSON patch that prepares an object for an apply that the API server refused.
///
/// The exact maps become what is applied. Foreign annotations are removed, the largest first, until
/// ours fit. The patch removes nothing that the apply itself could not remove. Returns `None` if
/// nothing prevents the apply.
pub fn preparation_patch(
    kind: &Kind,
    object: &DynamicObject,
    body: &Value,
    ignored: &BTreeSet<FieldPath>,
) -> Option<Patch> {
    let is_left = |field: &str, key: &str| ignored.iter().any(|path| path.is_key(field, key));
    let mut changes = vec![];
    for field in kind.content.exact_maps {
        let present = object.data.get(field).and_then(Value::as_object);
        let mut wanted = body
            .get(field)
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        for (key, value) in present
            .into_iter()
            .flatten()
            .filter(|(key, _)| is_left(field, key))
        {
            wanted.entry(key.clone()).or_insert_with(|| value.clone());
        }
        match present {
            Some(present) if *present == wanted => {}
            None if wanted.is_empty() => {}
            Some(_) if wanted.is_empty() => changes.push(remove(&[field])),
            _ => changes.push(add(&[field], Value::Object(wanted))),
        }
    }
    let empty = Map::new();
    let ours = body["metadata"]["annotations"]
        .as_object()
        .unwrap_or(&empty);
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let mut room = ANNOTATIONS_LIMIT.saturating_sub(ours.iter().map(size).sum());
    let theirs = object
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| !ours.contains_key(*key));
    let mut theirs: Vec<(usize, &String)> = theirs
        .map(|(key, value)| (key.len() + value.len(), key))
        .collect();
    theirs.sort();
    for (size, key) in theirs {
        match room.checked_sub(size) {
            Some(left) => room = left,
            None => changes.push(remove(&["metadata", "annotations", key])),
        }
    }
    (!changes.is_empty()).then(|| guarded(object, changes))
}

/// Returns the JSON patch that drops the ownership of the fields that the agent has set by a patch, so that only those of its apply are its
/// own; `None` if there are none.
pub fn drop_patched(object: &DynamicObject) -> Option<Patch> {
    let mut entries = object.metadata.managed_fields.iter().flatten();
    let position = entries.position(managed_fields::is_our_patch)?;
    let entry = remove(&["metadata", "managedFields", &position.to_string()]);
    Some(guarded(object, vec![entry]))
}

/// Returns the JSON patch that drops the ownership of other managers in fields that the agent applied: they would stay when they
/// leave the source. `None` if no field is shared.
pub fn unshare(object: &DynamicObject) -> Option<Patch> {
    managed_fields::unshared(&object.metadata).map(|entries| with_entries(object, &entries))
}

/// Returns the JSON patch that makes the content of other managers the agent's own, so that the next apply removes what the source
/// does not have; `None` if there is none.
pub fn absorb(object: &DynamicObject) -> Option<Patch> {
    managed_fields::absorbed(object).map(|entries| with_entries(object, &entries))
}

fn with_entries(object: &DynamicObject, entries: &[ManagedFieldsEntry]) -> Patch {
    let entries = add(&["metadata", "managedFields"], json!(entries));
    guarded(object, vec![entries])
}

/// Whether an object has all labels and annotations of an apply, and any seal.
pub fn has_marks(object: &DynamicObject, request: &Value) -> bool {
    let metadata = &object.metadata;
    let has = |map: Option<&BTreeMap<String, String>>, wanted: &Value| {
        let mut wanted = wanted.as_object().into_iter().flatten();
        wanted.all(|(key, value)| {
            let present = map.and_then(|map| map.get(key));
            present.is_some_and(|present| key == SEAL_ANNOTATION || value == present)
        })
    };
    has(metadata.labels.as_ref(), &request["metadata"]["labels"])
        && has(
            metadata.annotations.as_ref(),
            &request["metadata"]["annotations"],
        )
}

/// Returns the JSON patch that removes the label of the newest version from a copy; `None` if the
/// copy has no such label.
pub fn demote(object: &DynamicObject) -> Option<Patch> {
    let labeled = object
        .metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(NEWEST_LABEL));
    labeled.then(|| guarded(object, vec![remove(&["metadata", "labels", NEWEST_LABEL])]))
}

/// Returns the JSON patch that removes our marks and our managed fields from a copy. The label
/// `app.kubernetes.io/managed-by` stays if another manager has set it, too.
///
/// With `proof` (Runnel created the object), the patch records the proof and the rule in
/// annotations. An adopted object gets no such annotation. An agent that ended before it had stored
/// the terms of a rule knows only its uid: the copy's own mark has the name then.
pub fn retain(object: &DynamicObject, rule: &RuleName, proof: Option<&str>) -> Patch {
    let metadata = &object.metadata;
    let mut changes = vec![];
    for label in [MANAGED_BY_LABEL, HUB_LABEL, RULE_LABEL, NEWEST_LABEL] {
        if metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(label))
            && !(label == MANAGED_BY_LABEL && managed_fields::is_shared_label(metadata, label))
        {
            changes.push(remove(&["metadata", "labels", label]));
        }
    }
    for annotation in [
        RULE_ANNOTATION,
        SOURCE_ANNOTATION,
        SEAL_ANNOTATION,
        MEMBER_ANNOTATION,
        IGNORED_ANNOTATION,
        MODE_ANNOTATION,
        VERSION_ANNOTATION,
    ] {
        if metadata
            .annotations
            .as_ref()
            .is_some_and(|annotations| annotations.contains_key(annotation))
        {
            changes.push(remove(&["metadata", "annotations", annotation]));
        }
    }
    if metadata.annotations.is_none() && proof.is_some() {
        changes.push(add(&["metadata", "annotations"], json!({})));
    }
    let notes = proof.map(|proof| {
        let marked = metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(RULE_ANNOTATION))
            .filter(|_| rule.kind.is_empty());
        [
            (
                RETAINED_ANNOTATION,
                marked.cloned().unwrap_or_else(|| rule.to_string()),
            ),
            (RETAINED_PROOF_ANNOTATION, proof.to_owned()),
        ]
    });
    for (note, value) in notes.into_iter().flatten() {
        changes.push(add(&["metadata", "annotations", note], json!(value)));
    }
    let ours = metadata
        .managed_fields
        .iter()
        .flatten()
        .position(managed_fields::is_our_apply);
    if let Some(position) = ours {
        changes.push(remove(&[
            "metadata",
            "managedFields",
            &position.to_string(),
        ]));
    }
    guarded(object, changes)
}

/// Adds tests to the changes: the patch fails if the object was replaced or has changed.
pub(crate) fn guarded(object: &DynamicObject, changes: Vec<PatchOperation>) -> Patch {
    let metadata = &object.metadata;
    let mut all = vec![
        test(&["metadata", "uid"], json!(metadata.uid)),
        test(
            &["metadata", "resourceVersion"],
            json!(metadata.resource_version),
        ),
    ];
    all.extend(changes);
    Patch(all)
}

pub(crate) fn add(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(path.iter().copied()),
        value,
    })
}

fn remove(path: &[&str]) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation {
        path: PointerBuf::from_tokens(path.iter().copied()),
    })
}

fn test(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation {
        path: PointerBuf::from_tokens(path.iter().copied()),
        value,
    })
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
