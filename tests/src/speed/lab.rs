//! A real hub on a real control plane, with simulated agents or real ones, and a bare hub beside it
//! in a separate process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
};
use kube::core::ApiResource;
use kube::{Api, Client, ResourceExt};
use runnel_api::{DistributionGrant, DistributionRule};
use runnel_hub::token::{self, TokenRequest};
use runnel_proto::wire::RenewRequest;
use runnel_transport::grpc::runnel_client::RunnelClient;
use runnel_transport::identity::{Ca, JoinString};
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::bar::Bar;
use super::bare;
use super::sample::{Sample, resource_of};
use crate::fleet::{Fleet, FleetOptions, NAMESPACE};
use crate::guard::Program;
use crate::restartable::Restartable;
use crate::scratch::Scratch;
use crate::simulated::Credentials;
use crate::wait::eventually;

/// How long anything may take that is not being measured.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// How long one member may take to join.
const JOIN: Duration = Duration::from_secs(60);
/// The namespace of sources and rules.
pub const SOURCES: &str = "speed";
/// Requests to the API server at once.
const AT_ONCE: usize = 16;
/// The most kinds that a grant may name.
const GRANTED: usize = 16;

/// A hub with its members.
pub struct Lab {
    /// The hub and its cluster.
    pub fleet: Fleet,
    /// An administrator of the hub's cluster.
    pub client: Client,
    /// The kind of its sources.
    pub sample: Sample,
    members: Vec<Credentials>,
}

impl Lab {
    /// Starts the control plane and the hub.
    ///
    /// # Errors
    /// When either does not start.
    pub async fn start() -> Result<Self> {
        Self::of(Fleet::start(Self::options()).await?).await
    }

    /// The options of a fleet with real members for sources of this kind.
    #[must_use]
    pub fn options_with_members(sample: Sample, members: usize) -> FleetOptions {
        let mut options = FleetOptions {
            members,
            log: "runnel=warn".to_owned(),
            ..FleetOptions::default()
        };
        if sample != Sample::ConfigMap {
            let resources = Sample::resources();
            options.hub_values = json!({"sources": {"kinds": resources}});
            options.agent_values = json!({"policy": {
                "kinds": resources, "allowPrivileged": [Sample::Deployment.resource()],
            }});
        }
        options
    }

    /// With sources of this kind, which hub and members serve from now on.
    ///
    /// # Errors
    /// When an API server does not serve it.
    pub async fn distributing(mut self, sample: Sample) -> Result<Self> {
        self.sample = sample;
        if let Some(definition) = sample.definition() {
            self.define(&sample.api(), &definition).await?;
        }
        if sample != Sample::ConfigMap {
            self.grant(&Sample::resources()).await?;
        }
        Ok(self)
    }

    /// Grants these kinds to all rules, instead of those that a new hub grants.
    ///
    /// # Errors
    /// When the hub's API server refuses it.
    pub async fn grant(&self, resources: &[impl AsRef<str>]) -> Result<()> {
        let grants: Api<DistributionGrant> = Api::all(self.client.clone());
        let first = eventually("the grant of a new hub", PATIENCE, async || {
            let list = grants.list(&ListParams::default()).await?;
            Ok(list.items.into_iter().next())
        })
        .await?;
        let resources: Vec<&str> = resources.iter().map(AsRef::as_ref).collect();
        for (number, part) in resources.chunks(GRANTED).enumerate() {
            let mut grant = first.clone();
            grant.metadata = ObjectMeta {
                name: Some(format!("{}-{number}", first.name_any())),
                ..ObjectMeta::default()
            };
            grant.spec.resources = part.iter().map(|&kind| kind.to_owned()).collect();
            grants.create(&PostParams::default(), &grant).await?;
        }
        let params = DeleteParams::default();
        grants.delete(&first.name_any(), &params).await?;
        Ok(())
    }

