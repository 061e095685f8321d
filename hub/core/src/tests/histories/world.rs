//! A hub, its API objects, and agents that apply what they are sent.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use runnel_api::{PendingRemoval, RolloutPhase, RuleStatus};
use runnel_proto::model::{
    AckedIntent, Batch, ClusterName, Content, Counts, Failure, Payload, ProofKey, Reason, Revision,
    RuleName, RuleState, RuleUid, SourceRef, TermsDigest,
};
use serde_json::json;

use super::Step;
use super::account::{Account, Inputs};
use crate::guard::Item;
use crate::index::{Cluster, Effect, HubNamespace, Index, ScopeState, StoredState};
use crate::now::Now;
use crate::plan::{
    RollbackBlocker, Rule, RuleGrant, SourceContent, SourceState, UnsupportedSource, WatchScope,
};
use crate::session::Session;
use crate::status::{Deliveries, ReportState, ReportStore, SETTLING, SessionFacts, View, fold};

pub const CLUSTERS: [&str; 3] = ["m1", "m2", "m3"];
pub const SOURCES: [(&str, &str); 5] = [
    ("configmaps", "a"),
    ("configmaps", "b"),
    ("configmaps", "c"),
    ("secrets", "d"),
    ("secrets", "e"),
];
/// The rules select the sources with their name as label.
pub const RULES: [&str; 3] = ["plain", "waves", "stops"];
const NAMESPACE: &str = "team";
/// So many states of a rule are kept by default.
const HISTORY: usize = 2;
/// Within so many rounds hub and agents come to rest after a change.
const ROUNDS: u32 = 1000;

/// The content of a source or a copy: its version, and whether members refuse it.
pub type Text = (u32, bool);

struct ApiSource {
    set: usize,
    text: Text,
    is_controlled: bool,
}

#[derive(Clone)]
pub struct ApiRule {
    kind: usize,
    names_secrets: bool,
    generation: i64,
    tries: u32,
    is_paused: bool,
    deleting: bool,
    approve: String,
    /// The revision to which a person reverted it.
    reverted: Option<String>,
    pub status: RuleStatus,
}

/// A state that the hub has stored, with what it would send.
struct KeptState {
    stored: StoredState,
    contents: BTreeMap<SourceRef, Text>,
}

/// The objects in the API server of the hub. They survive the hub.
#[derive(Default)]
pub struct Api {
    sources: BTreeMap<SourceRef, ApiSource>,
    pub rules: BTreeMap<RuleUid, ApiRule>,
    pub grants: BTreeSet<&'static str>,
    labeled: BTreeSet<ClusterName>,
    joined: BTreeSet<ClusterName>,
    leaving: BTreeSet<ClusterName>,
    /// Whether the namespace is being deleted.
    is_terminating: bool,
    /// Whether the definition of rules is being deleted.
    is_definition_terminating: bool,
    /// The stored states of each rule, the newest first.
    states: BTreeMap<RuleUid, Vec<KeptState>>,
    /// The orders of deleted rules for clusters that were away.
    orders: BTreeMap<ClusterName, BTreeMap<RuleUid, PendingRemoval>>,
    texts: u32,
    uids: u32,
}

impl Api {
    /// Whether a rule selects an existing source, granted or not.
    pub fn selects(&self, uid: &RuleUid, source: &SourceRef) -> bool {
        self.rules.get(uid).is_some_and(|rule| !rule.deleting) && self.would_select(uid, source)
    }

    /// Whether a rule selects a source, or would if it were not being deleted.
    pub fn would_select(&self, uid: &RuleUid, source: &SourceRef) -> bool {
        self.contents(uid).contains_key(source)
    }

    /// What a rule selects, granted or not: of existing sources, or of the state to which it is reverted.
    fn contents(&self, uid: &RuleUid) -> BTreeMap<SourceRef, Text> {
        let Some(rule) = self.rules.get(uid) else {
            return BTreeMap::new();
        };
        if let Some(state) = self.reverted_to(uid) {
            return state.contents.clone();
        }
        let selected = self.sources.iter().filter(|(source, known)| {
            known.set == rule.kind
                && !known.is_controlled
                && (rule.names_secrets || &*source.resource == "configmaps")
        });
        selected
            .map(|(source, known)| (source.clone(), known.text))
            .collect()
    }

    /// The state to which a rule is reverted.
    fn reverted_to(&self, uid: &RuleUid) -> Option<&KeptState> {
        let revision = self.rules.get(uid)?.reverted.as_deref()?;
        let mut states = self.states.get(uid)?.iter();
        states.find(|state| state.stored.revision == revision)
    }

