//! Renamed copies.
use super::*;

/// Returns the intent of the source `s0` under another copy name.
fn renamed(name: &str, revision: u8) -> Intent {
    let intent = intent("s0", revision);
    Intent {
        source: intent.source.as_copy(name),
        ..intent
    }
}

fn drops_name(name: &str) -> Tombstone {
    Tombstone {
        source: copy("team", "s0").as_copy(name),
        deletion_policy: DeletionPolicy::Delete,
    }
}

fn rename(world: &mut World, from: &str, to: &str, revision: u8) {
    let delta = RuleDelta::new("r".into());
    let (upserts, tombstones) = (vec![renamed(to, revision)], vec![drops_name(from)]);
    world.batch(vec![
        RuleDelta {
            upserts,
            ..delta.clone()
        },
        RuleDelta {
            tombstones,
            ..delta
        },
    ]);
}

/// Runs all steps one by one, and checks that one of the two copies exists at any time.
fn settle_without_a_gap(world: &mut World, names: [&str; 2]) {
    for _ in 0..100 {
        for namespace in ["a", "b"] {
            let there = |name: &&str| world.objects.contains_key(&copy(namespace, name));
            assert!(
                names.iter().any(there),
                "neither of {names:?} is in {namespace}"
            );
        }
        world.dispatch();
        if !(world.work_one() || world.deliver_one()) {
            return;
        }
    }
    panic!("it does not come to rest");
}

#[test]
fn renamed_copy_exists_before_the_old_one_is_removed() {
    let mut world = applied();
    rename(&mut world, "s0", "s0-eu", 2);
    settle_without_a_gap(&mut world, ["s0", "s0-eu"]);
    for namespace in ["a", "b"] {
        assert!(!world.objects.contains_key(&copy(namespace, "s0")));
        let live = &world.objects[&copy(namespace, "s0-eu")].live;
        assert!(live.has_revision(
            &"r".into(),
            &copy("team", "s0").as_copy("s0-eu"),
            &Revision([2; 16])
        ));
    }
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (
            state.counts.copies,
            state.counts.applied,
            state.counts.removing
        ),
        (4, 4, 0)
    );
    // The agent recognizes renamed copies after a restart.
    let writes = world.writes;
    world.restart();
    world.connect();
    world.settle();
    assert_eq!(
        (world.writes, world.reported_state("r").unwrap()),
        (writes, state)
    );
}

#[test]
fn old_copy_stays_until_the_new_one_can_be_created() {
    let mut world = applied();
    world.poisoned.insert("s0-eu".into());
    rename(&mut world, "s0", "s0-eu", 2);
    world.settle();
    assert!(world.objects.contains_key(&copy("a", "s0")));
    assert_eq!(world.reported_state("r").unwrap().counts.failed, 2);
    world.poisoned.clear();
    world.settle();
    assert!(
        !world.objects.contains_key(&copy("a", "s0"))
            && world.objects.contains_key(&copy("a", "s0-eu"))
    );
    // Without a successor, the removal is not deferred.
    world.poisoned.insert("s0-us".into());
    rename(&mut world, "s0-eu", "s0-us", 3);
    world.settle();
    assert!(world.objects.contains_key(&copy("a", "s0-eu")));
    world.batch(vec![RuleDelta {
        tombstones: vec![drops_name("s0-us")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(!world.objects.contains_key(&copy("a", "s0-eu")));
    assert!(world.objects.contains_key(&copy("a", "s1")));
}
