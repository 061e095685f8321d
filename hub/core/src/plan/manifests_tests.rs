use runnel_proto::model::{Kind, Kinds, RevisionKey, Scope};
use serde_json::{Value, json};

use super::super::{
    ClusterPlans, RevisionHasher, Scope as HubScope, Source, SourceState, WatchScope, plan,
    read_bundle,
};
use super::*;

fn rule(spec: Value) -> Rule {
    let mut all = json!({
        "sources": [{"resources": ["manifestbundles.runnel.dev", "services"], "names": ["*"]}],
        "clusters": {"all": true},
    });
    all.as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r", "namespace": "team", "uid": "r", "generation": 1}, "spec": all,
    });
    Rule::namespaced(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
}

/// A rule of the whole cluster that selects the bundles of every namespace.
fn cluster_rule() -> Rule {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
        "metadata": {"name": "r", "uid": "r", "generation": 1},
        "spec": {
            "sources": [{"resources": ["manifestbundles.runnel.dev"], "names": ["*"], "namespaces": ["*"]}],
            "clusters": {"all": true},
        },
    });
    Rule::cluster_scoped(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
}

fn bundle(name: &str) -> SourceRef {
    SourceRef::new(BUNDLE_KIND, "team", name)
}

fn service(name: &str) -> SourceRef {
    SourceRef::new("services", "team", name)
}

/// A bundle with services of these names and ports. A service without a name is a wrong manifest.
fn content(services: &[(&str, u16)]) -> SourceState {
    let manifest = |(name, port): &(&str, u16)| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": port}]},
        })
    };
    let manifests: Vec<_> = services.iter().map(manifest).collect();
    let kinds: Kinds = [Kind::new(
        "",
        "v1",
        "Service",
        "services",
        Scope::Namespaced,
    )]
    .into_iter()
    .collect();
    let object = json!({"spec": {"manifests": manifests}});
    let key = RevisionKey::new(&[]);
    SourceState::Read(
        read_bundle(&bundle("app"), &object, &kinds, &key)
            .unwrap()
            .into(),
    )
}

/// A bundle with a namespace of this name, and a service.
fn with_namespace(name: &str) -> SourceState {
    let manifests = json!([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}},
    ]);
    let kinds: Kinds = [
        Kind::new("", "v1", "Namespace", "namespaces", Scope::Cluster),
        Kind::new("", "v1", "Service", "services", Scope::Namespaced),
    ]
    .into_iter()
    .collect();
    let object = json!({"spec": {"manifests": manifests}});
    let read = read_bundle(&bundle("app"), &object, &kinds, &RevisionKey::new(&[]));
    SourceState::Read(read.unwrap().into())
}

/// A service itself.
fn object(name: &str, port: u16) -> SourceState {
    let SourceState::Read(bundle) = content(&[(name, port)]) else {
        unreachable!()
    };
    let manifests = &bundle.bundle.as_ref().unwrap().manifests;
    SourceState::Read(manifests[&service(name)].clone().ok().unwrap())
}

fn sent(plan: &RulePlan) -> Vec<String> {
    plan.intents
        .keys()
        .map(|intent| intent.name.to_string())
        .collect()
}

#[test]
fn each_manifest_is_an_intent() {
    let mut plan = RulePlan::empty(&rule(json!({})));
    plan.set(&bundle("app"), Some(&content(&[("a", 1), ("b", 2)])));
    assert_eq!(sent(&plan), ["a", "b"]);
    assert!(plan.selects(&bundle("app")) && plan.selects(&service("a")));
    assert_eq!(plan.bundle_of(&service("a")), Some(&bundle("app")));
    assert_eq!((plan.sources(), plan.digests.len()), (2, 1));
    let touched = plan.set(&bundle("app"), Some(&content(&[("b", 3), ("c", 2)])));
    assert_eq!(sent(&plan), ["b", "c"]);
    assert!(touched.contains(&service("a")) && touched.contains(&service("c")));
    assert!(!plan.is_unknown(&service("a")), "it has left the bundle");
    plan.set(&bundle("app"), None);
    assert!(sent(&plan).is_empty() && plan.digests.is_empty());
    assert!(!plan.selects(&bundle("app")) && plan.objects().next().is_none());
}

