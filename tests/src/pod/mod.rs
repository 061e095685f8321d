//! The pod of a Deployment on a control plane without nodes: what the kubelet would do, for the real binary.
//!
//! The Deployment is read from the API server, where `helm install` put it. Its arguments and environment, its Secrets,
//! ConfigMaps and projected volumes, and a token of its ServiceAccount are what the process gets, and nothing else: not
//! the environment of the test, and no administrator's kubeconfig.
//!
//! Two things differ from a node. Files stand below a folder of the test instead of `/etc/runnel`, because tests run
//! without root; paths in arguments and environment are changed accordingly. And the token is handed over in a
//! kubeconfig (`RUNNEL_KUBECONFIG`), because the path at which clients look for a pod's token is fixed. What only a node
//! can show (the user id, the read-only file system, limits, probes that restart) is not here.

mod account;
mod container;
mod volumes;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVar, EnvVarSource, PodSpec, PodTemplateSpec, Secret, ServiceAccount,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::control_plane::{ControlPlane, client_of};
use crate::guard::Program;
use crate::restartable::Restartable;
use crate::wait::eventually;
use container::{Places, Value, environment, expand};
use volumes::{Asker, Files, publish};

const LISTENS: Duration = Duration::from_secs(30);
const REFRESH: Duration = Duration::from_secs(3);
/// What a container runtime sets for an image that says nothing about it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A cluster, as whoever installs something in it reaches it, and a folder for the files of its pods.
#[derive(Clone, Debug)]
pub struct Site {
    /// What the cluster is called in messages.
    pub name: String,
    /// The kubeconfig of an administrator; nothing of Runnel's sees it.
    pub kubeconfig: PathBuf,
    /// Where files and logs go.
    pub folder: PathBuf,
}

impl From<&ControlPlane> for Site {
    fn from(cluster: &ControlPlane) -> Self {
        Self {
            name: cluster.name().to_owned(),
            kubeconfig: cluster.kubeconfig().to_owned(),
            folder: cluster.folder().to_owned(),
        }
    }
}

impl Site {
    /// A client of the administrator.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client> {
        client_of(&self.kubeconfig).await
    }
}

/// Which pod.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The namespace of its Deployment.
    pub namespace: String,
    /// The name of its Deployment.
    pub deployment: String,
    /// Its own name.
    pub name: String,
    /// Its address. Pods of one Deployment have the same ports, so each needs an address of its own: 127.0.0.0/8 is full
    /// of them (on Linux).
    pub address: Ipv4Addr,
    /// The program that its image would start.
    pub binary: PathBuf,
    /// The name of its log in the site's folder.
    pub log: String,
}

/// A pod without a node; dropping it kills its process.
#[derive(Debug)]
pub struct Pod {
    site: Site,
    wanted: Wanted,
    folder: PathBuf,
    run: Restartable,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    template: PodTemplateSpec,
    mounted: BTreeMap<String, Files>,
    generation: u64,
}

impl Pod {
    /// Makes everything that the process needs; it is not started yet.
    ///
    /// # Errors
    /// When there is no such Deployment, something that it needs is missing, or it has something that only a node can do
    /// and that would change what the process sees.
    pub async fn new(site: &Site, wanted: Wanted) -> Result<Self> {
        let folder = site.folder.join("pods").join(&wanted.name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let told = format!("{} of {}", wanted.name, site.name);
        let run = Restartable::new(&told, Program::new(&wanted.binary, site.folder.join(&wanted.log)));
        let pod = Self { site: site.clone(), wanted, folder, run, state: Mutex::default() };
        pod.take_over().await.with_context(|| format!("the pod {told} cannot be made as its Deployment says"))?;
        Ok(pod)
    }

    /// The process, to kill, stop or freeze it.
    #[must_use]
    pub fn process(&self) -> &Restartable {
        &self.run
    }

    /// The pod's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.wanted.name
    }

