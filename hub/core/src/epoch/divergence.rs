//! The divergences that a history token proves.
use data_encoding::HEXLOWER;
use jiff::Timestamp;

use super::history_token::{HistoryToken, TokenRecipient};
use super::leader_history::LeaderHistory;
use crate::session::SendRestriction;
use runnel_api::conditions::{ConditionType, Reason};

/// The annotation of a `MemberCluster` by which an administrator confirms a divergence. Its value
/// names the divergence.
pub const CONFIRMED: &str = "runnel.dev/confirmed";
/// The annotation of a `MemberCluster` that names the one whose cluster it takes over.
pub const REPLACES: &str = "runnel.dev/replaces";
/// By how much the clocks of two hubs may differ, in seconds.
const SKEW: u64 = 2;

/// Why a hub sends nothing harmful to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// The member has received state that this hub does not have.
    Restored {
        /// The sender: its term and its process.
        by: String,
        /// The issue time of the token.
        issued_at: Timestamp,
    },
    /// As above, and the sender ran when this hub was the leader already.
    Doubled {
        /// The sender: its term and its process.
        by: String,
        /// The issue time of the token.
        issued_at: Timestamp,
    },
    /// Another cluster connected with this member's key.
    Cloned {
        /// The cluster that the hub has recorded under this name.
        known: String,
        /// The other one.
        other: String,
    },
    /// The cluster's state was sent to another member, or it is a copy of such a cluster.
    PreviousMembership {
        /// The former recipient, as hexadecimal digits.
        former: String,
        /// Whether the other `MemberCluster` is the reason, and not the other cluster.
        other_member: bool,
    },
    /// Two `MemberCluster`s have their agent in the same cluster.
    SecondMembership {
        /// The other one.
        other: String,
        /// Whether this one's agent is refused, and not the other one's.
        is_refused: bool,
    },
}

/// The state of the hub when a member connects.
pub struct Facts<'a> {
    /// The leader history of the hub.
    pub line: &'a LeaderHistory,
    /// The start of this process's lead, in Unix seconds.
    pub since: u64,
    /// The recipient of the token.
    pub to: TokenRecipient,
}

/// Whether the history token of a member can be from this hub.
pub fn judge(facts: &Facts<'_>, history_token: &HistoryToken) -> Option<Divergence> {
    if !contains(facts.line, history_token) {
        let by = history_token.by();
        let issued_at = i64::try_from(history_token.issued_at)
            .ok()
            .and_then(|second| Timestamp::from_second(second).ok());
        let issued_at = issued_at.unwrap_or(Timestamp::MAX);
        return Some(if history_token.issued_at > facts.since + SKEW {
            Divergence::Doubled { by, issued_at }
        } else {
            Divergence::Restored { by, issued_at }
        });
    }
    let other_member = history_token.to.member != facts.to.member;
    if other_member || history_token.to.cluster != facts.to.cluster {
        let former = if other_member {
            history_token.to.member
        } else {
            history_token.to.cluster
        };
        return Some(Divergence::PreviousMembership {
            former: HEXLOWER.encode(&former),
            other_member,
        });
    }
    None
}

/// Whether this history includes the token.
fn contains(line: &LeaderHistory, history_token: &HistoryToken) -> bool {
    match line
        .terms()
        .find(|leader_term| history_token.is_of(leader_term))
    {
        Some(leader_term) => leader_term
            .last
            .is_none_or(|last| history_token.version <= last),
        // A token older than all stored entries proves nothing: its member was disconnected for
        // long.
        None => line.is_dropped(history_token.version),
    }
}

impl Divergence {
    /// Returns the value of the confirming annotation.
    pub fn name(&self) -> &str {
        match self {
            Divergence::Restored { by, .. } | Divergence::Doubled { by, .. } => by,
            Divergence::Cloned { other, .. } => other,
            Divergence::PreviousMembership { former, .. } => former,
            Divergence::SecondMembership { other, .. } => other,
        }
    }

    /// Whether it is about another client than the agent of the member's session.
    pub fn is_of_other_client(&self) -> bool {
        matches!(
            self,
            Divergence::Cloned { .. }
                | Divergence::SecondMembership {
                    is_refused: false,
                    ..
                }
        )
    }

    /// Returns the restriction before the confirmation. A cluster that uses the key of another one
    /// gets no session.
    pub fn restriction(&self) -> SendRestriction {
        match self {
            Divergence::Restored { .. }
            | Divergence::Doubled { .. }
            | Divergence::Cloned { .. }
            | Divergence::SecondMembership { .. } => SendRestriction::Everything,
            Divergence::PreviousMembership { .. } => SendRestriction::Removals,
        }
    }

    /// Returns the condition and reason that report it.
    pub fn condition(&self) -> (ConditionType, Reason) {
        match self {
            Divergence::Restored { .. } => {
                (ConditionType::RestoredFromBackup, Reason::HubStateBehind)
            }
            Divergence::Doubled { .. } => (ConditionType::Duplicate, Reason::SecondHub),
            Divergence::Cloned { .. } => (ConditionType::Duplicate, Reason::SecondCluster),
            Divergence::SecondMembership { .. } => {
                (ConditionType::Duplicate, Reason::SecondMembership)
            }
            Divergence::PreviousMembership { .. } => (
                ConditionType::PreviousMembership,
                Reason::CopiesFromPreviousMembership,
            ),
        }
    }

    /// Returns the message with cause and fix.
    pub fn message(&self, member: &str) -> String {
        let confirm = format!(
            "kubectl annotate member {member} --overwrite {CONFIRMED}={}",
            self.name()
        );
        match self {
            Divergence::Restored { issued_at, by } => format!(
                "this hub does not have what it sent to the cluster at {issued_at} (term {by}): it was restored from an older \
                 backup. Nothing is changed or removed there. See that the rules and sources here are as they should be, \
                 then let the cluster follow this hub: `{confirm}` (for all clusters: `--all` instead of {member})"
            ),
            Divergence::Doubled { issued_at, by } => format!(
                "a second hub with this one's identity runs: it sent something to the cluster at {issued_at} (term {by}), when \
                 this one led already. Nothing is changed or removed there by this hub. Stop one of the two; if it was the \
                 other one, let the cluster follow this hub: `{confirm}` (for all clusters: `--all` instead of {member})"
            ),
            Divergence::Cloned { known, other } => format!(
                "an agent in another cluster came with this member's key: kube-system has the uid {other} there, and {known} in \
                 the cluster that is known. It is refused. Give it a MemberCluster and a join string of its own; if it has \
                 taken the place of the other, let it: `{confirm}`"
            ),
            Divergence::PreviousMembership { other_member, .. } => {
                let was = if *other_member {
                    "under another MemberCluster"
                } else {
                    "as another cluster (kube-system has another uid now)"
                };
                format!(
                    "the cluster got its copies {was}, and some of them are not selected now, or with other terms. Nothing is removed \
                     there. If they may be removed: `{confirm}`"
                )
            }
            Divergence::SecondMembership { other, is_refused } => {
                let (refused, kept) = if *is_refused {
                    (member, other.as_str())
                } else {
                    (other.as_str(), member)
                };
                format!(
                    "the agents of the MemberClusters {kept} and {refused} are in one cluster (its kube-system has one uid), \
                     which belongs to {kept}. The agent of {refused} is refused, and changes nothing. Delete the MemberCluster \
                     {refused}, or rename the cluster: `kubectl runnel join {refused} --replace {kept}`"
                )
            }
        }
    }
}
