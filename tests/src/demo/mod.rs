//! The demo: the real binaries on real control planes, with all events in the life of a copy,
//! printed line by line.
//! [`seed`] has the steps for any [`stage::DemoStage`]: on temporary control planes ([`local`],
//! [`keep`]) or on the user's clusters ([`existing`]). The demo always removes its objects.

pub mod cluster;
pub mod existing;
pub mod keep;
pub mod local;
pub mod narrate;
pub mod observer;
pub mod seed;
pub mod stage;
pub mod story;
pub mod undo;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use rustix::process::{Signal, getpgrp, getpid, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use crate::program::{self, INTERRUPTED, sentences};
use crate::scratch;
use local::LocalOptions;
use narrate::Narrator;
use serde_json::Value;

const MOST_MEMBERS: u16 = 20;

/// Shows Runnel on real Kubernetes control planes: a hub, two member clusters, one rule, and what can happen to its copies.
#[derive(Debug, Parser)]
#[command(name = "cargo demo", bin_name = "cargo demo")]
pub struct DemoArguments {
    /// Starts a joined fleet without rules, and leaves it running until Ctrl-C.
    #[arg(long, conflicts_with = "hub")]
    keep: bool,
    /// The number of member clusters of the kept fleet.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "keep",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_MEMBERS)))]
    members: u16,
    /// Where the kept fleet's kubeconfigs are written: hub.kubeconfig, member-1.kubeconfig, ...
    #[arg(long, value_name = "DIR", requires = "keep")]
    dir: Option<PathBuf>,
    /// Values of the hub's chart for the kept fleet, over those of the demo, as a YAML file.
    #[arg(long, value_name = "FILE", requires = "keep", value_parser = values, default_value = "", hide_default_value = true)]
    hub_values: Value,
    /// Values of the agents' chart for the kept fleet, over those of the demo, as a YAML file.
    #[arg(long, value_name = "FILE", requires = "keep", value_parser = values, default_value = "", hide_default_value = true)]
    agent_values: Value,
    /// Controllers of kube-controller-manager that run in the members, such as
    /// deployment-controller,replicaset-controller. There are no nodes, so no Pod runs.
    #[arg(long, value_name = "LIST", requires = "keep", value_delimiter = ',')]
    controllers: Vec<String>,
    /// Uses a cluster of yours as the hub, instead of starting one.
    #[arg(long, value_name = "KUBECONFIG", requires = "member")]
    hub: Option<PathBuf>,
    /// Uses a cluster of yours as a member; may be given several times.
    #[arg(long, value_name = "NAME=KUBECONFIG", requires = "hub", value_parser = member)]
    member: Vec<(String, PathBuf)>,
    /// Run on your clusters; without it, only print the plan.
    #[arg(long, requires = "hub")]
    yes: bool,
}

fn values(path: &str) -> Result<Value, String> {
    if path.is_empty() {
        return Ok(Value::Null);
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let values: Value = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
    match values {
        Value::Object(_) => Ok(values),
        _ => Err("a file of values has names at its top".to_owned()),
    }
}

fn member(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.into()))
        }
        _ => Err("write NAME=KUBECONFIG, such as eu-1=/home/me/eu-1.kubeconfig".to_owned()),
    }
}

/// Runs the demo with the arguments of this process, and returns its exit code: 0 for success, 1 if
/// something failed or the arguments are wrong, 130 when it was interrupted.
pub fn main() -> ExitCode {
    let arguments = match DemoArguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    program::block_on("demo", run(arguments))
}

// The message of clap is longer than a sentence; its first line is one.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let sentence: Vec<&str> = text
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let sentence = sentence.join(" ");
    eprintln!(
        "{}; see cargo demo --help",
        sentence.strip_prefix("error: ").unwrap_or(&sentence)
    );
    ExitCode::FAILURE
}

async fn run(arguments: DemoArguments) -> ExitCode {
    let begin = Instant::now();
    let mut narrator = Narrator::new();
    let observed = match &arguments.hub {
        Some(hub) => existing::run(&mut narrator, hub, &arguments.member, arguments.yes).await,
        None if arguments.keep => {
            let options = LocalOptions {
                members: arguments.members.into(),
                hub_values: arguments.hub_values,
                agent_values: arguments.agent_values,
                controllers: arguments.controllers,
            };
            keep::run(&mut narrator, options, arguments.dir.as_deref()).await
        }
        None => local::run(&mut narrator).await,
    };
    match observed {
        Ok(DemoOutcome::Completed(totals)) => {
            narrator.title(&format!(
                "\nDone: {totals}; {} s in all.",
                begin.elapsed().as_secs()
            ));
            ExitCode::SUCCESS
        }
        Ok(DemoOutcome::Kept) => {
            narrator.title("\nThe fleet is ended and removed.");
            ExitCode::SUCCESS
        }
        Ok(DemoOutcome::Interrupted) => {
            interrupt_children();
            narrator.title("\nInterrupted; nothing is left behind.");
            ExitCode::from(INTERRUPTED)
        }
        Ok(DemoOutcome::Refused(sentence)) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("\nThe demo failed: {}", sentences(&error));
            ExitCode::FAILURE
        }
    }
}

/// The result of the demo.
#[derive(Debug)]
pub enum DemoOutcome {
    /// Completed, with these totals.
    Completed(String),
    /// A kept fleet was interrupted by Ctrl-C.
    Kept,
    /// By Ctrl-C, or another signal to end.
    Interrupted,
    /// Refused before it began, for this reason.
    Refused(String),
}

/// Runs `work` until it ends or a signal is received. Then it is dropped, with all that it had
/// started.
///
/// # Errors
/// Those of `work`.
pub async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    let mut signals = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ]
    .map(signal)
    .into_iter()
    .collect::<Result<Vec<_>, _>>()?;
    let asked =
        futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv())));
    tokio::select! {
        // First, because the same Ctrl-C makes a `kubectl` of `work` fail.
        biased;
        _ = asked => Ok(None),
        done = work => done.map(Some),
    }
}

/// Keeps the folders with the logs, and prints their paths, when something failed. Call it while
/// they exist.
///
/// # Errors
/// The given error.
pub fn with_logs<T>(result: Result<T>) -> Result<T> {
    result.inspect_err(|_| {
        scratch::keep_everything();
        eprintln!("the kept folders hold the logs, for a day");
    })
}

// A terminal signals cargo as well. A signal to this process alone does not.
fn interrupt_children() {
    if getpgrp() == getpid() {
        let _ = kill_process_group(getpgrp(), Signal::INT);
    }
}
