//! Describes the differences between a live copy and its desired content. Pure.
//!
//! For a Secret it lists only paths, never a value. For a ConfigMap it also lists short values of
//! `data` and labels.
use std::collections::{BTreeMap, BTreeSet};

use kube_core::DynamicObject;
use runnel_proto::model::{
    Content, FieldChange, FieldDiff, FieldDigests, FieldEdit, FieldMap, FieldPath, FieldsKey, Kind,
    Reason, clip, short_value,
};
use serde_json::{Map, Value};

use crate::copy::CopyError;
use crate::field_set::Difference;
use crate::managed_fields::{self, AppliedFields};
use crate::seal::canonical;

/// Limit of the compared fields of a kind without listed fields.
const COMPARED: usize = 100;
/// Longest list of differences in a message, in bytes. The message counts the other differences.
const LIST_LIMIT: usize = 320;

/// A live copy and its desired content. Without `Debug`: it contains content.
#[derive(Clone, Copy)]
pub struct Comparison<'a> {
    /// The kind of the copy.
    pub kind: &'a Kind,
    /// The live copy.
    pub object: &'a DynamicObject,
    /// The answer to a dry run of its apply, for a kind without listed fields.
    pub applied: Option<&'a DynamicObject>,
    /// The desired content.
    pub content: &'a Content,
    /// The ignored fields.
    pub ignored: &'a BTreeSet<FieldPath>,
}

impl Comparison<'_> {
    /// Returns the error of a drifted copy that is not corrected. `who`: the field managers that
    /// changed it.
    pub fn changed(&self, who: Option<&str>) -> CopyError {
        let list = self.list(!self.kind.content.sensitive);
        CopyError::new(
            Reason::Drifted,
            format!("changed here{} and left so: {list}", by(who)),
        )
    }

    /// Returns the differences that a write is to correct: paths without values, for every kind. And whether there are none besides
    /// Runnel's own marks.
    pub fn corrected(&self) -> (String, bool) {
        let all = self.differences(false);
        (listed(&all), all.is_empty())
    }

    /// Whether nothing differs, besides Runnel's own marks.
    pub fn is_equal(&self) -> bool {
        self.differences(false).is_empty()
    }

    /// Returns the differences that a dry run found: paths without values, for every kind.
    pub fn planned(&self) -> CopyError {
        CopyError::new(Reason::DryRun, self.list(false))
    }

    /// Returns the error of a copy that differs right after its write, with no other writer in
    /// between.
    pub fn rewritten(&self) -> CopyError {
        rewritten(&self.list(!self.kind.content.sensitive))
    }

    /// Lists the differences in a message of about [`LIST_LIMIT`] bytes. `shows_values` adds short
    /// values.
    fn list(&self, shows_values: bool) -> String {
        listed(&self.differences(shows_values))
    }
}

fn listed(differences: &[String]) -> String {
    if differences.is_empty() {
        return "Runnel's own marks".to_owned();
    }
    joined(differences)
}

/// Returns the error of an apply whose answer lacks the values of these fields.
pub fn dropped(paths: &[String]) -> CopyError {
    let message = format!(
        "an admission plugin of this cluster, a feature that its API server has switched off, or the stored version of the kind \
         drops fields of the copy whenever it is written; let the plugin pass Runnel's copies, or leave the fields out \
         (ignoreFields): {}",
        joined(paths)
    );
    CopyError::new(Reason::Denied, message)
}

fn rewritten(list: &str) -> CopyError {
    let message = format!(
        "an admission webhook or policy of this cluster changes the copy whenever it is written; let it pass Runnel's \
         copies, or leave the fields to it (ignoreFields): {list}"
    );
    CopyError::new(Reason::Denied, message)
}

/// Joins differences to a list of about [`LIST_LIMIT`] bytes.
fn joined(all: &[String]) -> String {
    let mut list = String::new();
    let mut named = 0;
    for difference in all {
        if !list.is_empty() && list.len() + difference.len() > LIST_LIMIT {
            break;
        }
        list.push_str(if list.is_empty() { "" } else { "; " });
        list.push_str(clip(difference, LIST_LIMIT));
        named += 1;
    }
    if all.len() > named {
        list.push_str(&format!("; and {} more", all.len() - named));
    }
    list
}

