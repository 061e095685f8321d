//! The closed list of condition types and reasons, and how a condition changes.
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use runnel_proto::{closed_list, model};

use super::limits;

closed_list! {
    /// Every condition type that the hub writes, in the order of a status: the most important one
    /// first.
    pub enum ConditionType {
        /// Rule: True when every copy is applied in every chosen cluster, every copy with a health is healthy, and all
        /// reports are current. False when something failed, an exact name of the spec matches nothing, or nothing is selected or
        /// chosen. Unknown when the only problem is that clusters are unreachable. Clusters that never connected do not
        /// count. Member: True while its agent is connected and nothing keeps the hub from sending copies for long.
        Ready,
        /// Rule: as Ready, for the connected clusters and the existing copies alone, so that one offline site does not
        /// hide the rest. Health does not count.
        Applied,
        /// Rule: the hub or the agents are at work on it, as in a rollout. Present only while true.
        Reconciling,
        /// Rule: it cannot make progress without a user. Present only while true.
        Stalled,
        /// Rule: a removal is above a limit and is blocked until a user approves it. Present only
        /// while true.
        ApprovalRequired,
        /// Rule: more clusters failed than `spec.rollout.maxFailures`, and nothing further is sent. Present only while true.
        RolloutStopped,
        /// Rule: more clusters failed than `spec.rollout.maxFailures`, and `onFailure` is Revert.
        /// False while clusters are rolled back to the last completed rollout, True when all of
        /// them are. Present until a newer change begins.
        RolloutReverted,
        /// Rule: the annotation runnel.dev/revert-to reverts it to the state of a completed rollout, and edits are not sent. False
        /// while the hub does not have that state, so that nothing is sent or removed. Present only with the annotation.
        Reverted,
        /// Rule: it is suspended, because `spec.suspend` is true. Present only while true.
        Suspended,
        /// Rule: `spec.enforcement` is DryRun: agents report planned changes and write nothing.
        /// Present only while true.
        DryRun,
        /// Rule: False when something that it requests is not granted, Unknown when the hub cannot
        /// read the grants, True when some of the namespaces that it chooses by glob or label may
        /// not be granted. Absent if everything is granted.
        Granted,
        /// Member: True when the hub talks to the cluster, False when `spec.accepted` is false or the cluster leaves.
        Accepted,
        /// Member: True while the cluster's agent is connected.
        Connected,
        /// Member: False while its agent cannot watch the cluster's API, so that nothing is known of its copies. Absent
        /// otherwise.
        APIAvailable,
        /// Member: `spec.cordoned` is true: copies are left unchanged, and nothing new is sent.
        /// Present only while true.
        Cordoned,
        /// Member: whether a cluster that leaves has left. Present only while `spec.leaving` is true.
        Drained,
        /// Member: the cluster has copies of rules that the hub does not have. They stay. Present
        /// only while true.
        OrphanedCopies,
        /// Member: a client used a key that the cluster's agent had replaced, so it has a copy of
        /// that key. Present only while true: until the cluster joins again.
        PossibleKeyTheft,
        /// Member: two agents use the cluster's key alternately, so the key may have been copied.
        /// Present for fifteen minutes after the last observation.
        KeyShared,
        /// Member: this hub does not have state that it once sent to the cluster, so it was
        /// restored from an older backup. Nothing is changed or removed there until an
        /// administrator confirms. Present only while true.
        RestoredFromBackup,
        /// Member: there is a second hub with this one's identity, or a second cluster with the member's. Present only while
        /// true.
        Duplicate,
        /// Member: the cluster got its copies under another MemberCluster or as another cluster,
        /// and some of them are not selected. They stay until an administrator confirms. Present
        /// only while true.
        PreviousMembership,
    }
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionStatus {
    /// The condition is true.
    True,
    /// The condition is false.
    False,
    /// The hub cannot determine it.
    Unknown,
}

impl ConditionStatus {
    /// The word in the condition's `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        }
    }
}

