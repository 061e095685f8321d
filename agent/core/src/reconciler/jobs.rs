//! The jobs: the queue of due keys, the jobs under way, and their limits. One run per key at a time.
//! A failing key waits alone and never delays another key.
//!
//! A run longer than [`SLOW`] usually waits for something that hangs, such as an admission webhook.
//! It no longer counts against the limit of runs. Its namespace and its rule then get at most
//! [`SHARE`] runs at once, until one of their runs is quick again. So a hanging webhook delays
//! other keys once, by [`SLOW`]. They wait longer only if very many namespaces hang at once.
#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{DriftPolicy, Reason, Revision, RuleName, RuleUid, SourceRef};

use super::PARALLEL;
use super::payloads::{InflightBudget, Payloads, ROOM_BYTES};
use super::phases::Phases;
use super::polls::Polls;
use super::watches::Watches;
use crate::backoff::{COPY, Jitter, RECHECK, UNAVAILABLE};
use crate::copy::{CopyError, IntentKey};
use crate::decide::{Action, DesiredCopy, DesiredObject, Key, Limits, Recreate, WantedCopy, Work};
use crate::delete_limit;
use crate::delete_limit::Deletes;
use crate::policy::Policy;
use crate::records::{Observed, Records, Usage};

/// Limit of the stored decisions. Copies beyond it are decided again when their jobs start.
const DECISIONS_LIMIT: usize = 4096;

/// The decision about a queued copy.
pub(super) struct QueuedDecision {
    pub(super) desired: DesiredCopy,
    pub(super) action: Action,
    /// The number of the last wide event before the decision.
    epoch: u64,
}

/// A job under way.
pub(super) struct RunningJob {
    /// The desired state that the job carries out, unless an event has concerned the copy since.
    pub(super) want: Option<DesiredCopy>,
    /// The number of the last wide event before the job.
    pub(super) epoch: u64,
    pub(super) target: (IntentKey, Option<Revision>),
    /// The versions that the watch has delivered since the job began; `None` for a deletion.
    pub(super) received: Vec<Option<Arc<str>>>,
    /// Whether the job corrects a copy that was correct before.
    pub(super) drift: bool,
    /// The other field managers of the object before the job, if they are known.
    pub(super) others: Option<Arc<str>>,
    pub(super) rule: RuleName,
    /// Whether the job deletes the object, or may have to.
    pub(super) deletes: bool,
    /// Whether the job carries out a removal.
    pub(super) removes: bool,
    /// Whether the job takes over an object of others, with any content.
    pub(super) overwrites: bool,
    pub(super) adds: Usage,
}

impl RunningJob {
    /// Whether the watch has delivered a version that is neither the result of the job nor older
    /// than that.
    pub(super) fn has_unexplained_version(&self, observed: &Observed, passed: &[Arc<str>]) -> bool {
        self.received
            .iter()
            .any(|received| match (received, observed) {
                (Some(version), Observed::Live(live)) => {
                    *version != live.version && !passed.contains(version)
                }
                (Some(version), _) => !passed.contains(version),
                (None, Observed::Live(_)) => true,
                (None, _) => false,
            })
    }
}

/// The jobs of the agent.
pub(super) struct Jobs {
    pub(super) queue: Queue,
    pub(super) running: BTreeMap<SourceRef, RunningJob>,
    /// Copies to be read again: the result of a job and the events of the watch do not match.
    pub(super) reread: BTreeSet<SourceRef>,
    /// The copies that are read at intervals.
    pub(super) polls: Polls,
    /// The size of the payloads that wait to be applied.
    pub(super) budget: InflightBudget,
    budget_limit: usize,
    /// The copies under way of rules with kinds of several phases.
    pub(super) phases: Phases,
    jitter: Jitter,
    pub(super) namespace_failed: BTreeMap<Arc<str>, CopyError>,
    /// The deletions of the last hour.
    pub(super) deletes: Deletes,
    /// The policy and the namespace of the agent, for the jobs.
    pub(super) limits: Limits,
    /// Whether this agent is the active one of its cluster.
    pub(super) active: bool,
    /// The decisions about queued copies, unless an event has concerned the copy since.
    decisions: BTreeMap<SourceRef, QueuedDecision>,
    /// The number of wide events: events that may concern any copy.
    pub(super) epoch: u64,
}

