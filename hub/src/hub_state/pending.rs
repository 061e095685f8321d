//! Queues of work for the hub's tasks.
use std::collections::BTreeSet;

use tokio::sync::Notify;

use crate::ordered_lock::{LEAF, OrderedMutex};

/// Work that waits, each piece once, and its signal.
pub struct Pending<T> {
    items: OrderedMutex<BTreeSet<T>, LEAF>,
    wake: Notify,
}

impl<T: Ord> Default for Pending<T> {
    fn default() -> Self {
        Self {
            items: OrderedMutex::default(),
            wake: Notify::default(),
        }
    }
}

impl<T: Ord> Pending<T> {
    /// Adds work.
    pub fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut waiting = self.items.lock();
        let before = waiting.len();
        waiting.extend(items);
        if waiting.len() > before {
            self.wake.notify_one();
        }
    }

    /// Has whoever does the work look again: what it waited for may be there.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// All the work there is.
    pub fn take(&self) -> BTreeSet<T> {
        std::mem::take(&mut *self.items.lock())
    }

    /// What each waiting piece of work is to `view`, leaving it there.
    pub fn peek<V>(&self, view: impl Fn(&T) -> V) -> Vec<V> {
        self.items.lock().iter().map(view).collect()
    }

    /// Drops the work that is done.
    pub fn remove(&self, done: impl Fn(&T) -> bool) {
        self.items.lock().retain(|item| !done(item));
    }

    /// Completes when work was added since the last call.
    pub async fn added(&self) {
        self.wake.notified().await;
    }
}
