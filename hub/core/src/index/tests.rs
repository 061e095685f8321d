use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use runnel_proto::model::{
    ClusterName, Payload, PruneDigest, PruneRequest, Revision, RuleUid, SourceRef,
};
use serde_json::json;

use super::{Cluster, Directive, Index, ReportedCopies, ScopeState};
use crate::plan::{Rule, RuleGrant, Scope, Source, SourceContent, SourceState, WatchScope, plan};

const GRACE: Duration = Duration::from_secs(5);

fn rule(
    uid: &str,
    namespace: &str,
    selector_value: &str,
    clusters: serde_json::Value,
    deleting: bool,
) -> Rule {
    let mut object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": uid, "namespace": namespace, "uid": uid, "generation": 1},
        "spec": {
            "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"rule": selector_value}}}],
            "clusters": clusters,
        },
    });
    if deleting {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
    Rule::namespaced(&object, "runnel-system").unwrap()
}

fn cluster(env: &str) -> Cluster {
    let labels = BTreeMap::from([("env".to_owned(), env.to_owned())]);
    Cluster {
        uid: format!("uid-{env}"),
        labels,
        accepted: true,
        ..Cluster::default()
    }
}

fn body(text: &str) -> SourceState {
    let mut revision = [0; 16];
    revision[..text.len().min(16)].copy_from_slice(&text.as_bytes()[..text.len().min(16)]);
    let payload = Payload::encode(text.as_bytes().to_vec());
    SourceState::Read(Arc::new(SourceContent::new(Revision(revision), payload)))
}

fn labeled(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("rule".to_owned(), value.to_owned())])
}

/// A grant as an administrator writes it.
fn grant(spec: serde_json::Value) -> RuleGrant {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"}, "spec": spec,
    });
    RuleGrant::read(&serde_json::from_value(object).unwrap())
}

fn everything() -> RuleGrant {
    grant(json!({
        "rules": {"namespaces": {"all": true}}, "resources": ["configmaps", "secrets"], "clusters": {"all": true},
        "namespaces": {"all": true}, "policies": {"overwrite": true, "adopt": true, "createNamespaces": true},
    }))
}

fn grant_everything(index: &mut Index) {
    index.set_grants(Some(BTreeMap::from([(
        "everything".to_owned(),
        everything(),
    )])));
}

fn known_index() -> Index {
    let mut index = Index::default();
    grant_everything(&mut index);
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    index.set_scope(WatchScope::everywhere("secrets"), ScopeState::Known);
    index
}

fn source(namespace: &str, name: &str) -> SourceRef {
    SourceRef::new("configmaps", namespace, name)
}

fn wanted(index: &Index, uid: &str, cluster: &str) -> Option<usize> {
    match index.directive(&RuleUid::from(uid), &ClusterName::from(cluster)) {
        Directive::Assigned(assignment) => Some(assignment.intents().count()),
        _ => None,
    }
}

#[test]
fn source_edit_touches_only_its_rules_and_clusters() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_cluster("two".into(), cluster("test"));
    index.set_rule(rule("r1", "a", "x", json!({"names": ["one"]}), false));
    index.set_rule(rule("r2", "a", "y", json!({"names": ["two"]}), false));
    let effect = index.set_source(source("a", "s"), labeled("x"), Some(body("1")));
    assert_eq!(effect.rules, BTreeSet::from(["r1".into()]));
    assert_eq!(effect.clusters, BTreeSet::from(["one".into()]));
    assert_eq!(wanted(&index, "r1", "one"), Some(1));
    let unchanged = index.set_source(source("a", "s"), labeled("x"), Some(body("1")));
    assert!(unchanged.rules.is_empty() && unchanged.clusters.is_empty());
}

#[test]
fn source_transferred_between_rules_changes_both_at_once() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    index.set_rule(rule("r2", "a", "y", json!({"all": true}), false));
    index.set_source(source("a", "s"), labeled("x"), Some(body("1")));
    let effect = index.set_source(source("a", "s"), labeled("y"), None);
    assert_eq!(effect.rules.len(), 2);
    assert_eq!(
        (wanted(&index, "r1", "one"), wanted(&index, "r2", "one")),
        (Some(0), Some(1))
    );
}

