//! The session of one agent: what it has, and what it must be sent next, rule by rule. Pure.
//!
//! A session starts from the report of the agent ([`Session::hello`]) and follows the directives of
//! the index ([`Session::update`]). [`Session::next_batch`] gives the next piece of the difference.
//!
//! # Guarantees
//! - Once every batch has been taken out and no directive is pending, the agent has exactly the
//!   wanted intents, plus those that the hub cannot compute now and those of unknown rules.
//! - A source is removed only when a known rule no longer wants it.
//! - Upserts leave before tombstones: a copy that another rule takes over is never missing.
//! - Sent intents count as acked: the stream is ordered and reliable, and a broken one is followed
//!   by a new session with a new report.
//! - Memory: an up-to-date session refers to the shared plans and stores nothing per source. A
//!   session with a whole rule to send shares the pending part with the plan. The stored messages
//!   of the agent have one bound together.
//!
//! # Files
//! - `budget`: bounds the memory for the messages of one agent.
//! - `hello`: the acked set of a connecting agent.
//! - `outbox`: the messages to send, and the batches that are not acked.
//! - `pairs`: learns the intents that an agent has of a rule.
//! - `send_restriction`: what diverged members, cordoned clusters and unknown rules are not sent.
mod budget;
mod hello;
mod outbox;
mod pairs;
mod send_restriction;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    Batch, DeletionPolicy, PruneDigest, Revision, RuleDelta, RuleState, RuleUid, SetDigest,
    SnapshotEnd, SourceRef, TermsDigest, Tombstone,
};

use crate::index::Directive;
use crate::plan::{ClusterAssignment, PendingClaim, SourceContent};
use budget::{Budget, RulesOverLimit};
pub use hello::{HelloStates, state_bytes};
use outbox::{BATCH_ITEMS, Outbox, Window, delta_of};
use pairs::PairRequests;
pub use send_restriction::SendRestriction;

/// The most rules that are sent to one agent, and that a session stores of its report.
pub const RULES_LIMIT: usize = 20_000;

/// The hub's view of one agent.
#[derive(Default)]
pub struct Session {
    rules: BTreeMap<RuleUid, Box<RuleStreamState>>,
    /// The messages that wait to be sent.
    outbox: Outbox,
    /// The batches that were sent.
    window: Window,
    /// Sources whose content the agent has requested.
    content_requests: BTreeMap<RuleUid, BTreeSet<SourceRef>>,
    /// The rules whose pairs are requested from the agent.
    pair_requests: PairRequests,
    /// Rules that are not sent, because the agent would have too many.
    over_limit: RulesOverLimit,
    /// Reported rules that did not fit into the session.
    left_out_rules: usize,
    /// Intents of the agent that are not desired and whose removal is not judged yet; no sources:
    /// the whole rule.
    orphaned_intents: BTreeMap<RuleUid, BTreeSet<SourceRef>>,
    /// Rules whose removals wait until other rules are sent.
    handovers: BTreeSet<RuleUid>,
    /// The version of the index that the session has processed.
    version: u64,
    /// The memory for the agent's messages.
    budget: Budget,
    hello_done: bool,
    /// The restriction of what is sent.
    restriction: SendRestriction,
    /// The rules of which a message that would have removed a copy was not sent.
    withheld: BTreeSet<RuleUid>,
}

impl Session {
    /// Adds a part of the agent's report; may be called several times before
    /// [`Session::hello_done`].
    pub fn hello(&mut self, rules: Vec<RuleState>) {
        for state in rules.into_iter().filter(|state| !state.gone) {
            let mut stream = RuleStreamState::claimed_by_agent(&state);
            (stream.is_suspended, stream.sent_suspended) =
                (Some(state.suspended), Some(state.suspended));
            self.rules.insert(state.uid.clone(), Box::new(stream));
        }
    }

    /// The agent's report is complete.
    pub fn hello_done(&mut self) {
        self.hello_done = true;
    }

    /// The rules with intents of the agent.
    pub fn acked_rules(&self) -> impl Iterator<Item = &RuleUid> {
        self.rules.keys()
    }

    /// Applies the current directives about rules.
    pub fn update(&mut self, directives: impl IntoIterator<Item = (RuleUid, Directive)>) {
        for (uid, directive) in directives {
            self.reconcile(&uid, directive);
        }
    }

