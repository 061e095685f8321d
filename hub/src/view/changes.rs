//! The changes of deliveries, for watches.
//!
//! All watches share one log of changes with a fixed size, so the memory for a watch does not
//! depend on the number of deliveries. Only rules that a client listed or watches are compared.
//! A client that falls behind the log gets `Expired` and lists again, as with any API server.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant, SystemTime};

use runnel_proto::model::{ClusterName, RuleName, RuleUid};

use super::delivery::{Row, Scope};
use super::request::Selection;

/// The number of changes in the log.
const LOG: usize = 65_536;
/// How long rules are compared after a list, so that a watch can begin where the list ended.
const REMEMBERED: Duration = Duration::from_secs(120);
/// The limit of readings that are remembered after a list.
const READINGS: usize = 1024;
/// The limit of readings of one rule or one cluster in a scope. Above it the whole scope is compared.
const NARROW: usize = 64;

/// How a delivery changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It did not exist before.
    Added,
    /// It has another state.
    Modified,
    /// It does not exist any more.
    Deleted,
}

/// A change of one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeliveryChange {
    pub(super) version: u64,
    pub(super) uid: RuleUid,
    pub(super) rule: RuleName,
    pub(super) cluster: ClusterName,
    pub(super) kind: Kind,
}

/// Changes of a scope, in their order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) changes: Vec<DeliveryChange>,
    /// The version up to which the changes are complete.
    pub(super) version: u64,
    /// Whether no more changes follow.
    pub(super) is_last: bool,
}

/// The deliveries that a client reads: those of a scope, or of one rule or one cluster in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ViewScope {
    scope: Scope,
    rule: Option<String>,
    cluster: Option<ClusterName>,
}

impl ViewScope {
    /// The deliveries of a scope that can match a selection.
    pub(super) fn new(scope: &Scope, selection: &Selection) -> Self {
        Self {
            scope: scope.clone(),
            rule: selection.rule().map(str::to_owned),
            cluster: selection.cluster().map(ClusterName::from),
        }
    }

    /// Whether deliveries of a rule are read.
    pub(super) fn has(&self, rule: &RuleName) -> bool {
        self.scope.has(rule) && self.rule.as_ref().is_none_or(|only| *only == rule.name)
    }

    /// The clusters whose deliveries are read.
    pub(super) fn clusters(&self) -> ComparedClusters {
        self.cluster.clone().map(|only| BTreeSet::from([only]))
    }

    /// Whether all that the other has is read.
    fn covers(&self, other: &Self) -> bool {
        let scope = match (&self.scope, &other.scope) {
            (Scope::Namespace(all), Scope::Namespace(_)) if all.is_empty() => true,
            (one, two) => one == two,
        };
        scope
            && (self.rule.is_none() || self.rule == other.rule)
            && (self.cluster.is_none() || self.cluster == other.cluster)
    }

    fn is_narrow(&self) -> bool {
        self.rule.is_some() || self.cluster.is_some()
    }
}

/// Clusters of a rule; `None`: all.
pub(super) type ComparedClusters = Option<BTreeSet<ClusterName>>;

fn has(clusters: &ComparedClusters, cluster: &ClusterName) -> bool {
    clusters.as_ref().is_none_or(|all| all.contains(cluster))
}

/// The digests of the deliveries of one rule, in the order of clusters.
struct Compared {
    rule: RuleName,
    rows: Vec<(ClusterName, u64)>,
    /// The clusters of the rule that are compared.
    clusters: ComparedClusters,
}

/// Deliveries that clients read.
struct Reading {
    /// The version since which its changes are in the log.
    since: u64,
    /// When a client last read it.
    at: Instant,
}

/// The log of changes.
pub(super) struct Changes {
    /// Since when this replica serves. Another leader may have served before.
    serving: Option<Instant>,
    version: u64,
    /// Changes before this version are unknown.
    floor: u64,
    log: VecDeque<DeliveryChange>,
    compared: BTreeMap<RuleUid, Compared>,
    readings: BTreeMap<ViewScope, Reading>,
}

impl Changes {
    /// Creates an empty log. Versions begin at the clock, so that they grow from one leader to the
    /// next.
    pub(super) fn new(now: SystemTime) -> Self {
        let since = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let version = u64::try_from(since.as_micros()).unwrap_or(u64::MAX >> 1);
        Self {
            version,
            floor: version,
            log: VecDeque::new(),
            compared: BTreeMap::new(),
            readings: BTreeMap::new(),
            serving: None,
        }
    }

