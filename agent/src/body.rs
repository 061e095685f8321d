//! What is written: the body of an apply, and the patches that an apply cannot express. Pure.
use kube::api::DynamicObject;
use runnel_proto::model::{
    Content, HUB_LABEL, Kind, MANAGED_BY, MANAGED_BY_LABEL, RETAINED_ANNOTATION, RULE_ANNOTATION, Revision, RuleName,
    SEAL_ANNOTATION, SOURCE_ANNOTATION, SourceRef,
};
use serde_json::{Map, Value, json};

use crate::decide::Target;
use crate::live;
use crate::records::IntentKey;
use crate::seal::{Sealer, canonical};

/// What a copy is made of. Without `Debug`: it holds content.
pub struct Written<'a> {
    /// Its kind.
    pub kind: &'a Kind,
    /// Its name.
    pub copy: &'a SourceRef,
    /// Its intent.
    pub intent: &'a IntentKey,
    /// How the rule is called.
    pub rule: &'a RuleName,
    /// The revision.
    pub revision: &'a Revision,
    /// The content.
    pub content: &'a Content,
}

/// The body of the apply that makes the copy (no target: of the creation, which fails where any object exists).
pub fn apply(written: &Written<'_>, target: Option<&Target>, sealer: &Sealer) -> Value {
    let Written { kind, copy, intent, rule, revision, content } = written;
    let content = canonical(content);
    let seal = sealer.seal(copy, &intent.rule, &intent.source, revision, &content);
    let (mut labels, mut annotations) = (content.labels, content.annotations);
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    labels.insert(HUB_LABEL.to_owned(), sealer.hub().to_owned());
    annotations.insert(RULE_ANNOTATION.to_owned(), rule.to_string());
    annotations.insert(SOURCE_ANNOTATION.to_owned(), intent.source.plain().to_string());
    annotations.insert(SEAL_ANNOTATION.to_owned(), seal.to_string());
    let mut metadata = json!({
        "name": &*copy.name,
        "namespace": &*copy.namespace,
        "labels": labels,
        "annotations": annotations,
        // No object has this version: with it an apply creates or fails, and never merges into what is there.
        "resourceVersion": "1",
    });
    if let Some(target) = target {
        metadata["resourceVersion"] = json!(&*target.version);
        metadata["uid"] = json!(&*target.uid);
    }
    let mut body = Map::new();
    body.insert("apiVersion".to_owned(), json!(kind.api_version));
    body.insert("kind".to_owned(), json!(kind.kind));
    body.insert("metadata".to_owned(), metadata);
    body.extend(content.fields);
    Value::Object(body)
}

/// The JSON patch that removes from an applied object what an apply leaves: surplus keys and fields of others, and
/// the note that it was once retained. `None` if there is nothing of that.
pub fn surplus(kind: &Kind, object: &DynamicObject, content: &Content) -> Option<Value> {
    let wanted = canonical(content).fields;
    let mut removals = vec![];
    for field in kind.fields {
        let Some(present) = object.data.get(field) else { continue };
        match (present.as_object(), wanted.get(*field)) {
            (_, None) if present.is_null() || present.as_object().is_some_and(Map::is_empty) => {}
            (_, None) => removals.push(remove(&["", field])),
            (Some(present), Some(wanted)) if kind.exact_maps.contains(field) => {
                let keys = present.keys().filter(|key| wanted.get(key.as_str()).is_none());
                removals.extend(keys.map(|key| remove(&["", field, key])));
            }
            (_, Some(_)) => {}
        }
    }
    let annotations = object.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(RETAINED_ANNOTATION)) {
        removals.push(remove(&["", "metadata", "annotations", RETAINED_ANNOTATION]));
    }
    (!removals.is_empty()).then(|| guarded(object, removals))
}

/// The JSON patch that takes our marks and our managed fields off a copy and notes which rule left it.
pub fn retain(object: &DynamicObject, rule: &RuleName) -> Value {
    let metadata = &object.metadata;
    let mut changes = vec![];
    for label in [MANAGED_BY_LABEL, HUB_LABEL] {
        if metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label)) {
            changes.push(remove(&["", "metadata", "labels", label]));
        }
    }
    for annotation in [RULE_ANNOTATION, SOURCE_ANNOTATION, SEAL_ANNOTATION] {
        if metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(annotation)) {
            changes.push(remove(&["", "metadata", "annotations", annotation]));
        }
    }
    if metadata.annotations.is_none() {
        changes.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    let path = pointer(&["", "metadata", "annotations", RETAINED_ANNOTATION]);
    changes.push(json!({"op": "add", "path": path, "value": rule.to_string()}));
    let ours = metadata.managed_fields.iter().flatten().position(live::is_our_apply);
    if let Some(position) = ours {
        changes.push(remove(&["", "metadata", "managedFields", &position.to_string()]));
    }
    guarded(object, changes)
}

/// The changes, behind tests that fail where the object is another one by now, or has changed.
fn guarded(object: &DynamicObject, changes: Vec<Value>) -> Value {
    let mut all = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": object.metadata.uid}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.metadata.resource_version}),
    ];
    all.extend(changes);
    Value::Array(all)
}

fn remove(path: &[&str]) -> Value {
    json!({"op": "remove", "path": pointer(path)})
}

fn pointer(path: &[&str]) -> String {
    path.iter().map(|part| part.replace('~', "~0").replace('/', "~1")).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