    /// Applies all directives since [`Session::version`], up to this version of the index.
    pub fn catch_up(
        &mut self,
        directives: impl IntoIterator<Item = (RuleUid, Directive)>,
        version: u64,
    ) {
        self.update(directives);
        self.version = version;
    }

    /// The rules whose removals wait until other rules are sent, or to be sent. Their directives change with those of the others.
    pub fn handovers(&self) -> BTreeSet<RuleUid> {
        let unsent = self.outbox.intents.with_tombstones();
        let unsent = unsent.chain(self.outbox.removals.keys());
        self.handovers.iter().chain(unsent).cloned().collect()
    }

    /// Whether the hub knows what copies of a rule the agent has.
    pub fn knows_copies(&self, uid: &RuleUid) -> bool {
        let stream = self.rules.get(uid);
        stream.is_none_or(|stream| stream.items.are_known())
    }

    /// Returns the version of the index that the session has processed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Handles the ack of a batch.
    pub fn ack(&mut self, nonce: u64) {
        self.window.ack(nonce);
        if self.window.is_empty() {
            self.request_left_out();
        }
    }

    /// The agent has nothing left of a rule, as of the last batch that it applied. Returns whether
    /// that answers the order to remove it. While an order waits to be sent, or a later batch named
    /// the rule, it answers an earlier one, and the agent may have copies again.
    pub fn record_removed(&mut self, uid: &RuleUid, last_batch: u64) -> bool {
        let stream = self.rules.get(uid);
        let ordered =
            stream.is_some_and(|stream| stream.removing.is_some() && stream.named <= last_batch);
        let answers = ordered && !self.outbox.removals.contains_key(uid);
        if answers {
            self.rules.remove(uid);
        }
        answers
    }

    /// Whether the session has any intent of the agent for a rule.
    pub fn has_intents(&self, uid: &RuleUid) -> bool {
        self.rules.contains_key(uid)
    }

    /// Whether the agent has nothing of a rule, no order about it is in flight, and the session has
    /// applied its directive as of this version of the index. Before that it may still send former
    /// content. Unknown while the agent has rules that the session does not track.
    pub fn is_free_of(&self, uid: &RuleUid, version: u64) -> bool {
        self.hello_done
            && self.left_out_rules == 0
            && self.version >= version
            && !self.rules.contains_key(uid)
    }

    /// Returns the agent's intents that are not desired and not judged. The removal guard decides
    /// about them. No sources: all intents of the rule.
    pub fn take_orphaned_intents(&mut self) -> BTreeMap<RuleUid, BTreeSet<SourceRef>> {
        std::mem::take(&mut self.orphaned_intents)
    }