    /// Stores the state of a completed rollout, and drops those that the rule does not keep.
    fn store(&mut self, uid: &RuleUid, stored: StoredState) {
        let contents = self.contents(uid);
        let reverted = self.rules[uid].reverted.clone();
        let states = self.states.entry(uid.clone()).or_default();
        states.retain(|state| state.stored.revision != stored.revision);
        states.insert(0, KeptState { stored, contents });
        let mut number = 0;
        states.retain(|state| {
            number += 1;
            number <= HISTORY || Some(&state.stored.revision) == reverted.as_ref()
        });
    }

    /// Whether a rule wants a copy in a cluster, wave or not.
    pub fn wants(&self, uid: &RuleUid, cluster: &ClusterName, source: &SourceRef) -> bool {
        self.selects(uid, source)
            && self.labeled.contains(cluster)
            && self.joined.contains(cluster)
            && !self.leaves(cluster)
            && self.grants.contains(&*source.resource)
    }

    /// Whether a cluster leaves on purpose.
    pub fn leaves(&self, cluster: &ClusterName) -> bool {
        self.leaving.contains(cluster)
    }

    /// Whether the deletion of a rule alone removes its copies.
    pub fn is_deleted_on_purpose(&self, uid: &RuleUid) -> bool {
        RULES[self.rules[uid].kind] != "stops"
            && !self.is_terminating
            && !self.is_definition_terminating
    }

    fn namespace(&self) -> HubNamespace {
        HubNamespace {
            terminating: self.is_terminating,
            ..HubNamespace::default()
        }
    }

    /// Whether a rule gets everything that it selects in a cluster.
    fn chooses(&self, uid: &RuleUid, cluster: &ClusterName) -> bool {
        let contents = self.contents(uid);
        let mut selected = contents.keys().filter(|it| self.selects(uid, it));
        selected.all(|it| self.wants(uid, cluster, it))
    }

    pub fn inputs(&self, uid: &RuleUid) -> Inputs {
        let rule = self.rules.get(uid);
        let tries = rule.map_or(0, |rule| rule.tries);
        Inputs::new(tries, self.contents(uid))
    }

    pub fn needs_approval(&self, uid: &RuleUid) -> bool {
        self.rules
            .get(uid)
            .is_some_and(|rule| RULES[rule.kind] == "waves")
    }

    pub fn phase(&self, uid: &RuleUid) -> Option<RolloutPhase> {
        Some(self.rules.get(uid)?.status.rollout.as_ref()?.phase)
    }

    pub fn is_rolled_back(&self, uid: &RuleUid) -> bool {
        matches!(
            self.phase(uid),
            Some(RolloutPhase::Reverting | RolloutPhase::Reverted)
        )
    }

    /// Reads a rule as the hub does.
    fn rule(&self, uid: &RuleUid) -> Rule {
        let rule = &self.rules[uid];
        let name = RULES[rule.kind];
        let kinds = if rule.names_secrets {
            json!(["configmaps", "secrets"])
        } else {
            json!(["configmaps"])
        };
        let mut spec = json!({
            "sources": [{"resources": kinds, "selector": {"matchLabels": {"set": name}}}],
            "clusters": {"selector": {"matchLabels": {"tier": "x"}}},
            "removalLimit": {"count": 0, "percent": 0},
        });
        match name {
            "waves" => {
                spec["rollout"] = json!({"maxConcurrency": 1, "approval": "PerWave", "onFailure": "Revert", "paused": rule.is_paused});
            }
            "stops" => {
                spec["rollout"] = json!({"maxConcurrency": 1, "paused": rule.is_paused});
                spec["removalLimit"]["onRuleDelete"] = json!("Hold");
            }
            _ => {}
        }
        let mut metadata = json!({
            "name": name, "namespace": NAMESPACE, "uid": uid.as_str(), "generation": rule.generation,
            "annotations": {"runnel.dev/approve": rule.approve},
        });
        if let Some(revision) = &rule.reverted {
            metadata["annotations"][runnel_api::REVERT_TO] = json!(revision);
        }
        if rule.deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let mut object: runnel_api::DistributionRule = serde_json::from_value(json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": metadata, "spec": spec,
        }))
        .unwrap();
        object.status = Some(rule.status.clone());
        Rule::namespaced(&object, "runnel-system").unwrap()
    }
}

/// What an agent has of a rule.
#[derive(Clone, Default)]
pub struct AgentRule {
    terms: Option<TermsDigest>,
    name: RuleName,
    suspended: bool,
    pub intents: BTreeMap<SourceRef, (Revision, Text)>,
}

/// An agent that applies everything at once. A copy stays as long as a rule has its intent.
#[derive(Clone, Default)]
pub struct Agent {
    pub rules: BTreeMap<RuleUid, AgentRule>,
    gone: Vec<(RuleUid, u64)>,
}

impl Agent {
    pub fn sources(&self, uid: &RuleUid) -> impl Iterator<Item = &SourceRef> {
        self.rules
            .get(uid)
            .into_iter()
            .flat_map(|it| it.intents.keys())
    }

