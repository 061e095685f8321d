//! The shared state of the hub's tasks: the index behind its lock, the reports, the live sessions,
//! and the signals between tasks.
//!
//! Every change of the index goes through [`HubState::change`]. It wakes the sessions of changed
//! clusters, queues sources for the reader and rules for the writer. Locks are taken for short
//! sections and never across an await.
#[cfg(test)]
mod following_tests;
mod inquiries;
mod leadership;

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;
use runnel_proto::model::{ClusterName, Kind, Kinds, ProofKey, RevisionKey, RuleUid, SourceRef};
use tokio::sync::{Notify, watch};

use crate::ordered_lock::{
    DELIVERIES, INDEX, LeafMutex, LockTimes, OrderedMutex, OrderedRwLock, REPORT_STORE, SESSION,
};
use crate::relist_barrier::Watched;
pub use inquiries::{Inquiries, Inquiry, InquiryError};
pub use leadership::{COMPLETED_STATES, Leadership};
use runnel_api::FleetStatus;
use runnel_hub_core::audit::{Audit, ChangeCause};
use runnel_hub_core::guard::Limit;
use runnel_hub_core::index::{Effect, Index, RuleEntry};
use runnel_hub_core::lease::Lead;
use runnel_hub_core::now::Now;
#[cfg(test)]
use runnel_hub_core::plan::RENDER_BUDGET;
use runnel_hub_core::plan::{ClusterAssignment, RevisionHasher, Scope, WatchScope};
use runnel_hub_core::rollout::AllowedUrls;
use runnel_hub_core::session::Session;
use runnel_hub_core::status::{Deliveries, ReportStore};

/// The session of a connected agent, as the other tasks of the hub access it.
pub struct LiveSession {
    /// The number of the session, unique in this process.
    pub number: u64,
    /// When the session began.
    pub since: Instant,
    /// The agent's acked set, and what must be sent to it.
    pub session: OrderedMutex<Session, SESSION>,
    /// Requests to the agent.
    pub inquiries: Inquiries,
    /// Woken when a directive for its cluster changed, or a request was added.
    pub wake: Notify,
    /// The member that has replaced this session's in its cluster.
    pub replaced_by: OnceLock<ClusterName>,
}

impl LiveSession {
    /// Returns a session of this number that has neither sent nor received anything.
    pub fn new(number: u64) -> Self {
        Self {
            number,
            since: Instant::now(),
            session: OrderedMutex::new(Session::default()),
            inquiries: Inquiries::of_a_session(),
            wake: Notify::new(),
            replaced_by: OnceLock::new(),
        }
    }
}

/// The shared state of the hub's tasks.
pub struct HubState {
    /// Settings of the process.
    pub settings: Settings,
    /// The key with which agents prove the content of their copies.
    pub proof_key: ProofKey,
    /// Rules, sources, members, grants and plans.
    pub index: OrderedRwLock<Index, INDEX>,
    /// The last reports of the agents.
    pub report_store: OrderedMutex<ReportStore, REPORT_STORE>,
    /// Edits of sources that were not yet applied in all connected clusters.
    pub deliveries: OrderedMutex<Deliveries, DELIVERIES>,
    /// Time of the edit of each source for which the hub still reads the new content.
    pub edits: LeafMutex<BTreeMap<SourceRef, Instant>>,
    /// The newest session of each cluster.
    pub sessions: DashMap<ClusterName, Arc<LiveSession>>,
    /// The work queues of the hub's tasks.
    pub queues: Queues,
    /// The last status of the `Fleet` that the watch delivered.
    pub fleet_status: watch::Sender<Option<FleetStatus>>,
    /// What agents did to copies, and why, for the log and Events.
    pub audit: LeafMutex<Audit>,
    /// Time of the first edit of each rule that is not rendered yet.
    rendered_edits: LeafMutex<BTreeMap<RuleUid, Instant>>,
    /// Counts the requests to relist all possible sources.
    pub relist: watch::Sender<u64>,
    /// Durations of the write locks of the index.
    pub index_lock_times: LockTimes,
    /// The namespaces and kinds in which a rule selects sources, or has selected them a short time ago.
    pub needed: watch::Sender<BTreeSet<WatchScope>>,
    /// Woken when a rule was edited or deleted, so that it may need less.
    pub needs_changed: Notify,
    /// The kinds that the API server of the hub serves, as far as they were read.
    pub kinds: watch::Sender<Kinds>,
    /// Woken when a watch found that its kind is not served.
    pub kind_missing: Notify,
    /// Whether this process leads, and which lists it needs before it serves.
    pub leadership: Leadership,
    /// The hub's CAs, DER, the signing one first; empty until they are read.
    pub ca_bundle: watch::Sender<Vec<Bytes>>,
    /// Woken when the time of the next check of removals changed.
    pub deadline_changed: Notify,
}

