//! The index: rules, sources, grants and clusters, and the plans that follow from them. Pure,
//! behind one lock with short sections.
//!
//! An event (of a rule, a source, a cluster or a watch) changes only the plans of the concerned
//! rules. Its [`Effect`] names the clusters whose desired set changed and the sources whose content
//! must be read. After any sequence of events every plan equals [`crate::plan::plan`] of the final
//! state.
//!
//! The index pushes nothing to sessions. They ask for the [`Directive`]s that changed since the
//! last version they saw. So a slow agent skips to the newest state, and nothing can overflow.
//!
//! # Parts
//! [`Index`] coordinates parts that each own their state: a change of one part returns what follows
//! from it, and the index applies that to the others.
//!
//! | part | state | changes |
//! |---|---|---|
//! | [`Sources`] | `sources`: the known sources | `sources` |
//! | [`WatchScopes`] | `watch_scopes`: the states of the watch scopes | `watch_scopes` |
//! | [`Targets`] | `clusters` and grants: where rules send objects, resolved in `targets` | `clusters`, `grants` |
//! | [`Planner`] | `rules`: the rules with their versions; `rule_lookup`: the rules by source; `rendering`: changes that wait | `planner` |
//! | [`FleetGuard`] | [`crate::guard`]: the removals that wait, the limits, and the scopes that are being deleted | `judge` |
//!
//! # Other files
//! - `changes`: reports to the removal guard what a rule selects and no longer selects.
//! - `copy_counter`: counts the copies that a removal concerns.
//! - `handover`: copies that change hands between rules.
//! - `orphaned_intents`: copies that agents report and no rule selects.
//! - `render_jobs`: what a render job takes from the index, and what its result changes.
//! - `rollouts`: which clusters may have the newest change, and the stored states.
//! - `rule_context`: the part of the index that concerns one rule, for a preview.
//! - `unobserved`: what the index has not observed yet of what the API server lists for a rule.
mod changes;
mod clusters;
mod copy_counter;
mod grants;
#[cfg(test)]
mod guard_tests;
mod handover;
mod judge;
#[cfg(test)]
mod kinds_tests;
mod orphaned_intents;
mod planner;
mod render_jobs;
mod rendering;
#[cfg(test)]
mod rendering_tests;
#[cfg(test)]
mod rollback_tests;
mod rollouts;
mod rule_context;
#[cfg(test)]
mod rule_deletion_tests;
mod rule_lookup;
mod rules;
#[cfg(test)]
mod secret_refs_tests;
mod sources;
mod targets;
#[cfg(test)]
mod tests;
mod unobserved;
mod watch_scopes;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use runnel_proto::model::{ClusterName, DeletionPolicy, PruneRequest, RuleUid, SourceRef};

use crate::guard::{FleetGuard, Item, RemovalGuard};
use crate::plan::{
    ClusterAssignment, ClusterPlans, GrantedTerms, PendingClaim, RevisionHasher, Rule, RulePlan,
    Scope, TargetClusters,
};
use crate::rollout::{AllowedUrls, Gate};
pub use clusters::{Cluster, Clusters};
pub use grants::HubNamespace;
pub use judge::CopiesIn;
pub use planner::Planner;
pub use render_jobs::{RenderJob, RenderResult};
use rendering::RenderBacklog;
pub use rollouts::{CompletedStates, RollbackPlan, StoredState};
pub use rule_context::RuleSnapshot;
use rule_lookup::KnownClaimants;
pub use rules::Rules;
use runnel_api::PendingApproval;
pub use sources::{Sources, version_number};
pub use targets::{ChangedObject, Targets};
pub use unobserved::{ListedScope, Unobserved};
pub use watch_scopes::{ScopeState, WatchScopes};

/// The hub's directive about one rule to one cluster.
#[derive(Clone)]
pub enum Directive {
    /// The cluster should have this.
    Assigned(ClusterAssignment),
    /// The cluster should have this, but is cordoned: it gets nothing new. Unwanted copies are
    /// removed.
    Cordoned(ClusterAssignment),
    /// The rule exists or is being deleted, and has no copies in this cluster any more: they are
    /// removed.
    Removed(DeletionPolicy),
    /// The known rule does not choose the cluster, but is suspended: copies are left unchanged,
    /// with these terms.
    Suspended(ClusterAssignment),
    /// The rule does not select the cluster any more, but the removal guard blocks the removal:
    /// nothing is sent, and the copies stay.
    RemovalBlocked,
    /// The cluster should have this in a later wave of the rollout: nothing is sent and nothing
    /// removed. Only whether the rule is suspended is sent.
    AwaitingWave(ClusterAssignment),
    /// The rule selects the cluster, but its grants are unknown: nothing is sent and nothing
    /// removed.
    Unknown,
    /// The rule has no copies in this cluster any more, but other rules are to send some of them first: nothing is sent and
    /// nothing removed.
    AwaitingHandover(DeletionPolicy, Arc<[PendingClaim]>),
    /// The index has no such rule.
    Orphaned,
}

