use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use runnel_proto::model::{ClusterName, Content, Payload, RevisionKey, RuleUid, SourceRef};
use serde_json::{Value, json};

use super::{Cluster, Directive, Effect, Index, RenderJob, RenderResult, ScopeState};
use crate::plan::{RenderErrorKind, RevisionHasher, Rule, SourceContent, SourceState, WatchScope};

const GRACE: Duration = Duration::from_secs(5);

/// A rule that sends the ConfigMaps and Secrets of one label to all clusters, or to those of one environment.
fn rule(generation: i64, selects: &str, clusters: &Value, shape: &Value, deleting: bool) -> Rule {
    let mut spec = json!({
        "sources": [{
            "namespaces": ["team"], "resources": ["configmaps", "secrets"], "selector": {"matchLabels": {"rule": selects}},
        }],
        "clusters": clusters,
    });
    spec.as_object_mut()
        .unwrap()
        .extend(shape.as_object().unwrap().clone());
    let mut metadata = json!({"name": "r", "uid": "r", "generation": generation});
    if deleting {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule", "metadata": metadata, "spec": spec,
    });
    Rule::cluster_scoped(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
}

fn shapes() -> [Value; 5] {
    [
        json!({}),
        json!({"substitute": {"keys": ["k"]}}),
        json!({"transform": {"name": "${source.name}-${cluster.labels.env}"}, "substitute": {"keys": ["k"]}}),
        json!({"transform": {"labels": {"add": {"a": "b"}}}}),
        json!({"overrides": [{
            "clusters": {"selector": {"matchLabels": {"env": "e1"}}},
            "secretData": [{"key": "p", "valueFrom": {"secretKeyRef": {"name": "s0", "key": "k"}}}],
        }]}),
    ]
}

fn cluster(env: u8) -> Cluster {
    let labels = BTreeMap::from([("env".to_owned(), format!("e{env}"))]);
    Cluster {
        uid: "u".to_owned(),
        labels,
        accepted: true,
        was_connected: true,
        ..Cluster::default()
    }
}

fn source(secret: bool, name: u8) -> SourceRef {
    SourceRef::new(
        if secret { "secrets" } else { "configmaps" },
        "team",
        &format!("s{name}"),
    )
}

fn labels(value: u8) -> BTreeMap<String, String> {
    BTreeMap::from([("rule".to_owned(), format!("v{value}"))])
}

fn content(text: &str) -> SourceState {
    let fields = BTreeMap::from([("data".to_owned(), json!({"k": text}))]);
    let canonical = Content {
        fields,
        ..Content::default()
    }
    .to_bytes();
    let revision = RevisionKey::new(b"key").revision("any", &canonical);
    SourceState::Read(Arc::new(SourceContent::new(
        revision,
        Payload::encode(canonical),
    )))
}

fn text(secret: bool, number: u8) -> &'static str {
    match (secret, number) {
        (false, 0) => "${cluster.name}",
        (false, 1) => "in ${cluster.labels.env}",
        (false, _) => "fixed",
        (true, 0) => "JHtjbHVzdGVyLm5hbWV9",
        (true, 1) => "eA==",
        (true, _) => "eQ==",
    }
}

fn known(index: Index) -> Index {
    let mut index = index;
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    index.set_scope(WatchScope::everywhere("secrets"), ScopeState::Known);
    index
}

