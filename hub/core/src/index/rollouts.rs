//! Which clusters may have the newest of a rule now: see [`crate::rollout`].
use std::collections::BTreeMap;

use runnel_proto::model::{ClusterName, RuleUid};

use super::{Effect, Index, RuleEntry};
use crate::guard::Item;
use crate::plan::RolloutTarget;
use crate::rollout::{Gate, Progress, RolloutPosition};

impl RuleEntry {
    /// Names what the rule brings now.
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
    pub fn turns(&self, uid: &RuleUid, progress: Option<&Progress>) -> Vec<RolloutPosition> {
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
