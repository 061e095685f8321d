//! Previews an unsaved change. Pure.
//!
//! The change is applied to a copy of the part of the index that it concerns ([`RuleSnapshot`]), with the
//! same planner, grants and removal guard as for a saved change, and without any effect on agents.
//! Only the agents know their namespaces and the objects in them. So each agent gets a question
//! ([`PreviewIndex::question`]), decides as it would, and drops the state. With their answers the guard
//! judges the removals that only agents know ([`PreviewIndex::settle`]).
//!
//! A preview sends no payload to a member. Digests with a key of the question's own let the agent
//! compare its objects. For the diff there is a digest of each field, and the hub adds the new
//! values of ConfigMaps itself (`diff`). The agent has the key, because it computes with it: an
//! attacker in control of a member could test guesses of a source's values. Only a dry run by the
//! members' API servers sends the content.
mod answer;
mod ask;
mod diff;
mod outcome;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use crate::guard::DELAY;
pub use crate::index::ReportedCopiesFn;
use crate::index::{ChangedObject, Index, RuleEntry, RuleSnapshot, ScopeState};
use crate::now::Now;
pub use crate::plan::StopFlag;
use crate::plan::TargetClusters;
use crate::plan::{ClusterAssignment, Rule, SourceState, WatchScope};

pub use answer::{AgentAnswer, AnswerBudget};
pub use ask::{AgentQuestion, ClusterEligibility, ClusterQuestion, QuestionContext};
pub use outcome::{Row, SourceRow};

/// Previewed rules. Most of a preview is about the rule in focus.
pub struct PreviewIndex {
    index: Index,
    focus: Focus,
    others: Vec<Focus>,
    unread: BTreeSet<SourceRef>,
}

/// A previewed rule.
struct Focus {
    uid: RuleUid,
    exists: bool,
    /// The current assignments of the saved rule.
    former: BTreeMap<ClusterName, ClusterAssignment>,
    /// Clusters that the current rollout has not reached. They have its former state, which the hub
    /// does not know.
    behind: BTreeSet<ClusterName>,
    /// The reported clusters; absent: all.
    clusters: Option<BTreeSet<ClusterName>>,
}

impl Focus {
    /// A rule as an index has it now.
    fn of(index: &Index, uid: RuleUid) -> Self {
        let saved = index.rules().get(&uid);
        let exists = saved.is_some();
        let assignments =
            |cluster: &ClusterName| Some((cluster.clone(), saved?.assignment(cluster)?));
        let former = saved
            .iter()
            .flat_map(|entry| entry.target_clusters.clusters.keys())
            .filter_map(assignments)
            .collect();
        let behind = |entry: &RuleEntry| {
            let clusters = entry.target_clusters.clusters.keys();
            clusters
                .filter(|cluster| entry.awaits(cluster))
                .cloned()
                .collect()
        };
        let behind = saved.map(behind).unwrap_or_default();
        Self {
            uid,
            exists,
            former,
            behind,
            clusters: None,
        }
    }
}

/// The clusters in which two states differ.
fn differing(before: &TargetClusters, now: &TargetClusters) -> BTreeSet<ClusterName> {
    let all = |one: &TargetClusters| -> Vec<ClusterName> {
        one.clusters
            .keys()
            .chain(&one.not_granted)
            .cloned()
            .collect()
    };
    let same = |name: &ClusterName| {
        before.clusters.get(name) == now.clusters.get(name)
            && before.not_granted.contains(name) == now.not_granted.contains(name)
            && before.cordoned.contains(name) == now.cordoned.contains(name)
    };
    all(before)
        .into_iter()
        .chain(all(now))
        .filter(|name| !same(name))
        .collect()
}

impl PreviewIndex {
    /// Previews a rule in a copy of the index. A rule with the uid of a saved one is an edit.
    pub fn new(around: RuleSnapshot, rule: Rule) -> Self {
        let mut index = around.plan();
        let focus = Focus::of(&index, rule.uid.clone());
        let unread = index.set_rule(rule).read;
        Self {
            index,
            focus,
            others: vec![],
            unread,
        }
    }

    /// Previews an object that is no rule in a copy of the index for these saved rules. `None`: the
    /// rules do not exist.
    pub fn of_change(
        around: RuleSnapshot,
        changed: ChangedObject,
        uids: &BTreeSet<RuleUid>,
    ) -> Option<Self> {
        let mut index = around.plan();
        let before = |uid: &RuleUid| {
            index
                .rules()
                .get(uid)
                .map(|entry| entry.target_clusters.clone())
        };
        let all = uids
            .iter()
            .filter_map(|uid| Some((Focus::of(&index, uid.clone()), before(uid)?)));
        let all: Vec<_> = all.collect();
        let member = match &changed {
            ChangedObject::Member(name, _) => Some(name.clone()),
            ChangedObject::Grant(..) | ChangedObject::Bundle(..) => None,
        };
        // A bundle changes the copies in all clusters of its rules.
        let is_source = matches!(changed, ChangedObject::Bundle(..));
        let unread = index.apply(changed).read;
        let mut all: Vec<Focus> = all
            .into_iter()
            .map(|(focus, before)| {
                let now = index
                    .rules()
                    .get(&focus.uid)
                    .map(|entry| &entry.target_clusters);
                let mut clusters = now.map(|now| differing(&before, now)).unwrap_or_default();
                clusters.extend(member.clone());
                Focus {
                    clusters: (!is_source).then_some(clusters),
                    ..focus
                }
            })
            .collect();
        let focus = if all.is_empty() {
            return None;
        } else {
            all.remove(0)
        };
        Some(Self {
            index,
            focus,
            others: all,
            unread,
        })
    }

