//! The election of the active agent: a Lease in the agent's own namespace. One agent of a cluster
//! has it; the others are standby.
//!
//! [`runnel_proto::lease`] decides the holder. The lease ends at an instant of this process's
//! monotonic clock. So a paused or disconnected agent stops writing before another one begins.
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use http::header::RETRY_AFTER;
use http::{Method, Request, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::client::Body;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Error};
use prometheus_client::metrics::gauge::Gauge;
use runnel_proto::lease::{Candidate, Holder, Lead, LeaseName, Step, Timing, holder};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::call::{NotActive, Throttled, call_error};

/// The name of the Lease, in the agent's namespace.
pub const LEASE: &str = "runnel-agent";
/// Each member cluster bears the load of the renewals, so they are rarer than the hub's: twelve per
/// minute.
pub const WITH_STANDBY: Timing = Timing {
    lease: Duration::from_secs(20),
    renew: Duration::from_secs(15),
    interval: RETRY,
    retry: RETRY,
};
/// Without a standby the Lease only keeps a lost agent from writing beside the one that replaces it: one renewal per minute.
pub const SINGLE_REPLICA: Timing = Timing {
    lease: Duration::from_secs(100),
    renew: Duration::from_secs(90),
    interval: Duration::from_secs(60),
    retry: RETRY,
};
/// The interval of retries, and the timeout of a request.
const RETRY: Duration = Duration::from_secs(5);
/// Duration of a watch, in seconds.
const WATCH_SECONDS: u32 = 290;
/// The resource that the span of the watch names.
const LEASES: &str = "leases.coordination.k8s.io";
/// Time that the writes under way may take at the end. After it, the Lease is not released.
const LAST_WRITES: Duration = Duration::from_secs(4);
/// Attempts to release the Lease. A failure only makes the next holder wait.
const TRIES: usize = 3;

/// The state of an agent in the election.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LeaseState {
    /// The Lease is not known yet.
    Starting,
    /// Another agent holds the Lease.
    Standby,
    /// This agent holds the Lease, and may write until this instant.
    Active(Instant),
    /// This agent held the Lease and could not renew it. No other process is known to hold it.
    Lapsed,
}

/// The right to write, for the tasks of an agent. Clones share it. While any clone exists, the
/// Lease is not released.
#[derive(Clone)]
pub struct WriteRight(watch::Receiver<LeaseState>);

impl WriteRight {
    /// Whether a write may be sent now.
    pub fn may_write(&self) -> bool {
        matches!(*self.0.borrow(), LeaseState::Active(until) if Instant::now() < until)
    }

    /// Waits until this agent holds the Lease.
    pub async fn acquired(&mut self) {
        self.reaches(|lease_state| matches!(lease_state, LeaseState::Active(_)))
            .await;
    }

    /// Waits until another agent holds the Lease.
    pub async fn wait_until_standby(&mut self) {
        self.reaches(|lease_state| *lease_state == LeaseState::Standby)
            .await;
    }

    /// Waits for the next gain or loss of the right.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }

    async fn reaches(&mut self, is_it: impl FnMut(&LeaseState) -> bool) {
        if self.0.wait_for(is_it).await.is_err() {
            std::future::pending().await
        }
    }
}

/// One candidate of the election.
pub struct Election {
    leases: Api<Lease>,
    namespace: Arc<str>,
    me: Holder,
    candidate: Candidate,
    /// The last leadership of this agent.
    led: Option<Lead>,
    state: watch::Sender<LeaseState>,
    metric: Gauge,
}

/// The result of a request for the Lease.
enum LeaseResponse {
    /// The Lease, if it exists.
    Lease(Option<Box<Lease>>),
    /// The Lease has changed since it was observed.
    Changed,
    /// Any other failure.
    Failed,
}

impl Election {
    /// Returns a candidate for the Lease of this namespace, and its right to write.
    ///
    /// Without a pod name, the process uses the name of its host, which other processes may have,
    /// too.
    pub fn new(
        client: Client,
        namespace: &str,
        pod_name: Option<String>,
        timing: Timing,
        random: u64,
    ) -> (Self, WriteRight) {
        let is_unique = pod_name.is_some();
        let name = pod_name
            .or_else(|| std::env::var("HOSTNAME").ok())
            .unwrap_or_else(|| LEASE.to_owned());
        let me = Holder {
            name,
            is_unique,
            random: format!("{random:016x}"),
            address: None,
        };
        let candidate = Candidate::new(
            LeaseName {
                name: LEASE,
                component: "agent",
            },
            me.clone(),
            timing,
        );
        let (lease_state, right) = watch::channel(LeaseState::Starting);
        let leases = Api::namespaced(client, namespace);
        (
            Self {
                leases,
                namespace: namespace.into(),
                me,
                candidate,
                led: None,
                state: lease_state,
                metric: Gauge::default(),
            },
            WriteRight(right),
        )
    }

    /// Sets the gauge that shows whether the agent holds the Lease.
    pub fn counted(self, metric: Gauge) -> Self {
        Self { metric, ..self }
    }

