use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn rule(uid: usize, spec: &Value) -> Rule {
    let object: runnel_api::ClusterDistributionRule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
        "metadata": {"name": format!("r{uid}"), "uid": format!("r{uid}"), "generation": 1}, "spec": spec,
    }))
    .unwrap();
    Rule::cluster_scoped(&object, "runnel-system").unwrap()
}

fn text(kinds: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(kinds).prop_map(ToOwned::to_owned)
}

fn texts(kinds: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(text(kinds), 0..3)
}

fn requirement() -> impl Strategy<Value = Value> {
    let operator = text(&["In", "NotIn", "Exists", "DoesNotExist"]);
    (text(&["k1", "k2"]), operator, texts(&["v1", "v2"])).prop_map(
        |(key, operator, values)| json!({"key": key, "operator": operator, "values": values}),
    )
}

fn entry() -> impl Strategy<Value = Value> {
    let selector = proptest::option::of(proptest::collection::vec(requirement(), 0..3));
    (
        texts(&["configmaps", "secrets"]),
        texts(&["n1", "n2", "n*", "kube-system"]),
        selector,
        texts(&["s1", "s2", "s*"]),
        texts(&["s1"]),
    )
        .prop_map(|(resources, namespaces, selector, names, exclude)| {
            let mut entry =
                json!({"resources": resources, "namespaces": namespaces, "names": names, "exclude": exclude});
            if let Some(expressions) = selector {
                entry["selector"] = json!({"matchExpressions": expressions});
            }
            entry
        })
}

fn spec() -> impl Strategy<Value = Value> {
    (proptest::collection::vec(entry(), 0..3), any::<bool>()).prop_map(|(sources, takes)| {
        let taken =
            json!([{"key": "k", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}}]);
        let overrides = json!([{"clusters": {"all": true}, "secretData": taken}]);
        let overrides = if takes { overrides } else { json!([]) };
        json!({"sources": sources, "clusters": {"all": true}, "overrides": overrides})
    })
}

fn objects() -> Vec<(SourceRef, BTreeMap<String, String>)> {
    let mut all = Vec::new();
    for resource in ["configmaps", "secrets"] {
        for namespace in ["", "n1", "n2", "n3", "kube-system", "runnel-system"] {
            for name in ["s1", "s2", "s3", "other"] {
                for labels in [
                    &[][..],
                    &[("k1", "v1")],
                    &[("k1", "v2"), ("k2", "v1")],
                    &[("k2", "v3")],
                ] {
                    let labels = labels
                        .iter()
                        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
                    all.push((SourceRef::new(resource, namespace, name), labels.collect()));
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_rule_that_needs_an_object_is_found(steps in proptest::collection::vec((0..6usize, proptest::option::of(spec())), 1..20)) {
        let (mut readers, mut naive) = (RuleLookup::default(), BTreeMap::new());
        for (uid, spec) in steps {
            match spec.map(|spec| rule(uid, &spec)) {
                Some(rule) => {
                    readers.set(&rule);
                    naive.insert(rule.uid.clone(), rule);
                }
                None => {
                    let uid = RuleUid::from(format!("r{uid}"));
                    readers.remove(&uid);
                    naive.remove(&uid);
                }
            }
        }
        for (source, labels) in objects() {
            let asked = readers.of(&source, &labels);
            for (uid, rule) in &naive {
                prop_assert!(!rule.needs(&source, &labels) || asked.contains(uid), "{uid:?} is not asked about {source} {labels:?}");
            }
            prop_assert!(asked.iter().all(|uid| naive.contains_key(uid)));
        }
        for uid in naive.keys() {
            readers.remove(uid);
        }
        prop_assert!(readers.rules.is_empty() && readers.marks.is_empty(), "something is left of rules that are gone");
    }
}

/// Creates many rules.
fn many(spec: impl Fn(usize) -> Value) -> RuleLookup {
    let mut readers = RuleLookup::default();
    for number in 0..1000 {
        readers.set(&rule(number, &spec(number)));
    }
    readers
}

fn asked(readers: &RuleLookup, name: &str, labels: &[(&str, &str)]) -> usize {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    readers
        .of(&SourceRef::new("configmaps", "team", name), &labels)
        .len()
}

#[test]
fn only_rules_that_can_match_are_checked() {
    let by = |choice: Value| {
        let mut source = json!({"resources": ["configmaps"], "namespaces": ["team"]});
        source
            .as_object_mut()
            .unwrap()
            .extend(choice.as_object().unwrap().clone());
        json!({"sources": [source], "clusters": {"all": true}})
    };
    let names = many(|number| by(json!({"names": [format!("s{number}")]})));
    assert_eq!(
        (
            asked(&names, "s7", &[]),
            asked(&names, "else", &[("s7", "s7")])
        ),
        (1, 0)
    );
    // A rule is not looked up by a label that most rules use.
    let labels = many(|number| {
        by(json!({"selector": {"matchLabels": {"app": "all", "rule": number.to_string()}}}))
    });
    assert!(asked(&labels, "s", &[("app", "all"), ("rule", "7")]) <= 2);
    assert!(asked(&labels, "s", &[("app", "all"), ("rule", "none")]) <= 1);
    let keys = many(|number| {
        by(json!({"selector": {"matchExpressions": [
            {"key": "not", "operator": "DoesNotExist"}, {"key": format!("k{number}"), "operator": "Exists"},
        ]}}))
    });
    assert_eq!(
        (
            asked(&keys, "s", &[("k7", "x")]),
            asked(&keys, "s", &[("not", "x")])
        ),
        (1, 0)
    );
    let elsewhere = many(|number| {
        json!({"sources": [{"resources": ["configmaps"], "namespaces": [format!("n{number}")], "names": ["*"]}],
            "clusters": {"all": true}})
    });
    assert_eq!(asked(&elsewhere, "s", &[]), 0);
}
