//! How a change of a rule travels through the clusters, as one member must know it.

/// What a member does with what its copies held before a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Travel {
    /// Nothing is kept.
    #[default]
    Plain,
    /// Before a copy is changed for the first time since this base, what it held is stored.
    Keep(String),
    /// What was stored is put back, because a change went wrong. It stays stored.
    Revert {
        /// The change.
        target: String,
        /// The base.
        base: String,
    },
}

impl Travel {
    /// Whether what was stored is put back.
    pub fn reverts(&self) -> bool {
        matches!(self, Travel::Revert { .. })
    }

    /// Names what copies held that were not changed since; none where nothing is kept.
    pub fn base(&self) -> Option<&str> {
        match self {
            Travel::Plain => None,
            Travel::Keep(base) | Travel::Revert { base, .. } => Some(base),
        }
    }
}