    /// Where the pod's files are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The pod's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.wanted.address
    }

    /// Where a named port of the container is to be reached, as `127.0.0.1:16500`.
    ///
    /// # Errors
    /// When the Deployment has no port of that name.
    pub fn port(&self, name: &str) -> Result<String> {
        let state = self.state.lock();
        let ports = container_of(&state.template)?.ports.iter().flatten();
        let port = ports.filter(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port).next();
        let port = port.with_context(|| format!("{} has no port {name}", self.wanted.deployment))?;
        Ok(format!("{}:{port}", self.wanted.address))
    }

    /// The addresses of the container's startup, liveness and readiness probes.
    ///
    /// # Errors
    /// When a probe is of another kind, or its port is unknown.
    pub fn probes(&self) -> Result<Vec<String>> {
        let template = self.state.lock().template.clone();
        let container = container_of(&template)?;
        let probes = [&container.startup_probe, &container.liveness_probe, &container.readiness_probe];
        probes
            .into_iter()
            .flatten()
            .map(|probe| {
                let get = probe.http_get.as_ref().context("a probe that is no httpGet")?;
                let address = match &get.port {
                    IntOrString::Int(port) => format!("{}:{port}", self.wanted.address),
                    IntOrString::String(name) => self.port(name)?,
                };
                Ok(format!("http://{address}{}", get.path.as_deref().unwrap_or("/")))
            })
            .collect()
    }

    /// Starts the process, with fresh mounts where the API server answers, and returns when its port `ops` listens.
    ///
    /// # Errors
    /// When it runs already, ends at once, or does not listen within 30 s; with the end of its log.
    pub async fn start(&self) -> Result<()> {
        // A container that starts again while the API server is away starts with the files that are there.
        let _ = tokio::time::timeout(REFRESH, self.refresh_mounts()).await;
        self.run.start()?;
        let ops = self.port("ops")?;
        let what = format!("a listener on {ops}");
        let seen = eventually(&what, LISTENS, async || {
            if let Err(ended) = self.run.check() {
                return Ok(Some(Err(ended)));
            }
            TcpStream::connect(&ops).await?;
            Ok(Some(Ok(())))
        });
        seen.await.with_context(|| self.run.last_words())?
    }

    /// Brings the files of mounted Secrets and ConfigMaps up to date, as a kubelet does within a minute or so; returns
    /// whether one has changed.
    ///
    /// # Errors
    /// When something is missing, or cannot be read or written.
    pub async fn refresh_mounts(&self) -> Result<bool> {
        let (template, before) = {
            let state = self.state.lock();
            (state.template.clone(), state.mounted.clone())
        };
        let client = self.site.client().await?;
        let spec = spec_of(&template)?;
        let asker = Asker { client: &client, namespace: &self.wanted.namespace, account: account_of(spec) };
        let mut changed = false;
        for volume in spec.volumes.iter().flatten() {
            let mounts = mounts(spec, &volume.name)?;
            let Some(files) = asker.files(volume).await? else {
                mounts.iter().try_for_each(|mount| std::fs::create_dir_all(self.place(mount)))?;
                continue;
            };
            if before.get(&volume.name) == Some(&files) {
                continue;
            }
            let mut state = self.state.lock();
            state.generation += 1;
            for mount in mounts {
                publish(&self.place(&mount), state.generation, &files)?;
            }
            state.mounted.insert(volume.name.clone(), files);
            changed = true;
        }
        Ok(changed)
    }

    /// Reads the Deployment again; returns whether its template has changed, so that the process has to be started again
    /// to be what it says.
    ///
    /// # Errors
    /// As [`Pod::new`].
    pub async fn take_over(&self) -> Result<bool> {
        let client = self.site.client().await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &self.wanted.namespace);
        let deployment = api.get(&self.wanted.deployment).await?;
        let template = deployment.spec.context("a Deployment without a spec")?.template;
        let changed = std::mem::replace(&mut self.state.lock().template, template.clone()) != template;
        let spec = spec_of(&template)?;
        self.refresh_mounts().await?;
        let kubeconfig = self.kubeconfig(&client, spec).await?;
        let program = self.program(&client, &template).await?;
        self.run.set_program(program.environment("RUNNEL_KUBECONFIG", kubeconfig));
        Ok(changed)
    }

    async fn kubeconfig(&self, client: &Client, spec: &PodSpec) -> Result<PathBuf> {
        let name = account_of(spec);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.wanted.namespace);
        let account = accounts.get(name).await?;
        let mounts = spec.automount_service_account_token.or(account.automount_service_account_token);
        let projected = spec.volumes.iter().flatten().filter_map(|volume| volume.projected.as_ref());
        let own = projected.flat_map(|volume| volume.sources.iter().flatten());
        ensure!(
            mounts != Some(false) || own.filter(|source| source.service_account_token.is_some()).count() > 0,
            "its ServiceAccount {name} is not mounted: it could not ask its API server anything"
        );
        let token = account::token(client, &self.wanted.namespace, name, None).await?;
        let path = self.folder.join("kubeconfig");
        account::write_kubeconfig(&self.site.kubeconfig, &token, &path)?;
        Ok(path)
    }

    async fn program(&self, client: &Client, template: &PodTemplateSpec) -> Result<Program> {
        let (spec, container) = (spec_of(template)?, container_of(template)?);
        let image = container.image.as_deref().unwrap_or_default();
        let repository = image.split('@').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        let started = self.wanted.binary.file_name().unwrap_or_default().to_string_lossy();
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
        let arguments = container.args.iter().flatten().map(|text| places.here(&expand(text, &known)));
        let mut program = Program::new(&self.wanted.binary, self.run.log()).arguments(arguments).without_inheritance();
        for (name, value) in &known {
            program = program.environment(name, places.here(value));
        }
        Ok(program)
    }

    /// What every container finds in its environment.
    fn given(&self) -> Result<Vec<(String, String)>> {
        let read = Kubeconfig::read_from(&self.site.kubeconfig)?;
        let server = read.clusters.first().and_then(|named| named.cluster.as_ref()).and_then(|one| one.server.as_ref());
        let server: http::Uri = server.context("a kubeconfig without a server")?.parse()?;
        let given = [
            ("PATH", PATH.to_owned()),
            ("HOSTNAME", self.wanted.name.clone()),
            ("KUBERNETES_SERVICE_HOST", server.host().unwrap_or_default().to_owned()),
            ("KUBERNETES_SERVICE_PORT", server.port_u16().unwrap_or(443).to_string()),
        ];
        Ok(given.map(|(name, value)| (name.to_owned(), value)).into())
    }

    async fn value(&self, client: &Client, template: &PodTemplateSpec, variable: &EnvVar) -> Result<Option<Value>> {
        let Some(source) = &variable.value_from else {
            return Ok(Some(Value::Written(variable.value.clone().unwrap_or_default())));
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
            let data = secrets.get_opt(&wanted.name).await?.and_then(|secret| secret.data).unwrap_or_default();
            let text = data.get(&wanted.key).map(|value| String::from_utf8(value.0.clone())).transpose()?;
            (text, wanted.optional)
        } else if let Some(wanted) = &source.config_map_key_ref {
            let configs: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let data = configs.get_opt(&wanted.name).await?.and_then(|config| config.data).unwrap_or_default();
            (data.get(&wanted.key).cloned(), wanted.optional)
        } else {
            bail!("the harness does not know the source {source:?}");
        };
        ensure!(found.is_some() || optional == Some(true), "its Secret, ConfigMap or key is missing");
        Ok(found)
    }

    fn field(&self, template: &PodTemplateSpec, path: &str) -> Result<String> {
        let metadata = template.metadata.clone().unwrap_or_default();
        let keyed = |kind: &str| path.strip_prefix(kind).and_then(|rest| rest.strip_suffix("']"));
        Ok(match path {
            "metadata.name" => self.wanted.name.clone(),
            "metadata.namespace" => self.wanted.namespace.clone(),
            "metadata.uid" => format!("uid-of-{}", self.wanted.name),
            "spec.nodeName" => "no-node".to_owned(),
            "spec.serviceAccountName" => account_of(spec_of(template)?).to_owned(),
            "status.podIP" | "status.podIPs" => self.wanted.address.to_string(),
            "status.hostIP" | "status.hostIPs" => Ipv4Addr::LOCALHOST.to_string(),
            _ => match (keyed("metadata.labels['"), keyed("metadata.annotations['")) {
                (Some(key), _) => metadata.labels.unwrap_or_default().remove(key).unwrap_or_default(),
                (_, Some(key)) => metadata.annotations.unwrap_or_default().remove(key).unwrap_or_default(),
                _ => bail!("the harness does not know the field {path}"),
            },
        })
    }

    fn places(&self, spec: &PodSpec) -> Result<Places> {
        let mut places = Vec::new();
        for volume in spec.volumes.iter().flatten() {
            places.extend(mounts(spec, &volume.name)?.into_iter().map(|mount| (mount.clone(), self.place(&mount))));
        }
        Ok(Places::new(places))
    }

    fn place(&self, mount: &str) -> PathBuf {
        self.folder.join("root").join(mount.trim_start_matches('/'))
    }
}

fn spec_of(template: &PodTemplateSpec) -> Result<&PodSpec> {
    let spec = template.spec.as_ref().context("a Deployment without a pod")?;
    ensure!(spec.init_containers.iter().flatten().count() == 0, "the harness knows no init containers");
    Ok(spec)
}

fn container_of(template: &PodTemplateSpec) -> Result<&Container> {
    let [container] = spec_of(template)?.containers.as_slice() else {
        bail!("the harness knows pods with one container only");
    };
    ensure!(container.env_from.iter().flatten().count() == 0, "the harness does not know envFrom");
    Ok(container)
}

fn account_of(spec: &PodSpec) -> &str {
    spec.service_account_name.as_deref().unwrap_or("default")
}

/// The paths at which a volume is mounted.
fn mounts(spec: &PodSpec, volume: &str) -> Result<Vec<String>> {
    let all = spec.containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
    all.filter(|mount| mount.name == volume)
        .map(|mount| {
            let whole = mount.sub_path.is_none() && mount.sub_path_expr.is_none();
            ensure!(whole, "the harness does not know the subPath of the volume {volume}");
            Ok(mount.mount_path.trim_end_matches('/').to_owned())
        })
        .collect()
}
