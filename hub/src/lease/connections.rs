//! Limits the connections of one member without a registered session.
//!
//! Every certificate that a CA ever signed for a member passes TLS. That includes expired ones and
//! those of replaced keys, because the hub sends their holders a hint. So connections are counted
//! by member and by key. A holder of an old key cannot use the quota of the new one.
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::connection_guard::{GuardState, MemberKey};

/// The limit of connections without a session for one key: one for its next session, one for a
/// renewal, and those that a network failure leaves behind.
pub(super) const PER_KEY: usize = 6;
/// The limit of connections without a session for all keys of one member.
pub(super) const PER_MEMBER: usize = 16;

/// The connections of members, the oldest first.
#[derive(Default)]
pub(super) struct MemberConnections(BTreeMap<Arc<str>, Vec<Weak<GuardState>>>);

impl MemberConnections {
    /// Adds a connection. Ends the oldest ones without a session above the limits of the key and
    /// the member. Returns the number of ended connections.
    pub(super) fn enter(&mut self, new: &Arc<GuardState>) -> u64 {
        let Some(member) = new.member() else { return 0 };
        let known = self.0.entry(member.uid.clone()).or_default();
        known.retain(|guard_state| guard_state.strong_count() > 0);
        known.push(Arc::downgrade(new));
        let mut idle: Vec<_> = known
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|guard_state| guard_state.is_idle())
            .collect();
        let mut ended = 0;
        loop {
            let mut by_key: BTreeMap<Option<&MemberKey>, usize> = BTreeMap::new();
            idle.iter()
                .for_each(|guard_state| *by_key.entry(guard_state.member()).or_default() += 1);
            let most = by_key.values().copied().max().unwrap_or_default();
            if most <= PER_KEY && idle.len() <= PER_MEMBER {
                return ended;
            }
            let oldest = idle
                .iter()
                .position(|guard_state| by_key.get(&guard_state.member()) == Some(&most));
            let Some(oldest) = oldest.map(|oldest| idle.remove(oldest)) else {
                return ended;
            };
            oldest.end();
            ended += 1;
        }
    }

    /// Drops connections that have closed.
    pub(super) fn drop_closed(&mut self) {
        self.0.retain(|_, known| {
            known.retain(|guard_state| guard_state.strong_count() > 0);
            !known.is_empty()
        });
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
