//! Which clusters may have the newest of a rule now: see [`crate::rollout`].
//! The states of completed rollouts, and what a rule sends while it is rolled back to one of them.
//!
//! A state takes the place of what is rendered, for all clusters of the rule: sessions and statuses compare clusters with it as
//! with anything else that a rule sends.
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use ring::digest;
use runnel_proto::model::{ClusterName, RuleUid};

use super::RuleEntry;
use super::clusters::Clusters;
use crate::guard::Item;
use crate::plan::{
    ClusterPlans, CompletedState, FormerPlans, RollbackBlocker, Rule, RulePlan, Scope, SourceState,
    TargetClusters,
};
use crate::rollout::{Progress, RolloutPosition};

impl RuleEntry {
    /// Returns the current target.
    pub fn target(&self) -> &str {
        self.target
            .get_or_init(|| RolloutTarget::of(&self.rule, &self.plan))
            .name(self.has_content())
    }

    /// Whether the removal guard blocks items inside selected clusters; or did so in an earlier
    /// process, with unknown items.
    fn has_content(&self) -> bool {
        let acked = self.guard.blocked();
        let is_of_content =
            |item: &Item| !matches!(item, Item::Rule | Item::Cluster(_) | Item::Prune(..));
        self.guard.blocks_removals() && (acked.is_empty() || acked.iter().any(is_of_content))
    }

    /// Whether the cluster awaits its wave: it keeps its copies and is sent nothing of the rule. A
    /// suspended rule has no waves.
    pub fn awaits(&self, cluster: &ClusterName) -> bool {
        !self.rule.terms.suspend && self.is_shut_to(cluster)
    }

    /// Whether a cluster may not have the newest target of the rule, suspended or not.
    pub(super) fn is_shut_to(&self, cluster: &ClusterName) -> bool {
        let is_let_in = || {
            self.gate
                .as_ref()
                .is_some_and(|gate| gate.admits(self.target(), cluster))
        };
        self.rule.rollout.is_some() && (!is_let_in() || self.lacks_former())
    }

    /// Whether a rollout is under way, so that time alone may bring the next step now.
    pub(super) fn is_rolling(&self, now: Timestamp) -> bool {
        let is_idle = || {
            self.gate
                .as_ref()
                .is_some_and(|gate| gate.is_idle(now) && gate.revision == self.target())
        };
        self.rule.rollout.is_some() && !self.rule.terms.suspend && !self.rule.deleting && !is_idle()
    }

    /// Returns the place of each cluster in the order of the rollout, which has come so far.
    pub fn rollout_order(
        &self,
        clusters: &Clusters,
        progress: Option<&Progress>,
    ) -> Vec<RolloutPosition> {
        let Some(rollout) = &self.rule.rollout else {
            return Vec::new();
        };
        let order = rollout.order(progress, self.target());
        let turn = |name: &ClusterName| {
            let value = order.and_then(|label| clusters.get(name)?.labels.get(label));
            RolloutPosition {
                value: value.cloned(),
                cluster: name.clone(),
            }
        };
        let mut turns: Vec<_> = self.target_clusters.clusters.keys().map(turn).collect();
        turns.sort();
        turns
    }
}

/// The stored state of a rule's last completed rollout.
#[derive(Clone)]
pub struct StoredState {
    /// The target of the rollout; empty where that is not known.
    pub revision: String,
    /// Its state, or why there is none.
    pub state: Result<Arc<CompletedState>, RollbackBlocker>,
}

/// The states of completed rollouts, rule by rule.
#[derive(Default)]
pub struct CompletedStates {
    by_rule: BTreeMap<RuleUid, StoredState>,
    /// Why a rule that is not among them has none.
    missing: RollbackBlocker,
}

impl CompletedStates {
    pub(super) fn of(by_rule: BTreeMap<RuleUid, StoredState>, missing: RollbackBlocker) -> Self {
        Self { by_rule, missing }
    }

    /// Returns the stored state of a rule's last completed rollout.
    pub fn get(&self, uid: &RuleUid) -> Option<&StoredState> {
        self.by_rule.get(uid)
    }

    /// Returns the reason why no state can be stored for any rule.
    pub fn blocker(&self) -> Option<&RollbackBlocker> {
        Some(&self.missing).filter(|missing| **missing == RollbackBlocker::Unreadable)
    }

    pub(super) fn set(&mut self, uid: &RuleUid, state: Option<StoredState>) {
        match state {
            Some(state) => drop(self.by_rule.insert(uid.clone(), state)),
            None => drop(self.by_rule.remove(uid)),
        }
    }

    pub(super) fn rollback_plan(&self, uid: &RuleUid) -> RollbackPlan {
        let missing = || StoredState {
            revision: String::new(),
            state: Err(self.missing.clone()),
        };
        RollbackPlan::new(self.by_rule.get(uid).cloned().unwrap_or_else(missing))
    }
}

/// The state of a rule during a rollback.
pub struct RollbackPlan {
    stored: StoredState,
    /// The plans under the current grants, computed at the first use after a change.
    plans: OnceLock<FormerPlans>,
}

