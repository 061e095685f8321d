//! Why copies changed: joins what the hub observes of each rule with what the agents report. Gives
//! lines for the log and Events on the rules.
//!
//! The last change of a rule that the hub has observed counts as the cause of what an agent then
//! does by order of the hub. A cluster that connected later changes its copies because it connected.
//! Nothing is stored per copy, and everything is bounded.
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{ChangeOrigin, ClusterName, CopyAction, CopyChange, RuleName, RuleUid};

use crate::status::{EventReason, Notice, counted};

/// Time without a report of changes after which the lines are due.
pub const QUIET: Duration = Duration::from_secs(1);
/// The longest time for which a report waits for its line.
pub const LONGEST: Duration = Duration::from_secs(10);
/// Limit of the lines of one burst before they are split by cluster.
pub const LINES_LIMIT: usize = 256;
/// Limit of the clusters of all lines of one burst.
pub const CLUSTERS_LIMIT: usize = 16_384;
/// Limit of the rules of which the last change is known.
pub const CAUSES_LIMIT: usize = 65_536;
/// Number of causes that are known of a rule.
const CAUSES: usize = 4;
/// More clusters than this share one line.
const CLUSTERS_APART: usize = 5;
/// Number of names in a list.
const NAMES: usize = 3;
/// Limit of the names that are counted.
const NAMES_LIMIT: usize = 64;

/// What changed the copies of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The rule is new.
    RuleCreated,
    /// The rule was edited.
    RuleEdited,
    /// The rule was reverted to a former state, or its revert ended.
    RuleReverted,
    /// The rule was deleted.
    RuleDeleted,
    /// A source was created or edited, or its labels changed.
    SourceChanged,
    /// Sources were deleted.
    SourceDeleted,
    /// A grant changed.
    GrantChanged,
    /// A grant was deleted.
    GrantDeleted,
    /// A namespace of the hub changed.
    HubNamespaceChanged,
    /// A MemberCluster was created or edited.
    MemberChanged,
    /// The Fleet was edited, perhaps to approve removals.
    FleetChanged,
    /// A user approved the removals of the rule.
    Approved,
    /// A user approved the next wave of the rollout.
    WaveApproved,
    /// The last rollout failed, and its clusters are rolled back.
    RolledBack,
    /// The cluster connected to this hub.
    Connected,
    /// None of the last changes of the rule can have this effect.
    Unclear,
    /// The hub did not cause the change.
    ByAgent(ChangeOrigin),
}

impl ChangeKind {
    /// Whether a change of this kind can have this effect on a copy.
    fn may_cause(self, action: CopyAction) -> bool {
        let removes = matches!(action, CopyAction::Removed | CopyAction::Retained);
        match self {
            Self::RuleDeleted
            | Self::SourceDeleted
            | Self::GrantDeleted
            | Self::Approved
            | Self::FleetChanged => removes || action == CopyAction::Restored,
            Self::RuleCreated => !removes,
            _ => true,
        }
    }
}

/// The cause of a change, with the name of the changed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCause {
    kind: ChangeKind,
    subjects: Names,
}

impl ChangeCause {
    /// A cause without a name.
    pub fn new(kind: ChangeKind) -> Self {
        Self {
            kind,
            subjects: Names::default(),
        }
    }

    /// A cause with the name of the changed object.
    pub fn of(kind: ChangeKind, subject: impl Into<Arc<str>>) -> Self {
        let mut cause = Self::new(kind);
        cause.subjects.add(&subject.into());
        cause
    }
}

impl fmt::Display for ChangeCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, verb) = match self.kind {
            ChangeKind::RuleCreated => return out.write_str("the rule is new"),
            ChangeKind::RuleEdited => return out.write_str("the rule was edited"),
            ChangeKind::RuleReverted => {
                return out.write_str("the rule was reverted, or its revert ended");
            }
            ChangeKind::RuleDeleted => return out.write_str("the rule was deleted"),
            ChangeKind::FleetChanged => return out.write_str("the Fleet was edited"),
            ChangeKind::RolledBack => return out.write_str("the rollout was rolled back"),
            ChangeKind::Connected => return out.write_str("the cluster connected"),
            ChangeKind::WaveApproved => return out.write_str("the wave was approved"),
            ChangeKind::Unclear => return out.write_str("by order of the hub"),
            ChangeKind::ByAgent(origin) => return out.write_str(origin.as_str()),
            ChangeKind::SourceDeleted => return out.write_str("sources were deleted"),
            ChangeKind::SourceChanged => ("source", "created or edited"),
            ChangeKind::GrantChanged => ("grant", "edited"),
            ChangeKind::GrantDeleted => ("grant", "deleted"),
            ChangeKind::HubNamespaceChanged => ("hub namespace", "changed"),
            ChangeKind::MemberChanged => ("member cluster", "edited"),
            ChangeKind::Approved => {
                out.write_str("the removal was approved")?;
                return match self.subjects.0.first() {
                    Some(why) => write!(out, " ({why})"),
                    None => Ok(()),
                };
            }
        };
        match self.subjects.0.len() {
            0 => write!(out, "{noun}s were {verb}"),
            1 => write!(out, "{noun} {} was {verb}", self.subjects),
            _ => write!(out, "{noun}s {} were {verb}", self.subjects),
        }
    }
}

