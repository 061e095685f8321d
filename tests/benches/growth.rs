//! Benchmarks of the pure parts at 10, 1,000 and 100,000 items.
//! `cargo bench -p runnel-tests --bench growth`. The cost of one edit must not grow with unrelated
//! items; the cost of everything must grow linearly. Compare the figures of a row, a hundredfold
//! each time.

#[path = "planning/edits.rs"]
mod edits;
#[path = "planning/facts.rs"]
mod facts;
mod planning;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use divan::Bencher;
use jiff::Timestamp;
use kube::core::DynamicObject;
use prost::Message;
use runnel_agent_core::decide::{Action, Decision, decide};
use runnel_agent_core::desired::{AgentLocation, Desired, Namespace};
use runnel_agent_core::managed_fields::{FIELD_MANAGER, applied_fields, dropped};
use runnel_agent_core::policy::Policy;
use runnel_agent_core::records::{Observed, Records};
use runnel_api::{DistributionRule, RuleStatus};
use runnel_hub_core::index::{Directive, Index, ReportedCopies};
use runnel_hub_core::plan::{
    ClusterPlans, Rule, RuleGrants, RulePlan, SourceContent, SourceState, TargetClusters,
    TermsResolver,
};
use runnel_hub_core::session::Session;
use runnel_hub_core::status::{Now, ReportStore, View, fold};
use runnel_proto::convert::{hub_frame, hub_frame_to_wire};
use runnel_proto::json_nodes;
use runnel_proto::model::{
    Batch, ClusterName, Content, Counts, FAILURES_LIMIT, Failure, HubFrame, Intent, MESSAGE_LIMIT,
    Payload, Reason, RuleDelta, RuleState, RuleUid, SourceRef,
};
use runnel_proto::wire;
use runnel_tests::speed::text::noise;
use serde_json::json;

use edits::edits;
use facts::facts;
use planning::{NAMESPACE, body, cluster, index, labels, payload, revision, rule, source};

const SIZES: [usize; 3] = [10, 1_000, 100_000];
/// Items of a list in an object. The last number is about what an API server stores.
const LENGTHS: [usize; 3] = [260, 2_600, 26_000];
/// Rendered copies are bounded and slow: tenfold each time.
const SHAPED_SIZES: [usize; 3] = [10, 100, 1_000];

fn main() {
    divan::main();
}

fn small_values(count: usize) -> Vec<u8> {
    serde_json::to_vec(&vec![json!({"a": 0}); count]).unwrap_or_default()
}

/// The nodes of a text are counted before it is decoded: compare with [`decoded_values`].
#[divan::bench(args = SIZES)]
fn counted_values(bencher: Bencher<'_, '_>, count: usize) {
    let text = small_values(count);
    bencher.bench(|| json_nodes::count(&text));
}

/// The decoding that a count may refuse.
#[divan::bench(args = SIZES, sample_count = 10)]
fn decoded_values(bencher: Bencher<'_, '_>, count: usize) {
    let text = small_values(count);
    bencher.bench(|| serde_json::from_slice::<serde_json::Value>(&text));
}

/// One rule's plan with a number of sources.
fn planned(mut plan: RulePlan, sources: usize) -> RulePlan {
    for number in 0..sources {
        plan.set(&source(number), Some(&body(number)));
    }
    plan
}

/// A rule's plan from nothing.
#[divan::bench(args = SIZES, sample_count = 10)]
fn plan_of_all_sources(bencher: Bencher<'_, '_>, sources: usize) {
    bencher
        .with_inputs(|| RulePlan::empty(&rule(0)))
        .bench_values(|plan| planned(plan, sources));
}

fn edited(bencher: Bencher<'_, '_>, mut index: Index, rules: usize) {
    let edit = bencher.with_inputs(edits(7 % rules));
    edit.bench_local_values(|(source, labels, body)| index.set_source(source, labels, Some(body)));
}

