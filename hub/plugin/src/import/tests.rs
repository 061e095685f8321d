//! Tests of each annotation; the outputs are in `snapshots`.
//!
//! `INSTA_UPDATE=always cargo test -p kubectl-runnel --lib import` rewrites them; read the diff.
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::annotations::{Copier, Id, ObjectMetadata, Objects, read};
use super::choice::{Choice, NamespaceExpression, NamespaceLabels, chosen, chosen_by_both};
use super::report::{self, ReportContext};
use super::rules::{CopyComparison, ImportReport, ImportTarget, ObjectContents, imported_rules};
use runnel_api::{DistributionRule, LabelSelector};

const REPLICATOR: &str = "replicator.v1.mittwald.de/";
const REFLECTOR: &str = "reflector.v1.k8s.emberstack.com/";

pub(super) fn places() -> NamespaceLabels {
    let labels = |text: &str| -> BTreeMap<String, String> {
        let pairs = text
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let all = [
        ("platform", ""),
        ("team-a", "tier=web"),
        ("team-b", "tier=web"),
        ("team-10", "tier=batch"),
        ("kube-system", ""),
        ("kube-public", "tier=web"),
        ("runnel-system", ""),
    ];
    all.into_iter()
        .map(|(name, text)| (name.to_owned(), labels(text)))
        .collect()
}

pub(super) fn id(text: &str) -> Id {
    let mut parts = text.split('/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    Id {
        resource: next(),
        namespace: next(),
        name: next(),
    }
}

fn marked(prefix: &str, annotations: &[(&str, &str)]) -> ObjectMetadata {
    let all = annotations
        .iter()
        .map(|(key, value)| (format!("{prefix}{key}"), (*value).to_owned()));
    ObjectMetadata {
        annotations: all.collect(),
        ..ObjectMetadata::default()
    }
}

/// Name, prefix, and the rest of each annotation with its value.
type Described<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

fn objects(all: &[Described<'_>]) -> Objects {
    all.iter()
        .map(|(name, prefix, annotations)| (id(name), marked(prefix, annotations)))
        .collect()
}

pub(super) fn aim() -> ImportTarget {
    ImportTarget {
        clusters: vec!["eu-1".to_owned()],
        is_hub: true,
        label: None,
        labeled_not_copied: BTreeSet::new(),
    }
}

pub(super) fn same(all: &Objects) -> ObjectContents {
    all.keys()
        .map(|id| (id.clone(), json!({"data": {"k": "dg=="}})))
        .collect()
}

fn import(all: &Objects) -> ImportReport {
    imported_rules(
        read(all, &places(), &Copier::KNOWN),
        all,
        &places(),
        &same(all),
        &aim(),
    )
}

/// The spec of the only rule.
pub(super) fn only(import: &ImportReport) -> &Value {
    assert_eq!(import.rules.len(), 1, "{import:?}");
    &import.rules[0].rule["spec"]
}

fn names(choice: &Choice) -> Vec<&str> {
    choice.names.iter().map(String::as_str).collect()
}

fn list(list: &str) -> NamespaceExpression<'_> {
    NamespaceExpression { list, selector: "" }
}

#[test]
fn expressions_become_names_and_globs_or_what_they_match_now() {
    for (written, expected, given) in [
        ("team-a, team-b", vec!["team-a", "team-b"], false),
        ("team-.*", vec!["team-*"], false),
        ("^team-.*$", vec!["team-*"], false),
        ("team-.+", vec!["team-*"], false),
        (".*-a", vec!["*-a"], false),
        // It does not exist yet, so it is found by its name only.
        ("team-new", vec!["team-new"], false),
        ("team-[0-9]*", vec!["team-10"], true),
        ("team-(a|b)", vec!["team-a", "team-b"], true),
        ("team-a*", vec!["team-a"], true),
        ("team-(", vec![], true),
        ("kube-system", vec!["kube-system"], false),
        // A glob of a rule leaves kube-* out, an expression does not.
        (
            "kube-.*",
            vec!["kube-*", "kube-public", "kube-system"],
            false,
        ),
        (".*", vec!["*", "kube-public", "kube-system"], true),
    ] {
        let choice = chosen(list(written), &places());
        assert_eq!(names(&choice), expected, "{written}");
        assert_eq!(
            !choice.notes.is_empty(),
            given,
            "{written}: {:?}",
            choice.notes
        );
    }
}

#[test]
fn selectors_become_selectors() {
    let read = LabelSelector::parse("tier=web,!old,env in (a, b),zone notin (c),mode!=x,app")
        .unwrap()
        .unwrap();
    let expected = json!({
        "matchLabels": {"tier": "web"},
        "matchExpressions": [
            {"key": "old", "operator": "DoesNotExist"},
            {"key": "env", "operator": "In", "values": ["a", "b"]},
            {"key": "zone", "operator": "NotIn", "values": ["c"]},
            {"key": "mode", "operator": "NotIn", "values": ["x"]},
            {"key": "app", "operator": "Exists"},
        ],
    });
    assert_eq!(serde_json::to_value(read).unwrap(), expected);
    assert_eq!(LabelSelector::parse(" ").unwrap(), None);
    for wrong in ["a in b", "a has (b)", "a > 1", "a b"] {
        assert!(LabelSelector::parse(wrong).is_err(), "{wrong}");
    }
    // Objects that the selector matches in kube-* are named, because no selector of a rule matches
    // them.
    let choice = chosen(
        NamespaceExpression {
            list: "",
            selector: "tier=web",
        },
        &places(),
    );
    assert_eq!(names(&choice), ["kube-public"]);
    assert_eq!(
        choice.reaches(&places()),
        BTreeSet::from(["kube-public", "team-a", "team-b"].map(str::to_owned))
    );
}

#[test]
fn both_of_two_conditions_apply() {
    let both = |allowed: &str, asked: &str| chosen_by_both(list(allowed), list(asked), &places());
    assert_eq!(names(&both("", "team-.*")), ["team-*"]);
    assert_eq!(names(&both("team-.*", "")), ["team-*"]);
    assert_eq!(names(&both("team-.*", "team-.*")), ["team-*"]);
    assert_eq!(names(&both("team-.*", "team-a,other")), ["team-a"]);
    let narrowed = both("team-(a|b)", "team-.*");
    assert_eq!(names(&narrowed), ["team-a", "team-b"]);
    assert!(
        narrowed
            .notes
            .iter()
            .any(|note| note.contains("two conditions")),
        "{:?}",
        narrowed.notes
    );
}

#[test]
fn replicate_to_becomes_names_of_sources_and_namespaces() {
    let to: &[(&str, &str)] = &[("replicate-to", "team-a,team-b")];
    let all = objects(&[
        ("secrets/platform/ca", REPLICATOR, to),
        ("secrets/platform/login", REPLICATOR, to),
        ("configmaps/platform/settings", REPLICATOR, to),
    ]);
    let import = import(&all);
    let expected = json!({
        "sources": [
            {"resources": ["configmaps"], "names": ["settings"]},
            {"resources": ["secrets"], "names": ["ca", "login"]},
        ],
        "clusters": {"names": ["eu-1"]},
        "namespaces": {"names": ["team-a", "team-b"]},
        "conflictPolicy": "AdoptIfEqual",
        "transform": {"annotations": {"drop": ["*"]}},
    });
    assert_eq!(only(&import), &expected);
    assert_eq!(
        import.rules[0].rule["metadata"],
        json!({"name": "from-replicator", "namespace": "platform"})
    );
    assert_eq!(import.rules[0].copies.len(), 6);
    assert!(
        import.rules[0]
            .copies
            .values()
            .all(|comparison| *comparison == CopyComparison::Absent)
    );
}

#[test]
fn replicate_to_adds_up_and_strip_labels_drops_labels() {
    let all = objects(&[(
        "secrets/platform/ca",
        REPLICATOR,
        &[
            ("replicate-to", "team-10"),
            ("replicate-to-matching", "tier=web"),
            ("strip-labels", "true"),
        ],
    )]);
    let import = import(&all);
    let spec = only(&import);
    assert_eq!(
        spec["namespaces"]["names"],
        json!(["kube-public", "team-10"])
    );
    assert_eq!(
        spec["namespaces"]["selector"],
        json!({"matchLabels": {"tier": "web"}})
    );
    assert_eq!(
        spec["transform"],
        json!({"labels": {"drop": ["*"]}, "annotations": {"drop": ["*"]}})
    );
}

#[test]
fn replicate_from_needs_the_sources_consent() {
    let allowed: &[(&str, &str)] = &[
        ("replication-allowed", "true"),
        ("replication-allowed-namespaces", "team-[a-z]"),
    ];
    let from: &[(&str, &str)] = &[("replicate-from", "platform/ca")];
    let all = objects(&[
        ("secrets/platform/ca", REPLICATOR, allowed),
        ("secrets/platform/mute", REPLICATOR, &[]),
        ("secrets/team-a/ca", REPLICATOR, from),
        ("secrets/team-b/ca", REPLICATOR, from),
        ("secrets/team-b/my-ca", REPLICATOR, from),
        ("secrets/team-10/ca", REPLICATOR, from),
        (
            "secrets/team-a/mute",
            REPLICATOR,
            &[("replicate-from", "platform/mute")],
        ),
        (
            "secrets/team-a/lost",
            REPLICATOR,
            &[("replicate-from", "platform/nothing")],
        ),
    ]);
    let import = import(&all);
    let specs: Vec<&Value> = import.rules.iter().map(|rule| &rule.rule["spec"]).collect();
    assert_eq!(specs.len(), 2, "{specs:?}");
    assert_eq!(specs[0]["namespaces"]["names"], json!(["team-a", "team-b"]));
    assert_eq!(specs[0]["deletionPolicy"], "Retain");
    assert_eq!(specs[1]["namespaces"]["names"], json!(["team-b"]));
    assert_eq!(specs[1]["transform"]["name"], "my-ca");
    let left: Vec<String> = import
        .left
        .iter()
        .map(|(id, why)| format!("{id} {why}"))
        .collect();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(
        left[0].starts_with(
            "secrets/team-10/ca is filled from platform/ca, whose annotations do not allow it"
        ),
        "{left:?}"
    );
    assert!(
        left[1].contains("lost is filled from platform/nothing, which does not exist"),
        "{left:?}"
    );
    assert!(
        left[2].contains("mute is filled from platform/mute, whose annotations do not allow it"),
        "{left:?}"
    );
}

#[test]
fn impossible_parts_of_a_rule_are_reported() {
    let all = objects(&[
        (
            "secrets/platform/owned",
            REPLICATOR,
            &[
                ("replicate-to", "team-a"),
                ("keep-owner-references", "true"),
            ],
        ),
        (
            "secrets/platform/once",
            REPLICATOR,
            &[("replicate-to", "team-a"), ("replicate-once", "true")],
        ),
        (
            "roles.rbac.authorization.k8s.io/platform/reader",
            REFLECTOR,
            &[("reflection-allowed", "true")],
        ),
        (
            "secrets/platform/token",
            REPLICATOR,
            &[("replicate-to", "team-a")],
        ),
        (
            "secrets/platform/auto",
            REFLECTOR,
            &[("reflection-auto-enabled", "true")],
        ),
        (
            "secrets/platform/none",
            REPLICATOR,
            &[("replicate-to-matching", "a > 1")],
        ),
    ]);
    let mut bodies = same(&all);
    bodies.insert(
        id("secrets/platform/token"),
        json!({"type": "kubernetes.io/service-account-token"}),
    );
    let import = imported_rules(
        read(&all, &places(), &Copier::KNOWN),
        &all,
        &places(),
        &bodies,
        &aim(),
    );
    assert_eq!(
        only(&import)["sources"],
        json!([{"resources": ["secrets"], "names": ["owned"]}])
    );
    let left: Vec<String> = import
        .left
        .iter()
        .map(|(id, why)| format!("{id}: {why}"))
        .collect();
    for expected in [
        "roles.rbac.authorization.k8s.io/platform/reader: kubernetes-reflector copies only ConfigMaps and Secrets",
        "secrets/platform/auto: reflection-auto-enabled without reflection-allowed",
        "secrets/platform/none: selector `a > 1` compares numbers",
        "secrets/platform/once: replicate-once: a rule follows every edit",
        "secrets/platform/owned: keep-owner-references",
        "secrets/platform/token: is of type kubernetes.io/service-account-token",
    ] {
        assert!(
            left.iter().any(|one| one.starts_with(expected)),
            "{expected}: {left:?}"
        );
    }
    assert_eq!(left.len(), 6, "{left:?}");
}

#[test]
fn roles_bindings_and_accounts_become_rules() {
    let to: &[(&str, &str)] = &[("replicate-to", "team-a")];
    let from: &[(&str, &str)] = &[("replicate-from", "platform/reader")];
    let allowed: &[(&str, &str)] = &[
        ("replicate-to", "team-a"),
        ("replication-allowed", "true"),
        ("replication-allowed-namespaces", "team-b"),
    ];
    let all = objects(&[
        ("serviceaccounts/platform/robot", REPLICATOR, to),
        (
            "roles.rbac.authorization.k8s.io/platform/reader",
            REPLICATOR,
            allowed,
        ),
        (
            "rolebindings.rbac.authorization.k8s.io/platform/reader",
            REPLICATOR,
            to,
        ),
        (
            "roles.rbac.authorization.k8s.io/team-b/my-reader",
            REPLICATOR,
            from,
        ),
    ]);
    let mut bodies = same(&all);
    bodies.insert(
        id("roles.rbac.authorization.k8s.io/platform/reader"),
        reader(),
    );
    let import = |is_hub| {
        let aim = ImportTarget { is_hub, ..aim() };
        let read = read(&all, &places(), &Copier::KNOWN);
        imported_rules(read, &all, &places(), &bodies, &aim)
    };
    let here = import(true);
    let spec = |import: &ImportReport, number: usize| import.rules[number].rule["spec"].clone();
    let expected = json!([
        {"resources": ["rolebindings.rbac.authorization.k8s.io"], "names": ["reader"]},
        {"resources": ["roles.rbac.authorization.k8s.io"], "names": ["reader"]},
        {"resources": ["serviceaccounts"], "names": ["robot"]},
    ]);
    assert_eq!(spec(&here, 0)["sources"], expected);
    assert_eq!(spec(&here, 1)["transform"]["name"], "my-reader");
    assert!(here.rules.iter().all(|rule| rule.bundle.is_none()));
    assert!(here.left.is_empty(), "{:?}", here.left);
    let role = id("roles.rbac.authorization.k8s.io/team-a/reader");
    assert_eq!(here.rules[0].copies[&role], CopyComparison::Absent);

    // In another cluster the hub has only a bundle, which gives no rights there.
    let elsewhere = import(false);
    let sources =
        json!([{"resources": ["manifestbundles.runnel.dev"], "names": ["from-replicator"]}]);
    assert_eq!(spec(&elsewhere, 0)["sources"], sources);
    let bundle = elsewhere.rules[0].bundle.as_ref().unwrap();
    assert_eq!(bundle["metadata"]["namespace"], "platform");
    let manifests = bundle["spec"]["manifests"].as_array().unwrap();
    let mut role = reader();
    role["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    role["kind"] = json!("Role");
    role["metadata"] = json!({"name": "reader"});
    assert!(
        manifests.len() == 3 && manifests.contains(&role),
        "{bundle}"
    );
}

#[test]
fn bundle_of_sources_is_bounded_and_needs_their_content() {
    let names: Vec<String> = (0..150)
        .map(|number| format!("serviceaccounts/platform/s-{number:03}"))
        .collect();
    let all: Objects = names
        .iter()
        .map(|name| (id(name), marked(REPLICATOR, &[("replicate-to", "team-a")])))
        .collect();
    let import = |bodies: &ObjectContents| {
        let aim = ImportTarget {
            is_hub: false,
            ..aim()
        };
        let read = read(&all, &places(), &Copier::KNOWN);
        imported_rules(read, &all, &places(), bodies, &aim)
    };
    let sizes = |import: &ImportReport| -> Vec<usize> {
        let rules = import.rules.iter();
        rules.map(|rule| rule.sources.len()).collect()
    };
    let mut bodies = same(&all);
    assert_eq!(sizes(&import(&bodies)), [100, 50]);
    // One that is too large, and one that is never distributed.
    let large = json!({"imagePullSecrets": [{"name": "x".repeat(1_500_000)}]});
    bodies.insert(id("serviceaccounts/platform/s-120"), large);
    bodies.remove(&id("serviceaccounts/platform/s-001"));
    let import = import(&bodies);
    assert_eq!((sizes(&import), import.left.len()), (vec![100], 50));
    let why = |name: &str| {
        let mut left = import.left.iter();
        left.find(|(of, _)| of.name == name)
            .map(|(_, why)| why.as_str())
    };
    assert!(why("s-001").unwrap().contains("runnel.dev/distribute"));
    assert!(why("s-120").unwrap().contains("a bundle at most"));
}

#[test]
fn reflector_pushes_and_fills_pulled_copies() {
    let all = objects(&[
        (
            "secrets/platform/ca",
            REFLECTOR,
            &[
                ("reflection-allowed", "true"),
                ("reflection-auto-enabled", "true"),
                ("reflection-auto-namespaces", "team-.*"),
            ],
        ),
        // Its source already requests it.
        (
            "secrets/team-a/ca",
            REFLECTOR,
            &[
                ("reflects", "platform/ca"),
                ("auto-reflects", "True"),
                ("reflected-version", "7"),
            ],
        ),
        (
            "configmaps/platform/shared",
            REFLECTOR,
            &[("reflection-allowed", "true")],
        ),
        (
            "configmaps/team-b/mine",
            REFLECTOR,
            &[("reflects", "platform/shared"), ("reflected-version", "9")],
        ),
        // No source requests it any more.
        (
            "secrets/team-b/old",
            REFLECTOR,
            &[
                ("reflects", "platform/old"),
                ("auto-reflects", "True"),
                ("reflected-version", "3"),
            ],
        ),
    ]);
    let import = import(&all);
    assert_eq!(import.rules.len(), 2, "{import:?}");
    let specs: Vec<&Value> = import.rules.iter().map(|rule| &rule.rule["spec"]).collect();
    assert_eq!(specs[0]["namespaces"]["names"], json!(["team-*"]));
    assert_eq!(
        specs[0]["transform"],
        json!({"labels": {"drop": ["*"]}, "annotations": {"drop": ["*"]}})
    );
    assert!(specs[0].get("deletionPolicy").is_none());
    assert_eq!(specs[1]["transform"]["name"], "mine");
    assert_eq!(specs[1]["deletionPolicy"], "Retain");
    assert_eq!(
        import.rules[0].copies[&id("secrets/team-a/ca")],
        CopyComparison::Equal
    );
    assert_eq!(
        import.rules[0].copies[&id("secrets/team-b/ca")],
        CopyComparison::Absent
    );
    assert_eq!(
        import.orphaned_intents,
        BTreeSet::from([id("secrets/team-b/old")])
    );
    assert_eq!(import.marks.len(), 4, "{:?}", import.marks);
}

#[test]
fn config_syncer_takes_selector_or_all_and_named_clusters() {
    let prefix = "kubed.appscode.com/";
    let all = objects(&[
        ("configmaps/platform/all", prefix, &[("sync", "")]),
        (
            "configmaps/platform/web",
            prefix,
            &[("sync", "tier=web"), ("sync-contexts", "east,west")],
        ),
    ]);
    let import = import(&all);
    let chosen: Vec<&Value> = import
        .rules
        .iter()
        .map(|rule| &rule.rule["spec"]["namespaces"])
        .collect();
    assert_eq!(
        chosen[0]["names"],
        json!(["*", "kube-public", "kube-system"])
    );
    assert_eq!(
        chosen[1]["selector"],
        json!({"matchLabels": {"tier": "web"}})
    );
    assert!(import.rules[0].rule["spec"].get("transform").is_none());
    assert!(
        import.left[0].1.contains("sync-contexts east,west"),
        "{:?}",
        import.left
    );
}

#[test]
fn originals_stay_in_a_cluster_that_is_not_the_hub() {
    let all = objects(&[(
        "secrets/team-a/ca",
        REPLICATOR,
        &[("replicate-to", "team-.*")],
    )]);
    let elsewhere = ImportTarget {
        is_hub: false,
        ..aim()
    };
    let import = imported_rules(
        read(&all, &places(), &Copier::KNOWN),
        &all,
        &places(),
        &same(&all),
        &elsewhere,
    );
    assert_eq!(
        only(&import)["namespaces"],
        json!({"names": ["team-*"], "exclude": ["team-a"]})
    );
    assert!(
        !import.rules[0]
            .copies
            .contains_key(&id("secrets/team-a/ca"))
    );
}

#[test]
fn no_rule_is_larger_than_a_rule_may_be() {
    let names: Vec<String> = (0..300)
        .map(|number| format!("secrets/platform/s-{number:03}"))
        .collect();
    let all: Objects = names
        .iter()
        .map(|name| (id(name), marked(REPLICATOR, &[("replicate-to", "team-a")])))
        .collect();
    let import = import(&all);
    let sizes: Vec<usize> = import.rules.iter().map(|rule| rule.sources.len()).collect();
    assert_eq!(sizes, [256, 44]);
    assert_eq!(
        import.rules[1].rule["metadata"]["name"],
        "from-replicator-2"
    );
}

/// The content of a Role.
fn reader() -> Value {
    json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]})
}