impl Jobs {
    pub(super) fn new(limits: Limits, seed: u64) -> Self {
        Self {
            queue: Queue::default(),
            running: BTreeMap::new(),
            reread: BTreeSet::new(),
            polls: Polls::default(),
            budget: InflightBudget::default(),
            budget_limit: ROOM_BYTES,
            phases: Phases::default(),
            jitter: Jitter::new(seed),
            namespace_failed: BTreeMap::new(),
            deletes: Deletes::default(),
            limits,
            active: true,
            decisions: BTreeMap::new(),
            epoch: 0,
        }
    }

    /// Outdates all earlier decisions, because an event may concern any copy.
    pub(super) fn outdate_decisions(&mut self) {
        self.epoch += 1;
    }

    /// Outdates the decision about a copy. Returns whether a job for it is under way.
    pub(super) fn touch(&mut self, copy: &SourceRef) -> bool {
        self.decisions.remove(copy);
        let job = self.running.get_mut(copy);
        job.map(|job| job.want = None).is_some()
    }

    /// Stores the decision about a copy, if it is queued, for the start of its job.
    pub(super) fn keep_decision(&mut self, copy: &SourceRef, want: DesiredCopy, action: Action) {
        let key = Key::Copy(copy.clone());
        if self.decisions.len() < DECISIONS_LIMIT && self.queue.contains(&key) {
            let epoch = self.epoch;
            let decided = QueuedDecision {
                desired: want,
                action,
                epoch,
            };
            self.decisions.insert(copy.clone(), decided);
        }
    }

    /// Takes the decision about a copy, if it still holds.
    pub(super) fn take_decision(&mut self, copy: &SourceRef) -> Option<QueuedDecision> {
        self.decisions
            .remove(copy)
            .filter(|decided| decided.epoch == self.epoch)
    }

    /// Sets the policy for the next jobs.
    pub(super) fn set_policy(&mut self, policy: Arc<Policy>) {
        self.limits.policy = policy;
    }

    /// Sets the limit of the payloads that wait to be applied, in bytes.
    pub(super) fn set_budget(&mut self, bytes: usize) {
        self.budget_limit = bytes;
    }

    /// Whether the budget has room for more payloads.
    pub(super) fn has_room(&self) -> bool {
        self.budget.bytes() <= self.budget_limit
    }

