//! Cargo itself, asked from a program that cargo has started.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The folder of the workspace.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// How cargo is asked to name what it builds, so that a person still reads the compiler's own words.
pub const NAMES: [&str; 2] = ["--message-format", "json-render-diagnostics"];

/// An artifact that cargo reports.
#[derive(Debug, Deserialize)]
pub struct Artifact {
    /// The manifest of its package.
    pub manifest_path: PathBuf,
    /// What of the package it is.
    pub target: Target,
    /// How it was built.
    pub profile: Profile,
    /// The program, if it is one.
    pub executable: Option<PathBuf>,
}

/// What of a package was built.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// As the manifest names it.
    pub name: String,
    /// `lib`, `bin`, `test` and the like.
    pub kind: Vec<String>,
}

/// How something was built.
#[derive(Debug, Deserialize)]
pub struct Profile {
    /// With the harness of its own tests.
    pub test: bool,
}

/// The cargo that runs this program, in the workspace's folder, with nothing to read.
#[must_use]
pub fn command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_own_package(&mut command);
    command.current_dir(ROOT).stdin(Stdio::null());
    command
}

/// Takes away what cargo says of the package of this program. To build scripts it would look like a change, and everything
/// that depends on them would be built again, here and in the next run; another program would take it for its own.
pub fn without_own_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// Returns what cargo built, as reported with [`NAMES`].
pub fn artifacts(messages: &str) -> impl Iterator<Item = Artifact> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
}
