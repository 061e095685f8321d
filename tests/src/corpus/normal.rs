//! Objects without what differs between any two clusters.

use runnel_api::SERVER_METADATA;
use runnel_proto::model::pointer_escaped;
use serde_json::{Map, Value};

use crate::scene::MANAGED_BY;

/// What an API server allocates for a Service.
const ALLOCATED: [&str; 3] = ["clusterIP", "clusterIPs", "healthCheckNodePort"];
/// The volume that an API server adds to a Pod, with a random end.
const TOKEN_VOLUME: &str = "kube-api-access-";
/// The labels by which a Job finds its Pods, with its uid.
const JOB_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Returns an object without status, marks of Runnel, and what its API server has generated. What the manifest itself has of
/// the latter stays.
pub(super) fn normal(mut object: Value, manifest: &Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| !SERVER_METADATA.contains(&field.as_str()));
        for field in ["labels", "annotations"] {
            remove_marks(metadata, field);
        }
    }
    match object["kind"].as_str() {
        Some("Service") => remove_allocated(&mut object["spec"], &manifest["spec"]),
        Some("Job") => {
            for place in [
                "/spec/selector/matchLabels",
                "/spec/template/metadata/labels",
            ] {
                let given = manifest.pointer(place);
                let labels = object.pointer_mut(place).and_then(Value::as_object_mut);
                if let Some(labels) = labels {
                    labels.retain(|label, _| {
                        !JOB_LABELS.contains(&label.as_str())
                            || given.is_some_and(|given| given.get(label).is_some())
                    });
                }
            }
        }
        Some("Pod") => rename_volumes(&mut object),
        Some("ReplicationController") => remove_default_labels(&mut object, manifest),
        _ => {}
    }
    object
}

/// Without a label, a ReplicationController gets those of its template. A copy has labels: Runnel's.
fn remove_default_labels(object: &mut Value, manifest: &Value) {
    let metadata = object["metadata"].as_object_mut();
    if let Some(metadata) = metadata.filter(|_| manifest["metadata"].get("labels").is_none()) {
        metadata.remove("labels");
    }
}

fn remove_marks(metadata: &mut Map<String, Value>, field: &str) {
    let Some(marks) = metadata.get_mut(field).and_then(Value::as_object_mut) else {
        return;
    };
    marks.retain(|mark, _| !mark.starts_with("runnel.dev/") && mark != MANAGED_BY);
    if marks.is_empty() {
        metadata.remove(field);
    }
}

fn remove_allocated(spec: &mut Value, given: &Value) {
    let Some(fields) = spec.as_object_mut() else {
        return;
    };
    fields.retain(|field, _| !ALLOCATED.contains(&field.as_str()) || given.get(field).is_some());
    let ports = fields.get_mut("ports").and_then(Value::as_array_mut);
    for (at, port) in ports.into_iter().flatten().enumerate() {
        if given["ports"][at].get("nodePort").is_none()
            && let Some(port) = port.as_object_mut()
        {
            port.remove("nodePort");
        }
    }
}

fn rename_volumes(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with(TOKEN_VOLUME) => {
            text.truncate(TOKEN_VOLUME.len());
        }
        Value::Array(items) => items.iter_mut().for_each(rename_volumes),
        Value::Object(fields) => fields.values_mut().for_each(rename_volumes),
        _ => {}
    }
}

/// Returns the places in which a copy differs from the plain object, with both values.
pub(super) fn differences(copy: &Value, plain: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(copy, plain, String::new(), &mut found);
    found
}

fn compare(copy: &Value, plain: &Value, pointer: String, found: &mut Vec<String>) {
    match (copy, plain) {
        (Value::Object(one), Value::Object(other)) => {
            let added = other.keys().filter(|key| !one.contains_key(*key));
            for key in one.keys().chain(added) {
                let pointer = format!("{pointer}/{}", pointer_escaped(key));
                let of = |fields: &Map<String, Value>| fields.get(key).cloned();
                match (of(one), of(other)) {
                    (Some(one), Some(other)) => compare(&one, &other, pointer, found),
                    (one, other) => found.push(difference(&pointer, one.as_ref(), other.as_ref())),
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (at, (one, other)) in one.iter().zip(other).enumerate() {
                compare(one, other, format!("{pointer}/{at}"), found);
            }
        }
        (one, other) if one == other => {}
        (one, other) => found.push(difference(&pointer, Some(one), Some(other))),
    }
}

fn difference(pointer: &str, copy: Option<&Value>, plain: Option<&Value>) -> String {
    let text = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
    format!("{pointer} is {}, plain {}", text(copy), text(plain))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn generated_values_do_not_count_and_given_ones_do() {
        let service = |ip: &str, port: u16| {
            json!({"kind": "Service", "metadata": {"name": "s", "uid": ip, "labels": {MANAGED_BY: "x"}},
                "spec": {"clusterIP": ip, "ports": [{"port": 1, "nodePort": port}]}, "status": {"x": ip}})
        };
        let given = json!({"spec": {"ports": [{"port": 1, "nodePort": 30000}]}});
        let one = normal(service("10.0.0.1", 30000), &given);
        assert_eq!(
            one,
            json!({"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 1, "nodePort": 30000}]}})
        );
        let other = normal(service("10.0.0.2", 30001), &given);
        assert_eq!(
            differences(&one, &other),
            ["/spec/ports/0/nodePort is 30000, plain 30001"]
        );
    }

    #[test]
    fn labels_of_a_template_are_no_difference() {
        let plain = json!({"kind": "ReplicationController", "metadata": {"name": "r", "labels": {"app": "a"}}});
        let copy = json!({"kind": "ReplicationController", "metadata": {"name": "r", "labels": {"runnel.dev/hub": "h"}}});
        let of = |object: &Value, given: &Value| normal(object.clone(), given);
        let none = json!({"metadata": {"name": "r"}});
        assert_eq!(of(&copy, &none), of(&plain, &none));
        let given = json!({"metadata": {"name": "r", "labels": {"app": "a"}}});
        assert_ne!(of(&copy, &given), of(&plain, &given));
    }

    #[test]
    fn absent_fields_differ_on_either_side() {
        let found = differences(&json!({"a": 1, "b": null}), &json!({"b": null, "c/d": [1]}));
        assert_eq!(
            found,
            ["/a is 1, plain absent", "/c~1d is absent, plain [1]"]
        );
    }
}
