//! The state of a rule in one of its clusters, for the view API.
use std::time::Instant;

use runnel_proto::model::{ClusterName, CopyFeedback, Failure};

use super::rule_cluster_state::{ProofState, has_applied_plan, is_newest, proved, state_of};
use super::view::ClusterView;
use super::{ReportStore, View};
use runnel_api::ClusterState;
use runnel_api::conditions::Reason;

/// The state of a rule in one cluster. It contains no content of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDetail {
    /// The cluster.
    pub name: ClusterName,
    /// The state, as in the rule's status.
    pub state: ClusterState,
    /// Copies that should exist there.
    pub copies: i64,
    /// Copies that equal their source.
    pub applied: i64,
    /// Copies whose last write failed.
    pub failed: i64,
    /// Copies for namespaces that do not exist yet.
    pub waiting: i64,
    /// Copies that another client changed or deleted there, and that are left so.
    pub drifted: i64,
    /// Of a dry run: copies that would be created.
    pub to_create: i64,
    /// Of a dry run: copies that would be updated, adopted or overwritten.
    pub to_update: i64,
    /// Of a dry run: copies that would be deleted, or left without marks.
    pub to_delete: i64,
    /// Copies whose object there has a health.
    pub with_health: i64,
    /// Of these, the healthy copies.
    pub healthy: i64,
    /// The reason, as in the rule's status.
    pub reason: Reason,
    /// The message.
    pub message: String,
    /// The agent's reports of copies that failed or are unhealthy, the worst first.
    pub failures: Vec<Failure>,
    /// The fields that the rule has returned, of the first copies.
    pub feedback: Vec<CopyFeedback>,
    /// Whether it has the newest revision of every source, as far as that is known.
    pub newest: bool,
    /// Whether its agent has reported that it has the newest plan, applied or not.
    pub has_plan: bool,
    /// Whether the cluster has proved it.
    pub proved: ProofState,
}

/// The state of a rule in one of its clusters; `None` if the rule does not choose it.
pub fn detail(
    view: &View<'_>,
    report_store: &ReportStore,
    cluster: &ClusterName,
    now: Instant,
) -> Option<ClusterDetail> {
    let (cluster, _) = view.target_clusters.clusters.get_key_value(cluster)?;
    Some(detail_of(view, &view.cluster(report_store, cluster), now))
}

fn detail_of(view: &View<'_>, cluster: &ClusterView<'_>, now: Instant) -> ClusterDetail {
    let (cluster_state, rule_report) = (state_of(view, cluster, now), cluster.rule_report);
    ClusterDetail {
        name: cluster.name.clone(),
        state: cluster_state.state,
        copies: cluster_state.copies,
        applied: cluster_state.applied,
        failed: cluster_state.failed,
        waiting: cluster_state.waiting,
        drifted: cluster_state.drifted,
        to_create: cluster_state.to_create,
        to_update: cluster_state.to_update,
        to_delete: cluster_state.to_delete,
        with_health: cluster_state.with_health,
        healthy: cluster_state.healthy,
        reason: cluster_state.reason,
        message: cluster_state.message,
        failures: rule_report
            .map(|rule_report| rule_report.details().failures.clone())
            .unwrap_or_default(),
        feedback: rule_report
            .map(|rule_report| rule_report.details().feedback.clone())
            .unwrap_or_default(),
        has_plan: rule_report
            .is_some_and(|rule_report| has_applied_plan(view, cluster, rule_report)),
        newest: rule_report.is_some_and(|rule_report| is_newest(view, cluster, rule_report)),
        proved: rule_report.map_or(ProofState::NotCompared, |rule_report| {
            proved(view, cluster, rule_report)
        }),
    }
}
