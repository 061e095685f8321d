//! The invariant of removals: the agent does not create a removed copy again without a newer
//! message of the hub, even if a crash has lost its state.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::*;

use crate::copy::IntentKey;

/// The orders that the hub has sent, and the copies that the agent has removed.
#[derive(Default)]
pub struct Orders {
    rules: BTreeMap<RuleUid, (Option<Terms>, BTreeSet<SourceRef>)>,
    removed: BTreeSet<(SourceRef, IntentKey)>,
}

impl Orders {
    /// Records a batch of the hub.
    pub fn sent(&mut self, rules: &[RuleDelta]) {
        for delta in rules {
            let (terms, sources) = self.rules.entry(delta.uid.clone()).or_default();
            if let Some((new, _)) = &delta.terms {
                *terms = Some(new.clone());
            }
            sources.extend(delta.upserts.iter().map(|intent| intent.source.clone()));
        }
        // The batch orders these copies again, even if a tombstone follows.
        let rules_now = &self.rules;
        self.removed
            .retain(|(copy, key)| !wants(rules_now, copy, key));
        for delta in rules {
            let Some((_, sources)) = self.rules.get_mut(&delta.uid) else {
                continue;
            };
            for tombstone in &delta.tombstones {
                sources.remove(&tombstone.source);
            }
            if delta.removal.is_some() {
                self.rules.remove(&delta.uid);
            }
        }
    }

    /// Forgets all removals.
    pub fn forget(&mut self) {
        self.removed.clear();
    }

    /// Records that the agent has removed a copy.
    pub fn removed(&mut self, copy: &SourceRef, key: IntentKey) {
        if !wants(&self.rules, copy, &key) {
            self.removed.insert((copy.clone(), key));
        }
    }

    /// Checks that the agent may create a copy.
    pub fn created(&self, copy: &SourceRef, key: &IntentKey) {
        assert!(
            !self.removed.contains(&(copy.clone(), key.clone())),
            "{copy} was removed and is created again"
        );
    }
}

fn wants(
    rules: &BTreeMap<RuleUid, (Option<Terms>, BTreeSet<SourceRef>)>,
    copy: &SourceRef,
    key: &IntentKey,
) -> bool {
    let Some((terms, sources)) = rules.get(&key.rule) else {
        return false;
    };
    let choice = terms.as_ref().and_then(|terms| terms.namespaces.as_ref());
    sources.contains(&key.source)
        && choice.is_none_or(|choice| {
            choice.selector.is_some()
                || choice
                    .names
                    .iter()
                    .any(|name| name.matches(&copy.namespace))
        })
}
