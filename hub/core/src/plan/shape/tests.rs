use proptest::prelude::*;
use runnel_proto::model::{ClusterName, Payload, SourceRef};
use serde_json::json;

use super::super::{
    ClusterPlans, RevisionHasher, Rule, RulePlan, SecretRefs, SourceContent, SourceState,
};
use super::valid::CONTENT_LIMIT;
use super::*;
use data_encoding::BASE64;

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
        bundle: None,
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
            && message.contains("overrides[0].jsonPatch")
            && message.contains("step 0 (remove /data/absent) fails"),
        "{message}"
    );
    for path in ["/metadata/name", "/spec", "/data/a/b", "", "data/a"] {
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

/// A Deployment with two containers.
fn deployment() -> Content {
    let spec = json!({
        "replicas": 2, "paused": false,
        "template": {"spec": {"containers": [
            {"name": "app", "image": "${cluster.labels.registry:-hub}/app:1", "args": ["--at=${cluster.name}"]},
            {"name": "debug", "image": "debug:1"},
        ]}},
    });
    Content {
        fields: [("spec".to_owned(), spec)].into(),
        ..Content::default()
    }
}

fn deployed(spec: Value) -> Result<Value, RenderError> {
    let made = shape(spec, "deployments.apps", deployment(), &[("tier", "gold")])?;
    Ok(made.1["fields"].clone())
}

fn unfit(spec: Value) -> String {
    let render_error = deployed(spec).err().unwrap();
    assert_eq!(render_error.why, RenderErrorKind::Transform);
    let message = render_error.message.to_string();
    assert!(message.contains("deployments.apps/team/app"), "{message}");
    message
}

fn overridden(change: Value) -> Value {
    let mut entry = json!({"clusters": {"all": true}});
    entry
        .as_object_mut()
        .unwrap()
        .extend(change.as_object().unwrap().clone());
    json!({"overrides": [entry]})
}

#[test]
fn any_kind_is_patched_by_merge_and_by_steps() {
    let merged = overridden(json!({
        "mergePatch": {"spec": {"replicas": 5, "paused": null, "strategy": {"type": "Recreate"}}},
        "jsonPatch": [
            {"op": "test", "path": "/spec/replicas", "value": 5},
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "app:2"},
            {"op": "remove", "path": "/spec/template/spec/containers/1"},
            {"op": "add", "path": "/spec/extra", "value": null},
        ],
    }));
    let expected = json!({"spec": {
        "replicas": 5, "strategy": {"type": "Recreate"}, "extra": null,
        "template": {"spec": {"containers": [{"name": "app", "image": "app:2", "args": ["--at=${cluster.name}"]}]}},
    }});
    assert_eq!(deployed(merged.clone()).unwrap(), expected);
    assert_eq!(deployed(merged).unwrap(), expected);
    let data = config_map(
        overridden(json!({"mergePatch": {"data": {"level": "debug", "old": null}}})),
        json!({"level": "info", "old": "x", "same": "y"}),
    );
    assert_eq!(data, json!({"level": "debug", "same": "y"}));
    let all = overridden(json!({"mergePatch": {"spec": null}}));
    assert_eq!(deployed(all).unwrap(), Value::Null, "no field is left");
}

#[test]
fn override_applies_to_the_named_kinds_and_sources() {
    let scaled = |choice: Value| {
        let mut spec = overridden(json!({"mergePatch": {"spec": {"replicas": 5}}}));
        spec["overrides"][0]
            .as_object_mut()
            .unwrap()
            .extend(choice.as_object().unwrap().clone());
        deployed(spec).unwrap()["spec"]["replicas"] == 5
    };
    for (choice, applies) in [
        (json!({"resources": ["deployments.apps"]}), true),
        (
            json!({"resources": ["configmaps", "deployments.apps"], "names": ["a*"]}),
            true,
        ),
        (json!({"resources": ["configmaps"]}), false),
        (json!({"names": ["app"]}), true),
        (
            json!({"resources": ["deployments.apps"], "names": ["web"]}),
            false,
        ),
    ] {
        assert_eq!(scaled(choice.clone()), applies, "{choice}");
    }
    // A value in the rule reaches no Secret, and no value of a Secret another kind.
    let for_others = json!({"overrides": [
        {"clusters": {"all": true}, "resources": ["configmaps"], "data": {"k": "v"}},
        {"clusters": {"all": true}, "resources": ["secrets"], "secretData": [{"key": "k", "valueFrom": {"secretKeyRef": {"name": "x", "key": "k"}}}]},
    ]});
    let data = config_map(for_others.clone(), json!({"a": "1"}));
    assert_eq!(data, json!({"a": "1", "k": "v"}));
    assert_eq!(
        refused(for_others, "secrets", secret("Opaque", json!({}))).0,
        RenderErrorKind::Value
    );
}

