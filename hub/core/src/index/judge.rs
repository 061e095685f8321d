//! Judges removals: items that rules no longer select pass or are blocked, by cause. See
//! [`crate::guard`].
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_core::CustomResourceExt;
use runnel_api::{ClusterDistributionRule, DistributionRule};
use runnel_proto::model::{ClusterName, DeletionPolicy, PruneDigest, RuleName, RuleUid};

use super::ReportedCopiesFn;
use super::clusters::Clusters;
use super::copy_counter::CopyCounter;
use super::rule_lookup::Selection;
use super::rules::{FormerDecisions, Rules};
use super::{Effect, Index, RuleEntry};
use crate::guard::{
    Cause, CauseKind, Conditions, FleetGuard, FleetTerms, Item, Limit, RemovalGuard, RuleRemovals,
    Totals, approves,
};
use crate::now::Now;

/// One judgment.
struct Judge<'a> {
    rules: &'a mut Rules,
    fleet: &'a mut FleetGuard,
    clusters: &'a Clusters,
    selection: &'a Selection,
    reported_copies: ReportedCopiesFn<'a>,
    /// The copies of all rules in a cluster, if they are known without a look at each rule.
    copies_in: Option<CopiesIn<'a>>,
    now: Now,
    before: FormerDecisions,
}

/// Counts the copies of all rules in a cluster.
pub type CopiesIn<'a> = &'a dyn Fn(&ClusterName) -> u64;

impl<'a> Judge<'a> {
    /// Judges the removals of these rules, and all removals that are due. Returns the decisions before.
    fn judge(mut self, uids: &BTreeSet<RuleUid>) -> FormerDecisions {
        let mut undone = false;
        for uid in uids {
            undone |= self.classify_removals(uid);
        }
        if std::mem::take(&mut undone) {
            // The others may be below the limits, and so may everything that was blocked only with
            // it.
            self.reopen_blocked();
        }
        let due = self.fleet.take_due(self.now.instant);
        if !due.is_empty() {
            undone = self.judge_together(due);
        }
        if self.approve_by_fleet() || undone {
            self.reopen_blocked();
        }
        if self.fleet.has_approved() {
            let guards = self.rules.iter().map(|(_, entry)| &entry.guard);
            let left = guards.flat_map(RemovalGuard::causes).collect();
            self.fleet.retain_approved(&left);
        }
        self.before
    }

