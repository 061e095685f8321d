//! The outcomes, by the agents' answers.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::closed_list::Verdict;
use runnel_proto::model::{
    ClusterName, ContentRules, PreviewOutcome, PreviewedCopy, PruneDigest, PruneRequest, Reason,
    RuleUid, is_widened_by_additions,
};

use super::{AgentAnswer, PreviewIndex, ReportedCopiesFn, diff};
use crate::index::{ReportedCopies, RuleEntry};
use crate::plan::{LeftOutByKind, RulePlan, SourceState};

/// The id in the removal guard for a set that no agent has.
const PRUNES: PruneDigest = PruneDigest([0x67; 16]);

/// Why a removal is blocked.
const BLOCKED: &str = "it is above a removalLimit: `kubectl runnel approve` would allow it";
/// The message for foreign Secrets: no answer contains whether they are equal.
const ADOPT_IF_EQUAL: &str = "a Secret that is not Runnel's exists here: it is taken over if it equals the source, and left alone \
                      (Conflict) if not; a plan does not disclose which";
const LOST: &str = "what exists there is lost";
const LOST_OR_EQUAL: &str =
    "what exists there is lost, unless it is equal; for a Secret a plan does not disclose which";

/// The outcome of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The cluster.
    pub cluster: ClusterName,
    /// The answer of an agent, with the guard's decision.
    pub copy: PreviewedCopy,
    /// The outcome.
    pub verdict: Verdict,
    /// Why; may be empty.
    pub reason: &'static str,
    /// The message; may be empty.
    pub message: String,
    /// The changes, as lines.
    pub diff: Vec<String>,
}

/// A source that the rule selects and that is not sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceRow {
    /// The source as resource/namespace/name.
    pub source: String,
    /// The state, as in `runnel_api::PlannedSource`.
    pub state: String,
    /// The message.
    pub message: String,
    /// The cluster, unless it concerns all.
    pub cluster: Option<ClusterName>,
}

impl PreviewIndex {
    /// Judges together what agents would ask for of several rules.
    pub fn conclude_all(
        &mut self,
        all: Vec<(RuleUid, BTreeMap<ClusterName, AgentAnswer>)>,
        holdings: ReportedCopiesFn<'_>,
        now: crate::now::Now,
        mut diffs: usize,
    ) -> Vec<(RuleUid, Vec<Row>)> {
        let mut announced: BTreeMap<(RuleUid, ClusterName), ReportedCopies> = BTreeMap::new();
        for (uid, answers) in &all {
            self.focus_on(uid);
            let of_cluster = |(cluster, answer): (&ClusterName, &AgentAnswer)| {
                (
                    (uid.clone(), cluster.clone()),
                    self.reported_copies(cluster, answer),
                )
            };
            announced.extend(answers.iter().map(of_cluster));
        }
        let holding = |rule: &RuleUid, cluster: &ClusterName| {
            announced
                .get(&(rule.clone(), cluster.clone()))
                .copied()
                .or_else(|| holdings(rule, cluster))
        };
        self.settle(&holding, now);
        let of_rule = |(uid, answers): (RuleUid, BTreeMap<ClusterName, AgentAnswer>)| {
            self.focus_on(&uid);
            let rows = rows(self, answers, &mut diffs);
            (uid, rows)
        };
        all.into_iter().map(of_rule).collect()
    }

    /// The intents that an agent would report after the change.
    fn reported_copies(&self, cluster: &ClusterName, answer: &AgentAnswer) -> ReportedCopies {
        let count = |wanted: &[PreviewOutcome]| answer.count(wanted);
        let gone = count(&[
            PreviewOutcome::Remove,
            PreviewOutcome::Retain,
            PreviewOutcome::HandOver,
        ]);
        let asked = |previewed, digest| {
            let objects = u32::try_from(count(&[previewed])).unwrap_or(u32::MAX);
            (objects > 0).then_some(PruneRequest { objects, digest })
        };
        let assignment = self
            .index()
            .rules()
            .get(self.uid())
            .and_then(|entry| entry.assignment(cluster));
        ReportedCopies {
            copies: answer.all().saturating_sub(gone) as u64,
            intents: assignment.map_or(0, |assignment| assignment.intents().count() as u64),
            prunes: asked(PreviewOutcome::Prune, PRUNES),
        }
    }