/// Names, up to [`NAMES_LIMIT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names(Vec<Arc<str>>);

impl Names {
    fn add(&mut self, name: &Arc<str>) {
        if !name.is_empty() && self.0.len() < NAMES_LIMIT && !self.0.contains(name) {
            self.0.push(name.clone());
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = self.0.len().min(NAMES);
        out.write_str(&self.0[..listed].join(", "))?;
        match self.0.len() - listed {
            0 => Ok(()),
            more if self.0.len() == NAMES_LIMIT => write!(out, " and at least {more} more"),
            more => write!(out, " and {more} more"),
        }
    }
}

/// A report of an agent about changed copies of a rule.
pub struct ReportedChanges<'a> {
    /// The rule.
    pub uid: &'a RuleUid,
    /// Its name.
    pub rule: &'a RuleName,
    /// The cluster.
    pub cluster: &'a ClusterName,
    /// The changes.
    pub changes: &'a [CopyChange],
    /// When the session of the agent began.
    pub connected_at: Instant,
}

/// What happened to copies of one rule, for one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeLine {
    /// The rule.
    pub uid: RuleUid,
    /// Its name.
    pub rule: RuleName,
    /// The action.
    pub action: CopyAction,
    /// Number of copies.
    pub copies: u64,
    /// The cluster, if it is only one.
    pub cluster: Option<ClusterName>,
    place: String,
    cause: String,
}

impl ChangeLine {
    /// The Event on the rule.
    pub fn notice(&self) -> Notice {
        let (reason, warning) = match self.action {
            CopyAction::Created => (EventReason::CopiesCreated, false),
            CopyAction::Updated => (EventReason::CopiesUpdated, false),
            CopyAction::Adopted => (EventReason::CopiesAdopted, false),
            CopyAction::Overwritten => (EventReason::CopiesOverwritten, true),
            CopyAction::Recreated => (EventReason::CopiesRecreated, false),
            CopyAction::Removed => (EventReason::CopiesRemoved, false),
            CopyAction::Retained => (EventReason::CopiesRetained, false),
            CopyAction::Restored => (EventReason::CopiesRestored, false),
        };
        let message = format!(
            "{} {} in {}: {}",
            self.action,
            counted(self.copies, "copy", "copies"),
            self.place,
            self.cause
        );
        Notice {
            cluster: self.cluster.clone(),
            copies: Some(self.copies),
            ..Notice::new(warning, reason, message)
        }
    }
}

impl fmt::Display for ChangeLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (action, copies) = (self.action, counted(self.copies, "copy", "copies"));
        let (rule, scope, cause) = (&self.rule, &self.place, &self.cause);
        write!(out, "{action} {copies} of {rule} in {scope}: {cause}")
    }
}

/// The sum of some reports.
struct Sum {
    rule: RuleName,
    cause: ChangeCause,
    clusters: BTreeMap<ClusterName, u64>,
    /// Copies in clusters that are not listed.
    elsewhere: u64,
}

/// The causes of changes, and the sums of what agents report.
#[derive(Default)]
pub struct Audit {
    /// The last causes of each rule, the newest last.
    causes: BTreeMap<RuleUid, VecDeque<(Instant, ChangeCause)>>,
    sums: BTreeMap<(RuleUid, CopyAction, ChangeKind), Sum>,
    /// Number of clusters in all sums.
    clusters: usize,
    left_out: u64,
    burst: Option<(Instant, Instant)>,
}