    /// Begins again, if this replica serves since another moment than before.
    pub(super) fn serve_since(&mut self, serving: Option<Instant>, now: SystemTime) {
        if self.serving != serving {
            let former = self.version;
            *self = Self::new(now);
            self.version = self.version.max(former + 1);
            (self.floor, self.serving) = (self.version, serving);
        }
    }

    /// The version of the newest change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// A client reads these deliveries: new rules with such are compared from now on. Returns what is read if no client
    /// read it before, so that its former changes are unknown.
    pub(super) fn read_by(&mut self, shown: &ViewScope, now: Instant) -> Option<ViewScope> {
        if let Some(reading) = self.readings.get_mut(shown) {
            reading.at = now;
            return None;
        }
        let of_scope = |other: &&ViewScope| other.is_narrow() && other.scope == shown.scope;
        if shown.is_narrow() && self.readings.keys().filter(of_scope).count() >= NARROW {
            let (rule, cluster, scope) = (None, None, shown.scope.clone());
            return self.read_by(
                &ViewScope {
                    scope,
                    rule,
                    cluster,
                },
                now,
            );
        }
        if self.readings.len() >= READINGS {
            let oldest = self.readings.iter().min_by_key(|(_, reading)| reading.at);
            if let Some(oldest) = oldest.map(|(shown, _)| shown.clone()) {
                self.readings.remove(&oldest);
            }
        }
        // Versions of before are too old for it.
        self.version += 1;
        let reading = Reading {
            since: self.version,
            at: now,
        };
        self.readings.insert(shown.clone(), reading);
        Some(shown.clone())
    }

    /// Returns the clusters of a rule whose deliveries are compared, or are to be; empty: no client reads the rule.
    pub(super) fn clusters_read(&self, uid: &RuleUid, rule: Option<&RuleName>) -> ComparedClusters {
        let readings = self.readings.keys();
        let readings = readings.filter(|shown| rule.is_some_and(|rule| shown.has(rule)));
        let compared = self
            .compared
            .get(uid)
            .map(|compared| compared.clusters.clone());
        let all = readings.map(ViewScope::clusters).chain(compared);
        all.sum_clusters()
    }

    /// Whether deliveries of a rule are not compared yet.
    pub(super) fn lacks(&self, uid: &RuleUid, shown: &ViewScope) -> bool {
        self.compared.get(uid).is_none_or(|compared| {
            let only = shown.cluster.as_ref();
            only.map_or(compared.clusters.is_some(), |only| {
                !has(&compared.clusters, only)
            })
        })
    }

    /// Begins to compare deliveries of a rule. They are new to clients that read them already by another reading than
    /// `own`, with which this client begins.
    pub(super) fn begin(
        &mut self,
        uid: &RuleUid,
        rule: &RuleName,
        rows: Vec<(ClusterName, u64)>,
        shown: &ViewScope,
        own: Option<&ViewScope>,
    ) {
        // Another task may have begun meanwhile.
        if !self.lacks(uid, shown) {
            return;
        }
        let others = self
            .readings
            .keys()
            .filter(|other| other.has(rule) && Some(*other) != own);
        let readers = others.map(ViewScope::clusters).sum_clusters();
        let mut compared = self.compared.remove(uid).unwrap_or_else(|| Compared {
            rule: rule.clone(),
            rows: Vec::new(),
            clusters: Some(BTreeSet::new()),
        });
        for (cluster, digest) in rows {
            if has(&compared.clusters, &cluster) {
                continue;
            }
            if has(&readers, &cluster) {
                self.record(uid, rule, cluster.clone(), Kind::Added);
            }
            compared.rows.push((cluster, digest));
        }
        compared.rows.sort_unstable();
        compared.clusters = [compared.clusters, shown.clusters()]
            .into_iter()
            .sum_clusters();
        self.compared.insert(uid.clone(), compared);
    }

