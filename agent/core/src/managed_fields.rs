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
use runnel_proto::model::{Content, CopyMode, FieldMap, FieldPath, Kind, MANAGED_BY_LABEL};
use serde_json::{Map, Value, json};

use crate::field_set::{Difference, FieldSet};

/// The field manager of the agent.
pub const FIELD_MANAGER: &str = "runnel-agent";
/// The parts of a set in the form of `fieldsV1` that name no content: the object or list itself, and what is beside the content.
const NO_CONTENT: [&str; 3] = [".", "f:metadata", "f:status"];

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
    is_ours(entry, "Apply")
}

/// Whether this entry is of a patch of the agent.
pub fn is_our_patch(entry: &ManagedFieldsEntry) -> bool {
    is_ours(entry, "Update")
}

fn is_ours(entry: &ManagedFieldsEntry, operation: &str) -> bool {
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && entry.operation.as_deref() == Some(operation)
        && is_of_whole_object(entry)
}

fn is_of_whole_object(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref().unwrap_or_default().is_empty()
}

/// Whether another manager owns a field that the agent applied, too: it would stay when it leaves the source. Subresources do not
/// count.
pub fn is_shared(metadata: &ObjectMeta) -> bool {
    let mut others = metadata.managed_fields.iter().flatten();
    others.any(|entry| {
        let theirs = entry.fields_v1.as_ref().filter(|_| is_of_other(entry));
        // Few objects have other managers.
        theirs.is_some_and(|theirs| {
            let ours = copied_fields(metadata);
            ours.iter().any(|part| part.overlaps(&theirs.0))
        })
    })
}

/// Returns the entries without what others own of the fields that the agent applied; `None` if no field is shared.
pub fn unshared(metadata: &ObjectMeta) -> Option<Vec<ManagedFieldsEntry>> {
    if !is_shared(metadata) {
        return None;
    }
    let ours = copied_fields(metadata);
    let mut entries = metadata.managed_fields.clone()?;
    for entry in entries.iter_mut().filter(|entry| is_of_other(entry)) {
        if let Some(theirs) = &mut entry.fields_v1 {
            ours.iter().for_each(|part| part.leave(&mut theirs.0));
        }
    }
    entries.retain(has_fields);
    Some(entries)
}

/// A part of a set in the form of `fieldsV1`.
struct Part<'a> {
    path: Vec<&'a str>,
    fields: &'a Value,
}

impl Part<'_> {
    fn overlaps(&self, set: &Value) -> bool {
        let mut path = self.path.iter();
        let below = path.try_fold(set, |set, key| set.get(*key));
        below.is_some_and(|below| {
            is_leaf(self.fields) || is_leaf(below) || overlap(self.fields, below)
        })
    }

    /// Removes the part from another set.
    fn leave(&self, set: &mut Value) {
        leave(set, &self.path, self.fields);
    }
}

fn leave(set: &mut Value, path: &[&str], fields: &Value) {
    let (Some(set), [key, rest @ ..]) = (set.as_object_mut(), path) else {
        return;
    };
    let Some(below) = set.get_mut(*key) else {
        return;
    };
    match rest {
        [] if is_leaf(below) || is_leaf(fields) => *below = json!({}),
        [] => subtract(below, fields),
        rest => leave(below, rest, fields),
    }
    let mut left = below.as_object().into_iter().flatten();
    if left.all(|(key, _)| key == ".") {
        set.remove(*key);
    }
}

/// Returns the parts of what the agent applied that may come from a source. The label by which several tools say that they manage an
/// object can stay with the others.
fn copied_fields(metadata: &ObjectMeta) -> Vec<Part<'_>> {
    let ours = apply_entry(metadata).and_then(|entry| entry.fields_v1.as_ref());
    let Some(ours) = ours.and_then(|fields| fields.0.as_object()) else {
        return vec![];
    };
    let content = ours.iter();
    let content = content.filter(|(key, _)| !NO_CONTENT.contains(&key.as_str()));
    let content = content.map(|(key, fields)| Part {
        path: vec![key],
        fields,
    });
    let maps = ["f:labels", "f:annotations"].into_iter().flat_map(|map| {
        let keys = ours
            .get("f:metadata")
            .and_then(|metadata| metadata.get(map));
        let keys = keys.and_then(Value::as_object).into_iter().flatten();
        let keys = keys.filter(|(key, _)| {
            key.strip_prefix("f:")
                .is_some_and(|key| key != MANAGED_BY_LABEL)
        });
        keys.map(move |(key, fields)| Part {
            path: vec!["f:metadata", map, key],
            fields,
        })
    });
    content.chain(maps).collect()
}

