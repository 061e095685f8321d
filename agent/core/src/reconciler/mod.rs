//! The reconciler of the agent. It receives events of the watches, of the hub and of jobs. It
//! returns jobs, frames and terms to store.
//!
//! It has no I/O and no clock, so that a test can run whole histories.
//!
//! # Files
//! - `copies`: reconciles one copy.
//! - `decider`: computes the desired state of one copy.
//! - `history`: failures, changes by other clients, and contention.
//! - `hub_events`: the stream of the hub.
//! - `inspect`: answers for the state of one copy.
//! - `job_events`: the next job, and the results of jobs.
//! - `jobs`: the queue of jobs, and their limits.
//! - `member`: the side of the member cluster, its policy and its revocation.
//! - `payloads`: the payloads of the copies, and the requests for missing ones.
//! - `preview`: decides the copies of a plan without writing.
//! - `prunes`: removals from namespaces that are no longer targets.
//! - `quota`: limits of copies and bytes.
//! - `store`: terms and tombstones that are stored in a Secret.
//! - `sync`: what the hub has sent, and the states of rules for it.
//! - `watch_events`: handles events of the watches, and the start.
//! - `watches`: the state of the watches.
mod copies;
mod decider;
mod history;
mod hub_events;
mod inspect;
mod job_events;
mod jobs;
mod member;
mod payloads;
mod preview;
mod prunes;
mod quota;
mod store;
mod sync;
#[cfg(test)]
mod tests;
mod watch_events;
mod watches;

use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{AgentFrame, Counts, Hello, HubFrame, Refusal, RuleName, SourceRef};

use crate::audit::AuditLines;
use crate::copy::{CopyError, NewPayload};
use crate::desired::{AgentLocation, Namespace, StoredRule};
use crate::job::{Done, Job, Work, WriteEffect};
use crate::live::Live;
use crate::policy::{Area, Policy};
use crate::queue::Key;

use hub_events::HubLink;
use member::Member;
use payloads::Payloads;

/// Limit of the jobs under way.
pub const PARALLEL: usize = 8;

/// An event for the reconciler.
pub enum Event {
    /// Another policy is in force. Watches that it does not contain send no more events.
    Policy(Arc<Policy>),
    /// The list of an area's copies begins.
    CopiesListed(Area),
    /// A live object with our label.
    Copy(SourceRef, Live),
    /// The content of an intact copy in a list.
    Content(NewPayload),
    /// The object with this uid has lost our label or was deleted.
    CopyDeleted(SourceRef, Arc<str>),
    /// The list of an area's copies is complete.
    CopiesComplete(Area),
    /// The agent has no permission to watch an area.
    CopiesForbidden(Area, CopyError),
    /// A watch has failed or delivered nothing for too long; with the last HTTP status, 0 for no
    /// answer.
    WatchLost(WatchScope, u16),
    /// The API server answers a watch again, and no event was missed.
    WatchResumed(WatchScope),
    /// The list of namespaces begins.
    NamespacesListed,
    /// A namespace exists, or has changed.
    Namespace(Arc<str>, Namespace),
    /// A namespace was deleted.
    NamespaceDeleted(Arc<str>),
    /// The list of namespaces is complete.
    NamespacesComplete,
    /// A stream to the hub is open.
    HubConnected,
    /// A frame of the hub, and its items that could not be parsed.
    Hub(HubFrame, Vec<Refusal>),
    /// The stream has ended.
    HubLost,
    /// The hub has revoked this cluster.
    Revoked,
    /// A job has ended.
    Done(Box<Done>),
}

impl Event {
    /// Whether the event may change the decision about any copy. Other events change only those
    /// about the copies that they reconcile.
    fn is_wide(&self) -> bool {
        match self {
            Self::Copy(..) | Self::Content(_) | Self::CopyDeleted(..) | Self::Done(_) => false,
            Self::Hub(frame, _) => matches!(
                frame,
                HubFrame::SnapshotBegin(_) | HubFrame::Batch(_) | HubFrame::SnapshotEnd(_)
            ),
            _ => true,
        }
    }
}

/// The scope of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchScope {
    /// All namespaces.
    Namespaces,
    /// The copies of an area.
    Copies(Area),
}

