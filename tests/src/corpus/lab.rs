//! A hub and members that are open for every kind of the corpus.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::discovery::{Discovery, Scope};
use runnel_api::is_no_kind_of_manifests;
use runnel_proto::model::is_privileged;
use serde_json::{Value, json};
use tokio::process::Command;

use super::manifest::{Manifest, NO_NAMESPACE};
use crate::control_plane::{ControlPlane, Options};
use crate::fleet::{Fleet, FleetOptions};
use crate::scene::{Draft, SOON, Scene, TestCluster};
use crate::scratch::Scratch;
use crate::wait::eventually;

/// The namespace of the bundles.
pub(super) const HOME: &str = "bundles";
const COMMAND: Duration = Duration::from_secs(120);
/// The controllers that remove the finalizers of volumes.
const CONTROLLERS: [&str; 2] = [
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
];

/// A kind of the corpus.
#[derive(Clone, Debug)]
pub(super) struct CorpusKind {
    /// Its names.
    pub(super) resource: ApiResource,
    /// Whether its objects have namespaces.
    pub(super) is_namespaced: bool,
    /// Whether a definition of the corpus has it, so that the hub does not serve it.
    pub(super) is_defined: bool,
}

impl CorpusKind {
    /// As `plural[.group]`.
    fn name(&self) -> String {
        match self.resource.group.as_str() {
            "" => self.resource.plural.clone(),
            group => format!("{}.{group}", self.resource.plural),
        }
    }
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The exit code.
    pub(super) code: Option<i32>,
    /// Standard output.
    pub(super) output: String,
    /// Standard error.
    pub(super) message: String,
}

/// The clusters of the trials.
pub(super) struct CorpusLab {
    fleet: Fleet,
    scene: Scene,
    kinds: BTreeMap<(String, String), CorpusKind>,
    scratch: Scratch,
}

impl CorpusLab {
    /// Starts a fleet whose agents may write every kind and namespace of the corpus, but those that bundles never have.
    ///
    /// # Errors
    /// When a part of the fleet does not start.
    pub(super) async fn start(members: usize, manifests: &[Manifest]) -> Result<Self> {
        let control_plane = Options {
            controllers: CONTROLLERS.map(str::to_owned).to_vec(),
            // As clusters with nodes have it.
            api_server_arguments: vec!["--allow-privileged=true".to_owned()],
            ..Options::default()
        };
        let fleet = Fleet::start(FleetOptions {
            members,
            views: true,
            control_plane,
            log: "info".to_owned(),
            ..FleetOptions::default()
        })
        .await?;
        let scene = Scene::of(&fleet).await?;
        scene.lift_fleet_limits().await?;
        scene.hub_namespaces(&[HOME]).await?;
        let mut kinds = served(scene.member(members)).await?;
        kinds.extend(manifests.iter().flat_map(defined));
        let lab = Self {
            fleet,
            scene,
            kinds,
            scratch: Scratch::new("corpus")?,
        };
        lab.open(manifests).await?;
        Ok(lab)
    }

    /// Gives each agent of Runnel's members a policy with the kinds and namespaces of the corpus.
    async fn open(&self, manifests: &[Manifest]) -> Result<()> {
        let (mut kinds, mut cluster_kinds) = (BTreeSet::new(), BTreeSet::new());
        for kind in manifests.iter().filter_map(|one| self.any_version(one)) {
            if is_no_kind_of_manifests(&kind.name()) {
                continue;
            } else if kind.is_namespaced {
                kinds.insert(kind.name());
            } else {
                cluster_kinds.insert(kind.name());
            }
        }
        let all = kinds.iter().chain(&cluster_kinds);
        let privileged: Vec<&String> = all.filter(|kind| is_privileged(kind)).collect();
        // No glob opens the namespaces of the system.
        let mut namespaces = namespaces(manifests);
        namespaces.insert("*");
        let named = manifests
            .iter()
            .filter(|one| one.field("/kind") == "Namespace");
        namespaces.extend(named.map(|one| one.field("/metadata/name")));
        let values = json!({"policy": {
            "kinds": kinds, "clusterKinds": cluster_kinds, "allowPrivileged": privileged,
            "namespaces": namespaces, "deleteNamespaces": true, "deniedLabels": [], "deletesPerHour": 1_000_000,
        }});
        try_join_all((1..self.fleet.size()).map(|number| {
            let values = values.clone();
            async move {
                self.fleet.agent(number).upgrade(&values).await?;
                // The policy is a file, which a running agent reads later.
                self.fleet.stop_agent(number).await?;
                self.fleet.start_agent(number).await?;
                self.fleet.connected(number).await
            }
        }))
        .await
        .map(drop)
    }

    /// Makes the namespaces of the corpus in every member.
    ///
    /// # Errors
    /// When an API server refuses one, or does not make its ServiceAccount.
    pub(super) async fn make_namespaces(&self, manifests: &[Manifest]) -> Result<()> {
        for name in namespaces(manifests) {
            for member in &self.scene.members {
                let namespace = Draft::namespace(name).json();
                member.apply_as("cargo-corpus", &namespace).await?;
                // A Pod needs it.
                let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": name, "name": "default"}});
                let account = crate::scene::Id::of(&account)?;
                eventually(
                    &format!("{account} in {}", member.name()),
                    SOON,
                    async || member.find(&account).await,
                )
                .await?;
            }
        }
        Ok(())
    }

