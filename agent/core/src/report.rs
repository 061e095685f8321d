//! The report to the hub: the outcome per copy, summed per rule and coalesced.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{
    CopyHealth, Counts, FAILURES_LIMIT, Failure, MESSAGE_LIMIT, NAMESPACES_LIMIT, ObservedHealth,
    Reason, RuleUid, SourceRef, WaitingNamespaces, clip,
};

use crate::copy::{CopyError, CopyStatus};

/// Time for which the report of an unsettled rule waits: it is usually settled by then.
pub const INTERVAL: Duration = Duration::from_millis(200);

/// Least time between two reports of a rule of which only the health of its copies has changed. It bounds the reports
/// about objects whose health changes all the time.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// Delay in which the agent collects found copies before it reports their rules to the hub.
const RESYNC_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct RuleReport {
    counts: Counts,
    failures: BTreeMap<(usize, SourceRef), CopyError>,
    namespace_prunes: BTreeSet<SourceRef>,
    /// Number of waiting copies by namespace.
    waiting: BTreeMap<Arc<str>, u32>,
    /// Whether only the health of copies changed since the last report.
    is_health_only: bool,
    /// The last report because of health alone.
    health_reported_at: Option<Instant>,
    /// The time at which the report of the unsettled rule has begun to wait.
    waits_since: Option<Instant>,
    /// Whether the next report does not wait.
    is_urgent: bool,
}

/// The live object of a copy, as far as the report counts it.
#[derive(Clone, Copy)]
pub struct ReportedObject<'a> {
    /// The rule to which it belongs.
    pub rule: &'a RuleUid,
    /// Its health, if it has one.
    pub health: Option<&'a ObservedHealth>,
}

/// The outcomes of one copy, one for each rule that distributes or removes it.
struct CopyReport {
    outcomes: Box<[(RuleUid, CopyStatus)]>,
    /// The outcome of the rule to which the live object belongs.
    owner: Option<u16>,
    /// The health of the live object.
    health: Option<CopyHealth>,
}

impl CopyReport {
    /// Returns the rule to which the live object belongs, and the outcome for it.
    fn owned(&self) -> Option<&(RuleUid, CopyStatus)> {
        self.outcomes.get(usize::from(self.owner?))
    }
}

/// The outcomes of the copies, and the rules that are still to be reported.
#[derive(Default)]
pub struct Report {
    copies: BTreeMap<SourceRef, CopyReport>,
    rules: BTreeMap<RuleUid, RuleReport>,
    /// Rules that changed since their last report.
    dirty: BTreeSet<RuleUid>,
    /// The counts of all rules together.
    sum: Counts,
    /// Rules with copies that the hub did not order. The agent reports their intents at
    /// `resync_at`.
    resync: BTreeSet<RuleUid>,
    resync_at: Option<Instant>,
}

impl Report {
    /// Replaces the outcomes of one copy, one for each rule that distributes or removes it. `object`
    /// is the live object, if there is one that belongs to a rule.
    pub fn set(
        &mut self,
        copy: &SourceRef,
        outcomes: Vec<(RuleUid, CopyStatus)>,
        object: Option<ReportedObject<'_>>,
    ) {
        let owner = outcomes
            .iter()
            .position(|(rule, _)| object.is_some_and(|object| object.rule == rule))
            .and_then(|index| u16::try_from(index).ok());
        let observed = owner.and(object).and_then(|object| object.health);
        let health = observed.map(|observed| observed.health);
        let message = observed.map_or("", |observed| &*observed.message);
        let before = self.copies.get(copy);
        if before.map_or(outcomes.is_empty(), |before| {
            *before.outcomes == *outcomes && before.owner == owner
        }) {
            return self.set_health(copy, health, message);
        }
        if let Some(before) = self.copies.remove(copy) {
            self.count_all(copy, &before, "", false);
        }
        if !outcomes.is_empty() {
            let outcomes = outcomes.into_boxed_slice();
            let report = CopyReport {
                outcomes,
                owner,
                health,
            };
            self.count_all(copy, &report, message, true);
            self.copies.insert(copy.clone(), report);
        }
    }

