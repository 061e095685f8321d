//! Removals from namespaces that are no longer targets. They wait for the hub's approval, see
//! [`crate::prunes`].
//!
//! Only the agent knows these copies: the hub selects and grants namespaces, and people label them
//! in this cluster. The agent reports the number of waiting copies, with a digest of exactly these
//! objects by their uids. The hub adds up the numbers of all clusters, and returns the digest as
//! its approval. An approval becomes void when the agent reports another digest.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{AskedDigest, NAMESPACES_LIMIT, NamespacePrunes, RuleUid, SourceRef};

use super::Reconciler;
use crate::prunes::digest_of;

impl Reconciler {
    /// Returns the copies of a rule that wait for an approval, with their uids.
    pub(super) fn waiting_prunes(&self, rule: &RuleUid) -> BTreeMap<SourceRef, Arc<str>> {
        let copies = self.report.namespace_prunes(rule);
        copies
            .filter_map(|copy| Some((copy.clone(), self.records.live(copy)?.uid.clone())))
            .collect()
    }

    /// Returns the report of the copies that wait for an approval.
    pub(super) fn namespace_prunes_of(&self, rule: &RuleUid) -> Option<NamespacePrunes> {
        let waiting = self.waiting_prunes(rule);
        let copies = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        let namespaces: BTreeSet<_> = waiting.keys().map(|copy| &copy.namespace).collect();
        (copies > 0).then(|| NamespacePrunes {
            copies,
            digest: digest_of(rule, &waiting),
            namespaces: namespaces
                .into_iter()
                .take(NAMESPACES_LIMIT)
                .map(|name| name.to_string())
                .collect(),
        })
    }

    /// Stores an approval of the hub, and applies it.
    pub(super) fn handle_approval(&mut self, rule: &RuleUid, digest: AskedDigest, now: Instant) {
        if self.prunes.offer(rule, digest) {
            self.apply_approval(rule, now);
        }
    }

    /// Removes the copies that the hub has approved, if exactly these copies wait. Terms that the
    /// hub has not confirmed remove nothing.
    pub(super) fn apply_approval(&mut self, rule: &RuleUid, now: Instant) {
        if !self.prunes.has_offer(rule) || self.desired.is_unconfirmed(rule) {
            return;
        }
        let waiting = self.waiting_prunes(rule);
        if self.prunes.take(rule, &waiting) {
            tracing::info!(%rule, copies = waiting.len(), "the hub has approved the removal of copies from namespaces that are no longer targets");
            for copy in waiting.keys() {
                self.reconcile_now(copy, now);
            }
        }
    }
}