    /// Records the present deliveries of a rule in some clusters. Returns whether any of them changed.
    pub(super) fn set(
        &mut self,
        uid: &RuleUid,
        rule: &RuleName,
        mut rows: Vec<(ClusterName, u64)>,
        clusters: ComparedClusters,
    ) -> bool {
        let before = self.version;
        let compared = self.compared.remove(uid);
        let (former, known) = compared.map_or_else(
            || (Vec::new(), Some(BTreeSet::new())),
            |compared| (compared.rows, compared.clusters),
        );
        let (former, others): (Vec<_>, Vec<_>) = former
            .into_iter()
            .partition(|(cluster, _)| has(&clusters, cluster));
        let (mut old, mut new) = (former.iter().peekable(), rows.iter().peekable());
        loop {
            let (cluster, kind) = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some((gone, _)), None) => (gone.clone(), Kind::Deleted),
                (None, Some((added, _))) => (added.clone(), Kind::Added),
                (Some((gone, _)), Some((added, _))) if gone < added => {
                    (gone.clone(), Kind::Deleted)
                }
                (Some((gone, _)), Some((added, _))) if gone > added => (added.clone(), Kind::Added),
                (Some((_, was)), Some((_, is))) if was == is => {
                    old.next();
                    new.next();
                    continue;
                }
                (Some(_), Some((same, _))) => (same.clone(), Kind::Modified),
            };
            if kind != Kind::Added {
                old.next();
            }
            if kind != Kind::Deleted {
                new.next();
            }
            self.record(uid, rule, cluster, kind);
        }
        if !others.is_empty() {
            rows.extend(others);
            rows.sort_unstable();
        }
        let compared = Compared {
            rule: rule.clone(),
            rows,
            clusters: [known, clusters].into_iter().sum_clusters(),
        };
        self.compared.insert(uid.clone(), compared);
        self.version > before
    }

    /// Records that a rule and its deliveries are gone.
    pub(super) fn remove(&mut self, uid: &RuleUid) -> bool {
        let Some(Compared { rule, rows, .. }) = self.compared.remove(uid) else {
            return false;
        };
        for (cluster, _) in &rows {
            self.record(uid, &rule, cluster.clone(), Kind::Deleted);
        }
        !rows.is_empty()
    }

    fn record(&mut self, uid: &RuleUid, rule: &RuleName, cluster: ClusterName, kind: Kind) {
        self.version += 1;
        self.log.push_back(DeliveryChange {
            version: self.version,
            uid: uid.clone(),
            rule: rule.clone(),
            cluster,
            kind,
        });
        if self.log.len() > LOG
            && let Some(dropped) = self.log.pop_front()
        {
            self.floor = self.floor.max(dropped.version);
        }
    }

    /// Whether all changes of these deliveries after a version are known.
    pub(super) fn knows(&self, version: u64, shown: &ViewScope) -> bool {
        let mut readings = self.readings.iter();
        (self.floor..=self.version).contains(&version)
            && readings.any(|(read, reading)| reading.since <= version && read.covers(shown))
    }

    /// Returns the first changes of these deliveries after a version, at most `limit`, each
    /// delivery once; `None` if they are not known any more.
    pub(super) fn after(&self, version: u64, shown: &ViewScope, limit: usize) -> Option<Batch> {
        if !self.knows(version, shown) {
            return None;
        }
        let only = shown.clusters();
        let begin = self.log.partition_point(|change| change.version <= version);
        let mut concerned = self
            .log
            .range(begin..)
            .filter(|change| shown.has(&change.rule) && has(&only, &change.cluster));
        let first: Vec<&DeliveryChange> = concerned.by_ref().take(limit).collect();
        // If more follow, the next batch begins after the last one.
        let last = concerned.next().and_then(|_| first.last());
        Some(Batch {
            changes: merged(&first),
            version: last.map_or(self.version, |last| last.version),
            is_last: last.is_none(),
        })
    }

    /// Forgets deliveries that no client has read for a while.
    pub(super) fn forget_unread(&mut self, now: Instant) {
        self.readings
            .retain(|_, reading| now.saturating_duration_since(reading.at) < REMEMBERED);
        let readings = &self.readings;
        self.compared.retain(|_, compared| {
            let of_rule = readings.keys().filter(|shown| shown.has(&compared.rule));
            compared.clusters = of_rule.map(ViewScope::clusters).sum_clusters();
            let clusters = &compared.clusters;
            compared.rows.retain(|(cluster, _)| has(clusters, cluster));
            clusters.as_ref().is_none_or(|some| !some.is_empty())
        });
    }
}

/// Sums of clusters.
trait SumClusters: Iterator<Item = ComparedClusters> + Sized {
    /// Returns all clusters that any of them has.
    fn sum_clusters(self) -> ComparedClusters {
        let mut sum = BTreeSet::new();
        for clusters in self {
            sum.append(&mut clusters?);
        }
        Some(sum)
    }
}

