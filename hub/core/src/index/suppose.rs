//! A part of the index in which a rule can be tried: with everything that has to do with it, and nothing that anybody looks
//! at.
use std::collections::BTreeSet;

use super::Index;
use crate::guard::RemovalGuard;
use crate::plan::Rule;
use crate::rollout::Gate;

/// The most other rules that are taken along; they matter where copies change hands.
const OTHERS: usize = 256;

/// What has to do with a rule, taken out of an index. Nothing is planned yet: who takes it holds the index only for so long.
pub struct Around {
    part: Index,
    others: Vec<Rule>,
    former: Option<(Rule, RemovalGuard, Option<Gate>)>,
}

impl Around {
    /// An index of its own, in which the rules are planned as they are now.
    pub fn plan(self) -> Index {
        let Self { mut part, others, former } = self;
        for other in others {
            part.set_rule(other);
        }
        if let Some((rule, guard, gate)) = former {
            let uid = rule.uid.clone();
            part.set_rule(rule);
            if let Some(entry) = part.rules.get_mut(&uid) {
                (entry.guard, entry.gate) = (guard, gate);
            }
        }
        part
    }
}

impl Index {
    /// A copy of what has to do with a rule: clusters, grants, the sources that it needs or needed, the rules beside it, and
    /// the rule itself as it is now, its removal guard included. Whatever is done to it, this index stays as it is. Payloads are
    /// shared.
    pub fn around(&self, rule: &Rule) -> Around {
        let former = self.rules.get(&rule.uid);
        let mut part = Index {
            revision_hasher: self.revision_hasher.clone(),
            scope: self.scope.clone(),
            places: self.places.clone(),
            clusters: self.clusters.clone(),
            grants: self.grants.clone(),
            guard: self.guard.for_part(self.rules.keys().cloned().collect()),
            terminating: self.terminating.clone(),
            terminating_definitions: self.terminating_definitions.clone(),
            ceiling: self.ceiling,
            ..Index::default()
        };
        for rule in [Some(rule), former.map(|entry| &entry.rule)].into_iter().flatten() {
            let needed = self.candidates(rule).filter(|(source, known)| rule.needs(source, &known.labels));
            part.sources.extend(needed.map(|(source, known)| (source.clone(), known.clone())));
        }
        let deleted = self.deleted.iter().filter(|(source, _)| part.sources.contains_key(*source));
        part.deleted = deleted.map(|(source, at)| (source.clone(), *at)).collect();
        let readers = part.sources.keys().filter_map(|source| self.selected_by.get(source)).flatten();
        let others: BTreeSet<_> = readers.filter(|uid| **uid != rule.uid).cloned().collect();
        let others = others.iter().take(OTHERS).filter_map(|uid| self.rules.get(uid));
        let others = others.map(|other| other.rule.clone()).collect();
        let former = former.map(|entry| (entry.rule.clone(), entry.guard.clone(), entry.gate.clone()));
        Around { part, others, former }
    }
}
