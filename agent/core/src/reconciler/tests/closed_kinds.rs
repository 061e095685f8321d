//! Kinds that leave the member's policy while there are copies of them: they are not reported as gone.
use super::*;

const BOTH: &str = "kinds: [configmaps, secrets]";
const WITHOUT_SECRETS: &str = "kinds: [configmaps]";

fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap()
}

fn source() -> SourceRef {
    SourceRef::new("secrets", "team", "key")
}

fn secret() -> SourceRef {
    SourceRef::new("secrets", "a", "key")
}

fn delta() -> RuleDelta {
    let key = Intent {
        source: source(),
        ..intent("key", 1)
    };
    RuleDelta {
        upserts: vec![intent("settings", 1), key],
        ..with_terms("r", terms("r", &["a"]))
    }
}

/// A cluster with a ConfigMap and a Secret of a rule, by this policy.
fn world(text: &str) -> World {
    let mut world = World::new(&["team", "a"]);
    world.set_policy(policy(text));
    world.connect();
    world.batch(vec![delta()]);
    world.settle();
    world
}

fn remove(world: &mut World) {
    world.batch(vec![RuleDelta {
        removal: Some(DeletionPolicy::Delete),
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
}

fn assert_waits(world: &World) {
    let state = world.reported_state("r").unwrap();
    assert!(!state.gone);
    let [failure] = &*state.failures else {
        panic!("{:?}", state.failures);
    };
    assert_eq!((&failure.copy, failure.reason), (&secret(), Reason::Denied));
    assert!(failure.message.contains("(kinds)"), "{}", failure.message);
    assert!(world.objects.contains_key(&secret()));
}

fn assert_ends_when_allowed_again(world: &mut World) {
    world.set_policy(policy(BOTH));
    world.settle_now();
    assert!(world.objects.is_empty());
    assert!(world.reported_state("r").unwrap().gone);
}

#[test]
fn rule_is_not_gone_while_a_closed_kind_has_a_copy() {
    let mut world = world(BOTH);
    world.set_policy(policy(WITHOUT_SECRETS));
    world.settle_now();
    assert_waits(&world);
    remove(&mut world);
    assert_waits(&world);
    assert_ends_when_allowed_again(&mut world);
}

#[test]
fn order_that_was_under_way_waits_when_its_kind_is_closed() {
    let mut world = world(BOTH);
    world.batch(vec![RuleDelta {
        tombstones: vec![Tombstone {
            source: source(),
            ..tombstone("key")
        }],
        ..RuleDelta::new("r".into())
    }]);
    world.set_policy(policy(WITHOUT_SECRETS));
    world.settle();
    assert_waits(&world);
    world.set_policy(policy(BOTH));
    world.settle_now();
    assert!(!world.objects.contains_key(&secret()));
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.copies), (1, 1));
}

#[test]
fn closed_kind_is_known_after_a_restart() {
    // The policy changes before, during and after the stop of the agent; the hub sends the rule again, or its removal alone.
    for (closed_before, sent_again) in [(true, true), (true, false), (false, true), (false, false)]
    {
        let mut world = world(BOTH);
        if closed_before {
            world.set_policy(policy(WITHOUT_SECRETS));
            world.settle_now();
        }
        world.policy = policy(WITHOUT_SECRETS);
        world.restart();
        world.connect();
        if sent_again {
            world.batch(vec![delta()]);
            world.settle();
        }
        for _ in 0..2 {
            remove(&mut world);
            let state = world.reported_state("r").unwrap();
            assert!(!state.gone, "{closed_before} {sent_again}");
            if sent_again {
                assert_waits(&world);
            }
            assert!(world.objects.contains_key(&secret()));
            world.restart();
            world.connect();
            if sent_again {
                world.batch(vec![delta()]);
                world.settle();
            }
        }
        remove(&mut world);
        world.set_policy(policy(BOTH));
        world.settle_now();
        remove(&mut world);
        world.settle_now();
        assert!(!world.objects.contains_key(&secret()));
        assert!(world.reported_state("r").unwrap().gone);
    }
}

#[test]
fn kind_that_never_had_a_copy_holds_nothing() {
    for restarts in [false, true] {
        let mut world = world(WITHOUT_SECRETS);
        assert!(!world.objects.contains_key(&secret()));
        if restarts {
            world.restart();
            world.connect();
        }
        remove(&mut world);
        assert!(world.reported_state("r").unwrap().gone, "{restarts}");
    }
}

#[test]
fn kind_that_closes_without_copies_delays_no_removal() {
    let mut world = World::new(&["team", "a"]);
    world.set_policy(policy(BOTH));
    world.connect();
    world.make_foreign(&secret());
    world.batch(vec![delta()]);
    world.settle();
    world.set_policy(policy(WITHOUT_SECRETS));
    world.settle_now();
    remove(&mut world);
    assert!(world.reported_state("r").unwrap().gone);
    assert!(world.objects.contains_key(&secret()));
}
