use proptest::prelude::*;
use runnel_proto::model::{ClusterName, Payload, SourceRef};
use serde_json::json;

use super::super::{
    ClusterPlans, RevisionHasher, Rule, RulePlan, SecretRefs, SourceContent, SourceState,
};
use super::*;

fn rule(spec: Value) -> Rule {
    let mut spec = spec;
    spec["sources"] = json!([{"resources": ["configmaps", "secrets"], "names": ["*"]}]);
    spec["clusters"] = json!({"all": true});
    let object: runnel_api::DistributionRule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r", "namespace": "team", "uid": "r", "generation": 1}, "spec": spec,
    }))
    .unwrap();
    Rule::namespaced(&object, "runnel-system").unwrap()
}

fn content(data: Value) -> Content {
    Content {
        fields: [("data".to_owned(), data)].into(),
        ..Content::default()
    }
}

fn secret(object_type: &str, data: Value) -> Content {
    let fields = [
        ("data".to_owned(), data),
        ("type".to_owned(), json!(object_type)),
    ];
    Content {
        fields: fields.into(),
        ..Content::default()
    }
}

/// Renders an object for a cluster: the name, and the content as JSON.
fn shape(
    spec: Value,
    resource: &str,
    content: Content,
    labels: &[(&str, &str)],
) -> Result<(String, Value), RenderError> {
    let (source, cluster) = (
        SourceRef::new(resource, "team", "app"),
        ClusterName::from("eu-1"),
    );
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let about = TemplateContext {
        source: &source,
        cluster: &cluster,
        labels: &labels,
    };
    let denied = Content {
        labels: [("app.kubernetes.io/instance".to_owned(), "i".to_owned())].into(),
        annotations: [("cert-manager.io/issuer".to_owned(), "ca".to_owned())].into(),
        ..Content::default()
    };
    let shape = rule(spec).shape.clone();
    let name = shape.name(about)?.to_string();
    match shape.content(
        content,
        &denied,
        about,
        &SecretRefs::of(&RulePlan::empty(&rule(json!({})))),
    ) {
        Ok(made) => Ok((name, serde_json::to_value(made).unwrap())),
        Err(ShapeError::Failed(render_error)) => Err(render_error),
        Err(ShapeError::Awaited) => panic!("nothing is being read"),
    }
}

fn config_map(spec: Value, data: Value) -> Value {
    shape(spec, "configmaps", content(data), &[("tier", "gold")])
        .unwrap()
        .1["fields"]["data"]
        .clone()
}

fn refused(spec: Value, resource: &str, content: Content) -> (RenderErrorKind, String) {
    let Err(render_error) = shape(spec, resource, content, &[]) else {
        panic!("it is not refused")
    };
    assert!(
        render_error.message.contains("team/app") || render_error.why == RenderErrorKind::Transform,
        "{}",
        render_error.message
    );
    (render_error.why, render_error.message.to_string())
}

#[test]
fn copies_are_renamed_by_the_rule_or_not_sent() {
    let named = |name: &str| {
        shape(
            json!({"transform": {"name": name}}),
            "configmaps",
            content(json!({})),
            &[],
        )
    };
    assert_eq!(
        named("${source.name}-${cluster.name}").unwrap().0,
        "app-eu-1"
    );
    assert_eq!(
        named("${source.namespace}.${cluster.labels.tier:-none}")
            .unwrap()
            .0,
        "team.none"
    );
    assert_eq!(
        named("${cluster.labels.tier}").err().unwrap().why,
        RenderErrorKind::Variable
    );
    for bad in ["${source.name}_x", "A", "-x", "kube-root-ca.crt"] {
        assert_eq!(
            named(bad).err().unwrap().why,
            RenderErrorKind::Name,
            "{bad}"
        );
    }
}

