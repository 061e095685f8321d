//! A cluster with one real node.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use parking_lot::Mutex;

use super::binaries::NodeBinaries;
use super::network::MachineAddresses;
use super::{config, text};
use crate::control_plane::client_of;
use crate::guard::{Guarded, Program, last_lines};
use crate::scratch::Scratch;
use crate::wait::eventually;

const SCRIPT: &str = include_str!("node.sh");
const STARTS: Duration = Duration::from_secs(120);
const FIRST_PROCESS: Duration = Duration::from_secs(10);
/// Files of a node that a power failure deletes.
const LOST: [&str; 3] = ["containerd-state", "containerd.sock", "addresses"];

/// A cluster with one real node; dropping it ends everything in it.
#[derive(Debug)]
pub struct Machine {
    process: Mutex<Option<Guarded>>,
    // Process 1 of its namespace, as this machine calls it.
    first: Mutex<u32>,
    name: String,
    place: MachineAddresses,
    binaries: NodeBinaries,
    archives: Vec<PathBuf>,
    folder: Scratch,
}

impl Machine {
    /// Starts the machine with this number, from 1, and returns when its node is ready. Images are there as these archives
    /// have them; nothing is pulled.
    ///
    /// # Errors
    /// When anything of that fails; with the end of the log that tells why.
    pub async fn start(
        name: &str,
        number: u8,
        binaries: &NodeBinaries,
        archives: &[PathBuf],
    ) -> Result<Self> {
        let folder = Scratch::new(&format!("node-{name}"))?;
        let place = MachineAddresses(number);
        config::write(folder.path(), place)?;
        let archives = [std::slice::from_ref(&binaries.pause), archives].concat();
        let machine = Self {
            process: Mutex::new(None),
            first: Mutex::new(0),
            name: name.to_owned(),
            place,
            binaries: binaries.clone(),
            archives,
            folder,
        };
        machine.boot().await?;
        Ok(machine)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of its node.
    #[must_use]
    pub fn address(&self) -> String {
        self.place.address()
    }

    /// An administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The binary with all parts; its first argument names the part.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binaries.node
    }

    /// Kills the whole machine, starts it again with its disk, and returns when its node is ready.
    ///
    /// # Errors
    /// As [`Machine::start`].
    pub async fn restart(&self) -> Result<()> {
        drop(self.process.lock().take());
        // Everything in its namespace is killed with its first process.
        let first = *self.first.lock();
        eventually("the end of a machine", FIRST_PROCESS, async || {
            Ok((!Path::new("/proc").join(first.to_string()).exists()).then_some(()))
        })
        .await?;
        for name in LOST {
            let path = self.folder.path().join(name);
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir_all(&path);
        }
        self.boot().await
    }

    async fn boot(&self) -> Result<()> {
        let since = Timestamp::now();
        self.place.make_groups()?;
        let process = self.program()?.start()?;
        let outer = process.pid();
        *self.process.lock() = Some(process);
        let first = eventually(
            "the first process of a machine",
            FIRST_PROCESS,
            async || first_process(outer),
        )
        .await;
        let first = first.with_context(|| self.last_words())?;
        *self.first.lock() = first;
        self.place.connect(first)?;
        self.ready(since).await.with_context(|| self.last_words())
    }

    fn program(&self) -> Result<Program> {
        let folder = self.folder.path();
        let archives: Vec<_> = self
            .archives
            .iter()
            .map(|path| text(path))
            .collect::<Result<_>>()?;
        let own = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            SCRIPT,
        ];
        Ok(Program::new("/usr/bin/unshare", folder.join("machine.log"))
            .arguments(own)
            .environment("FOLDER", folder)
            .environment("NODE", &self.binaries.node)
            .environment("ADDRESS", self.place.address())
            .environment("SERVICES", self.place.services())
            .environment("ARCHIVES", archives.join(" ")))
    }

    async fn ready(&self, since: Timestamp) -> Result<()> {
        let kubeconfig = self.kubeconfig();
        eventually(&format!("the node of {}", self.name), STARTS, async || {
            self.check()?;
            let nodes: Api<Node> = Api::all(client_of(&kubeconfig).await?);
            let conditions = nodes
                .get("node")
                .await?
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready")
                .context("it says nothing yet")?;
            // After a restart the API server still has the status of the former kubelet.
            let received = ready
                .last_heartbeat_time
                .as_ref()
                .context("it has not been heard yet")?;
            ensure!(
                received.0.as_second() > since.as_second(),
                "its kubelet was heard last at {}",
                received.0
            );
            ensure!(
                ready.status == "True",
                "it is not ready: {}",
                ready.message.as_deref().unwrap_or_default()
            );
            Ok(Some(()))
        })
        .await
    }

    fn check(&self) -> Result<()> {
        match &*self.process.lock() {
            Some(process) if process.is_running()? => Ok(()),
            _ => bail!("the machine {} has ended", self.name),
        }
    }

    fn last_words(&self) -> String {
        let logs = ["machine", "kube-apiserver", "containerd", "kubelet"].map(|part| {
            let log = self.folder.path().join(format!("{part}.log"));
            format!("the end of {part}.log:\n{}", last_lines(&log, 5))
        });
        logs.join("\n")
    }
}

/// Returns the child of `unshare` when it has its namespaces.
fn first_process(outer: u32) -> Result<Option<u32>> {
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
    let Some(child) = children.split_whitespace().next() else {
        return Ok(None);
    };
    let is_apart =
        fs::read_link(format!("/proc/{child}/ns/net"))? != fs::read_link("/proc/self/ns/net")?;
    Ok(if is_apart { Some(child.parse()?) } else { None })
}
