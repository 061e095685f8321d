//! Reads the state of a cluster: workloads, rules, members, and the addresses of the hub.
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Pod};
use runnel_api::{MemberCluster, MemberRecord, PendingRemoval};
use runnel_transport::identity::{Fingerprint, JoinString};
use runnel_transport::tls::{ConnectError, Connector, join_config};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::access::Cluster;
use super::diagnose::{Reachability, Workload, has_waiting_container, reach_of};
use super::helm::HUB;
use super::hints::error_chain;
use super::objects::{Rule, member_name};
use super::{FAILED, ended};

/// The path of our API group.
pub const API: &str = "/apis/runnel.dev/v1alpha1";
/// Time limit of an address's answer.
const ANSWER: Duration = Duration::from_secs(5);

/// The path of a `MemberCluster`.
pub fn member_path(name: &str) -> String {
    format!("{API}/memberclusters/{name}")
}

/// The path of a member's record.
pub fn record_path(name: &str) -> String {
    format!("{API}/memberrecords/{name}")
}

/// The record of a member, if there is one for exactly this `MemberCluster`.
///
/// # Errors
/// As [`Cluster::get`].
pub async fn record(hub: &Cluster, member: &MemberCluster) -> anyhow::Result<Option<MemberRecord>> {
    let path = record_path(member_name(member));
    let record: Option<MemberRecord> = hub.get("read the MemberRecord", &path).await?;
    Ok(record.filter(|record| is_of(record, member)))
}

/// Changes the removals that wait for a member. A record that the hub has changed meanwhile is refused.
///
/// # Errors
/// As [`Cluster::get`], and those of `change`, with the name of the member.
pub async fn change_removals(
    hub: &Cluster,
    name: &str,
    change: impl FnOnce(Vec<PendingRemoval>) -> Result<Vec<PendingRemoval>, String>,
) -> anyhow::Result<()> {
    let path = record_path(name);
    let record: Option<MemberRecord> = hub.get("read the MemberRecord", &path).await?;
    let (metadata, spec) = record
        .map(|record| (record.metadata, record.spec))
        .unwrap_or_default();
    let removals =
        change(spec.pending_removals).map_err(|text| ended(FAILED, format!("{name}: {text}")))?;
    let patch = json!({
        "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
        "spec": {"pendingRemovals": removals},
    });
    hub.patch("write the MemberRecord", &path, patch).await?;
    Ok(())
}

/// Whether a record is that of a `MemberCluster`.
pub fn is_of(record: &MemberRecord, member: &MemberCluster) -> bool {
    record.metadata.name == member.metadata.name
        && Some(&record.spec.member_uid) == member.metadata.uid.as_ref()
}

/// The path of a rule.
pub fn rule_path(rule: &Rule) -> String {
    let (namespace, name) = (rule.namespace(), rule.name());
    match rule {
        Rule::DistributionRule(_) => {
            format!("{API}/namespaces/{namespace}/distributionrules/{name}")
        }
        Rule::ClusterDistributionRule(_) => format!("{API}/clusterdistributionrules/{name}"),
    }
}

/// The path of the only `Fleet`.
pub const FLEET_PATH: &str = "/apis/runnel.dev/v1alpha1/fleets/default";

/// All members.
///
/// # Errors
/// As [`Cluster::list`].
pub async fn members<T: DeserializeOwned>(hub: &Cluster) -> anyhow::Result<Vec<T>> {
    labeled_members(hub, None).await
}

/// The members with these labels.
///
/// # Errors
/// As [`Cluster::list`].
pub async fn labeled_members<T: DeserializeOwned>(
    hub: &Cluster,
    labels: Option<&str>,
) -> anyhow::Result<Vec<T>> {
    let path = format!("{API}/memberclusters{}", selector(labels));
    hub.list("list the members", &path).await
}

