//! The command line.
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use kube::Client;
use runnel_transport::api_client::{self, ApiClientError};
use runnel_transport::ops::{LogFormat, WatchTimes};

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
    /// No second agent stands by: the Lease is renewed once a minute instead of every 5 seconds, and an agent in another pod
    /// takes it 100 seconds after the last renewal instead of 20.
    #[arg(long, env = "RUNNEL_SINGLE_REPLICA")]
    pub single_replica: bool,
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

impl Options {
    /// Returns a client for the member's API server that records in `watches` when its watches last received data. It sends no
    /// request yet.
    ///
    /// # Errors
    /// When the settings are unusable.
    pub async fn client(&self, watches: &WatchTimes) -> Result<Client, ApiClientError> {
        let user_agent = concat!("runnel-agent/", env!("CARGO_PKG_VERSION"));
        api_client::client(self.kubeconfig.as_deref(), user_agent, watches).await
    }
}