/// One edit among a number of other sources of its rule.
#[divan::bench(args = SIZES, sample_count = 50)]
fn edit_beside_sources(bencher: Bencher<'_, '_>, sources: usize) {
    edited(bencher, index(sources, 1, 1), 1);
}

/// One edit among a number of other rules of its namespace with one source each.
#[divan::bench(args = SIZES, sample_count = 50)]
fn edit_beside_rules(bencher: Bencher<'_, '_>, rules: usize) {
    edited(bencher, index(rules, 1, rules), rules);
}

/// One edit for this many clusters: the index returns which ones, so the cost grows with them and
/// no faster.
#[divan::bench(args = SIZES, sample_count = 50)]
fn edit_for_clusters(bencher: Bencher<'_, '_>, clusters: usize) {
    edited(bencher, index(10, clusters, 1), 1);
}

/// The judgment of the deletion of a rule with 1,000 sources in this many clusters, while which the index is locked: linear in
/// the clusters, and at most 10 ms for 5,000.
#[divan::bench(args = [50, 500, 5_000], sample_count = 20, sample_size = 1)]
fn deletion_for_clusters(bencher: Bencher<'_, '_>, clusters: usize) {
    let index = RefCell::new(index(1_000, clusters, 1));
    let reported = |_: &RuleUid, _: &ClusterName| {
        Some(ReportedCopies {
            copies: 1_000,
            intents: 1_000,
            ..ReportedCopies::default()
        })
    };
    let delete = || {
        let mut deleted = rule(0);
        (deleted.deleting, deleted.is_origin_known) = (true, true);
        index.borrow_mut().set_rule(rule(0));
        index.borrow_mut().set_rule(deleted).judge
    };
    let now = Now {
        instant: Instant::now(),
        wall: Timestamp::UNIX_EPOCH,
    };
    let of_all: &dyn Fn(&ClusterName) -> u64 = &|_| 1_000;
    bencher.with_inputs(delete).bench_local_values(|rules| {
        let mut index = index.borrow_mut();
        index.judge_with(&rules, &reported, Some(of_all), now)
    });
}

/// An edit of one source that is rendered for a number of clusters: linear in the clusters.
#[divan::bench(args = SHAPED_SIZES, sample_count = 5, sample_size = 1)]
fn shaped_edit_for_clusters(bencher: Bencher<'_, '_>, clusters: usize) {
    let mut index = shaped_index(clusters);
    let mut number = 1_000_000;
    let edit = bencher.with_inputs(|| {
        number += 1;
        (source(0), labels(0), shaped_body(number))
    });
    edit.bench_local_values(|(source, labels, body)| index.set_source(source, labels, Some(body)));
}

/// An edit of a rule whose copies are rendered for each of this many clusters. Former results are
/// not rendered again.
#[divan::bench(args = SHAPED_SIZES, sample_count = 5, sample_size = 1)]
fn shaped_rule_for_clusters(bencher: Bencher<'_, '_>, clusters: usize) {
    let mut index = shaped_index(clusters);
    bencher
        .with_inputs(shaped_rule)
        .bench_local_values(|rule| index.set_rule(rule));
}

/// The rule of number 0, which fills the name of the cluster into its copies.
fn shaped_rule() -> Rule {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r0", "namespace": NAMESPACE, "uid": "u0", "generation": 1},
        "spec": {
            "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"rule": "0"}}}],
            "clusters": {"all": true}, "substitute": {"keys": ["value"]}, "removalLimit": {"percent": 100},
        },
    });
    let object: DistributionRule = serde_json::from_value(object).expect("a rule");
    Rule::namespaced(&object, "runnel-system").expect("a rule")
}

/// Content that differs by cluster once it is rendered: 1 KiB of text, and the name of the cluster.
fn shaped_body(number: usize) -> SourceState {
    let data = json!({"value": format!("${{cluster.name}} {}", noise(number as u64, 1024))});
    let content = Content {
        fields: BTreeMap::from([("data".to_owned(), data)]),
        ..Content::default()
    };
    SourceState::Read(Arc::new(SourceContent::new(
        revision(number),
        Payload::encode(content.to_bytes()),
    )))
}

