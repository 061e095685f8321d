//! Assembles the agent: first its prerequisites, then the tasks that main spawns.
use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::Api;
use runnel_proto::lease::Timing;
use runnel_proto::model::Hello;
use runnel_proto::{PROTOCOL_MAX, PROTOCOL_MIN};
use runnel_transport::identity::JoinStringError;
use runnel_transport::ops::{DRAIN_LIMIT, Liveness, PendingPart, WatchTimes};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::apply::{self, Member};
use crate::call::with_timeout;
use crate::event_loop::EventLoop;
use crate::events;
use crate::join::{self, JoinFileError};
use crate::kinds::KindRegistry;
use crate::lease::guarded;
use crate::lease::{Election, WriteRight};
use crate::link::{HistoryTokenStore, Link};
use crate::metrics::Metrics;
use crate::newest_object::NewestObject;
use crate::policy_file::PolicyFile;
use crate::store::{Identity, Store};
use crate::watch::{self, Watches};
use runnel_agent_core::backoff::{Backoff, Jitter};
use runnel_agent_core::classify::CallError;
use runnel_agent_core::desired::AgentLocation;
use runnel_agent_core::leader_fence::Fence;
use runnel_agent_core::policy::Policy;
use runnel_agent_core::reconciler::{PARALLEL, Reconciler, Setup};
use runnel_agent_core::seal::Sealer;

/// Backoff while the member's API server does not answer.
const WAIT: Backoff = Backoff {
    base: Duration::from_millis(500),
    limit: Duration::from_secs(10),
};

/// A task of the agent. It runs until the drain, or as long as the tasks that it serves.
pub type Task = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// The settings of the agent.
pub struct Settings {
    /// The client for the member cluster. It must not retry by itself.
    pub client: Client,
    /// The client for the Lease. It shares no connection with the other, because a connection is served by the threads that open it.
    pub lease_client: Client,
    /// The runtime of the tasks that compute. The other tasks run on the caller's.
    pub workers: Handle,
    /// The agent's namespace.
    pub namespace: String,
    /// The name of the agent's pod, which no other process has at the same time.
    pub pod_name: Option<String>,
    /// The times of the election.
    pub lease_timing: Timing,
    /// The path of the join string.
    pub join_file: Option<PathBuf>,
    /// The path of this cluster's policy. Without it, the default policy applies.
    pub policy_file: Option<PathBuf>,
    /// Whether everything is allowed without a policy file.
    pub allow_everything: bool,
    /// The metrics of the agent.
    pub metrics: Metrics,
    /// The times at which the client's watches last received data.
    pub watches: WatchTimes,
    /// Whether the tasks move.
    pub liveness: Liveness,
    /// Ends the agent in order.
    pub drain: CancellationToken,
}

/// Waits for the API server and for the Lease, joins the hub if necessary, and returns the tasks to
/// spawn. An agent that waits for the Lease is ready, because it may take over at any time.
///
/// # Errors
/// One sentence with a hint, for permanent failures.
pub async fn boot(
    settings: Settings,
    ready: PendingPart,
) -> anyhow::Result<Vec<(&'static str, Task)>> {
    let (policy_file, policy) = match settings.policy_file.clone() {
        Some(path) => {
            let (file, policy) = PolicyFile::open(path).await?;
            (Some(file), policy)
        }
        None if settings.allow_everything => {
            tracing::warn!("the hub may do everything in this cluster (--allow-everything)");
            (None, Policy::open())
        }
        None => (None, Policy::default()),
    };
    let (drain, stop) = (settings.drain.clone(), settings.drain.child_token());
    let (election, right) = Election::new(
        settings.lease_client.clone(),
        &settings.namespace,
        settings.pod_name.clone(),
        settings.lease_timing,
        seed()?,
    );
    let election = election.counted(settings.metrics.active.clone());
    let mut lease: Task = Box::pin(election.run(stop.clone()));
    let booted = {
        let booted = active(settings, ready, right, (policy_file, Arc::new(policy)));
        tokio::select! {
            booted = booted => booted,
            ended = &mut lease => return ended.map(|()| vec![]),
            // Dropping the unfinished work allows the release of the Lease.
            () = drain.cancelled() => Ok(vec![]),
        }
    };
    match booted {
        Ok(mut tasks) if !tasks.is_empty() => {
            tasks.push(("lease", lease));
            Ok(tasks)
        }
        // The next process does not have to wait for the Lease.
        ended => {
            stop.cancel();
            let _ = tokio::time::timeout(DRAIN_LIMIT, lease).await;
            ended
        }
    }
}

