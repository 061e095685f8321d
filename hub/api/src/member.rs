//! Member clusters: the targets of copies.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Window, limits, schema};

/// The membership of a cluster.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "MemberCluster",
    doc = "A cluster that gets copies. Rules select it by its labels, which the hub's administrator chooses. Its name is a DNS name of at most 63 characters. Deleting it revokes the cluster's certificates at once; a cluster that leaves in order has leaving set first.",
    shortname = "member",
    category = "runnel",
    status = "MemberClusterStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct MemberClusterSpec {
    /// Whether the hub accepts this cluster. False is a revocation: the hub disconnects the agent
    /// within a second and sends nothing more. The cluster's own policy (`policy.onRevoke`) decides
    /// whether its copies stay.
    #[serde(default = "yes")]
    pub accepted: bool,
    /// Whether the cluster is cordoned: the hub sends no new copies, content or terms until it is
    /// uncordoned. Its agent still corrects drift, and removals of deleted or deselected sources
    /// are carried out.
    #[serde(default)]
    pub cordoned: bool,
    /// Whether the cluster is leaving: its copies are removed or retained by each rule's
    /// deletionPolicy, and no new ones are sent. Delete the object when its condition Drained is
    /// True. The hub does not delete it, because Git would create it again. To remove a dead
    /// cluster, delete the object at once.
    #[serde(default)]
    pub leaving: bool,
    /// The windows in which rollouts may send a change to the cluster, at most 8; they add up. A change reaches the cluster while a
    /// window of the rule and a window of the cluster are open. Rollbacks, removals, and rules without spec.rollout do not wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::WINDOWS))]
    pub windows: Vec<Window>,
    /// The join that is allowed now, made by `runnel-hub token create`, or declared in Git together with the agent's Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Join")]
    pub join: Option<Join>,
}

impl Default for MemberClusterSpec {
    /// The default of the API server for an empty spec.
    fn default() -> Self {
        Self {
            accepted: true,
            cordoned: false,
            leaving: false,
            windows: Vec::new(),
            join: None,
        }
    }
}

fn yes() -> bool {
    true
}

/// An allowed join. The token itself is never stored on the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Join {
    /// `sha256:` and the SHA-256 of the token in lowercase hexadecimal digits.
    #[schemars(transform = schema::sha256("join.tokenHash"))]
    pub token_hash: String,
    /// The first part of the token, which names it and is no secret. With it, five wrong secrets
    /// burn the token; without it, wrong secrets cannot be distinguished from wrong tokens and are
    /// not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::token_id)]
    pub token_id: Option<String>,
    /// The expiry of the token, in RFC 3339, such as 2026-01-31T12:00:00Z.
    pub expires_at: Time,
}

/// The state of the cluster. It has no live counts: those are metrics. Keys, used tokens and pending removals are in the
/// MemberRecord with the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberClusterStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// See the reference of conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::conditions)]
    pub conditions: Vec<Condition>,
    /// The certificate that the agent last connected with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Certificate")]
    pub certificate: Option<Certificate>,
    /// The version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(128))]
    pub agent_version: Option<String>,
    /// The version of the cluster's API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(128))]
    pub kubernetes_version: Option<String>,
    /// The uid of the cluster's `kube-system` namespace, which identifies a cluster independent of
    /// its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(128))]
    pub cluster_uid: Option<String>,
    /// Rules that this hub does not have and of which the cluster has copies, at most 100. The copies are kept:
    /// `kubectl runnel orphans`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("ruleUid", limits::ORPHANED_RULES))]
    pub orphaned_rules: Vec<OrphanedRule>,
}

/// A rule that this hub does not have and of which a cluster has copies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanedRule {
    /// The uid of the rule, which its copies have in the label `runnel.dev/rule-uid`.
    #[schemars(transform = schema::text(128))]
    pub rule_uid: String,
    /// The rule as the agent knows it: `namespace/name`, `name` for a ClusterDistributionRule, or the uid.
    #[schemars(transform = schema::text(512))]
    pub rule: String,
}

/// A certificate of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// Expiry of the certificate.
    pub expires_at: Time,
}
