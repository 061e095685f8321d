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
//! # Files
//! - `changes`: reports to the removal guard what a rule selects and no longer selects.
//! - `clusters`: changes of member clusters.
//! - `copy_counter`: counts the copies that a removal concerns.
//! - `grants`: changes of grants and namespaces.
//! - `guard`: holds items that are no longer selected.
//! - `judge`: decides which removals pass and which are blocked, by cause.
//! - `orphaned_intents`: copies that agents report and no rule selects.
//! - `rendering`: rendering outside the lock of the index.
//! - `rollouts`: which clusters may have the newest change, and the stored states.
//! - `rule_context`: the part of the index that concerns one rule, for a preview.
//! - `rule_lookup`: finds the rules that may need an object.
//! - `rules`: changes of rules.
//! - `source_cache`: the known sources.
//! - `sources`: changes of sources.
//! - `watch_scopes`: states of the watch scopes.
mod changes;
mod clusters;
mod copy_counter;
#[cfg(test)]
mod going_tests;
mod grants;
mod guard;
#[cfg(test)]
mod guard_tests;
mod holdings;
mod judge;
mod orphaned_intents;
mod rendering;
#[cfg(test)]
mod rendering_tests;
mod rollouts;
mod rule_context;
mod rule_lookup;
mod rules;
#[cfg(test)]
mod secret_refs_tests;
mod source_cache;
mod sources;
#[cfg(test)]
mod tests;
mod watch_scopes;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use runnel_proto::model::{ClusterName, DeletionPolicy, RuleUid, SourceRef};

use crate::guard::{FleetGuard, Item, Limit, RemovalGuard};
use crate::plan::{
    ClusterAssignment, ClusterPlans, Grants, NamedTerms, RevisionHasher, Rule, RulePlan, Scope,
    TargetClusters, WatchScope,
};
use crate::rollout::Gate;
pub use clusters::Cluster;
pub use grants::SeenNamespace;
pub use holdings::{Holding, Holdings, PendingCause};
use judge::TerminatingScopes;
pub use rendering::{RenderJob, Rendered};
use rendering::{Rendering, Unrendered};
use rollouts::RolloutTarget;
pub use rollouts::{Former, StoredState};
pub use rule_context::{Around, ChangedObject};
use rule_lookup::Selection;
use source_cache::SourceCache;
pub use source_cache::version_number;
pub use watch_scopes::ScopeState;

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
    /// The index has no such rule.
    Orphaned,
}

/// The result of an event.
#[derive(Default)]
pub struct Effect {
    /// Rules whose plan, clusters or spec changed. Their status may be stale.
    pub rules: BTreeSet<RuleUid>,
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
    /// Changes that wait to be rendered.
    unrendered: Unrendered,
    version: u64,
    /// The name of the current target, computed at the first use after a change.
    target: OnceLock<RolloutTarget>,
    /// The state for a rollback, if it is stored.
    former: Former,
}