    /// The hub.
    pub(super) fn hub(&self) -> &TestCluster {
        &self.scene.hub
    }

    /// The members to which Runnel writes, with their control planes.
    pub(super) fn copies(&self) -> impl Iterator<Item = (&TestCluster, &ControlPlane)> {
        (1..self.fleet.size()).map(|number| (self.scene.member(number), self.fleet.member(number)))
    }

    /// The member to which kubectl writes.
    pub(super) fn plain(&self) -> (&TestCluster, &ControlPlane) {
        let number = self.fleet.size();
        (self.scene.member(number), self.fleet.member(number))
    }

    /// The kind of a manifest, if a cluster can serve it.
    pub(super) fn kind(&self, manifest: &Manifest) -> Option<&CorpusKind> {
        let text = |pointer| manifest.field(pointer).to_owned();
        self.kinds.get(&(text("/apiVersion"), text("/kind")))
    }

    /// The kind of a manifest, if a cluster can serve it in this or another version.
    fn any_version(&self, manifest: &Manifest) -> Option<&CorpusKind> {
        let (group, _) = manifest
            .field("/apiVersion")
            .split_once('/')
            .unwrap_or_default();
        let mut kinds = self.kinds.values();
        kinds.find(|kind| {
            kind.resource.group == group && kind.resource.kind == manifest.field("/kind")
        })
    }

    /// The objects of a manifest's kind in its namespace.
    pub(super) fn api(
        &self,
        cluster: &TestCluster,
        manifest: &Manifest,
    ) -> Result<Api<DynamicObject>> {
        let kind = self.kind(manifest);
        let kind = kind.with_context(|| format!("{}: no kind", manifest.title()))?;
        Ok(if kind.is_namespaced {
            Api::namespaced_with(cluster.client(), manifest.namespace(), &kind.resource)
        } else {
            Api::all_with(cluster.client(), &kind.resource)
        })
    }

    /// Writes a file for a command.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(super) fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.scratch.path().join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Runs `kubectl runnel` as an administrator of the hub.
    ///
    /// # Errors
    /// When it does not start, or does not end in time.
    pub(super) async fn runnel(&self, words: &[&str], file: &Path) -> Result<Ended> {
        let program = self.fleet.binaries().folder.join("kubectl-runnel");
        let mut command = Command::new(program);
        command.args(words).arg("-f").arg(file).kill_on_drop(true);
        command
            .arg("--kubeconfig")
            .arg(self.fleet.hub().kubeconfig());
        let ended = tokio::time::timeout(COMMAND, command.output()).await;
        let ended = ended.with_context(|| format!("kubectl runnel {}", words.join(" ")))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ended {
            code: ended.status.code(),
            output: text(&ended.stdout),
            message: text(&ended.stderr),
        })
    }
}

fn namespaces(manifests: &[Manifest]) -> BTreeSet<&str> {
    let named = manifests.iter().map(Manifest::namespace);
    named.chain([NO_NAMESPACE]).collect()
}

/// The kinds that a cluster serves by itself, in every version.
async fn served(cluster: &TestCluster) -> Result<BTreeMap<(String, String), CorpusKind>> {
    let discovery = Discovery::new(cluster.client()).run_aggregated().await?;
    let mut kinds = BTreeMap::new();
    for group in discovery.groups() {
        for version in group.versions() {
            for (resource, capabilities) in group.versioned_resources(version) {
                let key = (resource.api_version.clone(), resource.kind.clone());
                let kind = CorpusKind {
                    resource,
                    is_namespaced: capabilities.scope == Scope::Namespaced,
                    is_defined: false,
                };
                kinds.insert(key, kind);
            }
        }
    }
    Ok(kinds)
}

/// The kinds of a CustomResourceDefinition.
fn defined(manifest: &Manifest) -> Vec<((String, String), CorpusKind)> {
    if manifest.field("/kind") != "CustomResourceDefinition" {
        return Vec::new();
    }
    let (group, kind) = (
        manifest.field("/spec/group"),
        manifest.field("/spec/names/kind"),
    );
    let versions = manifest.object["spec"]["versions"].as_array();
    let names = versions.into_iter().flatten();
    let names = names.filter_map(|version| version["name"].as_str());
    names
        .map(|version| {
            let resource = ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk(group, version, kind),
                manifest.field("/spec/names/plural"),
            );
            let key = (resource.api_version.clone(), kind.to_owned());
            let kind = CorpusKind {
                resource,
                is_namespaced: manifest.field("/spec/scope") == "Namespaced",
                is_defined: true,
            };
            (key, kind)
        })
        .collect()
}

/// The entry of a defined kind in `spec.kinds` of a bundle.
pub(super) fn entry(kind: &CorpusKind) -> Value {
    let scope = if kind.is_namespaced {
        "Namespaced"
    } else {
        "Cluster"
    };
    let ApiResource {
        api_version,
        kind,
        plural,
        ..
    } = &kind.resource;
    json!({"apiVersion": api_version, "kind": kind, "plural": plural, "scope": scope})
}
