//! The demo. On existing clusters it asks first, runs to the end, and leaves nothing behind. A kept
//! fleet can be used with what it prints.

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::http;
use runnel_tests::scratch::Scratch;
use runnel_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const STARTS: Duration = Duration::from_secs(60);
const WHOLE_STORY: Duration = Duration::from_secs(600);

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

    /// As [`Clusters::existing`], when each cluster has made its own ConfigMaps, which it does a moment after it answers.
    async fn at_rest(&self) -> Result<String> {
        eventually("both clusters to be at rest", STARTS, async || {
            let first = self.existing().await?;
            // Of the namespaces default, kube-system, kube-public and kube-node-lease.
            let own = first.matches("configmap/kube-root-ca.crt").count();
            ensure!(own == 8, "{own} of 8 bundles of certificates");
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok((self.existing().await? == first).then_some(first))
        })
        .await
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
    let before = clusters.at_rest().await?;

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

/// Ends the demo as Ctrl-C does.
fn end(demo: &Child) -> Result<()> {
    let pid = demo
        .id()
        .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
        .context("it has ended")?;
    Ok(kill_process(pid, Signal::INT)?)
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
        bail!("it ended by itself")
    };
    tokio::time::timeout(WHOLE_STORY, until_edits).await??;
    end(&demo)?;
    let mut rest = String::new();
    lines.into_inner().read_to_string(&mut rest).await?;
    let ended = tokio::time::timeout(WHOLE_STORY, demo.wait()).await??;
    ensure!(
        ended.code() == Some(130) && rest.contains("nothing is left behind"),
        "{ended}: {rest}"
    );
    Ok(())
}

/// Reads what a kept fleet prints after `fleet ready`, up to the way to end it.
async fn invitation(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<Vec<String>> {
    let mut printed: Option<Vec<String>> = None;
    while let Some(line) = lines.next_line().await? {
        match &mut printed {
            None if line == "fleet ready" => printed = Some(Vec::new()),
            None => {}
            Some(_) if line.contains("Ctrl-C") => return Ok(printed.unwrap_or_default()),
            Some(printed) => printed.push(line.trim().to_owned()),
        }
    }
    bail!("it ended by itself")
}

async fn shell(commands: &str) -> Result<String> {
    let output = Command::new("bash")
        .args(["-e", "-u", "-o", "pipefail", "-c", commands])
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .output()
        .await?;
    let printed = [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    ensure!(output.status.success(), "{commands}: {printed}");
    Ok(printed)
}

#[tokio::test]
async fn kept_fleet_is_used_with_what_the_demo_prints() -> Result<()> {
    let scratch = Scratch::new("kept")?;
    let notes = scratch.path().join("notes.txt");
    std::fs::write(&notes, "mine")?;
    let values = scratch.path().join("values.yaml");
    std::fs::write(&values, "policy: {kinds: [configmaps, secrets, services]}")?;
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(["--keep", "--members", "1", "--dir"])
        .arg(scratch.path())
        .args(["--controllers", "deployment-controller", "--agent-values"])
        .arg(&values)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run the demo")?;
    let mut lines = BufReader::new(demo.stdout.take().context("no standard output")?).lines();
    let printed = tokio::time::timeout(WHOLE_STORY, invitation(&mut lines)).await??;

    let (exports, commands): (Vec<_>, Vec<_>) = printed
        .iter()
        .filter(|line| line.starts_with("export ") || line.starts_with("kubectl "))
        .cloned()
        .partition(|line| line.starts_with("export "));
    ensure!(commands.len() == 3, "{printed:#?}");
    let exports = exports.join("\n");
    for command in &commands {
        shell(&format!("{exports}\n{command}")).await?;
    }
    let delivered = format!("{exports}\nkubectl get deliveries -A --no-headers");
    eventually("a delivery is ready", WHOLE_STORY, async || {
        let table = shell(&delivered).await?;
        ensure!(
            table.contains("member-1") && table.contains("2/4"),
            "{table}"
        );
        Ok(Some(()))
    })
    .await?;
    let value = |what: &str| {
        let line = printed.iter().rfind(|line| line.contains(what));
        line.and_then(|line| line.split_whitespace().last().map(str::to_owned))
            .with_context(|| format!("no {what}: {printed:#?}"))
    };
    let copies = "-n default get configmap app-settings -o name";
    shell(&format!(
        "{exports}\nkubectl --kubeconfig {} {copies}",
        value("kubeconfig")?
    ))
    .await?;
    let member = format!("{exports}\nkubectl --kubeconfig {}", value("kubeconfig")?);
    let policy = "-n runnel-system get configmap runnel-agent-policy -o yaml";
    ensure!(
        shell(&format!("{member} {policy}"))
            .await?
            .contains("services")
    );
    shell(&format!(
        "{member} -n default create deployment web --image=web"
    ))
    .await?;
    let sets = format!("{member} -n default get replicasets -o name");
    eventually(
        "the controller of Deployments works",
        WHOLE_STORY,
        async || {
            let sets = shell(&sets).await?;
            ensure!(sets.contains("replicaset.apps/web-"), "{sets}");
            Ok(Some(()))
        },
    )
    .await?;
    ensure!(std::fs::read_to_string(value("log")?)?.contains("runnel_agent"));
    let metrics = value("metrics")?;
    let address = metrics
        .strip_prefix("http://")
        .and_then(|url| url.strip_suffix("/metrics"))
        .with_context(|| metrics.clone())?;
    let scraped = http::get(address, "/metrics", WHOLE_STORY).await?;
    ensure!(scraped.body.contains("runnel_"), "{}", scraped.body);

    end(&demo)?;
    let ended = tokio::time::timeout(WHOLE_STORY, demo.wait()).await??;
    ensure!(ended.success(), "{ended}");
    let left: Vec<_> = std::fs::read_dir(scratch.path())?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains("kubeconfig") || name.contains("demo"))
        .collect();
    ensure!(left.is_empty() && notes.exists(), "{left:?}");
    Ok(())
}
