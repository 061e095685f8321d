//! Rollbacks meet grants, clusters and labels that changed since, as seen in the frames of sessions.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use runnel_api::{RolloutPhase, RolloutStatus, RuleStatus};
use runnel_proto::model::{
    AckedIntent, ClusterName, Content, Grant, Payload, Revision, RuleState, RuleUid, SourceRef,
    TermsDigest,
};
use serde_json::{Value, json};

use super::{Cluster, Index, ScopeState, StoredState};
use crate::plan::{CompletedState, RollbackBlocker, Rule, RuleGrant, SourceContent, SourceState};
use crate::plan::{Scope, WatchScope};
use crate::rollout::{AdmittedClusters, Gate};
use crate::session::Session;
use crate::status::{Now, ReportStore, View, fold};

const KINDS: [&str; 2] = ["configmaps", "secrets"];

fn uid() -> RuleUid {
    "r1".into()
}

fn rule(spec: &Value) -> Rule {
    let mut spec = spec.clone();
    spec["clusters"] = json!({"all": true});
    spec["rollout"] = json!({"onFailure": "Revert"});
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r1", "namespace": "a", "uid": "r1", "generation": 1}, "spec": spec,
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
    Rule::namespaced(&object, "runnel-system").unwrap()
}

fn everything_of(kinds: &[&str]) -> Value {
    json!({"sources": [{"resources": kinds, "names": ["*"]}]})
}

fn body(text: &str) -> SourceState {
    let fields = json!({"data": {"k": text}}).as_object().unwrap().clone();
    let content = Content {
        fields: fields.into_iter().collect(),
        ..Content::default()
    };
    let mut revision = [0; 16];
    revision[..text.len()].copy_from_slice(text.as_bytes());
    let payload = Payload::encode(content.to_bytes());
    SourceState::Read(Arc::new(SourceContent::new(Revision(revision), payload)))
}

fn grant(kinds: &[&str], is_limited: bool) -> RuleGrant {
    let namespaces = if is_limited {
        json!({"names": ["a"]})
    } else {
        json!({"all": true})
    };
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"},
        "spec": {
            "rules": {"namespaces": {"all": true}}, "resources": kinds, "clusters": {"all": true}, "namespaces": namespaces,
            "policies": {"overwrite": true, "adopt": true, "createNamespaces": true},
        },
    });
    RuleGrant::read(&serde_json::from_value(object).unwrap())
}

/// A hub with one rule, and its members.
#[derive(Default)]
struct World {
    index: Index,
    spec: Value,
    sources: BTreeMap<SourceRef, SourceState>,
    grants: Vec<RuleGrant>,
    labels: BTreeMap<ClusterName, String>,
    /// The copies of each member, with the text of each.
    copies: BTreeMap<ClusterName, BTreeMap<SourceRef, (Revision, String)>>,
    terms: BTreeMap<ClusterName, (Option<Vec<Grant>>, TermsDigest)>,
}

impl World {
    fn new(spec: Value, grants: Vec<RuleGrant>) -> Self {
        let mut world = Self {
            spec,
            grants,
            ..Self::default()
        };
        world.restart();
        world
    }

    /// Another process begins: of the former one only the stored states are left.
    fn restart(&mut self) {
        let stored = self.index.rules().completed().get(&uid()).cloned();
        self.index = Index::of(Scope::Everywhere);
        for kind in KINDS {
            self.index
                .set_scope(WatchScope::everywhere(kind), ScopeState::Known);
        }
        self.set_grants(self.grants.clone());
        for (name, zone) in self.labels.clone() {
            self.set_cluster(name.as_str(), &zone);
        }
        for (source, state) in self.sources.clone() {
            self.index.set_source(source, [].into(), Some(state));
        }
        self.edit(self.spec.clone());
        let restored = stored.map(|stored| {
            let state = stored.state.map(|state| {
                let bytes = state.encode(&uid(), 1 << 20).unwrap();
                Arc::new(CompletedState::decode(&uid(), &bytes).unwrap())
            });
            (
                uid(),
                StoredState {
                    revision: stored.revision,
                    state,
                },
            )
        });
        let states = restored.into_iter().collect();
        self.index
            .set_completed_states(states, RollbackBlocker::NoneCompleted);
    }