/// Returns the tasks of the active agent.
async fn active(
    settings: Settings,
    ready: PendingPart,
    right: WriteRight,
    (policy_file, policy): (Option<PolicyFile>, Arc<Policy>),
) -> anyhow::Result<Vec<(&'static str, Task)>> {
    let early = join::read_join_string(settings.join_file.as_deref());
    if let Err(JoinFileError::Malformed { source, path }) = &early
        && *source != JoinStringError::Empty
    {
        tracing::error!("{path}: {source}; an agent that has joined already continues without it");
    }
    let settings = Settings {
        client: guarded(settings.client, right.clone()),
        ..settings
    };
    let mut jitter = Jitter::new(seed()?);
    let mut other = Jitter::new(seed()?);
    let ((cluster_uid, kubernetes_version), ready) = tokio::join!(
        retry_until_ok("read this cluster's uid", &mut other, || cluster(
            &settings.client
        )),
        acquired(right.clone(), ready)
    );
    let store = Store::new(settings.client.clone(), &settings.namespace);
    let stored = retry_until_ok("read its identity", &mut jitter, || store.identity()).await;
    let identity = match stored {
        Some(identity) if identity.certificate.is_some() => identity,
        stored => {
            let string = early.map_err(anyhow::Error::from)?;
            join::join(
                &store,
                settings.join_file.as_deref(),
                string,
                stored,
                &cluster_uid,
                &mut jitter,
            )
            .await?
        }
    };
    let remembered = retry_until_ok("read what it remembers", &mut jitter, || {
        store.history_token()
    })
    .await;
    let history_token = HistoryTokenStore::new(store.clone(), remembered);
    let (hub_cluster_uid, terms) =
        retry_until_ok("read its terms", &mut jitter, || store.terms(&identity.hub)).await;
    let uid = cluster_uid.clone();
    let setup = Setup {
        location: AgentLocation {
            namespace: settings.namespace.clone(),
            cluster_uid: cluster_uid.clone(),
        },
        hello: Hello {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            kubernetes_version,
            boot_id: format!("{:016x}", seed()?),
            cluster_uid,
        },
        stored: terms,
        hub_cluster_uid,
        policy: policy.clone(),
        seed: seed()?,
    };
    let core = Reconciler::new(setup);
    Ok(tasks(
        settings,
        (ready, right),
        (store, history_token),
        (identity, uid),
        core,
        (policy_file, policy),
        jitter,
    ))
}

/// Waits for the Lease. The agent is ready while another agent holds the Lease.
async fn acquired(mut right: WriteRight, ready: PendingPart) -> Option<PendingPart> {
    let (mut standby, mut ready) = (right.clone(), Some(ready));
    loop {
        tokio::select! {
            () = right.acquired() => return ready,
            () = standby.wait_until_standby(), if ready.is_some() => ready = None,
        }
    }
}

