//! Clusters with a real node each, on this machine, without Docker: for what only a kubelet can show.
//!
//! A [`Machine`] is a Kubernetes cluster with one node (kubelet, containerd, runc, kube-proxy, scheduler) in network, mount
//! and process namespaces of its own, on a bridge to which the others are tied as well. Everything in it ends with the
//! process that started it, also after a `kill -9`; bridge, routes and control groups are removed by the next start or by
//! [`network::Network`], which only one process on a machine can have. It needs root, Linux, and Debian's packages, which
//! [`packages::prepare`] installs.
//!
//! The control planes without nodes ([`crate::control_plane`]) stay what tests stand on: they need no root.

pub mod binaries;
mod config;
pub mod machine;
pub mod network;
pub mod packages;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

pub use machine::Machine;

/// Runs a program of the system, and returns its output.
///
/// # Errors
/// When there is none, or it fails; with its output.
pub(crate) fn system(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", arguments.join(" "), printed.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A path as text, which every path that is made here is.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not text", path.display()))
}
