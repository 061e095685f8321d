//! The contents of a member's status.
use jiff::Timestamp;
use runnel_proto::model::{ClusterName, LostWatch, RuleName, RuleUid};

use super::report_store::Uncertain;
use super::rule_cluster_state::without_watch;
use super::{Now, SessionFacts};
use crate::epoch::Divergence;
use runnel_api::conditions::{
    ConditionStatus, ConditionType, Reason, condition, remove_condition, set_condition,
    whole_seconds,
};
use runnel_api::{Certificate, Identity, MemberClusterStatus, OrphanedRule, limits};

/// Number of orphaned rules in a message.
const NAMES_SHOWN: usize = 5;

/// The message of the condition `KeyShared`.
const KEY_SHARED: &str = "two agents use this cluster's key alternately, and each ends the session of the other: an attacker may have a \
                          copy of the key. Set spec.accepted to false, find out who, and let the cluster join again with \
                          `runnel-hub token create`: then only the new key is valid";

/// The message about a cordoned cluster.
const CORDONED: &str = "spec.cordoned is true: copies are left unchanged, and nothing new is sent";

/// The state of a member in the hub.
pub struct MemberView<'a> {
    /// The generation of its spec.
    pub generation: i64,
    /// `spec.accepted`, and not being deleted.
    pub accepted: bool,
    /// `spec.cordoned`.
    pub cordoned: bool,
    /// `spec.leaving`.
    pub leaving: bool,
    /// The session that counts as connected.
    pub session: Option<&'a SessionFacts>,
    /// Rules of this hub that the member has copies of.
    pub acked: usize,
    /// For a leaving cluster: the rules whose copies are retained, and the number of copies.
    pub retained: &'a [(RuleName, u32)],
    /// Rules with copies in the member that this hub does not have. Their copies stay, also when
    /// the cluster leaves.
    pub orphaned: Vec<(&'a RuleUid, &'a RuleName)>,
    /// Whether the hub started so recently that a missing report proves nothing.
    pub awaited: bool,
    /// Until when its agent can still renew the newest certificate that it has.
    pub renewable_until: Option<Timestamp>,
    /// Reasons against letting the member follow this hub, or other clusters that use its name;
    /// with the member's name.
    pub divergence: Option<(&'a ClusterName, &'a Divergence)>,
    /// One failed watch in the member's API, as an example for all that its agent has lost, and
    /// what they make uncertain.
    pub lost_watch: Option<(LostWatch, Uncertain)>,
    /// Why its windows cannot be read.
    pub windows_error: Option<&'a str>,
    /// Whether two agents use the key alternately.
    pub key_shared: bool,
    /// The keys on its record.
    pub identity: &'a Identity,
    /// The status that is there.
    pub previous: &'a MemberClusterStatus,
}