#[derive(Clone, Debug)]
enum Step {
    Rule {
        value: u8,
        all: bool,
        shape: usize,
    },
    Delete,
    Remove,
    Seen {
        secret: bool,
        name: u8,
        value: u8,
    },
    Read {
        secret: bool,
        name: u8,
        value: u8,
        text: u8,
    },
    Unreadable {
        secret: bool,
        name: u8,
    },
    Gone {
        secret: bool,
        name: u8,
    },
    Cluster {
        name: u8,
        env: u8,
    },
    RemoveCluster(u8),
    SetPlace(bool),
    MarkStale,
    Begin,
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..2u8, any::<bool>(), 0..5usize).prop_map(|(value, all, shape)| Step::Rule { value, all, shape }),
        1 => Just(Step::Delete),
        1 => Just(Step::Remove),
        2 => (any::<bool>(), 0..3u8, 0..2u8).prop_map(|(secret, name, value)| Step::Seen { secret, name, value }),
        6 => (any::<bool>(), 0..3u8, 0..2u8, 0..3u8)
            .prop_map(|(secret, name, value, text)| Step::Read { secret, name, value, text }),
        1 => (any::<bool>(), 0..3u8).prop_map(|(secret, name)| Step::Unreadable { secret, name }),
        1 => (any::<bool>(), 0..3u8).prop_map(|(secret, name)| Step::Gone { secret, name }),
        3 => (0..3u8, 0..2u8).prop_map(|(name, env)| Step::Cluster { name, env }),
        1 => (0..3u8).prop_map(Step::RemoveCluster),
        1 => any::<bool>().prop_map(Step::SetPlace),
        1 => Just(Step::MarkStale),
        4 => Just(Step::Begin),
        4 => Just(Step::Take),
    ]
}

/// Does a step to an index. The last version and generation are counted.
fn apply(step: &Step, index: &mut Index, count: u64, last: &mut Option<Rule>) -> Effect {
    let now = Instant::now();
    let generation = i64::try_from(count).unwrap();
    match step {
        Step::Rule { value, all, shape } => {
            let clusters = if *all {
                json!({"all": true})
            } else {
                json!({"selector": {"matchLabels": {"env": "e0"}}})
            };
            let rule = rule(
                generation,
                &format!("v{value}"),
                &clusters,
                &shapes()[*shape],
                false,
            );
            *last = Some(rule.clone());
            index.set_rule(rule)
        }
        Step::Delete => match last.take() {
            Some(mut rule) => {
                rule.deleting = true;
                index.set_rule(rule)
            }
            None => Effect::default(),
        },
        Step::Remove => {
            *last = None;
            index.remove_rule(&"r".into())
        }
        Step::Seen {
            secret,
            name,
            value,
        } => index.observe(&source(*secret, *name), count, labels(*value)),
        Step::Read {
            secret,
            name,
            value,
            text: number,
        } => {
            let source = source(*secret, *name);
            let mut effect = index.observe(&source, count, labels(*value));
            effect.merge(index.read(
                &source,
                count,
                labels(*value),
                content(text(*secret, *number)),
            ));
            effect
        }
        Step::Unreadable { secret, name } => index.record_read_failure(&source(*secret, *name)),
        Step::Gone { secret, name } => {
            index
                .sources_mut()
                .mark_deleted(&source(*secret, *name), now);
            index.expire_deleted(now + GRACE, GRACE)
        }
        Step::Cluster { name, env } => {
            index.set_cluster(format!("c{name}").as_str().into(), cluster(*env))
        }
        Step::RemoveCluster(name) => index.remove_cluster(&format!("c{name}").as_str().into()),
        Step::SetPlace(known) => {
            let state = if *known {
                ScopeState::Known
            } else {
                ScopeState::Unreadable("no".to_owned())
            };
            index.set_scope(WatchScope::everywhere("configmaps"), state)
        }
        Step::MarkStale => {
            index
                .sources_mut()
                .mark_stale(&WatchScope::everywhere("secrets"));
            index
                .sources_mut()
                .mark_stale(&WatchScope::everywhere("configmaps"));
            Effect::default()
        }
        Step::Begin | Step::Take => Effect::default(),
    }
}

/// Does the deferred work.
fn follow(index: &mut Index, mut effect: Effect, render: &mut BTreeSet<RuleUid>) {
    while let Some(uid) = effect.follow.pop_first() {
        effect.merge(index.follow(&uid));
    }
    render.append(&mut effect.render);
}

