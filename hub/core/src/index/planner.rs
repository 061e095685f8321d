//! The planner: the rules with their plans, and how an event changes the plans that it affects.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use super::changes::{record_changes, record_choice};
use super::clusters::{Cluster, ClusterChange};
use super::rendering::{RenderBacklog, Rendering, has_content, set_referenced_now};
use super::rule_lookup::{KnownClaimants, Selection};
use super::rules::Rules;
use super::targets::Targets;
use super::{Effect, Index, RuleEntry};
use crate::guard::{Cause, CauseKind, Item};
use crate::plan::{
    ClusterPlans, EffectiveTerms, RemovalTerms, Revert, Rule, RulePlan, SourceState,
};
use crate::rollout::Gate;

/// The rules with their plans.
#[derive(Default)]
pub struct Planner {
    pub(super) rules: Rules,
    /// The rules by the sources that they select.
    pub(super) selection: Selection,
    /// The state of deferred rendering.
    pub(super) rendering: Rendering,
}

/// A rule with its new plans.
pub(super) struct PlannedRule {
    pub(super) rule: Rule,
    pub(super) plan: Arc<RulePlan>,
    pub(super) cluster_plans: ClusterPlans,
    pub(super) unrendered: RenderBacklog,
}

impl Planner {
    /// Returns the newest form of a rule; the index may have an older one until it is rendered.
    pub fn latest_rule(&self, uid: &RuleUid) -> Option<&Rule> {
        let awaited = self.rendering.latest(uid);
        awaited.or_else(|| self.rules.get(uid).map(|entry| &entry.rule))
    }

    /// The newest form of the rules that are reverted, or are to be.
    pub fn reverted(&self) -> impl Iterator<Item = (&Rule, &Revert)> {
        let latest = self
            .all_rules()
            .filter_map(|rule| self.latest_rule(&rule.uid));
        latest.filter_map(|rule| Some((rule, rule.revert.as_ref()?)))
    }

    /// Every rule, and the newest form of those that are being rendered.
    pub(super) fn all_rules(&self) -> impl Iterator<Item = &Rule> {
        let rules = self.rules.iter().map(|(_, entry)| &entry.rule);
        rules.chain(self.rendering.awaited().map(|(_, rule)| rule))
    }

    /// Whether a rule selects an object with these labels, or takes values from it: whether its content is needed.
    pub fn needs(&self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        let candidates = self.selection.candidates(source, labels);
        candidates.iter().any(|uid| {
            let entry = self.rules.get(uid);
            entry.is_some_and(|entry| {
                entry.rule.reverted_to().is_none() && entry.rule.needs(source, labels)
            })
        })
    }

    /// The rules whose plans a source concerns. A reverted rule does not follow its sources.
    fn concerned(
        &self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
    ) -> BTreeSet<RuleUid> {
        let mut concerned = self.selection.concerned(source, labels);
        concerned.retain(|uid| {
            let entry = self.rules.get(uid);
            entry.is_none_or(|entry| entry.rule.reverted_to().is_none())
        });
        concerned
    }

    /// Updates the plans of the rules that an existing source concerns.
    pub(super) fn set_source(
        &mut self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
        body: &SourceState,
    ) -> Effect {
        let mut effect = Effect::default();
        for uid in self.concerned(source, labels) {
            let selected = self
                .rules
                .get(&uid)
                .and_then(|entry| entry.rule.selected_state(source, labels, body));
            let cause = match selected {
                Some(SourceState::Refused(refused)) => refused.cause(source.namespace.clone()),
                _ => CauseKind::SourceLabels.of(source.namespace.clone()),
            };
            self.update_plan(&uid, source, selected.as_ref(), cause, &mut effect);
            let is_referenced = self.update_referenced(&uid, source, Some(body), &mut effect);
            if (selected.is_some() || is_referenced) && matches!(body, SourceState::Unread) {
                effect.read.insert(source.clone());
            }
        }
        effect
    }

    /// Removes a deleted source from the plans.
    pub(super) fn remove_source(
        &mut self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
        effect: &mut Effect,
    ) {
        self.selection.release_labels(source);
        let deleted = CauseKind::Deleted.of(source.namespace.clone());
        for uid in self.concerned(source, labels) {
            self.update_plan(&uid, source, None, deleted.clone(), effect);
            self.update_referenced(&uid, source, None, effect);
        }
    }