impl<I: Iterator<Item = ComparedClusters>> SumClusters for I {}

/// Merges the changes of each delivery into one, at the place of its last one.
fn merged(changes: &[&DeliveryChange]) -> Vec<DeliveryChange> {
    let mut ends: BTreeMap<(&RuleUid, &ClusterName), (Kind, u64)> = BTreeMap::new();
    for change in changes {
        let (_, last) = ends
            .entry((&change.uid, &change.cluster))
            .or_insert((change.kind, change.version));
        *last = change.version;
    }
    let merged = changes.iter().filter_map(|change| {
        let (first, last) = ends.get(&(&change.uid, &change.cluster))?;
        let kind = match (first, change.kind) {
            (Kind::Added, Kind::Deleted) => return None,
            (_, Kind::Deleted) => Kind::Deleted,
            (Kind::Added, _) => Kind::Added,
            _ => Kind::Modified,
        };
        (*last == change.version).then(|| DeliveryChange {
            kind,
            ..(*change).clone()
        })
    });
    merged.collect()
}

/// Returns the digest of a delivery, to detect a change within this process.
pub(super) fn digest(row: &Row) -> u64 {
    let mut hasher = DefaultHasher::new();
    let status = serde_json::to_vec(&row.status).expect("a status has only text and numbers");
    status.hash(&mut hasher);
    row.metadata.labels.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str) -> RuleName {
        RuleName {
            kind: "DistributionRule".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    fn whole(scope: Scope) -> ViewScope {
        ViewScope::new(&scope, &Selection::default())
    }

    fn shop() -> ViewScope {
        whole(Scope::Namespace("shop".to_owned()))
    }

    /// A log whose scope `shop` is read.
    fn read() -> Changes {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        changes.read_by(&shop(), Instant::now()).unwrap();
        changes
    }

    fn rows(states: &[(&str, u64)]) -> Vec<(ClusterName, u64)> {
        states
            .iter()
            .map(|(cluster, state)| (ClusterName::from(*cluster), *state))
            .collect()
    }

    fn since(changes: &Changes, version: u64) -> Option<Vec<(String, Kind)>> {
        let batch = changes.after(version, &shop(), usize::MAX)?;
        assert!(batch.is_last && batch.version == changes.version());
        let one = |change: DeliveryChange| (change.cluster.as_str().to_owned(), change.kind);
        Some(batch.changes.into_iter().map(one).collect())
    }

    fn expected(kinds: &[(&str, Kind)]) -> Option<Vec<(String, Kind)>> {
        let one = |(cluster, kind): &(&str, Kind)| ((*cluster).to_owned(), *kind);
        Some(kinds.iter().map(one).collect())
    }

    #[test]
    fn changes_are_those_between_two_states() {
        let (mut changes, uid) = (read(), RuleUid::from("u"));
        let states = [("a", 1), ("b", 1), ("d", 1)];
        changes.begin(&uid, &rule("r"), rows(&states), &shop(), Some(&shop()));
        let begin = changes.version();
        assert!(changes.set(
            &uid,
            &rule("r"),
            rows(&[("a", 1), ("b", 2), ("c", 1)]),
            None
        ));
        let kinds = [
            ("b", Kind::Modified),
            ("c", Kind::Added),
            ("d", Kind::Deleted),
        ];
        assert_eq!(since(&changes, begin), expected(&kinds));
        assert!(!changes.set(
            &uid,
            &rule("r"),
            rows(&[("a", 1), ("b", 2), ("c", 1)]),
            None
        ));
        let version = changes.version();
        assert!(changes.remove(&uid));
        let gone = ["a", "b", "c"].map(|cluster| (cluster, Kind::Deleted));
        assert_eq!(since(&changes, version), expected(&gone));
        // It came and went meanwhile.
        let kinds = ["a", "b", "d"].map(|cluster| (cluster, Kind::Deleted));
        let mut all = since(&changes, begin).unwrap();
        all.sort_by(|(left, _), (right, _)| left.cmp(right));
        assert_eq!(Some(all), expected(&kinds));
    }

    #[test]
    fn batches_continue_where_the_last_one_ended() {
        let (mut changes, uid) = (read(), RuleUid::from("u"));
        let mut version = changes.version();
        changes.set(
            &uid,
            &rule("r"),
            rows(&[("a", 1), ("b", 1), ("c", 1)]),
            None,
        );
        changes.set(
            &uid,
            &rule("r"),
            rows(&[("a", 2), ("b", 1), ("c", 1)]),
            None,
        );
        let mut sizes = Vec::new();
        while version < changes.version() {
            let batch = changes.after(version, &shop(), 2).unwrap();
            assert!(batch.changes.iter().all(|change| change.version > version));
            assert_eq!(batch.is_last, batch.version == changes.version());
            sizes.push(batch.changes.len());
            version = batch.version;
        }
        assert_eq!(sizes, [2, 2]);
    }

    #[test]
    fn version_before_a_scope_was_read_is_expired() {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        let (uid, now) = (RuleUid::from("u"), Instant::now());
        let before = changes.version();
        assert_eq!(since(&changes, before), None);
        changes.read_by(&shop(), now);
        changes.begin(&uid, &rule("r"), rows(&[("a", 1)]), &shop(), Some(&shop()));
        let listed = changes.version();
        assert_eq!(since(&changes, before), None);
        assert_eq!(since(&changes, listed), expected(&[]));
        assert_eq!(since(&changes, listed + 1), None);
        // Nobody reads it for a while, and what changes meanwhile is not recorded.
        changes.forget_unread(now + REMEMBERED);
        assert_eq!(since(&changes, listed), None);
        changes.read_by(&shop(), now + REMEMBERED);
        changes.begin(&uid, &rule("r"), rows(&[("a", 2)]), &shop(), Some(&shop()));
        assert_eq!(since(&changes, listed), None);
    }

    #[test]
    fn other_scopes_do_not_expire_a_watch() {
        let mut changes = read();
        let (listed, every) = (changes.version(), whole(Scope::Namespace(String::new())));
        assert!(changes.read_by(&every, Instant::now()).is_some());
        let elsewhere = RuleName {
            namespace: "other".to_owned(),
            ..rule("r")
        };
        let uid = RuleUid::from("o");
        changes.begin(&uid, &elsewhere, rows(&[("a", 1)]), &every, Some(&every));
        assert_eq!(since(&changes, listed), expected(&[]));
        // A list of all namespaces is the begin of a watch of one.
        let all = changes.version();
        let one = whole(Scope::Namespace("other".to_owned()));
        assert!(changes.after(all, &one, 1).is_some());
        assert!(changes.after(listed, &one, 1).is_none());
    }

    #[test]
    fn rule_that_another_list_compares_first_is_announced() {
        let mut changes = read();
        let watched = changes.version();
        let every = whole(Scope::Namespace(String::new()));
        let uid = RuleUid::from("new");
        changes.read_by(&every, Instant::now());
        changes.begin(&uid, &rule("new"), rows(&[("a", 1)]), &every, Some(&every));
        assert_eq!(since(&changes, watched), expected(&[("a", Kind::Added)]));
        // A second list of the same scope.
        let uid = RuleUid::from("newer");
        changes.begin(&uid, &rule("newer"), rows(&[("b", 1)]), &every, None);
        assert_eq!(
            since(&changes, changes.version() - 1),
            expected(&[("b", Kind::Added)])
        );
    }

    #[test]
    fn versions_of_before_another_leader_are_expired() {
        let (mut changes, uid, begin) = (read(), RuleUid::from("u"), Instant::now());
        changes.serve_since(Some(begin), SystemTime::UNIX_EPOCH);
        changes.read_by(&shop(), begin);
        changes.set(&uid, &rule("r"), rows(&[("a", 1)]), None);
        let listed = changes.version();
        changes.serve_since(Some(begin), SystemTime::UNIX_EPOCH);
        assert_eq!(since(&changes, listed), expected(&[]));
        let again = begin + Duration::from_secs(1);
        changes.serve_since(Some(again), SystemTime::UNIX_EPOCH);
        changes.read_by(&shop(), again);
        assert!(changes.version() > listed && changes.lacks(&uid, &shop()));
        assert_eq!(since(&changes, listed), None);
    }

    #[test]
    fn log_is_bounded() {
        let (mut changes, uid) = (read(), RuleUid::from("u"));
        changes.set(&uid, &rule("r"), rows(&[("a", 0)]), None);
        let begin = changes.version();
        for state in 1..=LOG as u64 {
            changes.set(&uid, &rule("r"), rows(&[("a", state)]), None);
        }
        assert_eq!(changes.log.len(), LOG);
        assert_eq!(since(&changes, begin), expected(&[("a", Kind::Modified)]));
        changes.set(&uid, &rule("r"), rows(&[("a", 0)]), None);
        assert_eq!((changes.log.len(), since(&changes, begin)), (LOG, None));
        assert_eq!(since(&changes, changes.version() - 1).unwrap().len(), 1);
    }

    #[test]
    fn unread_rules_are_forgotten() {
        let (mut changes, uid) = (read(), RuleUid::from("u"));
        let now = Instant::now();
        changes.begin(&uid, &rule("r"), rows(&[("a", 1)]), &shop(), Some(&shop()));
        changes.forget_unread(now);
        assert!(!changes.lacks(&uid, &shop()));
        changes.forget_unread(now + REMEMBERED);
        let nothing = Some(BTreeSet::new());
        assert_eq!(changes.clusters_read(&uid, Some(&rule("r"))), nothing);
        for number in 0..2 * READINGS {
            changes.read_by(&whole(Scope::Namespace(number.to_string())), now);
        }
        assert_eq!(changes.readings.len(), READINGS);
    }
    /// The deliveries of the scope `shop` that have this rule or this cluster.
    fn narrow(name: Option<&str>, cluster: Option<&str>) -> ViewScope {
        ViewScope {
            rule: name.map(str::to_owned),
            cluster: cluster.map(ClusterName::from),
            ..shop()
        }
    }

    #[test]
    fn reading_of_one_cluster_compares_that_cluster_alone() {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        let (uid, now) = (RuleUid::from("u"), Instant::now());
        let only = narrow(None, Some("b"));
        let own = changes.read_by(&only, now);
        let wanted = changes.clusters_read(&uid, Some(&rule("r")));
        assert_eq!(wanted, only.clusters());
        changes.begin(&uid, &rule("r"), rows(&[("b", 1)]), &only, own.as_ref());
        let listed = changes.version();
        assert!(changes.set(&uid, &rule("r"), rows(&[("b", 2)]), wanted));
        let seen = |changes: &Changes, shown: &ViewScope| {
            let batch = changes.after(listed, shown, 9)?;
            Some(batch.changes.len())
        };
        assert_eq!(seen(&changes, &only), Some(1));
        assert_eq!(seen(&changes, &shop()), None);
        assert_eq!(seen(&changes, &narrow(Some("r"), Some("b"))), Some(1));
        assert_eq!(seen(&changes, &narrow(Some("r"), None)), None);
        // A list of all clusters tells the client of one cluster nothing.
        let own = changes.read_by(&shop(), now).unwrap();
        assert!(changes.lacks(&uid, &own));
        let all = rows(&[("a", 1), ("b", 2), ("c", 1)]);
        changes.begin(&uid, &rule("r"), all, &own, Some(&own));
        assert_eq!(seen(&changes, &only), Some(1));
        let version = changes.version();
        changes.set(&uid, &rule("r"), rows(&[("a", 2), ("b", 2)]), None);
        let kinds = [("a", Kind::Modified), ("c", Kind::Deleted)];
        assert_eq!(since(&changes, version), expected(&kinds));
    }

    #[test]
    fn comparison_of_some_clusters_leaves_the_others() {
        let (mut changes, uid) = (read(), RuleUid::from("u"));
        changes.set(
            &uid,
            &rule("r"),
            rows(&[("a", 1), ("b", 1), ("c", 1)]),
            None,
        );
        let begin = changes.version();
        let only = narrow(None, Some("b")).clusters();
        assert!(!changes.set(&uid, &rule("r"), rows(&[("b", 1)]), only.clone()));
        assert!(changes.set(&uid, &rule("r"), rows(&[]), only));
        assert_eq!(since(&changes, begin), expected(&[("b", Kind::Deleted)]));
        assert!(!changes.set(&uid, &rule("r"), rows(&[("a", 1), ("c", 1)]), None));
    }

    #[test]
    fn many_narrow_readings_become_one_of_their_scope() {
        let (mut changes, now) = (Changes::new(SystemTime::UNIX_EPOCH), Instant::now());
        for number in 0..NARROW {
            let shown = narrow(Some(&number.to_string()), None);
            assert_eq!(changes.read_by(&shown, now), Some(shown));
        }
        let more = narrow(Some("more"), None);
        assert_eq!(changes.read_by(&more, now), Some(shop()));
        assert_eq!(changes.read_by(&more, now), None);
        assert!(changes.knows(changes.version(), &more));
        assert_eq!(changes.readings.len(), NARROW + 1);
    }
}