/// Compares an object with content that is known only by its field digests. Returns the paths that
/// differ. `shows_values` adds the present values of `data` and labels.
pub fn diff(
    kind: &Kind,
    object: &DynamicObject,
    (wanted, key): (&FieldDigests, &FieldsKey),
    ignored: &BTreeSet<FieldPath>,
    shows_values: bool,
) -> FieldDiff {
    let (present, mut diff) = (content(kind, object), FieldDiff::default());
    let digests = key.digests(kind.content, &present);
    let paths: BTreeSet<&String> = digests.keys().chain(wanted.keys()).collect();
    for path in paths {
        let named = FieldPath::parse(path);
        if named.as_ref().is_some_and(|path| ignored.contains(path)) {
            continue;
        }
        // A copy keeps the labels and annotations of other writers.
        let stays = || {
            named
                .as_ref()
                .is_some_and(|path| path.top_field().is_none())
        };
        let edit = match (digests.get(path), wanted.get(path)) {
            (Some(present), Some(wanted)) if present == wanted => continue,
            (Some(_), None) if stays() => continue,
            (Some(_), None) => FieldEdit::Remove,
            (None, _) => FieldEdit::Add,
            (Some(_), Some(_)) => FieldEdit::Change,
        };
        let shown = named.as_ref().filter(|_| shows_values);
        let old = shown
            .and_then(|path| text_at(&present, path))
            .map(short_value);
        diff.push(FieldChange {
            path: path.clone(),
            edit,
            old,
        });
    }
    diff
}

/// Returns the paths in which an object differs from the answer to a dry run of its apply, with the present values if
/// `shows_values`.
pub fn applied_diff(
    object: &DynamicObject,
    applied: &DynamicObject,
    ignored: &BTreeSet<FieldPath>,
    shows_values: bool,
) -> FieldDiff {
    let compared = AppliedFields::of(object, applied, ignored);
    let mut diff = FieldDiff::default();
    for one in compared.differences(COMPARED) {
        let edit = match (one.now, one.before) {
            (None, _) => FieldEdit::Add,
            (Some(_), None) => FieldEdit::Remove,
            (Some(_), Some(_)) => FieldEdit::Change,
        };
        let old = one.now.filter(|_| shows_values).and_then(short);
        diff.push(FieldChange {
            path: one.path,
            edit,
            old,
        });
    }
    diff
}

/// Returns a scalar as a short text.
fn short(value: &Value) -> Option<String> {
    match value {
        Value::Object(_) | Value::Array(_) => None,
        Value::String(text) => Some(short_value(text)),
        scalar => Some(scalar.to_string()),
    }
}

/// Returns the content of a live object, including the fields of other writers.
fn content(kind: &Kind, object: &DynamicObject) -> Content {
    Content {
        version: None,
        mode: None,
        labels: object.metadata.labels.clone().unwrap_or_default(),
        annotations: object.metadata.annotations.clone().unwrap_or_default(),
        fields: crate::live::fields(kind, object),
    }
}

/// Returns the value at a path of `data` or of the labels.
fn text_at<'a>(content: &'a Content, path: &FieldPath) -> Option<&'a str> {
    match path {
        FieldPath::Key {
            map: FieldMap::Data,
            key,
        } => content.fields.get("data")?.get(key)?.as_str(),
        FieldPath::Key {
            map: FieldMap::Labels,
            key,
        } => content.labels.get(key).map(String::as_str),
        FieldPath::Key { .. } | FieldPath::Field(_) => None,
    }
}

/// Returns the error of a drifted copy that is not corrected and whose differing fields are
/// unknown.
pub fn unread(who: Option<&str>) -> CopyError {
    CopyError::new(
        Reason::Drifted,
        format!("changed here{} and left so", by(who)),
    )
}

/// Returns the error of a deleted copy that is not created again.
pub fn deleted() -> CopyError {
    CopyError::new(
        Reason::Drifted,
        "deleted here, and not made again before its source changes",
    )
}

fn by(who: Option<&str>) -> String {
    who.map(|who| format!(" by {who}")).unwrap_or_default()
}