/// Only selected sources may be sent, and no source without known content is sent.
fn is_consistent(index: &Index) -> Result<(), TestCaseError> {
    for (_, entry) in index.rules().iter() {
        for (_, plan) in entry.cluster_plans.plans(&entry.plan) {
            for intent in plan.intents.keys() {
                let source = intent.plain();
                prop_assert!(
                    entry.plan.intents.contains_key(&source),
                    "{source} is sent and not known"
                );
            }
            prop_assert_eq!(&plan.unknown, &entry.plan.unknown);
        }
        for cluster in entry.cluster_plans.clusters() {
            let chosen = index
                .clusters()
                .get(cluster)
                .is_some_and(|known| known.is_chosen_by(&entry.rule, cluster));
            prop_assert!(chosen, "{cluster:?} is not chosen");
        }
    }
    Ok(())
}

fn is_same(aside: &Index, here: &Index) -> Result<(), TestCaseError> {
    let uids = |index: &Index| {
        index
            .rules()
            .iter()
            .map(|(uid, _)| uid.clone())
            .collect::<Vec<_>>()
    };
    prop_assert_eq!(uids(aside), uids(here));
    for (uid, entry) in aside.rules().iter() {
        let expected = here.rules().get(uid).unwrap();
        prop_assert_eq!(entry.rule.generation, expected.rule.generation);
        if entry.rule.deleting {
            // The pending rendering is dropped.
            continue;
        }
        prop_assert!(
            entry.plan.has_equal_content(&expected.plan),
            "the plan of {uid:?} is another one"
        );
        prop_assert!(
            entry
                .cluster_plans
                .has_equal_content(&expected.cluster_plans),
            "what is sent of {uid:?} is something else"
        );
        prop_assert!(entry.target_clusters == expected.target_clusters);
    }
    for source in here.sources.names() {
        let known: BTreeSet<_> = aside.planner.selection.of(source).collect();
        let all = here
            .planner
            .selection
            .of(source)
            .all(|uid| known.contains(uid));
        prop_assert!(
            all || here.rules().iter().any(|(_, entry)| entry.rule.deleting),
            "no task would read {source}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With deferred rendering, after any events the index is consistent and ends in the same state
    /// as an index that renders at once.
    #[test]
    fn rendering_aside_ends_as_rendering_at_once(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut aside, mut here) = (known(Index::default().with_deferred_rendering()), known(Index::default()));
        let (mut render, mut job): (BTreeSet<RuleUid>, Option<RenderJob>) = (BTreeSet::new(), None);
        let (mut last, mut also_last) = (None, None);
        for (count, step) in steps.iter().enumerate() {
            let count = count as u64 + 1;
            let effect = apply(step, &mut aside, count, &mut last);
            follow(&mut aside, effect, &mut render);
            apply(step, &mut here, count, &mut also_last);
            match step {
                Step::Begin if job.is_none() => {
                    let uid = render.pop_first();
                    job = uid.and_then(|uid| aside.render_job(&uid));
                }
                Step::Take => {
                    if let Some(mut rendered) = job.take().map(RenderJob::run) {
                        let effect = aside.take_rendered(&mut rendered);
                        follow(&mut aside, effect, &mut render);
                    }
                }
                _ => {}
            }
            is_consistent(&aside)?;
        }
        // All existing objects are read.
        let sources: Vec<_> = here.sources.names().filter_map(|source| Some((source.clone(), here.sources.get(source)?.labels.clone()))).collect();
        for (source, labels) in sources {
            let secret = *source.resource == *"secrets";
            for index in [&mut aside, &mut here] {
                let mut effect = index.observe(&source, 1000, labels.clone());
                effect.merge(index.read(&source, 1000, labels.clone(), content(text(secret, 1))));
                follow(index, effect, &mut render);
            }
        }
        let mut rendered: Option<RenderResult> = job.map(RenderJob::run);
        for _ in 0..20 {
            if let Some(mut rendered) = rendered.take() {
                let effect = aside.take_rendered(&mut rendered);
                for source in effect.read.clone() {
                    let known = aside.sources.get(&source).map(|known| known.labels.clone());
                    let body = content(text(*source.resource == *"secrets", 1));
                    let effect = aside.read(&source, 1000, known.unwrap_or_default(), body);
                    follow(&mut aside, effect, &mut render);
                }
                follow(&mut aside, effect, &mut render);
                is_consistent(&aside)?;
            }
            let Some(uid) = render.pop_first() else { break };
            rendered = aside.render_job(&uid).map(RenderJob::run);
            if rendered.is_none() && render.is_empty() {
                break;
            }
        }
        prop_assert!(rendered.is_none() && render.is_empty(), "it does not come to an end");
        is_same(&aside, &here)?;
    }
}

fn many(index: Index, clusters: u32) -> Index {
    let mut index = known(index);
    for number in 0..clusters {
        index.set_cluster(format!("c{number}").as_str().into(), cluster(0));
    }
    index
}

fn sent(index: &Index, cluster: &str) -> usize {
    let entry = index.rules().get(&"r".into()).unwrap();
    entry
        .assignment(&ClusterName::from(cluster))
        .map_or(0, |assignment| assignment.plan().intents.len())
}

/// Text that does not shrink, and differs by cluster.
fn noise(seed: u64) -> String {
    let mut state = seed;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + u8::try_from((state >> 40) % 26).unwrap())
    };
    (0..2000).map(next).collect::<String>() + "${cluster.name}"
}

