//! Names what a rollout brings.
use ring::digest;

use super::{Rule, RulePlan, SourceState};

/// The digest of what a rule sends, independent of its chosen clusters. Equal after a restart, like
/// revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutTarget {
    whole: String,
    /// While the removal guard blocks a part of it.
    current: String,
}

impl RolloutTarget {
    /// What a rule brings that selects this.
    pub fn of(rule: &Rule, plan: &RulePlan) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&plan.digest.to_bytes());
        context.update(&rule.made_by);
        for (secret, body) in &plan.secret_refs {
            if let SourceState::Read(content) | SourceState::Stale(content) = body {
                context.update(secret.to_string().as_bytes());
                context.update(&content.revision.0);
            }
        }
        // Labels and annotations that only some rules copy are no part of the revision of their source.
        if !rule.shape.leaves_content() {
            for (source, denied) in plan
                .intents
                .iter()
                .filter_map(|(source, it)| Some((source, it.denied.as_ref()?)))
            {
                context.update(source.to_string().as_bytes());
                context.update(denied.bytes());
            }
        }
        let digest = context.finish();
        let whole = data_encoding::HEXLOWER.encode(&digest.as_ref()[..8]);
        Self {
            current: format!("{whole}-held"),
            whole,
        }
    }

    /// Its name, while the removal guard blocks a part of it or not.
    pub fn name(&self, current: bool) -> &str {
        if current { &self.current } else { &self.whole }
    }
}
