//! Creation, change and removal of rules.
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use super::changes::record_changes;
use super::rendering::Unrendered;
use super::{Effect, Index, RuleEntry};
use crate::guard::{Cause, Item};
use crate::plan::{ClusterPlans, RemovalTerms, Rule, RulePlan, SourceState, plan};
use crate::rollout::Gate;

impl Index {
    /// Sets a rule. If its copies must be rendered outside the lock, the rule keeps its former
    /// state until they are.
    pub fn set_rule(&mut self, rule: Rule) -> Effect {
        if rule.sends_as_selected() {
            self.rendering.forget(&rule.uid);
            let plan = Arc::new(self.plan_of(&rule));
            return self.put_rule(rule, plan, ClusterPlans::default(), Unrendered::default());
        }
        self.set_rendered_rule(rule)
    }

    /// Sets a rule whose copies are rendered.
    pub(super) fn put_rule(
        &mut self,
        rule: Rule,
        plan: Arc<RulePlan>,
        cluster_plans: ClusterPlans,
        unrendered: Unrendered,
    ) -> Effect {
        let mut effect = Effect::default();
        let uid = rule.uid.clone();
        let former = self.unregister(&uid);
        let target_clusters = self.target_clusters(&rule);
        if let Some(former) = &former {
            effect
                .clusters
                .extend(former.target_clusters.clusters.keys().cloned());
        }
        if rule.deleting {
            // Any formerly selected cluster may have copies.
            effect.clusters.extend(self.clusters.keys().cloned());
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
        let before = former.as_ref().map(|former| former.plan.clone());
        let waited: Vec<_> = former
            .iter()
            .flat_map(|former| former.unrendered.sources().cloned())
            .collect();
        let mut former = former;
        let guard = match &mut former {
            Some(former) => std::mem::take(&mut former.guard),
            None => rule.removal.guard(),
        };
        // The clusters of a suspended rollout had no time to settle, so they are determined again.
        let goes_on = former
            .as_ref()
            .is_some_and(|former| former.rule.terms.suspend)
            && !rule.terms.suspend;
        let stays = |gate: &Gate| rule.rollout.is_some() && (!goes_on || gate.is_rolling_back());
        let gate = former
            .as_ref()
            .and_then(|former| former.gate.clone())
            .filter(stays);
        let (target, former_state) = (OnceLock::new(), self.completed.former(&uid));
        let mut entry = RuleEntry {
            rule,
            plan,
            cluster_plans,
            target_clusters,
            guard,
            gate,
            unrendered,
            version,
            target,
            former: former_state,
        };
        let takes_part = |name: &ClusterName| {
            self.clusters
                .get(name)
                .is_some_and(super::Cluster::takes_part)
        };
        if record_changes(former.as_ref(), &mut entry, takes_part) {
            effect.judge.insert(uid.clone());
        }
        match former {
            Some(former) if unchanged => {
                entry.plan = former.plan;
                self.rendering.drop_later(std::mem::replace(
                    &mut entry.cluster_plans,
                    former.cluster_plans,
                ));
            }
            former => former
                .into_iter()
                .for_each(|former| self.rendering.drop_later(former.cluster_plans)),
        }
        effect.relist = self.register(entry);
        self.drop_unselected(
            before
                .iter()
                .flat_map(|before| all_sources(before))
                .chain(&waited),
        );
        if unchanged {
            effect.clusters.clear();
            effect.rules.insert(uid);
        } else {
            self.touch(&uid, &mut effect);
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
        if (&former.approve, former.limit, former.on_rule_delete)
            != (&now.approve, now.limit, now.on_rule_delete)
        {
            effect.judge.insert(uid.clone());
        }
        effect
    }

    /// Removes a rule that no longer exists on the hub. Its copies stay, unless its deletion was
    /// carried out before: to the sessions the rule is orphaned.
    pub fn remove_rule(&mut self, uid: &RuleUid) -> Effect {
        let mut effect = Effect::default();
        self.rendering.forget(uid);
        if let Some(former) = self.unregister(uid) {
            self.changes.remove(former.version);
            effect.clusters.extend(self.clusters.keys().cloned());
            effect.rules.insert(uid.clone());
            self.changes.forget(uid);
            self.drop_unselected(all_sources(&former.plan).chain(former.unrendered.sources()));
            self.rendering.drop_later(former.cluster_plans);
        }
        effect
    }

    /// Drops the content of deselected sources.
    pub(super) fn drop_unselected<'a>(&mut self, former: impl IntoIterator<Item = &'a SourceRef>) {
        for source in former {
            if !self.selection.has(source) {
                self.sources.drop_content(source);
            }
        }
    }

    /// Removes all rules that are not in a complete list.
    pub fn retain_rules(&mut self, listed: &BTreeSet<RuleUid>) -> Effect {
        let known = self.rules.keys().chain(self.rendering.awaited());
        let gone: BTreeSet<_> = known
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect();
        let mut effect = Effect::default();
        for uid in gone {
            effect.merge(self.remove_rule(&uid));
        }
        effect
    }

    pub(super) fn plan_of(&self, rule: &Rule) -> RulePlan {
        plan(rule, self.sources.candidates(rule), &self.scope, |place| {
            self.is_known(place)
        })
    }

    /// Returns whether labels that it needs may have been left out.
    fn register(&mut self, entry: RuleEntry) -> bool {
        let uid = entry.rule.uid.clone();
        for source in all_sources(&entry.plan) {
            self.selection.select(source, &uid);
        }
        let relist = self.selection.add_rule(&entry.rule);
        self.rules.insert(uid, entry);
        relist
    }

    fn unregister(&mut self, uid: &RuleUid) -> Option<RuleEntry> {
        let entry = self.rules.remove(uid)?;
        for source in all_sources(&entry.plan).chain(entry.unrendered.sources()) {
            self.selection.unselect(source, uid);
        }
        self.selection.remove_rule(uid);
        Some(entry)
    }

    /// Sets the state of one source in the plan of a rule.
    pub(super) fn update_plan(
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
        entry.unrendered.set_at_once(source);
        if entry.plan.is_unchanged_by(source, selected) {
            if !entry.plan.names(source) {
                self.selection.unselect(source, uid);
            }
            return;
        }
        let wanted = entry.plan.wants(source);
        Arc::make_mut(&mut entry.plan).set(source, selected);
        if entry.cluster_plans.exceeds() && self.rendering.is_aside() {
            // Nothing of it is sent or removed until it is rendered again completely.
            entry.unrendered.set_again();
            effect.render.insert(uid.clone());
        } else {
            entry
                .cluster_plans
                .update(&entry.rule, &entry.plan, source, &self.revision_hasher);
        }
        entry.keep_wanted();
        if wanted && !entry.plan.wants(source) {
            entry.guard.remove(Item::Source(source.clone()), cause);
        }
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
        self.touch(uid, effect);
    }

    /// Sets the state of one Secret (`None`: deleted) in a rule that may take values from it.
    /// Returns whether it does.
    pub(super) fn update_referenced(
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
                &self.revision_hasher,
            );
            match body {
                Some(_) => {
                    self.selection.select(secret, uid);
                }
                None => self.selection.unselect(secret, uid),
            }
            self.touch(uid, effect);
        }
        true
    }
}

/// Returns every source whose content the rule needs.
fn all_sources(plan: &RulePlan) -> impl Iterator<Item = &SourceRef> {
    plan.intents
        .keys()
        .chain(&plan.unread)
        .chain(&plan.unreadable)
        .chain(plan.refused.keys())
        .chain(plan.secret_refs.keys())
}
