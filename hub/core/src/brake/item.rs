//! What may be removed, and why.
use std::sync::Arc;

use runnel_proto::model::{ClusterName, SourceRef};

/// What may be removed at a time: a source's copies everywhere, everything in one cluster, or all copies of the rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// The rule goes.
    Rule,
    /// The rule does not choose the cluster any more, or nothing is granted to it there.
    Cluster(ClusterName),
    /// Copies of this kind are no longer granted in the cluster.
    Kind(ClusterName, Arc<str>),
    /// In this cluster, the copies of the source have another name; this is the former one.
    Copy(ClusterName, SourceRef),
    /// The same in every cluster.
    Name(SourceRef),
    /// The rule does not select the source any more.
    Source(SourceRef),
}

/// Why something is not wanted any more; what comes later weighs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its literal name was taken out of a list.
    Named,
    /// It was deleted: the source, or the rule.
    Deleted,
    /// It was deleted while nobody looked: the source is not there, and an agent holds it.
    Missed,
    /// Whatever else: an edit, a label, something that happened while nobody looked.
    Indirect,
    /// A cluster that was away when an earlier process held something speaks of it only now.
    Carried,
}
