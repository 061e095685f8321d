//! Captures the inputs of a rule as the state of a completed rollout, and plans them again.
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{CompletedState, Edits, RollbackBlocker, Rule, RulePlan, Scope, SourceState};

impl CompletedState {
    /// Captures the inputs of a rule, whose rollout to this target was completed at this time.
    ///
    /// # Errors
    /// [`RollbackBlocker::Incomplete`], if some content is unknown.
    pub fn of(
        rule: &Rule,
        selection: &RulePlan,
        revision: &str,
        completed_at: Option<Timestamp>,
    ) -> Result<Self, RollbackBlocker> {
        let unread = RollbackBlocker::Incomplete("the hub could not read all of its sources");
        let spec = rule.spec.clone().ok_or(RollbackBlocker::NoneCompleted)?;
        let is_read = selection.unread.is_empty() && selection.unreadable.is_empty();
        if !is_read || !selection.unknown.is_empty() {
            return Err(unread);
        }
        let sources = selection.objects_with_content().filter_map(|source| {
            let content = selection.object_content(source)?;
            Some((source.clone(), content.clone()))
        });
        let mut secret_refs = BTreeMap::new();
        for (secret, state) in &selection.secret_refs {
            match state {
                SourceState::Read(content) => {
                    secret_refs.insert(secret.clone(), content.clone());
                }
                SourceState::Refused(_) => {}
                SourceState::Unread | SourceState::Unreadable | SourceState::Stale(_) => {
                    return Err(unread);
                }
            }
        }
        Ok(Self {
            revision: revision.to_owned(),
            completed_at,
            spec,
            sources: sources.collect(),
            secret_refs,
        })
    }

    /// Returns the rule with the former spec; `None` if the hub cannot read that.
    pub fn rule(&self, now: &Rule) -> Option<Rule> {
        now.with_former_spec(&self.spec)
    }

    /// Plans the former rule with the former contents.
    pub fn plan(&self, former: &Rule, scope: &Scope) -> RulePlan {
        let mut plan = RulePlan::empty(former);
        plan.scope = scope.clone();
        for (source, content) in &self.sources {
            plan.set(source, Some(&SourceState::Read(content.clone())));
        }
        for (secret, content) in &self.secret_refs {
            plan.set_referenced(secret, Some(&SourceState::Read(content.clone())));
        }
        plan.edits = Edits::default();
        plan
    }
}
