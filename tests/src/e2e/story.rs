//! The steps: installation, distribution, failures, upgrade, rollback, a tenant (`tenant.rs`) and removal.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::stage::{E2eStage, NODE_PORT};
use super::waits::{LATER, SOON, condition, get, holds};
use crate::assets::Assets;
use crate::binaries::{self, Binaries};
use crate::demo::cluster::Cluster;
use crate::demo::narrate::Narrator;
use crate::fleet::{NAMESPACE, output};
use crate::helm::chart;
use crate::wait::eventually;

pub(super) const SOURCES: &str = "ns-codis-test";
pub(super) const RULE: [&str; 4] = ["-n", SOURCES, "drule", "rule-codis-test"];
const SETTINGS: &str = "app-settings";
pub(super) const TARGETS: [&str; 2] = ["default", "another-test"];
/// The copies in each of them.
pub(super) const COPIES: [&str; 2] = ["configmap/app-settings", "secret/app-login"];
pub(super) const CRDS: [&str; 7] = [
    "clusterdistributionrules.runnel.dev",
    "distributiongrants.runnel.dev",
    "distributionrules.runnel.dev",
    "fleets.runnel.dev",
    "manifestbundles.runnel.dev",
    "memberclusters.runnel.dev",
    "memberrecords.runnel.dev",
];

pub(super) struct E2eStory<'a> {
    pub(super) stage: &'a E2eStage,
    pub(super) narrator: &'a mut Narrator,
    binaries: Binaries,
    greetings: usize,
}

/// Runs all steps.
///
/// # Errors
/// When a step fails.
pub async fn run_steps(stage: &E2eStage, narrator: &mut Narrator) -> Result<()> {
    let binaries = tokio::task::spawn_blocking(binaries::build).await??;
    let mut story = E2eStory {
        stage,
        narrator,
        binaries,
        greetings: 0,
    };
    story.install_hub().await?;
    story.join_members().await?;
    story.seed().await?;
    story.drift().await?;
    story.hub_pod().await?;
    story.agent_pod().await?;
    story.node().await?;
    story.upgrade().await?;
    story.tenant().await?;
    story.uninstall().await
}

