//! The gRPC server: join, renew, and the sessions of the agents.
//!
//! The verified client certificate identifies the caller; no field of a request can extend its
//! rights. A session is admitted only while its `MemberCluster` exists with the same uid, is
//! accepted, and has the certificate's key on record. It is cut as soon as this changes.
//!
//! # Files
//! - `epoch`: whether an agent may follow this hub.
//! - `epoch_check`: how far the agent of a session may follow this hub.
//! - `inbound`: handles the frames of an agent, and its reports.
//! - `limits`: limits clients without a session, and what a session reads.
//! - `session`: the stream of one agent.
mod epoch;
mod epoch_check;
mod inbound;
mod limits;
mod session;

pub use session::Calls;

use limits::{Bounds, Call, Peers};
use session::{Running, SessionContext};

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures::Stream;
use jiff::Timestamp;
use kube::Client;
use runnel_proto::REASON_METADATA;
use runnel_proto::model::ClusterName;
use runnel_proto::wire;
use runnel_transport::grpc::runnel_server::Runnel;
use runnel_transport::identity::{PeerCertificate, SpiffeId, Token};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::hub_state::{HubState, LiveSession};
use crate::join::{JoinClient, Registrar, refused};
use crate::lease;
use crate::lease::MemberKey;
use crate::member_records::read_member;
use crate::membership::Member;
use crate::membership::decide::{JoinRefusal, admit, admit_renewal};
use crate::membership::tokens::is_named;
use crate::metrics::HubMetrics;
use crate::object_cache::ObjectCache;
use crate::watch::observe_member;

/// The time limit for a call to wait for a hub that is starting.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The time limit of a read of the API server.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The gRPC service for agents.
pub struct Server {
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    registrar: Registrar,
    metrics: Arc<HubMetrics>,
    client: Client,
    shutdown: CancellationToken,
    numbers: AtomicU64,
    peers: Arc<Peers>,
}

/// The peer of a session, from the verified certificate.
#[derive(Clone)]
struct PeerIdentity {
    cluster: ClusterName,
    certificate: Arc<PeerCertificate>,
    /// The version of the members ([`ObjectCache::members_version`]) at the last successful
    /// admission.
    admitted_at: Arc<AtomicU64>,
}

impl PeerIdentity {
    /// Returns the uid of the `MemberCluster` in the certificate.
    fn uid(&self) -> &str {
        match &self.certificate.id {
            SpiffeId::Cluster { uid, .. } => uid,
            SpiffeId::Hub { .. } => "",
        }
    }

    /// Returns the member and key to which limits apply.
    fn caller(&self) -> MemberKey {
        MemberKey {
            uid: self.uid().into(),
            key: self.certificate.key,
        }
    }
}

impl Server {
    /// Creates a service that ends its sessions when `shutdown` is cancelled.
    pub fn new(
        hub_state: Arc<HubState>,
        object_cache: Arc<ObjectCache>,
        registrar: Registrar,
        metrics: Arc<HubMetrics>,
        client: Client,
        shutdown: CancellationToken,
    ) -> Self {
        let peers = Arc::new(Peers::new(metrics.clone(), registrar.certificate_life()));
        Self {
            hub_state,
            object_cache,
            registrar,
            metrics,
            client,
            shutdown,
            numbers: AtomicU64::new(1),
            peers,
        }
    }

    /// Returns the service for a tonic router.
    pub fn into_service(self) -> Calls {
        Calls::of(self)
    }

    async fn until_ready(&self) -> Result<(), Status> {
        let mut ready = self.hub_state.leadership.ready.subscribe();
        let waited = tokio::time::timeout(START_LIMIT, ready.wait_for(Option::is_some)).await;
        let starting =
            || Status::unavailable("the hub is starting and has not read its rules yet: try again");
        waited.map_err(|_| starting())?.map_err(|_| starting())?;
        Ok(())
    }

    fn identify<T>(&self, request: &Request<T>) -> Result<PeerIdentity, Status> {
        let certificate = request
            .extensions()
            .get::<lease::Caller>()
            .and_then(|caller| caller.peer.certificate.clone());
        let certificate = certificate.ok_or_else(|| {
            Status::unauthenticated("this call needs the client certificate that a join gives")
        })?;
        match &certificate.id {
            SpiffeId::Cluster { cluster, .. } => Ok(PeerIdentity {
                cluster: cluster.as_str().into(),
                certificate,
                admitted_at: Arc::default(),
            }),
            SpiffeId::Hub { .. } => Err(Status::unauthenticated(
                "the client certificate is not a member's",
            )),
        }
    }