    pub fn has(&self, source: &SourceRef) -> bool {
        self.rules
            .values()
            .any(|it| it.intents.contains_key(source))
    }

    pub fn text(&self, uid: &RuleUid, source: &SourceRef) -> Option<Text> {
        Some(self.rules.get(uid)?.intents.get(source)?.1)
    }

    fn take(&mut self, batch: &Batch) {
        for delta in &batch.rules {
            let known = self.rules.contains_key(&delta.uid);
            if !known && delta.terms.is_none() && delta.upserts.is_empty() {
                continue;
            }
            let rule = self.rules.entry(delta.uid.clone()).or_default();
            if let Some((terms, digest)) = &delta.terms {
                (rule.terms, rule.suspended) = (Some(*digest), terms.suspend);
                rule.name = terms.rule.clone();
            }
            if delta.orphaned {
                rule.terms = None;
            }
            for intent in &delta.upserts {
                let copy = (intent.revision, text_of(&intent.payload));
                rule.intents.insert(intent.source.clone(), copy);
            }
        }
        for delta in &batch.rules {
            if let Some(rule) = self.rules.get_mut(&delta.uid) {
                for tombstone in &delta.tombstones {
                    rule.intents.remove(&tombstone.source);
                }
            }
            if delta.removal.is_some() {
                self.rules.remove(&delta.uid);
                self.gone.push((delta.uid.clone(), batch.nonce));
            }
        }
    }

    fn state(&self, uid: &RuleUid) -> RuleState {
        let rule = &self.rules[uid];
        let count = |it: usize| u32::try_from(it).unwrap();
        let refused = rule.intents.iter().filter(|(_, (_, text))| text.1);
        let failures: Vec<_> = refused
            .map(|(source, _)| Failure {
                reason: Reason::Invalid,
                copy: source.clone(),
                message: String::new(),
            })
            .collect();
        let (copies, failed) = (count(rule.intents.len()), count(failures.len()));
        let pairs = rule
            .intents
            .iter()
            .map(|(it, (revision, _))| (it, revision));
        RuleState {
            rule: rule.name.clone(),
            intents_digest: pairs.collect(),
            intents: copies,
            terms_digest: rule.terms,
            counts: Counts {
                copies,
                failed,
                applied: copies - failed,
                ..Counts::default()
            },
            failures,
            suspended: rule.suspended,
            ..RuleState::new(uid.clone())
        }
    }

    fn states(&self) -> Vec<RuleState> {
        self.rules.keys().map(|uid| self.state(uid)).collect()
    }
}

pub fn text_of(payload: &Payload) -> Text {
    let content = serde_json::to_value(payload.decode().unwrap().fields).unwrap();
    let of = |key: &str| content["data"][key].as_str().unwrap().to_owned();
    (of("version").parse().unwrap(), of("bad") == "true")
}

fn content_of(text: Text) -> SourceState {
    let fields = json!({"data": {"version": text.0.to_string(), "bad": text.1.to_string()}});
    let content = Content {
        fields: fields.as_object().unwrap().clone().into_iter().collect(),
        ..Content::default()
    };
    let mut revision = [0; 16];
    revision[..4].copy_from_slice(&text.0.to_be_bytes());
    let payload = Payload::encode(content.to_bytes());
    SourceState::Read(SourceContent::new(Revision(revision), payload).into())
}

fn source(number: usize) -> SourceRef {
    let (resource, name) = SOURCES[number];
    SourceRef::new(resource, NAMESPACE, name)
}

fn grant(resource: &str) -> RuleGrant {
    let object: runnel_api::DistributionGrant = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": resource},
        "spec": {
            "rules": {"namespaces": {"all": true}}, "resources": [resource],
            "clusters": {"all": true}, "namespaces": {"all": true},
        },
    }))
    .unwrap();
    RuleGrant::read(&object)
}

/// One process of the hub.
struct Hub {
    /// The rules of whose removals the status says that they wait, with an approval of them: the process knows no more until it has
    /// written the status.
    approved: BTreeSet<RuleUid>,
    index: Index,
    report_store: ReportStore,
    deliveries: Deliveries,
    sessions: BTreeMap<ClusterName, (u64, Session)>,
    started: Instant,
}

pub struct World {
    api: Api,
    hub: Hub,
    agents: BTreeMap<ClusterName, Agent>,
    now: Now,
    streams: u64,
    pub account: Account,
}

