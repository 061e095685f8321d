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
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) uid: RuleUid,
    pub(super) rule: RuleName,
    pub(super) cluster: ClusterName,
    pub(super) kind: Kind,
}

/// The digests of the deliveries of one rule, in the order of clusters.
struct Compared {
    rule: RuleName,
    rows: Vec<(ClusterName, u64)>,
}

/// The log of changes.
pub(super) struct Changes {
    version: u64,
    /// Changes before this version are unknown.
    floor: u64,
    log: VecDeque<Change>,
    compared: BTreeMap<RuleUid, Compared>,
    scopes: BTreeMap<Scope, Instant>,
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
        }
    }

    /// The version of the newest change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// A client reads this scope: new rules in it are compared from now on.
    pub(super) fn read_by(&mut self, scope: &Scope, now: Instant) {
        if self.scopes.len() >= SCOPES && !self.scopes.contains_key(scope) {
            let oldest = self.scopes.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(scope, _)| scope.clone()) {
                self.scopes.remove(&oldest);
            }
        }
        self.scopes.insert(scope.clone(), now);
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

    /// Begins to compare a rule that existed before: what changed earlier is unknown.
    pub(super) fn begin(&mut self, uid: RuleUid, rule: RuleName, rows: Vec<(ClusterName, u64)>) {
        if !self.compared.contains_key(&uid) {
            self.floor = self.version;
            self.compared.insert(uid, Compared { rule, rows });
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
        self.log.push_back(Change {
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

    /// Returns the newest change of each delivery in a scope after a version, in their order;
    /// `None` if they are not known any more.
    pub(super) fn since(&self, version: u64, scope: &Scope) -> Option<Vec<Change>> {
        if version < self.floor || version > self.version {
            return None;
        }
        let begin = self.log.partition_point(|change| change.version <= version);
        let changes = || {
            self.log
                .range(begin..)
                .filter(|change| scope.has(&change.rule))
        };
        let mut seen = BTreeSet::new();
        let mut newest: Vec<_> = changes()
            .rev()
            .filter(|change| seen.insert((&change.uid, &change.cluster)))
            .cloned()
            .collect();
        newest.reverse();
        Some(newest)
    }

    /// Forgets rules that no client has read for a while.
    pub(super) fn forget_unread(&mut self, now: Instant) {
        self.scopes
            .retain(|_, at| now.saturating_duration_since(*at) < REMEMBERED);
        let scopes = &self.scopes;
        self.compared
            .retain(|_, compared| scopes.keys().any(|scope| scope.has(&compared.rule)));
    }
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

    fn rows(states: &[(&str, u64)]) -> Vec<(ClusterName, u64)> {
        states
            .iter()
            .map(|(cluster, state)| (ClusterName::from(*cluster), *state))
            .collect()
    }

    fn kinds(changes: &Changes, since: u64) -> Vec<(String, Kind)> {
        let scope = Scope::Namespace("shop".to_owned());
        let changes = changes.since(since, &scope).unwrap();
        changes
            .into_iter()
            .map(|change| (change.cluster.as_str().to_owned(), change.kind))
            .collect()
    }

    #[test]
    fn changes_are_those_between_two_states() {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        let uid = RuleUid::from("u");
        changes.begin(
            uid.clone(),
            rule("r"),
            rows(&[("a", 1), ("b", 1), ("d", 1)]),
        );
        let begin = changes.version();
        assert!(changes.set(&uid, &rule("r"), rows(&[("a", 1), ("b", 2), ("c", 1)])));
        let expected = [
            ("b".to_owned(), Kind::Modified),
            ("c".to_owned(), Kind::Added),
            ("d".to_owned(), Kind::Deleted),
        ];
        assert_eq!(kinds(&changes, begin), expected);
        assert!(!changes.set(&uid, &rule("r"), rows(&[("a", 1), ("b", 2), ("c", 1)])));
        let version = changes.version();
        assert!(changes.remove(&uid));
        assert!(
            kinds(&changes, version)
                .iter()
                .all(|(_, kind)| *kind == Kind::Deleted)
        );
    }

    #[test]
    fn version_before_the_first_comparison_is_expired() {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        let scope = Scope::Namespace("shop".to_owned());
        let uid = RuleUid::from("u");
        changes.set(&uid, &rule("r"), rows(&[("a", 1)]));
        let listed = changes.version() - 1;
        assert!(changes.since(listed, &scope).is_some());
        changes.begin(RuleUid::from("v"), rule("s"), rows(&[("a", 1)]));
        assert!(changes.since(listed, &scope).is_none());
        assert!(changes.since(changes.version(), &scope).is_some());
        assert!(changes.since(changes.version() + 1, &scope).is_none());
    }

    #[test]
    fn log_is_bounded() {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        let (scope, uid) = (Scope::Namespace(String::new()), RuleUid::from("u"));
        changes.set(&uid, &rule("r"), rows(&[("a", 0)]));
        let begin = changes.version();
        for state in 1..=LOG as u64 {
            changes.set(&uid, &rule("r"), rows(&[("a", state)]));
        }
        assert_eq!(changes.log.len(), LOG);
        assert!(changes.since(begin, &scope).is_some());
        changes.set(&uid, &rule("r"), rows(&[("a", 0)]));
        assert_eq!(
            (changes.log.len(), changes.since(begin, &scope)),
            (LOG, None)
        );
        let last = changes.since(changes.version() - 1, &scope).unwrap();
        assert_eq!(last.len(), 1);
    }

    #[test]
    fn unread_rules_are_forgotten() {
        let mut changes = Changes::new(SystemTime::UNIX_EPOCH);
        let (now, uid) = (Instant::now(), RuleUid::from("u"));
        changes.read_by(&Scope::Namespace("shop".to_owned()), now);
        changes.begin(uid.clone(), rule("r"), rows(&[("a", 1)]));
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