fn a_cluster() -> (Objects, ObjectContents) {
    let to: &[(&str, &str)] = &[
        ("replicate-to", "team-[ab],team-10"),
        ("strip-labels", "true"),
    ];
    let copy: &[(&str, &str)] = &[
        ("replicated-at", "2026-01-01T00:00:00Z"),
        ("replicated-from-version", "12"),
    ];
    let auto: &[(&str, &str)] = &[
        ("reflection-allowed", "true"),
        ("reflection-auto-enabled", "true"),
    ];
    let all = objects(&[
        ("secrets/platform/ca", REPLICATOR, to),
        ("secrets/platform/login", REPLICATOR, to),
        ("secrets/team-a/ca", REPLICATOR, copy),
        ("secrets/team-b/ca", REPLICATOR, copy),
        ("secrets/team-a/login", REPLICATOR, copy),
        ("secrets/team-a/forgotten", REPLICATOR, copy),
        (
            "roles.rbac.authorization.k8s.io/platform/reader",
            REPLICATOR,
            &[("replicate-to", "team-a")],
        ),
        (
            "roles.rbac.authorization.k8s.io/team-a/reader",
            REPLICATOR,
            copy,
        ),
        ("configmaps/platform/settings", REFLECTOR, auto),
        (
            "serviceaccounts/platform/robot",
            REFLECTOR,
            &[("reflection-allowed", "true")],
        ),
    ]);
    let mut bodies = same(&all);
    for role in ["platform/reader", "team-a/reader"] {
        bodies.insert(
            id(&format!("roles.rbac.authorization.k8s.io/{role}")),
            reader(),
        );
    }
    bodies.insert(
        id("secrets/team-a/login"),
        json!({"data": {"k": "b3RoZXI="}}),
    );
    (all, bodies)
}

