//! Join and renewal: gives a member its certificates.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use runnel_proto::model::ClusterName;
use runnel_proto::{REASON_METADATA, wire};
use runnel_transport::identity::{
    Fingerprint, IdentityError, PeerCertificate, SignedCertificate, SpiffeId, Token,
    is_cluster_name,
};
use serde_json::json;
use tokio::sync::{Mutex as Turn, Semaphore};
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::ca::HubCas;
use crate::call::{ApiError, FIELD_MANAGER, with_timeout};
use crate::member_records::{read_member, write_record};
use crate::membership::attempts::Attempts;
use crate::membership::decide::{
    JoinRefusal, admit_renewal, check_token, key_record, redeem, renewed, replaced,
};
use crate::membership::keys::with_retired_key_use;
use crate::membership::tokens::{WRONG_SECRETS, with_failed_attempt};
use crate::membership::{CertificateLifetimes, Member};
use crate::object_cache::ObjectCache;
use crate::ordered_lock::LeafMutex;
use runnel_api::{KeyRecord, MemberCluster, MemberRecordSpec};

/// The longest certificate request that is parsed, in bytes.
const REQUEST_LIMIT: usize = 8 * 1024;
/// The number of concurrent joins with unknown token ids. The hub checks them against the API
/// server, because the watch may lag behind a join that was just allowed.
const UNKNOWN_CALLERS: usize = 4;
/// How long such a join may wait before it is checked.
const UNKNOWN_CALLER_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of locks for the writes of joins. The joins of one cluster share a lock, so their
/// writes are in sequence.
const TURNS: usize = 16;
/// The limit of attempts at a write. The hub's own writes of the record may come between a read and a
/// write.
const TRIES: usize = 5;

/// Issues certificates to members.
pub struct Registrar {
    client: Client,
    hub_cas: Arc<HubCas>,
    lifetimes: CertificateLifetimes,
    attempts: LeafMutex<Attempts>,
    unknown_callers: Semaphore,
    turns: [Turn<()>; TURNS],
}

/// The client of a join.
#[derive(Clone, Copy, Debug)]
pub struct JoinClient {
    /// The address of the peer; `None` if another replica forwards the connection.
    pub address: Option<IpAddr>,
    /// Whether the token's id is that of the cluster's join in the watched state.
    pub known: bool,
}

/// The record that a join writes, and the answer after the write.
struct PlannedWrite {
    record: MemberRecordSpec,
    answer: Result<SignedCertificate, JoinRefusal>,
}

/// Why no certificate was issued.
enum Failure {
    Refused(JoinRefusal),
    Request(IdentityError),
    Api(ApiError),
    Busy,
}

impl From<JoinRefusal> for Failure {
    fn from(refusal: JoinRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Self {
        Self::Request(error)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => refused(&refusal),
            Failure::Request(error @ (IdentityError::Request | IdentityError::RequestKey)) => {
                Status::invalid_argument(error.to_string())
            }
            // Other errors are about the hub's own CA, not about the request.
            Failure::Request(error) => {
                tracing::error!(%error, "cannot sign certificates");
                Status::unavailable("the hub cannot sign certificates now: see the hub's log")
            }
            Failure::Api(error) => {
                tracing::warn!(%error, "cannot look up or record a member");
                Status::unavailable("the hub cannot reach its API server now: try again")
            }
            Failure::Busy => Status::unavailable("the hub is busy with this cluster: try again"),
        }
    }
}

/// Returns the gRPC status of a refusal.
pub fn refused(refusal: &JoinRefusal) -> Status {
    let text = refusal.to_string();
    let status = match refusal {
        JoinRefusal::WrongToken(_)
        | JoinRefusal::WrongSecret(_)
        | JoinRefusal::Gone(_)
        | JoinRefusal::Recreated(_)
        | JoinRefusal::UnknownKey(_)
        | JoinRefusal::RetiredKey(_)
        | JoinRefusal::CertificateExpired(_)
        | JoinRefusal::ExpiredTooLong(_) => Status::unauthenticated(text),
        JoinRefusal::Expired(_)
        | JoinRefusal::Spent(_)
        | JoinRefusal::LockedOut(_)
        | JoinRefusal::NotAccepted(_)
        | JoinRefusal::SecondMembership { .. }
        | JoinRefusal::Deleting(_) => Status::failed_precondition(text),
        JoinRefusal::Unclear(_) => Status::unavailable(text),
        JoinRefusal::TooManyTries(_) | JoinRefusal::TooManyTokens(_) => {
            Status::resource_exhausted(text)
        }
    };
    with_reason(status, refusal.code())
}

