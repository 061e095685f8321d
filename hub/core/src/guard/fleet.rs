//! What is counted across rules: per rule, per member cluster and in the fleet.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use runnel_api::Deliberate;
use runnel_proto::model::{ClusterName, RuleUid};

use super::{Cause, DELAY, Item, Limit, WINDOW};

/// However much else comes, removals wait for no more than so many delays.
const DELAYS: u32 = 5;

/// The removal settings of the `Fleet` object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetTerms {
    /// The limit of the fleet.
    pub fleet: Limit,
    /// The limit of each member cluster.
    pub member: Limit,
    /// Whether deliberate deletes are under the limits, too.
    pub holds_deliberate: bool,
    /// The digests that its annotation approves.
    pub approve: Option<String>,
}

impl Default for FleetTerms {
    fn default() -> Self {
        Self::of(None)
    }
}

impl FleetTerms {
    /// Reads the object; without one, the defaults.
    pub fn of(fleet: Option<&runnel_api::Fleet>) -> Self {
        let spec = fleet.map(|fleet| fleet.spec.clone()).unwrap_or_default();
        let limit = |count: i64, percent: i64| Limit {
            count: u64::try_from(count).unwrap_or_default(),
            percent: u64::try_from(percent).unwrap_or_default(),
        };
        let removal = &spec.removal_limit;
        let annotations = fleet.and_then(|fleet| fleet.metadata.annotations.as_ref());
        Self {
            fleet: limit(removal.fleet.count, removal.fleet.percent),
            member: limit(removal.member.count, removal.member.percent),
            holds_deliberate: removal.deliberate == Deliberate::Hold,
            approve: annotations
                .and_then(|all| all.get(runnel_api::APPROVE))
                .cloned(),
        }
    }
}

/// What one cause removes of one rule.
#[derive(Clone, Debug)]
pub struct Part {
    /// The rule.
    pub uid: RuleUid,
    /// The cause.
    pub cause: Cause,
    /// The removed items.
    pub items: BTreeSet<Item>,
    /// How many copies that is, by cluster.
    pub copies: BTreeMap<ClusterName, u64>,
    /// It is blocked independent of the count.
    pub joins: bool,
}

impl Part {
    fn copies(&self) -> u64 {
        sum(&self.copies)
    }

    /// The cause, with its rule if each rule has its own.
    pub fn key(&self) -> (Cause, Option<RuleUid>) {
        (
            self.cause,
            self.cause.is_of_rule().then(|| self.uid.clone()),
        )
    }
}

fn sum(copies: &BTreeMap<ClusterName, u64>) -> u64 {
    copies
        .values()
        .fold(0, |sum, copies| sum.saturating_add(*copies))
}

/// The guard's state across rules.
#[derive(Clone, Default)]
pub struct FleetGuard {
    /// The limits.
    pub terms: FleetTerms,
    /// Rules with removals that wait to be judged together.
    waiting: BTreeSet<RuleUid>,
    first: Option<Instant>,
    due: Option<Instant>,
    /// What passed by its count within [`WINDOW`].
    passed: VecDeque<(Instant, RuleUid, BTreeMap<ClusterName, u64>)>,
    all_rules: Option<Arc<[RuleUid]>>,
}

/// How many copies there are, for limits in percent.
pub trait Totals {
    /// Of a rule.
    fn of_rule(&self, uid: &RuleUid) -> (Limit, u64);
    /// In a member cluster.
    fn of_member(&self, cluster: &ClusterName) -> u64;
    /// In the fleet.
    fn of_fleet(&self) -> u64;
}

impl FleetGuard {
    /// Forgets what passed and what waits: another process decides from now on.
    pub fn reset(&mut self) {
        (self.first, self.due) = (None, None);
        self.waiting.clear();
        self.passed.clear();
    }