#[test]
fn rule_over_its_render_budget_sends_nothing() {
    let revision_hasher = RevisionHasher::default().with_budget(20 * 2048);
    let mut index = many(Index::default().hashing_with(revision_hasher), 10);
    index.set_rule(rule(1, "v0", &json!({"all": true}), &shapes()[1], false));
    let read = |index: &mut Index, name: u8, version: u64, text: &str| {
        index.observe(&source(false, name), version, labels(0));
        index.read(&source(false, name), version, labels(0), content(text));
    };
    read(&mut index, 0, 1, &noise(1));
    assert_eq!(
        (sent(&index, "c0"), sent(&index, "c9")),
        (1, 1),
        "one source is within the budget"
    );
    for name in 1..3 {
        read(&mut index, name, 2, &noise(u64::from(name) + 7));
    }
    let entry = index.rules().get(&"r".into()).unwrap();
    assert!(entry.cluster_plans.exceeds() && sent(&index, "c0") == 0);
    let assignment = entry.assignment(&"c7".into()).unwrap();
    let (_, why) = assignment.plan().render_errors.first_key_value().unwrap();
    assert_eq!(
        (why.why, assignment.plan().render_errors.len()),
        (RenderErrorKind::Budget, 3)
    );
    assert!(
        why.message.contains("40960") && why.message.contains("10 clusters"),
        "{}",
        why.message
    );
    // Existing copies stay.
    assert!(
        assignment.is_unknown(&source(false, 0))
            && matches!(
                index.directive(&"r".into(), &"c7".into()),
                Directive::Assigned(_)
            )
    );
    // Back within it, all is sent again.
    for name in 1..3 {
        read(&mut index, name, 9, "the same everywhere");
    }
    assert_eq!((sent(&index, "c0"), sent(&index, "c9")), (3, 3));
    for number in 10..80 {
        index.set_cluster(format!("c{number}").as_str().into(), cluster(0));
    }
    assert_eq!(
        (sent(&index, "c0"), sent(&index, "c79")),
        (0, 0),
        "too many clusters"
    );
    for number in 6..80 {
        index.remove_cluster(&format!("c{number}").as_str().into());
    }
    assert_eq!(sent(&index, "c0"), 3, "fewer clusters");
}

/// Creates an index with deferred rendering, ten clusters and a budget for a number of large
/// contents.
fn narrow(contents: u64) -> Index {
    many(
        Index::default()
            .hashing_with(RevisionHasher::default().with_budget(contents * 2048))
            .with_deferred_rendering(),
        10,
    )
}

/// Runs all render jobs, and returns their number.
fn settle(index: &mut Index) -> usize {
    settle_rule(index, "r")
}

