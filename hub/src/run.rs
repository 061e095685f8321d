//! Starts the hub: it binds its ports, then spawns its tasks in one set. A task that ends early
//! ends the process.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use kube::Client;
use runnel_api::{ClusterDistributionRule, DistributionRule, MemberCluster, MemberRecord};
use runnel_hub::analysis::AnalysisRunner;
use runnel_hub::ca::{self, CaError, CaRotator, HubIdentity, Parts, TrustedCas};
use runnel_hub::config::{ApiAccess, Run};
use runnel_hub::hub_state::{HubState, Settings};
use runnel_hub::join::Registrar;
use runnel_hub::lease::{
    self, ConnectionGuards, ConnectionRouter, Election, Listeners, LocalConnections, Timing,
};
use runnel_hub::membership::CertificateLifetimes;
use runnel_hub::metrics::{HubMetrics, StateCollector};
use runnel_hub::object_cache::ObjectCache;
use runnel_hub::ordered_lock::LeafMutex;
use runnel_hub::server::Server;
use runnel_hub::view::ViewServer;
use runnel_hub::watch;
use runnel_hub::writer::{
    FleetWriter, RemovalRecorder, RollbackStore, WAITING, Writer, publish_events,
};
use runnel_hub_core::guard::Limit;
use runnel_hub_core::index::ScopeState;
use runnel_hub_core::plan::Scope;
use runnel_proto::model::CUSTOM_RESOURCE_DEFINITIONS;
use runnel_transport::api_client;
use runnel_transport::ops::{self, Liveness, Readiness, Signals, WatchTimes};
use runnel_transport::tls;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch as channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

/// The delay between attempts to reach the API server at the start.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// The interval of pings on an idle connection. A dead connection is detected within 25 s.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
/// The windows limit the bytes that an agent can make the hub buffer.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 128 * 1024;
const STREAMS: u32 = 8;

/// The task that releases the Lease at the end.
const ELECTION: &str = "election";

