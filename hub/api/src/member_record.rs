//! The records of member clusters: what the hub must not lose with a status.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, limits, schema};

/// The record of a member.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "MemberRecord",
    doc = "What the hub must remember of the MemberCluster with the same name: keys, used tokens, and removals that wait. The hub alone writes it; do not edit it. It counts only for the MemberCluster whose uid it names, and is deleted with it. Without its record a cluster has no keys: it must join again.",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct MemberRecordSpec {
    /// The uid of the MemberCluster. For one with another uid, such as one that was deleted and created again, the record
    /// does not count.
    #[schemars(transform = schema::text(128))]
    pub member_uid: String,
    /// The keys of the agent.
    #[serde(default, skip_serializing_if = "Identity::is_empty")]
    pub identity: Identity,
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

/// The record of a member that has none.
pub static NO_RECORD: MemberRecordSpec = MemberRecordSpec {
    member_uid: String::new(),
    identity: Identity {
        keys: Vec::new(),
        retired: Vec::new(),
    },
    tokens: Vec::new(),
    pending_removals: Vec::new(),
};

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

impl Identity {
    /// Whether there is no key, valid or retired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.retired.is_empty()
    }
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