impl Audit {
    /// Records what changed a rule. Changes of one kind in quick succession share a cause.
    pub fn note(&mut self, rule: &RuleUid, cause: &ChangeCause, now: Instant) {
        if !self.causes.contains_key(rule) && self.causes.len() >= CAUSES_LIMIT {
            self.causes.pop_first();
        }
        let causes = self.causes.entry(rule.clone()).or_default();
        let last = causes.back_mut().filter(|(at, known)| {
            known.kind == cause.kind
                && known.kind != ChangeKind::Approved
                && now.saturating_duration_since(*at) < LONGEST
        });
        if let Some((at, known)) = last {
            *at = now;
            let names = &cause.subjects.0;
            names.iter().for_each(|name| known.subjects.add(name));
            return;
        }
        if causes.len() >= CAUSES {
            causes.pop_front();
        }
        causes.push_back((now, cause.clone()));
    }

    /// The known cause of a rule takes effect in more clusters now, as the next wave of its rollout begins.
    pub fn renew(&mut self, rule: &RuleUid, now: Instant) {
        if let Some((at, _)) = self.causes.get_mut(rule).and_then(VecDeque::back_mut) {
            *at = now;
        }
    }

    /// Forgets a rule that the hub does not have any more.
    pub fn forget(&mut self, rule: &RuleUid) {
        self.causes.remove(rule);
    }

    /// Records a report of an agent.
    pub fn record(&mut self, reported: &ReportedChanges<'_>, now: Instant) {
        for change in reported.changes {
            self.record_one(reported, change, now);
        }
    }

    fn record_one(&mut self, reported: &ReportedChanges<'_>, change: &CopyChange, now: Instant) {
        let cause = self.cause(reported, change);
        let first = self.burst.map_or(now, |(first, _)| first);
        self.burst = Some((first, now));
        let copies = u64::from(change.copies);
        let key = (reported.uid.clone(), change.action, cause.kind);
        if !self.sums.contains_key(&key) && self.sums.len() >= LINES_LIMIT {
            self.left_out = self.left_out.saturating_add(copies);
            return;
        }
        let sum = self.sums.entry(key).or_insert_with(|| Sum {
            rule: reported.rule.clone(),
            cause: cause.clone(),
            clusters: BTreeMap::new(),
            elsewhere: 0,
        });
        for name in &cause.subjects.0 {
            sum.cause.subjects.add(name);
        }
        if let Some(known) = sum.clusters.get_mut(reported.cluster) {
            *known = known.saturating_add(copies);
        } else if self.clusters < CLUSTERS_LIMIT {
            self.clusters += 1;
            sum.clusters.insert(reported.cluster.clone(), copies);
        } else {
            sum.elsewhere = sum.elsewhere.saturating_add(copies);
        }
    }

    /// The last change that can have had this effect.
    fn cause(&self, reported: &ReportedChanges<'_>, change: &CopyChange) -> ChangeCause {
        if change.origin != ChangeOrigin::Hub {
            return ChangeCause::new(ChangeKind::ByAgent(change.origin));
        }
        let causes = self.causes.get(reported.uid).into_iter().flatten();
        let mut since = causes
            .rev()
            .filter(|(at, _)| *at >= reported.connected_at)
            .peekable();
        let is_since = since.peek().is_some();
        match since.find(|(_, cause)| cause.kind.may_cause(change.action)) {
            Some((_, cause)) => cause.clone(),
            None if is_since => ChangeCause::new(ChangeKind::Unclear),
            None => ChangeCause::new(ChangeKind::Connected),
        }
    }

    /// Takes the lines, if they are due, and the number of copies that belong to no line.
    pub fn take_lines(&mut self, now: Instant) -> (Vec<ChangeLine>, u64) {
        let due = self
            .burst
            .map(|(first, last)| (last + QUIET).min(first + LONGEST));
        if due.is_none_or(|due| due > now) {
            return (Vec::new(), 0);
        }
        (self.burst, self.clusters) = (None, 0);
        let mut lines = Vec::new();
        for ((uid, action, _), sum) in std::mem::take(&mut self.sums) {
            let line = |copies, cluster, place| ChangeLine {
                uid: uid.clone(),
                rule: sum.rule.clone(),
                action,
                copies,
                cluster,
                place,
                cause: sum.cause.to_string(),
            };
            if sum.clusters.len() <= CLUSTERS_APART && sum.elsewhere == 0 {
                let apart = sum.clusters.iter().map(|(cluster, copies)| {
                    line(*copies, Some(cluster.clone()), cluster.to_string())
                });
                lines.extend(apart);
                continue;
            }
            let all = sum
                .clusters
                .values()
                .fold(sum.elsewhere, |all, copies| all.saturating_add(*copies));
            let names: Vec<_> = sum
                .clusters
                .keys()
                .take(NAMES)
                .map(ClusterName::as_str)
                .collect();
            let at_least = if sum.elsewhere > 0 { "more than " } else { "" };
            let scope = match sum.clusters.len() {
                0 => "further clusters".to_owned(),
                number => format!("{at_least}{number} clusters ({}, ...)", names.join(", ")),
            };
            lines.push(line(all, None, scope));
        }
        (lines, std::mem::take(&mut self.left_out))
    }

