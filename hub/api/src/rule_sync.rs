//! The request of the view API for whether the hub has observed the newest version of a rule and of
//! everything that it selects.
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The DistributionRule that a sync is about.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "RuleSync",
    plural = "rulesyncs",
    singular = "rulesync",
    namespaced,
    status = "RuleSyncStatus",
    derive = "PartialEq",
    doc = "A RuleSync is a request: create it, and the hub lists what a DistributionRule of this namespace selects and waits some seconds until it has observed the listed versions. Nothing is stored."
)]
#[serde(rename_all = "camelCase")]
pub struct RuleSyncSpec {
    /// The name of the DistributionRule.
    pub rule: String,
}

/// The ClusterDistributionRule that a sync is about.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "ClusterRuleSync",
    plural = "clusterrulesyncs",
    singular = "clusterrulesync",
    status = "RuleSyncStatus",
    derive = "PartialEq",
    doc = "A ClusterRuleSync is a request: create it, and the hub lists what a ClusterDistributionRule selects and waits some seconds until it has observed the listed versions. Nothing is stored."
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRuleSyncSpec {
    /// The name of the ClusterDistributionRule.
    pub rule: String,
}

/// What the hub has observed of a rule and its sources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleSyncStatus {
    /// Whether the hub has observed the rule and everything that it selects, as the API server had
    /// them when the request was created. Deliveries that are ready and newest have that then.
    pub synced: bool,
    /// The generation of the rule at the API server.
    pub generation: i64,
    /// The number of objects that the rule needs, as the API server lists them.
    #[serde(default)]
    pub sources: i64,
    /// Objects that the hub has not observed yet; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<UnobservedObject>,
    /// The number of objects that the hub has not observed yet.
    #[serde(default)]
    pub pending_count: i64,
}

/// An object that the hub has not observed yet as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnobservedObject {
    /// The object, as resource/namespace/name.
    pub object: String,
    /// A sentence for a person.
    pub message: String,
}