fn is_of_other(entry: &ManagedFieldsEntry) -> bool {
    is_of_whole_object(entry) && !is_our_apply(entry)
}

fn has_fields(entry: &ManagedFieldsEntry) -> bool {
    let set = entry.fields_v1.as_ref().and_then(|set| set.0.as_object());
    set.is_none_or(|set| !set.is_empty())
}

/// Whether two sets in the form of `fieldsV1` have a field in common.
fn overlap(one: &Value, other: &Value) -> bool {
    let fields = one.as_object().into_iter().flatten();
    fields.filter(|(key, _)| *key != ".").any(|(key, one)| {
        let other = other.get(key);
        other.is_some_and(|other| is_leaf(one) || is_leaf(other) || overlap(one, other))
    })
}

/// Removes the fields of one set from another one. What others have added below a field of ours stays theirs.
fn subtract(set: &mut Value, other: &Value) {
    let (Some(set), Some(other)) = (set.as_object_mut(), other.as_object()) else {
        return;
    };
    set.retain(|key, below| {
        let Some(other) = other.get(key) else {
            return true;
        };
        if is_leaf(below) || is_leaf(other) {
            return false;
        }
        subtract(below, other);
        !is_leaf(below)
    });
}

/// Removes the maps and lists themselves from a set, so that it names what is in them alone.
fn leave_leaves(set: &mut Value) {
    let Some(set) = set.as_object_mut() else {
        return;
    };
    set.retain(|key, below| {
        let was_leaf = is_leaf(below);
        leave_leaves(below);
        key != "." && (was_leaf || !is_leaf(below))
    });
}

fn is_leaf(set: &Value) -> bool {
    set.as_object().is_none_or(Map::is_empty)
}

/// Moves the content that other managers own into the agent's own entry, as if it had applied all of it: the next apply removes what
/// the source does not have. Controllers of Kubernetes keep theirs. Of an entry in another version, only fields that have the same
/// name are known. Returns the entries; `None` if there is nothing to move.
pub fn absorbed(object: &DynamicObject) -> Option<Vec<ManagedFieldsEntry>> {
    let ours = apply_entry(&object.metadata)?;
    let (version, mut all) = (ours.api_version.clone(), ours.fields_v1.clone()?.0);
    let mut entries = object.metadata.managed_fields.clone()?;
    let mut is_moved = false;
    for entry in entries.iter_mut().filter(|entry| is_movable(entry)) {
        let is_of_version = entry.api_version == version;
        let set = entry.fields_v1.as_mut();
        let Some(theirs) = set.and_then(|set| set.0.as_object_mut()) else {
            continue;
        };
        let (kept, content): (Map<_, _>, Map<_, _>) = std::mem::take(theirs)
            .into_iter()
            .partition(|(key, _)| NO_CONTENT.contains(&key.as_str()));
        *theirs = kept;
        let mut content = Value::Object(content);
        if !is_of_version {
            let present = FieldSet::parse(&content).unwrap_or_default();
            content = present.present_in(&object.data).to_value();
        }
        is_moved |= !is_leaf(&content);
        json_patch::merge(&mut all, &content);
    }
    entries.retain(has_fields);
    let ours = entries.iter_mut().find(|entry| is_our_apply(entry))?;
    ours.fields_v1.as_mut()?.0 = all;
    is_moved.then_some(entries)
}

/// Whether the content of an entry becomes the agent's own, where it may have nothing besides: it is of another client.
fn is_movable(entry: &ManagedFieldsEntry) -> bool {
    is_of_other(entry) && !is_of_controller(entry)
}

/// Returns what other clients have added to an object that the agent applied, besides ignored fields, where its copy is to be exact.
/// What the API server and the controllers of Kubernetes fill in does not count. The maps of kinds with listed fields are exact
/// anyway.
pub fn additions(
    kind: &Kind,
    object: &DynamicObject,
    content: &Content,
    ignored: &BTreeSet<FieldPath>,
) -> Option<AppliedFields> {
    let is_exact = content.mode == Some(CopyMode::Exact) && kind.content.is_owned();
    is_exact.then(|| added_by_others(object, ignored)).flatten()
}

