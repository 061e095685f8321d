use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use proptest::prelude::*;
use runnel_proto::model::{
    ClusterName, Counts, FAILURES_LIMIT, Failure, LostWatch, MESSAGE_LIMIT, Payload, Proof,
    ProofKey, Reason, Revision, RuleState, SourceRef,
};
use serde_json::json;

use super::*;
use crate::index::Cluster;
use crate::plan::{
    ClusterPlans, GrantedTerms, Rule, RulePlan, SourceContent, SourceState, TargetClusters,
    WatchScope,
};
use runnel_api::conditions::{ConditionType, condition};
use runnel_api::{self, ClusterState, RuleStatus};

mod pages;
mod proof;
mod reasons;
mod rollouts;
mod snapshots;
mod unmatched;

struct World {
    rule: Rule,
    plan: RulePlan,
    cluster_plans: ClusterPlans,
    target_clusters: TargetClusters,
    members: BTreeMap<ClusterName, Cluster>,
    report_store: ReportStore,
    status: RuleStatus,
    started: Instant,
    seconds: u64,
    overdue: bool,
    pending: Option<runnel_api::PendingApproval>,
    planned_removals: BTreeMap<ClusterName, u64>,
    blocks_removals: bool,
    namespace_prunes: Option<runnel_proto::model::NamespacePrunes>,
    rolling: Option<rollouts::Under>,
    proof: Option<Proof>,
    not_served: BTreeSet<std::sync::Arc<str>>,
    /// The places whose kinds have the other scope, and the sentences about them.
    mismatched: BTreeMap<WatchScope, String>,
}

fn rule(spec: serde_json::Value) -> Rule {
    let mut spec = spec;
    spec["sources"] = json!([{"resources": ["configmaps"], "names": ["*"]}]);
    spec["clusters"] = json!({"all": true});
    whole_rule(spec)
}

fn whole_rule(spec: serde_json::Value) -> Rule {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r", "namespace": "a", "uid": "r", "generation": 3}, "spec": spec,
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
    Rule::namespaced(&object, "runnel-system").unwrap()
}

fn facts() -> SessionFacts {
    SessionFacts {
        agent_version: "0.1.0".into(),
        kubernetes_version: "v1.36.3".into(),
        cluster_uid: "u".into(),
        key: String::new(),
        boot_id: String::new(),
        certificate_expires: Timestamp::UNIX_EPOCH,
    }
}

impl World {
    /// One source, these clusters, all connected, the hub up for a minute.
    fn new(clusters: &[&str]) -> Self {
        let rule = rule(json!({}));
        let mut plan = RulePlan::empty(&rule);
        let content = SourceContent::new(Revision([1; 16]), Payload::encode(b"{}".to_vec()));
        plan.set(
            &SourceRef::new("configmaps", "a", "s"),
            Some(&SourceState::Read(content.into())),
        );
        let clusters = clusters
            .iter()
            .map(|name| {
                (
                    ClusterName::from(*name),
                    GrantedTerms::unrestricted(rule.terms.clone()),
                )
            })
            .collect();
        let target_clusters = TargetClusters {
            clusters,
            ..TargetClusters::default()
        };
        let mut report_store = ReportStore::proving(ProofKey::new([1; 32]));
        for cluster in target_clusters.clusters.keys() {
            report_store.connected(cluster, 1, facts(), vec![]);
        }
        let status = RuleStatus::default();
        Self {
            rule,
            plan,
            cluster_plans: ClusterPlans::default(),
            target_clusters,
            members: BTreeMap::new(),
            report_store,
            status,
            started: Instant::now(),
            seconds: 60,
            overdue: false,
            pending: None,
            planned_removals: BTreeMap::new(),
            blocks_removals: false,
            namespace_prunes: None,
            rolling: None,
            proof: None,
            not_served: BTreeSet::new(),
            mismatched: BTreeMap::new(),
        }
    }

    /// The rule is edited.
    fn becomes(&mut self, rule: Rule) {
        self.target_clusters
            .clusters
            .values_mut()
            .for_each(|terms| *terms = GrantedTerms::unrestricted(rule.terms.clone()));
        self.rule = rule;
    }

    fn now(&self) -> Now {
        let wall =
            Timestamp::from_second(1_800_000_000 + i64::try_from(self.seconds).unwrap()).unwrap();
        Now {
            instant: self.started + Duration::from_secs(self.seconds),
            wall,
        }
    }