    fn counter(&self) -> CopyCounter<'_> {
        CopyCounter {
            rules: self.rules,
            clusters: self.clusters,
            selection: self.selection,
            reported_copies: self.reported_copies,
        }
    }

    fn classify_removals(&mut self, uid: &RuleUid) -> bool {
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
            self.put_guard(uid, guard);
            return false;
        }
        let prunes = prunes(entry, self.reported_copies);
        let targets = CauseKind::TargetNamespaces.of(entry.rule.terms.rule.to_string());
        guard.set_prunes(&prunes, &targets);
        let approved = guard.approve(entry.rule.removal.approve.as_deref(), false);
        self.record_approved(uid, approved);
        let Some(entry) = self.rules.get(uid) else {
            return false;
        };
        let mut deliberate = guard.take_deliberate(|item, cause| self.refine(entry, item, cause));
        if deliberate.remove(&Item::Rule) {
            // The watches may deliver the deletion of its namespace or its CRD only later.
            let copies = self.counter().count(entry, [&Item::Rule].into_iter());
            let is_removal = copies.values().any(|copies| *copies > 0);
            // A rule that was observed before, and has no plan yet, may take the copies over.
            let waits = !entry.rule.is_origin_known || self.rules.expects_rules(self.now.instant);
            if is_removal && waits && !guard.decision().passes(&Item::Rule) {
                guard.defer_deletion(Item::Rule, CauseKind::Deleted.of(""));
            } else {
                deliberate.insert(Item::Rule);
            }
        }
        guard.pass(deliberate);
        let (undone, is_news) = (guard.take_undone(), guard.take_opened());
        if guard.waits() {
            self.fleet.wait(uid, is_news, self.now.instant);
        }
        self.put_guard(uid, guard);
        undone
    }

    fn put_guard(&mut self, uid: &RuleUid, guard: RemovalGuard) {
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.guard = guard;
        }
    }

    /// Takes a rule's guard out for a judgment, which puts it back: a clone would copy all that is blocked.
    fn take_guard(&mut self, uid: &RuleUid) -> Option<RemovalGuard> {
        self.rules
            .get_mut(uid)
            .map(|entry| std::mem::take(&mut entry.guard))
    }

    /// Counts what a user approved for its own causes, of which something may still be blocked.
    fn record_approved(&mut self, uid: &RuleUid, approved: BTreeMap<Cause, BTreeSet<Item>>) {
        for (cause, items) in approved {
            let copies = match self.rules.get(uid) {
                Some(entry) => self.counter().count(entry, items.iter()),
                None => continue,
            };
            self.fleet
                .record_approved(uid, copies, cause, self.now.instant);
        }
    }

    fn reopen_blocked(&mut self) {
        for (uid, entry) in self.rules.iter_mut() {
            if !entry.guard.blocked().is_empty() && !entry.guard.is_carried() {
                entry.guard.reopen();
            }
            if entry.guard.waits() && !is_preview(entry) {
                self.fleet
                    .wait(uid, entry.guard.take_opened(), self.now.instant);
            }
        }
    }

    /// What the deletion of something really comes from, if not from itself.
    fn refine(&self, entry: &RuleEntry, item: &Item, cause: &Cause) -> Option<Cause> {
        if cause.kind != CauseKind::Deleted {
            return None;
        }
        let (rule, terminating) = (&entry.rule.terms.rule, &self.fleet.terminating);
        let deleted = match item {
            Item::Rule => format!("rule {rule}"),
            Item::Source(source) => match source.optional_namespace() {
                Some(namespace) => format!("a source in namespace {namespace}"),
                None => format!("a source without namespace, {source},"),
            },
            Item::Cluster(cluster) => format!("member cluster {cluster}"),
            _ => return None,
        };
        let namespace = match item {
            Item::Rule => rule.namespace.as_str(),
            // A manifest without a namespace goes with its bundle, which has one.
            Item::Source(source) if source.is_cluster_scoped() => &cause.subject,
            Item::Source(source) => &source.namespace,
            _ => "",
        };
        let mut holds = self.fleet.terms.limits_deliberate_deletes;
        // Nothing tells whether the rule was deleted with its CRD.
        holds |= *item == Item::Rule
            && !entry.rule.is_origin_known
            && terminating.is_crd_unreadable(crd_of(rule));
        if terminating.has_namespace(namespace) {
            Some(CauseKind::NamespaceDeleted.of(namespace))
        } else if *item == Item::Rule && terminating.has_crd(crd_of(rule)) {
            Some(CauseKind::CrdDeleted.of(crd_of(rule)))
        } else if holds || (*item == Item::Rule && entry.rule.removal.on_rule_delete) {
            Some(CauseKind::LimitedDeletion.of(deleted))
        } else {
            None
        }
    }

    /// Judges everything that waits, by cause. Returns whether something else is to be judged
    /// again.
    fn judge_together(&mut self, due: BTreeSet<RuleUid>) -> bool {
        let is_starting = self.fleet.is_starting(self.now.instant);
        let mut parts = Vec::new();
        for uid in &due {
            let Some(entry) = self.rules.get(uid).filter(|entry| !is_preview(entry)) else {
                continue;
            };
            let is_deletion = entry.guard.open().any(|item| *item == Item::Rule);
            let is_limited = || {
                let deleted = CauseKind::Deleted.of("");
                self.refine(entry, &Item::Rule, &deleted).is_some()
            };
            let is_unreported = is_starting && is_limited() && self.counter().is_unreported(entry);
            if is_deletion && (is_unreported || self.rules.expects_rules(self.now.instant)) {
                self.fleet.wait(uid, true, self.now.instant);
                continue;
            }
            let Some(mut guard) = self.take_guard(uid) else {
                continue;
            };
            self.before
                .entry(uid.clone())
                .or_insert_with(|| guard.decision().clone());
            // The cause of a rule's deletion is known only now.
            if let Some(entry) = self.rules.get(uid) {
                let refine = |item: &Item, cause: &Cause| self.refine(entry, item, cause);
                let deliberate = guard.take_deliberate(refine);
                guard.pass(deliberate);
            }
            guard.unblock_open();
            self.put_guard(uid, guard);
            // All that waits is there while it is counted: limits refer to what there is, not to what remains.
            let Some(entry) = self.rules.get(uid) else {
                continue;
            };
            let joins = entry.guard.is_carried();
            for (cause, items) in entry.guard.open_by_cause() {
                let copies = self.counter().count(entry, items.iter());
                let joins = joins || cause.kind == CauseKind::Carried;
                parts.push(RuleRemovals {
                    uid: uid.clone(),
                    cause,
                    items,
                    copies,
                    joins,
                });
            }
        }
        let mut over = self.exceeding(&parts);
        // Further removals of a cause join its blocked ones: of the same rule, and for a while of
        // other rules.
        let mut joined = BTreeSet::new();
        for (uid, entry) in self.rules.iter() {
            let is_recent = entry.guard.is_blocked_lately(self.now.instant);
            for cause in entry.guard.blocked_causes() {
                joined.insert((cause.clone(), uid.clone()));
                if is_recent {
                    over.insert(cause.clone());
                }
            }
        }
        let (over, within): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| {
            over.contains(&part.cause) || joined.contains(&(part.cause.clone(), part.uid.clone()))
        });
        let removes = |part: &RuleRemovals| part.copies.values().any(|count| *count > 0);
        for part in over {
            let is_blocked = part.joins || removes(&part);
            self.decide(part, is_blocked);
        }
        // What is blocked does not go with a larger removal that is within the limits by itself.
        for part in within {
            let entry = self.rules.get(&part.uid);
            let takes_blocked = entry.is_some_and(|entry| entry.guard.blocks_part_of(&part.items));
            let is_blocked = takes_blocked && removes(&part);
            self.decide(part, is_blocked);
        }
        let mut undone = false;
        for uid in due {
            undone |= self.describe(&uid);
        }
        undone
    }

    /// The causes that are above a limit.
    fn exceeding(&mut self, parts: &[RuleRemovals]) -> BTreeSet<Cause> {
        let mut fleet = std::mem::take(self.fleet);
        let totals = FleetTotals {
            counter: self.counter(),
            ceiling: fleet.ceiling,
            all_rules: fleet.all_rules(),
            copies_in: self.copies_in,
            members: RefCell::default(),
            fleet: OnceCell::new(),
        };
        let over = fleet.exceeding(parts, &totals, self.now.instant);
        *self.fleet = fleet;
        over
    }

    fn decide(&mut self, part: RuleRemovals, is_blocked: bool) {
        // The copies of a cluster that has not connected to this process are unknown. A removal
        // that passes by an estimate is judged again when the cluster is back.
        let is_away = |item: &Item| {
            let silent = |cluster: &ClusterName| {
                (self.reported_copies)(&part.uid, cluster).is_none()
                    && self.counter().may_have(cluster)
            };
            item.cluster().is_some_and(silent)
        };
        let (away, present): (BTreeSet<Item>, BTreeSet<Item>) =
            part.items.iter().cloned().partition(is_away);
        let conditions = match self.rules.get(&part.uid) {
            Some(entry) if !is_blocked => self.counter().conditions(entry, &present),
            _ => Conditions::default(),
        };
        let Some(entry) = self.rules.get_mut(&part.uid) else {
            return;
        };
        entry.guard.close(&part.items);
        if is_blocked {
            entry.guard.block(part.items, &part.cause);
        } else {
            let retains = entry.rule.terms.deletion_policy == DeletionPolicy::Retain;
            entry.guard.pass_with(present, conditions);
            if retains {
                entry.guard.pass(away);
            }
            self.fleet
                .record_passed(&part.uid, part.copies, self.now.instant);
        }
    }

    /// Updates the message about the blocked removals of a rule. An approval of exactly this set
    /// takes effect. Returns whether that happened.
    fn describe(&mut self, uid: &RuleUid) -> bool {
        let Some(entry) = self.rules.get(uid) else {
            return false;
        };
        let approve = entry.rule.removal.approve.clone();
        let copies = self.counter().count(entry, entry.guard.blocked().iter());
        let by_cause = entry.guard.blocked_by_cause();
        let is_one = by_cause.len() < 2;
        let by_cause = by_cause.into_iter().map(|(cause, items)| {
            let copies = if is_one {
                BTreeMap::new()
            } else {
                self.counter().count(entry, items.into_iter())
            };
            (
                cause.clone(),
                copies
                    .values()
                    .fold(0, |sum: u64, copies| sum.saturating_add(*copies)),
            )
        });
        let by_cause: BTreeMap<_, _> = by_cause.collect();
        let Some(mut guard) = self.take_guard(uid) else {
            return false;
        };
        guard.describe(uid.as_str(), &copies, &by_cause, self.now);
        let approved = guard.approve(approve.as_deref(), false);
        self.record_approved(uid, approved);
        let undone = guard.take_undone();
        self.put_guard(uid, guard);
        undone
    }

    /// Approves the digests of the `Fleet` object's annotation in all rules. Returns whether that
    /// approved something.
    fn approve_by_fleet(&mut self) -> bool {
        let Some(approval) = self.fleet.terms.approve.clone() else {
            return false;
        };
        let approved: Vec<_> = self
            .rules
            .blocked_causes()
            .filter(|(cause, ..)| approves(Some(&approval), &cause.approval.digest))
            .collect();
        let mut undone = false;
        for uid in approved.into_iter().flat_map(|(_, uids)| uids) {
            if let Some(entry) = self.rules.get_mut(&uid) {
                self.before
                    .entry(uid.clone())
                    .or_insert_with(|| entry.guard.decision().clone());
                let approved = entry.guard.approve(None, true);
                undone |= entry.guard.take_undone();
                self.record_approved(&uid, approved);
            }
        }
        undone
    }
}

