//! The last reports of the agents.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use runnel_proto::model::{
    ClusterName, CopyFeedback, Counts, Failure, LostWatch, NAMESPACES, NamespacePrunes, Proof,
    ProofKey, PruneRequest, RuleName, RuleState, RuleUid, SetDigest, TermsDigest,
    WaitingNamespaces,
};

use super::SILENCE;
use crate::index::{Clusters, ReportedCopies, RuleEntry};
use crate::session::state_bytes;

/// How many names of rules are kept at least.
const NAMES: usize = 1_000;

/// An agent's last report about one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleReport {
    /// The agent's name of the rule.
    rule: Arc<RuleName>,
    pub(super) intents_digest: SetDigest,
    pub(super) terms_digest: Option<TermsDigest>,
    pub(super) intents: u32,
    pub(super) counts: Counts,
    /// The proof of its copies.
    pub(super) proof: Option<Proof>,
    /// `None` if there are none, as nearly always: there is a report for each rule in each cluster.
    details: Option<Box<ReportDetails>>,
    /// The approximate size of the report, in bytes.
    bytes: usize,
}

/// What only few reports have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportDetails {
    pub(super) failures: Vec<Failure>,
    /// Pending removals of copies whose namespace is no longer a target.
    pub(super) namespace_prunes: Option<NamespacePrunes>,
    /// The namespaces for which copies wait.
    pub(super) waiting: WaitingNamespaces,
    /// The fields that the rule has returned.
    pub(super) feedback: Vec<CopyFeedback>,
}

impl ReportDetails {
    const NONE: Self = Self {
        failures: Vec::new(),
        namespace_prunes: None,
        waiting: WaitingNamespaces {
            first: Vec::new(),
            count: 0,
        },
        feedback: Vec::new(),
    };

    fn boxed(self) -> Option<Box<Self>> {
        (self != Self::NONE).then(|| Box::new(self))
    }
}

/// Names of rules, of which each agent has its own text: equal ones are stored once.
#[derive(Default)]
struct SharedNames {
    names: BTreeMap<RuleUid, Arc<RuleName>>,
    /// How many there may be before those without a report are dropped.
    limit: usize,
}

impl SharedNames {
    fn share(&mut self, uid: RuleUid, name: RuleName) -> (RuleUid, Arc<RuleName>) {
        if let Some((uid, known)) = self.names.get_key_value(&uid)
            && **known == name
        {
            return (uid.clone(), Arc::clone(known));
        }
        if self.names.len() >= self.limit {
            self.names.retain(|_, name| Arc::strong_count(name) > 1);
            self.limit = (2 * self.names.len()).max(NAMES);
        }
        let name = Arc::new(name);
        self.names.insert(uid.clone(), Arc::clone(&name));
        (uid, name)
    }
}

impl RuleReport {
    pub(super) fn details(&self) -> &ReportDetails {
        static NONE: ReportDetails = ReportDetails::NONE;
        self.details.as_deref().unwrap_or(&NONE)
    }

    /// The copies that the rule has, those in namespaces that are no longer targets too.
    fn copies(&self) -> u64 {
        let prunes = self.details().namespace_prunes.as_ref();
        let pruned = prunes.map_or(0, |prunes| prunes.copies);
        self.counts.existing().saturating_add(pruned).into()
    }
}

/// The facts of a session about its member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// Version of the agent.
    pub agent_version: String,
    /// Version of the member's API server.
    pub kubernetes_version: String,
    /// Uid of the member's `kube-system` namespace.
    pub cluster_uid: String,
    /// The fingerprint of its key.
    pub key: String,
    /// Identifies the agent's process.
    pub boot_id: String,
    /// When the certificate of the session expires.
    pub certificate_expires: Timestamp,
}

/// What is not sent to a cluster until an administrator confirms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unconfirmed {
    /// Nothing is sent.
    Everything,
    /// No removals are sent of these rules, and no other terms.
    RemovalsOf(BTreeSet<RuleUid>),
}

