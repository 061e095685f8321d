//! What is worth an Event on a rule.
use std::collections::BTreeSet;

use runnel_proto::closed_list;

use runnel_api::conditions::{ConditionType, Reason, condition};
use runnel_api::{ClusterState, RuleStatus};

closed_list! {
    /// The reason of an Event that the hub writes.
    pub enum EventReason {
        /// On a rule: a cluster of it is not connected any more.
        ClusterLost,
        /// On a rule: the cluster is connected again.
        ClusterBack,
        /// On the identity's Secret: it cannot be used, and the hub continues with the former
        /// identity.
        IdentityUnusable,
        ..
        /// A condition that appeared.
        Condition(ConditionType),
        /// Why a condition is what it has become.
        Reason(Reason),
    }
}

/// An Event on a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether a person should act.
    pub warning: bool,
    /// One word.
    pub reason: EventReason,
    /// A sentence for a person.
    pub message: String,
}

/// The Events that a change of status is worth: copies that began to fail, a removal that waits for approval, clusters lost and
/// back. None for ordinary edits.
pub fn notices(previous: &RuleStatus, next: &RuleStatus) -> Vec<Notice> {
    let mut notices = Vec::new();
    let failing = |status: &RuleStatus| {
        status
            .summary
            .is_some_and(|summary| summary.copies_failed > 0)
    };
    let ready = |status: &RuleStatus| condition(&status.conditions, ConditionType::Ready).cloned();
    if let Some(now) = ready(next).filter(|_| failing(next)) {
        let reason_before = ready(previous).map(|before| before.reason);
        let reason = Reason::all().find(|reason| reason.as_str() == now.reason);
        if let Some(reason) =
            reason.filter(|_| !failing(previous) || reason_before.as_ref() != Some(&now.reason))
        {
            notices.push(Notice {
                warning: true,
                reason: reason.into(),
                message: now.message,
            });
        }
    }
    let blocked = |status: &RuleStatus| {
        condition(&status.conditions, ConditionType::ApprovalRequired).cloned()
    };
    if let Some(now) = blocked(next).filter(|_| blocked(previous).is_none()) {
        notices.push(Notice {
            warning: true,
            reason: ConditionType::ApprovalRequired.into(),
            message: now.message,
        });
    }
    let stopped =
        |status: &RuleStatus| condition(&status.conditions, ConditionType::RolloutStopped).cloned();
    if let Some(now) = stopped(next).filter(|_| stopped(previous).is_none()) {
        notices.push(Notice {
            warning: true,
            reason: ConditionType::RolloutStopped.into(),
            message: now.message,
        });
    }
    let back = |status: &RuleStatus| {
        condition(&status.conditions, ConditionType::RolloutReverted).cloned()
    };
    if let Some(now) = back(next).filter(|_| back(previous).is_none()) {
        notices.push(Notice {
            warning: true,
            reason: ConditionType::RolloutReverted.into(),
            message: now.message,
        });
    }
    let (before, after) = (unreachable(previous), unreachable(next));
    let present: BTreeSet<_> = next
        .clusters
        .iter()
        .map(|cluster| cluster.name.as_str())
        .collect();
    // Only the worst clusters are listed. One that was not listed before may have been unreachable
    // all the time.
    let known: BTreeSet<_> = previous
        .clusters
        .iter()
        .map(|cluster| cluster.name.as_str())
        .collect();
    for lost in after
        .difference(&before)
        .filter(|name| known.contains(**name) || !previous.truncated)
    {
        let message =
            format!("cluster {lost} is not connected: its counts are the last reported values");
        notices.push(Notice {
            warning: true,
            reason: EventReason::ClusterLost,
            message,
        });
    }
    for back in before
        .difference(&after)
        .filter(|name| present.contains(**name))
    {
        let message = format!("cluster {back} is connected again");
        notices.push(Notice {
            warning: false,
            reason: EventReason::ClusterBack,
            message,
        });
    }
    notices
}

fn unreachable(status: &RuleStatus) -> BTreeSet<&str> {
    let lost = |cluster: &&runnel_api::ClusterStatus| {
        let connected = [Reason::NeverConnected, Reason::MemberAPIUnavailable].map(Reason::as_str);
        cluster.state == ClusterState::Unreachable && !connected.contains(&cluster.reason.as_str())
    };
    let silent = status.clusters.iter().filter(lost);
    silent.map(|cluster| cluster.name.as_str()).collect()
}