impl Index {
    /// Sets the removal settings of the `Fleet` object. Other limits also apply to what is blocked.
    pub fn set_fleet_terms(&mut self, terms: FleetTerms) -> Effect {
        let mut effect = Effect::default();
        let former = &self.fleet_guard.terms;
        if *former == terms {
            return effect;
        }
        let has_other_limits = (
            former.fleet,
            former.member,
            former.limits_deliberate_deletes,
        ) != (terms.fleet, terms.member, terms.limits_deliberate_deletes);
        self.fleet_guard.terms = terms;
        if has_other_limits {
            self.rules_mut().apply_changed_limits();
        }
        effect.judge = self.rules().with_removals();
        effect
    }

    /// Resets the guards and gates: from now on this process decides, by the blocked sets and the
    /// rollout progress in the statuses.
    pub fn reset_removal_guards(&mut self) {
        self.fleet_guard.reset();
        self.planner.mark_unrendered_stale();
        self.planner.rules.reset_guards();
    }

    /// Judges the items that these rules no longer select. Deliberate deletes and approved sets
    /// pass at once. All other items wait, and are judged together when the fleet's guard is due
    /// ([`crate::guard::FleetGuard::due`]).
    pub fn judge(
        &mut self,
        uids: &BTreeSet<RuleUid>,
        holdings: ReportedCopiesFn<'_>,
        now: Now,
    ) -> Effect {
        self.judge_with(uids, holdings, None, now)
    }

