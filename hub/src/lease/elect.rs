//! Takes part in the election: reads, watches and writes the Lease, and publishes the leader.
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::hub_state::HubState;
use runnel_hub_core::lease::{Candidate, Holder, LEASE, Lead, Step, Timing};

/// The server ends a watch after this long.
const WATCH_SECONDS: u32 = 290;
/// The resource that the span of the watch names.
const LEASES: &str = "leases.coordination.k8s.io";
/// The time limit for the sessions to end before the Lease is released.
const SESSION_END_TIMEOUT: Duration = Duration::from_millis(1500);
/// The time in which the last frames of the sessions are sent.
const FLUSH: Duration = Duration::from_millis(100);
/// The interval of the check whether the sessions have ended.
const SESSION_END_POLL: Duration = Duration::from_millis(10);
/// The limit of attempts to release the Lease. If all fail, the next leader waits for its expiry.
const TRIES: usize = 3;
/// The time limit for an ending process to release the Lease at a slow API server. It is less than
/// the 30 seconds after which a pod is killed.
pub const HAND_OVER_LIMIT: Duration = Duration::from_secs(20);

/// Returns the identity of this process in the Lease. Without `name` it uses the host name, which
/// other processes may share.
///
/// # Errors
/// When the operating system returns no random numbers.
pub fn holder(
    name: Option<String>,
    address: Option<String>,
) -> Result<Holder, ring::error::Unspecified> {
    let mut random = [0; 8];
    SystemRandom::new().fill(&mut random)?;
    let random = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let is_unique = name.is_some();
    let name = name
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "runnel-hub".to_owned());
    Ok(Holder {
        name,
        is_unique,
        random,
        address,
    })
}

/// The participation of one process in the election.
pub struct Election {
    leases: Api<Lease>,
    candidate: Candidate,
    timing: Timing,
    hub_state: Arc<HubState>,
}

/// The result of a request about the Lease.
enum LeaseResponse {
    /// The Lease, if it exists.
    Lease(Option<Box<Lease>>),
    /// The Lease has changed since it was observed.
    Changed,
    /// Any other error.
    Failed,
}

impl Election {
    /// Creates a participant of the election over the Lease in this namespace.
    pub fn new(
        client: Client,
        namespace: &str,
        me: Holder,
        timing: Timing,
        hub_state: Arc<HubState>,
    ) -> Self {
        let leases = Api::namespaced(client, namespace);
        Self {
            leases,
            candidate: Candidate::new(me, timing),
            timing,
            hub_state,
        }
    }

    /// Reads the Lease before anything is listed. If this process takes it as it was then, its lists are new enough to lead
    /// with: nothing was sent by another since.
    pub async fn read_first(&mut self) {
        self.act(Step::Read).await;
        self.hub_state.leadership.relist_barrier.lists_begin();
    }

    /// Participates until `shutdown`, and then releases the Lease. Leads only when `known` reports
    /// that the process has complete lists.
    pub async fn run(mut self, mut known: watch::Receiver<bool>, shutdown: CancellationToken) {
        let mut events = std::pin::pin!(events(self.leases.clone()));
        let span = tracing::info_span!("watch", resource = LEASES);
        loop {
            let eligible = *known.borrow_and_update();
            let step = self
                .candidate
                .next(eligible, Instant::now(), Timestamp::now());
            self.publish();
            let Step::Wait(until) = step else {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = self.act(step) => {}
                }
                continue;
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(event) = events.next().instrument(span.clone()) => span.in_scope(|| self.received(event)),
                Ok(()) = known.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
        self.hand_over().await;
    }

    fn received(&mut self, event: Result<Event<Lease>, watcher::Error>) {
        match event {
            Ok(Event::Apply(lease) | Event::InitApply(lease)) => {
                self.candidate.received(Some(lease), Instant::now())
            }
            Ok(Event::Delete(_)) => self.candidate.received(None, Instant::now()),
            Ok(Event::Init | Event::InitDone) => {}
            // The reads continue without the watch, and report errors.
            Err(error) => tracing::debug!(%error, "watch of the Lease failed; retrying"),
        }
    }

    async fn act(&mut self, step: Step) {
        let sent = Instant::now();
        let params = PostParams::default();
        let answer = match &step {
            Step::Wait(_) => return,
            Step::Read => self.send_request("read", self.leases.get_opt(LEASE)).await,
            // A PUT creates a Lease, too, and its permission can be limited to this name.
            Step::Create(lease) => {
                self.send_request("create", async {
                    self.leases.replace(LEASE, &params, lease).await.map(Some)
                })
                .await
            }
            Step::Replace(lease) => {
                self.send_request("update", async {
                    self.leases.replace(LEASE, &params, lease).await.map(Some)
                })
                .await
            }
            Step::Remove(uid) => {
                tracing::warn!(
                    "the terms of the Lease are used up: it is removed, and the next one begins a new epoch"
                );
                let preconditions = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                };
                let params = DeleteParams {
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                self.send_request("delete", async {
                    self.leases.delete(LEASE, &params).await.map(|_| None)
                })
                .await
            }
        };
        let now = Instant::now();
        match answer {
            LeaseResponse::Lease(Some(lease)) if step != Step::Read => {
                self.candidate.record_write(*lease, sent, now)
            }
            LeaseResponse::Lease(None) if step != Step::Read => self.candidate.failed(true, now),
            LeaseResponse::Lease(seen) => self.candidate.observe(seen.map(|lease| *lease), now),
            LeaseResponse::Changed => self.candidate.failed(true, now),
            LeaseResponse::Failed => self.candidate.failed(false, now),
        }
    }

    /// Sends one request. Its time limit is a part of the time in which a renewal must succeed.
    async fn send_request(
        &self,
        verb: &str,
        call: impl Future<Output = Result<Option<Lease>, kube::Error>>,
    ) -> LeaseResponse {
        match tokio::time::timeout(self.timing.renew / 2, call).await {
            Ok(Ok(lease)) => LeaseResponse::Lease(lease.map(Box::new)),
            // The server refuses a PUT without a version if the Lease exists.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 400 | 404 | 409 | 422) => {
                LeaseResponse::Changed
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                let why = &status.message;
                tracing::error!(
                    verb,
                    "may not {verb} the Lease {LEASE}: give the hub get, list, watch, create, update and delete on it ({why})"
                );
                LeaseResponse::Failed
            }
            Ok(Err(error)) => {
                tracing::warn!(verb, %error, "cannot {verb} the Lease {LEASE}; trying again");
                LeaseResponse::Failed
            }
            Err(_) => {
                tracing::warn!(
                    verb,
                    "cannot {verb} the Lease {LEASE}: the API server did not answer in time; trying again"
                );
                LeaseResponse::Failed
            }
        }
    }

