//! Queues of work for the hub's tasks.
use std::collections::BTreeSet;

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};
use tokio::sync::Notify;

use crate::ordered_lock::LeafMutex;

/// The queues of the hub's tasks.
#[derive(Default)]
pub struct Queues {
    /// Sources whose content must be read.
    pub to_read: Pending<SourceRef>,
    /// Rules with copies that must be rendered.
    pub to_render: Pending<RuleUid>,
    /// Rules whose status may be stale.
    pub dirty_rules: Pending<RuleUid>,
    /// Rules whose deliveries in the view API may have changed.
    pub viewed_rules: Pending<RuleUid>,
    /// Members whose status may be stale.
    pub dirty_members: Pending<ClusterName>,
    /// Rules whose last completed state must be stored or deleted.
    pub completed_rules: Pending<RuleUid>,
    /// Stored removal orders that their clusters have carried out.
    pub settled_removals: Pending<(ClusterName, RuleUid)>,
    /// Removal orders of deleted rules, to be stored for clusters that are not connected.
    pub removal_orders: Pending<(ClusterName, RuleUid)>,
    /// Removal orders that exceed the limit of the object of their cluster. Their rules keep their
    /// finalizers.
    pub removal_overflow: Pending<(ClusterName, RuleUid)>,
}

impl Queues {
    /// Drops the work of a former right to lead.
    pub fn clear_orders(&self) {
        self.settled_removals.take();
        self.removal_orders.take();
        self.removal_overflow.take();
        self.completed_rules.take();
    }
}

/// A set of pending items that wakes its task.
pub struct Pending<T> {
    items: LeafMutex<BTreeSet<T>>,
    wake: Notify,
}

impl<T: Ord> Default for Pending<T> {
    fn default() -> Self {
        Self {
            items: LeafMutex::default(),
            wake: Notify::default(),
        }
    }
}

impl<T: Ord> Pending<T> {
    /// Adds items.
    pub fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut waiting = self.items.lock();
        let before = waiting.len();
        waiting.extend(items);
        if waiting.len() > before {
            self.wake.notify_one();
        }
    }

    /// Wakes the task without a new item, because a condition for pending work may be true now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Removes and returns all items.
    pub fn take(&self) -> BTreeSet<T> {
        std::mem::take(&mut *self.items.lock())
    }

    /// Returns `view` of all items, which stay in the set.
    pub fn peek<V>(&self, view: impl Fn(&T) -> V) -> Vec<V> {
        self.items.lock().iter().map(view).collect()
    }

    /// Removes the items for which `done` returns true.
    pub fn remove(&self, done: impl Fn(&T) -> bool) {
        self.items.lock().retain(|item| !done(item));
    }

    /// Completes when an item was added, or the task was woken, since the last call.
    pub async fn added(&self) {
        self.wake.notified().await;
    }
}
