//! The limits of what one session reads from its agent, and of the work that its reports cause.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use runnel_hub_core::rate_limit::{Rate, RateLimit};
use runnel_proto::model::RuleUid;

use super::peers::UnregisteredStream;
use crate::lease::{ConnectionGuard, RegisteredSession};
use crate::metrics::{HubMetrics, PeerLimit};

/// The rule states and refusals that a session reads: at first all of an agent with 20,000 rules at
/// once, then 2,000 a second.
const READS: Rate = Rate {
    burst: 60_000,
    every: Duration::from_micros(500),
};
/// The statuses that a session marks as stale. Each may cost a write.
const STATUSES: Rate = Rate {
    burst: 5000,
    every: Duration::from_millis(10),
};
/// Rules that are judged because the requests of a session changed. Each judgment reads all
/// clusters of the rule.
const JUDGEMENTS: Rate = Rate {
    burst: 1000,
    every: Duration::from_millis(50),
};
/// How much longer a delayed frame waits, so that several are handled together.
const TOGETHER: Duration = Duration::from_millis(100);

/// The limits of one session.
pub(super) struct Bounds {
    /// The unregistered stream, until the session is registered.
    stream: Option<UnregisteredStream>,
    guard: Option<ConnectionGuard>,
    /// The registration of the session, from then on.
    session: Option<RegisteredSession>,
    reads: RateLimit,
    /// When the session reads again.
    pub(super) read_at: Option<Instant>,
    statuses: RateLimit,
    judgments: RateLimit,
    /// Rules whose status is marked later.
    pub(super) deferred_statuses: BTreeSet<RuleUid>,
    /// Rules that are judged later.
    pub(super) deferred_judgments: BTreeSet<RuleUid>,
    /// When the delayed rules are due.
    pub(super) deferred_until: Option<Instant>,
    pub(super) refusals: u64,
}

impl Bounds {
    /// Returns the limits of a stream that begins on a connection.
    pub(super) fn new(stream: Option<UnregisteredStream>, guard: Option<ConnectionGuard>) -> Self {
        Self {
            stream,
            guard,
            session: None,
            reads: RateLimit::new(READS),
            read_at: None,
            statuses: RateLimit::new(STATUSES),
            judgments: RateLimit::new(JUDGEMENTS),
            deferred_statuses: BTreeSet::new(),
            deferred_judgments: BTreeSet::new(),
            deferred_until: None,
            refusals: 0,
        }
    }

    /// Completes when newer streams have superseded this one.
    pub(super) async fn superseded(&self) {
        UnregisteredStream::superseded(self.stream.as_ref()).await;
    }

    /// Restarts the time limit, because the agent continues its report.
    pub(super) fn extend(&self) {
        if let Some(guard) = &self.guard {
            guard.extend();
        }
    }

    /// Registers the session, which then counts as connected.
    pub(super) fn registered(&mut self) {
        self.stream = None;
        self.session = self.guard.as_ref().map(ConnectionGuard::registered);
    }

    pub(super) fn spend_reads(&mut self, items: usize, metrics: &HubMetrics) {
        let now = Instant::now();
        self.reads
            .consume(u32::try_from(items).unwrap_or(u32::MAX), now);
        let read_at = self.reads.room_at(now);
        if read_at.is_some() && self.read_at.is_none() {
            metrics.limited(PeerLimit::Reports, 1);
        }
        self.read_at = read_at;
    }

    /// Returns the rules whose status may be marked now. The others are delayed.
    pub(super) fn statuses_now(
        &mut self,
        rules: Vec<RuleUid>,
        metrics: &HubMetrics,
    ) -> Vec<RuleUid> {
        let now = Instant::now();
        let (soon, late): (Vec<_>, Vec<_>) =
            rules.into_iter().partition(|_| self.statuses.take(now));
        metrics.limited(PeerLimit::Statuses, late.len() as u64);
        self.deferred_statuses.extend(late);
        self.defer(now);
        soon
    }

    /// Returns the rules that may be judged now. The others are delayed.
    pub(super) fn judgments_now(
        &mut self,
        rules: BTreeSet<RuleUid>,
        metrics: &HubMetrics,
    ) -> BTreeSet<RuleUid> {
        let now = Instant::now();
        let (soon, late): (BTreeSet<_>, BTreeSet<_>) =
            rules.into_iter().partition(|_| self.judgments.take(now));
        metrics.limited(PeerLimit::Judgments, late.len() as u64);
        self.deferred_judgments.extend(late);
        self.defer(now);
        soon
    }

    pub(super) fn defer(&mut self, now: Instant) {
        let statuses =
            (!self.deferred_statuses.is_empty()).then(|| self.statuses.room_at(now).unwrap_or(now));
        let judgments = (!self.deferred_judgments.is_empty())
            .then(|| self.judgments.room_at(now).unwrap_or(now));
        self.deferred_until = statuses
            .into_iter()
            .chain(judgments)
            .min()
            .map(|at| at + TOGETHER);
    }
}