    /// Returns the next key that is due, while fewer than [`PARALLEL`] jobs are under way. Only the
    /// active agent gets one.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        rule_of: impl Fn(&SourceRef) -> Option<RuleUid>,
    ) -> Option<Key> {
        let limit = if self.active { PARALLEL } else { 0 };
        if self.active
            && let Some(copy) = self.polls.take_due(now)
        {
            self.queue.add(&Key::Copy(copy));
        }
        let key = self.queue.pop(now, limit, |key| match key {
            Key::Copy(copy) => rule_of(copy),
            Key::Namespace(_) | Key::Question(_) => None,
        });
        // Copies behind a slow namespace or rule must not delay the stream of the hub.
        for parked in self.queue.take_parked() {
            if let Key::Copy(copy) = parked {
                self.leave(&copy);
            }
        }
        key
    }

    /// Removes the job of a copy that has ended. Its desired state remains only if no event has
    /// concerned the copy since.
    pub(super) fn finish(&mut self, copy: &SourceRef) -> Option<RunningJob> {
        let mut job = self.running.remove(copy)?;
        if job.epoch != self.epoch {
            job.want = None;
        }
        Some(job)
    }

    /// Removes a copy from the queue, the budget and its phase.
    pub(super) fn cancel(&mut self, copy: &SourceRef) {
        self.cancel_queued(copy);
        self.leave(copy);
    }

    /// Removes a copy from the queue.
    pub(super) fn cancel_queued(&mut self, copy: &SourceRef) {
        self.decisions.remove(copy);
        self.queue.cancel(&Key::Copy(copy.clone()));
    }

    /// Records that a copy is written or removed for a rule with kinds of several phases.
    pub(super) fn enter_phase(&mut self, copy: &SourceRef, rule: &RuleUid, removes: bool) {
        let released = self.phases.enter(copy, rule, removes);
        self.release(released);
    }

    /// Records that a copy is not under way any more.
    pub(super) fn leave(&mut self, copy: &SourceRef) {
        self.budget.leave(copy);
        self.leave_phase(copy);
    }

    /// Records that other copies of its rule do not wait for a copy any more.
    pub(super) fn leave_phase(&mut self, copy: &SourceRef) {
        let released = self.phases.leave(copy);
        self.release(released);
    }

    fn release(&mut self, copies: Vec<SourceRef>) {
        for copy in copies {
            self.queue.add_now(&Key::Copy(copy));
        }
    }

    /// Resets the failures of a copy, because its desired state has changed.
    pub(super) fn add_fresh(&mut self, copy: &SourceRef) {
        self.queue.add_fresh(&Key::Copy(copy.clone()));
    }

    /// Queues a copy after a delay, because no event reports that it has room. This reads nothing.
    pub(super) fn recheck(&mut self, copy: &SourceRef, now: Instant) {
        let delay = RECHECK.jittered(u32::MAX, self.jitter.draw());
        self.queue.add_at(&Key::Copy(copy.clone()), now + delay);
    }

    /// Schedules a read of a copy, because no event reports the change that it waits for.
    pub(super) fn poll(&mut self, copy: &SourceRef, now: Instant) {
        self.polls.add(copy, self.jitter.draw(), now);
    }

    /// Delays the next try after a failure, at least for as long as the API server asks.
    pub(super) fn retry(
        &mut self,
        key: &Key,
        copy_error: &CopyError,
        after: Option<Duration>,
        now: Instant,
    ) {
        let backoff = match copy_error.reason {
            Reason::Conflict
            | Reason::Forbidden
            | Reason::KindNotServed
            | Reason::NotEmpty
            | Reason::NamespaceTerminating
            | Reason::WaitingForDependency => RECHECK,
            Reason::Unavailable | Reason::WebhookUnavailable => UNAVAILABLE,
            _ => COPY,
        };
        let delay = backoff.jittered(self.queue.failures(key), self.jitter.draw());
        self.queue
            .failed(key, now + delay.max(after.unwrap_or_default()), now);
    }

    /// Records an event of a watch for the job that is under way for the copy.
    pub(super) fn record_event(&mut self, copy: &SourceRef, version: Option<Arc<str>>) {
        if let Some(job) = self.running.get_mut(copy) {
            job.received.push(version);
        }
    }

    /// Returns when an action may delete a copy, if not now. The policy limits the deletions per
    /// hour, also after a revocation.
    pub(super) fn delete_later(&mut self, action: &Action, now: Instant) -> Option<Instant> {
        if !matches!(action, Action::Delete(_)) {
            return None;
        }
        self.next_delete(now)
    }

    /// Returns when the next copy may be deleted; `None` means at once.
    fn next_delete(&mut self, now: Instant) -> Option<Instant> {
        let under_way = self.running.values().filter(|job| job.deletes).count();
        let limit = self.limits.policy.deletes_per_hour;
        self.deletes.not_before(limit, under_way, now)
    }

    /// Returns the error of a deletion that waits for the limit.
    pub(super) fn delete_limit(&self) -> CopyError {
        delete_limit::waits(self.limits.policy.deletes_per_hour)
    }

    /// Whether a copy must be read before an order for it is dropped.
    ///
    /// A watch may show a deleted object, and hide the copy that replaced it. Only an answer of the
    /// API server ends an order.
    pub(super) fn must_read(
        &mut self,
        copy: &SourceRef,
        records: &Records,
        watches: &Watches,
    ) -> bool {
        if records.is_only_watched(copy) && watches.is_complete(copy) {
            self.reread.insert(copy.clone());
        }
        self.reread.contains(copy)
    }

    /// Returns the work that carries out an action; `None` if its content is missing.
    pub(super) fn work(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        action: Action,
        payloads: &mut Payloads,
        records: &Records,
        now: Instant,
    ) -> Option<Work> {
        let mut body = |wanted: &WantedCopy| self.body(copy, wanted, payloads, records, now);
        Some(match (action, want) {
            (Action::Create, DesiredCopy::Copy(wanted)) => Work::Create(body(wanted)?),
            (Action::Change(target), DesiredCopy::Copy(wanted)) => {
                Work::Change(target, body(wanted)?)
            }
            (Action::Adopt(target), DesiredCopy::Copy(wanted)) => {
                Work::Adopt(target, body(wanted)?)
            }
            (Action::Overwrite(target), DesiredCopy::Copy(wanted)) => {
                Work::Overwrite(target, body(wanted)?)
            }
            (Action::Compare(target), DesiredCopy::Copy(wanted)) => {
                Work::Compare(target, body(wanted)?)
            }
            (Action::Demote(target), _) => Work::Demote(target),
            (Action::Delete(target), _) => Work::Delete(target),
            (Action::Retain(target), DesiredCopy::Absent(_, rule, _)) => {
                Work::Retain(target, rule.clone())
            }
            _ => return None,
        })
    }

    fn body(
        &mut self,
        copy: &SourceRef,
        wanted: &WantedCopy,
        payloads: &mut Payloads,
        records: &Records,
        now: Instant,
    ) -> Option<DesiredObject> {
        let revision = wanted.revision?;
        let content = payloads.source(copy, &wanted.intent, &revision, records)?;
        let recreate = if !wanted.policies.recreate {
            Recreate::No
        } else if self.next_delete(now).is_some() {
            Recreate::Later(self.limits.policy.deletes_per_hour)
        } else {
            Recreate::Yes
        };
        // The newest version keeps its number even if its label was lost.
        let number = records.live(copy).map_or(0, |live| live.number);
        Some(DesiredObject {
            intent: wanted.intent.clone(),
            rule: wanted.rule.clone(),
            revision,
            content,
            ignored: wanted.policies.ignored.clone(),
            version: wanted.policies.version.map(|least| least.max(number)),
            recreate,
            dry_run: wanted.dry_run,
            reports_drift: wanted.policies.drift == DriftPolicy::Report,
            limits: self.limits.clone(),
        })
    }

    /// Returns the intents with a removal under way.
    pub(super) fn removals(&self) -> BTreeSet<IntentKey> {
        self.running
            .values()
            .filter(|job| job.removes)
            .map(|job| job.target.0.clone())
            .collect()
    }
}