fn settle_rule(index: &mut Index, uid: &str) -> usize {
    for jobs in 0..10 {
        let Some(job) = index.render_job(&uid.into()) else {
            return jobs;
        };
        index.take_rendered(&mut job.run());
    }
    panic!("it does not come to an end");
}

fn noisy(index: &mut Index, name: u8) -> Effect {
    let mut effect = index.observe(&source(false, name), 1, labels(0));
    effect.merge(index.read(
        &source(false, name),
        1,
        labels(0),
        content(&noise(u64::from(name) + 1)),
    ));
    effect
}

fn exceeds(index: &Index) -> bool {
    index
        .rules()
        .get(&"r".into())
        .unwrap()
        .cluster_plans
        .exceeds()
}

#[test]
fn rule_over_its_work_budget_sends_nothing() {
    let mut index = narrow(15);
    let shape = |bytes: usize| {
        // What comes of it is small.
        let patch = json!([
            {"op": "add", "path": "/data/x", "value": "x".repeat(bytes)},
            {"op": "remove", "path": "/data/x"},
        ]);
        let entry = json!({"clusters": {"all": true}, "jsonPatch": patch});
        json!({"substitute": {"keys": ["k"]}, "overrides": [entry]})
    };
    index.observe(&source(false, 0), 1, labels(0));
    index.set_rule(rule(1, "v0", &json!({"all": true}), &shape(150_000), false));
    settle(&mut index);
    index.read(&source(false, 0), 1, labels(0), content("${cluster.name}"));
    settle(&mut index);
    assert!(exceeds(&index));
    index.set_rule(rule(2, "v0", &json!({"all": true}), &shape(1_000), false));
    settle(&mut index);
    assert!(!exceeds(&index) && sent(&index, "c0") == 1);
}

#[test]
fn rules_of_a_namespace_share_a_budget() {
    let mut index = narrow(12);
    let tenant = |uid: &str| {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": uid, "namespace": "team", "uid": uid, "generation": 1},
            "spec": {
                "sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true},
                "substitute": {"keys": ["k"]},
            },
        });
        Rule::namespaced(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
    };
    noisy(&mut index, 0);
    for uid in ["a", "b", "c"] {
        index.set_rule(tenant(uid));
        settle_rule(&mut index, uid);
    }
    noisy(&mut index, 0);
    let exceeds = ["a", "b", "c"].map(|uid| {
        settle_rule(&mut index, uid);
        let entry = index.rules().get(&uid.into()).unwrap();
        entry.cluster_plans.exceeds()
    });
    assert_eq!(exceeds, [false, false, true]);
}

#[test]
fn job_pauses_between_renderings_without_a_lock() {
    let mut index = narrow(100);
    noisy(&mut index, 0);
    index.set_rule(rule(1, "v0", &json!({"all": true}), &shapes()[1], false));
    noisy(&mut index, 0);
    let pauses = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = pauses.clone();
    let job = index.render_job(&"r".into()).unwrap();
    let mut rendered = job
        .paced(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        })
        .run();
    index.take_rendered(&mut rendered);
    assert!(pauses.load(std::sync::atomic::Ordering::Relaxed) >= 10);
}

#[test]
fn rule_over_its_budget_is_rendered_again_aside() {
    let mut index = narrow(15);
    index.set_rule(rule(1, "v0", &json!({"all": true}), &shapes()[1], false));
    settle(&mut index);
    assert!([0, 1].map(|name| noisy(&mut index, name).render.len()) == [1, 1]);
    settle(&mut index);
    assert!(exceeds(&index));
    // A source without content, and a deleted one.
    let effect = index.observe(&source(false, 2), 1, labels(0));
    assert!(effect.render.contains(&"r".into()) && exceeds(&index));
    settle(&mut index);
    assert!(exceeds(&index));
    index
        .sources_mut()
        .mark_deleted(&source(false, 1), Instant::now());
    let effect = index.expire_deleted(Instant::now() + GRACE, GRACE);
    assert!(
        effect.render.contains(&"r".into()) && exceeds(&index),
        "nothing is rendered while the index is locked"
    );
    assert_eq!(
        (settle(&mut index), exceeds(&index), sent(&index, "c9")),
        (1, false, 1)
    );
    // Clusters that leave.
    noisy(&mut index, 1);
    settle(&mut index);
    assert!(exceeds(&index));
    let left = (3..10).map(|number| index.remove_cluster(&format!("c{number}").as_str().into()));
    assert!(
        left.fold(Effect::default(), |mut all, effect| {
            all.merge(effect);
            all
        })
        .render
        .contains(&"r".into())
    );
    settle(&mut index);
    assert_eq!((exceeds(&index), sent(&index, "c2")), (false, 2));
}

