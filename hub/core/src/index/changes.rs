//! Reports to the removal guard which items a rule no longer selects, and which it selects again.
use std::sync::Arc;

use runnel_proto::model::{ClusterName, DeletionPolicy, SourceRef, Terms};

use super::RuleEntry;
use crate::guard::{Cause, CauseKind, Item};
use crate::plan::{GrantedTerms, Rule, RulePlan, TargetClusters, UnsupportedSource, is_bundle};

impl RuleEntry {
    /// Whether the rule selects the item.
    fn selects(&self, item: &Item) -> bool {
        let plan = |cluster: &ClusterName| self.cluster_plans.plan(cluster, &self.plan);
        match item {
            Item::Rule => !self.rule.deleting,
            Item::Cluster(cluster) => self.target_clusters.clusters.contains_key(cluster),
            Item::Kind(cluster, kind) => self
                .target_clusters
                .clusters
                .get(cluster)
                .is_some_and(|terms| Terms::grants_kind(terms, kind)),
            Item::Copy(cluster, intent) => plan(cluster).is_some_and(|plan| plan.selects(intent)),
            Item::Name(intent) => self
                .cluster_plans
                .plans(&self.plan)
                .any(|(_, plan)| plan.selects(intent)),
            Item::Source(source) => self.plan.selects(source),
            // Requests of agents are handled where they are judged.
            Item::Prune(..) => false,
        }
    }

    /// Whether an intent has the name of a version of its source, of which the agent keeps some.
    fn is_version(&self, intent: &SourceRef) -> bool {
        self.rule.terms.versions.is_some() && intent.is_version()
    }

    /// Blocks the removal of every item that the rule selects.
    pub(super) fn keep_selected(&mut self) {
        let mut guard = std::mem::take(&mut self.guard);
        guard.keep_selected(|item| self.selects(item));
        self.guard = guard;
    }

    /// Reports the intents of an object that the rule does not select any more. A manifest that leaves a selected bundle is
    /// deleted on purpose. While a bundle is not known, nothing has left it.
    pub(super) fn record_left(
        &mut self,
        intents: Vec<SourceRef>,
        object: &SourceRef,
        cause: &Cause,
    ) {
        for intent in intents {
            let is_manifest = intent != *object;
            if self.plan.selects(&intent) || (is_manifest && self.plan.is_unknown(&intent)) {
                continue;
            }
            let cause = if is_manifest && self.plan.selects(object) {
                CauseKind::Deleted.of("")
            } else {
                cause.clone()
            };
            self.guard.remove(Item::Source(intent), cause);
        }
    }

    /// The item to remove if a cluster has an intent that it should not have; `None` if it should
    /// have it, or if that is unknown.
    pub(super) fn orphaned_intent(
        &self,
        cluster: &ClusterName,
        intent: &SourceRef,
    ) -> Option<Item> {
        let assignment = self.assignment(cluster)?;
        let (source, sent) = (
            intent.plain(),
            assignment.terms().grants_kind(&intent.resource),
        );
        if assignment.is_unknown(intent) || (sent && assignment.plan().selects(intent)) {
            return None;
        }
        Some(if !self.plan.selects(&source) {
            Item::Source(source)
        } else if !sent {
            Item::Kind(cluster.clone(), intent.resource.clone())
        } else if self.is_version(intent) {
            // An edit: the agent keeps the former content as an older version.
            return None;
        } else if self.cluster_plans.differs_by_cluster() {
            Item::Copy(cluster.clone(), intent.clone())
        } else {
            Item::Name(intent.clone())
        })
    }
}

