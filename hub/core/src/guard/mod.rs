//! The removal guard: an *indirect* removal above a limit is blocked until a user approves exactly
//! that set. Pure.
//!
//! Nothing is removed that the guard has not passed. Items that a rule no longer selects are added
//! by [`RemovalGuard::remove`] with their [`Cause`] and stay in the clusters until they are judged.
//! Deliberate deletes pass. Indirect removals of all rules are gathered for [`DELAY`] and judged
//! together by [`FleetGuard`]. The removals of one cause, with all indirect removals within
//! [`WINDOW`], are counted per rule, per member cluster and in the fleet. Above a limit everything
//! that the cause would remove is blocked, in every rule and cluster.
//!
//! # What a digest approves
//! The items that it was computed from. It also includes the time at which they were first blocked,
//! so that the same change, undone and made again, needs approval again. An undone change removes
//! its items; the items that stay blocked are then judged again.
//!
//! # Another process
//! The rule's status has the [`PendingApproval`]. A new leader blocks all indirect removals of such
//! a rule until they are the set of that digest again, or until the agents have reported their
//! intents: then it judges them together.
mod cause;
mod decision;
mod digest;
mod fleet;
mod limit;
mod terminating;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runnel_api::PendingApproval;
use runnel_api::conditions::whole_seconds;
use runnel_proto::model::{ClusterName, PruneDigest, SourceRef};

pub use cause::{Cause, CauseKind};
pub use decision::{Conditions, GuardDecision, Item};
use digest::digest_of;
pub use digest::digest_of_all;
pub use fleet::{FleetGuard, FleetTerms, RuleRemovals, Totals};
pub use limit::Limit;
pub use terminating::TerminatingScopes;

/// Indirect removals within this time add up.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Removals are judged after this time without further ones.
pub const DELAY: Duration = Duration::from_secs(1);
/// More literal names than this, taken out of lists by one edit, are no deliberate delete.
const MAX_DELIBERATE_NAMES: usize = 10;
/// Limit of remembered passed removals of one rule. Others are judged again.
const REMEMBERED: usize = 20_000;
/// From this number on, removals that agents have carried out are forgotten.
const WORTH_FORGETTING: usize = 64;
/// Number of remembered digests of a changing set.
const DIGESTS: usize = 32;
/// Number of names in a pending approval.
const NAMES: usize = 5;

/// The guard of one rule.
#[derive(Clone, Default)]
pub struct RemovalGuard {
    decision: Arc<GuardDecision>,
    /// Items that are not judged yet.
    open: BTreeMap<Item, Cause>,
    /// The cause of each blocked item.
    causes: BTreeMap<Item, Cause>,
    pending: Option<PendingApproval>,
    /// Recently published digests, with their sets.
    digests: VecDeque<(String, BTreeSet<Item>)>,
    /// The time at which the first open or blocked item was blocked.
    since: Option<Timestamp>,
    /// When the last of it was blocked.
    blocked_at: Option<Instant>,
    /// The cause that the rule's status named when this process began.
    inherited: Option<String>,
    /// An earlier process blocked removals, and not all agents have reported yet.
    carried: bool,
    /// The clusters that were not connected when that ended: they may have a part of it.
    awaited: BTreeSet<ClusterName>,
    /// Whether an item was opened since the last judgment.
    is_news: bool,
    /// A blocked item is selected again, or approved.
    undone: bool,
}

impl RemovalGuard {
    /// A guard that continues with the state of the rule's status.
    pub fn remembering(pending: Option<&PendingApproval>) -> Self {
        let since = pending
            .and_then(|pending| pending.since.as_ref())
            .map(|since| since.0);
        Self {
            pending: pending.cloned(),
            since,
            inherited: pending.map(|pending| pending.cause.clone()),
            carried: pending.is_some(),
            ..Self::default()
        }
    }

    /// Returns the decision, to be shared with sessions.
    pub fn decision(&self) -> &Arc<GuardDecision> {
        &self.decision
    }

    /// Returns the pending approval.
    pub fn pending(&self) -> Option<&PendingApproval> {
        self.pending.as_ref()
    }

    /// Whether removals wait for approval, blocked by this process or by an earlier one.
    pub fn is_blocking(&self) -> bool {
        !self.decision.blocked.is_empty() || self.pending.is_some()
    }

    /// Whether an earlier process blocked removals and not all agents have reported yet.
    pub fn is_carried(&self) -> bool {
        self.carried
    }

    /// Everything that waits for approval.
    pub fn blocked(&self) -> &BTreeSet<Item> {
        &self.decision.blocked
    }

