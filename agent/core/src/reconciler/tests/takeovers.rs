//! What is to be overwritten waits for the hub's word, played against the model of an API server.
use super::world::*;
use crate::copy::CopyError;
use crate::copy::IntentKey;
use crate::live::Ownership;
use crate::policy::Policy;
use crate::reconciler::*;
use runnel_proto::model::*;

fn counts(world: &World) -> Counts {
    world.reported_state("r").unwrap().counts
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

fn waiting(world: &World) -> (u32, AskedDigest) {
    let told = world.reported_state("r").and_then(|state| state.takeovers);
    told.map_or((0, AskedDigest([0; 16])), |told| (told.objects, told.digest))
}

/// Both may be overwritten, and cannot be; with their digest.
fn permitted_in_vain() -> (World, AskedDigest) {
    let mut world = overwriting();
    let both = waiting(&world).1;
    world.poisoned.insert("s0".into());
    world.let_overwrite("r");
    (world, both)
}

#[test]
fn nothing_is_overwritten_but_what_the_hub_has_named() {
    let mut world = overwriting();
    assert!(world.holds(&copy("c", "s0"), "r", "s0", 1), "what is equal loses nothing");
    let state = world.reported_state("r").unwrap();
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
fn pending_work_waits_for_api_server_and_content() {
    for reason in [Reason::Unavailable, Reason::Forbidden] {
        let mut world = overwriting();
        let both = waiting(&world);
        world.sent.clear();
        world.failing = Some(CopyError::new(reason, "no"));
        world.settle();
        // Another revision makes the agent look afresh, and it finds out nothing.
        world.batch(vec![RuleDelta { upserts: vec![intent("s0", 2)], ..RuleDelta::new("r".into()) }]);
        world.settle();
        world.failing = None;
        world.settle();
        let settled = world.reported_states("r").into_iter().filter(|state| state.counts.under_way() == 0);
        let told: Vec<_> = settled.map(|state| state.takeovers.map(|told| (told.objects, told.digest))).collect();
        assert!(!told.is_empty() && told.iter().all(|told| *told == Some(both)), "{reason:?}: {told:?}");
        assert_eq!(world.core.totals().overwritten, 0);
    }
    let mut world = overwriting();
    let both = waiting(&world);
    world.set_namespace("c", None);
    world.settle();
    world.core.cache.remove(&IntentKey { rule: "r".into(), source: copy("team", "s0") });
    world.settle();
    assert!(world.sent.iter().any(|frame| matches!(frame, AgentFrame::Want(..))), "the content is asked for");
    assert_eq!((counts(&world).under_way(), waiting(&world)), (0, both));
    world.batch(vec![RuleDelta { upserts: vec![intent("s0", 1)], ..RuleDelta::new("r".into()) }]);
    world.let_overwrite("r");
    assert_eq!(world.core.totals().overwritten, 2);
}

#[test]
fn approval_is_void_after_another_request() {
    let mut world = overwriting();
    let both = waiting(&world).1;
    world.set_namespace("d", Some(Namespace::default()));
    world.make_foreign(&copy("d", "s0"));
    let terms =
        Terms { conflict_policy: ConflictPolicy::Overwrite, created_at: 101, ..terms("r", &["a", "b", "c", "d"]) };
    world.batch(vec![with_terms("r", terms)]);
    world.settle();
    assert_eq!(waiting(&world).0, 3);
    // It was named before the hub heard of the third.
    world.name_takeovers("r", both);
    world.settle();
    assert_eq!(waiting(&world).0, 3);
    world.delete(&copy("d", "s0"));
    world.settle();
    assert_eq!((waiting(&world), world.core.totals().overwritten), ((2, both), 0), "the hub may hold it by now");
    world.name_takeovers("r", both);
    world.settle();
    assert_eq!((counts(&world).applied, world.core.totals().overwritten), (4, 2));
}

#[test]
fn named_part_is_not_overwritten_while_the_rest_is_checked() {
    let mut world = overwriting();
    let part = waiting(&world).1;
    world.make_foreign(&copy("a", "s1"));
    world.batch(vec![RuleDelta { upserts: vec![intent("s1", 1)], ..RuleDelta::new("r".into()) }]);
    world.name_takeovers("r", part);
    world.settle();
    assert_eq!((world.core.totals().overwritten, waiting(&world).0), (0, 3));
    world.let_overwrite("r");
    assert_eq!((world.core.totals().overwritten, waiting(&world).0), (3, 0));
}

#[test]
fn approval_holds_while_the_stream_lasts() {
    // Named while something is being found out: it is carried out when that is over, in the same stream.
    for lost in [false, true] {
        let mut world = overwriting();
        let both = waiting(&world).1;
        world.batch(vec![RuleDelta { upserts: vec![intent("s0", 2)], ..RuleDelta::new("r".into()) }]);
        world.name_takeovers("r", both);
        if lost {
            world.core.handle(Event::HubLost, world.now);
            world.connect();
        }
        world.settle();
        assert_eq!(world.core.totals().overwritten, if lost { 0 } else { 2 });
        world.let_overwrite("r");
        assert_eq!((counts(&world).applied, world.core.totals().overwritten), (3, 2));
    }

    // Permitted, but the API server refuses: it is tried again while the stream lasts.
    for lost in [false, true] {
        let (mut world, both) = permitted_in_vain();
        assert_eq!((world.core.totals().overwritten, waiting(&world).0), (0, 0));
        if lost {
            world.core.handle(Event::HubLost, world.now);
        }
        world.poisoned.clear();
        world.settle();
        assert_eq!(world.core.totals().overwritten, if lost { 0 } else { 2 }, "while the hub is away, nothing");
        if lost {
            world.sent.clear();
            world.connect();
            world.confirm();
            world.settle();
            let told = world.sent.iter().any(|frame| matches!(frame, AgentFrame::Report(states) if !states.is_empty()));
            assert!(told, "the hub does not take the first account for a word on what waits");
            assert_eq!(waiting(&world), (2, both), "it asks again, in the same words");
            world.let_overwrite("r");
        }
        assert_eq!((counts(&world).applied, world.core.totals().overwritten), (3, 2));
    }

    // Another process knows of no permission.
    let (mut world, both) = permitted_in_vain();
    world.restart();
    world.poisoned.clear();
    world.connect();
    world.batch(vec![RuleDelta { upserts: vec![intent("s0", 1)], ..RuleDelta::new("r".into()) }]);
    world.settle();
    assert_eq!((waiting(&world), world.core.totals().overwritten), ((2, both), 0));
    world.let_overwrite("r");
    assert_eq!((counts(&world).applied, world.core.totals().overwritten), (3, 2));
}

#[test]
fn a_permission_ends_when_the_copy_rests_for_whatever_reason() {
    let overwrites =
        |created_at| Terms { conflict_policy: ConflictPolicy::Overwrite, created_at, ..terms("r", &["a", "b", "c"]) };
    for suspend in [false, true] {
        let (mut world, both) = permitted_in_vain();
        let conflict_policy = if suspend { ConflictPolicy::Overwrite } else { ConflictPolicy::Fail };
        world.batch(vec![with_terms("r", Terms { conflict_policy, suspend, ..overwrites(101) })]);
        world.settle();
        world.poisoned.clear();
        world.batch(vec![with_terms("r", overwrites(102))]);
        world.settle();
        assert_eq!((waiting(&world), world.core.totals().overwritten), ((2, both), 0), "suspended: {suspend}");
        world.let_overwrite("r");
        assert_eq!((counts(&world).applied, world.core.totals().overwritten), (3, 2));
    }

    // The member's own policy refuses meanwhile, and lets it again.
    let (mut world, both) = permitted_in_vain();
    world.set_policy(Policy { overwrite: false, ..Policy::open() });
    world.settle();
    world.poisoned.clear();
    world.allow_everything();
    world.settle();
    assert_eq!((waiting(&world), world.core.totals().overwritten), ((2, both), 0));
}

#[test]
fn rule_that_stops_overwriting_waits_for_nothing() {
    for suspend in [false, true] {
        let mut world = overwriting();
        let both = waiting(&world).1;
        let conflict_policy = if suspend { ConflictPolicy::Overwrite } else { ConflictPolicy::Fail };
        let terms = Terms { conflict_policy, suspend, created_at: 101, ..terms("r", &["a", "b", "c"]) };
        world.batch(vec![with_terms("r", terms.clone())]);
        world.settle();
        assert_eq!(waiting(&world).0, 0);
        world.name_takeovers("r", both);
        world.settle();
        assert_eq!((counts(&world).applied, world.core.totals().overwritten), (1, 0));
        if suspend {
            continue;
        }
        // It overwrites again: what was named meanwhile was named for nothing.
        let again =
            Terms { conflict_policy: ConflictPolicy::Overwrite, suspend: false, created_at: 102, ..terms.clone() };
        world.batch(vec![with_terms("r", again)]);
        world.settle();
        assert_eq!((waiting(&world), world.core.totals().overwritten), ((2, both), 0));
    }
}

#[test]
fn other_object_of_same_name_is_reported_despite_same_message() {
    let mut world = overwriting();
    // A copy of another hub: it carries our label, so the watch shows it.
    world.edit(&copy("a", "s0"), |object| (object.live.ownership, object.labelled) = (Ownership::OtherHub, true));
    world.settle();
    let first = waiting(&world);
    // The watch was broken while it was deleted and made anew.
    world.edit(&copy("a", "s0"), |object| object.live.uid = "another".into());
    world.settle_now();
    assert_eq!(waiting(&world).0, 2);
    assert_ne!(waiting(&world), first, "another object has another name");
}
