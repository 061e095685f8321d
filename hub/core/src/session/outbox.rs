//! The messages that wait to be sent to one agent, and the batches that it has not acked.
//!
//! When a rule first goes to very many clusters, all its intents wait in each of their sessions.
//! The sessions share the chunks of the plan until they send from them, so that waiting takes
//! almost no memory.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    DeletionPolicy, Intent, NamespaceChoice, PruneDigest, RuleDelta, RuleUid, SourceRef, Terms,
    TermsDigest,
};

use super::Session;
use crate::plan::{ClusterAssignment, CowSortedMap, SourceContent};

type Upserts = CowSortedMap<SourceRef, Arc<SourceContent>>;

/// A batch is closed when its payloads reach this many bytes. A single larger payload is sent
/// alone. Each connection has one batch until the agent has room for it, so this bounds the memory
/// of a delivery to very many agents at once.
pub(super) const BATCH_BYTES: usize = 32 * 1024;
/// A batch is closed when it has this many items.
pub(super) const BATCH_ITEMS: usize = 1000;

/// The message about a rule itself.
#[derive(Default)]
pub(super) struct Heading {
    pub terms: Option<(Arc<Terms>, TermsDigest)>,
    pub orphaned: bool,
    /// The approved removal of copies in namespaces that are no longer targets.
    pub prune: Option<PruneDigest>,
    /// The suspension of the rule, if its terms are not sent.
    pub suspend: Option<bool>,
}

impl Heading {
    pub fn is_empty(&self) -> bool {
        self.terms.is_none() && !self.orphaned && self.prune.is_none() && self.suspend.is_none()
    }
}

/// The messages that wait to be sent.
#[derive(Default)]
pub(super) struct Outbox {
    /// Without empty entries.
    pub headings: BTreeMap<RuleUid, Heading>,
    /// Rules that are to be removed as a whole.
    pub removals: BTreeMap<RuleUid, DeletionPolicy>,
    pub intents: Intents,
}

impl Outbox {
    /// Whether no message is pending.
    pub fn is_empty(&self) -> bool {
        self.intents.is_empty() && self.headings.is_empty() && self.removals.is_empty()
    }

    /// Whether anything about a rule waits.
    pub fn has(&self, uid: &RuleUid) -> bool {
        self.headings.contains_key(uid) || self.removals.contains_key(uid) || self.intents.has(uid)
    }

    /// Whether a removal is pending.
    pub fn has_removals(&self) -> bool {
        self.intents.has_tombstones() || !self.removals.is_empty()
    }
}

/// The intents that wait to be sent: at most one change of each source.
#[derive(Default)]
pub(super) struct Intents {
    /// Without empty entries.
    upserts: BTreeMap<RuleUid, Upserts>,
    /// Without empty entries.
    tombstones: BTreeMap<RuleUid, BTreeMap<SourceRef, DeletionPolicy>>,
}

