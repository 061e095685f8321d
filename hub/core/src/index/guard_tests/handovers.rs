//! What clusters hold counts, whatever is selected now; copies that change hands.
use std::collections::BTreeMap;

use runnel_api::PendingRemoval;
use runnel_proto::model::ClusterName;

use super::*;
use crate::rollout::{AdmittedClusters, Gate};

fn deleted(removal_limit: &Value) -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "removalLimit": removal_limit})
}

/// A rule with 12 copies in each of two members; the typo in their labels is blocked.
fn mislabeled(spec: &Value) -> World {
    let mut world = World::new();
    world.add("one", "team", 12);
    world.change(|index| index.set_rule(rule("one", "team", spec)));
    world.relabel("prd");
    assert_eq!(world.pending().len(), 1);
    assert_eq!(world.leaving(), 0);
    world
}

#[test]
fn rule_delete_on_hold_counts_clusters_not_selected_now() {
    let hold = json!({"count": 0, "percent": 0, "onRuleDelete": "Hold"});
    let mut world = mislabeled(&json!({"removalLimit": hold}));
    world.later(WINDOW);
    world.change(|index| index.set_rule(rule("one", "team", &deleted(&hold))));
    assert_eq!(world.leaving(), 0);
    assert_eq!(world.approval("one").unwrap().copies, 24);
    world.approve_all();
    assert_eq!(world.leaving(), 2);
}

#[test]
fn namespace_delete_counts_clusters_not_selected_now() {
    let mut world = mislabeled(&json!({}));
    world.later(WINDOW);
    let terminating = &mut world.index.fleet_guard_mut().terminating;
    terminating.set_namespace("team", true);
    world.change(|index| index.set_rule(rule("one", "team", &deleted(&json!({})))));
    assert!(!world.index.rules().is_removal_allowed(&"one".into()));
    assert_eq!(world.leaving(), 0);
}

#[test]
fn namespace_delete_counts_clusters_without_grant() {
    let mut world = World::new();
    world.add("one", "team", 12);
    world.change(|index| index.set_grant("everything", None));
    assert_eq!((world.leaving(), world.pending().len()), (0, 1));
    world.later(WINDOW);
    let terminating = &mut world.index.fleet_guard_mut().terminating;
    terminating.set_namespace("team", true);
    world.change(|index| index.set_rule(rule("one", "team", &deleted(&json!({})))));
    assert_eq!(world.leaving(), 0);
}

#[test]
fn deletion_of_a_rule_without_sources_waits_for_reports() {
    for reports in [true, false] {
        let mut world = World::new();
        world.index.set_rule(rule("one", "team", &json!({})));
        world.index.reset_removal_guards();
        let terminating = &mut world.index.fleet_guard_mut().terminating;
        terminating.set_namespace("team", true);
        world.change(|index| index.set_rule(rule("one", "team", &deleted(&json!({})))));
        assert!(!world.index.rules().is_removal_allowed(&"one".into()));
        assert_eq!(world.pending(), []);
        if reports {
            MEMBERS
                .iter()
                .for_each(|member| world.set_reported_copies("one", member, 12));
        }
        (0..50).for_each(|_| world.later(DELAY));
        // Two copies alone would be within every limit.
        assert_eq!(world.pending().len(), usize::from(reports));
    }
}

#[test]
fn rule_delete_counts_blocked_clusters_that_are_away() {
    let hold = json!({"onRuleDelete": "Hold"});
    let mut world = mislabeled(&json!({"removalLimit": hold}));
    world.reported_copies.clear();
    world.later(WINDOW);
    world.change(|index| index.set_rule(rule("one", "team", &deleted(&hold))));
    assert!(!world.index.rules().is_removal_allowed(&"one".into()));
}