    /// Sets the state of one source in the plan of a rule.
    fn update_plan(
        &mut self,
        uid: &RuleUid,
        source: &SourceRef,
        selected: Option<&SourceState>,
        cause: Cause,
        effect: &mut Effect,
    ) {
        if self.defer_source(uid, source, selected, effect) {
            return;
        }
        let Some(entry) = self.rules.get_mut(uid) else {
            return;
        };
        entry.unrendered.remove_source(source);
        if entry.plan.is_unchanged_by(source, selected) {
            if !entry.plan.names(source) {
                self.selection.unselect(source, uid);
            }
            return;
        }
        let wanted = entry.plan.selected_intents(source);
        let touched = Arc::make_mut(&mut entry.plan).set(source, selected);
        if entry.plan.has_manifests() {
            self.selection.note_manifests();
        }
        if entry.cluster_plans.exceeds() && self.rendering.defers_rendering() {
            // Nothing of it is sent or removed until it is rendered again completely.
            entry.unrendered.mark_all();
            effect.render.insert(uid.clone());
        } else {
            entry.cluster_plans.update(
                &entry.rule,
                &entry.plan,
                &touched,
                &self.rendering.revision_hasher,
            );
        }
        entry.keep_selected();
        let intents = [source].into_iter();
        let intents = intents.flat_map(|source| entry.plan.selected_intents(source));
        let gained = intents.filter(|intent| !wanted.contains(intent));
        entry.guard.record_gained(gained);
        entry.record_left(wanted, source, &cause);
        if entry.guard.is_open() {
            effect.judge.insert(uid.clone());
        }
        match selected {
            Some(_) => {
                self.selection.select(source, uid);
            }
            None if entry.plan.secret_refs.contains_key(source) => {}
            None => self.selection.unselect(source, uid),
        }
        self.rules.touch(uid, effect);
    }

    /// Sets the state of one Secret (`None`: deleted) in a rule that may take values from it.
    /// Returns whether it does.
    fn update_referenced(
        &mut self,
        uid: &RuleUid,
        secret: &SourceRef,
        body: Option<&SourceState>,
        effect: &mut Effect,
    ) -> bool {
        if let Some(takes) = self.defer_references(uid, secret, body, effect) {
            return takes;
        }
        let Some(entry) = self
            .rules
            .get_mut(uid)
            .filter(|entry| entry.rule.reads_secret(secret))
        else {
            return false;
        };
        if Arc::make_mut(&mut entry.plan).set_referenced(secret, body) {
            entry.cluster_plans.update_referenced(
                &entry.rule,
                &entry.plan,
                secret,
                &self.rendering.revision_hasher,
            );
            match body {
                Some(_) => {
                    self.selection.select(secret, uid);
                }
                None => self.selection.unselect(secret, uid),
            }
            self.rules.touch(uid, effect);
        }
        true
    }

    /// Whether what one source is to a rule now waits to be rendered.
    fn defer_source(
        &mut self,
        uid: &RuleUid,
        source: &SourceRef,
        selected: Option<&SourceState>,
        effect: &mut Effect,
    ) -> bool {
        let Some(entry) = self
            .rules
            .get_mut(uid)
            .filter(|entry| self.rendering.defers_rendering() && entry.cluster_plans.is_rendered())
        else {
            return false;
        };
        if !has_content(selected) {
            return false;
        }
        if !entry.plan.is_unchanged_by(source, selected) || entry.unrendered.since.is_some() {
            self.selection.select(source, uid);
            entry.unrendered.sources.insert(source.clone());
            effect.render.insert(uid.clone());
        }
        true
    }