#[test]
fn keys_are_chosen_renamed_and_never_lost_by_a_collision() {
    let keys = |keys: Value| json!({"transform": {"keys": keys}});
    let data = json!({"a.yaml": "1", "b.yaml": "2", "secret.key": "3"});
    assert_eq!(
        config_map(keys(json!({"include": ["*.yaml"]})), data.clone()),
        json!({"a.yaml": "1", "b.yaml": "2"})
    );
    let renamed =
        keys(json!({"exclude": ["secret.*"], "rename": {"a.yaml": "app.yaml", "absent": "x"}}));
    assert_eq!(
        config_map(renamed, data.clone()),
        json!({"app.yaml": "1", "b.yaml": "2"})
    );
    let swapped = keys(json!({"rename": {"a.yaml": "b.yaml", "b.yaml": "a.yaml"}}));
    assert_eq!(config_map(swapped, data.clone())["a.yaml"], "2");
    let (why, message) = refused(
        keys(json!({"rename": {"a.yaml": "b.yaml"}})),
        "configmaps",
        content(data),
    );
    assert!(
        why == RenderErrorKind::Transform
            && message.contains("b.yaml")
            && message.contains("configmaps/team/app"),
        "{message}"
    );
    let mut both = content(json!({"a": "1"}));
    both.fields
        .insert("binaryData".to_owned(), json!({"b": "eA=="}));
    assert_eq!(
        refused(keys(json!({"rename": {"b": "a"}})), "configmaps", both).0,
        RenderErrorKind::Transform
    );
}

#[test]
fn labels_and_annotations_are_added_dropped_and_allowed() {
    let spec = json!({"transform": {
        "labels": {"add": {"team": "x"}, "drop": ["internal/*"], "allow": ["app.kubernetes.io/*"]},
        "annotations": {"allow": ["cert-manager.io/*"], "drop": ["note"]},
    }});
    let mut object = content(json!({}));
    object.labels = [
        ("internal/a".to_owned(), "1".to_owned()),
        ("kept".to_owned(), "1".to_owned()),
    ]
    .into();
    object.annotations = [("note".to_owned(), "1".to_owned())].into();
    let (_, made) = shape(spec, "configmaps", object, &[]).unwrap();
    assert_eq!(
        made["labels"],
        json!({"kept": "1", "team": "x", "app.kubernetes.io/instance": "i"})
    );
    assert_eq!(made["annotations"], json!({"cert-manager.io/issuer": "ca"}));
    for bad in [
        json!({"runnel.dev/hub": "x"}),
        json!({"app.kubernetes.io/managed-by": "x"}),
    ] {
        let spec = json!({"transform": {"labels": {"add": bad}}});
        assert_eq!(
            refused(spec, "configmaps", content(json!({}))).0,
            RenderErrorKind::Transform
        );
    }
    for bad in [json!({"a/b/c": "x"}), json!({"a": "no value!"})] {
        let spec = json!({"transform": {"labels": {"add": bad}}});
        assert_eq!(
            refused(spec, "configmaps", content(json!({}))).0,
            RenderErrorKind::Object
        );
    }
}

#[test]
fn variables_fill_named_keys_and_values_never_leak() {
    let spec = json!({"substitute": {"keys": ["app.*"]}});
    let text = "${cluster.name} ${cluster.labels.tier} ${cluster.labels.zone:-a} ${source.namespace} $${x}";
    let data = config_map(spec.clone(), json!({"app.yaml": text, "other": text}));
    assert_eq!(
        data,
        json!({"app.yaml": "eu-1 gold a team ${x}", "other": text})
    );
    let (why, message) = refused(
        spec.clone(),
        "configmaps",
        content(json!({"app.yaml": "${HOME}"})),
    );
    assert!(
        why == RenderErrorKind::Variable
            && message.contains("app.yaml")
            && message.contains("${HOME}"),
        "{message}"
    );
    let (_, message) = refused(
        spec.clone(),
        "configmaps",
        content(json!({"app.yaml": "${cluster.labels.tier}"})),
    );
    assert!(message.contains("no label tier"), "{message}");

    let encode = |text: &str| json!({"app.key": BASE64.encode(text.as_bytes())});
    let (_, made) = shape(
        spec.clone(),
        "secrets",
        secret("Opaque", encode("at ${cluster.name}")),
        &[],
    )
    .unwrap();
    assert_eq!(made["fields"]["data"], encode("at eu-1"));
    for text in ["${s3cret}", "${cluster.labels.s3cret}", "${s3cret"] {
        let (_, message) = refused(spec.clone(), "secrets", secret("Opaque", encode(text)));
        assert!(!message.contains("s3cret"), "{message}");
    }
    let binary = secret("Opaque", json!({"app.key": BASE64.encode(&[0xff, 0xfe])}));
    assert_eq!(
        refused(spec, "secrets", binary).0,
        RenderErrorKind::Transform
    );
}

