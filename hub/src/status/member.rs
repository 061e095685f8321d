//! What a member's status should say.
use jiff::Timestamp;
use runnel_proto::model::RuleName;

use super::{Now, SessionFacts};
use crate::crd::conditions::{
    ConditionStatus, ConditionType, Reason, condition, remove_condition, set_condition, whole_seconds,
};
use crate::crd::{Certificate, MemberClusterStatus};

/// Names of unclaimed rules that one message lists.
const NAMES_SHOWN: usize = 5;

/// What the hub knows about a member.
pub struct MemberView<'a> {
    /// The generation of its spec.
    pub generation: i64,
    /// `spec.accepted`, and not being deleted.
    pub accepted: bool,
    /// `spec.leaving`.
    pub leaving: bool,
    /// The session that counts as connected.
    pub session: Option<&'a SessionFacts>,
    /// Rules that the member holds copies of.
    pub held: usize,
    /// Of these, the ones that this hub does not know.
    pub unclaimed: Vec<&'a RuleName>,
    /// Whether the hub has not been up for long enough to take silence for an answer.
    pub awaited: bool,
    /// Until when its agent can still renew the newest certificate that it has.
    pub renewable_until: Option<Timestamp>,
    /// The status that is there.
    pub previous: &'a MemberClusterStatus,
}

/// The status that the member should have, or `None` if the one that is there is right. Identity, join and pending
/// removals are passed through untouched.
pub fn fold_member(view: &MemberView<'_>, now: Now) -> Option<MemberClusterStatus> {
    let mut status = view.previous.clone();
    status.observed_generation = Some(view.generation);
    if let Some(session) = view.session {
        status.agent_version = Some(session.agent_version.clone());
        status.kubernetes_version = Some(session.kubernetes_version.clone());
        status.cluster_uid = Some(session.cluster_uid.clone());
        status.certificate = Some(Certificate { expires_at: whole_seconds(session.certificate_expires) });
    }
    let generation = Some(view.generation);
    let mut set = |condition_type, (holds, reason, message): (ConditionStatus, Reason, String)| {
        set_condition(&mut status.conditions, condition_type, holds, reason, &message, generation, now.wall);
    };
    set(ConditionType::Accepted, accepted(view));
    // While a hub that just started waits for its agents, what it said before stands.
    let never_said = condition(&view.previous.conditions, ConditionType::Connected).is_none();
    if view.session.is_some() || !view.awaited || never_said {
        set(ConditionType::Connected, connected(view, now.wall));
    }
    let theft = stolen(view);
    if let Some(message) = &theft {
        set(ConditionType::PossibleKeyTheft, (ConditionStatus::True, Reason::RetiredKeySeen, message.clone()));
    }
    match unclaimed(view) {
        Some(message) => set(ConditionType::Unclaimed, (ConditionStatus::True, Reason::RulesUnknown, message)),
        None if view.session.is_some() => remove_condition(&mut status.conditions, ConditionType::Unclaimed),
        None => {}
    }
    if theft.is_none() {
        remove_condition(&mut status.conditions, ConditionType::PossibleKeyTheft);
    }
    (status != *view.previous).then_some(status)
}

fn accepted(view: &MemberView<'_>) -> (ConditionStatus, Reason, String) {
    if !view.accepted {
        let message = "spec.accepted is false: the agent is cut off and its copies stay".to_owned();
        return (ConditionStatus::False, Reason::NotAccepted, message);
    }
    if !view.leaving {
        return (ConditionStatus::True, Reason::Accepted, "rules may choose this cluster".to_owned());
    }
    if view.session.is_some() && view.held == 0 {
        let message = "nothing of Runnel is left in this cluster: this MemberCluster can be deleted".to_owned();
        return (ConditionStatus::False, Reason::Left, message);
    }
    (ConditionStatus::False, Reason::Leaving, "the cluster leaves, and its copies are being seen to".to_owned())
}

fn connected(view: &MemberView<'_>, now: Timestamp) -> (ConditionStatus, Reason, String) {
    if view.session.is_some() {
        return (ConditionStatus::True, Reason::SessionOpen, "the agent is connected".to_owned());
    }
    if view.previous.cluster_uid.is_none() {
        let message = "no agent has connected yet: make a join string with `runnel-hub token create`".to_owned();
        return (ConditionStatus::False, Reason::NeverConnected, message);
    }
    if view.renewable_until.is_some_and(|until| until <= now) {
        let message = "the agent's certificate expired longer ago than the hub renews: make a new join string with \
                       `runnel-hub token create` and give it to the agent";
        return (ConditionStatus::False, Reason::CertificateExpired, message.to_owned());
    }
    let message = "the agent is not connected: look at its log in the member cluster".to_owned();
    (ConditionStatus::Unknown, Reason::SessionLost, message)
}

/// Somebody came with a key that had been given up.
fn stolen(view: &MemberView<'_>) -> Option<String> {
    let retired = view.previous.identity.iter().flat_map(|identity| &identity.retired);
    let (at, key) = retired.filter_map(|key| Some((key.seen_at.as_ref()?.0, &key.fingerprint))).min()?;
    Some(format!(
        "a key that the agent had given up came again at {at} ({key}), and was refused: either the agent was restored from \
         a backup, or somebody has a copy of its key. Set spec.accepted to false or delete this MemberCluster, find out who, \
         and let the cluster join anew with `runnel-hub token create`"
    ))
}

fn unclaimed(view: &MemberView<'_>) -> Option<String> {
    let count = view.unclaimed.len();
    let names: Vec<_> = view.unclaimed.iter().take(NAMES_SHOWN).map(ToString::to_string).collect();
    (count > 0).then(|| {
        let more = if count > NAMES_SHOWN { ", ..." } else { "" };
        format!(
            "the cluster holds copies of {count} rules that this hub does not know: {}{more}; they stay",
            names.join(", ")
        )
    })
}