/// Returns what other clients have added to an object that the agent applied, whether its copy is to be exact or not; see
/// [`additions`].
pub fn added_by_others(
    object: &DynamicObject,
    ignored: &BTreeSet<FieldPath>,
) -> Option<AppliedFields> {
    let added = AppliedFields::of_others(object, ignored);
    (!added.differences(1).is_empty()).then_some(added)
}

fn is_of_controller(entry: &ManagedFieldsEntry) -> bool {
    let manager = entry.manager.as_deref().unwrap_or_default();
    manager.ends_with("controller-manager")
        || ["kube-scheduler", "clusterrole-aggregation-controller"].contains(&manager)
}

/// Whether the agent owns a key: it applied the key, and no other client has changed it since.
pub fn owns(object: &DynamicObject, map: FieldMap, key: &str) -> bool {
    let fields = apply_entry(&object.metadata)
        .and_then(|entry| entry.fields_v1.as_ref())
        .map(|fields| &fields.0);
    let map = match map {
        FieldMap::Data | FieldMap::BinaryData => map
            .field()
            .and_then(|field| fields?.get(format!("f:{field}"))),
        FieldMap::Labels => fields.and_then(|fields| fields.get("f:metadata")?.get("f:labels")),
        FieldMap::Annotations => {
            fields.and_then(|fields| fields.get("f:metadata")?.get("f:annotations"))
        }
    };
    map.is_some_and(|map| map.get(format!("f:{key}")).is_some())
}

/// Whether another manager than the agent owns a label of an object.
pub fn is_shared_label(metadata: &ObjectMeta, label: &str) -> bool {
    let others = metadata.managed_fields.iter().flatten();
    let mut others = others.filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER));
    others.any(|entry| {
        let labels = entry
            .fields_v1
            .as_ref()
            .map(|fields| &fields.0["f:metadata"]["f:labels"]);
        labels.is_some_and(|labels| labels.get(format!("f:{label}")).is_some())
    })
}

/// The fields of an object by their managers, without the fields of its metadata but labels and annotations.
pub struct ManagedFields {
    /// The fields that the agent applied.
    pub ours: FieldSet,
    /// The fields of other managers.
    others: FieldSet,
}

impl ManagedFields {
    /// Reads the managed fields of an object. Entries that cannot be read name no field.
    pub fn of(metadata: &ObjectMeta) -> Self {
        let set = |entry: &ManagedFieldsEntry| {
            let fields = entry.fields_v1.as_ref()?;
            FieldSet::parse(&fields.0).ok()
        };
        let entries = metadata.managed_fields.iter().flatten();
        let others = entries.filter(|entry| !is_our_apply(entry)).filter_map(set);
        Self {
            ours: apply_entry(metadata).and_then(set).unwrap_or_default(),
            others: others.fold(FieldSet::default(), |all, other| all.union(&other)),
        }
    }
}

/// Returns the paths of the values of a sent object that the answer to its apply lacks, without ignored fields: an admission
/// plugin dropped them. At most `limit`. Its managed fields do not show that, because they are set before the plugins run.
pub fn dropped(
    sent: &Value,
    answer: &DynamicObject,
    ignored: &BTreeSet<FieldPath>,
    limit: usize,
) -> Vec<String> {
    let strings = |map: &Value| serde_json::from_value(map.clone()).unwrap_or_default();
    let mut fields = sent.as_object().cloned().unwrap_or_default();
    let metadata = fields.remove("metadata").unwrap_or_default();
    fields.retain(|field, _| !["apiVersion", "kind"].contains(&field.as_str()));
    let content = Content {
        version: None,
        mode: None,
        labels: strings(&metadata["labels"]),
        annotations: strings(&metadata["annotations"]),
        fields: fields.into_iter().collect(),
    };
    let content = mask_ignored(content, ignored);
    let kept = |map: &Option<BTreeMap<String, String>>| map.clone().unwrap_or_default();
    let labels = kept(&answer.metadata.labels);
    let annotations = kept(&answer.metadata.annotations);
    let sent = json!({"metadata": {"labels": content.labels, "annotations": content.annotations}});
    let kept = json!({"metadata": {"labels": labels, "annotations": annotations}});
    let mut all = FieldSet::default().missing(&sent, &kept, limit);
    let ours = ManagedFields::of(&answer.metadata).ours;
    let fields = Value::Object(content.fields.into_iter().collect());
    all.extend(ours.missing(&fields, &answer.data, limit - all.len()));
    all
}

