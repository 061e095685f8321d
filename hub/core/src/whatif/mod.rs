//! What a rule would do that is not saved. Pure.
//!
//! The rule is tried in a copy of the part of the index that has to do with it ([`Around`]): the same planner, the
//! same grants, the same removal guard as for a saved one, and nobody hears of it. What only the agents know, namespaces and what
//! stands in them, they are asked: each hears what would be said to it ([`Scene::ask`]), decides as it would, and forgets
//! it. With their answers the guard judges what only they could find ([`Scene::settle`]).
//!
//! A plan carries no payload to a member: digests with a key of the question's own let the agent compare what stands there.
//! The key travels along, as the agent computes with it: whoever has a member in his hands could test what he guesses that a
//! source holds. Only for a rehearsal, in which each API server is to judge the writes, is sent what would be sent.
mod answer;
mod ask;
mod outcome;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use crate::guard::DELAY;
pub use crate::index::Holdings;
use crate::index::{Around, Index, PlaceState, RuleEntry};
use crate::now::Now;
use crate::plan::{ClusterAssignment, Rule, SourceState, WatchScope};

pub use answer::AgentAnswer;
pub use ask::{AgentQuestion, Ask, Asking, ClusterEligibility};
pub use outcome::{Row, SourceRow};

/// A rule, tried.
pub struct Scene {
    index: Index,
    uid: RuleUid,
    exists: bool,
    /// What each cluster has of the rule as it is saved.
    former: BTreeMap<ClusterName, ClusterAssignment>,
    /// Those to which a rollout under way has not come: they have what was before it, and the hub does not know what that is.
    behind: BTreeSet<ClusterName>,
    unread: BTreeSet<SourceRef>,
}

impl Scene {
    /// Tries a rule in what was taken out of an index for it. If it has the uid of a saved one, it is an edit of that.
    pub fn new(around: Around, rule: Rule) -> Self {
        let (uid, mut index) = (rule.uid.clone(), around.plan());
        let saved = index.rule(&uid);
        let exists = saved.is_some();
        let assignments = |cluster: &ClusterName| Some((cluster.clone(), saved?.assignment(cluster)?));
        let former =
            saved.iter().flat_map(|entry| entry.target_clusters.clusters.keys()).filter_map(assignments).collect();
        let behind = |entry: &RuleEntry| {
            let clusters = entry.target_clusters.clusters.keys();
            clusters.filter(|cluster| entry.awaits(cluster)).cloned().collect()
        };
        let behind = saved.map(behind).unwrap_or_default();
        let unread = index.set_rule(rule).read;
        Self { index, uid, exists, former, behind, unread }
    }

    /// Whether the rule is saved already.
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// The rule.
    pub fn rule(&self) -> Option<&Rule> {
        self.index.rule(&self.uid).map(|entry| &entry.rule)
    }

    /// Where the rule looks for sources and nobody has looked before.
    pub fn unlisted(&self) -> Vec<WatchScope> {
        let Some(entry) = self.index.rule(&self.uid) else { return vec![] };
        let places = entry.rule.places(self.index.scope()).into_iter();
        places.filter(|place| self.index.place(place) == PlaceState::Unwatched).collect()
    }

    /// These are the objects of a place.
    pub fn list(&mut self, place: WatchScope, objects: Vec<(SourceRef, BTreeMap<String, String>)>) {
        let Some(entry) = self.index.rule(&self.uid) else { return };
        let rule = entry.rule.clone();
        for (source, labels) in objects.into_iter().filter(|(source, labels)| rule.needs(source, labels)) {
            let effect = self.index.set_source(source, labels, None);
            self.unread.extend(effect.read);
        }
        let effect = self.index.set_place(place, PlaceState::Known);
        self.unread.extend(effect.read);
    }

    /// What is in a place cannot be told, which is not to say that nothing is there.
    pub fn cannot_list(&mut self, place: WatchScope, why: &str) {
        let answer = format!("{place} could not be listed ({why}): the plan knows nothing of what is there, ask again");
        self.index.set_place(place, PlaceState::Unreadable(answer));
    }

    /// Whether there are places of which nothing is known.
    pub fn is_incomplete(&self) -> bool {
        let unreadable = |entry: &RuleEntry| !self.index.unreadable_places(&entry.rule).is_empty();
        self.index.rule(&self.uid).is_some_and(unreadable)
    }

    /// The sources whose content is needed and not known.
    pub fn unread(&self) -> &BTreeSet<SourceRef> {
        &self.unread
    }

    /// This is the content of a source.
    pub fn read(&mut self, source: &SourceRef, body: SourceState) {
        self.unread.remove(source);
        if let Some(known) = self.index.source(source) {
            let labels = known.labels.clone();
            self.index.set_source(source.clone(), labels, Some(body));
        }
    }

    /// Judges what the rule would no longer want.
    pub fn judge(&mut self, holdings: Holdings<'_>, now: Now) {
        for (cluster, former) in &self.former {
            let Some(assignment) = self.index.rule(&self.uid).and_then(|entry| entry.assignment(cluster)) else {
                continue;
            };
            let orphaned_intents: BTreeSet<_> = former
                .intents()
                .map(|(source, _)| source)
                .filter(|source| assignment.content(source).is_none())
                .collect();
            // An agent would say that it holds these.
            if holdings(&self.uid, cluster).is_some() && !orphaned_intents.is_empty() {
                self.index.orphaned_intents(&self.uid, cluster, orphaned_intents.into_iter().cloned().collect());
            }
        }
        self.judge_now(holdings, now);
    }

    /// Judges what agents would ask for: `announced` is what they would say that they hold.
    pub fn settle(&mut self, announced: Holdings<'_>, now: Now) {
        self.judge_now(announced, now);
    }

    /// Removals are judged when nothing else has come for a while.
    fn judge_now(&mut self, holdings: Holdings<'_>, now: Now) {
        let uids = BTreeSet::from([self.uid.clone()]);
        self.index.judge(&uids, holdings, now);
        self.index.judge(&uids, holdings, Now { instant: now.instant + DELAY * 8, ..now });
    }

    /// The index in which it is tried.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The rule.
    pub fn uid(&self) -> &RuleUid {
        &self.uid
    }

    fn former(&self, cluster: &ClusterName) -> Option<&ClusterAssignment> {
        self.former.get(cluster)
    }
}
