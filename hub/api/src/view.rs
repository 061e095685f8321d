//! The objects of the view API `view.runnel.dev/v1alpha1`. The hub computes them from its memory
//! when a client asks. They are not stored, and no client can write them.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule_status::ClusterState;

/// The API group of the views.
pub const VIEW_GROUP: &str = "view.runnel.dev";
/// The version of the view API.
pub const VIEW_VERSION: &str = "v1alpha1";
/// The label of a delivery with the name of its rule.
pub const RULE_LABEL: &str = "view.runnel.dev/rule";
/// The label of a delivery with the name of its member cluster.
pub const CLUSTER_LABEL: &str = "view.runnel.dev/cluster";

/// The rule and the member cluster of a delivery.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "Delivery",
    plural = "deliveries",
    singular = "delivery",
    namespaced,
    status = "DeliveryStatus",
    derive = "PartialEq",
    doc = "A Delivery is the state of one DistributionRule in one member cluster. It is read-only: the hub computes it."
)]
#[serde(rename_all = "camelCase")]
pub struct DeliverySpec {
    /// The name of the DistributionRule, in the same namespace.
    pub rule: String,
    /// The name of the MemberCluster.
    pub cluster: String,
}

/// The cluster rule and the member cluster of a delivery.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "ClusterDelivery",
    plural = "clusterdeliveries",
    singular = "clusterdelivery",
    status = "DeliveryStatus",
    derive = "PartialEq",
    doc = "A ClusterDelivery is the state of one ClusterDistributionRule in one member cluster. It is read-only: the hub computes it."
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDeliverySpec {
    /// The name of the ClusterDistributionRule.
    pub rule: String,
    /// The name of the MemberCluster.
    pub cluster: String,
}

/// The state of a rule in one member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryStatus {
    /// Failed: a copy failed or is unhealthy. Drifted: a copy was changed or deleted there and is not corrected. Unreachable:
    /// the cluster is not connected, and the counts are the last reported ones. Waiting: a namespace does not exist yet.
    /// Progressing: copies are being applied or are not healthy yet. DryRun: the rule is a dry run and would change copies.
    /// Ready: every copy is applied, and healthy if it has a health.
    pub state: ClusterState,
    /// Copies that should exist in the cluster.
    #[serde(default)]
    pub copies: i64,
    /// Copies that equal their source.
    #[serde(default)]
    pub applied: i64,
    /// Copies whose last attempt failed.
    #[serde(default)]
    pub failed: i64,
    /// Copies for namespaces that do not exist yet.
    #[serde(default)]
    pub waiting: i64,
    /// Copies that another client changed or deleted there, and that are left so.
    #[serde(default)]
    pub drifted: i64,
    /// Of a dry run: copies that would be created.
    #[serde(default)]
    pub to_create: i64,
    /// Of a dry run: copies that would be updated, adopted or overwritten.
    #[serde(default)]
    pub to_update: i64,
    /// Of a dry run: copies that would be deleted, or left without marks.
    #[serde(default)]
    pub to_delete: i64,
    /// Copies whose object in the cluster has a health: its own status reports how it is.
    #[serde(default)]
    pub with_health: i64,
    /// Of these, the healthy copies.
    #[serde(default)]
    pub healthy: i64,
    /// The worst reason among the copies, or why the delivery is in this state, in CamelCase.
    #[serde(default)]
    pub reason: String,
    /// A sentence for a person. It never contains a value of a Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whether the cluster has the newest revision of every source, and has applied all copies for namespaces that
    /// exist.
    #[serde(default)]
    pub newest: bool,
    /// Yes: the agent has proved, by a keyed digest, that its copies equal what the hub sends. No: they differ.
    /// NotCompared: there is nothing to compare yet.
    #[serde(default)]
    pub proof: String,
    /// The copies that failed or are unhealthy, the worst first; at most five.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<DeliveryFailure>,
    /// The values of `spec.feedback` of the rule in the first copies, about 4 KiB at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<DeliveryFeedback>,
    /// Ready: whether the state is Ready and the revision is the newest one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<DeliveryCondition>,
}

/// A condition of a delivery, for `kubectl wait`. It has no time, because nothing is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryCondition {
    /// Ready.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// The reason of the delivery.
    pub reason: String,
    /// The message of the delivery.
    #[serde(default)]
    pub message: String,
}

/// A copy that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryFailure {
    /// The copy in the member cluster, as resource/namespace/name, or resource/name without a namespace.
    pub copy: String,
    /// The reason, in CamelCase.
    pub reason: String,
    /// The message of the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A field of a copy, which its rule has returned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryFeedback {
    /// The copy in the member cluster, as resource/namespace/name.
    pub copy: String,
    /// The name in `spec.feedback`.
    pub name: String,
    /// The value.
    #[serde(default)]
    pub value: String,
}

