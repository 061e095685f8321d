//! The question about the copies of one rule, and an agent's answer.
use super::{CopyOutcome, Reason, RuleUid, SourceRef};

/// The most copies in one answer.
pub const COPIES_LIMIT: usize = 500;

/// Requests a page of the copies of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCopies {
    /// The id of the question, repeated in the answer.
    pub question: u64,
    /// The rule.
    pub rule: RuleUid,
    /// The page begins after this copy; `None`: with the first one.
    pub after: Option<SourceRef>,
    /// Only this copy is listed; `None`: all.
    pub only: Option<SourceRef>,
    /// The most copies on the page; at most [`COPIES_LIMIT`].
    pub limit: u32,
}

/// A page of the copies of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyList {
    /// The id of the question.
    pub question: u64,
    /// The copies, in their order.
    pub copies: Vec<ListedCopy>,
    /// Whether more copies follow this page; on the last part.
    pub more: bool,
    /// Whether this is the last part of the answer.
    pub last: bool,
}

/// A copy of one rule, as its agent reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCopy {
    /// The copy.
    pub copy: SourceRef,
    /// Its source; `None` if the rule does not require the copy any more.
    pub source: Option<SourceRef>,
    /// The outcome of the copy.
    pub outcome: CopyOutcome,
    /// The reason, and a message that never contains content.
    pub copy_error: Option<(Reason, String)>,
    /// When it was last applied for this rule, in seconds since 1970; 0: unknown.
    pub applied_at: i64,
}
