//! Limits of copies and bytes, and of deletions.
use super::world::*;
use crate::decide::{Job, Recreate, Work};
use crate::live::Ownership;
use crate::reconciler::*;
use runnel_proto::model::*;
use std::time::Duration;

fn limited(policy: Policy) -> World {
    let mut world = World::new(&["team", "a", "b"]);
    world.set_policy(policy);
    world.connect();
    world
}

fn send(world: &mut World, uid: &str, terms: Terms, intents: Vec<Intent>) {
    world.batch(vec![RuleDelta {
        upserts: intents,
        ..with_terms(uid, terms)
    }]);
    world.settle();
}

fn intents(names: std::ops::Range<u8>, revision: u8) -> Vec<Intent> {
    names.map(|n| intent(&format!("s{n}"), revision)).collect()
}

fn counts(world: &World, uid: &str) -> (u32, u32) {
    let counts = world.reported_state(uid).unwrap().counts;
    (counts.applied, counts.failed)
}

fn message(world: &World, uid: &str) -> String {
    let failure = world.reported_state(uid).unwrap().failures[0].clone();
    assert_eq!(failure.reason, Reason::Denied);
    failure.message
}

#[test]
fn copies_beyond_max_copies_are_denied_until_there_is_room() {
    let mut world = limited(Policy {
        max_copies: 3,
        ..Policy::open()
    });
    send(&mut world, "r", terms("r", &["a"]), intents(0..5, 1));
    assert_eq!((world.objects.len(), counts(&world, "r")), (3, (3, 2)));
    assert!(
        message(&world, "r").contains("3 copies in all (maxCopies)"),
        "{}",
        message(&world, "r")
    );
    // Existing copies are corrected, also after a restart, and nothing is added.
    world.restart();
    world.connect();
    send(&mut world, "r", terms("r", &["a"]), intents(0..5, 1));
    let acked = world.objects.keys().next().unwrap().clone();
    world.edit(&acked, |object| object.live.intact = false);
    world.settle();
    assert_eq!(
        (world.objects.len(), world.objects[&acked].live.intact),
        (3, true)
    );
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone(&acked.name)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert_eq!((world.objects.len(), counts(&world, "r")), (3, (3, 1)));
    world.set_policy(Policy::open());
    world.settle();
    assert_eq!(counts(&world, "r"), (4, 0));
}