fn printed(is_hub: bool) -> String {
    let (all, bodies) = a_cluster();
    let aim = ImportTarget { is_hub, ..aim() };
    let import = imported_rules(
        read(&all, &places(), &Copier::KNOWN),
        &all,
        &places(),
        &bodies,
        &aim,
    );
    let found = vec![(
        "replicator".to_owned(),
        "replicator".to_owned(),
        Some("replicator".to_owned()),
    )];
    let around = ReportContext {
        read: "kubectl --context eu-1".to_owned(),
        helm: "helm --kube-context eu-1".to_owned(),
        hub: if is_hub {
            "kubectl --context eu-1".to_owned()
        } else {
            "kubectl --context hub".to_owned()
        },
        is_hub,
        copiers: BTreeMap::from([(Copier::Replicator, found)]),
        not_on_hub: if is_hub {
            BTreeSet::new()
        } else {
            BTreeSet::from([id("secrets/platform/ca")])
        },
        unread: vec!["cannot list rolebindings: you may not".to_owned()],
    };
    report::text(&import, &around).unwrap()
}

#[test]
fn snapshots_of_the_whole_text() {
    insta::assert_snapshot!("in_the_hubs_own_cluster", printed(true));
    insta::assert_snapshot!("in_another_cluster", printed(false));
}