    fn edit(&mut self, spec: Value) {
        self.index.set_rule(rule(&spec));
        self.spec = spec;
    }

    fn set_grants(&mut self, grants: Vec<RuleGrant>) {
        let named = grants.iter().cloned().enumerate();
        let named = named.map(|(number, grant)| (format!("g{number}"), grant));
        self.index.set_grants(Some(named.collect()));
        self.grants = grants;
    }

    /// The grants cannot be read: nothing may be sent.
    fn lose_grants(&mut self) {
        self.index.set_grants(None);
        self.grants.clear();
    }

    fn set_cluster(&mut self, name: &str, zone: &str) {
        let cluster = Cluster {
            uid: format!("uid-{name}"),
            labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
            accepted: true,
            ..Cluster::default()
        };
        self.index.set_cluster(name.into(), cluster);
        self.labels.insert(name.into(), zone.to_owned());
        self.copies.entry(name.into()).or_default();
    }

    fn set_source(&mut self, kind: &str, name: &str, text: &str) {
        let (source, state) = (SourceRef::new(kind, "a", name), body(text));
        self.sources.insert(source.clone(), state.clone());
        self.index.set_source(source, [].into(), Some(state));
    }

    fn target(&self) -> String {
        self.index.rules().get(&uid()).unwrap().target().to_owned()
    }

    fn set_gate(&mut self, reach: AdmittedClusters, back_to: Option<String>) {
        let gate = Gate {
            revision: self.target(),
            reach,
            is_settled: true,
            wakes_at: None,
            back_to,
            healthy: BTreeSet::new(),
            newly_chosen: BTreeSet::new(),
            is_blocked: false,
            is_paused: false,
        };
        self.index.set_gate(&uid(), gate);
    }

    /// The rollout of the newest change is completed. Returns its target.
    fn complete(&mut self) -> String {
        self.set_gate(AdmittedClusters::All, None);
        let state = self
            .index
            .rules()
            .get(&uid())
            .unwrap()
            .completed_state(None);
        let stored = state.ok().map(|state| StoredState {
            revision: self.target(),
            state: Ok(state),
        });
        self.index.set_completed_state(&uid(), stored);
        self.sync();
        self.target()
    }

    /// The newest change reaches a cluster.
    fn reach(&mut self, cluster: &str) {
        let these = BTreeMap::from([(cluster.into(), Instant::now())]);
        self.set_gate(AdmittedClusters::Only(these), None);
        self.sync();
    }

    /// The newest change failed, and all clusters are rolled back.
    fn roll_back(&mut self, base: &str) {
        let all = self
            .labels
            .keys()
            .map(|name| (name.clone(), Instant::now()));
        let all = AdmittedClusters::Only(all.collect());
        self.set_gate(all, Some(base.to_owned()));
        self.sync();
    }

    /// Each member reconnects and takes what it is sent. Panics at an intent that the grants of this moment refuse.
    fn sync(&mut self) {
        for cluster in self.labels.keys() {
            let copies = self.copies.get_mut(cluster).unwrap();
            let mut terms = self.terms.remove(cluster);
            let state = RuleState {
                intents_digest: copies
                    .iter()
                    .map(|(source, (of, _))| (source, of))
                    .collect(),
                intents: u32::try_from(copies.len()).unwrap(),
                terms_digest: terms.as_ref().map(|(_, digest)| *digest),
                ..RuleState::new(uid())
            };
            let mut session = Session::default();
            session.hello(terms.iter().map(|_| state.clone()).collect());
            session.hello_done();
            session.update(self.index.directives_since(cluster, 0).0);
            loop {
                let questions = session.take_questions();
                for uid in &questions {
                    let pairs = copies.iter().map(|(source, (revision, _))| AckedIntent {
                        source: source.clone(),
                        revision: *revision,
                    });
                    session.detail(uid, pairs.collect(), true);
                }
                let Some(batch) = session.next_batch() else {
                    if questions.is_empty() {
                        break;
                    }
                    continue;
                };
                for delta in &batch.rules {
                    if let Some((sent, digest)) = &delta.terms {
                        terms = Some((sent.grants.clone(), *digest));
                    }
                    for intent in &delta.upserts {
                        let (under, _) = terms.as_ref().unwrap();
                        assert_granted(&self.grants, under.as_deref(), &intent.source);
                        let content = intent.payload.decode().unwrap();
                        let text = content.fields["data"]["k"].as_str().unwrap().to_owned();
                        copies.insert(intent.source.clone(), (intent.revision, text));
                    }
                    for tombstone in &delta.tombstones {
                        copies.remove(&tombstone.source);
                    }
                    if delta.removal.is_some() {
                        copies.clear();
                    }
                }
                session.ack(batch.nonce);
            }
            if let Some(terms) = terms {
                self.terms.insert(cluster.clone(), terms);
            }
        }
    }

