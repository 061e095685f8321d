//! What was done to copies, summed for the log and for the hub. A change of a copy costs two
//! counters; nothing is stored per copy.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{
    ChangeOrigin, CopyAction, CopyChange, Reason, RuleName, RuleUid, SourceRef,
};

use crate::copy::CopyError;
use crate::decide::WriteEffect;

/// Time without a change after which the lines are due.
pub const QUIET: Duration = Duration::from_millis(500);
/// The longest time for which a change waits for its line.
pub const LONGEST: Duration = Duration::from_secs(10);
/// Limit of the lines of one burst, and of the warnings of one burst.
pub const LINES_LIMIT: usize = 256;
/// Limit of the rules and namespaces of which the time of the last change is known.
pub const TIMES_LIMIT: usize = 16_384;
/// Number of copies that a line names.
const NAMES: usize = 3;

/// What was done to the copies of one rule, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// The rule.
    pub rule: RuleName,
    /// The action.
    pub action: CopyAction,
    /// The cause, as far as the agent knows.
    pub origin: ChangeOrigin,
    /// The copies.
    pub copies: CopyNames,
    /// The field managers that had changed the first of the copies, if they are known.
    pub by: Option<Arc<str>>,
}

impl fmt::Display for AuditLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (action, copies, rule) = (self.action, &self.copies, &self.rule);
        write!(out, "{action} {} of {rule}: ", copies.count_text())?;
        match (self.origin, &self.by) {
            (ChangeOrigin::Drift, Some(by)) => write!(out, "changed or deleted by {by}")?,
            (ChangeOrigin::Drift, None) => out.write_str("changed or deleted by another client")?,
            (origin, Some(by)) if self.action == CopyAction::Overwritten => {
                write!(out, "written by {by}; {origin}")?
            }
            (origin, _) => write!(out, "{origin}")?,
        }
        write!(out, " ({copies})")
    }
}

/// Copies of one rule that fail for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureLine {
    /// The rule.
    pub rule: RuleName,
    /// The reason.
    pub reason: Reason,
    /// The copies that began to fail.
    pub copies: CopyNames,
    /// The message of the first one.
    pub message: Arc<str>,
}

impl fmt::Display for FailureLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, rule) = (self.copies.count_text(), &self.rule);
        write!(
            out,
            "cannot write {count} of {rule}: {}: {} ({})",
            self.reason, self.message, self.copies
        )
    }
}

/// A number of copies, and the names of the first ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyNames {
    /// Number of copies.
    pub count: u64,
    /// The first of them.
    pub first: Vec<SourceRef>,
}

impl CopyNames {
    fn add(&mut self, copy: &SourceRef) {
        self.count += 1;
        if self.first.len() < NAMES && !self.first.contains(copy) {
            self.first.push(copy.clone());
        }
    }

    fn count_text(&self) -> String {
        match self.count {
            1 => "1 copy".to_owned(),
            count => format!("{count} copies"),
        }
    }
}

impl fmt::Display for CopyNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, copy) in self.first.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(out, "{comma}{copy}")?;
        }
        match self.count.saturating_sub(self.first.len() as u64) {
            0 => Ok(()),
            more => write!(out, " and {more} more"),
        }
    }
}

/// The lines of one burst.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AuditLines {
    /// The changes of copies.
    pub changes: Vec<AuditLine>,
    /// The copies that began to fail.
    pub failures: Vec<FailureLine>,
    /// Number of changes and failures that belong to no line, because there were too many.
    pub left_out: u64,
}

/// A write of a copy.
pub struct Written<'a> {
    /// The rule.
    pub uid: &'a RuleUid,
    /// Its name.
    pub rule: &'a RuleName,
    /// The change.
    pub wrote: WriteEffect,
    /// Whether the copy had drifted.
    pub drifted: bool,
    /// The other field managers of the object before.
    pub by: Option<&'a Arc<str>>,
}