    /// Makes a kind that hub and members serve.
    ///
    /// # Errors
    /// When an API server does not serve it.
    pub async fn define(&self, kind: &ApiResource, definition: &Value) -> Result<()> {
        let name = resource_of(kind);
        let params = PatchParams::apply("speed").force();
        let mut clusters = vec![self.client.clone()];
        for number in 1..=self.fleet.size() {
            clusters.push(self.fleet.member(number).client().await?);
        }
        for client in clusters {
            let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
            definitions
                .patch(&name, &params, &Patch::Apply(definition))
                .await?;
            let objects: Api<DynamicObject> = Api::all_with(client, kind);
            eventually(&format!("{name} to be served"), PATIENCE, async || {
                objects.list(&ListParams::default()).await?;
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// The options of its fleet.
    #[must_use]
    pub fn options() -> FleetOptions {
        FleetOptions {
            members: 0,
            log: "runnel=warn".to_owned(),
            ..FleetOptions::default()
        }
    }

    /// On a fleet that runs.
    ///
    /// # Errors
    /// When its hub's cluster does not answer.
    pub async fn of(fleet: Fleet) -> Result<Self> {
        let client = fleet.hub().client().await?;
        make_namespace(&client, SOURCES).await?;
        Ok(Self {
            fleet,
            client,
            sample: Sample::ConfigMap,
            members: Vec::new(),
        })
    }

    /// The hub's process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        self.fleet.hub_process().pid()
    }

    /// Returns the first `count` members. Missing ones join, each with its own token as a real one
    /// does.
    ///
    /// # Errors
    /// When one cannot.
    pub async fn members(&mut self, count: usize) -> Result<Vec<Credentials>> {
        let known = self.members.len();
        if count > known {
            let bar = Bar::of(count - known, "members join");
            let joins = (known..count).map(|number| self.join(number, &bar));
            let joined: Vec<Credentials> = futures::stream::iter(joins)
                .buffered(AT_ONCE)
                .try_collect()
                .await?;
            self.members.extend(joined);
        }
        Ok(self.members[..count].to_vec())
    }

    /// A hub that very many join at once may ask to be tried again.
    async fn join(&self, number: usize, bar: &Bar) -> Result<Credentials> {
        let cluster = format!("simulated-{number:05}");
        let credentials = eventually(&format!("the join of {cluster}"), JOIN, async || {
            let request = TokenRequest {
                cluster: cluster.clone(),
                labels: vec!["set=speed".to_owned()],
                ttl: "1h".to_owned(),
                advertise: vec![self.fleet.hub_address()],
            };
            let join =
                JoinString::parse(&token::create(self.client.clone(), NAMESPACE, request).await?)?;
            Ok(Some(Credentials::join(&join).await?))
        })
        .await?;
        bar.step();
        Ok(credentials)
    }

    /// Writes a source with this value.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn write(&self, name: &str, value: &str) -> Result<()> {
        let sample = self.sample;
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), SOURCES, &sample.api());
        let body = sample.object(name, value);
        api.patch(
            name,
            &PatchParams::apply("speed").force(),
            &Patch::Apply(body),
        )
        .await?;
        Ok(())
    }

    /// Writes many sources.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub async fn write_all(
        &self,
        sources: impl IntoIterator<Item = (String, String)>,
    ) -> Result<()> {
        let writes = sources
            .into_iter()
            .map(|(name, value)| async move { self.write(&name, &value).await });
        futures::stream::iter(writes)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Writes a rule for the sources that are called `names`, for these clusters.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn rule(&self, name: &str, names: &[&str], clusters: Value) -> Result<()> {
        let spec = json!({"sources": [{"resources": [self.sample.resource()], "names": names}], "clusters": clusters});
        let rule = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": {"name": name}, "spec": spec,
        });
        self.rules()
            .patch(
                name,
                &PatchParams::apply("speed").force(),
                &Patch::Apply(rule),
            )
            .await?;
        Ok(())
    }

    /// Deletes a rule, and waits until it is gone with all that the members hold of it.
    ///
    /// # Errors
    /// When it does not go.
    pub async fn delete_rule(&self, name: &str) -> Result<()> {
        self.rules()
            .delete(name, &kube::api::DeleteParams::default())
            .await?;
        let gone = async || Ok(self.rules().get_opt(name).await?.is_none().then_some(()));
        eventually(&format!("the end of {name}"), PATIENCE, gone).await
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> Api<DistributionRule> {
        Api::namespaced(self.client.clone(), SOURCES)
    }

    /// Waits until the rule reports every copy as applied in this many clusters, whatever their health is: no controller
    /// runs that makes Deployments healthy.
    ///
    /// # Errors
    /// When it does not.
    pub async fn applied(&self, rule: &str, clusters: usize) -> Result<()> {
        eventually(
            &format!("{rule} to be applied in {clusters} clusters"),
            PATIENCE,
            async || {
                let status = self.rules().get(rule).await?.status.context("no status")?;
                let summary = status.summary.context("no summary")?;
                let whole = summary.clusters == clusters as i64
                    && summary.copies > 0
                    && summary.copies_applied == summary.copies;
                ensure!(whole, "{summary:?}");
                Ok(Some(()))
            },
        )
        .await
    }

    /// Checks that the hub's write counter is not zero. Otherwise a count of zero proves nothing.
    ///
    /// # Errors
    /// If it is zero.
    pub fn shows_hub_writes(&self) -> Result<()> {
        ensure!(
            self.hub_writes(crate::audit::Mark::default())? > 0,
            "the audit log shows no write of the hub at all"
        );
        Ok(())
    }

    /// How often the hub has written since `mark`; Leases are not counted.
    ///
    /// # Errors
    /// When the audit log cannot be read.
    pub fn hub_writes(&self, mark: crate::audit::Mark) -> Result<usize> {
        let writes = self.fleet.hub().writes_since(mark)?;
        Ok(writes
            .iter()
            .filter(|write| write.user_agent.starts_with("runnel-hub"))
            .count())
    }

    /// The writes of the hub since `mark` by resource, the most first, as text for a person.
    ///
    /// # Errors
    /// When the audit log cannot be read.
    pub fn hub_writes_by_resource(&self, mark: crate::audit::Mark) -> Result<String> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for write in self.fleet.hub().writes_since(mark)? {
            if write.user_agent.starts_with("runnel-hub") {
                let what = format!("{} {} {}", write.verb, write.resource, write.subresource);
                *counts.entry(what.trim_end().to_owned()).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let texts = counts.iter().map(|(what, count)| format!("{count} {what}"));
        Ok(texts.collect::<Vec<_>>().join(", "))
    }
}

/// Makes a namespace.
///
/// # Errors
/// When the API server refuses it.
pub async fn make_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    Ok(())
}

