//! What a rule is to overwrite: it waits until the hub has named it; see [`crate::takeovers`].
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Reason, RuleUid, SourceRef, Takeovers};

use super::Core;
use crate::decide::{Takeover, Want};
use crate::takeovers::digest_of;

impl Core {
    /// What a rule may overwrite, it overwrites only where the hub has named the object that stands there.
    pub(super) fn ask_first(&self, copy: &SourceRef, want: &mut Want) {
        if let Want::Copy(wanted) = want
            && wanted.policies.takeover == Takeover::Always
            && let Some(live) = self.records.live(copy)
            && !self.takeovers.allows(&wanted.intent.rule, copy, &live.uid)
        {
            wanted.policies.takeover = Takeover::Asked;
        }
    }

    /// The objects of a rule that wait to be overwritten.
    fn waiting(&self, rule: &RuleUid) -> BTreeMap<SourceRef, Arc<str>> {
        let copies = self.report.failed_by(rule, Reason::TakeoverWaiting);
        copies.filter_map(|copy| Some((copy.clone(), self.records.live(copy)?.uid.clone()))).collect()
    }

    /// The same, for the hub.
    pub(super) fn takeovers_of(&self, rule: &RuleUid) -> Option<Takeovers> {
        let waiting = self.waiting(rule);
        let objects = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        (objects > 0).then(|| Takeovers { objects, digest: digest_of(rule, &waiting) })
    }

    /// Overwrites what the hub has named, if it is what waits.
    pub(super) fn take_offer(&mut self, rule: &RuleUid, now: Instant) {
        if !self.takeovers.has_offer(rule) {
            return;
        }
        let waiting = self.waiting(rule);
        if self.takeovers.take(rule, &waiting) {
            for copy in waiting.keys() {
                self.look_afresh(copy, now);
            }
        }
    }
}
