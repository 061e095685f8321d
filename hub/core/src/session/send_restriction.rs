//! Restricts what is sent: to a diverged member ([`crate::epoch`]), to a cordoned cluster, and about
//! rules that are unknown or cannot be computed. Pending intents are withdrawn.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{DeletionPolicy, PruneDigest, RuleUid};

use super::outbox::{Heading, Window};
use super::{Delta, Items, Session, StreamPrunes};
use crate::index::Directive;
use crate::plan::ClusterAssignment;

/// What is not sent to a diverged member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendRestriction {
    /// Everything is sent.
    #[default]
    Nothing,
    /// No removals are sent.
    Removals,
    /// Nothing is sent about any rule: the agent continues as without a hub.
    Everything,
}

impl Session {
    /// Restricts this session from its beginning on.
    pub fn set_restriction(&mut self, restriction: SendRestriction) {
        self.restriction = restriction;
    }

    /// Returns the rules of which a message that would have removed a copy was not sent.
    pub fn withheld(&self) -> &BTreeSet<RuleUid> {
        &self.withheld
    }

    /// Whether the agent connected with exactly the desired intents, so that no removal is
    /// withheld.
    pub fn has_only_desired_intents(&self) -> bool {
        self.rules.values().all(|stream| !stream.former)
    }

    /// Whether nothing of a rule is removed. A rule that once equaled the desired state has no
    /// former copies left, and a rule in an unknown state keeps only its own copies.
    pub(super) fn withholds_removals(&self, uid: &RuleUid) -> bool {
        let is_former = || self.rules.get(uid).is_some_and(|stream| stream.former);
        match self.restriction {
            SendRestriction::Everything => true,
            SendRestriction::Removals => is_former(),
            SendRestriction::Nothing => false,
        }
    }

    /// The directive under the current restriction.
    pub(super) fn restrict(&mut self, uid: &RuleUid, directive: Directive) -> Directive {
        match (self.restriction, directive) {
            (SendRestriction::Everything, _) => Directive::Unknown,
            (SendRestriction::Removals, Directive::Removed(_)) if self.withholds_removals(uid) => {
                self.withheld.insert(uid.clone());
                Directive::Unknown
            }
            // Other terms may give namespaces up, and take copies along.
            (SendRestriction::Removals, Directive::Assigned(assignment))
                if self.withholds_removals(uid) && self.has_other_terms(uid, &assignment) =>
            {
                self.withheld.insert(uid.clone());
                Directive::Unknown
            }
            (_, directive) => directive,
        }
    }

    fn has_other_terms(&self, uid: &RuleUid, assignment: &ClusterAssignment) -> bool {
        let sent_terms = self.rules.get(uid).and_then(|stream| stream.sent_terms);
        sent_terms.is_some_and(|sent_terms| sent_terms != assignment.terms().digest)
    }

    /// The approved prunes under the current restriction.
    pub(super) fn may_prune(
        &self,
        uid: &RuleUid,
        prune: Option<PruneDigest>,
    ) -> Option<PruneDigest> {
        prune.filter(|_| !self.withholds_removals(uid))
    }
}

impl Items {
    /// Drops the removals of a step. Returns whether there were any.
    pub(super) fn withhold_removals(&self, step: &mut Delta) -> bool {
        let stay: Vec<_> = std::mem::take(&mut step.tombstones);
        let any = !stay.is_empty();
        if let Items::ClusterAssignment {
            over_limit: beyond, ..
        } = &mut step.items
        {
            beyond.extend(
                stay.into_iter()
                    .filter_map(|source| Some((source.clone(), self.revision(&source)?))),
            );
        }
        any
    }
}

