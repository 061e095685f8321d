//! What is worth an Event on a rule or on the Fleet.
use std::collections::BTreeSet;

use runnel_proto::closed_list;

use runnel_api::conditions::{ConditionType, Reason, condition};
use runnel_api::{ClusterState, FleetStatus, PendingCause, RuleStatus};

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
        /// On the Fleet: removals of a cause were approved, or its change was undone.
        ApprovalSettled,
        ..
        /// A condition that appeared.
        Condition(ConditionType),
        /// The reason of a changed condition.
        Reason(Reason),
    }
}

/// An Event on a rule or on the Fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether a user should act.
    pub warning: bool,
    /// The reason in CamelCase.
    pub reason: EventReason,
    /// The message.
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
    // Only the worst clusters are listed. A new entry may have been unreachable before.
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

/// The Events on the Fleet: a cause begins or ceases to wait for approval.
pub fn fleet_notices(previous: &FleetStatus, next: &FleetStatus) -> Vec<Notice> {
    let lacks = |status: &FleetStatus, cause: &str| {
        let all = &status.pending_approvals;
        // Only the first causes are listed.
        all.iter().all(|pending| pending.approval.cause != cause)
            && i64::try_from(all.len()).is_ok_and(|listed| listed >= status.pending)
    };
    let differing = |one: &FleetStatus, other: &FleetStatus| -> Vec<PendingCause> {
        let of = one.pending_approvals.iter();
        of.filter(|pending| lacks(other, &pending.approval.cause))
            .cloned()
            .collect()
    };
    let begun = differing(next, previous).into_iter().map(|pending| {
        let (approval, names) = (&pending.approval, pending.approval.names.join(", "));
        let message = format!(
            "the removal of {} copies of {} rules in {} clusters needs approval: {} (rules {names}). To remove exactly these: kubectl \
             runnel approve; to keep them, undo the change",
            approval.copies, pending.rules, approval.clusters, approval.cause
        );
        Notice {
            warning: true,
            reason: ConditionType::ApprovalRequired.into(),
            message,
        }
    });
    let settled = differing(previous, next).into_iter().map(|pending| {
        let message = format!(
            "the removal of {} copies of {} rules waits for approval no more: {}",
            pending.approval.copies, pending.rules, pending.approval.cause
        );
        Notice {
            warning: false,
            reason: EventReason::ApprovalSettled,
            message,
        }
    });
    begun.chain(settled).collect()
}

fn unreachable(status: &RuleStatus) -> BTreeSet<&str> {
    let lost = |cluster: &&runnel_api::ClusterStatus| {
        let connected = [Reason::NeverConnected, Reason::MemberAPIUnavailable].map(Reason::as_str);
        cluster.state == ClusterState::Unreachable && !connected.contains(&cluster.reason.as_str())
    };
    let silent = status.clusters.iter().filter(lost);
    silent.map(|cluster| cluster.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_that_begins_or_ceases_to_wait_is_an_event_once() {
        let waiting = |causes: &[(&str, i64)]| {
            let pending = |(cause, copies): &(&str, i64)| PendingCause {
                approval: runnel_api::PendingApproval {
                    cause: (*cause).to_owned(),
                    copies: *copies,
                    clusters: 2,
                    names: vec!["team/a".to_owned(), "team/b".to_owned()],
                    ..Default::default()
                },
                rules: 30,
            };
            FleetStatus {
                pending: i64::try_from(causes.len()).unwrap(),
                pending_approvals: causes.iter().map(pending).collect(),
                ..FleetStatus::default()
            }
        };
        let (none, some) = (waiting(&[]), waiting(&[("grant a changed", 60)]));
        let begun = fleet_notices(&none, &some);
        assert_eq!(begun.len(), 1);
        assert_eq!(
            (begun[0].warning, begun[0].reason.as_str()),
            (true, "ApprovalRequired")
        );
        assert_eq!(
            begun[0].message,
            "the removal of 60 copies of 30 rules in 2 clusters needs approval: grant a changed (rules team/a, team/b). \
             To remove exactly these: kubectl runnel approve; to keep them, undo the change"
        );
        let grown = waiting(&[("grant a changed", 62), ("grant b changed", 70)]);
        let more = fleet_notices(&some, &grown);
        assert_eq!(more.len(), 1);
        assert!(more[0].message.contains("grant b changed"));
        let over = fleet_notices(&some, &none);
        assert_eq!(
            (over[0].warning, over[0].reason, over[0].message.as_str()),
            (
                false,
                EventReason::ApprovalSettled,
                "the removal of 60 copies of 30 rules waits for approval no more: grant a changed"
            )
        );
        // A status that does not list all says nothing about the others.
        let truncated = FleetStatus {
            pending: 33,
            ..none.clone()
        };
        assert_eq!(fleet_notices(&some, &truncated), []);
        assert_eq!(fleet_notices(&truncated, &some), []);
    }
}
