//! What the demo runs on clusters, whoever they belong to: the custom resources, a hub, agents that join by token.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use serde_json::Value;

use super::cluster::Cluster;
use super::narrate::Narrator;
use crate::binaries::Binaries;
use crate::control_plane::write_private;
use crate::fleet::{FleetOptions, NAMESPACE, arguments, condition_of, listens, output};
use crate::guard::Program;
use crate::ports::{self, local};
use crate::restartable::Restartable;
use crate::wait::eventually;

const CONNECTS: Duration = Duration::from_secs(60);

/// The clusters of a fleet.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// Where rules and sources are.
    pub hub: Cluster,
    /// Where copies go.
    pub members: Vec<Cluster>,
}

impl Clusters {
    /// All of them, the hub first.
    pub fn all(&self) -> impl Iterator<Item = &Cluster> {
        std::iter::once(&self.hub).chain(&self.members)
    }
}

/// A hub and the agents of its members, as processes of this machine; dropping it ends them.
#[derive(Debug)]
pub struct Stage {
    // Dropped in this order.
    agents: Vec<Restartable>,
    hub: Restartable,
    hub_port: u16,
    options: FleetOptions,
}

impl Stage {
    /// Installs the custom resources, starts the hub, lets every member join, and returns when all are connected.
    ///
    /// # Errors
    /// When anything of that fails; with the end of the log that tells why.
    pub async fn start(clusters: &Clusters, binaries: &Binaries, folder: &Path, narrator: &Narrator) -> Result<Self> {
        let begin = Instant::now();
        install(clusters, binaries).await?;
        narrator.took("the custom resources are installed in the hub's cluster", begin.elapsed());
        let mut stage = Self::with_hub(clusters, binaries, folder, narrator).await?;
        for member in &clusters.members {
            stage.join(&clusters.hub, member, binaries, folder).await?;
        }
        let begin = Instant::now();
        try_join_all(clusters.members.iter().zip(&stage.agents).map(|(member, agent)| async {
            agent.start()?;
            connected(&clusters.hub, &member.name, agent).await?;
            narrator.took(&format!("{} has joined with its token and is connected", member.name), begin.elapsed());
            anyhow::Ok(())
        }))
        .await?;
        Ok(stage)
    }

    /// Says that every process still runs.
    ///
    /// # Errors
    /// When one has ended by itself; with its last words.
    pub fn check(&self) -> Result<()> {
        self.agents.iter().chain([&self.hub]).try_for_each(Restartable::check)
    }

    async fn with_hub(clusters: &Clusters, binaries: &Binaries, folder: &Path, narrator: &Narrator) -> Result<Self> {
        let begin = Instant::now();
        let options = FleetOptions { log: "runnel=info,warn".to_owned(), ..FleetOptions::default() };
        let (hub_port, ops_port) = (ports::free()?, ports::free()?);
        let program = Program::new(&binaries.hub, folder.join("runnel-hub.log"))
            .arguments(arguments::hub(&clusters.hub.kubeconfig, hub_port, ops_port, &options))
            .environment("RUNNEL_LOG", &options.log);
        let hub = Restartable::new("runnel-hub", program);
        hub.start()?;
        listens(&hub, ops_port).await?;
        narrator.took(&format!("runnel-hub listens on {}", local(hub_port)), begin.elapsed());
        Ok(Self { agents: Vec::new(), hub, hub_port, options })
    }

    async fn join(&mut self, hub: &Cluster, member: &Cluster, binaries: &Binaries, folder: &Path) -> Result<()> {
        let token = arguments::token(&member.name, &hub.kubeconfig, self.hub_port, &self.options);
        let join_string = output(&binaries.hub, &token).await?;
        let path = folder.join(format!("{}.join", member.name));
        write_private(&path, join_string.trim())?;
        let arguments = arguments::agent(&path, &member.kubeconfig, ports::free()?, &self.options);
        let program = Program::new(&binaries.agent, folder.join(format!("runnel-agent.{}.log", member.name)))
            .arguments(arguments)
            .environment("RUNNEL_LOG", &self.options.log);
        self.agents.push(Restartable::new(format!("the agent of {}", member.name), program));
        Ok(())
    }
}

async fn install(clusters: &Clusters, binaries: &Binaries) -> Result<()> {
    try_join_all(
        clusters.all().map(|cluster| async { cluster.kubectl(&["create", "namespace", NAMESPACE], "").await }),
    )
    .await?;
    let definitions = output(&binaries.hub, &arguments::crds()).await?;
    clusters.hub.kubectl(&["apply", "--server-side", "-f", "-"], &definitions).await?;
    let established = ["wait", "--for=condition=Established", "--timeout=30s", "-f", "-"];
    clusters.hub.kubectl(&established, &definitions).await.map(|_| ())
}

async fn connected(hub: &Cluster, member: &str, agent: &Restartable) -> Result<()> {
    let what = format!("the hub to say that {member} is connected");
    let seen = eventually(&what, CONNECTS, async || {
        if let Err(ended) = agent.check() {
            return Ok(Some(Err(ended)));
        }
        let shown = hub.kubectl(&["get", "member", member, "-o", "json"], "").await?;
        let status = condition_of(&serde_json::from_str::<Value>(&shown)?, "Connected");
        ensure!(status == "True", "its condition Connected is {status:?}");
        Ok(Some(Ok(())))
    });
    match seen.await.with_context(|| agent.last_words())? {
        Ok(()) => Ok(()),
        Err(ended) => bail!(ended),
    }
}
