//! What was held of late, by the digests that people were shown. Pure.
//!
//! A person needs a minute to read a digest and to name it, and a set in which one member finds something else every few
//! seconds has another name by then. So for every name that the set had lately, it is known which clusters still wait for
//! just what they waited for then. A release lets exactly these go; the others were not seen by whoever released it.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use runnel_proto::model::{self, ClusterName};

use super::is_released;
use super::named::Waiting;

/// How many names are remembered.
const NAMES: usize = 256;

/// The names that a set had lately.
#[derive(Clone, Default)]
pub(super) struct Shown {
    /// What each cluster waits for, and since which change of the set.
    since: BTreeMap<ClusterName, (model::Asked, u64)>,
    /// What the set was called, and after which change.
    names: VecDeque<(String, u64)>,
    changes: u64,
}

impl Shown {
    /// The set is this now, and people see it by this name, if by any.
    pub(super) fn note(&mut self, held: &Waiting, digest: Option<String>) {
        if held.is_empty() {
            *self = Self::default();
            return;
        }
        let is_known = held.iter().eq(self.since.iter().map(|(cluster, (asked, _))| (cluster, asked)));
        let last = self.names.back().map(|(name, _)| name);
        if is_known && (digest.is_none() || digest.as_ref() == last) {
            return;
        }
        self.changes += 1;
        self.since.retain(|cluster, (asked, _)| held.get(cluster) == Some(asked));
        for (cluster, asked) in held {
            self.since.entry(cluster.clone()).or_insert((*asked, self.changes));
        }
        self.names.extend(digest.map(|digest| (digest, self.changes)));
        if self.names.len() > NAMES {
            self.names.pop_front();
        }
    }

    /// The newest name that an annotation releases, and the clusters that have waited for the same ever since.
    pub(super) fn released(&self, release: Option<&str>) -> Option<(String, BTreeSet<ClusterName>)> {
        let (digest, then) = self.names.iter().rev().find(|(digest, _)| is_released(release, digest))?;
        let same = self.since.iter().filter(|(_, (_, since))| since <= then).map(|(cluster, _)| cluster.clone());
        let same: BTreeSet<_> = same.collect();
        (!same.is_empty()).then(|| (digest.clone(), same))
    }
}
