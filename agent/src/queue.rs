//! Which copies are to be worked on, and when. One run per key at a time; a failing key waits by itself and never
//! delays another.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{RuleUid, SourceRef};

/// What one run is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A copy.
    Copy(SourceRef),
    /// A namespace that a rule wants created.
    Namespace(Arc<str>),
    /// What is kept of a rule, to be forgotten.
    Kept(RuleUid),
    /// A question of the hub by the core's number for it, which is never queued.
    Question(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    Delayed(Instant),
    /// Being worked on; the flag says that it changed meanwhile.
    Running(bool),
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
        Self { state, failures: 0, fresh: false }
    }
}

/// A queue of distinct keys.
#[derive(Default)]
pub struct Queue {
    entries: BTreeMap<Key, Entry>,
    ready: VecDeque<Key>,
    delayed: BTreeSet<(Instant, Key)>,
    running: usize,
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
        let Some(entry) = self.entries.get_mut(key) else { return self.add(key) };
        entry.failures = 0;
        match entry.state {
            State::Ready => {}
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
                self.entries.insert(key.clone(), Entry::new(State::Delayed(at)));
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
            // Its place in `ready` is passed over when its turn comes.
            Some((State::Ready, _)) => drop(self.entries.remove(key)),
            None => {}
        }
    }

    /// Whether a run of this key is under way.
    pub fn is_running(&self, key: &Key) -> bool {
        matches!(self.entries.get(key), Some(Entry { state: State::Running(_), .. }))
    }

    /// The next key whose time has come, if fewer than `limit` runs are under way. The caller runs it and says
    /// [`Queue::done`] or [`Queue::failed`].
    pub fn pop(&mut self, now: Instant, limit: usize) -> Option<Key> {
        if self.running >= limit {
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
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.state == State::Ready
            {
                entry.state = State::Running(false);
                self.running += 1;
                return Some(key);
            }
        }
        None
    }

    /// A run ended well.
    pub fn done(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let State::Running(again) = entry.state else { return };
        self.running -= 1;
        if again {
            *entry = Entry::new(State::Ready);
            self.ready.push_back(key.clone());
        } else {
            self.entries.remove(key);
        }
    }

    /// Failures in a row of a key, the run that is just ending with a failure included.
    pub fn failures(&self, key: &Key) -> u32 {
        self.entries.get(key).map_or(1, |entry| entry.failures.saturating_add(1))
    }

    /// A run failed; the next one is at this time, or at once where what is wanted changed meanwhile.
    pub fn failed(&mut self, key: &Key, next: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if !matches!(entry.state, State::Running(_)) {
            return;
        }
        self.running -= 1;
        if entry.fresh {
            *entry = Entry::new(State::Ready);
            self.ready.push_back(key.clone());
            return;
        }
        *entry = Entry { state: State::Delayed(next), failures: entry.failures.saturating_add(1), fresh: false };
        self.delayed.insert((next, key.clone()));
    }

    /// When the next delayed key's time comes.
    pub fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn key(name: &str) -> Key {
        Key::Copy(SourceRef::new("configmaps", "a", name))
    }

    #[test]
    fn a_key_runs_once_at_a_time_and_again_if_it_changed_meanwhile() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(&key("x"));
        queue.add(&key("x"));
        assert_eq!(queue.pop(now, 8), Some(key("x")));
        assert_eq!(queue.pop(now, 8), None);
        queue.add(&key("x"));
        assert_eq!(queue.pop(now, 8), None);
        queue.done(&key("x"));
        assert_eq!(queue.pop(now, 8), Some(key("x")));
        queue.done(&key("x"));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_failing_key_waits_alone_and_a_change_of_what_is_wanted_ends_the_wait() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        queue.add(&key("bad"));
        queue.add(&key("good"));
        assert_eq!(queue.pop(now, 1), Some(key("bad")));
        assert_eq!(queue.failures(&key("bad")), 1);
        queue.failed(&key("bad"), later);
        assert_eq!(queue.pop(now, 1), Some(key("good")));
        queue.done(&key("good"));
        queue.add(&key("bad"));
        assert_eq!(queue.pop(now, 1), None);
        assert_eq!(queue.failures(&key("bad")), 2);
        assert_eq!(queue.next_due(), Some(later));
        queue.add_fresh(&key("bad"));
        assert_eq!(queue.pop(now, 1), Some(key("bad")));
        assert_eq!(queue.failures(&key("bad")), 1);
    }

    #[test]
    fn a_cancelled_key_does_not_run() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(&key("a"));
        queue.add_at(&key("b"), now);
        queue.cancel(&key("a"));
        queue.cancel(&key("b"));
        assert_eq!(queue.pop(now, 8), None);
        queue.add(&key("a"));
        assert_eq!(queue.pop(now, 8), Some(key("a")));
        assert_eq!(queue.pop(now, 8), None);
    }

    #[test]
    fn an_earlier_time_wins() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add_at(&key("a"), now + Duration::from_secs(30));
        queue.add_at(&key("a"), now + Duration::from_secs(5));
        queue.add_at(&key("a"), now + Duration::from_secs(50));
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(5)));
        assert_eq!(queue.pop(now + Duration::from_secs(5), 8), Some(key("a")));
    }
}
