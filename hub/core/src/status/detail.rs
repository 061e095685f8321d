//! The state of a rule in each of its clusters, for answers that the status has no room for.
use std::time::Instant;

use runnel_proto::model::{ClusterName, Failure};

use super::rule_cluster_state::ClusterView;
use super::rule_cluster_state::{Proved, is_newest, proved, standing};
use super::{ReportStore, View};
use runnel_api::ClusterState;
use runnel_api::conditions::Reason;

/// The state of a rule in one cluster. It contains no content of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDetail {
    /// The cluster.
    pub name: ClusterName,
    /// As in the rule's status.
    pub state: ClusterState,
    /// Copies that equal their source.
    pub applied: i64,
    /// Copies whose last attempt failed.
    pub failed: i64,
    /// Copies for namespaces that do not exist yet.
    pub waiting: i64,
    /// As in the rule's status.
    pub reason: Reason,
    /// A sentence for a person.
    pub message: String,
    /// The agent's reports of failed copies, the worst first.
    pub failures: Vec<Failure>,
    /// Whether it has the newest revision of every source, as far as that is known.
    pub newest: bool,
    /// Whether it has proved that.
    pub proved: Proved,
}

/// The state of a rule in each of its clusters: the worst first, then by name, as in its status.
pub fn details(view: &View<'_>, report_store: &ReportStore, now: Instant) -> Vec<ClusterDetail> {
    let one = |cluster: ClusterView<'_>| {
        let (standing, account) = (standing(view, &cluster, now), cluster.account);
        ClusterDetail {
            name: cluster.name.clone(),
            state: standing.state,
            applied: standing.applied,
            failed: standing.failed,
            waiting: standing.waiting,
            reason: standing.reason,
            message: standing.message,
            failures: account
                .map(|account| account.failures.clone())
                .unwrap_or_default(),
            newest: account.is_some_and(|account| is_newest(view, &cluster, account)),
            proved: account.map_or(Proved::NotCompared, |account| {
                proved(view, &cluster, account)
            }),
        }
    };
    let mut all: Vec<_> = view.clusters(report_store).map(one).collect();
    all.sort_by(|left, right| (left.state, &left.name).cmp(&(right.state, &right.name)));
    all
}
