//! The bridge to which the machines are tied, and what they leave behind on the host.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};

use super::system;
use crate::assets::{AssetFolders, wait_for_turn};

const BRIDGE: &str = "runnel0";
const GROUPS: &str = "/sys/fs/cgroup";
/// Maximum number of machines on one host.
const MOST: u8 = 9;

/// The addresses of one machine, derived from its number, from 1 to 9.
#[derive(Clone, Copy, Debug)]
pub struct MachineAddresses(pub(super) u8);

impl MachineAddresses {
    /// The address of its node, at which its API server and its node ports are.
    #[must_use]
    pub fn address(self) -> String {
        format!("10.213.0.{}", 10 + self.0)
    }

    pub(super) fn pods(self) -> String {
        format!("10.214.{}.0/24", self.0)
    }

    /// The first three numbers of the addresses of its Services.
    pub(super) fn services(self) -> String {
        format!("10.215.{}", self.0)
    }

    pub(super) fn group(self) -> String {
        format!("runnel-node-{}", self.0)
    }

    fn link(self) -> String {
        format!("runnel0p{}", self.0)
    }

    /// Connects the machine with this first process to the bridge.
    pub(super) fn connect(self, process: u32) -> Result<()> {
        let (link, process) = (self.link(), process.to_string());
        let _ = system("ip", &["link", "delete", &link]);
        system(
            "ip",
            &[
                "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &process,
            ],
        )?;
        system("ip", &["link", "set", &link, "master", BRIDGE])?;
        system("ip", &["link", "set", &link, "up"])?;
        Ok(())
    }

    /// Makes the control groups below which the kubelet puts its pods.
    pub(super) fn make_groups(self) -> Result<()> {
        let groups = Path::new(GROUPS);
        if super::packages::is_unified() {
            let control = groups.join("cgroup.subtree_control");
            // Those that are on already, or that this machine does not have, are no matter.
            for controller in ["+cpuset", "+cpu", "+io", "+memory", "+pids"] {
                let _ = fs::write(&control, controller);
            }
            return fs::create_dir_all(groups.join(self.group()))
                .context("cannot make a control group");
        }
        for hierarchy in fs::read_dir(groups)?
            .flatten()
            .filter(|entry| entry.path().is_dir())
        {
            let _ = fs::create_dir(hierarchy.path().join(self.group()));
        }
        // A new group of this hierarchy is empty, and no process may enter an empty one.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let all = fs::read(groups.join("cpuset").join(file))
                .context("cannot read the processors of this machine")?;
            fs::write(groups.join("cpuset").join(self.group()).join(file), all)?;
        }
        Ok(())
    }

    fn remove_groups(self) {
        let group = self.group();
        let hierarchies = fs::read_dir(GROUPS)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        for folder in hierarchies
            .map(|path| path.join(&group))
            .chain([Path::new(GROUPS).join(&group)])
        {
            remove_group(&folder);
        }
    }
}

// From the innermost outwards; a group that still has a process stays, and the next start tries again.
fn remove_group(folder: &Path) {
    for inner in fs::read_dir(folder).into_iter().flatten().flatten() {
        if inner.path().is_dir() {
            remove_group(&inner.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// The bridge between the machines; one process on a host has it at a time, the next one waits.
#[derive(Debug)]
pub struct Network {
    _turn: File,
}

impl Network {
    /// Makes the bridge, after it has removed what a killed process left behind.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn make() -> Result<Self> {
        let places = AssetFolders::from_environment()?;
        fs::create_dir_all(&places.cache)
            .with_context(|| format!("cannot create {}", places.cache.display()))?;
        let turn = wait_for_turn(&places.cache, "nodes", "clusters with real nodes")?;
        sweep();
        system("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
        system("ip", &["address", "add", "10.213.0.1/24", "dev", BRIDGE])?;
        system("ip", &["link", "set", BRIDGE, "up"])?;
        Ok(Self { _turn: turn })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        sweep();
    }
}

fn sweep() {
    for place in (1..=MOST).map(MachineAddresses) {
        let _ = system("ip", &["link", "delete", &place.link()]);
        place.remove_groups();
    }
    let _ = system("ip", &["link", "delete", BRIDGE]);
}
