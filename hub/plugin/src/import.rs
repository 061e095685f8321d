//! `kubectl runnel import`: reads what other copiers do in a cluster, and prints equivalent rules.
//! It changes nothing.
//!
//! Those copiers work inside one cluster. So the cluster that is read has the copies, and it is the
//! member of the rules: the one whose `MemberCluster` has its uid, or those that `--cluster` names.
//! The rules read their sources on the hub. If hub and member are one cluster, the sources exist
//! there already; otherwise the output names the missing ones.
pub mod annotations;
mod choice;
mod labeled;
mod report;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runnel_api::MemberCluster;
use runnel_proto::model::is_subdomain;
use serde_json::{Map, Value};

use self::annotations::{Copier, Id, ObjectMetadata, Objects, ReadAnnotations};
use self::choice::NamespaceLabels;
use self::labeled::LabelCopier;
use self::report::ReportContext;
use self::rules::{ImportTarget, ObjectContents};
use super::access::Cluster;
use super::objects::{member_name, member_status};
use super::{CommandContext, args, ended, join, print, read_cluster, usage};

/// The kinds to copy, and other kinds that some copiers copy.
const READ: [(&str, &str); 2] = [("configmaps", "/api/v1"), ("secrets", "/api/v1")];
const ALSO: [(&str, &str); 3] = [
    ("roles", "/apis/rbac.authorization.k8s.io/v1"),
    ("rolebindings", "/apis/rbac.authorization.k8s.io/v1"),
    ("serviceaccounts", "/api/v1"),
];
/// Number of concurrent reads.
const AT_A_TIME: usize = 8;

/// Prints rules.
pub(super) async fn run(
    session: &CommandContext<'_>,
    options: &args::ImportArgs,
) -> anyhow::Result<()> {
    let label = by_label(session, options)?;
    if let Some(wrong) = options.clusters.iter().find(|name| !is_subdomain(name)) {
        return Err(usage(format!(
            "--clusters `{wrong}` is no name of a cluster"
        )));
    }
    let hub = join::hub(session, &options.member).await?;
    let read = join::member(session, &options.member)
        .await?
        .unwrap_or_else(|| hub.clone());
    let (uid, hub_uid) = (uid(&read).await?, uid(&hub).await?);
    let is_hub = uid == hub_uid;
    let clusters = clusters(&hub, options, &uid, &read).await?;

    let places = places(&read).await?;
    let objects = objects(&read).await?;
    let mut found = match &label {
        Some(given) => labeled::read(&objects, &places, given),
        None => {
            let of = if options.from.is_empty() {
                Copier::KNOWN.to_vec()
            } else {
                options.from.clone()
            };
            annotations::read(&objects, &places, &of)
        }
    };
    if let Some(namespace) = session.namespace {
        found
            .requests
            .retain(|request| request.source.namespace == *namespace);
        found.notes.retain(|(id, _)| id.namespace == *namespace);
    }
    if found.requests.is_empty() && found.notes.is_empty() {
        return Err(ended(super::FAILED, nothing(&read, label.is_some())));
    }
    let bodies = bodies(&read, &objects, &found, &places).await?;
    let mut not_on_hub = if is_hub {
        BTreeSet::new()
    } else {
        not_on_hub(&hub, &found, &bodies).await?
    };
    let uncopied = match &label {
        Some(given) if !is_hub => {
            labeled::labeled_not_copied(&on_hub(&hub, &found).await?, given, &found)
        }
        _ => BTreeSet::new(),
    };
    let aim = ImportTarget {
        clusters,
        is_hub,
        label,
        labeled_not_copied: uncopied,
    };
    let import = rules::imported_rules(found, &objects, &places, &bodies, &aim);
    not_on_hub.retain(|id| import.rules.iter().any(|rule| rule.sources.contains(id)));
    let around = ReportContext {
        read: named("kubectl --context", &read),
        helm: named("helm --kube-context", &read),
        hub: named("kubectl --context", &hub),
        is_hub,
        copiers: copiers(&read).await,
        not_on_hub,
    };
    print(&report::text(&import, &around)?)
}

