//! The demo on local control planes.

use std::time::Instant;

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::Value;

use super::cluster::Cluster;
use super::narrate::Narrator;
use super::seed;
use super::stage::{Clusters, DemoStage, options};
use super::{DemoOutcome, unless_interrupted, with_logs};
use crate::assets::{Assets, KUBERNETES_VERSION};
use crate::binaries::{self, Binaries};
use crate::control_plane::{ControlPlane, Options};
use crate::fleet::merge;

const MEMBERS: usize = 2;

/// What a fleet differs in.
#[derive(Debug)]
pub struct LocalOptions {
    /// How many members there are.
    pub members: usize,
    /// Values of the hub's chart, over those that the demo has.
    pub hub_values: Value,
    /// Values of the agents' chart, over those that the demo has.
    pub agent_values: Value,
    /// More controllers in the members, by the names that kube-controller-manager has for them.
    pub controllers: Vec<String>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            members: MEMBERS,
            hub_values: Value::Null,
            agent_values: Value::Null,
            controllers: Vec::new(),
        }
    }
}

/// A fleet on control planes of this machine; dropping it ends and removes all of it.
#[derive(Debug)]
pub struct LocalFleet {
    // Dropped in this order: agents and hub before the clusters that they talk to.
    /// Hub and agents.
    pub stage: DemoStage,
    /// The clusters.
    pub clusters: Clusters,
    /// The `kubectl` of the control planes' version.
    pub assets: Assets,
    /// The programs that run, and the plugin.
    pub binaries: Binaries,
    _planes: Vec<ControlPlane>,
}

/// Runs the demo on a hub and two members.
///
/// # Errors
/// If a step fails; with the goal and the last observation.
pub async fn run(narrator: &mut Narrator) -> Result<DemoOutcome> {
    let observed = unless_interrupted(async {
        narrator
            .title("Runnel: ConfigMaps and Secrets from one hub cluster to its member clusters");
        let fleet = LocalFleet::start(narrator, LocalOptions::default()).await?;
        with_logs(seed::run_steps(narrator, &fleet.clusters, &fleet.stage).await)
    });
    Ok(observed
        .await?
        .map_or(DemoOutcome::Interrupted, DemoOutcome::Completed))
}

impl LocalFleet {
    /// Builds what is missing, starts the control planes, hub and agents, and returns when all members are connected.
    ///
    /// # Errors
    /// When anything of that fails.
    pub async fn start(narrator: &mut Narrator, wanted: LocalOptions) -> Result<Self> {
        let built = tokio::task::spawn_blocking(binaries::build).await??;
        let assets = tokio::task::spawn_blocking(Assets::find).await??;
        narrator.step("A hub cluster and its members: real control planes, the real binaries");
        let begin = Instant::now();
        let members = (1..=wanted.members).map(|number| {
            let options = Options {
                controllers: wanted.controllers.clone(),
                ..Options::default()
            };
            (format!("member-{number}"), options)
        });
        let planes = std::iter::once(("hub".to_owned(), Options::default()))
            .chain(members)
            .map(|(name, options)| async move { ControlPlane::start(&name, options).await });
        let planes = try_join_all(planes).await?;
        let what = format!(
            "{} control planes run (Kubernetes {KUBERNETES_VERSION}, etcd, no nodes)",
            planes.len()
        );
        narrator.took(&what, begin.elapsed());
        let cluster = |plane: &ControlPlane| {
            Cluster::new(
                plane.name(),
                plane.kubeconfig(),
                &assets.kubectl(),
                plane.folder(),
            )
        };
        let clusters = Clusters {
            hub: cluster(&planes[0]),
            members: planes[1..].iter().map(cluster).collect(),
            local: true,
        };
        let mut options = options(true);
        merge(&mut options.hub_values, &wanted.hub_values);
        merge(&mut options.agent_values, &wanted.agent_values);
        let folder = planes[0].folder();
        let stage =
            with_logs(DemoStage::start(&clusters, &built, folder, &options, narrator).await)?;
        clusters.hub.show(narrator, &["get", "member"]).await?;
        Ok(Self {
            stage,
            clusters,
            assets,
            binaries: built,
            _planes: planes,
        })
    }
}
