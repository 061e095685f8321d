//! The parts of the demo on any clusters: the charts, a hub, agents that join by token.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::{try_join, try_join_all};
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::narrate::Narrator;
use crate::binaries::Binaries;
use crate::control_plane::write_private;
use crate::fleet::{AGENT, Agent, FleetOptions, HUB, Hub, condition_of};
use crate::helm::Helm;
use crate::pod::Site;
use crate::restartable::Restartable;
use crate::wait::eventually;

const CONNECTS: Duration = Duration::from_secs(60);
const VIEW: &str = "v1alpha1.view.runnel.dev";

/// The clusters of a fleet.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// The cluster with rules and sources.
    pub hub: Cluster,
    /// The target clusters.
    pub members: Vec<Cluster>,
    /// Whether they run on this machine. Their API servers can reach the hub then, so the view API
    /// is served.
    pub local: bool,
}

impl Clusters {
    /// Returns all clusters, the hub first.
    pub fn all(&self) -> impl Iterator<Item = &Cluster> {
        std::iter::once(&self.hub).chain(&self.members)
    }
}

/// What a fleet of the demo is made of; `local` as in [`Clusters`]. Where clusters have nodes, none of them takes the
/// charts' pods: hub and agents run as processes of this machine.
#[must_use]
pub fn options(local: bool) -> FleetOptions {
    let nowhere = json!({"runnel.dev/demo": "runs-as-processes"});
    FleetOptions {
        log: "runnel=info,warn".to_owned(),
        views: local,
        written_limits: false,
        hub_values: json!({"nodeSelector": nowhere}),
        agent_values: json!({"nodeSelector": nowhere}),
        ..FleetOptions::default()
    }
}

/// The cluster for `helm` and the processes of this machine, with a separate folder below `folder`.
///
/// # Errors
/// When the kubeconfig cannot be read, or the folder not written.
pub fn site(cluster: &Cluster, folder: &Path) -> Result<Site> {
    let folder = folder.join(&cluster.name);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    // A copy, because helm stores its cache beside the kubeconfig.
    let kubeconfig = folder.join("kubeconfig");
    let unusable = || {
        format!(
            "the kubeconfig {} of {} cannot be used",
            cluster.kubeconfig.display(),
            cluster.name
        )
    };
    let read = Kubeconfig::read_from(&cluster.kubeconfig).with_context(unusable)?;
    write_private(&kubeconfig, &serde_json::to_string(&read)?)?;
    Ok(Site {
        name: cluster.name.clone(),
        kubeconfig,
        folder,
    })
}

/// A hub and the agents of its members, as processes of this machine; dropping it ends them.
#[derive(Debug)]
pub struct DemoStage {
    // Dropped in this order.
    agents: Vec<Agent>,
    hub: Hub,
}

impl DemoStage {
    /// Installs the charts, starts the hub, joins every member, and returns when all are connected.
    ///
    /// # Errors
    /// When a part of that fails; with the end of its log.
    pub async fn start(
        clusters: &Clusters,
        binaries: &Binaries,
        folder: &Path,
        options: &FleetOptions,
        narrator: &Narrator,
    ) -> Result<Self> {
        let helm = Helm::find().await?;
        let stage = Self::install(&helm, clusters, binaries, folder, options, narrator).await?;
        let begin = Instant::now();
        stage.hub.start().await?;
        narrator.took(
            &format!("runnel-hub listens on {}", stage.hub.addresses().join(", ")),
            begin.elapsed(),
        );
        let begin = Instant::now();
        try_join_all(stage.agents.iter().map(|agent| async {
            agent
                .hand_over(
                    &stage
                        .hub
                        .join_string(agent.member(), binaries, options)
                        .await?,
                )
                .await?;
            agent.pod().start().await?;
            connected(&clusters.hub, agent.member(), agent.process()).await?;
            narrator.took(
                &format!(
                    "{} has joined with its token and is connected",
                    agent.member()
                ),
                begin.elapsed(),
            );
            anyhow::Ok(())
        }))
        .await?;
        if clusters.local {
            view_is_served(&clusters.hub).await?;
        }
        Ok(stage)
    }

    /// Returns the hub.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Returns the agents, in the order of the members.
    #[must_use]
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }

    /// Checks that every process runs.
    ///
    /// # Errors
    /// If one has ended by itself; with the end of its log.
    pub fn check(&self) -> Result<()> {
        let hub = self.hub.replicas().iter().map(|replica| replica.process());
        self.agents
            .iter()
            .map(Agent::process)
            .chain(hub)
            .try_for_each(Restartable::check)
    }

    async fn install(
        helm: &Helm,
        clusters: &Clusters,
        binaries: &Binaries,
        folder: &Path,
        options: &FleetOptions,
        narrator: &Narrator,
    ) -> Result<Self> {
        let begin = Instant::now();
        let hub = site(&clusters.hub, folder)?;
        let members = clusters
            .members
            .iter()
            .map(|member| site(member, folder))
            .collect::<Result<Vec<_>>>()?;
        let agents = members.iter().map(|member| {
            Agent::install(
                helm,
                (member, &member.name),
                binaries,
                options,
                "runnel-agent.log",
            )
        });
        let (hub, agents) = try_join(
            Hub::install(helm, &hub, binaries, options),
            try_join_all(agents),
        )
        .await?;
        narrator.took(
            &format!("helm has installed {HUB} in the hub, {AGENT} in its members"),
            begin.elapsed(),
        );
        Ok(Self { agents, hub })
    }
}

/// Waits until the API server forwards requests for views to the hub.
async fn view_is_served(hub: &Cluster) -> Result<()> {
    eventually("the view API to be served", CONNECTS, async || {
        let shown = hub
            .kubectl(&["get", "apiservice", VIEW, "-o", "json"], "")
            .await?;
        let status = condition_of(&serde_json::from_str::<Value>(&shown)?, "Available");
        ensure!(status == "True", "its condition Available is {status:?}");
        Ok(Some(()))
    })
    .await
}

async fn connected(hub: &Cluster, member: &str, agent: &Restartable) -> Result<()> {
    let what = format!("the hub to say that {member} is connected");
    let seen = eventually(&what, CONNECTS, async || {
        if let Err(ended) = agent.check() {
            return Ok(Some(Err(ended)));
        }
        let shown = hub
            .kubectl(&["get", "member", member, "-o", "json"], "")
            .await?;
        let status = condition_of(&serde_json::from_str::<Value>(&shown)?, "Connected");
        ensure!(status == "True", "its condition Connected is {status:?}");
        Ok(Some(Ok(())))
    });
    match seen.await.with_context(|| agent.last_words())? {
        Ok(()) => Ok(()),
        Err(ended) => bail!(ended),
    }
}
