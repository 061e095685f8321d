//! Fleets of two members for all tests of this file, which take turns.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use runnel_tests::audit::{Mark, Write};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Metrics, RuleDraft, SOON, Scene};
use runnel_tests::turns::{Turn, Turns};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

static FLEETS: Turns<2> = Turns::new();

/// The number of members.
pub const MEMBERS: usize = 2;

/// The fleet, and the turn of one test.
pub struct Stage {
    pub fleet: &'static Fleet,
    pub scene: Scene,
    _turn: Turn,
}

/// The fleet with everything running, independent of the former test.
pub async fn stage() -> Result<Stage> {
    let options = FleetOptions {
        members: MEMBERS,
        ..FleetOptions::default()
    };
    let turn = FLEETS.take(options).await?;
    let fleet = turn.fleet;
    if !fleet.hub_process().is_running() {
        fleet.start_hub().await?;
    }
    // Agents that have failed a while ago have a long backoff: they are restarted.
    for number in 1..=MEMBERS {
        fleet.kill_agent(number)?;
        fleet.start_agent(number).await?;
    }
    let stage = Stage {
        fleet,
        scene: Scene::of(fleet).await?,
        _turn: turn,
    };
    stage.connected(MEMBERS).await?;
    Ok(stage)
}

impl Stage {
    /// Waits until so many agents are up to date with the hub that runs now.
    pub async fn connected(&self, agents: usize) -> Result<()> {
        eventually(&format!("{agents} agents up to date"), SOON, async || {
            let (sessions, ends) = (
                self.metric("runnel_hub_sessions").await?,
                self.metric(ENDS).await?,
            );
            ensure!(sessions == agents as f64, "{sessions} sessions");
            ensure!(ends >= agents as f64, "{ends} snapshots have ended");
            Ok(Some(()))
        })
        .await
    }

    /// A metric of the hub that runs now.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        Metrics::of(&self.fleet.hub_ops_url()).await?.sum(name)
    }

    /// Intents that the hub that runs now has sent with their payload.
    pub async fn sent(&self) -> Result<f64> {
        self.metric("runnel_hub_intents_sent_total").await
    }

    /// Places in all clusters: a namespace on the hub, and its targets in every member.
    pub async fn places(&self, namespace: &str, targets: &[&str]) -> Result<()> {
        self.scene.hub_namespaces(&[namespace]).await?;
        self.scene.member_namespaces(targets).await
    }

    /// Makes a ConfigMap on the hub.
    pub async fn source(&self, namespace: &str, name: &str, value: &str) -> Result<Value> {
        let draft = Draft::config_map(namespace, name)
            .data("value", value)
            .data("other", "stays");
        self.scene.hub.make(&draft.json()).await
    }

    /// Changes it.
    pub async fn edit(&self, source: &Value, value: &str) -> Result<Value> {
        self.scene
            .hub
            .change(&Id::of(source)?, json!({"data": {"value": value}}))
            .await
    }

    /// A rule for everything in its namespace, but what Kubernetes itself puts there.
    pub async fn rule(
        &self,
        namespace: &str,
        name: &str,
        draft: impl FnOnce(RuleDraft) -> RuleDraft,
    ) -> Result<Id> {
        let rule = draft(RuleDraft::new(namespace, name).everywhere());
        self.scene.hub.make(&rule.json()).await?;
        Ok(Id::rule(namespace, name))
    }

    /// What a member's agent wrote since `mark` in these namespaces, as `patch configmaps target/name`, sorted.
    pub fn agent_writes(
        &self,
        member: usize,
        mark: Mark,
        namespaces: &[&str],
    ) -> Result<Vec<String>> {
        let writes = self.fleet.member(member).writes_since(mark)?.into_iter();
        let own = |write: &Write| {
            write.user_agent.starts_with("runnel-agent/")
                && namespaces.contains(&write.namespace.as_str())
        };
        let mut output: Vec<_> = writes
            .filter(own)
            .map(|write| {
                let Write {
                    verb,
                    resource,
                    namespace,
                    name,
                    ..
                } = write;
                format!("{verb} {resource} {namespace}/{name}")
            })
            .collect();
        output.sort();
        Ok(output)
    }

    /// The ends of all audit logs: the hub's, and the members'.
    pub fn marks(&self) -> Vec<Mark> {
        let members = (1..=MEMBERS).map(|number| self.fleet.member(number).mark());
        std::iter::once(self.fleet.hub().mark())
            .chain(members)
            .collect()
    }

    /// Everything that Runnel wrote anywhere since then, Leases aside.
    pub fn writes(&self, marks: &[Mark]) -> Result<Vec<Write>> {
        let clusters =
            std::iter::once(self.fleet.hub()).chain((1..=MEMBERS).map(|n| self.fleet.member(n)));
        let mut all = Vec::new();
        for (cluster, mark) in clusters.zip(marks) {
            let writes = cluster.writes_since(*mark)?.into_iter();
            all.extend(writes.filter(|write| write.user_agent.starts_with("runnel-")));
        }
        Ok(all)
    }

    /// Waits until Runnel has written nothing anywhere for longer than its pace of a write a second, and than an agent takes
    /// to store what it remembers of its hub, which it begins a second after it heard it; returns since when.
    pub async fn calm(&self) -> Result<Vec<Mark>> {
        let (mut marks, mut since) = (self.marks(), Instant::now());
        eventually("three seconds without a write", SOON, async || {
            if !self.writes(&marks)?.is_empty() {
                (marks, since) = (self.marks(), Instant::now());
            }
            Ok((since.elapsed() > Duration::from_secs(3)).then(|| marks.clone()))
        })
        .await
    }

    /// Kills the hub and starts it again, and returns when so many agents are up to date with it.
    pub async fn restart_hub(&self, agents: usize) -> Result<()> {
        self.fleet.kill_hub()?;
        self.fleet.start_hub().await?;
        self.connected(agents).await
    }
}

const ENDS: &str = "runnel_hub_frames_sent_total{frame=\"snapshot_end\"}";
