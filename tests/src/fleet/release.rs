//! Hub and agents as their charts install them: `helm install`, and the pods of what it has installed.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use runnel_api::crds;
use serde_json::{Value, json};

use super::{FleetOptions, NAMESPACE};
use crate::control_plane::ControlPlane;
use crate::helm::{Helm, chart};
use crate::memory::Enforcement;
use crate::pod::{Pod, Site, Wanted};
use crate::ports;
use crate::wait::eventually;

/// The name of the hub's chart, release, Deployment, ServiceAccount and binary.
pub const HUB: &str = "runnel-hub";
/// The name of the agents' chart, release, Deployment, ServiceAccount and binary.
pub const AGENT: &str = "runnel-agent";

const JOIN_SECRET: &str = "runnel-agent-join";
const ESTABLISHED: Duration = Duration::from_secs(30);

/// A chart that is installed in a cluster.
#[derive(Debug)]
pub struct Release {
    helm: Helm,
    site: Site,
    name: &'static str,
    namespace: String,
    values: Mutex<Value>,
}

impl Release {
    /// Installs the chart `name` with `values` in the usual namespace, as `helm install` does it.
    ///
    /// # Errors
    /// When helm or the API server refuses.
    pub async fn install(
        helm: &Helm,
        site: &Site,
        name: &'static str,
        values: Value,
    ) -> Result<Self> {
        Self::install_in(helm, site, (name, NAMESPACE), values).await
    }

    async fn install_in(
        helm: &Helm,
        site: &Site,
        (name, namespace): (&'static str, &str),
        values: Value,
    ) -> Result<Self> {
        let (helm, site, namespace) = (helm.clone(), site.clone(), namespace.to_owned());
        let release = Self {
            helm,
            site,
            name,
            namespace,
            values: Mutex::new(values),
        };
        release.helm("install", &["--create-namespace"]).await?;
        Ok(release)
    }

    /// Changes values and upgrades the release, as `helm upgrade` does it.
    ///
    /// # Errors
    /// When helm or the API server refuses.
    pub async fn upgrade(&self, more: &Value) -> Result<()> {
        merge(&mut self.values.lock(), more);
        self.helm("upgrade", &[]).await
    }

    /// The values.
    #[must_use]
    pub fn values(&self) -> Value {
        self.values.lock().clone()
    }

    /// Returns the name of its Deployment.
    fn full_name(&self) -> String {
        let values = self.values.lock();
        let given = values
            .get("fullnameOverride")
            .and_then(Value::as_str)
            .filter(|given| !given.is_empty());
        given.unwrap_or(self.name).to_owned()
    }

    async fn helm(&self, command: &str, more: &[&str]) -> Result<()> {
        let folder = chart(self.name);
        let folder = folder.to_str().context("a path that is not text")?;
        let mut arguments = vec![
            command,
            self.name,
            folder,
            "--namespace",
            &self.namespace,
            "--values",
            "-",
        ];
        arguments.extend(more);
        let values = self.values.lock().to_string();
        let done = self
            .helm
            .on_with(&self.site.kubeconfig, &arguments, &values)
            .await;
        done.with_context(|| format!("the chart {} in {}", self.name, self.site.name))
            .map(drop)
    }

    /// The pod of the release's Deployment that is called `pod`, with this address and log.
    ///
    /// # Errors
    /// As [`Pod::new`].
    pub async fn pod(
        &self,
        pod: &str,
        address: Ipv4Addr,
        (binary, log): (&Path, &str),
        memory: Enforcement,
    ) -> Result<Pod> {
        let wanted = Wanted {
            namespace: self.namespace.clone(),
            deployment: self.full_name(),
            name: pod.to_owned(),
            address,
            binary: binary.to_owned(),
            log: log.to_owned(),
            memory,
        };
        Pod::new(&self.site, wanted).await
    }
}

/// The address of a hub's pod, from 1. They have the same ports, as pods of one Deployment do.
#[must_use]
pub fn hub_pod_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, u8::try_from(number).unwrap_or(u8::MAX))
}

/// The values of the hub's chart in a fleet, with free ports.
pub(crate) fn hub_values(options: &FleetOptions) -> Result<Value> {
    let port = ports::free()?;
    let addresses =
        (1..=options.hub_replicas).map(|number| format!("{}:{port}", hub_pod_address(number)));
    let mut values = json!({
        "replicas": options.hub_replicas,
        "advertise": addresses.collect::<Vec<_>>(),
        // Of its own address only: another pod has the same ports on another address of this machine.
        "listenAddress": "$(POD_IP)",
        "ports": {"grpc": port, "replica": ports::free()?, "ops": ports::free()?, "view": ports::free()?},
        // The API server reaches the first pod by its address on this machine.
        "view": {"enabled": options.views, "externalName": hub_pod_address(1).to_string()},
        "log": {"format": "json", "level": options.log},
        "extraArgs": options.hub_arguments,
    });
    merge(&mut values, &options.hub_values);
    Ok(values)
}