    /// Whether the token's id is that of the cluster's join.
    fn is_token_of_join(&self, request: &wire::JoinRequest) -> bool {
        let Ok(token) = Token::parse(&request.token) else {
            return false;
        };
        let cluster = ClusterName::from(request.cluster.as_str());
        self.object_cache.with_member(&cluster, |member| {
            let join = member.and_then(|member| member.cluster.spec.join.as_ref());
            join.is_some_and(|join| is_named(join, &token))
        })
    }

    /// Checks that the member is admitted. The watch may lag behind a join, so a refusal is checked
    /// with the API server itself.
    async fn admit(&self, identity: &PeerIdentity) -> Result<(), Status> {
        if admission(&self.hub_state, &self.object_cache, identity).is_ok() {
            return Ok(());
        }
        let caller = identity.caller();
        if let Some(status) = self.peers.refused_before(
            Call::Session(identity.certificate.not_after),
            &caller,
            Instant::now(),
        ) {
            return Err(status);
        }
        let read = read_member(&self.client, &self.object_cache, identity.cluster.as_str());
        match tokio::time::timeout(LOOKUP_TIMEOUT, read).await {
            Ok(Ok(Some(member))) => {
                if let Some(record) = member.stored() {
                    observe_member(record.clone(), &self.hub_state, &self.object_cache);
                }
                let cluster = Arc::unwrap_or_clone(member.cluster);
                observe_member(cluster, &self.hub_state, &self.object_cache);
            }
            Ok(Ok(None)) => {}
            // A member that cannot be read is not revoked, and its keys are unknown.
            _ => {
                return Err(Status::unavailable(
                    "the hub cannot reach its API server now: try again",
                ));
            }
        }
        let Err(refusal) = admission(&self.hub_state, &self.object_cache, identity) else {
            return Ok(());
        };
        let status = refused(&refusal);
        self.peers.refuse(
            Call::Session(identity.certificate.not_after),
            &caller,
            &status,
            Instant::now(),
        );
        if let Some(skipped) = self.peers.line(&caller.uid, Instant::now()) {
            tracing::warn!(cluster = %identity.cluster, why = %refusal, skipped, "a member was refused");
        }
        // Only the leader writes.
        if self.hub_state.leadership.leads() {
            self.registrar
                .record_retired_key_use(&refusal, &identity.certificate, &self.object_cache)
                .await;
        }
        Err(status)
    }

    /// Checks that the certificate of a member may be renewed now. A refusal of an unknown member
    /// costs a request to the API server, so it is repeated without one for a while.
    fn may_renew(&self, identity: &PeerIdentity, caller: &MemberKey) -> Result<(), Status> {
        let now = Instant::now();
        if let Some(status) =
            self.peers
                .refused_before(Call::Renew(identity.certificate.not_after), caller, now)
        {
            return Err(status);
        }
        let (hub_id, limit) = (
            &self.hub_state.settings.hub_id,
            self.hub_state.settings.expired_renewal_limit,
        );
        let is_known = self.object_cache.with_member(&identity.cluster, |member| {
            admit_renewal(
                member,
                hub_id,
                &identity.certificate,
                limit,
                Timestamp::now(),
            )
            .is_ok()
        });
        if is_known && !self.peers.may_renew(caller, now) {
            let text = format!(
                "the certificate of cluster {} was renewed just now: try again in a minute",
                identity.cluster
            );
            return Err(Status::resource_exhausted(text));
        }
        Ok(())
    }

    /// Makes the connection of a session end with its admission and its certificate, even while the
    /// session waits.
    fn attach_guard(&self, guard: &lease::ConnectionGuard, identity: PeerIdentity) {
        let (hub_state, object_cache) = (self.hub_state.clone(), self.object_cache.clone());
        guard.guard_with(move || admission(&hub_state, &object_cache, &identity).is_ok());
    }
}

fn not_leading() -> Status {
    Status::unavailable("this replica of the hub does not lead any more: connect again")
}

/// Checks that a session with this identity is allowed now. Every connection is checked each
/// second, so the member is read only after a change of some member.
fn admission(
    hub_state: &HubState,
    object_cache: &ObjectCache,
    identity: &PeerIdentity,
) -> Result<(), JoinRefusal> {
    let version = object_cache.members_version();
    let is_valid = identity.certificate.not_after > SystemTime::now();
    if is_valid && identity.admitted_at.load(Ordering::Acquire) == version {
        return Ok(());
    }
    let hub_id = &hub_state.settings.hub_id;
    object_cache
        .with_member(&identity.cluster, |member| {
            admit(member, hub_id, &identity.certificate, Timestamp::now())
        })
        .map_err(|refusal| if_revoked(refusal, hub_state, object_cache, identity))?;
    identity.admitted_at.store(version, Ordering::Release);
    Ok(())
}

