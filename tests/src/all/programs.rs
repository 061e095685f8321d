//! The workspace's test programs, as cargo builds and names them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// A built test program.
#[derive(Debug)]
pub struct Program {
    /// Package and target, such as `runnel-tests/wire`.
    pub name: String,
    /// The file to run.
    pub executable: PathBuf,
    /// The folder of its package, in which cargo runs it.
    pub package: PathBuf,
}

impl Program {
    /// Its name, as a file may be called.
    pub fn file_name(&self) -> String {
        self.name.replace('/', "-")
    }
}

#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
}

/// The folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Where cargo builds.
pub fn target(root: &Path) -> Result<PathBuf> {
    let output = cargo(root).args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata says no target folder")?;
    Ok(metadata.target_directory)
}

/// Builds every test program of the workspace; the compiler's words go to standard error.
pub fn build(root: &Path) -> Result<Vec<Program>> {
    let mut command = cargo(root);
    command.args(["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "the tests do not build ({})", output.status);
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

/// Runs the doc tests, and says whether they passed.
pub fn doc_tests(root: &Path) -> Result<bool> {
    let status = cargo(root).args(["test", "--workspace", "--doc", "--quiet"]).status().context("cannot run cargo")?;
    Ok(status.success())
}

/// Takes away what cargo says of the package of this program: it would be taken for another's.
pub fn without_own_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_own_package(&mut command);
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// The test programs among what cargo says that it built.
fn read(messages: &str) -> Vec<Program> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.profile.as_ref().is_some_and(|profile| profile.test))
        .filter_map(|message| {
            let package = message.manifest_path?.parent()?.to_owned();
            let (target, executable) = (message.target?, message.executable?);
            let folder = package.file_name()?.to_string_lossy().into_owned();
            // Library and program of a package may have the same name.
            let of = if target.kind.iter().any(|kind| kind == "lib") { "lib" } else { target.name.as_str() };
            Some(Program { name: format!("{folder}/{of}"), executable, package })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_run_each_in_its_package() {
        let said = [
            r#"{"reason":"compiler-artifact","manifest_path":"/w/hub/Cargo.toml","target":{"name":"runnel_hub","kind":["lib"]},"profile":{"test":true},"executable":"/w/target/runnel_hub-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/hub/Cargo.toml","target":{"name":"runnel-hub","kind":["bin"]},"profile":{"test":false},"executable":"/w/target/runnel-hub"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"name":"wire","kind":["test"]},"profile":{"test":true},"executable":"/w/target/wire-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/proto/Cargo.toml","target":{"name":"p","kind":["lib"]},"profile":{"test":true},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "not json",
        ];
        let programs = read(&said.join("\n"));
        let seen: Vec<_> = programs.iter().map(|one| (one.name.as_str(), one.package.to_str().unwrap())).collect();
        assert_eq!(seen, [("hub/lib", "/w/hub"), ("tests/wire", "/w/tests")]);
        assert_eq!(programs[1].file_name(), "tests-wire");
    }
}
