//! What is no longer wanted, and whether it may go: see [`crate::guard`].
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use kube::CustomResourceExt;
use runnel_api::{ClusterDistributionRule, DistributionRule, PendingApproval};
use runnel_proto::model::{Asked, AskedDigest, ClusterName, DeletionPolicy, RuleName, RuleUid};

use super::{Effect, Index, RuleEntry};
use crate::guard::{
    Cause, FleetTerms, GuardDecision, Item, Limit, Part, RemovalGuard, Totals, approves, digest_of_all,
};
use crate::now::Now;

/// What an agent reported that it holds of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Copies that the rule has, those in namespaces that are no longer targets too.
    pub copies: u64,
    /// Intents.
    pub intents: u64,
    /// The copies in namespaces that are no longer targets and are to go.
    pub prunes: Option<Asked>,
}

/// What is known of what agents hold.
pub type Holdings<'a> = &'a dyn Fn(&RuleUid, &ClusterName) -> Option<Holding>;

/// What waits for approval in the fleet because of one cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PendingCause {
    /// All of it, as one approval; its names are those of the rules.
    pub approval: PendingApproval,
    /// How many rules it concerns.
    pub rules: u64,
}

/// The definition of the kind of a rule.
fn definition_of(rule: &RuleName) -> &'static str {
    if rule.is_cluster_scoped() { ClusterDistributionRule::crd_name() } else { DistributionRule::crd_name() }
}

/// What waits of a rule before a judgement, to tell who must hear of it.
type Before = BTreeMap<RuleUid, Arc<GuardDecision>>;

impl Index {
    /// The index, with a limit that no rule can raise.
    #[must_use]
    pub fn with_ceiling(self, ceiling: Limit) -> Self {
        Self { ceiling: Some(ceiling), ..self }
    }

    /// The `Fleet` object says this now.
    pub fn set_fleet_terms(&mut self, terms: FleetTerms) -> Effect {
        let mut effect = Effect::default();
        if self.guard.terms != terms {
            self.guard.terms = terms;
            effect.judge = self.rules_with_removals();
        }
        effect
    }

    fn rules_with_removals(&self) -> BTreeSet<RuleUid> {
        self.rules.iter().filter(|(_, entry)| entry.guard.is_open()).map(|(uid, _)| uid.clone()).collect()
    }

    /// Forgets what was decided, and which clusters were let in: from now on this process decides, and the rules' statuses
    /// name what is blocked and how far rollouts have come.
    pub fn reset_removal_guards(&mut self) {
        self.guard.reset();
        self.mark_unrendered_stale();
        for entry in self.rules.values_mut() {
            entry.guard = entry.rule.removal.guard();
            entry.gate = None;
            if entry.rule.deleting {
                entry.guard.remove(Item::Rule, Cause::Deleted);
            }
        }
    }

    /// A namespace is being deleted, or no longer is there.
    pub fn set_terminating(&mut self, namespace: &str, terminating: bool) {
        if terminating {
            self.terminating.insert(namespace.to_owned())
        } else {
            self.terminating.remove(namespace)
        };
    }

    /// The definition of a kind of rules is being deleted, or no longer is there: nobody has deleted its rules one by one.
    pub fn set_definition(&mut self, name: &str, terminating: Option<bool>) -> Effect {
        if terminating.unwrap_or(true) {
            self.terminating_definitions.insert(name.to_owned())
        } else {
            self.terminating_definitions.remove(name)
        };
        Effect::default()
    }

    /// The same of several. What cannot be read (`None`) is as it was.
    pub fn set_definitions(&mut self, all: Option<BTreeMap<String, bool>>) -> Effect {
        for (name, terminating) in all.into_iter().flatten() {
            self.set_definition(&name, Some(terminating));
        }
        Effect::default()
    }

    /// Decides about what these rules no longer want: deliberate deletes and approved sets pass at once, all else waits
    /// and is judged together when its time has come ([`Index::next_judgement`]).
    pub fn judge(&mut self, uids: &BTreeSet<RuleUid>, holdings: Holdings<'_>, now: Now) -> Effect {
        let (mut before, mut undone) = (Before::new(), false);
        for uid in uids {
            undone |= self.sort_out(uid, holdings, now, &mut before);
        }
        if undone {
            // What is left of it may be below the limits, and so may what was blocked only with it.
            self.reopen_blocked(now.instant);
        }
        let due = self.guard.take_due(now.instant);
        if !due.is_empty() {
            self.judge_together(due, holdings, now, &mut before);
        }
        self.approve_by_fleet(&mut before);
        self.effect_since(before)
    }

    /// When removals that wait are to be judged.
    pub fn next_judgement(&self) -> Option<Instant> {
        self.guard.due()
    }

