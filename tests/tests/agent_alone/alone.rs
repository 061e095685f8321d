//! One agent beside a real control plane, with a fake hub.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use runnel_agent::config::Options;
use runnel_agent::lease::WITH_STANDBY;
use runnel_agent::metrics::Metrics;
use runnel_agent::run::{Settings, boot};
use runnel_proto::model::*;
use runnel_tests::control_plane::{self, ControlPlane};
use runnel_tests::fleet::{AGENT, account};
use runnel_tests::scene::{Draft, Id, TestCluster};
use runnel_transport::ops::{Liveness, LogFormat, Readiness, WatchTimes, registry};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fake_hub::{FakeHub, Wanted};

/// The control plane that the tests of this file share; they keep apart by namespace.
pub async fn plane() -> Result<&'static ControlPlane> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    PLANE
        .get_or_try_init(|| ControlPlane::start("alone", control_plane::Options::default()))
        .await
}

/// A cluster with an agent in a separate namespace, joined to a separate hub.
pub struct Alone {
    pub plane: &'static ControlPlane,
    pub place: TestCluster,
    pub hub: FakeHub,
    /// The agent's namespace; the names of the others begin with it.
    pub name: String,
    /// The credentials of the agent; the rights of its chart unless a test needs others.
    pub kubeconfig: PathBuf,
    /// The agent's policy, if it has one.
    pub policy_file: Option<PathBuf>,
    /// Without a policy file, the hub may do everything.
    pub allow_everything: bool,
    join_file: PathBuf,
    agent: Option<Running>,
}

/// The parts of an agent that runs, and what ends them.
pub type Running = (JoinSet<Result<()>>, CancellationToken);

impl Alone {
    /// Starts a hub and an agent that joins it.
    pub async fn start(name: &str, namespaces: &[&str]) -> Result<Self> {
        let mut alone = Self::prepare(name, Duration::from_secs(3600)).await?;
        for namespace in namespaces {
            alone.make_namespace(namespace).await?;
        }
        alone.start_agent().await?;
        Ok(alone)
    }

    /// A hub, and the agent's namespace; no agent yet.
    pub async fn prepare(name: &str, life: Duration) -> Result<Self> {
        let plane = plane().await?;
        Self::prepare_on(plane, name, life, &[], &Value::Null).await
    }

    /// As above, on a separate control plane with namespaces, and with the permissions of other
    /// chart values.
    pub async fn prepare_on(
        plane: &'static ControlPlane,
        name: &str,
        life: Duration,
        namespaces: &[&str],
        values: &Value,
    ) -> Result<Self> {
        let place = TestCluster::new("alone", plane.client().await?);
        let hub = FakeHub::start(life).await?;
        // The agent's own policy decides what may be overwritten: its admission policy does not
        // refuse it here.
        let mut values = values.clone();
        values["policy"]["overwrite"] = json!(true);
        place.make(&Draft::namespace(name).json()).await?;
        for short in namespaces {
            place
                .make(&Draft::namespace(&format!("{name}-{short}")).json())
                .await?;
        }
        let join_file = plane.folder().join(format!("{name}.join"));
        std::fs::write(&join_file, hub.join_string(true)?)?;
        Ok(Self {
            plane,
            place,
            hub,
            name: name.to_owned(),
            kubeconfig: account(plane, AGENT, name, &values).await?,
            policy_file: None,
            allow_everything: true,
            join_file,
            agent: None,
        })
    }

    /// Writes the agent's policy file.
    pub fn set_policy(&mut self, text: &str) -> Result<()> {
        let path = self
            .plane
            .folder()
            .join(format!("{}.policy.yaml", self.name));
        std::fs::write(&path, text)?;
        self.policy_file = Some(path);
        Ok(())
    }

    /// Gives the agent another join string.
    pub fn set_join_string(&self, text: &str) -> Result<()> {
        Ok(std::fs::write(&self.join_file, text)?)
    }

    /// Returns the path of the join string.
    pub fn join_file(&self) -> PathBuf {
        self.join_file.clone()
    }

    /// The full name of a namespace of this test.
    pub fn ns(&self, short: &str) -> String {
        format!("{}-{short}", self.name)
    }

    pub async fn make_namespace(&self, short: &str) -> Result<()> {
        self.place
            .make(&Draft::namespace(&self.ns(short)).json())
            .await
            .map(drop)
    }

    pub async fn start_agent(&mut self) -> Result<()> {
        self.agent = Some(self.boot_agent("1").await?);
        Ok(())
    }

    /// Starts an agent in a pod of this name; it returns when the agent is the active one.
    pub async fn boot_agent(&self, pod: &str) -> Result<Running> {
        let options = Options {
            join_string_file: Some(self.join_file.clone()),
            kubeconfig: Some(self.kubeconfig.clone()),
            namespace: self.name.clone(),
            pod_name: Some(format!("{}-{pod}", self.name)),
            single_replica: false,
            ops_listen: ([127, 0, 0, 1], 0).into(),
            policy_file: self.policy_file.clone(),
            allow_everything: self.allow_everything && self.policy_file.is_none(),
            log_format: LogFormat::Text,
        };
        let drain = CancellationToken::new();
        let settings = Settings {
            client: options.client(&WatchTimes::default()).await?,
            lease_client: options.client(&WatchTimes::default()).await?,
            workers: tokio::runtime::Handle::current(),
            namespace: options.namespace,
            pod_name: options.pod_name,
            lease_timing: WITH_STANDBY,
            join_file: options.join_string_file,
            policy_file: options.policy_file,
            allow_everything: options.allow_everything,
            metrics: Metrics::new(&mut registry("agent", "test")),
            watches: WatchTimes::default(),
            liveness: Liveness::default(),
            drain: drain.clone(),
        };
        let mut tasks = JoinSet::new();
        for (_, task) in boot(settings, Readiness::default().wait_for("test")).await? {
            tasks.spawn(task);
        }
        Ok((tasks, drain))
    }

