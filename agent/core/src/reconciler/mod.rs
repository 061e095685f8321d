//! The agent's mind: what it hears (watches, the hub, finished work) goes in, what it wants done (work, frames, a
//! store of its terms) comes out. No I/O and no clock, so that whole histories can be played in a test.
mod drift;
mod event;
mod hub;
mod inspect;
mod lost;
mod namespace_prunes;
mod policy;
mod proof;
mod quota;
mod reconcile_copy;
mod revoke;
mod stored;
mod suppose;
#[cfg(test)]
mod tests;
mod watched;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{
    AgentFrame, AskedDigest, Counts, Hello, LostWatch, ProofKey, Revision, RuleName, RuleUid, SourceRef,
};

use crate::backoff::Jitter;
use crate::cache::{CACHE_BYTES, PayloadCache};
use crate::contention::Contentions;
use crate::copy::CopyError;
use crate::copy::IntentKey;
use crate::deletes::Deletes;
use crate::desired::{Desired, Home, StoredRule};
use crate::inflight_budget::{InflightBudget, ROOM_BYTES};
use crate::job::Supposition;
use crate::job::Wrote;
use crate::policy::{Area, Policy};
use crate::prunes::Allowed;
use crate::queue::{Key, Queue};
use crate::records::{Records, Usage};
use crate::report::Report;

pub use event::{Event, Notice, WatchScope};
use stored::Stored;

/// Content that was asked for and has not come is asked for again after this: the hub may just have started.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// How many runs are under way at once.
pub const PARALLEL: usize = 8;

/// What is needed to begin.
pub struct Setup {
    /// Where the agent lives.
    pub home: Home,
    /// The agent's first words on each stream.
    pub hello: Hello,
    /// Terms from the store.
    pub stored: Vec<StoredRule>,
    /// The hub cluster's uid from the store.
    pub hub_cluster_uid: Option<String>,
    /// The policy to begin with.
    pub policy: Arc<Policy>,
    /// For jitter.
    pub seed: u64,
}

/// What the watch of one area has said.
#[derive(Default)]
struct Watched {
    /// The names of a list that is not complete yet.
    listing: Option<BTreeSet<SourceRef>>,
    complete: bool,
    /// Why the agent may not watch it, or why it could not be listed so far.
    forbidden: Option<CopyError>,
    /// The watch is lost, with the last HTTP status: what is known may not be so any more.
    lost: Option<u16>,
}

/// A failure of one copy, and what was wanted when it failed.
struct Failed {
    about: (IntentKey, Option<Revision>),
    copy_error: CopyError,
}

/// A run that is under way.
struct RunningJob {
    about: (IntentKey, Option<Revision>),
    /// Versions that a watch named meanwhile; `None` for a deletion.
    received: Vec<Option<Arc<str>>>,
    /// It puts a copy back that was as it should be.
    drift: bool,
    /// Who else wrote the object before, as far as that is known.
    others: Option<Arc<str>>,
    rule: RuleName,
    /// It deletes, or may have to.
    deletes: bool,
    /// It carries a removal out.
    removes: bool,
    adds: Usage,
}

/// In what a live object of some version differs from what was wanted then.
struct Compared {
    version: Arc<str>,
    about: (IntentKey, Option<Revision>),
    copy_error: CopyError,
}

/// A live stream.
#[derive(Default)]
struct HubStream {
    begun: bool,
    /// The nonce of the last batch that was taken in.
    last_batch: u64,
    outbox: VecDeque<AgentFrame>,
    acks: VecDeque<AgentFrame>,
    /// Intents whose content is to be asked for.
    ask: BTreeSet<IntentKey>,
    /// When what has not come is asked for again.
    ask_again: Option<Instant>,
}

/// Counters for metrics, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Copies put back.
    pub drift_corrected: u64,
    /// Applies that changed nothing.
    pub equal: u64,
    /// Copies written, adopted ones too.
    pub written: u64,
    /// Copies deleted or retained.
    pub removed: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Objects taken over because they were equal, those that were once copies too.
    pub adopted: u64,
    /// Objects taken over and overwritten.
    pub overwritten: u64,
    /// Copies deleted and created anew.
    pub recreated: u64,
    /// Copies that are fought for just now.
    pub contentions: u64,
}