    /// The copies of a cluster, each with its text.
    fn copies(&self, cluster: &str) -> Vec<(String, &str)> {
        let copies = self.copies[&ClusterName::from(cluster)].iter();
        copies
            .map(|(source, (_, text))| (source.copy_name().to_string(), text.as_str()))
            .collect()
    }
}

/// An intent is sent under terms that restrict it as the grants of this moment do.
fn assert_granted(grants: &[RuleGrant], under: Option<&[Grant]>, source: &SourceRef) {
    let of_kind = || {
        let all = grants.iter().map(|grant| &*grant.grant);
        all.filter(|grant| grant.is_of_kind(&source.resource))
    };
    let is_allowed = match under {
        None => of_kind().any(Grant::is_unlimited),
        Some(sent) => sent
            .iter()
            .filter(|grant| grant.is_of_kind(&source.resource))
            .all(|grant| of_kind().any(|other| other == grant)),
    };
    assert!(
        is_allowed && of_kind().next().is_some(),
        "{source} is sent under {under:?}"
    );
}

#[test]
fn rollback_sends_no_kind_that_is_not_granted() {
    let mut world = World::new(everything_of(&KINDS), vec![grant(&["configmaps"], false)]);
    world.set_cluster("one", "dev");
    world.set_source("configmaps", "app", "v1");
    world.set_source("secrets", "password", "hidden");
    let good = world.complete();
    assert_eq!(world.copies("one"), [("app".to_owned(), "v1")]);
    world.edit(everything_of(&["configmaps"]));
    world.set_source("configmaps", "app", "bad");
    world.reach("one");
    assert_eq!(world.copies("one"), [("app".to_owned(), "bad")]);
    world.roll_back(&good);
    assert_eq!(world.copies("one"), [("app".to_owned(), "v1")]);
}

#[test]
fn rollback_follows_a_grant_that_was_narrowed_since() {
    let mut world = World::new(everything_of(&KINDS), vec![grant(&KINDS, false)]);
    world.set_cluster("one", "dev");
    world.set_source("configmaps", "app", "v1");
    world.set_source("secrets", "password", "one");
    let good = world.complete();
    world.set_source("secrets", "password", "two");
    world.reach("one");
    world.set_grants(vec![
        grant(&["configmaps"], false),
        grant(&["secrets"], true),
    ]);
    world.roll_back(&good);
    let (restricted, _) = &world.terms[&ClusterName::from("one")];
    assert!(restricted.is_some(), "secrets are restricted by namespace");
    world.set_grants(vec![grant(&["configmaps"], false)]);
    world.edit(everything_of(&["configmaps"]));
    world.set_source("configmaps", "app", "bad");
    world.reach("one");
    world.roll_back(&good);
}

#[test]
fn cluster_change_while_grants_are_unknown_sends_nothing() {
    let mut world = World::new(
        everything_of(&["configmaps"]),
        vec![grant(&["secrets"], false)],
    );
    world.set_source("configmaps", "app", "v1");
    world.index = std::mem::take(&mut world.index).with_deferred_rendering();
    world.set_gate(AdmittedClusters::All, None);
    // The rule has not followed yet.
    world.index.set_grants(None);
    world.set_cluster("one", "dev");
    world.sync();
    assert_eq!(world.copies("one"), []);
}