    /// Replaces the running agent.
    pub fn set_agent(&mut self, agent: Running) {
        self.agent = Some(agent);
    }

    /// Waits until the agent ends by itself, and returns its output.
    pub async fn ends(&mut self) -> Result<String> {
        let (mut tasks, _) = self.agent.take().context("the agent does not run")?;
        let ended = tokio::time::timeout(runnel_tests::scene::SOON, tasks.join_next()).await;
        let ended = ended.context("the agent goes on")?.context("no parts")??;
        tasks.shutdown().await;
        Ok(ended
            .err()
            .context("a part ended without an error")?
            .to_string())
    }

    /// Ends the agent in order.
    pub async fn stop_agent(&mut self) -> Result<()> {
        end(self.take_agent()?).await
    }

    /// The running agent, which no other code owns.
    pub fn take_agent(&mut self) -> Result<Running> {
        self.agent.take().context("the agent does not run")
    }

    /// Ends the agent as a crash does.
    pub async fn crash_agent(&mut self) -> Result<()> {
        let (mut tasks, _) = self.agent.take().context("the agent does not run")?;
        tasks.shutdown().await;
        Ok(())
    }

    /// Terms of a rule into namespaces of this test.
    pub fn terms(&self, namespaces: &[&str]) -> Terms {
        let names = namespaces
            .iter()
            .map(|short| Pattern::new(self.ns(short)))
            .collect();
        Terms {
            rule: RuleName {
                kind: "DistributionRule".into(),
                namespace: "team".into(),
                name: "settings".into(),
            },
            created_at: 100,
            namespaces: Some(NamespaceChoice {
                names,
                ..NamespaceChoice::default()
            }),
            create_namespaces: false,
            conflict_policy: ConflictPolicy::Fail,
            drift_policy: DriftPolicy::Correct,
            deletion_policy: DeletionPolicy::Delete,
            suspend: false,
            ..Terms::default()
        }
    }

    /// A rule with ConfigMaps of one key each, into namespaces of this test.
    pub fn rule(&self, namespaces: &[&str], texts: &[(&str, &str)]) -> Wanted {
        let intents = texts
            .iter()
            .map(|(name, text)| (source("configmaps", name), config_map(text)))
            .collect();
        Wanted {
            terms: self.terms(namespaces),
            intents,
        }
    }

    /// A ConfigMap in a namespace of this test.
    pub fn id(&self, short: &str, name: &str) -> Id {
        Id::config_map(&self.ns(short), name)
    }

    /// Waits until a copy has a text, with all our labels and annotations.
    pub async fn has_value(&self, id: &Id, text: &str) -> Result<Value> {
        let (data, hub) = (json!({"text": text}), json!(self.hub.hub_id()));
        self.place
            .sees("the copy", id, |copy| {
                anyhow::ensure!(copy["data"] == data, "its data is {}", copy["data"]);
                let (labels, notes) = (
                    &copy["metadata"]["labels"],
                    &copy["metadata"]["annotations"],
                );
                anyhow::ensure!(labels["runnel.dev/hub"] == hub, "its labels are {labels}");
                anyhow::ensure!(
                    labels["app.kubernetes.io/managed-by"] == "runnel",
                    "its labels are {labels}"
                );
                anyhow::ensure!(
                    notes["runnel.dev/rule"] == "team/settings",
                    "its annotations are {notes}"
                );
                anyhow::ensure!(
                    notes["runnel.dev/seal"].is_string(),
                    "its annotations are {notes}"
                );
                Ok(())
            })
            .await
    }

    /// Writes to ConfigMaps and Secrets in this test's namespaces since a mark, refused ones included.
    pub fn writes(&self, mark: runnel_tests::audit::Mark) -> Result<Vec<String>> {
        let prefix = self.ns("");
        let ours = self.plane.writes_since(mark)?.into_iter().filter(|write| {
            write.namespace.starts_with(&prefix)
                && ["configmaps", "secrets"].contains(&write.resource.as_str())
        });
        Ok(ours
            .map(|write| {
                format!(
                    "{} {}/{} {}",
                    write.verb, write.namespace, write.name, write.code
                )
            })
            .collect())
    }
}

/// Ends an agent in order.
pub async fn end((mut tasks, drain): Running) -> Result<()> {
    drain.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

pub fn source(resource: &str, name: &str) -> SourceRef {
    SourceRef::new(resource, "team", name)
}

pub fn config_map(text: &str) -> Content {
    Content {
        labels: BTreeMap::from([("app".to_owned(), "x".to_owned())]),
        fields: BTreeMap::from([("data".to_owned(), json!({"text": text}))]),
        ..Content::default()
    }
}
