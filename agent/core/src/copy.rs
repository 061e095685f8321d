//! Copies: the intent and the revision of a copy, and its outcome.
use std::sync::Arc;

use runnel_proto::model::{Payload, Reason, Revision, RuleUid, SourceRef};

/// An intent's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IntentKey {
    /// The rule.
    pub rule: RuleUid,
    /// The source.
    pub source: SourceRef,
}

/// A payload of a batch. Without `Debug`: it contains content.
pub struct NewPayload {
    /// Whose it is.
    pub key: IntentKey,
    /// Its revision.
    pub revision: Revision,
    /// The content.
    pub payload: Payload,
}

/// How a copy is, for its rule's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// Something is being done about it.
    UnderWay,
    /// Equal to the intent, by the last answers of the API server.
    Applied,
    /// Not equal, and the last attempt failed.
    Failed(CopyError),
    /// Its namespace does not exist yet.
    Waiting,
    /// Somebody changed or deleted it, and it is left so.
    Drifted(CopyError),
    /// It must go and is still there; the last attempt may have failed.
    Removing(Option<CopyError>),
    /// Its namespace is no longer a target: it is to go, and that waits for the word of the hub.
    PruneRequested,
    /// Its rule is a dry run: this change would be made.
    Planned(PlannedChange, CopyError),
}

/// What would be done to a copy of a rule that is a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedChange {
    /// It would be created.
    Create,
    /// It would be changed, adopted or overwritten.
    Update,
    /// It would be deleted, or left without marks.
    Delete,
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyError {
    /// The kind of failure.
    pub reason: Reason,
    /// A sentence for a person, without content.
    pub message: Arc<str>,
}

impl CopyError {
    /// A failure.
    pub fn new(reason: Reason, message: impl Into<Arc<str>>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// The text, cut to a number of bytes at a character's border.
pub fn clip(text: &str, limit: usize) -> String {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default();
    text[..end].to_owned()
}
