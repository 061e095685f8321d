//! Rules: the sources, the targets and the terms of a distribution.
use kube_derive::CustomResource;
use runnel_proto::model;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Clusters, LabelSelector, Namespaces, Override, Rollout, RuleStatus, Substitute, Transform,
    limits, schema, schema::Item,
};

/// What is copied, to which clusters, and into which namespaces there.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "DistributionRule",
    doc = "Copies ConfigMaps and Secrets of its own namespace to member clusters, and corrects drift there.",
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
    /// What is copied, out of this rule's own namespace. Entries add up: an object is a source when any entry selects it.
    /// 1 to 16 entries.
    #[schemars(transform = schema::list(limits::SOURCES))]
    #[schemars(transform = schema::rule("size(self) > 0", "sources is empty: add an entry with resources and either selector or names"))]
    pub sources: Vec<Source>,
    /// Where the copies go and how they are kept.
    #[serde(flatten)]
    pub terms: RuleTerms,
}

/// What is copied, to which clusters, and into which namespaces there.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "ClusterDistributionRule",
    doc = "Copies ConfigMaps and Secrets of chosen namespaces to member clusters, and corrects drift there. For administrators: it can read every namespace of the hub, and precedes every DistributionRule with the same copy.",
    shortname = "cdrule",
    category = "runnel",
    status = "RuleStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule_spec)]
pub struct ClusterDistributionRuleSpec {
    /// What is copied, out of the namespaces that each entry names. Entries add up: an object is a source when any entry
    /// selects it. 1 to 16 entries.
    #[schemars(transform = schema::list(limits::SOURCES))]
    #[schemars(transform = schema::rule("size(self) > 0", "sources is empty: add an entry with namespaces, resources and either selector or names"))]
    pub sources: Vec<ClusterSource>,
    /// Where the copies go and how they are kept.
    #[serde(flatten)]
    pub terms: RuleTerms,
}

/// Selects objects of one namespace. Set exactly one of selector and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::source)]
pub struct Source {
    /// The kinds of objects, as `plural` or `plural.group`, as in RBAC. At least one.
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
}

/// Selects objects of the named namespaces. Set exactly one of selector and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSource {
    /// The hub's namespaces to read: exact names, and globs in which `*` matches any run of characters. Globs never
    /// match `kube-*` or the namespace of Runnel itself; an exact name may. 1 to 128.
    #[schemars(transform = schema::filled_set("namespaces", limits::NAMESPACES, Item::NamespacePattern, "name the hub's namespaces to read; for all of them write namespaces: [\"*\"]"))]
    pub namespaces: Vec<String>,
    /// What to select there.
    #[serde(flatten)]
    pub source: Source,
}