#[test]
fn deleted_source_stays_selected_for_its_grace_period() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    index.set_source(source("a", "s"), labeled("x"), Some(body("1")));
    let now = Instant::now();
    index.sources_mut().mark_deleted(&source("a", "s"), now);
    assert!(
        index
            .expire_deleted(now + GRACE / 2, GRACE)
            .rules
            .is_empty()
    );
    assert_eq!(wanted(&index, "r1", "one"), Some(1));
    // It exists again in time: nothing happened, and the next grace period starts again.
    index.set_source(source("a", "s"), labeled("x"), Some(body("2")));
    assert_eq!(index.sources().next_expiry(GRACE), None);
    assert!(
        index
            .expire_deleted(now + GRACE * 2, GRACE)
            .rules
            .is_empty()
    );
    assert_eq!(wanted(&index, "r1", "one"), Some(1));
    index.sources_mut().mark_deleted(&source("a", "s"), now);
    assert_eq!(index.expire_deleted(now + GRACE, GRACE).rules.len(), 1);
    assert_eq!(wanted(&index, "r1", "one"), Some(0));
}

#[test]
fn rule_made_after_its_sources_waits_for_their_content() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_source(source("a", "s"), labeled("x"), None);
    let effect = index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    assert_eq!(effect.read, BTreeSet::from([source("a", "s")]));
    let Directive::Assigned(assignment) = index.directive(&"r1".into(), &"one".into()) else {
        panic!("not wanted")
    };
    assert!(assignment.is_unknown(&source("a", "s")));
    index.set_source(source("a", "s"), labeled("x"), Some(body("1")));
    assert_eq!(wanted(&index, "r1", "one"), Some(1));
}

#[test]
fn source_is_read_until_a_watch_shows_a_newer_version_of_it() {
    let mut index = known_index();
    let of = source("a", "s");
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    index.observe(&of, 1, labeled("x"));
    assert!(!index.sources().is_read(&of));
    index.read(&of, 1, labeled("x"), body("1"));
    assert!(index.sources().is_read(&of));
    index.observe(&of, 2, labeled("x"));
    assert!(!index.sources().is_read(&of));
    index.read(&of, 1, labeled("x"), body("1"));
    assert!(
        !index.sources().is_read(&of),
        "it was read before it changed"
    );
    index.record_read_failure(&of);
    assert!(!index.sources().is_read(&of));
    index.read(&of, 2, labeled("x"), body("2"));
    assert!(index.sources().is_read(&of));
}

#[test]
fn unwatchable_kind_makes_sources_unknown_not_unwanted() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    let effect = index.set_scope(
        WatchScope::everywhere("configmaps"),
        ScopeState::Unreadable("forbidden".into()),
    );
    assert_eq!(effect.rules.len(), 1);
    let Directive::Assigned(assignment) = index.directive(&"r1".into(), &"one".into()) else {
        panic!("not wanted")
    };
    assert!(assignment.is_unknown(&source("a", "anything")));
}

fn limited_index() -> Index {
    let mut index = Index::of(Scope::new(["a".to_owned(), "b".to_owned()]));
    grant_everything(&mut index);
    index.set_cluster("one".into(), cluster("prod"));
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    index.set_rule(rule("r2", "b", "x", json!({"all": true}), false));
    index.set_rule(rule("r3", "c", "x", json!({"all": true}), false));
    index
}

fn plan_in_one(index: &Index, uid: &str) -> Arc<crate::plan::RulePlan> {
    match index.directive(&RuleUid::from(uid), &"one".into()) {
        Directive::Assigned(assignment) => assignment.plan().clone(),
        _ => panic!("{uid} is not wanted"),
    }
}