    fn is_settled(&self) -> bool {
        let (view, now) = (self.view(&self.status), self.now().instant);
        in_progress(&view, &self.report_store, None, now).is_none()
    }

    fn view<'a>(&'a self, previous: &'a RuleStatus) -> View<'a> {
        let mut view = View {
            rule: &self.rule,
            plan: &self.plan,
            cluster_plans: &self.cluster_plans,
            target_clusters: &self.target_clusters,
            members: &self.members,
            unreadable: self
                .not_served
                .iter()
                .map(|resource| (WatchScope::everywhere(resource.clone()), String::new()))
                .chain(self.mismatched.clone())
                .collect(),
            not_served: self.not_served.clone(),
            mismatched: self.mismatched.keys().cloned().collect(),
            pending: self.pending.clone(),
            blocks_removals: self.blocks_removals,
            blocks_prunes: self.pending.is_some() && !self.blocks_removals,
            planned_removals: self.planned_removals.clone(),
            kept: &[],
            rolling: self
                .rolling
                .as_ref()
                .map(|under| under.rolling((&self.cluster_plans, &self.target_clusters))),
            previous,
            hub_started: self.started,
            overdue: self.overdue,
        };
        view.compare_with_former(
            self.rolling
                .as_ref()
                .is_some_and(rollouts::Under::is_rolling_back),
        );
        view
    }

    fn report(&mut self, cluster: &str, counts: Counts, failures: Vec<Failure>) {
        let state = RuleState {
            failures,
            ..self.state(cluster, counts)
        };
        self.report_store.report(&cluster.into(), 1, state);
    }

    /// Returns the report of an agent that has the newest plan.
    fn state(&self, cluster: &str, counts: Counts) -> RuleState {
        let terms = self
            .target_clusters
            .clusters
            .get(&cluster.into())
            .map_or(&self.rule.terms, |terms| terms);
        RuleState {
            rule: self.rule.terms.rule.clone(),
            intents_digest: self
                .cluster_plans
                .plan_of(&cluster.into())
                .map_or(self.plan.digest, |sent| sent.digest),
            intents: 1,
            terms_digest: Some(terms.digest),
            counts,
            namespace_prunes: self.namespace_prunes.clone(),
            proof: self.proof,
            ..RuleState::new("r".into())
        }
    }

    fn applied(&mut self, cluster: &str) {
        self.report(
            cluster,
            Counts {
                copies: 2,
                applied: 2,
                ..Counts::default()
            },
            vec![],
        );
    }

    /// Writes the status if it changed. Returns whether it did.
    fn fold(&mut self) -> bool {
        let next = fold(&self.view(&self.status), &self.report_store, self.now());
        let written = next.is_some();
        self.status = next.unwrap_or_else(|| self.status.clone());
        written
    }

    fn condition(&self, condition_type: ConditionType) -> (String, String) {
        let known = condition(&self.status.conditions, condition_type);
        known
            .map(|known| (known.status.clone(), known.reason.clone()))
            .unwrap_or_default()
    }

    fn ready(&self) -> (String, String) {
        self.condition(ConditionType::Ready)
    }
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

fn failure(reason: Reason, message: &str) -> Failure {
    Failure {
        reason,
        copy: SourceRef::new("configmaps", "default", "s"),
        message: message.to_owned(),
    }
}

#[test]
fn rule_is_ready_when_all_is_applied_and_then_is_not_written() {
    let mut world = World::new(&["one", "two"]);
    world.applied("one");
    world.fold();
    assert_eq!(world.ready(), pair("False", "Progressing"));
    assert_eq!(world.status.revision, None);
    world.applied("two");
    assert!(world.is_settled());
    assert!(world.fold());
    assert_eq!(world.ready(), pair("True", "AllApplied"));
    assert!(world.status.revision.is_some());
    assert_eq!(world.status.display.as_ref().unwrap().copies, "4/4");
    world.seconds += 100;
    assert!(!world.fold(), "time alone changes nothing");
}

#[test]
fn an_edit_that_has_arrived_changes_the_revision() {
    let mut world = World::new(&["one"]);
    world.applied("one");
    world.fold();
    let before = world.status.revision.clone();
    let content = SourceContent::new(Revision([2; 16]), Payload::encode(vec![]));
    world.plan.set(
        &SourceRef::new("configmaps", "a", "s"),
        Some(&SourceState::Read(content.into())),
    );
    assert!(!world.is_settled());
    world.applied("one");
    assert!(world.fold());
    assert_ne!(world.status.revision, before);
}

#[test]
fn rule_with_unlisted_kinds_is_not_ready() {
    let mut world = World::new(&["eu-1"]);
    world.applied("eu-1");
    world.plan.unknown.insert(WatchScope::everywhere("secrets"));
    assert!(!world.is_settled());
    world.fold();
    assert_eq!(
        (world.ready(), &world.status.revision),
        (pair("False", "Progressing"), &None)
    );

    world.plan.unknown.clear();
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));
}

