//! The required packages of the system, and their installation.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::system;
use crate::progress::Progress;

/// Programs that are needed, and Debian's packages that have them.
const NEEDED: [(&str, &str); 8] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("buildah", "buildah"),
    ("readelf", "binutils"),
];
/// The folder of the network plugins, and the package that fills it.
pub(super) const NETWORK_PLUGINS: &str = "/usr/lib/cni";
const NETWORK_PACKAGE: &str = "containernetworking-plugins";
const GROUPS: &str = "/sys/fs/cgroup";

/// Prepares this machine for real nodes, and installs Debian's packages if they are missing.
///
/// # Errors
/// A sentence with why there can be no real nodes here, and a hint.
pub fn prepare() -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("real nodes need Linux");
    }
    if !rustix::process::geteuid().is_root() {
        bail!("real nodes need root, for namespaces and control groups: run it as root");
    }
    let mut missing = missing(&NEEDED);
    if !Path::new(NETWORK_PLUGINS).join("bridge").is_file() {
        missing.push(NETWORK_PACKAGE);
    }
    install(&missing, "real nodes need")?;
    check_groups()?;
    system("unshare", &["--net", "--mount", "--pid", "--fork", "true"]).context(
        "no namespaces of its own can be made here: run it where root has CAP_SYS_ADMIN",
    )?;
    Ok(())
}

/// Installs Debian's packages of programs that are missing; `purpose` begins the message if that fails.
///
/// # Errors
/// A sentence with the packages.
pub fn provide(needed: &[(&str, &'static str)], purpose: &str) -> Result<()> {
    install(&missing(needed), purpose)
}

fn missing(needed: &[(&str, &'static str)]) -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let mut packages: Vec<_> = needed
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}

fn install(packages: &[&str], purpose: &str) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    let by_hand =
        || format!("{purpose} the packages {names}: install them (apt-get install {names})");
    if !rustix::process::geteuid().is_root() {
        bail!(by_hand());
    }
    let _progress = Progress::start(&format!("installing {names} with apt-get"));
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    // The lists of packages may be missing or old.
    if system("apt-get", &install).is_err() {
        system("apt-get", &["update"]).with_context(by_hand)?;
        system("apt-get", &install).with_context(by_hand)?;
    }
    Ok(())
}

// The kubelet makes control groups for its pods.
fn check_groups() -> Result<()> {
    let probe = Path::new(GROUPS).join(if is_unified() {
        "runnel-probe"
    } else {
        "memory/runnel-probe"
    });
    std::fs::create_dir_all(&probe)
        .context("no control groups can be made here, which a kubelet needs")?;
    std::fs::remove_dir(&probe).context("cannot remove a control group")
}

/// Whether this machine has the second version of control groups.
pub(super) fn is_unified() -> bool {
    Path::new(GROUPS).join("cgroup.controllers").is_file()
}