#[test]
fn overrides_apply_in_order_in_named_clusters() {
    let spec = |overrides: Value| json!({"overrides": overrides});
    let gold = json!({"selector": {"matchLabels": {"tier": "gold"}}});
    let all = spec(json!([
        {"clusters": {"all": true}, "data": {"level": "info", "new": "1"}},
        {"clusters": gold, "data": {"level": "debug"}, "remove": ["old"]},
        {"clusters": {"names": ["other"]}, "data": {"level": "none"}},
        {"clusters": gold, "jsonPatch": [
            {"op": "test", "path": "/data/level", "value": "debug"},
            {"op": "move", "from": "/data/new", "path": "/data/moved"},
        ]},
    ]));
    let data = json!({"level": "warn", "old": "x", "same": "y"});
    assert_eq!(
        config_map(all, data.clone()),
        json!({"level": "debug", "same": "y", "moved": "1"})
    );
    let fails = spec(
        json!([{"clusters": {"all": true}, "jsonPatch": [{"op": "remove", "path": "/data/absent"}]}]),
    );
    let (why, message) = refused(fails, "configmaps", content(data.clone()));
    assert!(
        why == RenderErrorKind::Transform
            && message.contains("overrides[0]")
            && message.contains("step 0"),
        "{message}"
    );
    for path in ["/metadata/name", "/data", "/data/a/b"] {
        let spec = spec(
            json!([{"clusters": {"all": true}, "jsonPatch": [{"op": "add", "path": path, "value": "x"}]}]),
        );
        assert_eq!(
            refused(spec, "configmaps", content(data.clone())).0,
            RenderErrorKind::Transform,
            "{path}"
        );
    }
    let literal = spec(json!([{"clusters": {"all": true}, "data": {"password": "s3cret"}}]));
    let (_, message) = refused(literal, "secrets", secret("Opaque", json!({})));
    assert!(!message.contains("s3cret"), "{message}");
}

#[test]
fn content_a_member_would_refuse_is_not_sent() {
    let tls = secret(
        "kubernetes.io/tls",
        json!({"tls.crt": "eA==", "tls.key": "eA=="}),
    );
    let spec = json!({"transform": {"keys": {"exclude": ["tls.key"]}}});
    let (why, message) = refused(spec, "secrets", tls.clone());
    assert!(
        why == RenderErrorKind::Object
            && message.contains("tls.key")
            && message.contains("secrets/team/app"),
        "{message}"
    );
    let opaque = json!({"transform": {"keys": {"include": ["tls.crt"]}, "secretType": "Opaque"}});
    assert_eq!(
        shape(opaque, "secrets", tls, &[]).unwrap().1["fields"]["type"],
        "Opaque"
    );
    let typed = json!({"transform": {"secretType": "kubernetes.io/basic-auth"}});
    assert_eq!(
        refused(
            typed.clone(),
            "secrets",
            secret("Opaque", json!({"x": "eA=="}))
        )
        .0,
        RenderErrorKind::Object
    );
    // A type is for Secrets only.
    assert!(shape(typed, "configmaps", content(json!({"x": "1"})), &[]).is_ok());
}

fn body(text: &str) -> SourceState {
    let content = content(json!({"app.yaml": text, "other": "x"}));
    let canonical = content.to_bytes();
    let revision = runnel_proto::model::RevisionKey::new(b"key").revision("configmaps", &canonical);
    SourceState::Read(SourceContent::new(revision, Payload::encode(canonical)).into())
}

fn fleet(tiers: &[Option<&str>]) -> Vec<(ClusterName, BTreeMap<String, String>)> {
    let labels = |tier: &Option<&str>| {
        tier.iter()
            .map(|tier| ("tier".to_owned(), (*tier).to_owned()))
            .collect()
    };
    tiers
        .iter()
        .enumerate()
        .map(|(at, tier)| (format!("c{at}").as_str().into(), labels(tier)))
        .collect()
}

fn cluster_plans(
    rule: &Rule,
    selection: &RulePlan,
    fleet: &[(ClusterName, BTreeMap<String, String>)],
) -> ClusterPlans {
    let clusters = fleet
        .iter()
        .map(|(name, labels)| (name.clone(), Arc::new(labels.clone())));
    ClusterPlans::new(rule, selection, clusters, &RevisionHasher::default())
}

