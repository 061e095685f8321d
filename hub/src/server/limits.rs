//! Limits clients. Before they have a session, a recent refusal is repeated without a request to the
//! API server, certificates are renewed at a bounded rate, and few streams at a time may be
//! unregistered. Later, what one session reads and the work that its reports cause are limited.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use runnel_proto::model::RuleUid;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::lease::{ConnectionGuard, MemberKey, RegisteredSession};
use crate::metrics::{HubMetrics, PeerLimit};
use crate::ordered_lock::LeafMutex;
use runnel_hub_core::rate_limit::{LogLimits, Rate, RateLimit, RateLimits};

/// The time for which a refusal is repeated unchanged.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// The limit of stored refusals.
const REFUSALS: usize = 4096;
/// A key is renewed once, or twice when the answer was lost.
const RENEWALS_OF_A_KEY: Rate = Rate {
    burst: 2,
    every: Duration::from_secs(60),
};
/// Each renewal is a write, and certifies another key.
const RENEWALS_OF_A_MEMBER: Rate = Rate {
    burst: 10,
    every: Duration::from_secs(10),
};
/// The log lines about one member. More of them contain no news for the hub's administrator.
const LINES: Rate = Rate {
    burst: 20,
    every: Duration::from_secs(6),
};
/// The number of parts into which the validity of a certificate is divided; each part allows one
/// more call of each kind. An agent renews at half of the validity and opens a new session after
/// that.
const RENEWALS_PER_LIFETIME: u32 = 8;

/// Returns this rate, or a higher one if certificates expire so soon that a correct agent needs it.
fn at_least(rate: Rate, certificate_life: Duration) -> Rate {
    Rate {
        every: rate.every.min(certificate_life / RENEWALS_PER_LIFETIME),
        ..rate
    }
}
/// The limit of unregistered streams of one key: the next one, and one that a network failure left
/// behind.
const STREAMS_OF_A_KEY: usize = 2;
/// The limit of unregistered streams of one member.
const STREAMS_OF_A_MEMBER: usize = 4;

/// A call that can be refused, with the expiry of the certificate of the caller, because one key
/// may have several certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    Renew(SystemTime),
    Session(SystemTime),
}

/// Limits callers by their recent calls.
pub(super) struct Peers {
    metrics: Arc<HubMetrics>,
    refused: LeafMutex<BTreeMap<(Call, MemberKey), (Instant, Status)>>,
    renewals: LeafMutex<Renewals>,
    lines: LeafMutex<LogLimits<Arc<str>>>,
    streams: Arc<LeafMutex<Streams>>,
}

impl Peers {
    /// Creates the limits. `certificate_life` is the validity of the certificates of agents.
    pub(super) fn new(metrics: Arc<HubMetrics>, certificate_life: Duration) -> Self {
        let limits = |rate| at_least(rate, certificate_life);
        Self {
            metrics,
            refused: LeafMutex::default(),
            renewals: LeafMutex::new(Renewals {
                of_keys: RateLimits::new(limits(RENEWALS_OF_A_KEY)),
                of_members: RateLimits::new(limits(RENEWALS_OF_A_MEMBER)),
            }),
            lines: LeafMutex::new(LogLimits::new(limits(LINES))),
            streams: Arc::default(),
        }
    }

    /// Returns the status with which this caller was refused recently.
    pub(super) fn refused_before(
        &self,
        call: Call,
        caller: &MemberKey,
        now: Instant,
    ) -> Option<Status> {
        let refused = self.refused.lock();
        let (at, status) = refused.get(&(call, caller.clone()))?;
        let status = (now.saturating_duration_since(*at) < REFUSED_FOR).then(|| status.clone())?;
        self.metrics.limited(PeerLimit::Calls, 1);
        Some(status)
    }

    /// Stores a refusal of a caller.
    pub(super) fn refuse(&self, call: Call, caller: &MemberKey, status: &Status, now: Instant) {
        let mut refused = self.refused.lock();
        if refused.len() >= REFUSALS {
            refused.retain(|_, (at, _)| now.saturating_duration_since(*at) < REFUSED_FOR);
        }
        if refused.len() < REFUSALS {
            refused.insert((call, caller.clone()), (now, status.clone()));
        }
    }