#[test]
fn patch_that_does_not_fit_names_field_and_step() {
    let step = |step: Value| {
        overridden(
            json!({"jsonPatch": [{"op": "test", "path": "/spec/replicas", "value": 2}, step]}),
        )
    };
    for (wrong, expected) in [
        (
            step(json!({"op": "test", "path": "/spec/replicas", "value": 3})),
            "step 1 (test /spec/replicas) fails: another value",
        ),
        (
            step(json!({"op": "replace", "path": "/spec/x/y", "value": 3})),
            "step 1 (replace /spec/x/y) fails: the path",
        ),
        (
            step(json!({"op": "copy", "path": "/spec/x", "from": "/spec/y"})),
            "step 1 (copy /spec/x) fails: from",
        ),
        (
            step(json!({"op": "move", "path": "/spec/template/x", "from": "/spec/template"})),
            "cannot move into itself",
        ),
        (
            step(json!({"op": "add", "path": "/spec/template/spec/containers/7", "value": 3})),
            "containers/7) fails",
        ),
        (
            step(json!({"op": "add", "path": "/spec/x"})),
            "step 1: add needs a value",
        ),
        (
            step(json!({"op": "move", "path": "/spec/x"})),
            "step 1: move needs from",
        ),
        (
            step(json!({"op": "add", "path": "/metadata/labels/x", "value": "y"})),
            "step 1 (/metadata/labels/x): metadata cannot",
        ),
        (
            step(json!({"op": "copy", "path": "/spec/x", "from": "/status"})),
            "step 1 (/status): status cannot be patched",
        ),
        (
            overridden(json!({"mergePatch": {"metadata": {"labels": {"a": "b"}}}})),
            "mergePatch does not fit deployments.apps/team/app: metadata",
        ),
        (
            overridden(json!({"mergePatch": {"kind": "Job"}})),
            "kind cannot be patched",
        ),
        (
            overridden(json!({"data": {"k": "v"}})),
            "spec.overrides[0].data",
        ),
    ] {
        let message = unfit(wrong);
        assert!(
            message.contains("spec.overrides[0]") && message.contains(expected),
            "{message}"
        );
    }
    let foreign = overridden(json!({"mergePatch": {"spec": {"a": 1}}}));
    let (_, message) = refused(foreign, "configmaps", content(json!({})));
    assert!(message.contains("no field spec"), "{message}");
    for values in [
        json!({"mergePatch": {"data": {"a": "s3cret"}}}),
        json!({"mergePatch": {"type": "x"}}),
    ] {
        let (why, message) = refused(overridden(values), "secrets", secret("Opaque", json!({})));
        assert!(
            why == RenderErrorKind::Transform && message.contains("what belongs into a Secret"),
            "{message}"
        );
        assert!(!message.contains("s3cret"), "{message}");
    }
}

#[test]
fn patch_cannot_grow_a_copy_beyond_its_bounds() {
    let text = "x".repeat(CONTENT_LIMIT / 4);
    let grow = |doublings: usize| {
        let mut steps = vec![json!({"op": "add", "path": "/spec", "value": {"a": text}})];
        steps.extend((0..doublings).map(
            |number| json!({"op": "copy", "from": "/spec", "path": format!("/copy{number}")}),
        ));
        deployed(overridden(json!({"jsonPatch": steps})))
    };
    assert!(grow(2).is_ok());
    let large = grow(3).unwrap_err();
    assert!(
        large.why == RenderErrorKind::Object && large.message.contains("1572864"),
        "{}",
        large.message
    );
    let doubled: Vec<_> = (0..64)
        .map(|number| json!({"op": "copy", "from": "/spec", "path": format!("/spec/x{number}")}))
        .collect();
    let endless = unfit(overridden(json!({"jsonPatch": doubled})));
    assert!(endless.contains("makes it too large"), "{endless}");
    // What is added and removed again counts, too.
    let steps = [
        json!({"op": "add", "path": "/spec/x", "value": text}),
        json!({"op": "remove", "path": "/spec/x"}),
    ];
    let repeated: Vec<_> = std::iter::repeat_n(steps, 9).flatten().collect();
    assert!(unfit(overridden(json!({"jsonPatch": repeated}))).contains("makes it too large"));
    let deep = (0..101).fold(json!(1), |value, _| json!({"a": value}));
    let deep = deployed(overridden(json!({"mergePatch": {"spec": deep}}))).unwrap_err();
    assert!(
        deep.why == RenderErrorKind::Object && deep.message.contains("100 levels"),
        "{}",
        deep.message
    );
}