closed_list! {
    /// Every reason that the hub writes into a condition or beside a cluster.
    pub enum Reason {
        /// Every copy is applied.
        AllApplied,
        /// The rule selects no object.
        NoSources,
        /// The rule chooses no cluster.
        NoClusters,
        /// No namespace of any chosen cluster is a target, so there are no copies.
        NoNamespaces,
        /// The spec names clusters without MemberCluster, or overrides name clusters that the rule does not choose.
        UnknownClusters,
        /// `spec.sources` names objects that do not exist.
        MissingSources,
        /// `spec.substitute` or `spec.overrides` names keys that no source has.
        MissingKeys,
        /// Nothing failed, but clusters are unreachable. The counts of their copies are the last
        /// reported values.
        ClustersUnreachable,
        /// The agent cannot watch its cluster's API: the counts are the last observed ones.
        MemberAPIUnavailable,
        /// Copies failed.
        CopiesFailed,
        /// The agent reports every copy as applied, and cannot prove that the live objects equal
        /// what the hub has sent.
        DigestMismatch,
        /// Copies wait for namespaces that do not exist yet.
        CopiesWaiting,
        /// The hub cannot read a selected source; existing copies are left unchanged.
        SourceUnreadable,
        /// `spec.sources` selects a kind with namespaces without them, or a kind without namespaces in namespaces;
        /// existing copies are left unchanged.
        ScopeMismatch,
        /// The spec of the rule has too many JSON values, and is not used; existing copies are left unchanged.
        SpecTooLarge,
        /// Changes are on their way.
        Progressing,
        /// The rule is being deleted: its copies are being removed.
        Deleting,
        /// A removal is above the limit of the rule, of a member cluster or of the fleet, and waits for approval.
        RemovalLimit,
        /// On the fleet: every member cluster is connected and every rule is ready.
        FleetReady,
        /// On the fleet: not every member cluster is connected, or not every rule is ready.
        FleetNotReady,
        /// The cluster has the maximum number of rules: the rule is not sent there.
        RuleLimit,
        /// A change is rolled out in waves, and has not reached every cluster.
        RollingOut,
        /// The next wave of the rollout waits until a person approves it (`spec.rollout.approval`).
        AwaitingApproval,
        /// The next clusters of the rollout wait until a window opens.
        AwaitingWindow,
        /// Every copy is applied, and some are not healthy yet.
        AwaitingHealth,
        /// `windows` of a rollout or of a member cluster cannot be read, so that no change is sent.
        InvalidWindow,
        /// `spec.rollout.paused` is true: the rollout sends nothing further.
        RolloutPaused,
        /// More clusters failed than `spec.rollout.maxFailures`.
        TooManyFailures,
        /// More checks of `spec.rollout.analysis` failed than `failureLimit`.
        AnalysisFailed,
        /// The hub is not configured to request the URL of `spec.rollout.analysis`.
        AnalysisRefused,
        /// A change failed, and clusters are being rolled back to the last completed rollout.
        RollingBack,
        /// The cluster has the state of the last completed rollout, because the newest one failed. On the rule: it has a former
        /// state, because an annotation names that.
        Reverted,
        /// The hub does not have the state to which an annotation reverts the rule; existing copies are left unchanged.
        RevisionUnavailable,
        /// The rule is suspended.
        Suspended,
        /// Something that the rule requests is not granted to the rules of its namespace.
        NotGranted,
        /// Some of the namespaces that the rule chooses by glob or label may not be granted.
        PartiallyGranted,
        /// The hub cannot read grants: nothing is sent or removed.
        GrantsUnknown,
        /// The cluster is cordoned: copies are left unchanged, and nothing new is sent.
        Cordoned,
        /// `spec.transform.name` gives what no object can be called.
        InvalidName,
        /// `spec.transform`, `spec.substitute` or `spec.overrides` does not fit a source.
        TransformFailed,
        /// A variable is unknown, or a cluster lacks a label that has no default.
        VariableMissing,
        /// A Secret named in `spec.overrides`, or its key, is missing or cannot be read.
        ValueMissing,
        /// The rendered copy is invalid for every API server.
        InvalidCopy,
        /// The copies differ by cluster and take more bytes or work than one rule may have.
        RenderBudgetExceeded,
        /// Member: its agent is connected, and rules may send copies.
        MemberReady,
        /// Member: the hub talks to the cluster.
        Accepted,
        /// Member: `spec.accepted` is false.
        NotAccepted,
        /// Member: the cluster leaves: its copies are being removed.
        Leaving,
        /// Member: the cluster is leaving, and all its copies are removed or retained: the object
        /// can be deleted.
        Drained,
        /// Member: the agent's session is open.
        SessionOpen,
        /// Member: the agent's session ended, and the agent has not reconnected.
        SessionLost,
        /// Member: no agent has connected yet.
        NeverConnected,
        /// Member: the agent's certificate has expired.
        CertificateExpired,
        /// Member: the agent cannot watch some kinds of copies there; it watches others.
        Degraded,
        /// Member: the cluster has copies of rules that the hub does not have.
        UnknownRules,
        /// Member: a client used a key that had been replaced.
        RetiredKeySeen,
        /// Member: two processes took the session from one another.
        ConcurrentSessions,
        /// The cluster waits for a confirmation; see the conditions of its MemberCluster. Its
        /// copies are left unchanged.
        Unconfirmed,
        /// Member: the cluster has received state that this hub does not have.
        HubStateBehind,
        /// Member: another hub with the same identity has sent something to the cluster since this
        /// one became the leader.
        SecondHub,
        /// Member: an agent in another cluster connected with the member's key.
        SecondCluster,
        /// Member: another MemberCluster has its agent in the same cluster.
        SecondMembership,
        /// Member: copies from a previous membership of the cluster are not selected now.
        CopiesFromPreviousMembership,
        ..
        /// Why one copy has failed, as its agent reports. The worst reason is the reason of the
        /// rule or the cluster.
        Copy(model::Reason),
    }
}

/// The condition of this type, if it is there.
pub fn condition(conditions: &[Condition], condition_type: ConditionType) -> Option<&Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == condition_type.as_str())
}

