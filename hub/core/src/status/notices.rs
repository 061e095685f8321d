//! What is worth an Event on a rule, a MemberCluster or the Fleet.
use runnel_proto::closed_list;
use runnel_proto::model::{self, ClusterName};

use runnel_api::conditions::{ConditionStatus, ConditionType, Reason, condition};
use runnel_api::{
    FleetStatus, MemberClusterStatus, PendingCause, PendingWave, RolloutPhase, RuleStatus,
};

closed_list! {
    /// The reason of an Event that the hub writes.
    pub enum EventReason {
        /// On a MemberCluster: its agent is not connected any more.
        ClusterLost,
        /// On a MemberCluster: its agent is connected again.
        ClusterBack,
        /// On a rule: copies were created.
        CopiesCreated,
        /// On a rule: copies were changed.
        CopiesUpdated,
        /// On a rule: equal objects were taken over as copies.
        CopiesAdopted,
        /// On a rule: objects of others were overwritten.
        CopiesOverwritten,
        /// On a rule: copies that could not be changed were deleted and created again.
        CopiesRecreated,
        /// On a rule: copies were deleted.
        CopiesRemoved,
        /// On a rule: copies were left without marks (`deletionPolicy: Retain`).
        CopiesRetained,
        /// On a rule: copies that other clients had changed or deleted were restored.
        CopiesRestored,
        /// On the identity's Secret: it cannot be used, and the hub continues with the former
        /// identity.
        IdentityUnusable,
        /// On the Fleet: removals of a cause were approved, or its change was undone. On a rule: a wave that waited for
        /// approval has begun.
        ApprovalSettled,
        ..
        /// A condition that appeared.
        Condition(ConditionType),
        /// The reason of a changed condition.
        Reason(Reason),
    }
}

/// An Event on a rule, a MemberCluster or the Fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether a user should act.
    pub warning: bool,
    /// The reason in CamelCase.
    pub reason: EventReason,
    /// The message.
    pub message: String,
    /// The cluster that it is about, if it is one.
    pub cluster: Option<ClusterName>,
    /// The number of copies, if the Event is about changed copies.
    pub copies: Option<u64>,
}

impl Notice {
    /// An Event about no cluster and no copies.
    pub fn new(warning: bool, reason: impl Into<EventReason>, message: String) -> Self {
        Self {
            warning,
            reason: reason.into(),
            message,
            cluster: None,
            copies: None,
        }
    }
}

/// Conditions whose appearance is an Event of its own.
const APPEARING: [ConditionType; 4] = [
    ConditionType::ApprovalRequired,
    ConditionType::RolloutStopped,
    ConditionType::RolloutReverted,
    ConditionType::Reverted,
];

/// The Events that a change of a rule's status is worth: another reason of `Ready`, conditions that need a user, and
/// waves that wait for approval or no longer do. None for ordinary edits.
pub fn notices(previous: &RuleStatus, next: &RuleStatus) -> Vec<Notice> {
    let appeared = APPEARING.into_iter().filter_map(|condition_type| {
        // A revert that is not possible is a reason of `Ready`.
        let shown = |status: &RuleStatus| {
            let found = condition(&status.conditions, condition_type)?;
            (condition_type != ConditionType::Reverted || found.status == "True")
                .then(|| found.clone())
        };
        let now = shown(next)?;
        let is_new = shown(previous).is_none();
        is_new.then(|| Notice::new(true, condition_type, now.message.clone()))
    });
    readiness(previous, next)
        .into_iter()
        .chain(appeared)
        .chain(wave_has_begun(previous, next))
        .chain(wave_awaits_approval(previous, next))
        .collect()
}

fn pending_wave(status: &RuleStatus) -> Option<&PendingWave> {
    status.rollout.as_ref()?.pending_wave.as_ref()
}

/// The Event about a wave that begins to wait for approval.
fn wave_awaits_approval(previous: &RuleStatus, next: &RuleStatus) -> Option<Notice> {
    let pending = pending_wave(next)?;
    if pending_wave(previous).is_some_and(|shown| shown.digest == pending.digest) {
        return None;
    }
    let reconciling = condition(&next.conditions, ConditionType::Reconciling)
        .filter(|reconciling| reconciling.reason == Reason::AwaitingApproval.as_str());
    let message = reconciling.map_or_else(
        || format!("wave {} waits for approval", pending.wave),
        |reconciling| reconciling.message.clone(),
    );
    Some(Notice::new(true, Reason::AwaitingApproval, message))
}