/// Reports to the guard the differences between two states of a rule. Returns whether removals must
/// be judged.
pub(super) fn record_changes(
    former: Option<&RuleEntry>,
    entry: &mut RuleEntry,
    takes_part: impl Fn(&ClusterName) -> bool,
) -> bool {
    let (before, now) = (
        former.map(|former| former.rule.terms.deletion_policy),
        entry.rule.terms.deletion_policy,
    );
    match now {
        DeletionPolicy::Retain => entry.guard.reopen(),
        DeletionPolicy::Delete if before == Some(DeletionPolicy::Retain) => {
            entry.guard.rejudge_passed()
        }
        DeletionPolicy::Delete => {}
    }
    entry.keep_selected();
    if entry.rule.deleting {
        entry.guard.remove(Item::Rule, CauseKind::Deleted.of(""))
    } else {
        entry.guard.record_selected(&Item::Rule)
    }
    let Some(former) = former else {
        return entry.guard.is_open();
    };
    let name: Arc<str> = entry.rule.terms.rule.to_string().into();
    let revert = |rule: &Rule| Some((rule.revert.clone()?.revision, rule.lacks_state()));
    let (edited, named) = if revert(&entry.rule) == revert(&former.rule) {
        (CauseKind::RuleEdited, CauseKind::NameRemoved)
    } else {
        (CauseKind::RuleReverted, CauseKind::RuleReverted)
    };
    let (edited, named) = (edited.of(name.clone()), named.of(name));
    let (before, now) = (&former.plan, entry.plan.clone());
    let is_gained = |source: &&SourceRef| !before.selects(source);
    entry
        .guard
        .record_gained(now.all_selected().filter(is_gained));
    for source in before.all_selected().filter(|source| !now.selects(source)) {
        let bundle = before.bundle_of(source);
        // A bundle has no copies itself.
        if is_bundle(source) || (bundle.is_some() && now.is_unknown(source)) {
            continue;
        }
        let object = bundle.unwrap_or(source);
        let is_excluded = |refused: &UnsupportedSource| *refused == UnsupportedSource::Annotation;
        let cause = if entry.plan.refused.get(object).is_some_and(is_excluded) {
            CauseKind::Deleted.of("")
        } else if entry.rule.has_dropped_source(&former.rule, object) {
            named.clone()
        } else {
            edited.clone()
        };
        entry.guard.remove(Item::Source(source.clone()), cause);
    }
    let (now, before) = (entry.rule.clone(), &former.rule);
    record_unselected(&former.target_clusters, entry, takes_part, |cluster| {
        if now.has_dropped_cluster(before, cluster) {
            named.clone()
        } else {
            edited.clone()
        }
    });
    if !former.cluster_plans.differs_by_cluster() && !entry.cluster_plans.differs_by_cluster() {
        record_uniform_names(former, entry, &edited);
    } else {
        let both: Vec<_> = former
            .target_clusters
            .clusters
            .keys()
            .filter(|name| entry.target_clusters.clusters.contains_key(*name))
            .collect();
        for cluster in both {
            if let Some(plan) = former.cluster_plans.plan(cluster, &former.plan) {
                record_names(plan, entry, cluster, &edited);
            }
        }
    }
    if former.rule.removal.has_other_limit(&entry.rule.removal) {
        entry.guard.apply_changed_limits();
    }
    entry.guard.is_open() || former.rule.removal != entry.rule.removal
}

/// Reports deselected items and their clusters to the guard.
pub(super) fn record_unselected(
    former: &TargetClusters,
    entry: &mut RuleEntry,
    takes_part: impl Fn(&ClusterName) -> bool,
    cause: impl Fn(&ClusterName) -> Cause,
) {
    entry.shut_to_new(|cluster| !former.clusters.contains_key(cluster));
    for (cluster, before) in &former.clusters {
        match entry.target_clusters.clusters.get(cluster).cloned() {
            // Nothing is sent and nothing removed while the grants are unknown.
            Some(now) if !former.unknown && !entry.target_clusters.unknown => {
                record_kinds(before, &now, entry, cluster, &cause(cluster))
            }
            Some(_) => {}
            None if takes_part(cluster) => entry
                .guard
                .remove(Item::Cluster(cluster.clone()), cause(cluster)),
            // A revoked cluster is sent nothing, and a leaving one leaves on purpose.
            None => {}
        }
    }
}

fn record_kinds(
    before: &GrantedTerms,
    now: &GrantedTerms,
    entry: &mut RuleEntry,
    cluster: &ClusterName,
    cause: &Cause,
) {
    let lost = |kind: &&str| before.grants_kind(kind) && !now.grants_kind(kind);
    let kinds = entry.plan.kinds(&entry.rule).into_iter().filter(lost);
    let kinds: Vec<Arc<str>> = kinds.map(Arc::from).collect();
    for kind in kinds {
        entry
            .guard
            .remove(Item::Kind(cluster.clone(), kind), cause.clone());
    }
}

/// The copies of sources that are still selected and have other names in all clusters now.
fn record_uniform_names(former: &RuleEntry, entry: &mut RuleEntry, cause: &Cause) {
    let rendered = |entry: &RuleEntry| {
        let mut plans = entry.cluster_plans.plans(&entry.plan);
        plans.next().map(|(_, plan)| plan.clone())
    };
    let (Some(before), Some(now)) = (rendered(former), rendered(entry)) else {
        return;
    };
    for intent in renamed(&before, &now, entry) {
        entry.guard.remove(Item::Name(intent), cause.clone());
    }
}

