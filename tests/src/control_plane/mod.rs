//! A real Kubernetes control plane: etcd, the API server and the controllers that end namespaces,
//! collect garbage, make service accounts and fill aggregated roles. There are no nodes.

mod backup;
mod credentials;
mod parts;
mod stored;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::assets::Assets;
use crate::audit::{self, Mark, Write};
use crate::restartable::Restartable;
use crate::scratch::Scratch;
use crate::wait::eventually;
pub use backup::Backup;
use credentials::ControlPlaneCredentials;
pub(crate) use credentials::{front_proxy, write_private};
use parts::{Parts, Ports};

const READY: Duration = Duration::from_secs(180);
/// An API server that shares two cores needs half a minute for an object of 150,000 values.
const ANSWER: Duration = Duration::from_secs(120);
const KUBECTL: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 3;

/// Options of a control plane that differ from the defaults.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder of its state, which is never removed; a temporary one otherwise.
    pub folder: Option<PathBuf>,
    /// Whether etcd waits for the disk; only a test that crashes the machine needs it.
    pub durable: bool,
    /// Whether get, list and watch are audited too.
    pub audit_reads: bool,
    /// More arguments for the API server.
    pub api_server_arguments: Vec<String>,
    /// Controllers that run besides those that every cluster here has, such as `deployment-controller`.
    pub controllers: Vec<String>,
}

/// A running control plane; dropping it ends it.
///
/// It holds no task and no connection, so tests with different runtimes can share one. Its folder
/// is removed with it, see [`Scratch`].
#[derive(Debug)]
pub struct ControlPlane {
    name: String,
    // In the order in which they have to end: an API server without its etcd hangs.
    parts: Parts,
    assets: Assets,
    credentials: ControlPlaneCredentials,
    scratch: Scratch,
}

impl ControlPlane {
    /// Starts a control plane and returns when its API answers and its controllers work.
    ///
    /// # Errors
    /// When no binaries are found, or it is not ready within 60 s; with the end of the log of the
    /// part that is to blame.
    pub async fn start(name: &str, options: Options) -> Result<Self> {
        let assets = tokio::task::spawn_blocking(Assets::find).await??;
        for attempt in 1.. {
            let cluster = Self::prepare(name, &options, &assets)?;
            match cluster.launch().await {
                Ok(()) => return Ok(cluster),
                // Another program took one of the ports.
                Err(_) if attempt < ATTEMPTS && cluster.parts.lost_a_port() => {}
                Err(error) => {
                    crate::scratch::keep_everything();
                    return Err(error.context(format!("the control plane {name} did not start")));
                }
            }
        }
        bail!("the control plane {name} found no free ports")
    }

    fn prepare(name: &str, options: &Options, assets: &Assets) -> Result<Self> {
        let scratch = match &options.folder {
            Some(folder) => Scratch::given(folder)?,
            None => Scratch::new(name)?,
        };
        let ports = Ports::free()?;
        let credentials = ControlPlaneCredentials::write(scratch.path(), name, ports.api_server)?;
        let parts = Parts::new(name, scratch.path(), assets, &ports, &credentials, options)?;
        Ok(Self {
            name: name.to_owned(),
            parts,
            assets: assets.clone(),
            credentials,
            scratch,
        })
    }

    async fn launch(&self) -> Result<()> {
        self.parts.etcd.start()?;
        self.parts.api_server.start()?;
        self.wait_until_ready().await?;
        self.parts.controller_manager.start()?;
        self.wait_for_controllers().await
    }

