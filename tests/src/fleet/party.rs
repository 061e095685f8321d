//! The hub and the agents of a fleet: their charts after `helm install`, and their processes.

use std::path::Path;

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::Value;

use super::release::{
    AGENT, HUB, Release, agent_values, hand_over, hub_pod_address, hub_values, kinds_are_served,
    write_limits,
};
use super::{FleetOptions, GRACE, NAMESPACE, output};
use crate::binaries::Binaries;
use crate::helm::Helm;
use crate::pod::{Pod, Site};
use crate::restartable::Restartable;

/// The hub: one chart, and one process or several.
#[derive(Debug)]
pub struct Hub {
    release: Release,
    site: Site,
    addresses: Vec<String>,
    replicas: Vec<Replica>,
}

/// One process of the hub.
#[derive(Debug)]
pub struct Replica {
    pod: Pod,
    address: String,
    ops_url: String,
}

impl Hub {
    /// Installs the chart and creates the pods, none of which is started yet.
    ///
    /// # Errors
    /// When helm or the API server refuses, or the harness does not support a field of the
    /// Deployment.
    pub async fn install(
        helm: &Helm,
        site: &Site,
        binaries: &Binaries,
        options: &FleetOptions,
    ) -> Result<Self> {
        let release = Release::install(helm, site, HUB, hub_values(options)?).await?;
        kinds_are_served(site).await?;
        if options.written_limits {
            write_limits(site).await?;
        }
        let advertised = release.values()["advertise"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let addresses = advertised
            .iter()
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect();
        let mut replicas = Vec::new();
        for number in 1..=options.hub_replicas {
            let log = if number == 1 {
                format!("{HUB}.log")
            } else {
                format!("{HUB}-{number}.log")
            };
            let name = format!("{HUB}-{number}");
            let pod = release
                .pod(
                    &name,
                    hub_pod_address(number),
                    (&binaries.hub, &log),
                    options.memory_limits,
                )
                .await?;
            let (address, ops_url) = (pod.port("grpc")?, format!("http://{}", pod.port("ops")?));
            replicas.push(Replica {
                pod,
                address,
                ops_url,
            });
        }
        Ok(Self {
            release,
            site: site.clone(),
            addresses,
            replicas,
        })
    }

    /// Makes the join string of a member, as a person with an administrator's rights does.
    ///
    /// # Errors
    /// When `runnel-hub token create` fails.
    pub async fn join_string(
        &self,
        member: &str,
        binaries: &Binaries,
        options: &FleetOptions,
    ) -> Result<String> {
        let token = token_arguments(member, &self.site.kubeconfig, &self.addresses, options);
        output(&binaries.hub, &token)
            .await
            .map(|printed| printed.trim().to_owned())
    }

    /// The advertised addresses of the hub.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The processes.
    #[must_use]
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// Starts every process that does not run, and returns when all listen.
    ///
    /// # Errors
    /// When all run already, or one ends at once or does not listen within 30 s.
    pub async fn start(&self) -> Result<()> {
        let mut down: Vec<&Replica> = self
            .replicas
            .iter()
            .filter(|one| !one.process().is_running())
            .collect();
        if down.is_empty() {
            down.extend(self.replicas.first());
        }
        try_join_all(down.into_iter().map(|replica| replica.pod.start()))
            .await
            .map(drop)
    }

    /// Upgrades the release with more values; where the Deployment's pods have changed, one process after the other is
    /// ended and started again.
    ///
    /// # Errors
    /// When helm or the API server refuses, or a process does not end or start.
    pub async fn upgrade(&self, more: &Value) -> Result<()> {
        self.release.upgrade(more).await?;
        for replica in &self.replicas {
            roll(&replica.pod).await?;
        }
        Ok(())
    }
}

impl Replica {
    /// The process, to kill, stop or freeze it.
    #[must_use]
    pub fn process(&self) -> &Restartable {
        self.pod.process()
    }

    /// The pod.
    #[must_use]
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// Where agents reach it, as `127.0.0.1:16500`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its operations endpoint, as `http://127.0.0.1:16501`.
    #[must_use]
    pub fn ops_url(&self) -> &str {
        &self.ops_url
    }

    /// Its log: one JSON object per line.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.process().log()
    }
}

/// The agent of a member.
#[derive(Debug)]
pub struct Agent {
    release: Release,
    site: Site,
    member: String,
    pod: Pod,
    ops_url: String,
}

impl Agent {
    /// Installs the chart and creates the pod, which is not started yet. `log` is the name of its
    /// log.
    ///
    /// # Errors
    /// When helm or the API server refuses, or the harness does not support a field of the
    /// Deployment.
    pub async fn install(
        helm: &Helm,
        (site, member): (&Site, &str),
        binaries: &Binaries,
        options: &FleetOptions,
        log: &str,
    ) -> Result<Self> {
        let release = Release::install(helm, site, AGENT, agent_values(options)?).await?;
        let name = format!("{AGENT}-1");
        let pod = release
            .pod(
                &name,
                hub_pod_address(1),
                (&binaries.agent, log),
                options.memory_limits,
            )
            .await?;
        let ops_url = format!("http://{}", pod.port("ops")?);
        Ok(Self {
            release,
            site: site.clone(),
            member: member.to_owned(),
            pod,
            ops_url,
        })
    }

    /// Gives the agent its join string, in a Secret beside it.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn hand_over(&self, join_string: &str) -> Result<()> {
        hand_over(&self.site, join_string).await
    }

    /// The name of its `MemberCluster`.
    #[must_use]
    pub fn member(&self) -> &str {
        &self.member
    }

    /// The process, to kill, stop or freeze it.
    #[must_use]
    pub fn process(&self) -> &Restartable {
        self.pod.process()
    }

    /// The pod.
    #[must_use]
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// Its operations endpoint.
    #[must_use]
    pub fn ops_url(&self) -> &str {
        &self.ops_url
    }

    /// Upgrades the release with more values; where the Deployment's pod has changed, the agent is ended and started
    /// again, and where only a mounted file has, it finds the new one.
    ///
    /// # Errors
    /// When helm or the API server refuses, or the process does not end or start.
    pub async fn upgrade(&self, more: &Value) -> Result<()> {
        self.release.upgrade(more).await?;
        roll(&self.pod).await
    }
}

async fn roll(pod: &Pod) -> Result<()> {
    if pod.take_over().await? && pod.process().is_running() {
        pod.process().terminate(GRACE).await?;
        pod.start().await?;
    }
    Ok(())
}

/// `runnel-hub token create`: prints the join string of one member cluster.
fn token_arguments(
    member: &str,
    kubeconfig: &Path,
    addresses: &[String],
    options: &FleetOptions,
) -> Vec<String> {
    let mut arguments = vec![
        "token".to_owned(),
        "create".to_owned(),
        member.to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={NAMESPACE}"),
        format!("--advertise={}", addresses.join(",")),
    ];
    arguments.extend(
        options
            .labels
            .iter()
            .map(|(key, value)| format!("--label={key}={value}")),
    );
    arguments
}