    /// Assumes that an object is saved.
    pub fn assume(&mut self, changed: ChangedObject) {
        if let ChangedObject::Bundle(source, Some(_)) = &changed {
            self.unread.remove(source);
        }
        let effect = self.index.apply(changed);
        self.unread.extend(effect.read);
    }

    /// The rules of the preview, that in focus first.
    pub fn rules(&self) -> Vec<RuleUid> {
        std::iter::once(&self.focus)
            .chain(&self.others)
            .map(|one| one.uid.clone())
            .collect()
    }

    /// Puts another rule into focus.
    pub fn focus_on(&mut self, uid: &RuleUid) {
        if let Some(other) = self.others.iter_mut().find(|other| other.uid == *uid) {
            std::mem::swap(&mut self.focus, other);
        }
    }

    /// Whether the rule is saved already.
    pub fn exists(&self) -> bool {
        self.focus.exists
    }

    /// The rule.
    pub fn rule(&self) -> Option<&Rule> {
        self.index
            .rules()
            .get(&self.focus.uid)
            .map(|entry| &entry.rule)
    }

    /// The scopes of the rule's sources that are not listed yet.
    pub fn unlisted(&self) -> Vec<WatchScope> {
        let Some(entry) = self.index.rules().get(&self.focus.uid) else {
            return vec![];
        };
        let places = entry.rule.places(self.index.scopes().watched()).into_iter();
        places
            .filter(|scope| self.index.scopes().state(scope) == ScopeState::Unwatched)
            .collect()
    }

    /// The objects of a place.
    pub fn list(&mut self, scope: WatchScope, objects: Vec<(SourceRef, BTreeMap<String, String>)>) {
        let Some(entry) = self.index.rules().get(&self.focus.uid) else {
            return;
        };
        let rule = entry.rule.clone();
        for (source, labels) in objects
            .into_iter()
            .filter(|(source, labels)| rule.needs(source, labels))
        {
            let effect = self.index.set_source(source, labels, None);
            self.unread.extend(effect.read);
        }
        let effect = self.index.set_scope(scope, ScopeState::Known);
        self.unread.extend(effect.read);
    }

    /// Records that a scope cannot be listed: its objects are unknown, not absent.
    pub fn cannot_list(&mut self, scope: WatchScope, why: &str) {
        let answer = format!(
            "{scope} could not be listed ({why}): the plan knows nothing of what is there, ask again"
        );
        self.index.set_scope(scope, ScopeState::Unreadable(answer));
    }

    /// Whether there are places of which nothing is known.
    pub fn is_incomplete(&self) -> bool {
        let unreadable =
            |entry: &RuleEntry| !self.index.scopes().unreadable(&entry.plan).is_empty();
        self.index
            .rules()
            .get(&self.focus.uid)
            .is_some_and(unreadable)
    }

    /// Returns the sources whose content must be read.
    pub fn unread(&self) -> &BTreeSet<SourceRef> {
        &self.unread
    }

    /// This is the content of a source.
    pub fn read(&mut self, source: &SourceRef, body: SourceState) {
        self.unread.remove(source);
        if let Some(known) = self.index.sources().get(source) {
            let labels = known.labels.clone();
            self.index.set_source(source.clone(), labels, Some(body));
        }
    }

    /// Judges the items that the rule would no longer select.
    pub fn judge(&mut self, holdings: ReportedCopiesFn<'_>, now: Now) {
        let all = std::iter::once(&self.focus).chain(&self.others);
        for (uid, cluster, former) in
            all.flat_map(|one| one.former.iter().map(|(name, had)| (&one.uid, name, had)))
        {
            let Some(assignment) = self
                .index
                .rules()
                .get(uid)
                .and_then(|entry| entry.assignment(cluster))
            else {
                continue;
            };
            let orphaned_intents: BTreeSet<_> = former
                .intents()
                .map(|(source, _)| source)
                .filter(|source| assignment.content(source).is_none())
                .collect();
            // An agent would report these intents.
            if holdings(uid, cluster).is_some() && !orphaned_intents.is_empty() {
                self.index.orphaned_intents(
                    uid,
                    cluster,
                    orphaned_intents.into_iter().cloned().collect(),
                );
            }
        }
        self.judge_now(holdings, now);
    }

    /// Judges the removals that agents would request: `announced` are the intents that they would
    /// report.
    pub fn settle(&mut self, announced: ReportedCopiesFn<'_>, now: Now) {
        self.judge_now(announced, now);
    }

    /// Removals are judged after some time without further ones.
    fn judge_now(&mut self, holdings: ReportedCopiesFn<'_>, now: Now) {
        let uids = self.rules().into_iter().collect();
        self.index.judge(&uids, holdings, now);
        self.index.judge(
            &uids,
            holdings,
            Now {
                instant: now.instant + DELAY * 8,
                ..now
            },
        );
    }

    /// The index in which it is tried.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The rule.
    pub fn uid(&self) -> &RuleUid {
        &self.focus.uid
    }

    fn former_assignment(&self, cluster: &ClusterName) -> Option<&ClusterAssignment> {
        self.focus.former.get(cluster)
    }
}