/// The mind of one agent.
pub struct Reconciler {
    desired: Desired,
    records: Records,
    report: Report,
    queue: Queue,
    cache: PayloadCache,
    room: InflightBudget,
    room_limit: usize,
    jitter: Jitter,
    hello: Hello,
    policy: Arc<Policy>,
    home: Arc<str>,
    areas: BTreeMap<Area, Watched>,
    namespace_list: Option<BTreeSet<Arc<str>>>,
    namespaces_complete: bool,
    /// The watch of namespaces is lost.
    namespaces_lost: Option<u16>,
    /// What the hub was told last of lost watches, on this stream.
    sent_lost: Vec<LostWatch>,
    started: bool,
    stored: Vec<StoredRule>,
    failed: BTreeMap<SourceRef, Failed>,
    namespace_failed: BTreeMap<Arc<str>, CopyError>,
    runs: BTreeMap<SourceRef, RunningJob>,
    /// What was heard during a run and its result do not fit: look again.
    reread: BTreeSet<SourceRef>,
    /// Copies that somebody changed, to be put back; and who, as far as that is known.
    drifted: BTreeMap<SourceRef, Option<Arc<str>>>,
    /// Copies that were put back lately.
    contentions: Contentions,
    /// Copies that were deleted lately.
    deletes: Deletes,
    /// Copies that are left as somebody changed them, and in what they differ.
    compared: BTreeMap<SourceRef, Compared>,
    /// Copies that were deleted, or lost their marks, and are left so: what they held.
    lost: BTreeMap<SourceRef, (IntentKey, Revision)>,
    /// Copies that held what they should until somebody wrote another revision with our marks: what they held.
    rewritten: BTreeMap<SourceRef, (IntentKey, Revision)>,
    /// Copies in namespaces given up that the hub lets us delete.
    namespace_prunes: Allowed,
    /// What the hub was told last of the copies in namespaces given up, by rule.
    approved: BTreeMap<RuleUid, AskedDigest>,
    /// Questions of the hub for which something is still to be read.
    suppositions: VecDeque<(u64, Supposition)>,
    /// The questions of this stream that are not answered, by numbers of our own that no other stream has.
    questions: BTreeSet<u64>,
    next_question: u64,
    /// Intents whose content only the hub has.
    wanting: BTreeSet<IntentKey>,
    session: Option<HubStream>,
    /// Rules of which copies came to light: the hub is to be told what is held of them, and when.
    resync: BTreeSet<RuleUid>,
    resync_at: Option<Instant>,
    /// Under which the hub has it proved what stands here; in memory only.
    proof_key: Option<ProofKey>,
    /// The hub has revoked this cluster, and has not begun a session with it since.
    revoked: bool,
    /// How far what outlives a restart is stored.
    stored_state: Stored,
    notices: Vec<Notice>,
    totals: Totals,
    /// Whether this agent is the active one of its cluster.
    active: bool,
}

impl Reconciler {
    /// A mind that has heard nothing yet.
    pub fn new(setup: Setup) -> Self {
        let home = setup.home.namespace.as_str().into();
        let areas = setup.policy.areas().into_iter().map(|area| (area, Watched::default())).collect();
        let mut desired = Desired::new(setup.home, setup.policy.clone());
        if let Some(uid) = &setup.hub_cluster_uid {
            desired.set_hub_cluster(uid);
        }
        Self {
            desired,
            records: Records::default(),
            report: Report::default(),
            queue: Queue::default(),
            cache: PayloadCache::new(CACHE_BYTES),
            room: InflightBudget::default(),
            room_limit: ROOM_BYTES,
            jitter: Jitter::new(setup.seed),
            hello: setup.hello,
            policy: setup.policy,
            home,
            areas,
            namespace_list: None,
            namespaces_complete: false,
            namespaces_lost: None,
            sent_lost: vec![],
            started: false,
            stored: setup.stored,
            failed: BTreeMap::new(),
            namespace_failed: BTreeMap::new(),
            runs: BTreeMap::new(),
            reread: BTreeSet::new(),
            drifted: BTreeMap::new(),
            contentions: Contentions::default(),
            deletes: Deletes::default(),
            compared: BTreeMap::new(),
            lost: BTreeMap::new(),
            rewritten: BTreeMap::new(),
            namespace_prunes: Allowed::default(),
            approved: BTreeMap::new(),
            suppositions: VecDeque::new(),
            questions: BTreeSet::new(),
            next_question: 0,
            wanting: BTreeSet::new(),
            session: None,
            resync: BTreeSet::new(),
            resync_at: None,
            proof_key: None,
            revoked: false,
            stored_state: Stored::default(),
            notices: vec![],
            totals: Totals::default(),
            active: true,
        }
    }