/// Returns the tasks, connected by bounded channels.
fn tasks(
    settings: Settings,
    (ready, right): (Option<PendingPart>, WriteRight),
    (store, history_token): (Store, HistoryTokenStore),
    (identity, cluster_uid): (Identity, String),
    mut core: Reconciler,
    (file, policy): (Option<PolicyFile>, Arc<Policy>),
    jitter: Jitter,
) -> Vec<(&'static str, Task)> {
    let Settings {
        client,
        join_file,
        metrics,
        drain,
        watches: times,
        liveness,
        workers,
        ..
    } = settings;
    let sealer = Sealer::new(
        &identity.seal_key,
        &identity.hub,
        [&identity.cluster, &identity.replaced_cluster],
    );
    // A small capacity, because each event may contain the content of a copy.
    let (watched, watch_events) = mpsc::channel(32);
    let (link_events, from_link) = mpsc::channel(2);
    let (jobs, to_worker) = mpsc::channel(PARALLEL);
    let (done, from_worker) = mpsc::channel(PARALLEL);
    let (notices, to_events) = mpsc::channel(256);
    let (start, started) = oneshot::channel();
    let mut tasks: Vec<(&'static str, Task)> = vec![];
    let alive = liveness.clone();
    let on_workers = |name: &'static str, part: Task| {
        let alive = alive.clone();
        let part = workers.spawn(async move { alive.polled(name, part).await });
        let part = AbortOnDropHandle::new(part);
        let part: Task = Box::pin(async move { part.await? });
        (name, part)
    };
    let kinds = KindRegistry::default();
    if let Some(paths) = core.take_feedback(Instant::now()) {
        kinds.set_feedback(paths);
    }
    let newest = NewestObject::default();
    let watches = Watches {
        client: client.clone(),
        sealer: sealer.clone(),
        file,
        policy,
        metrics: metrics.clone(),
        times,
        liveness: liveness.clone(),
        kinds: kinds.clone(),
        newest: newest.clone(),
        deleted: BTreeSet::new(),
        events: watched.clone(),
    };
    let watches = task(drain.clone(), watches.run());
    tasks.push(on_workers("watches of copies", watches));
    tasks.push(on_workers(
        "watch of namespaces",
        task(
            drain.clone(),
            watch::namespaces(client.clone(), liveness, watched),
        ),
    ));
    let member = Member::new(client.clone(), sealer, kinds.clone(), newest);
    tasks.push(on_workers(
        "worker",
        Box::pin(async {
            apply::run(member, to_worker, done).await;
            Ok(())
        }),
    ));
    tasks.push(on_workers(
        "events",
        task(drain.clone(), events::run(client, kinds.clone(), to_events)),
    ));
    let event_loop = EventLoop {
        core,
        hub: identity.hub.clone(),
        store: store.clone(),
        metrics: metrics.clone(),
        watched: watch_events,
        link: from_link,
        jobs,
        done: from_worker,
        notices,
        start: Some((start, ready)),
        kinds,
        right: right.clone(),
        drain: drain.clone(),
    };
    let fence = Fence::default();
    let mut link = Link {
        identity,
        cluster_uid,
        store,
        jitter,
        metrics,
        join_file,
        events: link_events,
        fence,
        history_token,
        right,
    };
    tasks.push((
        "link",
        Box::pin(async move {
            tokio::select! {
                () = drain.cancelled() => {}
                () = link.run(started) => {}
            }
            link.end().await;
            Ok(())
        }),
    ));
    tasks.push(on_workers(
        "core",
        Box::pin(async {
            event_loop.run().await;
            Ok(())
        }),
    ));
    tasks
}

/// Returns a task that the drain may stop at any point.
fn task(drain: CancellationToken, part: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(async move {
        tokio::select! {
            () = drain.cancelled() => {}
            () = part => {}
        }
        Ok(())
    })
}

/// Repeats a call until it succeeds, and logs what it waits for.
async fn retry_until_ok<T, F, Fut>(operation: &str, jitter: &mut Jitter, call: F) -> T
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, CallError>>,
{
    let (mut failures, begin) = (0, Instant::now());
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                failures += 1;
                let delay = WAIT.jittered(failures, jitter.draw());
                let hint = match error.code() {
                    0 => "is it running, and is the kubeconfig's address right?",
                    401 => "it does not accept the agent's credentials",
                    403 => "grant the agent the rights of its Role and ClusterRole",
                    _ => "see the API server's log",
                };
                tracing::warn!(
                    status = error.code(),
                    waited = ?begin.elapsed(),
                    "waiting for this cluster's API server to {operation}: {hint}"
                );
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Returns the uid of `kube-system` and the API server's version.
async fn cluster(client: &Client) -> Result<(String, String), CallError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let (namespace, version) = with_timeout(async {
        tokio::try_join!(api.get_metadata("kube-system"), client.apiserver_version())
    })
    .await?;
    Ok((
        namespace.metadata.uid.unwrap_or_default(),
        version.git_version,
    ))
}

fn seed() -> anyhow::Result<u64> {
    let bytes = ring::rand::generate::<[u8; 8]>(&ring::rand::SystemRandom::new());
    let bytes = bytes.ok().context("the system gives no random numbers")?;
    Ok(u64::from_le_bytes(bytes.expose()))
}