/// The Event about a wave that begins after it waited for approval.
fn wave_has_begun(previous: &RuleStatus, next: &RuleStatus) -> Option<Notice> {
    let pending = pending_wave(previous)?;
    let (before, now) = (previous.rollout.as_ref()?, next.rollout.as_ref()?);
    let has_begun = now.revision == before.revision
        && now.started_at == before.started_at
        && (now.wave == pending.wave || now.phase == RolloutPhase::Completed);
    let message = || {
        format!(
            "wave {} ({}) waits for approval no more: it has begun",
            pending.wave, pending.digest
        )
    };
    has_begun.then(|| Notice::new(false, EventReason::ApprovalSettled, message()))
}

/// The Event about another reason of `Ready`.
fn readiness(previous: &RuleStatus, next: &RuleStatus) -> Option<Notice> {
    let reason_of = |status: &RuleStatus| {
        let ready = condition(&status.conditions, ConditionType::Ready)?;
        Reason::all().find(|reason| reason.as_str() == ready.reason)
    };
    let (before, now) = (reason_of(previous), reason_of(next)?);
    let is_quiet = match now {
        // Ordinary edits. A lost cluster is an Event on its MemberCluster, and the others are
        // conditions of their own.
        Reason::Progressing
        | Reason::AwaitingHealth
        | Reason::ClustersUnreachable
        | Reason::MemberAPIUnavailable
        | Reason::RemovalLimit
        | Reason::TooManyFailures
        | Reason::AwaitingApproval
        | Reason::AnalysisFailed
        | Reason::RollingBack
        | Reason::Reverted => true,
        // The end of an ordinary edit, or of a lost connection.
        Reason::AllApplied => matches!(
            before,
            None | Some(
                Reason::Progressing
                    | Reason::AwaitingHealth
                    | Reason::ClustersUnreachable
                    | Reason::MemberAPIUnavailable
            )
        ),
        _ => false,
    };
    if is_quiet || before == Some(now) {
        return None;
    }
    let message = &condition(&next.conditions, ConditionType::Ready)?.message;
    Some(Notice::new(!is_normal(now), now, message.clone()))
}

/// Whether a reason of `Ready` asks no user to act.
fn is_normal(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::AllApplied
            | Reason::CopiesWaiting
            | Reason::Cordoned
            | Reason::Deleting
            | Reason::RollingOut
            | Reason::AwaitingWindow
            | Reason::RolloutPaused
            | Reason::Suspended
            | Reason::Copy(model::Reason::DryRun)
    )
}