#[test]
fn import_prints_rules_and_no_content() {
    let text = printed(true);
    let documents: Vec<&str> = text.split("---\n").skip(1).collect();
    assert_eq!(documents.len(), 3);
    for document in documents {
        let rule: DistributionRule = serde_saphyr::from_str(document).unwrap();
        assert_eq!(
            rule.spec.terms.conflict_policy,
            runnel_api::ConflictPolicy::AdoptIfEqual
        );
    }
    for value in ["dg==", "b3RoZXI="] {
        assert!(!text.contains(value), "{value}");
    }
    // No content of an annotation ends a comment.
    let all = objects(&[(
        "secrets/platform/ca",
        REPLICATOR,
        &[("replicate-to", "team-(\nkind: Secret\n")],
    )]);
    let text = report::text(&import(&all), &ReportContext::default()).unwrap();
    assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
}

#[test]
fn copiers_are_detected_by_their_images() {
    let runs = |image: &str| Copier::KNOWN.into_iter().find(|one| one.runs(image));
    assert_eq!(
        runs("ghcr.io/mittwald/kubernetes-replicator:v2.10@sha256:00"),
        Some(Copier::Replicator)
    );
    assert_eq!(
        runs("localhost:5000/kubernetes-reflector"),
        Some(Copier::Reflector)
    );
    assert_eq!(runs("appscode/kubed:v0.13"), Some(Copier::ConfigSyncer));
    for other in [
        "kubedb/kubedb-operator:v1",
        "k8s-dns-kubedns-amd64:1",
        "kubernetes-replicator/other",
        "",
    ] {
        assert_eq!(runs(other), None, "{other}");
    }
}
