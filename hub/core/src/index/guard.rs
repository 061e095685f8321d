//! Items that are no longer selected, and the decision about their removal: see [`crate::guard`].
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use runnel_api::PendingApproval;
use runnel_proto::model::{ClusterName, RuleUid};

use super::copy_counter::CopyCounter;
use super::holdings::{Holding, Holdings, PendingCause};
use super::judge::{Before, Judge, blocked_rules, is_preview};
use super::{Effect, Index};
use crate::guard::{CauseKind, FleetTerms, Item, Limit};
use crate::now::Now;

impl Index {
    /// The index, with a limit that no rule can raise.
    #[must_use]
    pub fn with_ceiling(self, ceiling: Limit) -> Self {
        Self {
            ceiling: Some(ceiling),
            ..self
        }
    }

    /// Sets the removal settings of the `Fleet` object.
    pub fn set_fleet_terms(&mut self, terms: FleetTerms) -> Effect {
        let mut effect = Effect::default();
        if self.guard.terms != terms {
            self.guard.terms = terms;
            effect.judge = self.rules_with_removals();
        }
        effect
    }

    fn rules_with_removals(&self) -> BTreeSet<RuleUid> {
        self.rules
            .iter()
            .filter(|(_, entry)| entry.guard.is_open())
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// Resets the guards and gates: from now on this process decides, by the blocked sets and the
    /// rollout progress in the statuses.
    pub fn reset_removal_guards(&mut self) {
        self.guard.reset();
        self.mark_unrendered_stale();
        for entry in self.rules.values_mut() {
            entry.guard = entry.rule.removal.guard();
            entry.gate = None;
            if entry.rule.deleting {
                entry.guard.remove(Item::Rule, CauseKind::Deleted.of(""));
            }
        }
    }

    /// Sets whether a namespace is being deleted or missing.
    pub fn set_terminating(&mut self, namespace: &str, terminating: bool) {
        if terminating {
            self.terminating.namespaces.insert(namespace.to_owned())
        } else {
            self.terminating.namespaces.remove(namespace)
        };
    }

    /// Records that the definition of a kind of rules is terminating or deleted: its rules were not
    /// deleted one by one.
    pub fn set_definition(&mut self, name: &str, terminating: Option<bool>) -> Effect {
        if terminating.unwrap_or(true) {
            self.terminating.definitions.insert(name.to_owned())
        } else {
            self.terminating.definitions.remove(name)
        };
        Effect::default()
    }

    /// Sets the definitions. `None`: they cannot be read, and the former state is kept.
    pub fn set_definitions(&mut self, all: Option<BTreeMap<String, bool>>) -> Effect {
        for (name, terminating) in all.into_iter().flatten() {
            self.set_definition(&name, Some(terminating));
        }
        Effect::default()
    }

    /// Judges the items that these rules no longer select. Deliberate deletes and approved sets
    /// pass at once. All other items wait, and are judged together at [`Index::next_judgement`].
    pub fn judge(&mut self, uids: &BTreeSet<RuleUid>, holdings: Holdings<'_>, now: Now) -> Effect {
        let judge = Judge {
            rules: &mut self.rules,
            fleet: &mut self.guard,
            clusters: &self.clusters,
            selection: &self.selection,
            origins: &self.terminating,
            ceiling: self.ceiling,
            holdings,
            now,
            before: Before::new(),
        };
        let before = judge.judge(uids);
        self.effect_since(before)
    }

    /// Returns when pending removals are judged.
    pub fn next_judgement(&self) -> Option<Instant> {
        self.guard.due()
    }

    fn effect_since(&mut self, before: Before) -> Effect {
        let mut effect = Effect::default();
        for (uid, former) in before {
            let Some(entry) = self.rules.get(&uid) else {
                continue;
            };
            let decision = entry.guard.decision().clone();
            effect.rules.insert(uid.clone());
            if decision == former {
                continue;
            }
            match decision.differing_prunes(&former) {
                // Removals of one cluster do not concern the others.
                Some(clusters) => {
                    self.renew(&uid);
                    effect.clusters.extend(clusters);
                }
                None => self.touch(&uid, &mut effect),
            }
            if decision.differs_elsewhere(&former) {
                // Clusters that are no longer selected are concerned, too.
                effect.clusters.extend(self.clusters.keys().cloned());
            }
        }
        effect
    }

    /// Returns the pending approvals of the fleet, by cause.
    pub fn pending_causes(&self) -> Vec<PendingCause> {
        blocked_rules(&self.rules).map(|(cause, _)| cause).collect()
    }

    /// Returns the pending approval of a rule.
    pub fn pending_approval(&self, uid: &RuleUid) -> Option<&PendingApproval> {
        self.rules.get(uid)?.guard.pending()
    }

    /// Judges removals of a cluster again, because its agent repeats the request after they passed.
    pub fn prune_again(&mut self, uid: &RuleUid, cluster: &ClusterName) {
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.guard.prune_again(cluster);
        }
    }

    /// Whether a cluster's agent reports another set of copies than the decided one.
    pub fn prune_differs(&self, uid: &RuleUid, cluster: &ClusterName, holding: Holding) -> bool {
        let digest = holding.prunes.map(|asked| asked.digest);
        self.rules
            .get(uid)
            .is_some_and(|entry| entry.guard.prune_differs(cluster, digest))
    }

    /// Whether the removal of a deleted rule has passed the guard.
    pub fn may_go(&self, uid: &RuleUid) -> bool {
        self.rules
            .get(uid)
            .is_none_or(|entry| entry.guard.decision().passes(&Item::Rule))
    }

    /// Returns the number of copies that a dry run would remove by order of the hub, by cluster.
    pub fn planned_removals(
        &self,
        uid: &RuleUid,
        holdings: Holdings<'_>,
    ) -> BTreeMap<ClusterName, u64> {
        let entry = self.rules.get(uid).filter(|entry| is_preview(entry));
        let counter = CopyCounter {
            rules: &self.rules,
            clusters: &self.clusters,
            selection: &self.selection,
            holdings,
        };
        entry
            .map(|entry| counter.count(entry, entry.guard.open()))
            .unwrap_or_default()
    }

    /// Whether removals of a rule wait for approval.
    pub fn is_blocked(&self, uid: &RuleUid) -> bool {
        self.rules
            .get(uid)
            .is_some_and(|entry| entry.guard.is_blocking())
    }
}