    /// The next batch, if there is one and room in the window.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if self.window.is_full() {
            return None;
        }
        let mut deltas = BTreeMap::new();
        let mut bytes = 0;
        let more = self.take_headings(&mut deltas, &mut bytes)
            || self.outbox.intents.take_upserts(&mut deltas, bytes);
        // A rule whose report is pending may adopt a copy.
        if !more && self.outbox.has_removals() && !self.is_waiting() {
            self.take_removals(&mut deltas);
        }
        if deltas.is_empty() {
            return None;
        }
        let nonce = self.window.send();
        for uid in deltas.keys() {
            if let Some(stream) = self.rules.get_mut(uid) {
                stream.named = nonce;
            }
        }
        Some(Batch {
            nonce,
            rules: deltas.into_values().collect(),
        })
    }

    /// The end of the snapshot, once: when the agent has been sent everything that the hub can compute.
    pub fn take_snapshot_end(&mut self) -> Option<SnapshotEnd> {
        // The cheapest condition first: `is_waiting` visits every rule, and a session asks after
        // each event.
        let is_due = !self.window.has_ended_snapshot()
            && self.hello_done
            && self.outbox.is_empty()
            && self.restriction != SendRestriction::Everything
            && !self.pair_requests.has_left_out()
            && !self.is_waiting();
        if !is_due {
            return None;
        }
        self.window.end_snapshot();
        let mut end = SnapshotEnd {
            intents: 0,
            digest: SetDigest::default(),
        };
        for stream in self.rules.values().filter(|stream| stream.is_claimed()) {
            let (intents, digest) = stream.items.account();
            end.intents += intents;
            end.digest.merge(digest);
        }
        Some(end)
    }

    /// Whether a rule's report is still pending.
    fn is_waiting(&self) -> bool {
        self.rules.values().any(|stream| stream.is_waiting())
    }

    fn take_removals(&mut self, deltas: &mut BTreeMap<RuleUid, RuleDelta>) {
        for (uid, source, deletion_policy) in self.outbox.intents.take_tombstones(BATCH_ITEMS) {
            self.pair_requests.record_removed();
            delta_of(deltas, &uid).tombstones.push(Tombstone {
                source,
                deletion_policy,
            });
        }
        for (uid, policy) in std::mem::take(&mut self.outbox.removals) {
            self.pair_requests.record_removed();
            if let Some(stream) = self.rules.get_mut(&uid) {
                (stream.items, stream.sent_terms) = (Items::default(), None);
                (stream.is_suspended, stream.sent_suspended) = (None, None);
            }
            delta_of(deltas, &uid).removal = Some(policy);
        }
    }

    fn reconcile(&mut self, uid: &RuleUid, directive: Directive) {
        let directive = self.hand_over(uid, directive);
        let directive = self.restrict(uid, directive);
        if !matches!(directive, Directive::Assigned(_)) {
            self.over_limit.remove(uid);
        }
        match &directive {
            Directive::Assigned(assignment) => self.set_assignment(uid, assignment),
            Directive::Suspended(assignment) if self.rules.contains_key(uid) => {
                self.send_terms(uid, assignment);
                self.withdraw(uid);
                self.orphaned_intents.entry(uid.clone()).or_default();
            }
            Directive::RemovalBlocked if self.rules.contains_key(uid) => {
                self.withdraw_all(uid);
                self.orphaned_intents.entry(uid.clone()).or_default();
            }
            Directive::Suspended(_) | Directive::RemovalBlocked => {}
            Directive::Removed(policy) => self.unwanted(uid, *policy),
            Directive::Cordoned(assignment) => self.cordoned(uid, assignment),
            Directive::Unknown => self.withdraw_all(uid),
            Directive::AwaitingHandover(..) => {
                self.withdraw_all(uid);
                self.request_pairs(uid);
            }
            Directive::AwaitingWave(assignment) => {
                self.withdraw_all(uid);
                self.send_suspended(uid, assignment);
            }
            Directive::Orphaned => self.orphaned(uid),
        }
        let awaits = matches!(directive, Directive::AwaitingWave(_));
        if !awaits && !matches!(directive, Directive::Assigned(_)) {
            self.content_requests.remove(uid);
        }
        if let Some(stream) = self.rules.get_mut(uid) {
            let is_first = stream.directive.replace(directive).is_none();
            // The index's text of the uid is shared by all sessions, that of the report is not.
            if is_first && let Some(stream) = self.rules.remove(uid) {
                self.rules.insert(uid.clone(), stream);
            }
        }
        if awaits {
            self.serve_content_requests(uid);
        }
    }

    /// A directive with what the agent has of the rules to which copies are handed over.
    fn hand_over(&mut self, uid: &RuleUid, directive: Directive) -> Directive {
        let with_acked = |claims: &[PendingClaim]| {
            let with_acked =
                |claim: &PendingClaim| match self.rules.get(&claim.uid).map(|rule| &rule.items) {
                    Some(Items::ClusterAssignment { assignment, .. }) => {
                        claim.clone().holding(assignment)
                    }
                    _ => claim.clone(),
                };
            claims
                .iter()
                .map(with_acked)
                .collect::<Arc<[PendingClaim]>>()
        };
        let (directive, waits) = match directive {
            Directive::Assigned(mut assignment) if !assignment.claims.is_empty() => {
                assignment.claims = with_acked(&assignment.claims);
                (Directive::Assigned(assignment), true)
            }
            Directive::Cordoned(mut assignment) if !assignment.claims.is_empty() => {
                assignment.claims = with_acked(&assignment.claims);
                (Directive::Cordoned(assignment), true)
            }
            Directive::AwaitingHandover(policy, claims) => {
                let claims = with_acked(&claims);
                let awaits = |intent: &SourceRef| claims.iter().any(|claim| claim.awaits(intent));
                match self.rules.get(uid).map(|rule| &rule.items) {
                    Some(items)
                        if items.are_known()
                            && !self.pair_requests.has_left_out_of(uid)
                            && !items.sources().any(awaits) =>
                    {
                        (Directive::Removed(policy), true)
                    }
                    items => (Directive::AwaitingHandover(policy, claims), items.is_some()),
                }
            }
            directive => (directive, false),
        };
        if waits {
            self.handovers.insert(uid.clone());
        } else {
            self.handovers.remove(uid);
        }
        directive
    }

    fn set_assignment(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        if !self.has_room_for(uid) {
            return;
        }
        self.send_terms(uid, assignment);
        if assignment.terms().suspend {
            // Creations, corrections and removals are withdrawn.
            self.withdraw(uid);
            return;
        }
        if self.has_items(uid, assignment) {
            self.follow(uid, assignment);
        }
        if !assignment.terms().is_dry_run() {
            self.send_prune(uid, self.may_prune(uid, assignment.prune()));
        }
    }

    /// Brings the agent's intents of a rule to its assignment.
    fn follow(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        if self.would_remove_unknown(uid, assignment) {
            return self.withdraw(uid);
        }
        let keeps = self.withholds_removals(uid);
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if stream.items.is_known_empty() && assignment.sends_all() && !self.outbox.intents.has(uid)
        {
            stream.items = Items::exactly(assignment.clone());
            self.outbox.intents.put_all(uid, &assignment.plan().intents);
            return self.serve_content_requests(uid);
        }
        let mut step = stream.items.step_to(assignment);
        let is_unsent = |source: &SourceRef| self.outbox.intents.has_upsert(uid, source);
        if step.items.staying().any(is_unsent) {
            // What stays is what the agent has, not what waits to be sent and may not go any more.
            return self.withdraw(uid);
        }
        if keeps && stream.items.withhold_removals(&mut step) {
            self.withheld.insert(uid.clone());
        }
        stream.items = step.items;
        stream.former &= !stream.items.are_exact();
        let orphaned_intents = stream.items.unjudged(assignment);
        if !orphaned_intents.is_empty() {
            self.orphaned_intents
                .entry(uid.clone())
                .or_default()
                .extend(orphaned_intents);
        }
        let policy = assignment.terms().deletion_policy;
        for (source, content) in step.upserts {
            self.outbox.intents.put(uid, source, content);
        }
        for source in step.tombstones {
            self.outbox.intents.remove(uid, source, policy);
        }
        self.serve_content_requests(uid);
    }
}