#[test]
fn removal_that_covers_blocked_items_is_blocked() {
    let hold = json!({"removalLimit": {"onRuleDelete": "Hold"}});
    let mut world = World::new();
    world.add_many(30);
    for number in 0..30 {
        let rule = rule(&format!("r{number}"), "team", &hold);
        world.change(|index| index.set_rule(rule));
    }
    world.relabel("prd");
    assert_eq!((world.leaving(), world.pending().len()), (0, 1));
    // Two copies alone are within every limit.
    world.later(WINDOW * 2);
    let gone = deleted(&hold["removalLimit"]);
    world.change(|index| index.set_rule(rule("r0", "team", &gone)));
    assert!(!world.index.rules().is_removal_allowed(&"r0".into()));
    assert_eq!(world.leaving(), 0);
    // Sources and a cluster of them, the same.
    let mut world = World::new();
    world.add("one", "team", 40);
    world.change(|index| {
        index.set_rule(rule(
            "one",
            "team",
            &json!({"sources": [{"resources": ["configmaps"], "names": ["one-1*"]}]}),
        ))
    });
    assert_eq!(world.pending().len(), 1);
    MEMBERS
        .iter()
        .for_each(|member| world.set_reported_copies("one", member, 4));
    world.later(WINDOW * 2);
    world.change(|index| index.set_cluster(MEMBERS[0].into(), cluster("prd")));
    assert_eq!(world.leaving(), 0);
}

/// A rule with waves that selects the sources of rule `one`.
fn heir(spec: &Value) -> Rule {
    let mut merged = json!({
        "sources": [{"resources": ["configmaps"], "names": ["one-*"]}],
        "rollout": {},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        merged[key] = value.clone();
    }
    rule("heir", "team", &merged)
}

fn open(index: &mut Index, clusters: AdmittedClusters) -> Effect {
    let revision = index
        .rules()
        .get(&"heir".into())
        .unwrap()
        .target()
        .to_owned();
    let gate = Gate {
        revision,
        reach: clusters,
        is_settled: false,
        wakes_at: None,
        back_to: None,
        healthy: BTreeSet::new(),
        newly_chosen: BTreeSet::new(),
        is_blocked: false,
        is_paused: false,
    };
    index.rules_mut().set_gate(&"heir".into(), gate)
}

fn only(clusters: &[&str]) -> AdmittedClusters {
    let now = Instant::now();
    let these = clusters.iter().map(|name| (ClusterName::from(*name), now));
    AdmittedClusters::Only(these.collect::<BTreeMap<_, _>>())
}

const NONE: &str = "none-*";

fn without_sources() -> Value {
    json!({"sources": [{"resources": ["configmaps"], "names": [NONE]}]})
}

#[test]
fn handover_to_a_rule_that_awaits_its_wave_is_a_removal() {
    for sends in [false, true] {
        let mut world = World::new();
        world.add("one", "team", 12);
        world.change(|index| index.set_rule(heir(&json!({}))));
        if sends {
            world.change(|index| open(index, AdmittedClusters::All));
        }
        world.change(|index| index.set_rule(rule("one", "team", &without_sources())));
        assert_eq!(world.approval("one").is_some(), !sends);
    }
}

#[test]
fn tombstone_waits_until_the_heir_sends_the_copy() {
    for whole in [false, true] {
        let mut world = World::new();
        world.add("one", "team", 1);
        world.change(|index| index.set_rule(heir(&json!({}))));
        let gone = if whole {
            deleted(&json!({}))
        } else {
            without_sources()
        };
        world.change(|index| index.set_rule(rule("one", "team", &gone)));
        assert_eq!(world.pending(), [], "two copies are below each limit");
        let waits = |world: &World, member: &str| match world
            .index
            .directive(&"one".into(), &member.into())
        {
            Directive::AwaitingHandover(..) => true,
            Directive::Assigned(assignment) => assignment.must_stay(&source("team", "one-0")),
            Directive::Removed(_) => false,
            _ => panic!(),
        };
        assert!(MEMBERS.iter().all(|member| waits(&world, member)));
        world.change(|index| open(index, only(&MEMBERS[..1])));
        assert!(!waits(&world, MEMBERS[0]) && waits(&world, MEMBERS[1]));
        // An heir that is deleted, or that has other namespaces, is none.
        for other in [
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "rollout": {}}),
            json!({"enforcement": "DryRun"}),
        ] {
            world.change(|index| index.set_rule(heir(&other)));
            assert!(!waits(&world, MEMBERS[1]), "{other}");
        }
        world.change(|index| index.set_rule(heir(&json!({"suspend": true}))));
        assert!(waits(&world, MEMBERS[1]));
    }
}