#[test]
fn named_fields_are_removed_and_absent_ones_passed_over() {
    let removed = json!({"transform": {"removeFields": [
        "/spec/replicas", "/spec/template/spec/containers/[name=debug]", "/spec/absent/x", "/spec/ports/[name=web]/x",
    ]}});
    let fields = deployed(removed.clone()).unwrap();
    assert_eq!(fields["spec"].get("replicas"), None);
    assert_eq!(
        fields["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(fields["spec"]["paused"], false);
    assert_eq!(
        config_map(
            json!({"transform": {"removeFields": ["/data/a"]}}),
            json!({"a": "1", "b": "2"})
        ),
        json!({"b": "2"})
    );
    let secret = secret("Opaque", json!({"a": "eA==", "b": "eA=="}));
    let spec = json!({"transform": {"removeFields": ["/data/a"]}});
    let (_, made) = shape(spec, "secrets", secret, &[]).unwrap();
    assert_eq!(made["fields"]["data"], json!({"b": "eA=="}));
    for wrong in ["/spec/ports/0", "/metadata/name", "spec"] {
        let message = unfit(json!({"transform": {"removeFields": [wrong]}}));
        assert!(
            message.contains("spec.transform.removeFields") && message.contains(wrong),
            "{message}"
        );
    }
    let rule = rule(removed);
    let missing = |content: &Content| {
        let (named, found) = (rule.shape.named_keys(), rule.shape.found_keys(content));
        let missing = named
            .iter()
            .enumerate()
            .filter(|(at, _)| !found.contains(at));
        missing
            .map(|(_, named)| named.key.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        missing(&deployment()),
        ["/spec/absent/x", "/spec/ports/[name=web]/x"]
    );
}

#[test]
fn variables_fill_texts_below_named_fields_once() {
    let filled = |fields: Value| deployed(json!({"substitute": {"fields": fields}}));
    let containers = |made: Value| made["spec"]["template"]["spec"]["containers"].clone();
    let all = containers(filled(json!(["/spec", "/spec/template"])).unwrap());
    assert_eq!(
        all[0],
        json!({"name": "app", "image": "hub/app:1", "args": ["--at=eu-1"]})
    );
    let image = filled(json!(["/spec/template/spec/containers/[name=app]/image"])).unwrap();
    assert_eq!(
        containers(image)[0]["args"],
        json!(["--at=${cluster.name}"])
    );
    let none = filled(json!(["/spec/template/spec/containers/[name=debug]"])).unwrap();
    assert_eq!(none["spec"], deployment().fields["spec"]);

    let fails = |text: &str| {
        let mut content = deployment();
        content.fields.insert(
            "spec".to_owned(),
            json!({"list": [{"a/b": text, "${cluster.name}": 1}]}),
        );
        let spec = json!({"substitute": {"fields": ["/spec"]}});
        shape(spec, "deployments.apps", content, &[]).map(|made| made.1["fields"]["spec"].clone())
    };
    assert_eq!(
        fails("$${HOME}").unwrap(),
        json!({"list": [{"a/b": "${HOME}", "${cluster.name}": 1}]}),
        "a name of a field is never filled, and no text twice"
    );
    let unknown = fails("${HOME}").unwrap_err();
    assert!(
        unknown.why == RenderErrorKind::Variable
            && unknown
                .message
                .contains("/spec/list/0/a~1b of deployments.apps/team/app: ${HOME} is unknown"),
        "{}",
        unknown.message
    );
    let many = "${cluster.labels.long}".repeat(2000);
    let labels = [("long", &*"x".repeat(1000))];
    let mut content = deployment();
    content.fields.insert("spec".to_owned(), json!(many));
    let spec = json!({"substitute": {"fields": ["/spec"]}});
    let long = shape(spec, "deployments.apps", content, &labels).unwrap_err();
    assert!(
        long.why == RenderErrorKind::Object && long.message.contains("longer than an object"),
        "{}",
        long.message
    );
}

#[test]
fn fields_of_data_are_filled_once_and_never_in_secrets() {
    let text = "${cluster.name} $${x}";
    let both = json!({"substitute": {"keys": ["a*"], "fields": ["/data"]}});
    let data = config_map(both.clone(), json!({"a.yaml": text, "b": text}));
    assert_eq!(data, json!({"a.yaml": "eu-1 ${x}", "b": "eu-1 ${x}"}));
    let one = json!({"substitute": {"fields": ["/data/b"]}});
    let data = config_map(one, json!({"a.yaml": text, "b": text}));
    assert_eq!(data, json!({"a.yaml": text, "b": "eu-1 ${x}"}));
    let (why, message) = refused(both, "secrets", secret("Opaque", json!({})));
    assert!(
        why == RenderErrorKind::Transform && message.contains("spec.substitute.keys"),
        "{message}"
    );
}

#[test]
fn cluster_properties_in_filled_fields_are_noted() {
    let shape = rule(json!({"substitute": {"fields": ["/spec/template"]}}))
        .shape
        .clone();
    let source = SourceRef::new("deployments.apps", "team", "app");
    let mut expected = TemplateInputs::default();
    expected.note("${cluster.labels.registry} ${cluster.name}");
    assert_eq!(shape.reads(&source, &deployment()), expected);
    let other = rule(json!({"substitute": {"fields": ["/spec/replicas"]}}))
        .shape
        .clone();
    assert_eq!(
        other.reads(&source, &deployment()),
        TemplateInputs::default()
    );
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
    cluster_plans.update(
        &rule,
        &selection,
        &[varying.clone()].into(),
        &RevisionHasher::default(),
    );
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
fn shaped_fields_of_a_cluster_are_named_without_values() {
    let elsewhere = json!({"clusters": {"names": ["us-1"]}, "data": {"other": "secret"}});
    let here = json!({
        "clusters": {"names": ["eu-1"]}, "data": {"level": "secret"}, "remove": ["old"],
        "mergePatch": {"spec": {"replicas": 5, "template": {"a/b": null}}},
        "jsonPatch": [{"op": "test", "path": "/spec/x", "value": 1}, {"op": "add", "path": "/spec/y", "value": 1}],
    });
    let rule = rule(json!({
        "transform": {"name": "n", "labels": {"add": {"example.com/a": "secret"}}, "removeFields": ["/spec/z"]},
        "substitute": {"keys": ["*.yaml"], "fields": ["/spec/template"]},
        "overrides": [elsewhere, here],
    }));
    let source = SourceRef::new("configmaps", "team", "app");
    let shaped = rule.shape.shaped_fields(TemplateContext {
        source: &source,
        bundle: None,
        cluster: &"eu-1".into(),
        labels: &BTreeMap::new(),
    });
    let shaped: Vec<String> = shaped
        .iter()
        .map(|shaped| format!("{} {}", shaped.field, shaped.by))
        .collect();
    let expected = [
        "/metadata/name spec.transform.name",
        "/metadata/labels/example.com~1a spec.transform.labels.add",
        "/spec/z spec.transform.removeFields",
        "/data/*.yaml spec.substitute.keys",
        "/spec/template spec.substitute.fields",
        "/data/level spec.overrides[1].data",
        "/data/old spec.overrides[1].remove",
        "/spec/replicas spec.overrides[1].mergePatch",
        "/spec/template/a~1b spec.overrides[1].mergePatch",
        "/spec/y spec.overrides[1].jsonPatch",
    ];
    assert_eq!(shaped, expected);
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
        cluster_plans.update(
            &versioned,
            &selection,
            &[source.clone()].into(),
            &RevisionHasher::default(),
        );
        named(&cluster_plans)
    };
    let second = becomes("two");
    assert!(
        first != second && becomes("one") == first,
        "{first} {second}"
    );
    // An unreadable source has no new name, and existing copies stay.
    selection.set(&source, Some(&SourceState::Unreadable));
    cluster_plans.update(
        &versioned,
        &selection,
        &[source.clone()].into(),
        &RevisionHasher::default(),
    );
    let plan = cluster_plans.plan_of(&"c0".into()).unwrap();
    assert!(plan.intents.is_empty() && plan.is_unknown(&source.as_copy(&first)));

    let long = SourceRef::new("configmaps", "team", &"x".repeat(250));
    let about = TemplateContext {
        source: &long,
        bundle: None,
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
                dealt.update(&rule, &selection, &[source.clone()].into(), &RevisionHasher::default());
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
