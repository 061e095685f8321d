//! Rules beyond the limit of one agent are not sent, so that an agent never has more rules than its
//! hub accepts at a reconnect.
use std::collections::BTreeSet;

use runnel_proto::model::RuleUid;

use super::{RULES_LIMIT, Session};

/// Selected rules that are not sent.
#[derive(Default)]
pub(super) struct Beyond {
    rules: BTreeSet<RuleUid>,
    has_changed: bool,
}

impl Beyond {
    fn add(&mut self, uid: &RuleUid) {
        self.has_changed |= self.rules.insert(uid.clone());
    }

    /// The rule is not selected here, or there is room for it.
    pub fn remove(&mut self, uid: &RuleUid) {
        self.has_changed |= self.rules.remove(uid);
    }
}

impl Session {
    /// Whether a rule can be sent. A rule without room is recorded.
    pub(super) fn has_room_for(&mut self, uid: &RuleUid) -> bool {
        let has_room = self.rules.contains_key(uid) || self.rules.len() < RULES_LIMIT;
        if has_room {
            self.beyond.remove(uid)
        } else {
            self.beyond.add(uid)
        }
        has_room
    }

    /// The rules that were not sent and have room now.
    pub fn beyond_with_room(&self) -> Vec<RuleUid> {
        self.beyond
            .rules
            .iter()
            .take(RULES_LIMIT.saturating_sub(self.rules.len()))
            .cloned()
            .collect()
    }

    /// The rules that are not sent, if they are others than at the last call.
    pub fn take_beyond_change(&mut self) -> Option<BTreeSet<RuleUid>> {
        std::mem::take(&mut self.beyond.has_changed).then(|| self.beyond.rules.clone())
    }

    /// Records the number of the agent's rules that this session does not track.
    pub fn leave_out_rules(&mut self, rules: usize) {
        self.left_out_rules = rules;
    }

    /// Returns the number of the agent's rules that this session does not track.
    pub fn left_out_rules(&self) -> usize {
        self.left_out_rules
    }
}