#[test]
fn nothing_of_a_bundle_goes_while_it_is_not_known() {
    let all = [("a", 1), ("b", 2)];
    for state in [SourceState::Unread, SourceState::Unreadable] {
        let mut plan = RulePlan::empty(&rule(json!({})));
        plan.set(&bundle("app"), Some(&content(&all)));
        plan.set(&bundle("app"), Some(&state));
        assert!(plan.is_unknown(&service("a")));
        // What it had before is unknown.
        assert!(plan.is_unknown(&service("other")));
        assert!(!plan.is_unknown(&SourceRef::new("services", "elsewhere", "a")));
    }
    let mut plan = RulePlan::empty(&rule(json!({})));
    let SourceState::Read(read) = content(&all) else {
        unreachable!()
    };
    plan.set(&bundle("app"), Some(&SourceState::Stale(read)));
    assert_eq!(sent(&plan), ["a", "b"]);
    assert!(plan.is_unknown(&service("a")) && plan.is_unknown(&service("gone")));
}

#[test]
fn wrong_manifest_keeps_every_copy_of_its_bundle() {
    let mut plan = RulePlan::empty(&rule(json!({})));
    plan.set(&bundle("app"), Some(&content(&[("a", 1), ("", 2)])));
    assert_eq!(sent(&plan), ["a"]);
    assert!(plan.render_errors.contains_key(&bundle("app")));
    // Without a name it may have been this one.
    assert!(plan.is_unknown(&service("b")));
    plan.set(&bundle("app"), Some(&content(&[("a", 1)])));
    assert!(plan.render_errors.is_empty() && !plan.is_unknown(&service("b")));
}

#[test]
fn bundles_that_are_not_listed_keep_every_copy() {
    let rule = rule(json!({}));
    let scope = WatchScope::everywhere(BUNDLE_KIND);
    let known = plan(&rule, std::iter::empty(), &HubScope::Everywhere, |_| true);
    assert!(!known.is_unknown(&service("a")));
    let unknown = plan(&rule, std::iter::empty(), &HubScope::Everywhere, |at| {
        *at != scope
    });
    assert!(unknown.is_unknown(&service("a")));
}

#[test]
fn manifest_of_two_bundles_is_sent_by_neither() {
    let mut plan = RulePlan::empty(&rule(json!({})));
    plan.set(&bundle("app"), Some(&content(&[("a", 1), ("b", 2)])));
    plan.set(&bundle("other"), Some(&content(&[("a", 3)])));
    assert_eq!(sent(&plan), ["b"]);
    let error = &plan.render_errors[&service("a")];
    assert_eq!(error.why, RenderErrorKind::Ambiguous);
    assert!(error.message.contains("team/app") && error.message.contains("team/other"));
    assert!(plan.is_unknown(&service("a")) && !plan.is_unknown(&service("b")));
    assert_eq!(plan.sources(), 2);
    plan.set(&bundle("app"), None);
    assert_eq!(sent(&plan), ["a"]);
    assert!(plan.render_errors.is_empty());
}

#[test]
fn object_and_manifest_of_one_name_are_sent_by_neither() {
    let steps: [(SourceRef, SourceState); 2] = [
        (service("a"), object("a", 1)),
        (bundle("app"), content(&[("a", 2)])),
    ];
    for order in [[0, 1], [1, 0]] {
        let mut plan = RulePlan::empty(&rule(json!({})));
        for (source, state) in order.map(|at: usize| &steps[at]) {
            plan.set(source, Some(state));
            assert!(plan.is_unchanged_by(source, Some(state)), "{source}");
        }
        assert!(sent(&plan).is_empty());
        assert!(
            plan.render_errors[&service("a")]
                .message
                .contains("the object itself")
        );
        let objects: BTreeSet<_> = plan.objects().cloned().collect();
        assert_eq!(objects, [bundle("app"), service("a")].into());
        let mut alone = plan.clone();
        alone.set(&bundle("app"), None);
        assert!(alone.object_content(&service("a")).is_some() && sent(&alone) == ["a"]);
        plan.set(&service("a"), Some(&SourceState::Unread));
        assert!(sent(&plan).is_empty(), "it may have other content");
        plan.set(&service("a"), None);
        assert_eq!(sent(&plan), ["a"]);
    }
}

