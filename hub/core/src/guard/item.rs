//! What may be removed, and why.
use std::fmt;
use std::sync::Arc;

use runnel_proto::model::{AskedDigest, ClusterName, SourceRef};

/// What may be removed at a time.
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
    Prune(ClusterName, AskedDigest),
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

/// Why an item is no longer selected. Of two causes, the later one in this list counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A reconnected cluster has copies that the rule does not select. A cause that the hub
    /// observed itself is more precise.
    Reconnected,
    /// Its literal name was taken out of a list.
    Named,
    /// The source or the rule was deleted, or the cluster leaves.
    Deleted,
    /// The same, where deliberate deletes are under the limit.
    LimitedDeletion,
    /// Its namespace on the hub is being deleted.
    NamespaceDeleted,
    /// The definition of its kind is being deleted.
    DefinitionDeleted,
    /// The source was deleted while the hub was away.
    Missed,
    /// The rule was edited.
    RuleEdited,
    /// Labels of sources changed.
    SourceLabels,
    /// A member cluster changed.
    Clusters,
    /// A grant, or the namespaces of the hub that grants choose, changed.
    Grants,
    /// Namespaces in member clusters are no longer targets.
    TargetNamespaces,
    /// A reconnected cluster has copies that the rule did not select, perhaps from blocked removals
    /// of an earlier process of the hub.
    Carried,
}

impl Cause {
    /// Whether a user deleted exactly this item.
    pub fn is_deliberate(self) -> bool {
        matches!(self, Cause::Named | Cause::Deleted)
    }

    /// Whether each rule has its own cause: most rules decide their target namespaces themselves.
    pub fn is_of_rule(self) -> bool {
        matches!(self, Cause::RuleEdited | Cause::TargetNamespaces)
    }

    /// A clause for people; `subject` names the rule.
    pub fn describe(self, subject: &str) -> String {
        match self {
            Cause::Named | Cause::RuleEdited => format!("rule {subject} was edited"),
            Cause::Deleted | Cause::LimitedDeletion => {
                "rules, sources or member clusters were deleted".to_owned()
            }
            Cause::NamespaceDeleted => {
                let namespace = subject
                    .split_once('/')
                    .map_or("of its sources", |(namespace, _)| namespace);
                format!("namespace {namespace} on the hub was deleted")
            }
            Cause::DefinitionDeleted => {
                "the definition of distribution rules was deleted".to_owned()
            }
            Cause::Missed => "sources were deleted while the hub was away".to_owned(),
            Cause::SourceLabels => "labels of sources changed".to_owned(),
            Cause::Clusters => "member clusters changed".to_owned(),
            Cause::Grants => "grants or namespaces of the hub changed".to_owned(),
            Cause::TargetNamespaces => {
                "namespaces in member clusters are no longer targets".to_owned()
            }
            Cause::Reconnected | Cause::Carried => {
                "clusters reconnected with copies that are not selected".to_owned()
            }
        }
    }
}
