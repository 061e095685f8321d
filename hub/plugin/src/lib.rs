//! `kubectl runnel`: installs Runnel, joins and removes clusters, and reports the state of rules.
//!
//! Each command has a file with `run`. What it prints is made in functions without I/O, so that tests need no cluster.
mod access;
mod approve;
pub mod args;
mod bundle;
mod checks;
mod clusters_output;
mod complete;
mod confirm;
mod diagnose;
mod doctor;
mod explain;
mod explanation_report;
mod follow;
mod forget_removal;
mod helm;
mod hints;
mod history;
mod import;
mod install;
mod join;
mod jsonpath;
mod manifests;
mod objects;
mod orphans;
mod output;
mod parse;
mod plan;
mod plan_report;
mod progress;
mod read_cluster;
mod revert;
mod rights;
pub(crate) mod rules;
mod status;
mod table;
mod ui;
mod uninstall;
mod unjoin;
mod values;
mod version;
mod views;
mod wait;
mod wrap;

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::shells::{Bash, Fish, PowerShell, Zsh};
use include_dir::Dir;
use runnel_proto::model::is_subdomain;
use serde_json::Value;

use access::{Cluster, ConnectionFlags};
use args::{Cli, Command, Output, Shell};
use wrap::printable;

/// A failure with its own exit code.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ExitError {
    /// The exit code.
    pub code: u8,
    /// The message; empty if everything is printed already.
    pub text: String,
}

/// Failed.
pub const FAILED: u8 = 1;
/// Exit code of a usage error.
pub const USAGE: u8 = 2;
/// Exit code of a timeout.
pub const TIMED_OUT: u8 = 3;
/// A plan was made, and something of it would fail or be blocked.
pub const WOULD_FAIL: u8 = 4;
/// With `status --exit-code`: something is not ready.
pub const NOT_READY: u8 = 4;

fn ended(code: u8, text: impl Into<String>) -> anyhow::Error {
    ExitError {
        code,
        text: text.into(),
    }
    .into()
}

fn usage(text: impl std::fmt::Display) -> anyhow::Error {
    ended(USAGE, text.to_string())
}

/// The context of every command.
struct CommandContext<'a> {
    kubeconfig: Option<&'a Path>,
    context: Option<&'a str>,
    namespace: Option<&'a str>,
    connection: ConnectionFlags,
    charts: &'a Dir<'a>,
}

impl CommandContext<'_> {
    /// The hub, where `--context` names it.
    async fn hub(&self) -> anyhow::Result<Cluster> {
        Cluster::open("the hub", self.kubeconfig, self.context, &self.connection).await
    }

    /// Returns the namespace of the rules.
    fn rule_namespace(&self, hub: &Cluster) -> anyhow::Result<String> {
        let namespace = self.namespace.unwrap_or(&hub.default_namespace);
        if is_subdomain(namespace) {
            Ok(namespace.to_owned())
        } else {
            Err(usage(format!(
                "the context has the namespace `{namespace}`, which is no name: give --namespace"
            )))
        }
    }

    /// Returns the namespace of hub and agents.
    fn system(&self) -> &str {
        self.namespace.unwrap_or(args::SYSTEM)
    }
}

/// Runs a command line. `charts` holds `runnel-hub` and `runnel-agent`.
///
/// # Errors
/// A text for the user; [`ExitError`] if the exit code is not [`FAILED`].
pub async fn run(cli: Cli, charts: &Dir<'_>) -> anyhow::Result<()> {
    let session = CommandContext {
        kubeconfig: cli.kubeconfig.as_deref(),
        context: cli.context.as_deref(),
        namespace: cli.namespace.as_deref(),
        connection: ConnectionFlags::read(&cli.connection).map_err(usage)?,
        charts,
    };
    match cli.command {
        Command::Install(options) => install::run(&session, &options).await,
        Command::Join(options) => join::run(&session, &options).await,
        Command::Status(options) => status::run(&session, &options).await,
        Command::Members(options) => status::members(&session, &options).await,
        Command::Approve(options) => approve::run(&session, &options).await,
        Command::Unjoin(options) => unjoin::run(&session, &options).await,
        Command::ForgetRemoval(options) => forget_removal::run(&session, &options).await,
        Command::Orphans(options) => orphans::run(&session, &options).await,
        Command::Uninstall(options) => uninstall::run(&session, &options).await,
        Command::Doctor(options) => doctor::run(&session, &options).await,
        Command::Explain(options) => explain::run(&session, &options).await,
        Command::History(options) => history::run(&session, &options).await,
        Command::Revert(options) => revert::run(&session, &options).await,
        Command::Plan(options) => plan::run(&session, &options).await,
        Command::Wait(options) => wait::run(&session, &options).await,
        Command::Bundle(options) => bundle::run(&session, &options),
        Command::Import(options) => import::run(&session, &options).await,
        Command::Ui(options) => ui::run(&session, &options).await,
        Command::Version(options) => version::run(&session, &options).await,
        Command::Completion(options) => print(&script(options.shell)),
        Command::Complete(options) => print(&complete::answer(&Cli::command(), &options.words)),
    }
}

fn script(shell: Shell) -> String {
    let mut command = Cli::command().bin_name("kubectl-runnel");
    let mut text = Vec::new();
    match shell {
        Shell::Bash => clap_complete::generate(Bash, &mut command, "kubectl-runnel", &mut text),
        Shell::Zsh => clap_complete::generate(Zsh, &mut command, "kubectl-runnel", &mut text),
        Shell::Fish => clap_complete::generate(Fish, &mut command, "kubectl-runnel", &mut text),
        Shell::Powershell => {
            clap_complete::generate(PowerShell, &mut command, "kubectl-runnel", &mut text);
        }
        Shell::Kubectl => return complete::SCRIPT.to_owned(),
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Prints to standard output; a closed pipe is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    write_out(text).map(drop)
}

/// Prints to standard output. Returns false if the pipe is closed.
fn write_out(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out
        .write_all(printable(text).as_bytes())
        .and_then(|()| out.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Prints a line to standard error.
pub fn note(text: &str) {
    eprintln!("{}", printable(text));
}

/// Prints objects for machines; `None` for a table.
fn for_machines(output: Option<Output>, value: &Value) -> anyhow::Result<Option<String>> {
    Ok(match output {
        Some(Output::Json) => Some(serde_json::to_string_pretty(value)? + "\n"),
        Some(Output::Yaml) => Some(serde_saphyr::to_string(value)?),
        Some(Output::Wide) | None => None,
    })
}