/// The agent's state of one rule.
#[derive(Default)]
struct RuleStreamState {
    /// The terms that it has, or will have when what waits is sent.
    terms: Option<TermsDigest>,
    /// The terms that it has.
    sent_terms: Option<TermsDigest>,
    /// Whether the rule is suspended there, or will be when the pending messages are sent; `None`:
    /// unknown, or not sent yet.
    is_suspended: Option<bool>,
    /// The suspension that was sent; `None` before.
    sent_suspended: Option<bool>,
    items: Items,
    /// `None` if there are none, as nearly always: there is a state for each rule in each cluster.
    prunes: Option<Box<StreamPrunes>>,
    /// The last batch that named the rule.
    named: u64,
    /// The order to remove the rule that the agent has not answered.
    removing: Option<DeletionPolicy>,
    sent_orphaned: bool,
    /// The agent connected with it, and it has not equaled the desired state since. Its origin is
    /// uncertain.
    former: bool,
    /// The last directive of the hub.
    directive: Option<Directive>,
}

/// The removals of copies in namespaces that are no longer targets.
#[derive(Default, PartialEq)]
struct StreamPrunes {
    /// The copies that the agent may remove, or may when what waits is sent.
    approved: Option<PruneDigest>,
    /// The batch that named them, once it is sent.
    sent: Option<u64>,
    /// An approval that lapsed because the agent reported another set.
    lapsed: Option<PruneDigest>,
    /// The last reported digest of waiting prunes.
    waits: Option<PruneDigest>,
}

impl RuleStreamState {
    fn claimed_by_agent(state: &RuleState) -> Self {
        let items = Items::Digest {
            digest: state.intents_digest,
            intents: u64::from(state.intents),
        };
        let waits = state
            .namespace_prunes
            .as_ref()
            .map(|namespace_prunes| namespace_prunes.digest);
        let (terms, sent_terms) = (state.terms_digest, state.terms_digest);
        let mut stream = Self {
            terms,
            sent_terms,
            items,
            former: true,
            ..Self::default()
        };
        stream.change_prunes(|prunes| prunes.waits = waits);
        stream
    }