/// A rule that renders 10 sources for a number of clusters.
fn shaped_index(clusters: usize) -> Index {
    let mut index = index(0, clusters, 1);
    for number in 0..10 {
        index.set_source(source(number), labels(0), Some(shaped_body(number)));
    }
    index.set_rule(shaped_rule());
    // Sources that no former rule needed are read.
    for number in 0..10 {
        index.set_source(source(number), labels(0), Some(shaped_body(number)));
    }
    index
}

/// The messages to one agent about one edit, in a rule with many sources; one edit at a time,
/// because several would be one delta.
#[divan::bench(args = SIZES, sample_count = 50, sample_size = 1)]
fn session_delta(bencher: Bencher<'_, '_>, sources: usize) {
    let index = RefCell::new(index(sources, 1, 1));
    let (uid, to) = (RuleUid::from("u0"), cluster(0));
    let mut session = Session::default();
    session.hello_done();
    let mut say = || {
        let index = index.borrow();
        let assignment = index
            .rules()
            .get(&uid)
            .and_then(|entry| entry.assignment(&to))
            .expect("a share");
        session.update([(uid.clone(), Directive::Assigned(assignment))]);
        let mut sent = 0;
        while let Some(batch) = session.next_batch() {
            sent += batch
                .rules
                .iter()
                .map(|rule| rule.upserts.len())
                .sum::<usize>();
            session.ack(batch.nonce);
        }
        sent
    };
    assert_eq!(say(), sources);
    let mut next = edits(0);
    let edit = bencher.with_inputs(|| {
        let (source, labels, body) = next();
        index.borrow_mut().set_source(source, labels, Some(body));
    });
    edit.bench_local_values(|()| assert_eq!(say(), 1));
}

/// A batch with a number of intents is decoded, applied and decided, copy by copy.
#[divan::bench(args = SIZES, sample_count = 10)]
fn decode_and_decide(bencher: Bencher<'_, '_>, intents: usize) {
    let terms = rule(0).terms;
    let upserts = (0..intents).map(|number| {
        let (source, revision, payload) = (source(number), revision(number), payload(number));
        Intent {
            source,
            revision,
            payload,
        }
    });
    let delta = RuleDelta {
        terms: Some(((*terms.to_shared()).clone(), terms.digest)),
        upserts: upserts.collect(),
        ..RuleDelta::new(RuleUid::from("u0"))
    };
    let frame = HubFrame::Batch(Batch {
        nonce: 1,
        rules: vec![delta],
    });
    let bytes = hub_frame_to_wire(&frame).encode_to_vec();
    let home = || AgentLocation {
        namespace: "runnel-system".to_owned(),
        cluster_uid: "member".to_owned(),
    };
    bencher.bench(|| {
        let frame = wire::HubFrame::decode(bytes.as_slice()).expect("a frame");
        let (HubFrame::Batch(batch), refused) = hub_frame(frame).expect("a frame") else {
            return 0;
        };
        let records = Records::default();
        let mut desired = Desired::new(home(), Arc::new(Policy::default()));
        desired.set_namespace(NAMESPACE, Some(Namespace::default()), &records);
        let to_reconcile = desired.take(batch, refused, &records).changed_copies;
        let to_create = |copy: &&SourceRef| {
            matches!(
                decide(
                    &desired.owners().desired_copy(copy, None),
                    &Observed::Absent
                ),
                Decision::Act(Action::Create)
            )
        };
        let created = to_reconcile.iter().filter(to_create).count();
        assert_eq!(created, intents);
        created
    });
}

/// The status of a healthy rule in a number of clusters.
#[divan::bench(args = SIZES, sample_count = 10)]
fn status_fold(bencher: Bencher<'_, '_>, clusters: usize) {
    folded(bencher, clusters, &[]);
}