/// A notice for people in the member cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A drifted copy of this rule was corrected. Contains the field managers that had changed it, if
    /// they are known.
    DriftCorrected(SourceRef, RuleName, Option<Arc<str>>),
    /// An object that was not ours was overwritten for this rule. Contains its field managers, if
    /// they are known.
    Overwritten(SourceRef, RuleName, Option<Arc<str>>),
    /// A copy of this rule that did not take a change was deleted and created again.
    Recreated(SourceRef, RuleName),
    /// A copy of this rule cannot be created or changed.
    Failed(SourceRef, RuleName, CopyError),
}

/// The initial state of a reconciler.
pub struct Setup {
    /// The namespace and cluster of the agent.
    pub location: AgentLocation,
    /// The agent's first frame on each stream.
    pub hello: Hello,
    /// The terms from the store.
    pub stored: Vec<StoredRule>,
    /// The hub cluster's uid from the store.
    pub hub_cluster_uid: Option<String>,
    /// The initial policy.
    pub policy: Arc<Policy>,
    /// The seed of the jitter.
    pub seed: u64,
}

/// Counters for metrics, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Corrected copies.
    pub drift_corrected: u64,
    /// Applies that changed nothing.
    pub equal: u64,
    /// Written copies, including adopted ones.
    pub written: u64,
    /// Copies deleted or retained.
    pub removed: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Equal objects that were taken over, including former copies.
    pub adopted: u64,
    /// Objects that were overwritten.
    pub overwritten: u64,
    /// Copies that were deleted and created again.
    pub recreated: u64,
    /// The number of copies that are contended now.
    pub contentions: u64,
}

impl Totals {
    /// Counts the result of a job. `drift`: the job corrected a copy that was correct before.
    fn count(&mut self, wrote: Option<WriteEffect>, failed: bool, drift: bool) {
        self.failed += u64::from(failed);
        match wrote {
            Some(
                wrote @ (WriteEffect::Created
                | WriteEffect::Changed
                | WriteEffect::Adopted
                | WriteEffect::Overwrote
                | WriteEffect::Recreated),
            ) => {
                self.written += 1;
                self.adopted += u64::from(wrote == WriteEffect::Adopted);
                self.overwritten += u64::from(wrote == WriteEffect::Overwrote);
                self.recreated += u64::from(wrote == WriteEffect::Recreated);
                self.drift_corrected += u64::from(drift && !failed);
            }
            Some(WriteEffect::Equal) => self.equal += 1,
            Some(WriteEffect::Deleted | WriteEffect::Retained) => self.removed += 1,
            None => {}
        }
    }
}

/// The reconciler of one agent: it connects the stream of the hub with the copies of the member
/// cluster. It receives events, and returns jobs, frames and notices.
pub struct Reconciler {
    member: Member,
    hub: HubLink,
}

impl Reconciler {
    /// Returns a reconciler that has received no event.
    pub fn new(setup: Setup) -> Self {
        Self {
            hub: HubLink::new(setup.hello.clone()),
            member: Member::new(setup),
        }
    }

    /// Sets other limits for cached payloads and for payloads that wait to be applied, in bytes.
    pub fn with_bounds(mut self, cache: usize, room: usize) -> Self {
        self.member.payloads = Payloads::new(cache);
        self.member.jobs.set_budget(room);
        self
    }

    /// Handles an event.
    pub fn handle(&mut self, event: Event, now: Instant) {
        let member = &mut self.member;
        if event.is_wide() {
            member.jobs.outdate_decisions();
        }
        match event {
            Event::Policy(policy) => member.set_policy(policy, now),
            Event::CopiesListed(area) => member.copies_listed(&area),
            Event::Copy(copy, live) => member.handle_copy_event(&copy, live, now),
            Event::Content(seen) => member.payloads.offer(seen),
            Event::CopyDeleted(copy, uid) => member.handle_copy_deletion(&copy, &uid, now),
            Event::CopiesComplete(area) => member.copies_complete(&area, now),
            Event::CopiesForbidden(area, copy_error) => {
                let is_news = member.watches.forbid(&area, copy_error);
                member.watch_failed(is_news.then_some(&area), now);
            }
            Event::WatchLost(scope, status) => {
                let unreadable = member.watches.lose(&scope, status);
                member.watch_failed(unreadable, now);
            }
            Event::WatchResumed(scope) => {
                member.watches.resume(&scope);
                member.report_all_if_complete();
            }
            Event::NamespacesListed => member.watches.begin_namespaces(),
            Event::Namespace(name, namespace) => {
                member.handle_namespace_event(&name, namespace, now)
            }
            Event::NamespaceDeleted(name) => member.set_namespace(&name, None, now),
            Event::NamespacesComplete => member.namespaces_complete(now),
            Event::HubConnected => self.connected(now),
            Event::Hub(frame, refused) => self.frame(frame, refused, now),
            Event::HubLost => self.disconnected(now),
            Event::Revoked => member.revoke(now),
            Event::Done(done) => self.done(*done, now),
        }
    }