/// Returns the desired status of the member; `None` if the current one is right.
pub fn fold_member(view: &MemberView<'_>, now: Now) -> Option<MemberClusterStatus> {
    let mut status = view.previous.clone();
    status.observed_generation = Some(view.generation);
    if let Some(session) = view.session {
        status.agent_version = Some(session.agent_version.clone());
        status.kubernetes_version = Some(session.kubernetes_version.clone());
        // A cluster that joins again may be another one; the former session may not have ended yet.
        if has_key(view.identity, &session.key) {
            status.cluster_uid = Some(session.cluster_uid.clone());
        }
        status.certificate = Some(Certificate {
            expires_at: whole_seconds(session.certificate_expires),
        });
    }
    let generation = Some(view.generation);
    let mut set = |condition_type, (holds, reason, message): (ConditionStatus, Reason, String)| {
        set_condition(
            &mut status.conditions,
            condition_type,
            holds,
            reason,
            &message,
            generation,
            now.wall,
        );
    };
    set(ConditionType::Accepted, accepted(view));
    // While a hub that just started waits for its agents, the former condition stays.
    let never_reported = condition(&view.previous.conditions, ConditionType::Connected).is_none();
    if view.session.is_some() || !view.accepted || !view.awaited || never_reported {
        set(ConditionType::Connected, connected(view, now.wall));
        set(ConditionType::Ready, ready(view, now.wall));
    }
    if view.cordoned {
        set(
            ConditionType::Cordoned,
            (ConditionStatus::True, Reason::Cordoned, CORDONED.to_owned()),
        );
    }
    if let Some(lost) = &view.lost_watch {
        let (reason, message) = api_unavailable(lost);
        set(
            ConditionType::APIAvailable,
            (ConditionStatus::False, reason, message),
        );
    }
    let (theft, left) = (stolen(view), left(view));
    if let Some(message) = &theft {
        set(
            ConditionType::PossibleKeyTheft,
            (
                ConditionStatus::True,
                Reason::RetiredKeySeen,
                message.clone(),
            ),
        );
    }
    if view.key_shared {
        set(
            ConditionType::KeyShared,
            (
                ConditionStatus::True,
                Reason::ConcurrentSessions,
                KEY_SHARED.to_owned(),
            ),
        );
    }
    let leaves = left.is_some();
    if let Some(reported) = left {
        set(ConditionType::Drained, reported);
    }
    // A cluster without a session reports nothing new.
    if view.session.is_some() {
        status.orphaned_rules = orphaned_rules(view);
    }
    match orphaned(view) {
        Some(message) => set(
            ConditionType::OrphanedCopies,
            (ConditionStatus::True, Reason::UnknownRules, message),
        ),
        None if view.session.is_some() => {
            remove_condition(&mut status.conditions, ConditionType::OrphanedCopies)
        }
        None => {}
    }
    for (condition_type, message) in divergences(view) {
        match message {
            Some((reason, message)) => set_condition(
                &mut status.conditions,
                condition_type,
                ConditionStatus::True,
                reason,
                &message,
                generation,
                now.wall,
            ),
            // A cluster without a session reports nothing new.
            None if view.session.is_some() => {
                remove_condition(&mut status.conditions, condition_type)
            }
            None => {}
        }
    }
    // A cluster without a session reports nothing new.
    if !view.key_shared && view.session.is_some() {
        remove_condition(&mut status.conditions, ConditionType::KeyShared);
    }
    if view.lost_watch.is_none() {
        remove_condition(&mut status.conditions, ConditionType::APIAvailable);
    }
    if !view.cordoned {
        remove_condition(&mut status.conditions, ConditionType::Cordoned);
    }
    if !leaves {
        remove_condition(&mut status.conditions, ConditionType::Drained);
    }
    if theft.is_none() {
        remove_condition(&mut status.conditions, ConditionType::PossibleKeyTheft);
    }
    (status != *view.previous).then_some(status)
}

fn accepted(view: &MemberView<'_>) -> (ConditionStatus, Reason, String) {
    if !view.accepted {
        let message =
            "spec.accepted is false: the agent is disconnected; its copies are kept or removed by its own policy (onRevoke)"
                .to_owned();
        return (ConditionStatus::False, Reason::NotAccepted, message);
    }
    if !view.leaving {
        return (
            ConditionStatus::True,
            Reason::Accepted,
            "rules may choose this cluster".to_owned(),
        );
    }
    if has_left(view) {
        let message = if view.orphaned.is_empty() {
            "no copies of Runnel are left in this cluster: this MemberCluster can be deleted"
        } else {
            "only copies of unknown rules are left in this cluster: this MemberCluster can be deleted"
        };
        return (ConditionStatus::False, Reason::Drained, message.to_owned());
    }
    (
        ConditionStatus::False,
        Reason::Leaving,
        "the cluster leaves: waiting for its copies to be removed".to_owned(),
    )
}

/// Returns the value of Ready. Its reason is the most important state of the cluster, as `kubectl get` shows it.
fn ready(view: &MemberView<'_>, now: Timestamp) -> (ConditionStatus, Reason, String) {
    if !view.accepted || view.leaving {
        return accepted(view);
    }
    if view.session.is_none() {
        return connected(view, now);
    }
    if let Some(lost @ (_, Uncertain::Everything)) = &view.lost_watch {
        let (reason, message) = api_unavailable(lost);
        return (ConditionStatus::False, reason, message);
    }
    let divergence = divergences(view).into_iter().find_map(|(_, why)| why);
    let is_other = matches!(
        view.divergence,
        Some((
            _,
            Divergence::SecondMembership {
                is_refused: false,
                ..
            }
        ))
    );
    if let Some((reason, message)) = divergence.filter(|_| !is_other) {
        return (ConditionStatus::False, reason, message);
    }
    if let Some(why) = view.windows_error {
        let message =
            format!("{why}. Rollouts send no change to the cluster until it is corrected");
        return (ConditionStatus::False, Reason::InvalidWindow, message);
    }
    // These need a person; the cluster gets its copies.
    let (reason, message) = if let Some(message) = stolen(view) {
        (Reason::RetiredKeySeen, message)
    } else if view.key_shared {
        (Reason::ConcurrentSessions, KEY_SHARED.to_owned())
    } else if view.cordoned {
        (Reason::Cordoned, CORDONED.to_owned())
    } else if let Some(lost @ (_, Uncertain::Kinds)) = &view.lost_watch {
        api_unavailable(lost)
    } else if let Some(message) = orphaned(view) {
        (Reason::UnknownRules, message)
    } else {
        (Reason::MemberReady, "the agent is connected".to_owned())
    };
    (ConditionStatus::True, reason, message)
}

