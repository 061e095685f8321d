//! Member clusters: the places that copies go to.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, limits, schema};

/// Whether and how a cluster takes part.
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
    /// Whether the cluster is cordoned: it keeps what it has and gets nothing new, neither copies nor changed content
    /// nor changed terms, until it is uncordoned. Its agent still corrects drift, and what is deleted on the hub or
    /// no longer selected is removed there too.
    #[serde(default)]
    pub cordoned: bool,
    /// Whether the cluster leaves: its copies are removed or retained as each rule's deletionPolicy says, and it gets
    /// no new ones. When its condition Drained is True, all of them are removed or retained, and its owner can delete
    /// it. The hub does not, as an object that is declared in Git would come back. To remove a dead cluster, delete
    /// it at once.
    #[serde(default)]
    pub leaving: bool,
    /// The join that is allowed now, made by `runnel-hub token create`, or declared in Git together with the agent's Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Join")]
    pub join: Option<Join>,
}

impl Default for MemberClusterSpec {
    /// As the API server fills in an empty spec.
    fn default() -> Self {
        Self {
            accepted: true,
            cordoned: false,
            leaving: false,
            join: None,
        }
    }
}

fn yes() -> bool {
    true
}

/// One allowed join. The token itself is never stored on the hub.
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
    /// Until when the token is taken, in RFC 3339, such as 2026-01-31T12:00:00Z.
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
    /// When it expires.
    pub expires_at: Time,
}

/// The keys of an agent. A certificate for any other key is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// At most 4: during a renewal the old and the new key both hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("fingerprint", limits::KEYS))]
    pub keys: Vec<KeyRecord>,
    /// Keys that were retired when the agent first used a newer one. A client that uses one of them is refused, and
    /// has a copy that the agent does not have any more. At most 16, the newest; a new join empties the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("fingerprint", limits::RETIRED_KEYS))]
    pub retired: Vec<RetiredKey>,
}

/// A key that an agent gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetiredKey {
    /// As in `keys`.
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
    /// When that certificate expires.
    pub expires_at: Time,
    /// The CA of the hub that signed it: `sha256:` and the SHA-256 of the CA's certificate. The hub keeps a CA that was
    /// replaced until no member has a certificate of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::sha256("authority"))]
    pub authority: Option<String>,
}

/// A token that was redeemed, or tried with wrong secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedToken {
    /// The hash of the token, as in `spec.join`.
    #[schemars(transform = schema::sha256("tokenHash"))]
    pub token_hash: String,
    /// Until when it would be accepted, by `spec.join`; stored until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub expires_at: Option<Time>,
    /// The fingerprint of the key that redeemed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::sha256("keyFingerprint"))]
    pub key_fingerprint: Option<String>,
    /// How often it was tried with a wrong secret before it was redeemed; with five it is burnt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wrong_secrets: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &i32) -> bool {
    *count == 0
}

/// A deleted rule whose copies in this cluster are not removed or released yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingRemoval {
    /// The uid of the rule.
    #[schemars(transform = schema::text(128))]
    pub rule_uid: String,
    /// The policy for its copies.
    pub deletion_policy: DeletionPolicy,
    /// How the rule was called: `namespace/name`, or `name` for a ClusterDistributionRule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(transform = schema::text(512))]
    pub rule: String,
}