    /// Replaces the health of a copy whose outcomes are the same.
    fn set_health(&mut self, copy: &SourceRef, health: Option<CopyHealth>, message: &str) {
        let Some(report) = self.copies.get(copy) else {
            return;
        };
        let is_same = report.health == health
            && (health != Some(CopyHealth::Failed) || self.shows_failure(copy, report, message));
        if is_same {
            return;
        }
        let Some(mut report) = self.copies.remove(copy) else {
            return;
        };
        self.count_health(copy, &report, "", false);
        report.health = health;
        self.count_health(copy, &report, message, true);
        if let Some((rule, _)) = report.owned() {
            self.mark(rule, true);
        }
        self.copies.insert(copy.clone(), report);
    }

    /// Whether the failed health of a copy is reported with this message, or is not reported as a failure.
    fn shows_failure(&self, copy: &SourceRef, report: &CopyReport, message: &str) -> bool {
        let shown = report.owned().and_then(|(rule, _)| {
            let failures = &self.rules.get(rule)?.failures;
            failures.get(&(Reason::Unhealthy.rank(), copy.clone()))
        });
        shown.is_none_or(|shown| *shown.message == *message)
    }

    /// Records that the values changed which the rule of a copy's live object has returned. They wait as a change of health
    /// does.
    pub fn touch_values(&mut self, copy: &SourceRef) {
        let report = self.copies.get(copy);
        let rule = report.and_then(|report| Some(report.owned()?.0.clone()));
        if let Some(rule) = rule {
            self.mark(&rule, true);
        }
    }

    /// Adds the health of a copy to the sums, or takes it off.
    fn count_health(&mut self, copy: &SourceRef, report: &CopyReport, message: &str, add: bool) {
        let (Some(health), Some((rule, outcome))) = (report.health, report.owned()) else {
            return;
        };
        if !is_counted(outcome) {
            return;
        }
        let entry = self.rules.entry(rule.clone()).or_default();
        step_health(&mut entry.counts, health, add);
        step_health(&mut self.sum, health, add);
        if health == CopyHealth::Failed {
            let key = (Reason::Unhealthy.rank(), copy.clone());
            if add {
                let error = CopyError::new(Reason::Unhealthy, message);
                entry.failures.insert(key, error);
            } else {
                entry.failures.remove(&key);
            }
        }
    }

    /// Records that a rule has something to report, and returns its report. `is_health`: only the health of copies.
    fn mark(&mut self, rule: &RuleUid, is_health: bool) -> &mut RuleReport {
        let is_first = self.dirty.insert(rule.clone());
        let entry = self.rules.entry(rule.clone()).or_default();
        entry.is_health_only = is_health && (is_first || entry.is_health_only);
        entry
    }

    /// Returns the outcome of one copy for one rule.
    pub fn outcome(&self, copy: &SourceRef, rule: &RuleUid) -> Option<&CopyStatus> {
        self.of_copy(copy)
            .iter()
            .find(|(of, _)| of == rule)
            .map(|(_, outcome)| outcome)
    }

    /// Returns the outcomes of one copy, by rule.
    pub fn of_copy(&self, copy: &SourceRef) -> &[(RuleUid, CopyStatus)] {
        self.copies
            .get(copy)
            .map(|report| &*report.outcomes)
            .unwrap_or_default()
    }

    fn count_all(&mut self, copy: &SourceRef, report: &CopyReport, message: &str, add: bool) {
        for (index, (rule, outcome)) in (0..).zip(&report.outcomes) {
            self.count(rule, copy, outcome, report.owner == Some(index), add);
        }
        self.count_health(copy, report, message, add);
    }

