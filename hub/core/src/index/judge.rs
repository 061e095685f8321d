//! Judges removals: items that rules no longer select pass or are blocked, by cause. See
//! [`crate::guard`].
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::CustomResourceExt;
use runnel_api::{ClusterDistributionRule, DistributionRule, PendingApproval};
use runnel_proto::model::{AskedDigest, ClusterName, DeletionPolicy, RuleName, RuleUid};

use super::copy_counter::CopyCounter;
use super::guard::{Holdings, PendingCause};
use super::rule_lookup::Selection;
use super::{Cluster, RuleEntry};
use crate::guard::{
    Cause, FleetGuard, GuardDecision, Item, Limit, Part, RemovalGuard, Totals, approves,
    digest_of_all,
};
use crate::now::Now;

/// The decisions about rules before a judgement, to find those that changed.
pub(super) type Before = BTreeMap<RuleUid, Arc<GuardDecision>>;

/// What is being deleted as a whole: the rules and sources in it were not deleted one by one.
#[derive(Clone, Default)]
pub(super) struct TerminatingScopes {
    /// Namespaces.
    pub(super) namespaces: BTreeSet<String>,
    /// Definitions of rules.
    pub(super) definitions: BTreeSet<String>,
}

/// One judgement.
pub(super) struct Judge<'a> {
    pub(super) rules: &'a mut BTreeMap<RuleUid, RuleEntry>,
    pub(super) fleet: &'a mut FleetGuard,
    pub(super) clusters: &'a BTreeMap<ClusterName, Cluster>,
    pub(super) selection: &'a Selection,
    pub(super) origins: &'a TerminatingScopes,
    /// The limit that no rule can raise.
    pub(super) ceiling: Option<Limit>,
    pub(super) holdings: Holdings<'a>,
    pub(super) now: Now,
    pub(super) before: Before,
}

impl<'a> Judge<'a> {
    /// Judges the removals of these rules, and all removals that are due. Returns the decisions before.
    pub(super) fn judge(mut self, uids: &BTreeSet<RuleUid>) -> Before {
        let mut undone = false;
        for uid in uids {
            undone |= self.sort_out(uid);
        }
        if undone {
            // The rest may be below the limits, and so may everything that was blocked only with
            // it.
            self.reopen_blocked();
        }
        let due = self.fleet.take_due(self.now.instant);
        if !due.is_empty() {
            self.judge_together(due);
        }
        self.approve_by_fleet();
        self.before
    }

