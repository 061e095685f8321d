//! Forms of copies that are refused. A case is one line: it is read as a table.

use serde_json::{Value, json};

use super::cases::{Case, names};

/// Cases about the transformation of copies.
#[rustfmt::skip]
pub fn forms() -> Vec<Case> {
    let transform = |change: Value| json!({"transform": change});
    let overrides = |entry: Value| json!({"overrides": [entry]});
    let all = json!({"all": true});
    let secrets = json!([{"resources": ["configmaps", "secrets"], "names": ["*"]}]);
    let step = |step: Value| json!({"overrides": [{"clusters": {"all": true}, "jsonPatch": [step]}]});
    let many: serde_json::Map<String, Value> = names(65).into_iter().map(|name| (name, json!("x"))).collect();
    let only_secrets = json!([{"resources": ["secrets"], "names": ["*"]}]);
    let referenced = |from: Value| json!({"clusters": {"all": true}, "secretData": [{"key": "k", "valueFrom": {"secretKeyRef": from}}]});
    let one = json!({"clusters": all, "data": {"k": "v"}});
    vec![
        ("an unknown variable in a name", transform(json!({"name": "${source.uid}"})), &["spec.transform.name", "of variables there are", "${cluster.name}"]),
        ("a lone dollar in a name", transform(json!({"name": "a$b"})), &["spec.transform.name", "of variables there are"]),
        ("no version to keep", transform(json!({"versionedName": {"keep": 0}})), &["spec.transform.versionedName.keep", "greater than or equal to 1"]),
        ("an empty name", transform(json!({"name": ""})), &["spec.transform.name", "at least 1"]),
        ("a bad key to include", transform(json!({"keys": {"include": ["a/b"]}})), &["spec.transform.keys.include[0]", "write a key of data"]),
        ("too many keys to exclude", transform(json!({"keys": {"exclude": names(65)}})), &["spec.transform.keys.exclude", "at most 64"]),
        ("too many renames", transform(json!({"keys": {"rename": many}})), &["spec.transform.keys.rename", "at most 64"]),
        ("a bad label to drop", transform(json!({"labels": {"drop": ["a b"]}})), &["spec.transform.labels.drop[0]", "example.com/*"]),
        ("a type that is never distributed", transform(json!({"secretType": "kubernetes.io/service-account-token"})), &["spec.transform.secretType", "never distributed"]),
        ("an index of a list to remove", transform(json!({"removeFields": ["/spec/ports/0"]})), &["spec.transform.removeFields[0]", "an index names no item", "[name=app]"]),
        ("a label to remove", transform(json!({"removeFields": ["/metadata/labels/a"]})), &["spec.transform.removeFields[0]", "are the copy's own", "transform.labels"]),
        ("a pointer without a slash", transform(json!({"removeFields": ["spec"]})), &["spec.transform.removeFields[0]", "write a JSON pointer", "/spec/replicas"]),
        ("an item without a value", transform(json!({"removeFields": ["/spec/ports/[web]"]})), &["spec.transform.removeFields[0]", "write a JSON pointer", "[name=web]"]),
        ("a pointer that is too long", transform(json!({"removeFields": [format!("/{}", "a".repeat(512))]})), &["spec.transform.removeFields[0]", "512"]),
        ("too many fields to remove", transform(json!({"removeFields": names(33).into_iter().map(|name| format!("/{name}")).collect::<Vec<_>>()})), &["spec.transform.removeFields", "at most 32"]),
        ("nothing to substitute", json!({"substitute": {"keys": []}}), &["spec.substitute", "is empty", "[app.yaml]", "[/spec]"]),
        ("a status to substitute", json!({"substitute": {"fields": ["/status"]}}), &["spec.substitute.fields[0]", "are the copy's own"]),
        ("an override of nothing", overrides(json!({"clusters": all})), &["spec.overrides[0]", "changes nothing", "data, secretData, remove, mergePatch or jsonPatch"]),
        ("an override nowhere", overrides(json!({"clusters": {}, "data": {"k": "v"}})), &["spec.overrides[0].clusters", "chooses nothing"]),
        ("too many overrides", json!({"overrides": vec![one.clone(); 17]}), &["spec.overrides", "at most 16"]),
        ("an unknown step", step(json!({"op": "set", "path": "/data/a"})), &["jsonPatch[0].op", "\"set\"", "\"replace\""]),
        ("a step without from", step(json!({"op": "move", "path": "/data/a"})), &["jsonPatch[0]", "need from"]),
        ("a step about metadata", step(json!({"op": "remove", "path": "/metadata/labels"})), &["jsonPatch[0].path", "are the copy's own", "transform.labels"]),
        ("a step about the whole", step(json!({"op": "remove", "path": ""})), &["jsonPatch[0].path", "write a JSON pointer", "/data/app.yaml"]),
        ("a step from the status", step(json!({"op": "copy", "path": "/data/a", "from": "/status"})), &["jsonPatch[0].from", "are the copy's own"]),
        ("too many steps", json!({"overrides": [{"clusters": {"all": true}, "jsonPatch": vec![json!({"op": "remove", "path": "/data/a"}); 65]}]}), &["jsonPatch", "at most 64"]),
        ("a merge patch that is no map", overrides(json!({"clusters": all, "mergePatch": "x"})), &["spec.overrides[0].mergePatch", "object"]),
        ("too many fields of a merge patch", overrides(json!({"clusters": all, "mergePatch": many})), &["spec.overrides[0].mergePatch", "at most 64"]),
        ("a value for a Secret", json!({"sources": secrets, "overrides": [one]}), &["spec", "must not hold values", "into resources of the entry"]),
        ("a value for a named Secret", json!({"sources": secrets, "overrides": [{"clusters": all, "resources": ["configmaps", "secrets"], "data": {"k": "v"}}]}), &["spec", "must not hold values"]),
        ("a value of a Secret for both", json!({"sources": secrets, "overrides": [{"clusters": all, "resources": ["configmaps", "secrets"], "secretData": [{"key": "k", "valueFrom": {"secretKeyRef": {"name": "a", "key": "k"}}}]}]}), &["spec", "go into copies of Secrets only"]),
        ("a bad name in an override", overrides(json!({"clusters": all, "names": ["A"], "data": {"k": "v"}})), &["spec.overrides[0].names[0]", "overrides.names: write an object name"]),
        ("a patch for a Secret", json!({"sources": secrets, "overrides": [{"clusters": all, "jsonPatch": [{"op": "add", "path": "/data/a", "value": "x"}]}]}), &["spec", "must not hold values"]),
        ("a merge patch for a Secret", json!({"sources": secrets, "overrides": [{"clusters": all, "mergePatch": {"data": {"a": "x"}}}]}), &["spec", "must not hold values", "mergePatch"]),
        ("a value of a Secret for a ConfigMap", json!({"sources": secrets, "overrides": [referenced(json!({"name": "a", "key": "k"}))]}), &["spec", "go into copies of Secrets only", "resources: [secrets]"]),
        ("a literal value for a Secret", json!({"sources": only_secrets, "overrides": [{"clusters": all, "secretData": [{"key": "k", "value": "x"}]}]}), &["secretData[0].valueFrom"]),
        ("a value from no Secret", json!({"sources": only_secrets, "overrides": [referenced(json!({"name": "A_", "key": "k"}))]}), &["secretKeyRef.name", "write an object name"]),
        ("a value from no key", json!({"sources": only_secrets, "overrides": [referenced(json!({"name": "a", "key": ""}))]}), &["secretKeyRef.key", "write a key of data"]),
    ]
}
