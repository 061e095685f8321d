//! Copiers that select by a label.
//!
//! Only the user and the cluster show what such a copier copies, and a rule that selects by the
//! same label would copy every object with it. So a rule is printed for a namespace and a kind only
//! if the user names them, or if equal copies prove them. The rule excludes labeled objects
//! without copies by name. The rest is refused with the reason.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{HUB_LABEL, Kind, is_namespace_pattern};
use serde_json::{Value, json};

use super::annotations::{Copier, CopyRequest, Id, ObjectMetadata, Objects, ReadAnnotations};
use super::choice::{self, Choice, NamespaceLabels};
use crate::parse::ArgumentError;
use runnel_api::{LabelExpression, LabelSelector, Operator, limits};

/// The user's description of a copier that selects by label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelCopier {
    /// The label's key.
    pub key: String,
    /// Its value; `None`: any.
    pub value: Option<String>,
    /// The namespaces that it copies to, as names or globs.
    pub to: Vec<String>,
    /// The namespace that it copies from; `None`: every namespace with equal copies in the targets.
    pub from: Option<String>,
    /// The kinds that it copies, as `plural[.group]`; empty: ConfigMaps and Secrets, if they have equal copies there.
    pub resources: Vec<String>,
}

impl LabelCopier {
    /// Reads the label, `KEY=VALUE` or `KEY`, and the namespaces that are copied to.
    ///
    /// # Errors
    /// [`ArgumentError`], which names the flag.
    pub fn new(label: &str, to: &[String]) -> Result<Self, ArgumentError> {
        let wrong = || ArgumentError::Label(label.to_owned());
        let parsed = LabelSelector::parse(label)
            .map_err(|cause| ArgumentError::Selector {
                given: label.to_owned(),
                cause,
            })?
            .ok_or_else(wrong)?;
        let mut labels = parsed.match_labels.into_iter();
        let (key, value) = match (
            labels.next(),
            labels.next(),
            parsed.match_expressions.as_slice(),
        ) {
            (Some((key, value)), None, []) => (key, Some(value)),
            (
                None,
                None,
                [
                    LabelExpression {
                        key,
                        operator: Operator::Exists,
                        ..
                    },
                ],
            ) => (key.clone(), None),
            _ => return Err(wrong()),
        };
        if let Some(bad) = to.iter().find(|name| !is_namespace_pattern(name)) {
            return Err(ArgumentError::Namespace(bad.clone()));
        }
        Ok(Self {
            key,
            value,
            to: to.to_vec(),
            ..Self::default()
        })
    }

    /// Whether an object has the label, and Runnel did not copy it there.
    fn is_labeled_source(&self, id: &Id, marked: &ObjectMetadata) -> bool {
        self.includes(&id.resource) && self.has(marked) && !marked.labels.contains_key(HUB_LABEL)
    }

    fn has(&self, marked: &ObjectMetadata) -> bool {
        marked
            .labels
            .get(&self.key)
            .is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
    }

    fn includes(&self, resource: &str) -> bool {
        if self.resources.is_empty() {
            return Kind::by_resource(resource).is_some();
        }
        self.resources.iter().any(|named| named == resource)
    }

    /// Returns the kinds that a rule names for one namespace, of which these are copied.
    fn named<'a>(&'a self, copied: BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        if self.resources.is_empty() {
            copied
        } else {
            self.resources.iter().map(String::as_str).collect()
        }
    }

    fn selector(&self) -> Value {
        match &self.value {
            Some(value) => json!({"matchLabels": {&self.key: value}}),
            None => json!({"matchExpressions": [{"key": self.key, "operator": "Exists"}]}),
        }
    }
}

/// Collects the labeled objects in every namespace that is not a target.
pub fn read(objects: &Objects, places: &NamespaceLabels, given: &LabelCopier) -> ReadAnnotations {
    let choice = Choice {
        names: given.to.iter().cloned().collect(),
        ..Choice::default()
    };
    let reached = choice.reaches(places);
    let mut read = ReadAnnotations::default();
    for (id, marked) in objects {
        let is_target =
            reached.contains(&id.namespace) || choice::matches_any(&given.to, &id.namespace);
        let is_elsewhere = given
            .from
            .as_ref()
            .is_some_and(|from| *from != id.namespace);
        if is_target || is_elsewhere || !given.includes(&id.resource) || !given.has(marked) {
            continue;
        }
        if given.is_labeled_source(id, marked) {
            read.push(Copier::Label, id, choice.clone()).annotations = true
        } else {
            read.note(id, "has the label, and is a copy of Runnel's, which is never a source: no rule is made for it");
        }
    }
    read
}

/// The labeled objects on the hub that are not copied in the cluster that is read.
pub fn labeled_not_copied(
    on_hub: &Objects,
    given: &LabelCopier,
    read: &ReadAnnotations,
) -> BTreeSet<Id> {
    let copied: BTreeSet<&Id> = read
        .requests
        .iter()
        .map(|request| &request.source)
        .collect();
    let uncopied = on_hub
        .iter()
        .filter(|(id, marked)| given.is_labeled_source(id, marked) && !copied.contains(id));
    uncopied.map(|(id, _)| id.clone()).collect()
}

