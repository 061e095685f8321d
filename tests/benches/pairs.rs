//! Memory of the hub for each rule in each cluster, whatever the rule sends.
//! `cargo bench -p runnel-tests --bench pairs`. Read `max alloc` and divide the bytes by the pairs,
//! which are [`PAIRS`]: the aim is 0.5 KiB in all.

#[path = "planning/facts.rs"]
mod facts;
mod planning;

use std::time::Instant;

use divan::{AllocProfiler, Bencher};
use runnel_hub_core::index::{Directive, Index};
use runnel_hub_core::session::Session;
use runnel_hub_core::status::ReportStore;
use runnel_proto::model::{ClusterName, Counts, RuleState, RuleUid};

use facts::facts;
use planning::{cluster, index};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

const RULES: usize = 1_000;
const CLUSTERS: usize = 100;
/// The pairs of a rule and a cluster.
const PAIRS: usize = RULES * CLUSTERS;

fn main() {
    println!("{PAIRS} pairs of a rule and a cluster");
    divan::main();
}

fn uid(rule: usize) -> RuleUid {
    format!("u{rule}").as_str().into()
}

fn names() -> Vec<ClusterName> {
    (0..CLUSTERS).map(cluster).collect()
}

/// The plans of all rules and their assignments, which all clusters share.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn plans(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| index(RULES, CLUSTERS, RULES));
}

fn sessions(index: &Index, names: &[ClusterName], reported: bool) -> Vec<Session> {
    let of = |name: &ClusterName| {
        let mut session = Session::default();
        if reported {
            session.hello((0..RULES).map(|rule| state(index, rule)).collect());
        }
        session.hello_done();
        for rule in 0..RULES {
            let entry = index.rules().get(&uid(rule)).expect("a rule");
            let assignment = entry.assignment(name).expect("an assignment");
            let shared = entry.rule.uid.clone();
            session.update([(shared, Directive::Assigned(assignment))]);
        }
        while let Some(batch) = session.next_batch() {
            session.ack(batch.nonce);
        }
        session
    };
    names.iter().map(of).collect()
}

/// Sessions that have sent everything.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn sessions_that_sent(bencher: Bencher<'_, '_>) {
    let (index, names) = (index(RULES, CLUSTERS, RULES), names());
    bencher.bench_local(|| sessions(&index, &names, false));
}

/// Sessions of agents that had everything when they connected.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn sessions_that_reported(bencher: Bencher<'_, '_>) {
    let (index, names) = (index(RULES, CLUSTERS, RULES), names());
    bencher.bench_local(|| sessions(&index, &names, true));
}

/// The last report of each.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn reports(bencher: Bencher<'_, '_>) {
    let (index, names) = (index(RULES, CLUSTERS, RULES), names());
    bencher.bench_local(|| {
        let mut store = ReportStore::default();
        for name in &names {
            store.connected(name, 1, facts(), Vec::new());
            for rule in 0..RULES {
                store.report(name, 1, state(&index, rule));
            }
        }
        assert!(store.session(&names[0], Instant::now()).is_some());
        store
    });
}

/// What an agent reports of a rule whose copy is applied, with texts of its own.
fn state(index: &Index, rule: usize) -> RuleState {
    let entry = index.rules().get(&uid(rule)).expect("a rule");
    RuleState {
        rule: entry.rule.terms.rule.clone(),
        intents_digest: entry.plan.digest,
        intents: 1,
        terms_digest: Some(entry.rule.terms.digest),
        counts: Counts {
            copies: 1,
            applied: 1,
            ..Counts::default()
        },
        ..RuleState::new(uid(rule))
    }
}
