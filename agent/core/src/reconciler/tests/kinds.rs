//! Kinds that the cluster does not serve, or not always.
use super::*;
use crate::copy::CopyStatus;
use crate::policy::Area;

const WIDGETS: &str = "widgets.example.org";

fn area() -> Area {
    Area {
        resource: WIDGETS.into(),
        namespace: None,
    }
}

fn widget(name: &str) -> Intent {
    let content = Content {
        version: Some("v1".into()),
        ..content(1)
    };
    Intent {
        source: SourceRef::new(WIDGETS, "team", name),
        revision: Revision([1; 16]),
        payload: Payload::encode(content.to_bytes()),
    }
}

fn widget_copy(name: &str) -> SourceRef {
    SourceRef::new(WIDGETS, "a", name)
}

/// A cluster whose policy names a kind that it does not serve.
fn without_widgets() -> World {
    let mut world = World::new(&["team", "a"]);
    world.unserved.insert(WIDGETS.into());
    let mut policy = Policy::open();
    policy.kinds.insert(WIDGETS.into());
    world.set_policy(policy);
    world.connect();
    world
}

fn sent(names: &[&str]) -> RuleDelta {
    let widgets = names.iter().map(|name| widget(name));
    RuleDelta {
        upserts: widgets.chain([intent("settings", 1)]).collect(),
        ..with_terms("r", terms("r", &["a"]))
    }
}

fn counts(world: &World) -> (u32, u32) {
    let counts = world.reported_state("r").unwrap().counts;
    (counts.applied, counts.failed)
}

#[test]
fn unserved_kind_fails_its_copies_and_delays_no_other() {
    let mut world = without_widgets();
    assert!(world.core.has_started());
    world.batch(vec![sent(&["one"])]);
    world.settle();
    assert_eq!(counts(&world), (1, 1));
    let state = world.reported_state("r").unwrap();
    assert_eq!(state.failures[0].reason, Reason::KindNotServed);
    assert!(
        state.failures[0].message.contains(WIDGETS),
        "{}",
        state.failures[0].message
    );
    assert!(world.objects.contains_key(&copy("a", "settings")));
    assert!(!world.objects.contains_key(&widget_copy("one")));
    assert_eq!(world.core.next_due(world.now), None);

    world.serve(&area());
    world.settle_now();
    assert_eq!(counts(&world), (2, 0));
    assert!(world.objects.contains_key(&widget_copy("one")));
}

#[test]
fn unserved_kind_does_not_delay_a_restart() {
    let mut world = without_widgets();
    world.batch(vec![sent(&["one"])]);
    world.settle();
    world.restart();
    assert!(world.core.has_started());
    world.connect();
    world.batch(vec![sent(&["one"])]);
    world.settle();
    assert_eq!(counts(&world), (1, 1));
}

#[test]
fn copies_of_a_removed_kind_are_made_again_with_it() {
    let mut world = without_widgets();
    world.serve(&area());
    world.batch(vec![sent(&["one", "two"])]);
    world.settle();
    assert_eq!(counts(&world), (3, 0));

    world.unserve(&area());
    world.settle_now();
    assert_eq!(counts(&world), (1, 2));
    assert_eq!(world.core.member.records.live(&widget_copy("one")), None);

    world.serve(&area());
    world.settle_now();
    assert_eq!(counts(&world), (3, 0));
}

