//! Clusters in one kubeconfig, a helm that writes down how it is called, and the pods that no node starts.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::config::Kubeconfig;
use runnel_tests::assets::Assets;
use runnel_tests::binaries::{self, Binaries};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{AGENT, HUB, NAMESPACE};
use runnel_tests::helm::Helm;
use runnel_tests::memory::Enforcement;
use runnel_tests::pod::{Pod, Site, Wanted};
use runnel_tests::scratch::Scratch;
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::process::Command;

pub const SOON: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(180);
/// What every join string begins with.
pub const SECRET: &str = "runnel-join-v";

/// The result of a command.
#[derive(Debug)]
pub struct Printed {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Printed {
    pub fn ok(self) -> Result<String> {
        ensure!(
            self.code == 0,
            "exit code {}: {}\n{}",
            self.code,
            self.err,
            self.out
        );
        Ok(self.out)
    }

    /// Fails unless it ended with this code and printed each of these.
    pub fn refused(&self, code: i32, words: &[&str]) -> Result<()> {
        ensure!(
            self.code == code,
            "exit code {}, not {code}: {}\n{}",
            self.code,
            self.err,
            self.out
        );
        for word in words {
            ensure!(
                self.err.contains(word),
                "it does not say `{word}`: {}",
                self.err
            );
        }
        ensure!(
            !self.err.contains(SECRET) && !self.out.contains(SECRET),
            "it prints a join string"
        );
        Ok(())
    }
}

/// Contexts, and the folder of what is called.
pub struct Stage {
    pub binaries: Binaries,
    pub folder: Scratch,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    helm: PathBuf,
    pods: AtomicUsize,
}

impl Stage {
    /// One kubeconfig with a context for each pair of a name and a kubeconfig; the first one is the current one.
    pub async fn new(contexts: &[(&str, &Path)]) -> Result<Self> {
        let binaries = tokio::task::spawn_blocking(binaries::build).await??;
        let kubectl = tokio::task::spawn_blocking(Assets::find).await??.kubectl();
        let helm = Helm::find().await?;
        let folder = Scratch::new("plugin")?;
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, merged(contexts)?.to_string())?;
        let recorder = folder.path().join("helm");
        let (record, real) = (folder.path().join("helm.record"), helm.binary());
        let script = format!(
            "#!/bin/sh\n{{ echo \"called: $*\"; env; tr '\\0' ' ' < /proc/$PPID/cmdline; echo; }} >> '{}'\nexec '{}' \"$@\"\n",
            record.display(),
            real.display()
        );
        fs::write(&recorder, script)?;
        fs::set_permissions(&recorder, fs::Permissions::from_mode(0o700))?;
        Ok(Self {
            binaries,
            folder,
            kubectl,
            kubeconfig,
            helm: recorder,
            pods: AtomicUsize::new(1),
        })
    }