/// Sets a condition. `lastTransitionTime` changes only with the status, so setting the same twice
/// changes nothing. A new condition gets its position by the order of [`ConditionType`]. A message
/// that is too long is cut.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    condition_type: ConditionType,
    status: ConditionStatus,
    reason: impl Into<Reason>,
    message: &str,
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    let known = conditions
        .iter_mut()
        .find(|condition| condition.type_ == condition_type.as_str());
    let last_transition_time = match &known {
        Some(known) if known.status == status.as_str() => known.last_transition_time.clone(),
        _ => whole_seconds(now),
    };
    let condition = Condition {
        type_: condition_type.as_str().to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.into().as_str().to_owned(),
        message: shortened(message),
        observed_generation,
        last_transition_time,
    };
    match known {
        Some(known) => *known = condition,
        None => {
            let rank = |name: &str| {
                ConditionType::ALL
                    .iter()
                    .position(|known| known.as_str() == name)
            };
            let after = |other: &Condition| {
                rank(&other.type_).is_none_or(|other| Some(other) > rank(condition_type.as_str()))
            };
            let place = conditions
                .iter()
                .position(after)
                .unwrap_or(conditions.len());
            conditions.insert(place, condition);
        }
    }
}

/// Removes a condition that is present only while true.
pub fn remove_condition(conditions: &mut Vec<Condition>, condition_type: ConditionType) {
    conditions.retain(|condition| condition.type_ != condition_type.as_str());
}

/// Truncates a time to whole seconds, as the API server stores it, so that a written time equals
/// the read one.
pub fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// A message that fits into a status: at most [`limits::MESSAGE`] bytes, cut between characters.
pub fn shortened(message: &str) -> String {
    const CUT: &str = "...";
    if message.len() <= limits::MESSAGE {
        return message.to_owned();
    }
    let mut end = limits::MESSAGE - CUT.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(conditions: &mut Vec<Condition>, status: ConditionStatus, message: &str, second: i64) {
        let reason = Reason::Progressing;
        set_condition(
            conditions,
            ConditionType::Ready,
            status,
            reason,
            message,
            Some(second),
            at(second),
        );
    }

    #[test]
    fn the_transition_time_moves_only_when_the_status_flips() {
        let mut conditions = Vec::new();
        ready(&mut conditions, ConditionStatus::False, "one", 1);
        ready(&mut conditions, ConditionStatus::False, "two", 2);
        let known = condition(&conditions, ConditionType::Ready).unwrap();
        assert_eq!(
            (known.last_transition_time.0, known.message.as_str()),
            (at(1), "two")
        );
        assert_eq!(known.observed_generation, Some(2));

        ready(&mut conditions, ConditionStatus::True, "two", 3);
        assert_eq!(
            condition(&conditions, ConditionType::Ready)
                .unwrap()
                .last_transition_time
                .0,
            at(3)
        );
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn setting_the_same_condition_twice_changes_nothing() {
        let mut conditions = Vec::new();
        ready(&mut conditions, ConditionStatus::Unknown, "quiet", 1);
        let before = conditions.clone();
        let reason = Reason::Progressing;
        let unknown = ConditionStatus::Unknown;
        set_condition(
            &mut conditions,
            ConditionType::Ready,
            unknown,
            reason,
            "quiet",
            Some(1),
            at(9),
        );
        assert_eq!(conditions, before);
    }

    #[test]
    fn conditions_have_one_order() {
        let mut conditions = Vec::new();
        for condition_type in ConditionType::ALL.into_iter().rev() {
            let status = ConditionStatus::True;
            set_condition(
                &mut conditions,
                condition_type,
                status,
                model::Reason::Conflict,
                "",
                None,
                at(0),
            );
        }
        let names: Vec<_> = conditions
            .iter()
            .map(|condition| condition.type_.as_str())
            .collect();
        assert_eq!(names, ConditionType::ALL.map(ConditionType::as_str));
        assert_eq!(conditions[0].reason, "Conflict");

        remove_condition(&mut conditions, ConditionType::Stalled);
        assert!(condition(&conditions, ConditionType::Stalled).is_none());
        assert_eq!(conditions.len(), ConditionType::ALL.len() - 1);
    }

    #[test]
    fn written_object_equals_the_read_one() {
        let mut conditions = Vec::new();
        let now = at(1) + jiff::SignedDuration::from_millis(250);
        set_condition(
            &mut conditions,
            ConditionType::Ready,
            ConditionStatus::True,
            Reason::AllApplied,
            "",
            None,
            now,
        );
        let read: Vec<Condition> =
            serde_json::from_value(serde_json::to_value(&conditions).unwrap()).unwrap();
        assert_eq!(read, conditions);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = "ä".repeat(limits::MESSAGE);
        let cut = shortened(&long);
        assert!(
            cut.len() <= limits::MESSAGE && cut.ends_with("ä..."),
            "{}",
            cut.len()
        );
        assert_eq!(shortened("short"), "short");
    }
}