impl World {
    pub fn new() -> Self {
        let now = Now {
            instant: Instant::now(),
            wall: Timestamp::from_second(1_800_000_000).unwrap(),
        };
        let mut api = Api {
            grants: BTreeSet::from(["configmaps", "secrets"]),
            ..Api::default()
        };
        for cluster in CLUSTERS {
            api.labeled.insert(cluster.into());
        }
        for cluster in &CLUSTERS[..2] {
            api.joined.insert((*cluster).into());
        }
        let mut world = Self {
            hub: Hub::start(&api, now),
            api,
            agents: CLUSTERS
                .iter()
                .map(|name| ((*name).into(), Agent::default()))
                .collect(),
            now,
            streams: 0,
            account: Account::default(),
        };
        world.hub.started -= SETTLING;
        (0..2).for_each(|cluster| world.connect(cluster));
        (0..RULES.len()).for_each(|rule| world.create_rule(rule));
        for number in 0..SOURCES.len() {
            world.edit(number, number % RULES.len(), false);
        }
        // The first rollouts end, so that histories begin with copies everywhere.
        for _ in 0..4 {
            world.settle(2);
            world.approve_wave(1);
        }
        world.settle(3);
        world
    }

    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Relabel(cluster, on) => {
                let name: ClusterName = CLUSTERS[*cluster].into();
                if *on {
                    self.api.labeled.insert(name.clone());
                } else {
                    self.api.labeled.remove(&name);
                }
                if self.api.joined.contains(&name) {
                    let cluster = self.api.cluster(&name);
                    self.change(|index| index.set_cluster(name, cluster));
                }
            }
            Step::Edit(number, bad) if self.has_namespace() => {
                let set = self
                    .api
                    .sources
                    .get(&source(*number))
                    .map_or(*number % 3, |it| it.set);
                self.edit(*number, set, *bad);
            }
            Step::Move(number, set) => {
                if let Some(known) = self.api.sources.get_mut(&source(*number)) {
                    known.set = *set;
                    self.observe(*number);
                }
            }
            Step::Control(number, on) => {
                if let Some(known) = self.api.sources.get_mut(&source(*number)) {
                    known.is_controlled = *on;
                    self.observe(*number);
                }
            }
            Step::Delete(number) => {
                let source = source(*number);
                if !self.api.is_terminating {
                    self.account.delete(&self.api, &source);
                }
                self.delete_source(&source);
            }
            Step::Grant(is_secrets, on) => {
                let kind = if *is_secrets { "secrets" } else { "configmaps" };
                if *on {
                    self.api.grants.insert(kind);
                } else {
                    self.api.grants.remove(kind);
                }
                let grant = on.then(|| grant(kind));
                self.change(|index| index.set_grant(kind, grant));
            }
            Step::NameSecrets(rule, on) => self.edit_rule(*rule, |it| it.names_secrets = *on),
            Step::Retry(rule) => {
                let before = self.api.uid(*rule).map(|uid| self.api.inputs(&uid));
                self.edit_rule(*rule, |it| it.is_paused = true);
                self.edit_rule(*rule, |it| (it.is_paused, it.tries) = (false, it.tries + 1));
                if let Some((uid, before)) = self.api.uid(*rule).zip(before) {
                    self.account.retry(&self.api, &uid, &before);
                }
            }
            Step::Revert(rule, number) => {
                let states = self
                    .api
                    .uid(*rule)
                    .and_then(|uid| self.api.states.get(&uid));
                let state = states.and_then(|states| states.get(*number));
                if let Some(revision) = state.map(|state| state.stored.revision.clone()) {
                    self.revert(*rule, Some(revision));
                }
            }
            Step::EndRevert(rule) => self.revert(*rule, None),
            Step::DeleteRule(rule) => {
                if let Some(uid) = self.api.uid(*rule) {
                    if self.api.is_deleted_on_purpose(&uid) {
                        self.account.delete_rule(&uid);
                    }
                    self.edit_rule(*rule, |it| it.deleting = true);
                }
            }
            Step::CreateRule(rule) => {
                if self.api.uid(*rule).is_none() && self.has_namespace() && self.has_definition() {
                    self.create_rule(*rule);
                }
            }
            Step::DeleteNamespace => {
                self.api.is_terminating = true;
                let namespace = self.api.namespace();
                self.change(|index| index.set_hub_namespace_state(NAMESPACE, Some(namespace)));
                for number in 0..SOURCES.len() {
                    self.delete_source(&source(number));
                }
                (0..RULES.len()).for_each(|rule| self.edit_rule(rule, |it| it.deleting = true));
            }
            Step::DeleteDefinition => {
                self.set_definition_terminating(true);
                (0..RULES.len()).for_each(|rule| self.edit_rule(rule, |it| it.deleting = true));
            }
            Step::Approve(rule) => self.approve(*rule),
            Step::ApproveWave(rule) => self.approve_wave(*rule),
            Step::Restart => self.restart(),
            Step::EndAtWrite(rule) => {
                if let Some(uid) = self.api.uid(*rule) {
                    self.write(&uid, false);
                }
                self.restart();
            }
            Step::Disconnect(cluster) => {
                let name: ClusterName = CLUSTERS[*cluster].into();
                if let Some((number, _)) = self.hub.sessions.remove(&name) {
                    let now = self.now.instant;
                    self.hub.report_store.disconnected(&name, number, now);
                    self.hub.deliveries.lost(&name);
                }
            }
            Step::Connect(cluster) => self.connect(*cluster),
            Step::Leave(cluster, on) => {
                let name: ClusterName = CLUSTERS[*cluster].into();
                if *on {
                    self.api.leaving.insert(name.clone());
                } else {
                    self.api.leaving.remove(&name);
                }
                if self.api.joined.contains(&name) {
                    let cluster = self.api.cluster(&name);
                    self.change(|index| index.set_cluster(name, cluster));
                }
            }
            Step::Edit(..) => {}
            Step::Settle(seconds) => self.settle(*seconds),
        }
    }

    /// Whether the namespace exists. One that was deleted is created again once its rules are gone.
    fn has_namespace(&mut self) -> bool {
        if self.api.is_terminating && self.api.rules.is_empty() {
            self.api.is_terminating = false;
            let namespace = self.api.namespace();
            self.change(|index| index.set_hub_namespace_state(NAMESPACE, Some(namespace)));
        }
        !self.api.is_terminating
    }

    /// Whether rules can be made. A definition that was deleted is created again once the rules are gone.
    fn has_definition(&mut self) -> bool {
        if self.api.is_definition_terminating && self.api.rules.is_empty() {
            self.set_definition_terminating(false);
        }
        !self.api.is_definition_terminating
    }

    fn set_definition_terminating(&mut self, is_terminating: bool) {
        self.api.is_definition_terminating = is_terminating;
        self.hub.set_definition_terminating(is_terminating);
    }

    fn delete_source(&mut self, source: &SourceRef) {
        if self.api.sources.remove(source).is_some() {
            let now = self.now.instant;
            self.hub.index.sources_mut().mark_deleted(source, now);
            self.change(|index| index.expire_deleted(now, Duration::ZERO));
        }
    }

    fn edit(&mut self, number: usize, set: usize, bad: bool) {
        self.api.texts += 1;
        let known = ApiSource {
            set,
            text: (self.api.texts, bad),
            is_controlled: false,
        };
        self.api.sources.insert(source(number), known);
        self.observe(number);
    }

    fn observe(&mut self, number: usize) {
        let source = source(number);
        let (labels, body) = self.api.sources[&source].shown();
        self.change(|index| index.set_source(source, labels, Some(body)));
    }

    fn create_rule(&mut self, kind: usize) {
        self.api.uids += 1;
        let uid = RuleUid::from(format!("{}-{}", RULES[kind], self.api.uids).as_str());
        let rule = ApiRule {
            kind,
            names_secrets: true,
            generation: 1,
            tries: 0,
            is_paused: false,
            deleting: false,
            approve: String::new(),
            reverted: None,
            status: RuleStatus::default(),
        };
        self.api.rules.insert(uid.clone(), rule);
        let rule = self.api.rule(&uid);
        self.change(|index| index.set_rule(rule));
    }

    fn edit_rule(&mut self, kind: usize, edit: impl FnOnce(&mut ApiRule)) {
        let Some(uid) = self.api.uid(kind) else {
            return;
        };
        let rule = self.api.rules.get_mut(&uid).unwrap();
        rule.generation += 1;
        edit(rule);
        let rule = self.api.rule(&uid);
        self.change(|index| index.set_rule(rule));
    }

    /// A person reverts a rule, or ends that.
    fn revert(&mut self, kind: usize, revision: Option<String>) {
        self.edit_rule(kind, |it| it.reverted = revision);
        if let Some(uid) = self.api.uid(kind) {
            self.load_reverted(&uid);
        }
    }

    /// Reads the state to which a rule is reverted.
    fn load_reverted(&mut self, uid: &RuleUid) {
        let state = self.api.reverted_to(uid).map(|it| it.stored.clone());
        if let Some(StoredState { revision, state }) = state {
            self.change(|index| index.set_reverted_state(uid, &revision, state));
        }
    }

    fn annotate(&mut self, uid: &RuleUid, digest: String) {
        self.api.rules.get_mut(uid).unwrap().approve = digest;
        let removal = self.api.rule(uid).removal;
        self.change(|index| index.planner_mut().set_removal(uid, removal));
    }

    /// A person approves what the index has blocked. It may concern a rule that is being deleted.
    fn approve(&mut self, kind: usize) {
        let rules: Vec<_> = self
            .api
            .rules
            .iter()
            .filter(|(_, it)| it.kind == kind)
            .collect();
        let uids: Vec<_> = rules.into_iter().map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            let entry = self.hub.index.rules().get(&uid);
            let Some(pending) = entry.and_then(|entry| entry.guard.pending().cloned()) else {
                continue;
            };
            // Another process knows of a removal that waits only that it does: it may have been undone.
            let blocked = entry.map(|entry| entry.guard.blocked());
            let is_carried = blocked.is_none_or(BTreeSet::is_empty);
            let is_of_rule = is_carried || blocked.is_some_and(|it| it.contains(&Item::Rule));
            if self.api.rules[&uid].deleting && is_of_rule {
                // Also where the rule has come to since.
                self.account.delete_rule(&uid);
            } else if is_carried {
                continue;
            }
            self.account.approve(&self.api, &self.agents, &uid);
            self.annotate(&uid, pending.digest);
        }
    }

    fn approve_wave(&mut self, kind: usize) {
        let Some(uid) = self.api.uid(kind) else {
            return;
        };
        let rollout = self.api.rules[&uid].status.rollout.as_ref();
        let Some(wave) = rollout.and_then(|rollout| rollout.pending_wave.clone()) else {
            return;
        };
        let names = wave.names.iter().map(|name| name.as_str().into()).collect();
        self.account.approve_wave(&uid, names);
        self.annotate(&uid, wave.digest);
    }

    fn restart(&mut self) {
        // Another process knows an approval by the status: one that was undone since is none only once that was written.
        let is_approved = |rule: &ApiRule| {
            let pending = rule.status.pending_approval.as_ref();
            pending.is_some_and(|pending| pending.digest == rule.approve)
        };
        let approved = self.api.rules.iter().filter(|(_, rule)| is_approved(rule));
        let approved = approved.map(|(uid, _)| uid.clone()).collect();
        self.hub = Hub::start(&self.api, self.now);
        self.hub.approved = approved;
        for uid in self.api.rules.keys().cloned().collect::<Vec<_>>() {
            self.load_reverted(&uid);
        }
        self.change(|index| Effect {
            judge: index.rules().uids().cloned().collect(),
            ..Effect::default()
        });
    }

    fn connect(&mut self, cluster: usize) {
        let name: ClusterName = CLUSTERS[cluster].into();
        if self.hub.sessions.contains_key(&name) {
            return;
        }
        if self.api.joined.insert(name.clone()) {
            let cluster = self.api.cluster(&name);
            self.change(|index| index.set_cluster(name.clone(), cluster));
        }
        self.streams += 1;
        let states = self.agents[&name].states();
        let mut session = Session::default();
        session.hello(states.clone());
        session.hello_done();
        let with_copies = states.iter().filter(|state| state.intents > 0);
        let with_copies = with_copies.map(|state| state.uid.clone()).collect();
        let facts = SessionFacts {
            agent_version: "0.1.0".into(),
            kubernetes_version: "v1.36.3".into(),
            cluster_uid: name.as_str().into(),
            key: name.to_string(),
            boot_id: name.to_string(),
            certificate_expires: Timestamp::MAX,
        };
        self.hub
            .report_store
            .connected(&name, self.streams, facts, states);
        self.hub
            .sessions
            .insert(name.clone(), (self.streams, session));
        self.change(|index| index.rules_mut().drop_missing_rules(&name, &with_copies));
        let rules: Vec<_> = self.hub.index.rules().uids().cloned().collect();
        let session = &mut self.hub.sessions.get_mut(&name).unwrap().1;
        let unknown: Vec<_> = session
            .acked_rules()
            .filter(|uid| !rules.contains(uid))
            .cloned()
            .collect();
        let index = &self.hub.index;
        session.update(
            unknown
                .into_iter()
                .map(|uid| (uid.clone(), index.directive(&uid, &name))),
        );
        self.change(|_| Effect::default());
    }

    /// Changes the index, judges removals, and brings all sessions up to date.
    fn change(&mut self, change: impl FnOnce(&mut Index) -> Effect) {
        self.account.renew(&self.api);
        for uid in &self.hub.approved {
            self.account.approve(&self.api, &self.agents, uid);
        }
        let mut effect = change(&mut self.hub.index);
        for round in 0.. {
            assert!(round < ROUNDS, "the hub does not come to rest");
            while let Some(source) = effect.read.pop_first() {
                if let Some(known) = self.api.sources.get(&source) {
                    let (labels, body) = known.shown();
                    effect.merge(self.hub.index.set_source(source, labels, Some(body)));
                }
            }
            while let Some(uid) = effect.follow.pop_first() {
                effect.merge(self.hub.index.follow(&uid));
            }
            let Hub {
                index,
                report_store,
                ..
            } = &mut self.hub;
            let holdings =
                |uid: &RuleUid, cluster: &ClusterName| report_store.reported_copies(uid, cluster);
            index.judge(&effect.judge, &holdings, self.now);
            effect = Effect::default();
            for (cluster, (_, session)) in &mut self.hub.sessions {
                let index = &self.hub.index;
                let is_known = |uid: &RuleUid| session.knows_copies(uid);
                let (since, waiting) = (session.version(), session.handovers());
                let (directives, version) = index.directives_for(cluster, since, waiting, is_known);
                session.catch_up(directives, version);
                for (uid, sources) in session.take_orphaned_intents() {
                    effect.merge(if sources.is_empty() {
                        self.hub.index.orphaned_cluster(&uid, cluster)
                    } else {
                        self.hub.index.orphaned_intents(&uid, cluster, sources)
                    });
                }
            }
            if effect.judge.is_empty() && effect.follow.is_empty() {
                return;
            }
        }
    }

    fn settle(&mut self, seconds: u8) {
        for _ in 0..seconds {
            let names: Vec<_> = self.hub.sessions.keys().cloned().collect();
            for name in &names {
                self.deliver(name);
            }
            let uids: Vec<_> = self.api.rules.keys().cloned().collect();
            for uid in &uids {
                self.release(uid);
                self.write(uid, true);
            }
            self.now.instant += Duration::from_secs(1);
            self.now.wall += Duration::from_secs(1);
            self.change(|_| Effect::default());
        }
    }

    /// Exchanges frames with an agent until neither side has one left, and takes its report.
    fn deliver(&mut self, name: &ClusterName) {
        for round in 0.. {
            assert!(round < ROUNDS, "hub and {name} do not come to rest");
            let (_, session) = self.hub.sessions.get_mut(name).unwrap();
            let agent = self.agents.get_mut(name).unwrap();
            let questions = session.take_questions();
            for uid in &questions {
                let intents = agent.rules.get(uid).into_iter().flat_map(|it| &it.intents);
                let pairs = intents.map(|(source, (revision, _))| AckedIntent {
                    source: source.clone(),
                    revision: *revision,
                });
                session.detail(uid, pairs.collect(), true);
            }
            if !questions.is_empty() {
                self.change(|_| Effect::default());
                continue;
            }
            let Some(batch) = session.next_batch() else {
                session.take_snapshot_end();
                break;
            };
            self.account.check(&self.api, name, agent, &batch);
            let before = agent.clone();
            agent.take(&batch);
            self.account.check_lost(&self.api, name, &before, agent);
            session.ack(batch.nonce);
            self.report(name);
        }
        self.report(name);
    }

    fn report(&mut self, name: &ClusterName) {
        let agent = self.agents.get_mut(name).unwrap();
        let mut states = agent.states();
        states.extend(agent.gone.drain(..).map(|(uid, last_batch)| RuleState {
            gone: true,
            last_batch,
            ..RuleState::new(uid)
        }));
        let Hub {
            index,
            report_store,
            deliveries,
            sessions,
            ..
        } = &mut self.hub;
        let (number, session) = sessions.get_mut(name).unwrap();
        let mut state = ReportState {
            index,
            session,
            report_store,
            deliveries,
        };
        let outcome = state.take_reports(name, *number, states, self.now.instant);
        for uid in outcome.settled {
            self.api
                .orders
                .entry(name.clone())
                .or_default()
                .remove(&uid);
            let cluster = self.api.cluster(name);
            self.change(|index| index.set_cluster(name.clone(), cluster));
        }
        for uid in outcome.unchosen {
            self.change(|index| index.orphaned_cluster(&uid, name));
        }
        self.change(|_| Effect::default());
    }

    /// Takes the finalizer off a deleted rule of which no connected cluster has anything. The others get an order.
    fn release(&mut self, uid: &RuleUid) {
        let with_copies = self
            .agents
            .iter()
            .filter(|(_, agent)| agent.rules.contains_key(uid));
        let with_copies: Vec<_> = with_copies.map(|(name, _)| name.clone()).collect();
        let hub = &self.hub;
        let is_over = self.now.instant.duration_since(hub.started) >= SETTLING;
        let may_be_back = |name: &ClusterName| {
            !is_over || hub.report_store.session(name, self.now.instant).is_some()
        };
        let is_free = with_copies.is_empty()
            || (hub.index.rules().is_removal_allowed(uid) && !with_copies.iter().any(may_be_back));
        if !self.api.rules[uid].deleting || !is_free {
            return;
        }
        for name in with_copies {
            let order = PendingRemoval {
                rule_uid: uid.to_string(),
                ..PendingRemoval::default()
            };
            let orders = self.api.orders.entry(name.clone()).or_default();
            orders.insert(uid.clone(), order);
            let cluster = self.api.cluster(&name);
            self.change(|index| index.set_cluster(name, cluster));
        }
        self.api.rules.remove(uid);
        self.api.states.remove(uid);
        self.change(|index| index.remove_rule(uid));
    }

    /// Writes the status of a rule. `opens`: the hub does not end right after the write.
    fn write(&mut self, uid: &RuleUid, opens: bool) {
        let Some(rule) = self.api.rules.get(uid) else {
            return;
        };
        let (hub, now) = (&self.hub, self.now);
        let status = rule.status.clone();
        let view = View::of(
            &hub.index,
            &hub.report_store,
            uid,
            &status,
            hub.started,
            false,
        );
        let Some(mut view) = view else { return };
        let entry = hub.index.rules().get(uid).unwrap();
        let order = entry.rollout_order(hub.index.clusters(), view.progress());
        let gate = view.take_step(order, &hub.report_store, now);
        let state = view.state_to_store(&hub.index);
        let next = fold(&view, &hub.report_store, now);
        if let Some(next) = next {
            let names = CLUSTERS.iter().map(|name| ClusterName::from(*name));
            let is_away = |name: &ClusterName| {
                !hub.sessions.contains_key(name) || !self.api.chooses(uid, name)
            };
            let away = names.filter(is_away).collect();
            self.api.rules.get_mut(uid).unwrap().status = next;
            self.hub.approved.remove(uid);
            let before = status.rollout.as_ref();
            self.account
                .record_status(&self.api, &self.agents, uid, before, away);
        }
        if !opens {
            return;
        }
        if let Some(state) = state {
            match &state {
                Some(state) => self.api.store(uid, state.clone()),
                None => drop(self.api.states.remove(uid)),
            }
            self.change(|index| index.set_completed_state(uid, state));
        }
        if let Some(gate) = gate {
            self.change(|index| index.set_gate(uid, gate));
        }
        self.settle_guard(uid);
    }

    fn settle_guard(&mut self, uid: &RuleUid) {
        if self.hub.index.rules().is_blocked(uid)
            && self.now.instant.duration_since(self.hub.started) >= SETTLING
        {
            let away = CLUSTERS.iter().map(|name| ClusterName::from(*name));
            let away = away
                .filter(|name| {
                    self.api.joined.contains(name) && !self.hub.report_store.has_connected(name)
                })
                .collect();
            self.change(|index| index.rules_mut().settle_guard(uid, &away));
        }
    }
}