    /// As [`Index::judge`], with the sums of the copies in each cluster: without them each rule is looked at.
    pub fn judge_with(
        &mut self,
        uids: &BTreeSet<RuleUid>,
        holdings: ReportedCopiesFn<'_>,
        copies_in: Option<CopiesIn<'_>>,
        now: Now,
    ) -> Effect {
        let clusters = &self.targets.clusters;
        let judge = Judge {
            rules: &mut self.planner.rules,
            fleet: &mut self.fleet_guard,
            clusters,
            selection: &self.planner.selection,
            reported_copies: holdings,
            copies_in,
            now,
            before: FormerDecisions::new(),
        };
        let before = judge.judge(uids);
        self.planner.rules.record_decisions(before, clusters)
    }

    /// Returns the number of copies that a dry run would remove by order of the hub, by cluster.
    pub fn planned_removals(
        &self,
        uid: &RuleUid,
        holdings: ReportedCopiesFn<'_>,
    ) -> BTreeMap<ClusterName, u64> {
        let entry = self.rules().get(uid).filter(|entry| is_preview(entry));
        let counter = CopyCounter {
            rules: self.rules(),
            clusters: self.clusters(),
            selection: &self.planner.selection,
            reported_copies: holdings,
        };
        entry
            .map(|entry| counter.count(entry, entry.guard.open()))
            .unwrap_or_default()
    }
}

