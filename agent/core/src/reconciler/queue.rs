//! The work queue: which keys are due, and when. One run per key at a time. A failing key waits
//! alone and never delays another key.
//!
//! A run longer than [`SLOW`] usually waits for something that hangs, such as an admission webhook.
//! It no longer counts against the limit of runs. Its namespace and its rule then get at most
//! [`SHARE`] runs at once, until one of their runs is quick again. So a hanging webhook delays
//! other keys once, by [`SLOW`]. They wait longer only if very many namespaces hang at once.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{RuleUid, SourceRef};

/// Duration after which a run is slow.
pub const SLOW: Duration = Duration::from_secs(2);
/// Limit of the runs of a slow namespace or rule. A new run starts only below this limit.
pub const SHARE: usize = 2;
/// Limit of all runs, including slow ones, as a multiple of the limit for the others.
const WITH_SLOW: usize = 4;
/// Limit of the lanes, beyond which slow lanes without runs are dropped.
const REMEMBERED: usize = 1000;

/// The key of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A copy.
    Copy(SourceRef),
    /// A namespace that the agent creates for a rule.
    Namespace(Arc<str>),
    /// A request of the hub, by the number that the core gave it. Such a key is never queued.
    Question(u64),
}

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
struct Entry {
    state: State,
    failures: u32,
    /// The desired state changed during the run, so that its failure does not delay the next run.
    fresh: bool,
}

impl Entry {
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
    entries: BTreeMap<Key, Entry>,
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
                self.entries.insert(key.clone(), Entry::new(State::Ready));
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
                    .insert(key.clone(), Entry::new(State::Delayed(at)));
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

    /// Whether a run of this key is under way.
    pub fn is_running(&self, key: &Key) -> bool {
        matches!(
            self.entries.get(key),
            Some(Entry {
                state: State::Running(_),
                ..
            })
        )
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
            *entry = Entry::new(State::Ready);
            self.ready.push_back(key.clone());
        } else {
            self.entries.remove(key);
        }
        self.ended(key, now);
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
            *entry = Entry::new(State::Ready);
            self.ready.push_back(key.clone());
        } else {
            *entry = Entry {
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

    /// Returns the number of keys that are ready, delayed, parked or running.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the queue has no key.
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

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
