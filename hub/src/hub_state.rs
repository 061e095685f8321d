//! The shared state of the hub's tasks: the index behind its lock, the reports, the live sessions,
//! and the signals between tasks.
//!
//! Every change of the index goes through [`HubState::change`]. It wakes the sessions of changed
//! clusters, queues sources for the reader and rules for the writer. Locks are taken for short
//! sections and never across an await.
#[cfg(test)]
mod following_tests;
mod holds;
mod inquiries;
mod pending;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;
use kube::CustomResourceExt;
use runnel_proto::model::{ClusterName, ProofKey, RuleUid, SourceRef};
use tokio::sync::{Notify, watch};

use crate::ordered_lock::{
    DELIVERIES, DIVERGENCES, INDEX, LEADER_POSITION, LEADERSHIP, LEAF, OrderedMutex, OrderedRwLock,
    REPORT_STORE, SESSION,
};
use crate::relist_barrier::{RelistBarrier, Watched};
pub use holds::Holds;
pub use inquiries::{Asked, Inquiries, Unasked};
pub use pending::Pending;
use runnel_api::{ClusterDistributionRule, DistributionRule, FleetStatus};
use runnel_hub_core::epoch::{Divergences, LeaderPosition};
use runnel_hub_core::index::{Effect, Index, RuleEntry};
use runnel_hub_core::now::Now;
use runnel_hub_core::plan::{ClusterAssignment, RevisionHasher, WatchScope};
use runnel_hub_core::session::Session;
pub use settings::Settings;

use runnel_hub_core::lease::{Lead, Leader};
use runnel_hub_core::status::{Deliveries, ReportStore};

/// The states of completed rollouts, as the lists of a round name them.
pub const COMPLETED_STATES: Watched = Watched::Own("completed rollouts");

/// A session as the rest of the hub sees it.
pub struct LiveSession {
    /// Tells this session from a later one of the same cluster.
    pub number: u64,
    /// What the agent holds.
    pub session: OrderedMutex<Session, SESSION>,
    /// What is asked of the agent.
    pub inquiries: Inquiries,
    /// Woken when a claim to its cluster changed, or something is to be asked.
    pub wake: Notify,
}

/// What the hub's tasks share.
pub struct HubState {
    /// What is fixed.
    pub settings: Settings,
    /// Under which agents prove what stands in their clusters.
    pub proof_key: ProofKey,
    /// Everything the hub knows.
    pub index: OrderedRwLock<Index, INDEX>,
    /// What the agents last said.
    pub report_store: OrderedMutex<ReportStore, REPORT_STORE>,
    /// Edits of sources that are on their way to connected clusters.
    pub deliveries: OrderedMutex<Deliveries, DELIVERIES>,
    /// When edits of sources were seen whose new content is still being read.
    pub edits: OrderedMutex<BTreeMap<SourceRef, Instant>, LEAF>,
    /// The newest session of each cluster.
    pub sessions: DashMap<ClusterName, Arc<LiveSession>>,
    /// Sources whose content must be read.
    pub to_read: Pending<SourceRef>,
    /// Rules whose status may be out of date.
    pub dirty_rules: Pending<RuleUid>,
    /// Members whose status may be out of date.
    pub dirty_members: Pending<ClusterName>,
    /// Orders that a cluster was given while it was away, and has carried out.
    pub settled_removals: Pending<(ClusterName, RuleUid)>,
    /// Orders of deleted rules that are to be written down for clusters that cannot answer.
    pub removal_orders: Pending<(ClusterName, RuleUid)>,
    /// Orders of rules that wait to be released, for which a cluster has no room.
    pub removal_overflow: Pending<(ClusterName, RuleUid)>,
    /// Rules of which the state of the last completed rollout is to be stored, or is not any more.
    pub completed_rules: Pending<RuleUid>,
    /// The status of the `Fleet` that its watch showed last.
    pub fleet_status: watch::Sender<Option<FleetStatus>>,
    /// Rules of which copies are to be rendered.
    pub to_render: Pending<RuleUid>,
    /// When the first of the edits was seen whose outcome is still being rendered.
    rendered_edits: OrderedMutex<BTreeMap<RuleUid, Instant>, LEAF>,
    /// Asks for all objects that may be sources to be listed again.
    pub relist: watch::Sender<u64>,
    /// How long the index was kept from others.
    pub index_holds: Holds,
    /// Places in which some rule looks for sources.
    pub needed: watch::Sender<BTreeSet<WatchScope>>,
    /// The right to lead, if this process has it; see [`HubState::leads`]. A renewal moves its deadline without a word.
    pub lead: watch::Sender<Option<Lead>>,
    /// What this process has come to, while it leads.
    pub leader_position: OrderedRwLock<Option<LeaderPosition>, LEADER_POSITION>,
    /// What speaks against letting members follow this hub.
    pub divergences: OrderedMutex<Divergences, DIVERGENCES>,
    /// The other replica that leads.
    pub leader: watch::Sender<Option<Leader>>,
    /// Since when this process serves: since it has listed everything anew after it took the lead.
    pub ready: watch::Sender<Option<Instant>>,
    /// The lists that must be there before it serves.
    pub rounds: RelistBarrier,
    /// The hub's authorities, DER, the one that signs now first; empty until they are read.
    pub authorities: watch::Sender<Vec<Bytes>>,
    /// Woken when a source vanished.
    pub deadline_changed: Notify,
    /// Woken when a watch has delivered a complete list or was refused, and when the lead was taken.
    pub progress: Notify,
    /// Taking the lead and beginning to serve do not overlap.
    leadership_lock: OrderedMutex<(), LEADERSHIP>,
}