/// A field of a copy, which its rule has returned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReturnedField {
    /// The name in `spec.feedback`.
    pub name: String,
    /// The value.
    #[serde(default)]
    pub value: String,
}

/// A copy of a source in a member cluster.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "Copy",
    root = "ListedCopy",
    plural = "copies",
    singular = "copy",
    namespaced,
    status = "CopyStatus",
    derive = "PartialEq",
    doc = "A Copy is one copy of a DistributionRule in one member cluster, as its agent reports it now. It is read-only."
)]
#[serde(rename_all = "camelCase")]
pub struct CopySpec {
    /// The name of the DistributionRule, in the same namespace.
    pub rule: String,
    /// The name of the MemberCluster.
    pub cluster: String,
    /// The object in the member cluster.
    pub target: CopyTarget,
}

/// A copy of a source in a member cluster, by a cluster rule.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "ClusterCopy",
    root = "ListedClusterCopy",
    plural = "clustercopies",
    singular = "clustercopy",
    status = "CopyStatus",
    derive = "PartialEq",
    doc = "A ClusterCopy is one copy of a ClusterDistributionRule in one member cluster, as its agent reports it now. It is read-only."
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterCopySpec {
    /// The name of the ClusterDistributionRule.
    pub rule: String,
    /// The name of the MemberCluster.
    pub cluster: String,
    /// The object in the member cluster.
    pub target: CopyTarget,
}

/// An object in a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyTarget {
    /// The kind, such as ConfigMap.
    pub kind: String,
    /// The namespace; empty for a kind without namespaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The state of a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyStatus {
    /// Applied: the copy equals its source. UnderWay: the agent is writing it. Failed: the last attempt failed. Waiting:
    /// its namespace does not exist, or the rule is a dry run. Drifted: another client changed it, and the rule tolerates
    /// that. Removing: the agent removes it. PruneRequested: its removal waits for approval.
    pub state: String,
    /// Why, in CamelCase; empty if there is nothing to add.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message of the agent. It never contains a value of a Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The source on the hub, as resource/namespace/name, or resource/name without a namespace. Empty if the rule does not require the copy any more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// When the agent last applied the copy for this rule; absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Time>,
    /// What the object in the cluster reports of itself, by the rules of kstatus. Current: its controller has reached what
    /// its spec requests. InProgress: its controller is at work. Failed: its controller has failed. Empty: it has no health.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health: String,
    /// The message of the object about its health; empty if it is current.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health_message: String,
    /// The values of `spec.feedback` of the rule, as far as the object has the fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<ReturnedField>,
}

/// A member cluster to which the DistributionRules of the namespace may send.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "MemberTarget",
    plural = "membertargets",
    singular = "membertarget",
    namespaced,
    status = "MemberTargetStatus",
    derive = "PartialEq",
    doc = "A MemberTarget is a member cluster to which the DistributionRules of this namespace may send, by its grants. It is read-only. Its labels are those of the MemberCluster."
)]
#[serde(rename_all = "camelCase")]
pub struct MemberTargetSpec {
    /// The name of the MemberCluster.
    pub cluster: String,
}

/// What a namespace may send to a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberTargetStatus {
    /// Whether the agent of the cluster is connected.
    pub connected: bool,
    /// Whether the cluster is cordoned: nothing new is sent.
    pub cordoned: bool,
    /// What the grants of the namespace allow there. They add up.
    #[serde(default)]
    pub grants: Vec<TargetGrant>,
}

/// What one grant allows in a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetGrant {
    /// The kinds that may be sent, as `plural` or `plural.group`.
    pub resources: Vec<String>,
    /// Whether copies may be in every namespace of the cluster.
    #[serde(default)]
    pub all_namespaces: bool,
    /// The namespaces of the cluster that may have copies, by name or glob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The namespaces of the cluster that may have copies, by label, as a selector of kubectl.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace_selector: String,
    /// Whether a rule may have `conflictPolicy: Overwrite`.
    #[serde(default)]
    pub overwrite: bool,
    /// Whether a rule may have `conflictPolicy: AdoptIfEqual`.
    #[serde(default)]
    pub adopt: bool,
    /// Whether a rule may have `createNamespaces: true`.
    #[serde(default)]
    pub create_namespaces: bool,
    /// The most copies that the rules of the namespace may have in the cluster; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_copies: Option<i64>,
    /// The limit of the total size of such copies, in bytes; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<i64>,
}
