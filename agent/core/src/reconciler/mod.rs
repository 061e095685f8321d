//! The reconciler of the agent. It receives events of the watches, of the hub and of jobs. It
//! returns jobs, frames and terms to store. It has the stream to the hub; its `Member` decides the
//! copies.
//!
//! It has no I/O and no clock, so that a test can run whole histories.
//!
//! # Files
//! - `decider`: computes the desired state of one copy.
//! - `events`: handles the events of the watches, the jobs and the hub, and gives the next job.
//! - `history`: failures, changes by other clients, and contention.
//! - `inspect`: answers for the state of one copy.
//! - `jobs`: the queue of jobs, and their limits.
//! - `member`: the side of the member cluster, its policy and its revocation. Reconciles one copy.
//! - `payloads`: the payloads of the copies, and the requests for missing ones.
//! - `phases`: the order in which the copies of a rule are written and removed.
//! - `polls`: reads of objects whose changes no watch shows.
//! - `preview`: decides the copies of a plan without writing.
//! - `prunes`: removals from namespaces that are no longer targets.
//! - `quota`: limits of copies and bytes.
//! - `rule_states`: the rule states that are due for the hub.
//! - `store`: terms and tombstones that are stored in a Secret.
//! - `watches`: the state of the watches.
mod decider;
mod deletions;
mod events;
mod history;
mod inspect;
mod jobs;
mod member;
mod payloads;
mod phases;
mod polls;
mod preview;
mod prunes;
mod quota;
mod rule_states;
mod store;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::convert::split;
use runnel_proto::model::{
    AgentFrame, Counts, Hello, HubFrame, LostWatch, NAMESPACES, ProofKey, Refusal, RuleName,
    RuleState, SnapshotBegin, SnapshotEnd, SourceRef,
};

use crate::audit::AuditLines;
use crate::copy::{CopyError, NewPayload};
use crate::decide::{Done, Job, Key, Work, WriteEffect};
use crate::desired::{AgentLocation, Namespace, StoredRule};
use crate::feedback::FeedbackPaths;
use crate::live::Live;
use crate::policy::{Area, Policy};
use member::Member;
use payloads::Payloads;
use preview::{PendingPreviews, preview_job};

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
    /// The agent cannot watch an area: it has no permission, or the cluster does not serve its kind now. Copies may exist.
    CopiesForbidden(Area, CopyError),
    /// No object of an area exists: the definition of its kind is known to be deleted, or gives it another scope.
    KindDeleted(Area, CopyError),
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

impl WatchScope {
    /// Returns what is watched.
    fn resource(&self) -> &str {
        match self {
            Self::Namespaces => NAMESPACES,
            Self::Copies(area) => &area.resource,
        }
    }
}

/// What other clients had done to a copy that was corrected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorrectedDrift {
    /// The field managers that had changed it, if they are known.
    pub others: Option<Arc<str>>,
    /// Whether it was deleted.
    pub deleted: bool,
    /// The differences from its source, as paths without values, if the object was read.
    pub fields: Option<String>,
}