    fn change_prunes<R>(&mut self, change: impl FnOnce(&mut StreamPrunes) -> R) -> R {
        let mut prunes = self
            .prunes
            .take()
            .map_or_else(StreamPrunes::default, |prunes| *prunes);
        let result = change(&mut prunes);
        self.prunes = (prunes != StreamPrunes::default()).then(|| Box::new(prunes));
        result
    }

    /// Whether a report is missing before the agent is up to date.
    fn is_waiting(&self) -> bool {
        let suspended = matches!(&self.directive, Some(Directive::Assigned(assignment) | Directive::Cordoned(assignment)) if assignment.terms().suspend);
        match (&self.directive, &self.items) {
            (_, Items::PartialPairs(_)) => true,
            (
                Some(Directive::Assigned(_) | Directive::Cordoned(_)),
                Items::Digest { .. } | Items::Uncertain,
            ) => !suspended,
            _ => false,
        }
    }

    /// Whether the hub has the rule and the rule selects this cluster.
    fn is_claimed(&self) -> bool {
        // An agent that received that the rule is orphaned has received nothing else since.
        let is_suspended = matches!(
            self.directive,
            Some(
                Directive::Unknown
                    | Directive::AwaitingWave(_)
                    | Directive::RemovalBlocked
                    | Directive::AwaitingHandover(..)
                    | Directive::Cordoned(_)
            )
        );
        self.removing.is_none()
            && !self.sent_orphaned
            && !(is_suspended && self.sent_terms.is_none())
    }
}

/// The (source, revision) pairs of an agent for one rule.
enum Items {
    /// The pairs are unknown.
    Uncertain,
    /// Only the digest of the pairs is known.
    Digest { digest: SetDigest, intents: u64 },
    /// The pairs are requested; these have been received.
    PartialPairs(BTreeMap<SourceRef, Revision>),
    /// All pairs are known.
    Pairs(BTreeMap<SourceRef, Revision>),
    /// The intents of the assignment, and in `beyond` those that must stay though they are not in
    /// it.
    ClusterAssignment {
        assignment: ClusterAssignment,
        over_limit: BTreeMap<SourceRef, Revision>,
    },
}

impl Default for Items {
    fn default() -> Self {
        Items::Pairs(BTreeMap::new())
    }
}

/// The step from the agent's pairs to an assignment.
struct Delta {
    items: Items,
    upserts: Vec<(SourceRef, Arc<SourceContent>)>,
    tombstones: Vec<SourceRef>,
}

impl Items {
    fn exactly(assignment: ClusterAssignment) -> Self {
        Items::ClusterAssignment {
            assignment,
            over_limit: BTreeMap::new(),
        }
    }

    /// Whether the agent certainly has no intents.
    fn is_known_empty(&self) -> bool {
        match self {
            Items::Uncertain | Items::Digest { .. } | Items::PartialPairs(_) => false,
            Items::Pairs(pairs) => pairs.is_empty(),
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => assignment.plan().intents.is_empty() && beyond.is_empty(),
        }
    }

    /// Whether all intents are known.
    fn are_known(&self) -> bool {
        matches!(self, Items::Pairs(_) | Items::ClusterAssignment { .. })
    }

    /// The intents that must stay though they are not in the assignment.
    fn staying(&self) -> impl Iterator<Item = &SourceRef> {
        let staying = match self {
            Items::ClusterAssignment { over_limit, .. } => Some(over_limit.keys()),
            _ => None,
        };
        staying.into_iter().flatten()
    }

    /// Whether the intents equal the assignment.
    fn are_exact(&self) -> bool {
        matches!(self, Items::ClusterAssignment { over_limit, .. } if over_limit.is_empty())
    }

    /// The number of pairs and their digest.
    fn account(&self) -> (u64, SetDigest) {
        match self {
            Items::Uncertain => (0, SetDigest::default()),
            Items::Digest { digest, intents } => (*intents, *digest),
            Items::PartialPairs(pairs) | Items::Pairs(pairs) => {
                (pairs.len() as u64, pairs.iter().collect())
            }
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => {
                let mut digest = assignment.digest();
                digest.merge(beyond.iter().collect());
                ((assignment.intents().count() + beyond.len()) as u64, digest)
            }
        }
    }

    fn revision(&self, source: &SourceRef) -> Option<Revision> {
        match self {
            Items::Uncertain | Items::Digest { .. } => None,
            Items::PartialPairs(pairs) | Items::Pairs(pairs) => pairs.get(source).copied(),
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => assignment
                .content(source)
                .map(|content| content.revision)
                .or_else(|| beyond.get(source).copied()),
        }
    }

