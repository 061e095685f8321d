//! Removals and the store: a removed copy is not created again after a crash, without a newer
//! message of the hub.
use super::*;

fn delta() -> RuleDelta {
    RuleDelta::new("r".into())
}

fn remove(world: &mut World, names: &[&str]) {
    world.batch(vec![RuleDelta {
        tombstones: names.iter().map(|name| tombstone(name)).collect(),
        ..delta()
    }]);
}

fn names(world: &World) -> Vec<String> {
    world
        .objects
        .keys()
        .map(|copy| format!("{}/{}", copy.namespace, copy.name))
        .collect()
}

/// Crashes the agent after its next request, and starts it again without the hub.
fn crash_after_one(world: &mut World) {
    world.dispatch();
    assert!(world.work_one());
    world.restart();
    world.settle();
}

#[test]
fn crash_in_a_removal_creates_no_removed_copy() {
    let mut world = applied();
    remove(&mut world, &["s0"]);
    crash_after_one(&mut world);
    assert_eq!(names(&world), ["a/s1", "b/s0", "b/s1"]);
    // The other source is corrected from its twin.
    world.delete(&copy("a", "s1"));
    world.settle();
    assert!(world.holds(&copy("a", "s1"), "r", "s1", 1));
    // A second restart does not create it either, also after another change was stored.
    world.connect();
    world.batch(vec![RuleDelta {
        suspend: Some(true),
        ..delta()
    }]);
    world.settle();
    world.batch(vec![RuleDelta {
        suspend: Some(false),
        ..delta()
    }]);
    world.restart();
    world.settle();
    assert_eq!(names(&world), ["a/s1", "b/s0", "b/s1"]);
    world.connect();
    world.batch(vec![RuleDelta {
        suspend: Some(false),
        ..delta()
    }]);
    remove(&mut world, &["s0"]);
    world.confirm();
    world.settle();
    assert_eq!(names(&world), ["a/s1", "b/s1"]);
    assert_eq!(
        world.stored[0].tombstones,
        Default::default(),
        "what is over is not stored for ever"
    );
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 2);
}

#[test]
fn crash_in_the_removal_of_a_rule_creates_no_removed_copy() {
    let mut world = applied();
    world.batch(vec![RuleDelta {
        removal: Some(DeletionPolicy::Delete),
        ..delta()
    }]);
    crash_after_one(&mut world);
    assert_eq!(world.objects.len(), 3);
    world.connect();
    world.batch(vec![RuleDelta {
        removal: Some(DeletionPolicy::Delete),
        ..delta()
    }]);
    world.settle();
    assert!(world.objects.is_empty());
    assert!(world.reported_state("r").unwrap().gone);
}

#[test]
fn crash_in_a_purge_creates_no_removed_copy() {
    let mut world = applied();
    world.set_policy(Policy {
        on_revoke: crate::policy::OnRevoke::Purge,
        ..Policy::open()
    });
    world.core.handle(Event::Revoked, world.now);
    crash_after_one(&mut world);
    assert_eq!(world.objects.len(), 3);
    world.core.handle(Event::Revoked, world.now);
    world.settle();
    assert!(world.objects.is_empty());
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a", "b"]))
    }]);
    world.settle();
    assert_eq!(
        (names(&world), world.stored.len()),
        (vec!["a/s0".to_owned(), "b/s0".to_owned()], 1)
    );
}

#[test]
fn copy_in_a_terminating_namespace_brings_no_removed_copy_back() {
    let mut world = applied();
    world.set_namespace(
        "b",
        Some(Namespace {
            terminating: true,
            ..Namespace::default()
        }),
    );
    world.settle();
    remove(&mut world, &["s0"]);
    world.settle();
    assert_eq!(names(&world), ["a/s1", "b/s0", "b/s1"]);
    world.restart();
    world.settle();
    assert_eq!(names(&world), ["a/s1", "b/s0", "b/s1"]);
    // A copy that the hub sends is created, from the copy that still exists.
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..delta()
    }]);
    world.settle();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
}

#[test]
fn content_after_a_stored_tombstone_is_restored() {
    let mut world = applied();
    remove(&mut world, &["s0"]);
    world.dispatch();
    assert!(world.work_one());
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..delta()
    }]);
    world.settle();
    world.restart();
    world.delete(&copy("a", "s0"));
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 2),
        "put back from its twin"
    );
}

#[test]
fn removal_waits_for_the_store() {
    for narrow in [false, true] {
        let mut world = applied();
        world.saves = false;
        if narrow {
            world.batch(vec![with_terms(
                "r",
                Terms {
                    created_at: 101,
                    ..terms("r", &["b"])
                },
            )]);
        } else {
            remove(&mut world, &["s0"]);
        }
        world.settle();
        assert_eq!(world.objects.len(), 4);
        assert!(world.core.is_store_urgent());
        // Jobs that remove nothing do not wait.
        world.delete(&copy("b", "s1"));
        world.settle();
        assert!(world.holds(&copy("b", "s1"), "r", "s1", 1));
        assert!(world.save(false));
        world.settle();
        assert_eq!(world.objects.len(), 4);
        let state = world.reported_state("r").unwrap();
        assert_eq!(state.failures[0].reason, Reason::Unavailable, "{state:?}");
        assert!(
            state.failures[0].message.contains("runnel-agent-terms"),
            "{state:?}"
        );
        assert!(world.save(true));
        world.settle();
        assert_eq!(world.objects.len(), 2);
    }
}

#[test]
fn crash_before_the_store_leaves_everything() {
    let mut world = applied();
    world.saves = false;
    world.batch(vec![with_terms(
        "r",
        Terms {
            created_at: 101,
            ..terms("r", &["b"])
        },
    )]);
    world.settle();
    let writes = world.writes;
    world.restart();
    world.settle();
    assert_eq!((world.objects.len(), world.writes), (4, writes));
}

#[test]
fn edit_and_lone_removal_need_no_store() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let upserts = vec![intent("s0", 1), intent("s1", 1)];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle();
    world.saves = false;
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2), intent("s1", 2)],
        ..delta()
    }]);
    world.settle();
    remove(&mut world, &["s0"]);
    world.settle();
    assert!(!world.core.needs_store());
    assert_eq!(names(&world), ["a/s1"]);
}

#[test]
fn excess_tombstones_delay_the_whole_rule() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    let sources: Vec<_> = (0..1_100).map(|n| format!("s{n:04}")).collect();
    let upserts = sources.iter().map(|name| intent(name, 1)).collect();
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a", "b"]))
    }]);
    world.settle_now();
    assert_eq!(world.objects.len(), 2_200);
    let all: Vec<_> = sources.iter().skip(1).map(String::as_str).collect();
    remove(&mut world, &all);
    world.dispatch();
    assert!(world.stored[0].tombstones.any);
    assert!(world.work_one() && world.work_one());
    world.restart();
    world.settle_now();
    assert_eq!(world.objects.len(), 2_198);
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent(&sources[0], 1)],
        ..delta()
    }]);
    remove(&mut world, &all);
    world.confirm();
    world.settle_now();
    assert_eq!(names(&world), ["a/s0000", "b/s0000"]);
    assert_eq!(world.stored[0].tombstones, Default::default());
    world.restart();
    world.delete(&copy("a", "s0000"));
    world.settle_now();
    assert!(world.holds(&copy("a", "s0000"), "r", "s0000", 1));
}
