//! What one source is in one cluster: its intent, or the order to remove its copies.
use super::{DeletionPolicy, Payload, Revision, SourceRef};

/// One source as a cluster should have it.
#[derive(Clone)]
pub struct Intent {
    /// The source.
    pub source: SourceRef,
    /// Names the payload: equal revision, equal payload.
    pub revision: Revision,
    /// The content.
    pub payload: Payload,
}

/// The explicit order to remove the copies of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The source.
    pub source: SourceRef,
    /// How.
    pub deletion_policy: DeletionPolicy,
}
