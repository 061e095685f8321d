//! The status of a rule, bounded in bytes for any size of the fleet.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RolloutStatus, limits, schema};

/// The observed state of the rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Identifies the newest state of rule and sources that is applied in every chosen cluster; it
    /// changes when an edit has arrived. Opaque: compare it, do not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(128))]
    pub revision: Option<String>,
    /// The counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Summary")]
    pub summary: Option<Summary>,
    /// The counts as `kubectl get` shows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Display")]
    pub display: Option<Display>,
    /// The removal that waits for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PendingApproval")]
    pub pending_approval: Option<PendingApproval>,
    /// The progress of the rollout of the newest change, if `spec.rollout` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RolloutStatus")]
    pub rollout: Option<RolloutStatus>,
    /// See the reference of conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::conditions)]
    pub conditions: Vec<Condition>,
    /// The chosen clusters, the worst first, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("name", limits::STATUS_CLUSTERS))]
    pub clusters: Vec<ClusterStatus>,
    /// Whether more clusters are chosen than are listed.
    #[serde(default)]
    pub truncated: bool,
}

/// The counts of a rule. Those of copies sum up over the chosen clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// Objects on the hub that the rule selects.
    pub sources: i64,
    /// Member clusters that the rule chooses.
    pub clusters: i64,
    /// Of these, the clusters that are connected and have every copy applied.
    pub clusters_ready: i64,
    /// Copies that should exist.
    pub copies: i64,
    /// Copies that equal their source.
    pub copies_applied: i64,
    /// Copies whose last write failed.
    pub copies_failed: i64,
    /// Copies for namespaces that do not exist yet.
    pub copies_waiting: i64,
    /// Copies that another client changed or deleted, and that are left so (`driftPolicy: Report`).
    pub copies_drifted: i64,
    /// Of a dry run: copies that would be created.
    pub copies_to_create: i64,
    /// Of a dry run: copies that would be updated, adopted or overwritten.
    pub copies_to_update: i64,
    /// Of a dry run: copies that would be deleted, or left without marks.
    pub copies_to_delete: i64,
    /// Copies whose object in the member cluster has a health: its own status reports how it is. ConfigMaps, Secrets and
    /// others without such a status have none.
    #[serde(skip_serializing_if = "is_zero")]
    pub copies_with_health: i64,
    /// Of these, the copies that are healthy: their controllers have reached what their specs request.
    #[serde(skip_serializing_if = "is_zero")]
    pub copies_healthy: i64,
}

/// A removal above a limit, which waits for approval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingApproval {
    /// Identifies exactly this set: the annotation runnel.dev/approve with this value approves it,
    /// and nothing else. Several values have commas between them.
    #[schemars(transform = schema::text(64))]
    pub digest: String,
    /// Why the copies would be removed: of several causes, the strongest kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(transform = schema::text(limits::MESSAGE))]
    pub cause: String,
    /// The causes that an approval covers, if they are several, at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::CAUSES))]
    pub causes: Vec<CauseCount>,
    /// Number of copies, by the agents' reports.
    #[serde(default)]
    pub copies: i64,
    /// Number of member clusters.
    #[serde(default)]
    pub clusters: i64,
    /// The first names of the set: sources, clusters or rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::text_list(limits::PENDING_NAMES, limits::MESSAGE))]
    pub names: Vec<String>,
    /// Since when it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Option<Time>,
}

impl PendingApproval {
    /// Why the copies would be removed, with the number of copies of each cause if there are several.
    pub fn why(&self) -> String {
        let count = |cause: &CauseCount| {
            let noun = if cause.copies == 1 { "copy" } else { "copies" };
            format!("{} ({} {noun})", cause.cause, cause.copies)
        };
        match self.causes.as_slice() {
            [] => self.cause.clone(),
            causes => causes.iter().map(count).collect::<Vec<_>>().join("; "),
        }
    }
}

/// One of several causes of a removal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CauseCount {
    /// What happened.
    #[schemars(transform = schema::text(limits::MESSAGE))]
    pub cause: String,
    /// Number of copies that it would remove.
    pub copies: i64,
}