/// A rule whose copies have the zone of their cluster in their names.
fn by_zone(kinds: &[&str]) -> Value {
    let mut spec = everything_of(kinds);
    spec["transform"] = json!({"name": "${source.name}-${cluster.labels.zone}"});
    spec
}

#[test]
fn cluster_that_joined_since_is_rolled_back_to_the_good_version() {
    for spec in [everything_of(&["configmaps"]), by_zone(&["configmaps"])] {
        let name = if spec["transform"].is_null() {
            "app"
        } else {
            "app-dev"
        };
        let mut world = World::new(spec, vec![grant(&KINDS, false)]);
        world.set_cluster("one", "dev");
        world.set_source("configmaps", "app", "v1");
        let good = world.complete();
        world.set_cluster("two", "dev");
        world.set_gate(AdmittedClusters::All, None);
        world.sync();
        assert_eq!(world.copies("two"), [(name.to_owned(), "v1")]);
        // The edit fails in the first cluster, and does not reach the second one.
        world.set_source("configmaps", "app", "bad");
        world.set_source("configmaps", "more", "bad");
        world.reach("one");
        // A cluster joins during the rollback, too.
        world.roll_back(&good);
        world.set_cluster("three", "dev");
        world.roll_back(&good);
        for cluster in ["one", "two", "three"] {
            assert_eq!(
                world.copies(cluster),
                [(name.to_owned(), "v1")],
                "{cluster}"
            );
        }
    }
}

#[test]
fn relabeled_cluster_is_rolled_back_to_its_own_values() {
    let mut world = World::new(by_zone(&["configmaps"]), vec![grant(&KINDS, false)]);
    world.set_cluster("one", "prod");
    world.set_cluster("two", "dev");
    world.set_source("configmaps", "app", "v1");
    let good = world.complete();
    world.set_cluster("two", "prod");
    world.set_source("configmaps", "app", "bad");
    world.reach("one");
    world.restart();
    world.roll_back(&good);
    for cluster in ["one", "two"] {
        let copies = world.copies(cluster);
        assert!(
            copies.contains(&("app-prod".to_owned(), "v1")),
            "{copies:?}"
        );
    }
    // Labels change during the rollback.
    world.set_cluster("one", "test");
    world.sync();
    assert!(world.copies("one").contains(&("app-test".to_owned(), "v1")));
}

#[test]
fn copy_that_the_failed_change_kept_needs_the_guard() {
    let mut world = World::new(everything_of(&KINDS), vec![grant(&KINDS, false)]);
    world.set_cluster("one", "dev");
    world.set_source("configmaps", "app", "v1");
    world.set_source("secrets", "password", "one");
    let good = world.complete();
    world.set_source("configmaps", "app", "bad");
    world.reach("one");
    // The grant of a kind is gone, so the former state cannot send it: its copy stays until the guard has decided.
    world.set_grants(vec![grant(&["configmaps"], false)]);
    world.roll_back(&good);
    let expected = [("app".to_owned(), "v1"), ("password".to_owned(), "one")];
    assert_eq!(world.copies("one"), expected);
}

#[test]
fn rollback_waits_while_grants_are_unknown() {
    let mut world = World::new(everything_of(&KINDS), vec![grant(&KINDS, false)]);
    world.set_cluster("one", "dev");
    world.set_source("configmaps", "app", "v1");
    let good = world.complete();
    world.set_source("configmaps", "app", "bad");
    world.set_source("secrets", "more", "bad");
    world.reach("one");
    world.lose_grants();
    world.roll_back(&good);
    let bad = [("app".to_owned(), "bad"), ("more".to_owned(), "bad")];
    assert_eq!(world.copies("one"), bad);
    let entry = world.index.rules().get(&uid()).unwrap();
    assert!(!entry.guard.is_open());
    world.set_grants(vec![grant(&KINDS, false)]);
    world.sync();
    assert_eq!(world.copies("one"), [("app".to_owned(), "v1")]);
}

