//! The status of a rule with names that match nothing, and of clusters that never connected.
use runnel_proto::model::WaitingNamespaces;
use serde_json::Value;

use super::pages::{page, shaped};
use super::*;
use crate::plan::UnsupportedSource;

fn member(env: &str) -> Cluster {
    Cluster {
        labels: BTreeMap::from([("env".to_owned(), env.to_owned())]),
        accepted: true,
        was_connected: true,
        ..Cluster::default()
    }
}

/// A rule with the source `s` of the namespace `a` in two clusters, where every copy is applied.
fn world(spec: Value) -> World {
    let mut world = World::new(&["eu-1", "eu-2"]);
    world.members = ["eu-1", "eu-2"]
        .map(|name| (ClusterName::from(name), member("prod")))
        .into();
    let mut whole = json!({
        "sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true},
    });
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    world.becomes(whole_rule(whole));
    world.applied("eu-1");
    world.applied("eu-2");
    world
}

fn message(world: &World) -> &str {
    let ready = condition(&world.status.conditions, ConditionType::Ready);
    &ready.unwrap().message
}

#[test]
fn name_of_no_source_makes_the_rule_not_ready() {
    let sources = json!([
        {"resources": ["configmaps"], "names": ["s", "not-there"]},
        {"resources": ["configmaps", "secrets"], "names": ["neither"]},
    ]);
    let mut world = world(json!({"sources": sources}));
    insta::assert_snapshot!(page(&mut world));
    assert_eq!(world.ready(), pair("False", "MissingSources"));
    assert_eq!(
        world.condition(ConditionType::Applied),
        pair("True", "AllApplied")
    );
    // The copies are applied everywhere, so a change has arrived.
    assert!(world.status.revision.is_some());
}

#[test]
fn name_of_a_refused_or_excluded_source_is_not_missing() {
    let sources =
        json!([{"resources": ["configmaps"], "names": ["s", "t", "u"], "exclude": ["t"]}]);
    let mut world = world(json!({"sources": sources}));
    let refused = SourceState::Refused(UnsupportedSource::Annotation);
    let source = SourceRef::new("configmaps", "a", "u");
    world.plan.set(&source, Some(&refused));
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));
}

#[test]
fn name_in_any_of_several_namespaces_is_found() {
    let object = |names: Value| {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
            "metadata": {"name": "r", "uid": "r", "generation": 3},
            "spec": {
                "sources": [{"namespaces": ["a", "team-*"], "resources": ["configmaps"], "names": names}],
                "clusters": {"all": true},
            },
        });
        let object: runnel_api::ClusterDistributionRule = serde_json::from_value(object).unwrap();
        Rule::cluster_scoped(&object, "runnel-system").unwrap()
    };
    let mut world = world(json!({}));
    world.becomes(object(json!(["s"])));
    world.applied("eu-1");
    world.applied("eu-2");
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));

    world.becomes(object(json!(["s", "t"])));
    world.applied("eu-1");
    world.applied("eu-2");
    world.fold();
    assert_eq!(message(&world), "no configmap `t` in namespaces a, team-*");
}

#[test]
fn name_of_no_cluster_makes_the_rule_not_ready() {
    let names = ["eu-1", "eu-2", "member-7", "m-8", "m-9", "out", "m-10"];
    let clusters = json!({"names": names, "exclude": ["out"]});
    let overrides = json!([
        {"clusters": {"names": ["eu-1"]}, "data": {"k": "v"}},
        {"clusters": {"names": ["typo-1"]}, "data": {"k": "v"}},
    ]);
    let mut world = world(json!({"clusters": clusters, "overrides": overrides}));
    insta::assert_snapshot!(page(&mut world));
    assert_eq!(world.ready(), pair("False", "UnknownClusters"));
    assert_eq!(
        message(&world),
        "no MemberCluster is called member-7, m-8, m-9 and 1 other; spec.overrides names clusters that the rule does \
         not choose: typo-1 (spec.overrides[1])"
    );
}

