//! Rules: the sources, the targets and the terms of a distribution.
use kube_derive::CustomResource;
use runnel_proto::model;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Clusters, Feedback, LabelSelector, Namespaces, Override, Rollout, RuleStatus, Substitute,
    Transform, limits, schema, schema::Item,
};

/// Distributes the selected objects to clusters and namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "DistributionRule",
    doc = "Copies objects of its own namespace, such as ConfigMaps and Secrets, to member clusters, and corrects drift there.",
    namespaced,
    shortname = "drule",
    category = "runnel",
    status = "RuleStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule_spec)]
pub struct DistributionRuleSpec {
    /// The sources in this rule's own namespace. Entries add up: an object is a source if any entry
    /// selects it. 1 to 16 entries.
    #[schemars(transform = schema::list(limits::SOURCES))]
    #[schemars(transform = schema::rule("size(self) > 0", "sources is empty: add an entry with resources and either selector or names"))]
    pub sources: Vec<Source>,
    /// The targets and policies of the copies.
    #[serde(flatten)]
    pub terms: RuleTerms,
}

/// Distributes the selected objects to clusters and namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "ClusterDistributionRule",
    doc = "Copies objects of chosen namespaces, such as ConfigMaps and Secrets, to member clusters, and corrects drift there. For administrators: it can read every namespace of the hub, and precedes every DistributionRule with the same copy.",
    shortname = "cdrule",
    category = "runnel",
    status = "RuleStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule_spec)]
pub struct ClusterDistributionRuleSpec {
    /// The sources in the namespaces of each entry. Entries add up: an object is a source if any
    /// entry selects it. 1 to 16 entries.
    #[schemars(transform = schema::list(limits::SOURCES))]
    #[schemars(transform = schema::rule("size(self) > 0", "sources is empty: add an entry with resources, namespaces and either selector or names"))]
    pub sources: Vec<ClusterSource>,
    /// The targets and policies of the copies.
    #[serde(flatten)]
    pub terms: RuleTerms,
}

/// Selects objects of one namespace. Set exactly one of selector and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::source)]
pub struct Source {
    /// The kinds of objects, as `plural` or `plural.group`, such as configmaps and networkpolicies.networking.k8s.io. The
    /// hub's chart has to allow them. At least one.
    #[schemars(transform = schema::filled_set("resources", 16, Item::Resource, "list the kinds to copy, such as [configmaps, secrets]"))]
    pub resources: Vec<String>,
    /// Selects objects by their labels. It may not be empty; for every object write `names: ["*"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LabelSelector", transform = schema::filled_selector("selector", "for every object remove it and write names: [\"*\"]"))]
    pub selector: Option<LabelSelector>,
    /// Selects objects by name: exact names, and globs in which `*` matches any run of characters. At most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("names", limits::NAMES, Item::ObjectPattern))]
    pub names: Vec<String>,
    /// Names and globs that are subtracted from what this entry selects. At most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("exclude", limits::NAMES, Item::ObjectPattern))]
    pub exclude: Vec<String>,
    /// Whether objects that a controller made from another object are sources, too, such as the ReplicaSets of a
    /// Deployment. ConfigMaps and Secrets always are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_controlled: bool,
    /// Whether fields that others add to the copies in a member cluster are removed, so that a copy is what its source would
    /// create there. Labels, annotations, `status`, and what the API server and the controllers of Kubernetes fill in stay. Copies
    /// of ConfigMaps and Secrets are always exact.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// Whether copies are only created: an existing one is neither corrected nor updated when its source changes. A deleted one
    /// is created again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub create_only: bool,
}

/// Selects objects of the named namespaces, or objects of kinds without namespaces. Set exactly one of selector and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::cluster_source)]
pub struct ClusterSource {
    /// The hub's namespaces to read: exact names, and globs in which `*` matches any run of characters. Globs never
    /// match `kube-*` or the namespace of Runnel itself; an exact name may. 1 to 128. Absent: the entry selects objects of
    /// kinds without namespaces, such as clusterroles.rbac.authorization.k8s.io; `spec.namespaces` does not apply to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::filled_set("namespaces", limits::NAMESPACES, Item::NamespacePattern, "name the hub's namespaces to read; for all of them write namespaces: [\"*\"]"))]
    #[schemars(transform = schema::no_reserved_glob("namespaces"))]
    pub namespaces: Vec<String>,
    /// The selection there.
    #[serde(flatten)]
    pub source: Source,
}

