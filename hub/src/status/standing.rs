//! How one rule stands in one cluster.
use std::time::Instant;

use runnel_proto::model::ClusterName;

use super::ledger::Account;
use super::{Ledger, SETTLING, View};
use crate::crd::{ClusterState, conditions::Reason};

/// How one rule stands in one cluster.
pub(super) struct Standing {
    pub(super) state: ClusterState,
    pub(super) copies: i64,
    pub(super) applied: i64,
    pub(super) failed: i64,
    pub(super) waiting: i64,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// Whether the cluster counts as connected.
    pub(super) fresh: bool,
}

/// Whether nothing is under way: every cluster has said how its copies of the newest plan are, or is silent.
pub fn is_settled(view: &View<'_>, ledger: &Ledger, now: Instant) -> bool {
    let settled = |cluster| standing(view, ledger, cluster, now).state != ClusterState::Progressing;
    view.plan.unread.is_empty() && view.clusters.iter().all(settled)
}

/// Whether the hub has not been up for long enough to take the cluster's silence for an answer.
pub(super) fn is_awaited(view: &View<'_>, ledger: &Ledger, cluster: &ClusterName, now: Instant) -> bool {
    !ledger.has_connected(cluster) && now.saturating_duration_since(view.hub_started) < SETTLING
}

pub(super) fn standing(view: &View<'_>, ledger: &Ledger, cluster: &ClusterName, now: Instant) -> Standing {
    let account = ledger.account(cluster, &view.rule.uid);
    let fresh = ledger.session(cluster, now).is_some();
    let (state, reason, message) = match account {
        _ if is_awaited(view, ledger, cluster, now) => {
            (ClusterState::Progressing, Reason::Progressing, "the agent has not connected since the hub started".into())
        }
        _ if !fresh => silent(ledger, cluster),
        None => (ClusterState::Progressing, Reason::Progressing, "the agent has not said anything yet".into()),
        Some(account) => said(view, account),
    };
    let counts = account.map(|account| account.counts).unwrap_or_default();
    Standing {
        state,
        copies: counts.copies.into(),
        applied: counts.applied.into(),
        failed: counts.failed.into(),
        waiting: counts.waiting.into(),
        reason,
        message,
        fresh,
    }
}

fn silent(ledger: &Ledger, cluster: &ClusterName) -> (ClusterState, Reason, String) {
    if ledger.has_connected(cluster) {
        let message = "the agent is not connected; the counts are what it last said".to_owned();
        (ClusterState::Unreachable, Reason::SessionLost, message)
    } else {
        (ClusterState::Unreachable, Reason::NeverConnected, "the agent is not connected".to_owned())
    }
}

fn said(view: &View<'_>, account: &Account) -> (ClusterState, Reason, String) {
    let counts = account.counts;
    if counts.failed > 0 {
        let Some(worst) = account.failures.first() else {
            return (ClusterState::Failed, Reason::CopiesFailed, format!("{} copies failed", counts.failed));
        };
        let copy = &worst.copy;
        return (ClusterState::Failed, worst.reason.into(), format!("{copy}: {}", worst.message));
    }
    if !holds_the_plan(view, account) || !counts.is_settled() {
        return (ClusterState::Progressing, Reason::Progressing, "copies are on their way".to_owned());
    }
    if counts.waiting > 0 {
        let message = format!("{} copies wait for a namespace that does not exist", counts.waiting);
        return (ClusterState::Waiting, Reason::CopiesWaiting, message);
    }
    (ClusterState::Ready, Reason::AllApplied, String::new())
}

/// Whether the account speaks of the newest plan. Where the plan cannot tell about some source, or nothing may change,
/// what the agent holds cannot be compared.
fn holds_the_plan(view: &View<'_>, account: &Account) -> bool {
    let plan = view.plan;
    let same_terms = account.terms_digest == Some(plan.terms_digest);
    let comparable = plan.unreadable.is_empty() && plan.unknown_resources.is_empty() && !plan.terms.suspend;
    same_terms && (!comparable || account.intents_digest == plan.digest)
}