/// A notice for people in the member cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A drifted copy of this rule was corrected.
    DriftCorrected(SourceRef, RuleName, CorrectedDrift),
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
                member.copies_forbidden(&area, copy_error, now)
            }
            Event::KindDeleted(area, copy_error) => member.kind_deleted(&area, copy_error, now),
            Event::WatchLost(scope, status) => {
                let unreadable = member.watches.lose(&scope, status);
                member.watch_failed(unreadable, now);
            }
            Event::WatchResumed(scope) => {
                member.watches.resume(&scope);
                member.report_resumed(scope.resource());
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
                // Each of its items has an account.
                account: None,
                propagation: runnel_proto::model::Propagation::default(),
                corrects_drift: false,
                nodes: 0,
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
        let (hub, mut rules) = member.store.begin(&mut member.desired, &removals);
        member.history.add_finished(&mut rules);
        Some((hub, rules))
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
            member.jobs.polls.next_due(),
            member.history.contentions.next_calm(),
        ];
        // Work that is already due waits for something else: a free job, or room in the stream.
        let all = frames.chain(jobs).flatten();
        all.filter(|due| *due > now).min()
    }

    /// Returns the paths of fields that rules have returned, at first and if they have changed since the last call. The
    /// caller reads them in every live object from then on, and before it starts the next job.
    pub fn take_feedback(&mut self, now: Instant) -> Option<FeedbackPaths> {
        self.member.take_feedback(now)
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

impl Reconciler {
    /// Opens a stream. Its first frames report all rules.
    fn connected(&mut self, now: Instant) {
        // Approvals of an earlier stream are void in a new one.
        self.disconnected(now);
        let states = self.member.begin_stream(self.hub.proof_key.as_ref());
        self.hub.connect(states);
    }

    /// Ends the stream, and with it all approvals of removals.
    fn disconnected(&mut self, now: Instant) {
        self.hub.disconnect();
        self.member.end_stream(now);
    }

    /// Handles a frame of the hub. `refused`: its items that could not be decoded.
    fn frame(&mut self, frame: HubFrame, refused: Vec<Refusal>, now: Instant) {
        match frame {
            HubFrame::SnapshotBegin(begin) => self.begin(&begin, now),
            // The agent ignores the orders of a hub that has revoked this cluster, until the hub
            // accepts it again.
            _ if self.member.revoked => {}
            HubFrame::DetailRequest(uids) => {
                for uid in uids {
                    let pairs = self.member.desired.rules().pairs(&uid);
                    self.hub.send(AgentFrame::Detail(uid, pairs, true));
                }
            }
            HubFrame::Batch(batch) => {
                let nonce = batch.nonce;
                self.hub.record_batch(nonce);
                let refused = self.member.take(batch, refused, now);
                self.hub.ack(AgentFrame::Ack(nonce, refused));
            }
            HubFrame::SnapshotEnd(end) => self.end(end, now),
            HubFrame::Inspect(question) => {
                let answer = self.member.decider().inspected(&question);
                self.hub.answer(AgentFrame::Inspected(Box::new(answer)));
            }
            HubFrame::ListCopies(question) => {
                let answer = self.member.decider().listed(&question);
                self.hub.answer(AgentFrame::CopyList(answer));
            }
            HubFrame::PreviewRequest(asked) => match preview_job(&self.member, &asked, &refused) {
                Ok(preview_job) => self.hub.previews.add(preview_job),
                Err(answer) => self.hub.send(AgentFrame::PreviewResult(answer)),
            },
            // The connection handles these frames.
            HubFrame::Drain(_) | HubFrame::HandedOver | HubFrame::Revoked(_) => {}
            HubFrame::CaBundle(_) | HubFrame::Keepalive => {}
        }
    }

    fn begin(&mut self, begin: &SnapshotBegin, now: Instant) {
        if self.hub.begin(begin.proof_key.as_ref()) {
            let rules = self.member.desired.rules().uids();
            self.member.report.touch_all(rules);
        }
        self.member.begin_session(&begin.hub_cluster_uid, now);
    }

    fn end(&mut self, end: SnapshotEnd, now: Instant) {
        self.member.end_snapshot(now);
        let (intents, digest) = self.member.desired.rules().sum();
        tracing::info!(
            intents = end.intents,
            "the hub's snapshot is applied to the desired set"
        );
        if (intents, digest) != (end.intents, end.digest) {
            tracing::debug!(
                acked = intents,
                announced = end.intents,
                "this cluster has intents that are not part of the hub's snapshot"
            );
        }
    }

    /// Returns the next frame for the hub, if there is one and a stream is open.
    pub fn next_frame(&mut self, now: Instant) -> Option<AgentFrame> {
        let queued = self.hub.next_queued(self.has_room());
        if queued.is_some() || !self.hub.has_begun() {
            return queued;
        }
        let key = self.hub.proof_key.as_ref();
        let found = self.member.take_found(key, now);
        let finished = self.member.take_finished();
        let requests = self.member.payloads.take_requests(now);
        let due = self.member.take_due(key, now);
        self.hub.send_removed(finished);
        if !found.is_empty() {
            self.hub.send(AgentFrame::AckedRules(found, true));
        }
        for (uid, sources) in requests {
            self.hub.send(AgentFrame::ContentRequest(uid, sources));
        }
        self.hub.send(AgentFrame::Report(due));
        // The states come first. So the hub has them when it receives that no watch is lost any
        // more.
        self.hub.send_lost(self.member.watches.lost());
        self.hub.next_queued(false)
    }
}

/// The queued frames from which on questions get no answer: more than a hub with its limit of open questions causes.
const ANSWERS_LIMIT: usize = 256;

/// An open stream.
#[derive(Default)]
struct HubStream {
    begun: bool,
    /// The nonce of the last batch that was applied to the desired set.
    last_batch: u64,
    outbox: VecDeque<AgentFrame>,
    acks: VecDeque<AgentFrame>,
    /// The lost watches that were last reported.
    sent_lost: Vec<LostWatch>,
}

/// The stream to the hub, and the state that survives a stream.
struct HubLink {
    hello: Hello,
    stream: Option<HubStream>,
    previews: PendingPreviews,
    /// The hub's key for proofs of content. It is never stored.
    proof_key: Option<ProofKey>,
}

impl HubLink {
    fn new(hello: Hello) -> Self {
        Self {
            hello,
            stream: None,
            previews: PendingPreviews::default(),
            proof_key: None,
        }
    }

    /// Opens a stream with the states of all rules.
    fn connect(&mut self, states: Vec<RuleState>) {
        let mut stream = HubStream::default();
        stream
            .outbox
            .push_back(AgentFrame::Hello(self.hello.clone()));
        stream
            .outbox
            .extend(split(AgentFrame::AckedRules(states, true)));
        self.stream = Some(stream);
    }

    /// Ends the stream, and with it the requests of the hub.
    fn disconnect(&mut self) {
        self.stream = None;
        self.previews.clear();
    }

    /// Begins a snapshot. Returns whether the hub has another key for proofs than before.
    fn begin(&mut self, proof_key: Option<&ProofKey>) -> bool {
        if let Some(stream) = &mut self.stream {
            stream.begun = true;
        }
        let is_other = self.proof_key.as_ref() != proof_key;
        if is_other {
            self.proof_key = proof_key.cloned();
        }
        is_other
    }

    /// Whether the hub has begun its snapshot in this stream.
    fn has_begun(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.begun)
    }

    /// Records the last batch that was applied to the desired set.
    fn record_batch(&mut self, nonce: u64) {
        if let Some(stream) = &mut self.stream {
            stream.last_batch = nonce;
        }
    }

    /// Queues a frame, if a stream is open.
    fn send(&mut self, frame: AgentFrame) {
        if let Some(stream) = &mut self.stream {
            stream.outbox.extend(split(frame));
        }
    }

    /// Queues an answer. It is dropped while a hub that asks does not read.
    fn answer(&mut self, frame: AgentFrame) {
        let queued = self.stream.as_ref().map_or(0, |stream| stream.outbox.len());
        if queued < ANSWERS_LIMIT {
            self.send(frame);
        }
    }

    /// Queues an ack. It is sent only while the agent has room for more payload.
    fn ack(&mut self, frame: AgentFrame) {
        if let Some(stream) = &mut self.stream {
            stream.acks.extend(split(frame));
        }
    }

    /// Returns the next queued frame.
    fn next_queued(&mut self, has_room: bool) -> Option<AgentFrame> {
        let stream = self.stream.as_mut()?;
        stream.outbox.pop_front().or_else(|| {
            if has_room {
                stream.acks.pop_front()
            } else {
                None
            }
        })
    }

    /// Reports the rules that have no copies in this cluster any more.
    fn send_removed(&mut self, mut states: Vec<RuleState>) {
        let last_batch = self.stream.as_ref().map_or(0, |stream| stream.last_batch);
        for state in &mut states {
            state.last_batch = last_batch;
        }
        self.send(AgentFrame::Report(states));
    }

    /// Queues the lost watches, if they have changed.
    fn send_lost(&mut self, lost: Vec<LostWatch>) {
        if let Some(stream) = &mut self.stream
            && lost != stream.sent_lost
        {
            stream.sent_lost.clone_from(&lost);
            self.send(AgentFrame::LostWatches(lost));
        }
    }
}
