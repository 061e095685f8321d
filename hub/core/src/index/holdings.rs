//! What the removal guard reads of the agents' reports, and what it lets wait in the fleet.
use runnel_api::PendingApproval;
use runnel_proto::model::{ClusterName, PruneRequest, RuleUid};

/// The copies of a rule that an agent reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedCopies {
    /// Copies that the rule has, those in namespaces that are no longer targets too.
    pub copies: u64,
    /// Intents.
    pub intents: u64,
    /// Reported copies whose namespace is no longer a target.
    pub prunes: Option<PruneRequest>,
}

/// Looks up the reported copies of a rule in a cluster.
pub type ReportedCopiesFn<'a> = &'a dyn Fn(&RuleUid, &ClusterName) -> Option<ReportedCopies>;

/// The pending approval of one cause in the fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PendingCause {
    /// All of it, as one approval; its names are those of the rules.
    pub approval: PendingApproval,
    /// Number of affected rules.
    pub rules: u64,
}