/// Sums of what was done to copies.
#[derive(Default)]
pub struct Audit {
    changes: BTreeMap<(RuleUid, CopyAction, ChangeOrigin), AuditLine>,
    failures: BTreeMap<(RuleUid, Reason), FailureLine>,
    left_out: u64,
    /// The times of the first and the last change since the lines were taken.
    burst: Option<(Instant, Instant)>,
    /// Changes that the hub has not been sent.
    unreported: BTreeMap<RuleUid, BTreeMap<(CopyAction, ChangeOrigin), u32>>,
    /// When the hub last sent a change of a rule.
    ordered: BTreeMap<RuleUid, Instant>,
    /// When a namespace last appeared or changed.
    namespaces: BTreeMap<Arc<str>, Instant>,
    policy: Option<Instant>,
}

impl Audit {
    /// Records that the hub has sent a change of a rule.
    pub fn ordered(&mut self, rule: &RuleUid, now: Instant) {
        insert_bounded(&mut self.ordered, rule, now);
    }

    /// Records that a namespace has appeared or changed.
    pub fn namespace_changed(&mut self, name: &Arc<str>, now: Instant) {
        insert_bounded(&mut self.namespaces, name, now);
    }

    /// Records that the member's policy has changed, or that it takes effect at a revocation.
    pub fn policy_changed(&mut self, now: Instant) {
        self.policy = Some(now);
    }

    /// Records a write of a copy. A write that changed nothing is not counted.
    pub fn wrote(&mut self, copy: &SourceRef, written: &Written<'_>, now: Instant) {
        let action = match written.wrote {
            WriteEffect::Equal => return,
            WriteEffect::Created | WriteEffect::Changed if written.drifted => CopyAction::Restored,
            WriteEffect::Created => CopyAction::Created,
            WriteEffect::Changed => CopyAction::Updated,
            WriteEffect::Adopted => CopyAction::Adopted,
            WriteEffect::Overwrote => CopyAction::Overwritten,
            WriteEffect::Recreated => CopyAction::Recreated,
            WriteEffect::Deleted => CopyAction::Removed,
            WriteEffect::Retained => CopyAction::Retained,
        };
        let origin = if action == CopyAction::Restored {
            ChangeOrigin::Drift
        } else {
            self.origin(written.uid, copy)
        };
        if !self.unreported.contains_key(written.uid) && self.unreported.len() >= TIMES_LIMIT {
            self.unreported.pop_first();
        }
        let unreported = self.unreported.entry(written.uid.clone()).or_default();
        let count = unreported.entry((action, origin)).or_default();
        *count = count.saturating_add(1);
        self.begin(now);
        let key = (written.uid.clone(), action, origin);
        if !self.changes.contains_key(&key) && self.changes.len() >= LINES_LIMIT {
            self.left_out += 1;
            return;
        }
        let line = self.changes.entry(key).or_insert_with(|| AuditLine {
            rule: written.rule.clone(),
            action,
            origin,
            copies: CopyNames::default(),
            by: written.by.cloned(),
        });
        line.copies.add(copy);
    }

    /// Records that a copy begins to fail, or fails for another reason than before.
    pub fn failed(
        &mut self,
        copy: &SourceRef,
        (uid, rule): (&RuleUid, &RuleName),
        copy_error: &CopyError,
        now: Instant,
    ) {
        self.begin(now);
        let key = (uid.clone(), copy_error.reason);
        if !self.failures.contains_key(&key) && self.failures.len() >= LINES_LIMIT {
            self.left_out += 1;
            return;
        }
        let line = self.failures.entry(key).or_insert_with(|| FailureLine {
            rule: rule.clone(),
            reason: copy_error.reason,
            copies: CopyNames::default(),
            message: copy_error.message.clone(),
        });
        line.copies.add(copy);
    }

    fn begin(&mut self, now: Instant) {
        let first = self.burst.map_or(now, |(first, _)| first);
        self.burst = Some((first, now));
    }