    /// Whether a removal that the hub itself decided on waits for approval.
    pub fn blocks_removals(&self) -> bool {
        self.carried
            || self
                .blocked()
                .iter()
                .any(|item| !matches!(item, Item::Prune(..)))
    }

    /// Whether removals in namespaces that are no longer targets wait for approval.
    pub fn blocks_prunes(&self) -> bool {
        self.blocked()
            .iter()
            .any(|item| matches!(item, Item::Prune(..)))
    }

    /// Whether something is to be judged.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty() || self.undone || self.is_blocking() || self.decision.has_prunes()
    }

    /// An item is no longer selected. It stays until it is judged.
    pub fn remove(&mut self, item: Item, cause: Cause) {
        if self.decision.passes(&item) || self.decision.blocks(&item) {
            return;
        }
        match self.open.get_mut(&item) {
            Some(known) if *known < cause => *known = cause,
            Some(_) => {}
            None => {
                self.open.insert(item, cause);
                self.is_news = true;
            }
        }
    }

    /// An item is selected, perhaps again.
    pub fn record_selected(&mut self, item: &Item) {
        self.open.remove(item);
        let was_blocked = self.causes.remove(item).is_some();
        self.undone |= was_blocked;
        if self.decision.passes(item) || self.decision.blocks(item) {
            let decision = Arc::make_mut(&mut self.decision);
            decision.passed.remove(item);
            decision.blocked.remove(item);
            if let Some(source) = item.source() {
                decision.conditions.remove(&source);
            }
        }
        self.forget_if_over();
    }

    /// The rule selects intents that it did not select before: a removal of their kind that passed did so without them.
    /// They are computed only if there is such a removal.
    pub fn record_gained(&mut self, gained: impl Iterator<Item: Borrow<SourceRef>>) {
        if !self.decision.passes_kinds() {
            return;
        }
        let kinds = gained.map(|intent| intent.borrow().resource.clone());
        let kinds: BTreeSet<_> = kinds.collect();
        let covers = |item: &Item| item.kind().is_some_and(|kind| kinds.contains(kind));
        if self.decision.passed.iter().any(covers) {
            let decision = Arc::make_mut(&mut self.decision);
            decision.passed.retain(|item| !covers(item));
        }
    }

    /// No blocked item is left: the same change, made again, needs a new approval.
    fn forget_if_over(&mut self) {
        if self.open.is_empty() && self.decision.blocked.is_empty() && !self.carried {
            (self.pending, self.since, self.blocked_at) = (None, None, None);
            self.inherited = None;
            self.digests.clear();
        }
    }

    /// All items of the rule are selected again.
    pub fn keep_selected(&mut self, is_wanted: impl Fn(&Item) -> bool) {
        let all = self
            .decision
            .passed
            .iter()
            .chain(&self.decision.blocked)
            .chain(self.open.keys());
        let back: Vec<_> = all.filter(|item| is_wanted(item)).cloned().collect();
        back.iter().for_each(|item| self.record_selected(item));
    }

    /// The hub sends nothing to this cluster any more: its items need no decision.
    pub fn forget(&mut self, gone: &ClusterName) {
        self.keep_selected(|item| item.cluster() == Some(gone));
    }

    /// Whether something is blocked in just this cluster.
    pub fn blocks_in(&self, cluster: &ClusterName) -> bool {
        self.blocked()
            .iter()
            .any(|item| item.cluster() == Some(cluster))
    }

    /// Whether passed removals of single copies are worth to be forgotten once the copies are gone: they are many, or sessions
    /// compare them with what other rules send.
    pub fn is_worth_forgetting(&self) -> bool {
        let of_sources = self.decision.passed.iter().filter_map(Item::source);
        !self.decision.conditions.is_empty()
            || of_sources.take(WORTH_FORGETTING).count() == WORTH_FORGETTING
    }

    /// No agent has copies any more whose removal passed: only what concerns whole clusters is remembered.
    pub fn forget_removed(&mut self) {
        let decision = Arc::make_mut(&mut self.decision);
        decision.conditions = Conditions::default();
        decision.passed.retain(|item| {
            matches!(
                item,
                Item::Rule | Item::Cluster(_) | Item::Kind(..) | Item::Prune(..)
            )
        });
    }

    /// Judges passed items again that are not removed yet.
    pub fn rejudge_passed(&mut self) {
        if !self.decision.passed.is_empty() {
            let decision = Arc::make_mut(&mut self.decision);
            decision.passed.clear();
            decision.conditions = Conditions::default();
        }
    }

    /// Judges blocked items again. They stay blocked until then: their copies may belong to an item that has passed, too.
    pub fn reopen(&mut self) {
        if !self.causes.is_empty() {
            self.open.append(&mut self.causes);
            (self.is_news, self.blocked_at) = (true, None);
        }
    }

    /// The judgment of what is open begins: an earlier one of the same items does not count.
    pub fn unblock_open(&mut self) {
        let open = &self.open;
        if self.blocked().iter().any(|item| open.contains_key(item)) {
            let decision = Arc::make_mut(&mut self.decision);
            decision.blocked.retain(|item| !open.contains_key(item));
        }
    }

    /// The limits changed: what is blocked is judged again, as after an undone change.
    pub fn apply_changed_limits(&mut self) {
        self.undone |= !self.decision.blocked.is_empty();
    }

    /// Whether something blocked was undone or approved, or the limits changed, since this was asked last.
    pub fn take_undone(&mut self) -> bool {
        std::mem::take(&mut self.undone)
    }

    /// Whether an item was opened since the last call.
    pub fn take_opened(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// Every agent has reported, but for those that are `away`. Returns whether an earlier process had blocked removals.
    pub fn settle(&mut self, away: &BTreeSet<ClusterName>) -> bool {
        let carried = std::mem::take(&mut self.carried);
        if carried {
            self.awaited.clone_from(away);
            self.undone = true;
            self.reopen();
            self.forget_if_over();
        }
        carried
    }

    /// Whether a reconnected cluster may have copies whose removal an earlier process blocked. True
    /// once per cluster.
    pub fn was_awaited(&mut self, cluster: &ClusterName) -> bool {
        self.awaited.remove(cluster)
    }

    /// The intents that the rule does not want any more: their removal passes, waits for approval, or is not judged yet.
    pub fn left_intents(&self) -> impl Iterator<Item = &SourceRef> {
        let judged = self.decision.passed.iter().chain(&self.decision.blocked);
        judged.chain(self.open.keys()).filter_map(Item::intent)
    }

    /// Returns the number of open or blocked intents.
    pub fn leaving(&self) -> u64 {
        let items = self.open.keys().chain(self.blocked());
        items.filter_map(Item::intent).count() as u64
    }

    /// Returns how many more unknown sources may be open: an agent can invent any number.
    pub fn room(&self) -> usize {
        REMEMBERED.saturating_sub(self.open.len() + self.blocked().len())
    }

    /// Whether the item has come for the first time.
    pub fn is_new(&self, item: &Item) -> bool {
        !self.open.contains_key(item) && !self.decision.passes(item) && !self.decision.blocks(item)
    }

    /// Sets the requested removals in former target namespaces, by cluster.
    pub fn set_prunes(&mut self, prunes: &BTreeMap<ClusterName, PruneDigest>, cause: &Cause) {
        self.keep_selected(|item| match item {
            Item::Prune(cluster, digest) => prunes.get(cluster) != Some(digest),
            _ => false,
        });
        for (cluster, digest) in prunes {
            self.remove(Item::Prune(cluster.clone(), *digest), cause.clone());
        }
    }

    /// Whether a cluster's agent reports another set of copies than the decided one.
    pub fn prune_differs(&self, cluster: &ClusterName, digest: Option<PruneDigest>) -> bool {
        let mut known = self.decision.prunes_in(cluster).chain(self.open.keys());
        let known = known.find_map(|item| match item {
            Item::Prune(name, digest) if name == cluster => Some(*digest),
            _ => None,
        });
        known != digest
    }

    /// A cluster's agent asks again although its removals passed.
    pub fn rejudge_prune(&mut self, cluster: &ClusterName) {
        let passed: Vec<_> = self
            .decision
            .prunes_in(cluster)
            .filter(|item| self.decision.passes(item))
            .cloned()
            .collect();
        passed.iter().for_each(|item| self.record_selected(item));
    }

    /// Removes the deliberate deletes from the open items; `refine` determines the actual cause.
    pub fn take_deliberate(
        &mut self,
        refine: impl Fn(&Item, &Cause) -> Option<Cause>,
    ) -> BTreeSet<Item> {
        let is_named = |cause: &&Cause| cause.kind == CauseKind::NameRemoved;
        let named = self.open.values().filter(is_named).count();
        for (item, cause) in &mut self.open {
            if cause.kind == CauseKind::NameRemoved && named > MAX_DELIBERATE_NAMES {
                cause.kind = CauseKind::RuleEdited;
            } else if let Some(refined) = refine(item, cause) {
                *cause = refined;
            }
        }
        let (deliberate, others): (BTreeMap<_, _>, _) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(_, cause)| cause.kind.is_deliberate());
        self.open = others;
        deliberate.into_keys().collect()
    }

    /// Returns the items that are not judged yet.
    pub fn open(&self) -> impl Iterator<Item = &Item> {
        self.open.keys()
    }

    /// Whether something open waits for the next judgment of the fleet.
    pub fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    /// Puts off the deletion of the rule until the next judgment of the fleet.
    pub fn defer_deletion(&mut self, item: Item, cause: Cause) {
        self.open.insert(item, cause);
    }

    /// Returns all open items, by cause.
    pub fn open_by_cause(&self) -> BTreeMap<Cause, BTreeSet<Item>> {
        let mut all: BTreeMap<Cause, BTreeSet<Item>> = BTreeMap::new();
        for (item, cause) in &self.open {
            all.entry(cause.clone()).or_default().insert(item.clone());
        }
        all
    }

    /// These items are judged: they are no longer open.
    pub fn close(&mut self, judged: &BTreeSet<Item>) {
        self.open.retain(|item, _| !judged.contains(item));
    }

    /// Whether an item is open or blocked: its copies are still there.
    pub fn keeps(&self, item: &Item) -> bool {
        self.open.contains_key(item) || self.decision.blocks(item)
    }

    /// Whether the removal of these items would remove copies that wait for approval.
    pub fn blocks_part_of(&self, items: &BTreeSet<Item>) -> bool {
        let blocked = self.blocked();
        let is_everywhere = |item: &&Item| matches!(item, Item::Name(_) | Item::Source(_));
        let everywhere = blocked.iter().filter(is_everywhere);
        let everywhere: BTreeSet<_> = everywhere.filter_map(Item::source).collect();
        let clusters: BTreeSet<_> = blocked.iter().filter_map(Item::cluster).collect();
        let kinds: BTreeSet<_> = blocked.iter().filter_map(Item::kind).collect();
        let sources: BTreeSet<_> = blocked.iter().filter_map(Item::source).collect();
        items.iter().any(|item| match item {
            Item::Rule => !blocked.is_empty(),
            Item::Cluster(cluster) => !everywhere.is_empty() || clusters.contains(cluster),
            Item::Kind(_, kind) => sources.iter().any(|source| source.resource == *kind),
            Item::Copy(_, intent) => everywhere.contains(&intent.plain()),
            Item::Name(intent) | Item::Source(intent) => {
                kinds.contains(&intent.resource) || sources.contains(&intent.plain())
            }
            Item::Prune(..) => false,
        })
    }

    /// Passes items.
    pub fn pass(&mut self, items: BTreeSet<Item>) {
        if items.is_empty() {
            return;
        }
        let decision = Arc::make_mut(&mut self.decision);
        if decision.passed.len() + items.len() > REMEMBERED {
            // A dropped entry of a rule or cluster would never be removed.
            decision
                .passed
                .retain(|item| matches!(item, Item::Rule | Item::Cluster(_)));
        }
        for source in items.iter().filter_map(Item::source) {
            decision.conditions.remove(&source);
        }
        decision.passed.extend(items);
    }

    /// Passes items, of which not all copies were counted.
    pub fn pass_with(&mut self, items: BTreeSet<Item>, conditions: Conditions) {
        self.pass(items);
        if !conditions.is_empty() {
            let all = &mut Arc::make_mut(&mut self.decision).conditions;
            all.handed_over.extend(conditions.handed_over);
            all.unseen.extend(conditions.unseen);
        }
    }

    /// Blocks items until a user approves them.
    pub fn block(&mut self, items: BTreeSet<Item>, cause: &Cause) {
        self.causes
            .extend(items.iter().map(|item| (item.clone(), cause.clone())));
        Arc::make_mut(&mut self.decision).blocked.extend(items);
    }

    /// The causes of what is open or blocked.
    pub fn causes(&self) -> impl Iterator<Item = &Cause> {
        self.open.values().chain(self.causes.values())
    }

    /// Returns the blocked items, by cause.
    pub fn blocked_by_cause(&self) -> BTreeMap<&Cause, BTreeSet<&Item>> {
        let mut all: BTreeMap<&Cause, BTreeSet<&Item>> = BTreeMap::new();
        for (item, cause) in &self.causes {
            all.entry(cause).or_default().insert(item);
        }
        all
    }

    /// Returns the causes of the blocked items.
    pub fn blocked_causes(&self) -> BTreeSet<&Cause> {
        self.causes.values().collect()
    }

    /// Whether something was blocked within [`WINDOW`].
    pub fn is_blocked_lately(&self, now: Instant) -> bool {
        self.blocked_at
            .is_some_and(|at| now.saturating_duration_since(at) < WINDOW)
    }

    /// A clause about the cause. Another process may only find that copies are not selected: it
    /// keeps what the status named.
    fn cause(&self) -> String {
        let inherited = self
            .inherited
            .as_ref()
            .filter(|_| cause::strongest(self.causes.values()).is_none_or(CauseKind::is_found));
        inherited
            .cloned()
            .or_else(|| cause::describe(self.causes.values()))
            .unwrap_or_default()
    }

    /// Sets the number of blocked copies, of all and by cause. The number is published once it is complete.
    pub fn describe(
        &mut self,
        uid: &str,
        copies: &BTreeMap<ClusterName, u64>,
        by_cause: &BTreeMap<Cause, u64>,
        now: crate::now::Now,
    ) {
        if self.decision.blocked.is_empty() {
            if !self.carried {
                self.forget_if_over();
            }
            return;
        }
        let since = *self.since.get_or_insert(whole_seconds(now.wall).0);
        let cause = self.cause();
        let digest = digest_of(uid, &cause, since, self.blocked());
        if self.carried
            && self
                .pending
                .as_ref()
                .is_none_or(|pending| pending.digest != digest)
        {
            return;
        }
        // All that an earlier process blocked is known again.
        self.carried = false;
        if self.digests.back().is_none_or(|(last, _)| *last != digest) {
            self.digests
                .push_back((digest.clone(), self.blocked().clone()));
            if self.digests.len() > DIGESTS {
                self.digests.pop_front();
            }
        }
        let sum = copies
            .values()
            .fold(0u64, |sum, copies| sum.saturating_add(*copies));
        let clusters = copies.values().filter(|copies| **copies > 0).count();
        self.pending = Some(PendingApproval {
            digest,
            cause,
            causes: cause::counts(by_cause),
            copies: i64::try_from(sum).unwrap_or(i64::MAX),
            clusters: i64::try_from(clusters).unwrap_or(i64::MAX),
            names: self
                .blocked()
                .iter()
                .take(NAMES)
                .map(ToString::to_string)
                .collect(),
            since: Some(Time(since)),
        });
        self.blocked_at.get_or_insert(now.instant);
    }

    /// Approves the blocked items that the annotation names; `all`: all of them. Returns the approved
    /// items by cause.
    pub fn approve(
        &mut self,
        approval: Option<&str>,
        all: bool,
    ) -> BTreeMap<Cause, BTreeSet<Item>> {
        let mut approved: BTreeMap<Cause, BTreeSet<Item>> = BTreeMap::new();
        if self.carried || self.decision.blocked.is_empty() {
            return approved;
        }
        let shown = self
            .digests
            .iter()
            .rev()
            .find(|(digest, _)| approves(approval, digest));
        let approved_items: BTreeSet<Item> = match shown {
            _ if all => self.blocked().clone(),
            Some((_, items)) => items.intersection(self.blocked()).cloned().collect(),
            None => return approved,
        };
        if approved_items.is_empty() {
            return approved;
        }
        let decision = Arc::make_mut(&mut self.decision);
        decision
            .blocked
            .retain(|item| !approved_items.contains(item));
        for item in &approved_items {
            let open = self.open.remove(item);
            if let Some(cause) = self.causes.remove(item).or(open) {
                approved.entry(cause).or_default().insert(item.clone());
            }
        }
        self.pass(approved_items);
        // The items that stay are judged again. They have a digest of their own, and the approved
        // digests are consumed.
        self.undone = true;
        (self.since, self.blocked_at) = (None, None);
        self.digests.clear();
        self.forget_if_over();
        approved
    }
}

/// Whether an annotation approves a digest: it names one, or several with commas between them.
pub fn approves(approval: Option<&str>, digest: &str) -> bool {
    approval.is_some_and(|named| named.split(',').any(|one| one.trim() == digest))
}

/// Returns the items that concern an intent in a cluster.
fn items_of(cluster: &ClusterName, intent: &SourceRef) -> [Item; 4] {
    [
        Item::Source(intent.plain()),
        Item::Name(intent.clone()),
        Item::Copy(cluster.clone(), intent.clone()),
        Item::Kind(cluster.clone(), intent.resource.clone()),
    ]
}