    /// Sets whether this agent is the active one of its cluster. Only the active agent returns jobs
    /// that write copies.
    pub fn set_active(&mut self, active: bool) {
        self.member.jobs.active = active;
    }

    /// Returns the next job, if fewer than [`PARALLEL`] are under way. The caller must return its
    /// result as [`Event::Done`].
    pub fn next_job(&mut self, now: Instant) -> Option<Job> {
        match self.hub.previews.pop() {
            Some((number, preview_job)) => Some(Job {
                key: Key::Question(number),
                work: Work::Preview(Box::new(preview_job)),
            }),
            None => self.member.next_job(now),
        }
    }

    /// Handles the result of a job.
    fn done(&mut self, done: Done, now: Instant) {
        match done.key.clone() {
            Key::Namespace(name) => self.member.namespace_done(&name, &done, now),
            Key::Copy(copy) => self.member.copy_done(&copy, done, now),
            Key::Question(number) => {
                // A preview that an earlier stream requested is dropped.
                if self.hub.previews.close(number)
                    && let Some(preview_result) = done.preview_result
                {
                    self.hub.send(AgentFrame::PreviewResult(preview_result));
                }
            }
        }
    }

    /// Returns the terms to store, once after each change. The caller reports the result to
    /// [`Reconciler::stored`].
    pub fn take_store(&mut self) -> Option<(Option<String>, Vec<StoredRule>)> {
        let member = &mut self.member;
        if !member.store.is_stale(&member.desired) {
            return None;
        }
        let removals = member.jobs.removals();
        Some(member.store.begin(&mut member.desired, &removals))
    }

    /// Whether the terms must be stored.
    pub fn needs_store(&self) -> bool {
        self.member.store.is_stale(&self.member.desired)
    }

    /// Whether the removal of copies waits for the store.
    pub fn is_store_urgent(&self) -> bool {
        self.member.store.is_urgent(&self.member.desired)
    }

    /// Handles the result of a store.
    pub fn stored(&mut self, saved: Result<(), CopyError>, now: Instant) {
        for copy in self.member.store.end(saved) {
            self.member.reconcile_copy(&copy, now);
        }
    }

    /// Whether each watch has delivered its first list, or has failed.
    pub fn has_started(&self) -> bool {
        self.member.watches.has_started()
    }

    /// Whether the agent may receive more from the hub.
    pub fn has_room(&self) -> bool {
        self.member.jobs.has_room()
    }

    /// Returns the latest time at which the caller must request jobs and frames again.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let member = &self.member;
        let frames = [
            member.report.next_due(now),
            member.report.next_resync(),
            member.payloads.next_request(),
        ];
        let frames = frames.into_iter().filter(|_| self.hub.has_begun());
        let jobs = [
            member.jobs.queue.next_due(),
            member.history.contentions.next_calm(),
        ];
        // Work that is already due waits for something else: a free job, or room in the stream.
        let all = frames.chain(jobs).flatten();
        all.filter(|due| *due > now).min()
    }

    /// Returns the notices since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.member.history.take_notices()
    }

    /// Returns when the lines of the log about changed copies are due.
    pub fn audit_due(&self) -> Option<Instant> {
        self.member.history.audit.due()
    }

    /// Returns the lines of the log about changed and failing copies, if they are due.
    pub fn take_audit(&mut self, now: Instant) -> AuditLines {
        self.member.history.audit.take_lines(now)
    }

    /// Returns the sums over all copies.
    pub fn counts(&self) -> Counts {
        self.member.report.totals()
    }

    /// Returns the counters since the start.
    pub fn totals(&self) -> Totals {
        self.member.history.totals()
    }

    /// Returns the size of the cached payloads, in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.member.payloads.bytes()
    }
}
