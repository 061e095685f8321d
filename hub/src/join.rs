//! Join and renewal: gives a member its certificates.
pub mod attempts;
pub mod decide;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use runnel_proto::identity::{IdentityError, PeerCertificate, SignedCertificate, SpiffeId, Token, is_cluster_name};
use runnel_proto::{REASON_METADATA, wire};
use serde_json::{Value, json};
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::authority::{ApiError, HubIdentity, within};
use crate::crd::MemberCluster;
use attempts::Attempts;
use decide::{Refusal, admit_renewal, check_token, key_record, keys, redeem, renewed};

/// How long what a member gets is good.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    /// How long a certificate lives; the agent renews it at half of that.
    pub certificate: Duration,
    /// How long after its end it can still be renewed.
    pub expired_renewal: Duration,
}

impl Default for Lives {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self { certificate: day, expired_renewal: 30 * day }
    }
}

/// The longest certificate request that is looked at.
const REQUEST_LIMIT: usize = 8 * 1024;
/// The hub's own status writes may come between reading and writing.
const TRIES: usize = 5;

/// Gives certificates to members.
pub struct Registrar {
    members: Api<MemberCluster>,
    identity: Arc<HubIdentity>,
    lives: Lives,
    attempts: Mutex<Attempts>,
}

/// Why no certificate was given.
enum Failure {
    Refused(Refusal),
    Request(IdentityError),
    Api(ApiError),
    Busy,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
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
            // The rest is about the hub's own authority, not about the request.
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

/// What a refusal is called in gRPC.
pub fn refused(refusal: &Refusal) -> Status {
    let text = refusal.to_string();
    let mut status = match refusal {
        Refusal::WrongToken(_)
        | Refusal::Gone(_)
        | Refusal::UnknownKey(_)
        | Refusal::CertificateExpired(_)
        | Refusal::ExpiredTooLong(_) => Status::unauthenticated(text),
        Refusal::Expired(_) | Refusal::Spent(_) | Refusal::NotAccepted(_) | Refusal::Deleting(_) => {
            Status::failed_precondition(text)
        }
        Refusal::TooManyTries(_) => Status::resource_exhausted(text),
    };
    status.metadata_mut().insert(REASON_METADATA, MetadataValue::from_static(refusal.code()));
    status
}

impl Registrar {
    /// Signs with this identity, and records keys in the status of the `MemberCluster`s.
    pub fn new(client: Client, identity: Arc<HubIdentity>, lives: Lives) -> Self {
        Self { members: Api::all(client), identity, lives, attempts: Mutex::default() }
    }

    /// Exchanges a token for a certificate; `from` is where the caller is.
    ///
    /// # Errors
    /// As `sync.proto` says; each text says what to do.
    pub async fn join(&self, from: IpAddr, request: wire::JoinRequest) -> Result<wire::CertificateResponse, Status> {
        let cluster = request.cluster;
        if !is_cluster_name(&cluster) {
            return Err(Status::invalid_argument("the cluster's name is not valid: use the join string as it is"));
        }
        check_length(&request.certificate_request)?;
        if !self.attempts.lock().allows(&cluster, from, Instant::now()) {
            return Err(refused(&Refusal::TooManyTries(cluster)));
        }
        let token = Token::parse(&request.token);
        let result = match &token {
            Ok(token) => self.try_join(&cluster, token, &request.certificate_request).await,
            Err(_) => Err(Refusal::WrongToken(cluster.clone()).into()),
        };
        match result {
            Ok(signed) => {
                tracing::info!(%cluster, key = %signed.key, "a cluster joined");
                Ok(self.response(signed))
            }
            Err(failure) => {
                if let Failure::Refused(refusal) = &failure {
                    tracing::warn!(%cluster, peer = %from, reason = %refusal, "a join was refused");
                    if matches!(refusal, Refusal::WrongToken(_)) {
                        self.attempts.lock().failed(&cluster, from, Instant::now());
                    }
                }
                Err(failure.into())
            }
        }
    }