#[test]
fn unsent_order_waits_for_no_rule_in_other_namespaces() {
    let targets = |names: &str| json!({"namespaces": {"names": [names]}});
    for (namespace, waits) in [("apps", true), ("other", false)] {
        let mut world = World::new();
        world.add("one", "team", 1);
        world.change(|index| index.set_rule(heir(&targets(namespace))));
        let mut gone = deleted(&json!({}));
        gone["namespaces"] = json!({"names": ["apps"]});
        world.change(|index| index.set_rule(rule("one", "team", &gone)));
        let unsent = BTreeSet::from(["one".into()]);
        let (directives, _) =
            world
                .index
                .directives_for(&MEMBERS[1].into(), u64::MAX, unsent, |_| true);
        let [(_, Directive::AwaitingHandover(_, claims))] = directives.as_slice() else {
            panic!("the heir has not sent its copies");
        };
        let one = source("team", "one-0");
        assert_eq!(claims.iter().any(|claim| claim.awaits(&one)), waits);
    }
}

#[test]
fn late_heir_keeps_a_copy_whose_removal_has_passed() {
    let mut world = World::new();
    world.add("one", "team", 1);
    world.change(|index| index.set_rule(rule("one", "team", &without_sources())));
    assert!(world.passes_source("one", "one-0"));
    world.change(|index| index.set_rule(heir(&json!({}))));
    assert!(!world.passes_source("one", "one-0"));
}

#[test]
fn blocked_copy_stays_until_it_is_judged_again() {
    let two_kinds = |names: &str| {
        let sources = json!([{"resources": ["configmaps", "secrets"], "names": [names]}]);
        rule("one", "team", &json!({"sources": sources}))
    };
    let mut world = World::new();
    world.change(|index| index.set_grant("secrets", Some(grant_of("secrets"))));
    world.add("one", "team", 12);
    world.change(|index| index.set_rule(two_kinds("one-*")));
    world.change(|index| index.set_rule(two_kinds(NONE)));
    assert_eq!(world.approval("one").unwrap().copies, 24);
    // No selected source is of the kind, so its removal counts nothing and passes.
    world.change(|index| index.set_grant("everything", None));
    assert!(!world.passes_source("one", "one-1"));
    let effect = world.index.set_rule(two_kinds("one-0"));
    world.judge_now(&effect.judge);
    assert!(!world.passes_source("one", "one-1"), "not judged again yet");
    world.later(DELAY);
    assert!(!world.passes_source("one", "one-1"));
}

#[test]
fn stored_order_of_a_deleted_rule_waits_for_the_heir() {
    let mut world = World::new();
    world.add("one", "team", 1);
    world.change(|index| index.set_rule(heir(&json!({}))));
    let away = Cluster {
        pending: [("one".into(), PendingRemoval::default())].into(),
        ..cluster("prod")
    };
    world.change(|index| index.set_cluster(MEMBERS[0].into(), away));
    world.change(|index| index.remove_rule(&"one".into()));
    let directive = |world: &World| world.index.directive(&"one".into(), &MEMBERS[0].into());
    assert!(matches!(directive(&world), Directive::AwaitingHandover(..)));
    world.change(|index| open(index, AdmittedClusters::All));
    assert!(matches!(directive(&world), Directive::Removed(_)));
}