impl RuleEntry {
    fn share_of(
        &self,
        cluster: &ClusterName,
        plan: &Arc<RulePlan>,
        terms: &NamedTerms,
    ) -> ClusterAssignment {
        let judged = self.guard.decision().clone();
        let rolled_back = self
            .rollback()
            .and_then(|_| self.cluster_plans.plan(cluster, &self.plan))
            .cloned();
        ClusterAssignment {
            cluster: cluster.clone(),
            plan: plan.clone(),
            terms: terms.clone(),
            judged,
            rolled_back,
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
    rules: BTreeMap<RuleUid, RuleEntry>,
    sources: SourceCache,
    /// Computes revisions of rendered contents.
    revision_hasher: RevisionHasher,
    /// The scope of the hub's watches.
    scope: Scope,
    places: BTreeMap<WatchScope, ScopeState>,
    clusters: BTreeMap<ClusterName, Cluster>,
    grants: Grants,
    /// The rules by the sources that they select.
    selection: Selection,
    changes: ChangeLog,
    /// The guard across rules.
    guard: FleetGuard,
    terminating: TerminatingScopes,
    /// The limit that rules cannot raise.
    ceiling: Option<Limit>,
    /// The state of deferred rendering.
    rendering: Rendering,
    /// The states of completed rollouts.
    completed: rollouts::CompletedStates,
}

impl Index {
    /// Returns an empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a rule.
    pub fn rule(&self, uid: &RuleUid) -> Option<&RuleEntry> {
        self.rules.get(uid)
    }

    /// Every rule.
    pub fn rules(&self) -> impl Iterator<Item = (&RuleUid, &RuleEntry)> {
        self.rules.iter()
    }

    /// Returns a cluster.
    pub fn cluster(&self, name: &ClusterName) -> Option<&Cluster> {
        self.clusters.get(name)
    }

    /// Every cluster, by its name.
    pub fn members(&self) -> &BTreeMap<ClusterName, Cluster> {
        &self.clusters
    }

    /// Every cluster.
    pub fn clusters(&self) -> impl Iterator<Item = (&ClusterName, &Cluster)> {
        self.clusters.iter()
    }

    /// An index of a hub that watches these namespaces.
    pub fn of(scope: Scope) -> Self {
        Self {
            scope,
            ..Self::default()
        }
    }

    /// Sets the hasher for rendered contents.
    pub fn hashing_with(self, revision_hasher: RevisionHasher) -> Self {
        Self {
            revision_hasher,
            ..self
        }
    }

    /// The scope of the hub's watches.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whether the hub serves this cluster: it exists, with this uid, and is accepted. Any other
    /// cluster is sent nothing, not even a removal.
    pub fn talks_to(&self, cluster: &ClusterName, uid: &str) -> bool {
        self.clusters
            .get(cluster)
            .is_some_and(|known| known.accepted && known.uid == uid)
    }

    /// The directive about a rule to a served cluster ([`Index::talks_to`]). A pure function of
    /// rule and cluster, so it needs no session.
    pub fn directive(&self, uid: &RuleUid, cluster: &ClusterName) -> Directive {
        let Some(entry) = self.rules.get(uid) else {
            return if self.is_awaited(uid) {
                Directive::Unknown
            } else {
                self.pending_claim(uid, cluster)
            };
        };
        let policy = entry.rule.terms.deletion_policy;
        let judged = entry.guard.decision();
        if entry.rule.deleting && judged.passes(&Item::Rule) {
            return Directive::Removed(policy);
        }
        if entry.unrendered.is_outdated()
            || (entry.target_clusters.clusters.contains_key(cluster) && entry.lacks(cluster))
        {
            return Directive::Unknown;
        }
        if let Some(assignment) = entry.assignment(cluster) {
            return if entry.target_clusters.unknown {
                Directive::Unknown
            } else if entry.awaits(cluster) {
                Directive::AwaitingWave(assignment)
            } else if entry.target_clusters.cordoned.contains(cluster) {
                Directive::Cordoned(assignment)
            } else if entry.is_shut_to(cluster) {
                // Only whether the rule is suspended is sent, to all clusters.
                Directive::AwaitingWave(assignment)
            } else {
                Directive::Assigned(assignment)
            };
        }
        let leaving = self
            .clusters
            .get(cluster)
            .is_some_and(|cluster| cluster.leaving);
        // If deliberate deletes are under the limits, removals from a leaving cluster are, too.
        if leaving && !self.guard.terms.holds_deliberate {
            Directive::Removed(policy)
        } else if entry.rule.terms.is_frozen() {
            Directive::Suspended(entry.share_of(cluster, &entry.plan, &entry.rule.terms))
        } else if judged.passes(&Item::Cluster(cluster.clone())) {
            Directive::Removed(policy)
        } else {
            Directive::RemovalBlocked
        }
    }

    /// A deleted rule may have left an order for a cluster that was not connected.
    fn pending_claim(&self, uid: &RuleUid, cluster: &ClusterName) -> Directive {
        let pending = self
            .clusters
            .get(cluster)
            .and_then(|cluster| cluster.pending.get(uid));
        pending.map_or(Directive::Orphaned, |removal| {
            Directive::Removed(removal.deletion_policy.into())
        })
    }

    /// The version in which a rule changed last.
    pub fn version_of(&self, uid: &RuleUid) -> Option<u64> {
        self.rules.get(uid).map(|entry| entry.version)
    }

    /// The rules with a directive for this cluster that may have changed after `since`, with that
    /// directive; and the version for the next call. They include rules that never selected the
    /// cluster: they concern only agents with copies of them. `since` 0 returns all rules.
    pub fn directives_since(
        &self,
        cluster: &ClusterName,
        since: u64,
    ) -> (Vec<(RuleUid, Directive)>, u64) {
        let changed = self.changes.since(since);
        let directives = changed
            .map(|uid| (uid.clone(), self.directive(uid, cluster)))
            .collect();
        (directives, self.changes.version())
    }

    /// Marks a rule as changed for every session.
    fn touch(&mut self, uid: &RuleUid, effect: &mut Effect) {
        self.renew(uid);
        if let Some(entry) = self.rules.get(uid) {
            effect
                .clusters
                .extend(entry.target_clusters.clusters.keys().cloned());
        }
        effect.rules.insert(uid.clone());
    }

    /// Gives a rule a new version without waking any session. The cost does not depend on the
    /// number of clusters.
    fn renew(&mut self, uid: &RuleUid) {
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.version = self.changes.record(uid, entry.version);
            entry.target = OnceLock::new();
            entry.former.renew();
        }
    }

    /// Whether rules were forgotten after `since` that [`Index::directives_since`] does not return
    /// any more: a session has to ask for each of its rules.
    pub fn has_forgotten_since(&self, since: u64) -> bool {
        self.changes.has_forgotten_since(since)
    }
}

/// Deleted rules that are listed for sessions that have not received the deletion.
const FORGOTTEN_LIMIT: usize = 1024;

/// The newest version of each rule.
#[derive(Default)]
struct ChangeLog {
    version: u64,
    changes: BTreeMap<u64, RuleUid>,
    forgotten: BTreeMap<u64, RuleUid>,
    /// The version of the newest deleted rule that is not listed any more.
    forgotten_before: u64,
}

impl ChangeLog {
    /// The newest version.
    fn version(&self) -> u64 {
        self.version
    }

    /// Gives a rule a new version, instead of `former`.
    fn record(&mut self, uid: &RuleUid, former: u64) -> u64 {
        self.version += 1;
        self.changes.remove(&former);
        self.changes.insert(self.version, uid.clone());
        self.version
    }

    /// The rule of this version is not in the index any more.
    fn remove(&mut self, version: u64) {
        self.changes.remove(&version);
    }

    /// Lists a rule that is not in the index.
    fn forget(&mut self, uid: &RuleUid) {
        self.version += 1;
        self.forgotten.insert(self.version, uid.clone());
        while self.forgotten.len() > FORGOTTEN_LIMIT
            && let Some((version, _)) = self.forgotten.pop_first()
        {
            self.forgotten_before = version;
        }
    }

    /// The rules with a newer version.
    fn since(&self, version: u64) -> impl Iterator<Item = &RuleUid> {
        let newer = (Bound::Excluded(version), Bound::Unbounded);
        self.changes
            .range(newer)
            .chain(self.forgotten.range(newer))
            .map(|(_, uid)| uid)
    }

    /// Whether rules that were deleted after this version are not listed any more.
    fn has_forgotten_since(&self, version: u64) -> bool {
        version > 0 && version < self.forgotten_before
    }
}
