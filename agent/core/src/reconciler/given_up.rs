//! What goes because its namespace is no longer a target: it waits until the hub has named it, see [`crate::prunes`].
//!
//! Only this agent knows which copies these are: the hub says which namespaces are chosen and granted, and people here
//! label them. So the hub is told how many wait, with a digest that names exactly these by their uids, weighs them with those
//! of all other clusters, and gives the digest back. It holds for what was reported last: as soon as another set is
//! reported, it is good for nothing.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{AskedDigest, GivenUp, NAMESPACES_LIMIT, RuleUid, SourceRef};

use super::Reconciler;
use crate::decide::Want;
use crate::prunes::digest_of;

impl Reconciler {
    /// What the hub has named may go.
    pub(super) fn ask_to_go(&self, copy: &SourceRef, want: &mut Want) {
        if let Want::Gone(key, _, order) = want
            && order.asks
            && let Some(live) = self.records.live(copy)
        {
            order.asks = !self.given_up.allows(&key.rule, copy, &live.uid);
        }
    }

    pub(super) fn waiting_to_go(&self, rule: &RuleUid) -> BTreeMap<SourceRef, Arc<str>> {
        let copies = self.report.given_up(rule);
        copies.filter_map(|copy| Some((copy.clone(), self.records.live(copy)?.uid.clone()))).collect()
    }

    /// What waits, for the hub.
    pub(super) fn given_up_of(&self, rule: &RuleUid) -> Option<GivenUp> {
        let waiting = self.waiting_to_go(rule);
        let copies = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        let namespaces: BTreeSet<_> = waiting.keys().map(|copy| &copy.namespace).collect();
        (copies > 0).then(|| GivenUp {
            copies,
            digest: digest_of(rule, &waiting),
            namespaces: namespaces.into_iter().take(NAMESPACES_LIMIT).map(|name| name.to_string()).collect(),
        })
    }

    /// The hub is told this.
    pub(super) fn note_told(&mut self, rule: &RuleUid, told: Option<AskedDigest>) {
        if self.given_up.offered(rule).is_some_and(|offer| Some(offer) != told) {
            self.given_up.drop_offer(rule);
        }
        match told {
            Some(digest) => drop(self.told.insert(rule.clone(), digest)),
            None => drop(self.told.remove(rule)),
        }
    }

    /// The hub has named what may go. Of another set than it was told last it does not speak.
    pub(super) fn hear_let_go(&mut self, rule: &RuleUid, digest: AskedDigest, now: Instant) {
        if self.told.get(rule) == Some(&digest) {
            self.given_up.offer(rule, digest);
            self.take_let_go(rule, now);
        }
    }

    /// Lets go what the hub has named, if it is what waits. By terms that are only remembered nothing goes.
    pub(super) fn take_let_go(&mut self, rule: &RuleUid, now: Instant) {
        if !self.given_up.has_offer(rule) || self.desired.is_unconfirmed(rule) {
            return;
        }
        let waiting = self.waiting_to_go(rule);
        if self.given_up.take(rule, &waiting) {
            tracing::info!(%rule, copies = waiting.len(), "the hub lets copies go whose namespaces are no longer targets");
            for copy in waiting.keys() {
                self.reconcile_now(copy, now);
            }
        }
    }
}
