//! What goes because its namespace is no longer a target: it waits until the hub has named it, see [`crate::prunes`].
//!
//! Only this agent knows which copies these are: the hub says which namespaces are chosen and granted, and people here
//! label them. So the hub is told how many wait, with a digest that names exactly these by their uids, weighs them with those
//! of all other clusters, and gives the digest back. It holds for what was reported last: as soon as another set is
//! reported, it is good for nothing.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{AskedDigest, NAMESPACES_LIMIT, NamespacePrunes, RuleUid, SourceRef};

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
            order.asks = !self.namespace_prunes.allows(&key.rule, copy, &live.uid);
        }
    }

    pub(super) fn waiting_to_go(&self, rule: &RuleUid) -> BTreeMap<SourceRef, Arc<str>> {
        let copies = self.report.namespace_prunes(rule);
        copies.filter_map(|copy| Some((copy.clone(), self.records.live(copy)?.uid.clone()))).collect()
    }

    /// What waits, for the hub.
    pub(super) fn namespace_prunes_of(&self, rule: &RuleUid) -> Option<NamespacePrunes> {
        let waiting = self.waiting_to_go(rule);
        let copies = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        let namespaces: BTreeSet<_> = waiting.keys().map(|copy| &copy.namespace).collect();
        (copies > 0).then(|| NamespacePrunes {
            copies,
            digest: digest_of(rule, &waiting),
            namespaces: namespaces.into_iter().take(NAMESPACES_LIMIT).map(|name| name.to_string()).collect(),
        })
    }

    /// The hub is told this.
    pub(super) fn note_approved(&mut self, rule: &RuleUid, approved: Option<AskedDigest>) {
        if self.namespace_prunes.offered(rule).is_some_and(|offer| Some(offer) != approved) {
            self.namespace_prunes.drop_offer(rule);
        }
        match approved {
            Some(digest) => drop(self.approved.insert(rule.clone(), digest)),
            None => drop(self.approved.remove(rule)),
        }
    }

    /// The hub has named what may go. Of another set than it was told last it does not speak.
    pub(super) fn handle_approvals(&mut self, rule: &RuleUid, digest: AskedDigest, now: Instant) {
        if self.approved.get(rule) == Some(&digest) {
            self.namespace_prunes.offer(rule, digest);
            self.take_approvals(rule, now);
        }
    }

    /// Lets go what the hub has named, if it is what waits. By terms that are only remembered nothing goes.
    pub(super) fn take_approvals(&mut self, rule: &RuleUid, now: Instant) {
        if !self.namespace_prunes.has_offer(rule) || self.desired.is_unconfirmed(rule) {
            return;
        }
        let waiting = self.waiting_to_go(rule);
        if self.namespace_prunes.take(rule, &waiting) {
            tracing::info!(%rule, copies = waiting.len(), "the hub lets copies go whose namespaces are no longer targets");
            for copy in waiting.keys() {
                self.reconcile_now(copy, now);
            }
        }
    }
}