    fn sort_out(&mut self, uid: &RuleUid, holdings: Holdings<'_>, now: Now, before: &mut Before) -> bool {
        let Some(mut guard) = self.take_guard(uid) else { return false };
        before.entry(uid.clone()).or_insert_with(|| guard.decision().clone());
        let Some(entry) = self.rules.get(uid) else { return false };
        if is_preview(entry) {
            // It removes nothing. What it no longer wants is judged once the rule is enforced.
            if let Some(entry) = self.rules.get_mut(uid) {
                entry.guard = guard;
            }
            return false;
        }
        let prunes = prunes(entry, holdings);
        guard.set_prunes(&prunes);
        guard.approve(entry.rule.removal.approve.as_deref(), false);
        let mut deliberate = guard.take_deliberate(|item, cause| self.refine(entry, item, cause));
        if deliberate.remove(&Item::Rule) {
            // The deletion of its namespace or its definition may be heard of only now.
            let copies = self.weigh(entry, [&Item::Rule].into_iter(), holdings);
            if copies.values().any(|copies| *copies > 0) && !guard.decision().passes(&Item::Rule) {
                guard.put_back(Item::Rule, Cause::Deleted);
            } else {
                deliberate.insert(Item::Rule);
            }
        }
        guard.pass(deliberate);
        let (undone, is_news) = (guard.take_undone(), guard.take_news());
        if guard.waits() {
            self.guard.wait(uid, is_news, now.instant);
        }
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.guard = guard;
        }
        undone
    }

    /// Takes a rule's guard out for a judgement, which puts it back: a clone would copy all that is blocked.
    fn take_guard(&mut self, uid: &RuleUid) -> Option<RemovalGuard> {
        self.rules.get_mut(uid).map(|entry| std::mem::take(&mut entry.guard))
    }

    fn reopen_blocked(&mut self, now: Instant) {
        for (uid, entry) in &mut self.rules {
            if !entry.guard.blocked().is_empty() && !entry.guard.is_carried() {
                entry.guard.reopen();
            }
            if entry.guard.waits() && !is_preview(entry) {
                self.guard.wait(uid, entry.guard.take_news(), now);
            }
        }
    }

    /// What the deletion of something really comes from.
    fn refine(&self, entry: &RuleEntry, item: &Item, cause: Cause) -> Cause {
        if cause != Cause::Deleted {
            return cause;
        }
        let blocks = self.guard.terms.holds_deliberate;
        match item {
            Item::Rule if self.terminating.contains(&entry.rule.terms.rule.namespace) => Cause::NamespaceDeleted,
            Item::Rule if self.terminating_definitions.contains(definition_of(&entry.rule.terms.rule)) => {
                Cause::DefinitionDeleted
            }
            Item::Rule if entry.rule.removal.on_rule_delete => Cause::LimitedDeletion,
            Item::Source(source) if self.terminating.contains(&*source.namespace) => Cause::NamespaceDeleted,
            _ if blocks => Cause::LimitedDeletion,
            _ => Cause::Deleted,
        }
    }

    /// Judges everything that waits, by cause.
    fn judge_together(&mut self, due: BTreeSet<RuleUid>, holdings: Holdings<'_>, now: Now, before: &mut Before) {
        let mut parts = Vec::new();
        for uid in &due {
            let Some(entry) = self.rules.get_mut(uid).filter(|entry| !is_preview(entry)) else { continue };
            let mut guard = std::mem::take(&mut entry.guard);
            before.entry(uid.clone()).or_insert_with(|| guard.decision().clone());
            let Some(entry) = self.rules.get(uid) else { continue };
            // Only now is it certain where the deletion of a rule comes from.
            let deliberate = guard.take_deliberate(|item, cause| self.refine(entry, item, cause));
            guard.pass(deliberate);
            let joins = guard.is_carried();
            for (cause, items) in guard.take_open() {
                let copies = self.weigh(entry, items.iter(), holdings);
                let joins = joins || cause == Cause::Carried;
                parts.push(Part { uid: uid.clone(), cause, items, copies, joins });
            }
            if let Some(entry) = self.rules.get_mut(uid) {
                entry.guard = guard;
            }
        }
        let mut over = self.exceeding(&parts, holdings, now.instant);
        // What a cause removes besides joins what is blocked of it already: of the same rule, and for a while of others.
        let mut joined = BTreeSet::new();
        for (uid, entry) in &self.rules {
            let is_recent = entry.guard.blocked_lately(now.instant).is_some();
            for cause in entry.guard.blocked_causes() {
                joined.insert((cause, uid.clone()));
                if is_recent && !cause.is_of_rule() {
                    over.insert((cause, None));
                }
            }
        }
        for part in parts {
            let is_over = over.contains(&part.key()) || joined.contains(&(part.cause, part.uid.clone()));
            let is_blocked = is_over && (part.joins || part.copies.values().any(|count| *count > 0));
            self.decide(part, is_blocked, holdings, now);
        }
        for uid in due {
            self.describe(&uid, holdings, now);
        }
    }

    fn exceeding(
        &mut self,
        parts: &[Part],
        holdings: Holdings<'_>,
        now: Instant,
    ) -> BTreeSet<(Cause, Option<RuleUid>)> {
        let mut guard = std::mem::take(&mut self.guard);
        let totals = IndexTotals { index: self, all_rules: guard.all_rules(), holdings, fleet: OnceCell::new() };
        let blocked = self.rules.iter().filter_map(|(uid, entry)| Some((uid, entry.guard.blocked_lately(now)?)));
        let over = guard.exceeding(parts, blocked, &totals, now);
        self.guard = guard;
        over
    }

    fn decide(&mut self, part: Part, is_blocked: bool, holdings: Holdings<'_>, now: Now) {
        // Nobody knows what a cluster holds that has not connected to this process. What passes by an estimate is judged again
        // when the cluster is back.
        let is_away = |item: &Item| {
            let silent = |cluster: &ClusterName| holdings(&part.uid, cluster).is_none() && self.may_have(cluster);
            item.cluster().is_some_and(silent)
        };
        let (away, present): (BTreeSet<Item>, BTreeSet<Item>) = part.items.iter().cloned().partition(is_away);
        let Some(entry) = self.rules.get_mut(&part.uid) else { return };
        if is_blocked {
            entry.guard.block(part.items, part.cause);
        } else {
            let retains = entry.rule.terms.deletion_policy == DeletionPolicy::Retain;
            entry.guard.pass(present);
            if retains {
                entry.guard.pass(away);
            }
            self.guard.record_passed(&part.uid, part.copies, now.instant);
        }
    }

    /// Tells people what of a rule is blocked now. An approval that waited for just this counts.
    fn describe(&mut self, uid: &RuleUid, holdings: Holdings<'_>, now: Now) {
        let Some(mut guard) = self.take_guard(uid) else { return };
        let Some(entry) = self.rules.get(uid) else { return };
        let subject = entry.rule.terms.rule.to_string();
        for _ in 0..2 {
            let copies = self.weigh(entry, guard.blocked().iter(), holdings);
            guard.describe(uid.as_str(), &subject, copies, now);
            if !guard.approve(entry.rule.removal.approve.as_deref(), false) {
                break;
            }
        }
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.guard = guard;
        }
    }

    /// What the annotation of the `Fleet` object approves goes in all its rules.
    fn approve_by_fleet(&mut self, before: &mut Before) {
        let Some(approval) = self.guard.terms.approve.clone() else { return };
        let approved: Vec<_> =
            self.blocked_rules().filter(|(cause, ..)| approves(Some(&approval), &cause.approval.digest)).collect();
        for uid in approved.into_iter().flat_map(|(_, uids)| uids) {
            if let Some(entry) = self.rules.get_mut(&uid) {
                before.entry(uid).or_insert_with(|| entry.guard.decision().clone());
                entry.guard.approve(None, true);
            }
        }
    }

    fn effect_since(&mut self, before: Before) -> Effect {
        let mut effect = Effect::default();
        for (uid, former) in before {
            let Some(entry) = self.rules.get(&uid) else { continue };
            let decision = entry.guard.decision().clone();
            effect.rules.insert(uid.clone());
            if decision == former {
                continue;
            }
            match decision.differing_prunes(&former) {
                // What one cluster may prune is of no interest to the others.
                Some(clusters) => {
                    self.renew(&uid);
                    effect.clusters.extend(clusters);
                }
                None => self.touch(&uid, &mut effect),
            }
            if decision.differs_elsewhere(&former) {
                // Clusters that are no longer chosen hear of it, too.
                effect.clusters.extend(self.clusters.keys().cloned());
            }
        }
        effect
    }

    fn blocked_rules(&self) -> impl Iterator<Item = (PendingCause, Vec<RuleUid>)> {
        let mut causes: BTreeMap<&str, Vec<(&RuleUid, &RuleEntry, &PendingApproval)>> = BTreeMap::new();
        for (uid, entry) in &self.rules {
            if let Some(pending) = entry.guard.pending() {
                causes.entry(&pending.cause).or_default().push((uid, entry, pending));
            }
        }
        causes.into_iter().map(|(cause, rules)| {
            let sum = |of: fn(&PendingApproval) -> i64| {
                rules.iter().map(|(.., pending)| of(pending)).fold(0, i64::saturating_add)
            };
            let approval = PendingApproval {
                digest: digest_of_all(cause, rules.iter().map(|(.., pending)| pending.digest.as_str())),
                cause: cause.to_owned(),
                copies: sum(|pending| pending.copies),
                clusters: rules.iter().map(|(.., pending)| pending.clusters).max().unwrap_or_default(),
                names: rules.iter().take(NAMES).map(|(_, entry, _)| entry.rule.terms.rule.to_string()).collect(),
                since: rules.iter().filter_map(|(.., pending)| pending.since.clone()).min(),
            };
            let uids = rules.iter().map(|(uid, ..)| (*uid).clone()).collect();
            (PendingCause { approval, rules: rules.len() as u64 }, uids)
        })
    }

    /// What waits for approval in the fleet, by cause.
    pub fn pending_causes(&self) -> Vec<PendingCause> {
        self.blocked_rules().map(|(cause, _)| cause).collect()
    }

    /// What of a rule waits for approval.
    pub fn pending_approval(&self, uid: &RuleUid) -> Option<&PendingApproval> {
        self.rules.get(uid)?.guard.pending()
    }

    /// A cluster's agent asks again although its removals passed: they are judged again.
    pub fn prune_again(&mut self, uid: &RuleUid, cluster: &ClusterName) {
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.guard.prune_again(cluster);
        }
    }

    /// Whether a cluster's agent asks about another set of copies than the one that was decided about.
    pub fn prune_differs(&self, uid: &RuleUid, cluster: &ClusterName, holding: Holding) -> bool {
        let digest = holding.prunes.map(|asked| asked.digest);
        self.rules.get(uid).is_some_and(|entry| entry.guard.prune_differs(cluster, digest))
    }

    /// Whether a rule that is being deleted may go: what it has passed the guard.
    pub fn may_go(&self, uid: &RuleUid) -> bool {
        self.rules.get(uid).is_none_or(|entry| entry.guard.decision().passes(&Item::Rule))
    }

    /// How many copies a dry run would remove that the hub would order away, by cluster.
    pub fn planned_removals(&self, uid: &RuleUid, holdings: Holdings<'_>) -> BTreeMap<ClusterName, u64> {
        let entry = self.rules.get(uid).filter(|entry| is_preview(entry));
        entry.map(|entry| self.weigh(entry, entry.guard.open(), holdings)).unwrap_or_default()
    }

    /// Whether removals of a rule wait for approval.
    pub fn is_blocked(&self, uid: &RuleUid) -> bool {
        self.rules.get(uid).is_some_and(|entry| entry.guard.is_blocking())
    }
}