/// Returns the top-level fields of an object with what the agent applied in them: neither defaults nor fields of other
/// managers. An object whose managed fields cannot be read has none.
pub fn applied_fields(object: &DynamicObject) -> BTreeMap<String, Value> {
    let ManagedFields { ours, others } = ManagedFields::of(&object.metadata);
    match ours.without("metadata").project(&object.data, &others) {
        Value::Object(fields) => fields.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

/// The fields of an object, and those of the answer to a dry run of its apply, that the agent owns in one of them.
pub struct AppliedFields {
    set: FieldSet,
    wanted: Value,
    present: Value,
}

impl AppliedFields {
    /// Compares an object with the answer to a dry run of its apply, without ignored fields.
    pub fn of(
        object: &DynamicObject,
        applied: &DynamicObject,
        ignored: &BTreeSet<FieldPath>,
    ) -> Self {
        let (now, then) = (
            ManagedFields::of(&object.metadata),
            ManagedFields::of(&applied.metadata),
        );
        let version =
            |object: &DynamicObject| Some(apply_entry(&object.metadata)?.api_version.clone());
        // The fields of another version may have other names.
        let set = if version(object) == version(applied) {
            now.ours.union(&then.ours)
        } else {
            then.ours
        };
        let set = set.without("metadata");
        Self {
            wanted: without_ignored(set.project(&applied.data, &then.others), ignored),
            present: without_ignored(set.project(&object.data, &now.others), ignored),
            set,
        }
    }

    /// The fields that other clients have added to an object, as differences from an object without them.
    fn of_others(object: &DynamicObject, ignored: &BTreeSet<FieldPath>) -> Self {
        let ours = apply_entry(&object.metadata);
        let added = |entry: &ManagedFieldsEntry| {
            let mut theirs = entry.fields_v1.as_ref()?.0.clone();
            theirs
                .as_object_mut()?
                .retain(|key, _| !NO_CONTENT.contains(&key.as_str()));
            subtract(&mut theirs, &ours?.fields_v1.as_ref()?.0);
            leave_leaves(&mut theirs);
            FieldSet::parse(&theirs).ok()
        };
        let entries = object.metadata.managed_fields.iter().flatten();
        let movable = entries.filter(|entry| is_movable(entry));
        let set = movable
            .filter_map(added)
            .fold(FieldSet::default(), |all, one| all.union(&one));
        // With the maps and lists of ours around it, a difference is named by the field itself.
        let fields = ManagedFields::of(&object.metadata).ours;
        let wanted = fields.project(&object.data, &set);
        let all = fields.union(&set);
        Self {
            wanted: without_ignored(wanted, ignored),
            present: without_ignored(all.project(&object.data, &FieldSet::default()), ignored),
            set,
        }
    }

    /// Returns the differences of the object from the answer, at most `limit`.
    pub fn differences(&self, limit: usize) -> Vec<Difference<'_>> {
        self.set.differences(&self.wanted, &self.present, limit)
    }
}

/// Returns a projection without ignored fields.
fn without_ignored(projection: Value, ignored: &BTreeSet<FieldPath>) -> Value {
    let Value::Object(fields) = projection else {
        return projection;
    };
    let content = Content {
        fields: fields.into_iter().collect(),
        ..Content::default()
    };
    let fields = mask_ignored(content, ignored).fields;
    Value::Object(fields.into_iter().collect())
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
    let mut applied = None;
    for path in ignored {
        content.remove(path);
        let (map, key) = match path {
            FieldPath::Key { map, key } => (*map, key),
            FieldPath::Field(steps) => {
                let applied = applied.get_or_insert_with(|| applied_fields(object));
                steps.copy(applied, &mut content.fields);
                continue;
            }
        };
        let Some(value) = value(object, map, key).filter(|_| owns(object, map, key)) else {
            continue;
        };
        let (key, value) = (key.clone(), value.to_owned());
        match map {
            FieldMap::Labels => drop(content.labels.insert(key, value)),
            FieldMap::Annotations => drop(content.annotations.insert(key, value)),
            FieldMap::Data | FieldMap::BinaryData => {
                let field = map.field().unwrap_or_default().to_owned();
                let empty = || Value::Object(serde_json::Map::new());
                let map = content.fields.entry(field).or_insert_with(empty);
                if let Some(map) = map.as_object_mut() {
                    map.insert(key, Value::String(value));
                }
            }
        }
    }
    content
}

fn value<'a>(object: &'a DynamicObject, map: FieldMap, key: &str) -> Option<&'a str> {
    let metadata = &object.metadata;
    let text = match map {
        FieldMap::Data | FieldMap::BinaryData => {
            return object.data.get(map.field()?)?.get(key)?.as_str();
        }
        FieldMap::Labels => metadata.labels.as_ref()?.get(key),
        FieldMap::Annotations => metadata.annotations.as_ref()?.get(key),
    };
    text.map(String::as_str)
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::Scope;

    use super::*;

    fn ignored(pointers: &[&str]) -> BTreeSet<FieldPath> {
        let paths = pointers.iter().map(|text| FieldPath::parse(text).unwrap());
        paths.collect()
    }

    fn managed(entries: &[(&str, &str, Value)]) -> ObjectMeta {
        let entries = entries.iter().map(|(manager, operation, set)| {
            json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": set})
        });
        serde_json::from_value(json!({"managedFields": entries.collect::<Vec<_>>()})).unwrap()
    }

    fn sets(entries: Option<Vec<ManagedFieldsEntry>>) -> Vec<(String, Value)> {
        let entries = entries.unwrap_or_default().into_iter();
        let pair = |entry: ManagedFieldsEntry| (entry.manager.unwrap(), entry.fields_v1.unwrap().0);
        entries.map(pair).collect()
    }

    #[test]
    fn fields_of_other_clients_make_a_copy_inexact() {
        let ours = json!({"f:spec": {"f:list": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}, "f:size": {}}});
        let data = json!({"spec": {
            "list": [{"name": "a", "image": "x"}, {"name": "b"}], "size": 1, "more": {"deep": 2}, "replicas": 3,
        }});
        let object = |entries: &[(&str, &str, Value)]| DynamicObject {
            types: None,
            metadata: managed(entries),
            data: data.clone(),
        };
        let added = |entry: (&str, &str, Value), ignored: &[&str]| {
            let object = object(&[(FIELD_MANAGER, "Apply", ours.clone()), entry]);
            let ignored = self::ignored(ignored);
            let fields = AppliedFields::of_others(&object, &ignored);
            let paths: Vec<_> = fields
                .differences(9)
                .into_iter()
                .map(|one| one.path)
                .collect();
            let deployments =
                Kind::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);
            let maps = Kind::by_resource("configmaps").unwrap();
            let of = |mode| Content {
                mode,
                ..Content::default()
            };
            let exact = of(Some(CopyMode::Exact));
            let found = |kind: &Kind, content: &Content| {
                additions(kind, &object, content, &ignored).is_some()
            };
            assert_eq!(found(&deployments, &exact), !paths.is_empty());
            assert!(!found(&deployments, &of(None)) && !found(maps, &exact));
            paths
        };
        let nothing: [&str; 0] = [];
        let with = |below: Value| json!({"f:spec": below, "f:metadata": {"f:labels": {"f:a": {}}}, "f:status": {"f:x": {}}});
        // What the agent applied, too, and the maps around it are nothing that was added.
        let shared = json!({".": {}, "f:list": {".": {}, "k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}, "f:size": {}});
        assert_eq!(added(("kubectl", "Update", with(shared)), &[]), nothing);
        let more = json!({"f:more": {".": {}, "f:deep": {}}});
        assert_eq!(
            added(("kubectl", "Update", with(more.clone())), &[]),
            ["/spec/more"]
        );
        assert_eq!(
            added(("kubectl", "Apply", with(more.clone())), &["/spec/more"]),
            nothing
        );
        let item = json!({"f:list": {"k:{\"name\":\"b\"}": {".": {}, "f:name": {}}}});
        assert_eq!(added(("helm", "Update", with(item)), &[]).len(), 1);
        let inside = json!({"f:list": {"k:{\"name\":\"a\"}": {"f:image": {}}}});
        assert_eq!(added(("helm", "Update", with(inside)), &[]).len(), 1);
        // An autoscaler and its like are parts of Kubernetes.
        let scaled = json!({"f:replicas": {}});
        for controller in [
            "kube-controller-manager",
            "clusterrole-aggregation-controller",
        ] {
            let by = (controller, "Update", with(scaled.clone()));
            assert_eq!(added(by, &[]), nothing);
        }
        assert_eq!(
            added(("kubectl", "Update", with(scaled)), &[]),
            ["/spec/replicas"]
        );
    }

    #[test]
    fn shared_fields_become_ours_alone_and_additions_stay() {
        let template = json!({"f:metadata": {"f:labels": {"f:app": {}}}});
        let set = |labels: &[&str], more: Value| {
            let labels = labels.iter().map(|label| (format!("f:{label}"), json!({})));
            let mut set = json!({
                "f:metadata": {"f:labels": labels.collect::<Map<_, _>>(), "f:finalizers": {}},
                "f:spec": {"f:limits": {".": {}, "f:cpu": {}}, "f:list": {}, "f:template": template},
            });
            json_patch::merge(&mut set, &json!({"f:spec": more}));
            set
        };
        let ours = set(&["app", MANAGED_BY_LABEL], json!({}));
        let more = json!({"f:limits": {"f:memory": {}}, "f:mode": {}});
        let metadata = managed(&[
            ("before-first-apply", "Update", ours.clone()),
            (FIELD_MANAGER, "Apply", ours.clone()),
            (
                "kubectl",
                "Apply",
                set(&["app", "tier", MANAGED_BY_LABEL], more.clone()),
            ),
        ]);
        assert!(is_shared(&metadata));
        let labels = json!({"f:tier": {}, "f:app.kubernetes.io/managed-by": {}});
        let left = json!({"f:spec": more, "f:metadata": {"f:labels": labels, "f:finalizers": {}}});
        let of_managed_by = json!({
            "f:metadata": {"f:labels": {"f:app.kubernetes.io/managed-by": {}}, "f:finalizers": {}},
        });
        let expected = [
            ("before-first-apply", of_managed_by),
            (FIELD_MANAGER, ours.clone()),
            ("kubectl", left.clone()),
        ];
        let expected = expected.map(|(manager, set)| (manager.to_owned(), set));
        assert_eq!(sets(unshared(&metadata)), expected);
        let metadata = managed(&[
            (FIELD_MANAGER, "Apply", ours),
            ("kubectl", "Apply", left.clone()),
        ]);
        assert!(unshared(&metadata).is_none());
        // Labels of others are theirs, also where the agent has none besides the shared one.
        let ours = json!({"f:metadata": {"f:labels": {"f:app.kubernetes.io/managed-by": {}}}});
        let metadata = managed(&[(FIELD_MANAGER, "Apply", ours), ("kubectl", "Apply", left)]);
        assert!(!is_shared(&metadata));
    }

    #[test]
    fn content_of_others_is_absorbed_and_their_metadata_is_not() {
        let labels = json!({"f:labels": {"f:app": {}}, "f:finalizers": {}});
        let metadata = managed(&[
            (
                "kubectl",
                "Update",
                json!({"f:spec": {"f:mode": {}}, "f:metadata": labels}),
            ),
            (FIELD_MANAGER, "Apply", json!({"f:spec": {"f:list": {}}})),
            (
                "kube-controller-manager",
                "Update",
                json!({"f:spec": {"f:volumeName": {}}}),
            ),
        ]);
        let object = |metadata| DynamicObject {
            types: None,
            metadata,
            data: json!({"spec": {"list": [], "mode": "x"}}),
        };
        let entries = sets(absorbed(&object(metadata)));
        let expected = [
            ("kubectl", json!({"f:metadata": labels})),
            (
                FIELD_MANAGER,
                json!({"f:spec": {"f:list": {}, "f:mode": {}}}),
            ),
            (
                "kube-controller-manager",
                json!({"f:spec": {"f:volumeName": {}}}),
            ),
        ];
        let expected = expected.map(|(manager, set)| (manager.to_owned(), set));
        assert_eq!(entries, expected);
        // Of what was applied in another version, fields of the same name.
        let theirs = json!({"f:spec": {"f:mode": {}, "f:formerName": {}}});
        let mut metadata = managed(&[
            (FIELD_MANAGER, "Apply", json!({"f:spec": {"f:list": {}}})),
            ("kubectl", "Update", theirs),
        ]);
        let entries = metadata.managed_fields.iter_mut().flatten();
        entries.last().unwrap().api_version = Some("v2".to_owned());
        let ours = json!({"f:spec": {"f:list": {}, "f:mode": {}}});
        let entries = sets(absorbed(&object(metadata)));
        assert_eq!(entries, [(FIELD_MANAGER.to_owned(), ours)]);
    }

    /// Content with a replica count and two containers.
    fn content(replicas: u8, image: &str) -> Content {
        let containers =
            json!([{"name": "app", "image": image}, {"name": "proxy", "image": "proxy:1"}]);
        let spec = json!({"replicas": replicas, "paused": false, "template": {"spec": {"containers": containers}}});
        Content {
            fields: [("spec".to_owned(), spec)].into(),
            ..Content::default()
        }
    }

    /// The copy after an autoscaler changed the replica count. The agent owns the containers.
    fn scaled(replicas: u8, image: &str) -> DynamicObject {
        let item = json!({".": {}, "f:name": {}, "f:image": {}});
        let containers = json!({"k:{\"name\":\"app\"}": item, "k:{\"name\":\"proxy\"}": item});
        let ours = json!({"f:spec": {"f:paused": {}, "f:template": {"f:spec": {"f:containers": containers}}}});
        let theirs = json!({"f:spec": {"f:replicas": {}}});
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "managedFields": [
                {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": ours},
                {"manager": "autoscaler", "operation": "Update", "subresource": "scale", "fieldsV1": theirs},
            ]},
            "spec": content(replicas, image).fields["spec"],
        }))
        .unwrap()
    }

    #[test]
    fn value_dropped_by_an_admission_plugin_is_named() {
        let mut sent = serde_json::to_value(scaled(7, "app:1")).unwrap();
        sent["metadata"]["annotations"] = json!({"a": "1"});
        sent["spec"]["minReadySeconds"] = json!(30);
        let mut answer = scaled(7, "app:1");
        // The managed fields keep what a plugin drops.
        let entry = &mut answer.metadata.managed_fields.as_mut().unwrap()[0];
        entry.fields_v1.as_mut().unwrap().0["f:spec"]["f:minReadySeconds"] = json!({});
        let dropped = |ignored: &BTreeSet<FieldPath>| dropped(&sent, &answer, ignored, 9);
        let expected = ["/metadata/annotations/a", "/spec/minReadySeconds"];
        assert_eq!(dropped(&BTreeSet::new()), expected);
        assert_eq!(dropped(&ignored(&["/spec/minReadySeconds"])), expected[..1]);
    }

    #[test]
    fn ignored_field_of_another_manager_is_left_out() {
        let ignored = ignored(&["/spec/replicas"]);
        let sent = with_ignored_values(content(1, "app:2"), &ignored, &scaled(7, "app:1"));
        let mut expected = content(1, "app:2");
        expected.remove(ignored.first().unwrap());
        assert!(sent == expected);
        assert!(sent == mask_ignored(content(9, "app:2"), &ignored));
    }

    #[test]
    fn ignored_field_of_ours_keeps_its_live_value() {
        let image = "/spec/template/spec/containers/[name=app]/image";
        let ignored = ignored(&[image, "/spec/paused"]);
        let sent = with_ignored_values(content(1, "app:2"), &ignored, &scaled(1, "app:1"));
        assert!(sent == content(1, "app:1"));
        // The source has dropped the field.
        let mut dropped = content(1, "app:2");
        ignored.iter().for_each(|path| dropped.remove(path));
        let sent = with_ignored_values(dropped, &ignored, &scaled(1, "app:1"));
        assert!(sent == content(1, "app:1"));
    }

    #[test]
    fn ignored_item_of_a_list_is_kept_with_its_fields() {
        let ignored = ignored(&["/spec/template/spec/containers/[name=proxy]"]);
        let sent = with_ignored_values(content(1, "app:2"), &ignored, &scaled(1, "app:1"));
        assert!(sent == content(1, "app:2"));
        let masked = mask_ignored(content(1, "app:2"), &ignored);
        let containers = &masked.fields["spec"]["template"]["spec"]["containers"];
        assert_eq!(*containers, json!([{"name": "app", "image": "app:2"}]));
    }

    #[test]
    fn list_of_ignored_fields_reads_back() {
        let ignored = ignored(&[
            "/spec/ports/[port=80,protocol=TCP]/nodePort",
            "/data/a",
            "/spec/replicas",
        ]);
        let text = format_ignored(&ignored);
        assert_eq!(
            text,
            "/data/a /spec/ports/[port=80,protocol=TCP]/nodePort /spec/replicas"
        );
        assert_eq!(parse_ignored(&text), ignored);
    }
}