    /// The name it was started with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its logs and files are; more may be put there.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// The API server's address, as `https://127.0.0.1:16443`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.credentials.url
    }

    /// A kubeconfig file of a cluster administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.credentials.kubeconfig
    }

    /// A new client of a cluster administrator, for the runtime of the caller.
    ///
    /// It ends a request after 30 s without an answer and never retries by itself, so a test sees what
    /// the API server says. Watches have to be shorter than that or expect to be cut.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client> {
        client_of(self.kubeconfig()).await
    }

    /// A kubeconfig file for a ServiceAccount that exists, with a token for a day, for tests with
    /// less than an administrator's permissions.
    ///
    /// # Errors
    /// When there is no such ServiceAccount.
    pub async fn token_kubeconfig(
        &self,
        namespace: &str,
        service_account: &str,
    ) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let spec = TokenRequestSpec {
            expiration_seconds: Some(24 * 3600),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest {
            spec,
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(service_account, &kube::api::PostParams::default(), &request)
            .await
            .with_context(|| {
                format!("no token for the ServiceAccount {namespace}/{service_account}")
            })?;
        let token = answer
            .status
            .context("a TokenRequest without an answer")?
            .token;
        let path = self
            .folder()
            .join(format!("{namespace}.{service_account}.kubeconfig"));
        self.credentials.write_kubeconfig(&path, &token)?;
        Ok(path)
    }

    /// Runs the `kubectl` of the same version as an administrator; returns its output.
    ///
    /// # Errors
    /// When it fails (with its standard error) or takes longer than two minutes.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_stdin(arguments, "").await
    }

    /// As above, with `input` on standard input, as for `apply -f -`.
    ///
    /// # Errors
    /// When it fails (with its standard error) or takes longer than two minutes.
    pub async fn kubectl_stdin(&self, arguments: &[&str], input: &str) -> Result<String> {
        let printed = arguments.join(" ");
        let mut child = self
            .kubectl_command(arguments)
            .spawn()
            .context("cannot run kubectl")?;
        let mut stdin = child
            .stdin
            .take()
            .context("kubectl has no standard input")?;
        let talk = async {
            // A kubectl that fails early does not read to the end. Its own output has the cause.
            let _ = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
            child.wait_with_output().await
        };
        let ended = tokio::time::timeout(KUBECTL, talk).await;
        let output =
            ended.with_context(|| format!("kubectl {printed}: no end within {KUBECTL:?}"))??;
        if !output.status.success() {
            bail!(
                "kubectl {printed} on {}: {}",
                self.name,
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        String::from_utf8(output.stdout).context("kubectl printed something that is not text")
    }

    // With a separate home: kubectl caches discovery by address and port, and ports are reused.
    fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.assets.kubectl());
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments);
        command
            .env("HOME", self.folder())
            .env_remove("KUBECONFIG")
            .env("KUBECTL_KUBERC", "false");
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        command
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Kills the API server; answered writes are not lost.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn stop_api_server(&self) -> Result<()> {
        self.parts.api_server.kill()
    }

    /// Starts a stopped API server, on the same port, and returns when it answers.
    ///
    /// # Errors
    /// When it runs already or is not ready within 60 s.
    pub async fn start_api_server(&self) -> Result<()> {
        self.parts.api_server.start()?;
        self.wait_until_ready().await
    }

    /// Kills the API server, starts it again and returns when it answers.
    ///
    /// # Errors
    /// When it is not ready within 60 s.
    pub async fn restart_api_server(&self) -> Result<()> {
        self.stop_api_server()?;
        self.start_api_server().await
    }

    /// The API server itself, to freeze it for example.
    #[must_use]
    pub fn api_server(&self) -> &Restartable {
        &self.parts.api_server
    }

    /// The present end of the audit log.
    #[must_use]
    pub fn mark(&self) -> Mark {
        audit::end(&self.parts.audit_log)
    }

    /// Every write that the API server has answered since `mark`, in the order of the answers, also
    /// refused ones. Without Leases, and without those of the control plane itself.
    ///
    /// A client that has received an answer finds its entry here at once. Token and access reviews are
    /// `create`s and so are Events: filter by resource or user.
    ///
    /// # Errors
    /// When the audit log cannot be read.
    pub fn writes_since(&self, mark: Mark) -> Result<Vec<Write>> {
        audit::since(&self.parts.audit_log, mark)
    }

    /// What etcd holds: the bytes of each key with its value. Leases are left out.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn stored(&self) -> Result<BTreeMap<String, usize>> {
        stored::stored(&self.parts.etcd_url).await
    }

    /// Stores a value under a key of etcd, or removes the key, past the API server: such as a Secret that the API server
    /// cannot decode, because of which it lists no Secrets.
    ///
    /// # Errors
    /// When etcd refuses.
    pub async fn store(&self, key: &str, value: Option<&str>) -> Result<()> {
        stored::store(&self.parts.etcd_url, key, value).await
    }

    /// Ends the control plane in order. Dropping it does the same, less politely.
    ///
    /// # Errors
    /// When a part cannot be ended.
    pub async fn shutdown(self) -> Result<()> {
        self.parts.api_server.kill()?;
        self.parts.controller_manager.kill()?;
        if self.parts.etcd.is_running() {
            self.parts.etcd.terminate(GRACE).await?;
        }
        Ok(())
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let begin = Instant::now();
        let client = self.client().await?;
        while begin.elapsed() < READY {
            self.parts.check()?;
            let request = http::Request::get("/readyz").body(Vec::new())?;
            let answer = tokio::time::timeout(GRACE, client.request_text(request)).await;
            if matches!(answer, Ok(Ok(_))) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!(
            "the API server of {} is not ready after {READY:?}; {}",
            self.name,
            self.parts.api_server.last_words()
        )
    }

    // The controllers have no readiness of their own here; this account is one of their works.
    async fn wait_for_controllers(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        let seen = eventually("the ServiceAccount default/default", READY, async || {
            Ok(accounts.get_opt("default").await?)
        });
        tokio::select! {
            seen = seen => seen.map(|_| ()).with_context(|| self.parts.controller_manager.last_words()),
            ended = self.parts.until_one_ends() => Err(ended),
        }
    }
}

/// A new client with the credentials of a kubeconfig file, with the timeouts of
/// [`ControlPlane::client`].
///
/// # Errors
/// When the file cannot be read or used.
pub async fn client_of(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("cannot use {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.read_timeout = Some(ANSWER);
    config.write_timeout = Some(ANSWER);
    config.reset_reader_on_write = true;
    config.default_retry = false;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
