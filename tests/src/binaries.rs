//! Runnel's own binaries, as the tests' profile builds them.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};

use crate::cargo;
use crate::progress::Progress;

/// The location of the built binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `runnel-hub`.
    pub hub: PathBuf,
    /// `runnel-agent`.
    pub agent: PathBuf,
    /// The folder of both, where the packages' other binaries (the `kubectl` plugin) are as well.
    pub folder: PathBuf,
}

/// Builds `runnel-hub` and `runnel-agent` once per test run, in the profile of the running test.
///
/// # Errors
/// When the build fails; the compiler's words are on standard error then.
pub fn build() -> Result<Binaries> {
    static BUILT: OnceLock<Result<Binaries, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| run_cargo().map_err(|error| format!("{error:#}")));
    built.clone().map_err(|message| anyhow!(message))
}

fn run_cargo() -> Result<Binaries> {
    let progress = Progress::start("building runnel-hub and runnel-agent");
    let output = build_both().output().context("cannot run cargo")?;
    drop(progress);
    if !output.status.success() {
        let _ = std::io::stderr().write_all(&output.stderr);
        bail!(
            "cargo build of runnel-hub and runnel-agent failed ({})",
            output.status
        );
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let hub = executable(&text, "runnel-hub")?;
    let agent = executable(&text, "runnel-agent")?;
    let folder = hub
        .parent()
        .context("a binary without a folder")?
        .to_owned();
    Ok(Binaries { hub, agent, folder })
}

// Cargo reports the paths of the binaries, for every target folder and profile.
fn build_both() -> Command {
    let mut command = cargo::command();
    command.args(["build", "--quiet"]).args(cargo::NAMES);
    for name in ["runnel-hub", "kubectl-runnel", "runnel-agent"] {
        command.args(["--package", name, "--bin", name]);
    }
    if cfg!(debug_assertions) {
        // With the features of the tests, so that everything below is built already.
        command.args(["--package", env!("CARGO_PKG_NAME")]);
    } else {
        command.arg("--release");
    }
    command
}

fn executable(messages: &str, name: &str) -> Result<PathBuf> {
    let mut named = cargo::artifacts(messages).filter(|artifact| artifact.target.name == name);
    named
        .find_map(|artifact| artifact.executable)
        .with_context(|| format!("cargo built no binary called {name}"))
}
