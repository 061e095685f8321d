//! Fields that a rule ignores: the agent writes them when it creates a copy, and neither compares
//! nor writes them later. Pure.
//!
//! The list of these fields is an annotation of the copy, under its seal. So an agent that has just
//! started compares the sealed fields, and notices that the rule names others.
use std::collections::BTreeSet;

use kube::core::DynamicObject;
use runnel_proto::model::{Content, FieldMap, FieldPath};
use serde_json::Value;

use crate::managed_fields::owns;

/// Formats the fields for the annotation of a copy.
pub fn text(ignored: &BTreeSet<FieldPath>) -> String {
    ignored
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Parses the output of [`text`]. It skips invalid paths: the seal does not match then, and the
/// agent corrects the copy.
pub fn parse(text: &str) -> BTreeSet<FieldPath> {
    text.split(' ').filter_map(FieldPath::parse).collect()
}

/// Returns the content without these fields.
pub fn mask(mut content: Content, ignored: &BTreeSet<FieldPath>) -> Content {
    for path in ignored {
        content.take_out(path);
    }
    content
}

/// Returns the content with the live values of these fields, if the agent owns them.
///
/// Fields of other owners are left out, so that they stay with their owners. An apply would delete
/// a field of ours that is left out.
pub fn keep(
    mut content: Content,
    ignored: &BTreeSet<FieldPath>,
    object: &DynamicObject,
) -> Content {
    for path in ignored {
        content.take_out(path);
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