#[test]
fn rule_moved_to_other_clusters_needs_room_once() {
    let mut index = narrow(7);
    let names = |numbers: std::ops::Range<u8>| json!({"names": numbers.map(|n| format!("c{n}")).collect::<Vec<_>>()});
    index.set_rule(rule(1, "v0", &names(0..5), &shapes()[1], false));
    settle(&mut index);
    noisy(&mut index, 0);
    settle(&mut index);
    assert_eq!((exceeds(&index), sent(&index, "c0")), (false, 1));
    index.set_rule(rule(1, "v0", &names(5..10), &shapes()[1], false));
    settle(&mut index);
    assert_eq!((exceeds(&index), sent(&index, "c9")), (false, 1));
}

#[test]
fn deselected_sources_leave_no_memory() {
    let mut index = narrow(1_000);
    for (turn, value) in ["v0", "v1", "v0", "v1"].iter().enumerate() {
        let of = source(false, u8::try_from(turn).unwrap());
        index.observe(
            &of,
            1,
            BTreeMap::from([("rule".to_owned(), (*value).to_owned())]),
        );
        index.set_rule(rule(1, value, &json!({"all": true}), &shapes()[1], false));
        settle(&mut index);
        index.read(
            &of,
            1,
            BTreeMap::from([("rule".to_owned(), (*value).to_owned())]),
            content(&noise(1)),
        );
        settle(&mut index);
        index.sources_mut().mark_deleted(&of, Instant::now());
        let cluster_plans = &index.rules().get(&"r".into()).unwrap().cluster_plans;
        assert_eq!(cluster_plans.rendered_sources(), 1, "{turn}");
        index.set_rule(rule(1, "v9", &json!({"all": true}), &shapes()[1], false));
        settle(&mut index);
        let cluster_plans = &index.rules().get(&"r".into()).unwrap().cluster_plans;
        assert_eq!(cluster_plans.rendered_sources(), 0, "{turn}");
        index.expire_deleted(Instant::now() + GRACE, GRACE);
    }
}

#[test]
fn unrendered_rule_is_unknown_to_clusters_of_a_new_leader() {
    let mut index = many(Index::default().with_deferred_rendering(), 1);
    let directive = |index: &Index| index.directive(&"r".into(), &"c0".into());
    index.set_rule(rule(1, "v0", &json!({"all": true}), &shapes()[1], false));
    assert!(
        matches!(directive(&index), Directive::Unknown),
        "an agent may hold copies of it"
    );
    let take = |index: &mut Index| {
        let mut rendered = index.render_job(&"r".into()).unwrap().run();
        index.take_rendered(&mut rendered)
    };
    take(&mut index);
    index.observe(&source(false, 0), 1, labels(0));
    let effect = index.read(&source(false, 0), 1, labels(0), content("${cluster.name}"));
    assert!(
        effect.render.contains(&"r".into()) && matches!(directive(&index), Directive::Assigned(_))
    );
    index.reset_removal_guards();
    assert!(
        matches!(directive(&index), Directive::Unknown),
        "agents may have the newer content of another leader"
    );
    assert!(take(&mut index).clusters.contains(&"c0".into()));
    assert!(
        matches!(directive(&index), Directive::Assigned(assignment) if assignment.plan().intents.len() == 1)
    );
    // A job that was under way, and nothing to render after it: the rule is not left unknown.
    index.observe(&source(false, 0), 2, labels(0));
    index.read(
        &source(false, 0),
        2,
        labels(0),
        content("in ${cluster.name}"),
    );
    let job = index.render_job(&"r".into()).unwrap();
    index.reset_removal_guards();
    let effect = index.take_rendered(&mut job.run());
    assert!(effect.render.contains(&"r".into()) && matches!(directive(&index), Directive::Unknown));
    take(&mut index);
    assert!(matches!(directive(&index), Directive::Assigned(_)));
}