#[test]
fn former_state_without_its_rendering_sends_nothing() {
    let mut world = World::new(by_zone(&["configmaps"]), vec![grant(&KINDS, false)]);
    world.set_cluster("one", "dev");
    world.set_source("configmaps", "app", "v1");
    let good = world.complete();
    world.set_source("configmaps", "app", "bad");
    world.reach("one");
    world.index = std::mem::take(&mut world.index).with_deferred_rendering();
    world.roll_back(&good);
    assert_eq!(world.copies("one"), [("app-dev".to_owned(), "bad")]);
    let mut rendered = world.index.render_job(&uid()).unwrap().run();
    world.index.take_rendered(&mut rendered);
    assert!(world.index.render_job(&uid()).is_none());
    world.sync();
    assert_eq!(world.copies("one"), [("app-dev".to_owned(), "v1")]);
}

#[test]
fn dry_run_keeps_the_state_and_the_progress() {
    let mut world = World::new(everything_of(&["configmaps"]), vec![grant(&KINDS, false)]);
    world.set_cluster("one", "dev");
    world.set_source("configmaps", "app", "v1");
    let revision = world.complete();
    let rollout = RolloutStatus {
        revision,
        phase: RolloutPhase::Completed,
        started_at: Some(Time(Timestamp::UNIX_EPOCH)),
        history: world.index.rules().completed().kept(&uid()).to_vec(),
        ..RolloutStatus::default()
    };
    let previous = RuleStatus {
        rollout: Some(rollout),
        ..RuleStatus::default()
    };
    for enforcement in ["DryRun", "Enforce"] {
        let mut spec = world.spec.clone();
        spec["enforcement"] = json!(enforcement);
        world.edit(spec);
        let (reports, start) = (ReportStore::default(), Instant::now());
        let view = View::of(&world.index, &reports, &uid(), &previous, start, false);
        let mut view = view.unwrap();
        assert!(view.state_to_store(&world.index).is_none());
        let now = Now {
            instant: start + Duration::from_secs(3600),
            wall: Timestamp::UNIX_EPOCH,
        };
        let status = fold(&view, &reports, now).unwrap();
        assert_eq!(status.rollout, previous.rollout, "{enforcement}");
    }
    assert!(world.index.rules().completed().get(&uid()).is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Edit(u8),
    Source(u8, u8),
    Grants(u8),
    UnknownGrants,
    Cluster(u8, u8),
    Complete,
    Reach,
    RollBack,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..4u8).prop_map(Step::Edit),
        (0..4u8, 0..3u8).prop_map(|(source, text)| Step::Source(source, text)),
        (0..16u8).prop_map(Step::Grants),
        Just(Step::UnknownGrants),
        (0..2u8, 0..2u8).prop_map(|(cluster, zone)| Step::Cluster(cluster, zone)),
        Just(Step::Complete),
        Just(Step::Reach),
        Just(Step::RollBack),
        Just(Step::Restart),
    ]
}

fn chosen<T: Copy>(bits: u8, all: &[T]) -> Vec<T> {
    let all = all.iter().enumerate();
    let of = |(at, one): (usize, &T)| (bits >> at & 1 == 1).then_some(*one);
    all.filter_map(of).collect()
}

proptest! {
    #[test]
    fn no_frame_has_an_intent_that_grants_refuse(steps in proptest::collection::vec(step(), 1..30), shaped: bool) {
        let spec = if shaped { by_zone } else { everything_of };
        let mut world = World::new(spec(&KINDS), vec![grant(&["configmaps"], false)]);
        world.set_cluster("c0", "z0");
        let mut completed = None;
        for step in steps {
            match step {
                Step::Edit(kinds) => world.edit(spec(&chosen(kinds, &KINDS))),
                Step::Source(source, text) => {
                    let kind = KINDS[usize::from(source % 2)];
                    world.set_source(kind, &format!("s{source}"), &format!("t{text}"));
                }
                Step::Grants(bits) => {
                    let all = [(["configmaps"], false), (["secrets"], false), (["configmaps"], true), (["secrets"], true)];
                    let these = chosen(bits, &all);
                    world.set_grants(these.iter().map(|(kinds, is_limited)| grant(kinds, *is_limited)).collect());
                }
                Step::UnknownGrants => world.lose_grants(),
                Step::Cluster(cluster, zone) => world.set_cluster(&format!("c{cluster}"), &format!("z{zone}")),
                Step::Complete => completed = Some(world.complete()),
                Step::Reach => world.reach("c0"),
                Step::RollBack => {
                    if let Some(base) = &completed {
                        let base = base.clone();
                        world.roll_back(&base);
                    }
                }
                Step::Restart => world.restart(),
            }
            world.sync();
        }
    }
}

