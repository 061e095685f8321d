//! The stream to the hub: the queued frames, and the content to request.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use runnel_proto::convert::split;
use runnel_proto::model::{AgentFrame, Hello, LostWatch, ProofKey, RuleState, RuleUid};

use crate::copy::IntentKey;

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
