//! The demo on existing clusters: it prints its plan, creates only what does not exist, and removes
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use runnel_api::crds;

use super::cluster::Cluster;
use super::narrate::Narrator;
use super::stage::{Clusters, DemoStage, options};
use super::story::{DEFAULT, LATE, LIMITS, LOGIN, NAMESPACE, SETTINGS};
use super::undo::undo;
use super::{DemoOutcome, seed, unless_interrupted, with_logs};
use crate::assets::Assets;
use crate::binaries;
use crate::fleet::{AGENT, HUB, NAMESPACE as SYSTEM, rendered};
use crate::helm::Helm;
use crate::scratch::Scratch;

const ANSWERS: Duration = Duration::from_secs(30);

/// Runs the demo on the given clusters, and removes the objects that it created.
///
/// # Errors
/// If a step fails, or an object could not be removed.
pub async fn run(
    narrator: &mut Narrator,
    hub: &Path,
    members: &[(String, PathBuf)],
    agreed: bool,
) -> Result<DemoOutcome> {
    let folder = Scratch::new("existing")?;
    let opened = unless_interrupted(open_clusters(hub, members, folder.path())).await;
    let clusters = match opened {
        Ok(Some(clusters)) => clusters,
        Ok(None) => return Ok(DemoOutcome::Interrupted),
        Err(reason) => return Ok(DemoOutcome::Refused(format!("{reason:#}"))),
    };
    narrator.title("Runnel: the demo on your clusters");
    plan(narrator, &clusters);
    if !agreed {
        return Ok(DemoOutcome::Refused(
            "\nNothing has been done; add --yes to go ahead.".to_owned(),
        ));
    }
    let observed =
        with_logs(unless_interrupted(run_steps(narrator, &clusters, folder.path())).await);
    narrator.pause();
    narrator.say("Removing what was made:");
    let removed = unless_interrupted(undo(narrator, &clusters, folder.path())).await;
    match (observed, removed) {
        (Ok(Some(totals)), Ok(Some(()))) => Ok(DemoOutcome::Completed(totals)),
        (Ok(None), Ok(Some(()))) => Ok(DemoOutcome::Interrupted),
        (Err(error), Ok(Some(()))) => Err(error),
        (_, Ok(None)) => Err(anyhow!(
            "interrupted while removing; what may be left is listed at the beginning"
        )),
        (Ok(_), Err(error)) => Err(error),
        (Err(first), Err(second)) => Err(second.context(format!("{first:#}"))),
    }
}

async fn run_steps(narrator: &mut Narrator, clusters: &Clusters, folder: &Path) -> Result<String> {
    let built = tokio::task::spawn_blocking(binaries::build).await??;
    narrator.step("The hub and the agents, as processes of this machine");
    let stage =
        DemoStage::start(clusters, &built, folder, &options(clusters.local), narrator).await?;
    clusters.hub.show(narrator, &["get", "member"]).await?;
    seed::run_steps(narrator, clusters, &stage).await
}

fn plan(narrator: &Narrator, clusters: &Clusters) {
    narrator.pause();
    narrator.say("It will make the following, and remove it again at the end, also after Ctrl-C:");
    narrator.pause();
    narrator.say(&format!(
        "  {:<12} the namespaces {SYSTEM} and {NAMESPACE},",
        clusters.hub.name
    ));
    narrator.say(&format!("  {:<12} the CRDs {}", "", crd_names().join(", ")));
    narrator.say(&format!(
        "  {:<12} what the chart {HUB} installs: a ServiceAccount, its rights, a Service, ...",
        ""
    ));
    for member in &clusters.members {
        narrator.say(&format!(
            "  {:<12} the namespaces {SYSTEM} and {LATE},",
            member.name
        ));
        narrator.say(&format!(
            "  {:<12} what the chart {AGENT} installs: a ServiceAccount, its rights, ...",
            ""
        ));
        narrator.say(&format!(
            "  {:<12} {SETTINGS}, {LOGIN} and {LIMITS} in the namespace {DEFAULT}",
            ""
        ));
    }
    narrator.pause();
    narrator.say("Hub and agents run as processes of this machine. Nothing else is changed.");
}

pub(super) fn crd_names() -> Vec<String> {
    crds().iter().map(|crd| crd.name_any()).collect()
}