/// Reverts the rule of the world to this revision.
fn revert(world: &mut World, revision: &str) {
    let mut spec = world.spec.clone();
    spec["clusters"] = json!({"all": true});
    spec["rollout"] = json!({"onFailure": "Revert", "history": 3});
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {
            "name": "r1", "namespace": "a", "uid": "r1", "generation": 1,
            "annotations": {"runnel.dev/revert-to": revision},
        },
        "spec": spec,
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
    let rule = Rule::namespaced(&object, "runnel-system").unwrap();
    world.index.set_rule(rule);
}

/// A world with two completed rollouts; their targets, and the state of the first one.
fn two_completed(spec: Value) -> (World, [String; 2], Arc<CompletedState>) {
    let mut world = World::new(spec, vec![grant(&KINDS, false)]);
    world.set_cluster("one", "dev");
    world.set_cluster("two", "dev");
    world.set_source("configmaps", "app", "v1");
    world.set_source("secrets", "password", "p1");
    let first = world.complete();
    let stored = world.index.rules().completed().get(&uid()).cloned();
    let state = stored.and_then(|stored| stored.state.ok()).unwrap();
    world.set_source("configmaps", "app", "v2");
    let second = world.complete();
    (world, [first, second], state)
}

fn texts(world: &World, cluster: &str) -> Vec<String> {
    let copies = world.copies(cluster).into_iter();
    copies.map(|(_, text)| text.to_owned()).collect()
}

fn kept(world: &World) -> Vec<String> {
    let kept = world.index.rules().completed().kept(&uid()).iter();
    kept.map(|kept| kept.revision.clone()).collect()
}

#[test]
fn revert_goes_through_the_gate_to_the_former_target() {
    for spec in [everything_of(&KINDS), by_zone(&KINDS)] {
        let (mut world, [first, second], state) = two_completed(spec);
        assert_eq!(kept(&world), [second.clone(), first.clone()]);
        revert(&mut world, &first);
        // The state is not read yet: nothing is sent or removed.
        assert!(world.index.rules().get(&uid()).unwrap().rule.lacks_state());
        world.reach("one");
        assert_eq!(texts(&world, "one"), ["v2", "p1"]);
        world.index.set_reverted_state(&uid(), &first, Ok(state));
        assert_eq!(world.target(), first);
        world.sync();
        assert_eq!(texts(&world, "one"), ["v2", "p1"], "its wave has not begun");
        world.reach("one");
        assert_eq!(texts(&world, "one"), ["v1", "p1"]);
        assert_eq!(texts(&world, "two"), ["v2", "p1"]);
        assert_eq!(world.complete(), first);
        assert_eq!(texts(&world, "two"), ["v1", "p1"]);
        assert_eq!(kept(&world), [first, second], "each revision once");
    }
}

#[test]
fn edits_during_a_revert_are_sent_at_its_end() {
    let (mut world, [first, second], state) = two_completed(everything_of(&KINDS));
    revert(&mut world, &first);
    world.index.set_reverted_state(&uid(), &first, Ok(state));
    world.complete();
    world.set_source("configmaps", "app", "v3");
    world.set_source("configmaps", "late", "v3");
    world.spec = everything_of(&["configmaps"]);
    revert(&mut world, &first);
    let (app, secrets) = (
        SourceRef::new("configmaps", "a", "app"),
        WatchScope::everywhere("secrets"),
    );
    world.index.sources_mut().mark_deleted(&app, Instant::now());
    world.index.expire_deleted(Instant::now(), Duration::ZERO);
    world.index.set_scope(secrets, ScopeState::NotServed);
    assert_eq!(world.target(), first);
    world.sync();
    assert_eq!(texts(&world, "one"), ["v1", "p1"]);
    // At the end the contents are read again.
    world.edit(world.spec.clone());
    world.set_source("configmaps", "app", "v4");
    world.set_source("configmaps", "late", "v3");
    assert!(![first, second].contains(&world.target()));
    world.sync();
    assert_eq!(texts(&world, "one"), ["v1", "p1"], "its wave has not begun");
    world.reach("one");
    let sent = texts(&world, "one");
    assert!(sent.contains(&"v4".to_owned()) && sent.contains(&"v3".to_owned()));
    assert_eq!(texts(&world, "two"), ["v1", "p1"]);
}

