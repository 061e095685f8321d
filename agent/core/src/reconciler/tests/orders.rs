//! The invariant of removals: what the agent has removed it does not create again without a newer message of the hub, whatever it has
//! forgotten by a crash.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::*;

use crate::copy::IntentKey;

/// What the hub has sent, and what the agent has removed.
#[derive(Default)]
pub struct Orders {
    rules: BTreeMap<RuleUid, (Option<Terms>, BTreeSet<SourceRef>)>,
    removed: BTreeSet<(SourceRef, IntentKey)>,
}

impl Orders {
    /// The hub has sent a batch.
    pub fn sent(&mut self, rules: &[RuleDelta]) {
        for delta in rules {
            let (terms, sources) = self.rules.entry(delta.uid.clone()).or_default();
            if let Some((new, _)) = &delta.terms {
                *terms = Some(new.clone());
            }
            sources.extend(delta.upserts.iter().map(|intent| intent.source.clone()));
        }
        // By this the hub has sent that it wants them, whatever it sends next.
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

    /// From here on it is as if nothing had been removed.
    pub fn forget(&mut self) {
        self.removed.clear();
    }

    /// The agent has removed a copy.
    pub fn removed(&mut self, copy: &SourceRef, key: IntentKey) {
        if !wants(&self.rules, copy, &key) {
            self.removed.insert((copy.clone(), key));
        }
    }

    /// The agent creates a copy.
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
