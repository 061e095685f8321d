//! The status of a rule with an invalid or partly inapplicable spec.
use runnel_proto::model::{Content, Grant, NamespaceChoice, Pattern, Terms};
use serde_json::Value;

use super::*;
use crate::plan::{GrantedTerms, NamedTerms, RevisionHasher};

/// The rule as the API server stores it. The plugin's tests render these snapshots as `kubectl runnel status` does.
pub(super) fn page(world: &mut World) -> String {
    world.fold();
    let made_at = (world.now().wall - Duration::from_secs(3600)).to_string();
    let metadata = json!({"name": "r", "namespace": "a", "creationTimestamp": made_at});
    let object = json!({"kind": "DistributionRule", "metadata": metadata, "spec": {}, "status": world.status});
    format!("{object:#}\n")
}

/// A rule for these objects of its namespace, and two clusters, of which `eu-1` has the label `tier=gold`.
pub(super) fn shaped(spec: Value, sources: &[(&str, &str, Value)]) -> World {
    let mut world = World::new(&["eu-1", "eu-2"]);
    let mut spec = spec;
    spec["sources"] = json!([{"resources": ["configmaps", "secrets"], "names": ["*"]}]);
    world.becomes(rule(spec));
    world.plan = RulePlan::empty(&world.rule);
    for (number, (resource, name, fields)) in sources.iter().enumerate() {
        let fields = serde_json::from_value(fields.clone()).unwrap();
        let payload = Payload::encode(
            Content {
                fields,
                ..Content::default()
            }
            .to_bytes(),
        );
        let content = SourceContent::new(Revision([u8::try_from(number).unwrap(); 16]), payload);
        world.plan.set(
            &SourceRef::new(resource, "a", name),
            Some(&SourceState::Read(content.into())),
        );
    }
    let gold = BTreeMap::from([("tier".to_owned(), "gold".to_owned())]);
    let clusters = [
        (ClusterName::from("eu-1"), gold.into()),
        (ClusterName::from("eu-2"), BTreeMap::new().into()),
    ];
    world.cluster_plans = ClusterPlans::new(
        &world.rule,
        &world.plan,
        clusters.into_iter(),
        &RevisionHasher::default(),
    );
    for cluster in ["eu-1", "eu-2"] {
        world.applied(cluster);
    }
    world
}

fn config(data: Value) -> Value {
    json!({"data": data})
}

#[test]
fn two_sources_with_one_copy() {
    let sources = [
        ("configmaps", "one", config(json!({}))),
        ("configmaps", "two", config(json!({}))),
    ];
    insta::assert_snapshot!(page(&mut shaped(
        json!({"transform": {"name": "shared"}}),
        &sources
    )));
}

#[test]
fn a_transform_that_does_not_fit() {
    let spec = json!({"transform": {"keys": {"rename": {"a.yaml": "b.yaml"}}}});
    let source = (
        "configmaps",
        "settings",
        config(json!({"a.yaml": "1", "b.yaml": "2"})),
    );
    insta::assert_snapshot!(page(&mut shaped(spec, &[source])));
}

#[test]
fn a_label_that_one_cluster_lacks() {
    let spec = json!({"substitute": {"keys": ["app.yaml"]}});
    let source = (
        "configmaps",
        "settings",
        config(json!({"app.yaml": "tier: ${cluster.labels.tier}"})),
    );
    insta::assert_snapshot!(page(&mut shaped(spec, &[source])));
}

#[test]
fn a_tls_secret_that_would_lack_its_key() {
    let spec = json!({"transform": {"keys": {"include": ["tls.crt"]}}});
    let fields =
        json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "YQ==", "tls.key": "YQ=="}});
    insta::assert_snapshot!(page(&mut shaped(spec, &[("secrets", "gateway", fields)])));
}

#[test]
fn a_name_that_no_object_can_have() {
    let spec = json!({"transform": {"name": "App_${source.name}"}});
    insta::assert_snapshot!(page(&mut shaped(
        spec,
        &[("configmaps", "settings", config(json!({})))]
    )));
}

#[test]
fn ungranted_clusters_are_reported_in_part_or_in_full() {
    let mut world = World::new(&["eu-1"]);
    let spec = json!({
        "sources": [{"resources": ["configmaps", "secrets"], "names": ["*"]}],
        "namespaces": {"names": ["team-a", "shop"]}, "createNamespaces": true, "conflictPolicy": "Overwrite",
    });
    world.becomes(rule(spec));
    world.plan = RulePlan::empty(&world.rule);
    let content = SourceContent::new(Revision([1; 16]), Payload::encode(vec![]));
    world.plan.set(
        &SourceRef::new("configmaps", "a", "s"),
        Some(&SourceState::Read(content.into())),
    );
    let namespaces = NamespaceChoice {
        names: vec![Pattern::new("team-*")],
        ..NamespaceChoice::default()
    };
    let grant = Grant {
        resources: vec!["configmaps".into()],
        namespaces: Some(namespaces),
        ..Grant::default()
    };
    let terms = NamedTerms::new(Terms {
        grants: Some(vec![grant]),
        ..Terms::clone(&world.rule.terms)
    });
    world
        .target_clusters
        .clusters
        .insert("eu-1".into(), GrantedTerms::unrestricted(terms));
    world.target_clusters.not_granted.insert("eu-2".into());
    world.applied("eu-1");
    insta::assert_snapshot!(page(&mut world));
}

#[test]
fn rule_with_more_sources_than_granted_copies() {
    let mut world = World::new(&["eu-1"]);
    world.plan = RulePlan::empty(&world.rule);
    for name in ["s", "t", "u"] {
        let content = SourceContent::new(Revision([1; 16]), Payload::encode(vec![]));
        world.plan.set(
            &SourceRef::new("configmaps", "a", name),
            Some(&SourceState::Read(content.into())),
        );
    }
    let resources = vec!["configmaps".into(), "secrets".into()];
    let grant = Grant {
        resources,
        overwrite: true,
        adopt: true,
        create_namespaces: true,
        ..Grant::default()
    };
    for (limit, message) in [(Some(2), true), (Some(3), false), (None, false)] {
        let grants = Some(vec![Grant {
            max_copies: limit,
            ..grant.clone()
        }]);
        let terms = NamedTerms::new(Terms {
            grants,
            ..Terms::clone(&world.rule.terms)
        });
        world
            .target_clusters
            .clusters
            .insert("eu-1".into(), GrantedTerms::unrestricted(terms));
        world.applied("eu-1");
        let page = page(&mut world);
        let text = "more than 2 copies (maxCopies) in eu-1: the rule selects 3 sources";
        assert_eq!(page.contains(text), message, "{page}");
    }
}

#[test]
fn grants_that_cannot_be_read() {
    let mut world = World::new(&["eu-1"]);
    world.target_clusters.unknown = true;
    world.applied("eu-1");
    insta::assert_snapshot!(page(&mut world));
}

#[test]
fn a_cluster_that_is_cordoned() {
    let mut world = World::new(&["eu-1", "eu-2"]);
    world.target_clusters.cordoned.insert("eu-2".into());
    world.applied("eu-1");
    insta::assert_snapshot!(page(&mut world));
}