/// Checks the clusters, and refuses existing objects that the demo would create.
async fn open_clusters(
    hub: &Path,
    members: &[(String, PathBuf)],
    cache: &Path,
) -> Result<Clusters> {
    let kubectl = kubectl().await?;
    let cluster = |name: &str, kubeconfig: &Path| -> Result<Cluster> {
        let file = fs::canonicalize(kubeconfig);
        let file = file.with_context(|| {
            format!(
                "the kubeconfig {} of {name} cannot be read",
                kubeconfig.display()
            )
        })?;
        Ok(Cluster::new(name, &file, &kubectl, cache))
    };
    let clusters = Clusters {
        hub: cluster("hub", hub)?,
        members: members
            .iter()
            .map(|(name, kubeconfig)| cluster(name, kubeconfig))
            .collect::<Result<_>>()?,
        // The API server of a cluster of the user cannot reach a process of this machine.
        local: false,
    };
    let mut known = BTreeMap::new();
    for cluster in clusters.all() {
        if known.values().any(|name| *name == cluster.name) {
            bail!(
                "two clusters are called {}: give each --member a name of its own, other than hub",
                cluster.name
            );
        }
        let uid = answers(cluster, uid(cluster)).await?;
        if let Some(other) = known.insert(uid, cluster.name.clone()) {
            bail!(
                "{other} and {} are the same cluster: give each a kubeconfig of a cluster of its own",
                cluster.name
            );
        }
    }
    let mut existing = answers(&clusters.hub, existing_on_hub(&clusters.hub)).await?;
    for member in &clusters.members {
        existing.extend(answers(member, existing_on_member(member)).await?);
    }
    let helm = Helm::find().await?;
    for (index, cluster) in clusters.all().enumerate() {
        existing.extend(installed(&helm, cluster, if index == 0 { HUB } else { AGENT }).await?);
    }
    if !existing.is_empty() {
        bail!(
            "the demo would make what is already there, so it does nothing: {}",
            existing.join(", ")
        );
    }
    Ok(clusters)
}

async fn answers<T>(cluster: &Cluster, question: impl Future<Output = Result<T>>) -> Result<T> {
    let file = cluster.kubeconfig.display();
    let answer = tokio::time::timeout(ANSWERS, question).await;
    answer
        .with_context(|| format!("{} does not answer within {ANSWERS:?}", cluster.name))
        .flatten()
        .with_context(|| format!("{} ({file}) cannot be used", cluster.name))
}

async fn uid(cluster: &Cluster) -> Result<String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client().await?);
    namespaces
        .get("kube-system")
        .await?
        .uid()
        .context("kube-system has no uid")
}

async fn existing_on_hub(hub: &Cluster) -> Result<Vec<String>> {
    let mut existing = namespaces(hub, &[SYSTEM, NAMESPACE]).await?;
    let known: Api<CustomResourceDefinition> = Api::all(hub.client().await?);
    for name in crd_names() {
        if known.get_opt(&name).await?.is_some() {
            existing.push(format!("the CRD {name} in {}", hub.name));
        }
    }
    Ok(existing)
}

async fn existing_on_member(member: &Cluster) -> Result<Vec<String>> {
    let mut existing = namespaces(member, &[SYSTEM, LATE]).await?;
    let client = member.client().await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), DEFAULT);
    let secrets: Api<Secret> = Api::namespaced(client, DEFAULT);
    for name in [SETTINGS, LIMITS] {
        if config_maps.get_metadata_opt(name).await?.is_some() {
            existing.push(format!("the ConfigMap {DEFAULT}/{name} in {}", member.name));
        }
    }
    if secrets.get_metadata_opt(LOGIN).await?.is_some() {
        existing.push(format!("the Secret {DEFAULT}/{LOGIN} in {}", member.name));
    }
    Ok(existing)
}

async fn namespaces(cluster: &Cluster, names: &[&str]) -> Result<Vec<String>> {
    let api: Api<Namespace> = Api::all(cluster.client().await?);
    let mut existing = Vec::new();
    for name in names {
        if api.get_opt(name).await?.is_some() {
            existing.push(format!("the namespace {name} in {}", cluster.name));
        }
    }
    Ok(existing)
}

/// Returns the existing objects of a chart. Namespaces and CRDs are checked separately.
async fn installed(helm: &Helm, cluster: &Cluster, chart: &'static str) -> Result<Vec<String>> {
    let manifests = rendered(helm, chart, &options(false)).await?;
    let found = cluster
        .kubectl(
            &["get", "--ignore-not-found", "-o", "name", "-f", "-"],
            &manifests,
        )
        .await?;
    let found = found
        .lines()
        .filter(|name| !name.starts_with("customresourcedefinition") && name.contains('/'));
    Ok(found
        .map(|name| format!("{name} in {}", cluster.name))
        .collect())
}

/// Users with clusters have a `kubectl`; otherwise that of the control planes is used, which may
/// have to be built.
async fn kubectl() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::split_paths(&path)
        .map(|folder| folder.join("kubectl"))
        .find(|program| program.is_file());
    match own {
        Some(own) => Ok(own),
        None => Ok(tokio::task::spawn_blocking(Assets::find).await??.kubectl()),
    }
}
