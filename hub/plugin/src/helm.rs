//! The user's helm, with the charts that this plugin carries.
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, anyhow, bail};
use include_dir::Dir;
use serde_json::Value;
use tokio::process::Command;

use super::access::Cluster;
use super::args::ChartValues;
use super::values::HelmInstall;
use super::{FAILED, TIMED_OUT, ended, hints};

/// The chart and release of the hub.
pub const HUB: &str = "runnel-hub";
/// The chart and release of an agent.
pub const AGENT: &str = "runnel-agent";

/// A folder that only this user can read; removed on drop.
pub struct PrivateFolder {
    path: PathBuf,
}

impl PrivateFolder {
    fn new() -> anyhow::Result<Self> {
        let random = ring::rand::generate::<[u8; 8]>(&ring::rand::SystemRandom::new());
        let random = random
            .map_err(|_| anyhow!("the system gives no random numbers"))?
            .expose();
        let name = format!("kubectl-runnel-{}", data_encoding::HEXLOWER.encode(&random));
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| {
            format!(
                "cannot create {}: set TMPDIR to a folder that you may write",
                path.display()
            )
        })?;
        Ok(Self { path })
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A helm and the charts.
pub struct Helm {
    binary: PathBuf,
    folder: PrivateFolder,
}

impl Helm {
    /// Returns the path of helm.
    ///
    /// # Errors
    /// A message with an installation hint.
    pub fn binary() -> anyhow::Result<PathBuf> {
        if let Some(named) = std::env::var_os("RUNNEL_HELM").filter(|named| !named.is_empty()) {
            let path = PathBuf::from(named);
            if path.is_file() {
                return Ok(path);
            }
            bail!(
                "RUNNEL_HELM={} is no file: set it to helm's path, or unset it to have PATH searched",
                path.display()
            );
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .map(|folder| folder.join("helm"))
            .find(|file| file.is_file());
        found.ok_or_else(|| anyhow!(hints::NO_HELM))
    }

    /// Finds helm and unpacks the charts into a private folder.
    ///
    /// # Errors
    /// A sentence with a hint.
    pub fn unpack(charts: &Dir<'_>) -> anyhow::Result<Self> {
        let binary = Self::binary()?;
        let folder = PrivateFolder::new()?;
        charts
            .extract(&folder.path)
            .with_context(|| format!("cannot write {}", folder.path.display()))?;
        Ok(Self { binary, folder })
    }

    /// Runs `helm upgrade --install`; returns the notes.
    ///
    /// # Errors
    /// The output of helm, with a hint.
    pub async fn install(&self, on: &Cluster, install: &HelmInstall<'_>) -> anyhow::Result<String> {
        let own = self.folder.path.join("values.json");
        std::fs::write(&own, install.values.to_string())
            .with_context(|| format!("cannot write {}", own.display()))?;
        let chart = self.folder.path.join(install.chart);
        let arguments = install.arguments(&chart.to_string_lossy(), &own.to_string_lossy());
        let answer_text = self.run(on, &arguments).await;
        let answer_text = answer_text.map_err(|error| {
            let answer_text = error.to_string();
            let code = if hints::is_timeout(&answer_text) {
                TIMED_OUT
            } else {
                FAILED
            };
            ended(code, hints::helm(&answer_text, install.chart, &on.place))
        })?;
        let answer: Value = serde_json::from_str(&answer_text).unwrap_or_default();
        Ok(answer
            .pointer("/info/notes")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .trim_end()
            .to_owned())
    }

    /// Runs `helm uninstall`; returns whether there was a release.
    ///
    /// # Errors
    /// The output of helm.
    pub async fn uninstall(
        binary: &Path,
        on: &Cluster,
        release: &str,
        namespace: &str,
    ) -> anyhow::Result<bool> {
        let arguments = [
            "uninstall",
            release,
            "--namespace",
            namespace,
            "--wait",
            "--timeout",
            "2m",
        ];
        match run(binary, on, &arguments.map(str::to_owned)).await {
            Ok(_) => Ok(true),
            Err(HelmError::Failed(output)) if output.contains("not found") => Ok(false),
            Err(error) => Err(anyhow!(
                "helm could not uninstall {release} in {}: {error}",
                on.place
            )),
        }
    }

    async fn run(&self, on: &Cluster, arguments: &[String]) -> Result<String, HelmError> {
        run(&self.binary, on, arguments).await
    }
}

/// The version of a helm.
///
/// # Errors
/// Why it does not run.
pub async fn version(binary: &Path) -> anyhow::Result<String> {
    let output = Command::new(binary)
        .args(["version", "--template", "{{.Version}}"])
        .stdin(Stdio::null())
        .output();
    let output = output
        .await
        .with_context(|| format!("cannot run {}", binary.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Why a command of helm failed.
#[derive(Debug, thiserror::Error)]
enum HelmError {
    /// helm could not be started.
    #[error("cannot run {}: {source}", binary.display())]
    Run {
        /// The program.
        binary: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// helm failed, with its error output.
    #[error("{0}")]
    Failed(String),
}

/// Helm's own choice of cluster is overruled by flags; its standard error is the error.
async fn run(binary: &Path, on: &Cluster, arguments: &[String]) -> Result<String, HelmError> {
    let mut command = Command::new(binary);
    command
        .args(arguments)
        .arg("--kube-context")
        .arg(&on.context);
    if let Some(path) = &on.kubeconfig {
        command.arg("--kubeconfig").arg(path);
    }
    for name in [
        "HELM_NAMESPACE",
        "HELM_KUBECONTEXT",
        "HELM_KUBETOKEN",
        "HELM_KUBEAPISERVER",
        "HELM_KUBEASUSER",
        "HELM_KUBEASGROUPS",
    ] {
        command.env_remove(name);
    }
    command.envs(on.helm_environment().map_err(HelmError::Failed)?);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.map_err(|source| HelmError::Run {
        binary: binary.to_owned(),
        source,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(HelmError::Failed(
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

/// Returns the values of a chart with their descriptions.
///
/// # Errors
/// If this build does not include the chart.
pub fn shown_values(charts: &Dir<'_>, chart: &str) -> anyhow::Result<String> {
    let file = charts.get_file(format!("{chart}/values.yaml"));
    let text = file.and_then(|file| file.contents_utf8());
    text.map(str::to_owned)
        .with_context(|| format!("this build has no chart {chart}"))
}

/// Refuses value files that are not there before anything is changed.
///
/// # Errors
/// The file that is not there.
pub fn check_files(values: &ChartValues) -> anyhow::Result<()> {
    for path in &values.files {
        if path.as_os_str() != "-" && !path.is_file() {
            bail!("--values {} is no file: check its path", path.display());
        }
    }
    Ok(())
}