impl Session {
    /// Withdraws pending messages about a rule: the agent's state is unchanged.
    pub(super) fn withdraw_all(&mut self, uid: &RuleUid) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if self.outbox.removals.remove(uid).is_some() {
            stream.removing = None;
        }
        if self.outbox.headings.remove(uid).is_some() {
            // The terms were never sent.
            stream.terms = stream.sent_terms;
            stream.is_suspended = stream.sent_suspended;
            stream.sent_orphaned = false;
            stream.change_prunes(|prunes| prunes.approved = None);
        }
        self.withdraw(uid);
    }

    /// The agent gets nothing new of a rule: only its unwanted copies are removed.
    pub(super) fn cordoned(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        if self.outbox.has(uid) {
            self.withdraw_all(uid);
        }
        if self
            .rules
            .get(uid)
            .is_none_or(|stream| stream.removing.is_some())
            || assignment.terms().is_frozen()
        {
            return;
        }
        // The removal was judged by terms that the agent may not have: it would follow its own
        // ones.
        let has_terms = self
            .rules
            .get(uid)
            .is_some_and(|stream| stream.sent_terms == Some(assignment.terms().digest));
        self.send_prune(
            uid,
            self.may_prune(uid, assignment.prune().filter(|_| has_terms)),
        );
        if !self.has_items(uid, assignment) {
            return;
        }
        let keeps = self.withholds_removals(uid);
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        let (kept, gone) = stream.items.without_surplus(assignment);
        if keeps && !gone.is_empty() {
            self.withheld.insert(uid.clone());
            return;
        }
        stream.items = Items::Pairs(kept);
        let orphaned_intents = stream.items.unjudged(assignment);
        if !orphaned_intents.is_empty() {
            self.orphaned_intents
                .entry(uid.clone())
                .or_default()
                .extend(orphaned_intents);
        }
        for source in gone {
            self.outbox
                .intents
                .remove(uid, source, assignment.terms().deletion_policy);
        }
    }

    /// Orders the removal of the whole rule.
    pub(super) fn unwanted(&mut self, uid: &RuleUid, policy: DeletionPolicy) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if stream.removing == Some(policy) {
            return;
        }
        stream.removing = Some(policy);
        stream.sent_orphaned = false;
        stream.change_prunes(|prunes| prunes.approved = None);
        // Until the order is sent, the agent has its former pairs, and the order may wait again.
        let has_unsent = self.outbox.intents.drop_of(uid);
        if has_unsent || !stream.items.are_known() {
            stream.items = Items::Uncertain;
        }
        stream.terms = None;
        stream.is_suspended = stream.sent_suspended;
        self.pair_requests.drop_unrequested(uid);
        self.outbox.headings.remove(uid);
        self.outbox.removals.insert(uid.clone(), policy);
    }

    pub(super) fn orphaned(&mut self, uid: &RuleUid) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if self.outbox.removals.remove(uid).is_some() {
            // An order that was not sent is not sent any more.
            stream.removing = None;
        }
        if stream.removing.is_some() {
            return;
        }
        stream.items = Items::Uncertain;
        stream.change_prunes(|prunes| prunes.approved = None);
        stream.is_suspended = stream.sent_suspended;
        let was_sent = std::mem::replace(&mut stream.sent_orphaned, true);
        self.pair_requests.drop_unrequested(uid);
        // Also if the agent was sent it: pending removals in a cordoned cluster are dropped, as the
        // rule is orphaned.
        self.outbox.intents.drop_of(uid);
        // All other pending messages were reset above.
        let waits = self
            .outbox
            .headings
            .remove(uid)
            .is_some_and(|heading| heading.orphaned);
        if waits || !was_sent {
            self.outbox.headings.insert(
                uid.clone(),
                Heading {
                    orphaned: true,
                    ..Heading::default()
                },
            );
        }
    }

    /// Withdraws changes of intents that were not sent. The pairs are again the agent's own, and the
    /// hub must ask for them.
    pub(super) fn withdraw(&mut self, uid: &RuleUid) {
        if self.outbox.intents.drop_of(uid)
            && let Some(stream) = self.rules.get_mut(uid)
        {
            stream.items = Items::PartialPairs(BTreeMap::new());
            self.pair_requests.add(uid);
        }
    }

    /// Whether an unsent tombstone is for a source whose state is unknown now.
    pub(super) fn would_remove_unknown(
        &self,
        uid: &RuleUid,
        assignment: &ClusterAssignment,
    ) -> bool {
        self.outbox
            .intents
            .tombstones(uid)
            .any(|source| assignment.must_stay(source))
    }

    /// Sends the approved removals in namespaces that are no longer targets, once.
    pub(super) fn send_prune(&mut self, uid: &RuleUid, prune: Option<PruneDigest>) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        let is_known = stream.change_prunes(|prunes| {
            let is_known = std::mem::replace(&mut prunes.approved, prune) == prune;
            prunes.sent = prunes.sent.filter(|_| is_known);
            is_known
        });
        if is_known {
            return;
        }
        let heading = self.outbox.headings.entry(uid.clone()).or_default();
        heading.prune = prune;
        if heading.is_empty() {
            self.outbox.headings.remove(uid);
        }
    }

    /// Handles the agent's report of pending prunes. An approval of another set becomes void.
    /// Returns whether the set equals the approved one, so that the approval is sent again.
    pub fn pending_prune_changed(&mut self, uid: &RuleUid, waits: Option<PruneDigest>) -> bool {
        let Some(stream) = self.rules.get_mut(uid) else {
            return false;
        };
        let renews = stream.change_prunes(|prunes| {
            let before = std::mem::replace(&mut prunes.waits, waits);
            if prunes.approved.is_some() && prunes.approved != waits {
                prunes.lapsed = prunes.approved;
                return None;
            }
            let was_early = prunes.approved.is_some() && before != waits && prunes.sent.is_some();
            if was_early {
                (prunes.approved, prunes.sent) = (None, None);
            }
            let has_lapsed = waits.is_some() && prunes.lapsed == waits;
            if has_lapsed {
                prunes.lapsed = None;
            }
            Some(was_early || has_lapsed)
        });
        renews.unwrap_or_else(|| {
            self.send_prune(uid, None);
            false
        })
    }

    /// The agent asks for approval of exactly the removals that it was approved before, and has acked
    /// that approval: it has consumed it, or dropped it. The approval is withdrawn until the removals
    /// are judged again. Before the end of the snapshot an agent stores approvals without using them.
    pub fn prune_approval_consumed(&mut self, uid: &RuleUid, asked: PruneDigest) -> bool {
        let stream = self
            .rules
            .get_mut(uid)
            .filter(|_| self.window.snapshot_received);
        stream.is_some_and(|stream| {
            stream.change_prunes(|prunes| is_used_up(prunes, asked, &self.window))
        })
    }
}

/// Whether exactly this was sent in a batch that the agent has applied. Then nothing counts as sent
/// any more.
fn is_used_up(prunes: &mut StreamPrunes, asked: PruneDigest, window: &Window) -> bool {
    let is_taken_in = prunes.sent.is_some_and(|nonce| window.is_acked(nonce));
    let is_used_up = prunes.approved == Some(asked) && is_taken_in;
    if is_used_up {
        (prunes.approved, prunes.sent) = (None, None);
    }
    is_used_up
}