    fn sources(&self) -> Box<dyn Iterator<Item = &SourceRef> + '_> {
        match self {
            Items::Uncertain | Items::Digest { .. } => Box::new(std::iter::empty()),
            Items::PartialPairs(pairs) | Items::Pairs(pairs) => Box::new(pairs.keys()),
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => Box::new(
                assignment
                    .intents()
                    .map(|(source, _)| source)
                    .chain(beyond.keys()),
            ),
        }
    }

    /// Returns these pairs without those that may be removed because the assignment certainly does
    /// not contain them, and the sources of the latter.
    fn without_surplus(
        &self,
        assignment: &ClusterAssignment,
    ) -> (BTreeMap<SourceRef, Revision>, Vec<SourceRef>) {
        let (mut kept, mut gone) = (BTreeMap::new(), vec![]);
        for source in self.sources() {
            let Some(revision) = self.revision(source) else {
                continue;
            };
            // A copy with a former name is kept until the copy with the new name can be created.
            if assignment.content(source).is_some()
                || assignment.has_source(source)
                || assignment.must_stay(source)
            {
                kept.insert(source.clone(), revision);
            } else {
                gone.push(source.clone());
            }
        }
        (kept, gone)
    }

    /// The unwanted pairs that stay only because their removal is not judged yet.
    fn unjudged(&self, assignment: &ClusterAssignment) -> BTreeSet<SourceRef> {
        let beyond: Box<dyn Iterator<Item = &SourceRef>> = match self {
            Items::Uncertain | Items::Digest { .. } | Items::PartialPairs(_) => {
                Box::new(std::iter::empty())
            }
            Items::Pairs(pairs) => {
                Box::new(pairs.keys().filter(|source| !assignment.has_source(source)))
            }
            Items::ClusterAssignment {
                over_limit: beyond, ..
            } => Box::new(beyond.keys()),
        };
        beyond
            .filter(|source| assignment.is_unjudged(source))
            .cloned()
            .collect()
    }

    /// The step from these pairs to an assignment. If it differs in few known intents, only those
    /// are compared, and those that were left alone before.
    fn step_to(&self, assignment: &ClusterAssignment) -> Delta {
        let mut step = Delta {
            items: Items::default(),
            upserts: vec![],
            tombstones: vec![],
        };
        let mut beyond = BTreeMap::new();
        let change = match self {
            Items::ClusterAssignment {
                assignment: former,
                over_limit: known,
            } if former.is(assignment) => {
                beyond.clone_from(known);
                step.items = Items::ClusterAssignment {
                    assignment: assignment.clone(),
                    over_limit: beyond,
                };
                return step;
            }
            Items::ClusterAssignment {
                assignment: former,
                over_limit: known,
            } => assignment
                .change_since(former)
                .map(|touched| (touched, known)),
            _ => None,
        };
        match change {
            Some((touched, known)) => {
                for source in known
                    .keys()
                    .filter(|known| !touched.contains(*known))
                    .chain(touched.iter())
                {
                    self.compare(source, assignment, &mut step, &mut beyond);
                }
            }
            None => {
                let gone = self
                    .sources()
                    .filter(|source| assignment.content(source).is_none());
                for source in gone.chain(assignment.intents().map(|(source, _)| source)) {
                    self.compare(source, assignment, &mut step, &mut beyond);
                }
            }
        }
        step.items = Items::ClusterAssignment {
            assignment: assignment.clone(),
            over_limit: beyond,
        };
        step
    }

    fn compare(
        &self,
        source: &SourceRef,
        assignment: &ClusterAssignment,
        step: &mut Delta,
        beyond: &mut BTreeMap<SourceRef, Revision>,
    ) {
        let stream = self.revision(source);
        match (stream, assignment.content(source)) {
            (Some(stream), Some(content)) if stream == content.revision => {}
            (_, Some(content)) => step.upserts.push((source.clone(), content.clone())),
            // While content is being read for the first time, it may be the replacement of this
            // one. The replacement comes first.
            (Some(stream), None) if assignment.must_stay(source) || assignment.is_growing() => {
                beyond.insert(source.clone(), stream);
            }
            (Some(_), None) => step.tombstones.push(source.clone()),
            (None, None) => {}
        }
    }
}