#[test]
fn unknown_revision_sends_nothing_and_removes_nothing() {
    let (mut world, kept, _) = two_completed(everything_of(&KINDS));
    world.spec = everything_of(&["secrets"]);
    revert(&mut world, "none");
    let missing = Err(RollbackBlocker::NoneCompleted);
    world.index.set_reverted_state(&uid(), "none", missing);
    world.set_source("secrets", "password", "p2");
    world.set_gate(AdmittedClusters::All, None);
    world.sync();
    assert_eq!(texts(&world, "one"), ["v2", "p1"]);
    let (status, store) = (RuleStatus::default(), ReportStore::default());
    let view = View::of(&world.index, &store, &uid(), &status, Instant::now(), false).unwrap();
    let now = Now {
        instant: Instant::now() + Duration::from_secs(3600),
        wall: Timestamp::UNIX_EPOCH,
    };
    let status = fold(&view, &store, now).unwrap();
    let condition = |name: &str| {
        let mut all = status.conditions.iter();
        all.find(|condition| condition.type_ == name).unwrap()
    };
    for (name, holds) in [
        ("Reverted", "False"),
        ("Stalled", "True"),
        ("Ready", "False"),
    ] {
        let found = condition(name);
        let found = (found.status.as_str(), found.reason.as_str());
        assert_eq!(found, (holds, "RevisionUnavailable"), "{name}");
    }
    let message = &condition("Reverted").message;
    let end = "kubectl annotate drule r1 -n a runnel.dev/revert-to-";
    assert!(message.contains(end), "{message}");
    assert!(kept.iter().all(|kept| message.contains(kept)), "{message}");
}

#[test]
fn revert_sends_nothing_that_is_not_granted_now() {
    let (mut world, [first, _], state) = two_completed(everything_of(&KINDS));
    world.set_cluster("three", "dev");
    world.set_grants(vec![grant(&["configmaps"], false)]);
    revert(&mut world, &first);
    world.index.set_reverted_state(&uid(), &first, Ok(state));
    world.complete();
    assert_eq!(texts(&world, "three"), ["v1"]);
    world.set_grants(vec![
        grant(&["configmaps"], false),
        grant(&["secrets"], true),
    ]);
    world.complete();
    assert_eq!(texts(&world, "three"), ["v1", "p1"]);
    let (restricted, _) = &world.terms[&ClusterName::from("three")];
    assert!(restricted.is_some(), "secrets are restricted by namespace");
}

#[test]
fn revert_and_its_rollback_survive_a_restart() {
    let (mut world, [first, second], state) = two_completed(everything_of(&KINDS));
    let bytes = state.encode(&uid(), 1 << 20).unwrap();
    world.restart();
    revert(&mut world, &first);
    world.set_gate(AdmittedClusters::All, None);
    world.sync();
    assert_eq!(texts(&world, "one"), ["v2", "p1"]);
    let state = CompletedState::decode(&uid(), &bytes).map(Arc::new);
    let state = state.ok_or(RollbackBlocker::Damaged);
    world.index.set_reverted_state(&uid(), &first, state);
    assert_eq!(world.target(), first);
    world.reach("one");
    assert_eq!(texts(&world, "one"), ["v1", "p1"]);
    // The revert fails, and is rolled back to the rollout before it.
    world.roll_back(&second);
    assert_eq!(world.target(), first);
    for cluster in ["one", "two"] {
        assert_eq!(texts(&world, cluster), ["v2", "p1"], "{cluster}");
    }
}