/// The Event about a member that is lost, or that is back.
pub fn connection_notice(
    member: &ClusterName,
    previous: &MemberClusterStatus,
    next: &MemberClusterStatus,
) -> Option<Notice> {
    let lost = |status: &MemberClusterStatus| {
        let connected = condition(&status.conditions, ConditionType::Connected)?;
        let reasons = [Reason::SessionLost, Reason::CertificateExpired].map(Reason::as_str);
        Some(reasons.contains(&connected.reason.as_str()))
    };
    let now = condition(&next.conditions, ConditionType::Connected)?;
    let is_open = now.status == ConditionStatus::True.as_str();
    let was_open = condition(&previous.conditions, ConditionType::Connected)
        .is_some_and(|connected| connected.status == ConditionStatus::True.as_str());
    let notice = match (lost(previous), lost(next)?) {
        (Some(false), true) if was_open => Notice::new(
            true,
            EventReason::ClusterLost,
            format!(
                "cluster {member} is not connected: the counts of its copies are the last reported values; {}",
                now.message
            ),
        ),
        (Some(true), false) if is_open => Notice::new(
            false,
            EventReason::ClusterBack,
            format!("cluster {member} is connected again"),
        ),
        _ => return None,
    };
    Some(Notice {
        cluster: Some(member.clone()),
        ..notice
    })
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
            approval.copies, pending.rules, approval.clusters, approval.why()
        );
        Notice::new(true, ConditionType::ApprovalRequired, message)
    });
    let settled = differing(previous, next).into_iter().map(|pending| {
        let message = format!(
            "the removal of {} copies of {} rules waits for approval no more: {}",
            pending.approval.copies, pending.rules, pending.approval.cause
        );
        Notice::new(false, EventReason::ApprovalSettled, message)
    });
    begun.chain(settled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_api::conditions::set_condition;

    fn with_ready(reason: Reason) -> RuleStatus {
        let mut status = RuleStatus::default();
        let holds = ConditionStatus::from(reason == Reason::AllApplied);
        let (conditions, now) = (&mut status.conditions, jiff::Timestamp::UNIX_EPOCH);
        set_condition(
            conditions,
            ConditionType::Ready,
            holds,
            reason,
            "why",
            None,
            now,
        );
        status
    }

    fn of(before: Option<Reason>, now: Reason) -> Option<(bool, &'static str)> {
        let before = before.map_or_else(RuleStatus::default, with_ready);
        let all = notices(&before, &with_ready(now));
        assert!(all.len() <= 1 && all.iter().all(|notice| notice.message == "why"));
        let first = all.first();
        first.map(|notice| (notice.warning, notice.reason.as_str()))
    }

    #[test]
    fn other_reason_of_ready_is_an_event() {
        let warnings = [
            Reason::NotGranted,
            Reason::NoSources,
            Reason::NoClusters,
            Reason::VariableMissing,
            Reason::ValueMissing,
            Reason::TransformFailed,
            Reason::Copy(model::Reason::AmbiguousSource),
            Reason::Copy(model::Reason::Drifted),
            Reason::Copy(model::Reason::Conflict),
        ];
        let normal = [
            Reason::CopiesWaiting,
            Reason::Suspended,
            Reason::Cordoned,
            Reason::RollingOut,
            Reason::Deleting,
        ];
        let warnings = warnings.into_iter().map(|reason| (true, reason));
        for (warning, reason) in warnings.chain(normal.map(|reason| (false, reason))) {
            for before in [None, Some(Reason::Progressing), Some(Reason::AllApplied)] {
                assert_eq!(of(before, reason), Some((warning, reason.as_str())));
            }
            assert_eq!(of(Some(reason), reason), None);
            let over = of(Some(reason), Reason::AllApplied);
            assert_eq!(over, Some((false, "AllApplied")), "after {reason}");
        }
    }

    #[test]
    fn ordinary_edit_and_lost_cluster_are_no_event_of_the_rule() {
        let quiet = [
            Reason::AllApplied,
            Reason::Progressing,
            Reason::ClustersUnreachable,
        ];
        for before in quiet {
            for now in quiet {
                assert_eq!(of(Some(before), now), None, "{before} to {now}");
                assert_eq!(of(None, now), None);
            }
        }
    }

    #[test]
    fn wave_that_waits_is_an_event_and_its_begin_another() {
        let rolling = |revision: &str, wave: i64, digest: Option<&str>| {
            let reason = match digest {
                Some(_) => Reason::AwaitingApproval,
                None => Reason::RollingOut,
            };
            let mut status = with_ready(reason);
            set_condition(
                &mut status.conditions,
                ConditionType::Reconciling,
                ConditionStatus::True,
                reason,
                "why",
                None,
                jiff::Timestamp::UNIX_EPOCH,
            );
            status.rollout = Some(runnel_api::RolloutStatus {
                revision: revision.to_owned(),
                wave,
                pending_wave: digest.map(|digest| PendingWave {
                    digest: digest.to_owned(),
                    wave: wave + 1,
                    ..PendingWave::default()
                }),
                ..runnel_api::RolloutStatus::default()
            });
            status
        };
        let of = |before: &RuleStatus, now: &RuleStatus| -> Vec<(bool, &str)> {
            let all = notices(before, now).into_iter();
            all.map(|notice| (notice.warning, notice.reason.as_str()))
                .collect()
        };
        let (first, waits) = (rolling("a", 1, None), rolling("a", 1, Some("d1")));
        assert_eq!(of(&first, &waits), [(true, "AwaitingApproval")]);
        assert_eq!(of(&waits, &waits), []);
        let grown = rolling("a", 1, Some("d2"));
        assert_eq!(of(&waits, &grown), [(true, "AwaitingApproval")]);
        let begun = of(&waits, &rolling("a", 2, None));
        assert!(begun.contains(&(false, "ApprovalSettled")), "{begun:?}");
        let edited = of(&waits, &rolling("b", 1, None));
        assert!(!edited.contains(&(false, "ApprovalSettled")), "{edited:?}");
    }

    #[test]
    fn lost_member_is_one_event_and_its_return_another() {
        let connected = |holds, reason| {
            let mut status = MemberClusterStatus::default();
            let (conditions, now) = (&mut status.conditions, jiff::Timestamp::UNIX_EPOCH);
            set_condition(
                conditions,
                ConditionType::Connected,
                holds,
                reason,
                "",
                None,
                now,
            );
            status
        };
        let never = connected(ConditionStatus::False, Reason::NeverConnected);
        let refused = connected(ConditionStatus::False, Reason::NotAccepted);
        let open = connected(ConditionStatus::True, Reason::SessionOpen);
        let lost = connected(ConditionStatus::Unknown, Reason::SessionLost);
        let of = |before, now| {
            let notice = connection_notice(&"eu-1".into(), before, now)?;
            assert!(notice.message.contains("eu-1"));
            Some((notice.warning, notice.reason))
        };
        assert_eq!(of(&open, &lost), Some((true, EventReason::ClusterLost)));
        assert_eq!(of(&lost, &open), Some((false, EventReason::ClusterBack)));
        for (before, now) in [
            (&never, &open),
            (&open, &open),
            (&lost, &lost),
            (&open, &refused),
            (&refused, &open),
            (&refused, &lost),
        ] {
            assert_eq!(of(before, now), None);
        }
    }

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
