//! Runs cargo from a program that cargo has started.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The folder of the workspace.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The format of cargo's messages: artifacts as JSON, compiler messages as text.
pub const NAMES: [&str; 2] = ["--message-format", "json-render-diagnostics"];

/// An artifact that cargo reports.
#[derive(Debug, Deserialize)]
pub struct Artifact {
    /// The manifest of its package.
    pub manifest_path: PathBuf,
    /// The target.
    pub target: Target,
    /// The build profile.
    pub profile: Profile,
    /// The program, if it is one.
    pub executable: Option<PathBuf>,
}

/// The target of an artifact.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// The name in the manifest.
    pub name: String,
    /// The kinds, such as `lib`, `bin` or `test`.
    pub kind: Vec<String>,
}

/// A build profile.
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

/// Removes cargo's environment variables of this package. Build scripts would treat them as a
/// change, and their dependents would be rebuilt, here and in the next run.
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
