//! One control plane that is hub and member at once, and the binaries beside it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::binaries::{self, Binaries};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{AGENT, HUB, NAMESPACE, account};
use runnel_tests::guard::{Guarded, Program};
use runnel_tests::ports;
use runnel_tests::scene::SOON;
use runnel_tests::wait::eventually;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Wrong usage ends at once; this allows for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

static STAGE: OnceCell<Equipped> = OnceCell::const_new();

/// Which binary.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    Hub,
    Agent,
}

impl Which {
    pub fn name(self) -> &'static str {
        match self {
            Which::Hub => "runnel-hub: ",
            Which::Agent => "runnel-agent: ",
        }
    }
}

pub struct Stage {
    pub cluster: ControlPlane,
    pub binaries: Binaries,
}

/// The control plane for wrong usage, with Runnel's CRDs and the rights of both charts.
pub struct Equipped {
    stage: Stage,
    pub hub_account: PathBuf,
    pub agent_account: PathBuf,
}

impl std::ops::Deref for Equipped {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

/// The control plane for wrong usage.
pub async fn stage() -> Result<&'static Equipped> {
    STAGE
        .get_or_try_init(|| async {
            let stage = Stage::new("usage").await?;
            let hub_account = account(&stage.cluster, HUB, NAMESPACE, &Value::Null).await?;
            let agent_account = account(&stage.cluster, AGENT, NAMESPACE, &Value::Null).await?;
            anyhow::Ok(Equipped {
                stage,
                hub_account,
                agent_account,
            })
        })
        .await
}

impl Stage {
    /// A control plane without anything of Runnel's.
    pub async fn new(name: &str) -> Result<Self> {
        let binaries = tokio::task::spawn_blocking(binaries::build).await??;
        Ok(Self {
            cluster: ControlPlane::start(name, Options::default()).await?,
            binaries,
        })
    }

    /// Installs the CRDs.
    pub async fn install(&self) -> Result<()> {
        let manifests: Vec<String> = runnel_api::files()
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        self.cluster
            .kubectl_stdin(&["apply", "--server-side", "-f", "-"], &manifests.concat())
            .await
            .map(drop)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.cluster.folder().join(name)
    }

    pub fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.path(name);
        std::fs::write(&path, content)?;
        Ok(path)
    }

    fn binary(&self, which: Which) -> &Path {
        match which {
            Which::Hub => &self.binaries.hub,
            Which::Agent => &self.binaries.agent,
        }
    }

    /// Returns the output of a call that must exit with code 1.
    pub async fn fails(&self, which: Which, arguments: &[&str]) -> Result<String> {
        let child = Command::new(self.binary(which))
            .args(arguments)
            .env_remove("KUBECONFIG")
            .env("RUNNEL_LOG", "warn")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let ended = tokio::time::timeout(AT_ONCE, child).await;
        let output = ended.with_context(|| format!("{which:?} {arguments:?} goes on"))??;
        let printed = String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned();
        let code = output.status.code();
        ensure!(
            code == Some(1),
            "{which:?} {arguments:?} ended with {code:?}: {printed}"
        );
        ensure!(
            output.stdout.is_empty(),
            "{which:?} {arguments:?} prints on standard output"
        );
        Ok(printed)
    }

    /// Returns the output of a successful call.
    pub async fn prints(&self, which: Which, arguments: &[&str]) -> Result<String> {
        let output = Command::new(self.binary(which))
            .args(arguments)
            .env_remove("KUBECONFIG")
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Starts a binary, with an operations port of its own.
    pub fn start(&self, which: Which, name: &str, arguments: &[String]) -> Result<Running> {
        let ops = ports::local(ports::free()?).to_string();
        let log = self.path(&format!("{name}.log"));
        let program = Program::new(self.binary(which), &log)
            .arguments(arguments)
            .arguments([format!("--ops-listen={ops}")])
            .environment("RUNNEL_LOG", "info");
        Ok(Running {
            process: program.start()?,
            ops,
            log,
        })
    }
}

/// A running binary.
pub struct Running {
    process: Guarded,
    ops: String,
    log: PathBuf,
}

impl Running {
    /// Waits until a line of the log has all these words, while the process runs and is not ready.
    pub async fn complains(&self, words: &[&str]) -> Result<()> {
        eventually(
            &format!("a line with {words:?} in {}", self.log.display()),
            SOON,
            async || {
                ensure!(
                    self.process.is_running()?,
                    "it has ended: {}",
                    self.printed()?
                );
                ensure!(
                    !self.is_ready().await,
                    "it says that it is ready: {}",
                    self.printed()?
                );
                let printed = self.printed()?;
                let found = printed
                    .lines()
                    .any(|line| words.iter().all(|word| line.contains(word)));
                ensure!(found, "the log says: {printed}");
                Ok(Some(()))
            },
        )
        .await
    }

    /// Waits until the same process is ready.
    pub async fn recovers(&self) -> Result<()> {
        eventually("it to be ready", SOON, async || {
            ensure!(
                self.process.is_running()?,
                "it has ended: {}",
                self.printed()?
            );
            ensure!(self.is_ready().await, "the log says: {}", self.printed()?);
            Ok(Some(()))
        })
        .await
    }

    async fn is_ready(&self) -> bool {
        let ask = async {
            let mut stream = TcpStream::connect(&self.ops).await?;
            let request = format!(
                "GET /readyz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                self.ops
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer.starts_with("HTTP/1.1 200"))
        };
        tokio::time::timeout(Duration::from_secs(5), ask)
            .await
            .is_ok_and(|answer| answer.unwrap_or(false))
    }

    pub fn printed(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }
}
