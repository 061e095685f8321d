//! Changes of grants and namespaces: they decide where the rules of a namespace may send objects.
//!
//! A narrowed grant takes effect at once. The removals that follow (a kind or a whole cluster here,
//! a namespace in the member) are *indirect*: no rule and no source was deleted. [`Index::follow`]
//! starts them, for one rule at a time.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::RuleUid;

use super::{Effect, Index};
use crate::guard::CauseKind;
use crate::plan::{GrantChange, RuleGrant};

/// A hub namespace in its watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HubNamespace {
    /// Its labels, by which grants may choose.
    pub labels: BTreeMap<String, String>,
    /// Whether it is terminating: its objects were not deleted one by one.
    pub terminating: bool,
}

/// Deleted namespaces that are remembered, besides the existing ones.
const MAX_DELETED_NAMESPACES: usize = 1000;

impl Index {
    /// Sets a namespace of the hub; `None`: it is deleted. Its objects may be deleted only later,
    /// so it counts as terminating until it exists again.
    pub fn set_hub_namespace_state(&mut self, name: &str, seen: Option<HubNamespace>) -> Effect {
        let terminating = &mut self.fleet_guard.terminating;
        terminating.set_namespace(name, seen.as_ref().is_none_or(|seen| seen.terminating));
        let grants = &mut self.targets.grants;
        let change = grants.set_namespace(name, seen.map(|seen| seen.labels));
        if let Some(known) = grants.namespaces()
            && terminating.namespaces() > known + MAX_DELETED_NAMESPACES
        {
            terminating.retain_namespaces(|name| grants.has_namespace(name));
        }
        self.regrants(change)
    }

    /// Sets all namespaces of the hub; `None`: they cannot be read.
    pub fn set_hub_namespace_states(
        &mut self,
        all: Option<BTreeMap<String, HubNamespace>>,
    ) -> Effect {
        for (name, seen) in all.iter().flatten() {
            let terminating = &mut self.fleet_guard.terminating;
            terminating.set_namespace(name, seen.terminating);
        }
        let labels = all.map(|all| {
            all.into_iter()
                .map(|(name, seen)| (name, seen.labels))
                .collect()
        });
        let change = self.targets.grants.set_namespaces(labels);
        self.regrants(change)
    }

    /// Sets a grant; `None`: it is deleted. No effect while grants cannot be read.
    pub fn set_grant(&mut self, name: &str, grant: Option<RuleGrant>) -> Effect {
        let change = self.targets.grants.set(name, grant);
        self.regrants(change)
    }

    /// Sets all grants; `None`: they cannot be read, and nothing that needs one is sent or removed.
    pub fn set_grants(&mut self, all: Option<BTreeMap<String, RuleGrant>>) -> Effect {
        let change = self.targets.grants.set_all(all);
        self.regrants(change)
    }

    /// Resolves the grants of the rules that a change concerns.
    fn regrants(&mut self, change: Option<GrantChange>) -> Effect {
        let Some(change) = change else {
            return Effect::default();
        };
        let rules = self.planner.rules.iter();
        let concerned = rules.filter(|(_, entry)| change.concerns(&entry.rule));
        let follow: BTreeSet<_> = concerned.map(|(uid, _)| uid.clone()).collect();
        self.fleet_guard.set_changed(&follow, &change.cause);
        self.follow_here(Effect {
            follow,
            ..Effect::default()
        })
    }

    /// A rule follows what is known of grants and places now. Rules may do so one by one: each is as if that had come a
    /// moment later.
    pub fn follow(&mut self, uid: &RuleUid) -> Effect {
        let mut effect = self.follow_scopes(uid);
        effect.merge(self.regrant(uid));
        effect
    }

    /// Lets all concerned rules follow at once, if no other task does.
    pub(super) fn follow_here(&mut self, mut effect: Effect) -> Effect {
        while !self.planner.rendering.defers_rendering()
            && let Some(uid) = effect.follow.pop_first()
        {
            effect.merge(self.follow(&uid));
        }
        effect
    }

    /// Resolves the grants of a rule again.
    fn regrant(&mut self, uid: &RuleUid) -> Effect {
        let cause = self.fleet_guard.take_changed(uid);
        let (rules, targets) = (&mut self.planner.rules, &self.targets);
        let namespaced = rules
            .get(uid)
            .filter(|entry| !entry.rule.terms.rule.is_cluster_scoped());
        let Some(now) = namespaced.map(|entry| targets.of(&entry.rule)) else {
            return Effect::default();
        };
        let cause = cause.unwrap_or_else(|| CauseKind::Grants.of(""));
        rules.set_target_clusters(uid, now, &cause, &targets.clusters)
    }
}