/// The status of a rule that fails in this many clusters, in each with as many failures as an agent
/// reports.
#[divan::bench(args = SIZES, sample_count = 10)]
fn status_fold_failing(bencher: Bencher<'_, '_>, clusters: usize) {
    let failure = |number: usize| Failure {
        reason: Reason::Conflict,
        copy: source(number),
        message: noise(number as u64, MESSAGE_LIMIT),
    };
    folded(
        bencher,
        clusters,
        &(0..FAILURES_LIMIT).map(failure).collect::<Vec<_>>(),
    );
}

fn folded(bencher: Bencher<'_, '_>, clusters: usize, failures: &[Failure]) {
    let (rule, plan, cluster_plans) = (
        rule(0),
        planned(RulePlan::empty(&rule(0)), 1),
        ClusterPlans::default(),
    );
    let names: Vec<ClusterName> = (0..clusters).map(cluster).collect();
    let mut resolver = TermsResolver::new(&rule, RuleGrants::All);
    let mut target_clusters = TargetClusters::default();
    for name in &names {
        let terms = resolver.of(name, &Default::default());
        target_clusters.set(&rule, name, Some(terms), false);
    }
    let mut report_store = ReportStore::default();
    for name in &names {
        report_store.connected(name, 1, facts(), vec![state(&rule, &plan, failures)]);
    }
    let members = BTreeMap::new();
    let (previous, started) = (RuleStatus::default(), Instant::now());
    let now = Now {
        instant: started + Duration::from_secs(60),
        wall: Timestamp::UNIX_EPOCH,
    };
    bencher.bench(|| {
        let view = View {
            rule: &rule,
            plan: &plan,
            cluster_plans: &cluster_plans,
            target_clusters: &target_clusters,
            members: &members,
            unreadable: BTreeMap::new(),
            not_served: BTreeSet::new(),
            mismatched: BTreeSet::new(),
            pending: None,
            kept: &[],
            blocks_removals: false,
            blocks_prunes: false,
            planned_removals: BTreeMap::new(),
            rolling: None,
            previous: &previous,
            hub_started: started,
            overdue: false,
        };
        fold(&view, &report_store, now)
    });
}

fn state(rule: &Rule, plan: &RulePlan, failures: &[Failure]) -> RuleState {
    let failed = u32::from(!failures.is_empty());
    RuleState {
        rule: rule.terms.rule.clone(),
        intents_digest: plan.digest,
        intents: 1,
        terms_digest: Some(rule.terms.digest),
        counts: Counts {
            copies: 1,
            applied: 1 - failed,
            failed,
            ..Counts::default()
        },
        failures: failures.to_vec(),
        ..RuleState::new("u0".into())
    }
}

/// An object with a list of this many items, each with two key fields, that the agent has applied.
fn long_list(items: usize) -> DynamicObject {
    let item = |n: usize| json!({"port": n, "protocol": "TCP", "name": format!("p{n}")});
    let list: Vec<_> = (0..items).map(item).collect();
    let keys: serde_json::Map<String, serde_json::Value> = (0..items)
        .map(|n| {
            let fields = json!({".": {}, "f:port": {}, "f:protocol": {}, "f:name": {}});
            (format!("k:{{\"port\":{n},\"protocol\":\"TCP\"}}"), fields)
        })
        .collect();
    let object = json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "thing", "managedFields": [{
            "manager": FIELD_MANAGER, "operation": "Apply", "apiVersion": "example.com/v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:ports": keys}},
        }]},
        "spec": {"ports": list},
    });
    serde_json::from_value(object).expect("it is an object")
}

/// What the agent does with each object that it reads.
#[divan::bench(args = LENGTHS, sample_count = 10)]
fn fields_of_long_list(bencher: Bencher<'_, '_>, items: usize) {
    let object = long_list(items);
    bencher.bench(|| applied_fields(&object));
}

/// What it does with the answer to each apply.
#[divan::bench(args = LENGTHS, sample_count = 10)]
fn answer_with_long_list(bencher: Bencher<'_, '_>, items: usize) {
    let answer = long_list(items);
    let sent =
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "spec": answer.data["spec"]});
    bencher.bench(|| dropped(&sent, &answer, &BTreeSet::new(), 9));
}
