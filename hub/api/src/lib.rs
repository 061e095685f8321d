//! The custom resources of the API group `runnel.dev`: the fields that users write, and the status
//! of the hub.
//!
//! The types here are the API. Their doc comments are the descriptions of `kubectl explain`. The
//! API server itself refuses invalid objects, with a message that names the field and a hint. No
//! I/O and no clock.
#![cfg_attr(
    not(test),
    deny(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::disallowed_macros
    )
)]

mod analysis;
mod bundle;
mod check;
pub mod conditions;
mod feedback;
mod fleet;
mod generate;
mod grant;
mod json_text;
mod kinds;
mod member;
mod member_record;
mod rollout;
mod rule;
mod rule_status;
mod rule_sync;
mod schema;
mod selector;
mod shape;
mod view;
mod view_request;
mod window;

pub use analysis::{Analysis, AnalysisStatus, HttpCheck, PrometheusCheck};
pub use bundle::{BundleKind, BundleKindScope, ManifestBundle, ManifestBundleSpec};
pub use check::{SpecError, check_spec};
pub use feedback::Feedback;
pub use fleet::{
    Deliberate, Fleet, FleetLimit, FleetRemovalLimit, FleetSpec, FleetStatus, MemberLimit,
    PendingCause,
};
pub use generate::{DEFAULT, chart_files, crds, files, yaml};
pub use grant::{
    DistributionGrant, DistributionGrantSpec, GrantedNamespaces, GrantedPolicies, GrantedRules,
};
pub use json_text::JsonText;
pub use kinds::{BUNDLE_KIND, CLUSTER_KINDS, is_local_kind, is_no_kind_of_manifests};
pub use member::{
    Certificate, Join, MemberCluster, MemberClusterSpec, MemberClusterStatus, OrphanedRule,
};
pub use member_record::{
    Identity, KeyRecord, MemberRecord, MemberRecordSpec, NO_RECORD, PendingRemoval, RetiredKey,
    UsedToken,
};
pub use rollout::{
    CountOrPercent, KeptRevision, OnFailure, PendingWave, ReachedUpTo, Rollout, RolloutApproval,
    RolloutGate, RolloutPhase, RolloutStatus,
};
pub use rule::{
    ClusterDistributionRule, ClusterDistributionRuleSpec, ClusterSource, ConflictPolicy,
    DeletionPolicy, DistributionRule, DistributionRuleSpec, DriftPolicy, Enforcement,
    ImmutablePolicy, OnRuleDelete, RemovalLimit, Replicas, RuleTerms, Source,
};
pub use rule_status::{
    CauseCount, ClusterState, ClusterStatus, Display, PendingApproval, RuleStatus, Summary,
    healthy_of,
};
pub use rule_sync::{
    ClusterRuleSync, ClusterRuleSyncSpec, RuleSync, RuleSyncSpec, RuleSyncStatus, UnobservedObject,
};
pub use selector::{Clusters, LabelExpression, LabelSelector, Namespaces, Operator, SelectorError};
pub use shape::{
    Keys, Marks, Override, PatchStep, SecretKeyRef, SecretValue, Substitute, Transform, ValueFrom,
    VersionedName,
};

pub use view::{
    CLUSTER_LABEL, ClusterCopySpec, ClusterDelivery, ClusterDeliverySpec, CopySpec, CopyStatus,
    CopyTarget, Delivery, DeliveryCondition, DeliveryFailure, DeliveryFeedback, DeliverySpec,
    DeliveryStatus, ListedClusterCopy, ListedCopy, MemberTarget, MemberTargetSpec,
    MemberTargetStatus, RULE_LABEL, ReturnedField, TargetGrant, VIEW_GROUP, VIEW_VERSION,
};
pub use view_request::{
    BlockedRemoval, ClusterRulePlan, ClusterRulePlanSpec, CopyExplanation, CopyExplanationSpec,
    CopyExplanationStatus, ExplainedField, ExplainedObject, ExplainedRule, PLANNED_BUNDLES,
    PlanOptions, PlannedCluster, PlannedCopy, PlannedRule, PlannedSource, RemovalReview,
    RemovalReviewSpec, RemovalReviewStatus, RulePlan, RulePlanSpec, RulePlanStatus,
};
pub use window::Window;

