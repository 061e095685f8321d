//! What the index has not observed yet of what the API server lists for a rule.
use std::collections::BTreeMap;
use std::fmt;

use runnel_proto::model::{RuleUid, SourceRef};

use super::Index;
use crate::plan::WatchScope;

/// The objects of one scope that a rule needs, as the API server lists them.
#[derive(Clone, Debug)]
pub struct ListedScope {
    /// The kind, and the namespace or all namespaces.
    pub scope: WatchScope,
    /// The version of the list.
    pub version: u64,
    /// The needed objects with their versions.
    pub sources: BTreeMap<SourceRef, u64>,
}

/// Why the plans of a rule do not include an object as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unobserved {
    /// The watch has not delivered the version yet.
    Version,
    /// The content has not been read yet.
    Content,
    /// The object is deleted or not selected any more. The watch has not delivered that yet, or the
    /// grace period is not over.
    Removal,
}

impl fmt::Display for Unobserved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Version => "the hub has not observed its newest version yet",
            Self::Content => "the hub has not read its newest content yet",
            Self::Removal => {
                "the hub has not processed yet that it is deleted or not selected any more"
            }
        })
    }
}

impl Index {
    /// Whether the plans of a rule include this generation of it, and nothing of it waits to be
    /// rendered.
    pub fn has_planned(&self, uid: &RuleUid, generation: i64) -> bool {
        let entry = self.planner.rules.get(uid);
        let is_planned = entry.is_some_and(|entry| {
            entry.rule.generation >= generation
                && !entry.waits()
                && entry.unrendered.since.is_none()
        });
        is_planned && !self.planner.rendering.is_awaited(uid)
    }

    /// Returns the objects of a scope that the plans of a rule do not include as they are listed.
    pub fn unobserved(&self, uid: &RuleUid, listed: &ListedScope) -> Vec<(SourceRef, Unobserved)> {
        let mut unobserved = Vec::new();
        for (source, version) in &listed.sources {
            if self
                .sources
                .version(source)
                .is_none_or(|known| known < *version)
            {
                unobserved.push((source.clone(), Unobserved::Version));
            } else if !self.sources.is_read(source) {
                unobserved.push((source.clone(), Unobserved::Content));
            }
        }
        let Some(rule) = self.planner.latest_rule(uid) else {
            return unobserved;
        };
        if rule.reverted_to().is_some() {
            return Vec::new();
        }
        let removed = self
            .sources
            .in_scope(&listed.scope)
            .filter(|(source, known)| {
                // A newer version is that of an object that was created since.
                let is_old = self
                    .sources
                    .version(source)
                    .is_none_or(|version| version <= listed.version);
                is_old && !listed.sources.contains_key(*source) && rule.needs(source, &known.labels)
            });
        unobserved.extend(removed.map(|(source, _)| (source.clone(), Unobserved::Removal)));
        unobserved
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use runnel_proto::model::{Payload, Revision};
    use serde_json::json;

    use super::*;
    use crate::index::ScopeState;
    use crate::plan::{Rule, SourceContent, SourceState};

    const UID: &str = "r1";

    fn rule(generation: i64) -> Rule {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "shop", "uid": UID, "generation": generation},
            "spec": {
                "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"rule": "x"}}}],
                "clusters": {"all": true},
            },
        });
        let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
        Rule::namespaced(&object, "runnel-system").unwrap()
    }

    fn source(name: &str) -> SourceRef {
        SourceRef::new("configmaps", "shop", name)
    }

    fn labeled(value: &str) -> BTreeMap<String, String> {
        [("rule".to_owned(), value.to_owned())].into()
    }

    fn body(text: &str) -> SourceState {
        let payload = Payload::encode(text.as_bytes().to_vec());
        SourceState::Read(Arc::new(SourceContent::new(Revision([1; 16]), payload)))
    }

    fn index() -> Index {
        let mut index = Index::default();
        index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
        index.set_rule(rule(1));
        index
    }

    /// Compares the index with a list of this version.
    fn compare(
        index: &Index,
        version: u64,
        sources: &[(&str, u64)],
    ) -> Vec<(SourceRef, Unobserved)> {
        let listed = ListedScope {
            scope: WatchScope::in_namespace("configmaps", "shop"),
            version,
            sources: sources
                .iter()
                .map(|(name, version)| (source(name), *version))
                .collect(),
        };
        index.unobserved(&UID.into(), &listed)
    }

    #[test]
    fn edited_source_is_unobserved_until_it_is_read() {
        let mut index = index();
        let edited = |why| vec![(source("a"), why)];
        assert_eq!(compare(&index, 9, &[("a", 3)]), edited(Unobserved::Version));
        index.observe(&source("a"), 3, labeled("x"));
        assert_eq!(compare(&index, 9, &[("a", 3)]), edited(Unobserved::Content));
        index.read(&source("a"), 3, labeled("x"), body("1"));
        assert_eq!(compare(&index, 9, &[("a", 3)]), []);
        // An edit: first the watch delivers it, then its content is read.
        assert_eq!(compare(&index, 9, &[("a", 7)]), edited(Unobserved::Version));
        index.observe(&source("a"), 7, labeled("x"));
        assert_eq!(compare(&index, 9, &[("a", 7)]), edited(Unobserved::Content));
        index.record_read_failure(&source("a"));
        assert_eq!(compare(&index, 9, &[("a", 7)]), edited(Unobserved::Content));
        index.read(&source("a"), 8, labeled("x"), body("2"));
        assert_eq!(compare(&index, 9, &[("a", 7)]), []);
    }

    #[test]
    fn removed_source_is_unobserved_until_its_grace_period_ends() {
        let mut index = index();
        for (name, version) in [("a", 3), ("b", 4), ("new", 12)] {
            index.observe(&source(name), version, labeled("x"));
            index.read(&source(name), version, labeled("x"), body("1"));
        }
        let removed = |name| vec![(source(name), Unobserved::Removal)];
        // `new` was created after the list.
        assert_eq!(compare(&index, 9, &[("b", 4)]), removed("a"));
        let now = Instant::now();
        index.sources_mut().mark_deleted(&source("a"), now);
        assert_eq!(compare(&index, 9, &[("b", 4)]), removed("a"));
        index.expire_deleted(now + Duration::from_secs(5), Duration::from_secs(5));
        assert_eq!(compare(&index, 9, &[("b", 4)]), []);
        // `b` loses the label by which it is selected.
        assert_eq!(compare(&index, 11, &[]), removed("b"));
        index.observe(&source("b"), 10, labeled("y"));
        assert_eq!(compare(&index, 11, &[]), []);
    }

    #[test]
    fn rule_is_planned_when_its_copies_are_rendered() {
        let mut index = index();
        assert!(index.has_planned(&UID.into(), 1) && !index.has_planned(&UID.into(), 2));
        assert!(!index.has_planned(&"other".into(), 1));
        index.set_rule(rule(2));
        assert!(index.has_planned(&UID.into(), 2));
    }
}
