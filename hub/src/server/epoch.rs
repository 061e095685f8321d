//! Determines whether an agent may follow this hub, and which history token it gets; see
//! [`runnel_hub_core::epoch`].
use std::time::Instant;

use bytes::Bytes;
use kube::ResourceExt;
use runnel_proto::HISTORY_TOKEN_METADATA;
use runnel_proto::model::{ClusterName, HubFrame};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::session::{Running, SessionContext};
use super::{PeerIdentity, Server};
use crate::hub_state::HubState;
use crate::join::with_reason;
use crate::membership::Member;
use crate::object_cache::ObjectCache;
use runnel_hub_core::epoch::{CONFIRMED, Divergence, Facts, HistoryToken, TokenRecipient, judge};
use runnel_hub_core::session::SendRestriction;
use runnel_hub_core::status::Unconfirmed;

/// Returns the history token of an agent, if this hub's key has sealed it.
pub(super) fn history_token_of_request(
    hub_state: &HubState,
    metadata: &MetadataMap,
) -> Option<HistoryToken> {
    let bytes = metadata.get_bin(HISTORY_TOKEN_METADATA)?.to_bytes().ok()?;
    let history_token = HistoryToken::open(&bytes, &hub_state.settings.revision_key);
    if history_token.is_none() {
        tracing::debug!("an agent remembers what this hub has not sealed");
    }
    history_token
}

/// Returns the divergence of a member, and whether the hub keeps the entry of the token's issuer
/// for long. Returns `None` if this process does not lead.
fn judge_member(
    hub_state: &HubState,
    to: TokenRecipient,
    history_token: &HistoryToken,
) -> Option<(Option<Divergence>, bool)> {
    let position = hub_state.leadership.leader_position.read();
    let position = position.as_ref()?;
    let facts = Facts {
        line: &position.line,
        since: position.since,
        to,
    };
    Some((
        judge(&facts, history_token),
        position.line.newer().any(|term| history_token.is_of(term)),
    ))
}

fn is_confirmed(
    object_cache: &ObjectCache,
    cluster: &ClusterName,
    divergence: &Divergence,
) -> bool {
    let text = |member: &Member| {
        member
            .cluster
            .annotations()
            .get(CONFIRMED)
            .map(|text| text.trim() == divergence.name())
    };
    object_cache.with_member(cluster, |member| member.and_then(text).unwrap_or_default())
}

fn note(hub_state: &HubState, cluster: &ClusterName, divergence: &Divergence) {
    if hub_state
        .leadership
        .divergences
        .lock()
        .set(cluster, divergence.clone(), Instant::now())
    {
        tracing::error!(%cluster, "{}", divergence.message(cluster.as_str()));
        hub_state.queues.dirty_members.add([cluster.clone()]);
    }
}

/// Returns a refusal with the code for a problem that only a user can solve. The agent then checks
/// from time to time for a new join string.
fn refusal(message: String) -> Status {
    with_reason(
        Status::new(Code::FailedPrecondition, message),
        "key-unknown",
    )
}

impl Server {
    /// Returns the status of a refused agent. If the agent has newer state than this hub, the hub
    /// may have lost state. Then the status does not revoke anything.
    pub(super) fn refused_or_forgotten(
        &self,
        identity: &PeerIdentity,
        history_token: Option<&HistoryToken>,
        status: Status,
    ) -> Status {
        let to = history_token.map_or(TokenRecipient::new("", ""), |history_token| {
            history_token.to
        });
        let divergence = history_token
            .and_then(|history_token| judge_member(&self.hub_state, to, history_token)?.0);
        let blocks_everything = |divergence: &Divergence| {
            divergence.restriction() == SendRestriction::Everything
                && !is_confirmed(&self.object_cache, &identity.cluster, divergence)
        };
        let Some(divergence) = divergence.filter(blocks_everything) else {
            return status;
        };
        note(&self.hub_state, &identity.cluster, &divergence);
        refusal(format!(
            "this hub has older state than before and does not admit this cluster now ({}): its copies stay. If the hub was restored \
             from a backup, give the cluster a new join string",
            status.message()
        ))
    }
}