/// Returns the reason and the message about lost watches.
fn api_unavailable((watch, uncertain): &(LostWatch, Uncertain)) -> (Reason, String) {
    let kind = &watch.resource;
    let (reason, lost) = match uncertain {
        Uncertain::Nothing => (
            Reason::Degraded,
            format!("no rule has copies of {kind} there yet"),
        ),
        Uncertain::Kinds => (
            Reason::Degraded,
            format!("nothing is known of its copies of {kind}, and other kinds are not affected"),
        ),
        Uncertain::Everything => (
            Reason::MemberAPIUnavailable,
            "nothing is known of its copies".to_owned(),
        ),
    };
    (reason, format!("{lost}: {}", without_watch(watch)))
}

/// Whether this hub has nothing left to remove there. Copies of unknown rules stay and delay
/// nothing. The result stays true: the agent of a cluster that has left is uninstalled.
fn has_left(view: &MemberView<'_>) -> bool {
    match view.session {
        Some(_) => view.acked == 0,
        None => reported_left(view).is_some(),
    }
}

/// The former message about a cluster that has left.
fn reported_left<'a>(view: &MemberView<'a>) -> Option<&'a str> {
    let before = condition(&view.previous.conditions, ConditionType::Drained)?;
    (before.status == ConditionStatus::True.as_str()).then_some(before.message.as_str())
}

fn left(view: &MemberView<'_>) -> Option<(ConditionStatus, Reason, String)> {
    if !view.leaving {
        return None;
    }
    if has_left(view) {
        let message = reported_left(view).map_or_else(
            || leaving_message(view.retained, view.orphaned.len()),
            str::to_owned,
        );
        return Some((ConditionStatus::True, Reason::Drained, message));
    }
    Some(match view.session {
        _ if !view.accepted => {
            let message = "spec.accepted is false, so the copies there stay: delete this MemberCluster, or accept the \
                           cluster again to have them removed or released";
            (
                ConditionStatus::False,
                Reason::NotAccepted,
                message.to_owned(),
            )
        }
        Some(_) => {
            let mut message = format!(
                "waiting for the copies of {} rules to be removed",
                view.acked
            );
            if let Some((_, divergence)) = view.divergence {
                let condition = divergence.condition().0;
                message.push_str(&format!(
                    "; copies from the previous membership are kept until an administrator confirms: see the condition {condition:?}"
                ));
            }
            (ConditionStatus::False, Reason::Leaving, message)
        }
        None => {
            let message = "the agent is not connected: its copies are removed or released when it is back; to remove a dead cluster, \
                           delete this MemberCluster; its copies then stay, or are removed when its agent is back, by its policy";
            (
                ConditionStatus::Unknown,
                Reason::SessionLost,
                message.to_owned(),
            )
        }
    })
}

/// Describes the remaining copies in a cluster that has left.
fn leaving_message(retained: &[(RuleName, u32)], orphaned: usize) -> String {
    if retained.is_empty() && orphaned > 0 {
        return format!(
            "copies of {orphaned} rules that this hub does not have stay in this cluster (see the condition OrphanedCopies), and \
             no others: this MemberCluster can be deleted"
        );
    }
    if retained.is_empty() {
        return "no copies are left in this cluster: this MemberCluster can be deleted".to_owned();
    }
    let named = retained
        .iter()
        .take(NAMES_SHOWN)
        .map(|(rule, copies)| format!("{copies} of {rule}"));
    let named: Vec<_> = named.collect();
    let more = if retained.len() > NAMES_SHOWN {
        ", ..."
    } else {
        ""
    };
    let all: u32 = retained.iter().map(|(_, copies)| copies).sum();
    format!(
        "{all} copies were left behind by deletionPolicy: Retain ({}{more}), and none is managed any more: this \
         MemberCluster can be deleted",
        named.join(", ")
    )
}

