//! What an agent did to the copies of a rule, for logs, Events and the hub.
use crate::closed_list;

closed_list! {
    /// What was done to a copy.
    pub enum CopyAction {
        /// The object was created.
        Created = "created",
        /// The copy was changed.
        Updated = "updated",
        /// An equal object was taken over.
        Adopted = "adopted",
        /// An object of others was overwritten.
        Overwritten = "overwrote",
        /// The copy could not be changed: it was deleted and created again.
        Recreated = "recreated",
        /// The copy was deleted.
        Removed = "removed",
        /// The marks of the copy were removed, and the object stays.
        Retained = "retained",
        /// Another client had changed or deleted the copy, and the agent restored it.
        Restored = "restored",
    }
}

closed_list! {
    /// What made an agent change a copy, as far as the agent knows.
    pub enum ChangeOrigin {
        /// The hub sent a change of the rule.
        Hub = "the hub ordered it",
        /// The namespace appeared or changed in the member.
        Namespace = "the namespace appeared or changed",
        /// The member's policy changed.
        Policy = "the member policy changed",
        /// Another client changed or deleted the copy.
        Drift = "another client changed or deleted it",
        /// The agent found the difference when it compared all copies.
        Resync = "resync",
    }
}

/// Number of changes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyChange {
    /// What was done.
    pub action: CopyAction,
    /// Why.
    pub origin: ChangeOrigin,
    /// Number of copies, at least 1.
    pub copies: u32,
}

/// The most changes in one rule's state: one for each pair of an action and an origin.
pub const CHANGES_LIMIT: usize = CopyAction::ALL.len() * ChangeOrigin::ALL.len();
