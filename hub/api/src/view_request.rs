//! The requests of the view API: create-only objects, whose answer is in the status. Nothing is
//! stored.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CopyTarget, ReturnedField};

/// What a plan is about: a manifest or a saved object of the namespace.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "RulePlan",
    plural = "ruleplans",
    singular = "ruleplan",
    namespaced,
    status = "RulePlanStatus",
    derive = "PartialEq",
    doc = "A RulePlan is a request: create it, and its status has what a DistributionRule or ManifestBundle of this namespace would do. Nothing is changed or stored."
)]
#[serde(rename_all = "camelCase")]
pub struct RulePlanSpec {
    /// The manifest of a DistributionRule or ManifestBundle of this namespace. Absent: the saved object with `kind` and
    /// `name` is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "manifest")]
    pub object: Option<Value>,
    /// DistributionRule or ManifestBundle; empty is DistributionRule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The name of a saved object of this namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Manifests of ManifestBundles that the plan of a rule assumes to be saved. At most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "manifests")]
    pub bundles: Vec<Value>,
    /// How the plan is made.
    #[serde(flatten)]
    pub options: PlanOptions,
}

/// What a plan is about: a manifest or a saved object without a namespace.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "ClusterRulePlan",
    plural = "clusterruleplans",
    singular = "clusterruleplan",
    status = "RulePlanStatus",
    derive = "PartialEq",
    doc = "A ClusterRulePlan is a request: create it, and its status has what a ClusterDistributionRule, DistributionGrant or MemberCluster would change. Nothing is changed or stored."
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRulePlanSpec {
    /// The manifest of a ClusterDistributionRule, DistributionGrant or MemberCluster. Absent: the saved object with
    /// `kind` and `name` is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "manifest")]
    pub object: Option<Value>,
    /// ClusterDistributionRule, DistributionGrant or MemberCluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The name of a saved object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Manifests of ManifestBundles that the plan of a rule assumes to be saved. At most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "manifests")]
    pub bundles: Vec<Value>,
    /// How the plan is made.
    #[serde(flatten)]
    pub options: PlanOptions,
}

/// How a plan is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanOptions {
    /// Whether agents try each write at their API servers as a dry run.
    #[serde(default)]
    pub dry_run: bool,
    /// Whether the paths in which copies would change are listed.
    #[serde(default)]
    pub diff: bool,
    /// Whether the plan is about the deletion of the saved object.
    #[serde(default)]
    pub delete: bool,
}

/// The most bundles that the plan of a rule assumes to be saved.
pub const PLANNED_BUNDLES: usize = 20;

/// The schema of any manifest.
fn manifest(_: &mut schemars::SchemaGenerator) -> Schema {
    Schema::try_from(any_manifest()).expect("a schema is an object")
}

/// The schema of the manifests of bundles.
fn manifests(_: &mut schemars::SchemaGenerator) -> Schema {
    let schema = json!({"type": "array", "items": any_manifest(), "maxItems": PLANNED_BUNDLES});
    Schema::try_from(schema).expect("a schema is an object")
}

fn any_manifest() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// What would change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RulePlanStatus {
    /// Whether the planned object is saved.
    #[serde(default)]
    pub exists: bool,
    /// Sentences for a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The rules: the planned one, or those that change with a DistributionGrant, MemberCluster or ManifestBundle.
    #[serde(default)]
    pub rules: Vec<PlannedRule>,
    /// How many more rules change: there are too many, or the user may not read them.
    #[serde(default)]
    pub more_rules: i64,
}

/// What one rule would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRule {
    /// DistributionRule or ClusterDistributionRule.
    pub kind: String,
    /// The namespace of the rule; empty for a ClusterDistributionRule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the rule.
    pub name: String,
    /// How many sources would be sent.
    #[serde(default)]
    pub sent: i64,
    /// Whether some sources could not be read; the notes name the scopes.
    #[serde(default)]
    pub incomplete: bool,
    /// Sentences for a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The selected sources that would not be sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<PlannedSource>,
    /// The member clusters of the rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<PlannedCluster>,
    /// The outcome of each copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<PlannedCopy>,
}

/// A source that a rule selects and that would not be sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedSource {
    /// The source, as resource/namespace/name, or resource/name without a namespace.
    pub source: String,
    /// Refused, Unread, or why it is withheld: Ambiguous, Name, Transform, Variable, Value, Object.
    pub state: String,
    /// A sentence for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The member cluster; empty: all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
}

/// A member cluster of a planned rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCluster {
    /// The name.
    pub name: String,
    /// Answered, or why its agent did not answer: NotConnected, NotAccepted, Leaving, NotGranted, Unknown, Diverged,
    /// Idle, Busy, NotAsked, NoAnswer, TooLarge, Unanswered.
    pub state: String,
    /// A sentence for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The wave of a rollout; 0: without one.
    #[serde(default)]
    pub wave: i64,
    /// Copies without an entry.
    #[serde(default)]
    pub more: i64,
}

/// The outcome of a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCopy {
    /// The member cluster.
    pub cluster: String,
    /// The copy, as resource/namespace/name, or resource/name without a namespace.
    pub copy: String,
    /// The kind of the copy; empty if the hub does not know the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The source, as resource/namespace/name, or resource/name without a namespace.
    pub source: String,
    /// create, change, unchanged, takeOver, adoptIfEqual, remove, retain, handOver, blocked, wait, noop, conflict,
    /// denied, invalid, forbidden or refused.
    pub verdict: String,
    /// Why, in CamelCase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What would change, as `+ PATH`, `~ PATH` or `- PATH`. Never a value of a Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diff: Vec<String>,
}