fn connected(view: &MemberView<'_>, now: Timestamp) -> (ConditionStatus, Reason, String) {
    if !view.accepted {
        let message =
            "spec.accepted is false: the hub refuses this cluster's agent until it is true again"
                .to_owned();
        return (ConditionStatus::False, Reason::NotAccepted, message);
    }
    if view.session.is_some() {
        return (
            ConditionStatus::True,
            Reason::SessionOpen,
            "the agent is connected".to_owned(),
        );
    }
    if view.previous.cluster_uid.is_none() {
        let message =
            "no agent has connected yet: create a join string with `runnel-hub token create`"
                .to_owned();
        return (ConditionStatus::False, Reason::NeverConnected, message);
    }
    if view.renewable_until.is_some_and(|until| until <= now) {
        let message = "the agent's certificate expired longer ago than the hub renews: create a new join string with \
                       `runnel-hub token create` and give it to the agent";
        return (
            ConditionStatus::False,
            Reason::CertificateExpired,
            message.to_owned(),
        );
    }
    let message = "the agent is not connected: check its log in the member cluster".to_owned();
    (ConditionStatus::Unknown, Reason::SessionLost, message)
}

/// A client used a key that had been replaced.
fn stolen(view: &MemberView<'_>) -> Option<String> {
    let retired = view.identity.retired.iter();
    let (at, key) = retired
        .filter_map(|key| Some((key.seen_at.as_ref()?.0, &key.fingerprint)))
        .min()?;
    Some(format!(
        "a key that the agent had replaced was used at {at} ({key}), and was refused: either the agent was restored from a \
         backup, or an attacker has a copy of its key. Set spec.accepted to false or delete this MemberCluster, find out who, \
         and let the cluster join again with `runnel-hub token create`"
    ))
}

/// Whether the hub has this key of the agent.
fn has_key(identity: &Identity, key: &str) -> bool {
    identity.keys.is_empty() || identity.keys.iter().any(|known| known.fingerprint == key)
}

/// The current divergences by kind.
fn divergences(view: &MemberView<'_>) -> [(ConditionType, Option<(Reason, String)>); 3] {
    [
        ConditionType::RestoredFromBackup,
        ConditionType::Duplicate,
        ConditionType::PreviousMembership,
    ]
    .map(|kind| {
        let text = view.divergence.map(|(member, divergence)| {
            (divergence.condition(), divergence.message(member.as_str()))
        });
        let text = text.filter(|((reported, _), _)| *reported == kind);
        (kind, text.map(|((_, reason), message)| (reason, message)))
    })
}

fn orphaned_rules(view: &MemberView<'_>) -> Vec<OrphanedRule> {
    let rules = view.orphaned.iter().take(limits::ORPHANED_RULES);
    rules
        .map(|(uid, rule)| OrphanedRule {
            rule_uid: uid.to_string(),
            rule: rule.to_string(),
        })
        .collect()
}