/// Removes sources that the user did not name and no equal copy proves, and sources that a rule
/// cannot distinguish from others. `beside` are labeled objects that are not copied. `is_equal`:
/// whether an equal copy exists in the copier's targets. Returns the names that a rule must
/// exclude.
pub fn drop_unproven(
    read: &mut ReadAnnotations,
    given: &LabelCopier,
    uncopied: &BTreeSet<Id>,
    is_equal: impl Fn(&CopyRequest) -> bool,
) -> BTreeSet<Id> {
    let equal = read
        .requests
        .iter()
        .filter(|request| is_equal(request))
        .map(|request| &request.source);
    let shown: BTreeSet<(String, String)> = equal
        .map(|id| (id.namespace.clone(), id.resource.clone()))
        .collect();
    leave_out(
        read,
        |Id {
             resource,
             namespace,
             ..
         }| {
            if given.from.is_none() && !shown.iter().any(|(shown, _)| shown == namespace) {
                Some(format!(
                    "has the label, but no labeled object of {namespace} has an equal copy in the namespaces of --to: if the copier \
             copies from {namespace}, add --namespace {namespace}"
                ))
            } else if given.resources.is_empty()
                && !shown.contains(&(namespace.clone(), resource.clone()))
            {
                Some(format!(
                    "has the label, but none of the labeled {resource} of {namespace} has an equal copy in the namespaces of --to: \
             if the copier copies {resource}, add --resources {resource}"
                ))
            } else {
                None
            }
        },
    );
    let mut contested: BTreeMap<(String, String), BTreeSet<Id>> = BTreeMap::new();
    for CopyRequest { source, .. } in &read.requests {
        let copy = (source.resource.clone(), source.name.clone());
        contested.entry(copy).or_default().insert(source.clone());
    }
    contested.retain(|_, sources| sources.len() > 1);
    leave_out(read, |id| {
        let others = contested
            .get(&(id.resource.clone(), id.name.clone()))?
            .iter()
            .filter(|other| *other != id);
        let others: Vec<String> = others.map(Id::to_string).collect();
        Some(format!(
            "has the label, as {} has, and both map to the same copies: if one of them is a copy, add its namespace to --to; \
             otherwise select the namespace of the source with --namespace",
            others.join(" and ")
        ))
    });
    let mut excluded: BTreeSet<Id> = contested.into_values().flatten().collect();
    excluded.extend(uncopied.iter().cloned());
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for id in &excluded {
        *counts
            .entry((id.namespace.as_str(), id.resource.as_str()))
            .or_default() += 1;
    }
    counts.retain(|_, count| *count > limits::NAMES);
    leave_out(read, |id| {
        let is_crowded = counts
            .keys()
            .any(|(namespace, _)| *namespace == id.namespace);
        is_crowded.then(|| {
            let most = limits::NAMES;
            format!(
                "more than {most} objects of its namespace have the label and are not copied, and a rule can exclude at most \
                 {most} names: the import writes no rule for it"
            )
        })
    });
    let notes = uncopied.iter().filter(|id| {
        let copied = read
            .requests
            .iter()
            .map(|request| &request.source)
            .filter(|source| source.namespace == id.namespace);
        let copied: BTreeSet<&str> = copied.map(|source| source.resource.as_str()).collect();
        !copied.is_empty() && given.named(copied).contains(id.resource.as_str())
    });
    let words = "has the label on the hub, but has no copy in the cluster that is read: the rule excludes it by name";
    let notes: Vec<_> = notes.map(|id| (id.clone(), words.to_owned())).collect();
    read.notes.extend(notes);
    excluded
}

fn leave_out(read: &mut ReadAnnotations, why: impl Fn(&Id) -> Option<String>) {
    for request in std::mem::take(&mut read.requests) {
        match why(&request.source) {
            Some(why) => read.notes.push((request.source, why)),
            None => read.requests.push(request),
        }
    }
}

/// The `sources` of the rule for one namespace and its copied kinds, with the excluded names.
pub fn entries(
    given: &LabelCopier,
    namespace: &str,
    copied: BTreeSet<&str>,
    excluded: &BTreeSet<Id>,
) -> Value {
    let mut by_names: BTreeMap<BTreeSet<&str>, BTreeSet<&str>> = BTreeMap::new();
    for resource in given.named(copied) {
        let names = excluded
            .iter()
            .filter(|id| id.namespace == namespace && id.resource == resource);
        by_names
            .entry(names.map(|id| id.name.as_str()).collect())
            .or_default()
            .insert(resource);
    }
    let entry = |(names, resources): (BTreeSet<&str>, BTreeSet<&str>)| {
        if names.is_empty() {
            json!({"resources": resources, "selector": given.selector()})
        } else {
            json!({"resources": resources, "selector": given.selector(), "exclude": names})
        }
    };
    Value::Array(by_names.into_iter().map(entry).collect())
}

#[cfg(test)]
#[path = "labeled_tests.rs"]
mod tests;