/// A bare hub in a separate process.
pub struct BareHub {
    process: Restartable,
    ca: Ca,
    scratch: Scratch,
}

impl BareHub {
    /// Starts it.
    ///
    /// # Errors
    /// When it does not listen.
    pub async fn start() -> Result<Self> {
        let scratch = Scratch::new("bare")?;
        let ca = Ca::generate(bare::HUB_ID, SystemTime::now())?;
        let [certificate, key] = bare::CA;
        std::fs::write(scratch.path().join(certificate), ca.certificate_pem())?;
        std::fs::write(scratch.path().join(key), ca.key_pem())?;
        let program = Program::new(std::env::current_exe()?, scratch.path().join("bare.log"));
        let arguments: [PathBuf; 2] = ["--bare-hub".into(), scratch.path().into()];
        let process = Restartable::new("the bare hub", program.arguments(arguments));
        let bare = Self {
            process,
            ca,
            scratch,
        };
        bare.launch().await?;
        Ok(bare)
    }

    /// Starts it, after [`Self::kill`] where it was; returns when it listens.
    ///
    /// # Errors
    /// When it does not listen.
    pub async fn launch(&self) -> Result<()> {
        let file = self.scratch.path().join(bare::READY);
        let _ = std::fs::remove_file(&file);
        self.process.start()?;
        eventually("the bare hub", PATIENCE, async || {
            self.process.check()?;
            Ok(file.exists().then_some(()))
        })
        .await
    }

    /// Its process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        self.process.pid()
    }

    /// Kills it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Members of it.
    ///
    /// # Errors
    /// When signing fails.
    pub fn members(&self, numbers: std::ops::Range<usize>) -> Result<Vec<Credentials>> {
        let address = std::fs::read_to_string(self.scratch.path().join(bare::ADDRESS))?;
        let one = |number| {
            Credentials::issued(
                &self.ca,
                &address,
                bare::HUB_ID,
                &format!("bare-{number:05}"),
            )
        };
        numbers.map(one).collect()
    }

    /// A connection for the texts that it broadcasts.
    ///
    /// # Errors
    /// When there is none.
    pub async fn voice(&self) -> Result<RunnelClient<Channel>> {
        let own = self.members(99_999..100_000)?.pop().context("no member")?;
        Ok(RunnelClient::new(own.channel().await?))
    }
}

/// Broadcasts a payload from the bare hub; returns when all agents have acked it.
///
/// # Errors
/// If they do not.
pub async fn say(voice: &mut RunnelClient<Channel>, text: &str) -> Result<()> {
    voice
        .renew(RenewRequest {
            certificate_request: text.as_bytes().to_vec().into(),
        })
        .await?;
    Ok(())
}
