//! What one source is in one cluster: its intent, or the order to remove its copies.
use super::{DeletionPolicy, Payload, Revision, SourceRef};

/// The desired state of one source in a cluster.
#[derive(Clone)]
pub struct Intent {
    /// The source.
    pub source: SourceRef,
    /// The revision of the payload.
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
