//! The jobs of the agent: the queued copies, the jobs under way, and the delays after failures.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{Reason, Revision, RuleName, RuleUid, SourceRef};

use crate::backoff::{COPY, Jitter, RECHECK, UNAVAILABLE};
use crate::copy::{CopyError, IntentKey};
use crate::deletes::Deletes;
use crate::inflight_budget::{InflightBudget, ROOM_BYTES};
use crate::queue::{Key, Queue};
use crate::records::{Observed, Usage};

/// A job under way.
pub(super) struct RunningJob {
    pub(super) about: (IntentKey, Option<Revision>),
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
    /// The size of the payloads that wait to be applied.
    pub(super) budget: InflightBudget,
    budget_limit: usize,
    jitter: Jitter,
    pub(super) namespace_failed: BTreeMap<Arc<str>, CopyError>,
    /// The deletions of the last hour.
    pub(super) deletes: Deletes,
}

impl Jobs {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            queue: Queue::default(),
            running: BTreeMap::new(),
            reread: BTreeSet::new(),
            budget: InflightBudget::default(),
            budget_limit: ROOM_BYTES,
            jitter: Jitter::new(seed),
            namespace_failed: BTreeMap::new(),
            deletes: Deletes::default(),
        }
    }

    pub(super) fn set_budget(&mut self, bytes: usize) {
        self.budget_limit = bytes;
    }

    /// Whether the budget has room for more payloads.
    pub(super) fn has_room(&self) -> bool {
        self.budget.bytes() <= self.budget_limit
    }

    /// Returns the next key that is due, while fewer than `limit` jobs are under way.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        limit: usize,
        rule_of: impl Fn(&SourceRef) -> Option<RuleUid>,
    ) -> Option<Key> {
        let key = self.queue.pop(now, limit, |key| match key {
            Key::Copy(copy) => rule_of(copy),
            Key::Namespace(_) | Key::Question(_) => None,
        });
        // Copies behind a slow namespace or rule must not delay the stream of the hub.
        for parked in self.queue.take_parked() {
            if let Key::Copy(copy) = parked {
                self.budget.leave(&copy);
            }
        }
        key
    }

    /// Removes a copy from the queue and the budget.
    pub(super) fn cancel(&mut self, copy: &SourceRef) {
        self.queue.cancel(&Key::Copy(copy.clone()));
        self.budget.leave(copy);
    }

    /// Resets the failures of a copy, because its desired state has changed.
    pub(super) fn add_fresh(&mut self, copy: &SourceRef) {
        self.queue.add_fresh(&Key::Copy(copy.clone()));
    }

    /// Queues a copy after a delay, because no event reports the change that it waits for.
    pub(super) fn recheck(&mut self, copy: &SourceRef, now: Instant) {
        let delay = RECHECK.jittered(u32::MAX, self.jitter.draw());
        self.queue.add_at(&Key::Copy(copy.clone()), now + delay);
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
            Reason::Conflict | Reason::Forbidden | Reason::NamespaceTerminating => RECHECK,
            Reason::Unavailable => UNAVAILABLE,
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

    /// Returns when the next copy may be deleted under a limit per hour; `None` means at once.
    pub(super) fn next_delete(&mut self, deletes_per_hour: usize, now: Instant) -> Option<Instant> {
        let under_way = self.running.values().filter(|job| job.deletes).count();
        self.deletes.not_before(deletes_per_hour, under_way, now)
    }

    /// Returns the intents with a removal under way.
    pub(super) fn removals(&self) -> BTreeSet<IntentKey> {
        self.running
            .values()
            .filter(|job| job.removes)
            .map(|job| job.about.0.clone())
            .collect()
    }
}
