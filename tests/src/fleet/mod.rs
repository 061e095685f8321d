//! A hub and its member clusters, as a user would have them: real control planes, the charts installed by the real
//! `helm`, and the real binaries with what the charts give them, as [`crate::pod`] says. Nothing of Runnel's runs with an
//! administrator's rights.

mod options;
mod party;
mod release;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::{try_join, try_join_all};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;
use tokio::process::Command;

use crate::binaries::{self, Binaries};
use crate::control_plane::{ControlPlane, Options};
use crate::helm::Helm;
use crate::pod::Site;
use crate::restartable::Restartable;
use crate::wait::eventually;
pub use options::FleetOptions;
pub use party::{Agent, Hub, Replica};
pub(crate) use release::merge;
pub use release::{AGENT, HUB, Release, account, rendered};

/// The namespace of hub and agents.
pub const NAMESPACE: &str = "runnel-system";

const CONNECTS: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(15);

/// A running hub with connected members; ended on drop.
/// Members are numbered from 1, like their names: `member(1)` is `member-1`. A fleet has no task
/// and no connection, so the tests of one file can share one in a `tokio::sync::OnceCell`.
#[derive(Debug)]
pub struct Fleet {
    // Declared, and so dropped, in the order in which they have to end.
    agents: Vec<Agent>,
    hub: Hub,
    members: Vec<ControlPlane>,
    cluster: ControlPlane,
    binaries: Binaries,
}

impl Fleet {
    /// Starts all control planes at once, installs the charts, starts the hub and the agents, and
    /// returns when every agent is connected.
    ///
    /// # Errors
    /// When a part of that fails; with the end of its log.
    pub async fn start(options: FleetOptions) -> Result<Self> {
        let binaries = tokio::task::spawn_blocking(binaries::build).await??;
        let helm = Helm::find().await?;
        let (cluster, members) = control_planes(&options).await?;
        try_join(
            make_namespaces(std::iter::once(&cluster), &options.hub_namespaces),
            make_namespaces(members.iter(), &options.member_namespaces),
        )
        .await?;
        let site = Site::from(&cluster);
        let mut sites: Vec<Site> = members.iter().map(Site::from).collect();
        if options.hub_is_member {
            sites.push(site.clone());
        }
        let agents = sites.iter().map(|site| {
            Agent::install(
                &helm,
                (site, &site.name),
                &binaries,
                &options,
                "runnel-agent.log",
            )
        });
        let (hub, agents) = try_join(
            Hub::install(&helm, &site, &binaries, &options),
            try_join_all(agents),
        )
        .await?;
        let fleet = Self {
            agents,
            hub,
            members,
            cluster,
            binaries,
        };
        fleet.start_hub().await?;
        fleet.start_agents(&options).await?;
        if options.views {
            fleet.views_are_served().await?;
        }
        Ok(fleet)
    }

    /// Waits until the API server has found the hub's view API, also after the hub was away.
    ///
    /// # Errors
    /// When it does not within a minute.
    pub async fn views_are_served(&self) -> Result<()> {
        let condition = "--for=condition=Available";
        let service = "apiservice/v1alpha1.view.runnel.dev";
        eventually("the APIService to be available", CONNECTS, async || {
            let arguments = ["wait", condition, service, "--timeout=1s"];
            self.cluster.kubectl(&arguments).await?;
            // The condition may be from before: it is checked every 30 s.
            let arguments = ["get", "clusterdeliveries", "--request-timeout=5s"];
            self.cluster.kubectl(&arguments).await.map(Some)
        })
        .await
        .map(drop)
    }

    /// The hub's cluster.
    #[must_use]
    pub fn hub(&self) -> &ControlPlane {
        &self.cluster
    }

    /// The cluster of a member, from 1; with `hub_is_member` the last one is the hub's.
    #[must_use]
    pub fn member(&self, number: usize) -> &ControlPlane {
        self.members
            .get(number.wrapping_sub(1))
            .unwrap_or(&self.cluster)
    }

