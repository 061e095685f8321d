//! An entry of a rule's `sources`.
use std::collections::BTreeMap;
use std::sync::Arc;

use runnel_proto::model::{CopyMode, Pattern, Selector, SourceRef, matches_any};

/// One entry of a rule's `sources`.
#[derive(Clone, Debug)]
pub struct SourceChoice {
    /// The kinds, as `plural[.group]`. The API server of the hub may not serve all of them.
    pub resources: Vec<Arc<str>>,
    /// The hub's namespaces to read. Globs leave the namespaces of Kubernetes and Runnel alone. Empty: the entry selects
    /// objects of kinds without namespaces.
    pub namespaces: Vec<Pattern>,
    /// Labels to select by; absent: by name.
    pub selector: Option<Selector>,
    /// Names and globs to select by.
    pub names: Vec<Pattern>,
    /// Names and globs that are subtracted.
    pub exclude: Vec<Pattern>,
    /// Whether objects that a controller made are sources.
    pub include_controlled: bool,
    /// What agents do with the copies beyond their fields.
    pub mode: Option<CopyMode>,
}

impl SourceChoice {
    /// Whether this entry is `former` without some of its literal names, this one among them.
    pub(super) fn has_dropped(&self, former: &SourceChoice, source: &SourceRef) -> bool {
        let literal = |pattern: &&Pattern| pattern.is_literal();
        let names = |choice: &SourceChoice| {
            choice
                .names
                .iter()
                .filter(literal)
                .cloned()
                .collect::<Vec<_>>()
        };
        let globs = |choice: &SourceChoice| {
            choice
                .names
                .iter()
                .filter(|name| !literal(name))
                .cloned()
                .collect::<Vec<_>>()
        };
        let (before, after) = (names(former), names(self));
        let is_it = |pattern: &Pattern| pattern.as_str() == &*source.name;
        before.iter().any(is_it)
            && !after.iter().any(is_it)
            && after.iter().all(|name| before.contains(name))
            && globs(former) == globs(self)
            && self.include_controlled == former.include_controlled
            && (
                &self.resources,
                &self.namespaces,
                &self.selector,
                &self.exclude,
            ) == (
                &former.resources,
                &former.namespaces,
                &former.selector,
                &former.exclude,
            )
    }

    /// Returns the position of a source's namespace among all that the entries name for it.
    pub(super) fn rank(entries: &[Self], source: &SourceRef) -> usize {
        let entries = entries.iter().filter(|entry| {
            let is_named = entry.selector.is_some() || matches_any(&entry.names, &source.name);
            is_named && entry.resources.contains(&source.resource)
        });
        let mut named = entries.flat_map(|entry| &entry.namespaces);
        let position = named.position(|pattern| pattern.matches(&source.namespace));
        position.unwrap_or(usize::MAX)
    }

    /// Whether the entry selects objects of kinds without namespaces.
    pub fn is_of_cluster(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// As [`super::Rule::literal_namespaces`], for the entry.
    pub fn literal_namespaces(&self) -> Option<Vec<&str>> {
        if self.is_of_cluster() {
            return Some(vec![""]);
        }
        let name = |pattern: &'_ Pattern| pattern.is_literal();
        let is_literal = self.namespaces.iter().all(name);
        is_literal.then(|| self.namespaces.iter().map(Pattern::as_str).collect())
    }

    pub(super) fn selects(
        &self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
        runnel_namespace: &str,
    ) -> bool {
        self.resources.contains(&source.resource)
            && self.reads(&source.namespace, runnel_namespace)
            && source
                .as_namespace()
                .is_none_or(|name| **name != *runnel_namespace)
            && match &self.selector {
                Some(selector) => selector.matches(labels),
                None => matches_any(&self.names, &source.name),
            }
            && !matches_any(&self.exclude, &source.name)
    }

    pub(super) fn reads(&self, namespace: &str, runnel_namespace: &str) -> bool {
        if self.is_of_cluster() || namespace.is_empty() {
            return self.is_of_cluster() && namespace.is_empty();
        }
        let reserved = namespace.starts_with("kube-") || namespace == runnel_namespace;
        self.namespaces
            .iter()
            .any(|pattern| pattern.matches(namespace) && (pattern.is_literal() || !reserved))
    }
}