#[test]
fn plan_from_scratch_equals_the_changed_one() {
    let rule = rule(json!({}));
    let states = [
        (bundle("app"), content(&[("a", 1), ("b", 2)])),
        (bundle("other"), content(&[("b", 2), ("c", 3)])),
        (service("c"), object("c", 4)),
        (service("d"), object("d", 5)),
    ];
    let sources: Vec<_> = states
        .iter()
        .map(|(source, body)| {
            let source = source.clone();
            (
                source,
                Source {
                    labels: BTreeMap::new(),
                    body: body.clone(),
                },
            )
        })
        .collect();
    let scratch = plan(
        &rule,
        sources.iter().map(|(a, b)| (a, b)),
        &HubScope::Everywhere,
        |_| true,
    );
    let mut changed = RulePlan::empty(&rule);
    for (source, body) in states.iter().rev() {
        changed.set(source, Some(&content(&[("x", 9)])));
        changed.set(source, Some(body));
    }
    assert_eq!(sent(&changed), ["a", "d"]);
    assert!(changed.has_equal_content(&scratch));
    assert!(changed.changed_since(&scratch).is_empty());
    changed.set(&bundle("app"), Some(&content(&[("a", 1)])));
    assert_eq!(changed.changed_since(&scratch), [bundle("app")]);
    assert!(!changed.has_equal_content(&scratch));
}

#[test]
fn copies_of_manifests_are_shaped_one_by_one() {
    let rule = rule(json!({
        "transform": {"name": "${bundle.name}-${source.name}"},
        "overrides": [{
            "clusters": {"names": ["eu"]}, "names": ["a"],
            "jsonPatch": [{"op": "replace", "path": "/spec/ports", "value": [{"port": 9}]}],
        }],
    }));
    let mut selection = RulePlan::empty(&rule);
    selection.set(
        &bundle("app"),
        Some(&content(&[("a", 1), ("b", 2), ("", 3)])),
    );
    let clusters = ["eu", "us"].map(|name| (name.into(), Arc::default()));
    let hasher = RevisionHasher::default();
    let mut plans = ClusterPlans::new(&rule, &selection, clusters.into_iter(), &hasher);
    let copies = |plans: &ClusterPlans, cluster: &str| -> Vec<(String, u64)> {
        let plan = plans.plan_of(&cluster.into()).unwrap();
        let port = |content: &SourceContent| {
            let content = content.payload.decode().unwrap();
            content.fields["spec"]["ports"][0]["port"].as_u64().unwrap()
        };
        let copies = plan.intents.iter();
        copies
            .map(|(intent, content)| (intent.copy_name().to_string(), port(content)))
            .collect()
    };
    assert_eq!(
        copies(&plans, "eu"),
        [("app-a".to_owned(), 9), ("app-b".to_owned(), 2)]
    );
    assert_eq!(
        copies(&plans, "us"),
        [("app-a".to_owned(), 1), ("app-b".to_owned(), 2)]
    );
    let plan = plans.plan_of(&"eu".into()).unwrap();
    assert!(plan.render_errors.contains_key(&bundle("app")));
    assert!(plan.is_unknown(&service("gone").as_copy("app-gone")));
    let touched = selection.set(&bundle("app"), Some(&content(&[("b", 4)])));
    plans.update(&rule, &selection, &touched, &hasher);
    assert_eq!(copies(&plans, "eu"), [("app-b".to_owned(), 4)]);
    let plan = plans.plan_of(&"eu".into()).unwrap();
    assert!(plan.render_errors.is_empty() && !plan.is_unknown(&service("a").as_copy("app-a")));
    let touched = selection.set(&bundle("app"), Some(&SourceState::Unread));
    plans.update(&rule, &selection, &touched, &hasher);
    let plan = plans.plan_of(&"eu".into()).unwrap();
    assert!(plan.intents.is_empty() && plan.is_unknown(&service("b").as_copy("app-b")));
}

