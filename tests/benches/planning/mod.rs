//! Inputs of the benchmarks: rules, sources and clusters by number.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use runnel_hub_core::index::{Cluster, Index, ScopeState};
use runnel_hub_core::plan::{Rule, RuleGrant, SourceContent, SourceState, WatchScope};
use runnel_proto::model::{ClusterName, Content, Payload, Revision, SourceRef};
use runnel_tests::speed::text::noise;
use serde_json::json;

/// Where the rules and sources are.
pub const NAMESPACE: &str = "planned";

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The rule of this number: it selects the sources that carry the number, for every cluster.
pub fn rule(number: usize) -> Rule {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": format!("r{number}"), "namespace": NAMESPACE, "uid": format!("u{number}"), "generation": 1},
        "spec": {
            "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"rule": number.to_string()}}}],
            "clusters": {"all": true}, "removalLimit": {"percent": 100},
        },
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(object).expect("a rule");
    Rule::namespaced(&object, "runnel-system").expect("a rule")
}

/// The labels of a source that this rule selects.
pub fn labels(rule: usize) -> Labels {
    BTreeMap::from([("rule".to_owned(), rule.to_string())])
}

/// The source of this number.
pub fn source(number: usize) -> SourceRef {
    SourceRef::new("configmaps", NAMESPACE, &format!("s{number:06}"))
}

/// The revision of this number.
pub fn revision(number: usize) -> Revision {
    Revision((number as u128 + 1).to_be_bytes())
}

/// The content of this number: 1 KiB of text that hardly shrinks.
pub fn payload(number: usize) -> Payload {
    let data = json!({"n": noise(number as u64, 1024)});
    let content = Content {
        fields: BTreeMap::from([("data".to_owned(), data)]),
        ..Content::default()
    };
    Payload::encode(content.to_bytes())
}

/// A source's content, as the hub has read it. Planning does not read it, so all sources share one.
pub fn body(number: usize) -> SourceState {
    static CONTENT: LazyLock<Payload> = LazyLock::new(|| payload(0));
    SourceState::Read(Arc::new(SourceContent::new(
        revision(number),
        CONTENT.clone(),
    )))
}

/// The name of the cluster of this number.
pub fn cluster(number: usize) -> ClusterName {
    format!("c{number}").as_str().into()
}

/// A grant of everything.
fn everything() -> RuleGrant {
    let spec = json!({
        "rules": {"namespaces": {"all": true}}, "resources": ["configmaps", "secrets"], "clusters": {"all": true},
        "namespaces": {"all": true}, "policies": {"overwrite": true, "adopt": true, "createNamespaces": true},
    });
    let spec: runnel_api::DistributionGrantSpec = serde_json::from_value(spec).expect("a grant");
    RuleGrant::read(&runnel_api::DistributionGrant::new("everything", spec))
}

/// The input of an index, as from watches.
#[derive(Clone)]
pub struct IndexInput {
    clusters: Vec<(ClusterName, Cluster)>,
    rules: Vec<Rule>,
    sources: Vec<(SourceRef, Labels, SourceState)>,
}

/// Creates sources, clusters and rules; each source is selected by one rule.
pub fn index_input(sources: usize, clusters: usize, rules: usize) -> IndexInput {
    let named = |number| {
        (
            cluster(number),
            Cluster {
                uid: format!("c{number}"),
                accepted: true,
                ..Cluster::default()
            },
        )
    };
    IndexInput {
        clusters: (0..clusters).map(named).collect(),
        rules: (0..rules).map(rule).collect(),
        sources: (0..sources)
            .map(|number| (source(number), labels(number % rules), body(number)))
            .collect(),
    }
}

/// Creates an index with this input.
pub fn index(sources: usize, clusters: usize, rules: usize) -> Index {
    planned(index_input(sources, clusters, rules))
}

/// Creates an index from input.
pub fn planned(index_input: IndexInput) -> Index {
    let mut index = Index::default();
    index.set_grants(Some(BTreeMap::from([(
        "everything".to_owned(),
        everything(),
    )])));
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    for (name, cluster) in index_input.clusters {
        index.set_cluster(name, cluster);
    }
    for rule in index_input.rules {
        index.set_rule(rule);
    }
    for (source, labels, body) in index_input.sources {
        index.set_source(source, labels, Some(body));
    }
    index
}
