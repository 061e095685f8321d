//! A question about one copy, and an agent's answer.
use super::{Reason, Revision, RuleUid, SourceRef};

/// The most rules in one answer.
pub const STATES_LIMIT: usize = 16;

/// Requests the state of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspect {
    /// The id of the question, repeated in the answer.
    pub question: u64,
    /// The copy.
    pub copy: SourceRef,
}

/// The state of one copy in its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The id of the question.
    pub question: u64,
    /// The state of its namespace.
    pub namespace: NamespaceState,
    /// The state as reported to each rule; at most [`STATES_LIMIT`].
    pub states: Vec<CopyState>,
    /// The object in the member.
    pub live: Option<LiveObject>,
}

/// The state of a namespace in a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceState {
    /// The state is unknown.
    #[default]
    Unknown,
    /// The namespace accepts copies.
    Ready,
    /// The namespace does not exist.
    Missing,
    /// The namespace is being deleted.
    Terminating,
    /// The namespace is denied.
    Closed,
}

/// The state of one copy as reported to one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyState {
    /// The rule.
    pub rule: RuleUid,
    /// The outcome of the copy.
    pub outcome: CopyOutcome,
    /// The reason, and a message that never contains content.
    pub copy_error: Option<(Reason, String)>,
}

/// The outcome of a copy for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// A job for the copy is under way.
    UnderWay,
    /// The copy equals the intent.
    Applied,
    /// The last attempt failed.
    Failed,
    /// For a namespace that does not exist.
    Waiting,
    /// Another client changed it, and the rule tolerates that.
    Drifted,
    /// The copy must be removed and still exists.
    Removing,
    /// The removal waits for the hub's approval.
    PruneRequested,
}

/// The object in the member under the name of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveObject {
    /// Whether the object is the agent's copy.
    pub ours: bool,
    /// Whether the written fields are unchanged.
    pub intact: bool,
    /// The sealed rule, source and revision.
    pub sealed: Option<(RuleUid, SourceRef, Revision)>,
    /// When it was last applied, in seconds since 1970; 0: unknown.
    pub applied_at: i64,
    /// Its uid.
    pub uid: String,
}
