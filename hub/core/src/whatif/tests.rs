//! A rule is tried without a trace; the removal guard judges it as it would.
use std::sync::Arc;

use runnel_proto::model::{Content, FieldsKey, Payload, Revision, SUPPOSED_LIMIT, SourceRef, Suppose};
use serde_json::{Value, json};

use super::*;
use crate::index::Cluster;
use crate::plan::{RuleGrant, SourceContent};
use crate::rollout::{AdmittedClusters, Gate};

const KEY: FieldsKey = FieldsKey([5; 32]);

fn rule(names: &[&str], more: &Value) -> Rule {
    let mut spec = json!({"sources": [{"resources": ["configmaps"], "names": names}], "clusters": {"all": true}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "spec": spec,
        "metadata": {"name": "all", "namespace": "home", "uid": "all", "generation": 1},
    });
    Rule::namespaced(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
}

fn source(name: &str) -> SourceRef {
    SourceRef::new("configmaps", "home", name)
}

fn body(name: &str) -> SourceState {
    let data = json!({"k": name});
    let content = Content { fields: BTreeMap::from([("data".to_owned(), data)]), ..Content::default() };
    SourceState::Read(Arc::new(SourceContent::new(
        Revision([name.len() as u8; 16]),
        Payload::encode(content.to_bytes()),
    )))
}

/// A hub with two members, a grant for all, and so many sources.
fn index(sources: usize) -> Index {
    let mut index = Index::new();
    let grant = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"},
        "spec": {
            "rules": {"namespaces": {"all": true}}, "resources": ["configmaps"], "clusters": {"all": true},
            "namespaces": {"all": true}, "policies": {"overwrite": true, "adopt": true, "createNamespaces": true},
        },
    });
    let grant = RuleGrant::read(&serde_json::from_value(grant).unwrap());
    index.set_grants(Some(BTreeMap::from([("g".to_owned(), grant)])));
    for name in ["one", "two"] {
        let cluster = Cluster { uid: name.into(), accepted: true, was_connected: true, ..Cluster::default() };
        index.set_cluster(name.into(), cluster);
    }
    index.set_place(WatchScope::everywhere("configmaps"), PlaceState::Known);
    for number in 0..sources {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    index
}

fn scene_of(index: &Index, rule: Rule) -> Scene {
    Scene::new(index.around(&rule), rule)
}

/// What a cluster is asked, and how many sources are left out.
fn ask(scene: &Scene, cluster: &str, rehearse: bool) -> (Box<Suppose>, usize) {
    let question = scene.ask(&cluster.into(), &Asking::new(KEY, rehearse)).unwrap();
    (question.asked, question.left_out)
}

fn now() -> crate::now::Now {
    crate::now::Now { instant: std::time::Instant::now(), wall: jiff::Timestamp::UNIX_EPOCH }
}

fn no_agents(_: &RuleUid, _: &ClusterName) -> Option<crate::index::Holding> {
    None
}

fn read_all(scene: &mut Scene) {
    for source in scene.unread().clone() {
        scene.read(&source, body(&source.name));
    }
}

#[test]
fn unsaved_rule_leaves_no_trace() {
    let index = index(2);
    let before = index.directives_since(&"one".into(), 0).1;
    let mut scene = scene_of(&index, rule(&["s*"], &json!({})));
    assert!(!scene.exists() && scene.unlisted().is_empty());
    // What no rule has needed so far is not known.
    assert_eq!(scene.unread().len(), 2);
    read_all(&mut scene);
    scene.judge(&no_agents, now());
    let clusters: Vec<_> = scene.clusters(&no_agents).into_iter().map(|ask| (ask.cluster, ask.standing)).collect();
    assert_eq!(clusters, [("one".into(), ClusterEligibility::Asked), ("two".into(), ClusterEligibility::Asked)]);
    let (asked, left_out) = ask(&scene, "one", false);
    assert_eq!((asked.intents.len(), left_out, asked.tombstones.len()), (2, 0, 0));
    assert!(asked.intents.iter().all(|one| one.intent.payload.bytes().is_empty()), "content goes along");
    let (tried, _) = ask(&scene, "one", true);
    assert!(tried.intents.iter().all(|one| one.intent.payload.decode().is_ok()));
    assert_eq!((scene.sent(), scene.notes().len(), scene.sources(9).len()), (2, 0, 0));
    assert!(index.rule(&"all".into()).is_none() && index.directives_since(&"one".into(), 0).1 == before);
    assert!(!index.is_selected(&source("s0"), &BTreeMap::new()));
}

#[test]
fn a_place_that_could_not_be_listed_is_not_an_empty_one() {
    let mut index = index(0);
    index.set_place(WatchScope::everywhere("configmaps"), PlaceState::Unwatched);
    let mut scene = scene_of(&index, rule(&["s*"], &json!({})));
    assert!(!scene.is_incomplete());
    for place in scene.unlisted() {
        scene.cannot_list(place, "there are too many of them");
    }
    assert!(scene.is_incomplete() && scene.unlisted().is_empty());
    assert!(scene.notes()[0].starts_with("configmaps could not be listed (there are too many of them)"));
}