/// The fields of both kinds of rules besides their sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleTerms {
    /// The target clusters. At least one of selector, names and all; they add up.
    pub clusters: Clusters,
    /// The target namespaces in each member cluster; absent: the source's own namespace. A
    /// namespace that does not exist gets its copies when it is created; until then they are
    /// counted as waiting, not as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Namespaces")]
    pub namespaces: Option<Namespaces>,
    /// Whether missing namespaces are created in a member cluster. Applies to literal names in
    /// `namespaces.names`. A created namespace is never deleted.
    #[serde(default)]
    pub create_namespaces: bool,
    /// The policy for a foreign object with the name of a copy. Fail: leave it unchanged and report
    /// it with its writer. AdoptIfEqual: adopt it if its data, binaryData, type and immutable equal
    /// the source's; otherwise as Fail. Overwrite: overwrite it; its content is lost. The rule's
    /// grant and the member's policy must allow Overwrite.
    #[serde(default)]
    pub conflict_policy: ConflictPolicy,
    /// What to do when a copy was changed or deleted in a member cluster. Correct: restore it. Report: leave it so and
    /// report what differs, until the source changes: an edit of the source is applied and ends the drift.
    #[serde(default)]
    pub drift_policy: DriftPolicy,
    /// The policy for a change of an immutable copy, or of a Secret's type. Report: leave the copy
    /// unchanged and report it. Recreate: delete the copy and create it again at once; running pods
    /// may keep the old values until they restart.
    #[serde(default)]
    pub immutable_policy: ImmutablePolicy,
    /// Fields of the copies that are written at creation only, as JSON pointers, such as `/data/KEY`,
    /// `/metadata/annotations/KEY`, `/spec/replicas` or `/spec/template/spec/containers/[name=app]/image`. A step in
    /// brackets names the items of a list whose fields have these values. `~1` means `/` and `~0` means `~`. Afterwards
    /// they are neither compared nor written. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::field_pointers)]
    pub ignore_fields: Vec<String>,
    /// What sets `spec.replicas` of copies. Source: their sources. Auto: an autoscaler or a person in the member cluster; the number
    /// of the source is written at creation only, as a field of ignoreFields is.
    #[serde(default)]
    pub replicas: Replicas,
    /// The policy for a copy that is no longer desired, for any cause: the rule, its source, a
    /// label, a namespace or a cluster. Delete: delete it. Retain: leave it in place, without
    /// Runnel's labels and annotations.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// How copies are deleted.
    #[serde(default)]
    pub deletion: Deletion,
    /// Makes copies other than their sources: their name, keys, labels, annotations and type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Transform")]
    pub transform: Option<Transform>,
    /// Fills variables in the values of some keys, after transform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Substitute")]
    pub substitute: Option<Substitute>,
    /// Overrides the data of ConfigMaps in some clusters, entry by entry, after transform and substitute. For Secrets
    /// only `remove` and `secretData`: a rule contains no values of Secrets. At most 16 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::OVERRIDES))]
    pub overrides: Vec<Override>,
    /// The limit of copies that an edit, a label or another indirect cause may remove at a time. A
    /// larger removal is blocked in every cluster, and the condition ApprovalRequired has the
    /// number, the clusters and the command to approve it. Deliberate deletes are not blocked: of a
    /// source, of the rule, or of a literal name in a list. Copies in namespaces that are no longer
    /// targets count. The Fleet limits all rules together. If only one of count and percent is set, it is the limit; where
    /// both are set, the larger of the two counts. If neither is set: the larger of 10 copies and 20 % of the rule's copies,
    /// and at most half of them from 4 copies on.
    #[serde(default)]
    pub removal_limit: RemovalLimit,
    /// Fields of the copies whose values the agents return, for `deliveries` and `copies` of the view API. At most 8. Of a rule
    /// in one cluster `deliveries` shows the values of the first copies, about 4 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("name", limits::FEEDBACK))]
    pub feedback: Vec<Feedback>,
    /// The rollout of changes. Without it, all clusters get a change at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Rollout")]
    pub rollout: Option<Rollout>,
    /// Whether the rule is suspended. While true nothing is created, corrected or removed, and the condition
    /// Suspended is True.
    #[serde(default)]
    pub suspend: bool,
    /// Whether agents apply the rule. Enforce: they do. DryRun: they report planned creations,
    /// updates and deletions, and write nothing; existing copies are left unchanged. See the
    /// condition DryRun.
    #[serde(default)]
    pub enforcement: Enforcement,
}

/// The policy for a foreign object with the name of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// Leave it alone and report it.
    #[default]
    Fail,
    /// Adopt it if it is equal.
    AdoptIfEqual,
    /// Overwrite it; its content is lost.
    Overwrite,
}

/// The policy for a copy that was changed in a member cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Restore it.
    #[default]
    Correct,
    /// Leave it so and report it.
    Report,
}