/// Returns the status for a session whose certificate has ended.
pub(crate) fn expired() -> Status {
    let text = "the certificate of this session has expired: connect with the new one";
    with_reason(Status::unauthenticated(text), "expired")
}

/// Returns the status with a reason of `sync.proto`.
pub(crate) fn with_reason(mut status: Status, reason: &'static str) -> Status {
    status
        .metadata_mut()
        .insert(REASON_METADATA, MetadataValue::from_static(reason));
    status
}

impl Registrar {
    /// Signs with the current CA of `hub_cas`, and records keys in the `MemberRecord`s.
    pub fn new(client: Client, hub_cas: Arc<HubCas>, lives: CertificateLifetimes) -> Self {
        let (attempts, strangers) = (LeafMutex::default(), Semaphore::new(UNKNOWN_CALLERS));
        let turns = std::array::from_fn(|_| Turn::default());
        Self {
            client,
            hub_cas,
            lifetimes: lives,
            attempts,
            unknown_callers: strangers,
            turns,
        }
    }

    /// Returns the validity of a certificate.
    #[must_use]
    pub fn certificate_life(&self) -> std::time::Duration {
        self.lifetimes.certificate
    }

    /// Exchanges a token for a certificate.
    ///
    /// # Errors
    /// The statuses of `sync.proto`; each text has a hint.
    pub async fn join(
        &self,
        caller: JoinClient,
        request: wire::JoinRequest,
        known: &ObjectCache,
    ) -> Result<wire::CertificateResponse, Status> {
        let cluster = request.cluster.clone();
        if !is_cluster_name(&cluster) {
            return Err(Status::invalid_argument(
                "the cluster's name is not valid: use the join string as it is",
            ));
        }
        check_length(&request.certificate_request)?;
        let from = caller.address.filter(|_| !caller.known);
        if from.is_some_and(|from| !self.attempts.lock().allows(from, Instant::now())) {
            return Err(refused(&JoinRefusal::TooManyTries(cluster)));
        }
        let lane = (!caller.known)
            .then(|| tokio::time::timeout(UNKNOWN_CALLER_TIMEOUT, self.unknown_callers.acquire()));
        let lane = match lane {
            Some(lane) => Some(lane.await.map_err(|_| Failure::Busy)?),
            None => None,
        };
        let result = match Token::parse(&request.token) {
            Ok(token) => self.try_join(&token, &request, known).await,
            Err(_) => Err(JoinRefusal::WrongToken(cluster.clone()).into()),
        };
        drop(lane);
        match result {
            Ok((signed, replaced)) => {
                tracing::info!(%cluster, key = %signed.key, "a cluster joined");
                Ok(wire::CertificateResponse {
                    replaced_cluster: replaced.unwrap_or_default(),
                    ..self.response(signed)
                })
            }
            Err(failure) => {
                if let Failure::Refused(refusal) = &failure {
                    let peer = caller.address.map(|address| address.to_string());
                    let peer = peer.as_deref().unwrap_or("by another replica");
                    tracing::warn!(%cluster, peer, reason = %refusal, "a join was refused");
                    if let (JoinRefusal::WrongToken(_), Some(from)) = (refusal, from) {
                        self.attempts.lock().failed(from, Instant::now());
                    }
                }
                Err(failure.into())
            }
        }
    }

    /// Returns the certificate, and the name of the `MemberCluster` that this one replaces.
    async fn try_join(
        &self,
        token: &Token,
        request: &wire::JoinRequest,
        known: &ObjectCache,
    ) -> Result<(SignedCertificate, Option<String>), Failure> {
        let cluster = &*request.cluster;
        let mut turn = None;
        for _ in 0..=TRIES {
            let Some(member) = self.member(cluster, known).await? else {
                return Err(JoinRefusal::WrongToken(cluster.to_owned()).into());
            };
            let first = known.holder(&member.cluster, &request.cluster_uid);
            let step = self.step(&member, token, request, first)?;
            if turn.is_none() {
                // Only requests with a known token id lead to a write. So other requests neither
                // wait here nor delay a join.
                turn = Some(self.turn(cluster).lock().await);
                continue;
            }
            // The hub issues the certificate only after its key is written to the record.
            if self.record(&member, step.record, known).await? {
                let signed = step.answer?;
                self.forget_cluster_uid(&member, known).await?;
                return Ok((signed, replaced(&member.cluster).map(str::to_owned)));
            }
        }
        Err(Failure::Busy)
    }

