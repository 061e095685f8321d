//! The naive account: what each cluster may lose and get, from the API objects and what people did.
use std::collections::{BTreeMap, BTreeSet};

use runnel_api::{RolloutPhase, RolloutStatus};
use runnel_proto::model::{Batch, ClusterName, RuleUid, SourceRef};

use super::world::{Agent, Api, Text, text_of};

/// What a rule asks for: an edit of it is an edit of the rule or of its sources.
#[derive(Clone, PartialEq, Eq)]
pub struct Inputs {
    tries: u32,
    contents: BTreeMap<SourceRef, Text>,
}

/// A copy of a rule in a cluster.
type Copy = (RuleUid, ClusterName, SourceRef);

/// The waves of a rollout so far. The first one needs no approval, and has one cluster.
struct Waves {
    inputs: Inputs,
    /// The clusters of approved waves.
    admitted: BTreeSet<ClusterName>,
    /// The cluster of the first wave.
    first: Option<ClusterName>,
}

/// What people allowed, and what agents lost or got without it.
#[derive(Default)]
pub struct Account {
    /// The broken laws.
    pub broken: Vec<String>,
    /// Sources that were deleted on purpose while a rule selected them.
    deleted: BTreeSet<(RuleUid, SourceRef)>,
    /// Rules that were deleted on purpose.
    deleted_rules: BTreeSet<RuleUid>,
    /// Copies whose removal was approved.
    approved: BTreeSet<Copy>,
    /// The contents of the last completed rollout.
    completed: BTreeMap<RuleUid, BTreeMap<SourceRef, Text>>,
    /// The inputs that were stopped or reverted.
    ended: BTreeMap<RuleUid, Inputs>,
    /// The last cluster that a stopped rollout had reached: those up to it keep what they have of it, and are sent the rest.
    kept: BTreeMap<RuleUid, ClusterName>,
    /// The clusters that may have these inputs now.
    waves: BTreeMap<RuleUid, Waves>,
}

impl Account {
    /// The API objects changed: what is wanted again is not allowed to go any more.
    pub fn renew(&mut self, api: &Api) {
        self.deleted
            .retain(|(rule, source)| !api.selects(rule, source));
        self.approved
            .retain(|(rule, cluster, source)| !api.wants(rule, cluster, source));
    }

    /// A source is deleted on purpose.
    pub fn delete(&mut self, api: &Api, source: &SourceRef) {
        let selecting = api.rules.keys().filter(|uid| api.would_select(uid, source));
        self.deleted
            .extend(selecting.map(|uid| (uid.clone(), source.clone())));
    }

    /// Whether a copy may go, because its source was deleted on purpose.
    fn is_deleted(&self, rule: &RuleUid, source: &SourceRef) -> bool {
        self.deleted.contains(&(rule.clone(), source.clone()))
    }

    /// The copies of a rule that it does not want any more.
    fn unwanted(api: &Api, agents: &BTreeMap<ClusterName, Agent>, uid: &RuleUid) -> BTreeSet<Copy> {
        let of_agent = |(cluster, agent): (&ClusterName, &Agent)| {
            let sources = agent.sources(uid);
            sources
                .filter(|source| !api.wants(uid, cluster, source))
                .map(|source| (uid.clone(), cluster.clone(), source.clone()))
                .collect::<Vec<_>>()
        };
        agents.iter().flat_map(of_agent).collect()
    }

    /// A rule is deleted on purpose, without `onRuleDelete: Hold` and not with its namespace, or its deletion is approved.
    pub fn delete_rule(&mut self, uid: &RuleUid) {
        self.deleted_rules.insert(uid.clone());
    }

    /// A person approves the removals of a rule that wait.
    pub fn approve(&mut self, api: &Api, agents: &BTreeMap<ClusterName, Agent>, uid: &RuleUid) {
        let unwanted = Self::unwanted(api, agents, uid);
        self.approved.extend(unwanted);
    }

    /// A person approves the wave that the status shows: of the rollout as it began, not of an edit since.
    pub fn approve_wave(&mut self, uid: &RuleUid, clusters: Vec<ClusterName>) {
        if let Some(waves) = self.waves.get_mut(uid) {
            waves.admitted.extend(clusters);
        }
    }

    /// A rollout was paused and goes on. One that has not ended keeps its waves.
    pub fn retry(&mut self, api: &Api, uid: &RuleUid, before: &Inputs) {
        let goes_on = self.ended.get(uid) != Some(before);
        if let Some(waves) = self.waves.get_mut(uid)
            && waves.inputs == *before
            && goes_on
        {
            waves.inputs = api.inputs(uid);
        }
    }

    /// The rollout of a rule begins, with the inputs of now.
    fn begin(&mut self, uid: &RuleUid, inputs: Inputs) {
        if self.ended.get(uid) != Some(&inputs) {
            // Who asks for the ended ones again edits the rule for it.
            self.ended.remove(uid);
        }
        let waves = Waves {
            inputs,
            admitted: BTreeSet::new(),
            first: None,
        };
        self.waves.insert(uid.clone(), waves);
    }

