//! `cargo e2e`: the images, installed by the charts, on clusters with real nodes.
//!
//! [`stage`] gives a hub cluster and two members, either with real nodes on this machine ([`crate::nodes`]) or the user's
//! own ([`guest`]); [`story`] installs Runnel there and tells what then happens to it, step by step.

pub mod guest;
pub mod stage;
pub mod story;
mod tenant;
pub mod waits;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;

use crate::demo::narrate::Narrator;
use crate::demo::{unless_interrupted, with_logs};
use crate::nodes::packages;
use crate::program;

/// Installs Runnel's images with its charts on clusters with real nodes, and breaks what can break there.
///
/// Without --hub it starts three clusters with a real node each on this machine, which needs root: kubelet, containerd
/// and runc in namespaces of their own, without Docker. Debian's packages that are missing are installed.
#[derive(Debug, Parser)]
#[command(name = "cargo e2e", bin_name = "cargo e2e")]
pub struct E2eArguments {
    /// Uses a cluster of yours as the hub, instead of starting one.
    #[arg(long, value_name = "KUBECONFIG", requires_all = ["member", "hub_address"])]
    hub: Option<PathBuf>,
    /// Uses a cluster of yours as a member; may be given several times.
    #[arg(long, value_name = "NAME=KUBECONFIG", requires = "hub", value_parser = member)]
    member: Vec<(String, PathBuf)>,
    /// Where the pods of your members reach node port 30843 of your hub.
    #[arg(long, value_name = "HOST:PORT", requires = "hub")]
    hub_address: Option<String>,
    /// The registry of the images on your clusters; without it they must be on the nodes (deploy/images/build).
    #[arg(long, value_name = "REGISTRY", requires = "hub")]
    image_registry: Option<String>,
    /// Run on your clusters; without it, only print the plan.
    #[arg(long, requires = "hub")]
    yes: bool,
    /// Only starts the three clusters with the images on their nodes, says how to reach them, and ends them at Ctrl-C.
    #[arg(long, conflicts_with_all = ["hub", "skip_if_impossible"])]
    clusters_only: bool,
    /// Exit successfully with a reason if real nodes cannot be started.
    #[arg(long, conflicts_with = "hub")]
    skip_if_impossible: bool,
}

fn member(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.into()))
        }
        _ => Err("write NAME=KUBECONFIG, such as eu-1=/home/me/eu-1.kubeconfig".to_owned()),
    }
}

/// Runs it with the arguments of this process, and returns its exit code: 0 for success or a
/// requested skip, 1 if something failed or the arguments are wrong, 130 when it was interrupted.
pub fn main() -> ExitCode {
    match program::arguments::<E2eArguments>() {
        Ok(arguments) => program::block_on("e2e", run(&arguments)),
        Err(code) => code,
    }
}

async fn run(arguments: &E2eArguments) -> ExitCode {
    let begin = Instant::now();
    if arguments.hub.is_none()
        && let Err(why) = packages::prepare()
    {
        return impossible(arguments, &why);
    }
    let mut narrator = Narrator::new();
    let outcome = observed(arguments, &mut narrator).await;
    program::conclude("cargo e2e", &mut narrator, begin, outcome)
}

fn impossible(arguments: &E2eArguments, why: &anyhow::Error) -> ExitCode {
    if arguments.skip_if_impossible {
        println!("skipped: {why:#}");
        return ExitCode::SUCCESS;
    }
    eprintln!("cargo e2e cannot start clusters here: {why:#}");
    ExitCode::FAILURE
}

/// None when it was interrupted.
async fn observed(arguments: &E2eArguments, narrator: &mut Narrator) -> Result<Option<()>> {
    let Some(stage) = unless_interrupted(stage(arguments, narrator)).await? else {
        return Ok(None);
    };
    if arguments.clusters_only {
        narrator.say(&invitation(&stage));
        return unless_interrupted(std::future::pending()).await;
    }
    // While the clusters are there, so that their logs can be kept.
    let observed = with_logs(unless_interrupted(story::run_steps(&stage, narrator)).await);
    if arguments.hub.is_some() {
        narrator.say("what was made on your clusters is removed again");
        let tidied = guest::tidy(&stage).await;
        return observed.and_then(|observed| tidied.map(|()| observed));
    }
    observed
}

/// The access to the clusters, and the parameters of the steps.
fn invitation(stage: &stage::E2eStage) -> String {
    let all = std::iter::once(&stage.hub).chain(&stage.members);
    let lines = all.map(|cluster| {
        format!(
            "kubectl --kubeconfig {} get nodes    # {}",
            cluster.kubeconfig.display(),
            cluster.name
        )
    });
    let lines: Vec<_> = lines.collect();
    let members = stage
        .members
        .iter()
        .map(|one| format!(" --member {}={}", one.name, one.kubeconfig.display()));
    let (hub, address) = (stage.hub.kubeconfig.display(), &stage.address);
    format!(
        "three clusters run until Ctrl-C:\n{}\ncargo e2e --hub {hub}{} --hub-address {address} --yes",
        lines.join("\n"),
        members.collect::<String>()
    )
}

async fn stage(arguments: &E2eArguments, narrator: &mut Narrator) -> Result<stage::E2eStage> {
    match (&arguments.hub, &arguments.hub_address) {
        (Some(_), _) if !arguments.yes => bail!(
            "on your clusters this installs the charts in the namespace runnel-system, makes the namespaces ns-codis-test, \
             another-test, team-a, tenants and shop, and removes all of it again, with the CRDs: give --yes for it"
        ),
        (Some(hub), Some(address)) => {
            let registry = arguments.image_registry.as_deref().unwrap_or_default();
            let stage = stage::given(hub, &arguments.member, address, registry).await?;
            guest::untouched(&stage).await?;
            Ok(stage)
        }
        _ => stage::local(narrator).await,
    }
}
