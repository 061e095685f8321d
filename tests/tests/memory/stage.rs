//! A fleet whose processes run under the memory limits of their charts, with an honest rule beside the attack.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use runnel_tests::fleet::{Fleet, FleetOptions, HUB, NAMESPACE};
use runnel_tests::memory::{Enforcement, parse_quantity};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, is_copy_of};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

const HONEST: &str = "honest";
/// How long anything may take in a debug build, on a machine with much else to do.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub struct Stage {
    pub fleet: Fleet,
    pub scene: Scene,
    source: Value,
    rule: Id,
    _turn: MutexGuard<'static, ()>,
}

/// Large objects cost an API server some 5 s each on a core of its own: of these tests one runs at a time.
static TURN: Mutex<()> = Mutex::const_new(());

impl Stage {
    /// A fleet of one member with an honest rule, with these namespaces everywhere.
    pub async fn start(namespaces: &[&str]) -> Result<Self> {
        Self::start_with(namespaces, Value::Null).await
    }

    /// As [`Stage::start`], with these values of the agent's chart.
    pub async fn start_with(namespaces: &[&str], agent_values: Value) -> Result<Self> {
        let turn = TURN.lock().await;
        let options = FleetOptions {
            agent_values,
            log: "runnel=info".to_owned(),
            memory_limits: Enforcement::Always,
            views: true,
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(options).await?;
        let scene = Scene::of(&fleet).await?;
        let namespaces: Vec<&str> = namespaces.iter().copied().chain([HONEST]).collect();
        scene.hub_namespaces(&namespaces).await?;
        scene.member_namespaces(&namespaces).await?;
        let source = Draft::config_map(HONEST, "settings")
            .label("app", "honest")
            .data("value", "first");
        let source = scene.hub.make(&source.json()).await?;
        scene
            .hub
            .make(
                &RuleDraft::new(HONEST, "all")
                    .labeled("app", "honest")
                    .to(&["member-1"])
                    .json(),
            )
            .await?;
        let stage = Self {
            fleet,
            scene,
            source,
            rule: Id::rule(HONEST, "all"),
            _turn: turn,
        };
        stage.is_served("before the attack").await?;
        Ok(stage)
    }

    /// Waits until an edit of the honest rule's source arrives.
    pub async fn is_served(&self, when: &str) -> Result<()> {
        let change = json!({"data": {"value": when}});
        let edited = self
            .scene
            .hub
            .change(&Id::of(&self.source)?, change)
            .await?;
        let copy = Id::of(&edited)?.within(HONEST);
        eventually(
            &format!("an edit of the honest rule {when}"),
            PATIENCE,
            async || {
                let found = self.scene.member(1).get(&copy).await?;
                is_copy_of(&edited, &found, &self.rule)?;
                Ok(Some(()))
            },
        )
        .await
    }

    /// How long an edit of the honest rule takes: the middle one of so many.
    pub async fn typical_edit(&self, when: &str, edits: usize) -> Result<Duration> {
        let mut all = vec![];
        for number in 0..edits {
            let begin = Instant::now();
            self.is_served(&format!("{when}, {number}")).await?;
            all.push(begin.elapsed());
        }
        all.sort();
        all.get(edits / 2).copied().context("no edits")
    }

    /// Creates objects on the hub, one after the other. What takes an API server a minute it refuses (504), and it may exist
    /// then.
    pub async fn make_all(&self, objects: impl Iterator<Item = Value>) -> Result<()> {
        for object in objects {
            let id = Id::of(&object)?;
            eventually(&format!("{id} to be made"), PATIENCE, async || {
                match self.scene.hub.make(&object).await {
                    Ok(_) => Ok(Some(())),
                    Err(refused) => self
                        .scene
                        .hub
                        .get(&id)
                        .await
                        .map_or(Err(refused), |_| Ok(Some(()))),
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Checks that the agent is still the process `pid`.
    pub fn agent_is_alive(&self, pid: u32) -> Result<()> {
        let process = self.fleet.agent_process(1);
        process.check()?;
        let peak = process.peak_memory()?;
        println!("the agent had {} MiB at most", peak >> 20);
        ensure!(process.pid()? == pid, "the agent is another process");
        Ok(())
    }

    /// Checks that the hub is still the process `pid`, and its peak of memory is below the limit of its chart.
    pub async fn hub_is_within_its_limit(&self, pid: u32) -> Result<()> {
        let process = self.fleet.hub_process();
        process.check()?;
        ensure!(process.pid()? == pid, "the hub is another process");
        let deployments: Api<Deployment> =
            Api::namespaced(self.fleet.hub().client().await?, NAMESPACE);
        let deployment = serde_json::to_value(deployments.get(HUB).await?)?;
        let limit = deployment.pointer("/spec/template/spec/containers/0/resources/limits/memory");
        let limit = parse_quantity(limit.and_then(Value::as_str).context("no memory limit")?)?;
        let peak = process.peak_memory()?;
        println!("the hub had {} MiB at most, of {}", peak >> 20, limit >> 20);
        ensure!(
            peak < limit,
            "the hub had {} MiB at most, of {}",
            peak >> 20,
            limit >> 20
        );
        Ok(())
    }
}
