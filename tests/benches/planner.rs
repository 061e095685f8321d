//! Benchmark of the hub's planner: 100 rules, 1,000 sources, 1,000 clusters; from nothing, and
//! after one edit of each kind.
//! `cargo bench -p runnel-tests --bench planner`. Compare with the row `bare`, which does only the
//! unavoidable work: it compares the labels of the rules with those of every source, once.

#[path = "planning/edits.rs"]
mod edits;
mod planning;

use std::collections::BTreeMap;

use divan::{Bencher, black_box};
use runnel_hub_core::index::{Cluster, Index};

use edits::edits;
use planning::{Labels, cluster, index, index_input, labels, rule};

const RULES: usize = 100;
const SOURCES: usize = 1_000;
const CLUSTERS: usize = 1_000;

fn main() {
    divan::main();
}

fn planned() -> Index {
    index(SOURCES, CLUSTERS, RULES)
}

/// The least that planning everything can cost.
#[divan::bench]
fn bare(bencher: Bencher<'_, '_>) {
    let sources: Vec<Labels> = (0..SOURCES).map(|number| labels(number % RULES)).collect();
    let wanted: Vec<Labels> = (0..RULES).map(labels).collect();
    bencher.bench(|| {
        let pairs = wanted
            .iter()
            .flat_map(|rule| sources.iter().map(move |source| (rule, source)));
        pairs
            .filter(|(rule, source)| black_box(rule) == black_box(source))
            .count()
    });
}

/// Everything from nothing.
#[divan::bench(sample_count = 10)]
fn full(bencher: Bencher<'_, '_>) {
    let index_input = index_input(SOURCES, CLUSTERS, RULES);
    bencher
        .with_inputs(|| index_input.clone())
        .bench_values(planning::planned);
}

/// One source is edited.
#[divan::bench]
fn after_an_edit_of_a_source(bencher: Bencher<'_, '_>) {
    let mut index = planned();
    let edit = bencher.with_inputs(edits(7));
    edit.bench_local_values(|(source, labels, body)| index.set_source(source, labels, Some(body)));
}

/// One rule is edited.
#[divan::bench]
fn after_an_edit_of_a_rule(bencher: Bencher<'_, '_>) {
    let mut index = planned();
    let rule = rule(0);
    bencher
        .with_inputs(|| rule.clone())
        .bench_local_values(|rule| index.set_rule(rule));
}

/// The labels of one cluster change.
#[divan::bench]
fn after_a_label_of_a_cluster(bencher: Bencher<'_, '_>) {
    let mut index = planned();
    let mut number = CLUSTERS;
    let labeled = bencher.with_inputs(|| {
        number += 1;
        let labels = BTreeMap::from([("n".to_owned(), number.to_string())]);
        (
            cluster(7),
            Cluster {
                uid: "c7".to_owned(),
                accepted: true,
                labels,
                ..Cluster::default()
            },
        )
    });
    labeled.bench_local_values(|(name, cluster)| index.set_cluster(name, cluster));
}