impl ApiSource {
    fn shown(&self) -> (BTreeMap<String, String>, SourceState) {
        let labels = BTreeMap::from([("set".to_owned(), RULES[self.set].to_owned())]);
        let body = if self.is_controlled {
            SourceState::Refused(UnsupportedSource::Controlled)
        } else {
            content_of(self.text)
        };
        (labels, body)
    }
}

impl Api {
    /// The rule of a kind that is not being deleted.
    fn uid(&self, kind: usize) -> Option<RuleUid> {
        let alive = self
            .rules
            .iter()
            .find(|(_, it)| it.kind == kind && !it.deleting);
        alive.map(|(uid, _)| uid.clone())
    }

    fn cluster(&self, name: &ClusterName) -> Cluster {
        let tier = if self.labeled.contains(name) {
            "x"
        } else {
            "y"
        };
        Cluster {
            uid: name.to_string(),
            accepted: true,
            leaving: self.leaves(name),
            was_connected: true,
            labels: BTreeMap::from([("tier".to_owned(), tier.to_owned())]),
            pending: self.orders.get(name).cloned().unwrap_or_default(),
            ..Cluster::default()
        }
    }
}

impl Hub {
    /// A process that takes the lead and has listed everything.
    fn start(api: &Api, now: Now) -> Self {
        let mut index = Index::default();
        for resource in ["configmaps", "secrets"] {
            index.set_scope(WatchScope::everywhere(resource), ScopeState::Known);
        }
        for name in &api.joined {
            index.set_cluster(name.clone(), api.cluster(name));
        }
        let grants = api
            .grants
            .iter()
            .map(|kind| ((*kind).to_owned(), grant(kind)));
        index.set_grants(Some(grants.collect()));
        let namespaces = BTreeMap::from([(NAMESPACE.to_owned(), api.namespace())]);
        index.set_hub_namespace_states(Some(namespaces));
        for uid in api.rules.keys() {
            index.set_rule(api.rule(uid));
        }
        for (source, known) in &api.sources {
            let (labels, body) = known.shown();
            index.set_source(source.clone(), labels, Some(body));
        }
        let newest = |(uid, states): (&RuleUid, &Vec<KeptState>)| {
            Some((uid.clone(), states.first()?.stored.clone()))
        };
        let states = api.states.iter().filter_map(newest).collect();
        index.set_completed_states(states, RollbackBlocker::NoneCompleted);
        index.reset_removal_guards();
        let mut hub = Self {
            approved: BTreeSet::new(),
            index,
            report_store: ReportStore::proving(ProofKey::new([1; 32])),
            deliveries: Deliveries::default(),
            sessions: BTreeMap::new(),
            started: now.instant,
        };
        hub.set_definition_terminating(api.is_definition_terminating);
        hub
    }

    fn set_definition_terminating(&mut self, is_terminating: bool) {
        let name = <runnel_api::DistributionRule as kube_core::CustomResourceExt>::crd_name();
        let scopes = &mut self.index.fleet_guard_mut().terminating;
        scopes.set_crd(name, Some(is_terminating));
    }
}
