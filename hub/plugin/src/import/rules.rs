//! Converts the configuration of other copiers to rules.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ContentRules, HUB_LABEL};
use serde_json::{Map, Value, json};

use super::annotations::{Copier, CopyRequest, Id, Objects, ReadAnnotations};
use super::choice::{Choice, NamespaceLabels};
use super::kinds;
use super::labeled::{self, LabelCopier};
use crate::bundle::{Bundled, bundled};
use crate::manifests::ManifestFile;
use runnel_api::{BUNDLE_KIND, GROUP, ManifestBundle, VERSION, limits};

/// The content of the relevant objects. Without `Debug`: it contains values of Secrets.
pub type ObjectContents = BTreeMap<Id, Value>;

/// The target clusters of the rules, and whether the cluster that is read is the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportTarget {
    /// Names of members; empty: all of them.
    pub clusters: Vec<String>,
    /// Whether the sources are in the hub cluster.
    pub is_hub: bool,
    /// The user's description of a copier by label.
    pub label: Option<LabelCopier>,
    /// Labeled objects on the hub that are not copied in the cluster that is read.
    pub labeled_not_copied: BTreeSet<Id>,
}

/// The comparison of a source with the object under the name of its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyComparison {
    /// The copy has the content of its source.
    Equal,
    /// The copy has other content.
    Different,
    /// There is none.
    Absent,
}

/// One rule with its notes.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedRule {
    /// The copier that the rule replaces.
    pub copier: Copier,
    /// The object.
    pub rule: Value,
    /// The sources that it was made for.
    pub sources: Vec<Id>,
    /// The bundle with the manifests of the sources, if the sources are not to be created on the hub.
    pub bundle: Option<Value>,
    /// The comparison with the existing objects.
    pub copies: BTreeMap<Id, CopyComparison>,
    /// Differences from the copier's behavior.
    pub notes: BTreeSet<String>,
}

/// Everything that is printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportReport {
    /// The rules, by namespace and name.
    pub rules: Vec<ImportedRule>,
    /// Requests that no rule replaces: the object and the reason.
    pub left: Vec<(Id, String)>,
    /// Copies of the copiers that no rule adopts.
    pub orphaned_intents: BTreeSet<Id>,
    /// The objects that carry marks of the old copiers, with these marks.
    pub marks: BTreeMap<Id, BTreeSet<String>>,
}

/// Returns the copies of a request in the existing namespaces.
pub fn copies<'a>(
    request: &'a CopyRequest,
    places: &NamespaceLabels,
) -> impl Iterator<Item = Id> + 'a {
    let own = request.source.clone();
    let reached = request.choice.reaches(places).into_iter();
    let copy = |namespace| Id {
        resource: request.source.resource.clone(),
        namespace,
        name: request.copy_name.clone(),
    };
    reached.map(copy).filter(move |copy| *copy != own)
}

/// Sources with the same settings: they share a rule.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    namespace: String,
    copier: Copier,
    /// Whether the sources are manifests of a bundle: they give rights, which the hub itself is not to give.
    in_bundle: bool,
    filled: bool,
    copy_name: Option<String>,
    labels: bool,
    annotations: bool,
    names: BTreeSet<String>,
    selector: String,
}

/// Creates the rules. Sources whose content cannot be distributed are skipped with a note, and so
/// are labeled objects that the copier does not copy.
pub fn imported_rules(
    mut read: ReadAnnotations,
    objects: &Objects,
    places: &NamespaceLabels,
    bodies: &ObjectContents,
    aim: &ImportTarget,
) -> ImportReport {
    let is_equal = |request: &CopyRequest| {
        let equals = |copy: &Id| {
            compare_copy(bodies.get(&request.source), bodies.get(copy)) == CopyComparison::Equal
        };
        // Copies of Runnel are no evidence of the copier.
        let is_ours = |copy: &Id| {
            objects
                .get(copy)
                .is_some_and(|marked| marked.labels.contains_key(HUB_LABEL))
        };
        copies(request, places).any(|copy| equals(&copy) && !is_ours(&copy))
    };
    let excluded = aim
        .label
        .as_ref()
        .map(|given| labeled::drop_unproven(&mut read, given, &aim.labeled_not_copied, is_equal));
    let aim = &ImportTarget {
        labeled_not_copied: excluded.unwrap_or_default(),
        ..aim.clone()
    };
    let mut groups: BTreeMap<Kind, Vec<CopyRequest>> = BTreeMap::new();
    let mut import = ImportReport {
        left: read.notes,
        ..ImportReport::default()
    };
    for request in read.requests {
        if let Some(why) = refused(&request.source, bodies) {
            import.left.push((request.source, why));
            continue;
        }
        if request.choice.is_empty() {
            let notes = request
                .choice
                .notes
                .into_iter()
                .collect::<Vec<_>>()
                .join("; ");
            let why = if notes.is_empty() {
                "no namespace is both requested and allowed".to_owned()
            } else {
                notes
            };
            import
                .left
                .push((request.source, format!("{why}; no rule is created")));
            continue;
        }
        groups.entry(kind(&request, aim)).or_default().push(request);
    }
    let mut taken: BTreeSet<(String, String)> = BTreeSet::new();
    for (kind, wishes) in &groups {
        for (wishes, places_named) in chunks(kind, wishes) {
            let name = free_name(kind, &mut taken);
            let mut rule = one(kind, wishes, &places_named, places, bodies, aim, &name);
            if kind.in_bundle {
                match bundle(wishes, objects, bodies) {
                    Ok(bundle) => {
                        rule.notes.extend(bundle.notes);
                        let mut object = ManifestBundle::new(&name, bundle.spec);
                        object.metadata.namespace = Some(kind.namespace.clone());
                        rule.bundle = Some(json!(object));
                    }
                    Err(why) => {
                        let sources = rule.sources.into_iter();
                        import
                            .left
                            .extend(sources.map(|id| (id, format!("{why}; no rule is created"))));
                        continue;
                    }
                }
            }
            import.rules.push(rule);
        }
    }
    let covered: BTreeSet<&Id> = import
        .rules
        .iter()
        .flat_map(|rule| rule.copies.keys())
        .collect();
    let is_orphan = |(id, marked): &(&Id, &super::annotations::ObjectMetadata)| {
        marked.copy_of().is_some() && !covered.contains(id)
    };
    let orphaned_intents: BTreeSet<Id> = objects
        .iter()
        .filter(is_orphan)
        .map(|(id, _)| id.clone())
        .collect();
    import.orphaned_intents = orphaned_intents;
    for (id, marked) in objects {
        let marks: BTreeSet<String> = marked.marks().map(str::to_owned).collect();
        let concerned =
            covered.contains(id) || import.rules.iter().any(|rule| rule.sources.contains(id));
        if concerned && !marks.is_empty() {
            import.marks.insert(id.clone(), marks);
        }
    }
    import.left.sort();
    import
}