/// What an edit of a saved rule does with `sources` intents of which each agent says that it has them.
fn edited(sources: usize, from: Rule, to: Rule) -> (usize, usize) {
    let mut index = index(sources);
    index.set_rule(from);
    for number in 0..sources {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    let copies = sources as u64;
    let holds =
        |_: &RuleUid, _: &ClusterName| Some(crate::index::Holding { copies, intents: copies, ..Default::default() });
    let mut scene = scene_of(&index, to);
    assert!(scene.exists());
    read_all(&mut scene);
    scene.judge(&holds, now());
    let (asked, _) = ask(&scene, "one", false);
    (asked.tombstones.len(), asked.blocked.len())
}

#[test]
fn removals_of_an_edit_are_judged_by_the_guard() {
    let all = || rule(&["s*"], &json!({}));
    let few = || rule(&["s0", "s1"], &json!({}));
    assert_eq!(edited(4, all(), few()), (2, 0));
    assert_eq!(edited(12, all(), few()), (0, 10));
    let unlimited = rule(&["s0", "s1"], &json!({"removalLimit": {"count": 100, "percent": 100}}));
    assert_eq!(edited(12, all(), unlimited), (10, 0));
    // Copies that get other names are made anew under these before the others go.
    assert_eq!(edited(2, all(), rule(&["s*"], &json!({"transform": {"name": "x-${source.name}"}}))), (2, 0));
    assert_eq!(edited(12, all(), rule(&["s*"], &json!({"transform": {"name": "x-${source.name}"}}))), (0, 12));
}

#[test]
fn items_beyond_the_limit_of_a_question_are_counted() {
    let mut index = index(0);
    index.set_rule(rule(&["s*"], &json!({})));
    for number in 0..=SUPPOSED_LIMIT {
        let name = format!("s{number}");
        index.set_source(source(&name), BTreeMap::new(), Some(body(&name)));
    }
    let unlimited = json!({"removalLimit": {"count": 100_000, "percent": 100}});
    let mut scene = scene_of(&index, rule(&["none"], &unlimited));
    scene.judge(&no_agents, now());
    let (asked, left_out) = ask(&scene, "one", false);
    assert_eq!((asked.tombstones.len() + asked.blocked.len(), left_out), (SUPPOSED_LIMIT, 1));
}

#[test]
fn clusters_behind_in_a_rollout_are_named() {
    let mut index = index(1);
    let waves = json!({"rollout": {"maxConcurrency": 1}});
    let unread = index.set_rule(rule(&["s*"], &waves)).read;
    for source in unread {
        index.set_source(source.clone(), BTreeMap::new(), Some(body(&source.name)));
    }
    let behind = |index: &Index, more: &Value| -> Vec<bool> {
        let mut scene = scene_of(index, rule(&["s*"], more));
        scene.judge(&no_agents, now());
        scene
            .clusters(&no_agents)
            .into_iter()
            .map(|ask| ask.message.contains("the rollout that is under way"))
            .collect()
    };
    let let_in = |index: &mut Index, reach: AdmittedClusters| {
        let revision = index.rule(&"all".into()).unwrap().target().to_owned();
        index.let_in(&"all".into(), Gate { revision, reach, is_settled: false, back_to: None });
    };
    let_in(&mut index, AdmittedClusters::Only(BTreeMap::from([("one".into(), now().instant)])));
    assert_eq!((behind(&index, &waves), behind(&index, &json!({}))), (vec![false, true], vec![false, true]));
    let_in(&mut index, AdmittedClusters::All);
    assert_eq!((behind(&index, &waves), behind(&index, &json!({}))), (vec![false; 2], vec![false; 2]));
}

#[test]
fn clusters_come_in_waves_and_who_gets_nothing_is_named() {
    let mut index = index(1);
    index.set_cluster("away".into(), Cluster::default());
    let cordoned = Cluster { uid: "c".into(), accepted: true, cordoned: true, ..Cluster::default() };
    index.set_cluster("calm".into(), cordoned);
    let mut scene = scene_of(&index, rule(&["s*"], &json!({"rollout": {"maxConcurrency": 2}})));
    read_all(&mut scene);
    scene.judge(&no_agents, now());
    let answer: Vec<_> =
        scene.clusters(&no_agents).into_iter().map(|ask| (ask.cluster, ask.standing, ask.wave)).collect();
    let expected = [
        ("away".into(), ClusterEligibility::NotAccepted, 0),
        ("calm".into(), ClusterEligibility::Asked, 1),
        ("one".into(), ClusterEligibility::Asked, 1),
        ("two".into(), ClusterEligibility::Asked, 2),
    ];
    assert_eq!(answer, expected);
    let (asked, _) = ask(&scene, "one", false);
    assert_eq!(asked.intents.len(), 1);
    // Nobody is tried before his turn, or gets content.
    let (asked, _) = ask(&scene, "one", true);
    assert!(!asked.rehearse && asked.intents.iter().all(|one| one.intent.payload.bytes().is_empty()));
    let (asked, _) = ask(&scene, "calm", false);
    assert!(asked.terms.is_none() && asked.intents.is_empty());
}