    /// Whether a certificate may be renewed now. Only callers that are allowed to renew are
    /// counted.
    pub(super) fn may_renew(&self, caller: &MemberKey, now: Instant) -> bool {
        let may = self.renewals.lock().take(caller, now);
        if !may {
            self.metrics.limited(PeerLimit::Renewals, 1);
        }
        may
    }

    /// Returns whether a line about this member may be logged: the number of skipped lines since
    /// the last one, or `None`.
    pub(super) fn line(&self, uid: &str, now: Instant) -> Option<u64> {
        let line = self.lines.lock().line(&uid.into(), now);
        if line.is_none() {
            self.metrics.limited(PeerLimit::LogLines, 1);
        }
        line
    }

    /// Registers a stream whose agent has not reported its intents. Beyond the limit the oldest one
    /// is ended.
    pub(super) fn stream(&self, caller: MemberKey) -> UnregisteredStream {
        let (stream, ended) = self.streams.lock().begin(&caller);
        self.metrics.limited(PeerLimit::Streams, ended);
        UnregisteredStream {
            streams: self.streams.clone(),
            uid: caller.uid,
            number: stream.0,
            superseded: stream.1,
        }
    }
}

/// The recent renewals of certificates.
struct Renewals {
    of_keys: RateLimits<MemberKey>,
    of_members: RateLimits<Arc<str>>,
}

impl Renewals {
    /// Counts a renewal, if there is room for it. Returns whether there is.
    fn take(&mut self, caller: &MemberKey, now: Instant) -> bool {
        let may = self.of_keys.has_room(caller, now) && self.of_members.take(&caller.uid, now);
        if may {
            self.of_keys.take(caller, now);
        }
        may
    }
}

#[derive(Default)]
struct Streams {
    number: u64,
    /// The streams of each member, the oldest first.
    of_members: BTreeMap<Arc<str>, Vec<(u64, MemberKey, CancellationToken)>>,
}

impl Streams {
    fn begin(&mut self, caller: &MemberKey) -> ((u64, CancellationToken), u64) {
        self.number += 1;
        let streams = self.of_members.entry(caller.uid.clone()).or_default();
        let (superseded, mut ended) = (CancellationToken::new(), 0);
        streams.push((self.number, caller.clone(), superseded.clone()));
        loop {
            let of_key = streams.iter().filter(|(_, key, _)| key == caller).count();
            let oldest = if of_key > STREAMS_OF_A_KEY {
                streams.iter().position(|(_, key, _)| key == caller)
            } else if streams.len() > STREAMS_OF_A_MEMBER {
                Some(0)
            } else {
                None
            };
            let Some(oldest) = oldest else {
                return ((self.number, superseded), ended);
            };
            streams.remove(oldest).2.cancel();
            ended += 1;
        }
    }

    fn end(&mut self, uid: &Arc<str>, number: u64) {
        if let Some(streams) = self.of_members.get_mut(uid) {
            streams.retain(|(known, ..)| *known != number);
            if streams.is_empty() {
                self.of_members.remove(uid);
            }
        }
    }
}

/// A stream whose agent has not reported its acked set. It is dropped when the agent has, or when
/// the stream ends.
pub(super) struct UnregisteredStream {
    streams: Arc<LeafMutex<Streams>>,
    uid: Arc<str>,
    number: u64,
    superseded: CancellationToken,
}

