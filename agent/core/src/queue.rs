//! Which copies are to be worked on, and when. One run per key at a time; a failing key waits by itself and never
//! delays another.
//!
//! A run that takes longer than [`SLOW`] waits for something that hangs, such as an admission webhook. Its place is given
//! to another run, and its namespace and its rule get no more than [`SHARE`] runs at once until one of theirs is quick
//! again. So what hangs delays the others once, by [`SLOW`]; only with very many such namespaces at once they wait longer.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{RuleUid, SourceRef};

/// A run that has taken so long is slow.
pub const SLOW: Duration = Duration::from_secs(2);
/// How many runs a slow namespace or rule has under way at most when another one begins.
pub const SHARE: usize = 2;
/// Runs under way at most, slow ones included, as a multiple of the limit for the others.
const WITH_SLOW: usize = 4;
/// Namespaces and rules that are remembered as slow without anything under way.
const REMEMBERED: usize = 1000;

/// What one run is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A copy.
    Copy(SourceRef),
    /// A namespace that a rule wants created.
    Namespace(Arc<str>),
    /// A question of the hub by the core's number for it, which is never queued.
    Question(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    Delayed(Instant),
    /// It waits, by this number, for a run of its namespace or rule to end.
    Parked(u64),
    /// Being worked on; the flag says that it changed meanwhile.
    Running(bool),
}

/// What shares a part of the runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Namespace(Arc<str>),
    Rule(RuleUid),
}

/// The runs of a group.
#[derive(Default)]
struct Lane {
    running: usize,
    /// A run under way is slow, or the last one that ended was.
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
    /// What is wanted changed during the run, so its failure says nothing about the next one.
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
    /// The runs that are not slow yet.
    quick: BTreeSet<(Instant, Key)>,
    lanes: BTreeMap<Group, Lane>,
    parked: BTreeMap<u64, (Group, Key)>,
    /// The number of the next key that is parked.
    next: u64,
    /// Keys that were parked since this was last asked.
    newly_parked: Vec<Key>,
}

impl Queue {
    /// Asks for a run of a key. One that waits after a failure goes on waiting.
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

    /// Asks for a run at once and forgets earlier failures: what is wanted has changed.
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

    /// Asks for a run at once, also of a key that waits.
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

    /// Asks for a run no later than this.
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

    /// Takes back what [`Queue::add`] and its siblings asked for; a run that is under way goes on.
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
            // Its place in `ready` is passed over when its turn comes.
            Some((State::Ready, _)) => drop(self.entries.remove(key)),
            None => {}
        }
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

    /// The next key whose time has come, if fewer than `limit` runs are under way that are not slow. `rule_of` names the
    /// rule of a key. The caller runs it and says [`Queue::done`] or [`Queue::failed`].
    pub fn pop(
        &mut self,
        now: Instant,
        limit: usize,
        rule_of: impl Fn(&Key) -> Option<RuleUid>,
    ) -> Option<Key> {
        self.note_slow(now);
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

    /// The keys that wait for a slow namespace or rule since this was last asked.
    pub fn take_parked(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.newly_parked)
    }

    /// Runs that have become slow give their places to others.
    fn note_slow(&mut self, now: Instant) {
        while let Some((since, key)) = self.quick.first()
            && now.saturating_duration_since(*since) >= SLOW
        {
            for group in self.runs.get(key).iter().flat_map(|run| &run.groups) {
                self.lanes.entry(group.clone()).or_default().slow = true;
            }
            self.quick.pop_first();
        }
    }

    /// Notes that a run has ended, and lets those begin that waited for it.
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
            // A key for which there was nothing to do says nothing.
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

    /// A run ended well.
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

    /// Failures in a row of a key, the run that is just ending with a failure included.
    pub fn failures(&self, key: &Key) -> u32 {
        self.entries
            .get(key)
            .map_or(1, |entry| entry.failures.saturating_add(1))
    }

    /// A run failed; the next one is at this time, or at once where what is wanted changed meanwhile.
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

    /// When the next delayed key's time comes, or a run gives its place to a key that is ready.
    pub fn next_due(&self) -> Option<Instant> {
        let delayed = self.delayed.first().map(|(at, _)| *at);
        let slow = self
            .quick
            .first()
            .filter(|_| !self.ready.is_empty())
            .map(|(since, _)| *since + SLOW);
        delayed.into_iter().chain(slow).min()
    }

    /// Keys that are ready, waiting or running.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is nothing to do, now or later.
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
