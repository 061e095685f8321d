//! What is fixed for the life of the process.
use std::time::Duration;

use runnel_proto::model::RevisionKey;

use runnel_hub_core::guard::Limit;
#[cfg(test)]
use runnel_hub_core::plan::RENDER_BUDGET;
use runnel_hub_core::plan::Scope;

/// What is fixed for the life of the process.
pub struct Settings {
    /// Runnel's own namespace on the hub.
    pub namespace: String,
    /// The hub's id.
    pub hub_id: String,
    /// Uid of the hub cluster's `kube-system` namespace.
    pub cluster_uid: String,
    /// The namespaces in which sources are watched.
    pub scope: Scope,
    /// How long a deleted source still counts as existing.
    pub source_gone_grace: Duration,
    /// How long after its end a member's certificate can still be renewed.
    pub expired_renewal_limit: Duration,
    /// What no rule's removalLimit can raise.
    pub removal_ceiling: Limit,
    /// The most bytes of content that is rendered for single clusters, for one rule.
    pub render_budget: u64,
    /// The key for revisions.
    pub revision_key: RevisionKey,
}

#[cfg(test)]
impl Settings {
    /// Those of a hub that serves everything, at once and without a limit.
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