impl UnregisteredStream {
    /// Completes when newer streams of the member have superseded this one.
    pub(super) async fn superseded(stream: Option<&Self>) {
        match stream {
            Some(stream) => stream.superseded.cancelled().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for UnregisteredStream {
    fn drop(&mut self) {
        self.streams.lock().end(&self.uid, self.number);
    }
}

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

#[cfg(test)]
mod tests {
    use runnel_transport::identity::Fingerprint;

    use super::*;

    const SESSION: Call = Call::Session(SystemTime::UNIX_EPOCH);

    fn key(uid: &str, number: u8) -> MemberKey {
        MemberKey {
            uid: uid.into(),
            key: Fingerprint::of_key(&[number]),
        }
    }

    fn peers() -> Peers {
        Peers::new(Arc::default(), Duration::from_secs(24 * 3600))
    }

    #[test]
    fn agents_with_short_lived_certificates_are_not_limited() {
        let (peers, start) = (
            Peers::new(Arc::default(), Duration::from_secs(4)),
            Instant::now(),
        );
        for number in 0..100 {
            let now = start + Duration::from_secs(2) * u32::from(number);
            assert!(peers.may_renew(&key("a", number), now), "renewal {number}");
            // The end of a session, and the start of the next one.
            assert!(
                peers.line("a", now).is_some() && peers.line("a", now).is_some(),
                "line {number}"
            );
        }
    }

    #[test]
    fn refusal_is_repeated_for_a_second() {
        let (peers, start) = (peers(), Instant::now());
        let caller = key("a", 1);
        assert!(peers.refused_before(SESSION, &caller, start).is_none());
        peers.refuse(SESSION, &caller, &Status::unauthenticated("why"), start);
        let again = peers
            .refused_before(SESSION, &caller, start + REFUSED_FOR / 2)
            .unwrap();
        assert_eq!(again.message(), "why");
        assert!(
            peers
                .refused_before(Call::Renew(SystemTime::UNIX_EPOCH), &caller, start)
                .is_none(),
            "another call"
        );
        assert!(
            peers.refused_before(SESSION, &key("a", 2), start).is_none(),
            "another key"
        );
        let newer = Call::Session(SystemTime::UNIX_EPOCH + REFUSED_FOR);
        assert!(
            peers.refused_before(newer, &caller, start).is_none(),
            "another certificate"
        );
        assert!(
            peers
                .refused_before(SESSION, &caller, start + REFUSED_FOR)
                .is_none()
        );
        for number in 0..3 * REFUSALS {
            peers.refuse(
                SESSION,
                &key(&number.to_string(), 1),
                &Status::unauthenticated("why"),
                start,
            );
        }
        assert!(peers.refused.lock().len() <= REFUSALS);
    }

    #[test]
    fn renewals_are_bounded_by_key_and_by_member() {
        let (peers, start) = (peers(), Instant::now());
        let of_one = (0..100)
            .filter(|_| peers.may_renew(&key("a", 1), start))
            .count();
        assert_eq!(of_one, 2);
        // Each renewal certifies a key that can be renewed again.
        let of_chain = (2..200)
            .filter(|number| peers.may_renew(&key("a", *number), start))
            .count();
        assert_eq!(of_chain, 8);
        assert!(peers.may_renew(&key("b", 1), start), "another member");
        assert!(peers.may_renew(&key("a", 1), start + Duration::from_secs(60)));
        assert_eq!(peers.metrics.times_limited(PeerLimit::Renewals), 98 + 190);
    }

    #[test]
    fn oldest_unregistered_stream_of_a_key_is_displaced() {
        let peers = peers();
        let other = peers.stream(key("a", 9));
        let mut streams: Vec<_> = (0..40).map(|_| peers.stream(key("a", 1))).collect();
        let open = |streams: &[UnregisteredStream]| {
            streams
                .iter()
                .filter(|s| !s.superseded.is_cancelled())
                .count()
        };
        assert_eq!(
            (
                open(&streams),
                peers.metrics.times_limited(PeerLimit::Streams)
            ),
            (STREAMS_OF_A_KEY, 38)
        );
        assert!(!other.superseded.is_cancelled() && !streams[39].superseded.is_cancelled());
        // A stream that registered no longer counts.
        drop(streams.pop());
        streams.push(peers.stream(key("a", 1)));
        assert_eq!(open(&streams), STREAMS_OF_A_KEY);
        let many: Vec<_> = (10..60)
            .map(|number| peers.stream(key("a", number)))
            .collect();
        assert_eq!(open(&many), STREAMS_OF_A_MEMBER);
        drop((other, streams, many));
        assert!(peers.streams.lock().of_members.is_empty());
    }
}