/// The fields of both kinds of rules besides their sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleTerms {
    /// The member clusters that get copies. At least one of selector, names and all; they add up.
    pub clusters: Clusters,
    /// The namespaces in each member cluster that get copies. Without it, a copy goes to the namespace that its source
    /// is in. A namespace that does not exist yet gets its copies when it comes to be; until then they are counted as
    /// waiting, not as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Namespaces")]
    pub namespaces: Option<Namespaces>,
    /// Whether namespaces that are missing in a member cluster are created. Holds for the names in `namespaces.names`
    /// that are not globs. A namespace that was created is never deleted.
    #[serde(default)]
    pub create_namespaces: bool,
    /// What to do when an object that is not a copy has the name of a copy. Fail: leave it alone and report it, with
    /// who wrote it. AdoptIfEqual: take it over if its data, binaryData, type and immutable equal the source's;
    /// otherwise as Fail. Overwrite: take it over in any case; its former content is lost. The rule's grant and the
    /// member's policy have to allow Overwrite.
    #[serde(default)]
    pub conflict_policy: ConflictPolicy,
    /// What to do when a copy was changed or deleted in a member cluster. Correct: restore it. Report: leave it so and
    /// report what differs, until the source changes: an edit of the source is applied and ends the drift.
    #[serde(default)]
    pub drift_policy: DriftPolicy,
    /// What to do when a changed source meets a copy that is immutable, or a Secret of another type. Report: leave
    /// the copy as it is and report it. Recreate: delete the copy and create it again at once; nodes may serve the
    /// old values to running pods until these are restarted.
    #[serde(default)]
    pub immutable_policy: ImmutablePolicy,
    /// Fields of the copies that are left alone once the copies are created, as JSON pointers: `/data/KEY`,
    /// `/binaryData/KEY`, `/metadata/labels/KEY`, `/metadata/annotations/KEY` (in a KEY, `~1` means `/`). They are
    /// written when a copy is created, and from then on neither compared nor changed. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::field_pointers)]
    pub ignore_fields: Vec<String>,
    /// What to do with a copy that is no longer selected, for any cause: the rule, its source, a
    /// label, a namespace or a cluster. Delete: delete it. Retain: leave it in place, without
    /// Runnel's labels and annotations.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
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
    /// How many copies may be removed at a time because of an edit, a label or the like. A removal
    /// of more is blocked, in every cluster, and the condition ApprovalRequired states how many,
    /// where, and how to approve it. A deliberate act is not blocked: the delete of a source or of
    /// the rule, or of a literal name out of a list. Copies in namespaces that are no longer
    /// targets count, whether by the rule, a grant or a label in the member. The Fleet limits all
    /// rules together.
    #[serde(default)]
    pub removal_limit: RemovalLimit,
    /// How a change is rolled out. Without it, all clusters get it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Rollout")]
    pub rollout: Option<Rollout>,
    /// Whether the rule is suspended. While true nothing is created, corrected or removed, and the condition
    /// Suspended is True.
    #[serde(default)]
    pub suspend: bool,
    /// Whether agents carry out what the rule asks for. Enforce: they do. DryRun: they report what they would create,
    /// update and delete, and write nothing; existing copies stay as they are. The condition DryRun shows it.
    #[serde(default)]
    pub enforcement: Enforcement,
}

/// What to do with an object that is not a copy and has the name of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// Leave it alone and report it.
    #[default]
    Fail,
    /// Take it over if it is equal.
    AdoptIfEqual,
    /// Take it over; its former content is lost.
    Overwrite,
}

/// What to do with a copy that was changed in a member cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Restore it.
    #[default]
    Correct,
    /// Leave it so and report it.
    Report,
}

/// Whether agents carry out what a rule asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// They do.
    #[default]
    Enforce,
    /// They report it and write nothing.
    DryRun,
}

/// What to do where a copy does not take a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImmutablePolicy {
    /// Leave it as it is and report it.
    #[default]
    Report,
    /// Delete it and create it again.
    Recreate,
}

/// How many copies may go at a time because of an edit, a label or the like: the larger of count and percent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RemovalLimit {
    /// This many copies may go at a time. 0 to 1000000000.
    #[schemars(transform = schema::between(0, 1_000_000_000))]
    pub count: i64,
    /// This part of all copies of the rule may go at a time, in percent: 0 to 100.
    #[schemars(transform = schema::between(0, 100))]
    pub percent: i64,
    /// Whether the delete of the rule itself counts as deliberate. Allow: its copies are removed, as deletionPolicy
    /// says. Hold: where they are more than the limit they stay until that is approved, and the rule stays until
    /// then. The delete of its namespace or of its CRD is under the limits in any case.
    pub on_rule_delete: OnRuleDelete,
}

impl Default for RemovalLimit {
    fn default() -> Self {
        Self {
            count: 10,
            percent: 20,
            on_rule_delete: OnRuleDelete::default(),
        }
    }
}

/// Whether the delete of a rule counts as deliberate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnRuleDelete {
    /// It does.
    #[default]
    Allow,
    /// It does not.
    Hold,
}

/// What to do with a copy that is no longer selected.
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