    /// Returns the selected sources that are not sent, at most `limit`.
    pub fn sources(&self, limit: usize) -> Vec<SourceRow> {
        let Some(entry) = self.index().rules().get(self.uid()) else {
            return vec![];
        };
        let mut all: Vec<SourceRow> = Vec::new();
        let mut add =
            |source: String, state: String, message: &str, cluster: Option<&ClusterName>| {
                all.push(SourceRow {
                    source,
                    state,
                    message: message.to_owned(),
                    cluster: cluster.cloned(),
                });
            };
        for (source, refused) in &entry.plan.refused {
            add(
                source.to_string(),
                "Refused".to_owned(),
                refused.reason(),
                None,
            );
        }
        for source in entry.plan.unread.iter().chain(&entry.plan.unreadable) {
            add(
                source.to_string(),
                "Unread".to_owned(),
                "the hub cannot read it; existing copies are left unchanged",
                None,
            );
        }
        for (cluster, plan) in entry.cluster_plans.plans(&entry.plan) {
            let cluster = cluster.filter(|_| entry.cluster_plans.outcomes() > 1);
            for (source, render_errors) in &plan.render_errors {
                add(
                    source.to_string(),
                    format!("{:?}", render_errors.why),
                    &render_errors.message,
                    cluster,
                );
            }
        }
        all.sort();
        all.dedup();
        all.truncate(limit);
        all
    }

    /// Returns the number of sources that are sent to some cluster.
    pub fn sent(&self) -> usize {
        let Some(entry) = self.index().rules().get(self.uid()) else {
            return 0;
        };
        let sent = |plan: &RulePlan| {
            plan.intents
                .keys()
                .map(|intent| intent.plain())
                .collect::<Vec<_>>()
        };
        let all = entry
            .cluster_plans
            .plans(&entry.plan)
            .flat_map(|(_, plan)| sent(plan));
        all.collect::<BTreeSet<_>>().len()
    }

    /// Sentences about the rule as a whole.
    pub fn notes(&self) -> Vec<String> {
        let Some(entry) = self.index().rules().get(self.uid()) else {
            return vec![];
        };
        let mut notes: Vec<String> = self
            .index()
            .scopes()
            .unreadable(&entry.plan)
            .into_values()
            .collect();
        if entry.target_clusters.clusters.is_empty() && entry.target_clusters.not_granted.is_empty()
        {
            notes.push("spec.clusters chooses no accepted cluster".to_owned());
        }
        if entry.plan.objects().next().is_none() {
            notes.push("spec.sources selects nothing that is there".to_owned());
        }
        notes.extend(self.left_out(entry).notes());
        let intents = entry.plan.intents.iter();
        let open = intents.filter(|(intent, content)| {
            content.mode().is_none() && is_widened_by_additions(&intent.resource)
        });
        let open: BTreeSet<_> = open.map(|(intent, _)| &*intent.resource).collect();
        if !open.is_empty() {
            let kinds = open.into_iter().collect::<Vec<_>>().join(", ");
            notes.push(format!(
                "what others in a member add to its copies of {kinds} stays, and can allow more than their sources do: with \
                 exact: true in their entry of spec.sources it is removed"
            ));
        }
        notes
    }

    /// What the copies of a rule lack of their sources by default, and what the rule does not allow. The index has the
    /// newest state of an object, also where its content is as before.
    fn left_out(&self, entry: &RuleEntry) -> LeftOutByKind {
        let mut left_out = LeftOutByKind::default();
        for object in entry.plan.objects().filter(|_| !entry.rule.deleting) {
            let known = self.index().sources().get(object);
            let Some(SourceState::Read(content) | SourceState::Stale(content)) =
                known.map(|known| &known.body)
            else {
                continue;
            };
            for (resource, paths) in content.left_out(&object.resource) {
                let paths = paths.iter().filter(|path| !entry.rule.shape.allows(path));
                left_out.add(resource, paths.map(|path| &**path));
            }
        }
        left_out
    }
}

