//! Puts the parts together: what is needed first, then the tasks that main spawns.
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::Api;
use runnel_proto::model::Hello;
use runnel_proto::ops::{Awaited, WatchTimes};
use runnel_proto::{PROTOCOL_MAX, PROTOCOL_MIN};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::apply::Member;
use crate::backoff::{Backoff, Jitter};
use crate::call::answered;
use crate::classify::CallError;
use crate::core::{Core, PARALLEL, Setup};
use crate::desired::Home;
use crate::fence::Fence;
use crate::join::{self, JoinFileError};
use crate::keep::Keep;
use crate::link::{Link, Witness};
use crate::metrics::Metrics;
use crate::mind::Mind;
use crate::policy::Policy;
use crate::policy::file::PolicyFile;
use crate::seal::Sealer;
use crate::store::{Identity, Store};
use crate::watch::{self, Watches};
use crate::{events, worker};

/// Waiting for the member's API server.
const WAIT: Backoff = Backoff { base: Duration::from_millis(500), limit: Duration::from_secs(10) };

/// A part of the agent that runs until the drain, or for as long as the parts it serves.
pub type Task = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// What the agent is told.
pub struct Settings {
    /// Access to the member cluster. It must not retry by itself.
    pub client: Client,
    /// The agent's namespace.
    pub namespace: String,
    /// Where the join string lies.
    pub join_file: Option<PathBuf>,
    /// Where this cluster's policy lies; without it everything is allowed.
    pub policy_file: Option<PathBuf>,
    /// Where it counts.
    pub metrics: Metrics,
    /// When the client's watches last said something.
    pub watches: WatchTimes,
    /// Ends the agent in order.
    pub drain: CancellationToken,
}

/// Waits for the API server, joins the hub if that is not done yet, and gives the tasks to spawn.
///
/// # Errors
/// One sentence with the cure, for what does not pass by itself.
pub async fn boot(settings: Settings, ready: Awaited) -> anyhow::Result<Vec<(&'static str, Task)>> {
    // A text that is no join string is a mistake, whatever else is stored.
    let early = join::read_join_string(settings.join_file.as_deref());
    if let Err(error @ JoinFileError::Malformed { source, .. }) = &early
        && *source != runnel_proto::identity::JoinStringError::Empty
    {
        anyhow::bail!("{error}");
    }
    let (policy_file, policy) = match settings.policy_file.clone() {
        Some(path) => {
            let (file, policy) = PolicyFile::open(path).await?;
            (Some(file), policy)
        }
        None => (None, Policy::open()),
    };
    let policy = Arc::new(policy);
    let mut jitter = Jitter::new(seed()?);
    let store = Store::new(settings.client.clone(), &settings.namespace);
    let stored = patiently("read its identity", &mut jitter, || store.identity()).await;
    let (cluster_uid, kubernetes_version) =
        patiently("read this cluster's uid", &mut jitter, || cluster(&settings.client)).await;
    let identity = match stored {
        Some(identity) if identity.certificate.is_some() => identity,
        stored => {
            let string = early.map_err(anyhow::Error::from)?;
            join::join(&store, settings.join_file.as_deref(), string, stored, &mut jitter).await?
        }
    };
    let remembered = patiently("read what it remembers", &mut jitter, || store.witness()).await;
    let witness = Witness::new(store.clone(), remembered);
    let (hub_cluster_uid, terms) = patiently("read its terms", &mut jitter, || store.terms(&identity.hub)).await;
    let keep = Keep::new(settings.client.clone(), &settings.namespace);
    let previous = patiently("read what it keeps", &mut jitter, || keep.all()).await;
    let setup = Setup {
        home: Home { namespace: settings.namespace.clone(), cluster_uid: cluster_uid.clone() },
        hello: Hello {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            kubernetes_version,
            boot_id: format!("{:016x}", seed()?),
            cluster_uid,
        },
        stored: terms,
        previous,
        hub_cluster_uid,
        policy: policy.clone(),
        seed: seed()?,
    };
    Ok(tasks(settings, ready, (store, witness, keep), identity, Core::new(setup), (policy_file, policy), jitter))
}

/// The parts and the bounded channels between them.
fn tasks(
    settings: Settings,
    ready: Awaited,
    (store, witness, keep): (Store, Witness, Keep),
    identity: Identity,
    core: Core,
    (file, policy): (Option<PolicyFile>, Arc<Policy>),
    jitter: Jitter,
) -> Vec<(&'static str, Task)> {
    let Settings { client, join_file, metrics, drain, watches: times, .. } = settings;
    let sealer = Sealer::new(&identity.seal_key, &identity.hub);
    let (watched, watch_events) = mpsc::channel(256);
    let (link_events, from_link) = mpsc::channel(2);
    let (jobs, to_worker) = mpsc::channel(PARALLEL);
    let (done, from_worker) = mpsc::channel(PARALLEL);
    let (notices, to_events) = mpsc::channel(256);
    let (start, started) = oneshot::channel();
    let mut tasks: Vec<(&'static str, Task)> = vec![];
    let watches = Watches {
        client: client.clone(),
        sealer: sealer.clone(),
        file,
        policy,
        metrics: metrics.clone(),
        times,
        events: watched.clone(),
    };
    tasks.push(("watches of copies", task(drain.clone(), watches.run())));
    tasks.push(("watch of namespaces", task(drain.clone(), watch::namespaces(client.clone(), watched))));
    let member = Member::new(client.clone(), sealer, keep);
    tasks.push((
        "worker",
        Box::pin(async {
            worker::run(member, to_worker, done).await;
            Ok(())
        }),
    ));
    tasks.push(("events", task(drain.clone(), events::run(client, to_events))));
    let mind = Mind {
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
        drain: drain.clone(),
    };
    let mut link =
        Link { identity, store, jitter, metrics, join_file, events: link_events, fence: Fence::default(), witness };
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
    tasks.push((
        "core",
        Box::pin(async {
            mind.run().await;
            Ok(())
        }),
    ));
    tasks
}

/// A part that the drain may end at any point.
fn task(drain: CancellationToken, part: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(async move {
        tokio::select! {
            () = drain.cancelled() => {}
            () = part => {}
        }
        Ok(())
    })
}

/// Asks until there is an answer, and says what it waits for.
async fn patiently<T, F, Fut>(what: &str, jitter: &mut Jitter, call: F) -> T
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
                let cure = match error.code() {
                    0 => "is it running, and is the kubeconfig's address right?",
                    401 => "it does not accept the agent's credentials",
                    403 => "grant the agent the rights of its Role and ClusterRole",
                    _ => "see the API server's log",
                };
                tracing::warn!(
                    status = error.code(),
                    waited = ?begin.elapsed(),
                    "waiting for this cluster's API server to {what}: {cure}"
                );
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// The uid of `kube-system` and the API server's version.
async fn cluster(client: &Client) -> Result<(String, String), CallError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let (namespace, version) =
        answered(async { tokio::try_join!(api.get_metadata("kube-system"), client.apiserver_version()) }).await?;
    Ok((namespace.metadata.uid.unwrap_or_default(), version.git_version))
}

fn seed() -> anyhow::Result<u64> {
    let bytes = ring::rand::generate::<[u8; 8]>(&ring::rand::SystemRandom::new());
    let bytes = bytes.ok().context("the system gives no random numbers")?;
    Ok(u64::from_le_bytes(bytes.expose()))
}