    fn counter(&self) -> CopyCounter<'_> {
        CopyCounter {
            rules: self.rules,
            clusters: self.clusters,
            selection: self.selection,
            holdings: self.holdings,
        }
    }

    fn sort_out(&mut self, uid: &RuleUid) -> bool {
        let Some(mut guard) = self.take_guard(uid) else {
            return false;
        };
        self.before
            .entry(uid.clone())
            .or_insert_with(|| guard.decision().clone());
        let Some(entry) = self.rules.get(uid) else {
            return false;
        };
        if is_preview(entry) {
            // A rule in dry run removes nothing. Its removals are judged once the rule is enforced.
            if let Some(entry) = self.rules.get_mut(uid) {
                entry.guard = guard;
            }
            return false;
        }
        let prunes = prunes(entry, self.holdings);
        guard.set_prunes(&prunes);
        guard.approve(entry.rule.removal.approve.as_deref(), false);
        let mut deliberate = guard.take_deliberate(|item, cause| self.refine(entry, item, cause));
        if deliberate.remove(&Item::Rule) {
            // The watches may deliver the deletion of its namespace or its definition only later.
            let copies = self.counter().count(entry, [&Item::Rule].into_iter());
            let is_removal = copies.values().any(|copies| *copies > 0);
            if is_removal && !entry.rule.is_origin_known && !guard.decision().passes(&Item::Rule) {
                guard.put_back(Item::Rule, Cause::Deleted);
            } else {
                deliberate.insert(Item::Rule);
            }
        }
        guard.pass(deliberate);
        let (undone, is_news) = (guard.take_undone(), guard.take_news());
        if guard.waits() {
            self.fleet.wait(uid, is_news, self.now.instant);
        }
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.guard = guard;
        }
        undone
    }

    /// Takes a rule's guard out for a judgement, which puts it back: a clone would copy all that is blocked.
    fn take_guard(&mut self, uid: &RuleUid) -> Option<RemovalGuard> {
        self.rules
            .get_mut(uid)
            .map(|entry| std::mem::take(&mut entry.guard))
    }

    fn reopen_blocked(&mut self) {
        for (uid, entry) in self.rules.iter_mut() {
            if !entry.guard.blocked().is_empty() && !entry.guard.is_carried() {
                entry.guard.reopen();
            }
            if entry.guard.waits() && !is_preview(entry) {
                self.fleet
                    .wait(uid, entry.guard.take_news(), self.now.instant);
            }
        }
    }

    /// What the deletion of something really comes from.
    fn refine(&self, entry: &RuleEntry, item: &Item, cause: Cause) -> Cause {
        if cause != Cause::Deleted {
            return cause;
        }
        let blocks = self.fleet.terms.holds_deliberate;
        match item {
            Item::Rule
                if self
                    .origins
                    .namespaces
                    .contains(&entry.rule.terms.rule.namespace) =>
            {
                Cause::NamespaceDeleted
            }
            Item::Rule
                if self
                    .origins
                    .definitions
                    .contains(definition_of(&entry.rule.terms.rule)) =>
            {
                Cause::DefinitionDeleted
            }
            Item::Rule if entry.rule.removal.on_rule_delete => Cause::LimitedDeletion,
            Item::Source(source) if self.origins.namespaces.contains(&*source.namespace) => {
                Cause::NamespaceDeleted
            }
            _ if blocks => Cause::LimitedDeletion,
            _ => Cause::Deleted,
        }
    }

    /// Judges everything that waits, by cause.
    fn judge_together(&mut self, due: BTreeSet<RuleUid>) {
        let mut parts = Vec::new();
        for uid in &due {
            let Some(entry) = self.rules.get_mut(uid).filter(|entry| !is_preview(entry)) else {
                continue;
            };
            let mut guard = std::mem::take(&mut entry.guard);
            self.before
                .entry(uid.clone())
                .or_insert_with(|| guard.decision().clone());
            let Some(entry) = self.rules.get(uid) else {
                continue;
            };
            // Only now is it certain where the deletion of a rule comes from.
            let deliberate = guard.take_deliberate(|item, cause| self.refine(entry, item, cause));
            guard.pass(deliberate);
            let joins = guard.is_carried();
            for (cause, items) in guard.take_open() {
                let copies = self.counter().count(entry, items.iter());
                let joins = joins || cause == Cause::Carried;
                parts.push(Part {
                    uid: uid.clone(),
                    cause,
                    items,
                    copies,
                    joins,
                });
            }
            if let Some(entry) = self.rules.get_mut(uid) {
                entry.guard = guard;
            }
        }
        let mut over = self.exceeding(&parts);
        // What a cause removes besides joins what is blocked of it already: of the same rule, and for a while of others.
        let mut joined = BTreeSet::new();
        for (uid, entry) in self.rules.iter() {
            let is_recent = entry.guard.blocked_lately(self.now.instant).is_some();
            for cause in entry.guard.blocked_causes() {
                joined.insert((cause, uid.clone()));
                if is_recent && !cause.is_of_rule() {
                    over.insert((cause, None));
                }
            }
        }
        for part in parts {
            let is_over =
                over.contains(&part.key()) || joined.contains(&(part.cause, part.uid.clone()));
            let is_blocked =
                is_over && (part.joins || part.copies.values().any(|count| *count > 0));
            self.decide(part, is_blocked);
        }
        for uid in due {
            self.describe(&uid);
        }
    }

    /// The causes that are above a limit.
    fn exceeding(&mut self, parts: &[Part]) -> BTreeSet<(Cause, Option<RuleUid>)> {
        let now = self.now.instant;
        let mut fleet = std::mem::take(self.fleet);
        let counter = self.counter();
        let all_rules = fleet.all_rules();
        let totals = FleetTotals {
            counter,
            ceiling: self.ceiling,
            all_rules,
            fleet: OnceCell::new(),
        };
        let blocked = counter
            .rules
            .iter()
            .filter_map(|(uid, entry)| Some((uid, entry.guard.blocked_lately(now)?)));
        let over = fleet.exceeding(parts, blocked, &totals, now);
        *self.fleet = fleet;
        over
    }

    fn decide(&mut self, part: Part, is_blocked: bool) {
        // The copies of a cluster that has not connected to this process are unknown. A removal
        // that passes by an estimate is judged again when the cluster is back.
        let is_away = |item: &Item| {
            let silent = |cluster: &ClusterName| {
                (self.holdings)(&part.uid, cluster).is_none() && self.counter().may_have(cluster)
            };
            item.cluster().is_some_and(silent)
        };
        let (away, present): (BTreeSet<Item>, BTreeSet<Item>) =
            part.items.iter().cloned().partition(is_away);
        let Some(entry) = self.rules.get_mut(&part.uid) else {
            return;
        };
        if is_blocked {
            entry.guard.block(part.items, part.cause);
        } else {
            let retains = entry.rule.terms.deletion_policy == DeletionPolicy::Retain;
            entry.guard.pass(present);
            if retains {
                entry.guard.pass(away);
            }
            self.fleet
                .record_passed(&part.uid, part.copies, self.now.instant);
        }
    }

    /// Updates the message about the blocked removals of a rule. An approval of exactly this set
    /// takes effect.
    fn describe(&mut self, uid: &RuleUid) {
        let Some(mut guard) = self.take_guard(uid) else {
            return;
        };
        let Some(entry) = self.rules.get(uid) else {
            return;
        };
        let subject = entry.rule.terms.rule.to_string();
        for _ in 0..2 {
            let copies = self.counter().count(entry, guard.blocked().iter());
            guard.describe(uid.as_str(), &subject, copies, self.now);
            if !guard.approve(entry.rule.removal.approve.as_deref(), false) {
                break;
            }
        }
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.guard = guard;
        }
    }

    /// Approves the digests of the `Fleet` object's annotation in all rules.
    fn approve_by_fleet(&mut self) {
        let Some(approval) = self.fleet.terms.approve.clone() else {
            return;
        };
        let approved: Vec<_> = blocked_rules(self.rules)
            .filter(|(cause, ..)| approves(Some(&approval), &cause.approval.digest))
            .collect();
        for uid in approved.into_iter().flat_map(|(_, uids)| uids) {
            if let Some(entry) = self.rules.get_mut(&uid) {
                self.before
                    .entry(uid)
                    .or_insert_with(|| entry.guard.decision().clone());
                entry.guard.approve(None, true);
            }
        }
    }
}

