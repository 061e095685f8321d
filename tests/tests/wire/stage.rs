//! One hub for all tests of this file, and the few objects that they need on it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use runnel_api::{DistributionRule, MemberCluster, MemberRecord, MemberRecordSpec};
use runnel_hub::ca::IDENTITY_SECRET;
use runnel_hub::token::{self, TokenRequest};
use runnel_proto::model::{RuleUid, SourceRef};
use runnel_tests::audit::{Mark, Write};
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::simulated::Credentials;
use runnel_tests::wait::eventually;
use runnel_transport::identity::{Ca, JoinString};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long a test waits for what takes milliseconds on an idle machine.
pub const SOON: Duration = Duration::from_secs(60);

static HUB: OnceCell<Fleet> = OnceCell::const_new();
static TURN: RwLock<()> = RwLock::const_new(());

/// The hub as one test sees it: its namespace on it, and its turn.
pub struct Stage {
    pub fleet: &'static Fleet,
    pub client: Client,
    pub namespace: String,
    _turn: Turn,
}

#[allow(dead_code)]
enum Turn {
    WithOthers(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// The hub, used by other tests at the same time.
pub async fn shared(namespace: &str) -> Result<Stage> {
    Stage::new(namespace, Turn::WithOthers(TURN.read().await)).await
}

/// A hub for this test alone, which stops it or counts its actions.
pub async fn alone(namespace: &str) -> Result<Stage> {
    Stage::new(namespace, Turn::Alone(TURN.write().await)).await
}

impl Stage {
    async fn new(namespace: &str, turn: Turn) -> Result<Self> {
        let start = || {
            Fleet::start(FleetOptions {
                members: 0,
                ..FleetOptions::default()
            })
        };
        let fleet = HUB.get_or_try_init(start).await?;
        let client = fleet.hub().client().await?;
        let metadata = ObjectMeta {
            name: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        let object = Namespace {
            metadata,
            ..Namespace::default()
        };
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        Ok(Self {
            fleet,
            client,
            namespace: namespace.to_owned(),
            _turn: turn,
        })
    }

    /// A new join string for a cluster with the label `set=<namespace of the test>`.
    pub async fn join_string(&self, cluster: &str) -> Result<JoinString> {
        let request = TokenRequest {
            cluster: cluster.to_owned(),
            labels: vec![format!("set={}", self.namespace)],
            ttl: "1h".to_owned(),
            advertise: vec![self.fleet.hub_address()],
        };
        Ok(JoinString::parse(
            &token::create(self.client.clone(), NAMESPACE, request).await?,
        )?)
    }

    /// A cluster that has joined.
    pub async fn join(&self, cluster: &str) -> Result<Credentials> {
        Ok(Credentials::join(&self.join_string(cluster).await?).await?)
    }

    pub fn members(&self) -> Api<MemberCluster> {
        Api::all(self.client.clone())
    }

    /// Returns the record of a member.
    pub async fn record(&self, cluster: &str) -> Result<MemberRecordSpec> {
        let records: Api<MemberRecord> = Api::all(self.client.clone());
        let record = records.get_opt(cluster).await?;
        Ok(record.map(|record| record.spec).unwrap_or_default())
    }

    pub fn rules(&self) -> Api<DistributionRule> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Writes a source: a ConfigMap with one key.
    pub async fn write(&self, name: &str, value: &str) -> Result<SourceRef> {
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value},
        });
        let params = PatchParams::apply("test").force();
        self.config_maps()
            .patch(name, &params, &Patch::Apply(body))
            .await?;
        Ok(self.source(name))
    }