/// The copy that is explained.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "CopyExplanation",
    plural = "copyexplanations",
    singular = "copyexplanation",
    namespaced,
    status = "CopyExplanationStatus",
    derive = "PartialEq",
    doc = "A CopyExplanation is a request: create it, and its status has where one copy comes from, or why it does not exist. It names the rules that the user may read, in any namespace. Nothing is stored."
)]
#[serde(rename_all = "camelCase")]
pub struct CopyExplanationSpec {
    /// The name of the MemberCluster.
    pub cluster: String,
    /// The copy in the member cluster.
    pub target: CopyTarget,
}

/// Where a copy comes from, or why it does not exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyExplanationStatus {
    /// The state of the member cluster, as a sentence.
    pub cluster: String,
    /// Whether its agent has answered.
    pub answered: bool,
    /// Ready, Missing, Terminating or Closed: the namespace, as the agent sees it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The rules that select the copy, or nearly do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ExplainedRule>,
    /// The object in the member cluster; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<ExplainedObject>,
    /// The number of further rules, which the user may not read.
    #[serde(default)]
    pub hidden: i64,
}

/// A rule about a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedRule {
    /// DistributionRule or ClusterDistributionRule.
    pub kind: String,
    /// The namespace of the rule; empty for a ClusterDistributionRule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the rule.
    pub name: String,
    /// The source, as resource/namespace/name, or resource/name without a namespace.
    pub source: String,
    /// The bundle with the manifest that the source is; empty for other sources.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bundle: String,
    /// Applied, UnderWay, Failed, Waiting, Drifted, Removing or PruneRequested, as the agent reports. Otherwise why the
    /// hub does not send the copy: ClusterNotChosen, ClusterNotGranted, NamespaceNotChosen, NotGranted, Suspended, DryRun,
    /// Cordoned, RollingOut, RenderError, Refused, Unread, Deleted, NotConfirmed if it is not decided, sent or confirmed yet,
    /// or NotReported if only the agent has its state. Reverted: as before a failed change.
    pub state: String,
    /// A sentence for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The revision of the desired content; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// The fields of the copy that differ from the source by the rule, or are left to other writers; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<ExplainedField>,
}

/// A field of a copy that its rule shapes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedField {
    /// The field of the copy, as a JSON pointer.
    pub field: String,
    /// The field of the rule, such as `spec.overrides[0].mergePatch`.
    pub by: String,
}

/// An object in a member cluster, as its agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedObject {
    /// Whether it is a copy of Runnel.
    pub ours: bool,
    /// Whether no written field has changed.
    pub intact: bool,
    /// The rule for which it was written, if the user may read it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Its source, as resource/namespace/name, or resource/name without a namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The revision of its content.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// When it was last applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Time>,
    /// Its uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// What it reports of itself: Current, InProgress or Failed; empty if it has no health.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health: String,
    /// Its message about its health; empty if it is current.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health_message: String,
    /// The fields in `spec.feedback` of its rule that it has, if the user may read the rule; at most 8. Secrets have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<ReturnedField>,
}

/// The rule whose blocked removals are listed.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "view.runnel.dev",
    version = "v1alpha1",
    kind = "RemovalReview",
    plural = "removalreviews",
    singular = "removalreview",
    namespaced,
    status = "RemovalReviewStatus",
    derive = "PartialEq",
    doc = "A RemovalReview is a request: create it, and its status has every removal of one rule that waits for approval, with the digest that approves exactly these. Nothing is changed or stored."
)]
#[serde(rename_all = "camelCase")]
pub struct RemovalReviewSpec {
    /// DistributionRule, of the namespace of the request, or ClusterDistributionRule.
    pub kind: String,
    /// The name of the rule.
    pub name: String,
    /// How many removals to skip: those of the pages before. The digest tells whether all pages are of one set.
    #[serde(default)]
    pub skip: u32,
}

/// The removals of a rule that wait for approval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovalReviewStatus {
    /// The value of the annotation runnel.dev/approve that approves exactly this set; empty if nothing waits.
    #[serde(default)]
    pub digest: String,
    /// The number of copies in the set, by the agents' reports.
    #[serde(default)]
    pub copies: i64,
    /// The removals, at most 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<BlockedRemoval>,
    /// How many removals of the set follow.
    #[serde(default)]
    pub remaining: i64,
}

/// One removal that waits for approval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedRemoval {
    /// Rule: all copies of the rule. Cluster: all in one cluster. Kind: those of one kind in one cluster. Copy and Name:
    /// copies of a source under a former name, in one cluster or in all. Source: the copies of a source in all clusters.
    /// Prune: copies in one cluster, in namespaces that are no longer targets.
    pub scope: String,
    /// The member cluster; empty: all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// The source as resource/namespace/name, with ` as NAME` if its copies have another name; the resource of a Kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// Of Prune: the number of copies, by the agent's report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<i64>,
    /// Of Prune: the first of the namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use runnel_proto::closed_list::{ExplainedState, Verdict};

    use super::*;

    #[test]
    fn descriptions_have_all_words_of_the_closed_lists() {
        let words_of = |schema: Schema, field: &str| {
            let pointer = format!("/properties/{field}/description");
            let description = schema.as_value().pointer(&pointer);
            let text = description.and_then(Value::as_str).unwrap_or_default();
            text.split(|c: char| !c.is_ascii_alphabetic())
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
        };
        let known = words_of(schemars::schema_for!(PlannedCopy), "verdict");
        for verdict in Verdict::all() {
            assert!(known.contains(verdict.as_str()), "{verdict}: {known:?}");
        }
        let known = words_of(schemars::schema_for!(ExplainedRule), "state");
        for state in ExplainedState::all() {
            assert!(known.contains(state.as_str()), "{state}: {known:?}");
        }
    }
}