/// The definition of the kind of a rule.
fn definition_of(rule: &RuleName) -> &'static str {
    if rule.is_cluster_scoped() {
        ClusterDistributionRule::crd_name()
    } else {
        DistributionRule::crd_name()
    }
}

pub(super) fn blocked_rules(
    rules: &BTreeMap<RuleUid, RuleEntry>,
) -> impl Iterator<Item = (PendingCause, Vec<RuleUid>)> {
    let mut causes: BTreeMap<&str, Vec<(&RuleUid, &RuleEntry, &PendingApproval)>> = BTreeMap::new();
    for (uid, entry) in rules {
        if let Some(pending) = entry.guard.pending() {
            causes
                .entry(&pending.cause)
                .or_default()
                .push((uid, entry, pending));
        }
    }
    causes.into_iter().map(|(cause, rules)| {
        let sum = |of: fn(&PendingApproval) -> i64| {
            rules
                .iter()
                .map(|(.., pending)| of(pending))
                .fold(0, i64::saturating_add)
        };
        let approval = PendingApproval {
            digest: digest_of_all(
                cause,
                rules.iter().map(|(.., pending)| pending.digest.as_str()),
            ),
            cause: cause.to_owned(),
            copies: sum(|pending| pending.copies),
            clusters: rules
                .iter()
                .map(|(.., pending)| pending.clusters)
                .max()
                .unwrap_or_default(),
            names: rules
                .iter()
                .take(NAMES)
                .map(|(_, entry, _)| entry.rule.terms.rule.to_string())
                .collect(),
            since: rules
                .iter()
                .filter_map(|(.., pending)| pending.since.clone())
                .min(),
        };
        let uids = rules.iter().map(|(uid, ..)| (*uid).clone()).collect();
        (
            PendingCause {
                approval,
                rules: rules.len() as u64,
            },
            uids,
        )
    })
}

