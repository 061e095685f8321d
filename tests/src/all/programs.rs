//! The workspace's test programs, as cargo builds and names them.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo::{self, Artifact};

/// A built test program.
#[derive(Debug)]
pub struct TestProgram {
    /// Package and target, such as `runnel-tests/wire`.
    pub name: String,
    /// The file to run.
    pub executable: PathBuf,
    /// The folder of its package, in which cargo runs it.
    pub package: PathBuf,
}

impl TestProgram {
    /// Its name, as a file may be called.
    pub fn file_name(&self) -> String {
        self.name.replace('/', "-")
    }
}

#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
}

/// Returns cargo's target folder.
pub fn target() -> Result<PathBuf> {
    let output = cargo::command()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()?;
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cargo metadata says no target folder")?;
    Ok(metadata.target_directory)
}

/// Builds every test program of the workspace; the compiler's words go to standard error.
pub fn build() -> Result<Vec<TestProgram>> {
    let mut command = cargo::command();
    command
        .args(["test", "--workspace", "--no-run"])
        .args(cargo::NAMES);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "the tests do not build ({})",
        output.status
    );
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

/// Runs the doc tests. Returns whether they passed.
pub fn doc_tests() -> Result<bool> {
    let status = cargo::command()
        .args(["test", "--workspace", "--doc", "--quiet"])
        .status()
        .context("cannot run cargo")?;
    Ok(status.success())
}

/// The test programs among the artifacts that cargo reports.
fn read(messages: &str) -> Vec<TestProgram> {
    let tests = cargo::artifacts(messages).filter(|artifact| artifact.profile.test);
    tests
        .filter_map(
            |Artifact {
                 manifest_path,
                 target,
                 executable,
                 ..
             }| {
                let package = manifest_path.parent()?.to_owned();
                let folder = package.file_name()?.to_string_lossy().into_owned();
                // Library and program of a package may have the same name.
                let of = if target.kind.iter().any(|kind| kind == "lib") {
                    "lib"
                } else {
                    target.name.as_str()
                };
                Some(TestProgram {
                    name: format!("{folder}/{of}"),
                    executable: executable?,
                    package,
                })
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_run_each_in_its_package() {
        let printed = [
            r#"{"reason":"compiler-artifact","manifest_path":"/w/hub/Cargo.toml","target":{"name":"runnel_hub","kind":["lib"]},"profile":{"test":true},"executable":"/w/target/runnel_hub-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/hub/Cargo.toml","target":{"name":"runnel-hub","kind":["bin"]},"profile":{"test":false},"executable":"/w/target/runnel-hub"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"name":"wire","kind":["test"]},"profile":{"test":true},"executable":"/w/target/wire-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/proto/Cargo.toml","target":{"name":"p","kind":["lib"]},"profile":{"test":true},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "not json",
        ];
        let programs = read(&printed.join("\n"));
        let seen: Vec<_> = programs
            .iter()
            .map(|one| (one.name.as_str(), one.package.to_str().unwrap()))
            .collect();
        assert_eq!(seen, [("hub/lib", "/w/hub"), ("tests/wire", "/w/tests")]);
        assert_eq!(programs[1].file_name(), "tests-wire");
    }
}
