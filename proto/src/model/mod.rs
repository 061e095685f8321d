//! The words of the domain, shared by hub and agent. Pure: nothing here does I/O or reads a clock.
mod content;
mod feedback;
mod fields;
mod frames;
mod grants;
mod json_path;
mod kinds;
mod names;
mod preview;
mod rule_state;
mod selector;
mod terms;

pub use content::{
    Content, ContentDigest, ContentError, CopyMode, Encoding, LiveDigest, PAYLOAD_LIMIT, Payload,
    Proof, ProofKey, Revision, RevisionKey, SetDigest, is_mark,
};
pub use feedback::{
    CopyFeedback, FEEDBACK_BYTES, FEEDBACK_LIMIT, FEEDBACK_NAME_LIMIT, FEEDBACK_VALUE_LIMIT,
    FeedbackField, FeedbackValue,
};
pub use fields::{
    FIXED_FIELDS, FieldMap, FieldPath, FieldStep, FieldSteps, POINTER_LIMIT, pointer_escaped,
    pointer_unescaped,
};
pub use frames::{
    AGENT_FRAME_LIMIT, AckedIntent, AgentFrame, Batch, COPIES_LIMIT, CopyList, CopyOutcome,
    CopyState, Hello, HubFrame, Inspect, Inspected, ListCopies, ListedCopy, LiveObject, LostWatch,
    NamespaceState, Refusal, RuleDelta, STATES_LIMIT, SnapshotBegin, SnapshotEnd,
};
pub use grants::{Allowance, Grant};
pub use json_path::{JSON_PATH_LIMIT, JsonPath};
pub use kinds::{
    ContentRules, KINDS_LIMIT, Kind, Kinds, Scope, ServedKind, is_privileged,
    is_widened_by_additions,
};
pub use names::{
    CUSTOM_RESOURCE_DEFINITIONS, ClusterName, NAMESPACES, RuleName, RuleUid, SourceRef,
    VERSION_DIGITS, clip, is_label, is_label_key, is_label_value, is_namespace_pattern,
    is_object_name, is_place, is_plain_text, is_plain_token, is_subdomain, is_uid, plain_lines,
    plain_text, split_resource,
};
pub use preview::{
    DIFF_COPIES, DIFF_FIELDS, DIFF_LIMIT, FieldChange, FieldDiff, FieldDigests, FieldEdit,
    FieldsKey, PREVIEW_LIMIT, PreviewIntent, PreviewOutcome, PreviewRequest, PreviewResult,
    PreviewedCopy, short_value,
};
pub use rule_state::{
    CHANGES_LIMIT, ChangeOrigin, CopyAction, CopyChange, CopyHealth, Counts, FAILURES_LIMIT,
    Failure, HEALTH_MESSAGE_LIMIT, Intent, MESSAGE_LIMIT, NAMESPACES_LIMIT, NamespacePrunes,
    ObservedHealth, PruneRequest, Reason, RuleState, Tombstone, WaitingNamespaces,
};
pub use selector::{
    NamespaceChoice, Operator, Pattern, Requirement, Selector, is_closed_namespace, matches_any,
};
pub use terms::{
    ConflictPolicy, DeletionPolicy, DriftPolicy, Enforcement, ImmutablePolicy, Propagation,
    PruneDigest, Terms, TermsDigest,
};

/// The label that every copy carries: `runnel` is its value.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY_LABEL`] on a copy.
pub const MANAGED_BY: &str = "runnel";
/// The label with the id of the hub of a copy, so that two hubs in one member ignore each other's
/// copies.
pub const HUB_LABEL: &str = "runnel.dev/hub";
/// The label of the roles and bindings that an API server makes itself.
pub const BOOTSTRAPPING_LABEL: &str = "kubernetes.io/bootstrapping";
/// The label with the uid of the rule that owns a copy.
pub const RULE_LABEL: &str = "runnel.dev/rule-uid";
/// The annotation with the rule of a copy, `namespace/name`, for users in the member.
pub const RULE_ANNOTATION: &str = "runnel.dev/rule";
/// The annotation that names the source of a copy, `plural[.group]/namespace/name`, or
/// `plural[.group]/name` without a namespace.
pub const SOURCE_ANNOTATION: &str = "runnel.dev/source";
/// The annotation by which an agent identifies its own copy and the content that it wrote.
pub const SEAL_ANNOTATION: &str = "runnel.dev/seal";
/// Annotation on a copy: the name of the `MemberCluster` whose agent wrote it.
pub const MEMBER_ANNOTATION: &str = "runnel.dev/member";
/// The annotation on an object that was once a copy and was left on purpose.
pub const RETAINED_ANNOTATION: &str = "runnel.dev/retained-from";
/// The annotation by which an agent proves to itself that Runnel created an object that was left on purpose.
pub const RETAINED_PROOF_ANNOTATION: &str = "runnel.dev/retained-proof";
/// The label of the newest of several versions of a copy.
pub const NEWEST_LABEL: &str = "runnel.dev/newest";
/// The annotation that numbers the versions of a copy: the highest became the newest last.
pub const VERSION_ANNOTATION: &str = "runnel.dev/version";
/// The annotation that names the fields of a copy that are left alone since its creation, as JSON pointers.
pub const IGNORED_ANNOTATION: &str = "runnel.dev/ignored-fields";
/// The annotation that names the [`CopyMode`] of a copy.
pub const MODE_ANNOTATION: &str = "runnel.dev/mode";
/// The annotation by which a namespace of a member refuses copies: `deny`.
pub const INBOUND_ANNOTATION: &str = "runnel.dev/inbound";
/// Labels and annotations under this prefix are Runnel's own and are never copied.
pub const RESERVED_PREFIX: &str = "runnel.dev/";
