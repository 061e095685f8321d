//! The agent's process.
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::Parser;
use runnel_agent::config::{Cli, Command, Options};
use runnel_agent::lease::{SINGLE_REPLICA, WITH_STANDBY};
use runnel_agent::metrics::Metrics;
use runnel_agent::run::{Settings, boot};
use runnel_transport::ops::{
    DRAIN_LIMIT, Liveness, Readiness, Signals, WatchTimes, bind, forbid_core_dumps, init_logs,
    registry, serve,
};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The threads that read, compare and write copies: one for I/O and one for computation. An agent waits for its API server most of
/// the time, and each further thread has memory of its own. On a node with 64 cores, a thread per core would
/// need as much memory as the copies.
const WORKERS: usize = 2;
/// The threads for the Lease, the stream to the hub and the probes. They compute nothing about objects: one pass over the largest object
/// (50,000 JSON values) takes 30 ms, a page of such objects takes a second, and any number of pages may wait for the workers.
/// A renewal of the Lease has 5 s, and an answer to a ping of the hub 10 s.
const KEEPERS: usize = 1;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(1)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let Command::Run(options) = cli.command;
    let runtime = |threads| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
    };
    let ended = runtime(KEEPERS).and_then(|keepers| Ok((keepers, runtime(WORKERS)?)));
    let ended = ended
        .map_err(anyhow::Error::from)
        .and_then(|(keepers, workers)| {
            let ended = keepers.block_on(run(options, workers.handle().clone()));
            workers.shutdown_background();
            keepers.shutdown_background();
            ended
        });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("runnel-agent: {error:#}");
            ExitCode::from(1)
        }
    }
}

async fn run(options: Options, workers: Handle) -> anyhow::Result<()> {
    init_logs(options.log_format)?;
    forbid_core_dumps();
    let signals = Signals::install()?;
    let listener = bind(options.ops_listen, "--ops-listen").await?;
    let mut registry = registry("agent", env!("CARGO_PKG_VERSION"));
    let metrics = Metrics::new(&mut registry);
    let (drain, readiness) = (CancellationToken::new(), Readiness::default());
    let liveness = Liveness::default();
    let ready = readiness.wait_for("the lists of this cluster's copies and namespaces");
    let watches = WatchTimes::default();
    registry.register_collector(Box::new(watches.clone()));
    let lease_client = options.client(&WatchTimes::default()).await?;
    let client = options.client(&watches).await?;

    let mut tasks: JoinSet<(&'static str, anyhow::Result<()>)> = JoinSet::new();
    let token = drain.clone();
    tasks.spawn(async move { ("signals", Err(signals.run(token).await.into())) });
    let (token, alive) = (drain.clone(), liveness.clone());
    tasks.spawn(async move {
        (
            "ops port",
            serve(listener, Arc::new(registry), readiness, alive, token)
                .await
                .map_err(Into::into),
        )
    });
    let settings = Settings {
        client,
        lease_client,
        workers,
        namespace: options.namespace,
        pod_name: options.pod_name,
        lease_timing: if options.single_replica {
            SINGLE_REPLICA
        } else {
            WITH_STANDBY
        },
        join_file: options.join_string_file,
        policy_file: options.policy_file,
        allow_everything: options.allow_everything,
        metrics,
        watches,
        liveness,
        drain: drain.clone(),
    };
    let mut booting = std::pin::pin!(boot(settings, ready));
    let booted = loop {
        tokio::select! {
            booted = &mut booting => break booted?,
            Some(ended) = tasks.join_next() => match ended {
                // The boot receives the drain, too, and ends in order.
                Ok((_, Ok(()))) if drain.is_cancelled() => {}
                ended => return early_end_error(ended),
            },
        }
    };
    if booted.is_empty() {
        return Ok(());
    }
    for (name, task) in booted {
        tasks.spawn(async move { (name, task.await) });
    }
    tokio::select! {
        () = drain.cancelled() => {}
        // A task may receive the drain before this one.
        Some(ended) = tasks.join_next() => match ended {
            Ok((_, Ok(()))) if drain.is_cancelled() => {}
            ended => return early_end_error(ended),
        },
    }
    let drained = async {
        // The task of the signals ends only with a second signal.
        while tasks.len() > 1 {
            match tasks.join_next().await {
                Some(Ok((_, ended))) => ended?,
                Some(Err(error)) => bail!("a task failed: {error}"),
                None => break,
            }
        }
        Ok(())
    };
    match tokio::time::timeout(DRAIN_LIMIT, drained).await {
        Ok(ended) => ended,
        Err(_) => Err(anyhow!(
            "not everything ended within {} seconds",
            DRAIN_LIMIT.as_secs()
        )),
    }
}

/// Returns the error of a task that ended before the drain. It ends the process.
fn early_end_error(
    ended: Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError>,
) -> anyhow::Result<()> {
    match ended {
        Ok((_, Err(error))) => Err(error),
        Ok((name, Ok(()))) => bail!("the agent's part `{name}` ended unexpectedly"),
        Err(error) => bail!("a task failed: {error}"),
    }
}
