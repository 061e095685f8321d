//! The clusters that may have a target.
use std::collections::BTreeMap;
use std::time::Instant;

use runnel_proto::model::ClusterName;

/// The clusters that may have a target now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmittedClusters {
    /// Every cluster: the rollout has ended.
    All,
    /// These clusters, each with the time of its admission.
    Only(BTreeMap<ClusterName, Instant>),
}

/// Lets clusters have one target, and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The target.
    pub revision: String,
    /// The clusters that may have it.
    pub reach: AdmittedClusters,
    /// Whether only an event can cause the next step, not time alone.
    pub is_settled: bool,
    /// The completed target whose state the clusters get during a rollback.
    pub back_to: Option<String>,
}

impl Gate {
    /// Whether the target is rolled back.
    pub fn is_rolling_back(&self) -> bool {
        self.back_to.is_some()
    }

    /// Whether a cluster may have this target.
    pub fn admits(&self, target: &str, cluster: &ClusterName) -> bool {
        self.revision == target
            && match &self.reach {
                AdmittedClusters::All => true,
                AdmittedClusters::Only(these) => these.contains_key(cluster),
            }
    }

    /// Whether every cluster may have this target.
    pub fn is_open(&self, target: &str) -> bool {
        self.revision == target && self.reach == AdmittedClusters::All
    }

    /// The clusters that apply this target or return from it, with the start of that.
    pub(super) fn clusters_in_progress(
        &self,
        target: &str,
        back: bool,
    ) -> BTreeMap<ClusterName, Instant> {
        match &self.reach {
            AdmittedClusters::Only(these)
                if self.revision == target && self.is_rolling_back() == back =>
            {
                these.clone()
            }
            _ => BTreeMap::new(),
        }
    }
}
