//! The fleet as a whole: limits of removals, and the overview.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PendingApproval, limits, schema};

/// Settings of the fleet.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "Fleet",
    doc = "The fleet as a whole. There is one, named default; the hub makes it. Its spec limits how many copies may be removed at a time, and its status is the overview.",
    status = "FleetStatus",
    category = "runnel",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct FleetSpec {
    /// Limits of removals over all rules, such as those caused by an edit, a label or a grant. A
    /// removal above a limit is blocked, with everything else that the same change would remove,
    /// until a user approves it.
    #[serde(default)]
    pub removal_limit: FleetRemovalLimit,
}

/// Limits of removals over all rules, within a minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetRemovalLimit {
    /// The limit of the fleet. If only one of count and percent is set, it is the limit; where both are set, the larger of
    /// the two counts. If neither is set: the larger of 50 copies and 10 % of all copies, and at most half of them from 4
    /// copies on.
    pub fleet: FleetLimit,
    /// The limit of each member cluster. If only one of count and percent is set, it is the limit; where both are set, the
    /// larger of the two counts. If neither is set: the larger of 25 copies and 20 % of the copies in the cluster, and at
    /// most half of them from 4 copies on.
    pub member: MemberLimit,
    /// Whether deliberate deletes are under the limits: of a rule, of a source, of a literal name out of a list, and of a
    /// member cluster that leaves.
    pub deliberate: Deliberate,
}

/// The fleet's limit of removals at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetLimit {
    /// This many copies. 0 to 1000000000. Where percent is set, too, the larger of the two counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(0, 1_000_000_000))]
    pub count: Option<i64>,
    /// This part of all copies of the fleet, in percent: 0 to 100. Where count is set, too, the larger of the two counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(0, 100))]
    pub percent: Option<i64>,
}

/// A member cluster's limit of removals at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberLimit {
    /// This many copies. 0 to 1000000000. Where percent is set, too, the larger of the two counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(0, 1_000_000_000))]
    pub count: Option<i64>,
    /// This part of all copies in the member cluster, in percent: 0 to 100. Where count is set, too, the larger of the two
    /// counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(0, 100))]
    pub percent: Option<i64>,
}

/// Whether deliberate deletes are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Deliberate {
    /// Deliberate deletes are never blocked.
    #[default]
    Allow,
    /// Deliberate deletes are limited like indirect removals.
    Hold,
}

/// The overview.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetStatus {
    /// Whether every accepted member cluster is connected, every rule is ready, and nothing waits for approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::conditions)]
    pub conditions: Vec<Condition>,
    /// Connected and accepted member clusters, such as `118/120`.
    #[serde(default)]
    #[schemars(transform = schema::text(64))]
    pub clusters: String,
    /// Ready and existing rules, such as `30/31`.
    #[serde(default)]
    #[schemars(transform = schema::text(64))]
    pub rules: String,
    /// Applied and desired copies, such as `9480/9600`.
    #[serde(default)]
    #[schemars(transform = schema::text(64))]
    pub copies: String,
    /// Number of causes with pending removals.
    #[serde(default)]
    pub pending: i64,
    /// Pending approvals by cause, at most 32.
    // Always written: a merge patch clears a list only by an empty one.
    #[serde(default)]
    #[schemars(transform = schema::list(limits::PENDING_CAUSES))]
    pub pending_approvals: Vec<PendingCause>,
}

/// The pending removals of one cause, over all rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingCause {
    /// All of it as one set; its names are those of the first rules.
    #[serde(flatten)]
    pub approval: PendingApproval,
    /// Number of affected rules.
    #[serde(default)]
    pub rules: i64,
}