#[test]
fn key_of_no_source_makes_the_rule_not_ready() {
    let spec = json!({
        "transform": {"keys": {"rename": {"old.yaml": "app.yaml"}}},
        "substitute": {"keys": ["app.yaml", "nokey", "*.txt"]},
        "overrides": [{"clusters": {"all": true}, "remove": ["extra", "gone"]}],
    });
    let sources = [
        (
            "configmaps",
            "one",
            json!({"data": {"old.yaml": "${cluster.name}"}}),
        ),
        (
            "configmaps",
            "two",
            json!({"binaryData": {"extra": "YQ==", "nokey": "YQ=="}}),
        ),
    ];
    let mut world = shaped(spec, &sources);
    insta::assert_snapshot!(page(&mut world));
    assert_eq!(world.ready(), pair("False", "MissingKeys"));
    assert_eq!(
        message(&world),
        "no source has the keys nokey (spec.substitute.keys), gone (spec.overrides[0].remove)"
    );
}

#[test]
fn field_of_no_source_makes_the_rule_not_ready() {
    let spec = json!({
        "transform": {"removeFields": ["/data/80", "/data/81"]},
        "substitute": {"fields": ["/data", "/binaryData", "/spec/[name=x]"]},
        "overrides": [{"clusters": {"all": true}, "remove": ["gone"]}],
    });
    let sources = [("configmaps", "one", json!({"data": {"80": "x"}}))];
    let mut world = shaped(spec, &sources);
    world.fold();
    assert_eq!(world.ready(), pair("False", "MissingKeys"));
    assert_eq!(
        message(&world),
        "no source has the key gone (spec.overrides[0].remove); no source has the fields /data/81 \
         (spec.transform.removeFields), /binaryData (spec.substitute.fields), /spec/[name=x] (spec.substitute.fields)"
    );
}

#[test]
fn failed_and_moving_copies_precede_missing_names() {
    let sources = json!([{"resources": ["configmaps"], "names": ["s", "not-there"]}]);
    let mut world = world(json!({"sources": sources}));
    let counts = Counts {
        copies: 2,
        applied: 1,
        failed: 1,
        ..Counts::default()
    };
    world.report("eu-1", counts, vec![failure(Reason::Conflict, "foreign")]);
    world.fold();
    assert_eq!(world.ready(), pair("False", "Conflict"));

    let counts = Counts {
        copies: 2,
        applied: 1,
        waiting: 1,
        ..Counts::default()
    };
    world.report("eu-1", counts, vec![]);
    world.fold();
    assert_eq!(world.ready(), pair("False", "MissingSources"));
    assert_eq!(
        world.condition(ConditionType::Applied),
        pair("False", "CopiesWaiting")
    );
}

#[test]
fn rule_without_target_namespace_has_no_namespaces() {
    let namespaces = json!({"names": ["taem-*"], "selector": {"matchLabels": {"team": "shop"}}});
    let mut world = world(json!({"namespaces": namespaces}));
    for cluster in ["eu-1", "eu-2"] {
        world.report(cluster, Counts::default(), vec![]);
    }
    insta::assert_snapshot!(page(&mut world));
    assert_eq!(world.ready(), pair("False", "NoNamespaces"));
}

#[test]
fn rule_without_cluster_names_its_choice() {
    let clusters = json!({"names": ["memberr-1"], "selector": {"matchLabels": {"env": "prd"}}});
    let mut world = world(json!({"clusters": clusters}));
    world.target_clusters.clusters.clear();
    insta::assert_snapshot!(page(&mut world));
    assert_eq!(world.ready(), pair("False", "NoClusters"));
}

