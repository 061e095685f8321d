//! What is not sent: to a cordoned cluster, about rules that the hub cannot compute, and about
//! unknown rules. Pending intents are withdrawn.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{AskedDigest, DeletionPolicy, RuleUid};

use super::rule_stream_state::Items;
use super::{Heading, Session};
use crate::plan::ClusterAssignment;

impl Session {
    /// Nothing is sent about a rule, and what was not sent yet is not any more: the agent keeps what it has.
    pub(super) fn rest(&mut self, uid: &RuleUid) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if self.removals.remove(uid).is_some() {
            stream.removing = None;
        }
        if self.headings.remove(uid).is_some() {
            // It was never sent.
            stream.terms = stream.sent_terms;
            stream.is_suspended = stream.sent_suspended;
            stream.sent_orphaned = false;
            stream.prune = None;
        }
        self.take_back(uid);
    }

    /// The agent gets nothing new of a rule: only its unwanted copies are removed.
    pub(super) fn cordoned(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        if self.headings.contains_key(uid)
            || self.removals.contains_key(uid)
            || self.unsent.has(uid)
        {
            self.rest(uid);
        }
        if self
            .rules
            .get(uid)
            .is_none_or(|stream| stream.removing.is_some())
            || assignment.terms.is_frozen()
        {
            return;
        }
        // The removal was judged by terms that the agent may not have: it would follow its own
        // ones.
        let has_terms = self
            .rules
            .get(uid)
            .is_some_and(|stream| stream.sent_terms == Some(assignment.terms.digest));
        self.send_prune(
            uid,
            self.may_prune(uid, assignment.prune().filter(|_| has_terms)),
        );
        if !self.knows_items(uid, assignment) {
            return;
        }
        let keeps = self.keeps(uid);
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        let (kept, gone) = stream.items.without_surplus(assignment);
        if keeps && !gone.is_empty() {
            self.kept_back = true;
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
            self.unsent
                .remove(uid, source, assignment.terms.deletion_policy);
        }
    }

    /// All of a rule is to go.
    pub(super) fn unwanted(&mut self, uid: &RuleUid, policy: DeletionPolicy) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if stream.removing == Some(policy) {
            return;
        }
        stream.removing = Some(policy);
        stream.sent_orphaned = false;
        stream.prune = None;
        // Until the order is sent, the agent has its former pairs.
        stream.items = Items::Uncertain;
        stream.terms = None;
        stream.is_suspended = stream.sent_suspended;
        self.ask.remove(uid);
        self.headings.remove(uid);
        self.unsent.drop_of(uid);
        self.removals.insert(uid.clone(), policy);
    }

    pub(super) fn orphaned(&mut self, uid: &RuleUid) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if self.removals.remove(uid).is_some() {
            // An order that was not sent is not sent any more.
            stream.removing = None;
        }
        if stream.removing.is_some() {
            return;
        }
        (stream.items, stream.prune) = (Items::Uncertain, None);
        stream.is_suspended = stream.sent_suspended;
        let was_sent = std::mem::replace(&mut stream.sent_orphaned, true);
        self.ask.remove(uid);
        // Also if the agent was sent it: pending removals in a cordoned cluster are dropped, as the
        // rule is orphaned.
        self.unsent.drop_of(uid);
        // All other pending messages were reset above.
        let waits = self
            .headings
            .remove(uid)
            .is_some_and(|heading| heading.orphaned);
        if waits || !was_sent {
            self.headings.insert(
                uid.clone(),
                Heading {
                    orphaned: true,
                    ..Heading::default()
                },
            );
        }
    }

    /// Whether anything is to be removed. Most batches remove nothing, and need not ask of every rule whether it waits.
    pub(super) fn has_removals(&self) -> bool {
        self.unsent.has_tombstones() || !self.removals.is_empty()
    }

    /// Undoes changes that were not sent: the pairs are again the agent's real ones, which the hub
    /// knows only by a question.
    pub(super) fn take_back(&mut self, uid: &RuleUid) {
        if self.unsent.drop_of(uid)
            && let Some(stream) = self.rules.get_mut(uid)
        {
            stream.items = Items::Asked(BTreeMap::new());
            self.ask.insert(uid.clone());
        }
    }

    /// Whether an unsent tombstone is for a source whose state is unknown now.
    pub(super) fn would_remove_unknown(
        &self,
        uid: &RuleUid,
        assignment: &ClusterAssignment,
    ) -> bool {
        self.unsent
            .tombstones(uid)
            .any(|source| assignment.must_stay(source))
    }

    /// What may go in namespaces that are no longer targets is sent once, when it is decided.
    pub(super) fn send_prune(&mut self, uid: &RuleUid, prune: Option<AskedDigest>) {
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if std::mem::replace(&mut stream.prune, prune) == prune {
            return;
        }
        stream.prune_sent = None;
        let heading = self.headings.entry(uid.clone()).or_default();
        heading.prune = prune;
        if heading.is_empty() {
            self.headings.remove(uid);
        }
    }

    /// The agent reports its waiting prunes. A former approval of another set is void there.
    /// Returns whether the set is the reported one of now, so that an approval must be sent again;
    /// also one that was sent while another set waited, as the agent did not apply it.
    pub fn pending_prune_changed(&mut self, uid: &RuleUid, waits: Option<AskedDigest>) -> bool {
        let Some(stream) = self.rules.get_mut(uid) else {
            return false;
        };
        let before = std::mem::replace(&mut stream.waits, waits);
        if stream.prune.is_some() && stream.prune != waits {
            stream.lapsed = stream.prune;
            self.send_prune(uid, None);
            return false;
        }
        let was_early = stream.prune.is_some() && before != waits && stream.prune_sent.is_some();
        if was_early {
            (stream.prune, stream.prune_sent) = (None, None);
        }
        let has_lapsed = waits.is_some() && stream.lapsed == waits;
        if has_lapsed {
            stream.lapsed = None;
        }
        was_early || has_lapsed
    }

    /// The agent asks for exactly what it was named that it may remove, and has taken that in before: it has used that up, or
    /// does not keep to it any more. It is named nothing until that is judged again. Before the end of the snapshot an agent
    /// may only keep in mind what is named.
    pub fn prune_approval_consumed(&mut self, uid: &RuleUid, asked: AskedDigest) -> bool {
        let stream = self.rules.get_mut(uid).filter(|_| self.knows_end);
        stream.is_some_and(|stream| {
            is_used_up(
                &mut stream.prune,
                &mut stream.prune_sent,
                asked,
                &self.unacked,
            )
        })
    }
}

/// Whether exactly this was sent in a batch that the agent has applied. Then nothing counts as sent
/// any more.
fn is_used_up(
    message: &mut Option<AskedDigest>,
    sent: &mut Option<u64>,
    asked: AskedDigest,
    unacked: &BTreeSet<u64>,
) -> bool {
    let is_taken_in = sent.is_some_and(|nonce| !unacked.contains(&nonce));
    let is_used_up = *message == Some(asked) && is_taken_in;
    if is_used_up {
        (*message, *sent) = (None, None);
    }
    is_used_up
}