/// Formats a command that reaches the cluster, quoted for a shell.
fn named(command: &str, cluster: &Cluster) -> String {
    let quoted = |text: &str| {
        let plain = !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_./:@".contains(c));
        if plain {
            text.to_owned()
        } else {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
    };
    let file = cluster
        .kubeconfig
        .as_ref()
        .map(|file| format!(" --kubeconfig {}", quoted(&file.display().to_string())));
    format!(
        "{command} {}{}",
        quoted(&cluster.context),
        file.unwrap_or_default()
    )
}

fn nothing(read: &Cluster, by_label: bool) -> String {
    let place = &read.place;
    if by_label {
        return format!(
            "{place} has no ConfigMap and no Secret with that label outside the namespaces of --to"
        );
    }
    format!(
        "{place} has no ConfigMap and no Secret with annotations of kubernetes-replicator, kubernetes-reflector or \
         config-syncer: choose the cluster in which they run with --context; for an operator that copies what has a \
         label give --label KEY=VALUE and --to NAMESPACES"
    )
}

fn by_label(
    session: &CommandContext<'_>,
    options: &args::ImportArgs,
) -> anyhow::Result<Option<LabelCopier>> {
    let Some(label) = &options.label else {
        return Ok(None);
    };
    let given = LabelCopier::new(label, &options.to).map_err(usage)?;
    let from = session.namespace.map(str::to_owned);
    Ok(Some(LabelCopier {
        from,
        resources: options.resources.clone(),
        ..given
    }))
}

async fn uid(cluster: &Cluster) -> anyhow::Result<String> {
    let found: Option<Namespace> = cluster
        .get(
            "read the namespace kube-system",
            "/api/v1/namespaces/kube-system",
        )
        .await?;
    Ok(found
        .and_then(|namespace| namespace.metadata.uid)
        .unwrap_or_default())
}

/// The members that the rules name.
async fn clusters(
    hub: &Cluster,
    options: &args::ImportArgs,
    uid: &str,
    read: &Cluster,
) -> anyhow::Result<Vec<String>> {
    if options.all_clusters || !options.clusters.is_empty() {
        return Ok(options.clusters.clone());
    }
    let members: Vec<MemberCluster> = read_cluster::members(hub).await?;
    let same = members
        .iter()
        .filter(|member| member_status(member).cluster_uid.as_deref() == Some(uid));
    let names: Vec<String> = same.map(|member| member_name(member).to_owned()).collect();
    if names.is_empty() {
        return Err(usage(format!(
            "no member of {} is {}, the cluster with the copies: join it first (`kubectl runnel join`), or name the \
             members that get the copies: --cluster NAMES, or --all-clusters",
            hub.place, read.place
        )));
    }
    Ok(names)
}

async fn places(read: &Cluster) -> anyhow::Result<NamespaceLabels> {
    let found: Vec<Namespace> = read.list("list namespaces", "/api/v1/namespaces").await?;
    let named = |namespace: Namespace| {
        let metadata = namespace.metadata;
        (
            metadata.name.unwrap_or_default(),
            metadata.labels.unwrap_or_default(),
        )
    };
    Ok(found.into_iter().map(named).collect())
}

/// Reads the metadata of everything that may matter. Kinds that only other copiers copy are read if
/// the user may.
async fn objects(read: &Cluster) -> anyhow::Result<Objects> {
    let mut all = Objects::new();
    for (resource, api) in READ {
        add(
            &mut all,
            resource,
            read.metadata(&format!("list {resource}"), &format!("{api}/{resource}"))
                .await?,
        );
    }
    for (resource, api) in ALSO {
        if let Ok(found) = read
            .metadata(&format!("list {resource}"), &format!("{api}/{resource}"))
            .await
        {
            add(&mut all, resource, found);
        }
    }
    Ok(all)
}

fn add(all: &mut Objects, resource: &str, found: Vec<ObjectMeta>) {
    for metadata in found {
        let marked = ObjectMetadata {
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        };
        let id = Id {
            resource: resource.to_owned(),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
        };
        all.insert(id, marked);
    }
}

/// Reads the content of sources, and of the objects under the names of copies.
async fn bodies(
    read: &Cluster,
    objects: &Objects,
    found: &ReadAnnotations,
    places: &NamespaceLabels,
) -> anyhow::Result<ObjectContents> {
    let mut wanted: BTreeSet<Id> = BTreeSet::new();
    for request in &found.requests {
        wanted.insert(request.source.clone());
        wanted.extend(rules::copies(request, places));
    }
    wanted.retain(|id| objects.contains_key(id));
    content(read, wanted).await
}

async fn content(of: &Cluster, wanted: BTreeSet<Id>) -> anyhow::Result<ObjectContents> {
    let asked = stream::iter(wanted).map(async |id| {
        let path = format!(
            "/api/v1/namespaces/{}/{}/{}",
            id.namespace, id.resource, id.name
        );
        let found = of.get(&format!("read {id}"), &path).await?;
        anyhow::Ok(found.map(|object| (id, compared(object))))
    });
    let found: Vec<Option<(Id, Value)>> = asked.buffer_unordered(AT_A_TIME).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Removes everything that is not compared.
fn compared(mut object: Value) -> Value {
    let mut kept = Map::new();
    for field in ["data", "binaryData", "type", "immutable"] {
        if let Some(value) = object.get_mut(field) {
            kept.insert(field.to_owned(), value.take());
        }
    }
    Value::Object(kept)
}

/// Reads the hub's objects in the namespaces of the sources.
async fn on_hub(hub: &Cluster, found: &ReadAnnotations) -> anyhow::Result<Objects> {
    let namespaces: BTreeSet<&str> = found
        .requests
        .iter()
        .map(|request| request.source.namespace.as_str())
        .collect();
    let mut all = Objects::new();
    for namespace in namespaces {
        for (resource, api) in READ {
            let path = format!("{api}/namespaces/{namespace}/{resource}");
            add(
                &mut all,
                resource,
                hub.metadata(&format!("list {resource} of {namespace}"), &path)
                    .await?,
            );
        }
    }
    Ok(all)
}

async fn not_on_hub(
    hub: &Cluster,
    found: &ReadAnnotations,
    bodies: &ObjectContents,
) -> anyhow::Result<BTreeSet<Id>> {
    let sources: BTreeSet<Id> = found
        .requests
        .iter()
        .map(|request| request.source.clone())
        .collect();
    let there = content(hub, sources.clone()).await?;
    Ok(sources
        .into_iter()
        .filter(|id| there.get(id) != bodies.get(id))
        .collect())
}

/// Finds the running copiers, as far as the user may read them.
async fn copiers(read: &Cluster) -> BTreeMap<Copier, Vec<(String, String, Option<String>)>> {
    let mut found: BTreeMap<Copier, Vec<_>> = BTreeMap::new();
    let deployments: Vec<Deployment> = read
        .list("list Deployments", "/apis/apps/v1/deployments")
        .await
        .unwrap_or_default();
    for deployment in &deployments {
        let metadata = &deployment.metadata;
        let spec = deployment.spec.as_ref();
        let pod = spec.and_then(|spec| spec.template.spec.as_ref());
        for container in pod.iter().flat_map(|pod| &pod.containers) {
            let image = container.image.as_deref().unwrap_or_default();
            let Some(copier) = Copier::KNOWN.into_iter().find(|one| one.runs(image)) else {
                continue;
            };
            let annotations = metadata.annotations.as_ref();
            let release = annotations.and_then(|all| all.get("meta.helm.sh/release-name"));
            // The author of the Deployment chose it, and it becomes a part of a command.
            let release = release.filter(|release| is_subdomain(release)).cloned();
            found.entry(copier).or_default().push((
                metadata.namespace.clone().unwrap_or_default(),
                metadata.name.clone().unwrap_or_default(),
                release,
            ));
        }
    }
    found
}