/// The API group.
pub const GROUP: &str = "runnel.dev";
/// The API version.
pub const VERSION: &str = "v1alpha1";
/// The finalizer on rules: a rule is deleted only after its copies are removed or retained.
pub const FINALIZER: &str = "runnel.dev/copies";

/// The annotation of a rule, or of the `Fleet`, that approves the removal or the wave in its status.
/// Its value is the digest, or several digests separated by commas.
pub const APPROVE: &str = "runnel.dev/approve";
/// The annotation of a rule that reverts it to the state of a completed rollout. Its value is the revision.
pub const REVERT_TO: &str = "runnel.dev/revert-to";
/// The annotation of an Event on a rule: the number of copies that it is about.
pub const COPY_COUNT: &str = "runnel.dev/copy-count";
/// Metadata that each API server sets itself, and that no manifest needs.
pub const SERVER_METADATA: [&str; 6] = [
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// The name of the only `Fleet`.
pub const FLEET: &str = "default";

/// Limits of a spec, so that the API server can bound the cost of validation.
pub mod limits {
    /// JSON nodes of a rule's spec. The hub does not decode a larger one.
    pub const RULE_NODES: usize = 10_000;
    /// Entries in a rule's `sources`.
    pub const SOURCES: usize = 16;
    /// Names or globs in one entry's `names` or `exclude`.
    pub const NAMES: usize = 256;
    /// Names or globs of namespaces in one list.
    pub const NAMESPACES: usize = 128;
    /// Names in `clusters.names` or `clusters.exclude`.
    pub const CLUSTERS: usize = 512;
    /// Number of different grants that apply to one rule in one cluster.
    pub const GRANTS: usize = 32;
    /// Requirements in one label selector: `matchLabels` and `matchExpressions` each.
    pub const EXPRESSIONS: usize = 16;
    /// Fields of copies in one list.
    pub const FIELDS_NAMED: usize = 32;
    /// Values in one `matchExpressions` entry.
    pub const VALUES: usize = 64;
    /// Keys of data, labels or annotations in one list.
    pub const KEYS_NAMED: usize = 64;
    /// Labels or annotations that a rule adds.
    pub const MARKS_ADDED: usize = 32;
    /// Entries in a rule's `overrides`.
    pub const OVERRIDES: usize = 16;
    /// Manifests in one bundle.
    pub const MANIFESTS: usize = 100;
    /// Fields of copies that a rule has returned.
    pub const FEEDBACK: usize = 8;
    /// Windows of a rollout, or of a cluster.
    pub const WINDOWS: usize = 8;
    /// States of completed rollouts that are kept of a rule.
    pub const HISTORY: usize = 10;
    /// Clusters that a rule's status lists, the worst first.
    pub const STATUS_CLUSTERS: usize = 20;
    /// Conditions in one status.
    pub const CONDITIONS: usize = 16;
    /// Bytes in the message of a condition or of a listed cluster.
    pub const MESSAGE: usize = 1024;
    /// Characters in a `MemberCluster`'s name: it is also used in label values.
    pub const CLUSTER_NAME: usize = 63;
    /// Names in a pending approval.
    pub const PENDING_NAMES: usize = 5;
    /// Pending approvals in the status of the `Fleet`.
    pub const PENDING_CAUSES: usize = 32;
    /// Causes that one approval lists.
    pub const CAUSES: usize = 8;
    /// Valid keys of one member: during a renewal, the old and the new one.
    pub const KEYS: usize = 4;
    /// Stored used tokens of one member.
    pub const TOKENS: usize = 16;
    /// Stored retired keys of one member.
    pub const RETIRED_KEYS: usize = 16;
    /// Pending removals of one member; copies of further rules are retained.
    pub const PENDING_REMOVALS: usize = 1000;
    /// Orphaned rules in the status of a member.
    pub const ORPHANED_RULES: usize = 100;
}
