//! Which clusters may have the newest of a rule now: see [`crate::rollout`].
//! The states of completed rollouts, and what a rule sends while it is rolled back to one of them.
//!
//! A state has the inputs of a rule: its spec, and the contents of its sources. A render job plans them as any others, and its
//! result takes the place of what is rendered, for all clusters of the rule: sessions and statuses compare clusters with it as
//! with anything else that a rule sends.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use ring::digest;
use runnel_api::conditions::whole_seconds;
use runnel_api::{KeptRevision, limits};
use runnel_proto::model::{ClusterName, RuleUid, Terms};

use super::clusters::{Cluster, Clusters};
use super::{Effect, Index, RuleEntry};
use crate::guard::Item;
use crate::plan::{
    ClusterPlans, CompletedState, ContentKinds, NamedTerms, RollbackBlocker, Rule, RulePlan,
    SourceState, TargetClusters,
};
use crate::rollout::{AdmittedClusters, Gate, LeftOut, Progress, RolloutPosition};

impl RuleEntry {
    /// Returns the current target.
    pub fn target(&self) -> &str {
        self.target
            .get_or_init(|| target_of(&self.rule, &self.plan))
    }

    /// Returns what the removal guard has decided about the copies that the target leaves out. Grants and the selection of
    /// clusters are no part of a target.
    pub fn left_out(&self) -> LeftOut {
        let is_of_target = |item: &Item| item.intent().is_some();
        if self.guard.blocked().iter().any(is_of_target) {
            LeftOut::Blocked
        } else if self.guard.is_carried() {
            LeftOut::Unknown
        } else if self.guard.open().any(is_of_target) {
            LeftOut::Undecided
        } else {
            LeftOut::Passed
        }
    }

    /// Returns the clusters of which the rule does not select copies any more, or has no grant for them, and which keep them
    /// until the removal guard passes their removal. They belong to the rollout: they may come back. A leaving cluster does not.
    pub fn clusters_with_waiting_removals(&self, clusters: &Clusters) -> BTreeSet<ClusterName> {
        let items = self.guard.blocked().iter().chain(self.guard.open());
        let is_chosen = |name: &ClusterName| self.target_clusters.clusters.contains_key(name);
        let names = items.filter_map(|item| match item {
            Item::Cluster(cluster) => Some(cluster).filter(|name| !is_chosen(name)),
            Item::Kind(cluster, _) => Some(cluster),
            _ => None,
        });
        names
            .filter(|name| clusters.is_eligible(name))
            .cloned()
            .collect()
    }

    /// Shuts a completed rollout to these of its clusters until the next step. A cluster that was not chosen before may come
    /// back with older copies.
    pub(super) fn shut_to_new(&mut self, is_new: impl Fn(&ClusterName) -> bool) {
        if let Some(gate) = &mut self.gate
            && gate.reach == AdmittedClusters::All
        {
            let chosen = self.target_clusters.clusters.keys();
            gate.newly_chosen
                .extend(chosen.filter(|name| is_new(name)).cloned());
        }
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
        self.rule.rollout.is_some() && (!is_let_in() || self.lacks_former() || self.begins_again())
    }

