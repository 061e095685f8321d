//! Limits across rules: per rule, per member cluster and in the fleet.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use runnel_api::Deliberate;
use runnel_proto::model::{ClusterName, RuleUid};

use super::{Cause, DELAY, Item, Limit, TerminatingScopes, WINDOW};
use crate::now::SETTLING;

/// The maximum delay of a removal, as a number of [`DELAY`]s, however many others follow.
const DELAYS: u32 = 5;

/// The removal settings of the `Fleet` object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetTerms {
    /// The limit of the fleet.
    pub fleet: Limit,
    /// The limit of each member cluster.
    pub member: Limit,
    /// Whether deliberate deletes are under the limits, too.
    pub limits_deliberate_deletes: bool,
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
        let removal = &spec.removal_limit;
        let annotations = fleet.and_then(|fleet| fleet.metadata.annotations.as_ref());
        Self {
            fleet: Limit::of(removal.fleet.count, removal.fleet.percent, Limit::FLEET),
            member: Limit::of(removal.member.count, removal.member.percent, Limit::MEMBER),
            limits_deliberate_deletes: removal.deliberate == Deliberate::Hold,
            approve: annotations
                .and_then(|all| all.get(runnel_api::APPROVE))
                .cloned(),
        }
    }
}

/// The removals of one cause in one rule.
#[derive(Clone, Debug)]
pub struct RuleRemovals {
    /// The rule.
    pub uid: RuleUid,
    /// The cause.
    pub cause: Cause,
    /// The removed items.
    pub items: BTreeSet<Item>,
    /// Number of copies, by cluster.
    pub copies: BTreeMap<ClusterName, u64>,
    /// It is blocked independent of the count.
    pub joins: bool,
}

impl RuleRemovals {
    fn copies(&self) -> u64 {
        sum(&self.copies)
    }
}

fn sum(copies: &BTreeMap<ClusterName, u64>) -> u64 {
    copies
        .values()
        .fold(0, |sum, copies| sum.saturating_add(*copies))
}

/// What passed of one rule.
#[derive(Clone)]
struct Passed {
    at: Instant,
    uid: RuleUid,
    copies: BTreeMap<ClusterName, u64>,
    /// A user approved it: it counts for its own cause only.
    approved: Option<Cause>,
}

/// Numbers of copies that add up.
#[derive(Default)]
struct Sums<'a> {
    rules: BTreeMap<&'a RuleUid, u64>,
    members: BTreeMap<&'a ClusterName, u64>,
    fleet: u64,
}

impl<'a> Sums<'a> {
    fn add(&mut self, uid: &'a RuleUid, copies: &'a BTreeMap<ClusterName, u64>) {
        for (cluster, count) in copies {
            for sum in [
                self.rules.entry(uid).or_default(),
                self.members.entry(cluster).or_default(),
                &mut self.fleet,
            ] {
                *sum = sum.saturating_add(*count);
            }
        }
    }

    fn of_rule(&self, uid: &RuleUid) -> u64 {
        self.rules.get(uid).copied().unwrap_or_default()
    }

    fn of_member(&self, cluster: &ClusterName) -> u64 {
        self.members.get(cluster).copied().unwrap_or_default()
    }
}

/// The guard's state across rules.
#[derive(Clone, Default)]
pub struct FleetGuard {
    /// The limits.
    pub terms: FleetTerms,
    /// The limit that rules cannot raise.
    pub ceiling: Option<Limit>,
    /// The scopes that are being deleted.
    pub terminating: TerminatingScopes,
    /// Rules with removals that wait to be judged together.
    waiting: BTreeSet<RuleUid>,
    first: Option<Instant>,
    due: Option<Instant>,
    /// The first judgment of this process.
    began: Option<Instant>,
    /// What passed within [`WINDOW`].
    passed: VecDeque<Passed>,
    all_rules: Option<Arc<[RuleUid]>>,
    /// What changed for rules that do not follow it yet.
    changed: BTreeMap<RuleUid, Cause>,
}

/// The numbers of copies, for limits in percent.
pub trait Totals {
    /// The limit of a rule.
    fn limit(&self, uid: &RuleUid) -> Limit;
    /// Returns the limit and the number of copies of a rule.
    fn of_rule(&self, uid: &RuleUid) -> u64;
    /// Returns the number of copies in a member cluster.
    fn of_member(&self, cluster: &ClusterName) -> u64;
    /// Returns the number of copies in the fleet.
    fn of_fleet(&self) -> u64;
}

impl FleetGuard {
    /// Forgets what passed and what waits: another process decides from now on.
    pub fn reset(&mut self) {
        (self.first, self.due, self.began) = (None, None, None);
        self.waiting.clear();
        self.passed.clear();
        self.changed.clear();
    }

    /// Whether clusters with copies may still connect to this process for the first time.
    pub fn is_starting(&mut self, now: Instant) -> bool {
        now.saturating_duration_since(*self.began.get_or_insert(now)) < SETTLING
    }

    /// Records why rules are to follow a change.
    pub fn set_changed(&mut self, uids: &BTreeSet<RuleUid>, cause: &Cause) {
        let changes = uids.iter().map(|uid| (uid.clone(), cause.clone()));
        self.changed.extend(changes);
    }

