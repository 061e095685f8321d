//! The command line of a pod's process: arguments and environment from its Deployment.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVar, EnvVarSource, PodSpec, PodTemplateSpec, Secret,
};
use kube::config::Kubeconfig;
use kube::{Api, Client};

use super::container::{ContainerFolders, Value, environment, expand};
use super::{Pod, account_of, container_of, mounts, spec_of};
use crate::guard::Program;
use crate::memory::{MemoryLimit, parse_quantity};

/// The default of container runtimes for images without an environment.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Pod {
    pub(super) async fn program(
        &self,
        client: &Client,
        template: &PodTemplateSpec,
    ) -> Result<Program> {
        let (spec, container) = (spec_of(template)?, container_of(template)?);
        let image = container.image.as_deref().unwrap_or_default();
        let repository = image
            .split('@')
            .next()
            .unwrap_or_default()
            .rsplit('/')
            .next()
            .unwrap_or_default();
        let started = self
            .wanted
            .binary
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        ensure!(
            repository.split(':').next() == Some(&*started) && container.command.is_none(),
            "the image {image} with the command {:?} does not start {started}",
            container.command,
        );
        let mut declared = Vec::new();
        for variable in container.env.iter().flatten() {
            if let Some(value) = self.value(client, template, variable).await? {
                declared.push((variable.name.clone(), value));
            }
        }
        let known = environment(&self.given()?, declared);
        let places = self.places(spec)?;
        let arguments = container
            .args
            .iter()
            .flatten()
            .map(|text| places.here(&expand(text, &known)));
        let mut program = Program::new(&self.wanted.binary, self.run.log())
            .arguments(arguments)
            .without_inheritance();
        if let Some(bytes) = memory_limit(container)? {
            program = program.memory_limit(MemoryLimit {
                bytes,
                enforcement: self.wanted.memory,
            });
        }
        for (name, value) in &known {
            program = program.environment(name, places.here(value));
        }
        Ok(program)
    }

    /// Returns the environment that a kubelet sets for every container.
    fn given(&self) -> Result<Vec<(String, String)>> {
        let read = Kubeconfig::read_from(&self.site.kubeconfig)?;
        let server = read
            .clusters
            .first()
            .and_then(|named| named.cluster.as_ref())
            .and_then(|one| one.server.as_ref());
        let server: http::Uri = server.context("a kubeconfig without a server")?.parse()?;
        let given = [
            ("PATH", PATH.to_owned()),
            ("HOSTNAME", self.wanted.name.clone()),
            (
                "KUBERNETES_SERVICE_HOST",
                server.host().unwrap_or_default().to_owned(),
            ),
            (
                "KUBERNETES_SERVICE_PORT",
                server.port_u16().unwrap_or(443).to_string(),
            ),
        ];
        Ok(given.map(|(name, value)| (name.to_owned(), value)).into())
    }

    async fn value(
        &self,
        client: &Client,
        template: &PodTemplateSpec,
        variable: &EnvVar,
    ) -> Result<Option<Value>> {
        let Some(source) = &variable.value_from else {
            return Ok(Some(Value::Written(
                variable.value.clone().unwrap_or_default(),
            )));
        };
        let found = self.found(client, template, source).await;
        let found = found.with_context(|| format!("the variable {}", variable.name))?;
        Ok(found.map(Value::Found))
    }

    async fn found(
        &self,
        client: &Client,
        template: &PodTemplateSpec,
        source: &EnvVarSource,
    ) -> Result<Option<String>> {
        let namespace = &self.wanted.namespace;
        let (found, optional) = if let Some(field) = &source.field_ref {
            return self.field(template, &field.field_path).map(Some);
        } else if let Some(wanted) = &source.secret_key_ref {
            let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
            let data = secrets
                .get_opt(&wanted.name)
                .await?
                .and_then(|secret| secret.data)
                .unwrap_or_default();
            let text = data
                .get(&wanted.key)
                .map(|value| String::from_utf8(value.0.clone()))
                .transpose()?;
            (text, wanted.optional)
        } else if let Some(wanted) = &source.config_map_key_ref {
            let configs: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let data = configs
                .get_opt(&wanted.name)
                .await?
                .and_then(|config| config.data)
                .unwrap_or_default();
            (data.get(&wanted.key).cloned(), wanted.optional)
        } else {
            bail!("the harness does not know the source {source:?}");
        };
        ensure!(
            found.is_some() || optional == Some(true),
            "its Secret, ConfigMap or key is missing"
        );
        Ok(found)
    }

    fn field(&self, template: &PodTemplateSpec, path: &str) -> Result<String> {
        let metadata = template.metadata.clone().unwrap_or_default();
        let keyed = |kind: &str| {
            path.strip_prefix(kind)
                .and_then(|rest| rest.strip_suffix("']"))
        };
        Ok(match path {
            "metadata.name" => self.wanted.name.clone(),
            "metadata.namespace" => self.wanted.namespace.clone(),
            "metadata.uid" => format!("uid-of-{}", self.wanted.name),
            "spec.nodeName" => "no-node".to_owned(),
            "spec.serviceAccountName" => account_of(spec_of(template)?).to_owned(),
            "status.podIP" | "status.podIPs" => self.wanted.address.to_string(),
            "status.hostIP" | "status.hostIPs" => Ipv4Addr::LOCALHOST.to_string(),
            _ => match (keyed("metadata.labels['"), keyed("metadata.annotations['")) {
                (Some(key), _) => metadata
                    .labels
                    .unwrap_or_default()
                    .remove(key)
                    .unwrap_or_default(),
                (_, Some(key)) => metadata
                    .annotations
                    .unwrap_or_default()
                    .remove(key)
                    .unwrap_or_default(),
                _ => bail!("the harness does not know the field {path}"),
            },
        })
    }

    fn places(&self, spec: &PodSpec) -> Result<ContainerFolders> {
        let mut places = Vec::new();
        for volume in spec.volumes.iter().flatten() {
            places.extend(
                mounts(spec, &volume.name)?
                    .into_iter()
                    .map(|mount| (mount.clone(), self.place(&mount))),
            );
        }
        Ok(ContainerFolders::new(places))
    }
}

/// The memory limit of a container in bytes, if it has one.
fn memory_limit(container: &Container) -> Result<Option<u64>> {
    let limits = container
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref());
    limits
        .and_then(|limits| limits.get("memory"))
        .map(|quantity| parse_quantity(&quantity.0))
        .transpose()
}