#[test]
fn name_of_a_bundle_is_no_variable_of_other_sources() {
    let rule = rule(json!({"transform": {"name": "${bundle.name}-${source.name}"}}));
    let mut selection = RulePlan::empty(&rule);
    selection.set(&service("a"), Some(&object("a", 1)));
    let plans = ClusterPlans::new(
        &rule,
        &selection,
        std::iter::empty(),
        &RevisionHasher::default(),
    );
    let plan = plans.plan_of(&"eu".into()).unwrap();
    assert!(plan.intents.is_empty());
    assert!(
        plan.render_errors[&service("a")]
            .message
            .contains("${bundle.name} is set only for")
    );
}

#[test]
fn only_cluster_rule_sends_manifests_without_namespaces() {
    let space = SourceRef::new("namespaces", "", "a");
    let mut plan = RulePlan::empty(&cluster_rule());
    plan.set(&bundle("app"), Some(&with_namespace("a")));
    assert!(plan.intents.contains_key(&space) && plan.intents.contains_key(&service("a")));
    assert_eq!(plan.bundle_of(&space), Some(&bundle("app")));
    assert_eq!((plan.sources(), plan.render_errors.len()), (2, 0));
    let mut plan = RulePlan::empty(&rule(json!({})));
    plan.set(&bundle("app"), Some(&with_namespace("a")));
    assert_eq!((sent(&plan), plan.sources()), (vec!["a".to_owned()], 2));
    assert!(!plan.intents.contains_key(&space) && plan.is_unknown(&space));
    let error = &plan.render_errors[&space];
    assert_eq!(error.why, RenderErrorKind::Object);
    assert!(
        error.message.contains("(Namespace a)")
            && error.message.contains("ClusterDistributionRule"),
        "{}",
        error.message
    );
    plan.set(&bundle("app"), Some(&content(&[("a", 1)])));
    assert!(plan.render_errors.is_empty());
}

#[test]
fn object_without_namespace_stays_while_a_bundle_is_unknown() {
    let (space, other) = (
        SourceRef::new("namespaces", "", "gone"),
        SourceRef::new(BUNDLE_KIND, "other", "app"),
    );
    let rule = cluster_rule();
    for state in [SourceState::Unread, SourceState::Unreadable] {
        let mut plan = RulePlan::empty(&rule);
        plan.set(&bundle("app"), Some(&with_namespace("a")));
        assert!(!plan.is_unknown(&space));
        plan.set(&other, Some(&state));
        assert!(plan.is_unknown(&space));
        assert!(!plan.is_unknown(&service("gone")), "another namespace");
    }
    let some = ["other".to_owned(), "team".to_owned()];
    let scope = HubScope::new(some);
    let unlisted = WatchScope::in_namespace(BUNDLE_KIND, "other");
    let unlisted = plan(&rule, std::iter::empty(), &scope, |at| *at != unlisted);
    assert!(unlisted.is_unknown(&space) && !unlisted.is_unknown(&service("gone")));
    assert!(!plan(&rule, std::iter::empty(), &scope, |_| true).is_unknown(&space));
}

#[test]
fn manifest_in_bundles_of_two_namespaces_is_sent_by_neither() {
    let space = SourceRef::new("namespaces", "", "a");
    let mut plan = RulePlan::empty(&cluster_rule());
    let other = SourceRef::new(BUNDLE_KIND, "other", "app");
    plan.set(&bundle("app"), Some(&with_namespace("a")));
    plan.set(&other, Some(&with_namespace("a")));
    assert!(!plan.intents.contains_key(&space));
    assert_eq!(plan.render_errors[&space].why, RenderErrorKind::Ambiguous);
}
