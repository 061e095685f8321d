//! A part of the index for a preview: a rule with everything that affects it. Changes of the part
//! have no effect elsewhere.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{RuleUid, SourceRef};

use super::planner::Planner;
use super::rendering::Rendering;
use super::targets::ChangedObject;
use super::{Effect, Index};
use crate::guard::RemovalGuard;
use crate::plan::{Rule, StopFlag};
use crate::rollout::Gate;

/// Limit of copied other rules; they matter for transfers of copies.
const OTHERS: usize = 256;

/// Everything that affects a rule, copied from an index. It is planned later, so that the lock of
/// the index is short.
pub struct RuleSnapshot {
    part: Index,
    others: Vec<Rule>,
    former: Vec<(Rule, RemovalGuard, Option<Gate>)>,
}

impl RuleSnapshot {
    /// Planning ends without a complete result once the flag is set.
    #[must_use]
    pub fn until(mut self, stop: StopFlag) -> Self {
        self.part.planner.rendering.revision_hasher.until(stop);
        self
    }

    /// An index of its own, with the current plans of these rules.
    pub fn plan(self) -> Index {
        let Self {
            mut part,
            others,
            former,
        } = self;
        for other in others {
            part.set_rule(other);
        }
        for (rule, guard, gate) in former {
            let uid = rule.uid.clone();
            part.set_rule(rule);
            if let Some(entry) = part.planner.rules.get_mut(&uid) {
                (entry.guard, entry.gate) = (guard, gate);
            }
        }
        part
    }
}

impl Index {
    /// Copies the part of the index that concerns some saved rules and one that may be unsaved:
    /// clusters, grants, current and former sources, related rules, and the rules themselves with
    /// their removal guards. Changes of the copy do not affect the index. Payloads are shared.
    pub fn around(&self, uids: &BTreeSet<RuleUid>, rule: Option<&Rule>) -> RuleSnapshot {
        let Planner {
            rules,
            selection,
            rendering,
        } = &self.planner;
        let former: Vec<_> = uids.iter().filter_map(|uid| rules.get(uid)).collect();
        let needing = rule
            .into_iter()
            .chain(former.iter().map(|entry| &entry.rule));
        let part = Index {
            planner: Planner {
                rendering: Rendering::hashing_with(rendering.revision_hasher.clone()),
                ..Planner::default()
            },
            sources: self.sources.for_rules(needing),
            scopes: self.scopes.clone(),
            targets: self.targets.clone(),
            fleet_guard: self.fleet_guard.for_part(rules.uids().cloned().collect()),
        };
        let readers = part.sources.names().flat_map(|source| selection.of(source));
        let others: BTreeSet<_> = readers
            .filter(|uid| !uids.contains(*uid))
            .cloned()
            .collect();
        let others = others.iter().take(OTHERS).filter_map(|uid| rules.get(uid));
        let others = others.map(|other| other.rule.clone()).collect();
        let of_entry = |entry: &super::RuleEntry| {
            (entry.rule.clone(), entry.guard.clone(), entry.gate.clone())
        };
        let former = former.into_iter().map(of_entry).collect();
        RuleSnapshot {
            part,
            others,
            former,
        }
    }

    /// Returns the rules that select a source now, or would with these labels.
    pub fn selecting(
        &self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
    ) -> BTreeSet<RuleUid> {
        let concerned = self.planner.selection.concerned(source, labels);
        let selects = |uid: &RuleUid| {
            self.rules()
                .get(uid)
                .is_some_and(|entry| entry.rule.selects(source, labels) || entry.plan.names(source))
        };
        concerned.into_iter().filter(selects).collect()
    }

    /// Sets an object of a preview.
    pub fn apply(&mut self, changed: ChangedObject) -> Effect {
        match changed {
            ChangedObject::Grant(name, grant) => self.set_grant(&name, grant.map(|grant| *grant)),
            ChangedObject::Member(name, Some(cluster)) => self.set_cluster(name, cluster),
            ChangedObject::Member(name, None) => self.remove_cluster(&name),
            ChangedObject::Bundle(source, Some((labels, body))) => {
                self.set_source(source, labels, Some(body))
            }
            ChangedObject::Bundle(source, None) => self.remove_source(&source),
        }
    }
}