#[test]
fn forbidden_namespace_stalls_only_its_rules() {
    let mut index = limited_index();
    let places = [
        WatchScope::in_namespace("configmaps", "a"),
        WatchScope::in_namespace("configmaps", "b"),
        WatchScope::in_namespace("configmaps", "c"),
    ];
    assert_eq!(
        index.needed_scopes().into_iter().collect::<Vec<_>>(),
        places
    );
    let effect = index.set_scope(places[0].clone(), ScopeState::Known);
    assert_eq!(effect.rules, BTreeSet::from(["r1".into()]));
    index.set_scope(
        places[1].clone(),
        ScopeState::Unreadable("forbidden".into()),
    );
    index.set_source(source("a", "s"), labeled("x"), Some(body("1")));

    let (open, shut) = (plan_in_one(&index, "r1"), plan_in_one(&index, "r2"));
    assert_eq!(
        (open.intents.len(), open.is_unknown(&source("a", "gone"))),
        (1, false)
    );
    assert!(shut.is_unknown(&source("b", "held")));
    let why = |uid: &str| {
        index
            .scopes()
            .unreadable(&index.rules().get(&uid.into()).unwrap().plan)
    };
    assert!(why("r1").is_empty());
    assert_eq!(
        why("r2"),
        BTreeMap::from([(places[1].clone(), "forbidden".to_owned())])
    );

    // The right is granted: the rule continues.
    assert_eq!(
        index.set_scope(places[1].clone(), ScopeState::Known).rules,
        BTreeSet::from(["r2".into()])
    );
    assert!(!plan_in_one(&index, "r2").is_unknown(&source("b", "held")));
}

#[test]
fn rule_outside_the_hubs_namespaces_gets_a_hint() {
    let index = limited_index();
    assert!(plan_in_one(&index, "r3").is_unknown(&source("c", "held")));
    let why = index
        .scopes()
        .unreadable(&index.rules().get(&"r3".into()).unwrap().plan);
    let (scope, hint) = why.first_key_value().unwrap();
    assert_eq!(scope.to_string(), "configmaps of the namespace c");
    assert!(
        hint.contains("does not watch c: add it to `sourceNamespaces`"),
        "{hint}"
    );
}

#[test]
fn glob_means_watched_namespaces_and_others_are_unknown() {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
        "metadata": {"name": "r", "uid": "r", "generation": 1},
        "spec": {
            "sources": [{"resources": ["configmaps"], "names": ["*"], "namespaces": ["te*"]}],
            "clusters": {"all": true},
        },
    });
    let object: runnel_api::ClusterDistributionRule = serde_json::from_value(object).unwrap();
    let rule = Rule::cluster_scoped(&object, "runnel-system").unwrap();
    let scope = Scope::new(["team".to_owned(), "other".to_owned()]);
    assert_eq!(
        rule.places(&scope),
        BTreeSet::from([WatchScope::in_namespace("configmaps", "team")])
    );
    let none: [(&SourceRef, &Source); 0] = [];
    let planned = plan(&rule, none, &scope, |_| true);
    assert!(
        planned.is_unknown(&source("test", "held")) && !planned.is_unknown(&source("team", "gone"))
    );
}

#[test]
fn namespaced_list_marks_deleted_only_in_its_namespace() {
    let mut index = limited_index();
    for namespace in ["a", "b"] {
        index.set_scope(
            WatchScope::in_namespace("configmaps", namespace),
            ScopeState::Known,
        );
        index.set_source(source(namespace, "s"), labeled("x"), Some(body("1")));
    }
    let now = Instant::now();
    index.sources_mut().retain(
        &WatchScope::in_namespace("configmaps", "a"),
        &BTreeSet::new(),
        now,
    );
    index.expire_deleted(now + GRACE, GRACE);
    assert_eq!(
        (wanted(&index, "r1", "one"), wanted(&index, "r2", "one")),
        (Some(0), Some(1))
    );
}

fn only(uid: &str) -> BTreeSet<RuleUid> {
    BTreeSet::from([uid.into()])
}

