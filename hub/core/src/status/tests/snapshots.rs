//! Snapshots of rules in typical situations, so that each change of wording is visible.
//!
//! `INSTA_UPDATE=always cargo test -p runnel-hub-core --lib snapshots` rewrites them; read the
//! diff.
use std::fmt::Write;

use super::*;
use crate::plan::UnsupportedSource;

/// The status as lines: counts, conditions, clusters.
fn shown(world: &mut World) -> String {
    world.fold();
    let mut text = String::new();
    let display = world.status.display.clone().unwrap_or_default();
    let _ = writeln!(
        text,
        "clusters {}, copies {}",
        display.clusters, display.copies
    );
    for condition in &world.status.conditions {
        let _ = writeln!(
            text,
            "{} {} {}: {}",
            condition.type_, condition.status, condition.reason, condition.message
        );
    }
    for cluster in &world.status.clusters {
        let counts = format!(
            "{} applied, {} failed, {} waiting",
            cluster.applied, cluster.failed, cluster.waiting
        );
        let _ = write!(
            text,
            "- {} {:?} ({counts}) {}",
            cluster.name, cluster.state, cluster.reason
        );
        let _ = if cluster.message.is_empty() {
            writeln!(text)
        } else {
            writeln!(text, ": {}", cluster.message)
        };
    }
    text
}

fn failing(reason: Reason, message: &str) -> World {
    let mut world = World::new(&["eu-1", "eu-2"]);
    world.applied("eu-2");
    world.report(
        "eu-1",
        Counts {
            copies: 2,
            applied: 1,
            failed: 1,
            ..Counts::default()
        },
        vec![failure(reason, message)],
    );
    world
}

#[test]
fn healthy_rule_is_ready() {
    let mut world = World::new(&["eu-1", "eu-2"]);
    world.applied("eu-1");
    world.applied("eu-2");
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn rule_with_changes_in_flight_is_reconciling() {
    let mut world = World::new(&["eu-1", "eu-2"]);
    world.overdue = true;
    world.applied("eu-1");
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn a_conflict_in_one_cluster() {
    let message = "an object that is not Runnel's exists here; delete it or rename it";
    insta::assert_snapshot!(shown(&mut failing(Reason::Conflict, message)));
}

#[test]
fn three_failed_clusters_and_a_healthy_one_are_listed() {
    let mut world = World::new(&["eu-1", "eu-2", "eu-3", "eu-4"]);
    let failed = Counts {
        copies: 3,
        applied: 1,
        failed: 2,
        ..Counts::default()
    };
    world.report(
        "eu-1",
        failed,
        vec![failure(
            Reason::NamespaceTerminating,
            "the namespace is being deleted",
        )],
    );
    world.report(
        "eu-2",
        failed,
        vec![failure(
            Reason::Immutable,
            "the copy is immutable and its content changed",
        )],
    );
    world.report(
        "eu-3",
        failed,
        vec![failure(
            Reason::Forbidden,
            "may not create configmaps in namespace default",
        )],
    );
    world.applied("eu-4");
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn copy_under_contention() {
    insta::assert_snapshot!(shown(&mut failing(
        Reason::Contended,
        "kubectl-edit keeps changing this copy"
    )));
}

#[test]
fn reported_drift_is_not_corrected() {
    let mut world = World::new(&["eu-1"]);
    let counts = Counts {
        copies: 2,
        applied: 1,
        drifted: 1,
        ..Counts::default()
    };
    world.report(
        "eu-1",
        counts,
        vec![failure(
            Reason::Drifted,
            "/data/key was changed by kubectl-edit",
        )],
    );
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn a_namespace_that_does_not_exist_yet() {
    let mut world = World::new(&["eu-1"]);
    world.report(
        "eu-1",
        Counts {
            copies: 4,
            applied: 2,
            waiting: 2,
            ..Counts::default()
        },
        vec![],
    );
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn unreachable_cluster_does_not_hide_a_healthy_one() {
    let mut world = World::new(&["eu-1", "eu-2"]);
    world.applied("eu-1");
    world.applied("eu-2");
    world.fold();
    world
        .report_store
        .disconnected(&"eu-2".into(), 1, world.now().instant);
    world.seconds += 60;
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn a_rule_that_selects_nothing_but_what_is_refused() {
    let mut world = World::new(&["eu-1"]);
    world.plan = RulePlan::empty(&world.rule);
    world.plan.set(
        &SourceRef::new("secrets", "a", "token"),
        Some(&SourceState::Refused(UnsupportedSource::Type)),
    );
    world.report("eu-1", Counts::default(), vec![]);
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn a_rule_that_chooses_no_cluster() {
    insta::assert_snapshot!(shown(&mut World::new(&[])));
}

#[test]
fn suspended_rule() {
    let mut world = World::new(&["eu-1"]);
    world.becomes(rule(json!({"suspend": true})));
    world.applied("eu-1");
    insta::assert_snapshot!(shown(&mut world));
}

#[test]
fn a_source_that_cannot_be_read() {
    let mut world = World::new(&["eu-1"]);
    world.plan.set(
        &SourceRef::new("secrets", "a", "hidden"),
        Some(&SourceState::Unreadable),
    );
    world.applied("eu-1");
    insta::assert_snapshot!(shown(&mut world));
}