/// The values of the agents' chart in a fleet, with a free port.
pub(crate) fn agent_values(options: &FleetOptions) -> Result<Value> {
    let mut values = json!({
        "join": {"existingSecret": JOIN_SECRET},
        "policy": {"namespaces": ["*"], "createNamespaces": true, "maxCopies": 1_000_000, "maxBytes": 1u64 << 40},
        "listenAddress": "127.0.0.1",
        "ports": {"ops": ports::free()?},
        "log": {"format": "json", "level": options.log},
        "extraArgs": options.agent_arguments,
    });
    merge(&mut values, &options.agent_values);
    Ok(values)
}

/// Installs a chart in a namespace and returns a kubeconfig of its ServiceAccount: for a test that calls a binary by hand,
/// or a part of it, with the rights that it has in a pod. `values` are laid over those of a fleet.
///
/// # Errors
/// When helm or the API server refuses.
pub async fn account(
    cluster: &ControlPlane,
    chart: &'static str,
    namespace: &str,
    values: &Value,
) -> Result<PathBuf> {
    let (helm, site) = (Helm::find().await?, Site::from(cluster));
    let options = FleetOptions::default();
    let mut all = if chart == HUB {
        hub_values(&options)?
    } else {
        agent_values(&options)?
    };
    if namespace != NAMESPACE {
        // Objects without a namespace have a different name for each release.
        merge(&mut all, &json!({"fullnameOverride": namespace}));
    }
    merge(&mut all, values);
    let given = all
        .pointer("/serviceAccount/name")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let kinds = chart == HUB && all.pointer("/crds/install") != Some(&Value::Bool(false));
    Release::install_in(&helm, &site, (chart, namespace), all).await?;
    if kinds {
        kinds_are_served(&site).await?;
    }
    let usual = if namespace == NAMESPACE {
        chart
    } else {
        namespace
    };
    cluster
        .token_kubeconfig(namespace, given.as_deref().unwrap_or(usual))
        .await
}

/// What a fleet's chart `name` renders, as YAML.
///
/// # Errors
/// When helm refuses.
pub async fn rendered(helm: &Helm, name: &'static str, options: &FleetOptions) -> Result<String> {
    let values = if name == HUB {
        hub_values(options)?
    } else {
        agent_values(options)?
    };
    helm.template(name, &values.to_string()).await
}

/// Puts a join string into the Secret from which the agent of a cluster takes it.
pub(crate) async fn hand_over(site: &Site, join_string: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(site.client().await?, NAMESPACE);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": JOIN_SECRET},
        "stringData": {"join-string": join_string},
    });
    let person = PatchParams::apply("person").force();
    secrets
        .patch(JOIN_SECRET, &person, &Patch::Apply(secret))
        .await?;
    Ok(())
}

/// Waits until the API server serves Runnel's kinds, which come with the hub's chart.
pub(crate) async fn kinds_are_served(site: &Site) -> Result<()> {
    let known: Api<CustomResourceDefinition> = Api::all(site.client().await?);
    for wanted in crds() {
        let name = wanted.name_any();
        eventually(
            &format!("{name} to be established"),
            ESTABLISHED,
            async || {
                let conditions = known
                    .get(&name)
                    .await?
                    .status
                    .and_then(|status| status.conditions)
                    .unwrap_or_default();
                let observed = conditions
                    .iter()
                    .any(|observed| observed.type_ == "Established" && observed.status == "True");
                Ok(observed.then_some(()))
            },
        )
        .await?;
    }
    Ok(())
}

/// Makes the `Fleet` with limits in writing, before the hub makes it without any.
pub(crate) async fn write_limits(site: &Site) -> Result<()> {
    let fleets: Api<runnel_api::Fleet> = Api::all(site.client().await?);
    let limits =
        json!({"fleet": {"count": 50, "percent": 11}, "member": {"count": 25, "percent": 21}});
    let fleet = json!({
        "apiVersion": "runnel.dev/v1alpha1",
        "kind": "Fleet",
        "metadata": {"name": "default"},
        "spec": {"removalLimit": limits},
    });
    let person = PatchParams::apply("person").force();
    fleets
        .patch("default", &person, &Patch::Apply(fleet))
        .await?;
    Ok(())
}

/// Lays values over others, as helm does: maps are merged, anything else is replaced.
pub(crate) fn merge(values: &mut Value, over: &Value) {
    match (values, over) {
        (_, Value::Null) => {}
        (Value::Object(values), Value::Object(over)) => {
            for (key, value) in over {
                merge(values.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (values, over) => *values = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_laid_over_others() {
        let mut values = json!({"a": {"b": 1, "c": [1, 2]}, "d": "x"});
        merge(
            &mut values,
            &json!({"a": {"c": [3], "e": {"f": true}}, "d": null}),
        );
        assert_eq!(
            values,
            json!({"a": {"b": 1, "c": [3], "e": {"f": true}}, "d": "x"})
        );
        merge(&mut values, &Value::Null);
        assert_eq!(values["d"], "x");
    }
}