/// The counts of a rule as `kubectl get` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Display {
    /// Ready and chosen clusters, such as `118/120`.
    #[schemars(transform = schema::text(64))]
    pub clusters: String,
    /// Applied and desired copies, such as `948/960`.
    #[schemars(transform = schema::text(64))]
    pub copies: String,
    /// Healthy copies and copies that have a health, such as `3/4`; absent if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(64))]
    pub healthy: Option<String>,
}

impl From<&Summary> for Display {
    fn from(summary: &Summary) -> Self {
        Self {
            clusters: format!("{}/{}", summary.clusters_ready, summary.clusters),
            copies: format!("{}/{}", summary.copies_applied, summary.copies),
            healthy: healthy_of(summary.copies_healthy, summary.copies_with_health),
        }
    }
}

/// Returns the healthy copies of those that have a health, as tables show them; `None` if none has.
pub fn healthy_of(healthy: i64, with_health: i64) -> Option<String> {
    (with_health > 0).then(|| format!("{healthy}/{with_health}"))
}

/// The state of a rule in one cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The name of the MemberCluster.
    #[schemars(transform = schema::text(limits::CLUSTER_NAME))]
    pub name: String,
    /// Failed: a copy failed or is unhealthy. Drifted: a copy was changed or deleted there and is not corrected. Unreachable:
    /// the cluster is not connected, and the counts are the last reported ones. Waiting: a namespace does not exist yet.
    /// Progressing: copies are being applied or are not healthy yet. DryRun: the rule is a dry run and would change copies.
    /// Ready: every copy is applied, and healthy if it has a health.
    pub state: ClusterState,
    /// Copies that equal their source.
    #[serde(default)]
    pub applied: i64,
    /// Copies whose last write failed.
    #[serde(default)]
    pub failed: i64,
    /// Copies for namespaces that do not exist yet.
    #[serde(default)]
    pub waiting: i64,
    /// Copies that another client changed or deleted there, and that are left so.
    #[serde(default)]
    pub drifted: i64,
    /// Of a dry run: copies that would be created.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub to_create: i64,
    /// Of a dry run: copies that would be updated, adopted or overwritten.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub to_update: i64,
    /// Of a dry run: copies that would be deleted, or left without marks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub to_delete: i64,
    /// Copies whose object there has a health.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub with_health: i64,
    /// Of these, the healthy copies.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub healthy: i64,
    /// The worst reason among the copies, or why the cluster is in this state, in CamelCase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(transform = schema::text(128))]
    pub reason: String,
    /// A message. Never contains a value of a Secret; contains short values of a drifted ConfigMap.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(transform = schema::text(limits::MESSAGE))]
    pub message: String,
    /// Since when the cluster has been in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub since: Option<Time>,
}

/// The state of a rule in one cluster; the worst is the smallest.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub enum ClusterState {
    /// A copy failed or is unhealthy.
    Failed,
    /// A copy was changed or deleted there, and is left so.
    Drifted,
    /// The cluster is not connected.
    Unreachable,
    /// A namespace does not exist yet.
    Waiting,
    /// Copies are on their way, or not healthy yet.
    #[default]
    Progressing,
    /// The rule is a dry run and would change copies here.
    DryRun,
    /// Every copy is applied, and healthy if it has a health.
    Ready,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires it")]
fn is_zero(count: &i64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_counts_are_written() {
        let status = RuleStatus {
            summary: Some(Summary::default()),
            ..RuleStatus::default()
        };
        let written = serde_json::to_value(&status).unwrap();
        let zero = serde_json::json!(0);
        for count in [
            "sources",
            "clusters",
            "clustersReady",
            "copies",
            "copiesApplied",
            "copiesFailed",
            "copiesWaiting",
            "copiesDrifted",
            "copiesToCreate",
            "copiesToUpdate",
            "copiesToDelete",
        ] {
            assert_eq!(written["summary"][count], zero, "{count}");
        }
    }

    #[test]
    fn the_worst_state_comes_first() {
        let mut states = [
            ClusterState::Ready,
            ClusterState::Waiting,
            ClusterState::Failed,
            ClusterState::Unreachable,
        ];
        states.sort();
        assert_eq!(
            states,
            [
                ClusterState::Failed,
                ClusterState::Unreachable,
                ClusterState::Waiting,
                ClusterState::Ready
            ]
        );
    }
}