type Tasks = JoinSet<(&'static str, anyhow::Result<()>)>;

/// Runs the hub until a signal stops it. `keepers` is the runtime of the Lease.
pub async fn run(options: Run, keepers: Handle) -> anyhow::Result<()> {
    let signals = Signals::install().context("cannot catch signals")?;
    let shutdown = CancellationToken::new();
    let times = (
        options.lease_duration,
        options.renew_deadline,
        options.retry_period,
    );
    let timing = Timing::new(times.0, times.1, times.2)?;
    let listener = ops::bind(options.listen, "--listen").await?;
    let replicas = match options.replica_listen {
        Some(address) => Some(ops::bind(address, "--replica-listen").await?),
        None => None,
    };
    let views = match options.view_listen {
        Some(address) => Some(ops::bind(address, "--view-listen").await?),
        None => None,
    };
    let ops_listener = ops::bind(options.ops_listen, "--ops-listen").await?;
    let listeners = Listeners {
        public: listener,
        views,
        replicas,
    };
    let listeners = (listeners, ops_listener);
    let watches = WatchTimes::default();
    let client = client(&options.access, &watches).await?;

    let mut tasks = Tasks::new();
    let mut abort = std::pin::pin!(signals.run(shutdown.clone()));
    let ended = tokio::select! {
        started = start(&options, timing, (client, watches), listeners, (&shutdown, keepers), &mut tasks) => started,
        () = shutdown.cancelled() => Ok(()),
        aborted = &mut abort => return Err(aborted.into()),
    };
    ended?;
    tokio::select! {
        ended = supervise(&mut tasks, &shutdown, (ops::DRAIN_LIMIT, lease::HAND_OVER_LIMIT)) => ended?,
        aborted = &mut abort => return Err(aborted.into()),
    }
    tracing::info!("the hub has ended");
    Ok(())
}

/// Waits for the tasks. No task may end before the shutdown. After it all tasks must end within the
/// drain limit; the release of the Lease has a longer limit.
async fn supervise(
    tasks: &mut Tasks,
    shutdown: &CancellationToken,
    (drain_limit, hand_over_limit): (Duration, Duration),
) -> anyhow::Result<()> {
    tokio::select! {
        Some(ended) = tasks.join_next() => {
            let (name, result) = ended.context("a task panicked")?;
            if !shutdown.is_cancelled() {
                result.with_context(|| format!("the task {name:?} failed"))?;
                bail!("the task {name:?} ended early");
            }
        }
        () = shutdown.cancelled() => {}
    }
    let handed_over = AtomicBool::new(false);
    let drained = tokio::time::timeout(drain_limit, drain(tasks, &handed_over, false)).await;
    if drained.is_err() {
        // If the Lease is not released, the next leader waits until it expires.
        if !handed_over.load(Ordering::Relaxed) {
            let more = hand_over_limit.saturating_sub(drain_limit);
            let _ = tokio::time::timeout(more, drain(tasks, &handed_over, true)).await;
        }
        tracing::warn!("not everything ended in time");
        tasks.abort_all();
    }
    Ok(())
}

/// Waits for the tasks to end. With `for_the_lease` it returns as soon as the Lease is released.
async fn drain(tasks: &mut Tasks, handed_over: &AtomicBool, for_the_lease: bool) {
    while let Some(ended) = tasks.join_next().await {
        handed_over.fetch_or(matches!(ended, Ok((ELECTION, _))), Ordering::Relaxed);
        if for_the_lease && handed_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Returns a client for the hub cluster that records in `watches` when its watches last received data.
pub async fn client(access: &ApiAccess, watches: &WatchTimes) -> anyhow::Result<Client> {
    let user_agent = concat!("runnel-hub/", env!("CARGO_PKG_VERSION"));
    Ok(api_client::client(access.kubeconfig.as_deref(), user_agent, watches).await?)
}

/// Returns the hub's identity and the hub cluster's uid. Retries while the API server is
/// unreachable.
async fn identity(options: &Run, client: &Client) -> anyhow::Result<(HubIdentity, String)> {
    let namespace = &options.access.namespace;
    loop {
        let loaded = ca::started(client, namespace, &options.advertise, options.ca_life).await;
        match (loaded, watch::cluster_uid(client).await) {
            (Ok(identity), Ok(uid)) => return Ok((identity, uid)),
            (Err(error @ (CaError::Stored { .. } | CaError::Identity(_))), _) => {
                return Err(error.into());
            }
            (Err(error), _) => {
                tracing::error!(%error, "cannot get the hub's identity; trying again")
            }
            (_, Err(why)) => {
                tracing::error!(%why, "cannot read the namespace kube-system; trying again")
            }
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Returns the stored CAs; `None` also if the hub may not read them. Retries while the API server
/// is unreachable.
async fn trusted_cas(options: &Run, client: &Client) -> Option<TrustedCas> {
    loop {
        match ca::stored(client, &options.access.namespace).await {
            Ok(known) => return known,
            Err(error) if error.is_forbidden() => {
                tracing::error!(%error, "a change of the CA would disconnect members: upgrade the chart, which grants the right");
                return None;
            }
            Err(error) => {
                tracing::error!(%error, "cannot read the hub's CA; retrying")
            }
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn start(
    options: &Run,
    timing: Timing,
    (client, watches): (Client, WatchTimes),
    (listeners, ops_listener): (Listeners, TcpListener),
    (shutdown, keepers): (&CancellationToken, Handle),
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let readiness = Readiness::default();
    let awaited = [
        "distributionrules",
        "clusterdistributionrules",
        "memberclusters",
        "memberrecords",
    ];
    let awaited = awaited.map(|part| Arc::new(LeafMutex::new(Some(readiness.wait_for(part)))));
    let serving_awaited = readiness.wait_for("sources");
    let mut registry = ops::registry("hub", env!("CARGO_PKG_VERSION"));
    let metrics = HubMetrics::register(&mut registry);
    registry.register_collector(Box::new(watches.clone()));

    let (identity, cluster_uid) = identity(options, &client).await?;
    let known = trusted_cas(options, &client).await;
    let settings = Settings {
        namespace: options.access.namespace.clone(),
        hub_id: identity.hub_id.clone(),
        cluster_uid,
        scope: Scope::new(options.source_namespaces.iter().cloned()),
        source_gone_grace: options.source_gone_grace,
        expired_renewal_limit: options.expired_renewal_limit,
        removal_ceiling: Limit::of(
            options.removal_limit_count,
            options.removal_limit_percent,
            Limit::NONE,
        ),
        render_budget: options.render_budget.0,
        analysis_allow: options.analysis_allow.clone(),
        revision_key: identity.revision_key.clone(),
        serves_views: options.view_listen.is_some(),
    };
    let (hub_state, object_cache) = (HubState::new(settings), Arc::new(ObjectCache::default()));
    let lives = CertificateLifetimes {
        certificate: options.certificate_life,
        expired_renewal: options.expired_renewal_limit,
    };
    let (events, waiting) = mpsc::channel(WAITING);
    let parts = Parts {
        client: client.clone(),
        hub_state: hub_state.clone(),
        object_cache: object_cache.clone(),
        lifetimes: lives,
        ca_life: options.ca_life,
        events: events.clone(),
    };
    let ca_rotator = CaRotator::new(parts, identity, known);
    let ca_rotator =
        ca_rotator.map_err(|error| anyhow!("cannot create a serving certificate: {error}"))?;
    let (tls, hub_cas) = (ca_rotator.tls(), ca_rotator.hub_cas());
    registry.register_collector(Box::new(StateCollector {
        hub_state: hub_state.clone(),
        object_cache: object_cache.clone(),
        tls: tls.clone(),
        hub_cas: hub_cas.clone(),
        metrics: metrics.clone(),
        certificate_life: lives.certificate,
    }));
    let registrar = Registrar::new(client.clone(), hub_cas.clone(), lives);
    let server = Server::new(
        hub_state.clone(),
        object_cache.clone(),
        registrar,
        metrics.clone(),
        client.clone(),
        shutdown.clone(),
    );

    let registry = Arc::new(registry);
    let liveness = Liveness::default();
    let stop = || (shutdown.clone(), liveness.clone());
    let ops = ops::serve(
        ops_listener,
        registry,
        readiness.clone(),
        liveness.clone(),
        shutdown.clone(),
    );
    tasks.spawn(async move { ("ops", ops.await.map_err(Into::into)) });
    let (connection_router, accepted, views) =
        ConnectionRouter::new(listeners, hub_state.clone(), metrics.clone());
    forever(tasks, stop(), "connection router", connection_router.run());
    if hub_state.settings.serves_views {
        let mut names = options.view_names.clone();
        if names.is_empty() {
            names.push(format!("runnel-hub-view.{}.svc", options.access.namespace));
        }
        let server = ViewServer::new(
            hub_state.clone(),
            object_cache.clone(),
            client.clone(),
            hub_cas,
            names,
        );
        forever(tasks, stop(), "view API", server.run(views));
    }
    let serve = serve(
        accepted,
        tls,
        server,
        (hub_state.clone(), metrics),
        shutdown.clone(),
    );
    tasks.spawn(async move { ("server", serve.await) });
    forever(tasks, stop(), "CA rotation", ca_rotator.run());

    let [rules, cluster_rules, members, records] = awaited.map(|part| {
        let hub_state = hub_state.clone();
        move || {
            drop(part.lock().take());
            hub_state.leadership.progress.notify_one();
        }
    });
    let analyses = AnalysisRunner::new(
        hub_state.clone(),
        object_cache.clone(),
        options.analysis_ca_file.as_deref(),
    )?;
    forever(tasks, stop(), "analyses", analyses.run());
    let me = lease::holder(options.pod_name.clone(), options.replica_address.clone());
    let me = me.map_err(|_| anyhow!("the system gives no random numbers"))?;
    let namespace = &options.access.namespace;
    // A connection is served by the runtime that opens it.
    let access = options.access.clone();
    let lease_client =
        keepers.spawn(async move { self::client(&access, &WatchTimes::default()).await });
    let lease_client = lease_client.await??;
    let mut election = Election::new(lease_client, namespace, me, timing, hub_state.clone());
    election.read_first().await;
    let watched = watch::watch_members::<MemberCluster>(
        client.clone(),
        hub_state.clone(),
        object_cache.clone(),
        members,
    );
    let watched = in_span("memberclusters", watched);
    forever(tasks, stop(), "watch of members", watched);
    let watched = watch::watch_members::<MemberRecord>(
        client.clone(),
        hub_state.clone(),
        object_cache.clone(),
        records,
    );
    let watched = in_span("memberrecords", watched);
    forever(tasks, stop(), "watch of the records of members", watched);
    let watched = watch::watch_rules::<DistributionRule>(
        client.clone(),
        hub_state.clone(),
        object_cache.clone(),
        rules,
    );
    let watched = in_span("distributionrules", watched);
    forever(tasks, stop(), "watch of rules", watched);
    let watched = watch::watch_rules::<ClusterDistributionRule>(
        client.clone(),
        hub_state.clone(),
        object_cache.clone(),
        cluster_rules,
    );
    let watched = in_span("clusterdistributionrules", watched);
    forever(tasks, stop(), "watch of cluster rules", watched);
    let grants = watch::watch_grants(client.clone(), hub_state.clone(), options.grant_everything);
    let grants = in_span("distributiongrants", grants);
    forever(tasks, stop(), "watch of grants", grants);
    let fleet = watch::watch_fleet(client.clone(), hub_state.clone());
    let fleet = in_span("fleets", fleet);
    forever(tasks, stop(), "watch of the fleet", fleet);
    let namespaces = watch::watch_hub_namespaces(client.clone(), hub_state.clone());
    let namespaces = in_span("namespaces", namespaces);
    forever(tasks, stop(), "watch of namespaces", namespaces);
    let crd = watch::watch_crd::<DistributionRule>(client.clone(), hub_state.clone());
    let crd = in_span(CUSTOM_RESOURCE_DEFINITIONS, crd);
    forever(tasks, stop(), "watch of the rules' CRD", crd);
    let crd = watch::watch_crd::<ClusterDistributionRule>(client.clone(), hub_state.clone());
    let crd = in_span(CUSTOM_RESOURCE_DEFINITIONS, crd);
    forever(tasks, stop(), "watch of the cluster rules' CRD", crd);
    let sources = watch::watch_needed_sources(client.clone(), hub_state.clone(), watches);
    forever(tasks, stop(), "watches of sources", sources);
    forever(
        tasks,
        stop(),
        "reader",
        watch::read_sources(client.clone(), hub_state.clone()),
    );
    forever(
        tasks,
        stop(),
        "renderer",
        watch::render_rules(hub_state.clone()),
    );
    forever(
        tasks,
        stop(),
        "grace period of deleted sources",
        watch::expire_deleted_sources(hub_state.clone()),
    );
    let (known, known_sender) = channel::channel(false);
    let elect = election.run(known_sender, shutdown.clone());
    let alive = liveness.clone();
    let elected = keepers.spawn(async move { alive.polled(ELECTION, elect).await });
    let elected = AbortOnDropHandle::new(elected);
    tasks.spawn(async move { (ELECTION, elected.await.map_err(Into::into)) });
    let gate = until_listed(hub_state.clone(), readiness, serving_awaited, known);
    forever(tasks, stop(), "readiness", gate);
    let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| "runnel-hub".to_owned());
    forever(
        tasks,
        stop(),
        "events",
        publish_events(client.clone(), instance, waiting),
    );
    let recorder = RemovalRecorder::new(client.clone(), hub_state.clone(), object_cache.clone());
    forever(tasks, stop(), "recorder of removals", recorder.run());
    let overview = FleetWriter::new(
        client.clone(),
        hub_state.clone(),
        object_cache.clone(),
        events.clone(),
    );
    forever(tasks, stop(), "writer of the fleet", overview.run());
    let slots = usize::from(options.rollback_storage);
    let store = RollbackStore::new(client.clone(), hub_state.clone(), slots);
    forever(tasks, stop(), "store of completed rollouts", store.run());
    forever(
        tasks,
        stop(),
        "writer",
        Writer::new(client, hub_state, object_cache, events).run(),
    );
    tracing::info!(listen = %options.listen, ops = %options.ops_listen, "the hub is running");
    Ok(())
}

/// Gives the log lines of a watch a span that names the watched resource.
fn in_span(resource: &'static str, watch: impl Future<Output = ()>) -> impl Future<Output = ()> {
    watch.instrument(tracing::info_span!("watch", resource))
}

/// Spawns a task that must not end before the process.
fn forever(
    tasks: &mut Tasks,
    (shutdown, liveness): (CancellationToken, Liveness),
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    tasks.spawn(async move {
        tokio::select! {
            () = liveness.polled(name, task) => (name, Err(anyhow!("it ended"))),
            () = shutdown.cancelled() => (name, Ok(())),
        }
    });
}

/// Lets the process become the leader once every needed watch has delivered a complete list or was
/// refused. Then it lets a leader serve once all of them have relisted.
async fn until_listed(
    hub_state: Arc<HubState>,
    readiness: Readiness,
    own: ops::PendingPart,
    known_to_all: channel::Sender<bool>,
) {
    let known = || {
        let listed = readiness.awaited().len() <= 1;
        let index = hub_state.index.read();
        listed
            && index
                .needed_scopes()
                .iter()
                .all(|place| index.scopes().state(place) != ScopeState::Unwatched)
    };
    while !known() {
        hub_state.leadership.progress.notified().await;
    }
    drop(own);
    tracing::info!("the hub has read its rules and sources");
    known_to_all.send_replace(true);
    loop {
        if hub_state.serve_if_listed() {
            tracing::info!("the hub serves its members");
        }
        hub_state.leadership.progress.notified().await;
    }
}

async fn serve(
    accepted: LocalConnections,
    tls: Arc<tls::ServerTls>,
    server: Server,
    (hub_state, metrics): (Arc<HubState>, Arc<HubMetrics>),
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let guards = ConnectionGuards::counting(metrics);
    let fenced = lease::fenced(tls::incoming(accepted, tls), hub_state, guards.clone());
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(tls::PING_LIMIT))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .add_service(server.into_service())
        .serve_with_incoming_shutdown(fenced, shutdown.cancelled_owned());
    tokio::select! {
        served = serving => served.context("the gRPC server failed"),
        // The guards are checked as long as there are connections, also during the shutdown.
        never = guards.watch() => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slow_hand_over_of_the_lease_is_waited_for() {
        let (mut tasks, shutdown) = (Tasks::new(), CancellationToken::new());
        let released = Arc::new(AtomicBool::new(false));
        let released_flag = released.clone();
        // The API server is slow.
        tasks.spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            released_flag.store(true, Ordering::Relaxed);
            (ELECTION, Ok(()))
        });
        tasks.spawn(async { std::future::pending().await });
        shutdown.cancel();
        // The supervisor does not wait for a task that never ends.
        let limits = (Duration::from_millis(1), Duration::from_secs(600));
        supervise(&mut tasks, &shutdown, limits).await.unwrap();
        assert!(released.load(Ordering::Relaxed));
    }
}