    /// Computes the new record and the answer for this token and request. `first` is the other
    /// member that has the cluster.
    fn step(
        &self,
        member: &Member,
        token: &Token,
        request: &wire::JoinRequest,
        first: Option<ClusterName>,
    ) -> Result<PlannedWrite, Failure> {
        let cluster = &*request.cluster;
        let now = Timestamp::now();
        match (
            check_token(Some(member), cluster, token, now),
            &member.cluster.spec.join,
        ) {
            (Ok((member, join)), _) => {
                if let Some(first) = first {
                    let (cluster, first) = (cluster.to_owned(), first.to_string());
                    return Err(JoinRefusal::SecondMembership { cluster, first }.into());
                }
                let (signed, record) = self.sign(member, cluster, &request.certificate_request)?;
                Ok(PlannedWrite {
                    record: redeem(member, cluster, join, record, now)?,
                    answer: Ok(signed),
                })
            }
            (Err(refusal @ JoinRefusal::WrongSecret(_)), Some(join)) => {
                let (tokens, count) = with_failed_attempt(member, join, now);
                tracing::warn!(%cluster, token = token.id(), count, "a wrong secret of a token; with {WRONG_SECRETS} it is burnt");
                Ok(PlannedWrite {
                    record: MemberRecordSpec {
                        tokens,
                        ..member.record().clone()
                    },
                    answer: Err(refusal),
                })
            }
            (Err(refusal), _) => Err(refusal.into()),
        }
    }

    fn turn(&self, cluster: &str) -> &Turn<()> {
        let mut hasher = DefaultHasher::new();
        cluster.hash(&mut hasher);
        &self.turns[usize::try_from(hasher.finish() % TURNS as u64).unwrap_or_default()]
    }

    /// Issues a certificate for a new key to the holder of this verified certificate, which may
    /// have expired.
    ///
    /// # Errors
    /// The statuses of `sync.proto`; each text has a hint.
    pub async fn renew(
        &self,
        peer: &PeerCertificate,
        request: wire::RenewRequest,
        known: &ObjectCache,
        or_unclear: impl Fn(JoinRefusal) -> JoinRefusal,
    ) -> Result<wire::CertificateResponse, Status> {
        check_length(&request.certificate_request)?;
        let SpiffeId::Cluster { cluster, .. } = &peer.id else {
            return Err(Status::unauthenticated("the certificate is not a member's"));
        };
        match self
            .try_renew(cluster, peer, &request.certificate_request, known)
            .await
        {
            Ok(signed) => {
                tracing::info!(%cluster, key = %signed.key, "a cluster renewed its certificate");
                Ok(self.response(signed))
            }
            Err(mut failure) => {
                if let Failure::Refused(refusal) = &mut failure {
                    *refusal = or_unclear(refusal.clone());
                    tracing::warn!(%cluster, reason = %refusal, "a renewal was refused");
                    self.record_retired_key_use(refusal, peer, known).await;
                }
                Err(failure.into())
            }
        }
    }

    async fn try_renew(
        &self,
        cluster: &str,
        peer: &PeerCertificate,
        request: &[u8],
        known: &ObjectCache,
    ) -> Result<SignedCertificate, Failure> {
        for _ in 0..TRIES {
            let now = Timestamp::now();
            let hub = self.hub_cas.identity();
            let member = self.member(cluster, known).await?;
            let limit = self.lifetimes.expired_renewal;
            let member = admit_renewal(member.as_ref(), &hub.hub_id, peer, limit, now)?;
            let (signed, key) = self.sign(member, cluster, request)?;
            let mut record = member.record().clone();
            record.identity.keys = renewed(&record.identity.keys, &peer.key, key, now);
            if self.record(member, record, known).await? {
                return Ok(signed);
            }
        }
        Err(Failure::Busy)
    }