    /// Whether removals that were blocked when the gate was made have passed: they go through the waves, from the first on.
    fn begins_again(&self) -> bool {
        let was_blocked = self.gate.as_ref().is_some_and(|gate| gate.is_blocked);
        was_blocked && self.left_out() == LeftOut::Passed
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
        let leaving = self.clusters_with_waiting_removals(clusters);
        let chosen = &self.target_clusters.clusters;
        let leaving = leaving.iter().filter(|name| !chosen.contains_key(*name));
        let all = chosen.keys().chain(leaving);
        let mut turns: Vec<_> = all.map(turn).collect();
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

impl StoredState {
    /// No state, for this reason.
    pub(super) fn missing(blocker: RollbackBlocker) -> Self {
        Self {
            revision: String::new(),
            state: Err(blocker),
        }
    }
}

/// The states of completed rollouts, rule by rule.
#[derive(Default)]
pub struct CompletedStates {
    /// The newest state of each rule.
    by_rule: BTreeMap<RuleUid, StoredState>,
    /// The states that are kept of each rule, the newest first.
    kept: BTreeMap<RuleUid, Vec<KeptRevision>>,
    /// Why a rule that is not among them has none.
    missing: RollbackBlocker,
}

impl CompletedStates {
    pub(super) fn of(by_rule: BTreeMap<RuleUid, StoredState>, missing: RollbackBlocker) -> Self {
        let mut states = Self {
            missing,
            ..Self::default()
        };
        for (uid, state) in by_rule {
            states.set(&uid, Some(state));
        }
        states
    }

    /// Returns the stored state of a rule's last completed rollout.
    pub fn get(&self, uid: &RuleUid) -> Option<&StoredState> {
        self.by_rule.get(uid)
    }

    /// Returns the reason why no state can be stored for any rule.
    pub fn blocker(&self) -> Option<&RollbackBlocker> {
        Some(&self.missing).filter(|missing| **missing == RollbackBlocker::Unreadable)
    }

    /// The rules of which states are kept.
    pub fn rules(&self) -> impl Iterator<Item = &RuleUid> {
        self.kept.keys()
    }

    /// Returns the states that are kept of a rule, the newest first.
    pub fn kept(&self, uid: &RuleUid) -> &[KeptRevision] {
        self.kept.get(uid).map_or(&[], Vec::as_slice)
    }

    pub(super) fn set_kept(&mut self, uid: &RuleUid, kept: Vec<KeptRevision>) {
        self.kept.insert(uid.clone(), kept);
    }

    pub(super) fn set(&mut self, uid: &RuleUid, state: Option<StoredState>) {
        let Some(state) = state else {
            self.by_rule.remove(uid);
            self.kept.remove(uid);
            return;
        };
        let kept = self.kept.entry(uid.clone()).or_default();
        kept.retain(|kept| kept.revision != state.revision);
        if let Ok(completed) = &state.state {
            let newest = KeptRevision {
                revision: state.revision.clone(),
                completed_at: completed.completed_at.map(whole_seconds),
            };
            kept.insert(0, newest);
            kept.truncate(limits::HISTORY);
        }
        self.by_rule.insert(uid.clone(), state);
    }

    pub(super) fn rollback_plan(&self, uid: &RuleUid) -> RollbackPlan {
        let missing = || StoredState::missing(self.missing.clone());
        RollbackPlan::new(self.by_rule.get(uid).cloned().unwrap_or_else(missing))
    }
}

/// The plans of a rule during a rollback: those of its former inputs, for the clusters, labels and grants of now.
pub struct RollbackPlan {
    stored: StoredState,
    rendered: Option<FormerPlans>,
    /// The clusters under the current grants, computed at the first use after a change.
    target_clusters: OnceLock<TargetClusters>,
}

/// The rendered plans of former inputs.
pub(super) struct FormerPlans {
    /// The rule with its former spec.
    pub(super) rule: Rule,
    /// The plans.
    pub(super) cluster_plans: ClusterPlans,
}

impl RollbackPlan {
    /// What is kept.
    pub fn new(stored: StoredState) -> Self {
        Self {
            stored,
            rendered: None,
            target_clusters: OnceLock::new(),
        }
    }

    /// Returns the bytes of the rendered contents.
    pub(super) fn size_bytes(&self) -> u64 {
        let rendered = self.rendered.as_ref();
        rendered.map_or(0, |rendered| rendered.cluster_plans.size_bytes())
    }

    pub(super) fn renew(&mut self) {
        self.target_clusters = OnceLock::new();
    }

    /// Returns the inputs to be rendered for a rule that is rolled back; `None` if they are rendered for all of its clusters.
    pub(super) fn unrendered<'a>(
        &self,
        mut clusters: impl Iterator<Item = (&'a ClusterName, &'a Cluster)>,
    ) -> Option<&Arc<CompletedState>> {
        let state = self.stored.state.as_ref().ok()?;
        let lacks = |rendered: &FormerPlans| {
            let plans = &rendered.cluster_plans;
            clusters.any(|(name, cluster)| plans.lacks(name, &cluster.labels))
        };
        self.rendered.as_ref().is_none_or(lacks).then_some(state)
    }

    /// Sets the rendered plans of a state; `None` if the hub cannot read it. Returns the former ones.
    pub(super) fn set_rendered(
        &mut self,
        of: &Arc<CompletedState>,
        rendered: Option<FormerPlans>,
    ) -> Option<FormerPlans> {
        if !matches!(&self.stored.state, Ok(state) if Arc::ptr_eq(state, of)) {
            return rendered;
        }
        if rendered.is_none() {
            self.stored.state = Err(RollbackBlocker::Damaged);
        }
        self.renew();
        std::mem::replace(&mut self.rendered, rendered)
    }

    /// Takes the rendered plans of `former`, if that has the same state.
    #[must_use]
    pub(super) fn reusing(mut self, former: &mut Self) -> Self {
        if let (Ok(one), Ok(two)) = (&self.stored.state, &former.stored.state)
            && Arc::ptr_eq(one, two)
        {
            self.rendered = former.rendered.take();
        }
        self
    }

    /// With plans that are rendered for clusters without labels.
    #[cfg(test)]
    pub(crate) fn rendered(mut self, now: &Rule) -> Self {
        if let Ok(state) = self.stored.state.clone() {
            let rule = state.rule(now).unwrap();
            let plan = Arc::new(state.plan(&rule, &crate::plan::Scope::default()));
            let cluster_plans = ClusterPlans::default().detached(&plan);
            let former = FormerPlans {
                rule,
                cluster_plans,
            };
            self.set_rendered(&state, Some(former));
        }
        self
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

    /// Returns the rendered plans, and the clusters with the former terms as their grants allow them now.
    pub fn plans(
        &self,
        rule: &Rule,
        now: &TargetClusters,
    ) -> Option<(&ClusterPlans, &TargetClusters)> {
        let rendered = self.rendered.as_ref()?;
        let target_clusters = self.target_clusters.get_or_init(|| {
            let terms = NamedTerms::new(Terms {
                suspend: rule.terms.suspend,
                ..Terms::clone(&rendered.rule.terms)
            });
            now.with_content(&terms, &ContentKinds::of(&rendered.rule))
        });
        Some((&rendered.cluster_plans, target_clusters))
    }
}

impl RuleEntry {
    /// Returns the plans of the rollback; `None` if no state is stored, or if it is not rendered yet.
    fn rollback_plan(&self) -> Option<(&ClusterPlans, &TargetClusters)> {
        self.former.plans(&self.rule, &self.target_clusters)
    }

    /// Returns the stored state of the last completed rollout.
    pub fn former_state(&self) -> &RollbackPlan {
        &self.former
    }

    /// Whether the current target is rolled back.
    pub fn is_rolling_back(&self) -> bool {
        let is_back = |gate: &Gate| gate.is_rolling_back() && gate.revision == self.target();
        self.rule.rollout.is_some() && self.gate.as_ref().is_some_and(is_back)
    }

    /// Returns the plans of the current rollback.
    pub fn rollback(&self) -> Option<(&ClusterPlans, &TargetClusters)> {
        let back_to = self
            .gate
            .as_ref()
            .filter(|_| self.is_rolling_back())?
            .back_to
            .as_deref();
        self.rollback_plan()
            .filter(|_| self.former.is_of(back_to).is_ok())
    }

    /// Returns the former inputs that are to be rendered for the current rollback.
    pub(super) fn unrendered_state(&self, clusters: &Clusters) -> Option<&Arc<CompletedState>> {
        let back_to = self.gate.as_ref()?.back_to.as_deref();
        back_to?;
        if !self.is_rolling_back() || self.former.is_of(back_to).is_err() {
            return None;
        }
        self.former.unrendered(clusters.chosen_by(&self.rule))
    }

    /// Whether the current target must be rolled back to a missing state: nothing is sent.
    pub(super) fn lacks_former(&self) -> bool {
        self.is_rolling_back() && self.rollback().is_none()
    }

    /// What is sent, and where.
    pub fn sent(&self) -> (&ClusterPlans, &TargetClusters) {
        self.rollback()
            .unwrap_or((&self.cluster_plans, &self.target_clusters))
    }

    /// Whether nothing of the rule is sent or removed, because what it has is not known.
    pub(super) fn is_withheld(&self) -> bool {
        self.unrendered.is_outdated() || self.rule.lacks_state()
    }

    /// Captures the current state of the rule, because its rollout was completed at this time.
    ///
    /// # Errors
    /// The reason why it cannot be stored.
    pub fn completed_state(
        &self,
        completed_at: Option<Timestamp>,
    ) -> Result<Arc<CompletedState>, RollbackBlocker> {
        if self.guard.blocks_removals() {
            // A copy whose removal is blocked is not part of the state. It must not count as
            // created by the next change.
            return Err(RollbackBlocker::Incomplete(
                "removals were blocked when it was completed",
            ));
        }
        if !self.unrendered.is_empty() || self.is_withheld() {
            return Err(RollbackBlocker::Incomplete("copies were being rendered"));
        }
        CompletedState::of(&self.rule, &self.plan, self.target(), completed_at).map(Arc::new)
    }
}

impl Index {
    /// Sets the gate of a rule: its clusters may have its target. The caller has written the progress to the status before.
    pub fn set_gate(&mut self, uid: &RuleUid, gate: Gate) -> Effect {
        let mut effect = self.planner.rules.set_gate(uid, gate);
        self.render_former_of(uid, &mut effect);
        self.render_here(&mut effect);
        effect
    }

    /// Sets the stored state of a rule's last completed rollout; `None`: there is none.
    pub fn set_completed_state(&mut self, uid: &RuleUid, state: Option<StoredState>) -> Effect {
        let mut effect = self.planner.rules.set_completed_state(uid, state);
        self.render_former_of(uid, &mut effect);
        self.render_here(&mut effect);
        effect
    }

    /// Sets the states that are kept of a rule, the newest first.
    pub fn set_kept_states(&mut self, uid: &RuleUid, kept: Vec<KeptRevision>) -> Effect {
        self.planner.rules.set_kept_states(uid, kept)
    }

    /// Sets the state to which a rule is reverted, or why there is none.
    pub fn set_reverted_state(
        &mut self,
        uid: &RuleUid,
        revision: &str,
        state: Result<Arc<CompletedState>, RollbackBlocker>,
    ) -> Effect {
        let latest = self.planner.latest_rule(uid);
        let is_awaited = |rule: &&Rule| {
            let awaited = rule.revert.as_ref();
            awaited.is_some_and(|revert| *revert.revision == *revision && revert.state.is_err())
        };
        match latest.filter(is_awaited).cloned() {
            Some(rule) => self.set_rule(rule.reverted(state)),
            None => Effect::default(),
        }
    }

    /// The rule with the state to which it is reverted, if that is known.
    pub(super) fn with_reverted_state(&self, rule: Rule) -> Rule {
        let Some(revert) = rule.revert.as_ref().filter(|it| it.state.is_err()) else {
            return rule;
        };
        let former = self.planner.latest_rule(&rule.uid);
        let former = former.and_then(|former| former.revert.as_ref());
        let former = former.filter(|former| former.revision == revert.revision);
        let newest = self.rules().completed().get(&rule.uid);
        let newest = newest.filter(|newest| *newest.revision == *revert.revision);
        let state = former.and_then(|former| former.state.clone().ok());
        match state.or_else(|| newest?.state.clone().ok()) {
            Some(state) => rule.reverted(Ok(state)),
            None => rule,
        }
    }

    /// Sets all stored states. `missing` is the reason for which any other rule has none.
    pub fn set_completed_states(
        &mut self,
        states: BTreeMap<RuleUid, StoredState>,
        missing: RollbackBlocker,
    ) -> Effect {
        let mut effect = self.planner.rules.set_completed_states(states, missing);
        self.render_former(&mut effect);
        self.render_here(&mut effect);
        effect
    }

    /// Renders the former inputs of all rules that are rolled back, for clusters for which that is not done.
    pub(super) fn render_former(&self, effect: &mut Effect) {
        for (uid, _) in self.planner.rules.iter() {
            self.render_former_of(uid, effect);
        }
    }

    /// Renders the former inputs of a rule that is rolled back, for clusters for which that is not done.
    pub(super) fn render_former_of(&self, uid: &RuleUid, effect: &mut Effect) {
        let clusters = &self.targets.clusters;
        let entry = self.planner.rules.get(uid);
        if entry.is_some_and(|entry| entry.unrendered_state(clusters).is_some()) {
            effect.render.insert(uid.clone());
        }
    }
}

/// Returns the name of what a rule sends: a digest of its inputs, independent of its chosen clusters, their grants and the
/// removal guard. Equal after a restart, like revisions.
fn target_of(rule: &Rule, plan: &RulePlan) -> String {
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
    data_encoding::HEXLOWER.encode(&context.finish().as_ref()[..8])
}