/// The name of the CRD of the kind of a rule.
fn crd_of(rule: &RuleName) -> &'static str {
    if rule.is_cluster_scoped() {
        ClusterDistributionRule::crd_name()
    } else {
        DistributionRule::crd_name()
    }
}

/// Whether a rule is a dry run, which its deletion ends.
fn is_preview(entry: &RuleEntry) -> bool {
    entry.rule.terms.is_dry_run() && !entry.rule.deleting
}

/// The removals from namespaces that are no longer targets, in the clusters of the rule. Elsewhere
/// the whole cluster is judged.
fn prunes(entry: &RuleEntry, holdings: ReportedCopiesFn<'_>) -> BTreeMap<ClusterName, PruneDigest> {
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
    copies_in: Option<CopiesIn<'a>>,
    members: RefCell<BTreeMap<ClusterName, u64>>,
    fleet: OnceCell<u64>,
}

impl Totals for FleetTotals<'_> {
    fn limit(&self, uid: &RuleUid) -> Limit {
        let of_rule = self.counter.rules.get(uid);
        let limit = of_rule.map_or(Limit::default(), |entry| entry.rule.removal.limit);
        self.ceiling.map_or(limit, |most| limit.capped_at(most))
    }

    fn of_rule(&self, uid: &RuleUid) -> u64 {
        let of_rule = self.counter.rules.get(uid);
        of_rule.map_or(0, |entry| self.counter.all_copies(entry))
    }

    fn of_member(&self, cluster: &ClusterName) -> u64 {
        if let Some(copies_in) = self.copies_in {
            return copies_in(cluster);
        }
        if let Some(known) = self.members.borrow().get(cluster) {
            return *known;
        }
        let copies = |uid: &RuleUid| {
            (self.counter.reported_copies)(uid, cluster).map_or(0, |acked| acked.copies)
        };
        let all = match &self.all_rules {
            Some(all) => all.iter().map(copies).fold(0, u64::saturating_add),
            None => self
                .counter
                .rules
                .uids()
                .map(copies)
                .fold(0, u64::saturating_add),
        };
        self.members.borrow_mut().insert(cluster.clone(), all);
        all
    }

    /// Nothing verifies the count of a member: one member adds no more than all others together.
    fn of_fleet(&self) -> u64 {
        *self.fleet.get_or_init(|| {
            let all: Vec<_> = self
                .counter
                .clusters
                .names()
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