    /// Writes a source: a Secret with one key.
    pub async fn write_secret(&self, name: &str, value: &str) -> Result<SourceRef> {
        let body = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"value": value},
        });
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        secrets
            .patch(
                name,
                &PatchParams::apply("test").force(),
                &Patch::Apply(body),
            )
            .await?;
        Ok(SourceRef::new("secrets", &self.namespace, name))
    }

    pub fn source(&self, name: &str) -> SourceRef {
        SourceRef::new("configmaps", &self.namespace, name)
    }

    pub async fn delete_source(&self, name: &str) -> Result<()> {
        self.config_maps()
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// A rule for what is called `names` in the namespace of the test, with more `spec`.
    pub async fn rule(&self, name: &str, names: &[&str], spec: Value) -> Result<RuleUid> {
        let mut whole =
            json!({"sources": [{"resources": ["configmaps", "secrets"], "names": names}]});
        let parts = spec.as_object().context("a spec")?.clone();
        whole.as_object_mut().context("a spec")?.extend(parts);
        let rule = json!({
            "apiVersion": "runnel.dev/v1alpha1",
            "kind": "DistributionRule",
            "metadata": {"name": name},
            "spec": whole,
        });
        let rule: DistributionRule = serde_json::from_value(rule)?;
        let made = self.rules().create(&PostParams::default(), &rule).await?;
        Ok(RuleUid::from(made.uid().context("a uid")?))
    }

    /// Waits until the rule reports every copy as applied in this many clusters.
    pub async fn ready(&self, rule: &str, clusters: i64) -> Result<DistributionRule> {
        eventually(
            &format!("{rule} to be ready in {clusters} clusters"),
            SOON,
            async || {
                let rule = self.rules().get(rule).await?;
                let status = rule.status.clone().context("no status")?;
                let summary = status.summary.context("no summary")?;
                let ready = status
                    .conditions
                    .iter()
                    .any(|c| c.type_ == "Ready" && c.status == "True");
                let settled =
                    ready && summary.clusters_ready == clusters && summary.clusters == clusters;
                ensure!(settled, "{}", serde_json::to_string(&status)?);
                Ok(Some(rule))
            },
        )
        .await
    }

    pub async fn patch_member(&self, cluster: &str, change: Value) -> Result<MemberCluster> {
        Ok(self
            .members()
            .patch(cluster, &PatchParams::default(), &Patch::Merge(change))
            .await?)
    }

    /// The hub's CA, with its key: what only a reader of the hub's own Secret has.
    pub async fn ca(&self) -> Result<Ca> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        let data = secrets
            .get(IDENTITY_SECRET)
            .await?
            .data
            .context("an identity without data")?;
        let text = |key: &str| {
            Ok::<_, anyhow::Error>(String::from_utf8(
                data.get(key).context("a part")?.0.clone(),
            )?)
        };
        Ok(Ca::from_pem(&text("tls.crt")?, &text("tls.key")?)?)
    }

    /// Waits until the hub has written nothing for longer than its pace of a write a second.
    pub async fn calm(&self) -> Result<Mark> {
        let (mut mark, mut since) = (self.mark(), Instant::now());
        eventually("a second without a write of the hub", SOON, async || {
            if !self.hub_writes(mark)?.is_empty() {
                (mark, since) = (self.mark(), Instant::now());
            }
            Ok((since.elapsed() > Duration::from_millis(1300)).then_some(mark))
        })
        .await
    }

    pub fn mark(&self) -> Mark {
        self.fleet.hub().mark()
    }

    /// The hub's writes since `mark` about objects of this test: its namespace, and members whose
    /// name begins with the namespace's.
    pub fn hub_writes(&self, mark: Mark) -> Result<Vec<Write>> {
        let mut writes = self.fleet.hub().writes_since(mark)?;
        writes.retain(|write| write.user_agent.starts_with("runnel-hub/"));
        writes.retain(|write| {
            write.namespace == self.namespace || write.name.starts_with(&self.namespace)
        });
        Ok(writes)
    }
}

/// Returns the value of a source's only key.
pub fn value(holdings: &runnel_tests::simulated::Holdings, source: &SourceRef) -> Option<String> {
    let content = holdings.content(source)?;
    let data: BTreeMap<String, Value> =
        serde_json::from_value(content.fields.get("data")?.clone()).ok()?;
    data.get("value")?.as_str().map(ToOwned::to_owned)
}
