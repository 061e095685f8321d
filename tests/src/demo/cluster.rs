//! A cluster as the demo sees it: a kubeconfig and a `kubectl`.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::narrate::Narrator;
use crate::cargo;

const ENDS: Duration = Duration::from_secs(150);
const CONNECTS: Duration = Duration::from_secs(10);

/// A cluster with the rights of an administrator.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// What it is called in what is printed; for a member, the name of its `MemberCluster`.
    pub name: String,
    /// The kubeconfig.
    pub kubeconfig: PathBuf,
    kubectl: PathBuf,
    cache: PathBuf,
}

impl Cluster {
    /// The cluster behind a kubeconfig; `kubectl` keeps what it learns about servers in `cache`.
    pub fn new(name: &str, kubeconfig: &Path, kubectl: &Path, cache: &Path) -> Self {
        Self {
            name: name.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            kubectl: kubectl.to_owned(),
            cache: cache.to_owned(),
        }
    }

    /// Returns a client for watches, without a read timeout.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used; with the file's name.
    pub async fn client(&self) -> Result<Client> {
        let unusable = || {
            format!(
                "the kubeconfig {} of {} cannot be used",
                self.kubeconfig.display(),
                self.name
            )
        };
        let read = Kubeconfig::read_from(&self.kubeconfig).with_context(unusable)?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let mut config = config.with_context(unusable)?;
        config.connect_timeout = Some(CONNECTS);
        config.read_timeout = None;
        Client::try_from(config).with_context(unusable)
    }

    /// Runs `kubectl`, shows the command and its output, and returns the output.
    ///
    /// # Errors
    /// When `kubectl` fails; with its output.
    pub async fn show(&self, narrator: &Narrator, arguments: &[&str]) -> Result<String> {
        narrator.command(&self.name, &typed(arguments));
        let printed = self.kubectl(arguments, "").await?;
        narrator.output(&printed);
        Ok(printed)
    }

    /// Runs `kubectl` silently, with `input` on its standard input, and returns its output.
    ///
    /// # Errors
    /// When `kubectl` fails; with its output.
    pub async fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let command = typed(arguments);
        let ended = tokio::time::timeout(ENDS, self.talk(arguments, input)).await;
        let output = ended
            .with_context(|| format!("{command} on {}: no end within {ENDS:?}", self.name))??;
        let printed = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat();
        if !output.status.success() {
            bail!("{command} on {}: {}", self.name, printed.trim_end());
        }
        Ok(printed)
    }

    async fn talk(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let mut command = Command::new(&self.kubectl);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(&self.cache)
            .args(arguments);
        // Files are named as the README names them, from the root of the repository.
        command.current_dir(cargo::ROOT);
        command
            .env_remove("KUBECONFIG")
            .env("KUBECTL_KUBERC", "false")
            .kill_on_drop(true);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.kubectl.display()))?;
        let mut stdin = child
            .stdin
            .take()
            .context("kubectl has no standard input")?;
        // A kubectl that fails early does not read to the end. Its own output has the cause.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        Ok(child.wait_with_output().await?)
    }
}

/// The command as one would type it into a shell.
fn typed(arguments: &[&str]) -> String {
    let quoted = arguments
        .iter()
        .map(|argument| match argument.split_once('=') {
            _ if argument.chars().all(is_plain) => (*argument).to_owned(),
            Some((key, value)) if key.chars().all(is_plain) => format!("{key}='{value}'"),
            _ => format!("'{argument}'"),
        });
    std::iter::once("kubectl".to_owned())
        .chain(quoted)
        .collect::<Vec<_>>()
        .join(" ")
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_./,:=@".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let shown = typed(&[
            "patch",
            "cm",
            "x",
            "-p",
            r#"{"a":1}"#,
            "-o",
            "jsonpath={.x}",
            "-l",
            "a=b",
        ]);
        assert_eq!(
            shown,
            r#"kubectl patch cm x -p '{"a":1}' -o jsonpath='{.x}' -l a=b"#
        );
    }
}