impl Intents {
    /// Whether no message is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.tombstones.is_empty()
    }

    /// Whether a message of the rule is pending.
    pub(super) fn has(&self, uid: &RuleUid) -> bool {
        self.upserts.contains_key(uid) || self.tombstones.contains_key(uid)
    }

    /// Whether the content of a source is pending.
    pub(super) fn has_upsert(&self, uid: &RuleUid, source: &SourceRef) -> bool {
        let upserts = self.upserts.get(uid);
        upserts.is_some_and(|upserts| upserts.get(source).is_some())
    }

    /// Whether a tombstone is pending.
    pub(super) fn has_tombstones(&self) -> bool {
        !self.tombstones.is_empty()
    }

    /// Adds all intents of a rule of which nothing waited.
    pub(super) fn put_all(&mut self, uid: &RuleUid, upserts: &Upserts) {
        if !upserts.is_empty() {
            self.upserts.insert(uid.clone(), upserts.clone());
        }
    }

    /// Adds the content of a source.
    pub(super) fn put(&mut self, uid: &RuleUid, source: SourceRef, content: Arc<SourceContent>) {
        if let Some(tombstones) = self.tombstones.get_mut(uid) {
            tombstones.remove(&source);
            if tombstones.is_empty() {
                self.tombstones.remove(uid);
            }
        }
        self.upserts
            .entry(uid.clone())
            .or_default()
            .insert(source, content);
    }

    /// Adds a tombstone of a source.
    pub(super) fn remove(&mut self, uid: &RuleUid, source: SourceRef, policy: DeletionPolicy) {
        if let Some(upserts) = self.upserts.get_mut(uid) {
            upserts.remove(&source);
            if upserts.is_empty() {
                self.upserts.remove(uid);
            }
        }
        self.tombstones
            .entry(uid.clone())
            .or_default()
            .insert(source, policy);
    }

    /// The rules with tombstones.
    pub(super) fn with_tombstones(&self) -> impl Iterator<Item = &RuleUid> {
        self.tombstones.keys()
    }

    /// The sources of the tombstones of a rule.
    pub(super) fn tombstones(&self, uid: &RuleUid) -> impl Iterator<Item = &SourceRef> {
        self.tombstones
            .get(uid)
            .into_iter()
            .flat_map(BTreeMap::keys)
    }

    /// Drops everything about a rule. Returns whether anything waited.
    pub(super) fn drop_of(&mut self, uid: &RuleUid) -> bool {
        self.upserts.remove(uid).is_some() | self.tombstones.remove(uid).is_some()
    }

    /// The first rule with contents to send, and its contents.
    fn first_upserts(&self) -> Option<(&RuleUid, &Upserts)> {
        self.upserts.first_key_value()
    }

    /// Removes and returns the first `count` contents of a rule.
    fn take(&mut self, uid: &RuleUid, count: usize) -> Vec<(SourceRef, Arc<SourceContent>)> {
        let Some(upserts) = self.upserts.get_mut(uid) else {
            return Vec::new();
        };
        let taken = upserts.take_first(count);
        if upserts.is_empty() {
            self.upserts.remove(uid);
        }
        taken
    }

    /// Removes and returns at most `count` tombstones.
    pub(super) fn take_tombstones(
        &mut self,
        count: usize,
    ) -> Vec<(RuleUid, SourceRef, DeletionPolicy)> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(mut first) = self.tombstones.first_entry()
        {
            match first.get_mut().pop_first() {
                Some((source, policy)) => taken.push((first.key().clone(), source, policy)),
                None => drop(first.remove()),
            }
        }
        self.tombstones.retain(|_, of_rule| !of_rule.is_empty());
        taken
    }

    /// Fills a batch with upserts. Returns whether some are left for another batch.
    pub(super) fn take_upserts(
        &mut self,
        deltas: &mut BTreeMap<RuleUid, RuleDelta>,
        mut bytes: usize,
    ) -> bool {
        let (first, mut items) = (bytes == 0, 0);
        while let Some((uid, upserts)) = self.first_upserts() {
            let mut count = 0;
            for (_, content) in upserts.iter() {
                let size = content.payload.bytes().len();
                let alone = first && items + count == 0;
                if items + count >= BATCH_ITEMS || (!alone && bytes + size > BATCH_BYTES) {
                    break;
                }
                bytes += size;
                count += 1;
            }
            let (uid, is_whole) = (uid.clone(), count == upserts.len());
            if count > 0 {
                let intent = |(source, content): (SourceRef, Arc<SourceContent>)| Intent {
                    source,
                    revision: content.revision,
                    payload: content.payload.clone(),
                };
                let taken = self.take(&uid, count).into_iter().map(intent);
                delta_of(deltas, &uid).upserts.extend(taken);
            }
            if !is_whole {
                return true;
            }
            items += count;
        }
        false
    }
}

/// The delta of a rule in a batch.
pub(super) fn delta_of<'a>(
    deltas: &'a mut BTreeMap<RuleUid, RuleDelta>,
    uid: &RuleUid,
) -> &'a mut RuleDelta {
    deltas
        .entry(uid.clone())
        .or_insert_with(|| RuleDelta::new(uid.clone()))
}

impl Session {
    /// Returns whether headings are left for another batch.
    pub(super) fn take_headings(
        &mut self,
        deltas: &mut BTreeMap<RuleUid, RuleDelta>,
        bytes: &mut usize,
    ) -> bool {
        while let Some((uid, heading)) = self.outbox.headings.pop_first() {
            let is_of_terms = heading.terms.is_some() || heading.orphaned;
            if let Some(stream) = self.rules.get_mut(&uid).filter(|_| is_of_terms) {
                stream.sent_terms = heading.terms.as_ref().map(|(_, digest)| *digest);
            }
            if let Some(stream) = self.rules.get_mut(&uid) {
                let suspended = heading
                    .terms
                    .as_ref()
                    .map(|(terms, _)| terms.suspend)
                    .or(heading.suspend);
                stream.sent_suspended = suspended.or(stream.sent_suspended);
                let next = Some(self.window.next());
                if heading.prune.is_some() {
                    stream.change_prunes(|prunes| prunes.sent = next);
                }
            }
            *bytes += heading.terms.as_ref().map_or(0, |(terms, _)| weight(terms));
            let delta = delta_of(deltas, &uid);
            delta.terms = heading
                .terms
                .map(|(terms, digest)| (Terms::clone(&terms), digest));
            (delta.orphaned, delta.suspend) = (heading.orphaned, heading.suspend);
            delta.prune = heading.prune;
            if *bytes >= BATCH_BYTES || deltas.len() >= BATCH_ITEMS {
                return !self.outbox.headings.is_empty();
            }
        }
        false
    }