    /// How helm was called, with its environment.
    pub fn record(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("helm.record"))?)
    }

    /// `host:port` of the API server of a context.
    pub fn server(&self, context: &str) -> Result<String> {
        let read: Value = serde_json::from_str(&fs::read_to_string(&self.kubeconfig)?)?;
        let found = read["clusters"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|one| one["name"] == context);
        let url = found
            .and_then(|one| one["cluster"]["server"].as_str())
            .context("no such context")?;
        Ok(url
            .trim_start_matches("https://")
            .trim_end_matches('/')
            .to_owned())
    }

    /// `kubectl runnel ...`.
    pub async fn runnel(&self, words: &str) -> Result<Printed> {
        self.runnel_with(words, Some(&self.helm)).await
    }

    /// As above, with another helm, or none.
    pub async fn runnel_with(&self, words: &str, helm: Option<&Path>) -> Result<Printed> {
        let mut command = Command::new(&self.kubectl);
        command
            .arg("runnel")
            .args(words.split_whitespace())
            .env_clear();
        command.env(
            "PATH",
            format!("{}:/usr/bin:/bin", self.binaries.folder.display()),
        );
        command
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", &self.kubeconfig);
        if let Some(helm) = helm {
            command.env("RUNNEL_HELM", helm);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let begin = Instant::now();
        let ended = tokio::time::timeout(LIMIT, command.output()).await;
        let output =
            ended.with_context(|| format!("kubectl runnel {words}: no end within {LIMIT:?}"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let printed = Printed {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
            took: begin.elapsed(),
        };
        println!(
            "$ kubectl runnel {words}   # {} after {:?}\n{}{}",
            printed.code, printed.took, printed.err, printed.out
        );
        Ok(printed)
    }

    /// Returns the hub's started pod; a former one must be dropped first.
    pub async fn hub(&self, cluster: &ControlPlane) -> Result<Pod> {
        self.pod(cluster, HUB, &self.binaries.hub).await
    }

    /// Waits until the agent's Deployment is there, and starts its pod.
    pub async fn agent(&self, cluster: &ControlPlane) -> Result<Pod> {
        self.pod(cluster, AGENT, &self.binaries.agent).await
    }

    async fn pod(&self, cluster: &ControlPlane, name: &str, binary: &Path) -> Result<Pod> {
        // Each has a unique name, as pods have: no two share files.
        let number = self.pods.fetch_add(1, Ordering::Relaxed);
        let wanted = Wanted {
            namespace: NAMESPACE.to_owned(),
            deployment: name.to_owned(),
            name: format!("{name}-{number}"),
            address: Ipv4Addr::LOCALHOST,
            binary: binary.to_owned(),
            log: format!("{name}-{number}.log"),
            memory: Enforcement::default(),
        };
        let site = Site::from(cluster);
        let what = format!("the Deployment {name}");
        let pod = eventually(&what, SOON, async || {
            Ok(Some(Pod::new(&site, wanted.clone()).await?))
        })
        .await?;
        pod.start().await?;
        Ok(pod)
    }
}

/// Looks at every process for as long as `work` takes: none may show a join string.
pub async fn unseen<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    let mut attempts = 0;
    loop {
        tokio::select! {
            done = &mut work => {
                ensure!(attempts > 0, "it was too fast to be watched");
                return done;
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        attempts += 1;
        for entry in fs::read_dir("/proc")?.flatten() {
            for file in ["cmdline", "environ"] {
                let content = fs::read(entry.path().join(file)).unwrap_or_default();
                let shows = content
                    .windows(SECRET.len())
                    .any(|part| part == SECRET.as_bytes());
                ensure!(
                    !shows,
                    "{} {file} shows a join string",
                    entry.path().display()
                );
            }
        }
    }
}

/// A control plane without anything of Runnel's.
pub async fn cluster(name: &str) -> Result<ControlPlane> {
    ControlPlane::start(name, Options::default()).await
}

/// Returns an object as JSON; null if it does not exist.
pub async fn read(cluster: &ControlPlane, words: &str) -> Result<Value> {
    let arguments: Vec<&str> = ["get", "-o", "json", "--ignore-not-found"]
        .into_iter()
        .chain(words.split(' '))
        .collect();
    let printed = cluster.kubectl(&arguments).await?;
    Ok(if printed.trim().is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&printed)?
    })
}

fn merged(contexts: &[(&str, &Path)]) -> Result<Value> {
    let (mut clusters, mut users, mut named) = (Vec::new(), Vec::new(), Vec::new());
    for (name, path) in contexts {
        let read = serde_json::to_value(Kubeconfig::read_from(path)?)?;
        let first = |list: &str, entry: &str| read[list][0][entry].clone();
        clusters.push(json!({"name": name, "cluster": first("clusters", "cluster")}));
        users.push(json!({"name": name, "user": first("users", "user")}));
        named.push(json!({"name": name, "context": {"cluster": name, "user": name}}));
    }
    let current = contexts.first().map(|(name, _)| *name).unwrap_or_default();
    Ok(json!({
        "apiVersion": "v1", "kind": "Config", "clusters": clusters, "users": users, "contexts": named,
        "current-context": current,
    }))
}
