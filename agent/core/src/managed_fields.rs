//! The fields of a copy that the agent manages. Pure.
//!
//! `managedFields` names the fields that the agent applied. A rule may ignore fields: the agent
//! writes them when it creates a copy, and neither compares nor writes them later.
//!
//! The list of ignored fields is an annotation of the copy, under its seal. So an agent that has
//! just started compares the sealed fields, and notices that the rule names others.
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube_core::{DynamicObject, ObjectMeta};
use runnel_proto::model::{Content, FieldMap, FieldPath};
use serde_json::Value;

use crate::field_set::FieldSet;

/// The field manager of the agent.
pub const FIELD_MANAGER: &str = "runnel-agent";

/// Returns the entry of the agent's own server-side apply.
pub fn apply_entry(metadata: &ObjectMeta) -> Option<&ManagedFieldsEntry> {
    metadata
        .managed_fields
        .as_ref()?
        .iter()
        .find(|entry| is_our_apply(entry))
}

/// Whether this entry is the agent's own server-side apply.
pub fn is_our_apply(entry: &ManagedFieldsEntry) -> bool {
    let of_whole_object = entry.subresource.as_deref().unwrap_or_default().is_empty();
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && of_whole_object
}

/// Whether the agent owns a field: it applied the field, and no other client has changed it since.
pub fn owns(object: &DynamicObject, path: &FieldPath) -> bool {
    let fields = apply_entry(&object.metadata)
        .and_then(|entry| entry.fields_v1.as_ref())
        .map(|fields| &fields.0);
    let map = match path.map {
        FieldMap::Data | FieldMap::BinaryData => path
            .map
            .field()
            .and_then(|field| fields?.get(format!("f:{field}"))),
        FieldMap::Labels => fields.and_then(|fields| fields.get("f:metadata")?.get("f:labels")),
        FieldMap::Annotations => {
            fields.and_then(|fields| fields.get("f:metadata")?.get("f:annotations"))
        }
    };
    map.is_some_and(|map| map.get(format!("f:{}", path.key)).is_some())
}

/// Returns the top-level fields of an object with what the agent applied in them: neither defaults nor fields of other
/// managers. An object whose managed fields cannot be read has none.
pub fn applied_fields(object: &DynamicObject) -> BTreeMap<String, Value> {
    let set = |entry: &ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref()?;
        FieldSet::parse(&fields.0).ok()
    };
    let entries = object.metadata.managed_fields.iter().flatten();
    let others = entries.filter(|entry| !is_our_apply(entry)).filter_map(set);
    let others = others.fold(FieldSet::default(), |all, other| all.union(&other));
    let ours = apply_entry(&object.metadata)
        .and_then(set)
        .unwrap_or_default();
    match ours.without("metadata").project(&object.data, &others) {
        Value::Object(fields) => fields.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

/// Formats the fields for the annotation of a copy.
pub fn format_ignored(ignored: &BTreeSet<FieldPath>) -> String {
    ignored
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Parses the output of [`format_ignored`]. It skips invalid paths: the seal does not match then, and the
/// agent corrects the copy.
pub fn parse_ignored(text: &str) -> BTreeSet<FieldPath> {
    text.split(' ').filter_map(FieldPath::parse).collect()
}

/// Returns the content without these fields.
pub fn mask_ignored(mut content: Content, ignored: &BTreeSet<FieldPath>) -> Content {
    for path in ignored {
        content.remove(path);
    }
    content
}

/// Returns the content with the live values of these fields, if the agent owns them.
///
/// Fields of other owners are left out, so that they stay with their owners. An apply would delete
/// a field of ours that is left out.
pub fn with_ignored_values(
    mut content: Content,
    ignored: &BTreeSet<FieldPath>,
    object: &DynamicObject,
) -> Content {
    for path in ignored {
        content.remove(path);
        let Some(value) = value(object, path).filter(|_| owns(object, path)) else {
            continue;
        };
        match (path.map.field(), path.map) {
            (Some(field), _) => {
                let map = content
                    .fields
                    .entry(field.to_owned())
                    .or_insert_with(|| Value::Object(serde_json::Map::new()));
                if let Some(map) = map.as_object_mut() {
                    map.insert(path.key.clone(), Value::String(value.to_owned()));
                }
            }
            (None, FieldMap::Labels) => {
                drop(content.labels.insert(path.key.clone(), value.to_owned()))
            }
            (None, _) => drop(
                content
                    .annotations
                    .insert(path.key.clone(), value.to_owned()),
            ),
        }
    }
    content
}

fn value<'a>(object: &'a DynamicObject, path: &FieldPath) -> Option<&'a str> {
    match (path.map.field(), path.map) {
        (Some(field), _) => object.data.get(field)?.get(&path.key)?.as_str(),
        (None, FieldMap::Labels) => object
            .metadata
            .labels
            .as_ref()?
            .get(&path.key)
            .map(String::as_str),
        (None, _) => object
            .metadata
            .annotations
            .as_ref()?
            .get(&path.key)
            .map(String::as_str),
    }
}
