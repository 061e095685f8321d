//! The demo on existing clusters: it asks first, runs to the end, and leaves nothing behind.

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::control_plane::{ControlPlane, Options};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

const WHOLE_STORY: Duration = Duration::from_secs(300);

struct Clusters {
    hub: ControlPlane,
    member: ControlPlane,
}

impl Clusters {
    async fn start() -> Result<Self> {
        let (hub, member) = tokio::try_join!(
            ControlPlane::start("demo-hub", Options::default()),
            ControlPlane::start("demo-member", Options::default())
        )?;
        Ok(Self { hub, member })
    }

    fn demo(&self, more: &[&str]) -> Result<Child> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
        command.arg("--hub").arg(self.hub.kubeconfig());
        command
            .arg("--member")
            .arg(format!("eu-1={}", self.member.kubeconfig().display()))
            .args(more);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command.spawn().context("cannot run the demo")
    }

    async fn observed(&self, more: &[&str]) -> Result<(Output, String)> {
        let output =
            tokio::time::timeout(WHOLE_STORY, self.demo(more)?.wait_with_output()).await??;
        let printed = [&output.stdout[..], &output.stderr]
            .map(String::from_utf8_lossy)
            .concat();
        Ok((output, printed))
    }

    /// The objects in both clusters that the demo could have left.
    async fn existing(&self) -> Result<String> {
        let mut existing = String::new();
        for cluster in [&self.hub, &self.member] {
            for what in [
                "namespaces",
                "customresourcedefinitions",
                "configmaps",
                "secrets",
                "clusterroles",
            ] {
                existing += &cluster.kubectl(&["get", what, "-A", "-o", "name"]).await?;
            }
        }
        Ok(existing)
    }
}

#[tokio::test]
async fn demo_runs_on_given_clusters_and_cleans_up() -> Result<()> {
    let clusters = Clusters::start().await?;
    let before = clusters.existing().await?;

    let (asked, printed) = clusters.observed(&[]).await?;
    ensure!(
        asked.status.code() == Some(1) && printed.contains("add --yes to go ahead"),
        "{printed}"
    );
    ensure!(
        clusters.existing().await? == before,
        "it made something before it was allowed to"
    );

    let (observed, printed) = clusters.observed(&["--yes"]).await?;
    ensure!(
        observed.status.success() && printed.contains("Done: "),
        "{printed}"
    );
    let too_wide: Vec<&str> = printed
        .lines()
        .filter(|line| line.chars().count() > 110)
        .collect();
    ensure!(too_wide.is_empty(), "wider than 110 columns: {too_wide:#?}");
    ensure!(
        clusters.existing().await? == before,
        "it left something behind"
    );

    interrupted(&clusters).await?;
    ensure!(
        clusters.existing().await? == before,
        "it left something behind when it was interrupted"
    );

    clusters
        .member
        .kubectl(&["create", "configmap", "app-settings"])
        .await?;
    let (refused, printed) = clusters.observed(&["--yes"]).await?;
    let sentence = "the ConfigMap default/app-settings in eu-1";
    ensure!(
        refused.status.code() == Some(1) && printed.contains(sentence),
        "{printed}"
    );
    Ok(())
}

/// Ends the demo by a signal while its rule and copies exist.
async fn interrupted(clusters: &Clusters) -> Result<()> {
    let mut demo = clusters.demo(&["--yes"])?;
    let mut lines = BufReader::new(demo.stdout.take().context("no standard output")?).lines();
    let until_edits = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains("Sources are edited") {
                return anyhow::Ok(());
            }
        }
        anyhow::bail!("it ended by itself")
    };
    tokio::time::timeout(WHOLE_STORY, until_edits).await??;
    let pid = demo
        .id()
        .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
        .context("it has ended")?;
    kill_process(pid, Signal::INT)?;
    let mut rest = String::new();
    lines.into_inner().read_to_string(&mut rest).await?;
    let ended = tokio::time::timeout(WHOLE_STORY, demo.wait()).await??;
    ensure!(
        ended.code() == Some(130) && rest.contains("nothing is left behind"),
        "{ended}: {rest}"
    );
    Ok(())
}