    /// The status of a rule is written.
    pub fn record_status(
        &mut self,
        api: &Api,
        agents: &BTreeMap<ClusterName, Agent>,
        uid: &RuleUid,
        before: Option<&RolloutStatus>,
        away: BTreeSet<ClusterName>,
    ) {
        let now = api.rules[uid].status.rollout.as_ref();
        let inputs = api.inputs(uid);
        let begun = |it: &RolloutStatus| (it.revision.clone(), it.started_at.clone());
        let begins = now.map(begun) != before.map(begun);
        if begins {
            self.begin(uid, inputs.clone());
        }
        let phase = api.phase(uid);
        // One without clusters ends as it begins.
        if !begins && phase == before.map(|it| it.phase) {
            return;
        }
        match phase {
            Some(RolloutPhase::Completed) => {
                // A cluster that is away gets the content when it is back.
                for (cluster, agent) in agents.iter().filter(|(name, _)| !away.contains(*name)) {
                    let older = agent.rules.get(uid).into_iter().flat_map(|it| &it.intents);
                    let older = older.filter(|(source, (_, text))| {
                        inputs.contents.get(source).is_some_and(|now| now != text)
                    });
                    for (source, _) in older {
                        self.broken.push(format!(
                            "the rollout of {uid} completed while {cluster} has another content of {source}"
                        ));
                    }
                }
                self.completed.insert(uid.clone(), inputs.contents);
            }
            Some(RolloutPhase::Stopped | RolloutPhase::Reverting | RolloutPhase::Reverted) => {
                self.ended.insert(uid.clone(), inputs);
                let reached = now.and_then(|it| Some(it.reached_up_to.as_ref()?.cluster.as_str()));
                match reached.filter(|_| phase == Some(RolloutPhase::Stopped)) {
                    Some(cluster) => drop(self.kept.insert(uid.clone(), cluster.into())),
                    None => drop(self.kept.remove(uid)),
                }
            }
            _ => {}
        }
    }

    /// Checks what an agent is sent.
    pub fn check(&mut self, api: &Api, cluster: &ClusterName, agent: &Agent, batch: &Batch) {
        for delta in &batch.rules {
            let uid = &delta.uid;
            let inputs = api.inputs(uid);
            for intent in &delta.upserts {
                let (source, text) = (&intent.source, text_of(&intent.payload));
                if !api.grants.contains(&*source.resource) {
                    self.broken.push(format!(
                        "{cluster} is sent {source} of {uid}, which is not granted"
                    ));
                }
                let has_it = agent.text(uid, source) == Some(text);
                let is_former = self
                    .completed
                    .get(uid)
                    .is_some_and(|of| of.get(source) == Some(&text));
                if has_it || is_former {
                    continue;
                }
                let is_reached = self.kept.get(uid).is_some_and(|last| cluster <= last);
                if self.ended.get(uid) == Some(&inputs) && !is_reached {
                    self.broken.push(format!(
                        "{cluster} is sent {source} of {uid}, which was stopped or reverted"
                    ));
                }
                if api.needs_approval(uid) && !self.is_admitted(uid, &inputs, cluster) {
                    self.broken.push(format!(
                        "{cluster} is sent {source} of {uid}, of which no wave was approved"
                    ));
                }
            }
        }
    }

    fn is_admitted(&mut self, uid: &RuleUid, inputs: &Inputs, cluster: &ClusterName) -> bool {
        let waves = self
            .waves
            .get_mut(uid)
            .filter(|waves| waves.inputs == *inputs);
        // Waves are in the order of names: the turn of a cluster that comes before an admitted one is over.
        waves.is_some_and(|waves| {
            waves.admitted.iter().any(|admitted| admitted >= cluster)
                || &*waves.first.get_or_insert_with(|| cluster.clone()) >= cluster
        })
    }

    /// Checks what an agent has lost.
    pub fn check_lost(&mut self, api: &Api, cluster: &ClusterName, before: &Agent, after: &Agent) {
        for (uid, rule) in &before.rules {
            for source in rule.intents.keys().filter(|source| !after.has(source)) {
                let copy = (uid.clone(), cluster.clone(), source.clone());
                let others = api.rules.keys().filter(|other| *other != uid);
                let changes_hands = others
                    .into_iter()
                    .any(|other| api.wants(other, cluster, source));
                let is_rolled_back = api.is_rolled_back(uid)
                    && self
                        .completed
                        .get(uid)
                        .is_none_or(|of| !of.contains_key(source));
                let is_allowed = self.is_deleted(uid, source)
                    || self.deleted_rules.contains(uid)
                    || api.leaves(cluster)
                    || is_rolled_back
                    || self.approved.contains(&copy);
                let is_allowed = is_allowed && !changes_hands;
                if !is_allowed {
                    self.broken.push(format!(
                        "{cluster} lost {source} of {uid}{}",
                        if changes_hands {
                            ", which another rule wants"
                        } else {
                            ""
                        }
                    ));
                }
            }
        }
    }
}

impl Inputs {
    /// What a rule selects, granted or not.
    pub fn new(tries: u32, contents: BTreeMap<SourceRef, Text>) -> Self {
        Self { tries, contents }
    }
}