    /// Defers the change of a referenced Secret until it is rendered, or makes the values unknown.
    /// Returns `None` if the caller must handle it; otherwise whether the rule uses the Secret.
    fn defer_references(
        &mut self,
        uid: &RuleUid,
        secret: &SourceRef,
        body: Option<&SourceState>,
        effect: &mut Effect,
    ) -> Option<bool> {
        let aside = self.rendering.defers_rendering();
        let entry = self
            .rules
            .get_mut(uid)
            .filter(|entry| aside && entry.cluster_plans.is_rendered())?;
        if !entry.rule.reads_secret(secret) {
            return Some(false);
        }
        self.selection.select(secret, uid);
        if matches!(body, Some(SourceState::Unread)) {
            entry.unrendered.note(secret);
            let plan = Arc::make_mut(&mut entry.plan);
            set_referenced_now(
                &entry.rule,
                plan,
                &mut entry.cluster_plans,
                secret,
                body,
                &mut entry.unrendered,
                &self.rendering.revision_hasher,
            );
            self.rules.touch(uid, effect);
        } else {
            entry.unrendered.sources.insert(secret.clone());
        }
        effect.render.insert(uid.clone());
        Some(true)
    }

    /// Whether a selected cluster waits until its content is rendered. Returns whether it has the
    /// rule already.
    fn defer_cluster(
        &mut self,
        uid: &RuleUid,
        name: &ClusterName,
        cluster: &Cluster,
        effect: &mut Effect,
    ) -> Option<bool> {
        let aside = self.rendering.defers_rendering();
        let entry = self
            .rules
            .get_mut(uid)
            .filter(|entry| aside && entry.cluster_plans.lacks(name, &cluster.labels))?;
        entry.unrendered.clusters.insert(name.clone());
        effect.render.insert(uid.clone());
        Some(!entry.lacks(name))
    }

    /// Updates a rule by the change of a cluster that it chooses with these terms, or not.
    pub(super) fn choose(
        &mut self,
        uid: &RuleUid,
        change: &ClusterChange<'_>,
        effective_terms: Option<EffectiveTerms>,
        effect: &mut Effect,
    ) {
        let (name, cluster) = (change.name, change.cluster);
        let chosen = cluster.filter(|_| effective_terms.is_some());
        let waits = chosen.and_then(|cluster| self.defer_cluster(uid, name, cluster, effect));
        if waits == Some(false) {
            // The cluster gets the rule when its content is rendered.
            if change.is_reborn {
                self.rules.renew(uid);
            }
            effect.rules.insert(uid.clone());
            return;
        }
        let Some(entry) = self.rules.get_mut(uid) else {
            return;
        };
        let cordoned = cluster.is_some_and(|cluster| cluster.cordoned);
        let labels = cluster
            .filter(|_| effective_terms.is_some())
            .map(|cluster| &cluster.labels);
        let former = (
            entry.target_clusters.clusters.get(name).cloned(),
            entry.cluster_plans.plan(name, &entry.plan).cloned(),
        );
        let exceeded = entry.cluster_plans.exceeds();
        let dealt = waits.is_none()
            && entry.cluster_plans.set_cluster(
                &entry.rule,
                &entry.plan,
                name,
                labels,
                &self.rendering.revision_hasher,
            );
        if dealt && labels.is_none() && entry.cluster_plans.exceeds() {
            // Perhaps not any more, without this cluster.
            if self.rendering.defers_rendering() {
                entry.unrendered.mark_all();
                effect.render.insert(uid.clone());
            } else {
                entry.cluster_plans.render_all(
                    &entry.rule,
                    &entry.plan,
                    Vec::new(),
                    &self.rendering.revision_hasher,
                );
            }
        }
        let all = exceeded != entry.cluster_plans.exceeds();
        let chosen = entry
            .target_clusters
            .set(&entry.rule, name, effective_terms, cordoned);
        let takes_part = cluster.is_some_and(Cluster::is_eligible);
        let leaves = change.judges_leaving && cluster.is_some_and(Cluster::is_leaving);
        if !takes_part && !leaves && entry.guard.blocks_in(name) {
            // Nothing that is blocked there needs a decision any more.
            entry.guard.forget(name);
            effect.rules.insert(uid.clone());
        }
        if chosen || dealt {
            let was_chosen = former.0.is_some();
            record_choice(entry, name, former, takes_part || leaves);
            if leaves && was_chosen {
                entry
                    .guard
                    .remove(Item::Cluster(name.clone()), CauseKind::Deleted.of(""));
            }
            if entry.guard.is_open() {
                effect.judge.insert(uid.clone());
            }
        }
        if chosen || dealt || change.is_reborn {
            // No other cluster is concerned, so only this one is woken; the version informs its
            // session.
            self.rules.renew(uid);
            let concerned = if chosen || dealt {
                &mut effect.rules
            } else {
                &mut effect.statuses
            };
            concerned.insert(uid.clone());
        }
        if all {
            self.rules.touch(uid, effect);
        }
    }