fn orphaned(view: &MemberView<'_>) -> Option<String> {
    let count = view.orphaned.len();
    let names: Vec<_> = view
        .orphaned
        .iter()
        .take(NAMES_SHOWN)
        .map(|(_, rule)| rule.to_string())
        .collect();
    (count > 0).then(|| {
        let more = if count > NAMES_SHOWN { ", ..." } else { "" };
        format!(
            "the cluster has copies of {count} rules that this hub does not have: {}{more}; they are kept: kubectl runnel orphans",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use runnel_api::NO_RECORD;

    fn view<'a>(
        previous: &'a MemberClusterStatus,
        session: Option<&'a SessionFacts>,
        acked: usize,
    ) -> MemberView<'a> {
        MemberView {
            generation: 2,
            accepted: true,
            cordoned: false,
            leaving: true,
            session,
            acked,
            retained: &[],
            orphaned: vec![],
            awaited: false,
            renewable_until: None,
            divergence: None,
            lost_watch: None,
            windows_error: None,
            key_shared: false,
            identity: &NO_RECORD.identity,
            previous,
        }
    }

    fn facts() -> SessionFacts {
        SessionFacts {
            agent_version: "1".into(),
            kubernetes_version: "1".into(),
            cluster_uid: "u".into(),
            certificate_expires: Timestamp::MAX,
            key: "k".into(),
            boot_id: "b".into(),
        }
    }

    fn reported(view: &MemberView<'_>) -> MemberClusterStatus {
        let now = Now {
            instant: Instant::now(),
            wall: Timestamp::from_second(1_800_000_000).unwrap(),
        };
        fold_member(view, now).unwrap_or_else(|| view.previous.clone())
    }

    fn is_ready(status: &MemberClusterStatus) -> (&str, &str) {
        let ready = condition(&status.conditions, ConditionType::Ready).unwrap();
        (&ready.status, &ready.reason)
    }

    #[test]
    fn ready_has_the_most_important_state_as_reason() {
        let (none, facts) = (MemberClusterStatus::default(), facts());
        let stays = |session| MemberView {
            leaving: false,
            ..view(&none, session, 0)
        };
        let never = reported(&stays(None));
        assert_eq!(is_ready(&never), ("False", "NeverConnected"));
        let well = reported(&stays(Some(&facts)));
        assert_eq!(is_ready(&well), ("True", "MemberReady"));
        assert_eq!(well.conditions[0].type_, "Ready");
        let rule = RuleName {
            kind: "DistributionRule".into(),
            namespace: "a".into(),
            name: "r".into(),
        };
        let uid = RuleUid::from("u");
        let orphaned = MemberView {
            orphaned: vec![(&uid, &rule)],
            ..stays(Some(&facts))
        };
        assert_eq!(is_ready(&reported(&orphaned)), ("True", "UnknownRules"));
        let cordoned = MemberView {
            cordoned: true,
            ..orphaned
        };
        assert_eq!(is_ready(&reported(&cordoned)), ("True", "Cordoned"));
        let shared = MemberView {
            key_shared: true,
            ..cordoned
        };
        assert_eq!(is_ready(&reported(&shared)), ("True", "ConcurrentSessions"));
        let blind = MemberView {
            lost_watch: Some((
                LostWatch {
                    resource: "secrets".into(),
                    status: 403,
                },
                Uncertain::Everything,
            )),
            ..shared
        };
        assert_eq!(
            is_ready(&reported(&blind)),
            ("False", "MemberAPIUnavailable")
        );
        let with_lost = |uncertain| MemberView {
            lost_watch: blind
                .lost_watch
                .clone()
                .map(|(watch, _)| (watch, uncertain)),
            ..stays(Some(&facts))
        };
        let degraded = reported(&with_lost(Uncertain::Kinds));
        assert_eq!(is_ready(&degraded), ("True", "Degraded"));
        let api = condition(&degraded.conditions, ConditionType::APIAvailable).unwrap();
        assert_eq!((&*api.status, &*api.reason), ("False", "Degraded"));
        assert!(
            api.message
                .starts_with("nothing is known of its copies of secrets")
        );
        // No rule has copies of that kind.
        let reported_unused = reported(&with_lost(Uncertain::Nothing));
        assert_eq!(is_ready(&reported_unused), ("True", "MemberReady"));
        let conditions = &reported_unused.conditions;
        let api = condition(conditions, ConditionType::APIAvailable).unwrap();
        assert!(api.message.starts_with("no rule has copies of secrets"));
        // The agent of another MemberCluster is refused; this one's is not.
        let name = ClusterName::from("eu-1");
        for (is_refused, ready) in [
            (true, ("False", "SecondMembership")),
            (false, ("True", "MemberReady")),
        ] {
            let second = Divergence::SecondMembership {
                other: "eu-2".to_owned(),
                is_refused,
            };
            let view = MemberView {
                divergence: Some((&name, &second)),
                ..stays(Some(&facts))
            };
            let status = reported(&view);
            assert_eq!(is_ready(&status), ready);
            let duplicate = condition(&status.conditions, ConditionType::Duplicate).unwrap();
            assert!(duplicate.message.contains("eu-1") && duplicate.message.contains("eu-2"));
        }
        let leaving = view(&none, Some(&facts), 2);
        assert_eq!(is_ready(&reported(&leaving)), ("False", "Leaving"));
        let revoked = MemberView {
            accepted: false,
            ..leaving
        };
        assert_eq!(is_ready(&reported(&revoked)), ("False", "NotAccepted"));
        let lost = MemberView {
            previous: &well,
            ..stays(None)
        };
        assert_eq!(is_ready(&reported(&lost)), ("Unknown", "SessionLost"));
        // While the hub waits for its agents after a start, the former state stays.
        let awaited = MemberView {
            awaited: true,
            ..lost
        };
        assert_eq!(is_ready(&reported(&awaited)), ("True", "MemberReady"));
    }

    fn left(status: &MemberClusterStatus) -> (&str, &str, &str) {
        let reported = condition(&status.conditions, ConditionType::Drained).unwrap();
        (&reported.status, &reported.reason, &reported.message)
    }

    #[test]
    fn revoked_cluster_shows_the_revocation_as_connected_false() {
        let known = MemberClusterStatus {
            cluster_uid: Some("u".to_owned()),
            ..MemberClusterStatus::default()
        };
        for awaited in [false, true] {
            let revoked = MemberView {
                accepted: false,
                leaving: false,
                awaited,
                ..view(&known, None, 0)
            };
            let status = reported(&revoked);
            for kind in [ConditionType::Accepted, ConditionType::Connected] {
                let text = condition(&status.conditions, kind).unwrap();
                assert_eq!(
                    (text.status.as_str(), text.reason.as_str()),
                    ("False", "NotAccepted"),
                    "{kind:?}"
                );
                assert!(text.message.contains("spec.accepted"), "{}", text.message);
            }
        }
    }

    #[test]
    fn shared_key_is_a_condition_until_a_session_without() {
        let facts = facts();
        let none = MemberClusterStatus::default();
        let key_shared_member = reported(&MemberView {
            leaving: false,
            key_shared: true,
            ..view(&none, Some(&facts), 0)
        });
        let text = |status: &MemberClusterStatus| {
            condition(&status.conditions, ConditionType::KeyShared).cloned()
        };
        let first = text(&key_shared_member).unwrap();
        assert_eq!(
            (first.status.as_str(), first.reason.as_str()),
            ("True", "ConcurrentSessions")
        );
        assert!(first.message.contains("spec.accepted"), "{}", first.message);
        // It is cut off, as the message states.
        let cut = reported(&MemberView {
            leaving: false,
            accepted: false,
            ..view(&key_shared_member, None, 0)
        });
        assert_eq!(text(&cut), Some(first));
        let calm = reported(&MemberView {
            leaving: false,
            ..view(&cut, Some(&facts), 0)
        });
        assert_eq!(text(&calm), None);
    }

    #[test]
    fn leaving_cluster_reports_progress_and_what_it_kept() {
        let facts = facts();
        let none = MemberClusterStatus::default();
        let rule = |namespace: &str, name: &str| RuleName {
            kind: String::new(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let retained = [(rule("a", "b"), 3), (rule("", "c"), 1)];
        assert_eq!(left(&reported(&view(&none, None, 0))).0, "Unknown");
        let busy = reported(&view(&none, Some(&facts), 2));
        assert_eq!(
            left(&busy),
            (
                "False",
                "Leaving",
                "waiting for the copies of 2 rules to be removed"
            )
        );
        let gone = reported(&MemberView {
            retained: &retained,
            ..view(&busy, Some(&facts), 0)
        });
        let (holds, reason, message) = left(&gone);
        assert_eq!((holds, reason), ("True", "Drained"));
        assert!(
            message.starts_with("4 copies were left behind")
                && message.contains("(3 of a/b, 1 of c)"),
            "{message}"
        );
        // Copies of unknown rules delay nothing.
        let (uid, orphan) = (RuleUid::from("u"), rule("x", "y"));
        let orphaned = reported(&MemberView {
            orphaned: vec![(&uid, &orphan)],
            ..view(&busy, Some(&facts), 0)
        });
        let (holds, reason, message) = left(&orphaned);
        assert_eq!((holds, reason), ("True", "Drained"));
        assert!(
            message.starts_with("copies of 1 rules that this hub does not have stay"),
            "{message}"
        );
        assert!(condition(&orphaned.conditions, ConditionType::OrphanedCopies).is_some());
        // It stays true when the agent is uninstalled, and after a restart of the hub.
        let after = reported(&view(&gone, None, 0));
        assert_eq!(left(&after), left(&gone));
        let accepted = condition(&after.conditions, ConditionType::Accepted).unwrap();
        assert_eq!(
            (accepted.status.as_str(), accepted.reason.as_str()),
            ("False", "Drained")
        );
        // A cluster that is cut off gets a hint first.
        let cut = reported(&MemberView {
            accepted: false,
            ..view(&none, None, 0)
        });
        assert_eq!((left(&cut).0, left(&cut).1), ("False", "NotAccepted"));
        // And the state may change back.
        let back = reported(&MemberView {
            leaving: false,
            ..view(&gone, Some(&facts), 0)
        });
        assert!(condition(&back.conditions, ConditionType::Drained).is_none());
    }
}
