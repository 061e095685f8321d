//! What leads an object to an apply that the API server cannot merge into it: the fields of the apply in place of the object's, in as
//! small a part of the object as the API server takes. Pure.
//!
//! An apply cannot remove an item of another client that excludes one of ours, a default that the new value of its neighbour forbids, or
//! the last field of a map. A patch of the part that has them can.
use std::collections::BTreeMap;

use json_patch::Patch;
use kube_core::DynamicObject;
use serde_json::{Map, Value, json};

use crate::body::{add, guarded};
use crate::managed_fields::is_our_apply;

/// Fields of a request that are no content.
const NO_CONTENT: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];
/// The field that identifies an item in most lists.
const ITEM_KEY: &str = "name";
/// What autoscalers set where a source leaves it out.
const REPLICAS: &str = "replicas";

/// Returns the patches that give an object the values of `body` in these fields, the smallest part of the object first: each one
/// replaces what contains that of the one before. `fields`: the names that lead to a refused field, without the items of lists.
pub fn replacements(object: &DynamicObject, body: &Value, fields: &[Vec<&str>]) -> Vec<Patch> {
    let fields = fields
        .iter()
        .filter(|path| !path.first().is_some_and(|field| NO_CONTENT.contains(field)));
    let fields: Vec<_> = fields.collect();
    let deepest = fields.iter().map(|path| path.len()).max().unwrap_or(0);
    let mut patches = Vec::new();
    for left_out in 0..deepest {
        let mut changes = BTreeMap::new();
        for path in &fields {
            let within = path.len().saturating_sub(left_out).max(1);
            collect(
                &object.data,
                body,
                &path[..within],
                &mut Vec::new(),
                &mut changes,
            );
        }
        let patch = patch(object, changes);
        patches.extend(patch.filter(|patch| patches.last() != Some(patch)));
    }
    patches
}

/// Returns the patch that gives an object all values of `body`, and takes from the agent what it applied before: in a version of the
/// kind that may lack fields of `body`.
pub fn whole(object: &DynamicObject, body: &Value) -> Option<Patch> {
    let mut changes = BTreeMap::new();
    let fields = body.as_object().into_iter().flatten();
    for (field, _) in fields.filter(|(field, _)| !NO_CONTENT.contains(&field.as_str())) {
        collect(&object.data, body, &[field], &mut Vec::new(), &mut changes);
    }
    let mut entries = object.metadata.managed_fields.clone()?;
    entries.retain(|entry| !is_our_apply(entry));
    changes.insert(
        vec!["metadata".to_owned(), "managedFields".to_owned()],
        json!(entries),
    );
    patch(object, changes)
}

/// Values by the path to them.
type Changes = BTreeMap<Vec<String>, Value>;

fn patch(object: &DynamicObject, changes: Changes) -> Option<Patch> {
    let mut outer: Changes = BTreeMap::new();
    for (path, value) in changes {
        // In this order a part comes after what contains it.
        let last = outer.last_key_value();
        if !last.is_some_and(|(last, _)| path.starts_with(last)) {
            outer.insert(path, value);
        }
    }
    let changes = outer.into_iter().map(|(path, value)| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        add(&path, value)
    });
    let changes: Vec<_> = changes.collect();
    (!changes.is_empty()).then(|| guarded(object, changes))
}

/// Collects the maps and lists at a path in which an object differs from what is wanted: of lists on the way, in each item that both
/// have.
fn collect(
    present: &Value,
    wanted: &Value,
    path: &[&str],
    at: &mut Vec<String>,
    changes: &mut Changes,
) {
    match (present, wanted, path) {
        (Value::Array(present), Value::Array(wanted), [_, ..]) => {
            let named = wanted.iter().rev();
            let named: BTreeMap<&str, &Value> = named
                .filter_map(|item| Some((item.get(ITEM_KEY)?.as_str()?, item)))
                .collect();
            for (number, item) in present.iter().enumerate() {
                let other = match item.get(ITEM_KEY).and_then(Value::as_str) {
                    Some(name) => named.get(name).copied(),
                    None => wanted.get(number),
                };
                if let Some(other) = other {
                    at.push(number.to_string());
                    collect(item, other, path, at, changes);
                    at.pop();
                }
            }
        }
        (Value::Object(present), Value::Object(wanted), [field, rest @ ..]) => {
            if let (Some(present), Some(wanted)) = (present.get(*field), wanted.get(*field)) {
                at.push((*field).to_owned());
                collect(present, wanted, rest, at, changes);
                at.pop();
            }
        }
        (Value::Object(present), Value::Object(wanted), []) => {
            let wanted = with_replicas(present, wanted);
            if *present != wanted {
                changes.insert(at.clone(), Value::Object(wanted));
            }
        }
        (Value::Array(present), Value::Array(wanted), []) if present != wanted => {
            changes.insert(at.clone(), wanted.clone().into());
        }
        _ => {}
    }
}