    /// Sets a rule with its plans.
    pub(super) fn put(&mut self, planned: PlannedRule, targets: &Targets) -> Effect {
        let PlannedRule {
            rule,
            plan,
            cluster_plans,
            unrendered,
        } = planned;
        let mut effect = Effect::default();
        let uid = rule.uid.clone();
        let mut former = self.unregister(&uid);
        let target_clusters = targets.of(&rule);
        if let Some(former) = &former {
            effect
                .clusters
                .extend(former.target_clusters.clusters.keys().cloned());
        }
        if rule.deleting {
            // Any formerly selected cluster may have copies.
            effect.clusters.extend(targets.clusters.names().cloned());
        }
        let unchanged = former.as_ref().is_some_and(|former| {
            former.plan.has_equal_content(&plan)
                && former.cluster_plans.has_equal_content(&cluster_plans)
                && former.target_clusters == target_clusters
                && former.rule.terms == rule.terms
                && former.rule.deleting == rule.deleting
                && former.rule.rollout.is_some() == rule.rollout.is_some()
        });
        let awaited = plan
            .secret_refs
            .iter()
            .filter(|(_, body)| matches!(body, SourceState::Unread))
            .map(|(secret, _)| secret);
        effect
            .read
            .extend(plan.unread.iter().chain(awaited).cloned());
        let version = former.as_ref().map_or(0, |former| former.version);
        let guard = match &mut former {
            Some(former) => std::mem::take(&mut former.guard),
            None => rule.removal.guard(),
        };
        // The clusters of a suspended rollout had no time to settle, so they are determined again.
        let continues = former
            .as_ref()
            .is_some_and(|former| former.rule.terms.suspend)
            && !rule.terms.suspend;
        let stays = |gate: &Gate| rule.rollout.is_some() && (!continues || gate.is_rolling_back());
        let gate = former
            .as_ref()
            .and_then(|former| former.gate.clone())
            .filter(stays);
        let was_paused =
            former.as_ref().is_some_and(|former| former.was_paused) || rule.is_paused();
        let (target, stored) = (OnceLock::new(), self.rules.completed().rollback_plan(&uid));
        let former_state = match &mut former {
            Some(former) => stored.reusing(&mut former.former),
            None => stored,
        };
        let mut entry = RuleEntry {
            rule,
            plan,
            cluster_plans,
            target_clusters,
            guard,
            gate,
            was_paused,
            unrendered,
            version,
            target,
            former: former_state,
            claimants: KnownClaimants::default(),
        };
        let takes_part = |name: &ClusterName| targets.clusters.is_eligible(name);
        if record_changes(former.as_ref(), &mut entry, takes_part) {
            effect.judge.insert(uid.clone());
        }
        match former {
            Some(former) if unchanged => {
                entry.plan = former.plan;
                self.rendering.drop_unlocked(std::mem::replace(
                    &mut entry.cluster_plans,
                    former.cluster_plans,
                ));
            }
            former => former
                .into_iter()
                .for_each(|former| self.rendering.drop_unlocked(former.cluster_plans)),
        }
        effect.relist = self.register(entry);
        if unchanged {
            effect.clusters.clear();
            effect.rules.insert(uid);
        } else {
            self.rules.touch(&uid, &mut effect);
        }
        effect
    }

    /// Sets the removal terms of a rule that has no other change, without planning it again. Most
    /// such changes are the hub's own writes of the status, which only another replica needs.
    pub fn set_removal(&mut self, uid: &RuleUid, removal: RemovalTerms) -> Effect {
        let mut effect = Effect::default();
        self.rendering.set_removal(uid, &removal);
        let Some(entry) = self.rules.get_mut(uid) else {
            return effect;
        };
        let former = std::mem::replace(&mut entry.rule.removal, removal);
        let now = &entry.rule.removal;
        let has_other_limit = former.has_other_limit(now);
        if has_other_limit {
            entry.guard.apply_changed_limits();
        }
        if has_other_limit || former.approve != now.approve {
            effect.judge.insert(uid.clone());
        }
        effect
    }