    /// Records that a client used a retired key. Best effort: the client retries.
    pub async fn record_retired_key_use(
        &self,
        refusal: &JoinRefusal,
        peer: &PeerCertificate,
        known: &ObjectCache,
    ) {
        let JoinRefusal::RetiredKey(cluster) = refusal else {
            return;
        };
        tracing::error!(%cluster, key = %peer.key, "a replaced key was used: an attacker may have a copy of it");
        for _ in 0..TRIES {
            let Ok(Some(member)) = self.member(cluster, known).await else {
                return;
            };
            let (key, record) = (peer.key.to_string(), member.record().clone());
            let Some(identity) = with_retired_key_use(&record.identity, &key, Timestamp::now())
            else {
                return;
            };
            let record = MemberRecordSpec { identity, ..record };
            if !matches!(self.record(&member, record, known).await, Ok(false)) {
                return;
            }
        }
    }

    async fn member(&self, cluster: &str, known: &ObjectCache) -> Result<Option<Member>, ApiError> {
        with_timeout(
            format!("read member {cluster}"),
            read_member(&self.client, known, cluster),
        )
        .await
    }

    fn sign(
        &self,
        member: &Member,
        cluster: &str,
        request: &[u8],
    ) -> Result<(SignedCertificate, KeyRecord), IdentityError> {
        let uid = member.cluster.metadata.uid.as_deref().unwrap_or_default();
        let now = SystemTime::now();
        let identity = self.hub_cas.identity();
        let signed = identity.ca.sign_member(
            request,
            &identity.hub_id,
            cluster,
            uid,
            now,
            self.lifetimes.certificate,
        )?;
        // Whole seconds, as the API server and certificates store them.
        let time = |time: SystemTime| {
            Timestamp::try_from(time).and_then(|t| Timestamp::from_second(t.as_second()))
        };
        let (issued, end) = (time(now), time(signed.not_after));
        let (Ok(issued), Ok(end)) = (issued, end) else {
            return Err(IdentityError::CaExpired);
        };
        let record = KeyRecord {
            ca: Some(Fingerprint::of_ca(identity.ca.certificate()).to_string()),
            ..key_record(signed.key, issued, end)
        };
        Ok((signed, record))
    }

    /// Writes the record, if it is the one that was read (see [`crate::member_records`]). Returns `false` if that has changed
    /// since.
    async fn record(
        &self,
        member: &Member,
        record: MemberRecordSpec,
        known: &ObjectCache,
    ) -> Result<bool, ApiError> {
        let name = member.cluster.name_any();
        let call = write_record(&self.client, member, record);
        match with_timeout(format!("write MemberRecord {name}"), call).await {
            Ok(written) => {
                known.set_member(name.as_str().into(), written);
                Ok(true)
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the cluster's uid from the status after a join, as another cluster may have joined. The new key is stored
    /// before: the writer reports no uid of a session with a former one. If this fails, the agent repeats its join.
    async fn forget_cluster_uid(
        &self,
        member: &Member,
        known: &ObjectCache,
    ) -> Result<(), Failure> {
        let (name, uid) = (member.cluster.name_any(), &member.cluster.metadata.uid);
        let patch = json!({"metadata": {"uid": uid}, "status": {"clusterUid": null}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let members: Api<MemberCluster> = Api::all(self.client.clone());
        let patch = Patch::Merge(patch);
        let call = members.patch_status(&name, &params, &patch);
        match with_timeout(format!("write the status of MemberCluster {name}"), call).await {
            // Only the watch decides that it is terminating.
            Ok(written) if written.metadata.deletion_timestamp.is_none() => {
                known.set_member(name.as_str().into(), written);
                Ok(())
            }
            // It is deleted, or another one has the name: the key opens nothing.
            Err(error) if !error.is_conflict() && !error.is_not_found() => Err(error.into()),
            _ => Err(Failure::Busy),
        }
    }

    fn response(&self, signed: SignedCertificate) -> wire::CertificateResponse {
        wire::CertificateResponse {
            certificate: signed.der.to_vec().into(),
            ca_certificates: self.hub_cas.certificates(),
            replaced_cluster: String::new(),
        }
    }
}

fn check_length(request: &[u8]) -> Result<(), Status> {
    if request.len() > REQUEST_LIMIT {
        return Err(Status::invalid_argument(
            "the certificate request is too long",
        ));
    }
    Ok(())
}
