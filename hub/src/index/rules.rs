//! Rules come, change and go.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use super::changes::note_changes;
use super::{Effect, Index, RuleEntry};
use crate::brake::{Cause, Item};
use crate::plan::{Body, Deal, RemovalTerms, Rule, RulePlan, Source, plan};
use crate::rollout::Gate;

impl Index {
    /// A rule is as given now.
    pub fn set_rule(&mut self, rule: Rule) -> Effect {
        let mut effect = Effect::default();
        let uid = rule.uid.clone();
        let former = self.unregister(&uid);
        if rule.deleting && former.as_ref().is_none_or(|former| !former.rule.deleting) {
            self.goes_by_order();
        }
        let goes = self.goes(&rule);
        let plan = Arc::new(self.plan_of(&rule));
        let chosen = self.clusters.iter().filter(|(name, cluster)| cluster.is_chosen_by(&rule, name));
        let chosen = chosen.map(|(name, cluster)| (name.clone(), Arc::new(cluster.labels.clone())));
        let deal = Deal::new(&rule, &plan, chosen, &self.minter);
        if let Some(former) = &former {
            effect.clusters.extend(former.goes.clusters.keys().cloned());
        }
        if rule.deleting {
            // Whoever was chosen at any time may hold copies.
            effect.clusters.extend(self.clusters.keys().cloned());
        }
        let unchanged = former.as_ref().is_some_and(|former| {
            former.plan.says_the_same(&plan)
                && former.deal.says_the_same(&deal)
                && former.goes == goes
                && former.rule.terms == rule.terms
                && former.rule.deleting == rule.deleting
                && former.rule.rollout.is_some() == rule.rollout.is_some()
        });
        let awaited = plan.lent.iter().filter(|(_, body)| matches!(body, Body::Unread)).map(|(secret, _)| secret);
        effect.read.extend(plan.unread.iter().chain(awaited).cloned());
        let version = former.as_ref().map_or(0, |former| former.version);
        let before = former.as_ref().map(|former| former.plan.clone());
        let mut former = former;
        let brake = match &mut former {
            Some(former) => std::mem::take(&mut former.brake),
            None => rule.removal.brake(),
        };
        // Whom a rollout let in before its rule was suspended has had no time meanwhile: who is at work is found out anew.
        let goes_on = former.as_ref().is_some_and(|former| former.rule.terms.suspend) && !rule.terms.suspend;
        let stays = |gate: &Gate| rule.rollout.is_some() && (!goes_on || gate.travel.reverts());
        let gate = former.as_ref().and_then(|former| former.gate.clone()).filter(stays);
        let (wanted, target) = (OnceLock::new(), OnceLock::new());
        let mut entry = RuleEntry { rule, plan, deal, goes, brake, gate, version, wanted, target };
        let takes_part = |name: &ClusterName| self.clusters.get(name).is_some_and(super::Cluster::takes_part);
        if note_changes(former.as_ref(), &mut entry, takes_part) {
            effect.judge.insert(uid.clone());
        }
        match former.filter(|_| unchanged) {
            Some(former) => (entry.plan, entry.deal) = (former.plan, former.deal),
            None => entry.brake.wants_something_else(),
        }
        self.register(entry);
        self.drop_unselected(before.as_deref());
        if unchanged {
            effect.clusters.clear();
            effect.rules.insert(uid);
        } else {
            self.touch(&uid, &mut effect);
        }
        effect
    }

    /// What is said of a rule's brake is this now, and nothing else has changed: nothing is planned anew. Most of that are
    /// the hub's own words in the status, which only another process needs.
    pub fn set_removal(&mut self, uid: &RuleUid, removal: RemovalTerms) -> Effect {
        let mut effect = Effect::default();
        let Some(entry) = self.rules.get_mut(uid) else { return effect };
        let former = std::mem::replace(&mut entry.rule.removal, removal);
        let now = &entry.rule.removal;
        if (&former.release, former.limit, former.on_rule_delete) != (&now.release, now.limit, now.on_rule_delete) {
            effect.judge.insert(uid.clone());
        }
        effect
    }

    /// A rule is no longer on the hub. Its copies stay unless its deletion was seen to: sessions that still hold
    /// something of it are told that it is unclaimed.
    pub fn remove_rule(&mut self, uid: &RuleUid) -> Effect {
        let mut effect = Effect::default();
        if let Some(former) = self.unregister(uid) {
            self.changes.remove(&former.version);
            effect.clusters.extend(self.clusters.keys().cloned());
            effect.rules.insert(uid.clone());
            self.forget(uid);
            self.drop_unselected(Some(&former.plan));
        }
        effect
    }

    /// Content that no rule selects any more is not kept.
    fn drop_unselected(&mut self, former: Option<&RulePlan>) {
        for source in former.into_iter().flat_map(all_sources) {
            if !self.selected_by.contains_key(source)
                && let Some(known) = self.sources.get_mut(source)
            {
                known.body = Body::Unread;
            }
        }
    }