    /// A change of the suspension is sent at once, also if nothing else of the rule is sent. The
    /// other terms are unchanged.
    pub(super) fn send_suspended(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        let keeps = self.withholds_removals(uid);
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        let suspend = assignment.terms().suspend;
        let is_not_sent = keeps || stream.removing.is_some() || stream.sent_orphaned;
        if is_not_sent
            || stream
                .is_suspended
                .is_none_or(|suspended| suspended == suspend)
        {
            return;
        }
        stream.is_suspended = Some(suspend);
        self.outbox.headings.entry(uid.clone()).or_default().suspend = Some(suspend);
    }

    pub(super) fn send_terms(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        let stream = self.rules.entry(uid.clone()).or_default();
        let revived = stream.removing.take().is_some() | std::mem::take(&mut stream.sent_orphaned);
        self.outbox.removals.remove(uid);
        let suspended = Some(assignment.terms().suspend);
        let differs_in_suspended =
            stream.is_suspended.is_some() && stream.is_suspended != suspended;
        if revived || differs_in_suspended || stream.terms != Some(assignment.terms().digest) {
            (stream.terms, stream.is_suspended) = (Some(assignment.terms().digest), suspended);
            let heading = self.outbox.headings.entry(uid.clone()).or_default();
            heading.terms = Some((assignment.terms().to_shared(), assignment.terms().digest));
            (heading.orphaned, heading.suspend) = (false, None);
        }
    }
}

/// Returns the approximate size of terms on the wire, in bytes.
fn weight(terms: &Terms) -> usize {
    let granted = terms
        .grants
        .iter()
        .flatten()
        .filter_map(|grant| grant.namespaces.as_ref());
    let choices = terms
        .namespaces
        .iter()
        .chain(granted)
        .map(choice_weight)
        .sum::<usize>();
    let names = terms.rule.kind.len() + terms.rule.namespace.len() + terms.rule.name.len();
    choices + terms.grants.as_ref().map_or(0, |grants| 64 * grants.len()) + names + 64
}

fn choice_weight(choice: &NamespaceChoice) -> usize {
    let patterns = choice
        .names
        .iter()
        .chain(&choice.exclude)
        .map(|pattern| pattern.as_str().len() + 2);
    let requirements = choice
        .selector
        .iter()
        .flat_map(|selector| &selector.requirements);
    let requirements = requirements
        .map(|r| r.key.len() + r.values.iter().map(|value| value.len() + 2).sum::<usize>() + 8);
    patterns.sum::<usize>() + requirements.sum::<usize>()
}

/// The most batches without an ack.
const WINDOW: usize = 8;

/// The batches of a session, by nonce.
#[derive(Default)]
pub(super) struct Window {
    unacked: BTreeSet<u64>,
    /// The nonce of the last batch; 0 before the first one.
    last: u64,
    /// The last batch before the end of the snapshot, once that was sent.
    snapshot_ended: Option<u64>,
    /// The agent acked a batch after the end of the snapshot, and so has received that end.
    pub snapshot_received: bool,
}

impl Window {
    /// Whether the next batch must wait for an ack.
    pub fn is_full(&self) -> bool {
        self.unacked.len() >= WINDOW
    }

    /// Whether every batch is acked.
    pub fn is_empty(&self) -> bool {
        self.unacked.is_empty()
    }

    /// The nonce of the next batch.
    pub fn next(&self) -> u64 {
        self.last + 1
    }

    /// Records that the next batch is sent, and returns its nonce.
    pub fn send(&mut self) -> u64 {
        self.last += 1;
        self.unacked.insert(self.last);
        self.last
    }

    /// The agent acked a batch.
    pub fn ack(&mut self, nonce: u64) {
        let was_sent = self.unacked.remove(&nonce);
        self.snapshot_received |= was_sent && self.snapshot_ended.is_some_and(|last| nonce > last);
    }

    /// Whether the agent has applied a batch that was sent.
    pub fn is_acked(&self, nonce: u64) -> bool {
        !self.unacked.contains(&nonce)
    }

    /// Whether the end of the snapshot was sent.
    pub fn has_ended_snapshot(&self) -> bool {
        self.snapshot_ended.is_some()
    }

    /// Records that the end of the snapshot is sent.
    pub fn end_snapshot(&mut self) {
        self.snapshot_ended.get_or_insert(self.last);
    }
}