    /// Takes part in the election until the drain, and releases the Lease when no task of the agent
    /// can write any more.
    ///
    /// # Errors
    /// If another agent has taken the Lease from this one: the state of this process may be out of
    /// date.
    pub async fn run(mut self, drain: CancellationToken) -> anyhow::Result<()> {
        let mut events = None;
        let span = tracing::info_span!("watch", resource = LEASES);
        loop {
            let step = self.candidate.next(true, Instant::now(), Timestamp::now());
            self.publish()?;
            let Step::Wait(until) = step else {
                tokio::select! {
                    () = drain.cancelled() => break,
                    () = self.act(step) => {}
                }
                continue;
            };
            // Only an agent that waits for the Lease watches it.
            if self.candidate.lead(Instant::now()).is_some() {
                events = None;
            }
            let is_active = self.candidate.lead(Instant::now()).is_some();
            tokio::select! {
                () = drain.cancelled() => break,
                Some(event) = next_event(&mut events, &self.leases).instrument(span.clone()), if !is_active => span.in_scope(|| self.observe(event)),
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
        self.release().await;
        Ok(())
    }

    fn observe(&mut self, event: Result<Event<Lease>, watcher::Error>) {
        match event {
            Ok(Event::Apply(lease) | Event::InitApply(lease)) => {
                self.candidate.received(Some(lease), Instant::now())
            }
            Ok(Event::Delete(_)) => self.candidate.received(None, Instant::now()),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => tracing::debug!(%error, "watch of the Lease failed; retrying"),
        }
    }

    async fn act(&mut self, step: Step) {
        let (sent, params) = (Instant::now(), PostParams::default());
        let answer = match &step {
            Step::Wait(_) => return,
            Step::Read => self.call("get", self.leases.get_opt(LEASE)).await,
            // A PUT creates a Lease, too, and its permission can be limited to this name.
            Step::Create(lease) => {
                self.call("create", async {
                    self.leases.replace(LEASE, &params, lease).await.map(Some)
                })
                .await
            }
            Step::Replace(lease) => {
                self.call("update", async {
                    self.leases.replace(LEASE, &params, lease).await.map(Some)
                })
                .await
            }
            Step::Remove(uid) => {
                let preconditions = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                };
                let params = DeleteParams {
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                self.call("delete", async {
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

    /// Sends one request, with a timeout.
    async fn call(
        &self,
        verb: &str,
        call: impl Future<Output = Result<Option<Lease>, Error>>,
    ) -> LeaseResponse {
        let namespace = &self.namespace;
        match tokio::time::timeout(RETRY, call).await {
            Ok(Ok(lease)) => LeaseResponse::Lease(lease.map(Box::new)),
            // The server refuses a PUT without a version if the Lease exists.
            Ok(Err(Error::Api(status))) if matches!(status.code, 400 | 404 | 409 | 422) => {
                LeaseResponse::Changed
            }
            Ok(Err(Error::Api(status))) if matches!(status.code, 401 | 403) => {
                tracing::error!(
                    status = status.code,
                    "the agent may not {verb} its Lease and writes nothing: grant its ServiceAccount get, list, watch, \
                     create, update and delete on leases.coordination.k8s.io, resourceName {LEASE}, in namespace \
                     {namespace} (the chart's Role does)"
                );
                LeaseResponse::Failed
            }
            Ok(Err(error)) => {
                let status = call_error(error).code();
                tracing::warn!(
                    status,
                    "cannot {verb} the Lease {LEASE} in namespace {namespace}; trying again"
                );
                LeaseResponse::Failed
            }
            Err(_) => {
                tracing::warn!(
                    "cannot {verb} the Lease {LEASE} in namespace {namespace}: no answer in time; trying again"
                );
                LeaseResponse::Failed
            }
        }
    }

    /// Publishes the right to the other tasks.
    fn publish(&mut self) -> anyhow::Result<()> {
        let lead = self.candidate.lead(Instant::now()).cloned();
        if let (None, Some(led), Some(lease)) = (&lead, &self.led, self.candidate.lease())
            && has_other_holder(led, &self.me, lease)
        {
            self.state.send_replace(LeaseState::Lapsed);
            anyhow::bail!(
                "another agent ({}) has taken the Lease {LEASE}: this process ends, and is a standby after its restart",
                holder(lease).unwrap_or("now gone")
            );
        }
        let next = match &lead {
            Some(lead) => LeaseState::Active(lead.valid_until),
            None if self.candidate.belongs_to_another() && self.led.is_none() => {
                LeaseState::Standby
            }
            None if self.led.is_some() => LeaseState::Lapsed,
            None => LeaseState::Starting,
        };
        self.led = lead.or(self.led.take());
        let (candidate, is_new) = (&self.candidate, |known: &LeaseState| {
            std::mem::discriminant(known) != std::mem::discriminant(&next)
        });
        self.metric
            .set(i64::from(matches!(next, LeaseState::Active(_))));
        self.state.send_if_modified(|known| {
            let changed = is_new(known);
            if changed {
                log(&next, candidate);
            }
            *known = next.clone();
            changed
        });
        Ok(())
    }

    /// Releases the Lease, so that the next agent does not have to wait. Not while a write may be
    /// under way.
    async fn release(mut self) {
        if tokio::time::timeout(LAST_WRITES, self.state.closed())
            .await
            .is_err()
        {
            return;
        }
        for _ in 0..TRIES {
            let Some(released) = self.candidate.release() else {
                break;
            };
            let params = PostParams::default();
            match self
                .call("update", async {
                    self.leases
                        .replace(LEASE, &params, &released)
                        .await
                        .map(Some)
                })
                .await
            {
                LeaseResponse::Lease(_) => {
                    tracing::info!("the Lease {LEASE} is released");
                    break;
                }
                // An interrupted renewal may have arrived.
                LeaseResponse::Changed => {
                    match self.call("get", self.leases.get_opt(LEASE)).await {
                        LeaseResponse::Lease(seen) => self
                            .candidate
                            .observe(seen.map(|lease| *lease), Instant::now()),
                        LeaseResponse::Changed | LeaseResponse::Failed => break,
                    }
                }
                LeaseResponse::Failed => break,
            }
        }
    }
}

/// Whether another process has held the Lease since this one did.
fn has_other_holder(led: &Lead, me: &Holder, lease: &Lease) -> bool {
    let uid = lease.metadata.uid.as_deref().unwrap_or_default();
    let is_later = uid != led.epoch || runnel_proto::lease::term(lease) > led.term;
    holder(lease) != Some(me.identity().as_str()) && is_later
}

fn log(lease_state: &LeaseState, candidate: &Candidate) {
    match lease_state {
        LeaseState::Starting => {}
        LeaseState::Active(_) => {
            tracing::info!("this agent holds the Lease {LEASE}: it is the active one")
        }
        LeaseState::Standby => {
            let holder = candidate
                .leader()
                .map(|leader| leader.identity)
                .unwrap_or_default();
            tracing::info!(
                leader = holder,
                "another agent holds the Lease {LEASE}: this one is a standby"
            );
        }
        LeaseState::Lapsed => {
            tracing::warn!("the Lease {LEASE} could not be renewed: nothing is written until it is")
        }
    }
}

type Events = std::pin::Pin<Box<dyn Stream<Item = Result<Event<Lease>, watcher::Error>> + Send>>;

async fn next_event(
    events: &mut Option<Events>,
    leases: &Api<Lease>,
) -> Option<Result<Event<Lease>, watcher::Error>> {
    let config = || {
        watcher::Config::default()
            .fields(&format!("metadata.name={LEASE}"))
            .timeout(WATCH_SECONDS)
    };
    events
        .get_or_insert_with(|| {
            Box::pin(watcher::watcher(leases.clone(), config()).default_backoff())
        })
        .next()
        .await
}

/// Returns a client that sends writes only while the right to write is valid. If the API server
/// throttles a write, the error contains the delay that it asks for.
pub fn guarded(client: Client, right: WriteRight) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, right) = (client.clone(), right.clone());
        async move {
            let writes = request.method() != Method::GET;
            if writes && !right.may_write() {
                return Err(kube::Error::Service(Box::new(NotActive)));
            }
            let response = client.send(request).await?;
            if writes && response.status() == StatusCode::TOO_MANY_REQUESTS {
                let after = response
                    .headers()
                    .get(RETRY_AFTER)
                    .and_then(|after| after.to_str().ok()?.parse().ok());
                return Err(kube::Error::Service(Box::new(Throttled(
                    Duration::from_secs(after.unwrap_or(1)),
                ))));
            }
            Ok(response)
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(uid: &str, holder: &str, term: i32) -> Lease {
        let spec = serde_json::json!({"holderIdentity": holder, "leaseTransitions": term});
        serde_json::from_value(serde_json::json!({"metadata": {"uid": uid}, "spec": spec})).unwrap()
    }

    #[test]
    fn lease_of_another_agent_is_taken_once_expired() {
        let me = Holder {
            name: "a".into(),
            is_unique: true,
            random: "0".into(),
            address: None,
        };
        let led = Lead {
            epoch: "e".into(),
            term: 3,
            valid_until: Instant::now(),
        };
        assert!(has_other_holder(&led, &me, &lease("e", "b_1", 4)));
        assert!(
            has_other_holder(&led, &me, &lease("e", "", 4)),
            "taken and released"
        );
        assert!(
            has_other_holder(&led, &me, &lease("f", "b_1", 1)),
            "removed and created by another"
        );
        assert!(!has_other_holder(&led, &me, &lease("e", "a_0", 4)));
        assert!(
            !has_other_holder(&led, &me, &lease("e", "", 3)),
            "a person took the holder out"
        );
        assert!(
            !has_other_holder(&led, &me, &lease("e", "b_1", 2)),
            "restored from a backup"
        );
    }

    #[test]
    fn right_ends_by_the_clock_without_any_message() {
        let (sender, right) =
            watch::channel(LeaseState::Active(Instant::now() + Duration::from_secs(60)));
        let right = WriteRight(right);
        assert!(right.may_write());
        sender.send_if_modified(|lease_state| {
            *lease_state = LeaseState::Active(Instant::now());
            false
        });
        assert!(!right.may_write());
    }
}
