use std::collections::BTreeMap;

use proptest::prelude::*;
use runnel_proto::model::{Pattern, Payload, Revision};
use serde_json::json;

use super::super::{ClusterPlans, RevisionHasher, Rule, Scope, Source, WatchScope, plan};
use super::*;

fn rule() -> Rule {
    let object: runnel_api::ClusterDistributionRule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
        "metadata": {"name": "r", "uid": "r", "generation": 1},
        "spec": {
            "sources": [{"namespaces": ["*"], "resources": ["configmaps"], "names": ["*"]}],
            "clusters": {"all": true}, "namespaces": {"names": ["here"]},
        },
    }))
    .unwrap();
    Rule::cluster_scoped(&object, "runnel-system").unwrap()
}

fn body(kind: u8) -> SourceState {
    let content = Arc::new(SourceContent::new(
        Revision([kind; 16]),
        Payload::encode(vec![kind]),
    ));
    match kind % 5 {
        0 => SourceState::Unread,
        1 => SourceState::Refused(super::super::UnsupportedSource::Annotation),
        2 => SourceState::Stale(content),
        _ => SourceState::Read(content),
    }
}

fn source(namespace: u8, name: u8) -> SourceRef {
    SourceRef::new("configmaps", &format!("n{namespace}"), &format!("s{name}"))
}

#[test]
fn two_sources_for_one_copy_block_each_other() {
    let rule = rule();
    let (mut selection, one, two) = (RulePlan::empty(&rule), source(1, 1), source(2, 1));
    let mut cluster_plans = ClusterPlans::new(
        &rule,
        &selection,
        std::iter::empty(),
        &RevisionHasher::default(),
    );
    let mut say = |source: &SourceRef, body: Option<SourceState>| {
        selection.set(source, body.as_ref());
        cluster_plans.update(
            &rule,
            &selection,
            &[source.clone()].into(),
            &RevisionHasher::default(),
        );
        let sent = cluster_plans.plan_of(&"any".into()).unwrap().clone();
        (sent.intents.keys().cloned().collect::<Vec<_>>(), sent)
    };
    let (intents, before) = say(&one, Some(body(3)));
    assert_eq!(intents, std::slice::from_ref(&one));
    let (intents, sent) = say(&two, Some(body(4)));
    assert!(intents.is_empty() && sent.is_unknown(&one) && sent.is_unknown(&two));
    let message = &sent.render_errors[&one].message;
    assert!(
        message.contains("configmaps/n1/s1") && message.contains("configmaps/n2/s1"),
        "{message}"
    );
    let touched = sent.edits.since(before.digest).unwrap();
    assert_eq!(*touched, BTreeSet::from([one.clone(), two.clone()]));
    // A source that is never distributed does not block the other one.
    assert_eq!(say(&one, Some(body(1))).0, std::slice::from_ref(&two));
    assert!(say(&one, Some(body(8))).0.is_empty());
    assert_eq!(say(&two, None).0, std::slice::from_ref(&one));
}

#[test]
fn source_of_the_namespace_that_is_named_first_has_the_copy() {
    let mut rule = rule();
    rule.sources[0].namespaces = ["n2", "*"].map(Pattern::new).into();
    let (mut selection, one, two) = (RulePlan::empty(&rule), source(1, 1), source(2, 1));
    let hasher = RevisionHasher::default();
    let mut plans = ClusterPlans::new(&rule, &selection, std::iter::empty(), &hasher);
    let mut sent = |source: &SourceRef, body: Option<SourceState>| {
        selection.set(source, body.as_ref());
        plans.update(&rule, &selection, &[source.clone()].into(), &hasher);
        plans.plan_of(&"any".into()).unwrap().clone()
    };
    let keys = |plan: &RulePlan| plan.intents.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&sent(&one, Some(body(3)))), std::slice::from_ref(&one));
    // The other one counts as removed, so that the agent hands the copy over in place.
    let plan = sent(&two, Some(body(4)));
    assert_eq!(keys(&plan), std::slice::from_ref(&two));
    assert!(!plan.is_unknown(&one) && plan.render_errors.is_empty());
    // A further source of the glob changes nothing.
    assert_eq!(
        keys(&sent(&source(3, 1), Some(body(3)))),
        std::slice::from_ref(&two)
    );
    assert!(keys(&sent(&two, None)).is_empty(), "two of the same rank");
    assert!(!sent(&one, None).is_unknown(&one));
}

proptest! {
    #[test]
    fn after_any_edits_the_same_is_sent_as_of_the_final_state(
        edits in proptest::collection::vec((0..3u8, 0..3u8, proptest::option::of(0..10u8)), 0..40)
    ) {
        let rule = rule();
        let mut selection = RulePlan::empty(&rule);
        let mut cluster_plans = ClusterPlans::new(&rule, &selection, std::iter::empty(), &RevisionHasher::default());
        let mut sources = BTreeMap::new();
        for (namespace, name, kind) in edits {
            let source = source(namespace, name);
            let body = kind.map(body);
            selection.set(&source, body.as_ref());
            cluster_plans.update(&rule, &selection, &[source.clone()].into(), &RevisionHasher::default());
            match body {
                Some(body) => drop(sources.insert(source, Source { labels: BTreeMap::new(), body })),
                None => drop(sources.remove(&source)),
            }
        }
        let fresh = plan(&rule, &sources, &Scope::Everywhere, |_: &WatchScope| true);
        let expected = ClusterPlans::new(&rule, &fresh, std::iter::empty(), &RevisionHasher::default());
        prop_assert!(cluster_plans.has_equal_content(&expected));
        let sent = cluster_plans.plan_of(&"any".into()).unwrap();
        let expected = expected.plan_of(&"any".into()).unwrap();
        prop_assert_eq!(sent.intents.keys().collect::<Vec<_>>(), expected.intents.keys().collect::<Vec<_>>());
        // Every source is either sent or has an error.
        for source in selection.intents.keys() {
            prop_assert!(sent.intents.contains_key(source) != sent.render_errors.contains_key(source));
        }
    }
}