#[test]
fn removal_of_copies_without_their_kind_is_done() {
    let mut world = without_widgets();
    world.serve(&area());
    world.batch(vec![sent(&["one"])]);
    world.settle();
    world.unserve(&area());
    world.settle_now();
    // One source is removed, then the whole rule.
    let tombstones = vec![Tombstone {
        source: SourceRef::new(WIDGETS, "team", "one"),
        deletion_policy: DeletionPolicy::Delete,
    }];
    world.batch(vec![RuleDelta {
        tombstones,
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert_eq!(counts(&world), (1, 0));
    world.batch(vec![RuleDelta {
        upserts: vec![widget("two")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle_now();
    assert!(world.reported_state("r").unwrap().gone);
}

#[test]
fn removed_kind_ends_a_removal_that_is_under_way() {
    let mut world = without_widgets();
    world.serve(&area());
    world.batch(vec![sent(&["one"])]);
    world.settle();
    world.remove_rule("r", DeletionPolicy::Delete);
    world.dispatch();
    world.unserve(&area());
    world.failing = Some(crate::classify::not_served(WIDGETS));
    while world.work_one() {}
    world.failing = None;
    world.settle();
    assert!(world.reported_state("r").unwrap().gone);
}

/// A cluster with one copy of a kind whose rule is removed while the discovery lacks the kind.
fn removed_while_missing() -> World {
    let mut world = without_widgets();
    world.serve(&area());
    world.batch(vec![sent(&["one"])]);
    world.settle();
    world.hide(&area());
    world.settle_now();
    assert_eq!(counts(&world), (1, 1));
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    world
}

#[test]
fn removal_waits_while_its_kind_is_missing() {
    let mut world = removed_while_missing();
    let state = world.reported_state("r").unwrap();
    assert!(!state.gone);
    assert!(world.objects.contains_key(&widget_copy("one")));
    assert!(!world.objects.contains_key(&copy("a", "settings")));
    let removing = world
        .core
        .member
        .report
        .outcome(&widget_copy("one"), &"r".into());
    let Some(CopyStatus::Removing(Some(copy_error))) = removing else {
        panic!("{removing:?}");
    };
    assert_eq!(copy_error.reason, Reason::KindNotServed);
    assert!(
        copy_error.message.contains("may still exist"),
        "{}",
        copy_error.message
    );

    world.serve(&area());
    world.settle();
    assert!(world.reported_state("r").unwrap().gone);
    assert!(!world.objects.contains_key(&widget_copy("one")));
}

/// A cluster with a copy of a kind that was served and is not served now, whose definition may exist, and with another rule.
fn unknown_kind() -> World {
    let mut world = without_widgets();
    world.serve(&area());
    world.batch(vec![sent(&["one"])]);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("plain", 1)],
        ..with_terms("s", terms("s", &["a"]))
    }]);
    world.settle();
    let lost = Event::WatchLost(WatchScope::Copies(area()), 404);
    world.core.handle(lost, world.now);
    world.settle();
    world
}

#[test]
fn copies_of_an_unknown_kind_keep_their_outcomes() {
    let mut world = unknown_kind();
    assert_eq!(counts(&world), (2, 0));
    let lost = world.sent.iter().rev().find_map(|frame| match frame {
        AgentFrame::LostWatches(lost) => Some(lost),
        _ => None,
    });
    let lost: Vec<_> = lost.unwrap().iter().map(|lost| &*lost.resource).collect();
    assert_eq!(lost, [WIDGETS]);
    assert!(world.objects.contains_key(&widget_copy("one")));
    // The definition is deleted.
    world.unserve(&area());
    world.settle();
    assert_eq!(counts(&world), (1, 1));
}

#[test]
fn unknown_kind_keeps_no_other_rule_from_proving() {
    let mut world = unknown_kind();
    let proof = |world: &World, uid: &str| world.reported_state(uid).unwrap().proof;
    let before = proof(&world, "s");
    for uid in ["r", "s"] {
        world.batch(vec![RuleDelta {
            upserts: vec![intent(&format!("more-{uid}"), 1)],
            ..RuleDelta::new(uid.into())
        }]);
    }
    world.settle();
    assert_eq!(proof(&world, "r"), None);
    assert!(proof(&world, "s").is_some() && proof(&world, "s") != before);
    let resumed = Event::WatchResumed(WatchScope::Copies(area()));
    world.core.handle(resumed, world.now);
    world.settle();
    assert!(proof(&world, "r").is_some());
}

#[test]
fn removal_of_an_unknown_kind_waits_for_its_definition() {
    for is_deleted in [true, false] {
        let mut world = unknown_kind();
        let not_served = Some(crate::classify::not_served(WIDGETS));
        world.remove_rule("s", DeletionPolicy::Delete);
        world.settle();
        assert!(world.reported_state("s").unwrap().gone);
        world.failing.clone_from(&not_served);
        world.remove_rule("r", DeletionPolicy::Delete);
        world.settle_now();
        assert!(!world.reported_state("r").unwrap().gone);
        let report = &world.core.member.report;
        let removing = report.outcome(&widget_copy("one"), &"r".into());
        let Some(CopyStatus::Removing(Some(copy_error))) = removing else {
            panic!("{removing:?}");
        };
        assert_eq!(
            copy_error,
            &crate::classify::removal_waits_for_kind(WIDGETS)
        );
        world.failing = None;
        if is_deleted {
            world.unserve(&area());
        }
        world.settle();
        assert!(world.reported_state("r").unwrap().gone);
        assert!(!world.objects.contains_key(&widget_copy("one")));
    }
}

#[test]
fn deleted_definition_ends_a_removal_that_waits_for_it() {
    let mut world = removed_while_missing();
    world.unserve(&area());
    world.settle();
    assert!(world.reported_state("r").unwrap().gone);
}

#[test]
fn unlisted_kind_holds_only_rules_that_have_it() {
    for restarts in [false, true] {
        let mut world = without_widgets();
        world.serve(&area());
        world.batch(vec![sent(&["one"])]);
        let plain = RuleDelta {
            upserts: vec![intent("plain", 1)],
            ..with_terms("s", terms("s", &["a"]))
        };
        world.batch(vec![plain]);
        world.settle();
        world.forbid(&area());
        if restarts {
            world.restart();
            world.connect();
            world.confirm();
            world.settle();
        }
        world.remove_rule("r", DeletionPolicy::Delete);
        world.remove_rule("s", DeletionPolicy::Delete);
        world.settle();
        assert!(world.reported_state("s").unwrap().gone, "{restarts}");
        let is_gone = |world: &World| world.reported_state("r").is_some_and(|state| state.gone);
        assert!(!is_gone(&world), "{restarts}");
        world.permit(&area());
        world.settle();
        // After a restart the hub is asked about the copy.
        if !restarts {
            assert!(is_gone(&world));
        }
    }
}

#[test]
fn content_must_fit_its_kind() {
    let mut world = without_widgets();
    world.serve(&area());
    let bad = |name: &str, change: fn(&mut Content)| {
        let mut content = Content {
            version: Some("v1".into()),
            ..content(1)
        };
        change(&mut content);
        Intent {
            payload: Payload::encode(content.to_bytes()),
            ..widget(name)
        }
    };
    let upserts = vec![
        bad("status", |content| {
            drop(content.fields.insert("status".into(), 1.into()))
        }),
        bad("metadata", |content| {
            drop(content.fields.insert("metadata".into(), 1.into()))
        }),
        bad("version", |content| content.version = None),
        widget("good"),
    ];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle();
    assert_eq!(counts(&world), (1, 3));
    let state = world.reported_state("r").unwrap();
    let is_refused = |failure: &Failure| failure.reason == Reason::Unsupported;
    assert!(
        state.failures.iter().all(is_refused),
        "{:?}",
        state.failures
    );
    assert_eq!(world.objects.len(), 1);
}