    /// Forgets everything: another replica leads.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOVED: CopyChange = CopyChange {
        action: CopyAction::Removed,
        origin: ChangeOrigin::Hub,
        copies: 12,
    };

    struct World {
        audit: Audit,
        start: Instant,
    }

    impl World {
        fn new() -> Self {
            Self {
                audit: Audit::default(),
                start: Instant::now(),
            }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        fn note(&mut self, cause: &ChangeCause, second: u64) {
            let now = self.at(second);
            self.audit.note(&"x".into(), cause, now);
        }

        fn reports(&mut self, cluster: &str, change: CopyChange, second: u64) {
            self.reports_of("x", cluster, change, second);
        }

        fn reports_of(&mut self, rule: &str, cluster: &str, change: CopyChange, second: u64) {
            let name = RuleName {
                kind: "DistributionRule".to_owned(),
                namespace: "shop".to_owned(),
                name: rule.to_owned(),
            };
            let reported = ReportedChanges {
                uid: &rule.into(),
                rule: &name,
                cluster: &cluster.into(),
                changes: &[change],
                connected_at: self.at(10),
            };
            self.audit
                .record(&reported, self.start + Duration::from_secs(second));
        }

        fn lines(&mut self, second: u64) -> Vec<String> {
            let (lines, _) = self.audit.take_lines(self.at(second));
            lines.iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn last_change_of_the_rule_is_the_cause() {
        let mut world = World::new();
        world.note(&ChangeCause::new(ChangeKind::RuleCreated), 5);
        world.reports("eu-1", REMOVED, 11);
        world.note(&ChangeCause::of(ChangeKind::GrantChanged, "all"), 20);
        world.reports("eu-1", REMOVED, 21);
        let drift = CopyChange {
            origin: ChangeOrigin::Drift,
            action: CopyAction::Restored,
            copies: 1,
        };
        world.reports("eu-2", drift, 21);
        assert_eq!(world.lines(20), [""; 0]);
        assert_eq!(
            world.lines(22),
            [
                "removed 12 copies of shop/x in eu-1: grant all was edited",
                "removed 12 copies of shop/x in eu-1: the cluster connected",
                "restored 1 copy of shop/x in eu-2: another client changed or deleted it",
            ]
        );
        assert_eq!(world.lines(40), [""; 0]);
    }

    #[test]
    fn cause_is_the_last_change_that_can_have_the_effect() {
        let mut world = World::new();
        let created = CopyChange {
            action: CopyAction::Created,
            ..REMOVED
        };
        world.note(&ChangeCause::new(ChangeKind::RolledBack), 11);
        world.note(&ChangeCause::new(ChangeKind::SourceDeleted), 12);
        world.reports("eu-1", created, 13);
        world.reports("eu-1", REMOVED, 13);
        assert_eq!(
            world.lines(14),
            [
                "created 12 copies of shop/x in eu-1: the rollout was rolled back",
                "removed 12 copies of shop/x in eu-1: sources were deleted",
            ]
        );
        world.note(&ChangeCause::of(ChangeKind::GrantDeleted, "all"), 20);
        world.reports("eu-1", REMOVED, 21);
        world.note(&ChangeCause::new(ChangeKind::WaveApproved), 21);
        world.reports("eu-1", created, 22);
        assert_eq!(
            world.lines(23),
            [
                "created 12 copies of shop/x in eu-1: the wave was approved",
                "removed 12 copies of shop/x in eu-1: grant all was deleted",
            ]
        );
        let mut world = World::new();
        world.note(&ChangeCause::new(ChangeKind::SourceDeleted), 12);
        world.reports("eu-1", created, 13);
        assert_eq!(
            world.lines(14),
            ["created 12 copies of shop/x in eu-1: by order of the hub"]
        );
    }

    #[test]
    fn sources_edited_in_quick_succession_share_a_line() {
        let mut world = World::new();
        for number in 0..9 {
            let source = format!("configmaps shop/n{number}");
            world.note(&ChangeCause::of(ChangeKind::SourceChanged, source), 11);
            world.reports("eu-1", REMOVED, 11);
        }
        assert_eq!(
            world.lines(12),
            [
                "removed 108 copies of shop/x in eu-1: sources configmaps shop/n0, configmaps shop/n1, configmaps shop/n2 and \
                 6 more were created or edited"
            ]
        );
    }

    #[test]
    fn repeated_edits_count_once_and_names_are_bounded() {
        let mut world = World::new();
        let edit = |world: &mut World, number: usize| {
            let source = format!("n{number}");
            world.note(&ChangeCause::of(ChangeKind::SourceChanged, source), 11);
            world.reports("eu-1", REMOVED, 11);
        };
        (0..50).for_each(|_| edit(&mut world, 1));
        (2..6).for_each(|number| edit(&mut world, number));
        let lines = world.lines(12);
        assert!(
            lines[0].ends_with("sources n1, n2, n3 and 2 more were created or edited"),
            "{lines:?}"
        );
        (0..NAMES_LIMIT + 9).for_each(|number| edit(&mut world, number));
        let lines = world.lines(12);
        assert!(lines[0].contains("and at least 61 more were"), "{lines:?}");
    }

    #[test]
    fn approval_counts_apart_and_names_what_was_blocked() {
        let mut world = World::new();
        let blocked = "labels of member cluster eu-1 changed";
        world.note(&ChangeCause::of(ChangeKind::MemberChanged, "eu-1"), 11);
        world.note(&ChangeCause::of(ChangeKind::Approved, blocked), 12);
        world.reports("eu-1", REMOVED, 13);
        assert_eq!(
            world.lines(14),
            [
                "removed 12 copies of shop/x in eu-1: the removal was approved (labels of member cluster eu-1 changed)"
            ]
        );
        let unnamed = ChangeCause::of(ChangeKind::GrantChanged, "");
        assert_eq!(unnamed.to_string(), "grants were edited");
    }

    #[test]
    fn many_clusters_share_a_line_and_an_event() {
        let mut world = World::new();
        world.note(&ChangeCause::new(ChangeKind::RuleDeleted), 11);
        for number in 0..1000 {
            world.reports(&format!("eu-{number}"), REMOVED, 11);
        }
        let (lines, left_out) = world.audit.take_lines(world.at(12));
        assert_eq!((lines.len(), left_out), (1, 0));
        assert_eq!(
            lines[0].to_string(),
            "removed 12000 copies of shop/x in 1000 clusters (eu-0, eu-1, eu-10, ...): the rule was deleted"
        );
        let notice = lines[0].notice();
        assert_eq!(
            (notice.warning, notice.reason, notice.copies, notice.cluster),
            (false, EventReason::CopiesRemoved, Some(12_000), None)
        );
    }

    #[test]
    fn sums_and_causes_are_bounded() {
        let mut world = World::new();
        for number in 0..CAUSES_LIMIT + 9 {
            let cause = ChangeCause::new(ChangeKind::RuleEdited);
            world
                .audit
                .note(&number.to_string().into(), &cause, world.start);
        }
        assert_eq!(world.audit.causes.len(), CAUSES_LIMIT);
        for number in 0..LINES_LIMIT + 9 {
            world.reports_of(&number.to_string(), "eu-1", REMOVED, 11);
        }
        for number in 0..CLUSTERS_LIMIT {
            world.reports_of("0", &number.to_string(), REMOVED, 11);
        }
        let (lines, left_out) = world.audit.take_lines(world.at(12));
        assert_eq!((lines.len(), left_out), (LINES_LIMIT, 9 * 12));
        let of_first = lines.iter().find(|line| line.rule.name == "0").unwrap();
        assert_eq!(of_first.copies, (CLUSTERS_LIMIT as u64 + 1) * 12);
        assert!(of_first.to_string().contains("more than "));
    }

    #[test]
    fn steady_reports_are_logged_after_the_longest_wait() {
        let mut world = World::new();
        // A report every half second, so that it is never quiet.
        let start = world.start;
        for second in 0..LONGEST.as_secs() {
            assert_eq!(world.lines(second), [""; 0]);
            world.reports("eu-1", REMOVED, second);
            world.start = start + QUIET / 2;
            world.reports("eu-1", REMOVED, second);
            world.start = start;
        }
        assert_eq!(world.lines(LONGEST.as_secs()).len(), 1);
    }
}
