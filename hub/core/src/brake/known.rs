//! What the judgement needs to know, and what is remembered of it.
use std::collections::BTreeSet;

use runnel_api::RemovalStatus;

use super::{Item, Limit, Waiting};

/// What a rule's status remembers of its brake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Names the set that is held, or that was released last.
    pub digest: String,
    /// How many copies it was.
    pub copies: u64,
    /// Names what the rule wanted besides.
    pub wanted: String,
    /// Whether it was released.
    pub released: bool,
    /// The digest that was released before, so that an old release never fits a new set.
    pub previous: String,
}

impl Memory {
    /// What was released before, of which nothing is left to go: no other set may be called the same once this one is over.
    pub(super) fn used(&self) -> Option<Memory> {
        let used = Memory { digest: self.previous.clone(), released: true, ..Memory::default() };
        (!used.digest.is_empty()).then_some(used)
    }
}

impl From<&RemovalStatus> for Memory {
    fn from(status: &RemovalStatus) -> Self {
        Self {
            digest: status.digest.clone(),
            copies: u64::try_from(status.copies).unwrap_or_default(),
            released: status.released,
            wanted: status.wanted.clone(),
            previous: status.previous.clone(),
        }
    }
}

impl From<Memory> for RemovalStatus {
    fn from(memory: Memory) -> Self {
        Self {
            digest: memory.digest,
            copies: i64::try_from(memory.copies).unwrap_or(i64::MAX),
            released: memory.released,
            wanted: memory.wanted,
            previous: memory.previous,
        }
    }
}

/// What the judgement needs to know.
pub struct Circumstances<'a> {
    /// The rule's uid: no digest fits two rules.
    pub uid: &'a str,
    /// What may go without a release.
    pub limit: Limit,
    /// All copies of the rule.
    pub all: u64,
    /// How many copies a set is.
    pub weigh: &'a dyn Fn(&BTreeSet<Item>) -> u64,
    /// Whether the deletion of this was one of too many, or came about by that of its namespace or the like.
    pub doubtful: &'a dyn Fn(&Item) -> bool,
    /// Whether this is of a cluster that is away, so that nobody knows what it really holds.
    pub is_away: &'a dyn Fn(&Item) -> bool,
    /// Names what the rule wants.
    pub wanted: &'a dyn Fn() -> String,
    /// The digests that the rule's annotation releases.
    pub release: Option<&'a str>,
    /// What is to be overwritten, in the clusters that the rule goes to; `None` if it is to overwrite nothing.
    pub takeovers: Option<Waiting>,
    /// What of that may be overwritten without a release.
    pub takeovers_limit: Limit,
    /// What is to go there because its namespace is no longer a target; `None` if all of the rule is to go.
    pub given_up: Option<Waiting>,
}

/// Whether an annotation releases a digest: it names one, or several with commas between them.
pub(super) fn is_released(release: Option<&str>, digest: &str) -> bool {
    release.is_some_and(|named| named.split(',').any(|one| one.trim() == digest))
}
