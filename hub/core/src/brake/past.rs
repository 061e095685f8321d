//! What one brake knows of an earlier process of the hub, and of what was released.
use std::collections::BTreeSet;

use runnel_proto::model::ClusterName;

use super::Memory;

/// What was before this process, or before the last release.
#[derive(Clone, Default)]
pub(super) struct Past {
    /// What another process of the hub held and nobody has released.
    pub(super) carried: Option<Memory>,
    /// The clusters that were away when that was over: part of it may be there.
    pub(super) awaited: BTreeSet<ClusterName>,
    /// The release that was last carried out.
    pub(super) released: Option<Memory>,
    /// Digests are made of the last one released, too.
    pub(super) previous: String,
}

impl Past {
    /// What the rule's status says of it.
    pub(super) fn remembering(memory: Option<&Memory>) -> Self {
        match memory {
            Some(memory) if memory.released => {
                Self { previous: memory.digest.clone(), released: Some(memory.clone()), ..Self::default() }
            }
            Some(memory) => Self {
                previous: memory.previous.clone(),
                released: memory.used(),
                carried: Some(memory.clone()),
                awaited: BTreeSet::new(),
            },
            None => Self::default(),
        }
    }

    /// Every agent has spoken, but for those that are `away`. Returns whether anything was held before.
    pub(super) fn settle(&mut self, away: &BTreeSet<ClusterName>) -> bool {
        let carried = self.carried.take().is_some();
        if carried {
            self.awaited.clone_from(away);
        }
        carried
    }

    /// What was held before matters no more.
    pub(super) fn let_go(&mut self) {
        self.carried = None;
        self.awaited.clear();
    }
}
