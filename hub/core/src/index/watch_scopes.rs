//! The states of watch scopes, and the plans of the rules that select sources in them.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::RuleUid;

use super::{Effect, Index, RuleEntry};
use crate::plan::WatchScope;

/// The state of a watch scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ScopeState {
    /// No rule has needed it yet, or its watch has not delivered its first complete list.
    #[default]
    Unwatched,
    /// Its watch has delivered a complete list.
    Known,
    /// The scope cannot be watched, for this reason.
    Unreadable(String),
}

impl Index {
    /// The state of a watch scope. A scope without a watch cannot be read.
    pub fn place(&self, place: &WatchScope) -> ScopeState {
        match &place.namespace {
            Some(namespace) if !self.scope.reads(namespace) => {
                ScopeState::Unreadable(outside(namespace))
            }
            _ => self.places.get(place).cloned().unwrap_or_default(),
        }
    }

    /// A place became known or unknown. Plans that need it follow.
    pub fn set_scope(&mut self, place: WatchScope, state: ScopeState) -> Effect {
        if self.place(&place) == state {
            return Effect::default();
        }
        let needing = self
            .rules
            .iter()
            .filter(|(_, entry)| entry.rule.places(&self.scope).contains(&place));
        let follow: BTreeSet<_> = needing.map(|(uid, _)| uid.clone()).collect();
        self.places.insert(place, state);
        // The reason may have changed, and is part of the status.
        self.follow_here(Effect {
            rules: follow.clone(),
            follow,
            ..Effect::default()
        })
    }

    /// Updates the plan of a rule after a change of its scopes. Sources are observed one by one, so
    /// that nothing else of the plan changes.
    pub(super) fn follow_scopes(&mut self, uid: &RuleUid) -> Effect {
        let mut effect = Effect::default();
        let Some(entry) = self.rules.get(uid) else {
            return effect;
        };
        let unknown: BTreeSet<WatchScope> = entry
            .rule
            .places(&self.scope)
            .into_iter()
            .filter(|place| !self.is_known(place))
            .collect();
        let Some(entry) = self
            .rules
            .get_mut(uid)
            .filter(|entry| entry.plan.unknown != unknown)
        else {
            return effect;
        };
        entry.cluster_plans.set_unknown(&unknown);
        Arc::make_mut(&mut entry.plan).unknown = unknown;
        // Whether a referenced Secret is missing or unreadable must be determined again.
        let takes = entry
            .rule
            .shape
            .secrets_read()
            .next()
            .is_some()
            .then(|| entry.rule.clone());
        entry.keep_wanted();
        if entry.guard.is_open() {
            effect.judge.insert(uid.clone());
        }
        self.touch(uid, &mut effect);
        if let Some(rule) = takes.filter(|_| !self.is_awaited(uid)) {
            effect.merge(self.set_rule(rule));
        }
        effect
    }

    /// The scopes in which rules select sources.
    pub fn needed_scopes(&self) -> BTreeSet<WatchScope> {
        let rules = self
            .rules
            .values()
            .map(|entry| &entry.rule)
            .chain(self.awaited_rules());
        rules.flat_map(|rule| rule.places(&self.scope)).collect()
    }

    /// Returns the unreadable scopes of a rule, with the reasons.
    pub fn unreadable_scopes(&self, entry: &RuleEntry) -> BTreeMap<WatchScope, String> {
        let places = entry.plan.unknown.iter();
        let unreadable = places.filter_map(|place| match self.place(place) {
            ScopeState::Unreadable(why) => Some((place.clone(), why)),
            ScopeState::Unwatched | ScopeState::Known => None,
        });
        unreadable.collect()
    }

    pub(super) fn is_known(&self, place: &WatchScope) -> bool {
        self.place(place) == ScopeState::Known
    }
}

fn outside(namespace: &str) -> String {
    format!(
        "the hub does not watch {namespace}: add it to `sourceNamespaces` of the hub's chart, or to --source-namespaces"
    )
}
