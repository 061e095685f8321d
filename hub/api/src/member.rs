//! Member clusters: the targets of copies.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, Window, limits, schema};

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

/// The state of the cluster. It has no live counts: those are metrics.
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
    /// The keys of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Identity")]
    pub identity: Option<Identity>,
    /// Tokens that were redeemed, and by which key, or tried with wrong secrets: a token is taken once, and again only
    /// from the same key. At most 16, each at least until it expires: no new one is taken before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("tokenHash", limits::TOKENS))]
    pub tokens: Vec<UsedToken>,
    /// Rules that were deleted while the cluster could not be reached, and what happens to their
    /// copies when it returns. At most 1000; the copies of further rules are retained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("ruleUid", limits::PENDING_REMOVALS))]
    pub pending_removals: Vec<PendingRemoval>,
}

/// A certificate of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// Expiry of the certificate.
    pub expires_at: Time,
}

/// The keys of an agent. A certificate for any other key is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// At most 4: during a renewal the old and the new key are both valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("fingerprint", limits::KEYS))]
    pub keys: Vec<KeyRecord>,
    /// Keys that were retired when the agent first used a newer one. A client with a retired key is
    /// refused: it has a stolen or restored copy of the key. At most 16, the newest; a new join
    /// clears the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("fingerprint", limits::RETIRED_KEYS))]
    pub retired: Vec<RetiredKey>,
}

/// A retired key of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetiredKey {
    /// The fingerprint, as in `keys`.
    #[schemars(transform = schema::sha256("fingerprint"))]
    pub fingerprint: String,
    /// When its last certificate expires.
    pub expires_at: Time,
    /// When a client first used it after it was retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub seen_at: Option<Time>,
}

/// One key of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRecord {
    /// `sha256:` and the SHA-256 of the public key (its SubjectPublicKeyInfo) in lowercase hexadecimal digits.
    #[schemars(transform = schema::sha256("fingerprint"))]
    pub fingerprint: String,
    /// When the newest certificate for this key was issued.
    pub issued_at: Time,
    /// Expiry of the certificate for this key.
    pub expires_at: Time,
    /// The CA of the hub that signed it: `sha256:` and the SHA-256 of the CA's certificate. The hub keeps a CA that was
    /// replaced until no member has a certificate of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::sha256("ca"))]
    pub ca: Option<String>,
}

/// A token that was redeemed, or tried with wrong secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedToken {
    /// The hash of the token, as in `spec.join`.
    #[schemars(transform = schema::sha256("tokenHash"))]
    pub token_hash: String,
    /// The expiry of the token by `spec.join`; the entry is stored until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub expires_at: Option<Time>,
    /// The fingerprint of the key that redeemed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::sha256("keyFingerprint"))]
    pub key_fingerprint: Option<String>,
    /// Number of attempts with a wrong secret before the redemption; after five the token is
    /// invalid.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wrong_secrets: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &i32) -> bool {
    *count == 0
}

/// A deleted rule whose copies in this cluster are not removed or retained yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingRemoval {
    /// The uid of the rule.
    #[schemars(transform = schema::text(128))]
    pub rule_uid: String,
    /// The policy for its copies.
    pub deletion_policy: DeletionPolicy,
    /// The rule: `namespace/name`, or `name` for a ClusterDistributionRule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(transform = schema::text(512))]
    pub rule: String,
}