/// The result of an event.
#[derive(Default)]
pub struct Effect {
    /// Rules whose plan, clusters or spec changed. Their status may be stale.
    pub rules: BTreeSet<RuleUid>,
    /// Rules of which only the status may be stale.
    pub statuses: BTreeSet<RuleUid>,
    /// Clusters to which some claim changed.
    pub clusters: BTreeSet<ClusterName>,
    /// Sources whose content must be read.
    pub read: BTreeSet<SourceRef>,
    /// Rules that no longer select some items. [`Index::judge`] decides about the removals.
    pub judge: BTreeSet<RuleUid>,
    /// Rules to update after changes of grants and scopes ([`Index::follow`]).
    pub follow: BTreeSet<RuleUid>,
    /// Whether all objects must be relisted, because labels that are needed now were not stored.
    pub relist: bool,
    /// Rules of which copies are to be rendered ([`Index::render_job`]).
    pub render: BTreeSet<RuleUid>,
}

impl Effect {
    /// Merges both effects.
    pub fn merge(&mut self, mut other: Effect) {
        self.rules.append(&mut other.rules);
        self.statuses.append(&mut other.statuses);
        self.clusters.append(&mut other.clusters);
        self.read.append(&mut other.read);
        self.judge.append(&mut other.judge);
        self.follow.append(&mut other.follow);
        self.relist |= other.relist;
        self.render.append(&mut other.render);
    }
}

/// A rule in the index.
pub struct RuleEntry {
    /// The rule.
    pub rule: Rule,
    /// The selection.
    pub plan: Arc<RulePlan>,
    /// The plans.
    pub cluster_plans: ClusterPlans,
    /// The chosen clusters without leaving ones, by their grants.
    pub target_clusters: TargetClusters,
    /// The removal guard.
    pub guard: RemovalGuard,
    /// The clusters that may get the target, if the rule has a rollout.
    pub gate: Option<Gate>,
    /// Whether the rollout was paused since its last step.
    pub was_paused: bool,
    /// Changes that wait to be rendered.
    unrendered: RenderBacklog,
    version: u64,
    /// The name of the current target, computed at the first use after a change.
    target: OnceLock<String>,
    /// The state for a rollback, if it is stored.
    former: RollbackPlan,
    /// The other rules that select what this one removes.
    claimants: KnownClaimants,
}

impl RuleEntry {
    fn share_of(
        &self,
        cluster: &ClusterName,
        plan: &Arc<RulePlan>,
        terms: &GrantedTerms,
    ) -> ClusterAssignment {
        let judged = self.guard.decision().clone();
        let rolled_back = self
            .rollback()
            .and_then(|_| self.cluster_plans.plan(cluster, &self.plan))
            .cloned();
        ClusterAssignment {
            cluster: cluster.clone(),
            authorized: terms.authorize(plan),
            judged,
            rolled_back,
            claims: Arc::default(),
        }
    }

    /// Returns the assignment of a cluster; `None` if the rule does not target it.
    pub fn assignment(&self, cluster: &ClusterName) -> Option<ClusterAssignment> {
        let (cluster_plans, target_clusters) = self.sent();
        let plan = cluster_plans.plan(cluster, &self.plan)?;
        Some(self.share_of(cluster, plan, target_clusters.clusters.get(cluster)?))
    }
}

/// The state of the hub: rules, sources, grants, clusters and plans.
#[derive(Default)]
pub struct Index {
    planner: Planner,
    sources: Sources,
    scopes: WatchScopes,
    targets: Targets,
    fleet_guard: FleetGuard,
}

impl Index {
    /// An index of a hub that watches these namespaces.
    pub fn of(scope: Scope) -> Self {
        Self {
            scopes: WatchScopes::of(scope),
            ..Self::default()
        }
    }

    /// Sets the hasher for rendered contents.
    #[must_use]
    pub fn hashing_with(mut self, revision_hasher: RevisionHasher) -> Self {
        self.planner.rendering.revision_hasher = revision_hasher;
        self
    }

    /// Defers slow work to the caller: see [`Effect::render`] and [`Effect::follow`].
    #[must_use]
    pub fn with_deferred_rendering(mut self) -> Self {
        self.planner.rendering.defer();
        self
    }

    /// Allows the analyses of rollouts to request these URLs.
    #[must_use]
    pub fn with_allowed_urls(mut self, allowed: AllowedUrls) -> Self {
        self.planner.rules.allowed_urls = allowed;
        self
    }

    /// Returns the rules.
    pub fn rules(&self) -> &Rules {
        &self.planner.rules
    }