    async fn try_join(&self, cluster: &str, token: &Token, request: &[u8]) -> Result<SignedCertificate, Failure> {
        for _ in 0..TRIES {
            let member = self.member(cluster).await?;
            let (member, join) = check_token(member.as_ref(), cluster, token, Timestamp::now())?;
            let (signed, record) = self.sign(member, cluster, request)?;
            let redeemed = redeem(member, cluster, join, record)?;
            let status = json!({"join": redeemed.join, "identity": {"keys": redeemed.keys}});
            // The certificate leaves the hub only when the key that it is for stands in the status.
            if self.record(member, cluster, status).await? {
                return Ok(signed);
            }
        }
        Err(Failure::Busy)
    }

    /// Gives the holder of this verified certificate, which may have expired, one for a new key.
    ///
    /// # Errors
    /// As `sync.proto` says; each text says what to do.
    pub async fn renew(
        &self,
        peer: &PeerCertificate,
        request: wire::RenewRequest,
    ) -> Result<wire::CertificateResponse, Status> {
        check_length(&request.certificate_request)?;
        let SpiffeId::Cluster { cluster, .. } = &peer.id else {
            return Err(Status::unauthenticated("the certificate is not a member's"));
        };
        match self.try_renew(cluster, peer, &request.certificate_request).await {
            Ok(signed) => {
                tracing::info!(%cluster, key = %signed.key, "a cluster renewed its certificate");
                Ok(self.response(signed))
            }
            Err(failure) => {
                if let Failure::Refused(refusal) = &failure {
                    tracing::warn!(%cluster, reason = %refusal, "a renewal was refused");
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
    ) -> Result<SignedCertificate, Failure> {
        for _ in 0..TRIES {
            let now = Timestamp::now();
            let member = self.member(cluster).await?;
            let limit = self.lives.expired_renewal;
            let member = admit_renewal(member.as_ref(), &self.identity.hub_id, peer, limit, now)?;
            let (signed, record) = self.sign(member, cluster, request)?;
            let keys = renewed(keys(member), &peer.key, record, now);
            if self.record(member, cluster, json!({"identity": {"keys": keys}})).await? {
                return Ok(signed);
            }
        }
        Err(Failure::Busy)
    }

    async fn member(&self, cluster: &str) -> Result<Option<MemberCluster>, ApiError> {
        within(format!("read MemberCluster {cluster}"), self.members.get_opt(cluster)).await
    }

    fn sign(
        &self,
        member: &MemberCluster,
        cluster: &str,
        request: &[u8],
    ) -> Result<(SignedCertificate, crate::crd::KeyRecord), IdentityError> {
        let uid = member.metadata.uid.as_deref().unwrap_or_default();
        let now = SystemTime::now();
        let identity = &self.identity;
        let signed =
            identity.authority.sign_member(request, &identity.hub_id, cluster, uid, now, self.lives.certificate)?;
        // Seconds, as the API server stores and the certificate says.
        let time = |time: SystemTime| Timestamp::try_from(time).and_then(|t| Timestamp::from_second(t.as_second()));
        let (issued, end) = (time(now), time(signed.not_after));
        let (Ok(issued), Ok(end)) = (issued, end) else { return Err(IdentityError::AuthorityExpired) };
        let record = key_record(signed.key, issued, end);
        Ok((signed, record))
    }

    /// Writes to the status of exactly the object that was read; `false`: it has changed since.
    async fn record(&self, member: &MemberCluster, cluster: &str, status: Value) -> Result<bool, ApiError> {
        let (version, uid) = (&member.metadata.resource_version, &member.metadata.uid);
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version, "uid": uid}, "status": status}));
        let params = PatchParams { field_manager: Some("runnel-hub".to_owned()), ..PatchParams::default() };
        let call = self.members.patch_status(cluster, &params, &patch);
        match within(format!("record the key of MemberCluster {cluster}"), call).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn response(&self, signed: SignedCertificate) -> wire::CertificateResponse {
        let authority = self.identity.authority.certificate();
        wire::CertificateResponse {
            certificate: signed.der.to_vec().into(),
            authorities: vec![authority.to_vec().into()],
        }
    }
}

fn check_length(request: &[u8]) -> Result<(), Status> {
    if request.len() > REQUEST_LIMIT {
        return Err(Status::invalid_argument("the certificate request is too long"));
    }
    Ok(())
}
