//! The queue of jobs, the jobs under way, and their limits.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{Reason, Revision, RuleName, RuleUid, SourceRef};

use super::PARALLEL;
use super::payloads::Payloads;
use super::payloads::{InflightBudget, ROOM_BYTES};
use super::watches::Watches;
use crate::backoff::{COPY, Jitter, RECHECK, UNAVAILABLE};
use crate::copy::{CopyError, IntentKey};
use crate::decide::{Action, DesiredCopy, WantedCopy};
use crate::delete_limit::{self, Deletes};
use crate::job::{DesiredObject, Limits, Recreate, Work};
use crate::policy::Policy;
use crate::queue::{Key, Queue};
use crate::records::{Observed, Records, Usage};

/// Limit of the stored decisions. Copies beyond it are decided again when their jobs start.
const DECISIONS_LIMIT: usize = 4096;

/// The decision about a queued copy.
pub(super) struct Decided {
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
    /// The policy and the namespace of the agent, for the jobs.
    pub(super) limits: Limits,
    /// Whether this agent is the active one of its cluster.
    pub(super) active: bool,
    /// The decisions about queued copies, unless an event has concerned the copy since.
    decisions: BTreeMap<SourceRef, Decided>,
    /// The number of wide events: events that may concern any copy.
    pub(super) epoch: u64,
}

impl Jobs {
    pub(super) fn new(limits: Limits, seed: u64) -> Self {
        Self {
            queue: Queue::default(),
            running: BTreeMap::new(),
            reread: BTreeSet::new(),
            budget: InflightBudget::default(),
            budget_limit: ROOM_BYTES,
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
            let decided = Decided {
                desired: want,
                action,
                epoch,
            };
            self.decisions.insert(copy.clone(), decided);
        }
    }

    /// Takes the decision about a copy, if it still holds.
    pub(super) fn take_decision(&mut self, copy: &SourceRef) -> Option<Decided> {
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

    /// Removes the job of a copy that has ended. Its desired state remains only if no event has
    /// concerned the copy since.
    pub(super) fn finish(&mut self, copy: &SourceRef) -> Option<RunningJob> {
        let mut job = self.running.remove(copy)?;
        if job.epoch != self.epoch {
            job.want = None;
        }
        Some(job)
    }

    /// Removes a copy from the queue and the budget.
    pub(super) fn cancel(&mut self, copy: &SourceRef) {
        self.decisions.remove(copy);
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
