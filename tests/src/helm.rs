//! The real `helm`: the one in `RUNNEL_HELM`, or our own build, and the charts that it installs.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::assets::{AssetFolders, variable, wait_for_turn};
use crate::progress::Progress;

/// The Helm version that is built where `RUNNEL_HELM` names none.
pub const HELM_VERSION: &str = "3.22.0";

// As Helm's own Makefile sets them; without the last two it takes 1.20 for the cluster where it has none.
const LINKER_FLAGS: [&str; 4] = [
    "-s -w",
    "-X helm.sh/helm/v3/internal/version.version=v3.22.0",
    "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
    "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
];
const CHARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/charts");
const LIMIT: Duration = Duration::from_secs(300);

/// The folder of one of our charts, such as `runnel-hub`.
#[must_use]
pub fn chart(name: &str) -> PathBuf {
    Path::new(CHARTS).join(name)
}

/// Variables of the caller's environment that change helm's behavior.
const FOREIGN: [&str; 6] = [
    "HELM_NAMESPACE",
    "HELM_KUBECONTEXT",
    "HELM_KUBETOKEN",
    "HELM_KUBEAPISERVER",
    "HELM_DRIVER",
    "KUBECONFIG",
];

/// A `helm` that works.
#[derive(Clone, Debug)]
pub struct Helm {
    binary: PathBuf,
}

impl Helm {
    /// Returns the `helm` of `RUNNEL_HELM`, or our own build, which is made once and takes a minute
    /// or two.
    ///
    /// # Errors
    /// A sentence with what is missing and a hint.
    pub async fn find() -> Result<Self> {
        tokio::task::spawn_blocking(find).await?
    }

    /// The program itself.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Runs helm without a cluster, as for `template` and `lint`; returns its output.
    ///
    /// # Errors
    /// When it fails (with its standard error) or takes longer than five minutes.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        self.call(None, arguments, "").await
    }

    /// Runs helm on the cluster of a kubeconfig file; returns what it prints.
    ///
    /// # Errors
    /// As [`Helm::run`].
    pub async fn on(&self, kubeconfig: &Path, arguments: &[&str]) -> Result<String> {
        self.call(Some(kubeconfig), arguments, "").await
    }

    /// As [`Helm::on`], with `input` on standard input, as for `--values -`.
    ///
    /// # Errors
    /// As [`Helm::run`].
    pub async fn on_with(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        self.call(Some(kubeconfig), arguments, input).await
    }

    /// Renders one of our charts in `runnel-system` with these values (YAML).
    ///
    /// # Errors
    /// As [`Helm::run`]; also values that the schema refuses.
    pub async fn template(&self, name: &str, values: &str) -> Result<String> {
        self.template_as(name, name, values).await
    }

    /// As [`Helm::template`], with another release name.
    ///
    /// # Errors
    /// As [`Helm::template`].
    pub async fn template_as(&self, release: &str, name: &str, values: &str) -> Result<String> {
        let folder = chart(name);
        let folder = folder.to_str().context("a path that is not text")?;
        self.call(
            None,
            &[
                "template",
                release,
                folder,
                "--namespace=runnel-system",
                "--values=-",
            ],
            values,
        )
        .await
    }

    async fn call(
        &self,
        kubeconfig: Option<&Path>,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        let printed = arguments.join(" ");
        let mut command = Command::new(&self.binary);
        command.args(arguments).kill_on_drop(true);
        for name in FOREIGN {
            command.env_remove(name);
        }
        match kubeconfig {
            Some(path) => {
                let home = path
                    .parent()
                    .unwrap_or(Path::new("/nonexistent"))
                    .join("helm");
                // Cached data about servers is stored by address and port, and ports are reused.
                command
                    .env("KUBECONFIG", path)
                    .env("KUBECACHEDIR", home.join("discovery"));
                for folder in ["cache", "config", "data"] {
                    command.env(
                        format!("HELM_{}_HOME", folder.to_uppercase()),
                        home.join(folder),
                    );
                }
            }
            None => {
                command.env("KUBECONFIG", "/nonexistent");
            }
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        let mut stdin = child.stdin.take().context("helm has no standard input")?;
        let talk = async {
            // A helm that fails early does not read to the end. Its own output has the cause.
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stdin, input.as_bytes()).await;
            drop(stdin);
            child.wait_with_output().await
        };
        let ended = tokio::time::timeout(LIMIT, talk).await;
        let output =
            ended.with_context(|| format!("helm {printed}: no end within {LIMIT:?}"))??;
        if !output.status.success() {
            bail!(
                "helm {printed}: {}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        String::from_utf8(output.stdout).context("helm printed something that is not text")
    }
}

fn find() -> Result<Helm> {
    if let Some(binary) = variable("RUNNEL_HELM") {
        if binary.is_file() {
            return Ok(Helm { binary });
        }
        bail!(
            "RUNNEL_HELM={} is no file: point it at a helm {HELM_VERSION}, or unset it",
            binary.display()
        );
    }
    let places = AssetFolders::from_environment()?;
    let folder = places.cache.join(format!("helm-{HELM_VERSION}"));
    let helm = Helm {
        binary: folder.join("helm"),
    };
    if folder.is_dir() {
        return Ok(helm);
    }
    fs::create_dir_all(&places.cache)
        .with_context(|| format!("cannot create {}", places.cache.display()))?;
    let _turn = wait_for_turn(&places.cache, "helm", "helm")?;
    // The former holder of the lock may have built it.
    if !folder.is_dir() {
        build(&places.go, &folder)?;
    }
    Ok(helm)
}

// Built under a temporary name and moved at once: the final name is always complete.
fn build(go: &Path, folder: &Path) -> Result<()> {
    let unfinished = folder.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished)
        .with_context(|| format!("cannot create {}", unfinished.display()))?;
    let mut command = std::process::Command::new(go);
    command
        .current_dir(&unfinished)
        .env("CGO_ENABLED", "0")
        .env("GOBIN", &unfinished)
        .env_remove("GOFLAGS");
    let flags = LINKER_FLAGS.join(" ");
    let package = format!("helm.sh/helm/v3/cmd/helm@v{HELM_VERSION}");
    command.args(["install", "-trimpath", "-ldflags", &flags, &package]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "the charts are tested with the real helm: install Go 1.26 or newer (https://go.dev/dl) to have it built, \
             or set RUNNEL_HELM to a helm {HELM_VERSION}"
        ),
        started => started.context("cannot run go")?,
    };
    let _progress = Progress::start(&format!(
        "building helm {HELM_VERSION} once for this machine (about 2 minutes on 2 cores)"
    ));
    let output = child.wait_with_output().context("cannot wait for go")?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        bail!(
            "go install {package} failed ({}):\n{}",
            output.status,
            printed.trim_end()
        );
    }
    fs::rename(&unfinished, folder).with_context(|| format!("cannot create {}", folder.display()))
}
