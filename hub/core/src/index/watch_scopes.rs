//! The states of watch scopes, and the plans of the rules that select sources in them.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{RuleUid, SourceRef};

use super::{Effect, Index};
use crate::plan::{Rule, RulePlan, Scope, WatchScope};

/// The state of a watch scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ScopeState {
    /// No rule has needed it yet, or its watch has not delivered its first complete list.
    #[default]
    Unwatched,
    /// Its watch has delivered a complete list.
    Known,
    /// The API server of the hub does not serve the kind.
    NotServed,
    /// The kind has the other scope: it has namespaces and the scope is the cluster, or the reverse.
    Mismatched,
    /// The scope cannot be watched, for this reason.
    Unreadable(String),
}

/// The watch scopes with their states.
#[derive(Clone, Default)]
pub struct WatchScopes {
    watched: Scope,
    states: BTreeMap<WatchScope, ScopeState>,
}

impl WatchScopes {
    pub(super) fn of(watched: Scope) -> Self {
        Self {
            watched,
            states: BTreeMap::new(),
        }
    }

    /// Returns the scope of the hub's watches.
    pub fn watched(&self) -> &Scope {
        &self.watched
    }

    /// Returns the state of a watch scope. A scope without a watch cannot be read.
    pub fn state(&self, scope: &WatchScope) -> ScopeState {
        match &scope.namespace {
            Some(namespace) if !self.watched.reads(namespace) => {
                ScopeState::Unreadable(outside(namespace))
            }
            _ => self.states.get(scope).cloned().unwrap_or_default(),
        }
    }

    pub(super) fn is_known(&self, scope: &WatchScope) -> bool {
        self.state(scope) == ScopeState::Known
    }

    /// Whether the scope of a source is known. Sources outside of all watches are unknown.
    pub(super) fn knows(&self, source: &SourceRef) -> bool {
        self.is_known(&self.watched.place(&source.resource, &source.namespace))
    }

    /// Returns the scopes of a rule that are not known; none of a reverted rule, whose contents are.
    pub(super) fn unknown(&self, rule: &Rule) -> BTreeSet<WatchScope> {
        if rule.reverted_to().is_some() {
            return BTreeSet::new();
        }
        let places = rule.places(&self.watched).into_iter();
        places.filter(|scope| !self.is_known(scope)).collect()
    }

    /// Returns the unreadable scopes of a plan, with the reasons. Those of kinds that are not served or have the other
    /// scope are among them.
    pub fn unreadable(&self, plan: &RulePlan) -> BTreeMap<WatchScope, String> {
        let unreadable = plan
            .unknown
            .iter()
            .filter_map(|scope| match self.state(scope) {
                ScopeState::Unreadable(why) => Some((scope.clone(), why)),
                ScopeState::NotServed => Some((scope.clone(), not_served(&scope.resource))),
                ScopeState::Mismatched => Some((scope.clone(), mismatched(scope))),
                ScopeState::Unwatched | ScopeState::Known => None,
            });
        unreadable.collect()
    }

    /// Returns the kinds of a plan that the API server of the hub does not serve.
    pub fn not_served(&self, plan: &RulePlan) -> BTreeSet<Arc<str>> {
        let scopes = plan.unknown.iter();
        scopes
            .filter(|scope| self.state(scope) == ScopeState::NotServed)
            .map(|scope| scope.resource.clone())
            .collect()
    }

    /// Returns the scopes of a plan whose kinds have the other scope.
    pub fn mismatched(&self, plan: &RulePlan) -> BTreeSet<WatchScope> {
        let scopes = plan.unknown.iter();
        scopes
            .filter(|scope| self.state(scope) == ScopeState::Mismatched)
            .cloned()
            .collect()
    }
}

/// Returns why a kind is not watched that a rule selects in the scope that it does not have.
fn mismatched(scope: &WatchScope) -> String {
    let kind = &scope.resource;
    if scope.is_cluster() {
        format!(
            "{kind} belong to namespaces: select them in an entry of spec.sources with namespaces"
        )
    } else {
        format!(
            "{kind} belong to no namespace: only a ClusterDistributionRule distributes them; select them there, in an entry of \
             spec.sources without namespaces"
        )
    }
}

fn not_served(resource: &str) -> String {
    format!("the API server of the hub does not serve {resource}")
}

fn outside(namespace: &str) -> String {
    format!(
        "the hub does not watch {namespace}: add it to `sourceNamespaces` of the hub's chart, or to --source-namespaces"
    )
}

impl Index {
    /// Sets the state of a watch scope. Plans that need it follow.
    pub fn set_scope(&mut self, scope: WatchScope, state: ScopeState) -> Effect {
        if self.scopes.state(&scope) == state {
            return Effect::default();
        }
        let needing = self
            .rules()
            .iter()
            .filter(|(_, entry)| entry.rule.places(self.scopes.watched()).contains(&scope));
        let follow: BTreeSet<_> = needing.map(|(uid, _)| uid.clone()).collect();
        self.scopes.states.insert(scope, state);
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
        let Some(entry) = self.planner.rules.get(uid) else {
            return Effect::default();
        };
        let unknown = self.scopes.unknown(&entry.rule);
        let mut effect = self.planner.rules.set_unknown(uid, unknown);
        // Whether a referenced Secret is missing or unreadable must be determined again.
        if effect.rules.contains(uid)
            && !self.planner.rendering.is_awaited(uid)
            && let Some(entry) = self.planner.rules.get(uid)
            && entry.rule.shape.secrets_read().next().is_some()
        {
            effect.merge(self.set_rule(entry.rule.clone()));
        }
        effect
    }

    /// Forgets a scope that no rule needs, with its sources. No plan changes by that. Returns `false` if a rule needs it.
    pub fn release_scope(&mut self, scope: &WatchScope) -> bool {
        if self.scopes_of_rules().any(|needed| needed == *scope) {
            return false;
        }
        self.scopes.states.remove(scope);
        for source in self.sources.take_scope(scope) {
            self.planner.selection.release_labels(&source);
        }
        true
    }

    /// Returns the scopes in which rules select sources.
    pub fn needed_scopes(&self) -> BTreeSet<WatchScope> {
        self.scopes_of_rules().collect()
    }

    /// Returns the namespaces whose rules name each kind; empty for ClusterDistributionRules.
    pub fn namespaces_by_kind(&self) -> BTreeMap<Arc<str>, BTreeSet<String>> {
        let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for rule in self.planner.all_rules() {
            let namespace = &rule.terms.rule.namespace;
            for scope in rule.places(self.scopes.watched()) {
                let namespaces = all.entry(scope.resource).or_default();
                namespaces.insert(namespace.to_string());
            }
        }
        all
    }

    /// Returns the scopes of each rule.
    fn scopes_of_rules(&self) -> impl Iterator<Item = WatchScope> {
        let rules = self.planner.all_rules();
        rules.flat_map(|rule| rule.places(self.scopes.watched()))
    }
}
