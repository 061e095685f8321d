//! Runs the pod of a Deployment on a control plane without nodes, as a kubelet does, with the real
//! binary.
//! The Deployment is read from the API server after `helm install`. The process gets its arguments
//! and environment, its Secrets, ConfigMaps and projected volumes, and a token of its
//! ServiceAccount, and nothing else: not the environment of the test, and no administrator's
//! kubeconfig.
//! Two things differ from a node. Files are below a folder of the test instead of `/etc/runnel`,
//! because tests run without root; paths in arguments and environment are changed accordingly. The
//! token is in a kubeconfig (`RUNNEL_KUBECONFIG`), because the token path of clients is fixed. The
//! user id, the read-only file system, CPU limits and restarts by probes are not simulated. Memory
//! limits apply where [`crate::memory`] can enforce them; a killed process is not restarted, and
//! the test fails.

mod account;
mod container;
mod launch;
mod probes;
mod volumes;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ServiceAccount};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::control_plane::{ControlPlane, client_of};
use crate::guard::Program;
use crate::memory::Enforcement;
use crate::restartable::Restartable;
use crate::wait::eventually;
use volumes::{Asker, Files, publish};

const LISTENS: Duration = Duration::from_secs(30);
const REFRESH: Duration = Duration::from_secs(3);

/// A cluster with the user who installs something in it, and a folder for the files of its pods.
#[derive(Clone, Debug)]
pub struct Site {
    /// The name of the cluster, for messages.
    pub name: String,
    /// The kubeconfig of an administrator, which no process of Runnel gets.
    pub kubeconfig: PathBuf,
    /// The folder for files and logs.
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

/// The identity of a pod.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The namespace of its Deployment.
    pub namespace: String,
    /// The name of its Deployment.
    pub deployment: String,
    /// Its own name.
    pub name: String,
    /// Its address. Pods of one Deployment have the same ports, so each needs its own address:
    /// 127.0.0.0/8 has enough of them (on Linux).
    pub address: Ipv4Addr,
    /// The program that its image would start.
    pub binary: PathBuf,
    /// The name of its log in the site's folder.
    pub log: String,
    /// How the memory limit of its container is enforced.
    pub memory: Enforcement,
}

/// A pod without a node; dropping it kills its process.
#[derive(Debug)]
pub struct Pod {
    site: Site,
    wanted: Wanted,
    folder: PathBuf,
    run: Restartable,
    state: Mutex<PodState>,
}

#[derive(Debug, Default)]
struct PodState {
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
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let observed = format!("{} of {}", wanted.name, site.name);
        let run = Restartable::new(
            &observed,
            Program::new(&wanted.binary, site.folder.join(&wanted.log)),
        );
        let pod = Self {
            site: site.clone(),
            wanted,
            folder,
            run,
            state: Mutex::default(),
        };
        pod.take_over()
            .await
            .with_context(|| format!("the pod {observed} cannot be made as its Deployment says"))?;
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

    /// Returns the folder of the pod's files.
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
        let port = ports
            .filter(|port| port.name.as_deref() == Some(name))
            .map(|port| port.container_port)
            .next();
        let port =
            port.with_context(|| format!("{} has no port {name}", self.wanted.deployment))?;
        Ok(format!("{}:{port}", self.wanted.address))
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
        let asker = Asker {
            client: &client,
            namespace: &self.wanted.namespace,
            account: account_of(spec),
        };
        let mut changed = false;
        for volume in spec.volumes.iter().flatten() {
            let mounts = mounts(spec, &volume.name)?;
            let Some(files) = asker.files(volume).await? else {
                mounts
                    .iter()
                    .try_for_each(|mount| std::fs::create_dir_all(self.place(mount)))?;
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

    /// Reads the Deployment again; returns whether its template has changed, so that the process
    /// must be restarted.
    ///
    /// # Errors
    /// As [`Pod::new`].
    pub async fn take_over(&self) -> Result<bool> {
        let client = self.site.client().await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &self.wanted.namespace);
        let deployment = api.get(&self.wanted.deployment).await?;
        let template = deployment
            .spec
            .context("a Deployment without a spec")?
            .template;
        let changed =
            std::mem::replace(&mut self.state.lock().template, template.clone()) != template;
        let spec = spec_of(&template)?;
        self.refresh_mounts().await?;
        let kubeconfig = self.kubeconfig(&client, spec).await?;
        let program = self.program(&client, &template).await?;
        self.run
            .set_program(program.environment("RUNNEL_KUBECONFIG", kubeconfig));
        Ok(changed)
    }

    async fn kubeconfig(&self, client: &Client, spec: &PodSpec) -> Result<PathBuf> {
        let name = account_of(spec);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.wanted.namespace);
        let account = accounts.get(name).await?;
        let mounts = spec
            .automount_service_account_token
            .or(account.automount_service_account_token);
        let projected = spec
            .volumes
            .iter()
            .flatten()
            .filter_map(|volume| volume.projected.as_ref());
        let own = projected.flat_map(|volume| volume.sources.iter().flatten());
        ensure!(
            mounts != Some(false)
                || own
                    .filter(|source| source.service_account_token.is_some())
                    .count()
                    > 0,
            "its ServiceAccount {name} is not mounted: it could not ask its API server anything"
        );
        let token = account::token(client, &self.wanted.namespace, name, None).await?;
        let path = self.folder.join("kubeconfig");
        account::write_kubeconfig(&self.site.kubeconfig, &token, &path)?;
        Ok(path)
    }

    fn place(&self, mount: &str) -> PathBuf {
        self.folder.join("root").join(mount.trim_start_matches('/'))
    }
}

fn spec_of(template: &PodTemplateSpec) -> Result<&PodSpec> {
    let spec = template
        .spec
        .as_ref()
        .context("a Deployment without a pod")?;
    ensure!(
        spec.init_containers.iter().flatten().count() == 0,
        "the harness knows no init containers"
    );
    Ok(spec)
}

fn container_of(template: &PodTemplateSpec) -> Result<&Container> {
    let [container] = spec_of(template)?.containers.as_slice() else {
        bail!("the harness knows pods with one container only");
    };
    ensure!(
        container.env_from.iter().flatten().count() == 0,
        "the harness does not know envFrom"
    );
    Ok(container)
}

fn account_of(spec: &PodSpec) -> &str {
    spec.service_account_name.as_deref().unwrap_or("default")
}

/// The paths at which a volume is mounted.
fn mounts(spec: &PodSpec, volume: &str) -> Result<Vec<String>> {
    let all = spec
        .containers
        .iter()
        .flat_map(|container| container.volume_mounts.iter().flatten());
    all.filter(|mount| mount.name == volume)
        .map(|mount| {
            let whole = mount.sub_path.is_none() && mount.sub_path_expr.is_none();
            ensure!(
                whole,
                "the harness does not know the subPath of the volume {volume}"
            );
            Ok(mount.mount_path.trim_end_matches('/').to_owned())
        })
        .collect()
}
