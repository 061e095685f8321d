//! The stream to the hub: its queued frames, the frames of the hub, and the reports of the agent.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use runnel_proto::convert::split;
use runnel_proto::model::{
    AgentFrame, Batch, Hello, HubFrame, LostWatch, Proof, ProofKey, Refusal, RuleState, RuleUid,
    SnapshotBegin, SnapshotEnd, SourceRef,
};

use super::Reconciler;
use crate::copy::{CopyStatus, IntentKey};
use crate::desired::Shows;

impl Reconciler {
    /// Opens a stream. Its first frames report all rules.
    pub(super) fn connected(&mut self, now: Instant) {
        let rules: Vec<_> = self.desired.rules().uids().cloned().collect();
        // Approvals of an earlier stream are void in a new one.
        self.disconnected(now);
        let states = self.states(&rules);
        self.hub.connect(states);
        for uid in &rules {
            self.report.reported(uid);
        }
    }

    /// Ends the stream, and with it all approvals of removals.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.hub.stream = None;
        self.previews.clear();
        for copy in self.prunes.end_stream() {
            self.reconcile_now(&copy, now);
        }
    }

    /// Returns the states of rules, and records the digests that they report.
    fn states(&mut self, rules: &[RuleUid]) -> Vec<RuleState> {
        let states: Vec<_> = rules.iter().filter_map(|uid| self.state(uid)).collect();
        for state in &states {
            let digest = state.namespace_prunes.as_ref().map(|prunes| prunes.digest);
            self.prunes.report(&state.uid, digest);
        }
        states
    }

    /// Returns the state of a rule.
    fn state(&mut self, uid: &RuleUid) -> Option<RuleState> {
        let acked_rule = self.desired.rules().acked(uid)?;
        let proof = self.proof(uid);
        Some(RuleState {
            uid: uid.clone(),
            rule: acked_rule.rule,
            intents_digest: acked_rule.digest,
            intents: acked_rule.intents,
            terms_digest: acked_rule.terms,
            counts: self.report.counts(uid),
            failures: self.report.failures(uid),
            gone: false,
            last_batch: 0,
            namespace_prunes: self.namespace_prunes_of(uid),
            waiting: self.report.waiting(uid),
            suspended: acked_rule.suspended,
            proof,
            changes: vec![],
        })
    }

    /// Returns the proof of a rule's copies under the hub's key. `None` while a copy is neither
    /// applied nor waiting for its namespace, and while a watch is lost.
    fn proof(&mut self, uid: &RuleUid) -> Option<Proof> {
        let key = self.hub.proof_key.clone()?;
        if !self.watches.lost().is_empty() {
            return None;
        }
        let counts = self.report.counts(uid);
        if counts.applied.saturating_add(counts.waiting) != counts.copies {
            return None;
        }
        let (report, records) = (&self.report, &self.records);
        let shows = |copy: &SourceRef| match report.outcome(copy, uid) {
            Some(CopyStatus::Applied) => {
                Shows::Content(records.live(copy).and_then(|live| live.facts.digest))
            }
            _ => Shows::Nothing,
        };
        Some(key.proof(uid, self.desired.shown(uid, shows)?))
    }

    pub(super) fn frame(&mut self, frame: HubFrame, refused: Vec<Refusal>, now: Instant) {
        match frame {
            HubFrame::SnapshotBegin(begin) => self.begin(&begin, now),
            // The agent ignores the orders of a hub that has revoked this cluster, until the hub
            // accepts it again.
            _ if self.revoked => {}
            HubFrame::WantDetail(uids) => {
                for uid in uids {
                    let pairs = self.desired.rules().pairs(&uid);
                    self.hub.send(AgentFrame::Detail(uid, pairs, true));
                }
            }
            HubFrame::Batch(batch) => self.batch(batch, refused, now),
            HubFrame::SnapshotEnd(end) => self.end(end, now),
            HubFrame::Inspect(question) => {
                let answer = self.inspected(&question);
                self.hub.send(AgentFrame::Inspected(Box::new(answer)));
            }
            HubFrame::ListCopies(question) => {
                let answer = self.listed(&question);
                self.hub.send(AgentFrame::CopyList(answer));
            }
            HubFrame::PreviewRequest(asked) => self.preview(&asked, &refused),
            // The connection handles these frames.
            HubFrame::Drain(_) | HubFrame::HandedOver | HubFrame::Revoked(_) => {}
            HubFrame::Authorities(_) | HubFrame::Alive => {}
        }
    }

    fn begin(&mut self, begin: &SnapshotBegin, now: Instant) {
        if let Some(stream) = &mut self.hub.stream {
            stream.begun = true;
        }
        if self.hub.proof_key != begin.proof_key {
            self.hub.proof_key.clone_from(&begin.proof_key);
            self.desired
                .rules()
                .uids()
                .for_each(|uid| self.report.touch(uid));
        }
        let accepted = std::mem::take(&mut self.revoked);
        let moved = self.desired.set_hub_cluster(&begin.hub_cluster_uid);
        if moved {
            self.desired.mark_changed();
        }
        self.store.end_purge(&mut self.desired);
        if accepted || moved {
            self.reconcile_all(now);
        }
    }

    fn end(&mut self, end: SnapshotEnd, now: Instant) {
        for copy in self.desired.confirm(&self.records) {
            self.reconcile_now(&copy, now);
        }
        for uid in self.desired.rules().uids().cloned().collect::<Vec<_>>() {
            // The approval may have arrived before the terms were confirmed.
            self.apply_approval(&uid, now);
            // The hub waits for a report of the complete snapshot.
            self.report.touch(&uid);
        }
        let (intents, digest) = self.desired.rules().sum();
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

    fn batch(&mut self, batch: Batch, unreadable: Vec<Refusal>, now: Instant) {
        let nonce = batch.nonce;
        if let Some(stream) = &mut self.hub.stream {
            stream.last_batch = nonce;
        }
        // An approval covers the copies that wait now. A tombstone in the same batch may remove
        // some of them.
        for (uid, digest) in batch
            .rules
            .iter()
            .filter_map(|delta| Some((&delta.uid, delta.prune?)))
        {
            self.handle_approval(uid, digest, now);
        }
        let taken = self.desired.take(batch, unreadable, &self.records);
        for new in taken.payloads {
            self.hub.end_request(&new.key);
            self.cache.insert(new.key, new.revision, new.payload);
        }
        for key in &taken.dropped {
            self.hub.end_request(key);
            self.cache.remove(key);
        }
        for uid in &taken.rules {
            self.audit.ordered(uid, now);
        }
        for copy in &taken.looks {
            self.reconcile_now(copy, now);
        }
        for uid in &taken.rules {
            self.apply_approval(uid, now);
            self.report.touch(uid);
        }
        self.hub.ack(AgentFrame::Ack(nonce, taken.refused));
    }

    /// Returns the next frame for the hub, if there is one and a stream is open.
    pub fn next_frame(&mut self, now: Instant) -> Option<AgentFrame> {
        let queued = self.hub.next_queued(self.jobs.has_room());
        if queued.is_some() || !self.hub.has_begun() {
            return queued;
        }
        self.send_removed_rules();
        self.send_resync(now);
        self.hub.send_requests(now);
        self.send_states(now);
        // The states come first. So the hub has them when it receives that no watch is lost any
        // more.
        self.hub.send_lost(self.watches.lost());
        self.hub.next_queued(false)
    }

    /// Reports the rules that have no copies in this cluster any more.
    fn send_removed_rules(&mut self) {
        // An unlisted namespace may still have copies of a rule.
        let gone = self
            .desired
            .take_finished(&self.watches.unlisted_namespaces());
        let last_batch = self
            .hub
            .stream
            .as_ref()
            .map_or(0, |stream| stream.last_batch);
        let mut states = vec![];
        for gone in gone {
            self.report.forget(&gone.uid);
            self.prunes.report(&gone.uid, None);
            self.desired.mark_changed();
            let changes = self.audit.take_unreported(&gone.uid);
            self.audit.forget(&gone.uid);
            states.push(RuleState {
                rule: gone.rule,
                changes,
                gone: true,
                last_batch,
                ..RuleState::new(gone.uid)
            });
        }
        self.hub.send(AgentFrame::Report(states));
    }

    /// Reports the intents of the rules of found copies, which the hub did not send in this stream.
    fn send_resync(&mut self, now: Instant) {
        let rules = self.hub.take_resync(now);
        for uid in &rules {
            self.desired.forget_deleted(uid, &self.records);
            self.jobs.outdate_decisions();
        }
        let states: Vec<_> = rules.iter().filter_map(|uid| self.state(uid)).collect();
        if !states.is_empty() {
            self.hub.send(AgentFrame::AckedRules(states, true));
        }
    }

    fn send_states(&mut self, now: Instant) {
        let due = self.report.take_due(now);
        for uid in &due {
            self.apply_approval(uid, now);
        }
        let mut states = self.states(&due);
        for state in &mut states {
            state.changes = self.audit.take_unreported(&state.uid);
        }
        self.hub.send(AgentFrame::Report(states));
    }
}