#[test]
fn changes_of_a_failed_render_job_are_rendered_again() {
    let (uid, first) = (RuleUid::from("r"), source(false, 0));
    let begin = |index: Index| {
        let mut index = many(index, 1);
        index.set_rule(rule(1, "v0", &json!({"all": true}), &shapes()[1], false));
        index
    };
    let read = |index: &mut Index| {
        index.observe(&first, 9, labels(0));
        index.read(&first, 9, labels(0), content("in ${cluster.name}"));
    };
    let fail_and_render = |index: &mut Index| {
        drop(index.render_job(&uid).unwrap());
        assert!(index.render_failed(&uid).render.contains(&uid));
        let mut rendered = index.render_job(&uid).unwrap().run();
        index.take_rendered(&mut rendered);
        assert!(index.render_job(&uid).is_none());
    };
    let revision = |index: &Index| {
        let entry = index.rules().get(&uid).unwrap();
        let plan = entry.cluster_plans.plan(&"c0".into(), &entry.plan).unwrap();
        plan.intents.get(&first).map(|content| content.revision)
    };
    // The job of a whole rule, and one of changes.
    let mut index = begin(Index::default().with_deferred_rendering());
    fail_and_render(&mut index);
    read(&mut index);
    fail_and_render(&mut index);
    let mut expected = begin(Index::default());
    read(&mut expected);
    assert!(revision(&index).is_some() && revision(&index) == revision(&expected));
}

#[test]
fn labels_of_unselected_object_are_bounded() {
    let mut index = many(Index::default(), 1);
    let many: BTreeMap<String, String> = (0..50_000)
        .map(|number| (format!("a{number}"), String::new()))
        .collect();
    let labeled = |more: &[(&str, &str)]| {
        let mut all = many.clone();
        all.extend(
            more.iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
        );
        all
    };
    let of = source(false, 0);
    let kept = |index: &Index, name| {
        index
            .sources()
            .get(&source(false, name))
            .map(|known| known.labels.len())
    };
    for name in 1..=11 {
        index.observe(&source(false, name), 1, labeled(&[]));
    }
    assert_eq!(
        (kept(&index, 1), kept(&index, 11)),
        (Some(50_000), Some(0)),
        "there is room for some objects"
    );
    index.observe(&of, 1, labeled(&[("rule", "v0")]));
    assert_eq!(
        index.sources().get(&of).map(|known| known.labels.len()),
        Some(0),
        "no rule chooses by any of them"
    );
    let rule = rule(1, "v0", &json!({"all": true}), &json!({}), false);
    assert!(
        index.set_rule(rule.clone()).relist,
        "the label by which it chooses was left out"
    );
    let effect = index.observe(&of, 1, labeled(&[("rule", "v0")]));
    assert!(effect.read.contains(&of), "it is selected after all");
    assert!(!index.set_rule(rule).relist, "nothing is missing any more");
    // The text that is read of it is cut in the same way.
    index.read(&of, 1, labeled(&[("rule", "v0")]), content("text"));
    assert_eq!(
        (
            sent(&index, "c0"),
            index.sources().get(&of).map(|known| known.labels.len())
        ),
        (1, Some(1))
    );
    // A deleted object releases its labels.
    index
        .sources_mut()
        .mark_deleted(&source(false, 1), Instant::now());
    index.expire_deleted(Instant::now() + GRACE, GRACE);
    index.observe(&source(false, 11), 2, labeled(&[]));
    assert_eq!(kept(&index, 11), Some(50_000));
}