    fn count(
        &mut self,
        rule: &RuleUid,
        copy: &SourceRef,
        outcome: &CopyStatus,
        exists: bool,
        add: bool,
    ) {
        step(&mut self.sum, outcome, exists, add);
        let entry = self.mark(rule, false);
        step(&mut entry.counts, outcome, exists, add);
        if let CopyStatus::Failed(copy_error)
        | CopyStatus::Drifted(copy_error)
        | CopyStatus::Delayed(copy_error)
        | CopyStatus::Planned(_, copy_error)
        | CopyStatus::Removing(Some(copy_error)) = outcome
        {
            let key = (copy_error.reason.rank(), copy.clone());
            if add {
                entry.failures.insert(key, copy_error.clone());
            } else {
                entry.failures.remove(&key);
            }
        }
        if *outcome == CopyStatus::PruneRequested {
            if add {
                entry.namespace_prunes.insert(copy.clone())
            } else {
                entry.namespace_prunes.remove(copy)
            };
        }
        if *outcome == CopyStatus::Waiting {
            let namespace = &copy.namespace;
            if add {
                *entry.waiting.entry(namespace.clone()).or_default() += 1;
            } else if let Some(copies) = entry.waiting.get_mut(namespace) {
                *copies -= 1;
                if *copies == 0 {
                    entry.waiting.remove(namespace);
                }
            }
        }
    }

    /// Records that another part of a rule's state changed: its intents, or its terms.
    pub fn touch(&mut self, rule: &RuleUid) {
        self.mark(rule, false);
    }