impl Comparison<'_> {
    fn differences(&self, shows_values: bool) -> Vec<String> {
        let Self {
            kind,
            object,
            ignored,
            ..
        } = *self;
        let wanted = managed_fields::mask_ignored(canonical(self.content), ignored);
        let mut all = vec![];
        if let Some(applied) = self.applied {
            let compared = AppliedFields::of(object, applied, ignored);
            let differences = compared.differences(COMPARED);
            all.extend(
                differences
                    .iter()
                    .map(|one| owned_difference(one, shows_values)),
            );
        }
        if let Some(added) = managed_fields::additions(kind, object, self.content, ignored) {
            let added = added.differences(COMPARED);
            all.extend(added.iter().map(|one| owned_difference(one, shows_values)));
        }
        let none = Map::new();
        let leaves = |field: &str| ignored.iter().any(|path| path.top_field() == Some(field));
        for field in kind.content.fields {
            let present = object
                .data
                .get(field)
                .filter(|value| !crate::seal::is_empty(value));
            let should = wanted.fields.get(*field);
            if kind.content.exact_maps.contains(field) {
                let map = if *field == "data" {
                    FieldMap::Data
                } else {
                    FieldMap::BinaryData
                };
                let present = present.and_then(Value::as_object).unwrap_or(&none);
                let should = should.and_then(Value::as_object).unwrap_or(&none);
                let shows = shows_values && map == FieldMap::Data;
                let keys: BTreeSet<&String> = present.keys().chain(should.keys()).collect();
                for key in keys {
                    let path = FieldPath::new(map, key.as_str());
                    if !ignored.contains(&path) {
                        let texts = (
                            present.get(key).and_then(Value::as_str),
                            should.get(key).and_then(Value::as_str),
                        );
                        all.extend(difference(&path.to_string(), texts.0, texts.1, shows));
                    }
                }
            } else if present != should && !leaves(field) {
                all.push(match (present, should) {
                    (None, _) => format!("/{field} is missing"),
                    (_, None) => format!("/{field} was added"),
                    _ => format!("/{field} is another"),
                });
            }
        }
        let none = BTreeMap::new();
        let labels = object.metadata.labels.as_ref().unwrap_or(&none);
        let annotations = object.metadata.annotations.as_ref().unwrap_or(&none);
        let maps = [
            (FieldMap::Labels, labels, &wanted.labels, shows_values),
            (
                FieldMap::Annotations,
                annotations,
                &wanted.annotations,
                false,
            ),
        ];
        for (map, present, should, shows) in maps {
            for (key, value) in should {
                let path = FieldPath::new(map, key.as_str()).to_string();
                all.extend(difference(
                    &path,
                    present.get(key).map(String::as_str),
                    Some(value),
                    shows,
                ));
            }
        }
        all
    }
}

/// Describes a difference between a field of a copy (`now`) and its desired value (`before`).
fn owned_difference(one: &Difference<'_>, shows_values: bool) -> String {
    let path = &one.path;
    let shown = |value: Option<&Value>| value.filter(|_| shows_values).and_then(short);
    match (one.now, one.before, shown(one.now), shown(one.before)) {
        (None, ..) => format!("{path} is missing"),
        (Some(_), None, Some(now), _) => format!("{path} was added as {now}"),
        (Some(_), None, None, _) => format!("{path} was added"),
        (Some(_), Some(_), Some(now), Some(before)) => {
            format!("{path} is {now} instead of {before}")
        }
        (Some(_), Some(_), ..) => format!("{path} is another"),
    }
}

fn difference(
    path: &str,
    present: Option<&str>,
    should: Option<&str>,
    shows: bool,
) -> Option<String> {
    Some(match (present, should) {
        (present, should) if present == should => return None,
        (None, _) => format!("{path} is missing"),
        (Some(present), None) if shows => format!("{path} was added as {}", short_value(present)),
        (Some(_), None) => format!("{path} was added"),
        (Some(present), Some(should)) if shows => {
            format!(
                "{path} is {} instead of {}",
                short_value(present),
                short_value(should)
            )
        }
        (Some(_), Some(_)) => format!("{path} is another"),
    })
}

