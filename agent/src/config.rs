//! The command line, and access to the member's API server.
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::{Args, Parser, Subcommand};
use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Client;
use kube::client::{ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use runnel_transport::ops::{LogFormat, WatchTimes};
use tower_http::decompression::DecompressionLayer;

/// Idle time after which a connection to the API server is closed.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(75);

/// The Runnel agent: applies and corrects the copies of a hub in a member cluster.
#[derive(Debug, Parser)]
#[command(name = "runnel-agent", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run until a signal.
    // The last value of an option wins, so that a chart's `extraArgs` override earlier arguments.
    #[command(args_override_self = true)]
    Run(Options),
}

/// The options of `run`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A file with the join string. After the join the agent reads it for new addresses of the same hub, and to join again
    /// if the hub refuses the agent.
    #[arg(long, env = "RUNNEL_JOIN_STRING_FILE")]
    pub join_string_file: Option<PathBuf>,
    /// A kubeconfig for this cluster; without it the pod's ServiceAccount is used.
    #[arg(long, env = "RUNNEL_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The agent's own namespace, where its Secrets are.
    #[arg(long, env = "RUNNEL_NAMESPACE", default_value = "runnel-system")]
    pub namespace: String,
    /// The name of the agent's pod. No other process may have it at the same time: the agent takes a Lease that is held
    /// under its own name at once.
    #[arg(long, env = "RUNNEL_POD_NAME")]
    pub pod_name: Option<String>,
    /// The address of the probes and metrics.
    #[arg(long, env = "RUNNEL_OPS_LISTEN", default_value = "0.0.0.0:8082")]
    pub ops_listen: SocketAddr,
    /// A file with the policy of this cluster, which limits what the hub may do here. Without it the defaults of the chart
    /// apply. The agent reads it again when it changes.
    #[arg(long, env = "RUNNEL_POLICY_FILE")]
    pub policy_file: Option<PathBuf>,
    /// Allow the hub everything here, without any policy: for trials.
    #[arg(long, env = "RUNNEL_ALLOW_EVERYTHING", conflicts_with = "policy_file")]
    pub allow_everything: bool,
    /// The format of log lines.
    #[arg(long, env = "RUNNEL_LOG_FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Returns a client for the member's API server. It sends no request yet.
///
/// # Errors
/// One sentence with a hint, if the settings are unusable.
pub async fn client(options: &Options) -> anyhow::Result<Client> {
    timed_client(options, &WatchTimes::default()).await
}

/// Returns a client that records in `watches` when its watches last received data.
///
/// # Errors
/// One sentence with a hint, if the settings are unusable.
pub async fn timed_client(options: &Options, watches: &WatchTimes) -> anyhow::Result<Client> {
    let mut config = match &options.kubeconfig {
        Some(path) => {
            // Only the first line of the cause: the other lines quote the file, which contains
            // credentials.
            let unusable = |cause: &dyn std::fmt::Display| {
                let cause = cause
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                anyhow!(
                    "the kubeconfig {} cannot be used ({cause}): check --kubeconfig",
                    path.display()
                )
            };
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
            let own_proxy = proxy_of(&kubeconfig);
            let config =
                kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await;
            let mut config = config.map_err(|error| unusable(&error))?;
            // A proxy from the environment is only for connections to the hub.
            config.proxy_url = config.proxy_url.filter(|_| own_proxy);
            config
        }
        None => kube::Config::incluster().context(
            "this does not run in a cluster's pod with a ServiceAccount: give --kubeconfig",
        )?,
    };
    // The agent's own queue backs off. A client with retries would block a run for minutes.
    config.default_retry = false;
    // Longer than a watch without events, which the server ends itself. A connection that is idle
    // for longer is dead.
    config.read_timeout = Some(READ_TIMEOUT);
    // The user agent identifies the agent in the API server's audit log.
    let name = HeaderValue::from_static(concat!("runnel-agent/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, name));
    let unusable = "the settings for this cluster's API server cannot be used";
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config)
            .context(unusable)?
            .with_layer(watches)
            .build());
    }
    without_delay(config, watches).context(unusable)
}

/// Returns the client that kube would build from these settings, with `TCP_NODELAY` on its
/// connections.
///
/// Without it, the end of a request of several segments waits for the acknowledgment of the earlier
/// ones. The server's system may delay this by 40 ms.
fn without_delay(config: kube::Config, watches: &WatchTimes) -> Result<Client, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(DecompressionLayer::new())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(
        ClientBuilder::new(service, config.default_namespace.clone())
            .with_layer(watches)
            .build(),
    )
}

/// Whether the kubeconfig's current cluster has its own proxy.
fn proxy_of(file: &Kubeconfig) -> bool {
    let current = file
        .contexts
        .iter()
        .find(|context| Some(&context.name) == file.current_context.as_ref());
    let cluster = current
        .and_then(|context| context.context.as_ref())
        .map(|context| &context.cluster);
    let cluster = file
        .clusters
        .iter()
        .find(|known| Some(&known.name) == cluster);
    cluster
        .and_then(|known| known.cluster.as_ref())
        .is_some_and(|cluster| cluster.proxy_url.is_some())
}
