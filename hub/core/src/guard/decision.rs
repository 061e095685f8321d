//! What may be removed, and the guard's decision about it, for sessions.
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use runnel_proto::model::{ClusterName, PruneDigest, SourceRef};

use super::items_of;

/// The guard's decision. Sessions remove only passed items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardDecision {
    pub(super) passed: BTreeSet<Item>,
    pub(super) blocked: BTreeSet<Item>,
}

impl GuardDecision {
    /// Creates a decision that passes these items, for tests.
    #[cfg(test)]
    pub fn passing(items: impl IntoIterator<Item = Item>) -> Arc<Self> {
        Arc::new(Self {
            passed: items.into_iter().collect(),
            ..Self::default()
        })
    }

    /// Whether it may be removed.
    pub fn passes(&self, item: &Item) -> bool {
        self.passed.contains(item)
    }

    /// Whether it waits for approval.
    pub fn blocks(&self, item: &Item) -> bool {
        self.blocked.contains(item)
    }

    /// Whether an intent may be removed in a cluster.
    pub fn passes_intent(&self, cluster: &ClusterName, intent: &SourceRef) -> bool {
        items_of(cluster, intent)
            .iter()
            .any(|item| self.passes(item))
    }

    /// Whether an intent waits for approval in a cluster.
    pub fn blocks_intent(&self, cluster: &ClusterName, intent: &SourceRef) -> bool {
        items_of(cluster, intent)
            .iter()
            .any(|item| self.blocks(item))
    }

    /// Returns the approved removals in a cluster of copies whose namespace is no longer a target.
    pub fn prune(&self, cluster: &ClusterName) -> Option<PruneDigest> {
        prunes_in(&self.passed, cluster).find_map(|item| match item {
            Item::Prune(_, digest) => Some(*digest),
            _ => None,
        })
    }

    /// Returns the decision about the copies in former target namespaces of a cluster.
    pub(super) fn prunes_in<'a>(
        &'a self,
        cluster: &'a ClusterName,
    ) -> impl Iterator<Item = &'a Item> {
        prunes_in(&self.passed, cluster).chain(prunes_in(&self.blocked, cluster))
    }

    pub(super) fn has_prunes(&self) -> bool {
        self.passed
            .last()
            .is_some_and(|item| matches!(item, Item::Prune(..)))
    }

    /// Whether the decision differs for clusters that the rule does not select.
    pub fn differs_elsewhere(&self, former: &GuardDecision) -> bool {
        let is_for_all = |item: &&Item| matches!(item, Item::Rule | Item::Cluster(_));
        !self
            .passed
            .iter()
            .take_while(is_for_all)
            .eq(former.passed.iter().take_while(is_for_all))
    }

    /// The clusters to which alone the difference matters; `None` if it matters to all.
    pub fn differing_prunes(&self, former: &GuardDecision) -> Option<BTreeSet<ClusterName>> {
        let differing = self.passed.symmetric_difference(&former.passed);
        differing
            .chain(self.blocked.symmetric_difference(&former.blocked))
            .map(|item| match item {
                Item::Prune(cluster, _) => Some(cluster.clone()),
                _ => None,
            })
            .collect()
    }
}

fn prunes_in<'a>(
    items: &'a BTreeSet<Item>,
    cluster: &'a ClusterName,
) -> impl Iterator<Item = &'a Item> {
    let from = Item::Prune(cluster.clone(), PruneDigest([0; 16]));
    items
        .range(from..)
        .take_while(move |item| item.cluster() == Some(cluster))
}

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