    /// The last of the known changes that may have led to a write. The hub counts where two are
    /// equally recent.
    fn origin(&self, rule: &RuleUid, copy: &SourceRef) -> ChangeOrigin {
        let times = [
            (self.policy, ChangeOrigin::Policy),
            (
                self.namespaces.get(&copy.namespace).copied(),
                ChangeOrigin::Namespace,
            ),
            (self.ordered.get(rule).copied(), ChangeOrigin::Hub),
        ];
        let known = times
            .into_iter()
            .filter_map(|(at, origin)| Some((at?, origin)));
        known
            .max_by_key(|(at, _)| *at)
            .map_or(ChangeOrigin::Resync, |(_, origin)| origin)
    }

    /// Returns when the lines are due.
    pub fn due(&self) -> Option<Instant> {
        let (first, last) = self.burst?;
        Some((last + QUIET).min(first + LONGEST))
    }

    /// Takes the lines, if they are due.
    pub fn take_lines(&mut self, now: Instant) -> AuditLines {
        if self.due().is_none_or(|due| due > now) {
            return AuditLines::default();
        }
        self.burst = None;
        AuditLines {
            changes: std::mem::take(&mut self.changes).into_values().collect(),
            failures: std::mem::take(&mut self.failures).into_values().collect(),
            left_out: std::mem::take(&mut self.left_out),
        }
    }

    /// Takes the changes of a rule that the hub has not been sent.
    pub fn take_unreported(&mut self, rule: &RuleUid) -> Vec<CopyChange> {
        let changes = self.unreported.remove(rule).unwrap_or_default();
        let change = |((action, origin), copies)| CopyChange {
            action,
            origin,
            copies,
        };
        changes.into_iter().map(change).collect()
    }

    /// Forgets a rule of which nothing is left.
    pub fn forget(&mut self, rule: &RuleUid) {
        self.ordered.remove(rule);
        self.unreported.remove(rule);
    }
}