fn kind(request: &CopyRequest, aim: &ImportTarget) -> Kind {
    let gives_rights = kinds::replicated(&request.source.resource).is_some();
    Kind {
        namespace: request.source.namespace.clone(),
        copier: request.copier,
        in_bundle: gives_rights && !aim.is_hub && request.copier != Copier::Label,
        filled: request.filled,
        copy_name: (request.copy_name != request.source.name).then(|| request.copy_name.clone()),
        labels: request.labels,
        annotations: request.annotations,
        names: request.choice.names.clone(),
        selector: json!(request.choice.selector).to_string(),
    }
}

/// Splits the sources into as many rules as the limits of a rule require. Sources that are selected
/// by label do not count.
fn chunks<'a>(kind: &'a Kind, wishes: &'a [CopyRequest]) -> Vec<(&'a [CopyRequest], Vec<String>)> {
    let names: Vec<String> = kind.names.iter().cloned().collect();
    let mut of_names: Vec<Vec<String>> = names
        .chunks(limits::NAMESPACES)
        .map(<[String]>::to_vec)
        .collect();
    if of_names.is_empty() {
        of_names.push(Vec::new());
    }
    let of_sources = wishes.chunks(if kind.copier == Copier::Label {
        wishes.len().max(1)
    } else if kind.in_bundle {
        limits::MANIFESTS
    } else {
        limits::NAMES
    });
    of_sources
        .flat_map(|wishes| of_names.iter().map(move |names| (wishes, names.clone())))
        .collect()
}

fn one(
    kind: &Kind,
    wishes: &[CopyRequest],
    names: &[String],
    places: &NamespaceLabels,
    bodies: &ObjectContents,
    aim: &ImportTarget,
    name: &str,
) -> ImportedRule {
    let part = Choice {
        names: names.iter().cloned().collect(),
        selector: wishes
            .first()
            .and_then(|request| request.choice.selector.clone()),
        notes: BTreeSet::new(),
    };
    let mut copies_of = BTreeMap::new();
    let mut notes = BTreeSet::new();
    for request in wishes {
        notes.extend(request.choice.notes.iter().cloned());
        let request = CopyRequest {
            choice: part.clone(),
            ..request.clone()
        };
        for copy in copies(&request, places) {
            if is_own_place(kind, &copy, aim) {
                continue;
            }
            let comparison = compare_copy(bodies.get(&request.source), bodies.get(&copy));
            copies_of.insert(copy, comparison);
        }
    }
    ImportedRule {
        copier: kind.copier,
        rule: rule(kind, wishes, &part, places, aim, name),
        bundle: None,
        sources: wishes
            .iter()
            .map(|request| request.source.clone())
            .collect(),
        copies: copies_of,
        notes,
    }
}

/// Whether a copy would replace its source, in a cluster that is not the hub.
fn is_own_place(kind: &Kind, copy: &Id, aim: &ImportTarget) -> bool {
    !aim.is_hub && kind.copy_name.is_none() && copy.namespace == kind.namespace
}

fn free_name(kind: &Kind, taken: &mut BTreeSet<(String, String)>) -> String {
    let base = format!("from-{}", kind.copier.rule_prefix());
    let mut name = base.clone();
    let mut number = 1;
    while !taken.insert((kind.namespace.clone(), name.clone())) {
        number += 1;
        name = format!("{base}-{number}");
    }
    name
}