/// A cluster, as its agent reported it.
#[derive(Default)]
pub(super) struct Connectivity {
    session: Option<SessionFacts>,
    /// The current session of the cluster; messages of an older one are void.
    number: u64,
    lost_at: Option<Instant>,
    rule_reports: BTreeMap<RuleUid, Box<RuleReport>>,
    /// The copies of all of them.
    copies: u64,
    /// What is not sent to it until an administrator confirms.
    unconfirmed: Option<Unconfirmed>,
    /// Rules that are not sent to it, because it would have too many.
    over_limit: BTreeSet<RuleUid>,
    /// About how many bytes its rule reports take.
    bytes: usize,
    /// The watches of its API that its agent has lost.
    lost_watches: Vec<LostWatch>,
    /// Whether another client uses its key.
    key_sharing: KeySharing,
}

impl Connectivity {
    /// The session, while the cluster counts as connected: it is, or was a moment ago.
    pub(super) fn session(&self, now: Instant) -> Option<&SessionFacts> {
        let fresh = self
            .lost_at
            .is_none_or(|lost| now.saturating_duration_since(lost) < SILENCE);
        self.session.as_ref().filter(|_| fresh)
    }

    /// Whether the cluster has connected since the hub started.
    pub(super) fn has_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Whether messages to it about a rule are restricted until an administrator confirms.
    pub(super) fn is_unconfirmed_for(&self, rule: &RuleUid) -> bool {
        match &self.unconfirmed {
            None => false,
            Some(Unconfirmed::Everything) => true,
            Some(Unconfirmed::RemovalsOf(rules)) => rules.contains(rule),
        }
    }

    /// Whether a rule is not sent to it, because it would have too many.
    pub(super) fn is_over_limit(&self, rule: &RuleUid) -> bool {
        self.over_limit.contains(rule)
    }

    /// The number of rules that are not sent to it, because it would have too many.
    pub(super) fn rules_over_limit(&self) -> usize {
        self.over_limit.len()
    }

    /// The lost watch that makes the reports of these kinds uncertain, if there is one.
    pub(super) fn lost_watch<'r>(
        &self,
        mut resources: impl Iterator<Item = &'r str>,
    ) -> Option<LostWatch> {
        let lost = &self.lost_watches;
        let namespaces = lost.iter().find(|watch| &*watch.resource == NAMESPACES);
        let of_kind = || {
            resources.find_map(|resource| lost.iter().find(|watch| &*watch.resource == resource))
        };
        namespaces.or_else(of_kind).cloned()
    }

    /// Returns the agent's last report about a rule.
    pub(super) fn rule_report(&self, rule: &RuleUid) -> Option<&RuleReport> {
        self.rule_reports
            .get(rule)
            .map(|rule_report| &**rule_report)
    }
}

/// What lost watches make uncertain of the copies of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncertain {
    /// No copy: no rule has copies of the lost kinds.
    Nothing,
    /// The copies of some kinds, and not of others.
    Kinds,
    /// All copies.
    Everything,
}

/// The bytes of the reports of one cluster; beyond that failures are dropped, and only the counts
/// stay.
const REPORT_BYTES: usize = 24 * 1024 * 1024;

/// The last reports of the agents, by cluster.
#[derive(Default)]
pub struct ReportStore {
    clusters: BTreeMap<ClusterName, Connectivity>,
    /// Clusters whose session has ended and that are not reported as unreachable yet.
    lost: BTreeSet<ClusterName>,
    /// Rules with retained copies in leaving clusters, with the number of copies.
    retained: BTreeMap<ClusterName, Vec<(RuleName, u32)>>,
    /// The key under which agents prove their copies.
    pub(super) proof_key: Option<ProofKey>,
    /// Number of reports whose failures were dropped since the last query.
    shortened: u64,
    names: SharedNames,
}

impl ReportStore {
    /// Returns an empty store of a hub that gives its agents this key.
    pub fn proving(key: ProofKey) -> Self {
        Self {
            proof_key: Some(key),
            ..Self::default()
        }
    }

    /// Sets what is not sent to a connected cluster until an administrator confirms.
    pub fn waits_for_confirmation(
        &mut self,
        cluster: &ClusterName,
        unconfirmed: Option<Unconfirmed>,
    ) {
        if let Some(connectivity) = self.clusters.get_mut(cluster) {
            connectivity.unconfirmed = unconfirmed;
        }
    }

