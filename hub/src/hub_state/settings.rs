//! Settings that stay constant while the process runs.
use std::time::Duration;

use runnel_proto::model::RevisionKey;

use runnel_hub_core::guard::Limit;
#[cfg(test)]
use runnel_hub_core::plan::RENDER_BUDGET;
use runnel_hub_core::plan::Scope;

/// Settings that stay constant while the process runs.
pub struct Settings {
    /// Runnel's own namespace on the hub.
    pub namespace: String,
    /// The hub's id.
    pub hub_id: String,
    /// Uid of the hub cluster's `kube-system` namespace.
    pub cluster_uid: String,
    /// The namespaces in which sources are watched.
    pub scope: Scope,
    /// The grace period for which a deleted source still counts as existing.
    pub source_gone_grace: Duration,
    /// The time for which an expired certificate of a member can still be renewed.
    pub expired_renewal_limit: Duration,
    /// The upper limit for the removalLimit of every rule.
    pub removal_ceiling: Limit,
    /// The limit of compressed bytes that are rendered for one rule whose copies differ by cluster.
    pub render_budget: u64,
    /// The key for revisions.
    pub revision_key: RevisionKey,
}

#[cfg(test)]
impl Settings {
    /// Returns settings of a hub that serves all namespaces, without grace periods and limits.
    pub fn for_tests() -> Self {
        Self {
            namespace: "runnel-system".to_owned(),
            hub_id: "hub".to_owned(),
            cluster_uid: "uid".to_owned(),
            scope: Scope::default(),
            source_gone_grace: Duration::ZERO,
            expired_renewal_limit: Duration::ZERO,
            removal_ceiling: Limit::NONE,
            render_budget: RENDER_BUDGET,
            revision_key: RevisionKey::new(b"key"),
        }
    }
}
