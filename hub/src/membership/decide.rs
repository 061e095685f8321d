//! Decides which agents may join, renew and connect. Every refusal contains a hint.
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runnel_transport::identity::{Fingerprint, PeerCertificate, SpiffeId, Token, is_cluster_name};

use super::keys::is_retired;
use super::{Member, tokens};
use runnel_api::{Identity, Join, KeyRecord, MemberCluster, MemberRecordSpec, limits};
use runnel_hub_core::epoch::REPLACES;

/// Why a join, a renewal or a session is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// The cluster or its join does not exist, or the token is another one. The client does not
    /// learn which.
    #[error(
        "the token is wrong for cluster {0}: create a new join string with `runnel-hub token create {0}`"
    )]
    WrongToken(String),
    /// The id of the token is right, and its secret is wrong. The client gets the same answer as
    /// for [`Self::WrongToken`].
    #[error(
        "the token is wrong for cluster {0}: create a new join string with `runnel-hub token create {0}`"
    )]
    WrongSecret(String),
    /// Too many wrong secrets were tried, now or before a restart.
    #[error(
        "the token for cluster {0} is burnt, as five wrong secrets were tried for it: create a new join string with \
         `runnel-hub token create {0}`"
    )]
    LockedOut(String),
    /// The limit of stored tokens is reached, and none of them has expired.
    #[error(
        "cluster {0} has used 16 tokens that have not expired yet: wait until the first of them in spec.tokens of its \
         MemberRecord expires"
    )]
    TooManyTokens(String),
    /// The token has expired.
    #[error(
        "the token for cluster {0} has expired: create a new join string with `runnel-hub token create {0}`"
    )]
    Expired(String),
    /// The token was already used with another key.
    #[error(
        "the token for cluster {0} was already used with another key: create a new join string with `runnel-hub token \
         create {0}`, and find out who used it if it was not you"
    )]
    Spent(String),
    /// Too many wrong tokens came from the address of the client.
    #[error(
        "too many wrong tokens came from here, the last for cluster {0}: create a new join string with `runnel-hub token \
         create {0}`"
    )]
    TooManyTries(String),
    /// The cluster is not accepted at the moment.
    #[error(
        "cluster {0} is not accepted: set spec.accepted of the MemberCluster to true on the hub"
    )]
    NotAccepted(String),
    /// The `MemberCluster` is being deleted.
    #[error(
        "cluster {0} is being deleted on the hub: create it again and join with a new join string"
    )]
    Deleting(String),
    /// The client is in a cluster that another `MemberCluster` has.
    #[error(
        "the agent is in the cluster of MemberCluster {first}, and cannot be {cluster} too: to rename the cluster, \
         `kubectl runnel join {cluster} --replace {first}`; if this is the wrong cluster, nothing was changed in it"
    )]
    SecondMembership {
        /// The refused `MemberCluster`.
        cluster: String,
        /// The `MemberCluster` that has the cluster.
        first: String,
    },
    /// The certificate belongs to a cluster that was deleted, or to another hub.
    #[error(
        "the certificate is for a cluster {0} that is no longer there: join again with a new join string"
    )]
    Gone(String),
    /// It is not known why the `MemberCluster` is absent: it went with many others, with its CRD, or before this process began.
    #[error(
        "the MemberCluster of cluster {0} is absent, which is no revocation, as it went with many others or its CRD: its copies stay. Create it again and join with a new join string; to revoke the cluster, create it with spec.accepted: false"
    )]
    Unclear(String),
    /// The `MemberCluster` of this name is a new one.
    #[error(
        "the MemberCluster of cluster {0} was created again, and the certificate is for the former one: join again with a new join string"
    )]
    Recreated(String),
    /// The key is not on record for the cluster, or no longer.
    #[error(
        "the certificate's key is not known for cluster {0}: join again with a new join string"
    )]
    UnknownKey(String),
    /// A newer key has replaced the key. A client that still uses it has a copy of it.
    #[error(
        "the certificate's key was replaced by cluster {0} and must not be used again: if its agent was restored from a \
         backup, join again with a new join string; if not, an attacker has a copy of the key"
    )]
    RetiredKey(String),
    /// The certificate has expired.
    #[error("the certificate of cluster {0} has expired: renew it; an agent does so automatically")]
    CertificateExpired(String),
    /// The certificate expired so long ago that it cannot be renewed.
    #[error(
        "the certificate of cluster {0} expired longer ago than the hub renews (--expired-renewal-limit): make a new \
         join string with `runnel-hub token create {0}`, and give it to the agent"
    )]
    ExpiredTooLong(String),
}

