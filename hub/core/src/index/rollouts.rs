//! Which clusters may have the newest of a rule now: see [`crate::rollout`].
//! The states of completed rollouts, and what a rule sends while it is rolled back to one of them.
//!
//! A state takes the place of what is rendered, for all clusters of the rule: sessions and statuses compare clusters with it as
//! with anything else that a rule sends.
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ring::digest;
use runnel_proto::model::{ClusterName, RuleUid};

use super::{Effect, Index, RuleEntry};
use crate::guard::Item;
use crate::plan::{
    ClusterPlans, CompletedState, FormerPlans, RollbackBlocker, Rule, RulePlan, Scope, SourceState,
    TargetClusters,
};
use crate::rollout::{Gate, Progress, RolloutPosition};

impl RuleEntry {
    /// Returns the current target.
    pub fn target(&self) -> &str {
        self.target
            .get_or_init(|| RolloutTarget::of(&self.rule, &self.plan))
            .name(self.holds_content())
    }

    /// Whether the removal guard blocks items inside selected clusters; or did so in an earlier
    /// process, with unknown items.
    fn holds_content(&self) -> bool {
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
                .is_some_and(|gate| gate.lets_in(self.target(), cluster))
        };
        self.rule.rollout.is_some() && (!is_let_in() || self.lacks_former())
    }

    /// Whether a rollout is under way, so that time alone may bring the next step.
    fn is_rolling(&self) -> bool {
        let is_settled = || {
            self.gate
                .as_ref()
                .is_some_and(|gate| gate.is_settled && gate.revision == self.target())
        };
        self.rule.rollout.is_some()
            && !self.rule.terms.suspend
            && !self.rule.deleting
            && !is_settled()
    }
}

impl Index {
    /// Sets the gate of a rule: its clusters may have its target. The caller has written the
    /// progress to the status before.
    pub fn set_gate(&mut self, uid: &RuleUid, gate: Gate) -> Effect {
        let mut effect = Effect::default();
        let Some(entry) = self
            .rules
            .get_mut(uid)
            .filter(|entry| entry.gate.as_ref() != Some(&gate))
        else {
            return effect;
        };
        let waiting = |entry: &RuleEntry| {
            let all = entry.target_clusters.clusters.keys();
            all.filter(|cluster| entry.awaits(cluster))
                .cloned()
                .collect::<Vec<_>>()
        };
        let before = waiting(entry);
        let back_to = gate.back_to.clone();
        let before_back_to = entry.gate.replace(gate).map(|gate| gate.back_to);
        let set_gate = before.into_iter().filter(|cluster| !entry.awaits(cluster));
        effect.clusters.extend(set_gate);
        if before_back_to != Some(back_to) {
            effect
                .clusters
                .extend(entry.target_clusters.clusters.keys().cloned());
        }
        if !effect.clusters.is_empty() {
            self.renew(uid);
        }
        effect.rules.insert(uid.clone());
        effect
    }

    /// The place of each cluster of a rule in the order of its rollout, which has come so far.
    pub fn rollout_order(
        &self,
        uid: &RuleUid,
        progress: Option<&Progress>,
    ) -> Vec<RolloutPosition> {
        let Some((entry, rollout)) = self
            .rules
            .get(uid)
            .and_then(|entry| Some((entry, entry.rule.rollout.as_ref()?)))
        else {
            return Vec::new();
        };
        let none = BTreeMap::new();
        let order = rollout.order(progress, entry.target());
        let turn = |cluster: &ClusterName| {
            let labels = self
                .clusters
                .get(cluster)
                .map_or(&none, |known| &known.labels);
            let value = order.and_then(|label| labels.get(label)).cloned();
            RolloutPosition {
                value,
                cluster: cluster.clone(),
            }
        };
        let mut turns: Vec<_> = entry.target_clusters.clusters.keys().map(turn).collect();
        turns.sort();
        turns
    }

    /// Returns the rules with an unfinished rollout.
    pub fn rolling(&self) -> Vec<RuleUid> {
        self.rules
            .iter()
            .filter(|(_, entry)| entry.is_rolling())
            .map(|(uid, _)| uid.clone())
            .collect()
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
pub(super) struct CompletedStates {
    by_rule: BTreeMap<RuleUid, StoredState>,
    /// Why a rule that is not among them has none.
    missing: RollbackBlocker,
}

impl CompletedStates {
    pub(super) fn former(&self, uid: &RuleUid) -> Former {
        let missing = || StoredState {
            revision: String::new(),
            state: Err(self.missing.clone()),
        };
        Former::new(self.by_rule.get(uid).cloned().unwrap_or_else(missing))
    }
}

/// The state of a rule during a rollback.
pub struct Former {
    stored: StoredState,
    /// The plans under the current grants, computed at the first use after a change.
    plans: OnceLock<FormerPlans>,
}

impl Former {
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
    pub fn former(&self) -> Option<&FormerPlans> {
        self.former
            .plans(&self.rule, &self.target_clusters, &self.plan.scope)
    }

    /// Returns the stored state of the last completed rollout.
    pub fn former_state(&self) -> &Former {
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
        self.former().filter(|_| self.former.is_of(back_to).is_ok())
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

impl Index {
    /// Sets the stored state of a rule's last completed rollout; `None`: there is none.
    pub fn set_completed_state(&mut self, uid: &RuleUid, state: Option<StoredState>) -> Effect {
        match state {
            Some(state) => drop(self.completed.by_rule.insert(uid.clone(), state)),
            None => drop(self.completed.by_rule.remove(uid)),
        }
        self.renew_former(uid)
    }

    /// Sets all stored states. `missing` is the reason for which any other rule has none.
    pub fn set_completed_states(
        &mut self,
        states: BTreeMap<RuleUid, StoredState>,
        missing: RollbackBlocker,
    ) -> Effect {
        self.completed = CompletedStates {
            by_rule: states,
            missing,
        };
        let mut effect = Effect::default();
        for uid in self.rules.keys().cloned().collect::<Vec<_>>() {
            effect.merge(self.renew_former(&uid));
        }
        effect
    }

    /// Returns the reason why no state can be stored for any rule.
    pub fn state_blocker(&self) -> Option<&RollbackBlocker> {
        Some(&self.completed.missing).filter(|missing| **missing == RollbackBlocker::Unreadable)
    }

    /// Returns the stored state of a rule's last completed rollout.
    pub fn stored_state(&self, uid: &RuleUid) -> Option<&StoredState> {
        self.completed.by_rule.get(uid)
    }

    fn renew_former(&mut self, uid: &RuleUid) -> Effect {
        let (mut effect, former) = (Effect::default(), self.completed.former(uid));
        let Some(entry) = self.rules.get_mut(uid) else {
            return effect;
        };
        entry.former = former;
        effect.rules.insert(uid.clone());
        if entry.is_rolling_back() {
            self.touch(uid, &mut effect);
        }
        effect
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
