//! Locks with a fixed order, so that tasks cannot deadlock. Debug builds check the order at each
//! lock: a thread may only take a lock with a higher rank than those it holds. Also measures how long
//! the lock of the index is held.
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use prometheus_client::metrics::histogram::Histogram;

/// Rank of the lock for the change of the right to lead and the start of service.
pub const LEADERSHIP: u8 = 1;
/// Rank of the lock under which a member changes both in the object cache and in the index.
pub const MEMBER_UPDATE: u8 = 2;
/// Rank of the leader's position in the history of leaders.
pub const LEADER_POSITION: u8 = 3;
/// Rank of the index.
pub const INDEX: u8 = 4;
/// Rank of the state of one agent's session.
pub const SESSION: u8 = 5;
/// Rank of the agents' last reports.
pub const REPORT_STORE: u8 = 6;
/// Rank of the deliveries that are not complete.
pub const DELIVERIES: u8 = 7;
/// Rank of the divergences.
pub const DIVERGENCES: u8 = 8;
/// Rank of the rules and of the members in the object cache.
pub const OBJECT_CACHE: u8 = 9;
/// Rank of locks under which no other lock is taken.
pub const LEAF: u8 = u8::MAX;

/// A [`Mutex`] under which no other lock is taken.
pub type LeafMutex<T> = OrderedMutex<T, LEAF>;

/// A [`Mutex`] with a rank.
#[derive(Default)]
pub struct OrderedMutex<T, const RANK: u8>(Mutex<T>);

/// An [`RwLock`] with a rank. A thread must not take the read lock twice, because a writer may wait
/// in between.
#[derive(Default)]
pub struct OrderedRwLock<T, const RANK: u8>(RwLock<T>);

#[cfg(test)]
impl<T, const RANK: u8> OrderedMutex<T, RANK> {
    pub(crate) fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

#[cfg(test)]
impl<T, const RANK: u8> OrderedRwLock<T, RANK> {
    /// Whether a read lock would be granted without waiting.
    pub(crate) fn is_free_to_read(&self) -> bool {
        self.0.try_read().is_some()
    }
}

/// The guard of an [`OrderedMutex`].
pub type OrderedGuard<'l, T> = Ordered<MutexGuard<'l, T>>;

/// The guard of an ordered lock.
pub struct Ordered<G> {
    guard: G,
    _rank: LockRank,
}

impl<T, const RANK: u8> OrderedMutex<T, RANK> {
    /// Creates a lock with a value.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Ordered<MutexGuard<'_, T>> {
        let taken_rank = LockRank::rank(RANK);
        Ordered {
            guard: self.0.lock(),
            _rank: taken_rank,
        }
    }
}

impl<T, const RANK: u8> OrderedRwLock<T, RANK> {
    /// Creates a lock with a value.
    pub fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Waits until no writer holds the lock.
    pub fn read(&self) -> Ordered<RwLockReadGuard<'_, T>> {
        let taken_rank = LockRank::rank(RANK);
        Ordered {
            guard: self.0.read(),
            _rank: taken_rank,
        }
    }

    /// Waits until no reader and no writer holds the lock.
    pub fn write(&self) -> Ordered<RwLockWriteGuard<'_, T>> {
        let taken_rank = LockRank::rank(RANK);
        Ordered {
            guard: self.0.write(),
            _rank: taken_rank,
        }
    }
}

impl<G: Deref> Deref for Ordered<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ordered<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// The rank of one lock in the list of its thread, until it is dropped.
#[cfg(debug_assertions)]
struct LockRank(u8);

#[cfg(debug_assertions)]
thread_local! {
    static LOCKED_RANKS: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
impl LockRank {
    fn rank(rank: u8) -> Self {
        LOCKED_RANKS.with_borrow_mut(|taken_rank| {
            let highest = taken_rank.iter().max().copied().unwrap_or_default();
            assert!(
                highest < rank,
                "a lock of rank {rank} is taken under one of rank {highest}"
            );
            taken_rank.push(rank);
        });
        Self(rank)
    }
}

#[cfg(debug_assertions)]
impl Drop for LockRank {
    fn drop(&mut self) {
        LOCKED_RANKS.with_borrow_mut(|taken_rank| {
            if let Some(at) = taken_rank.iter().rposition(|rank| *rank == self.0) {
                taken_rank.remove(at);
            }
        });
    }
}

/// Release builds do not check the order.
#[cfg(not(debug_assertions))]
struct LockRank;

#[cfg(not(debug_assertions))]
impl LockRank {
    fn rank(_: u8) -> Self {
        Self
    }
}

/// Bucket limits in seconds: from the usual time of an edit to the time at which a renewal of the
/// Lease would be late.
const BUCKETS: [f64; 8] = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Durations for which a lock was held.
#[derive(Debug)]
pub struct LockTimes {
    histogram: Histogram,
    /// In nanoseconds.
    longest: AtomicU64,
}

impl Default for LockTimes {
    fn default() -> Self {
        Self {
            histogram: Histogram::new(BUCKETS),
            longest: AtomicU64::new(0),
        }
    }
}

impl LockTimes {
    /// Starts a measurement, which ends when the returned guard is dropped.
    pub fn begin(&self) -> LockTimer<'_> {
        LockTimer {
            times: self,
            since: Instant::now(),
        }
    }

    /// Returns the histogram of all durations.
    pub fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// Returns the longest duration since the start of the process.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}

/// Measures one lock until it is dropped.
pub struct LockTimer<'h> {
    times: &'h LockTimes,
    since: Instant,
}

impl Drop for LockTimer<'_> {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        self.times.histogram.observe(took.as_secs_f64());
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.times.longest.fetch_max(nanoseconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (index, session) = (
            OrderedRwLock::<_, INDEX>::new(1),
            OrderedMutex::<_, SESSION>::new(2),
        );
        for _ in 0..2 {
            let (read, locked) = (index.read(), session.lock());
            assert_eq!((*read, *locked), (1, 2));
            // Guards may be dropped in any order.
            drop(read);
            drop(locked);
        }
        *index.write() = 3;
        assert_eq!(*index.read(), 3);
    }

    #[test]
    #[should_panic(expected = "a lock of rank 4 is taken under one of rank 5")]
    fn wrong_order_is_found_without_a_second_thread() {
        let (index, session) = (
            OrderedRwLock::<_, INDEX>::new(1),
            OrderedMutex::<_, SESSION>::new(2),
        );
        let _session = session.lock();
        let _index = index.read();
    }

    #[test]
    #[should_panic(expected = "a lock of rank 5 is taken under one of rank 5")]
    fn two_locks_of_one_rank_are_not_taken_at_once() {
        let [one, other] = [1, 2].map(OrderedMutex::<_, SESSION>::new);
        let _one = one.lock();
        let _other = other.lock();
    }
}