    /// Returns the rules, for changes that concern nothing else.
    pub fn rules_mut(&mut self) -> &mut Rules {
        &mut self.planner.rules
    }

    /// Returns the rules with the changes that wait to be rendered.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Returns the planner, for changes that concern nothing else.
    pub fn planner_mut(&mut self) -> &mut Planner {
        &mut self.planner
    }

    /// Returns the known sources.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns the known sources, for changes that concern no rule yet.
    pub fn sources_mut(&mut self) -> &mut Sources {
        &mut self.sources
    }

    /// Returns the watch scopes.
    pub fn scopes(&self) -> &WatchScopes {
        &self.scopes
    }

    /// Returns the member clusters.
    pub fn clusters(&self) -> &Clusters {
        &self.targets.clusters
    }

    /// Returns the member clusters and the grants.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Returns the guard across rules.
    pub fn fleet_guard(&self) -> &FleetGuard {
        &self.fleet_guard
    }

    /// Returns the guard across rules, for changes that no rule follows at once.
    pub fn fleet_guard_mut(&mut self) -> &mut FleetGuard {
        &mut self.fleet_guard
    }

    /// The directive about a rule to a served cluster ([`Clusters::serves_cluster`]). A pure function of
    /// rule and cluster, so it needs no session.
    pub fn directive(&self, uid: &RuleUid, name: &ClusterName) -> Directive {
        let cluster = || self.targets.clusters.get(name);
        let Some(entry) = self.planner.rules.get(uid) else {
            if self.planner.rendering.is_awaited(uid) {
                return Directive::Unknown;
            }
            // A deleted rule may have left an order for a cluster that was not connected.
            let pending = cluster().and_then(|cluster| cluster.pending.get(uid));
            return pending.map_or(Directive::Orphaned, |removal| {
                self.stored_removal(name, removal.deletion_policy.into())
            });
        };
        self.after_handover(entry, name, self.directive_of(entry, name))
    }

    /// The directive of a known rule, whatever other rules are to send.
    fn directive_of(&self, entry: &RuleEntry, name: &ClusterName) -> Directive {
        let policy = entry.rule.terms.deletion_policy;
        let judged = entry.guard.decision();
        if entry.rule.deleting && judged.passes(&Item::Rule) {
            return Directive::Removed(policy);
        }
        let is_target = || entry.target_clusters.clusters.contains_key(name);
        if entry.is_withheld()
            || (is_target() && (entry.lacks(name) || self.may_be_ambiguous(&entry.plan)))
        {
            return Directive::Unknown;
        }
        if let Some(assignment) = entry.assignment(name) {
            return if entry.target_clusters.unknown {
                Directive::Unknown
            } else if entry.awaits(name) {
                Directive::AwaitingWave(assignment)
            } else if entry.target_clusters.cordoned.contains(name) {
                Directive::Cordoned(assignment)
            } else if entry.is_shut_to(name) {
                // Only whether the rule is suspended is sent, to all clusters.
                Directive::AwaitingWave(assignment)
            } else {
                Directive::Assigned(assignment)
            };
        }
        let leaving = self
            .targets
            .clusters
            .get(name)
            .is_some_and(|known| known.leaving);
        // If deliberate deletes are under the limits, removals from a leaving cluster are, too.
        if leaving && !self.fleet_guard.terms.limits_deliberate_deletes {
            Directive::Removed(policy)
        } else if entry.rule.terms.is_frozen() {
            let nothing = GrantedTerms::nothing(entry.rule.terms.clone());
            Directive::Suspended(entry.share_of(name, &entry.plan, &nothing))
        } else if judged.passes(&Item::Cluster(name.clone())) {
            Directive::Removed(policy)
        } else {
            Directive::RemovalBlocked
        }
    }

    /// Whether an object may come from a bundle and from another source of the rule, of which nothing was read yet. Then neither
    /// is sent.
    fn may_be_ambiguous(&self, plan: &RulePlan) -> bool {
        let is_unlisted = |scope| self.scopes.state(scope) == ScopeState::Unwatched;
        plan.selects_bundles() && (plan.awaits_bundle() || plan.unknown.iter().any(is_unlisted))
    }

    /// The rules with a directive for this cluster that may have changed after `since`, with that
    /// directive; and the version for the next call. They include rules that never selected the
    /// cluster: they concern only agents with copies of them. `since` 0 returns all rules.
    pub fn directives_since(
        &self,
        cluster: &ClusterName,
        since: u64,
    ) -> (Vec<(RuleUid, Directive)>, u64) {
        let rules = &self.planner.rules;
        let directives = rules
            .changed_since(since)
            .map(|uid| (uid.clone(), self.directive(uid, cluster)))
            .collect();
        (directives, rules.version())
    }
}

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