impl E2eStory<'_> {
    async fn install_hub(&mut self) -> Result<()> {
        self.narrator
            .step("The hub, by its chart: two replicas of the image");
        let values = json!({
            "image": self.stage.image,
            "replicas": 2,
            "advertise": [self.stage.address],
            "service": {"type": "NodePort", "nodePort": NODE_PORT},
        });
        let hub = &self.stage.hub;
        let time = self
            .helm(
                hub,
                &["install", "runnel-hub", "--create-namespace", "--wait"],
                Some(&values),
            )
            .await?;
        self.narrator.took("helm install --wait runnel-hub", time);
        hub.show(self.narrator, &["-n", NAMESPACE, "get", "pods"])
            .await?;
        Ok(())
    }

    async fn join_members(&mut self) -> Result<()> {
        self.narrator.step(
            "The members: one by a join string and the agent's chart, the other by the plugin",
        );
        let (last, first) = self
            .stage
            .members
            .split_last()
            .context("there is no member")?;
        for member in first {
            let begin = Instant::now();
            self.join(member).await?;
            condition(
                &self.stage.hub,
                &["member", &member.name],
                "Connected",
                SOON,
            )
            .await?;
            self.narrator.took(
                &format!("{} is connected, from its join string on", member.name),
                begin.elapsed(),
            );
        }
        let begin = Instant::now();
        let printed = self.join_by_plugin(last).await?;
        self.narrator
            .command("member", &format!("kubectl runnel join {}", last.name));
        self.narrator.output(&printed);
        condition(&self.stage.hub, &["member", &last.name], "Connected", SOON).await?;
        self.narrator.took(
            &format!("{} is connected, from the command on", last.name),
            begin.elapsed(),
        );
        self.stage
            .hub
            .show(self.narrator, &["get", "member"])
            .await?;
        Ok(())
    }

    async fn join(&self, member: &Cluster) -> Result<()> {
        member
            .kubectl(&["create", "namespace", NAMESPACE], "")
            .await?;
        let join = self.join_string(&member.name).await?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "runnel-agent-join", "namespace": NAMESPACE},
            "stringData": {"join-string": join.trim()},
        });
        member
            .kubectl(&["create", "-f", "-"], &secret.to_string())
            .await?;
        let values =
            json!({"image": self.stage.image, "join": {"existingSecret": "runnel-agent-join"}});
        let time = self
            .helm(
                member,
                &["install", "runnel-agent", "--wait"],
                Some(&values),
            )
            .await?;
        self.narrator.took(
            &format!("helm install --wait runnel-agent in {}", member.name),
            time,
        );
        Ok(())
    }

    async fn join_by_plugin(&self, member: &Cluster) -> Result<String> {
        let values = self.stage.folder().join("values.json");
        std::fs::write(&values, json!({"image": self.stage.image}).to_string())?;
        let files = [
            ("--values", values.as_path()),
            ("--member-kubeconfig", &member.kubeconfig),
        ];
        self.plugin(&["join", &member.name], &files).await
    }

    /// Runs the plugin on the hub; returns its output.
    async fn plugin(&self, words: &[&str], files: &[(&str, &Path)]) -> Result<String> {
        let kubectl = Assets::find()?.kubectl();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut plugin = Command::new(self.binaries.folder.join("kubectl-runnel"));
        plugin
            .args(words)
            .arg("--kubeconfig")
            .arg(&self.stage.hub.kubeconfig);
        for (flag, file) in files {
            plugin.arg(flag).arg(file);
        }
        plugin
            .env_remove("KUBECONFIG")
            .env("RUNNEL_HELM", self.stage.helm.binary());
        plugin.env(
            "PATH",
            format!(
                "{}:{path}",
                kubectl.parent().unwrap_or(Path::new(".")).display()
            ),
        );
        let output = plugin
            .kill_on_drop(true)
            .output()
            .await
            .context("cannot run kubectl-runnel")?;
        let printed = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat();
        ensure!(
            output.status.success(),
            "kubectl runnel {}: {printed}",
            words.join(" ")
        );
        Ok(printed)
    }

    async fn join_string(&self, member: &str) -> Result<String> {
        let kubeconfig = self.stage.hub.kubeconfig.display();
        let arguments = [
            "token".to_owned(),
            "create".to_owned(),
            member.to_owned(),
            format!("--kubeconfig={kubeconfig}"),
            format!("--namespace={NAMESPACE}"),
        ];
        output(&self.binaries.hub, &arguments).await
    }

    async fn seed(&mut self) -> Result<()> {
        self.narrator.step("The seed rule, and an edit");
        for member in &self.stage.members {
            member
                .kubectl(&["create", "namespace", TARGETS[1]], "")
                .await?;
        }
        self.stage
            .hub
            .show(
                self.narrator,
                &["apply", "-f", "deploy/examples/seed-rule.yaml"],
            )
            .await?;
        self.ready("every copy is applied").await?;
        self.edit("an edit is in every namespace of every member", SOON)
            .await?;
        self.stage
            .hub
            .show(self.narrator, &["-n", SOURCES, "get", "drule"])
            .await?;
        self.ask().await
    }

    /// Reads every cluster of the rule, through the view API.
    async fn ask(&mut self) -> Result<()> {
        let words = ["status", RULE[3], "-n", SOURCES, "-o", "wide"];
        let printed = eventually("the view API to answer", SOON, async || {
            self.plugin(&words, &[]).await.map(Some)
        })
        .await?;
        for member in &self.stage.members {
            let row = printed
                .lines()
                .find(|line| line.split_whitespace().next() == Some(member.name.as_str()));
            ensure!(
                row.is_some_and(|row| row.contains("AllApplied")),
                "{}: {printed}",
                member.name
            );
        }
        self.narrator
            .command("hub", &format!("kubectl runnel {}", words.join(" ")));
        self.narrator.output(&printed);
        Ok(())
    }

    async fn drift(&mut self) -> Result<()> {
        self.narrator
            .step("Drift: a copy that someone edits, another that someone deletes");
        let member = self.stage.members.last().context("there is no member")?;
        let patch = r#"{"data":{"greeting":"tampered"}}"#;
        member
            .show(
                self.narrator,
                &["patch", "configmap", SETTINGS, "-p", patch],
            )
            .await?;
        let time = self.greeted(member, TARGETS[0], SOON).await?;
        self.narrator.took("it is right again", time);
        member
            .show(
                self.narrator,
                &["-n", TARGETS[1], "delete", "configmap", SETTINGS],
            )
            .await?;
        let time = self.greeted(member, TARGETS[1], SOON).await?;
        self.narrator.took("it is back", time);
        Ok(())
    }

    async fn hub_pod(&mut self) -> Result<()> {
        self.narrator
            .step("The pod of the hub that leads is deleted");
        let hub = &self.stage.hub;
        let lease = get(hub, &["-n", NAMESPACE, "lease", "runnel-hub"]).await?;
        let holder = lease["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let pods = get(hub, &["-n", NAMESPACE, "pods"]).await?;
        let names = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pod| pod["metadata"]["name"].as_str());
        let leader = names
            .into_iter()
            .find(|name| holder.contains(name))
            .context("no pod holds the Lease")?
            .to_owned();
        hub.show(
            self.narrator,
            &["-n", NAMESPACE, "delete", "pod", &leader, "--wait=false"],
        )
        .await?;
        self.edit(
            "an edit is in every member, by way of the other replica",
            LATER,
        )
        .await?;
        self.ready("every member is fresh again").await
    }

    async fn agent_pod(&mut self) -> Result<()> {
        self.narrator.step("The pod of an agent is deleted");
        let member = self.stage.members.last().context("there is no member")?;
        let before = uids(member, SETTINGS).await?;
        let select = "app.kubernetes.io/name=runnel-agent";
        member
            .show(
                self.narrator,
                &["-n", NAMESPACE, "delete", "pod", "-l", select],
            )
            .await?;
        self.edit("an edit is in every member, by way of the new pod", LATER)
            .await?;
        ensure!(
            uids(member, SETTINGS).await? == before,
            "a copy was created again"
        );
        self.ready("every member is fresh again").await
    }

    async fn node(&mut self) -> Result<()> {
        let Some(machine) = self.stage.machine_of(0) else {
            self.narrator
                .step("The restart of a node is left out: these are your clusters");
            return Ok(());
        };
        self.narrator.step(
            "The node of member-1 is cut off its power, with its API server, and starts again",
        );
        let begin = Instant::now();
        machine.restart().await?;
        self.narrator.took("the node is ready", begin.elapsed());
        self.edit("an edit is in every member", LATER).await?;
        self.ready("every member is fresh again").await
    }

    async fn upgrade(&mut self) -> Result<()> {
        self.narrator
            .step("helm upgrade with changed values, and helm rollback");
        let (hub, member) = (
            &self.stage.hub,
            self.stage.members.first().context("there is no member")?,
        );
        let changed =
            json!({"log": {"level": "debug"}, "podAnnotations": {"example.com/changed": "yes"}});
        for (cluster, release) in [(hub, "runnel-hub"), (member, "runnel-agent")] {
            let time = self
                .helm(
                    cluster,
                    &["upgrade", release, "--reuse-values", "--wait"],
                    Some(&changed),
                )
                .await?;
            self.narrator.took(
                &format!("helm upgrade --wait {release} in {}", cluster.name),
                time,
            );
        }
        self.edit("an edit is in every member", LATER).await?;
        for (cluster, release) in [(hub, "runnel-hub"), (member, "runnel-agent")] {
            let time = self
                .helm(cluster, &["rollback", release, "1", "--wait"], None)
                .await?;
            self.narrator.took(
                &format!("helm rollback --wait {release} in {}", cluster.name),
                time,
            );
        }
        self.edit("an edit is in every member", LATER).await?;
        self.ready("every member is fresh again").await
    }

    async fn uninstall(&mut self) -> Result<()> {
        self.narrator.step("Uninstalled: copies and CRDs stay");
        let members = self
            .stage
            .members
            .iter()
            .map(|member| (member, "runnel-agent"));
        for (cluster, release) in members.chain([(&self.stage.hub, "runnel-hub")]) {
            let time = self
                .helm(cluster, &["uninstall", release, "--wait"], None)
                .await?;
            self.narrator.took(
                &format!("helm uninstall --wait {release} in {}", cluster.name),
                time,
            );
        }
        for member in &self.stage.members {
            for namespace in TARGETS {
                self.greeted(member, namespace, SOON)
                    .await
                    .context("a copy went with the agent")?;
            }
        }
        for crd in CRDS {
            get(&self.stage.hub, &["crd", crd])
                .await
                .context("a CRD went with the hub")?;
        }
        get(&self.stage.hub, &RULE)
            .await
            .context("a rule went with the hub")?;
        self.narrator
            .say("every copy, every rule and every CRD is still there");
        Ok(())
    }

    /// Edits the source, and waits for the edit in every member.
    async fn edit(&mut self, what: &str, deadline: Duration) -> Result<()> {
        self.greetings += 1;
        let patch = json!({"data": {"greeting": self.greeting()}}).to_string();
        self.stage
            .hub
            .show(
                self.narrator,
                &["-n", SOURCES, "patch", "configmap", SETTINGS, "-p", &patch],
            )
            .await?;
        let begin = Instant::now();
        for member in &self.stage.members {
            for namespace in TARGETS {
                self.greeted(member, namespace, deadline).await?;
            }
        }
        self.narrator.took(what, begin.elapsed());
        Ok(())
    }

    fn greeting(&self) -> String {
        format!("hello number {}", self.greetings)
    }

    async fn greeted(
        &self,
        member: &Cluster,
        namespace: &str,
        deadline: Duration,
    ) -> Result<Duration> {
        holds(
            member,
            (namespace, "configmap", SETTINGS),
            ("greeting", &self.greeting()),
            deadline,
        )
        .await
    }

    async fn ready(&self, what: &str) -> Result<()> {
        let time = condition(&self.stage.hub, &RULE, "Ready", LATER).await?;
        self.narrator.took(what, time);
        Ok(())
    }

    /// Runs helm, with a chart where values are given.
    pub(super) async fn helm(
        &self,
        cluster: &Cluster,
        arguments: &[&str],
        values: Option<&Value>,
    ) -> Result<Duration> {
        let begin = Instant::now();
        let folder = chart(arguments.get(1).copied().unwrap_or_default());
        let mut all = vec!["--namespace", NAMESPACE, "--timeout", "4m"];
        let mut own = arguments.to_vec();
        if values.is_some() {
            own.insert(2, folder.to_str().context("a path that is not text")?);
            all.push("--values=-");
        }
        let input = values.map(Value::to_string).unwrap_or_default();
        self.stage
            .helm
            .on_with(&cluster.kubeconfig, &[own, all].concat(), &input)
            .await?;
        Ok(begin.elapsed())
    }
}

async fn uids(cluster: &Cluster, name: &str) -> Result<Vec<Value>> {
    let mut uids = Vec::new();
    for namespace in TARGETS {
        uids.push(
            get(cluster, &["-n", namespace, "configmap", name]).await?["metadata"]["uid"].clone(),
        );
    }
    Ok(uids)
}