    /// The number of members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.agents.len()
    }

    /// The name of a member's `MemberCluster`, from 1.
    #[must_use]
    pub fn member_name(&self, number: usize) -> &str {
        self.agent(number).member()
    }

    /// The hub's process, to kill, stop or freeze it; the first one where there are several.
    #[must_use]
    pub fn hub_process(&self) -> &Restartable {
        self.hub_replica(1).process()
    }

    /// One of the hub's processes, from 1.
    #[must_use]
    pub fn hub_replica(&self, number: usize) -> &Replica {
        &self.hub.replicas()[number - 1]
    }

    /// The hub as it is installed.
    #[must_use]
    pub fn hub_release(&self) -> &Hub {
        &self.hub
    }

    /// A member's agent as it is installed, from 1.
    #[must_use]
    pub fn agent(&self, number: usize) -> &Agent {
        &self.agents[number - 1]
    }

    /// The process of a member's agent, from 1, to kill, stop or freeze it.
    #[must_use]
    pub fn agent_process(&self, number: usize) -> &Restartable {
        self.agent(number).process()
    }

    /// The binaries that run here; the `kubectl` plugin is in the same folder.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Runs `kubectl runnel` as an administrator of the hub, and returns what it prints.
    ///
    /// # Errors
    /// When it fails, with its message.
    pub async fn runnel(&self, words: &[&str]) -> Result<String> {
        let kubeconfig = [("--kubeconfig", self.hub().kubeconfig())];
        self.runnel_with(words, &kubeconfig).await
    }

    /// Runs `kubectl runnel` with files as the values of flags, and returns what it prints.
    ///
    /// # Errors
    /// When it fails, with its message.
    pub async fn runnel_with(&self, words: &[&str], files: &[(&str, &Path)]) -> Result<String> {
        let mut plugin = Command::new(self.binaries.folder.join("kubectl-runnel"));
        plugin.args(words).kill_on_drop(true);
        for (flag, file) in files {
            plugin.arg(flag).arg(file);
        }
        let output = plugin.output().await?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "kubectl runnel {}: {message}",
            words.join(" ")
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Where agents reach the hub's first process, as `127.0.0.1:16500`.
    #[must_use]
    pub fn hub_address(&self) -> String {
        self.hub_replica(1).address().to_owned()
    }

    /// The operations endpoint of the hub, as `http://127.0.0.1:16501`.
    #[must_use]
    pub fn hub_ops_url(&self) -> String {
        self.hub_replica(1).ops_url().to_owned()
    }

    /// The operations endpoint of a member's agent, from 1.
    #[must_use]
    pub fn agent_ops_url(&self, number: usize) -> String {
        self.agent(number).ops_url().to_owned()
    }

    /// The hub's log: one JSON object per line.
    #[must_use]
    pub fn hub_log(&self) -> &Path {
        self.hub_process().log()
    }

    /// The log of a member's agent, from 1: one JSON object per line.
    #[must_use]
    pub fn agent_log(&self, number: usize) -> &Path {
        self.agent_process(number).log()
    }

    /// Kills the hub, all of its processes, with `kill -9`.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn kill_hub(&self) -> Result<()> {
        self.hub
            .replicas()
            .iter()
            .try_for_each(|replica| replica.process().kill())
    }

    /// Asks the hub to end, all of its processes, and returns the exit code, the worst one of several.
    ///
    /// # Errors
    /// When one did not run, or did not end within 15 s.
    pub async fn stop_hub(&self) -> Result<i32> {
        let ends = self
            .hub
            .replicas()
            .iter()
            .map(|replica| replica.process().terminate(GRACE));
        Ok(try_join_all(ends)
            .await?
            .into_iter()
            .max()
            .unwrap_or_default())
    }

    /// Starts every process of the hub that does not run, on the same ports, and returns when they listen.
    ///
    /// # Errors
    /// When it runs already, ends at once, or does not listen within 30 s.
    pub async fn start_hub(&self) -> Result<()> {
        self.hub.start().await
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
        self.agent(number).pod().start().await
    }

    /// Waits until the hub reports a member, from 1, as connected.
    ///
    /// # Errors
    /// When it does not within 60 s, or the agent ends; with the end of the agent's log.
    pub async fn connected(&self, number: usize) -> Result<()> {
        self.condition(number, "Connected", "True").await
    }

    /// Waits until the condition `kind` of a member, from 1, is `status`.
    ///
    /// # Errors
    /// When it is not within two minutes, or the agent has ended by itself.
    pub async fn condition(&self, number: usize, kind: &str, status: &str) -> Result<()> {
        let agent = self.agent(number);
        let members = member_clusters(self.cluster.client().await?);
        let what = format!("{kind}={status} of MemberCluster/{}", agent.member());
        let seen = eventually(&what, CONNECTS, async || {
            agent.process().check()?;
            let seen = condition_of(&members.get(agent.member()).await?.data, kind);
            ensure!(seen == status, "it is {seen:?}");
            Ok(Some(()))
        });
        seen.await.with_context(|| agent.process().last_words())
    }

    async fn start_agents(&self, options: &FleetOptions) -> Result<()> {
        let starts = self
            .agents
            .iter()
            .enumerate()
            .map(|(index, agent)| async move {
                let join_string = self
                    .hub
                    .join_string(agent.member(), &self.binaries, options)
                    .await?;
                agent.hand_over(&join_string).await?;
                agent.pod().start().await?;
                self.connected(index + 1).await
            });
        try_join_all(starts).await.map(drop)
    }
}

async fn make_namespaces(
    clusters: impl Iterator<Item = &ControlPlane>,
    names: &[String],
) -> Result<()> {
    for cluster in clusters {
        for name in names {
            cluster.kubectl(&["create", "namespace", name]).await?;
        }
    }
    Ok(())
}

async fn control_planes(options: &FleetOptions) -> Result<(ControlPlane, Vec<ControlPlane>)> {
    let usual = Options {
        folder: None,
        ..options.control_plane.clone()
    };
    let names = std::iter::once("hub".to_owned())
        .chain((1..=options.members).map(|number| format!("member-{number}")));
    let starts = names.map(|name| {
        let usual = usual.clone();
        async move { ControlPlane::start(&name, usual).await }
    });
    let mut started = try_join_all(starts).await?;
    Ok((started.remove(0), started))
}

pub(crate) async fn output(program: &Path, arguments: &[String]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .output()
        .await;
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} {}: {}",
            program.display(),
            arguments.join(" "),
            printed.trim_end()
        );
    }
    String::from_utf8(output.stdout).context("the output is not text")
}

/// The `MemberCluster` objects, as untyped JSON.
#[must_use]
pub fn member_clusters(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("runnel.dev", "v1alpha1", "MemberCluster");
    Api::all_with(
        client,
        &ApiResource::from_gvk_with_plural(&kind, "memberclusters"),
    )
}

/// The status of the condition `kind` of an object: `True`, `False`, `Unknown`, or empty where it
/// is absent.
#[must_use]
pub fn condition_of(object: &Value, kind: &str) -> String {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or_default()
        .to_owned()
}