/// The wanted map, with the replicas of the present one if it names none.
fn with_replicas(present: &Map<String, Value>, wanted: &Map<String, Value>) -> Map<String, Value> {
    let mut wanted = wanted.clone();
    if let Some(replicas) = present
        .get(REPLICAS)
        .filter(|_| !wanted.contains_key(REPLICAS))
    {
        wanted.insert(REPLICAS.to_owned(), replicas.clone());
    }
    wanted
}

#[cfg(test)]
mod tests {
    use json_patch::PatchOperation;

    use super::*;

    fn object(spec: &Value) -> DynamicObject {
        let ours = json!({
            "manager": "runnel-agent", "operation": "Apply", "apiVersion": "x/v1", "fieldsV1": {"f:spec": {}},
        });
        let theirs =
            json!({"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}});
        let metadata = json!({
            "name": "x", "namespace": "a", "uid": "u", "resourceVersion": "5", "managedFields": [ours, theirs],
        });
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    /// The specs that result from the patches, one after the other.
    fn specs(present: &Value, wanted: &Value, path: &[&str]) -> Vec<Value> {
        let object = object(present);
        let patches = replacements(&object, &json!({"spec": wanted}), &[path.to_vec()]);
        let spec_after = |patch: Patch| {
            assert!(
                patch
                    .0
                    .iter()
                    .any(|one| matches!(one, PatchOperation::Test(_)))
            );
            let mut changed = serde_json::to_value(&object).unwrap();
            json_patch::patch(&mut changed, &patch).unwrap();
            changed["spec"].clone()
        };
        patches.into_iter().map(spec_after).collect()
    }

    #[test]
    fn list_in_an_item_is_replaced_before_what_contains_it() {
        let pod = |ports: Value, others: Value| {
            let own = json!({"name": "app", "image": "a", "ports": ports});
            let mut containers = vec![own];
            containers.extend(others.as_array().unwrap().clone());
            json!({"template": {"spec": {"containers": containers, "dnsPolicy": "Default"}}})
        };
        let sidecar = json!([{"name": "injected", "image": "b"}]);
        let present = pod(
            json!([{"name": "web", "containerPort": 8080}]),
            sidecar.clone(),
        );
        let mut wanted = pod(json!([{"name": "web", "containerPort": 80}]), json!([]));
        wanted["template"]["spec"]
            .as_object_mut()
            .unwrap()
            .remove("dnsPolicy");
        let path = ["spec", "template", "spec", "containers", "ports", "name"];
        let specs = specs(&present, &wanted, &path);
        let first = pod(json!([{"name": "web", "containerPort": 80}]), sidecar);
        assert_eq!(specs[0], first, "what others added stays");
        assert_eq!(specs.last(), Some(&wanted));
        assert_eq!(specs.len(), 5, "ports, containers, pod, template, spec");
    }

    #[test]
    fn map_with_a_forbidden_default_is_replaced() {
        let present = json!({"replicas": 5, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
        let wanted = json!({"strategy": {"type": "Recreate"}});
        let specs = specs(&present, &wanted, &["spec", "strategy", "rollingUpdate"]);
        let kept = json!({"replicas": 5, "strategy": {"type": "Recreate"}});
        assert_eq!(specs, [kept.clone(), kept], "an autoscaler's replicas stay");
        // A map that loses its last field.
        let present = json!({"sync": {"automated": {"selfHeal": true}, "other": 1}});
        let wanted = json!({"sync": {"automated": {}}});
        let emptied = json!({"sync": {"automated": {}, "other": 1}});
        assert_eq!(
            super::tests::specs(&present, &wanted, &["spec", "sync", "automated"])[0],
            emptied
        );
    }

    #[test]
    fn equal_and_absent_fields_are_left_alone() {
        let spec = json!({"ports": [{"port": 80}], "type": "ClusterIP"});
        for path in [
            &["spec", "ports"][..],
            &["spec", "type"],
            &["spec", "missing"],
            &["metadata", "labels"],
            &["x"],
        ] {
            assert_eq!(specs(&spec, &spec, path), Vec::<Value>::new(), "{path:?}");
        }
    }

    #[test]
    fn whole_object_is_replaced_with_its_owner() {
        let (present, wanted) = (json!({"old": 1}), json!({"new": 2}));
        let object = object(&present);
        let body =
            json!({"apiVersion": "x/v2", "kind": "K", "metadata": {"name": "y"}, "spec": wanted});
        let mut changed = serde_json::to_value(&object).unwrap();
        json_patch::patch(&mut changed, &whole(&object, &body).unwrap()).unwrap();
        assert_eq!(
            (&changed["spec"], &changed["metadata"]["name"]),
            (&wanted, &json!("x"))
        );
        let managers = changed["metadata"]["managedFields"].as_array().unwrap();
        assert!(managers.len() == 1 && managers[0]["manager"] == "kubectl");
    }
}