    /// Whether the cluster waits for a confirmation.
    pub fn is_unconfirmed(&self, cluster: &ClusterName) -> bool {
        self.connectivity(cluster)
            .is_some_and(|connectivity| connectivity.unconfirmed.is_some())
    }

    /// Whether a cluster is connected, and needs no confirmation.
    pub fn accepts_edits(&self, cluster: &ClusterName) -> bool {
        self.connectivity(cluster).is_some_and(|connectivity| {
            connectivity.session.is_some() && connectivity.unconfirmed.is_none()
        })
    }

    /// An agent has connected and reports everything; its earlier reports are void. `number`
    /// distinguishes its session from later ones.
    pub fn connected(
        &mut self,
        cluster: &ClusterName,
        number: u64,
        facts: SessionFacts,
        states: Vec<RuleState>,
    ) {
        let connectivity = self.clusters.entry(cluster.clone()).or_default();
        connectivity.session = Some(facts);
        connectivity.number = number;
        let before = std::mem::take(&mut connectivity.rule_reports);
        connectivity.copies = 0;
        connectivity.over_limit.clear();
        connectivity.bytes = 0;
        connectivity.lost_at = None;
        connectivity.unconfirmed = None;
        self.lost.remove(cluster);
        connectivity.lost_watches.clear();
        for state in states {
            let (uid, digests) = (
                state.uid.clone(),
                (state.intents_digest, state.terms_digest),
            );
            self.report(cluster, number, state);
            // An agent that was restarted, or is busy, has not computed its waiting prunes again,
            // and reports them later.
            let Some(connectivity) = self.clusters.get_mut(cluster) else {
                continue;
            };
            let rule_report = connectivity.rule_reports.get_mut(&uid);
            if let (Some(rule_report), Some(before)) = (rule_report, before.get(&uid))
                && (rule_report.counts.copies_in_progress() > 0
                    || (before.intents_digest, before.terms_digest) != digests)
            {
                connectivity.copies = connectivity.copies.saturating_sub(rule_report.copies());
                if let Some(prunes) = &before.details().namespace_prunes {
                    let details = rule_report.details.get_or_insert_default();
                    details.namespace_prunes = Some(prunes.clone());
                }
                connectivity.copies = connectivity.copies.saturating_add(rule_report.copies());
            }
        }
    }

    /// Returns another connected member whose agent is in the cluster with this uid.
    pub fn other_in_cluster(&self, cluster: &ClusterName, uid: &str) -> Option<ClusterName> {
        let is_there = |connectivity: &Connectivity| {
            let session = connectivity.session.as_ref();
            connectivity.lost_at.is_none() && session.is_some_and(|facts| facts.cluster_uid == uid)
        };
        let mut others = self.clusters.iter().filter(|(name, _)| *name != cluster);
        let other = others.find(|(_, connectivity)| !uid.is_empty() && is_there(connectivity));
        other.map(|(name, _)| name.clone())
    }

    /// Handles a new session. It replaces a live session with the same key. Returns whether key
    /// sharing was detected.
    pub fn displaces(&mut self, cluster: &ClusterName, facts: &SessionFacts, now: Instant) -> bool {
        let Some(connectivity) = self.clusters.get_mut(cluster) else {
            return false;
        };
        let Some(old) = connectivity.session.as_ref() else {
            return false;
        };
        // With a new key of the agent the former one is refused, or reveals another client.
        if old.key != facts.key {
            connectivity.key_sharing = KeySharing::default();
            return false;
        }
        if connectivity.lost_at.is_some() {
            return false;
        }
        let before = connectivity.key_sharing.is_seen(now);
        connectivity
            .key_sharing
            .superseded(&old.boot_id, &facts.boot_id, now);
        !before && connectivity.key_sharing.is_seen(now)
    }

    /// Whether two agents used the key of a cluster alternately, recently.
    pub fn is_key_shared(&self, cluster: &ClusterName, now: Instant) -> bool {
        self.clusters
            .get(cluster)
            .is_some_and(|connectivity| connectivity.key_sharing.is_seen(now))
    }

