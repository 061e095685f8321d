//! What may be removed.
use std::fmt;
use std::sync::Arc;

use runnel_proto::model::{ClusterName, PruneDigest, SourceRef};

/// The unit of a removal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// All copies of the rule.
    Rule,
    /// All copies in a cluster: the rule does not choose it any more, or nothing is granted there.
    Cluster(ClusterName),
    /// The copies of a kind that is no longer granted in the cluster.
    Kind(ClusterName, Arc<str>),
    /// The copies of a source in a cluster, where they have another name now; this is the former one.
    Copy(ClusterName, SourceRef),
    /// The copies of a source in every cluster, where they have another name now.
    Name(SourceRef),
    /// The copies of a source that the rule does not select any more.
    Source(SourceRef),
    /// The copies in namespaces of a cluster that are no longer targets, as its agent named them.
    Prune(ClusterName, PruneDigest),
}

impl Item {
    /// The cluster, if it is about just one.
    pub fn cluster(&self) -> Option<&ClusterName> {
        match self {
            Item::Cluster(cluster)
            | Item::Kind(cluster, _)
            | Item::Copy(cluster, _)
            | Item::Prune(cluster, _) => Some(cluster),
            Item::Rule | Item::Name(_) | Item::Source(_) => None,
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Rule => f.write_str("the whole rule"),
            Item::Cluster(cluster) => write!(f, "cluster {cluster}"),
            Item::Kind(cluster, kind) => write!(f, "{kind} in cluster {cluster}"),
            Item::Copy(cluster, intent) => write!(f, "{intent} in cluster {cluster}"),
            Item::Name(intent) => write!(f, "{intent}, renamed"),
            Item::Source(source) => write!(f, "{source}"),
            Item::Prune(cluster, _) => write!(f, "namespaces in cluster {cluster}"),
        }
    }
}