#[test]
fn failed_copy_is_named_in_the_status_of_its_rule() {
    let mut world = World::new(&["one", "two"]);
    world.applied("one");
    let counts = Counts {
        copies: 2,
        applied: 1,
        failed: 1,
        ..Counts::default()
    };
    world.report(
        "two",
        counts,
        vec![failure(
            Reason::Conflict,
            "an object that is not ours is in the way",
        )],
    );
    world.fold();
    assert_eq!(world.ready(), pair("False", "Conflict"));
    let first = &world.status.clusters[0];
    assert_eq!(
        (first.name.as_str(), first.state, first.failed),
        ("two", ClusterState::Failed, 1)
    );
    assert!(
        first.message.contains("configmaps/default/s"),
        "{}",
        first.message
    );
}

#[test]
fn waiting_copy_is_neither_failed_nor_ready() {
    let mut world = World::new(&["one"]);
    world.report(
        "one",
        Counts {
            copies: 2,
            applied: 1,
            waiting: 1,
            ..Counts::default()
        },
        vec![],
    );
    world.fold();
    assert_eq!(world.ready(), pair("False", "CopiesWaiting"));
    assert_eq!(world.status.summary.unwrap().copies_failed, 0);
}

#[test]
fn silence_turns_unknown_within_its_time() {
    let mut world = World::new(&["one", "two"]);
    world.applied("one");
    world.applied("two");
    world.fold();
    world
        .report_store
        .disconnected(&"two".into(), 0, world.now().instant);
    world
        .report_store
        .disconnected(&"two".into(), 1, world.now().instant);
    assert!(!world.fold(), "a blip is not worth a word");
    world.seconds += SILENCE.as_secs();
    assert!(world.fold());
    assert_eq!(world.ready(), pair("Unknown", "ClustersUnreachable"));
    assert_eq!(
        world.condition(ConditionType::Applied),
        pair("True", "AllApplied")
    );
    // The Event about a lost cluster is on its MemberCluster.
    assert_eq!(notices(&RuleStatus::default(), &world.status), []);
    let before = world.status.clone();
    world
        .report_store
        .connected(&"two".into(), 1, facts(), vec![]);
    world.applied("two");
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));
    assert_eq!(notices(&before, &world.status), []);
}

#[test]
fn rule_is_not_applied_while_a_connected_agent_is_blind() {
    let mut world = World::new(&["one", "two"]);
    world.applied("one");
    world.applied("two");
    world.fold();
    let lost = |status| LostWatch {
        resource: "configmaps".into(),
        status,
    };
    for (status, condition, state) in [
        (403, ("False", "Forbidden"), ClusterState::Failed),
        (401, ("False", "Forbidden"), ClusterState::Failed),
        (
            503,
            ("Unknown", "MemberAPIUnavailable"),
            ClusterState::Unreachable,
        ),
    ] {
        let name = "two".into();
        world
            .report_store
            .lost_watches(&name, 1, vec![lost(status)]);
        world.fold();
        let expected = pair(condition.0, condition.1);
        assert_eq!(world.condition(ConditionType::Applied), expected);
        assert_eq!(world.ready(), expected, "{status}");
        let cluster = world.status.clusters.iter().find(|c| c.name == "two");
        let cluster = cluster.unwrap();
        assert_eq!((cluster.state, &*cluster.reason), (state, condition.1));
    }
    // A kind without copies of the rule does not concern it.
    let other = LostWatch {
        resource: "gears.example.com".into(),
        status: 403,
    };
    world
        .report_store
        .lost_watches(&"two".into(), 1, vec![other]);
    world.fold();
    assert_eq!(
        world.condition(ConditionType::Applied),
        pair("True", "AllApplied")
    );
    assert_eq!(world.ready(), pair("True", "AllApplied"));
}

