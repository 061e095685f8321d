//! The reconciler of the agent. It receives events of the watches, of the hub and of jobs. It
//! returns jobs, frames and terms to store.
//!
//! It has no I/O and no clock, so that a test can run whole histories.
//!
//! # Files
//! - `copies`: reconciles one copy.
//! - `decider`: computes the desired state of one copy.
//! - `drift`: changes of copies by other clients, failures and contention.
//! - `hub_events`: frames of the hub, and reports to it.
//! - `inspect`: answers for the state of one copy.
//! - `job_events`: the queue of jobs, and their results.
//! - `policy`: changes of the member policy.
//! - `preview`: decides the copies of a plan without writing.
//! - `prunes`: removals from namespaces that are no longer targets.
//! - `quota`: limits of copies and bytes.
//! - `store`: terms and tombstones that are stored in a Secret.
//! - `watch_events`: handles events of the watches, and the start.
//! - `watches`: the state of the watches.
mod copies;
mod decider;
mod drift;
mod hub_events;
mod inspect;
mod job_events;
mod policy;
mod preview;
mod prunes;
mod quota;
mod store;
#[cfg(test)]
mod tests;
mod watch_events;
mod watches;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Counts, Hello, HubFrame, Refusal, RuleName, SourceRef};

use crate::audit::{Audit, AuditLines};
use crate::cache::{CACHE_BYTES, PayloadCache};
use crate::copy::{CopyError, NewPayload};
use crate::desired::{Desired, Home, Namespace, StoredRule};
use crate::job::{Done, Wrote};
use crate::live::Live;
use crate::policy::{Area, Policy};
use crate::records::Records;
use crate::report::Report;

use drift::CopyHistory;
use hub_events::HubLink;
use job_events::Jobs;
use preview::PendingPreviews;
use prunes::PruneApprovals;
use store::Store;
use watches::Watches;

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
    CopyGone(SourceRef, Arc<str>),
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
    NamespaceGone(Arc<str>),
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
            Self::Copy(..) | Self::Content(_) | Self::CopyGone(..) | Self::Done(_) => false,
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
    pub home: Home,
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
    fn count(&mut self, wrote: Option<Wrote>, failed: bool, drift: bool) {
        self.failed += u64::from(failed);
        match wrote {
            Some(
                wrote @ (Wrote::Created
                | Wrote::Changed
                | Wrote::Adopted
                | Wrote::Overwrote
                | Wrote::Recreated),
            ) => {
                self.written += 1;
                self.adopted += u64::from(wrote == Wrote::Adopted);
                self.overwritten += u64::from(wrote == Wrote::Overwrote);
                self.recreated += u64::from(wrote == Wrote::Recreated);
                self.drift_corrected += u64::from(drift && !failed);
            }
            Some(Wrote::Equal) => self.equal += 1,
            Some(Wrote::Deleted | Wrote::Retained) => self.removed += 1,
            None => {}
        }
    }
}

/// The reconciler of one agent. It receives events, and returns jobs, frames and Events.
pub struct Reconciler {
    home: Arc<str>,
    policy: Arc<Policy>,
    /// The desired set of this cluster.
    desired: Desired,
    /// The known objects of this cluster.
    records: Records,
    watches: Watches,
    /// The history of the copies, as far as it decides about them.
    history: CopyHistory,
    jobs: Jobs,
    cache: PayloadCache,
    /// The outcomes of all copies, for the hub.
    report: Report,
    hub: HubLink,
    /// The approvals of removals from namespaces that are no longer targets.
    prunes: PruneApprovals,
    previews: PendingPreviews,
    store: Store,
    notices: Vec<Notice>,
    audit: Audit,
    totals: Totals,
    /// Whether each watch has delivered its first list, or has failed.
    started: bool,
    /// Whether the hub has revoked this cluster and has not begun a session with it since.
    revoked: bool,
    /// Whether this agent is the active one of its cluster.
    active: bool,
    /// How often the pipeline has run.
    #[cfg(test)]
    runs: std::cell::Cell<usize>,
}

impl Reconciler {
    /// Returns a reconciler that has received no event.
    pub fn new(setup: Setup) -> Self {
        let mut desired = Desired::new(setup.home.clone(), setup.policy.clone());
        if let Some(uid) = &setup.hub_cluster_uid {
            desired.set_hub_cluster(uid);
        }
        Self {
            home: setup.home.namespace.into(),
            watches: Watches::new(setup.policy.clone()),
            policy: setup.policy,
            desired,
            records: Records::default(),
            history: CopyHistory::default(),
            jobs: Jobs::new(setup.seed),
            cache: PayloadCache::new(CACHE_BYTES),
            report: Report::default(),
            hub: HubLink::new(setup.hello),
            prunes: PruneApprovals::default(),
            previews: PendingPreviews::default(),
            store: Store::new(setup.stored),
            notices: vec![],
            audit: Audit::default(),
            totals: Totals::default(),
            started: false,
            revoked: false,
            active: true,
            #[cfg(test)]
            runs: std::cell::Cell::default(),
        }
    }