impl SessionContext {
    /// Returns the uid of the cluster with this name: from the status, unless another cluster has
    /// just replaced it.
    fn current_cluster_uid(&self) -> Option<String> {
        let (cluster, key) = (
            &self.identity.cluster,
            self.identity.certificate.key.to_string(),
        );
        let report_store = self.hub_state.report_store.lock();
        let live = report_store
            .session(cluster, Instant::now())
            .map(|session| (&session.cluster_uid, session.key == key));
        let live = live.map(|(uid, same_key)| (uid.clone(), same_key));
        drop(report_store);
        self.object_cache.with_member(cluster, |member| {
            let member = &member?.cluster;
            let confirmed = member.annotations().get(CONFIRMED).map(|text| text.trim());
            let is_confirmed = |(uid, _): &&(String, bool)| confirmed == Some(uid.as_str());
            let reported = member
                .status
                .as_ref()
                .and_then(|status| status.cluster_uid.clone());
            let newest = live
                .as_ref()
                .filter(is_confirmed)
                .map(|(uid, _)| uid.clone());
            newest
                .or(reported)
                .or_else(|| live.filter(|(_, same_key)| *same_key).map(|(uid, _)| uid))
        })
    }
}

impl Running {
    /// Judges the agent's token after the agent's Hello, which has the uid of its cluster.
    pub(super) fn judge_member(&mut self, cluster_uid: &str) {
        // The uid becomes a part of a command that is displayed to an administrator.
        let is_plain = cluster_uid.len() <= 64
            && cluster_uid
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !is_plain {
            return self.end(Status::invalid_argument(
                "cluster_uid: not the uid of a namespace",
            ));
        }
        let cluster = &self.context.identity.cluster;
        if let Some(known) = self
            .context
            .current_cluster_uid()
            .filter(|known| !known.is_empty() && known != cluster_uid)
        {
            let divergence = Divergence::Cloned {
                known,
                other: cluster_uid.to_owned(),
            };
            if !is_confirmed(&self.context.object_cache, cluster, &divergence) {
                note(&self.context.hub_state, cluster, &divergence);
                return self.end(refusal(divergence.message(cluster.as_str())));
            }
            self.context
                .hub_state
                .leadership
                .divergences
                .lock()
                .forget(cluster);
        }
        let member = self.context.object_cache.member(cluster);
        let first = member.and_then(|member| {
            self.context
                .object_cache
                .holder(&member.cluster, cluster_uid)
        });
        if let Some(first) = first {
            return self.refuse_second(first);
        }
        self.epoch.recipient = TokenRecipient::new(self.context.identity.uid(), cluster_uid);
        let Some(history_token) = &self.epoch.history_token else {
            self.epoch.sends_history_token = true;
            return;
        };
        let Some((divergence, is_of_newer)) =
            judge_member(&self.context.hub_state, self.epoch.recipient, history_token)
        else {
            return;
        };
        let Some(divergence) = divergence else {
            // The hub drops old entries. An agent that gets no new token for long would keep a
            // token of a dropped entry.
            self.epoch.sends_history_token = !is_of_newer;
            return;
        };
        // After the confirmation a new token replaces the one that caused the divergence.
        self.epoch.sends_history_token =
            is_confirmed(&self.context.object_cache, cluster, &divergence);
        if self.epoch.sends_history_token {
            tracing::warn!(
                reason = divergence.name(),
                "an administrator confirmed that the cluster follows this hub"
            );
            return;
        }
        if divergence.restriction() == SendRestriction::Everything {
            note(&self.context.hub_state, cluster, &divergence);
        }
        self.epoch.divergence = Some(divergence);
    }