#[test]
fn clusters_with_equal_outcome_share_a_plan() {
    let rule = rule(json!({"substitute": {"keys": ["app.yaml"]}}));
    let mut selection = RulePlan::empty(&rule);
    let (varying, fixed) = (
        SourceRef::new("configmaps", "team", "v"),
        SourceRef::new("configmaps", "team", "f"),
    );
    selection.set(&varying, Some(&body("${cluster.labels.tier:-none}")));
    selection.set(&fixed, Some(&body("always")));
    let mut fleet = fleet(&[Some("gold"), Some("gold"), None, Some("none"), Some("iron")]);
    let mut cluster_plans = cluster_plans(&rule, &selection, &fleet);
    assert_eq!(cluster_plans.outcomes(), 3);
    let plan = |cluster_plans: &ClusterPlans, at: usize| {
        cluster_plans
            .plan_of(&format!("c{at}").as_str().into())
            .unwrap()
            .clone()
    };
    assert!(
        Arc::ptr_eq(&plan(&cluster_plans, 0), &plan(&cluster_plans, 1))
            && Arc::ptr_eq(&plan(&cluster_plans, 2), &plan(&cluster_plans, 3))
    );
    assert!(Arc::ptr_eq(
        &plan(&cluster_plans, 0).intents[&fixed],
        &plan(&cluster_plans, 4).intents[&fixed]
    ));
    assert!(
        plan(&cluster_plans, 0).intents[&varying].revision
            != plan(&cluster_plans, 4).intents[&varying].revision
    );
    // A relabeled cluster gets the content of the others with that label.
    fleet[4].1.insert("tier".to_owned(), "gold".to_owned());
    let labels = Some(&fleet[4].1);
    assert!(cluster_plans.set_cluster(
        &rule,
        &selection,
        &"c4".into(),
        labels,
        &RevisionHasher::default()
    ));
    assert!(
        Arc::ptr_eq(&plan(&cluster_plans, 0), &plan(&cluster_plans, 4))
            && cluster_plans.outcomes() == 2
    );
    assert!(!cluster_plans.set_cluster(
        &rule,
        &selection,
        &"c4".into(),
        labels,
        &RevisionHasher::default()
    ));
    // Where nothing varies any more, all share one plan.
    selection.set(&varying, Some(&body("the same")));
    cluster_plans.update(&rule, &selection, &varying, &RevisionHasher::default());
    assert_eq!(cluster_plans.outcomes(), 1);
}

#[test]
fn failure_for_one_cluster_affects_no_other() {
    let rule = rule(json!({"substitute": {"keys": ["app.yaml"]}}));
    let mut selection = RulePlan::empty(&rule);
    let (good, bad) = (
        SourceRef::new("configmaps", "team", "good"),
        SourceRef::new("configmaps", "team", "bad"),
    );
    selection.set(&good, Some(&body("fixed")));
    selection.set(&bad, Some(&body("${cluster.labels.tier}")));
    let cluster_plans = cluster_plans(&rule, &selection, &fleet(&[Some("gold"), None]));
    let (with, without) = (
        cluster_plans.plan_of(&"c0".into()).unwrap(),
        cluster_plans.plan_of(&"c1".into()).unwrap(),
    );
    assert_eq!((with.intents.len(), with.render_errors.len()), (2, 0));
    assert_eq!((without.intents.len(), without.render_errors.len()), (1, 1));
    // Existing copies stay, under any name.
    assert!(
        without.is_unknown(&bad)
            && without.is_unknown(&bad.as_copy("else"))
            && !without.is_unknown(&good)
    );
}

