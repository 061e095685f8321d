//! Copies: the intent and the revision of a copy, and its outcome.
use std::sync::Arc;

use runnel_proto::model::{Payload, Reason, Revision, RuleUid, SourceRef, is_label};

/// The identity of an intent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IntentKey {
    /// The rule.
    pub rule: RuleUid,
    /// The source.
    pub source: SourceRef,
}

/// Returns the value of the label with the rule; `None` if the uid, which the hub chooses, cannot
/// be one.
pub fn rule_label(rule: &RuleUid) -> Option<&str> {
    is_label(rule.as_str()).then(|| rule.as_str())
}

/// A payload of a batch. Without `Debug`: it contains content.
pub struct NewPayload {
    /// The intent of the payload.
    pub key: IntentKey,
    /// Its revision.
    pub revision: Revision,
    /// The content.
    pub payload: Payload,
}

/// The status of a copy, for the report of its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// The copy does not equal its intent yet. There is no error.
    UnderWay,
    /// The copy equals its intent, by the last answers of the API server.
    Applied,
    /// The copy differs from its intent, and the last attempt failed.
    Failed(CopyError),
    /// Its namespace does not exist yet.
    Waiting,
    /// Another client changed or deleted the copy, and the agent does not correct it.
    Drifted(CopyError),
    /// The copy is to be removed and still exists. Contains the error of the last attempt.
    Removing(Option<CopyError>),
    /// The copy is to be removed because its namespace is no longer a target. The removal waits for
    /// the hub's approval.
    PruneRequested,
    /// The rule is a dry run: this change would be made.
    Planned(PlannedChange, CopyError),
}

/// A planned change of a copy, for a rule that is a dry run and for a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedChange {
    /// The copy would be created.
    Create,
    /// The copy would be changed.
    Change,
    /// An object that is not ours would be adopted if it is equal.
    AdoptIfEqual,
    /// An object that is not ours would be overwritten.
    Overwrite,
    /// The copy would be deleted.
    Remove,
    /// The copy would be deleted once the hub has approved that.
    Prune,
    /// The copy would be left without marks.
    Retain,
}

impl PlannedChange {
    /// Whether an object that exists would be written.
    pub fn is_update(self) -> bool {
        matches!(self, Self::Change | Self::AdoptIfEqual | Self::Overwrite)
    }

    /// Whether the copy would be removed.
    pub fn is_removal(self) -> bool {
        matches!(self, Self::Remove | Self::Prune | Self::Retain)
    }
}

/// The error of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyError {
    /// The kind of failure.
    pub reason: Reason,
    /// The message for a person, without content.
    pub message: Arc<str>,
}

impl CopyError {
    /// Returns an error.
    pub fn new(reason: Reason, message: impl Into<Arc<str>>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