/// Whether agents apply the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// Agents apply the rule.
    #[default]
    Enforce,
    /// They report it and write nothing.
    DryRun,
}

/// The policy for a change of an immutable copy or field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImmutablePolicy {
    /// Leave the copy unchanged and report it.
    #[default]
    Report,
    /// Delete it and create it again.
    Recreate,
}

/// What sets the number of replicas of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Replicas {
    /// Their sources.
    #[default]
    Source,
    /// An autoscaler or a person in the member cluster.
    Auto,
}

impl Replicas {
    /// The field that agents leave alone once a copy exists, as a JSON pointer.
    pub fn ignored_field(self) -> Option<&'static str> {
        match self {
            Self::Source => None,
            Self::Auto => Some("/spec/replicas"),
        }
    }
}

/// The limit of indirect removals at a time, within a minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RemovalLimit {
    /// Number of copies. 0 to 1000000000. Where percent is set, too, the larger of the two counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(0, 1_000_000_000))]
    pub count: Option<i64>,
    /// Percentage of all copies that the rule has: 0 to 100. Where count is set, too, the larger of the two counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(0, 100))]
    pub percent: Option<i64>,
    /// Whether the delete of the rule itself counts as deliberate. Allow: its copies are removed, as deletionPolicy
    /// says. Hold: where they are more than the limit they stay until that is approved, and the rule stays until
    /// then. The delete of its namespace or of its CRD is under the limits in any case.
    pub on_rule_delete: OnRuleDelete,
}

/// Whether the delete of a rule counts as deliberate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnRuleDelete {
    /// The delete is deliberate.
    #[default]
    Allow,
    /// The delete is limited like an indirect removal.
    Hold,
}

/// The policy for a copy that is no longer desired.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum DeletionPolicy {
    /// Delete it.
    #[default]
    Delete,
    /// Leave it, without Runnel's marks.
    Retain,
}

/// How copies are deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Deletion {
    /// What happens to the objects that a copy owns in the member, such as the pods of a workload, when the copy is deleted, also
    /// to be made again (`immutablePolicy: Recreate`). Background: they are deleted after it. Foreground: before it. Orphan: they
    /// stay, so that a StatefulSet can be made again over its running pods.
    pub propagation: Propagation,
}

/// What happens to the objects that a deleted copy owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Propagation {
    /// They are deleted after it.
    #[default]
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay.
    Orphan,
}

impl From<Propagation> for model::Propagation {
    fn from(propagation: Propagation) -> Self {
        match propagation {
            Propagation::Background => model::Propagation::Background,
            Propagation::Foreground => model::Propagation::Foreground,
            Propagation::Orphan => model::Propagation::Orphan,
        }
    }
}

impl From<ConflictPolicy> for model::ConflictPolicy {
    fn from(policy: ConflictPolicy) -> Self {
        match policy {
            ConflictPolicy::Fail => model::ConflictPolicy::Fail,
            ConflictPolicy::AdoptIfEqual => model::ConflictPolicy::AdoptIfEqual,
            ConflictPolicy::Overwrite => model::ConflictPolicy::Overwrite,
        }
    }
}

impl From<DriftPolicy> for model::DriftPolicy {
    fn from(policy: DriftPolicy) -> Self {
        match policy {
            DriftPolicy::Correct => model::DriftPolicy::Correct,
            DriftPolicy::Report => model::DriftPolicy::Report,
        }
    }
}

impl From<Enforcement> for model::Enforcement {
    fn from(enforcement: Enforcement) -> Self {
        match enforcement {
            Enforcement::Enforce => model::Enforcement::Enforce,
            Enforcement::DryRun => model::Enforcement::DryRun,
        }
    }
}

impl From<ImmutablePolicy> for model::ImmutablePolicy {
    fn from(policy: ImmutablePolicy) -> Self {
        match policy {
            ImmutablePolicy::Report => model::ImmutablePolicy::Report,
            ImmutablePolicy::Recreate => model::ImmutablePolicy::Recreate,
        }
    }
}

impl From<DeletionPolicy> for model::DeletionPolicy {
    fn from(policy: DeletionPolicy) -> Self {
        match policy {
            DeletionPolicy::Delete => model::DeletionPolicy::Delete,
            DeletionPolicy::Retain => model::DeletionPolicy::Retain,
        }
    }
}

impl From<model::DeletionPolicy> for DeletionPolicy {
    fn from(policy: model::DeletionPolicy) -> Self {
        match policy {
            model::DeletionPolicy::Delete => DeletionPolicy::Delete,
            model::DeletionPolicy::Retain => DeletionPolicy::Retain,
        }
    }
}