    /// Why a rule follows a change now.
    pub fn take_changed(&mut self, uid: &RuleUid) -> Option<Cause> {
        self.changed.remove(uid)
    }

    /// Returns the guard for an index with only some of `all_rules`.
    #[must_use]
    pub fn for_part(&self, all_rules: Arc<[RuleUid]>) -> Self {
        let (terms, passed) = (self.terms.clone(), self.passed.clone());
        Self {
            terms,
            ceiling: self.ceiling,
            terminating: self.terminating.clone(),
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

    /// Returns when pending removals are judged.
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

    /// The causes that are above a limit: all that they would remove is blocked.
    ///
    /// A cause counts with everything that passed within [`WINDOW`]. Causes that are each within
    /// the limits are counted together, because they may be one change. What is blocked counts for
    /// no other cause: it may never go.
    pub fn exceeding(
        &mut self,
        parts: &[RuleRemovals],
        totals: &dyn Totals,
        now: Instant,
    ) -> BTreeSet<Cause> {
        self.passed
            .retain(|passed| now.saturating_duration_since(passed.at) < WINDOW);
        let (mut before, mut approved) = (Sums::default(), BTreeMap::<_, Sums<'_>>::new());
        for passed in &self.passed {
            let sums = match &passed.approved {
                Some(cause) => approved.entry(cause).or_default(),
                None => &mut before,
            };
            sums.add(&passed.uid, &passed.copies);
        }
        let mut causes: BTreeMap<&Cause, (Sums<'_>, Vec<&RuleRemovals>)> = BTreeMap::new();
        for part in parts {
            let (sums, parts) = causes.entry(&part.cause).or_insert_with(|| {
                let sums = approved.remove(&part.cause).unwrap_or_default();
                (sums, Vec::new())
            });
            sums.add(&part.uid, &part.copies);
            parts.push(part);
        }
        let exceeds =
            |part: &RuleRemovals, sums: &Sums<'_>| self.exceeds(part, &before, sums, totals);
        let mut over: BTreeSet<Cause> = causes
            .values()
            .flat_map(|(sums, parts)| parts.iter().filter(|part| exceeds(part, sums)))
            .map(|part| part.cause.clone())
            .collect();
        let (mut together, mut rest) = (Sums::default(), Vec::new());
        for part in parts.iter().filter(|part| !over.contains(&part.cause)) {
            together.add(&part.uid, &part.copies);
            rest.push(part);
        }
        let rest = rest.into_iter().filter(|part| exceeds(part, &together));
        over.extend(rest.map(|part| part.cause.clone()));
        over
    }

    fn exceeds(
        &self,
        part: &RuleRemovals,
        before: &Sums<'_>,
        sums: &Sums<'_>,
        totals: &dyn Totals,
    ) -> bool {
        let in_fleet = || {
            let count = before.fleet.saturating_add(sums.fleet);
            !self.terms.fleet.allows(count, || totals.of_fleet())
        };
        let in_rule = || {
            let count = before
                .of_rule(&part.uid)
                .saturating_add(sums.of_rule(&part.uid));
            let limit = totals.limit(&part.uid);
            !limit.allows(count, || totals.of_rule(&part.uid))
        };
        let in_member = |cluster: &ClusterName| {
            let count = before
                .of_member(cluster)
                .saturating_add(sums.of_member(cluster));
            !self
                .terms
                .member
                .allows(count, || totals.of_member(cluster))
        };
        let mut members = part.copies.iter().filter(|(_, count)| **count > 0);
        part.copies() > 0
            && (part.joins || in_fleet() || in_rule() || members.any(|(name, _)| in_member(name)))
    }

    /// Records removals of a rule that passed by number.
    pub fn record_passed(
        &mut self,
        uid: &RuleUid,
        copies: BTreeMap<ClusterName, u64>,
        now: Instant,
    ) {
        self.record(uid, copies, None, now);
    }

    /// A user approved the removal of so many copies of a rule.
    pub fn record_approved(
        &mut self,
        uid: &RuleUid,
        copies: BTreeMap<ClusterName, u64>,
        cause: Cause,
        now: Instant,
    ) {
        self.record(uid, copies, Some(cause), now);
    }

    /// Whether approved removals count for the rest of their causes.
    pub fn has_approved(&self) -> bool {
        self.passed.iter().any(|passed| passed.approved.is_some())
    }

    /// Forgets the approvals of causes of which nothing is `left` to be judged: what they remove
    /// next is another change.
    pub fn retain_approved(&mut self, left: &BTreeSet<&Cause>) {
        self.passed.retain(|passed| {
            let approved = passed.approved.as_ref();
            approved.is_none_or(|cause| left.contains(cause))
        });
    }

    fn record(
        &mut self,
        uid: &RuleUid,
        copies: BTreeMap<ClusterName, u64>,
        approved: Option<Cause>,
        now: Instant,
    ) {
        if sum(&copies) > 0 {
            self.passed.push_back(Passed {
                at: now,
                uid: uid.clone(),
                copies,
                approved,
            });
        }
    }
}