impl JoinRefusal {
    /// Returns the reason code of `sync.proto`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::WrongToken(_) | Self::WrongSecret(_) => "wrong-token",
            Self::LockedOut(_) => "token-burnt",
            Self::TooManyTokens(_) => "too-many-tokens",
            Self::Expired(_) => "token-expired",
            Self::Spent(_) => "token-spent",
            Self::TooManyTries(_) => "too-many-tries",
            Self::NotAccepted(_) => "not-accepted",
            Self::Deleting(_) => "revoked",
            Self::Gone(_) => "gone",
            Self::Unclear(_) => "unclear",
            Self::Recreated(_) | Self::UnknownKey(_) | Self::RetiredKey(_) => "key-unknown",
            Self::SecondMembership { .. } => "second-membership",
            Self::CertificateExpired(_) => "expired",
            Self::ExpiredTooLong(_) => "expired-too-long",
        }
    }

    /// Whether the `MemberCluster` is absent or terminating. Only the watch of members and [`super::departures`] decide that this
    /// is a revocation.
    pub fn is_departure(&self) -> bool {
        matches!(self, Self::Deleting(_) | Self::Gone(_))
    }

    /// Whether the hub's administrator no longer accepts this cluster.
    pub fn is_revocation(&self) -> bool {
        matches!(
            self,
            Self::NotAccepted(_) | Self::Deleting(_) | Self::Gone(_)
        )
    }
}

/// Returns the join that this token allows.
///
/// # Errors
/// [`JoinRefusal`]. It is the same for a missing cluster and for a wrong token. The caller must
/// count a [`JoinRefusal::WrongSecret`].
pub fn check_token<'a>(
    member: Option<&'a Member>,
    cluster: &str,
    token: &Token,
    now: Timestamp,
) -> Result<(&'a Member, &'a Join), JoinRefusal> {
    let join = member.and_then(|member| Some((member, member.cluster.spec.join.as_ref()?)));
    let join = join.filter(|(_, join)| tokens::is_named(join, token));
    let (member, join) = join.ok_or_else(|| JoinRefusal::WrongToken(cluster.to_owned()))?;
    let used = tokens::used(member);
    let (right, late) = (token.matches(&join.token_hash), join.expires_at.0 <= now);
    if tokens::is_locked_out(used, join) {
        return Err(JoinRefusal::LockedOut(cluster.to_owned()));
    }
    if !right && (late || tokens::is_redeemed(used, join)) {
        // The token is used or expired, so wrong secrets for it are not counted.
        return Err(JoinRefusal::WrongToken(cluster.to_owned()));
    }
    if !tokens::has_room(used, join, now) {
        return Err(JoinRefusal::TooManyTokens(cluster.to_owned()));
    }
    if !right {
        return Err(JoinRefusal::WrongSecret(cluster.to_owned()));
    }
    if late {
        return Err(JoinRefusal::Expired(cluster.to_owned()));
    }
    check_wanted(&member.cluster, cluster)?;
    Ok((member, join))
}

/// Whether the cluster with this uid belongs to `other`, so that `member` must not have it too. It
/// belongs to the `MemberCluster` that its agent connected with, and of two to the older one, until
/// another one [replaces](REPLACES) it.
pub fn holds_cluster(other: &MemberCluster, member: &MemberCluster, cluster_uid: &str) -> bool {
    let has_it = |of: &MemberCluster| {
        let status = of.status.as_ref();
        status.and_then(|status| status.cluster_uid.as_deref()) == Some(cluster_uid)
    };
    let replaces = |new: &MemberCluster, old: &MemberCluster| {
        replaced(new).is_some() && replaced(new) == old.metadata.name.as_deref()
    };
    let age = |of: &MemberCluster| {
        let created = of.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, of.metadata.name.clone())
    };
    if other.metadata.name == member.metadata.name
        || other.metadata.deletion_timestamp.is_some()
        || !has_it(other)
        || replaces(member, other)
    {
        return false;
    }
    replaces(other, member) || !has_it(member) || age(other) < age(member)
}

/// Returns the name of the `MemberCluster` that this one replaces.
pub fn replaced(member: &MemberCluster) -> Option<&str> {
    let annotations = member.metadata.annotations.as_ref()?;
    let name = annotations.get(REPLACES)?.trim();
    is_cluster_name(name).then_some(name)
}

/// Returns the record with the key that redeems a token. The same key may redeem it again. A join replaces every
/// key of the cluster, so a new join string also excludes the holders of the old keys.
///
/// # Errors
/// [`JoinRefusal::Spent`], when another key has redeemed the token.
pub fn redeem(
    member: &Member,
    cluster: &str,
    join: &Join,
    key: KeyRecord,
    now: Timestamp,
) -> Result<MemberRecordSpec, JoinRefusal> {
    let mut record = tokens::record(member, join);
    if record
        .key_fingerprint
        .as_ref()
        .is_some_and(|first| *first != key.fingerprint)
    {
        return Err(JoinRefusal::Spent(cluster.to_owned()));
    }
    record.key_fingerprint = Some(key.fingerprint.clone());
    // A join starts over: keys that were retired before are no longer relevant.
    Ok(MemberRecordSpec {
        tokens: tokens::with(member, record, now),
        identity: Identity {
            keys: vec![key],
            ..Identity::default()
        },
        ..member.record().clone()
    })
}