impl RollbackPlan {
    /// What is kept.
    pub fn new(stored: StoredState) -> Self {
        Self {
            stored,
            plans: OnceLock::new(),
        }
    }

    pub(super) fn renew(&mut self) {
        self.plans = OnceLock::new();
    }

    /// Whether the state of this target was stored, or could not be.
    pub fn is_decided(&self, target: &str) -> bool {
        self.stored.revision == target
    }

    /// Whether this is the state of the rollout with this target.
    ///
    /// # Errors
    /// Why there is none.
    pub fn is_of(&self, target: Option<&str>) -> Result<(), RollbackBlocker> {
        let is_same = target == Some(self.stored.revision.as_str());
        match &self.stored.state {
            Ok(_) if is_same => Ok(()),
            Err(blocker) if is_same || self.stored.revision.is_empty() => Err(blocker.clone()),
            _ => Err(RollbackBlocker::NoneCompleted),
        }
    }

    /// The stored plans for the currently chosen clusters.
    pub fn plans(&self, rule: &Rule, now: &TargetClusters, scope: &Scope) -> Option<&FormerPlans> {
        let state = self.stored.state.as_ref().ok()?;
        Some(self.plans.get_or_init(|| state.plans(rule, now, scope)))
    }
}

impl RuleEntry {
    /// Returns the plans of the rollback; `None` if no state is stored.
    pub fn rollback_plan(&self) -> Option<&FormerPlans> {
        self.former
            .plans(&self.rule, &self.target_clusters, &self.plan.scope)
    }

    /// Returns the stored state of the last completed rollout.
    pub fn former_state(&self) -> &RollbackPlan {
        &self.former
    }

    /// Whether the current target is rolled back.
    pub fn is_rolling_back(&self) -> bool {
        let is_back =
            |gate: &crate::rollout::Gate| gate.is_rolling_back() && gate.revision == self.target();
        self.rule.rollout.is_some() && self.gate.as_ref().is_some_and(is_back)
    }

    /// Returns the plans of the current rollback.
    pub fn rollback(&self) -> Option<&FormerPlans> {
        let back_to = self
            .gate
            .as_ref()
            .filter(|_| self.is_rolling_back())?
            .back_to
            .as_deref();
        self.rollback_plan()
            .filter(|_| self.former.is_of(back_to).is_ok())
    }

    /// Whether the current target must be rolled back to a missing state: nothing is sent.
    pub(super) fn lacks_former(&self) -> bool {
        self.is_rolling_back() && self.rollback().is_none()
    }

    /// What is sent, and where.
    pub fn sent(&self) -> (&ClusterPlans, &TargetClusters) {
        match self.rollback() {
            Some(former) => (&former.cluster_plans, &former.target_clusters),
            None => (&self.cluster_plans, &self.target_clusters),
        }
    }

    /// Captures the current state of the rule, because its rollout is completed.
    ///
    /// # Errors
    /// The reason why it cannot be stored.
    pub fn completed_state(&self) -> Result<Arc<CompletedState>, RollbackBlocker> {
        if self.guard.blocks_removals() {
            // A copy whose removal is blocked is not part of the state. It must not count as
            // created by the next change.
            return Err(RollbackBlocker::Incomplete(
                "removals were blocked when it was completed",
            ));
        }
        if !self.unrendered.is_empty() || self.unrendered.is_outdated() {
            return Err(RollbackBlocker::Incomplete("copies were being rendered"));
        }
        let (plans, clusters) = (&self.cluster_plans, &self.target_clusters);
        CompletedState::of(&self.rule, &self.plan, plans, clusters, self.target()).map(Arc::new)
    }
}

/// The digest of what a rule sends, independent of its chosen clusters. Equal after a restart, like
/// revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RolloutTarget {
    whole: String,
    /// While the removal guard blocks a part of it.
    current: String,
}

impl RolloutTarget {
    /// Returns the target of a rule with this selection.
    fn of(rule: &Rule, plan: &RulePlan) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&plan.digest.to_bytes());
        context.update(&rule.rendering_digest);
        for (secret, body) in &plan.secret_refs {
            if let SourceState::Read(content) | SourceState::Stale(content) = body {
                context.update(secret.to_string().as_bytes());
                context.update(&content.revision.0);
            }
        }
        // Labels and annotations that only some rules copy are no part of the revision of their source.
        if !rule.shape.leaves_content() {
            for (source, denied) in plan
                .intents
                .iter()
                .filter_map(|(source, it)| Some((source, it.denied.as_ref()?)))
            {
                context.update(source.to_string().as_bytes());
                context.update(denied.bytes());
            }
        }
        let digest = context.finish();
        let whole = data_encoding::HEXLOWER.encode(&digest.as_ref()[..8]);
        Self {
            current: format!("{whole}-held"),
            whole,
        }
    }

    /// Its name, while the removal guard blocks a part of it or not.
    fn name(&self, current: bool) -> &str {
        if current { &self.current } else { &self.whole }
    }
}