/// Delay after which missing content is requested again: the hub may have just started.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// Delay in which the agent collects found copies before it reports their rules to the hub.
const RESYNC_DELAY: Duration = Duration::from_secs(1);

/// An open stream.
#[derive(Default)]
pub(super) struct HubStream {
    pub(super) begun: bool,
    /// The nonce of the last batch that was applied to the desired set.
    pub(super) last_batch: u64,
    outbox: VecDeque<AgentFrame>,
    acks: VecDeque<AgentFrame>,
    /// Intents whose content must be requested.
    ask: BTreeSet<IntentKey>,
    /// The time of the next request for missing content.
    ask_again: Option<Instant>,
}

/// The stream to the hub, and the state that survives a stream.
pub(super) struct HubLink {
    hello: Hello,
    pub(super) stream: Option<HubStream>,
    /// The lost watches that were last reported in this stream.
    sent_lost: Vec<LostWatch>,
    /// Intents whose content only the hub has.
    wanting: BTreeSet<IntentKey>,
    /// Rules with copies that the hub did not order. The agent reports their intents at
    /// `resync_at`.
    resync: BTreeSet<RuleUid>,
    resync_at: Option<Instant>,
    /// The hub's key for proofs of content. It is never stored.
    pub(super) proof_key: Option<ProofKey>,
}