fn at(instant: Instant) -> crate::now::Now {
    crate::now::Now {
        instant,
        wall: jiff::Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn only_known_rules_remove_where_not_chosen() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_rule(rule(
        "r1",
        "a",
        "x",
        json!({"selector": {"matchLabels": {"env": "prod"}}}),
        false,
    ));
    assert_eq!(wanted(&index, "r1", "one"), Some(0));
    let effect = index.set_cluster("one".into(), cluster("test"));
    assert!(effect.clusters.contains(&ClusterName::from("one")));
    assert!(
        matches!(
            index.directive(&"r1".into(), &"one".into()),
            Directive::RemovalBlocked
        ),
        "nobody has judged it"
    );
    assert_eq!(effect.judge, BTreeSet::from(["r1".into()]));
    let now = Instant::now();
    index.judge(&only("r1"), &|_, _| None, at(now));
    assert!(
        matches!(
            index.directive(&"r1".into(), &"one".into()),
            Directive::RemovalBlocked
        ),
        "more may come"
    );
    let effect = index.judge(
        &BTreeSet::new(),
        &|_, _| None,
        at(now + crate::guard::DELAY),
    );
    assert!(effect.clusters.contains(&ClusterName::from("one")));
    assert!(matches!(
        index.directive(&"r1".into(), &"one".into()),
        Directive::Removed(_)
    ));
    assert!(matches!(
        index.directive(&"other".into(), &"one".into()),
        Directive::Orphaned
    ));
    let (_, before) = index.directives_since(&"one".into(), 0);
    index.remove_rule(&"r1".into());
    let (directives, _) = index.directives_since(&"one".into(), before);
    assert!(matches!(directives.as_slice(), [(uid, Directive::Orphaned)] if uid.as_str() == "r1"));
}

#[test]
fn approval_of_one_cluster_wakes_no_other() {
    let mut index = known_index();
    for name in ["one", "two"] {
        index.set_cluster(name.into(), cluster("prod"));
    }
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    index.set_source(source("a", "s"), labeled("x"), Some(body("1")));
    let asked = PruneRequest {
        objects: 1,
        digest: PruneDigest([1; 16]),
    };
    let holds = |_: &RuleUid, name: &ClusterName| {
        let prunes = Some(asked).filter(|_| name.as_str() == "one");
        Some(ReportedCopies {
            copies: 2,
            prunes,
            ..ReportedCopies::default()
        })
    };
    let now = Instant::now();
    assert!(
        index
            .judge(&only("r1"), &holds, at(now))
            .clusters
            .is_empty()
    );
    let effect = index.judge(&only("r1"), &holds, at(now + crate::guard::DELAY));
    assert_eq!(effect.clusters, BTreeSet::from(["one".into()]));
    let Directive::Assigned(assignment) = index.directive(&"r1".into(), &"one".into()) else {
        panic!("not wanted")
    };
    assert_eq!(assignment.prune(), Some(asked.digest));
    // Removals by the hub itself concern all members.
    index.set_source(source("a", "s"), labeled("y"), Some(body("1")));
    assert!(
        index
            .judge(&only("r1"), &holds, at(now + crate::guard::DELAY))
            .clusters
            .is_empty()
    );
    let effect = index.judge(&only("r1"), &holds, at(now + crate::guard::DELAY * 2));
    assert_eq!(effect.clusters.len(), 2);
    assert!(
        index
            .judge(&only("r1"), &holds, at(now + crate::guard::DELAY * 3))
            .clusters
            .is_empty()
    );
}

#[test]
fn a_rule_that_is_being_deleted_is_unwanted_everywhere() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_cluster("two".into(), cluster("test"));
    index.set_rule(rule("r1", "a", "x", json!({"names": ["one"]}), false));
    let effect = index.set_rule(rule("r1", "a", "x", json!({"names": ["one"]}), true));
    assert_eq!(effect.clusters.len(), 2);
    let now = Instant::now();
    let holds = |_: &RuleUid, _: &ClusterName| {
        Some(ReportedCopies {
            copies: 11,
            intents: 11,
            ..ReportedCopies::default()
        })
    };
    index.judge(&only("r1"), &holds, at(now));
    let (due, uid) = (index.fleet_guard().due().unwrap(), RuleUid::from("r1"));
    assert!(
        due > now && !index.rules().is_removal_allowed(&uid),
        "that of its namespace may be heard yet"
    );
    index.judge(&BTreeSet::new(), &holds, at(due));
    assert!(index.rules().is_removal_allowed(&uid));
    assert!(matches!(
        index.directive(&"r1".into(), &"two".into()),
        Directive::Removed(_)
    ));
}