#[test]
fn lost_watches_of_some_kinds_are_not_the_whole_api() {
    let mut world = World::new(&["one"]);
    world.applied("one");
    let name = ClusterName::from("one");
    let mut uncertain_by = |status: u16, lost: &[&str], in_use: &[&'static str]| {
        let lost = lost.iter().map(|resource| LostWatch {
            resource: (*resource).into(),
            status,
        });
        world.report_store.lost_watches(&name, 1, lost.collect());
        let first = world
            .report_store
            .first_lost_watch(&name, in_use.iter().copied());
        first.map(|(watch, uncertain)| (watch.resource.to_string(), uncertain))
    };
    let of = |resource: &str, uncertain| Some((resource.to_owned(), uncertain));
    let both = ["configmaps", "secrets"];
    // The API server answers, and does not serve the only kind.
    let gears = ["gears.example.com"];
    assert_eq!(
        uncertain_by(404, &gears, &gears),
        of(gears[0], Uncertain::Kinds)
    );
    let mut uncertain = |lost: &[&str], in_use: &[&'static str]| uncertain_by(503, lost, in_use);
    assert_eq!(uncertain(&[], &both), None);
    let unused = uncertain(&["gears.example.com"], &both);
    assert_eq!(unused, of("gears.example.com", Uncertain::Nothing));
    let some = uncertain(&["gears.example.com", "secrets"], &both);
    assert_eq!(some, of("secrets", Uncertain::Kinds));
    let all = uncertain(&both, &both);
    assert_eq!(all, of("configmaps", Uncertain::Everything));
    let namespaces = uncertain(&["namespaces"], &both);
    assert_eq!(namespaces, of("namespaces", Uncertain::Everything));
    assert_eq!(
        uncertain(&["namespaces"], &[]),
        of("namespaces", Uncertain::Everything)
    );
}

#[test]
fn starting_hub_keeps_the_status_until_clusters_can_connect() {
    let mut world = World::new(&["one", "two"]);
    world.applied("one");
    world.applied("two");
    world.fold();
    let plan = world.plan.clone();
    world.report_store = ReportStore::default();
    world.started = Instant::now();
    world.seconds = 1;
    assert!(!world.fold());
    world
        .report_store
        .connected(&"one".into(), 1, facts(), vec![]);
    world.plan = plan;
    world.applied("one");
    assert!(!world.fold(), "one of two is back");
    world
        .report_store
        .connected(&"two".into(), 1, facts(), vec![]);
    world.applied("two");
    assert!(!world.fold(), "everything is as it was");
    // The other case: the second agent never reconnects.
    world.report_store.forget(&"two".into());
    world.seconds = SETTLING.as_secs() + 1;
    assert!(world.fold());
    assert_eq!(world.ready(), pair("Unknown", "ClustersUnreachable"));
}

#[test]
fn starting_hub_reports_definite_failures() {
    let mut world = World::new(&["one", "two"]);
    world.applied("one");
    world.applied("two");
    world.fold();
    world.report_store = ReportStore::default();
    world.seconds = 1;
    world
        .report_store
        .connected(&"one".into(), 1, facts(), vec![]);
    world.report(
        "one",
        Counts {
            copies: 2,
            failed: 2,
            ..Counts::default()
        },
        vec![failure(Reason::Forbidden, "no")],
    );
    assert!(world.fold());
    assert_eq!(world.ready(), pair("False", "Forbidden"));
}

#[test]
fn reconciling_stalled_and_suspended_exist_only_while_true() {
    let mut world = World::new(&["one"]);
    world.overdue = true;
    world.fold();
    assert_eq!(
        world.condition(ConditionType::Reconciling),
        pair("True", "Progressing")
    );
    world.applied("one");
    world.fold();
    assert_eq!(
        world.condition(ConditionType::Reconciling),
        Default::default()
    );

    let unreadable = SourceRef::new("configmaps", "a", "t");
    world.plan.set(&unreadable, Some(&SourceState::Unreadable));
    world.fold();
    assert_eq!(
        world.condition(ConditionType::Stalled),
        pair("True", "SourceUnreadable")
    );
    assert_eq!(world.ready(), pair("False", "SourceUnreadable"));
    world.plan.set(&unreadable, None);
    world.fold();
    assert_eq!(world.condition(ConditionType::Stalled), Default::default());

    world.not_served = ["gadgets.example.org".into(), "widgets.example.org".into()].into();
    world.fold();
    for condition in [ConditionType::Stalled, ConditionType::Ready] {
        let condition = runnel_api::conditions::condition(&world.status.conditions, condition);
        let condition = condition.unwrap();
        assert_eq!(condition.reason, "KindNotServed");
        let message = &condition.message;
        assert!(
            message.contains("does not serve gadgets.example.org and 1 other kind: install"),
            "{message}"
        );
    }
    world.not_served.clear();

    world.becomes(rule(json!({"suspend": true})));
    world.fold();
    assert_eq!(
        world.condition(ConditionType::Suspended),
        pair("True", "Suspended")
    );
    assert_eq!(world.ready(), pair("False", "Suspended"));
}

#[test]
fn dry_run_shows_counts_and_the_first_change() {
    let mut world = World::new(&["one", "two"]);
    world.becomes(rule(json!({"enforcement": "DryRun"})));
    let planned = Counts {
        copies: 3,
        applied: 1,
        to_create: 1,
        to_update: 1,
        to_delete: 2,
        ..Counts::default()
    };
    world.report(
        "one",
        planned,
        vec![failure(
            Reason::DryRun,
            "would be updated: /data/a is another",
        )],
    );
    world.report(
        "two",
        Counts {
            copies: 2,
            to_create: 1,
            failed: 1,
            ..Counts::default()
        },
        vec![failure(Reason::Conflict, "no")],
    );
    world.planned_removals = BTreeMap::from([("one".into(), 4), ("elsewhere".into(), 8)]);
    world.fold();
    assert_eq!(
        world.condition(ConditionType::DryRun),
        pair("True", "DryRun")
    );
    assert_eq!(world.ready(), pair("False", "DryRun"));
    let summary = world.status.summary.unwrap();
    assert_eq!(
        (
            summary.copies_to_create,
            summary.copies_to_update,
            summary.copies_to_delete
        ),
        (2, 1, 14)
    );
    let states: Vec<_> = world
        .status
        .clusters
        .iter()
        .map(|cluster| (cluster.name.as_str(), cluster.state))
        .collect();
    assert_eq!(
        states,
        [("two", ClusterState::Failed), ("one", ClusterState::DryRun)],
        "the worst comes first"
    );
    assert_eq!(world.status.clusters[1].to_delete, 6);
    assert!(
        world.status.clusters[1]
            .message
            .contains("would be updated: /data/a"),
        "{:?}",
        world.status.clusters[1]
    );
}

#[test]
fn rule_with_missing_reports_is_not_ready() {
    let mut world = World::new(&["one"]);
    let unread = SourceRef::new("configmaps", "a", "t");
    world.plan.set(&unread, Some(&SourceState::Unread));
    world.applied("one");
    assert!(!world.is_settled());
    world.fold();
    assert_eq!(world.ready(), pair("False", "Progressing"));
    world.plan.set(&unread, None);
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));
    // Read before, changed since, and unreadable now: existing copies have an older revision.
    let source = SourceRef::new("configmaps", "a", "s");
    let content = world.plan.intents[&source].clone();
    world.plan.set(&source, Some(&SourceState::Stale(content)));
    assert_eq!(world.plan.sources(), 1);
    world.fold();
    assert_eq!(world.ready(), pair("False", "SourceUnreadable"));
}

