//! A hub and its member clusters, as a user would have them: real control planes, real binaries.

pub(crate) mod arguments;
mod options;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::binaries::{self, Binaries};
use crate::control_plane::{ControlPlane, Options, write_private};
use crate::guard::Program;
use crate::ports::{self, local};
use crate::restartable::Restartable;
use crate::wait::eventually;
pub use options::FleetOptions;

/// The namespace of hub and agents.
pub const NAMESPACE: &str = "runnel-system";

const LISTENS: Duration = Duration::from_secs(30);
const CONNECTS: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(15);

/// A running hub with connected members; dropping it ends everything.
///
/// Members are counted from 1, like their names: `member(1)` is `member-1`. A fleet holds no task
/// and no connection, so the tests of one file can share one in a `tokio::sync::OnceCell`.
#[derive(Debug)]
pub struct Fleet {
    // Declared, and so dropped, in the order in which they have to end.
    agents: Vec<Agent>,
    hub: Restartable,
    members: Vec<ControlPlane>,
    cluster: ControlPlane,
    hub_port: u16,
    hub_ops_port: u16,
    binaries: Binaries,
}

#[derive(Debug)]
struct Agent {
    member: String,
    run: Restartable,
    ops_port: u16,
}

impl Fleet {
    /// Starts all control planes at once, the hub, and the agents, and returns when every agent is
    /// connected.
    ///
    /// # Errors
    /// When anything of that fails; with the end of the log that tells why.
    pub async fn start(options: FleetOptions) -> Result<Self> {
        let built = tokio::task::spawn_blocking(binaries::build).await??;
        let (cluster, members) = control_planes(&options).await?;
        let (hub_port, hub_ops_port) = (ports::free()?, ports::free()?);
        let hub = Program::new(&built.hub, cluster.folder().join("runnel-hub.log"))
            .arguments(arguments::hub(cluster.kubeconfig(), hub_port, hub_ops_port, &options))
            .environment("RUNNEL_LOG", &options.log);
        let hub = Restartable::new("runnel-hub", hub);
        let mut fleet = Self { agents: Vec::new(), hub, members, cluster, hub_port, hub_ops_port, binaries: built };
        fleet.prepare_clusters().await?;
        fleet.start_hub().await?;
        fleet.add_agents(&options).await?;
        Ok(fleet)
    }

    /// The hub's cluster.
    #[must_use]
    pub fn hub(&self) -> &ControlPlane {
        &self.cluster
    }

    /// The cluster of a member, from 1; with `hub_is_member` the last one is the hub's.
    #[must_use]
    pub fn member(&self, number: usize) -> &ControlPlane {
        self.members.get(number.wrapping_sub(1)).unwrap_or(&self.cluster)
    }