    /// The same guard in an index that has only some of the rules of the fleet, which are `all_rules`.
    #[must_use]
    pub fn for_part(&self, all_rules: Arc<[RuleUid]>) -> Self {
        let (terms, passed) = (self.terms.clone(), self.passed.clone());
        Self {
            terms,
            passed,
            all_rules: Some(all_rules),
            ..Self::default()
        }
    }

    /// All rules of the fleet, where the index around this has not all of them.
    pub fn all_rules(&self) -> Option<Arc<[RuleUid]>> {
        self.all_rules.clone()
    }

    /// Removals of a rule wait; with news, everything waits a little longer for what else may come.
    pub fn wait(&mut self, uid: &RuleUid, is_news: bool, now: Instant) {
        let is_first = self.waiting.insert(uid.clone());
        let first = *self.first.get_or_insert(now);
        if is_first || is_news || self.due.is_none() {
            self.due = Some((now + DELAY).min(first + DELAYS * DELAY));
        }
    }

    /// When what waits is to be judged.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The rules that are to be judged together now.
    pub fn take_due(&mut self, now: Instant) -> BTreeSet<RuleUid> {
        if self.due.is_none_or(|due| due > now) {
            return BTreeSet::new();
        }
        (self.first, self.due) = (None, None);
        std::mem::take(&mut self.waiting)
    }

    /// The causes that are above a limit: all that they would remove is blocked. `blocked` is what was blocked within
    /// [`WINDOW`].
    pub fn exceeding<'a>(
        &'a mut self,
        parts: &'a [Part],
        blocked: impl Iterator<Item = (&'a RuleUid, &'a BTreeMap<ClusterName, u64>)>,
        totals: &dyn Totals,
        now: Instant,
    ) -> BTreeSet<(Cause, Option<RuleUid>)> {
        self.passed
            .retain(|(at, ..)| now.saturating_duration_since(*at) < WINDOW);
        let (mut rules, mut members, mut fleet) = (BTreeMap::new(), BTreeMap::new(), 0u64);
        let passed = self.passed.iter().map(|(_, uid, copies)| (uid, copies));
        for (uid, copies) in passed
            .chain(blocked)
            .chain(parts.iter().map(|part| (&part.uid, &part.copies)))
        {
            for (cluster, count) in copies {
                for sum in [
                    rules.entry(uid).or_default(),
                    members.entry(cluster).or_default(),
                    &mut fleet,
                ] {
                    *sum = u64::saturating_add(*sum, *count);
                }
            }
        }
        let rule_exceeds = |uid: &RuleUid| {
            let (limit, all) = totals.of_rule(uid);
            !limit.allows(rules.get(uid).copied().unwrap_or_default(), || all)
        };
        let concerned: BTreeSet<_> = parts
            .iter()
            .filter(|part| part.copies() > 0)
            .map(|part| &part.uid)
            .collect();
        let rules_over: BTreeSet<_> = concerned
            .into_iter()
            .filter(|uid| rule_exceeds(uid))
            .collect();
        let member_exceeds = |cluster: &ClusterName, count: u64| {
            !self
                .terms
                .member
                .allows(count, || totals.of_member(cluster))
        };
        let members_over: BTreeSet<_> = members
            .iter()
            .filter(|(cluster, count)| member_exceeds(cluster, **count))
            .map(|(name, _)| *name)
            .collect();
        let fleet_over = !self.terms.fleet.allows(fleet, || totals.of_fleet());
        let is_over = |part: &&Part| {
            let in_member = || {
                part.copies
                    .iter()
                    .any(|(name, count)| *count > 0 && members_over.contains(name))
            };
            part.copies() > 0
                && (part.joins || fleet_over || rules_over.contains(&part.uid) || in_member())
        };
        parts.iter().filter(is_over).map(Part::key).collect()
    }

    /// So many copies of a rule pass by their count.
    pub fn record_passed(
        &mut self,
        uid: &RuleUid,
        copies: BTreeMap<ClusterName, u64>,
        now: Instant,
    ) {
        if sum(&copies) > 0 {
            self.passed.push_back((now, uid.clone(), copies));
        }
    }
}