/// The intents of a former plan whose sources are still selected, under other names.
fn renamed(before: &RulePlan, now: &RulePlan, entry: &RuleEntry) -> Vec<SourceRef> {
    if std::ptr::eq(before, now) {
        return Vec::new();
    }
    // With versioned names, another version of the copy is an edit.
    let is_renamed = |intent: &&SourceRef| {
        !now.selects(intent)
            && !now.is_unknown(intent)
            && !entry.is_version(intent)
            && entry.plan.selects(&intent.plain())
    };
    before.intents.keys().filter(is_renamed).cloned().collect()
}

/// The copies of sources that are still selected and have other names in a cluster now.
fn record_names(
    before: &Arc<RulePlan>,
    entry: &mut RuleEntry,
    cluster: &ClusterName,
    cause: &Cause,
) {
    let Some(now) = entry.cluster_plans.plan(cluster, &entry.plan).cloned() else {
        return;
    };
    for intent in renamed(before, &now, entry) {
        entry
            .guard
            .remove(Item::Copy(cluster.clone(), intent), cause.clone());
    }
}

/// Records the change of a cluster's choice: its former terms and plan.
pub(super) fn record_choice(
    entry: &mut RuleEntry,
    cluster: &ClusterName,
    former: (Option<GrantedTerms>, Option<Arc<RulePlan>>),
    takes_part: bool,
) {
    if former.0.is_none() {
        entry.shut_to_new(|name| name == cluster);
    }
    let changed = CauseKind::Clusters.of(cluster.as_str());
    match (entry.target_clusters.clusters.get(cluster).cloned(), former) {
        (Some(now), (Some(before), plan)) => {
            if !entry.target_clusters.unknown {
                record_kinds(&before, &now, entry, cluster, &changed);
            }
            if let Some(plan) = plan.filter(|_| entry.cluster_plans.differs_by_cluster()) {
                record_names(&plan, entry, cluster, &changed);
            }
        }
        (None, (Some(_), _)) if takes_part => {
            entry.guard.remove(Item::Cluster(cluster.clone()), changed)
        }
        _ => {}
    }
    if !takes_part {
        entry.guard.forget(cluster);
    }
    entry.keep_selected();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Cluster, Index};
    use super::*;
    use crate::plan::Rule;

    /// The item to remove if the cluster has the one source under another name.
    fn orphaned_intent(transform: &serde_json::Value, name: &str) -> Option<Item> {
        let object: runnel_api::ClusterDistributionRule = serde_json::from_value(json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
            "metadata": {"name": "r", "uid": "r", "generation": 1},
            "spec": {
                "sources": [{"resources": ["configmaps"], "namespaces": ["team"], "names": ["app"]}],
                "clusters": {"all": true}, "transform": transform,
            },
        }))
        .unwrap();
        let (mut index, cluster) = (Index::default(), ClusterName::from("one"));
        index.set_scope(
            crate::plan::WatchScope::everywhere("configmaps"),
            super::super::ScopeState::Known,
        );
        index.set_cluster(
            cluster.clone(),
            Cluster {
                uid: "u".to_owned(),
                accepted: true,
                ..Cluster::default()
            },
        );
        index.set_rule(Rule::cluster_scoped(&object, "runnel-system").unwrap());
        let app = SourceRef::new("configmaps", "team", "app");
        let payload = runnel_proto::model::Payload::encode(
            runnel_proto::model::Content::default().to_bytes(),
        );
        let content =
            crate::plan::SourceContent::new(runnel_proto::model::Revision([7; 16]), payload);
        index.set_source(
            app.clone(),
            [].into(),
            Some(crate::plan::SourceState::Read(Arc::new(content))),
        );
        index
            .rules()
            .get(&"r".into())
            .unwrap()
            .orphaned_intent(&cluster, &app.as_copy(name))
    }

    #[test]
    fn an_earlier_version_is_no_removal_and_an_earlier_name_is_one() {
        let versions = json!({"versionedName": {"keep": 3}});
        assert_eq!(orphaned_intent(&versions, "app-0123456789"), None);
        assert!(matches!(
            orphaned_intent(&json!({"name": "else"}), "app-0123456789"),
            Some(Item::Name(_))
        ));
        // Names from before versions were enabled.
        for former in ["app", "app-settings", "app-012345678", "app-012345678X"] {
            assert!(
                matches!(orphaned_intent(&versions, former), Some(Item::Name(_))),
                "{former}"
            );
        }
    }
}