/// Sets the time of a key. Above the limit another key is dropped: its next change counts as a
/// resync.
fn insert_bounded<K: Ord + Clone>(times: &mut BTreeMap<K, Instant>, key: &K, now: Instant) {
    if let Some(at) = times.get_mut(key) {
        *at = now;
        return;
    }
    if times.len() >= TIMES_LIMIT {
        times.pop_first();
    }
    times.insert(key.clone(), now);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str) -> (RuleUid, RuleName) {
        let rule = RuleName {
            kind: "DistributionRule".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        (name.into(), rule)
    }

    fn copy(number: usize) -> SourceRef {
        SourceRef::new("configmaps", "team", &format!("n{number}"))
    }

    fn wrote(audit: &mut Audit, number: usize, wrote: WriteEffect, drifted: bool, now: Instant) {
        let ((uid, rule), by) = (rule("x"), Arc::from("kubectl-edit"));
        let written = Written {
            uid: &uid,
            rule: &rule,
            wrote,
            drifted,
            by: Some(&by),
        };
        audit.wrote(&copy(number), &written, now);
    }

    fn texts(lines: &AuditLines) -> Vec<String> {
        let changes = lines.changes.iter().map(ToString::to_string);
        changes
            .chain(lines.failures.iter().map(ToString::to_string))
            .collect()
    }

    #[test]
    fn hundred_thousand_copies_make_one_line() {
        let (mut audit, start) = (Audit::default(), Instant::now());
        audit.ordered(&"x".into(), start);
        for number in 0..100_000 {
            wrote(&mut audit, number, WriteEffect::Deleted, false, start);
            wrote(&mut audit, number, WriteEffect::Equal, false, start);
        }
        assert_eq!(audit.due(), Some(start + QUIET));
        assert_eq!(audit.take_lines(start), AuditLines::default());
        assert_eq!(
            texts(&audit.take_lines(start + QUIET)),
            [
                "removed 100000 copies of shop/x: the hub ordered it (configmaps/team/n0, configmaps/team/n1, configmaps/team/n2 and 99997 more)"
            ]
        );
        assert_eq!(audit.due(), None);
        let change = CopyChange {
            action: CopyAction::Removed,
            origin: ChangeOrigin::Hub,
            copies: 100_000,
        };
        assert_eq!(audit.take_unreported(&"x".into()), [change]);
        assert_eq!(audit.take_unreported(&"x".into()), []);
    }

    #[test]
    fn latest_known_change_is_the_origin() {
        let (mut audit, start) = (Audit::default(), Instant::now());
        let at = |second: u64| start + Duration::from_secs(second);
        let mut expected = vec![];
        let mut then = |audit: &mut Audit, second, origin| {
            wrote(audit, 1, WriteEffect::Created, false, at(second));
            expected.push(origin);
        };
        then(&mut audit, 1, ChangeOrigin::Resync);
        audit.ordered(&"x".into(), at(2));
        audit.namespace_changed(&"team".into(), at(2));
        then(&mut audit, 2, ChangeOrigin::Hub);
        audit.namespace_changed(&"team".into(), at(3));
        audit.namespace_changed(&"other".into(), at(9));
        audit.ordered(&"y".into(), at(9));
        then(&mut audit, 3, ChangeOrigin::Namespace);
        audit.policy_changed(at(4));
        then(&mut audit, 4, ChangeOrigin::Policy);
        wrote(&mut audit, 1, WriteEffect::Changed, true, at(5));
        expected.push(ChangeOrigin::Drift);
        let changes = audit.take_unreported(&"x".into());
        let mut origins: Vec<_> = changes.iter().map(|change| change.origin).collect();
        origins.sort();
        expected.sort();
        assert_eq!(origins, expected);
        let lines = texts(&audit.take_lines(at(20)));
        let drift =
            "restored 1 copy of shop/x: changed or deleted by kubectl-edit (configmaps/team/n1)";
        assert!(lines.contains(&drift.to_owned()), "{lines:?}");
    }

    #[test]
    fn lines_and_times_are_bounded() {
        let (mut audit, start) = (Audit::default(), Instant::now());
        let error = CopyError::new(Reason::Forbidden, "no");
        for number in 0..TIMES_LIMIT + 9 {
            let (uid, rule) = rule(&number.to_string());
            audit.ordered(&uid, start);
            audit.namespace_changed(&number.to_string().into(), start);
            let written = Written {
                uid: &uid,
                rule: &rule,
                wrote: WriteEffect::Created,
                drifted: false,
                by: None,
            };
            audit.wrote(&copy(1), &written, start);
            audit.failed(&copy(1), (&uid, &rule), &error, start);
        }
        assert_eq!(audit.unreported.len(), TIMES_LIMIT);
        assert_eq!(audit.ordered.len(), TIMES_LIMIT);
        assert_eq!(audit.namespaces.len(), TIMES_LIMIT);
        let lines = audit.take_lines(start + QUIET);
        assert_eq!(
            (lines.changes.len(), lines.failures.len()),
            (LINES_LIMIT, LINES_LIMIT)
        );
        assert_eq!(lines.left_out, 2 * (TIMES_LIMIT + 9 - LINES_LIMIT) as u64);
    }

    #[test]
    fn steady_changes_are_logged_after_the_longest_wait() {
        let (mut audit, start) = (Audit::default(), Instant::now());
        for tenth in 0..100 {
            let now = start + Duration::from_millis(100) * tenth;
            assert_eq!(audit.take_lines(now), AuditLines::default());
            wrote(&mut audit, 1, WriteEffect::Changed, false, now);
        }
        assert_eq!(audit.take_lines(start + LONGEST).changes.len(), 1);
    }

    #[test]
    fn failing_copies_of_one_reason_make_one_line() {
        let (mut audit, now) = (Audit::default(), Instant::now());
        let (uid, rule) = rule("x");
        for number in 0..5 {
            let error = CopyError::new(Reason::Forbidden, "the agent lacks a right");
            audit.failed(&copy(number), (&uid, &rule), &error, now);
        }
        assert_eq!(
            texts(&audit.take_lines(now + QUIET)),
            [
                "cannot write 5 copies of shop/x: Forbidden: the agent lacks a right (configmaps/team/n0, configmaps/team/n1, \
                 configmaps/team/n2 and 2 more)"
            ]
        );
    }
}