    /// Sets other bounds for payloads in memory and for payloads that wait to be applied.
    pub fn with_bounds(mut self, cache: usize, room: usize) -> Self {
        self.cache = PayloadCache::new(cache);
        self.room_limit = room;
        self
    }

    /// Takes in what was heard.
    pub fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Policy(policy) => self.set_policy(policy, now),
            Event::CopiesListed(area) => self.copies_listed(&area),
            Event::Copy(copy, live) => self.copy_seen(&copy, live, now),
            Event::Content(seen) => self.cache.offer(seen.key, seen.revision, seen.payload),
            Event::CopyGone(copy, uid) => self.copy_gone(&copy, &uid, now),
            Event::CopiesComplete(area) => self.copies_complete(&area, now),
            Event::CopiesForbidden(area, copy_error) => self.copies_forbidden(&area, copy_error, now),
            Event::WatchLost(scope, status) => self.watch_lost(&scope, status, now),
            Event::WatchResumed(scope) => self.watch_resumed(&scope),
            Event::NamespacesListed => self.namespace_list = Some(BTreeSet::new()),
            Event::Namespace(name, namespace) => self.namespace_seen(&name, namespace, now),
            Event::NamespaceGone(name) => self.namespace_gone(&name, now),
            Event::NamespacesComplete => self.namespaces_complete(now),
            Event::HubConnected => self.connected(now),
            Event::Hub(frame, refused) => self.frame(frame, refused, now),
            Event::HubLost => self.lost(now),
            Event::Revoked => self.revoked(now),
            Event::Done(done) => self.done(*done, now),
        }
    }

    /// Whether the watches have delivered their first lists, so that the agent knows what it holds.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Whether more may be taken from the hub.
    pub fn has_room(&self) -> bool {
        self.room.bytes() <= self.room_limit
    }

    /// When to come back at the latest.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let begun = self.session.as_ref().is_some_and(|session| session.begun);
        let report = self.report.next_due(now).filter(|_| begun);
        let calm = self.contentions.next_calm();
        let ask =
            self.session.as_ref().filter(|_| begun && !self.wanting.is_empty()).and_then(|session| session.ask_again);
        let resync = self.resync_at.filter(|_| begun);
        // What is due already waits for something else: a free run, or a place in the stream.
        [self.queue.next_due(), report, ask, calm, resync].into_iter().flatten().filter(|due| *due > now).min()
    }

    /// What people should see, since this was last asked.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Sums over all copies.
    pub fn counts(&self) -> Counts {
        self.report.totals()
    }

    /// Counters since the start.
    pub fn totals(&self) -> Totals {
        Totals { contentions: self.contentions.count() as u64, ..self.totals }
    }

    /// Bytes of payload in memory.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    #[cfg(test)]
    fn acked_pairs(&self, uid: &str) -> Vec<runnel_proto::model::AckedIntent> {
        self.desired.pairs(&uid.into())
    }

    fn count(&mut self, wrote: Option<Wrote>, failed: bool, drift: bool) {
        self.totals.failed += u64::from(failed);
        match wrote {
            Some(wrote @ (Wrote::Created | Wrote::Changed | Wrote::Adopted | Wrote::Overwrote | Wrote::Recreated)) => {
                self.totals.written += 1;
                self.totals.adopted += u64::from(wrote == Wrote::Adopted);
                self.totals.overwritten += u64::from(wrote == Wrote::Overwrote);
                self.totals.recreated += u64::from(wrote == Wrote::Recreated);
                self.totals.drift_corrected += u64::from(drift && !failed);
            }
            Some(Wrote::Equal) => self.totals.equal += 1,
            Some(Wrote::Deleted | Wrote::Retained) => self.totals.removed += 1,
            None => {}
        }
    }

    fn key(copy: &SourceRef) -> Key {
        Key::Copy(copy.clone())
    }
}