impl HubState {
    /// Returns the state of a hub that has not listed any objects.
    pub fn new(settings: Settings) -> Arc<Self> {
        let hasher =
            RevisionHasher::new(settings.revision_key.clone()).with_budget(settings.render_budget);
        let mut index = Index::of(settings.scope.clone())
            .with_deferred_rendering()
            .with_allowed_urls(AllowedUrls::new(settings.analysis_allow.iter().cloned()))
            .hashing_with(hasher);
        index.fleet_guard_mut().ceiling = Some(settings.removal_ceiling);
        let proof_key = settings.revision_key.proof_key();
        Arc::new(Self {
            index: OrderedRwLock::new(index),
            report_store: OrderedMutex::new(ReportStore::proving(proof_key.clone())),
            proof_key,
            settings,
            deliveries: OrderedMutex::default(),
            edits: OrderedMutex::default(),
            sessions: DashMap::new(),
            queues: Queues::default(),
            fleet_status: watch::Sender::default(),
            audit: OrderedMutex::default(),
            rendered_edits: OrderedMutex::default(),
            relist: watch::Sender::default(),
            index_lock_times: LockTimes::default(),
            needed: watch::Sender::default(),
            needs_changed: Notify::new(),
            kinds: watch::Sender::new(Kind::supported().iter().cloned().collect()),
            kind_missing: Notify::new(),
            leadership: Leadership::default(),
            ca_bundle: watch::Sender::default(),
            deadline_changed: Notify::new(),
        })
    }

    /// Sets the right to lead. Sessions under another right end, and their reports are dropped. A
    /// new right starts a relist of everything; [`HubState::serve_if_listed`] completes it.
    pub fn set_lead(&self, lead: Option<Lead>) {
        let _turn = self.leadership.lock.lock();
        if self.leadership.renew(&lead) {
            return;
        }
        self.leadership.end();
        *self.report_store.lock() = ReportStore::proving(self.proof_key.clone());
        *self.deliveries.lock() = Deliveries::default();
        self.queues.clear_orders();
        self.audit.lock().clear();
        if lead.is_some() {
            self.leadership.begin(lead);
        }
    }

    /// Starts to serve once all lists are complete since this process took the lead. Returns
    /// whether it starts with this call.
    pub fn serve_if_listed(&self) -> bool {
        let _turn = self.leadership.lock.lock();
        if self.leadership.serving_since().is_some() || !self.leadership.leads() {
            return false;
        }
        // A namespace outside the hub's scope has no watch.
        let is_watched = |place: &WatchScope| {
            place
                .namespace
                .as_ref()
                .is_none_or(|name| self.settings.scope.reads(name))
        };
        let sources = self
            .index
            .read()
            .needed_scopes()
            .into_iter()
            .filter(is_watched)
            .collect::<Vec<_>>();
        if !self.leadership.has_listed(sources) {
            return false;
        }
        self.change_quietly(Index::reset_removal_guards);
        self.leadership.ready.send_replace(Some(Instant::now()));
        // Removals that were in progress are judged again.
        let rules = self.index.read().rules().uids().cloned().collect();
        self.change(|_| Effect {
            judge: rules,
            ..Effect::default()
        });
        self.mark_all_statuses();
        true
    }

    /// Changes the index, and wakes the tasks that the effect concerns. A change that affects many
    /// rules updates them one by one, so that the lock is released in between.
    pub fn change(&self, change: impl FnOnce(&mut Index) -> Effect) {
        self.change_and_note(change, |_| {});
    }

    /// Changes the index as [`HubState::change`], and records the cause for the rules that the change
    /// affects.
    pub fn change_because(
        &self,
        cause: impl FnOnce() -> ChangeCause,
        change: impl FnOnce(&mut Index) -> Effect,
    ) {
        let cause = LazyCell::new(cause);
        self.change_and_note(change, |effect| {
            let rules = effect.rules.iter().chain(&effect.judge);
            let mut rules = rules.chain(&effect.render).peekable();
            // What was there when the hub began to serve is no change.
            if rules.peek().is_none() || self.leadership.serving_since().is_none() {
                return;
            }
            let (cause, now) = (&*cause, Instant::now());
            let mut audit = self.audit.lock();
            rules.for_each(|uid| audit.note(uid, cause, now));
        });
    }