#[test]
fn rule_without_source_names_its_choice() {
    let app = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]});
    let sources = json!([
        {"resources": ["configmaps"], "names": ["not-there"]},
        {"resources": ["secrets"], "selector": app},
    ]);
    let mut world = world(json!({"sources": sources}));
    world.plan = RulePlan::empty(&world.rule);
    insta::assert_snapshot!(page(&mut world));
    assert_eq!(world.ready(), pair("False", "NoSources"));
}

#[test]
fn cluster_that_never_connected_does_not_make_a_rule_unknown() {
    let mut world = world(json!({}));
    let gone = ClusterName::from("eu-3");
    let terms = crate::plan::GrantedTerms::unrestricted(world.rule.terms.clone());
    world.target_clusters.clusters.insert(gone.clone(), terms);
    let never = Cluster {
        was_connected: false,
        ..member("prod")
    };
    world.members.insert(gone.clone(), never);
    // Not even while the hub waits for the clusters that it knows.
    world.seconds = 1;
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));
    assert_eq!(
        message(&world),
        "every copy is applied; eu-3 has never connected"
    );
    assert_eq!(world.status.display.as_ref().unwrap().clusters, "2/3");

    // A cluster that has joined may have copies, although this hub does not know it.
    world.members.insert(gone, member("prod"));
    world.seconds = 60;
    world.status = RuleStatus::default();
    world.fold();
    assert_eq!(world.ready(), pair("Unknown", "ClustersUnreachable"));
    assert_eq!(message(&world), "cluster eu-3 is not connected");
}

#[test]
fn rule_whose_clusters_never_connected_is_unknown() {
    let mut world = World::new(&[]);
    let terms = crate::plan::GrantedTerms::unrestricted(world.rule.terms.clone());
    for name in ["eu-3", "eu-4"] {
        let name = ClusterName::from(name);
        world.members.insert(name.clone(), Cluster::default());
        world.target_clusters.clusters.insert(name, terms.clone());
    }
    world.fold();
    assert_eq!(world.ready(), pair("Unknown", "ClustersUnreachable"));
    assert_eq!(
        message(&world),
        "2 clusters have never connected, among them eu-3"
    );
}

#[test]
fn waiting_copies_name_their_namespaces() {
    let mut world = world(json!({"namespaces": {"names": ["team-a", "team-b"]}}));
    let mut wait = |cluster: &str, waiting: u32, first: &[&str], count: u32| {
        let counts = Counts {
            copies: 2 + waiting,
            applied: 2,
            waiting,
            ..Counts::default()
        };
        let waiting = WaitingNamespaces {
            first: first.iter().map(ToString::to_string).collect(),
            count,
        };
        let state = RuleState {
            waiting,
            ..world.state(cluster, counts)
        };
        world.report_store.report(&cluster.into(), 1, state);
        world.fold();
        let entry = world.status.clusters.iter().find(|one| one.name == cluster);
        (message(&world).to_owned(), entry.unwrap().message.clone())
    };
    let (of_rule, of_cluster) = wait("eu-1", 1, &["team-a"], 1);
    assert_eq!(
        of_rule,
        "1 copy waiting in 1 cluster: the namespace team-a does not exist there"
    );
    assert_eq!(
        of_cluster,
        "1 copy waits: the namespace team-a does not exist"
    );
    let (of_rule, of_cluster) = wait("eu-2", 5, &["a", "b", "c"], 5);
    assert_eq!(
        of_rule,
        "6 copies waiting in 2 clusters: the namespaces a, b, c and 2 others do not exist there"
    );
    assert_eq!(
        of_cluster,
        "5 copies wait: the namespaces a, b, c and 2 others do not exist"
    );
    // An older agent names none.
    wait("eu-1", 1, &[], 0);
    let (of_rule, of_cluster) = wait("eu-2", 1, &[], 0);
    assert_eq!(
        of_rule,
        "2 copies waiting in 2 clusters: the namespaces do not exist there"
    );
    assert_eq!(
        of_cluster,
        "1 copy waits for a namespace that does not exist"
    );
}