    /// Records that the state of rules may have changed.
    pub fn touch_all<'a>(&mut self, rules: impl IntoIterator<Item = &'a RuleUid>) {
        rules.into_iter().for_each(|rule| self.touch(rule));
    }

    /// Makes the reports of rules due at once, even for unsettled rules.
    pub fn report_all(&mut self, rules: impl IntoIterator<Item = RuleUid>) {
        for rule in rules {
            self.mark(&rule, false).is_urgent = true;
        }
    }

    /// Records that another part of the state of a copy's rules changed.
    pub fn touch_copy(&mut self, copy: &SourceRef) {
        let rules: Vec<_> = self
            .of_copy(copy)
            .iter()
            .map(|(rule, _)| rule.clone())
            .collect();
        for rule in rules {
            self.touch(&rule);
        }
    }

    /// Removes a rule that has no state left.
    pub fn forget(&mut self, rule: &RuleUid) {
        self.rules.remove(rule);
        self.dirty.remove(rule);
    }

    /// Returns the counts of a rule.
    pub fn counts(&self, rule: &RuleUid) -> Counts {
        self.rules
            .get(rule)
            .map(|entry| entry.counts)
            .unwrap_or_default()
    }

    /// Returns the copies of a rule in namespaces that are no longer targets, which wait for the
    /// hub's approval.
    pub fn namespace_prunes(&self, rule: &RuleUid) -> impl Iterator<Item = &SourceRef> {
        self.rules
            .get(rule)
            .into_iter()
            .flat_map(|entry| &entry.namespace_prunes)
    }

    /// Returns the namespaces for which copies of a rule wait.
    pub fn waiting(&self, rule: &RuleUid) -> WaitingNamespaces {
        let Some(entry) = self.rules.get(rule) else {
            return WaitingNamespaces::default();
        };
        let first = entry.waiting.keys().take(NAMESPACES_LIMIT);
        WaitingNamespaces {
            first: first.map(ToString::to_string).collect(),
            count: u32::try_from(entry.waiting.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns the worst failures of a rule, at most [`FAILURES_LIMIT`].
    pub fn failures(&self, rule: &RuleUid) -> Vec<Failure> {
        let failures = self
            .rules
            .get(rule)
            .into_iter()
            .flat_map(|entry| &entry.failures);
        failures
            .take(FAILURES_LIMIT)
            .map(|((_, copy), copy_error)| Failure {
                reason: copy_error.reason,
                copy: copy.clone(),
                message: clip(&copy_error.message, MESSAGE_LIMIT).to_owned(),
            })
            .collect()
    }

    /// Returns the changed rules whose report is due, and records them as reported. Settled rules
    /// are due at once, others [`INTERVAL`] after the first change that is not reported. Rules of which only the health of
    /// copies changed are due [`HEALTH_INTERVAL`] after the last such report.
    pub fn take_due(&mut self, now: Instant) -> Vec<RuleUid> {
        for rule in &self.dirty {
            if let Some(entry) = self.rules.get_mut(rule)
                && !entry.counts.is_settled()
            {
                entry.waits_since.get_or_insert(now);
            }
        }
        let due: Vec<_> = self
            .dirty
            .iter()
            .filter(|rule| self.due_at(rule, now) <= now)
            .cloned()
            .collect();
        for rule in &due {
            if let Some(entry) = self.rules.get_mut(rule)
                && entry.is_health_only
            {
                entry.health_reported_at = Some(now);
            }
            self.reported(rule);
        }
        due
    }

    /// Records that a rule's newest state was sent.
    pub fn reported(&mut self, rule: &RuleUid) {
        self.dirty.remove(rule);
        if let Some(entry) = self.rules.get_mut(rule) {
            entry.is_health_only = false;
            (entry.waits_since, entry.is_urgent) = (None, false);
        }
    }

    /// Returns when the next report is due; `None` while nothing changed.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        self.dirty.iter().map(|rule| self.due_at(rule, now)).min()
    }

    fn due_at(&self, rule: &RuleUid, now: Instant) -> Instant {
        match self.rules.get(rule) {
            Some(entry) if entry.is_urgent => now,
            Some(entry) if entry.is_health_only => entry
                .health_reported_at
                .map_or(now, |last| last + HEALTH_INTERVAL),
            Some(entry) if !entry.counts.is_settled() => {
                entry.waits_since.unwrap_or(now) + INTERVAL
            }
            _ => now,
        }
    }

    /// Schedules the report of the intents of a rule.
    pub fn resync(&mut self, rule: &RuleUid, now: Instant) {
        self.resync.insert(rule.clone());
        self.resync_at.get_or_insert(now + RESYNC_DELAY);
    }

    /// Returns the rules whose intents must be reported now.
    pub fn take_resync(&mut self, now: Instant) -> BTreeSet<RuleUid> {
        if self.resync_at.is_none_or(|at| at > now) {
            return BTreeSet::new();
        }
        self.resync_at = None;
        std::mem::take(&mut self.resync)
    }

    /// Returns when the intents of rules must be reported.
    pub fn next_resync(&self) -> Option<Instant> {
        self.resync_at
    }

    /// Records that a new stream has reported every rule with its intents.
    pub fn reported_all(&mut self, rules: &[RuleUid]) {
        self.resync.clear();
        self.resync_at = None;
        for rule in rules {
            self.reported(rule);
        }
    }

    /// Returns the sums over all rules, for metrics.
    pub fn totals(&self) -> Counts {
        self.sum
    }
}

/// Adds one to a count, or takes one off.
fn bump(count: &mut u32, add: bool) {
    *count = if add {
        count.saturating_add(1)
    } else {
        count.saturating_sub(1)
    }
}

/// Whether a copy with this outcome is one of those that should exist.
fn is_counted(outcome: &CopyStatus) -> bool {
    match outcome {
        CopyStatus::Removing(_) | CopyStatus::PruneRequested => false,
        CopyStatus::Planned(change, _) => !change.is_removal(),
        _ => true,
    }
}

fn step_health(counts: &mut Counts, health: CopyHealth, add: bool) {
    bump(&mut counts.with_health, add);
    match health {
        CopyHealth::Current => bump(&mut counts.healthy, add),
        CopyHealth::InProgress => {}
        CopyHealth::Failed => bump(&mut counts.unhealthy, add),
    }
}

fn step(counts: &mut Counts, outcome: &CopyStatus, exists: bool, add: bool) {
    let step = |count: &mut u32| bump(count, add);
    if is_counted(outcome) {
        step(&mut counts.copies);
        if !exists {
            step(&mut counts.absent);
        }
    }
    if matches!(outcome, CopyStatus::Removing(_)) {
        step(&mut counts.removing);
    }
    match outcome {
        CopyStatus::Applied => step(&mut counts.applied),
        CopyStatus::Waiting => step(&mut counts.waiting),
        CopyStatus::Failed(_) => step(&mut counts.failed),
        CopyStatus::Drifted(_) => step(&mut counts.drifted),
        CopyStatus::Planned(change, _) if change.is_removal() => step(&mut counts.to_delete),
        CopyStatus::Planned(change, _) if change.is_update() => step(&mut counts.to_update),
        CopyStatus::Planned(..) => step(&mut counts.to_create),
        CopyStatus::UnderWay
        | CopyStatus::Delayed(_)
        | CopyStatus::Removing(_)
        | CopyStatus::PruneRequested => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::PlannedChange;
    use proptest::prelude::*;
    use runnel_proto::model::Reason;

    fn copy(name: u8) -> SourceRef {
        SourceRef::new("configmaps", "a", &format!("n{name:02}"))
    }

    fn failed(reason: Reason) -> CopyStatus {
        CopyStatus::Failed(CopyError::new(reason, "no"))
    }

    #[test]
    fn settled_rule_is_reported_at_once() {
        let (mut report, start) = (Report::default(), Instant::now());
        let rule: RuleUid = "r".into();
        report.set(&copy(1), vec![(rule.clone(), CopyStatus::UnderWay)], None);
        assert!(report.take_due(start).is_empty());
        report.set(&copy(2), vec![(rule.clone(), CopyStatus::UnderWay)], None);
        let soon = start + Duration::from_millis(10);
        assert!(report.take_due(soon).is_empty());
        assert_eq!(report.next_due(soon), Some(start + INTERVAL));
        assert_eq!(
            report.take_due(start + INTERVAL),
            std::slice::from_ref(&rule)
        );
        report.set(&copy(1), vec![(rule.clone(), CopyStatus::Applied)], None);
        report.set(&copy(2), vec![(rule.clone(), CopyStatus::Applied)], None);
        assert_eq!(report.take_due(start + INTERVAL), [rule]);
        assert_eq!(report.next_due(start + INTERVAL), None);
    }

    #[test]
    fn namespaces_of_waiting_copies_are_reported_once() {
        let (mut report, rule): (_, RuleUid) = (Report::default(), "r".into());
        let copy = |namespace: &str, name: &str| SourceRef::new("configmaps", namespace, name);
        for namespace in ["d", "c", "b", "a"] {
            for name in ["one", "two"] {
                let waits = vec![(rule.clone(), CopyStatus::Waiting)];
                report.set(&copy(namespace, name), waits, None);
            }
        }
        let waiting = report.waiting(&rule);
        assert_eq!(
            (waiting.first, waiting.count),
            (vec!["a".into(), "b".into(), "c".into()], 4)
        );
        report.set(
            &copy("a", "one"),
            vec![(rule.clone(), CopyStatus::Applied)],
            None,
        );
        assert_eq!(report.waiting(&rule).count, 4);
        report.set(&copy("a", "two"), vec![], None);
        let waiting = report.waiting(&rule);
        assert_eq!(
            (waiting.first, waiting.count),
            (vec!["b".into(), "c".into(), "d".into()], 3)
        );
    }

    #[test]
    fn the_worst_failures_come_first() {
        let mut report = Report::default();
        let rule: RuleUid = "r".into();
        for (name, reason) in [
            (1, Reason::Unavailable),
            (2, Reason::Forbidden),
            (3, Reason::Conflict),
        ] {
            report.set(&copy(name), vec![(rule.clone(), failed(reason))], None);
        }
        for name in 4..9 {
            report.set(
                &copy(name),
                vec![(rule.clone(), failed(Reason::Conflict))],
                None,
            );
        }
        let failures = report.failures(&rule);
        assert_eq!(failures.len(), FAILURES_LIMIT);
        assert!(
            failures
                .iter()
                .all(|failure| failure.reason == Reason::Conflict)
        );
        assert_eq!(failures[0].copy, copy(3));
    }

    #[test]
    fn equal_outcomes_are_no_news() {
        let (mut report, now) = (Report::default(), Instant::now());
        report.set(&copy(1), vec![("r".into(), CopyStatus::Applied)], None);
        report.take_due(now);
        report.set(&copy(1), vec![("r".into(), CopyStatus::Applied)], None);
        assert_eq!(report.next_due(now), None);
    }

    #[test]
    fn live_object_that_comes_or_goes_is_news() {
        let (mut report, now) = (Report::default(), Instant::now());
        let rule: RuleUid = "r".into();
        let refused = || vec![(rule.clone(), failed(Reason::Denied))];
        for (owner, absent) in [(None, 1), (Some(&rule), 0), (Some(&"other".into()), 1)] {
            report.set(&copy(1), refused(), owner.map(object));
            assert_eq!(report.take_due(now), std::slice::from_ref(&rule));
            assert_eq!(report.counts(&rule).absent, absent);
        }
    }

    fn planned(change: usize) -> CopyStatus {
        let changes = [
            PlannedChange::Create,
            PlannedChange::Change,
            PlannedChange::AdoptIfEqual,
            PlannedChange::Overwrite,
            PlannedChange::Remove,
            PlannedChange::Prune,
            PlannedChange::Retain,
        ];
        CopyStatus::Planned(
            changes[change],
            CopyError::new(Reason::DryRun, "would change"),
        )
    }

    fn outcomes() -> impl Strategy<Value = CopyStatus> {
        prop_oneof![
            Just(CopyStatus::UnderWay),
            Just(CopyStatus::Applied),
            Just(CopyStatus::Waiting),
            Just(CopyStatus::Delayed(CopyError::new(
                Reason::WaitingForDependency,
                "waits"
            ))),
            Just(CopyStatus::Removing(None)),
            Just(CopyStatus::PruneRequested),
            (0usize..7).prop_map(planned),
            (0usize..12).prop_map(|rank| failed(Reason::ALL[rank])),
        ]
    }

    fn healths() -> impl Strategy<Value = Option<CopyHealth>> {
        proptest::option::of(proptest::sample::select(CopyHealth::ALL.to_vec()))
    }

    fn object(rule: &RuleUid) -> ReportedObject<'_> {
        ReportedObject { rule, health: None }
    }

    fn set_health(report: &mut Report, rule: &RuleUid, health: CopyHealth, message: &str) {
        let observed = ObservedHealth {
            health,
            message: message.into(),
        };
        let object = ReportedObject {
            rule,
            health: Some(&observed),
        };
        let outcomes = vec![(rule.clone(), CopyStatus::Applied)];
        report.set(&copy(1), outcomes, Some(object));
    }

    #[test]
    fn unhealthy_copy_is_a_failure_with_the_newest_message() {
        let (mut report, now, rule) = (Report::default(), Instant::now(), RuleUid::from("r"));
        for message in ["one", "two"] {
            set_health(&mut report, &rule, CopyHealth::Failed, message);
            assert_eq!(
                report.take_due(now + HEALTH_INTERVAL),
                std::slice::from_ref(&rule)
            );
            let failures = report.failures(&rule);
            assert_eq!(failures.len(), 1);
            assert_eq!(
                (failures[0].reason, &*failures[0].message),
                (Reason::Unhealthy, message)
            );
        }
        set_health(&mut report, &rule, CopyHealth::Failed, "two");
        assert_eq!(report.next_due(now), None, "the same message is no news");
        let counts = report.counts(&rule);
        assert_eq!((counts.applied, counts.unhealthy), (1, 1));
        set_health(&mut report, &rule, CopyHealth::Current, "");
        assert!(report.failures(&rule).is_empty());
        report.set(&copy(1), vec![], None);
        assert_eq!(report.counts(&rule), Counts::default());
    }

    #[test]
    fn health_alone_is_reported_once_a_second() {
        let (mut report, start, rule) = (Report::default(), Instant::now(), RuleUid::from("r"));
        set_health(&mut report, &rule, CopyHealth::Current, "");
        assert_eq!(report.take_due(start), std::slice::from_ref(&rule));
        let mut reports = 0;
        for step in 1..=100u32 {
            let health = match step % 2 {
                0 => CopyHealth::Current,
                _ => CopyHealth::InProgress,
            };
            set_health(&mut report, &rule, health, "");
            let now = start + Duration::from_millis(50) * step;
            reports += report.take_due(now).len();
        }
        assert!(
            (4..=6).contains(&reports),
            "{reports} reports in five seconds"
        );
        // The last change is reported, too.
        let due = report.next_due(start + Duration::from_secs(5));
        assert!(due.is_none_or(|due| due <= start + Duration::from_secs(6)));
        // Any other change does not wait.
        let now = start + Duration::from_secs(7);
        report.take_due(now);
        set_health(&mut report, &rule, CopyHealth::InProgress, "");
        report.take_due(now);
        set_health(&mut report, &rule, CopyHealth::Current, "");
        assert!(report.take_due(now).is_empty());
        report.touch(&rule);
        assert_eq!(report.take_due(now), [rule]);
    }

    proptest! {
        #[test]
        fn the_sums_are_those_of_the_outcomes(
            steps in proptest::collection::vec((0u8..6, proptest::collection::btree_map(0u8..3, outcomes(), 0..3), 0u8..4, healths()), 0..40),
        ) {
            let mut report = Report::default();
            let mut owners = BTreeMap::new();
            for (name, outcomes, owner, health) in steps {
                let outcomes = outcomes.into_iter().map(|(rule, o)| (format!("r{rule}").into(), o)).collect();
                let owner: RuleUid = format!("r{owner}").into();
                let observed = health.map(|health| ObservedHealth { health, message: "why".into() });
                let object = ReportedObject { rule: &owner, health: observed.as_ref() };
                report.set(&copy(name), outcomes, Some(object));
                owners.insert(copy(name), (owner, health));
            }
            for rule in 0u8..3 {
                let uid: RuleUid = format!("r{rule}").into();
                let mut expected = Counts::default();
                let (mut failures, mut namespace_prunes) = (0, 0);
                for (copy, report) in &report.copies {
                    let Some((_, outcome)) = report.outcomes.iter().find(|(of, _)| *of == uid) else { continue };
                    match outcome {
                        CopyStatus::Removing(_) => { expected.removing += 1; continue }
                        CopyStatus::PruneRequested => { namespace_prunes += 1; continue }
                        CopyStatus::Planned(PlannedChange::Remove | PlannedChange::Prune | PlannedChange::Retain, _) => {
                            expected.to_delete += 1;
                            failures += 1;
                            continue;
                        }
                        CopyStatus::Planned(PlannedChange::Create, _) => { expected.to_create += 1; failures += 1 }
                        CopyStatus::Planned(PlannedChange::Change | PlannedChange::AdoptIfEqual | PlannedChange::Overwrite, _) => { expected.to_update += 1; failures += 1 }
                        CopyStatus::Applied => expected.applied += 1,
                        CopyStatus::Waiting => expected.waiting += 1,
                        CopyStatus::Failed(_) => { expected.failed += 1; failures += 1 }
                        CopyStatus::Drifted(_) => { expected.drifted += 1; failures += 1 }
                        CopyStatus::Delayed(_) => failures += 1,
                        CopyStatus::UnderWay => {}
                    }
                    expected.copies += 1;
                    let (owner, health) = &owners[copy];
                    expected.absent += u32::from(*owner != uid);
                    let health = health.filter(|_| *owner == uid);
                    expected.with_health += u32::from(health.is_some());
                    expected.healthy += u32::from(health == Some(CopyHealth::Current));
                    expected.unhealthy += u32::from(health == Some(CopyHealth::Failed));
                    failures += usize::from(health == Some(CopyHealth::Failed));
                }
                prop_assert_eq!(report.counts(&uid), expected);
                prop_assert_eq!(report.namespace_prunes(&uid).count(), namespace_prunes);
                prop_assert_eq!(report.failures(&uid).len(), failures.min(FAILURES_LIMIT));
            }
        }
    }
}