    /// An agent reports its lost watches. Returns whether that changed.
    pub fn lost_watches(
        &mut self,
        cluster: &ClusterName,
        number: u64,
        watches: Vec<LostWatch>,
    ) -> bool {
        let connectivity = self
            .clusters
            .get_mut(cluster)
            .filter(|connectivity| connectivity.number == number);
        connectivity.is_some_and(|connectivity| {
            std::mem::replace(&mut connectivity.lost_watches, watches.clone()) != watches
        })
    }

    /// Returns a lost watch, and what it makes uncertain of the reports about these kinds: that of namespaces if it is lost,
    /// else one of these kinds, if there is one.
    pub fn first_lost_watch<'r>(
        &self,
        cluster: &ClusterName,
        resources: impl Iterator<Item = &'r str>,
    ) -> Option<(LostWatch, Uncertain)> {
        let connectivity = self.connectivity(cluster)?;
        let first = connectivity.lost_watches.first()?;
        let in_use: BTreeSet<&str> = resources.collect();
        let Some(watch) = connectivity.lost_watch(in_use.iter().copied()) else {
            return Some((first.clone(), Uncertain::Nothing));
        };
        // An API server without a kind is available.
        let is_served = |watch: &LostWatch| watch.status != 404 || &*watch.resource == NAMESPACES;
        let is_lost = |kind: &&str| {
            let watch = connectivity.lost_watch(std::iter::once(*kind));
            watch.as_ref().is_some_and(is_served)
        };
        let uncertain = if in_use.iter().all(is_lost) {
            Uncertain::Everything
        } else {
            Uncertain::Kinds
        };
        Some((watch, uncertain))
    }

    /// An agent's session ended.
    pub fn disconnected(&mut self, cluster: &ClusterName, number: u64, now: Instant) {
        if let Some(connectivity) = self
            .clusters
            .get_mut(cluster)
            .filter(|connectivity| connectivity.number == number)
        {
            connectivity.lost_at.get_or_insert(now);
            self.lost.insert(cluster.clone());
        }
    }

    /// Returns the clusters that have become unreachable since the last call.
    pub fn take_newly_unreachable(&mut self, now: Instant) -> Vec<ClusterName> {
        let clusters = &self.clusters;
        let lost_at = |cluster: &ClusterName| {
            clusters
                .get(cluster)
                .and_then(|connectivity| connectivity.lost_at)
        };
        let over = |lost| now.saturating_duration_since(lost) >= SILENCE;
        let silent: Vec<_> = self
            .lost
            .iter()
            .filter(|cluster| lost_at(cluster).is_some_and(over))
            .cloned()
            .collect();
        self.lost.retain(|cluster| !silent.contains(cluster));
        silent
    }

    /// Sets the rules that are not sent to a cluster, because it would have too many. Returns those
    /// for which that changed.
    pub fn set_over_limit(
        &mut self,
        cluster: &ClusterName,
        number: u64,
        beyond: BTreeSet<RuleUid>,
    ) -> Vec<RuleUid> {
        let Some(connectivity) = self
            .clusters
            .get_mut(cluster)
            .filter(|connectivity| connectivity.number == number)
        else {
            return Vec::new();
        };
        let changed = connectivity
            .over_limit
            .symmetric_difference(&beyond)
            .cloned()
            .collect();
        connectivity.over_limit = beyond;
        changed
    }

    /// Returns the number of reports with dropped failures since the last call.
    pub fn take_shortened(&mut self) -> u64 {
        std::mem::take(&mut self.shortened)
    }

    /// An agent reports on a rule. Returns whether that is news.
    pub fn report(&mut self, cluster: &ClusterName, number: u64, mut state: RuleState) -> bool {
        let Some(connectivity) = self
            .clusters
            .get_mut(cluster)
            .filter(|connectivity| connectivity.number == number)
        else {
            return false;
        };
        let before = connectivity.rule_reports.get(&state.uid);
        let (bytes, copies) = before.map_or((0, 0), |known| (known.bytes, known.copies()));
        connectivity.bytes = connectivity.bytes.saturating_sub(bytes);
        connectivity.copies = connectivity.copies.saturating_sub(copies);
        if state.gone {
            return connectivity.rule_reports.remove(&state.uid).is_some();
        }
        let has_details = !state.failures.is_empty() || !state.feedback.is_empty();
        if connectivity.bytes + state_bytes(&state) > REPORT_BYTES && has_details {
            state.failures = Vec::new();
            state.feedback = Vec::new();
            self.shortened += 1;
        }
        let bytes = state_bytes(&state);
        connectivity.bytes += bytes;
        let details = ReportDetails {
            failures: state.failures,
            namespace_prunes: state
                .namespace_prunes
                .filter(|namespace_prunes| namespace_prunes.copies > 0),
            waiting: state.waiting,
            feedback: state.feedback,
        };
        let (uid, rule) = self.names.share(state.uid, state.rule);
        let rule_report = Box::new(RuleReport {
            rule,
            intents_digest: state.intents_digest,
            terms_digest: state.terms_digest,
            intents: state.intents,
            counts: state.counts,
            proof: state.proof,
            details: details.boxed(),
            bytes,
        });
        connectivity.copies = connectivity.copies.saturating_add(rule_report.copies());
        let is_news = connectivity.rule_reports.get(&uid) != Some(&rule_report);
        connectivity.rule_reports.insert(uid, rule_report);
        is_news
    }

    /// A cluster is revoked or deleted: nothing of it is known any more.
    pub fn forget(&mut self, cluster: &ClusterName) {
        self.clusters.remove(cluster);
        self.lost.remove(cluster);
        self.retained.remove(cluster);
    }

    /// Handles the start or the cancellation of a leave. `retains`: rules whose copies are retained
    /// there.
    pub fn leaves(
        &mut self,
        cluster: &ClusterName,
        leaving: bool,
        retains: impl Fn(&RuleUid) -> bool,
    ) {
        if !leaving {
            self.retained.remove(cluster);
        } else if !self.retained.contains_key(cluster) && self.has_connected(cluster) {
            let acked = self
                .copies_by_rule(cluster)
                .filter(|(uid, ..)| retains(uid));
            let retained = acked
                .map(|(_, rule, copies)| (rule.clone(), copies))
                .collect();
            self.retained.insert(cluster.clone(), retained);
        }
    }

    /// Returns the rules whose copies are retained in a leaving cluster, as of the start of the
    /// leave.
    pub fn retained(&self, cluster: &ClusterName) -> &[(RuleName, u32)] {
        self.retained
            .get(cluster)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// The rules with copies in a cluster, and how many.
    pub fn copies_by_rule(
        &self,
        cluster: &ClusterName,
    ) -> impl Iterator<Item = (&RuleUid, &RuleName, u32)> {
        let connectivity = self.clusters.get(cluster);
        connectivity
            .into_iter()
            .flat_map(|connectivity| &connectivity.rule_reports)
            .map(|(uid, rule_report)| (uid, &*rule_report.rule, rule_report.counts.applied))
    }

    /// The session of a cluster that counts as connected: it is, or was a moment ago.
    pub fn session(&self, cluster: &ClusterName, now: Instant) -> Option<&SessionFacts> {
        self.connectivity(cluster)?.session(now)
    }

    /// Whether the cluster has connected since the hub started.
    pub fn has_connected(&self, cluster: &ClusterName) -> bool {
        self.connectivity(cluster)
            .is_some_and(Connectivity::has_connected)
    }

    /// The rules with intents in a cluster, with the agent's names for them.
    pub fn acked_rules(
        &self,
        cluster: &ClusterName,
    ) -> impl Iterator<Item = (&RuleUid, &RuleName)> {
        self.copies_by_rule(cluster)
            .map(|(uid, rule, _)| (uid, rule))
    }

    /// When the certificate of the cluster's newest session expires.
    pub fn certificate_expires(&self, cluster: &ClusterName) -> Option<Timestamp> {
        Some(
            self.clusters
                .get(cluster)?
                .session
                .as_ref()?
                .certificate_expires,
        )
    }

    /// The sum of all copies, as (state, number), for metrics.
    pub fn copies(&self) -> Counts {
        let rule_reports = self
            .clusters
            .values()
            .flat_map(|connectivity| connectivity.rule_reports.values());
        rule_reports.fold(Counts::default(), |sum, rule_report| {
            sum.saturating_add(rule_report.counts)
        })
    }

    /// The sums of the copies of all clusters, by rule. Clusters in which no copy of the rule has a health are left out.
    pub fn health_by_rule(&self) -> BTreeMap<RuleUid, Counts> {
        let rule_reports = self
            .clusters
            .values()
            .flat_map(|connectivity| &connectivity.rule_reports);
        let mut sums = BTreeMap::<_, Counts>::new();
        for (uid, rule_report) in rule_reports {
            if rule_report.counts.with_health > 0 {
                let sum = sums.entry(uid.clone()).or_default();
                *sum = sum.saturating_add(rule_report.counts);
            }
        }
        sums
    }

    /// The last report of a cluster about a rule's copies.
    pub fn reported_copies(&self, rule: &RuleUid, cluster: &ClusterName) -> Option<ReportedCopies> {
        let rule_report = self.rule_report(cluster, rule)?;
        let prunes = rule_report.details().namespace_prunes.as_ref();
        let prunes = prunes.map(|message| PruneRequest {
            objects: message.copies,
            digest: message.digest,
        });
        Some(ReportedCopies {
            copies: rule_report.copies(),
            intents: rule_report.intents.into(),
            prunes,
        })
    }

    /// The copies of all rules in a cluster, as of its last reports.
    pub fn copies_in(&self, cluster: &ClusterName) -> u64 {
        self.connectivity(cluster)
            .map_or(0, |connectivity| connectivity.copies)
    }

    /// Some of the namespaces from which copies of a rule are to be removed in a cluster.
    pub fn namespaces_of_prunes(&self, rule: &RuleUid, cluster: &ClusterName) -> &[String] {
        let rule_report = self
            .rule_report(cluster, rule)
            .and_then(|rule_report| rule_report.details().namespace_prunes.as_ref());
        rule_report
            .map(|namespace_prunes| namespace_prunes.namespaces.as_slice())
            .unwrap_or_default()
    }

    /// Whether a cluster's last report has exactly these intents of a rule.
    pub fn reports_exactly(
        &self,
        cluster: &ClusterName,
        rule: &RuleUid,
        intents: SetDigest,
    ) -> bool {
        self.rule_report(cluster, rule)
            .is_some_and(|rule_report| rule_report.intents_digest == intents)
    }

    /// Whether each cluster reports exactly the intents that a rule sends there, and none where it sends nothing. A cluster
    /// that has not connected yet may have others.
    pub fn has_only_selected(&self, entry: &RuleEntry, clusters: &Clusters) -> bool {
        clusters.iter().all(|(name, cluster)| {
            let uid = &entry.rule.uid;
            let is_known = self.has_connected(name) || !cluster.was_connected;
            let is_exact = match entry.assignment(name) {
                Some(assignment) if cluster.was_connected => {
                    self.reports_exactly(name, uid, assignment.digest())
                }
                _ => self
                    .rule_report(name, uid)
                    .is_none_or(|report| report.intents == 0),
            };
            is_known && is_exact
        })
    }

    pub(super) fn rule_report(&self, cluster: &ClusterName, rule: &RuleUid) -> Option<&RuleReport> {
        self.connectivity(cluster)?.rule_report(rule)
    }

    /// Returns the connectivity of a cluster.
    pub(super) fn connectivity(&self, cluster: &ClusterName) -> Option<&Connectivity> {
        self.clusters.get(cluster)
    }
}