/// The outcome of each copy, by the decision of the guard.
fn rows(
    preview: &PreviewIndex,
    answers: BTreeMap<ClusterName, AgentAnswer>,
    diffs: &mut usize,
) -> Vec<Row> {
    let of_cluster = |(cluster, answer): (ClusterName, AgentAnswer)| -> Vec<Row> {
        let assignment = preview
            .index()
            .rules()
            .get(preview.uid())
            .and_then(|entry| entry.assignment(&cluster));
        let prunes = assignment
            .as_ref()
            .is_some_and(|assignment| assignment.prune() == Some(PRUNES));
        let is_behind = preview.focus.behind.contains(&cluster);
        let former = preview.former_assignment(&cluster).filter(|_| !is_behind);
        let mut lines = |copy: &PreviewedCopy| {
            if *diffs == 0 {
                return vec![];
            }
            let content = assignment
                .as_ref()
                .and_then(|assignment| assignment.content(&copy.source));
            let former = former.and_then(|former| former.content(&copy.source));
            let [content, former] = [content, former].map(|one| one.map(|content| &**content));
            let lines = diff::lines(copy, content, former);
            *diffs -= usize::from(!lines.is_empty());
            lines
        };
        let of_copy = |copy: PreviewedCopy| Row {
            diff: lines(&copy),
            ..row(&cluster, copy, prunes)
        };
        answer.copies.into_iter().map(of_copy).collect()
    };
    answers.into_iter().flat_map(of_cluster).collect()
}

fn row(cluster: &ClusterName, copy: PreviewedCopy, prunes: bool) -> Row {
    let (reason, message) = copy
        .copy_error
        .clone()
        .map_or(("", String::new()), |(reason, message)| {
            (reason.as_str(), message)
        });
    let blocked = |reason| (Verdict::Blocked, reason, BLOCKED.to_owned());
    let is_secret = ContentRules::of(&copy.copy.resource).sensitive;
    let and = |words: &str, more: &str| {
        if more.is_empty() {
            words.to_owned()
        } else {
            format!("{words}; {more}")
        }
    };
    let (verdict, reason, message) = match copy.previewed {
        PreviewOutcome::Overwrite => (
            Verdict::TakeOver,
            "Overwritten",
            and(if is_secret { LOST_OR_EQUAL } else { LOST }, &message),
        ),
        PreviewOutcome::AdoptIfEqual => (Verdict::AdoptIfEqual, "", and(ADOPT_IF_EQUAL, &message)),
        PreviewOutcome::Prune if prunes => (Verdict::Remove, reason, message),
        PreviewOutcome::Prune | PreviewOutcome::Blocked => blocked("Removal"),
        PreviewOutcome::Adopt if message.is_empty() => (
            Verdict::TakeOver,
            "Equal",
            "what exists there is equal".to_owned(),
        ),
        PreviewOutcome::Adopt => (Verdict::TakeOver, reason, message),
        PreviewOutcome::Create => (Verdict::Create, reason, message),
        PreviewOutcome::Change => (Verdict::Change, reason, message),
        PreviewOutcome::Unchanged => (Verdict::Unchanged, reason, message),
        PreviewOutcome::Remove => (Verdict::Remove, reason, message),
        PreviewOutcome::Retain => (Verdict::Retain, reason, message),
        PreviewOutcome::HandOver => (Verdict::HandOver, reason, message),
        PreviewOutcome::Wait => (Verdict::Wait, "NamespaceMissing", message),
        PreviewOutcome::Noop => (Verdict::Noop, reason, message),
        PreviewOutcome::Refused => (
            refusal(copy.copy_error.as_ref().map(|(reason, _)| *reason)),
            reason,
            message,
        ),
    };
    Row {
        cluster: cluster.clone(),
        copy,
        verdict,
        reason,
        message,
        diff: vec![],
    }
}

fn refusal(reason: Option<Reason>) -> Verdict {
    match reason {
        Some(Reason::Conflict) => Verdict::Conflict,
        Some(Reason::Denied) => Verdict::Denied,
        Some(Reason::Forbidden) => Verdict::Forbidden,
        Some(Reason::Invalid | Reason::Immutable | Reason::TooLarge) => Verdict::Invalid,
        _ => Verdict::Refused,
    }
}
