//! `kubectl runnel import`: reads what other copiers do in a cluster, and prints equivalent rules.
//! It changes nothing.
//!
//! Those copiers work inside one cluster. So the cluster that is read has the copies, and it is the
//! member of the rules: the one whose `MemberCluster` has its uid, or those that `--cluster` names.
//! The rules read their sources on the hub. If hub and member are one cluster, the sources exist
//! there already; otherwise the output names the missing ones.
pub mod annotations;
mod choice;
mod kinds;
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
use runnel_hub_core::plan::{Origin, content_of};
use runnel_proto::model::{Kind, Kinds, is_subdomain};
use serde_json::{Map, Value};

use self::annotations::{Copier, Id, ObjectMetadata, Objects, ReadAnnotations};
use self::choice::NamespaceLabels;
use self::labeled::LabelCopier;
use self::report::ReportContext;
use self::rules::{ImportTarget, ObjectContents};
use super::access::Cluster;
use super::objects::{member_name, member_status};
use super::{CommandContext, args, ended, join, print, read_cluster, usage};

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
    let (served, on_hub_served) = match &label {
        Some(given) => {
            let served = kinds::served(&read, &given.resources).await?;
            kinds::check(&given.resources, &served, &read.place.to_string())?;
            (served, kinds::served(&hub, &given.resources).await?)
        }
        None => (kinds::copied(), kinds::copied()),
    };
    let (objects, unread) = objects(&read, &served).await?;
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
        return Err(ended(super::FAILED, nothing(&read, label.as_ref())));
    }
    let bodies = bodies((&read, &served), &objects, &found, &places).await?;
    let mut not_on_hub = if is_hub {
        BTreeSet::new()
    } else {
        not_on_hub((&hub, &on_hub_served), &found, &bodies).await?
    };
    let uncopied = match &label {
        Some(given) if !is_hub => {
            let on_hub = on_hub((&hub, &on_hub_served), &found).await?;
            labeled::labeled_not_copied(&on_hub, given, &found)
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
    let is_read_there = |id: &Id| {
        let mut rules = import.rules.iter();
        rules.any(|rule| rule.bundle.is_none() && rule.sources.contains(id))
    };
    not_on_hub.retain(is_read_there);
    let around = ReportContext {
        read: named("kubectl --context", &read),
        helm: named("helm --kube-context", &read),
        hub: named("kubectl --context", &hub),
        is_hub,
        copiers: copiers(&read).await,
        not_on_hub,
        unread,
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

fn nothing(read: &Cluster, label: Option<&LabelCopier>) -> String {
    let place = &read.place;
    match label {
        Some(given) if given.resources.is_empty() => format!(
            "{place} has no ConfigMap and no Secret with that label outside the namespaces of --to: for other kinds give \
             --resources"
        ),
        Some(given) => format!(
            "{place} has no {} with that label outside the namespaces of --to",
            given.resources.join(" or ")
        ),
        None => format!(
            "{place} has no object with annotations of kubernetes-replicator, kubernetes-reflector or config-syncer: choose \
             the cluster in which they run with --context; for an operator that copies what has a label give --label \
             KEY=VALUE and --to NAMESPACES"
        ),
    }
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

/// Reads the metadata of everything that may matter. Kinds that only one copier copies are read if the user may; returns
/// why others are not.
async fn objects(read: &Cluster, served: &Kinds) -> anyhow::Result<(Objects, Vec<String>)> {
    let (mut all, mut unread) = (Objects::new(), Vec::new());
    for kind in served.iter() {
        let found = read
            .metadata(&format!("list {kind}"), &kinds::path(kind, None))
            .await;
        match found {
            Ok(found) => add(&mut all, kind, found),
            Err(error) if kinds::replicated(&kind.resource).is_some() => {
                unread.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok((all, unread))
}

fn add(all: &mut Objects, kind: &Kind, found: Vec<ObjectMeta>) {
    for metadata in found {
        let marked = ObjectMetadata {
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        };
        let id = Id {
            resource: kind.to_string(),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
        };
        all.insert(id, marked);
    }
}

/// Reads the content of sources, and of the objects under the names of copies.
async fn bodies(
    read: (&Cluster, &Kinds),
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

/// Reads the content of objects. Those of kinds that the cluster does not serve do not exist there.
async fn content(
    (of, served): (&Cluster, &Kinds),
    wanted: BTreeSet<Id>,
) -> anyhow::Result<ObjectContents> {
    let asked = stream::iter(wanted).map(async |id| {
        let Some(kind) = served.preferred(&id.resource) else {
            return Ok(None);
        };
        let path = format!("{}/{}", kinds::path(kind, Some(&id.namespace)), id.name);
        let found: Option<Value> = of.get(&format!("read {id}"), &path).await?;
        let content = found.and_then(|object| compared(kind, object));
        anyhow::Ok(content.map(|content| (id, content)))
    });
    let found: Vec<Option<(Id, Value)>> = asked.buffer_unordered(AT_A_TIME).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Returns the fields that are compared; `None` for an object that is never distributed.
fn compared(kind: &Kind, mut object: Value) -> Option<Value> {
    let fields: Map<String, Value> = if kind.content.is_owned() {
        content_of(kind, &object, Origin::HubCluster)
            .ok()?
            .fields
            .into_iter()
            .collect()
    } else {
        let fields = kind.content.fields.iter();
        fields
            .filter_map(|field| Some(((*field).to_owned(), object.get_mut(field)?.take())))
            .collect()
    };
    Some(Value::Object(fields))
}

/// Reads the hub's objects in the namespaces of the sources.
async fn on_hub(
    (hub, served): (&Cluster, &Kinds),
    found: &ReadAnnotations,
) -> anyhow::Result<Objects> {
    let namespaces: BTreeSet<&str> = found
        .requests
        .iter()
        .map(|request| request.source.namespace.as_str())
        .collect();
    let mut all = Objects::new();
    for namespace in namespaces {
        for kind in served.iter() {
            let path = kinds::path(kind, Some(namespace));
            let action = format!("list {kind} of {namespace}");
            add(&mut all, kind, hub.metadata(&action, &path).await?);
        }
    }
    Ok(all)
}

async fn not_on_hub(
    hub: (&Cluster, &Kinds),
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