#[derive(Clone, Debug)]
enum Step {
    Rule {
        uid: u8,
        namespace: u8,
        value: u8,
        clusters: u8,
    },
    RemoveRule(u8),
    Source {
        namespace: u8,
        name: u8,
        value: u8,
        text: Option<u8>,
    },
    MarkDeleted {
        namespace: u8,
        name: u8,
    },
    Expire,
    Cluster {
        name: u8,
        env: u8,
    },
    RemoveCluster(u8),
    Kind(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3u8, 0..2u8, 0..2u8, 0..3u8).prop_map(|(uid, namespace, value, clusters)| Step::Rule {
            uid,
            namespace,
            value,
            clusters
        }),
        (0..3u8).prop_map(Step::RemoveRule),
        (0..2u8, 0..3u8, 0..3u8, proptest::option::of(0..3u8)).prop_map(
            |(namespace, name, value, text)| Step::Source {
                namespace,
                name,
                value,
                text
            }
        ),
        (0..2u8, 0..3u8).prop_map(|(namespace, name)| Step::MarkDeleted { namespace, name }),
        Just(Step::Expire),
        (0..3u8, 0..2u8).prop_map(|(name, env)| Step::Cluster { name, env }),
        (0..3u8).prop_map(Step::RemoveCluster),
        any::<bool>().prop_map(Step::Kind),
    ]
}

/// The final state as a naive reader would keep it: no reverse maps, everything planned from scratch at the end.
#[derive(Default)]
struct Naive {
    rules: BTreeMap<RuleUid, Rule>,
    sources: BTreeMap<SourceRef, Source>,
    deleted: BTreeSet<SourceRef>,
    clusters: BTreeMap<ClusterName, Cluster>,
    configmaps_known: bool,
}