/// Duration after which a run is slow.
pub const SLOW: Duration = Duration::from_secs(2);
/// Limit of the runs of a slow namespace or rule. A new run starts only below this limit.
pub const SHARE: usize = 2;
/// Limit of all runs, including slow ones, as a multiple of the limit for the others.
const WITH_SLOW: usize = 4;
/// Limit of the lanes, beyond which slow lanes without runs are dropped.
const REMEMBERED: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    Delayed(Instant),
    /// The key waits for a run of its namespace or rule to end. The number orders the parked keys.
    Parked(u64),
    /// A run is under way. The flag: the key was added again during the run.
    Running(bool),
}

/// A group of keys with a common limit of runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Namespace(Arc<str>),
    Rule(RuleUid),
}

/// The state of a group.
#[derive(Default)]
struct Lane {
    running: usize,
    /// Whether a run under way is slow, or the last run that ended was slow.
    slow: bool,
    parked: BTreeSet<u64>,
}

impl Lane {
    fn is_full(&self) -> bool {
        self.slow && self.running >= SHARE
    }
}

/// A run under way.
struct Run {
    since: Instant,
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug)]
struct QueueEntry {
    state: State,
    failures: u32,
    /// The desired state changed during the run, so that its failure does not delay the next run.
    fresh: bool,
}

impl QueueEntry {
    fn new(state: State) -> Self {
        Self {
            state,
            failures: 0,
            fresh: false,
        }
    }
}

/// A queue of distinct keys.
#[derive(Default)]
pub struct Queue {
    entries: BTreeMap<Key, QueueEntry>,
    ready: VecDeque<Key>,
    delayed: BTreeSet<(Instant, Key)>,
    runs: BTreeMap<Key, Run>,
    /// The runs that are not slow yet, by their start.
    quick: BTreeSet<(Instant, Key)>,
    lanes: BTreeMap<Group, Lane>,
    parked: BTreeMap<u64, (Group, Key)>,
    /// The number for the next parked key.
    next: u64,
    /// The keys that were parked since the last [`Queue::take_parked`].
    newly_parked: Vec<Key>,
}

impl Queue {
    /// Adds a key. A key that waits after a failure keeps its delay.
    pub fn add(&mut self, key: &Key) {
        match self.entries.get_mut(key) {
            None => {
                self.entries
                    .insert(key.clone(), QueueEntry::new(State::Ready));
                self.ready.push_back(key.clone());
            }
            Some(entry) => {
                if let State::Running(_) = entry.state {
                    entry.state = State::Running(true);
                }
            }
        }
    }