/// Returns the refusal, unless it is not known whether the departure of the member revokes its cluster.
fn if_revoked(
    refusal: JoinRefusal,
    hub_state: &HubState,
    object_cache: &ObjectCache,
    identity: &PeerIdentity,
) -> JoinRefusal {
    let uid = identity.uid();
    let has_uid = |member: Option<&Member>| {
        member.is_some_and(|member| {
            let metadata = &member.cluster.metadata;
            metadata.uid.as_deref() == Some(uid) && metadata.deletion_timestamp.is_none()
        })
    };
    let is_revoked = || {
        // The API server knows more than the watch, for which the departure may not count.
        if object_cache.with_member(&identity.cluster, has_uid) {
            return false;
        }
        let percent = hub_state.index.read().fleet_guard().terms.fleet.percent;
        let members = object_cache.member_count();
        object_cache.departures().is_revoked(uid, members, percent)
    };
    if refusal.is_departure() && !is_revoked() {
        JoinRefusal::Unclear(identity.cluster.to_string())
    } else {
        refusal
    }
}

#[tonic::async_trait]
impl Runnel for Server {
    async fn join(
        &self,
        request: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::CertificateResponse>, Status> {
        // A join writes, and only the leader may write.
        self.until_ready().await?;
        self.hub_state
            .leadership
            .current_lead()
            .ok_or_else(not_leading)?;
        let address = request
            .extensions()
            .get::<lease::Caller>()
            .map(|caller| caller.peer.address.ip());
        let address = address.filter(|address| !address.is_unspecified());
        let request = request.into_inner();
        let caller = JoinClient {
            address,
            known: self.is_token_of_join(&request),
        };
        self.registrar
            .join(caller, request, &self.object_cache)
            .await
            .map(Response::new)
    }

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::CertificateResponse>, Status> {
        self.until_ready().await?;
        let identity = self.identify(&request)?;
        let history_token = epoch::history_token_of_request(&self.hub_state, request.metadata());
        self.hub_state
            .leadership
            .current_lead()
            .ok_or_else(not_leading)?;
        let caller = identity.caller();
        self.may_renew(&identity, &caller)?;
        // The registrar reads the member itself, from the API server.
        let or_unclear =
            |refusal| if_revoked(refusal, &self.hub_state, &self.object_cache, &identity);
        let renewed = self
            .registrar
            .renew(
                &identity.certificate,
                request.into_inner(),
                &self.object_cache,
                or_unclear,
            )
            .await;
        // The member's status reports a certificate that is too old for a renewal.
        self.hub_state
            .queues
            .dirty_members
            .add([identity.cluster.clone()]);
        if let Err(status) = &renewed {
            self.peers.refuse(
                Call::Renew(identity.certificate.not_after),
                &caller,
                status,
                Instant::now(),
            );
        }
        renewed.map(Response::new).map_err(|status| {
            if status.metadata().contains_key(REASON_METADATA) {
                self.refused_or_forgotten(&identity, history_token.as_ref(), status)
            } else {
                status
            }
        })
    }

    type SessionStream = Pin<Box<dyn Stream<Item = Result<wire::HubFrame, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<wire::AgentFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        self.until_ready().await?;
        let identity = self.identify(&request)?;
        let history_token = epoch::history_token_of_request(&self.hub_state, request.metadata());
        if let Err(status) = self.admit(&identity).await {
            return Err(self.refused_or_forgotten(&identity, history_token.as_ref(), status));
        }
        let lead = self
            .hub_state
            .leadership
            .current_lead()
            .ok_or_else(not_leading)?;
        let caller = request.extensions().get::<lease::Caller>();
        let guard = caller.map(|caller| caller.guard.clone());
        let meter = caller
            .map(|caller| caller.peer.meter.clone())
            .unwrap_or_default();
        if let Some(guard) = &guard {
            self.attach_guard(guard, identity.clone());
        }
        let stream = self.peers.stream(identity.caller());
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let context = SessionContext {
            hub_state: self.hub_state.clone(),
            object_cache: self.object_cache.clone(),
            metrics: self.metrics.clone(),
            peers: self.peers.clone(),
            identity,
            live: Arc::new(LiveSession::new(number)),
        };
        let running = Running::new(
            context,
            (lead, history_token),
            Bounds::new(Some(stream), guard),
            (
                request.into_inner(),
                session::signals(&self.hub_state, meter, self.shutdown.clone()),
            ),
        );
        Ok(Response::new(Box::pin(running.frames())))
    }
}