#[test]
fn copy_that_a_watch_shows_before_its_write_ends_counts_once() {
    let mut world = limited(Policy {
        max_copies: 4,
        ..Policy::open()
    });
    world.batch(vec![RuleDelta {
        upserts: intents(0..3, 1),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.dispatch();
    assert_eq!(world.under_way.len(), 3);
    world.batch(vec![RuleDelta {
        upserts: intents(3..4, 1),
        ..RuleDelta::new("r".into())
    }]);
    world.work_all_after_the_watches();
    world.settle_now();
    assert_eq!((world.objects.len(), counts(&world, "r")), (4, (4, 0)));
}

#[test]
fn content_beyond_max_bytes_is_denied() {
    let mut world = limited(Policy {
        max_bytes: 3,
        ..Policy::open()
    });
    send(&mut world, "r", terms("r", &["a"]), intents(0..2, 1));
    assert_eq!(counts(&world, "r"), (2, 0));
    // The values of revision 100 have three bytes.
    send(&mut world, "r", terms("r", &["a"]), intents(0..1, 100));
    assert!(
        message(&world, "r").contains("3 bytes of copies in all (maxBytes)"),
        "{}",
        message(&world, "r")
    );
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    send(&mut world, "r", terms("r", &["a"]), intents(0..1, 2));
    assert_eq!(counts(&world, "r"), (2, 0));
}

#[test]
fn granted_limit_is_that_of_all_rules_of_a_namespace() {
    let granted = |name: &str, namespace: &str, max_copies| {
        let resources = vec!["configmaps".to_owned()];
        let grants = Some(vec![Grant {
            resources,
            max_copies,
            ..Grant::default()
        }]);
        let terms = terms(name, &["a"]);
        Terms {
            rule: RuleName {
                namespace: namespace.into(),
                ..terms.rule
            },
            grants,
            ..terms
        }
    };
    let mut world = limited(Policy::open());
    send(
        &mut world,
        "r",
        granted("r", "team", Some(3)),
        intents(0..2, 1),
    );
    send(
        &mut world,
        "q",
        granted("q", "team", Some(3)),
        intents(2..5, 1),
    );
    send(
        &mut world,
        "p",
        granted("p", "other", None),
        intents(5..9, 1),
    );
    assert_eq!(
        (
            counts(&world, "r"),
            counts(&world, "q"),
            counts(&world, "p")
        ),
        ((2, 0), (1, 2), (4, 0))
    );
    let text = message(&world, "q");
    assert!(
        text.contains("rules of team are granted 3 copies")
            && text.contains("maxCopies of the Distribution"),
        "{text}"
    );
    send(
        &mut world,
        "q",
        Terms {
            created_at: 7,
            ..granted("q", "team", Some(5))
        },
        vec![],
    );
    assert_eq!(counts(&world, "q"), (3, 0));
}

#[test]
fn recreation_waits_where_no_more_may_be_deleted() {
    let mut world = limited(Policy {
        deletes_per_hour: 1,
        ..Policy::open()
    });
    let terms = Terms {
        immutable_policy: ImmutablePolicy::Recreate,
        ..terms("r", &["a"])
    };
    send(&mut world, "r", terms, intents(0..3, 1));
    let recreates = |world: &mut World| {
        world.batch(vec![RuleDelta {
            upserts: intents(0..2, 2),
            ..RuleDelta::new("r".into())
        }]);
        world.dispatch();
        let of = |job: &Job| match &job.work {
            Work::Change(_, body) => Some(body.recreate),
            _ => None,
        };
        world.under_way.iter().filter_map(of).collect::<Vec<_>>()
    };
    let mut fresh = recreates(&mut world);
    fresh.sort_by_key(|recreate| *recreate != Recreate::Yes);
    assert_eq!(
        fresh,
        [Recreate::Yes, Recreate::Later(1)],
        "one at a time may delete"
    );
    world.settle_now();
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s2")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    world.batch(vec![RuleDelta {
        upserts: intents(0..2, 1),
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert_eq!(recreates(&mut world), [Recreate::Later(1); 2]);
}

#[test]
fn recreation_in_two_jobs_is_reported_as_one() {
    let recreating = |conflict_policy| Terms {
        immutable_policy: ImmutablePolicy::Recreate,
        conflict_policy,
        ..terms("r", &["a"])
    };
    for (conflict, action) in [
        (ConflictPolicy::Fail, CopyAction::Recreated),
        (ConflictPolicy::Overwrite, CopyAction::Overwritten),
    ] {
        let mut world = limited(Policy::open());
        if action == CopyAction::Recreated {
            send(&mut world, "r", recreating(conflict), intents(0..1, 1));
        } else {
            world.make_foreign(&copy("a", "s0"));
        }
        world.core.take_notices();
        world.sent.clear();

        // Finalizers, such as that of `propagationPolicy: Orphan`, keep the object for a while.
        world.finalized.insert("s0".into());
        send(&mut world, "r", recreating(conflict), intents(0..1, 2));
        assert!(world.objects[&copy("a", "s0")].live.terminating.is_some());
        assert_eq!(world.core.take_notices().iter().filter(is_done).count(), 0);
        assert_eq!(world.core.totals().removed, 0);

        // The first try to create it again fails.
        world.poisoned.insert("s0".into());
        world.delete(&copy("a", "s0"));
        world.settle();
        world.poisoned.clear();
        world.settle();
        assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
        let notices = world.core.take_notices();
        let done: Vec<_> = notices.iter().filter(is_done).collect();
        let is_right = match done[..] {
            [Notice::Recreated(..)] => action == CopyAction::Recreated,
            [Notice::Overwritten(..)] => action == CopyAction::Overwritten,
            _ => false,
        };
        assert!(is_right, "{action}: {done:?}");
        let changes = world.reported_changes("r");
        let actions: Vec<_> = changes.iter().map(|change| change.action).collect();
        assert_eq!(actions, [action]);

        // A copy that others delete later is restored.
        world.finalized.clear();
        world.delete(&copy("a", "s0"));
        world.settle_now();
        assert!(
            !world
                .core
                .take_notices()
                .iter()
                .any(|notice| is_done(&notice))
        );
    }
}

fn is_done(notice: &&Notice) -> bool {
    matches!(notice, Notice::Recreated(..) | Notice::Overwritten(..))
}

#[test]
fn purge_deletes_as_many_copies_an_hour_as_the_policy_allows() {
    let mut world = limited(Policy {
        deletes_per_hour: 2,
        on_revoke: crate::policy::OnRevoke::Purge,
        ..Policy::open()
    });
    send(&mut world, "r", terms("r", &["a"]), intents(0..5, 1));
    world.core.handle(Event::Revoked, world.now);
    world.settle_now();
    assert_eq!(world.objects.len(), 3);
    for left in [1, 0] {
        world.now += Duration::from_secs(3600);
        world.settle_now();
        assert_eq!(
            world
                .objects
                .values()
                .filter(|object| object.live.ownership == Ownership::Ours)
                .count(),
            left
        );
    }
}