    /// `note` gets the effect on each group of rules that changes under one lock.
    fn change_and_note(
        &self,
        change: impl FnOnce(&mut Index) -> Effect,
        mut note: impl FnMut(&Effect),
    ) {
        let mut noted = |effect: Effect| {
            note(&effect);
            effect
        };
        let mut follow = self.apply_change(|index| noted(change(index)));
        while let Some(uid) = follow.pop_first() {
            follow.append(&mut self.apply_change(|index| noted(index.follow(&uid))));
        }
    }

    /// Changes the index without any effect on other tasks.
    pub fn change_quietly<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        let mut index = self.index.write();
        let _hold = self.index_lock_times.begin();
        change(&mut index)
    }

    fn apply_change(&self, change: impl FnOnce(&mut Index) -> Effect) -> BTreeSet<RuleUid> {
        let mut effect = self.change_quietly(|index| {
            let mut effect = change(index);
            // Before this process serves, a missing object is part of the initial state and not a
            // removal.
            if self.leadership.serving_since().is_some() {
                let rules = std::mem::take(&mut effect.judge);
                effect.merge(self.judge(index, rules));
            }
            effect
        });
        let follow = std::mem::take(&mut effect.follow);
        self.spread(effect);
        follow
    }

    /// Judges the removals that these rules cause.
    fn judge(&self, index: &mut Index, rules: BTreeSet<RuleUid>) -> Effect {
        let mut effect = Effect::default();
        let now = Now {
            instant: Instant::now(),
            wall: jiff::Timestamp::now(),
        };
        if rules.is_empty()
            && index
                .fleet_guard()
                .due()
                .is_none_or(|due| due > now.instant)
        {
            return effect;
        }
        let report_store = self.report_store.lock();
        effect.merge(index.judge_with(
            &rules,
            &|rule, cluster| report_store.reported_copies(rule, cluster),
            Some(&|cluster| report_store.copies_in(cluster)),
            now,
        ));
        if index.fleet_guard().due().is_some() {
            self.deadline_changed.notify_one();
        }
        effect
    }

    /// Judges the removals that are due.
    pub fn judge_due(&self) {
        self.change(|_| Effect::default());
    }

    fn spread(&self, effect: Effect) {
        for cluster in &effect.clusters {
            self.wake(cluster);
        }
        self.queues.to_read.add(effect.read);
        self.queues.to_render.add(effect.render);
        if effect.relist {
            self.relist.send_modify(|asked| *asked += 1);
        }
        self.queues.dirty_rules.add(effect.rules);
        self.queues.dirty_rules.add(effect.statuses);
    }

    /// Adds namespaces and kinds in which a rule selects sources, so that they are watched.
    pub fn need(&self, places: BTreeSet<WatchScope>) {
        self.needed.send_if_modified(|known| {
            let before = known.len();
            known.extend(places);
            known.len() > before
        });
    }

    /// Forgets a scope that no rule needs and that is not watched. Returns `false` if a rule needs it again.
    pub fn release(&self, scope: &WatchScope) -> bool {
        let is_released = self.change_quietly(|index| {
            // A rule that comes later adds the scope again.
            let is_released = index.release_scope(scope);
            if is_released {
                self.needed.send_modify(|needed| {
                    needed.remove(scope);
                });
            }
            is_released
        });
        if is_released {
            let barrier = &self.leadership.relist_barrier;
            barrier.forget(&Watched::Sources(scope.clone()));
        }
        is_released
    }

    /// Sets the kinds that the API server serves. Bundles with manifests of unknown kinds are read again.
    pub fn set_kinds(&self, kinds: Kinds) {
        let is_changed = self.kinds.send_if_modified(|known| {
            let changed = *known != kinds;
            *known = kinds;
            changed
        });
        if is_changed {
            let bundles = self.index.read().sources().with_unknown_kinds();
            self.queues.to_read.add(bundles);
        }
    }

    /// Returns a kind in the version in which the hub reads it; `None` if it is not served.
    pub fn kind(&self, resource: &str) -> Option<Kind> {
        self.kinds.borrow().preferred(resource).cloned()
    }

    /// Starts to measure the delivery of an edit after its content was read. The measurement
    /// includes the connected clusters in which the edit changes a copy.
    pub fn follow_edit(&self, index: &Index, source: &SourceRef, effect: &Effect) {
        let Some(since) = self.edits.lock().remove(source) else {
            return;
        };
        let mut rendered = self.rendered_edits.lock();
        for uid in &effect.render {
            rendered.entry(uid.clone()).or_insert(since);
        }
        drop(rendered);
        effect
            .rules
            .iter()
            .filter(|uid| !effect.render.contains(*uid))
            .for_each(|uid| self.follow_rule(index, uid, since));
    }

    /// Starts to measure the delivery of an edit to a rule after its copies were rendered.
    pub fn follow_rendered(&self, index: &Index, uid: &RuleUid) {
        let since = self.rendered_edits.lock().remove(uid);
        since
            .into_iter()
            .for_each(|since| self.follow_rule(index, uid, since));
    }

    fn follow_rule(&self, index: &Index, uid: &RuleUid, since: Instant) {
        let Some(entry) = index.rules().get(uid) else {
            return;
        };
        let (report_store, mut deliveries) = (self.report_store.lock(), self.deliveries.lock());
        let connected = entry
            .target_clusters
            .clusters
            .keys()
            .filter(|cluster| self.sessions.contains_key(*cluster));
        for (cluster, assignment) in connected
            .filter_map(|cluster| Some((cluster, followed(entry, &report_store, cluster)?)))
        {
            if !report_store.reports_exactly(cluster, uid, assignment.digest()) {
                deliveries.begin(cluster, uid, since, entry.awaits(cluster));
            }
        }
    }

    /// Drops deliveries that are no longer sent. Returns the rules that become complete by this,
    /// with the durations of their deliveries.
    pub fn drop_unsent(&self, index: &Index) -> Vec<(RuleUid, Duration)> {
        let (report_store, mut deliveries) = (self.report_store.lock(), self.deliveries.lock());
        deliveries.retain(|cluster, uid| {
            index
                .rules()
                .get(uid)
                .is_some_and(|entry| followed(entry, &report_store, cluster).is_some())
        })
    }

    /// Returns the name of a rule for logs; its uid if the index does not have it.
    pub fn rule_name(&self, uid: &RuleUid) -> String {
        let index = self.index.read();
        let name = |entry: &RuleEntry| entry.rule.terms.rule.to_string();
        index.rules().get(uid).map_or_else(|| uid.to_string(), name)
    }

    /// Wakes the session of a cluster.
    pub fn wake(&self, cluster: &ClusterName) {
        if let Some(live) = self.sessions.get(cluster) {
            live.wake.notify_one();
        }
    }

    /// Marks the statuses of all rules with copies in a cluster as possibly out of date.
    pub fn mark_statuses_of(&self, cluster: &ClusterName) {
        let index = self.index.read();
        let concerned = index.rules().iter().filter(|(_, entry)| {
            entry.target_clusters.clusters.contains_key(cluster) || entry.rule.deleting
        });
        let concerned: Vec<_> = concerned.map(|(uid, _)| uid.clone()).collect();
        drop(index);
        self.queues.dirty_rules.add(concerned);
        self.queues.dirty_members.add([cluster.clone()]);
    }

    /// Marks the deliveries to a cluster as changed: they show its labels, which are no part of a status.
    pub fn mark_views_of(&self, cluster: &ClusterName) {
        // Without the view API no task would take them out.
        if !self.settings.serves_views {
            return;
        }
        let index = self.index.read();
        let sent = index.rules().iter();
        let sent = sent.filter(|(_, entry)| entry.target_clusters.clusters.contains_key(cluster));
        let sent: Vec<_> = sent.map(|(uid, _)| uid.clone()).collect();
        drop(index);
        self.queues.viewed_rules.add(sent);
    }

    /// Marks the status of every member as possibly out of date.
    pub fn mark_members(&self) {
        let members: Vec<_> = self
            .index
            .read()
            .clusters()
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        self.queues.dirty_members.add(members);
    }

    /// Marks every status as possibly out of date.
    pub fn mark_all_statuses(&self) {
        let rules: Vec<_> = self.index.read().rules().uids().cloned().collect();
        self.queues.dirty_rules.add(rules);
        self.mark_members();
    }
}