/// Returns the record of a certified key.
pub fn key_record(key: Fingerprint, now: Timestamp, expires_at: Timestamp) -> KeyRecord {
    KeyRecord {
        fingerprint: key.to_string(),
        issued_at: Time(now),
        expires_at: Time(expires_at),
        ca: None,
    }
}

/// Returns the keys with a new one as the last. Drops expired keys, and the oldest ones above the
/// limit, but never the key of the caller. The keys stay in the order of their creation, on which
/// [`super::keys::used`] relies.
pub fn renewed(
    keys: &[KeyRecord],
    caller: &Fingerprint,
    new: KeyRecord,
    now: Timestamp,
) -> Vec<KeyRecord> {
    let caller = caller.to_string();
    let mut kept: Vec<KeyRecord> = keys
        .iter()
        .filter(|key| {
            key.fingerprint != new.fingerprint
                && (key.expires_at.0 > now || key.fingerprint == caller)
        })
        .cloned()
        .collect();
    while kept.len() >= limits::KEYS {
        let Some(oldest) = kept.iter().position(|key| key.fingerprint != caller) else {
            break;
        };
        kept.remove(oldest);
    }
    kept.push(new);
    kept
}

/// Whether the holder of this verified certificate is the named cluster at this time and may have a
/// session.
///
/// # Errors
/// [`JoinRefusal`], with the cause.
pub fn admit(
    member: Option<&Member>,
    hub_id: &str,
    peer: &PeerCertificate,
    now: Timestamp,
) -> Result<(), JoinRefusal> {
    let (cluster, _) = is_member(member, hub_id, peer)?;
    if is_over(peer, Duration::ZERO, now) {
        return Err(JoinRefusal::CertificateExpired(cluster.to_owned()));
    }
    Ok(())
}

/// Whether the holder of this verified certificate may have a new one. The conditions are those of
/// a session, but the certificate may have expired up to `limit` ago.
///
/// # Errors
/// [`JoinRefusal`], with the cause.
pub fn admit_renewal<'a>(
    member: Option<&'a Member>,
    hub_id: &str,
    peer: &PeerCertificate,
    limit: Duration,
    now: Timestamp,
) -> Result<&'a Member, JoinRefusal> {
    let (cluster, member) = is_member(member, hub_id, peer)?;
    if is_over(peer, limit, now) {
        return Err(JoinRefusal::ExpiredTooLong(cluster.to_owned()));
    }
    Ok(member)
}

/// Whether a certificate ended at least `since` ago.
fn is_over(peer: &PeerCertificate, since: Duration, now: Timestamp) -> bool {
    let end = peer
        .not_after
        .checked_add(since)
        .and_then(|end| Timestamp::try_from(end).ok());
    end.is_some_and(|end| end <= now)
}

/// Returns until when a member that has not connected can still renew a certificate; `None` if it
/// never got one.
pub fn renewable_until(keys: &[KeyRecord], limit: Duration) -> Option<Timestamp> {
    let newest = keys.iter().map(|key| key.expires_at.0).max()?;
    Some(newest.checked_add(limit).unwrap_or(Timestamp::MAX))
}

/// Returns the accepted cluster of a certificate by its name and key, independent of the
/// certificate's validity.
fn is_member<'a, 'b>(
    member: Option<&'a Member>,
    hub_id: &str,
    peer: &'b PeerCertificate,
) -> Result<(&'b str, &'a Member), JoinRefusal> {
    let SpiffeId::Cluster {
        hub_id: of,
        cluster,
        uid,
    } = &peer.id
    else {
        return Err(JoinRefusal::Gone("of another kind".to_owned()));
    };
    let has_name = |member: &&'a Member| member.cluster.metadata.name.as_ref() == Some(cluster);
    let gone = || JoinRefusal::Gone(cluster.clone());
    let member = member
        .filter(has_name)
        .filter(|_| of == hub_id)
        .ok_or_else(gone)?;
    check_wanted(&member.cluster, cluster)?;
    if member.cluster.metadata.uid.as_ref() != Some(uid) {
        return Err(JoinRefusal::Recreated(cluster.clone()));
    }
    let key = peer.key.to_string();
    let keys = &member.record().identity.keys;
    if keys.iter().any(|record| record.fingerprint == key) {
        Ok((cluster, member))
    } else if is_retired(member, &peer.key) {
        Err(JoinRefusal::RetiredKey(cluster.clone()))
    } else {
        Err(JoinRefusal::UnknownKey(cluster.clone()))
    }
}

fn check_wanted(member: &MemberCluster, cluster: &str) -> Result<(), JoinRefusal> {
    if member.metadata.deletion_timestamp.is_some() {
        Err(JoinRefusal::Deleting(cluster.to_owned()))
    } else if !member.spec.accepted {
        Err(JoinRefusal::NotAccepted(cluster.to_owned()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