impl HubLink {
    pub(super) fn new(hello: Hello) -> Self {
        Self {
            hello,
            stream: None,
            sent_lost: vec![],
            wanting: BTreeSet::new(),
            resync: BTreeSet::new(),
            resync_at: None,
            proof_key: None,
        }
    }

    /// Opens a stream with the states of all rules.
    pub(super) fn connect(&mut self, states: Vec<RuleState>) {
        let mut stream = HubStream::default();
        stream
            .outbox
            .push_back(AgentFrame::Hello(self.hello.clone()));
        stream
            .outbox
            .extend(split(AgentFrame::AckedRules(states, true)));
        self.resync.clear();
        self.resync_at = None;
        self.sent_lost.clear();
        self.stream = Some(stream);
    }

    /// Whether the hub has begun its snapshot in this stream.
    pub(super) fn has_begun(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.begun)
    }

    /// Queues a frame, if a stream is open.
    pub(super) fn send(&mut self, frame: AgentFrame) {
        if let Some(stream) = &mut self.stream {
            stream.outbox.extend(split(frame));
        }
    }

    /// Queues an ack. It is sent only while the agent has room for more payload.
    pub(super) fn ack(&mut self, frame: AgentFrame) {
        if let Some(stream) = &mut self.stream {
            stream.acks.extend(split(frame));
        }
    }

    /// Returns the next queued frame.
    pub(super) fn next_queued(&mut self, has_room: bool) -> Option<AgentFrame> {
        let stream = self.stream.as_mut()?;
        stream.outbox.pop_front().or_else(|| {
            if has_room {
                stream.acks.pop_front()
            } else {
                None
            }
        })
    }

    /// Requests the content of an intent.
    pub(super) fn request_content(&mut self, intent: &IntentKey) {
        if self.wanting.insert(intent.clone())
            && let Some(stream) = &mut self.stream
        {
            stream.ask.insert(intent.clone());
        }
    }

    /// Ends the request for the content of an intent, because it has arrived or is not needed any
    /// more.
    pub(super) fn end_request(&mut self, intent: &IntentKey) {
        self.wanting.remove(intent);
    }

    /// Queues the requests for content that are due.
    pub(super) fn send_requests(&mut self, now: Instant) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        if stream.ask_again.is_none_or(|at| at <= now) {
            stream.ask.clone_from(&self.wanting);
            stream.ask_again = Some(now + ASK_AGAIN);
        }
        let mut wants: BTreeMap<RuleUid, Vec<_>> = BTreeMap::new();
        for key in std::mem::take(&mut stream.ask) {
            if self.wanting.contains(&key) {
                wants.entry(key.rule).or_default().push(key.source);
            }
        }
        for (uid, sources) in wants {
            self.send(AgentFrame::Want(uid, sources));
        }
    }

    /// Queues the lost watches, if they have changed.
    pub(super) fn send_lost(&mut self, lost: Vec<LostWatch>) {
        if lost != self.sent_lost {
            self.sent_lost.clone_from(&lost);
            self.send(AgentFrame::LostWatches(lost));
        }
    }

    /// Schedules the report of the intents of a rule.
    pub(super) fn resync(&mut self, rule: &RuleUid, now: Instant) {
        self.resync.insert(rule.clone());
        self.resync_at.get_or_insert(now + RESYNC_DELAY);
    }

    /// Returns the rules whose intents must be reported now.
    pub(super) fn take_resync(&mut self, now: Instant) -> BTreeSet<RuleUid> {
        if self.resync_at.is_none_or(|at| at > now) {
            return BTreeSet::new();
        }
        self.resync_at = None;
        std::mem::take(&mut self.resync)
    }

    /// Returns when the next frame is due, except reports.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let stream = self.stream.as_ref().filter(|stream| stream.begun)?;
        let ask = stream.ask_again.filter(|_| !self.wanting.is_empty());
        [ask, self.resync_at].into_iter().flatten().min()
    }
}