fn apply(step: &Step, index: &mut Index, naive: &mut Naive, now: Instant) {
    match step {
        Step::Rule {
            uid,
            namespace,
            value,
            clusters,
        } => {
            let choice = [
                json!({"all": true}),
                json!({"names": ["c0"]}),
                json!({"selector": {"matchLabels": {"env": "e1"}}}),
            ];
            let rule = rule(
                &format!("r{uid}"),
                &format!("n{namespace}"),
                &format!("v{value}"),
                choice[*clusters as usize].clone(),
                false,
            );
            naive.rules.insert(rule.uid.clone(), rule.clone());
            index.set_rule(rule);
        }
        Step::RemoveRule(uid) => {
            let uid = RuleUid::from(format!("r{uid}"));
            naive.rules.remove(&uid);
            index.remove_rule(&uid);
        }
        Step::Source {
            namespace,
            name,
            value,
            text,
        } => {
            let key = source(&format!("n{namespace}"), &format!("s{name}"));
            let labels = labeled(&format!("v{value}"));
            let read = text.map(|text| body(&text.to_string()));
            naive.deleted.remove(&key);
            naive.sources.insert(
                key.clone(),
                Source {
                    labels: labels.clone(),
                    body: SourceState::Unread,
                },
            );
            index.set_source(key, labels, read);
        }
        Step::MarkDeleted { namespace, name } => {
            let key = source(&format!("n{namespace}"), &format!("s{name}"));
            if naive.sources.contains_key(&key) {
                naive.deleted.insert(key.clone());
            }
            index.sources_mut().mark_deleted(&key, now);
        }
        Step::Expire => {
            for key in std::mem::take(&mut naive.deleted) {
                naive.sources.remove(&key);
            }
            index.expire_deleted(now + GRACE, GRACE);
        }
        Step::Cluster { name, env } => {
            let name = ClusterName::from(format!("c{name}"));
            naive
                .clusters
                .insert(name.clone(), cluster(&format!("e{env}")));
            index.set_cluster(name, cluster(&format!("e{env}")));
        }
        Step::RemoveCluster(name) => {
            let name = ClusterName::from(format!("c{name}"));
            naive.clusters.remove(&name);
            index.remove_cluster(&name);
        }
        Step::Kind(known) => {
            naive.configmaps_known = *known;
            let state = if *known {
                ScopeState::Known
            } else {
                ScopeState::Unreadable("no".into())
            };
            index.set_scope(WatchScope::everywhere("configmaps"), state);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn incremental_plan_equals_the_plan_of_the_final_state(steps in proptest::collection::vec(step(), 1..60)) {
        let now = Instant::now();
        let mut index = Index::default();
        let mut naive = Naive::default();
        for step in &steps {
            apply(step, &mut index, &mut naive, now);
        }
        prop_assert_eq!(index.rules().iter().map(|(uid, _)| uid).collect::<Vec<_>>(), naive.rules.keys().collect::<Vec<_>>());
        // The cached content is an internal matter; whether a rule selects it is not.
        let bodies: BTreeMap<_, _> = naive.sources.iter().map(|(key, source)| {
            let body = index.sources().get(key).map_or(SourceState::Unread, |known| known.body.clone());
            (key.clone(), Source { labels: source.labels.clone(), body })
        }).collect();
        let is_known = |scope: &WatchScope| naive.configmaps_known && &*scope.resource == "configmaps";
        for (uid, rule) in &naive.rules {
            let entry = index.rules().get(uid).unwrap();
            let expected = plan(rule, bodies.iter().rev(), &Scope::Everywhere, is_known);
            prop_assert!(entry.plan.has_equal_content(&expected), "{}: {} intents, expected {}", uid, entry.plan.intents.len(), expected.intents.len());
            let chosen: Vec<_> = naive.clusters.iter().filter(|(name, cluster)| rule.chooses(name, &cluster.labels)).map(|(name, _)| name.clone()).collect();
            prop_assert_eq!(entry.target_clusters.clusters.keys().cloned().collect::<Vec<_>>(), chosen);
        }
        // A session that asks since any version gets every rule that changed after it.
        let (all, version) = index.directives_since(&"c0".into(), 0);
        let received: BTreeSet<_> = all.into_iter().map(|(uid, _)| uid).collect();
        prop_assert!(naive.rules.keys().all(|uid| received.contains(uid)));
        prop_assert!(index.directives_since(&"c0".into(), version).0.is_empty());
    }
}

#[test]
fn content_older_than_a_new_leaders_list_is_unknown() {
    let mut index = known_index();
    index.set_cluster("one".into(), cluster("prod"));
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    for (name, version) in [("same", 7), ("edited", 8), ("restored", 9)] {
        index.observe(&source("a", name), version, labeled("x"));
        index.read(&source("a", name), version, labeled("x"), body(name));
    }
    assert_eq!(wanted(&index, "r1", "one"), Some(3));
    index
        .sources_mut()
        .mark_stale(&WatchScope::everywhere("configmaps"));
    // A late answer of a read does not confirm a stale version.
    index.read(&source("a", "edited"), 8, labeled("x"), body("late"));
    assert_eq!(wanted(&index, "r1", "one"), Some(3));
    assert!(
        index
            .observe(&source("a", "same"), 7, labeled("x"))
            .read
            .is_empty()
    );
    assert_eq!(
        index.observe(&source("a", "edited"), 12, labeled("x")).read,
        BTreeSet::from([source("a", "edited")])
    );
    assert_eq!(
        index
            .observe(&source("a", "restored"), 3, labeled("x"))
            .read
            .len(),
        1
    );
    let Directive::Assigned(assignment) = index.directive(&"r1".into(), &"one".into()) else {
        panic!("not wanted")
    };
    assert!(
        assignment.is_unknown(&source("a", "edited"))
            && assignment.is_unknown(&source("a", "restored"))
    );
    assert!(
        assignment.plan().intents.contains_key(&source("a", "same"))
            && assignment.plan().intents.len() == 1
    );
    // A working watch keeps the old content until the new one is read.
    index.read(&source("a", "edited"), 12, labeled("x"), body("new"));
    index.observe(&source("a", "edited"), 13, labeled("x"));
    assert_eq!(wanted(&index, "r1", "one"), Some(2));
}

#[test]
fn unwatchable_scope_is_unknown_to_a_new_leader() {
    let mut index = known_index();
    let (scope, known) = (WatchScope::everywhere("configmaps"), source("a", "known"));
    index.set_cluster("one".into(), cluster("prod"));
    index.set_rule(rule("r1", "a", "x", json!({"all": true}), false));
    index.observe(&known, 7, labeled("x"));
    index.read(&known, 7, labeled("x"), body("old"));
    let refuse = |index: &mut Index| {
        let mut effect = index.set_scope(
            scope.clone(),
            ScopeState::Unreadable("forbidden".to_owned()),
        );
        effect.merge(index.invalidate_stale(&scope));
        effect
    };
    // While the process leads, a refused watch removes nothing.
    refuse(&mut index);
    assert_eq!(wanted(&index, "r1", "one"), Some(1));
    // Another process led meanwhile, and the agents may have newer content.
    index.sources_mut().mark_stale(&scope);
    assert!(refuse(&mut index).clusters.contains(&"one".into()));
    let Directive::Assigned(assignment) = index.directive(&"r1".into(), &"one".into()) else {
        panic!("not wanted")
    };
    assert!(
        assignment.plan().intents.is_empty()
            && assignment.is_unknown(&known)
            && !assignment.is_growing()
    );
    assert!(refuse(&mut index).clusters.is_empty());
    // The watch is back.
    index.set_scope(scope.clone(), ScopeState::Known);
    assert_eq!(
        index.observe(&known, 7, labeled("x")).read,
        BTreeSet::from([known.clone()])
    );
    index.read(&known, 7, labeled("x"), body("old"));
    assert_eq!(wanted(&index, "r1", "one"), Some(1));
}

#[test]
fn rolled_back_target_is_replaced_by_the_former_state() {
    use super::StoredState;
    use crate::plan::{ClusterAssignment, RollbackBlocker};
    use crate::rollout::{AdmittedClusters, Gate};
    let uid = runnel_proto::model::RuleUid::from("r1");
    let mut index = known_index();
    for name in ["one", "two"] {
        index.set_cluster(name.into(), cluster("prod"));
    }
    let plain = rule("r1", "a", "x", json!({"all": true}), false);
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r1", "namespace": "a", "uid": "r1", "generation": 1},
        "spec": {
            "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"rule": "x"}}}],
            "clusters": {"all": true}, "rollout": {"onFailure": "Revert", "maxConcurrency": 1},
        },
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
    let in_waves = Rule::namespaced(&object, "runnel-system").unwrap();
    index.set_rule(in_waves.clone());
    index.set_source(source("a", "s"), labeled("x"), Some(body("1")));
    let directive = |index: &Index, cluster: &str| index.directive(&uid, &cluster.into());
    let target = |index: &Index| index.rules().get(&uid).unwrap().target().to_owned();
    let gate = |index: &Index, back_to: Option<&str>| {
        let reach = AdmittedClusters::Only(BTreeMap::from([("one".into(), Instant::now())]));
        Gate {
            revision: target(index),
            reach,
            is_settled: false,
            wakes_at: None,
            back_to: back_to.map(ToOwned::to_owned),
            healthy: Default::default(),
            newly_chosen: Default::default(),
            is_blocked: false,
            is_paused: false,
        }
    };
    assert!(matches!(
        directive(&index, "one"),
        Directive::AwaitingWave(_)
    ));
    let gate_now = gate(&index, None);
    let effect = index.set_gate(&uid, gate_now);
    assert!(effect.clusters.contains(&"one".into()));
    let Directive::Assigned(former) = directive(&index, "one") else {
        panic!("not let in")
    };
    // The rollout is completed, and its state is stored. An edit changes one source and adds
    // another.
    let state = index
        .rules()
        .get(&uid)
        .unwrap()
        .completed_state(None)
        .ok()
        .unwrap();
    let revision = state.revision.clone();
    index.set_completed_state(
        &uid,
        Some(StoredState {
            revision: revision.clone(),
            state: Ok(state),
        }),
    );
    index.set_source(source("a", "s"), labeled("x"), Some(body("2")));
    index.set_source(source("a", "new"), labeled("x"), Some(body("2")));
    assert!(
        matches!(directive(&index, "one"), Directive::AwaitingWave(_)),
        "an edit shuts the gate"
    );
    let gate_now = gate(&index, None);
    index.set_gate(&uid, gate_now);
    let Directive::Assigned(failed) = directive(&index, "one") else {
        panic!("not let in")
    };
    assert!(failed.digest() != former.digest() && failed.rolled_back.is_none());
    let gate_now = gate(&index, Some(&revision));
    let effect = index.set_gate(&uid, gate_now);
    assert!(
        effect.clusters.contains(&"one".into()),
        "its session is woken"
    );
    let is_former = |assignment: &ClusterAssignment| {
        let created = source("a", "new");
        assignment.digest() == former.digest()
            && assignment.content(&created).is_none()
            && !assignment.must_stay(&created)
    };
    assert!(
        matches!(directive(&index, "one"), Directive::Assigned(assignment) if is_former(&assignment))
    );
    assert!(matches!(
        directive(&index, "two"),
        Directive::AwaitingWave(_)
    ));
    // The former terms stay in force, apart from the suspension.
    let terms = |suspend, conflict_policy| {
        let terms = in_waves.terms.to_shared().as_ref().clone();
        crate::plan::NamedTerms::new(runnel_proto::model::Terms {
            suspend,
            conflict_policy,
            ..terms
        })
    };
    let mut suspended = in_waves.clone();
    suspended.terms = terms(true, runnel_proto::model::ConflictPolicy::Fail);
    index.set_rule(suspended.clone());
    assert!(
        matches!(directive(&index, "one"), Directive::Assigned(assignment) if assignment.terms().suspend && is_former(&assignment))
    );
    assert!(
        !index.rules().get(&uid).unwrap().awaits(&"two".into()),
        "no turn comes while it is suspended"
    );
    index.set_rule(in_waves.clone());
    assert!(
        matches!(directive(&index, "one"), Directive::Assigned(assignment) if is_former(&assignment))
    );
    // Without the state nothing is sent.
    for lost in [
        None,
        Some(StoredState {
            revision: String::new(),
            state: Err(RollbackBlocker::Damaged),
        }),
    ] {
        let stored = index.rules().completed().get(&uid).cloned();
        index.set_completed_state(&uid, lost);
        assert!(matches!(
            directive(&index, "one"),
            Directive::AwaitingWave(_)
        ));
        index.set_completed_state(&uid, stored);
        assert!(matches!(directive(&index, "one"), Directive::Assigned(_)));
    }
    let other = gate(&index, Some("another state"));
    index.set_gate(&uid, other);
    assert!(matches!(
        directive(&index, "one"),
        Directive::AwaitingWave(_)
    ));
    index.set_source(source("a", "s"), labeled("x"), Some(body("3")));
    assert!(matches!(
        directive(&index, "one"),
        Directive::AwaitingWave(_)
    ));
    // The gate of a rule that was suspended no longer counts: the hub determines again which
    // clusters are applying it.
    let gate_now = gate(&index, None);
    index.set_gate(&uid, gate_now);
    index.set_rule(suspended);
    assert!(index.rules().get(&uid).unwrap().gate.is_some());
    index.set_rule(in_waves);
    assert!(
        index.rules().get(&uid).unwrap().gate.is_none()
            && matches!(directive(&index, "one"), Directive::AwaitingWave(_))
    );
    // Without waves all clusters get the newest.
    index.set_rule(plain);
    assert!(
        matches!(directive(&index, "one"), Directive::Assigned(assignment) if assignment.rolled_back.is_none())
    );
}

#[test]
fn forgotten_rules_beyond_the_limit_are_noticed() {
    let mut index = Index::default();
    index.set_cluster("eu".into(), cluster("prod"));
    let limit = super::rules::FORGOTTEN_LIMIT;
    let uid = |number: usize| format!("r{number}");
    for number in 0..limit + 2 {
        index.set_rule(rule(&uid(number), "a", "x", json!({"all": true}), false));
    }
    let version = |index: &Index| index.directives_since(&"eu".into(), 0).1;
    let before = version(&index);
    for number in 0..limit {
        index.remove_rule(&uid(number).as_str().into());
    }
    assert!(
        !index.rules().has_forgotten_since(before),
        "all of them are told"
    );
    index.remove_rule(&uid(limit).as_str().into());
    let since = version(&index);
    index.remove_rule(&uid(limit + 1).as_str().into());
    assert!(
        index.rules().has_forgotten_since(before),
        "the first are not told any more: a session asks of each rule that it holds"
    );
    assert!(
        !index.rules().has_forgotten_since(since),
        "who is up to date missed nothing"
    );
    assert!(
        !index.rules().has_forgotten_since(0),
        "a new session asks of each in any case"
    );
}