/// For how long a process that lost its session to another one is remembered, and how long the condition stays after the last
/// time.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// Limit of remembered processes. More processes than that within the time share the key.
const PROCESSES: usize = 8;

/// The agent processes that lost a member's session to another one.
/// A restarted agent is a new process, and its predecessor never reconnects. Of two replicas only
/// the holder of their Lease connects, so one may take the session back once, after a network
/// failure. Two processes that take it back twice share the key.
#[derive(Default)]
pub(super) struct KeySharing {
    /// The processes that lost a session while it lived, by their boot ids, the newest last.
    superseded: VecDeque<(String, Instant)>,
    /// When a process last took its session back.
    taken_back: Option<Instant>,
    /// The last observation of two processes with the key.
    last: Option<Instant>,
}

impl KeySharing {
    /// Records that the process `new` replaces the live session of the process `old`.
    pub(super) fn superseded(&mut self, old: &str, new: &str, now: Instant) {
        // An agent that renews its stream.
        if old == new {
            return;
        }
        self.superseded
            .retain(|(boot, at)| boot != old && now.saturating_duration_since(*at) < REMEMBERED);
        if self.superseded.iter().any(|(boot, _)| boot == new) {
            let is_again = |at: Instant| now.saturating_duration_since(at) < REMEMBERED;
            if self.taken_back.replace(now).is_some_and(is_again) {
                self.last = Some(now);
            }
        }
        self.superseded.push_back((old.to_owned(), now));
        if self.superseded.len() > PROCESSES {
            self.superseded.pop_front();
            // A restarting agent does not leave that many live sessions.
            self.last = Some(now);
        }
    }

