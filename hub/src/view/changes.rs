//! The changes of deliveries, for watches.
//!
//! All watches share one log of changes with a fixed size, so the memory for a watch does not
//! depend on the number of deliveries. Only rules that a client listed or watches are compared.
//! A client that falls behind the log gets `Expired` and lists again, as with any API server.
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant, SystemTime};

use runnel_proto::model::{ClusterName, RuleName, RuleUid};

use super::delivery::{Row, Scope};

/// The number of changes in the log.
const LOG: usize = 65_536;
/// How long rules are compared after a list, so that a watch can begin where the list ended.
const REMEMBERED: Duration = Duration::from_secs(120);
/// The limit of scopes that are remembered after a list.
const SCOPES: usize = 1024;

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

/// The digests of the deliveries of one rule, in the order of clusters.
struct Compared {
    rule: RuleName,
    rows: Vec<(ClusterName, u64)>,
}

/// A scope that clients read.
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
    scopes: BTreeMap<Scope, Reading>,
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
            scopes: BTreeMap::new(),
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

    /// A client reads this scope: new rules in it are compared from now on. Returns whether no
    /// client read it before, so that its former changes are unknown.
    pub(super) fn read_by(&mut self, scope: &Scope, now: Instant) -> bool {
        if let Some(reading) = self.scopes.get_mut(scope) {
            reading.at = now;
            return false;
        }
        if self.scopes.len() >= SCOPES {
            let oldest = self.scopes.iter().min_by_key(|(_, reading)| reading.at);
            if let Some(oldest) = oldest.map(|(scope, _)| scope.clone()) {
                self.scopes.remove(&oldest);
            }
        }
        // Versions of before are too old for this scope.
        self.version += 1;
        let reading = Reading {
            since: self.version,
            at: now,
        };
        self.scopes.insert(scope.clone(), reading);
        true
    }

    /// Whether a rule is compared, or belongs to a scope that a client reads.
    pub(super) fn is_read(&self, uid: &RuleUid, rule: Option<&RuleName>) -> bool {
        self.compared.contains_key(uid)
            || rule.is_some_and(|rule| self.scopes.keys().any(|scope| scope.has(rule)))
    }

    /// Whether a rule is compared.
    pub(super) fn is_compared(&self, uid: &RuleUid) -> bool {
        self.compared.contains_key(uid)
    }

    /// Begins to compare a rule. Its deliveries are new to clients that read it already by another
    /// scope than `own`, with which this client begins.
    pub(super) fn begin(
        &mut self,
        uid: &RuleUid,
        rule: &RuleName,
        rows: Vec<(ClusterName, u64)>,
        own: Option<&Scope>,
    ) {
        let mut scopes = self.scopes.keys();
        if self.compared.contains_key(uid) {
            // Another task has begun meanwhile.
        } else if scopes.any(|scope| scope.has(rule) && Some(scope) != own) {
            self.set(uid, rule, rows);
        } else {
            let rule = rule.clone();
            self.compared.insert(uid.clone(), Compared { rule, rows });
        }
    }

    /// Records the present deliveries of a rule. Returns whether any of them changed.
    pub(super) fn set(
        &mut self,
        uid: &RuleUid,
        rule: &RuleName,
        rows: Vec<(ClusterName, u64)>,
    ) -> bool {
        let before = self.version;
        let former = self
            .compared
            .get_mut(uid)
            .map(|compared| std::mem::take(&mut compared.rows))
            .unwrap_or_default();
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
        let compared = Compared {
            rule: rule.clone(),
            rows,
        };
        self.compared.insert(uid.clone(), compared);
        self.version > before
    }

    /// Records that a rule and its deliveries are gone.
    pub(super) fn remove(&mut self, uid: &RuleUid) -> bool {
        let Some(Compared { rule, rows }) = self.compared.remove(uid) else {
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

    /// Whether all changes of a scope after a version are known.
    fn knows(&self, version: u64, scope: &Scope) -> bool {
        let all = match scope {
            Scope::Namespace(_) => Scope::Namespace(String::new()),
            Scope::Cluster => Scope::Cluster,
        };
        let since = [scope, &all].map(|scope| self.scopes.get(scope).map(|reading| reading.since));
        (self.floor..=self.version).contains(&version)
            && since.into_iter().flatten().any(|since| since <= version)
    }

    /// Returns the first changes in a scope after a version that `concerns` accepts, at most
    /// `limit`, each delivery once; `None` if they are not known any more.
    pub(super) fn after(
        &self,
        version: u64,
        scope: &Scope,
        limit: usize,
        concerns: impl Fn(&DeliveryChange) -> bool,
    ) -> Option<Batch> {
        if !self.knows(version, scope) {
            return None;
        }
        let begin = self.log.partition_point(|change| change.version <= version);
        let mut concerned = self
            .log
            .range(begin..)
            .filter(|change| scope.has(&change.rule) && concerns(change));
        let first: Vec<&DeliveryChange> = concerned.by_ref().take(limit).collect();
        // If more follow, the next batch begins after the last one.
        let last = concerned.next().and_then(|_| first.last());
        Some(Batch {
            changes: merged(&first),
            version: last.map_or(self.version, |last| last.version),
            is_last: last.is_none(),
        })
    }

    /// Forgets rules that no client has read for a while.
    pub(super) fn forget_unread(&mut self, now: Instant) {
        self.scopes
            .retain(|_, reading| now.saturating_duration_since(reading.at) < REMEMBERED);
        let scopes = &self.scopes;
        self.compared
            .retain(|_, compared| scopes.keys().any(|scope| scope.has(&compared.rule)));
    }
}

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

    fn shop() -> Scope {
        Scope::Namespace("shop".to_owned())
    }

    /// A log whose scope `shop` is read.
    fn read() -> Changes {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        assert!(changes.read_by(&shop(), Instant::now()));
        changes
    }

    fn rows(states: &[(&str, u64)]) -> Vec<(ClusterName, u64)> {
        states
            .iter()
            .map(|(cluster, state)| (ClusterName::from(*cluster), *state))
            .collect()
    }

    fn since(changes: &Changes, version: u64) -> Option<Vec<(String, Kind)>> {
        let batch = changes.after(version, &shop(), usize::MAX, |_| true)?;
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
        changes.begin(&uid, &rule("r"), rows(&states), Some(&shop()));
        let begin = changes.version();
        assert!(changes.set(&uid, &rule("r"), rows(&[("a", 1), ("b", 2), ("c", 1)])));
        let kinds = [
            ("b", Kind::Modified),
            ("c", Kind::Added),
            ("d", Kind::Deleted),
        ];
        assert_eq!(since(&changes, begin), expected(&kinds));
        assert!(!changes.set(&uid, &rule("r"), rows(&[("a", 1), ("b", 2), ("c", 1)])));
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
        changes.set(&uid, &rule("r"), rows(&[("a", 1), ("b", 1), ("c", 1)]));
        changes.set(&uid, &rule("r"), rows(&[("a", 2), ("b", 1), ("c", 1)]));
        let mut sizes = Vec::new();
        while version < changes.version() {
            let not_b = |change: &DeliveryChange| change.cluster.as_str() != "b";
            let batch = changes.after(version, &shop(), 2, not_b).unwrap();
            assert!(batch.changes.iter().all(|change| change.version > version));
            assert_eq!(batch.is_last, batch.version == changes.version());
            sizes.push(batch.changes.len());
            version = batch.version;
        }
        assert_eq!(sizes, [2, 1]);
    }

    #[test]
    fn version_before_a_scope_was_read_is_expired() {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        let (uid, now) = (RuleUid::from("u"), Instant::now());
        let before = changes.version();
        assert_eq!(since(&changes, before), None);
        changes.read_by(&shop(), now);
        changes.begin(&uid, &rule("r"), rows(&[("a", 1)]), Some(&shop()));
        let listed = changes.version();
        assert_eq!(since(&changes, before), None);
        assert_eq!(since(&changes, listed), expected(&[]));
        assert_eq!(since(&changes, listed + 1), None);
        // Nobody reads it for a while, and what changes meanwhile is not recorded.
        changes.forget_unread(now + REMEMBERED);
        assert_eq!(since(&changes, listed), None);
        changes.read_by(&shop(), now + REMEMBERED);
        changes.begin(&uid, &rule("r"), rows(&[("a", 2)]), Some(&shop()));
        assert_eq!(since(&changes, listed), None);
    }

    #[test]
    fn other_scopes_do_not_expire_a_watch() {
        let mut changes = read();
        let (listed, every) = (changes.version(), Scope::Namespace(String::new()));
        assert!(changes.read_by(&every, Instant::now()));
        let elsewhere = RuleName {
            namespace: "other".to_owned(),
            ..rule("r")
        };
        let uid = RuleUid::from("o");
        changes.begin(&uid, &elsewhere, rows(&[("a", 1)]), Some(&every));
        assert_eq!(since(&changes, listed), expected(&[]));
        // A list of all namespaces is the begin of a watch of one.
        let all = changes.version();
        let one = Scope::Namespace("other".to_owned());
        assert!(changes.after(all, &one, 1, |_| true).is_some());
        assert!(changes.after(listed, &one, 1, |_| true).is_none());
    }

    #[test]
    fn rule_that_another_list_compares_first_is_announced() {
        let mut changes = read();
        let watched = changes.version();
        let (every, uid) = (Scope::Namespace(String::new()), RuleUid::from("new"));
        changes.read_by(&every, Instant::now());
        changes.begin(&uid, &rule("new"), rows(&[("a", 1)]), Some(&every));
        assert_eq!(since(&changes, watched), expected(&[("a", Kind::Added)]));
        // A second list of the same scope.
        let uid = RuleUid::from("newer");
        changes.begin(&uid, &rule("newer"), rows(&[("b", 1)]), None);
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
        changes.set(&uid, &rule("r"), rows(&[("a", 1)]));
        let listed = changes.version();
        changes.serve_since(Some(begin), SystemTime::UNIX_EPOCH);
        assert_eq!(since(&changes, listed), expected(&[]));
        let again = begin + Duration::from_secs(1);
        changes.serve_since(Some(again), SystemTime::UNIX_EPOCH);
        changes.read_by(&shop(), again);
        assert!(changes.version() > listed && !changes.is_compared(&uid));
        assert_eq!(since(&changes, listed), None);
    }

    #[test]
    fn log_is_bounded() {
        let (mut changes, uid) = (read(), RuleUid::from("u"));
        changes.set(&uid, &rule("r"), rows(&[("a", 0)]));
        let begin = changes.version();
        for state in 1..=LOG as u64 {
            changes.set(&uid, &rule("r"), rows(&[("a", state)]));
        }
        assert_eq!(changes.log.len(), LOG);
        assert_eq!(since(&changes, begin), expected(&[("a", Kind::Modified)]));
        changes.set(&uid, &rule("r"), rows(&[("a", 0)]));
        assert_eq!((changes.log.len(), since(&changes, begin)), (LOG, None));
        assert_eq!(since(&changes, changes.version() - 1).unwrap().len(), 1);
    }

    #[test]
    fn unread_rules_are_forgotten() {
        let (mut changes, uid) = (read(), RuleUid::from("u"));
        let now = Instant::now();
        changes.begin(&uid, &rule("r"), rows(&[("a", 1)]), Some(&shop()));
        changes.forget_unread(now);
        assert!(changes.is_compared(&uid));
        changes.forget_unread(now + REMEMBERED);
        assert!(!changes.is_read(&uid, Some(&rule("r"))));
        for number in 0..2 * SCOPES {
            changes.read_by(&Scope::Namespace(number.to_string()), now);
        }
        assert_eq!(changes.scopes.len(), SCOPES);
    }
}
