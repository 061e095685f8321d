//! What may be removed, and the guard's decision about it, for sessions.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use runnel_proto::model::{ClusterName, PruneDigest, SourceRef};

use super::items_of;

/// The guard's decision. Sessions remove only passed items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardDecision {
    pub(super) passed: BTreeSet<Item>,
    pub(super) blocked: BTreeSet<Item>,
    /// Where the pass of a source counts for less.
    pub(super) conditions: Conditions,
}

/// Sources that passed with copies that were not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Another rule sent them: their copies change hands, and are not removed.
    pub(super) handed_over: BTreeSet<SourceRef>,
    /// The clusters had reported nothing to this process, and the rule did not choose them.
    pub(super) unseen: BTreeMap<SourceRef, Arc<BTreeSet<ClusterName>>>,
}

impl Conditions {
    /// These intents passed although another rule takes some, and these clusters may have copies of any of them.
    pub fn new(
        handed_over: BTreeSet<SourceRef>,
        passed: &BTreeSet<Item>,
        unseen: BTreeSet<ClusterName>,
    ) -> Self {
        let clusters = Arc::new(unseen);
        let sources = passed.iter().filter_map(Item::source);
        let unseen = sources.filter(|_| !clusters.is_empty());
        Self {
            handed_over,
            unseen: unseen.map(|source| (source, clusters.clone())).collect(),
        }
    }

    fn is_unseen(&self, cluster: &ClusterName, source: &SourceRef) -> bool {
        let clusters = self.unseen.get(source);
        clusters.is_some_and(|clusters| clusters.contains(cluster))
    }

    pub(super) fn remove(&mut self, source: &SourceRef) {
        self.handed_over.remove(source);
        self.unseen.remove(source);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.handed_over.is_empty() && self.unseen.is_empty()
    }
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

    /// Whether an intent may be removed in a cluster, of a source that the rule selects or not. `is_taken`: another rule sends it
    /// there. An item that passes covers only what is selected when it is judged: another one that concerns the intent may wait
    /// for approval.
    pub fn passes_intent(
        &self,
        cluster: &ClusterName,
        intent: &SourceRef,
        is_selected: bool,
        is_taken: impl FnOnce() -> bool,
    ) -> bool {
        let covers = |item: &&Item| is_selected || item.kind().is_none();
        let items = items_of(cluster, intent);
        let passes = items.iter().filter(covers).any(|item| self.passes(item));
        let source = intent.plain();
        let is_counted = || {
            let is_kept = self.conditions.is_unseen(cluster, &source)
                || (self.conditions.handed_over.contains(&source) && !is_taken());
            !is_kept || self.passes(&Item::Copy(cluster.clone(), intent.clone()))
        };
        passes && is_counted() && !self.blocks_intent(cluster, intent)
    }

    /// Whether an intent in a cluster is to be judged by itself, where its source passed without its copies.
    pub fn is_uncounted(&self, cluster: &ClusterName, intent: &SourceRef) -> bool {
        let source = intent.plain();
        self.conditions.handed_over.contains(&source) || self.conditions.is_unseen(cluster, &source)
    }

    /// Whether some intent passes only as long as another rule sends it.
    pub fn hands_over(&self) -> bool {
        !self.conditions.handed_over.is_empty()
    }

    /// Whether an intent waits for approval in a cluster.
    pub fn blocks_intent(&self, cluster: &ClusterName, intent: &SourceRef) -> bool {
        items_of(cluster, intent)
            .iter()
            .any(|item| self.blocks(item))
    }

    /// Whether something passes in clusters that the rule selects.
    pub fn passes_in_clusters(&self) -> bool {
        let first = Item::Kind(ClusterName::from(""), Arc::default());
        self.passed.range(first..).next().is_some()
    }

    /// Whether copies of selected sources pass: of a kind that is not granted, or in namespaces that are no targets.
    pub fn passes_selected(&self) -> bool {
        self.has_prunes() || self.passes_kinds()
    }

    /// Whether copies of a kind that is not granted pass.
    pub fn passes_kinds(&self) -> bool {
        let first = Item::Kind(ClusterName::from(""), Arc::default());
        let mut passed = self.passed.range(first..);
        matches!(passed.next(), Some(Item::Kind(..)))
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

impl Item {
    /// The intent of the copies, if it is about just one.
    pub fn intent(&self) -> Option<&SourceRef> {
        match self {
            Item::Copy(_, intent) | Item::Name(intent) | Item::Source(intent) => Some(intent),
            Item::Rule | Item::Cluster(_) | Item::Kind(..) | Item::Prune(..) => None,
        }
    }

    /// The source of the copies, if it is about just one.
    pub(super) fn source(&self) -> Option<SourceRef> {
        self.intent().map(SourceRef::plain)
    }

    /// The kind of the copies, if it is about all of a kind.
    pub(super) fn kind(&self) -> Option<&Arc<str>> {
        match self {
            Item::Kind(_, kind) => Some(kind),
            _ => None,
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