/// Whether a rule is a dry run, which its deletion ends.
fn is_preview(entry: &RuleEntry) -> bool {
    entry.rule.terms.is_dry_run() && !entry.rule.deleting
}

/// How many rules a cause names.
const NAMES: usize = 5;

/// What agents would remove in namespaces that are no longer targets, where the rule goes. What the rule does not go to is
/// judged as a whole.
fn prunes(entry: &RuleEntry, holdings: Holdings<'_>) -> BTreeMap<ClusterName, AskedDigest> {
    if entry.rule.deleting {
        return BTreeMap::new();
    }
    let asked = |cluster: &ClusterName| Some((cluster.clone(), holdings(&entry.rule.uid, cluster)?.prunes?.digest));
    entry.target_clusters.clusters.keys().filter_map(asked).collect()
}

struct IndexTotals<'a> {
    index: &'a Index,
    all_rules: Option<Arc<[RuleUid]>>,
    holdings: Holdings<'a>,
    fleet: OnceCell<u64>,
}

impl Totals for IndexTotals<'_> {
    fn of_rule(&self, uid: &RuleUid) -> (Limit, u64) {
        let Some(entry) = self.index.rules.get(uid) else { return (Limit::default(), 0) };
        let limit = self.index.ceiling.map_or(entry.rule.removal.limit, |most| entry.rule.removal.limit.under(most));
        (limit, self.index.all_copies(entry, self.holdings))
    }

    fn of_member(&self, cluster: &ClusterName) -> u64 {
        let copies = |uid: &RuleUid| (self.holdings)(uid, cluster).map_or(0, |acked| acked.copies);
        match &self.all_rules {
            Some(all) => all.iter().map(copies).fold(0, u64::saturating_add),
            None => self.index.rules.keys().map(copies).fold(0, u64::saturating_add),
        }
    }

    /// Nobody checks what a member counts: one adds no more than all others together.
    fn of_fleet(&self) -> u64 {
        *self.fleet.get_or_init(|| {
            let all: Vec<_> = self.index.clusters.keys().map(|cluster| self.of_member(cluster)).collect();
            let sum = all.iter().copied().fold(0, u64::saturating_add);
            let largest = all.iter().copied().max().unwrap_or_default();
            let others = sum.saturating_sub(largest);
            if all.iter().filter(|copies| **copies > 0).count() > 1 { sum.min(others.saturating_mul(2)) } else { sum }
        })
    }
}
