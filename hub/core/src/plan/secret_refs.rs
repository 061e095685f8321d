//! Secrets from which a rule reads single values for its copies, without sending the Secrets
//! themselves.
//!
//! The Secrets lie in the namespace of the source whose copy gets the value. So a rule can use no
//! Secret that it could not distribute itself, and the hub watches that namespace for the rule
//! anyway.
use runnel_proto::model::SourceRef;
use serde_json::Value;

use super::{RulePlan, SourceState};

/// The kind of referenced objects.
pub const REFERENCED_KIND: &str = "secrets";

/// Why a value of a Secret cannot be used. The text contains no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretRefError {
    /// The hub cannot read the Secret now.
    #[error("{0} cannot be read now; the hub tries again, and its log has the cause")]
    Unreadable(SourceRef),
    /// The Secret must not be distributed.
    #[error(
        "{0} is never distributed (its type, its size or its annotation runnel.dev/distribute forbids it); name another Secret"
    )]
    Refused(SourceRef),
    /// The Secret does not exist, or the rule may not distribute it.
    #[error(
        "there is no {0} that may be distributed; create it, name another one, or narrow the clusters of this entry"
    )]
    Missing(SourceRef),
    /// The Secret does not have the key.
    #[error("{secret} has no key {key}; add it, or name another key")]
    NoKey {
        /// The Secret.
        secret: SourceRef,
        /// The key.
        key: String,
    },
}

/// The known Secrets whose values a rule uses.
pub struct SecretRefs<'a> {
    selection: &'a RulePlan,
}

impl<'a> SecretRefs<'a> {
    /// Those of a rule that selects this.
    pub fn of(selection: &'a RulePlan) -> Self {
        Self { selection }
    }

    /// The value of a key, as encoded in the object; `None`: it is still being read.
    ///
    /// # Errors
    ///
    /// [`SecretRefError`], when there is none.
    pub fn value(
        &self,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<Option<Value>, SecretRefError> {
        let secret = SourceRef::new(REFERENCED_KIND, namespace, name);
        let content = match self.selection.secret_refs.get(&secret) {
            Some(SourceState::Unread) => return Ok(None),
            Some(SourceState::Read(content) | SourceState::Stale(content)) => content,
            Some(SourceState::Unreadable) => {
                return Err(SecretRefError::Unreadable(secret));
            }
            Some(SourceState::Refused(_)) => {
                return Err(SecretRefError::Refused(secret));
            }
            None if self.selection.is_unseen(&secret) => return Ok(None),
            None => return Err(SecretRefError::Missing(secret)),
        };
        let decoded = content.payload.decode().ok();
        let value = decoded.and_then(|content| content.fields.get("data")?.get(key).cloned());
        value.map(Some).ok_or_else(|| SecretRefError::NoKey {
            secret,
            key: key.to_owned(),
        })
    }
}

impl RulePlan {
    /// Sets the state of a Secret whose values the rule uses; `None`: it does not exist, or is not
    /// used. Returns whether the state changed.
    pub fn set_referenced(&mut self, secret: &SourceRef, body: Option<&SourceState>) -> bool {
        let news = !provides_equal_values(self.secret_refs.get(secret), body);
        match body {
            Some(body) => drop(self.secret_refs.insert(secret.clone(), body.clone())),
            None => drop(self.secret_refs.remove(secret)),
        }
        news
    }

    /// Returns the referenced Secrets that differ from those of a former plan.
    pub fn referenced_since(&self, former: &RulePlan) -> Vec<SourceRef> {
        let both = self.secret_refs.keys().chain(
            former
                .secret_refs
                .keys()
                .filter(|secret| !self.secret_refs.contains_key(*secret)),
        );
        both.filter(|secret| {
            !provides_equal_values(self.secret_refs.get(secret), former.secret_refs.get(secret))
        })
        .cloned()
        .collect()
    }

    /// Whether two plans have the same references.
    pub(super) fn has_same_references(&self, other: &RulePlan) -> bool {
        let same =
            |(secret, body)| provides_equal_values(other.secret_refs.get(secret), Some(body));
        self.secret_refs.len() == other.secret_refs.len() && self.secret_refs.iter().all(same)
    }
}

fn provides_equal_values(one: Option<&SourceState>, two: Option<&SourceState>) -> bool {
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
