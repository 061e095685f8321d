//! The hub's planner: 100 rules, 1,000 sources, 1,000 clusters; from nothing, and after one edit of each kind.
//!
//! `cargo bench -p runnel-tests --bench planner`. Read the ratios to the row `bare`, which does only what nobody can avoid:
//! it compares the labels that the rules ask for with those of every source, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use divan::{Bencher, black_box};
use runnel_hub::crd;
use runnel_hub::index::{Cluster, Index, PlaceState};
use runnel_hub::plan::{Body, Place, Rule, RuleGrant, SourceContent};
use runnel_proto::model::{ClusterName, Payload, Revision, SourceRef};
use serde_json::json;

const RULES: usize = 100;
const SOURCES: usize = 1_000;
const CLUSTERS: usize = 1_000;
const NAMESPACE: &str = "planned";

fn main() {
    divan::main();
}

type Labels = BTreeMap<String, String>;

fn labels(key: &str, value: usize) -> Labels {
    BTreeMap::from([(key.to_owned(), value.to_string())])
}

/// Each rule selects ten sources by their label, and every cluster.
fn rules() -> Vec<Rule> {
    let one = |number: usize| {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": format!("r{number}"), "namespace": NAMESPACE, "uid": format!("u{number}"), "generation": 1},
            "spec": {
                "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"rule": number.to_string()}}}],
                "clusters": {"all": true},
                "removalLimit": {"percent": 100},
            },
        });
        let object: crd::DistributionRule = serde_json::from_value(object).ok()?;
        Rule::namespaced(&object, "runnel-system")
    };
    (0..RULES).filter_map(one).collect()
}

fn source(number: usize) -> SourceRef {
    SourceRef::new("configmaps", NAMESPACE, &format!("s{number}"))
}

fn body(number: usize) -> Body {
    let payload = Payload::encode(format!("{{\"data\":{{\"n\":\"{number}\"}}}}").into_bytes());
    let mut revision = [0; 16];
    revision[..8].copy_from_slice(&number.to_be_bytes());
    Body::Read(Arc::new(SourceContent::new(Revision(revision), payload)))
}

fn cluster(number: usize) -> (ClusterName, Cluster) {
    let name = format!("c{number}");
    let cluster = Cluster { uid: name.clone(), labels: labels("n", number), accepted: true, ..Cluster::default() };
    (name.as_str().into(), cluster)
}

fn everything() -> RuleGrant {
    let spec = json!({
        "rules": {"namespaces": {"all": true}}, "resources": ["configmaps", "secrets"], "clusters": {"all": true},
        "namespaces": {"all": true}, "policies": {"overwrite": true, "createNamespaces": true},
    });
    let spec: crd::DistributionGrantSpec = serde_json::from_value(spec).expect("a grant");
    RuleGrant::read(&crd::DistributionGrant::new("everything", spec))
}

fn planned() -> Index {
    let mut index = Index::new();
    index.set_grants(Some(BTreeMap::from([("everything".to_owned(), everything())])));
    index.set_place(Place::everywhere("configmaps"), PlaceState::Known);
    for number in 0..SOURCES {
        index.set_source(source(number), labels("rule", number % RULES), Some(body(number)));
    }
    for number in 0..CLUSTERS {
        let (name, cluster) = cluster(number);
        index.set_cluster(name, cluster);
    }
    for rule in rules() {
        index.set_rule(rule);
    }
    for number in 0..SOURCES {
        index.set_source(source(number), labels("rule", number % RULES), Some(body(number)));
    }
    index
}

/// The least that planning everything can cost.
#[divan::bench]
fn bare(bencher: Bencher<'_, '_>) {
    let sources: Vec<Labels> = (0..SOURCES).map(|number| labels("rule", number % RULES)).collect();
    let wanted: Vec<Labels> = (0..RULES).map(|number| labels("rule", number)).collect();
    bencher.bench(|| {
        let pairs = wanted.iter().flat_map(|rule| sources.iter().map(move |source| (rule, source)));
        pairs.filter(|(rule, source)| black_box(rule) == black_box(source)).count()
    });
}

/// Everything from nothing.
#[divan::bench(sample_count = 10)]
fn full(bencher: Bencher<'_, '_>) {
    bencher.bench(planned);
}

/// One source is edited.
#[divan::bench]
fn after_an_edit_of_a_source(bencher: Bencher<'_, '_>) {
    let mut index = planned();
    let mut number = SOURCES;
    bencher.bench_local(|| {
        number += 1;
        index.set_source(source(7), labels("rule", 7), Some(body(number)))
    });
}

/// One rule is edited.
#[divan::bench]
fn after_an_edit_of_a_rule(bencher: Bencher<'_, '_>) {
    let mut index = planned();
    let rules = rules();
    bencher.bench_local(|| rules.first().map(|rule| index.set_rule(rule.clone())));
}

/// One cluster is labelled anew.
#[divan::bench]
fn after_a_label_of_a_cluster(bencher: Bencher<'_, '_>) {
    let mut index = planned();
    let mut number = CLUSTERS;
    bencher.bench_local(|| {
        number += 1;
        let (name, mut known) = cluster(7);
        known.labels = labels("n", number);
        index.set_cluster(name, known)
    });
}