    /// Removes a rule, and lists it as deleted.
    fn remove(&mut self, uid: &RuleUid) -> Option<RuleEntry> {
        self.rendering.forget(uid);
        let former = self.unregister(uid)?;
        self.rules.forget(uid, former.version);
        Some(former)
    }

    /// Returns whether labels that it needs may have been left out.
    fn register(&mut self, entry: RuleEntry) -> bool {
        let uid = entry.rule.uid.clone();
        for source in entry.needed_sources() {
            self.selection.select(source, &uid);
        }
        if entry.plan.has_manifests() {
            self.selection.note_manifests();
        }
        let relist = self.selection.add_rule(&entry.rule);
        self.rules.insert(uid, entry);
        relist
    }

    fn unregister(&mut self, uid: &RuleUid) -> Option<RuleEntry> {
        let entry = self.rules.take(uid)?;
        for source in entry.needed_sources() {
            self.selection.unselect(source, uid);
        }
        self.selection.remove_rule(uid);
        Some(entry)
    }
}

impl RuleEntry {
    /// Returns every source whose content the rule needs, or waits for.
    fn needed_sources(&self) -> impl Iterator<Item = &SourceRef> {
        all_sources(&self.plan).chain(self.unrendered.sources())
    }
}

/// Returns every object whose content the rule needs.
fn all_sources(plan: &RulePlan) -> impl Iterator<Item = &SourceRef> {
    plan.objects().chain(plan.secret_refs.keys())
}

impl Index {
    /// Sets a rule. If its copies must be rendered outside the lock, the rule keeps its former
    /// state until they are.
    pub fn set_rule(&mut self, rule: Rule) -> Effect {
        let rule = self.with_reverted_state(rule);
        // The next state may be observed before this one is rendered.
        if let Some(entry) = self.planner.rules.get_mut(&rule.uid) {
            entry.was_paused |= rule.is_paused();
        }
        if rule.sends_as_selected() {
            self.planner.rendering.forget(&rule.uid);
            let plan = Arc::new(self.sources.plan(&rule, &self.scopes));
            return self.put_rule(PlannedRule {
                rule,
                plan,
                cluster_plans: ClusterPlans::default(),
                unrendered: RenderBacklog::default(),
            });
        }
        if let Some(deleted) = self.planner.deleted_form(&rule) {
            return self.put_rule(deleted);
        }
        let mut effect = Effect::default();
        effect.render.insert(rule.uid.clone());
        self.planner.rendering.await_rule(rule);
        self.render_here(&mut effect);
        effect
    }

    /// Sets a rule with its plans. Sources that no rule selects any more lose their content.
    pub(super) fn put_rule(&mut self, planned: PlannedRule) -> Effect {
        let uid = planned.rule.uid.clone();
        self.planner.rules.end_expectation(&uid);
        let former = self.planner.rules.get(&uid).map(|former| {
            let waiting: Vec<_> = former.unrendered.sources().cloned().collect();
            (former.plan.clone(), waiting)
        });
        let mut effect = self.planner.put(planned, &self.targets);
        self.render_former_of(&uid, &mut effect);
        if let Some((plan, waiting)) = &former {
            let former = all_sources(plan).chain(waiting);
            self.sources.drop_unselected(former, &self.planner);
        }
        effect
    }

    /// Removes a rule that no longer exists on the hub. Its copies stay, unless its deletion was
    /// carried out before: to the sessions the rule is orphaned.
    pub fn remove_rule(&mut self, uid: &RuleUid) -> Effect {
        let mut effect = Effect::default();
        self.planner.rules.end_expectation(uid);
        if let Some(former) = self.planner.remove(uid) {
            let clusters = self.targets.clusters.names();
            effect.clusters.extend(clusters.cloned());
            effect.rules.insert(uid.clone());
            self.sources
                .drop_unselected(former.needed_sources(), &self.planner);
            self.planner.rendering.drop_unlocked(former.cluster_plans);
        }
        effect
    }
}