impl HubState {
    /// A hub that knows nothing yet.
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            index: OrderedRwLock::new(
                Index::of(settings.scope.clone())
                    .working_aside()
                    .hashing_with(
                        RevisionHasher::new(settings.revision_key.clone())
                            .with_budget(settings.render_budget),
                    )
                    .with_ceiling(settings.removal_ceiling),
            ),
            report_store: OrderedMutex::new(ReportStore::proving(
                settings.revision_key.proof_key(),
            )),
            proof_key: settings.revision_key.proof_key(),
            settings,
            deliveries: OrderedMutex::default(),
            edits: OrderedMutex::default(),
            sessions: DashMap::new(),
            to_read: Pending::default(),
            completed_rules: Pending::default(),
            fleet_status: watch::Sender::default(),
            to_render: Pending::default(),
            rendered_edits: OrderedMutex::default(),
            index_holds: Holds::default(),
            relist: watch::Sender::default(),
            dirty_rules: Pending::default(),
            dirty_members: Pending::default(),
            settled_removals: Pending::default(),
            removal_orders: Pending::default(),
            removal_overflow: Pending::default(),
            needed: watch::Sender::default(),
            lead: watch::Sender::default(),
            leader_position: OrderedRwLock::default(),
            divergences: OrderedMutex::default(),
            leader: watch::Sender::default(),
            ready: watch::Sender::default(),
            rounds: RelistBarrier::default(),
            leadership_lock: OrderedMutex::default(),
            authorities: watch::Sender::default(),
            deadline_changed: Notify::new(),
            progress: Notify::new(),
        })
    }

    /// Since when the hub serves; before that nobody could connect, so no silence counts.
    pub fn serving_since(&self) -> Option<Instant> {
        *self.ready.borrow()
    }

    /// Whether this process leads now: only then does it serve agents and write to the hub's API.
    pub fn leads(&self) -> bool {
        self.current_lead().is_some()
    }

    /// The right to lead, if this process has it now.
    pub fn current_lead(&self) -> Option<Lead> {
        self.lead
            .borrow()
            .clone()
            .filter(|lead| Instant::now() < lead.valid_until)
    }

    /// Whether this process still has this right to lead. It looks at the clock: ask before each send.
    pub fn holds(&self, lead: &Lead) -> bool {
        self.lead
            .borrow()
            .as_ref()
            .is_some_and(|now| now.is_same(lead) && Instant::now() < now.valid_until)
    }

    /// The right to lead is this now. Sessions of another one end, and what the agents said in them is forgotten.
    /// A new right begins with a new list of everything: [`HubState::serve_if_known`] follows.
    pub fn set_lead(&self, lead: Option<Lead>) {
        let _turn = self.leadership_lock.lock();
        let same = |known: &Option<Lead>| match (known, &lead) {
            (Some(known), Some(lead)) => known.is_same(lead),
            (None, None) => true,
            _ => false,
        };
        if same(&self.lead.borrow()) {
            self.lead.send_if_modified(|known| {
                *known = lead;
                false
            });
            return;
        }
        self.ready.send_replace(None);
        self.lead.send_replace(None);
        *self.report_store.lock() = ReportStore::proving(self.proof_key.clone());
        *self.deliveries.lock() = Deliveries::default();
        *self.divergences.lock() = Divergences::default();
        self.settled_removals.take();
        self.removal_orders.take();
        self.removal_overflow.take();
        self.completed_rules.take();
        if lead.is_some() {
            self.rounds.begin();
            self.lead.send_replace(lead);
            self.progress.notify_one();
        }
    }

    /// Begins to serve, once everything that is needed has been listed anew since this process took the lead. Returns
    /// whether it begins now.
    pub fn serve_if_known(&self) -> bool {
        let _turn = self.leadership_lock.lock();
        if self.serving_since().is_some() || !self.leads() {
            return false;
        }
        let own = [
            "memberclusters",
            "distributionrules",
            "clusterdistributionrules",
            "distributiongrants",
            "fleets",
            "namespaces",
        ];
        let definitions = [
            DistributionRule::crd_name(),
            ClusterDistributionRule::crd_name(),
        ];
        let own = own
            .into_iter()
            .chain(definitions)
            .map(Watched::Own)
            .chain([COMPLETED_STATES]);
        // A place in which this hub does not look has no watch.
        let looks = |place: &WatchScope| {
            place
                .namespace
                .as_ref()
                .is_none_or(|name| self.settings.scope.reads(name))
        };
        let places = self
            .index
            .read()
            .needed_places()
            .into_iter()
            .filter(looks)
            .map(Watched::Sources);
        if !self.rounds.have_all(own.chain(places)) {
            return false;
        }
        self.change_quietly(Index::reset_removal_guards);
        self.ready.send_replace(Some(Instant::now()));
        // What is being deleted is judged anew.
        let rules = self
            .index
            .read()
            .rules()
            .map(|(uid, _)| uid.clone())
            .collect();
        self.change(|_| Effect {
            judge: rules,
            ..Effect::default()
        });
        self.mark_everything();
        true
    }

    /// Changes the index and tells everybody who is concerned. Rules that follow what is shared by all do so one by one, so
    /// that nobody waits for all of them.
    pub fn change(&self, change: impl FnOnce(&mut Index) -> Effect) {
        let mut follow = self.change_once(change);
        while let Some(uid) = follow.pop_first() {
            follow.append(&mut self.change_once(|index| index.follow(&uid)));
        }
    }

    /// Changes the index without any effect.
    pub fn change_quietly<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        let mut index = self.index.write();
        let _restriction = self.index_holds.begin();
        change(&mut index)
    }

    fn change_once(&self, change: impl FnOnce(&mut Index) -> Effect) -> BTreeSet<RuleUid> {
        let mut effect = self.change_quietly(|index| {
            let mut effect = change(index);
            // Before this process serves, what it hears is no removal but the state that it begins with.
            if self.serving_since().is_some() {
                let rules = std::mem::take(&mut effect.judge);
                effect.merge(self.judge(index, rules));
            }
            effect
        });
        let follow = std::mem::take(&mut effect.follow);
        self.spread(effect);
        follow
    }

    /// Judges what these rules no longer want.
    fn judge(&self, index: &mut Index, rules: BTreeSet<RuleUid>) -> Effect {
        let mut effect = Effect::default();
        let now = Now {
            instant: Instant::now(),
            wall: jiff::Timestamp::now(),
        };
        if rules.is_empty() && index.next_judgement().is_none_or(|due| due > now.instant) {
            return effect;
        }
        let report_store = self.report_store.lock();
        effect.merge(index.judge(
            &rules,
            &|rule, cluster| report_store.holding(rule, cluster),
            now,
        ));
        if index.next_judgement().is_some() {
            self.deadline_changed.notify_one();
        }
        effect
    }

    /// Judges the removals whose time has come.
    pub fn judge_due(&self) {
        self.change(|_| Effect::default());
    }

    fn spread(&self, effect: Effect) {
        for cluster in &effect.clusters {
            self.wake(cluster);
        }
        self.to_read.add(effect.read);
        self.to_render.add(effect.render);
        if effect.relist {
            self.relist.send_modify(|asked| *asked += 1);
        }
        self.dirty_rules.add(effect.rules);
    }

    /// Some rule looks for sources in these places from now on.
    pub fn need(&self, places: BTreeSet<WatchScope>) {
        self.needed.send_if_modified(|known| {
            let before = known.len();
            known.extend(places);
            known.len() > before
        });
    }

    /// An edit of a source has been read and changed these rules: from now on it is on its way to the clusters that are
    /// connected, but for those in which it changes nothing.
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

    /// The same, where it changed a rule only now that its copies have been rendered.
    pub fn follow_rendered(&self, index: &Index, uid: &RuleUid) {
        let since = self.rendered_edits.lock().remove(uid);
        since
            .into_iter()
            .for_each(|since| self.follow_rule(index, uid, since));
    }

    fn follow_rule(&self, index: &Index, uid: &RuleUid, since: Instant) {
        let Some(entry) = index.rule(uid) else { return };
        let (report_store, mut deliveries) = (self.report_store.lock(), self.deliveries.lock());
        let connected = entry
            .target_clusters
            .clusters
            .keys()
            .filter(|cluster| self.sessions.contains_key(*cluster));
        for (cluster, assignment) in connected
            .filter_map(|cluster| Some((cluster, followed(entry, &report_store, cluster)?)))
        {
            if !report_store.holds_exactly(cluster, uid, assignment.digest()) {
                deliveries.begin(cluster, uid, since, entry.awaits(cluster));
            }
        }
    }

    /// Nothing is waited for any longer where nothing is sent any more. Returns what took how long to the last cluster of its
    /// rule, where only those were waited for.
    pub fn drop_unsent(&self, index: &Index) -> Vec<(RuleUid, Duration)> {
        let (report_store, mut deliveries) = (self.report_store.lock(), self.deliveries.lock());
        deliveries.retain(|cluster, uid| {
            index
                .rule(uid)
                .is_some_and(|entry| followed(entry, &report_store, cluster).is_some())
        })
    }

    /// Wakes the session of a cluster.
    pub fn wake(&self, cluster: &ClusterName) {
        if let Some(live) = self.sessions.get(cluster) {
            live.wake.notify_one();
        }
    }

    /// Marks every rule that goes to a cluster, or is held there, as possibly out of date.
    pub fn mark_rules_of(&self, cluster: &ClusterName) {
        let index = self.index.read();
        let concerned = index.rules().filter(|(_, entry)| {
            entry.target_clusters.clusters.contains_key(cluster) || entry.rule.deleting
        });
        let concerned: Vec<_> = concerned.map(|(uid, _)| uid.clone()).collect();
        drop(index);
        self.dirty_rules.add(concerned);
        self.dirty_members.add([cluster.clone()]);
    }

    /// Marks the status of every member as possibly out of date.
    pub fn mark_members(&self) {
        let members: Vec<_> = self
            .index
            .read()
            .clusters()
            .map(|(name, _)| name.clone())
            .collect();
        self.dirty_members.add(members);
    }

    /// Marks every status as possibly out of date.
    pub fn mark_everything(&self) {
        let rules: Vec<_> = self
            .index
            .read()
            .rules()
            .map(|(uid, _)| uid.clone())
            .collect();
        self.dirty_rules.add(rules);
        self.mark_members();
    }
}

/// What an edit of a rule brings to a cluster while it is connected, now or when its turn in a rollout has come; `None`
/// where nothing is sent, so that nobody waits for it: the rule or the cluster rests, or an administrator has to confirm first.
fn followed(
    entry: &RuleEntry,
    report_store: &ReportStore,
    cluster: &ClusterName,
) -> Option<ClusterAssignment> {
    // What a rollback sends is no edit.
    let is_rolled_back = entry.rollback().is_some();
    let is_suspended = is_rolled_back
        || entry.rule.terms.is_frozen()
        || entry.rule.deleting
        || entry.target_clusters.cordoned.contains(cluster);
    if is_suspended {
        return None;
    }
    let assignment = entry.assignment(cluster)?;
    report_store.takes_edits(cluster).then_some(assignment)
}

/// Completes at a moment; never, if there is none.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