    /// Whether key sharing was observed recently.
    pub(super) fn is_seen(&self, now: Instant) -> bool {
        self.last
            .is_some_and(|last| now.saturating_duration_since(last) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{PruneDigest, Revision, SourceRef};

    use super::*;

    fn facts() -> SessionFacts {
        SessionFacts {
            agent_version: "1".into(),
            kubernetes_version: "v1".into(),
            cluster_uid: "c".into(),
            key: String::new(),
            boot_id: String::new(),
            certificate_expires: Timestamp::MAX,
        }
    }

    /// A rule of 16 copies in one cluster: `failed` failed ones, and the others as given. As many
    /// are in a namespace that is no longer a target.
    fn state(objects: u32, change: impl FnOnce(&mut Counts)) -> RuleState {
        let mut counts = Counts {
            copies: 16,
            failed: objects,
            applied: 16 - objects,
            ..Counts::default()
        };
        change(&mut counts);
        let digest = PruneDigest([u8::try_from(objects).unwrap(); 16]);
        RuleState {
            intents: 16,
            terms_digest: Some(TermsDigest([1; 16])),
            counts,
            namespace_prunes: Some(NamespacePrunes {
                copies: objects,
                digest,
                namespaces: vec![],
            }),
            ..RuleState::new("r".into())
        }
    }

    fn removing_copies(report_store: &ReportStore) -> u32 {
        let holding = report_store
            .reported_copies(&"r".into(), &"a".into())
            .unwrap();
        holding.prunes.map_or(0, |prunes| prunes.objects)
    }

    #[test]
    fn health_is_summed_by_rule_over_clusters() {
        let mut report_store = ReportStore::default();
        let report = |rule: &str, with_health, healthy, unhealthy| RuleState {
            counts: Counts {
                copies: 9,
                applied: 9,
                with_health,
                healthy,
                unhealthy,
                ..Counts::default()
            },
            ..RuleState::new(rule.into())
        };
        for (cluster, states) in [
            ("a", vec![report("r", 4, 1, 2), report("none", 0, 0, 0)]),
            ("b", vec![report("r", 2, 2, 0), report("s", 1, 0, 0)]),
        ] {
            report_store.connected(&cluster.into(), 1, facts(), states);
        }
        // A cluster that is away keeps its last report.
        report_store.disconnected(&"a".into(), 1, Instant::now());
        let sums: Vec<_> = report_store
            .health_by_rule()
            .into_iter()
            .map(|(uid, sum)| (uid, sum.healthy, sum.awaiting_health(), sum.unhealthy))
            .collect();
        assert_eq!(sums, [("r".into(), 3, 1, 2), ("s".into(), 0, 1, 0)]);
    }

    #[test]
    fn key_is_shared_only_by_live_sessions() {
        let (cluster, now) = (ClusterName::from("a"), Instant::now());
        let of = |boot: &str, key: &str| SessionFacts {
            boot_id: boot.into(),
            key: key.into(),
            ..facts()
        };
        let mut report_store = ReportStore::default();
        let mut number = 0;
        let mut connects = |report_store: &mut ReportStore, facts: SessionFacts| {
            number += 1;
            let news = report_store.displaces(&cluster, &facts, now);
            report_store.connected(&cluster, number, facts, vec![]);
            news
        };
        // Two replicas: each session has ended before the other begins.
        for (number, boot) in (1..).zip(["a", "b", "a", "b"]) {
            assert!(!connects(&mut report_store, of(boot, "k")));
            report_store.disconnected(&cluster, number, now);
        }
        assert!(!report_store.is_key_shared(&cluster, now));
        let news = ["a", "b", "a", "b"].map(|boot| connects(&mut report_store, of(boot, "k")));
        assert_eq!(news, [false, false, false, true]);
        assert!(report_store.is_key_shared(&cluster, now));
        connects(&mut report_store, of("a", "k2"));
        assert!(
            !report_store.is_key_shared(&cluster, now),
            "the agent has another key now"
        );
    }

    #[test]
    fn returning_agent_keeps_pending_approvals_until_it_reports() {
        let cluster = ClusterName::from("a");
        let back = |hello: RuleState| {
            let mut report_store = ReportStore::default();
            report_store.connected(&cluster, 1, facts(), vec![]);
            report_store.report(&cluster, 1, state(6, |_| {}));
            report_store.connected(&cluster, 2, facts(), vec![hello]);
            report_store
        };
        // The agent is busy, or was restarted and has only the intents of its copies, or has no
        // terms yet.
        let mut restarted = state(0, |counts| {
            *counts = Counts {
                copies: 10,
                applied: 10,
                ..Counts::default()
            }
        });
        restarted.intents_digest.insert(
            &SourceRef::new("configmaps", "team", "s"),
            &Revision([1; 16]),
        );
        let orphaned = RuleState {
            terms_digest: None,
            ..state(0, |_| {})
        };
        for hello in [state(0, |counts| counts.applied = 3), restarted, orphaned] {
            let mut report_store = back(hello);
            assert_eq!(removing_copies(&report_store), 6);
            report_store.report(&cluster, 2, state(2, |_| {}));
            assert_eq!(removing_copies(&report_store), 2);
            report_store.report(&cluster, 2, state(0, |_| {}));
            assert_eq!(removing_copies(&report_store), 0);
        }
        // The cluster was only disconnected.
        let report_store = back(state(2, |_| {}));
        assert_eq!(removing_copies(&report_store), 2);
    }

    /// Returns whether these sessions, one second apart, count as key sharing.
    fn detects_sharing(boots: &[&str]) -> bool {
        let (start, mut sharing) = (Instant::now(), KeySharing::default());
        let mut now = start;
        for pair in boots.windows(2) {
            now += Duration::from_secs(1);
            sharing.superseded(pair[0], pair[1], now);
        }
        sharing.is_seen(now)
    }

    #[test]
    fn process_that_takes_its_session_back_is_one_of_two() {
        assert!(detects_sharing(&["a", "b", "a", "b"]));
        assert!(
            detects_sharing(&["a", "b", "a", "c", "a"]),
            "an attacker that starts again each time"
        );
        assert!(detects_sharing(&["a", "a", "b", "b", "a", "b"]));
        assert!(
            !detects_sharing(&["a", "b", "a"]),
            "replicas that lost their network by turns"
        );
    }

    #[test]
    fn restarted_agent_or_renewed_stream_is_no_key_sharing() {
        assert!(!detects_sharing(&["a", "a", "a"]));
        assert!(!detects_sharing(&["a", "b", "c", "d"]));
        assert!(!detects_sharing(&["a", "b", "b"]));
    }

    #[test]
    fn key_sharing_ends_after_a_quiet_period() {
        let (start, mut sharing) = (Instant::now(), KeySharing::default());
        for (old, new) in [("a", "b"), ("b", "a"), ("a", "b")] {
            sharing.superseded(old, new, start);
        }
        assert!(sharing.is_seen(start + REMEMBERED / 2));
        assert!(!sharing.is_seen(start + REMEMBERED));
        sharing.superseded("a", "b", start + 2 * REMEMBERED);
        assert!(
            !sharing.is_seen(start + 2 * REMEMBERED),
            "what was long ago is forgotten"
        );
    }

    #[test]
    fn more_processes_than_are_remembered_share_the_key() {
        let (start, mut sharing) = (Instant::now(), KeySharing::default());
        for number in 0..100 {
            assert_eq!(sharing.is_seen(start), number > PROCESSES, "{number}");
            sharing.superseded(&number.to_string(), &(number + 1).to_string(), start);
        }
        assert_eq!(sharing.superseded.len(), PROCESSES);
    }
}