/// The assignment with which an edit of a rule reaches a connected cluster, now or in its wave of a
/// rollout. `None` if nothing is sent, so that the delivery does not wait for it: the rule is
/// suspended, the cluster is cordoned, or an administrator must confirm the hub first.
fn followed(
    entry: &RuleEntry,
    report_store: &ReportStore,
    cluster: &ClusterName,
) -> Option<ClusterAssignment> {
    // A rollback is not an edit.
    let is_rolled_back = entry.rollback().is_some();
    let is_suspended = is_rolled_back
        || entry.rule.terms.is_frozen()
        || entry.rule.deleting
        || entry.target_clusters.cordoned.contains(cluster);
    if is_suspended {
        return None;
    }
    let assignment = entry.assignment(cluster)?;
    report_store.accepts_edits(cluster).then_some(assignment)
}

/// Completes at a moment; never, if there is none.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Settings that stay constant while the process runs.
pub struct Settings {
    /// Runnel's own namespace on the hub.
    pub namespace: String,
    /// The hub's id.
    pub hub_id: String,
    /// Uid of the hub cluster's `kube-system` namespace.
    pub cluster_uid: String,
    /// The namespaces in which sources are watched.
    pub scope: Scope,
    /// The grace period for which a deleted source still counts as existing.
    pub source_gone_grace: Duration,
    /// The time for which an expired certificate of a member can still be renewed.
    pub expired_renewal_limit: Duration,
    /// The upper limit for the removalLimit of every rule.
    pub removal_ceiling: Limit,
    /// The limit of compressed bytes that are rendered for one rule whose copies differ by cluster.
    pub render_budget: u64,
    /// The URL prefixes that analyses of rollouts may request.
    pub analysis_allow: Vec<String>,
    /// The key for revisions.
    pub revision_key: RevisionKey,
    /// Whether this process serves the view API.
    pub serves_views: bool,
}

