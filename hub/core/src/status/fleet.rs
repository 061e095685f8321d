//! The overview of the fleet.
use runnel_api::conditions::{ConditionStatus, ConditionType, Reason, set_condition};
use runnel_api::{FleetStatus, PendingCause, limits};

use super::Now;
use crate::index;

/// The counts of the overview.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    /// Accepted member clusters.
    pub clusters: u64,
    /// Connected clusters.
    pub connected: u64,
    /// Rules.
    pub rules: u64,
    /// Ready rules.
    pub ready: u64,
    /// Copies that should exist.
    pub copies: u64,
    /// Applied copies.
    pub applied: u64,
}

/// The status of the `Fleet`.
pub fn fold_fleet(
    previous: &FleetStatus,
    counts: &FleetCounts,
    pending: &[index::PendingCause],
    now: Now,
) -> FleetStatus {
    let of = |some: u64, all: u64| format!("{some}/{all}");
    let as_cause = |cause: &index::PendingCause| PendingCause {
        approval: cause.approval.clone(),
        rules: i64::try_from(cause.rules).unwrap_or(i64::MAX),
    };
    let mut status = FleetStatus {
        conditions: previous.conditions.clone(),
        clusters: of(counts.connected, counts.clusters),
        rules: of(counts.ready, counts.rules),
        copies: of(counts.applied, counts.copies),
        pending: i64::try_from(pending.len()).unwrap_or(i64::MAX),
        pending_approvals: pending
            .iter()
            .take(limits::PENDING_CAUSES)
            .map(as_cause)
            .collect(),
    };
    let (holds, reason, message) = if !pending.is_empty() {
        let message = "removals above a limit wait for approval: see status.pendingApprovals";
        (ConditionStatus::False, Reason::RemovalLimit, message)
    } else if counts.connected < counts.clusters || counts.ready < counts.rules {
        (
            ConditionStatus::False,
            Reason::FleetNotReady,
            "a member cluster is not connected, or a rule is not ready",
        )
    } else {
        (
            ConditionStatus::True,
            Reason::FleetReady,
            "every member cluster is connected and every rule is ready",
        )
    };
    set_condition(
        &mut status.conditions,
        ConditionType::Ready,
        holds,
        reason,
        message,
        None,
        now.wall,
    );
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overview_counts_and_names_pending_approvals() {
        let now = Now {
            instant: std::time::Instant::now(),
            wall: jiff::Timestamp::UNIX_EPOCH,
        };
        let counts = FleetCounts {
            clusters: 2,
            connected: 2,
            rules: 3,
            ready: 3,
            copies: 9,
            applied: 9,
        };
        let ready = fold_fleet(&FleetStatus::default(), &counts, &[], now);
        assert_eq!(
            (
                ready.clusters.as_str(),
                ready.rules.as_str(),
                ready.copies.as_str()
            ),
            ("2/2", "3/3", "9/9")
        );
        assert_eq!(
            (ready.conditions[0].status.as_str(), ready.pending),
            ("True", 0)
        );
        assert_eq!(fold_fleet(&ready, &counts, &[], now), ready, "nothing new");
        let approval = runnel_api::PendingApproval {
            digest: "0123".to_owned(),
            copies: 60,
            ..Default::default()
        };
        let pending = [index::PendingCause {
            approval,
            rules: 30,
        }];
        let blocked = fold_fleet(&ready, &counts, &pending, now);
        assert_eq!(
            (
                blocked.conditions[0].status.as_str(),
                blocked.conditions[0].reason.as_str()
            ),
            ("False", "RemovalLimit")
        );
        assert_eq!(
            (blocked.pending, blocked.pending_approvals[0].rules),
            (1, 30)
        );
        let lost = fold_fleet(
            &ready,
            &FleetCounts {
                connected: 1,
                ..counts
            },
            &[],
            now,
        );
        assert_eq!(
            (lost.clusters.as_str(), lost.conditions[0].reason.as_str()),
            ("1/2", "FleetNotReady")
        );
    }
}