    /// Adds a key, ends its delay and resets its failures, because the desired state has changed.
    pub fn add_fresh(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return self.add(key);
        };
        entry.failures = 0;
        match entry.state {
            State::Ready | State::Parked(_) => {}
            State::Running(_) => {
                entry.state = State::Running(true);
                entry.fresh = true;
            }
            State::Delayed(at) => {
                entry.state = State::Ready;
                self.delayed.remove(&(at, key.clone()));
                self.ready.push_back(key.clone());
            }
        }
    }

    /// Adds a key and ends its delay. It keeps the number of failures.
    pub fn add_now(&mut self, key: &Key) {
        match self.entries.get_mut(key) {
            Some(entry) => {
                if let State::Delayed(at) = entry.state {
                    entry.state = State::Ready;
                    self.delayed.remove(&(at, key.clone()));
                    self.ready.push_back(key.clone());
                } else {
                    self.add(key);
                }
            }
            None => self.add(key),
        }
    }

    /// Adds a key with a delay that ends at `at`, or shortens its delay.
    pub fn add_at(&mut self, key: &Key, at: Instant) {
        match self.entries.get_mut(key) {
            None => {
                self.entries
                    .insert(key.clone(), QueueEntry::new(State::Delayed(at)));
                self.delayed.insert((at, key.clone()));
            }
            Some(entry) => {
                if let State::Delayed(earlier) = entry.state
                    && at < earlier
                {
                    entry.state = State::Delayed(at);
                    self.delayed.remove(&(earlier, key.clone()));
                    self.delayed.insert((at, key.clone()));
                }
            }
        }
    }

    /// Removes a key that has no run under way. A run under way continues, but is not repeated.
    pub fn cancel(&mut self, key: &Key) {
        match self.entries.get_mut(key).map(|entry| (entry.state, entry)) {
            Some((State::Running(_), entry)) => entry.state = State::Running(false),
            Some((State::Delayed(at), _)) => {
                self.delayed.remove(&(at, key.clone()));
                self.entries.remove(key);
            }
            Some((State::Parked(number), _)) => {
                self.unpark(number);
                self.entries.remove(key);
            }
            // `pop` skips its entry in `ready`.
            Some((State::Ready, _)) => drop(self.entries.remove(key)),
            None => {}
        }
    }

    /// Whether the queue has a key, or a run of it is under way.
    pub fn contains(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// Returns the next key that is due, while fewer than `limit` runs are under way that are not
    /// slow.
    ///
    /// `rule_of` returns the rule of a key. The caller runs the key and then calls [`Queue::done`]
    /// or [`Queue::failed`].
    pub fn pop(
        &mut self,
        now: Instant,
        limit: usize,
        rule_of: impl Fn(&Key) -> Option<RuleUid>,
    ) -> Option<Key> {
        self.record_slow(now);
        if self.quick.len() >= limit || self.runs.len() >= limit * WITH_SLOW {
            return None;
        }
        while let Some((at, key)) = self.delayed.first()
            && *at <= now
        {
            let (at, key) = (*at, key.clone());
            self.delayed.remove(&(at, key.clone()));
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.state = State::Ready;
            }
            self.ready.push_back(key);
        }
        while let Some(key) = self.ready.pop_front() {
            let Some(entry) = self
                .entries
                .get_mut(&key)
                .filter(|entry| entry.state == State::Ready)
            else {
                continue;
            };
            let groups = groups(&key, rule_of(&key));
            let full = groups
                .iter()
                .find(|group| self.lanes.get(*group).is_some_and(Lane::is_full));
            if let Some(group) = full {
                let number = self.next;
                self.next += 1;
                entry.state = State::Parked(number);
                self.lanes
                    .entry(group.clone())
                    .or_default()
                    .parked
                    .insert(number);
                self.parked.insert(number, (group.clone(), key.clone()));
                self.newly_parked.push(key);
                continue;
            }
            entry.state = State::Running(false);
            for group in &groups {
                self.lanes.entry(group.clone()).or_default().running += 1;
            }
            self.quick.insert((now, key.clone()));
            self.runs.insert(key.clone(), Run { since: now, groups });
            return Some(key);
        }
        None
    }

    /// Returns the keys that were parked behind a slow namespace or rule since the last call.
    pub fn take_parked(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.newly_parked)
    }

    /// Marks the groups of runs that have become slow. Such runs no longer count as quick.
    fn record_slow(&mut self, now: Instant) {
        while let Some((since, key)) = self.quick.first()
            && now.saturating_duration_since(*since) >= SLOW
        {
            for group in self.runs.get(key).iter().flat_map(|run| &run.groups) {
                self.lanes.entry(group.clone()).or_default().slow = true;
            }
            self.quick.pop_first();
        }
    }

    /// Records the end of a run, and makes parked keys of its groups ready.
    fn ended(&mut self, key: &Key, now: Instant) {
        let Some(run) = self.runs.remove(key) else {
            return;
        };
        self.quick.remove(&(run.since, key.clone()));
        let took = now.saturating_duration_since(run.since);
        for group in run.groups {
            let Some(lane) = self.lanes.get_mut(&group) else {
                continue;
            };
            lane.running = lane.running.saturating_sub(1);
            // A run of zero duration had nothing to do, and does not show that the group is quick.
            if !took.is_zero() {
                lane.slow = took >= SLOW;
            }
            let free = if lane.slow {
                SHARE.saturating_sub(lane.running)
            } else {
                lane.parked.len()
            };
            let next: Vec<u64> = lane.parked.iter().take(free).copied().collect();
            let is_idle = lane.running == 0 && lane.parked.is_empty();
            for number in next.into_iter().rev() {
                let Some(key) = self.unpark(number) else {
                    continue;
                };
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.state = State::Ready;
                }
                self.ready.push_front(key);
            }
            let is_slow = self.lanes.get(&group).is_some_and(|lane| lane.slow);
            if is_idle && (!is_slow || self.lanes.len() > REMEMBERED) {
                self.lanes.remove(&group);
            }
        }
    }

    fn unpark(&mut self, number: u64) -> Option<Key> {
        let (group, key) = self.parked.remove(&number)?;
        if let Some(lane) = self.lanes.get_mut(&group) {
            lane.parked.remove(&number);
        }
        Some(key)
    }

    /// Records the success of a run.
    pub fn done(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let State::Running(again) = entry.state else {
            return;
        };
        if again {
            *entry = QueueEntry::new(State::Ready);
            self.ready.push_back(key.clone());
        } else {
            self.entries.remove(key);
        }
        self.ended(key, now);
    }

    /// Records the success of a read between two tries of a key: it runs again at once, and its failures count on.
    pub fn read(&mut self, key: &Key, now: Instant) {
        let before = self.entries.get(key).filter(|entry| !entry.fresh);
        let failures = before.map_or(0, |entry| entry.failures);
        self.add(key);
        self.done(key, now);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.failures = failures;
        }
    }

    /// Returns the number of failures in a row of a key, including the run that is just ending with
    /// a failure.
    pub fn failures(&self, key: &Key) -> u32 {
        self.entries
            .get(key)
            .map_or(1, |entry| entry.failures.saturating_add(1))
    }

    /// Records the failure of a run. The next run is at `next`, or at once if the desired state
    /// changed during the run.
    pub fn failed(&mut self, key: &Key, next: Instant, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if !matches!(entry.state, State::Running(_)) {
            return;
        }
        if entry.fresh {
            *entry = QueueEntry::new(State::Ready);
            self.ready.push_back(key.clone());
        } else {
            *entry = QueueEntry {
                state: State::Delayed(next),
                failures: entry.failures.saturating_add(1),
                fresh: false,
            };
            self.delayed.insert((next, key.clone()));
        }
        self.ended(key, now);
    }

    /// Returns when the next delay ends, or when a slow run makes room for a ready key.
    pub fn next_due(&self) -> Option<Instant> {
        let delayed = self.delayed.first().map(|(at, _)| *at);
        let slow = self
            .quick
            .first()
            .filter(|_| !self.ready.is_empty())
            .map(|(since, _)| *since + SLOW);
        delayed.into_iter().chain(slow).min()
    }

    /// Whether the queue has no key.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn groups(key: &Key, rule: Option<RuleUid>) -> Vec<Group> {
    let namespace = match key {
        Key::Copy(copy) => Some(copy.namespace.clone()),
        Key::Namespace(name) => Some(name.clone()),
        Key::Question(_) => None,
    };
    namespace
        .map(Group::Namespace)
        .into_iter()
        .chain(rule.map(Group::Rule))
        .collect()
}