    /// The number of members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.agents.len()
    }

    /// The name of a member's `MemberCluster`, from 1.
    #[must_use]
    pub fn member_name(&self, number: usize) -> &str {
        &self.agents[number - 1].member
    }

    /// The hub's process, to kill, stop or freeze it.
    #[must_use]
    pub fn hub_process(&self) -> &Restartable {
        &self.hub
    }

    /// The process of a member's agent, from 1, to kill, stop or freeze it.
    #[must_use]
    pub fn agent_process(&self, number: usize) -> &Restartable {
        &self.agents[number - 1].run
    }

    /// The binaries that run here; the `kubectl` plugin is in the same folder.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Where agents reach the hub, as `127.0.0.1:16500`.
    #[must_use]
    pub fn hub_address(&self) -> String {
        local(self.hub_port).to_string()
    }

    /// Where the hub tells its operator about itself, as `http://127.0.0.1:16501`.
    #[must_use]
    pub fn hub_ops_url(&self) -> String {
        format!("http://{}", local(self.hub_ops_port))
    }

    /// Where a member's agent, from 1, tells its operator about itself.
    #[must_use]
    pub fn agent_ops_url(&self, number: usize) -> String {
        format!("http://{}", local(self.agents[number - 1].ops_port))
    }

    /// The hub's log: one JSON object per line.
    #[must_use]
    pub fn hub_log(&self) -> &Path {
        self.hub.log()
    }

    /// The log of a member's agent, from 1: one JSON object per line.
    #[must_use]
    pub fn agent_log(&self, number: usize) -> &Path {
        self.agent_process(number).log()
    }

    /// Kills the hub with `kill -9`.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn kill_hub(&self) -> Result<()> {
        self.hub.kill()
    }

    /// Asks the hub to end and returns its exit code.
    ///
    /// # Errors
    /// When it did not run, or did not end within 15 s.
    pub async fn stop_hub(&self) -> Result<i32> {
        self.hub.terminate(GRACE).await
    }

    /// Starts the hub, on the same ports, and returns when it listens.
    ///
    /// # Errors
    /// When it runs already, ends at once, or does not listen within 30 s.
    pub async fn start_hub(&self) -> Result<()> {
        self.hub.start()?;
        // Not the agents' port: a visitor without a certificate would be in the hub's log.
        listens(&self.hub, self.hub_ops_port).await
    }

    /// Kills a member's agent, from 1, with `kill -9`.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn kill_agent(&self, number: usize) -> Result<()> {
        self.agent_process(number).kill()
    }

    /// Asks a member's agent, from 1, to end and returns its exit code.
    ///
    /// # Errors
    /// When it did not run, or did not end within 15 s.
    pub async fn stop_agent(&self, number: usize) -> Result<i32> {
        self.agent_process(number).terminate(GRACE).await
    }

    /// Starts a member's agent, from 1, and returns when it runs; [`Fleet::connected`] waits for
    /// more.
    ///
    /// # Errors
    /// When it runs already, ends at once, or does not listen within 30 s.
    pub async fn start_agent(&self, number: usize) -> Result<()> {
        let agent = &self.agents[number - 1];
        agent.run.start()?;
        listens(&agent.run, agent.ops_port).await
    }

    /// Waits until the hub says that a member, from 1, is connected.
    ///
    /// # Errors
    /// When it does not within 60 s, or the agent ends; with the end of the agent's log.
    pub async fn connected(&self, number: usize) -> Result<()> {
        self.condition(number, "Connected", "True").await
    }

    /// Waits until the condition `kind` of a member, from 1, is `status`.
    ///
    /// # Errors
    /// When it is not within 60 s, or the agent has ended by itself.
    pub async fn condition(&self, number: usize, kind: &str, status: &str) -> Result<()> {
        let agent = &self.agents[number - 1];
        let members = member_clusters(self.cluster.client().await?);
        let what = format!("{kind}={status} of MemberCluster/{}", agent.member);
        let seen = eventually(&what, CONNECTS, async || {
            agent.run.check()?;
            let seen = condition_of(&members.get(&agent.member).await?.data, kind);
            ensure!(seen == status, "it is {seen:?}");
            Ok(Some(()))
        });
        seen.await.with_context(|| agent.run.last_words())
    }

    async fn prepare_clusters(&self) -> Result<()> {
        let hub = std::iter::once(&self.cluster);
        for cluster in hub.chain(&self.members) {
            cluster.kubectl(&["create", "namespace", NAMESPACE]).await?;
        }
        let crds = output(&self.binaries.hub, &arguments::crds()).await?;
        self.cluster.kubectl_stdin(&["apply", "--server-side", "-f", "-"], &crds).await?;
        let established = ["wait", "--for=condition=Established", "--timeout=30s", "-f", "-"];
        self.cluster.kubectl_stdin(&established, &crds).await.map(|_| ())
    }

    async fn add_agents(&mut self, options: &FleetOptions) -> Result<()> {
        let mut agents = Vec::new();
        for member in &self.members {
            agents.push(self.new_agent(member.name(), member, options).await?);
        }
        if options.hub_is_member {
            agents.push(self.new_agent("hub", &self.cluster, options).await?);
        }
        self.agents = agents;
        for agent in &self.agents {
            agent.run.start()?;
        }
        try_join_all((1..=self.size()).map(|number| self.connected(number))).await.map(|_| ())
    }

    async fn new_agent(&self, member: &str, cluster: &ControlPlane, options: &FleetOptions) -> Result<Agent> {
        let join = self.join_file(member, cluster, options).await?;
        let ops_port = ports::free()?;
        let program = Program::new(&self.binaries.agent, cluster.folder().join("runnel-agent.log"))
            .arguments(arguments::agent(&join, cluster.kubeconfig(), ops_port, options))
            .environment("RUNNEL_LOG", &options.log);
        Ok(Agent {
            member: member.to_owned(),
            run: Restartable::new(format!("the agent of {member}"), program),
            ops_port,
        })
    }

    async fn join_file(&self, member: &str, cluster: &ControlPlane, options: &FleetOptions) -> Result<PathBuf> {
        let arguments = arguments::token(member, self.cluster.kubeconfig(), self.hub_port, options);
        let join = output(&self.binaries.hub, &arguments).await?;
        let path = cluster.folder().join("join-string");
        write_private(&path, join.trim())?;
        Ok(path)
    }
}

async fn control_planes(options: &FleetOptions) -> Result<(ControlPlane, Vec<ControlPlane>)> {
    let usual = Options { folder: None, ..options.control_plane.clone() };
    let names = std::iter::once("hub".to_owned()).chain((1..=options.members).map(|number| format!("member-{number}")));
    let starts = names.map(|name| {
        let usual = usual.clone();
        async move { ControlPlane::start(&name, usual).await }
    });
    let mut started = try_join_all(starts).await?;
    Ok((started.remove(0), started))
}

pub(crate) async fn listens(run: &Restartable, port: u16) -> Result<()> {
    let what = format!("a listener on {}", local(port));
    let seen = eventually(&what, LISTENS, async || {
        if let Err(ended) = run.check() {
            return Ok(Some(Err(ended)));
        }
        TcpStream::connect(local(port)).await?;
        Ok(Some(Ok(())))
    });
    seen.await.with_context(|| run.last_words())?
}

pub(crate) async fn output(program: &Path, arguments: &[String]) -> Result<String> {
    let output = Command::new(program).args(arguments).env_remove("KUBECONFIG").output().await;
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} {}: {}", program.display(), arguments.join(" "), said.trim_end());
    }
    String::from_utf8(output.stdout).context("the output is not text")
}

/// The `MemberCluster` objects, as whatever they contain.
#[must_use]
pub fn member_clusters(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("runnel.dev", "v1alpha1", "MemberCluster");
    Api::all_with(client, &ApiResource::from_gvk_with_plural(&kind, "memberclusters"))
}

/// The status of the condition `kind` of an object: `True`, `False`, `Unknown`, or empty where it
/// is absent.
#[must_use]
pub fn condition_of(object: &Value, kind: &str) -> String {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or_default().to_owned()
}