#[test]
fn failed_removal_is_reported_with_its_cause() {
    let mut world = World::new(&["one"]);
    let counts = Counts {
        copies: 2,
        applied: 2,
        removing: 1,
        ..Counts::default()
    };
    world.report(
        "one",
        counts,
        vec![failure(Reason::Forbidden, "the agent may not delete it")],
    );
    world.fold();
    assert_eq!(world.ready(), pair("False", "Forbidden"));
}

#[test]
fn an_edit_of_a_suspended_rule_does_not_count_as_arrived() {
    let mut world = World::new(&["one"]);
    world.applied("one");
    world.fold();
    let before = world.status.revision.clone();
    world.becomes(rule(json!({"suspend": true})));
    world.applied("one");
    world.fold();
    assert_eq!(world.status.revision, before);
}

#[test]
fn empty_selections_are_reported() {
    let mut world = World::new(&[]);
    world.fold();
    assert_eq!(world.ready(), pair("False", "NoClusters"));
    world.plan = RulePlan::empty(&world.rule);
    world.fold();
    assert_eq!(world.ready(), pair("False", "NoSources"));
}

/// Prints the sizes that the manual and the release notes name: `cargo test -p runnel-hub --lib
/// size -- --nocapture`.
#[test]
fn the_size_of_a_status_does_not_grow_with_the_fleet() {
    let long = format!("an object exists here; {}", "\"".repeat(MESSAGE_LIMIT));
    let cases = [
        (
            "cluster",
            "default",
            "settings",
            "an object that is not Runnel's exists here; delete it or rename it",
        ),
        // The longest possible names and messages; escaped characters need twice the space.
        (
            &"c".repeat(57),
            &"n".repeat(63),
            &"s".repeat(253),
            &long[..MESSAGE_LIMIT],
        ),
    ];
    for (cluster, namespace, source, message) in cases {
        let size = |clusters: usize| {
            let names: Vec<_> = (0..clusters).map(|n| format!("{cluster}-{n:05}")).collect();
            let mut world = World::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
            for (n, name) in names.iter().enumerate() {
                let copy = SourceRef::new("configmaps", namespace, source);
                let failure = Failure {
                    reason: Reason::Conflict,
                    copy,
                    message: message.to_owned(),
                };
                let failed = Counts {
                    copies: 2,
                    applied: 1,
                    failed: 1,
                    ..Counts::default()
                };
                match n % 10 {
                    0 => world.report(name, failed, vec![failure; FAILURES_LIMIT]),
                    _ => world.applied(name),
                }
            }
            world.fold();
            let size = serde_json::to_vec(&world.status).unwrap().len();
            println!("{clusters} clusters: a status of {size} bytes");
            size
        };
        let sizes = [10, 1_000, 10_000].map(size);
        assert!(sizes.iter().all(|size| *size < 64 * 1024), "{sizes:?}");
        assert!(
            sizes[2] < sizes[1] + 64,
            "it grows with the fleet: {sizes:?}"
        );
    }
}