/// Whether a rule is a dry run, which its deletion ends.
pub(super) fn is_preview(entry: &RuleEntry) -> bool {
    entry.rule.terms.is_dry_run() && !entry.rule.deleting
}
/// How many rules a cause names.
const NAMES: usize = 5;

/// The removals from namespaces that are no longer targets, in the clusters of the rule. Elsewhere
/// the whole cluster is judged.
fn prunes(entry: &RuleEntry, holdings: Holdings<'_>) -> BTreeMap<ClusterName, AskedDigest> {
    if entry.rule.deleting {
        return BTreeMap::new();
    }
    let asked = |cluster: &ClusterName| {
        Some((
            cluster.clone(),
            holdings(&entry.rule.uid, cluster)?.prunes?.digest,
        ))
    };
    entry
        .target_clusters
        .clusters
        .keys()
        .filter_map(asked)
        .collect()
}

/// The copies of rules, member clusters and the fleet.
struct FleetTotals<'a> {
    counter: CopyCounter<'a>,
    ceiling: Option<Limit>,
    all_rules: Option<Arc<[RuleUid]>>,
    fleet: OnceCell<u64>,
}

impl Totals for FleetTotals<'_> {
    fn of_rule(&self, uid: &RuleUid) -> (Limit, u64) {
        let Some(entry) = self.counter.rules.get(uid) else {
            return (Limit::default(), 0);
        };
        let limit = self.ceiling.map_or(entry.rule.removal.limit, |most| {
            entry.rule.removal.limit.under(most)
        });
        (limit, self.counter.all_copies(entry))
    }

    fn of_member(&self, cluster: &ClusterName) -> u64 {
        let copies =
            |uid: &RuleUid| (self.counter.holdings)(uid, cluster).map_or(0, |acked| acked.copies);
        match &self.all_rules {
            Some(all) => all.iter().map(copies).fold(0, u64::saturating_add),
            None => self
                .counter
                .rules
                .keys()
                .map(copies)
                .fold(0, u64::saturating_add),
        }
    }

    /// Nothing verifies the count of a member: one member adds no more than all others together.
    fn of_fleet(&self) -> u64 {
        *self.fleet.get_or_init(|| {
            let all: Vec<_> = self
                .counter
                .clusters
                .keys()
                .map(|cluster| self.of_member(cluster))
                .collect();
            let sum = all.iter().copied().fold(0, u64::saturating_add);
            let largest = all.iter().copied().max().unwrap_or_default();
            let others = sum.saturating_sub(largest);
            if all.iter().filter(|copies| **copies > 0).count() > 1 {
                sum.min(others.saturating_mul(2))
            } else {
                sum
            }
        })
    }
}
