//! What was judged, as sessions see it.
use std::collections::BTreeSet;
#[cfg(test)]
use std::sync::Arc;

use runnel_proto::model::{AskedDigest, ClusterName, SourceRef};

use super::{Item, Permits};

/// What was judged. Sessions remove only what passed, and let agents remove or overwrite of their
/// own accord only what is permitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    pub(super) passed: BTreeSet<Item>,
    pub(super) held: BTreeSet<Item>,
    /// What may be overwritten.
    pub(super) permits: Permits,
    /// What may go of what is in namespaces given up.
    pub(super) let_go: Permits,
}

impl Judged {
    /// These may go. For tests.
    #[cfg(test)]
    pub fn passing(items: impl IntoIterator<Item = Item>) -> Arc<Self> {
        Arc::new(Self { passed: items.into_iter().collect(), ..Self::default() })
    }

    /// Whether it may be removed.
    pub fn passes(&self, item: &Item) -> bool {
        self.passed.contains(item)
    }

    /// Whether an intent may be removed in a cluster.
    pub fn passes_intent(&self, cluster: &ClusterName, intent: &SourceRef) -> bool {
        items_of(cluster, intent).iter().any(|item| self.passes(item))
    }

    /// Whether an intent is held in a cluster.
    pub fn holds_intent(&self, cluster: &ClusterName, intent: &SourceRef) -> bool {
        items_of(cluster, intent).iter().any(|item| self.holds(item))
    }

    /// Whether what may go differs in what clusters hear of that the rule does not choose.
    pub fn differs_elsewhere(&self, former: &Judged) -> bool {
        let is_for_all = |item: &&Item| matches!(item, Item::Rule | Item::Cluster(_));
        let others = |judged: &Judged| judged.passed.iter().take_while(is_for_all).cloned().collect::<Vec<_>>();
        others(self) != others(former)
    }

    /// Whether the same is removed and held: what agents are permitted may differ.
    pub fn removes_the_same(&self, former: &Judged) -> bool {
        self.passed == former.passed && self.held == former.held
    }

    /// The clusters in which something else is permitted.
    pub fn permits_otherwise(&self, former: &Judged) -> BTreeSet<ClusterName> {
        let all = [&self.permits, &self.let_go, &former.permits, &former.let_go].into_iter().flat_map(Permits::keys);
        let differs = |cluster: &&ClusterName| {
            self.permit(cluster) != former.permit(cluster) || self.let_go(cluster) != former.let_go(cluster)
        };
        all.filter(differs).cloned().collect()
    }

    /// What may be overwritten in a cluster.
    pub fn permit(&self, cluster: &ClusterName) -> Option<AskedDigest> {
        self.permits.get(cluster).copied()
    }

    /// What may go in a cluster of what is in namespaces given up.
    pub fn let_go(&self, cluster: &ClusterName) -> Option<AskedDigest> {
        self.let_go.get(cluster).copied()
    }

    /// May go. For tests.
    #[cfg(test)]
    pub fn letting_go(cluster: &ClusterName, digest: AskedDigest) -> Arc<Self> {
        Arc::new(Self { let_go: Permits::from([(cluster.clone(), digest)]), ..Self::default() })
    }

    /// The same, and this may be overwritten. For tests.
    #[cfg(test)]
    pub fn permitting(&self, cluster: &ClusterName, digest: AskedDigest) -> Arc<Self> {
        Arc::new(Self { permits: Permits::from([(cluster.clone(), digest)]), ..self.clone() })
    }

    /// Whether it is held.
    pub fn holds(&self, item: &Item) -> bool {
        self.held.contains(item)
    }
}

/// What an intent goes by in a cluster that the rule chooses. What is wanted again was taken out, so each of these says
/// enough.
fn items_of(cluster: &ClusterName, intent: &SourceRef) -> [Item; 4] {
    [
        Item::Source(intent.plain()),
        Item::Name(intent.clone()),
        Item::Copy(cluster.clone(), intent.clone()),
        Item::Kind(cluster.clone(), intent.resource.clone()),
    ]
}