    /// Sets other limits for cached payloads and for payloads that wait to be applied, in bytes.
    pub fn with_bounds(mut self, cache: usize, room: usize) -> Self {
        self.cache = PayloadCache::new(cache);
        self.jobs.set_budget(room);
        self
    }

    /// Handles an event.
    pub fn handle(&mut self, event: Event, now: Instant) {
        if event.is_wide() {
            self.jobs.outdate_decisions();
        }
        match event {
            Event::Policy(policy) => self.set_policy(policy, now),
            Event::CopiesListed(area) => self.copies_listed(&area),
            Event::Copy(copy, live) => self.copy_seen(&copy, live, now),
            Event::Content(seen) => self.cache.offer(seen.key, seen.revision, seen.payload),
            Event::CopyGone(copy, uid) => self.copy_gone(&copy, &uid, now),
            Event::CopiesComplete(area) => self.copies_complete(&area, now),
            Event::CopiesForbidden(area, copy_error) => {
                self.copies_forbidden(&area, copy_error, now)
            }
            Event::WatchLost(scope, status) => self.watch_lost(&scope, status, now),
            Event::WatchResumed(scope) => self.watch_resumed(&scope),
            Event::NamespacesListed => self.watches.namespace_listing = Some(BTreeSet::new()),
            Event::Namespace(name, namespace) => self.namespace_seen(&name, namespace, now),
            Event::NamespaceGone(name) => self.namespace_gone(&name, now),
            Event::NamespacesComplete => self.namespaces_complete(now),
            Event::HubConnected => self.connected(now),
            Event::Hub(frame, refused) => self.frame(frame, refused, now),
            Event::HubLost => self.disconnected(now),
            Event::Revoked => self.revoked(now),
            Event::Done(done) => self.done(*done, now),
        }
    }

    /// Whether each watch has delivered its first list, or has failed.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Whether the agent may receive more from the hub.
    pub fn has_room(&self) -> bool {
        self.jobs.has_room()
    }

    /// Returns the latest time at which the caller must request jobs and frames again.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let report = self.report.next_due(now).filter(|_| self.hub.has_begun());
        let contention = self.history.contentions.next_calm();
        // Work that is already due waits for something else: a free job, or room in the stream.
        let all = [
            self.jobs.queue.next_due(),
            report,
            contention,
            self.hub.next_due(),
        ];
        all.into_iter().flatten().filter(|due| *due > now).min()
    }

    /// Returns the notices since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Returns when the lines of the log about changed copies are due.
    pub fn audit_due(&self) -> Option<Instant> {
        self.audit.due()
    }

    /// Returns the lines of the log about changed and failing copies, if they are due.
    pub fn take_audit(&mut self, now: Instant) -> AuditLines {
        self.audit.take_lines(now)
    }

    /// Returns the sums over all copies.
    pub fn counts(&self) -> Counts {
        self.report.totals()
    }

    /// Returns the counters since the start.
    pub fn totals(&self) -> Totals {
        Totals {
            contentions: self.history.contentions.count() as u64,
            ..self.totals
        }
    }

    /// Returns the size of the cached payloads, in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Asserts that a stored decision is the one that would be made now.
    #[cfg(test)]
    fn assert_current(
        &self,
        copy: &SourceRef,
        want: &crate::decide::DesiredCopy,
        action: &crate::decide::Action,
    ) {
        use crate::decide::{Decision, decide};
        let runs = self.runs.get();
        let now = self.decider().desired_copy(copy);
        self.runs.set(runs);
        assert_eq!(&now, want, "{copy}: the stored desired state is outdated");
        let decision = decide(&now, self.records.observed(copy));
        let stored = Decision::Act(action.clone());
        assert_eq!(decision, stored, "{copy}: the stored decision is outdated");
    }

    /// Asserts that a decision now would leave a copy and its outcomes as they are.
    #[cfg(test)]
    fn assert_settled(&mut self, copy: &SourceRef) {
        use crate::copy::CopyStatus;
        use crate::decide::{Decision, DesiredCopy, decide};
        let runs = self.runs.get();
        let want = self.decider().desired_copy(copy);
        self.runs.set(runs);
        let decision = decide(&want, self.records.observed(copy));
        match (&want, decision) {
            (DesiredCopy::Copy(wanted), Decision::Noop(outcome)) => {
                let reported = self.report.outcome(copy, &wanted.intent.rule);
                assert_eq!(reported, Some(&outcome), "{copy}: the outcome is outdated");
            }
            (DesiredCopy::Nothing, Decision::Forget) => {
                let others = self.desired.owners().others(copy);
                assert_eq!(self.report.of_copy(copy), others, "{copy} is of no rule");
            }
            // The end of a removal may have begun another change of the copy.
            (_, Decision::Act(_) | Decision::Noop(CopyStatus::Removing(_))) => {
                let key = crate::queue::Key::Copy(copy.clone());
                assert!(self.jobs.queue.contains(&key), "{copy}: an action is due");
            }
            (_, _) => {}
        }
    }

    #[cfg(test)]
    fn acked_pairs(&self, uid: &str) -> Vec<runnel_proto::model::AckedIntent> {
        self.desired.rules().pairs(&uid.into())
    }
}