fn rule(
    kind: &Kind,
    wishes: &[CopyRequest],
    choice: &Choice,
    places: &NamespaceLabels,
    aim: &ImportTarget,
    name: &str,
) -> Value {
    let mut spec = json!({
        "sources": if kind.in_bundle {
            json!([{"resources": [BUNDLE_KIND], "names": [name]}])
        } else {
            sources(kind, wishes, aim)
        },
        "clusters": if aim.clusters.is_empty() { json!({"all": true}) } else { json!({"names": aim.clusters}) },
        "namespaces": choice.written(),
        "conflictPolicy": "AdoptIfEqual",
    });
    let reaches_own = choice.reaches(places).contains(&kind.namespace);
    if !aim.is_hub && kind.copy_name.is_none() && reaches_own {
        spec["namespaces"]["exclude"] = json!([kind.namespace]);
    }
    if kind.filled {
        spec["deletionPolicy"] = json!("Retain");
    }
    let mut transform = json!({});
    if let Some(name) = &kind.copy_name {
        transform["name"] = json!(name);
    }
    for (field, kept) in [("labels", kind.labels), ("annotations", kind.annotations)] {
        if !kept {
            transform[field] = json!({"drop": ["*"]});
        }
    }
    if transform != json!({}) {
        spec["transform"] = transform;
    }
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "DistributionRule",
        "metadata": {"name": name, "namespace": kind.namespace},
        "spec": spec,
    })
}

fn sources(kind: &Kind, wishes: &[CopyRequest], aim: &ImportTarget) -> Value {
    if let (Copier::Label, Some(given)) = (kind.copier, &aim.label) {
        let copied = wishes
            .iter()
            .map(|request| request.source.resource.as_str())
            .collect();
        return labeled::entries(given, &kind.namespace, copied, &aim.labeled_not_copied);
    }
    let mut by_resource: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for request in wishes {
        by_resource
            .entry(&request.source.resource)
            .or_default()
            .insert(&request.source.name);
    }
    let entries = by_resource
        .into_iter()
        .map(|(resource, names)| json!({"resources": [resource], "names": names}));
    Value::Array(entries.collect())
}

/// Puts the manifests of sources into a bundle.
///
/// # Errors
/// Why they cannot be in one.
fn bundle(
    wishes: &[CopyRequest],
    objects: &Objects,
    bodies: &ObjectContents,
) -> Result<Bundled, String> {
    let manifest = |request: &CopyRequest| -> Option<Value> {
        let source = &request.source;
        let kind = kinds::replicated(&source.resource)?;
        let mut manifest = bodies.get(source)?.clone();
        manifest["apiVersion"] = json!(kind.api_version);
        manifest["kind"] = json!(kind.kind);
        manifest["metadata"] = json!({"name": source.name});
        let labels = objects.get(source).map(|marked| &marked.labels);
        if let Some(labels) = labels.filter(|labels| request.labels && !labels.is_empty()) {
            manifest["metadata"]["labels"] = json!(labels);
        }
        Some(manifest)
    };
    bundled(vec![ManifestFile {
        name: "the sources".to_owned(),
        documents: wishes.iter().filter_map(manifest).collect(),
    }])
}

/// Why this is never a source.
fn refused(source: &Id, bodies: &ObjectContents) -> Option<String> {
    let rules = ContentRules::of(&source.resource);
    if rules.refuses_name(&source.name) {
        return Some("every cluster makes its own of this name, Runnel never copies it".to_owned());
    }
    let Some(body) = bodies.get(source) else {
        // The content of other kinds is left out if it is never distributed.
        let why = "has the annotation runnel.dev/distribute: \"false\", so Runnel never copies it";
        return rules.is_owned().then(|| why.to_owned());
    };
    let of_type = body.get("type").and_then(Value::as_str);
    let words = |of_type: &str| {
        format!("is of type {of_type}, a credential of its cluster that Runnel never copies")
    };
    if rules.refuses_type(of_type) {
        of_type.map(words)
    } else {
        None
    }
}

/// Compares an object with the source, as `AdoptIfEqual` does.
fn compare_copy(source: Option<&Value>, copy: Option<&Value>) -> CopyComparison {
    let Some(copy) = copy else {
        return CopyComparison::Absent;
    };
    let nothing = Value::Null;
    let field = |object: Option<&Value>, name: &str| -> Value {
        let value = object
            .and_then(|object| object.get(name))
            .unwrap_or(&nothing);
        let empty = value.as_object().is_some_and(serde_json::Map::is_empty)
            || value == &Value::Bool(false);
        if empty { Value::Null } else { value.clone() }
    };
    let objects = source.into_iter().chain([copy]);
    let all: BTreeSet<&String> = objects
        .filter_map(Value::as_object)
        .flat_map(Map::keys)
        .collect();
    if all
        .iter()
        .all(|name| field(source, name) == field(Some(copy), name))
    {
        CopyComparison::Equal
    } else {
        CopyComparison::Different
    }
}
