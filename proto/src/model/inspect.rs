//! A question about one copy, and an agent's answer.
use super::{Reason, Revision, RuleUid, SourceRef};

/// The most rules in one answer.
pub const STATES_LIMIT: usize = 16;

/// Asks how one copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspect {
    /// Comes back with the answer.
    pub question: u64,
    /// The copy.
    pub copy: SourceRef,
}

/// The state of one copy in its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// As asked.
    pub question: u64,
    /// How its namespace is.
    pub namespace: NamespaceState,
    /// The state as reported to each rule; at most [`STATES_LIMIT`].
    pub states: Vec<CopyState>,
    /// The object in the member.
    pub live: Option<LiveObject>,
}

/// How a namespace of a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceState {
    /// Not known.
    #[default]
    Unknown,
    /// It takes copies.
    Ready,
    /// It does not exist.
    Missing,
    /// It is being deleted.
    Terminating,
    /// It takes no copies.
    Closed,
}

/// The state of one copy as reported to one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyState {
    /// The rule.
    pub rule: RuleUid,
    /// How the copy is.
    pub outcome: CopyOutcome,
    /// Why, and a sentence for a person that never holds content.
    pub copy_error: Option<(Reason, String)>,
}

/// How a copy is to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// Something is being done about it.
    UnderWay,
    /// As it should be.
    Applied,
    /// The last attempt failed.
    Failed,
    /// For a namespace that does not exist.
    Waiting,
    /// Another client changed it, and the rule tolerates that.
    Drifted,
    /// It must go and is still there.
    Removing,
    /// It is to go, and that waits for the hub's word.
    PruneRequested,
}

/// The object in the member under the name of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveObject {
    /// Whether it is the agent's copy.
    pub ours: bool,
    /// Whether all is as it was written.
    pub intact: bool,
    /// What it was written for: rule, source and revision.
    pub sealed: Option<(RuleUid, SourceRef, Revision)>,
    /// When it was last applied, in seconds since 1970; 0: unknown.
    pub applied_at: i64,
    /// Its uid.
    pub uid: String,
}