    /// Ends the session of an agent in a cluster that another member has.
    pub(super) fn refuse_second(&mut self, first: ClusterName) {
        let second = self.context.identity.cluster.clone();
        let of = |other: &ClusterName, is_refused| Divergence::SecondMembership {
            other: other.to_string(),
            is_refused,
        };
        let refused = of(&first, true);
        note(&self.context.hub_state, &second, &refused);
        let divergences = &self.context.hub_state.leadership.divergences;
        // One of its own is more important to the first member.
        let has_own = divergences
            .lock()
            .of(&first)
            .is_some_and(|divergence| !divergence.is_of_other_client());
        if !has_own {
            note(&self.context.hub_state, &first, &of(&second, false));
        }
        self.end(refusal(refused.message(second.as_str())));
    }

    /// Records the restriction of a session that counts as connected.
    pub(super) fn record_restriction(&self) {
        let cluster = &self.context.identity.cluster;
        match self.epoch.restriction() {
            SendRestriction::Everything => self
                .context
                .hub_state
                .report_store
                .lock()
                .waits_for_confirmation(cluster, Some(Unconfirmed::Everything)),
            SendRestriction::Removals | SendRestriction::Nothing => {
                if self
                    .context
                    .hub_state
                    .leadership
                    .divergences
                    .lock()
                    .settle(cluster)
                {
                    self.context
                        .hub_state
                        .queues
                        .dirty_members
                        .add([cluster.clone()]);
                }
            }
        }
    }

    /// Records the divergence of a cluster that joined again, but only if it has copies that are
    /// not desired.
    pub(super) fn record_withheld(&mut self) {
        let Some(divergence @ Divergence::PreviousMembership { .. }) = &self.epoch.divergence
        else {
            return;
        };
        let cluster = &self.context.identity.cluster;
        let withheld = {
            let session = self.context.live.session.lock();
            let is_news = session.withheld().len() > self.epoch.withheld_rules;
            is_news.then(|| session.withheld().clone())
        };
        if let Some(withheld) = withheld {
            self.epoch.withheld_rules = withheld.len();
            note(&self.context.hub_state, cluster, divergence);
            self.context
                .hub_state
                .report_store
                .lock()
                .waits_for_confirmation(cluster, Some(Unconfirmed::RemovalsOf(withheld)));
            self.context.hub_state.mark_statuses_of(cluster);
        }
    }

    /// Lifts the restriction of a cluster that joined again and has only copies of its rules.
    pub(super) fn end_empty_restriction(&mut self) {
        let mut session = self.context.live.session.lock();
        if self.epoch.end_if_nothing_withheld(&session) {
            session.set_restriction(SendRestriction::Nothing);
        }
    }

    /// Whether an administrator has confirmed the divergence since. Then the agent must reconnect.
    pub(super) fn is_confirmed(&self) -> bool {
        self.epoch.divergence.as_ref().is_some_and(|divergence| {
            is_confirmed(
                &self.context.object_cache,
                &self.context.identity.cluster,
                divergence,
            )
        })
    }

    /// Makes the agent open another stream at once, which is judged again.
    pub(super) fn require_reconnect(&mut self) {
        self.out.end_with(HubFrame::Drain(0), Status::ok(""));
    }

    /// Sends the hub's CAs to the agent, unless there is a divergence.
    pub(super) fn send_ca_bundle(&mut self) {
        let all = self.context.hub_state.ca_bundle.borrow().clone();
        // An agent with such a divergence does not trust other CAs of this hub.
        if !all.is_empty() && self.epoch.restriction() != SendRestriction::Everything {
            self.out.push(HubFrame::CaBundle(all));
        }
    }

    /// The sealed history token that goes with `frame`; empty for most frames.
    pub(super) fn token_for(&self, frame: &HubFrame) -> Bytes {
        if !self.epoch.sends_token_with(frame) {
            return Bytes::new();
        }
        let position = self.context.hub_state.leadership.leader_position.read();
        let token = position.as_ref().and_then(|position| {
            Some(HistoryToken::of(
                position.line.newest()?,
                (position.version, position.renewed_at),
                self.epoch.recipient_of_token()?,
            ))
        });
        token
            .map(|token| token.seal(&self.context.hub_state.settings.revision_key))
            .unwrap_or_default()
    }
}
