//! A copy that has run to its end, as Jobs do, is not created again for the same content.
use super::*;

/// Lets both copies of a source run to their end. Then they are deleted, as by a time to live.
fn ended(world: &mut World, health: CopyHealth) {
    let observed = ObservedHealth {
        health,
        message: "x".into(),
    };
    for namespace in ["a", "b"] {
        world.edit(&copy(namespace, "s0"), |object| {
            object.live.finished = true;
            object.live.health = Some(Box::new(observed.clone()));
        });
    }
    world.settle_now();
    for namespace in ["a", "b"] {
        world.delete(&copy(namespace, "s0"));
    }
    world.settle_now();
}

#[test]
fn finished_copy_is_not_created_again() {
    for drift_policy in [DriftPolicy::Correct, DriftPolicy::Report] {
        let mut world = applied();
        let terms = Terms {
            drift_policy,
            ..terms("r", &["a", "b"])
        };
        world.batch(vec![with_terms("r", terms)]);
        world.settle_now();
        let (writes, right) = (world.writes, world.reported_state("r").unwrap().proof);
        ended(&mut world, CopyHealth::Current);
        world.settle();
        assert_eq!((world.objects.len(), world.writes), (2, writes));
        let state = world.reported_state("r").unwrap();
        assert_eq!((state.counts.copies, state.counts.applied), (4, 4));
        assert_eq!((state.counts.with_health, state.counts.healthy), (2, 2));
        assert!(right.is_some() && state.proof == right);
        assert_eq!(world.core.take_notices(), []);
    }
}

#[test]
fn finished_copy_runs_again_with_new_content() {
    let mut world = applied();
    ended(&mut world, CopyHealth::Current);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
    // It has not finished with this content.
    world.delete(&copy("a", "s0"));
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
}

#[test]
fn finished_copy_is_not_created_again_after_a_restart() {
    let mut world = applied();
    ended(&mut world, CopyHealth::Current);
    let writes = world.writes;
    // The copies of the other source show the terms. The hub sends both sources again.
    for sends in [false, true] {
        world.restart();
        world.connect();
        if sends {
            world.batch(vec![RuleDelta {
                upserts: vec![intent("s0", 1), intent("s1", 1)],
                ..with_terms("r", terms("r", &["a", "b"]))
            }]);
        }
        world.settle_now();
        assert_eq!((world.objects.len(), world.writes), (2, writes));
    }
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 4);
}

#[test]
fn failed_copy_that_is_deleted_stays_unhealthy() {
    let mut world = applied();
    ended(&mut world, CopyHealth::Failed);
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.unhealthy), (4, 2));
    assert_eq!(state.failures[0].reason, Reason::Unhealthy);
}

#[test]
fn removed_rule_forgets_its_finished_copies() {
    let mut world = applied();
    ended(&mut world, CopyHealth::Current);
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle_now();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a", "b"]))
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
}