/// Returns the query of a list for a label selector.
fn selector(labels: Option<&str>) -> String {
    let query = |labels| {
        let mut query = form_urlencoded::Serializer::new("?".to_owned());
        query.append_pair("labelSelector", labels).finish()
    };
    labels.map(query).unwrap_or_default()
}

/// The Lease of the leader, if there is one.
///
/// # Errors
/// As [`Cluster::get`].
pub async fn lease(hub: &Cluster, namespace: &str) -> anyhow::Result<Option<Lease>> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{HUB}");
    hub.get("read the Lease of the leader", &path).await
}

/// The rules of a namespace; without one, those of all namespaces and `ClusterDistributionRule`s.
///
/// # Errors
/// As [`Cluster::list`].
pub async fn rules<T: DeserializeOwned>(
    hub: &Cluster,
    namespace: Option<&str>,
) -> anyhow::Result<Vec<T>> {
    labeled_rules(hub, namespace, None).await
}

/// As [`rules`], with these labels.
///
/// # Errors
/// As [`Cluster::list`].
pub async fn labeled_rules<T: DeserializeOwned>(
    hub: &Cluster,
    namespace: Option<&str>,
    labels: Option<&str>,
) -> anyhow::Result<Vec<T>> {
    let selector = selector(labels);
    let Some(namespace) = namespace else {
        let path = format!("{API}/distributionrules{selector}");
        let mut all = hub.list("list the rules", &path).await?;
        let path = format!("{API}/clusterdistributionrules{selector}");
        all.extend(hub.list("list the ClusterDistributionRules", &path).await?);
        return Ok(all);
    };
    let path = format!("{API}/namespaces/{namespace}/distributionrules{selector}");
    hub.list(&format!("list the rules of {namespace}"), &path)
        .await
}

/// Reads a Deployment of Runnel with its pods, Events and log. Objects that the user may not read
/// are skipped.
///
/// # Errors
/// If the Deployment cannot be read.
pub async fn workload(on: &Cluster, name: &str, namespace: &str) -> anyhow::Result<Workload> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    let deployment: Option<Deployment> = on
        .get(&format!("read the Deployment {name}"), &path)
        .await?;
    if deployment.is_none() {
        return Ok(Workload::default());
    }
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io%2Fname%3D{name}"
    );
    let pods: Vec<Pod> = on.list("list pods", &path).await.unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let mut events: Vec<Event> = on.list("list events", &path).await.unwrap_or_default();
    events.retain(|event| {
        let involved = event.involved_object.name.as_deref();
        involved.is_some_and(|involved| involved.starts_with(name))
    });
    let mut log = Vec::new();
    if let Some(pod) = pods.last() {
        let is_waiting = has_waiting_container(pod);
        let pod = pod.metadata.name.as_deref().unwrap_or_default();
        log = on.log(namespace, pod, is_waiting).await;
        if log.is_empty() {
            log = on.log(namespace, pod, !is_waiting).await;
        }
    }
    Ok(Workload {
        deployment,
        pods,
        events,
        log,
    })
}

/// Checks each address of a join string from this machine.
pub async fn reach(join: &JoinString) -> Vec<(String, Reachability)> {
    let asked = join
        .addresses
        .iter()
        .map(|address| one(address, join.pin, &join.hub));
    let answers = futures::future::join_all(asked).await;
    join.addresses.iter().cloned().zip(answers).collect()
}

/// Checks one address for the hub with this id and CA pin.
pub async fn one(address: &str, pin: Fingerprint, hub: &str) -> Reachability {
    let config = match join_config(pin, hub) {
        Ok(config) => config,
        Err(error) => return Reachability::Other(error.to_string()),
    };
    match tokio::time::timeout(ANSWER, Connector::new(config).connect(address)).await {
        Err(_) => Reachability::Timeout,
        Ok(Ok(_)) => Reachability::Hub,
        Ok(Err(ConnectError::Tls { source, .. })) => reach_of(&source.to_string(), true),
        Ok(Err(error)) => reach_of(&error_chain(&error), false),
    }
}