#[test]
fn detail_of_a_cluster_has_its_failures() {
    let names: Vec<_> = (0..30).map(|n| format!("c{n:02}")).collect();
    let mut world = World::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &names {
        world.applied(name);
    }
    let copy = SourceRef::new("configmaps", "default", "settings");
    let failures = vec![Failure {
        reason: Reason::Conflict,
        copy,
        message: "not ours".into(),
    }];
    world.report(
        "c17",
        Counts {
            copies: 2,
            applied: 1,
            failed: 1,
            ..Counts::default()
        },
        failures.clone(),
    );
    let view = world.view(&world.status);
    let of = |name: &str| {
        let cluster = ClusterName::from(name);
        detail(&view, &world.report_store, &cluster, world.now().instant)
    };
    for name in &names {
        let row = of(name).unwrap();
        if name == "c17" {
            assert_eq!(
                (row.state, &row.failures),
                (ClusterState::Failed, &failures)
            );
            assert!(!row.newest, "what failed is not the newest");
        } else {
            assert_eq!((row.state, row.failures.len()), (ClusterState::Ready, 0));
            assert!(row.newest, "{name}");
        }
    }
    assert_eq!(of("c30"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_status_is_never_larger_than_64_kib_for_any_fleet(
        clusters in 0..3000usize,
        kinds in proptest::collection::vec(0..5u8, 1..40),
        message in "\\PC{0,400}",
    ) {
        let names: Vec<_> = (0..clusters).map(|n| format!("{n:063}")).collect();
        let mut world = World::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let message: String = message.chars().take(MESSAGE_LIMIT / 4).collect();
        for (n, name) in names.iter().enumerate() {
            let long = "x".repeat(253);
            let copy = SourceRef::new("configmaps", &long[..63], &long);
            let failures = vec![Failure { reason: Reason::NamespaceTerminating, copy, message: message.clone() }];
            match kinds[n % kinds.len()] {
                0 => world.applied(name),
                1 => world.report(name, Counts { copies: u32::MAX, failed: u32::MAX, ..Counts::default() }, failures),
                2 => world.report(name, Counts { copies: 9, applied: 4, waiting: 5, ..Counts::default() }, vec![]),
                3 => world.report_store.forget(&name.as_str().into()),
                _ => {}
            }
        }
        world.fold();
        prop_assert!(serde_json::to_vec(&world.status).unwrap().len() < 64 * 1024);
        prop_assert!(world.status.clusters.len() <= 20);
        prop_assert_eq!(world.status.truncated, clusters > 20);
        let words: BTreeSet<&str> = runnel_api::conditions::Reason::all().map(runnel_api::conditions::Reason::as_str).collect();
        prop_assert!(world.status.clusters.iter().all(|cluster| words.contains(&*cluster.reason)));
        let worst_first = world.status.clusters.is_sorted_by_key(|cluster| cluster.state);
        prop_assert!(worst_first);
        prop_assert!(!world.fold(), "folding again changes nothing");
    }
}

#[test]
fn pending_prunes_are_under_way_until_blocked() {
    let mut world = World::new(&["one", "two"]);
    let digest = runnel_proto::model::PruneDigest([1; 16]);
    let namespaces = vec!["a".to_owned(), "b".to_owned()];
    world.namespace_prunes = Some(runnel_proto::model::NamespacePrunes {
        copies: 12,
        digest,
        namespaces,
    });
    world.report(
        "one",
        Counts {
            copies: 1,
            applied: 1,
            ..Counts::default()
        },
        vec![],
    );
    world.namespace_prunes = None;
    world.applied("two");
    world.fold();
    assert_eq!(world.ready(), pair("False", "Progressing"));
    let holding = world
        .report_store
        .reported_copies(&"r".into(), &"one".into())
        .unwrap();
    assert_eq!((holding.copies, holding.prunes.unwrap().objects), (13, 12));
    assert_eq!(
        world
            .report_store
            .namespaces_of_prunes(&"r".into(), &"one".into()),
        ["a", "b"]
    );

    world.pending = Some(runnel_api::PendingApproval {
        causes: Vec::new(),
        digest: "0123".to_owned(),
        cause: "namespaces in member clusters are no longer targets".to_owned(),
        copies: 12,
        clusters: 1,
        names: vec!["namespaces in cluster one".to_owned()],
        since: None,
    });
    world.namespace_prunes = Some(runnel_proto::model::NamespacePrunes {
        copies: 12,
        digest,
        namespaces: vec!["a".into(), "b".into()],
    });
    world.fold();
    let blocked = (pair("False", "RemovalLimit"), pair("True", "RemovalLimit"));
    assert_eq!(
        (
            world.ready(),
            world.condition(ConditionType::ApprovalRequired)
        ),
        blocked
    );
    let text = condition(&world.status.conditions, ConditionType::ApprovalRequired)
        .map(|acked| acked.message.clone());
    assert_eq!(
        text.unwrap(),
        "the removal of 12 copies in 1 cluster needs approval: namespaces in member clusters are no longer targets \
         (namespaces in cluster one). To remove exactly these: kubectl annotate drule r -n a --overwrite \
         runnel.dev/approve=0123; to keep them, undo the change"
    );
    assert_eq!(
        world
            .status
            .clusters
            .iter()
            .filter(|cluster| cluster.state == ClusterState::Ready)
            .count(),
        2
    );
    assert_eq!(world.status.pending_approval.as_ref().unwrap().copies, 12);
    world.pending = None;
    world.namespace_prunes = None;
    world.applied("one");
    world.fold();
    assert_eq!(
        (
            world.condition(ConditionType::ApprovalRequired),
            &world.status.pending_approval
        ),
        (pair("", ""), &None)
    );
}

#[test]
fn absent_copies_are_not_counted_whatever_their_failures() {
    let mut world = World::new(&["one"]);
    let own = |world: &World| {
        world
            .report_store
            .reported_copies(&"r".into(), &"one".into())
            .unwrap()
            .copies
    };
    let counts = |absent| Counts {
        copies: 12,
        failed: 10,
        waiting: 2,
        absent,
        ..Counts::default()
    };
    let mixed = [
        Reason::Superseded,
        Reason::Denied,
        Reason::Forbidden,
        Reason::Invalid,
        Reason::Conflict,
    ];
    let failures: Vec<_> = mixed
        .into_iter()
        .map(|reason| failure(reason, "not written"))
        .collect();
    world.report("one", counts(12), failures.clone());
    assert_eq!(own(&world), 0, "the rule has none of them");
    world.report("one", counts(5), failures);
    assert_eq!(own(&world), 7);
    world.report("one", counts(0), vec![failure(Reason::Superseded, "?"); 5]);
    assert_eq!(own(&world), 12, "an agent that does not report them");
}