/// Returns the error for an object with the name of a copy that no field can be compared with.
pub fn incomparable() -> CopyError {
    let message = "an object that is not Runnel's exists here, and the source has no field that it could equal, so it is not \
                   adopted; delete it or rename it";
    CopyError::new(Reason::Conflict, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_proto::model::Scope;
    use serde_json::json;

    fn object(kind: &Kind, data: Value) -> DynamicObject {
        let meta = json!({"name": "x", "namespace": "a", "labels": {"team": "b"}});
        let mut whole =
            json!({"apiVersion": &*kind.api_version, "kind": &*kind.kind, "metadata": meta});
        for (field, value) in data.as_object().unwrap() {
            whole[field] = value.clone();
        }
        serde_json::from_value(whole).unwrap()
    }

    fn comparison<'a>(
        kind: &'a Kind,
        object: &'a DynamicObject,
        content: &'a Content,
        ignored: &'a BTreeSet<FieldPath>,
    ) -> Comparison<'a> {
        Comparison {
            kind,
            object,
            applied: None,
            content,
            ignored,
        }
    }

    fn content(data: Value) -> Content {
        let fields = data
            .as_object()
            .unwrap()
            .iter()
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect();
        Content {
            fields,
            labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
            ..Content::default()
        }
    }

    #[test]
    fn every_difference_of_a_config_map_is_named_with_its_values() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let live = json!({"data": {"color": "blue\n", "new": "x", "same": "s"}, "binaryData": {"b": "AAAA"}, "immutable": true});
        let wanted = content(json!({"data": {"color": "red", "lost": "l", "same": "s"}}));
        let copy_error = comparison(kind, &object(kind, live), &wanted, &BTreeSet::new())
            .changed(Some("kubectl-edit"));
        assert_eq!(copy_error.reason, Reason::Drifted);
        assert_eq!(
            &*copy_error.message,
            "changed here by kubectl-edit and left so: /binaryData/b was added; /data/color is \"blue\\n\" instead of \
             \"red\"; /data/lost is missing; /data/new was added as \"x\"; /immutable was added; /metadata/labels/team is \
             \"b\" instead of \"a\""
        );
    }

    #[test]
    fn dry_run_names_paths_without_values() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let live = json!({"data": {"color": "c4n4ry", "new": "c4n4ry"}});
        let planned = comparison(
            kind,
            &object(kind, live),
            &content(json!({"data": {"color": "c4n4ry2"}})),
            &BTreeSet::new(),
        )
        .planned();
        assert_eq!(planned.reason, Reason::DryRun);
        assert_eq!(
            &*planned.message,
            "/data/color is another; /data/new was added; /metadata/labels/team is another"
        );
    }

    #[test]
    fn diff_by_digests_names_paths_and_values_where_they_are_shown() {
        let (key, ignored) = (
            FieldsKey([3; 32]),
            BTreeSet::from([FieldPath::new(FieldMap::Data, "own")]),
        );
        let live = json!({"data": {"color": "blue\n", "same": "s", "old": "o", "own": "x"}});
        let wanted = content(json!({"data": {"color": "red", "same": "s", "new": "n"}}));
        let lines = |resource: &str, shows: bool| -> Vec<String> {
            let kind = Kind::by_resource(resource).unwrap();
            let digests = key.digests(kind.content, &wanted);
            let diff = diff(
                kind,
                &object(kind, live.clone()),
                (&digests, &key),
                &ignored,
                shows,
            );
            let line = |one: &FieldChange| {
                format!(
                    "{:?} {} {}",
                    one.edit,
                    one.path,
                    one.old.as_deref().unwrap_or("-")
                )
            };
            diff.changes.iter().map(line).collect()
        };
        let shown = [
            r#"Change /data/color "blue\n""#,
            "Add /data/new -",
            r#"Remove /data/old "o""#,
            r#"Change /metadata/labels/team "b""#,
        ];
        assert_eq!(lines("configmaps", true), shown);
        let plain = [
            "Change /data/color -",
            "Add /data/new -",
            "Remove /data/old -",
            "Change /metadata/labels/team -",
        ];
        assert_eq!(lines("secrets", false), plain);
    }

    #[test]
    fn secret_values_and_ignored_fields_are_never_named() {
        let kind = Kind::by_resource("secrets").unwrap();
        let live =
            json!({"data": {"a": "YzRuNHJ5", "b": "c4n4ry", "own": "c4n4ry"}, "type": "c4n4ry"});
        let wanted = content(json!({"data": {"a": "c4n4ry", "c": "c4n4ry"}, "type": "Opaque"}));
        let ignored = BTreeSet::from([FieldPath::new(FieldMap::Data, "own")]);
        let copy_error = comparison(kind, &object(kind, live), &wanted, &ignored).changed(None);
        assert!(
            !copy_error.message.contains("c4n4ry") && !copy_error.message.contains("YzRu"),
            "{}",
            copy_error.message
        );
        for path in [
            "/data/a is another",
            "/data/b was added",
            "/data/c is missing",
            "/type is another",
        ] {
            assert!(
                copy_error.message.contains(path),
                "{path}: {}",
                copy_error.message
            );
        }
        assert!(
            !copy_error.message.contains("own"),
            "{}",
            copy_error.message
        );
    }

    #[test]
    fn a_long_list_is_counted_and_a_long_value_cut() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let data: Map<String, Value> = (0..500)
            .map(|n| (format!("key-{n:03}"), json!("v".repeat(9000))))
            .collect();
        let copy_error = comparison(
            kind,
            &object(kind, json!({"data": data})),
            &content(json!({})),
            &BTreeSet::new(),
        )
        .changed(None);
        assert!(
            copy_error.message.len() < 500,
            "{}",
            copy_error.message.len()
        );
        assert!(
            copy_error.message.contains("more"),
            "{}",
            copy_error.message
        );
    }

    #[test]
    fn webhook_changes_are_named_with_a_hint() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let live = json!({"data": {"color": "blue", "new": "x"}});
        let wanted = content(json!({"data": {"color": "red"}}));
        let copy_error =
            comparison(kind, &object(kind, live), &wanted, &BTreeSet::new()).rewritten();
        assert_eq!(copy_error.reason, Reason::Denied);
        assert_eq!(
            &*copy_error.message,
            "an admission webhook or policy of this cluster changes the copy whenever it is written; let it pass \
             Runnel's copies, or leave the fields to it (ignoreFields): /data/color is \"blue\" instead of \"red\"; \
             /data/new was added as \"x\"; /metadata/labels/team is \"b\" instead of \"a\""
        );
    }

    #[test]
    fn owned_kind_is_compared_by_the_fields_that_the_agent_applies() {
        let kind = Kind::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);
        let container =
            json!({"k:{\"name\":\"web\"}": {".": {}, "f:name": {}, "f:image": {}, "f:args": {}}});
        let template = |containers: &Value| json!({"f:spec": {"f:containers": containers}});
        let entry = |fields: Value| json!([{"manager": "runnel-agent", "operation": "Apply", "fieldsV1": fields}]);
        let deployment = |spec: Value, fields: Value| {
            let mut object = object(&kind, json!({"spec": spec, "status": {"replicas": 1}}));
            object.metadata.managed_fields = serde_json::from_value(entry(fields)).unwrap();
            object
        };
        let fields = json!({"f:spec": {"f:replicas": {}, "f:paused": {}, "f:template": template(&container)}});
        let containers = |image: &str| json!([{"name": "sidecar", "image": "x"}, {"name": "web", "image": image, "args": ["a"]}]);
        let spec = |image: &str| json!({"replicas": 1, "revisionHistoryLimit": 10, "template": {"spec": {"containers": containers(image)}}});
        let mut changed = spec("web:2");
        changed["replicas"] = json!(5);
        changed["paused"] = json!(true);
        changed["template"]["spec"]["containers"][1]["args"] = json!(["b"]);
        let (live, applied) = (deployment(changed, fields), {
            let fields = json!({"f:spec": {"f:replicas": {}, "f:template": template(&container)}});
            deployment(spec("web:1"), fields)
        });
        let (content, ignored) = (Content::default(), BTreeSet::new());
        let comparison = Comparison {
            applied: Some(&applied),
            ..comparison(&kind, &live, &content, &ignored)
        };
        let web = "/spec/template/spec/containers/[name=web]";
        assert_eq!(
            &*comparison.changed(None).message,
            format!(
                "changed here and left so: /spec/paused was added as true; /spec/replicas is 5 instead of 1; {web}/args is \
                 another; {web}/image is \"web:2\" instead of \"web:1\""
            )
        );
        assert_eq!(
            &*comparison.planned().message,
            format!(
                "/spec/paused was added; /spec/replicas is another; {web}/args is another; {web}/image is another"
            )
        );
    }
}
