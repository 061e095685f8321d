//! The clusters of the run.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::assets::Assets;
use crate::cargo;
use crate::demo::cluster::Cluster;
use crate::demo::narrate::Narrator;
use crate::helm::Helm;
use crate::nodes::binaries;
use crate::nodes::network::Network;
use crate::nodes::{Machine, system};
use crate::progress::Progress;
use crate::scratch::Scratch;

/// The port on every node of the hub at which agents reach it.
pub const NODE_PORT: u16 = 30843;

/// A hub cluster, its members, and what installs Runnel there.
#[derive(Debug)]
pub struct E2eStage {
    /// The hub's cluster.
    pub hub: Cluster,
    /// The members' clusters.
    pub members: Vec<Cluster>,
    /// Where the members' pods reach the hub.
    pub address: String,
    /// The real helm.
    pub helm: Helm,
    /// Chart values with the image.
    pub image: Value,
    machines: Vec<Machine>,
    folder: Scratch,
    // After the machines, which are tied to it.
    _network: Option<Network>,
}

impl E2eStage {
    /// The machine of a member, from 0, if it is one of ours.
    #[must_use]
    pub fn machine_of(&self, member: usize) -> Option<&Machine> {
        self.machines.get(member + 1)
    }

    /// A folder that is removed with the stage.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Three clusters with a real node each on this machine, with images that are built for it.
///
/// # Errors
/// When a part of that fails; with the end of its log.
pub async fn local(narrator: &mut Narrator) -> Result<E2eStage> {
    narrator.step("Images of hub and agent, and three clusters with a real node each");
    let begin = Instant::now();
    let archives = tokio::task::spawn_blocking(images).await??;
    narrator.took("the images are built", begin.elapsed());
    for archive in &archives {
        let size = std::fs::metadata(archive)?.len();
        narrator.say(&format!(
            "{} has {size} bytes",
            archive.file_name().unwrap_or_default().display()
        ));
    }
    let (begin, helm) = (Instant::now(), Helm::find().await?);
    let (network, parts) =
        tokio::task::spawn_blocking(|| anyhow::Ok((Network::make()?, binaries::find()?))).await??;
    let names = ["hub", "member-1", "member-2"];
    let starts = (1..)
        .zip(names)
        .map(|(number, name)| Machine::start(name, number, &parts, &archives));
    let machines = try_join_all(starts).await?;
    narrator.took("3 clusters run, and their nodes are ready", begin.elapsed());
    let folder = Scratch::new("e2e")?;
    let kubectl = kubectl(folder.path(), &parts.node)?;
    let cluster = |machine: &Machine| {
        Cluster::new(
            machine.name(),
            &machine.kubeconfig(),
            &kubectl,
            &folder.path().join("cache"),
        )
    };
    Ok(E2eStage {
        hub: cluster(&machines[0]),
        members: machines[1..].iter().map(cluster).collect(),
        address: format!("{}:{NODE_PORT}", machines[0].address()),
        helm,
        image: json!({"pullPolicy": "Never"}),
        machines,
        folder,
        _network: Some(network),
    })
}

/// Clusters of the user's.
///
/// # Errors
/// When the tools cannot be had.
pub async fn given(
    hub: &Path,
    members: &[(String, PathBuf)],
    address: &str,
    registry: &str,
) -> Result<E2eStage> {
    let helm = Helm::find().await?;
    let kubectl = tokio::task::spawn_blocking(Assets::find).await??.kubectl();
    let folder = Scratch::new("e2e")?;
    let cache = folder.path().join("cache");
    let member =
        |(name, kubeconfig): &(String, PathBuf)| Cluster::new(name, kubeconfig, &kubectl, &cache);
    Ok(E2eStage {
        hub: Cluster::new("hub", hub, &kubectl, &cache),
        members: members.iter().map(member).collect(),
        address: address.to_owned(),
        helm,
        image: json!({"registry": registry}),
        machines: Vec::new(),
        folder,
        _network: None,
    })
}

/// The archives of both images: the shipped ones with fewer optimizations.
fn images() -> Result<Vec<PathBuf>> {
    let _progress = Progress::start(
        "building the images of runnel-hub and runnel-agent (minutes, the first time)",
    );
    let output = format!("{}/target/images", cargo::ROOT);
    system(
        &format!("{}/deploy/images/build", cargo::ROOT),
        &["--output", &output, "--profile", "trial"],
    )?;
    Ok(["runnel-hub", "runnel-agent"]
        .map(|name| Path::new(&output).join(format!("{name}.tar")))
        .to_vec())
}

/// A `kubectl` under its own name: the binary selects its part by the name of the call.
fn kubectl(folder: &Path, node: &Path) -> Result<PathBuf> {
    let link = folder.join("kubectl");
    std::os::unix::fs::symlink(node, &link).context("cannot make a link to kubectl")?;
    Ok(link)
}
