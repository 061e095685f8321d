//! Revocation: the hub has said that this cluster is no longer its member.
use std::time::Instant;

use super::Core;

impl Core {
    /// The hub has revoked this cluster: the copies stay exactly as they are, marks and all, and are no longer
    /// corrected. This lasts until a hub begins a session anew.
    pub fn revoked(&mut self) {
        if !std::mem::replace(&mut self.revoked, true) {
            let copies = self.records.intents().map(|(_, copies)| copies.len()).sum::<usize>();
            tracing::warn!(
                copies,
                "the hub has revoked this cluster: the copies here stay as they are, and are kept no more"
            );
        }
    }

    /// Whether nothing is to be done about copies.
    pub(super) fn is_frozen(&self) -> bool {
        self.revoked
    }

    /// Looks at every copy that anybody wants, or that says that it is ours.
    pub(super) fn look_at_everything(&mut self, now: Instant) {
        let known = self.records.intents().flat_map(|(_, copies)| copies);
        let all: Vec<_> = self.desired.all_copies().chain(known).cloned().collect();
        for copy in all {
            self.look(&copy, now);
        }
    }
}