    /// These are all the rules there are: the others are gone.
    pub fn retain_rules(&mut self, listed: &BTreeSet<RuleUid>) -> Effect {
        let gone: Vec<_> = self.rules.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        let mut effect = Effect::default();
        for uid in gone {
            effect.merge(self.remove_rule(&uid));
        }
        effect
    }

    /// The sources that a rule could select, each with what is known of it.
    pub(super) fn candidates<'a>(
        &'a self,
        rule: &'a Rule,
    ) -> Box<dyn Iterator<Item = (&'a SourceRef, &'a Source)> + 'a> {
        let Some(namespaces) = rule.literal_namespaces() else { return Box::new(self.sources.iter()) };
        let unique: BTreeSet<_> = namespaces.into_iter().map(ToOwned::to_owned).collect();
        Box::new(rule.resources().flat_map(move |resource| {
            let unique = unique.clone();
            unique.into_iter().flat_map(move |namespace| {
                let from = SourceRef::new(resource, &namespace, "");
                self.sources
                    .range(from..)
                    .take_while(move |(key, _)| *key.resource == *resource && *key.namespace == *namespace)
            })
        }))
    }

    fn plan_of(&self, rule: &Rule) -> RulePlan {
        plan(rule, self.candidates(rule), &self.scope, |place| self.is_known(place))
    }

    fn register(&mut self, entry: RuleEntry) {
        let uid = entry.rule.uid.clone();
        for source in all_sources(&entry.plan) {
            self.selected_by.entry(source.clone()).or_default().insert(uid.clone());
        }
        self.readers.set(&entry.rule);
        self.rules.insert(uid, entry);
    }

    fn unregister(&mut self, uid: &RuleUid) -> Option<RuleEntry> {
        let entry = self.rules.remove(uid)?;
        for source in all_sources(&entry.plan) {
            remove_from(&mut self.selected_by, source, uid);
        }
        self.readers.remove(uid);
        Some(entry)
    }

    /// Plans a rule anew, if what it says changed.
    pub(super) fn replan(&mut self, uid: &RuleUid, effect: &mut Effect) {
        if let Some(entry) = self.rules.get(uid) {
            effect.merge(self.set_rule(entry.rule.clone()));
        }
    }

    /// One source is to a rule what `selected` says now.
    pub(super) fn update_plan(
        &mut self,
        uid: &RuleUid,
        source: &SourceRef,
        selected: Option<&Body>,
        cause: Cause,
        effect: &mut Effect,
    ) {
        let Some(entry) = self.rules.get_mut(uid) else { return };
        if entry.plan.already_says(source, selected) {
            return;
        }
        let wanted = entry.plan.wants(source);
        Arc::make_mut(&mut entry.plan).set(source, selected);
        entry.deal.update(&entry.rule, &entry.plan, source, &self.minter);
        if wanted != entry.plan.wants(source) {
            entry.brake.wants_something_else();
        }
        entry.keep_wanted();
        if wanted && !entry.plan.wants(source) {
            entry.brake.remove(Item::Source(source.clone()), cause);
            effect.judge.insert(uid.clone());
        }
        match selected {
            Some(_) => {
                self.selected_by.entry(source.clone()).or_default().insert(uid.clone());
            }
            None if entry.plan.lent.contains_key(source) => {}
            None => remove_from(&mut self.selected_by, source, uid),
        }
        self.touch(uid, effect);
    }

    /// One Secret is this now (`None`: gone), from which a rule may take values for the copies of others. Returns
    /// whether it does.
    pub(super) fn update_lent(
        &mut self,
        uid: &RuleUid,
        secret: &SourceRef,
        body: Option<&Body>,
        effect: &mut Effect,
    ) -> bool {
        let Some(entry) = self.rules.get_mut(uid).filter(|entry| entry.rule.takes_from(secret)) else { return false };
        if Arc::make_mut(&mut entry.plan).lend(secret, body) {
            entry.deal.update_lent(&entry.rule, &entry.plan, secret, &self.minter);
            match body {
                Some(_) => {
                    self.selected_by.entry(secret.clone()).or_default().insert(uid.clone());
                }
                None => remove_from(&mut self.selected_by, secret, uid),
            }
            self.touch(uid, effect);
        }
        true
    }
}

/// Everything whose content it needs.
fn all_sources(plan: &RulePlan) -> impl Iterator<Item = &SourceRef> {
    plan.intents.keys().chain(&plan.unread).chain(&plan.unreadable).chain(plan.refused.keys()).chain(plan.lent.keys())
}

fn remove_from(map: &mut BTreeMap<SourceRef, BTreeSet<RuleUid>>, key: &SourceRef, uid: &RuleUid) {
    if let Some(set) = map.get_mut(key) {
        set.remove(uid);
        if set.is_empty() {
            map.remove(key);
        }
    }
}