    fn publish(&self) {
        let lead = self.candidate.lead(Instant::now()).cloned();
        self.publish_position(lead.as_ref());
        // The position must be set before anything is sent in this term.
        *self.hub_state.leadership.leader_position.write() =
            self.candidate.position(Instant::now());
        self.hub_state.leadership.relist_barrier.renewed(
            lead.as_ref()
                .and_then(|lead| lead.valid_until.checked_sub(self.timing.renew)),
        );
        let free_since = self.candidate.free_since();
        self.hub_state.leadership.relist_barrier.free(free_since);
        self.hub_state.set_lead(lead);
        let leader = self.candidate.leader();
        self.hub_state.leadership.leader.send_if_modified(|known| {
            let changed = *known != leader;
            if changed && let Some(leader) = &leader {
                tracing::info!(
                    leader = leader.identity,
                    address = leader.address,
                    "another replica leads; this one is a standby"
                );
            }
            *known = leader;
            changed
        });
    }

    fn publish_position(&self, lead: Option<&Lead>) {
        let before = self.hub_state.leadership.lead.borrow().clone();
        match (before, lead) {
            (Some(before), Some(lead)) if before.is_same(lead) => {}
            (_, Some(lead)) => {
                tracing::info!(epoch = lead.epoch, term = lead.term, "this replica leads")
            }
            (Some(_), None) => {
                tracing::warn!("this replica does not lead any more, and is a standby")
            }
            (None, None) => {}
        }
    }

    /// Releases the Lease when the sessions have ended, so that another replica need not wait.
    async fn hand_over(mut self) {
        if self.candidate.lead(Instant::now()).is_none() {
            return;
        }
        let over = tokio::time::Instant::now() + HAND_OVER_LIMIT / 2;
        let session_end_deadline = tokio::time::Instant::now() + SESSION_END_TIMEOUT;
        while !self.hub_state.sessions.is_empty()
            && tokio::time::Instant::now() < session_end_deadline
        {
            tokio::time::sleep(SESSION_END_POLL).await;
        }
        tokio::time::sleep(FLUSH).await;
        for _ in 0..TRIES {
            if tokio::time::Instant::now() >= over {
                break;
            }
            let Some(released) = self.candidate.release() else {
                break;
            };
            self.publish();
            let params = PostParams::default();
            match self
                .send_request("update", async {
                    self.leases
                        .replace(LEASE, &params, &released)
                        .await
                        .map(Some)
                })
                .await
            {
                LeaseResponse::Lease(_) => {
                    tracing::info!("the Lease is given away");
                    break;
                }
                // A renewal that was canceled may have reached the API server.
                LeaseResponse::Changed => {
                    match self.send_request("read", self.leases.get_opt(LEASE)).await {
                        LeaseResponse::Lease(seen) => self
                            .candidate
                            .observe(seen.map(|lease| *lease), Instant::now()),
                        LeaseResponse::Changed | LeaseResponse::Failed => break,
                    }
                }
                LeaseResponse::Failed => break,
            }
        }
        self.hub_state.set_lead(None);
    }
}

fn events(leases: Api<Lease>) -> impl Stream<Item = Result<Event<Lease>, watcher::Error>> + Send {
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={LEASE}"))
        .timeout(WATCH_SECONDS);
    watcher::watcher(leases, config).default_backoff()
}