#[test]
fn copies_are_named_by_content_with_versioned_names() {
    let versioned =
        rule(json!({"transform": {"name": "${source.name}-v", "versionedName": {"keep": 3}}}));
    assert_eq!(versioned.terms.versions, Some(3));
    let source = SourceRef::new("configmaps", "team", "app");
    let mut selection = RulePlan::empty(&versioned);
    selection.set(&source, Some(&body("one")));
    let mut cluster_plans = cluster_plans(&versioned, &selection, &fleet(&[None, None]));
    let named = |cluster_plans: &ClusterPlans| {
        let plan = cluster_plans.plan_of(&"c0".into()).unwrap();
        assert_eq!(plan.intents.len(), 1);
        plan.intents.keys().next().unwrap().copy_name().to_owned()
    };
    let first = named(&cluster_plans);
    assert!(
        first.starts_with("app-v-") && first.len() == "app-v-".len() + 10,
        "{first}"
    );
    let mut becomes = |text: &str| {
        selection.set(&source, Some(&body(text)));
        cluster_plans.update(&versioned, &selection, &source, &RevisionHasher::default());
        named(&cluster_plans)
    };
    let second = becomes("two");
    assert!(
        first != second && becomes("one") == first,
        "{first} {second}"
    );
    // An unreadable source has no new name, and existing copies stay.
    selection.set(&source, Some(&SourceState::Unreadable));
    cluster_plans.update(&versioned, &selection, &source, &RevisionHasher::default());
    let plan = cluster_plans.plan_of(&"c0".into()).unwrap();
    assert!(plan.intents.is_empty() && plan.is_unknown(&source.as_copy(&first)));

    let long = SourceRef::new("configmaps", "team", &"x".repeat(250));
    let about = TemplateContext {
        source: &long,
        cluster: &"c".into(),
        labels: &BTreeMap::new(),
    };
    let render_error = versioned.shape.name(about).unwrap_err();
    assert!(
        render_error.why == RenderErrorKind::Name && render_error.message.contains("shorter"),
        "{}",
        render_error.message
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Single edits and label changes give the same as a new plan.
    #[test]
    fn incremental_plans_equal_fresh_ones_in_every_cluster(
        steps in proptest::collection::vec((any::<bool>(), 0..4usize, 0..5usize), 0..30)
    ) {
        let rule = rule(json!({
            "transform": {"name": "${source.name}-${cluster.labels.tier:-none}"}, "substitute": {"keys": ["app.yaml"]},
        }));
        let texts = ["${cluster.labels.tier}", "${cluster.name}", "fixed", "${cluster.labels.tier:-x}"];
        let tiers = [None, Some("gold"), Some("iron"), Some("BAD"), Some("gold")];
        let mut selection = RulePlan::empty(&rule);
        let mut fleet = fleet(&[None, Some("gold"), None, Some("iron")]);
        let mut dealt = cluster_plans(&rule, &selection, &fleet);
        for (edit, at, what) in steps {
            if edit {
                let source = SourceRef::new("configmaps", "team", &format!("s{at}"));
                let body = texts.get(what).map(|text| body(text));
                selection.set(&source, body.as_ref());
                dealt.update(&rule, &selection, &source, &RevisionHasher::default());
            } else {
                let labels = tiers[what].map(|tier| ("tier".to_owned(), tier.to_owned()));
                fleet[at].1 = labels.into_iter().collect();
                let labels = fleet[at].1.clone();
                dealt.set_cluster(&rule, &selection, &fleet[at].0, Some(&labels), &RevisionHasher::default());
            }
        }
        let expected = cluster_plans(&rule, &selection, &fleet);
        prop_assert!(dealt.has_equal_content(&expected));
        prop_assert_eq!(dealt.outcomes(), expected.outcomes());
        for (name, _) in &fleet {
            let (one, two) = (dealt.plan_of(name).unwrap(), expected.plan_of(name).unwrap());
            prop_assert_eq!(one.intents.keys().collect::<Vec<_>>(), two.intents.keys().collect::<Vec<_>>());
            // Every selected source is sent or has an error.
            for source in selection.selected() {
                let sent = one.intents.keys().filter(|intent| intent.plain() == *source).count();
                prop_assert_eq!(sent + usize::from(one.render_errors.contains_key(source)), 1);
            }
        }
    }

    /// No key is lost and none is added unless the rule requires it, and the values are those of
    /// the source.
    #[test]
    fn copy_has_the_keys_of_its_source_but_for_the_rule(
        keys in proptest::collection::btree_map("[a-c]{1,2}", "[x-z]{0,3}", 0..6),
        renames in proptest::collection::btree_map("[a-c]{1,2}", "[a-d]{1,2}", 0..4),
        exclude in proptest::collection::vec("[a-c*]{1,2}", 0..2),
    ) {
        let spec = json!({"transform": {"keys": {"rename": renames, "exclude": exclude}}});
        let excluded = |key: &str| exclude.iter().any(|pattern| Pattern::new(pattern.as_str()).matches(key));
        let renamed: Vec<_> = keys.iter().filter(|(key, _)| !excluded(key)).collect();
        let mut expected = Map::new();
        let mut collides = false;
        for (key, value) in renamed {
            let name = renames.get(key).unwrap_or(key);
            collides |= expected.insert(name.clone(), json!(value)).is_some();
        }
        match shape(spec, "configmaps", content(json!(keys)), &[]) {
            Ok((_, made)) => {
                prop_assert!(!collides);
                let data = made["fields"]["data"].as_object().cloned().unwrap_or_default();
                prop_assert_eq!(data, expected);
            }
            Err(render_error) => prop_assert!(collides && render_error.why == RenderErrorKind::Transform),
        }
    }
}