#[cfg(test)]
impl Settings {
    /// Returns settings of a hub that serves all namespaces, without grace periods and limits.
    pub fn for_tests() -> Self {
        Self {
            namespace: "runnel-system".to_owned(),
            hub_id: "hub".to_owned(),
            cluster_uid: "uid".to_owned(),
            scope: Scope::default(),
            source_gone_grace: Duration::ZERO,
            expired_renewal_limit: Duration::ZERO,
            removal_ceiling: Limit::NONE,
            render_budget: RENDER_BUDGET,
            analysis_allow: vec![],
            revision_key: RevisionKey::new(b"key"),
            serves_views: false,
        }
    }
}

/// The queues of the hub's tasks.
#[derive(Default)]
pub struct Queues {
    /// Sources whose content must be read.
    pub to_read: Pending<SourceRef>,
    /// Rules with copies that must be rendered.
    pub to_render: Pending<RuleUid>,
    /// Rules whose status may be stale.
    pub dirty_rules: Pending<RuleUid>,
    /// Rules whose deliveries in the view API may have changed.
    pub viewed_rules: Pending<RuleUid>,
    /// Members whose status may be stale.
    pub dirty_members: Pending<ClusterName>,
    /// Rules whose last completed state must be stored or deleted.
    pub completed_rules: Pending<RuleUid>,
    /// Stored removal orders that their clusters have carried out.
    pub settled_removals: Pending<(ClusterName, RuleUid)>,
    /// Removal orders of deleted rules, to be stored for clusters that are not connected.
    pub removal_orders: Pending<(ClusterName, RuleUid)>,
    /// Removal orders that exceed the limit of the object of their cluster. Their rules keep their
    /// finalizers.
    pub removal_overflow: Pending<(ClusterName, RuleUid)>,
}

impl Queues {
    /// Drops the work of a former right to lead.
    pub fn clear_orders(&self) {
        self.settled_removals.take();
        self.removal_orders.take();
        self.removal_overflow.take();
        self.completed_rules.take();
    }
}

/// A set of pending items that wakes its task.
pub struct Pending<T> {
    items: LeafMutex<BTreeSet<T>>,
    wake: Notify,
}

impl<T: Ord> Default for Pending<T> {
    fn default() -> Self {
        Self {
            items: LeafMutex::default(),
            wake: Notify::default(),
        }
    }
}

impl<T: Ord> Pending<T> {
    /// Adds items.
    pub fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut waiting = self.items.lock();
        let before = waiting.len();
        waiting.extend(items);
        if waiting.len() > before {
            self.wake.notify_one();
        }
    }

    /// Wakes the task without a new item, because a condition for pending work may be true now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Removes and returns all items.
    pub fn take(&self) -> BTreeSet<T> {
        std::mem::take(&mut *self.items.lock())
    }

    /// Returns `view` of all items, which stay in the set.
    pub fn peek<V>(&self, view: impl Fn(&T) -> V) -> Vec<V> {
        self.items.lock().iter().map(view).collect()
    }

    /// Removes the items for which `done` returns true.
    pub fn remove(&self, done: impl Fn(&T) -> bool) {
        self.items.lock().retain(|item| !done(item));
    }

    /// Completes when an item was added, or the task was woken, since the last call.
    pub async fn added(&self) {
        self.wake.notified().await;
    }
}
