//! What is to be overwritten waits for the hub's word, played against the model of an API server.
use super::world::*;
use crate::core::*;
use crate::live::Ownership;
use runnel_proto::model::*;

fn counts(world: &World) -> Counts {
    world.told_state("r").unwrap().counts
}

/// A rule that is to overwrite two objects, beside one that is equal.
fn overwriting() -> World {
    let mut world = World::new(&["team", "a", "b", "c"]);
    world.connect();
    for namespace in ["a", "b", "c"] {
        world.make_foreign(&copy(namespace, "s0"));
    }
    world.edit(&copy("c", "s0"), |object| object.equal = true);
    let terms = Terms { conflict_policy: ConflictPolicy::Overwrite, ..terms("r", &["a", "b", "c"]) };
    world.batch(vec![RuleDelta { upserts: vec![intent("s0", 1)], ..with_terms("r", terms) }]);
    world.settle();
    world
}

fn waiting(world: &World) -> (u32, TakeoverDigest) {
    let told = world.told_state("r").and_then(|state| state.takeovers);
    told.map_or((0, TakeoverDigest([0; 16])), |told| (told.objects, told.digest))
}

#[test]
fn nothing_is_overwritten_but_what_the_hub_has_named() {
    let mut world = overwriting();
    assert!(world.holds(&copy("c", "s0"), "r", "s0", 1), "what is equal loses nothing");
    let state = world.told_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.failed, waiting(&world).0), (1, 2, 2));
    assert_eq!(state.failures[0].reason, Reason::TakeoverWaiting);
    let told = world.core.take_notices();
    assert!(told.is_empty(), "nobody in the cluster can do anything about it: {told:?}");

    // One of them goes and comes again: another object of the same name. What was named before is not what waits.
    let first = waiting(&world).1;
    world.delete(&copy("a", "s0"));
    world.make_foreign(&copy("a", "s0"));
    world.settle();
    let second = waiting(&world).1;
    assert_ne!(first, second);
    world.name_takeovers("r", first);
    world.settle();
    assert_eq!((counts(&world).applied, waiting(&world)), (1, (2, second)));

    // It changes meanwhile, and is still the one that was named.
    world.edit(&copy("a", "s0"), |object| object.live.others = Some("helm".into()));
    world.settle();
    world.name_takeovers("r", second);
    world.settle();
    assert_eq!((counts(&world).applied, waiting(&world).0), (3, 0));
    assert_eq!(world.core.totals().overwritten, 2);

    // A copy that loses every mark is a foreign object with the same uid: it is asked about again.
    for namespace in ["a", "b"] {
        world.edit(&copy(namespace, "s0"), |object| {
            (object.live.ownership, object.labelled) = (Ownership::Foreign, false);
            (object.live.sealed, object.live.intact, object.equal) = (None, false, false);
        });
    }
    world.settle();
    assert_eq!(waiting(&world), (2, second), "the same objects");
    assert_eq!(world.core.totals().overwritten, 2);
    world.let_overwrite("r");
    assert_eq!((counts(&world).applied, world.core.totals().overwritten), (3, 4));
}

#[test]
fn what_the_hub_names_too_early_holds_while_the_stream_lasts_and_no_longer() {
    let mut world = overwriting();
    let both = waiting(&world).1;
    world.delete(&copy("a", "s0"));
    world.settle();
    assert_eq!((counts(&world).applied, waiting(&world).0), (2, 1));
    // What is named is not what waits, and never will be: the object is gone.
    world.name_takeovers("r", both);
    world.settle();
    assert_eq!(waiting(&world).0, 1);
    let one = waiting(&world).1;
    world.set_namespace("d", Some(Namespace::default()));
    let terms =
        Terms { conflict_policy: ConflictPolicy::Overwrite, created_at: 101, ..terms("r", &["a", "b", "c", "d"]) };
    world.make_foreign(&copy("d", "s0"));
    world.batch(vec![with_terms("r", terms)]);
    world.settle();
    assert_eq!(waiting(&world).0, 2);
    world.name_takeovers("r", one);
    world.settle();
    assert_eq!(waiting(&world).0, 2, "there is one more than was named");
    world.delete(&copy("d", "s0"));
    world.settle();
    assert_eq!((counts(&world).applied, waiting(&world).0), (4, 0), "now it is exactly what was named");

    // Another stream, and another process, know of no permission.
    for restarts in [false, true] {
        let mut world = overwriting();
        let both = waiting(&world).1;
        match restarts {
            true => world.restart(),
            false => world.core.hear(Event::HubLost, world.now),
        }
        world.connect();
        world.settle();
        assert_eq!(world.core.totals().overwritten, 0);
        world.batch(vec![RuleDelta { upserts: vec![intent("s0", 1)], ..RuleDelta::new("r".into()) }]);
        world.settle();
        assert_eq!(waiting(&world), (2, both), "it asks again, in the same words");
        world.let_overwrite("r");
        assert_eq!(counts(&world).applied, 3);
    }
}

#[test]
fn a_rule_that_no_longer_overwrites_waits_for_nothing_and_neither_does_one_that_rests() {
    for suspend in [false, true] {
        let mut world = overwriting();
        let both = waiting(&world).1;
        let conflict_policy = if suspend { ConflictPolicy::Overwrite } else { ConflictPolicy::Fail };
        let terms = Terms { conflict_policy, suspend, created_at: 101, ..terms("r", &["a", "b", "c"]) };
        world.batch(vec![with_terms("r", terms)]);
        world.settle();
        assert_eq!(waiting(&world).0, 0);
        world.name_takeovers("r", both);
        world.settle();
        assert_eq!((counts(&world).applied, world.core.totals().overwritten), (1, 0));
    }
}
