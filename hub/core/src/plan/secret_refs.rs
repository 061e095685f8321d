//! Secrets from which a rule takes single values for its copies, without sending the Secrets themselves.
//!
//! They lie in the namespace of the source whose copy gets the value, so a rule can use no Secret that it could not
//! distribute itself, and the place is one that the hub watches for the rule anyway.
use runnel_proto::model::SourceRef;
use serde_json::Value;

use super::{RulePlan, SourceState};

/// The kind that is lent.
pub const REFERENCED_KIND: &str = "secrets";

/// What is known of the Secrets from which a rule takes values.
pub struct SecretRefs<'a> {
    selection: &'a RulePlan,
}

impl<'a> SecretRefs<'a> {
    /// Those of a rule that selects this.
    pub fn of(selection: &'a RulePlan) -> Self {
        Self { selection }
    }

    /// The value of a key, as it stands in the object; `None`: it is still being read.
    ///
    /// # Errors
    /// When there is none, with a sentence for a person that holds no value.
    pub fn value(&self, namespace: &str, name: &str, key: &str) -> Result<Option<Value>, String> {
        let secret = SourceRef::new(REFERENCED_KIND, namespace, name);
        let content = match self.selection.secret_refs.get(&secret) {
            Some(SourceState::Unread) => return Ok(None),
            Some(SourceState::Read(content) | SourceState::Stale(content)) => content,
            Some(SourceState::Unreadable) => {
                return Err(format!("{secret} cannot be read now; the hub tries again, and its log says why"));
            }
            Some(SourceState::Refused(_)) => {
                let why = "its type, its size or its annotation runnel.dev/distribute forbids it";
                return Err(format!("{secret} is never distributed ({why}); name another Secret"));
            }
            None if self.selection.cannot_see(&secret) => return Ok(None),
            None => {
                let hint = "create it, name another one, or narrow the clusters of this entry";
                return Err(format!("there is no {secret} that may be distributed; {hint}"));
            }
        };
        let decoded = content.payload.decode().ok();
        let value = decoded.and_then(|content| content.fields.get("data")?.get(key).cloned());
        value.map(Some).ok_or_else(|| format!("{secret} has no key {key}; add it, or name another key"))
    }
}

impl RulePlan {
    /// Takes in what a Secret is from which the rule takes values; `None`: there is none, or it takes none from it.
    /// Returns whether that is news.
    pub fn set_referenced(&mut self, secret: &SourceRef, body: Option<&SourceState>) -> bool {
        let news = !lends_the_same(self.secret_refs.get(secret), body);
        match body {
            Some(body) => drop(self.secret_refs.insert(secret.clone(), body.clone())),
            None => drop(self.secret_refs.remove(secret)),
        }
        news
    }

    /// The Secrets from which values are taken that are something else than in a former plan.
    pub fn lent_since(&self, former: &RulePlan) -> Vec<SourceRef> {
        let both = self
            .secret_refs
            .keys()
            .chain(former.secret_refs.keys().filter(|secret| !self.secret_refs.contains_key(*secret)));
        both.filter(|secret| !lends_the_same(self.secret_refs.get(secret), former.secret_refs.get(secret)))
            .cloned()
            .collect()
    }

    /// Whether two know the same of what is lent.
    pub(super) fn is_lent_the_same(&self, other: &RulePlan) -> bool {
        let same = |(secret, body)| lends_the_same(other.secret_refs.get(secret), Some(body));
        self.secret_refs.len() == other.secret_refs.len() && self.secret_refs.iter().all(same)
    }
}

fn lends_the_same(one: Option<&SourceState>, two: Option<&SourceState>) -> bool {
    match (one, two) {
        (None, None)
        | (Some(SourceState::Unread), Some(SourceState::Unread))
        | (Some(SourceState::Unreadable), Some(SourceState::Unreadable)) => true,
        (Some(SourceState::Refused(one)), Some(SourceState::Refused(two))) => one == two,
        (
            Some(SourceState::Read(one) | SourceState::Stale(one)),
            Some(SourceState::Read(two) | SourceState::Stale(two)),
        ) => one.revision == two.revision,
        _ => false,
    }
}
