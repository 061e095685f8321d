//! What is logged and reported about changed copies.
use super::*;
use crate::audit::LONGEST;

/// Returns the changes of rule r that were reported since the last call.
fn reported(world: &mut World) -> Vec<(CopyAction, ChangeOrigin, u32)> {
    let changes = world.reported_changes("r");
    world.sent.clear();
    let change = |change: CopyChange| (change.action, change.origin, change.copies);
    changes.into_iter().map(change).collect()
}

/// Returns the lines of the log since the last call.
fn logged(world: &mut World) -> Vec<String> {
    let lines = world.core.take_audit(world.now + LONGEST);
    let changes = lines.changes.iter().map(ToString::to_string);
    changes
        .chain(lines.failures.iter().map(ToString::to_string))
        .collect()
}

#[test]
fn changes_are_logged_and_reported_with_their_origin() {
    use ChangeOrigin::{Drift, Hub, Namespace};
    let mut world = applied();
    assert_eq!(reported(&mut world), [(CopyAction::Created, Hub, 4)]);
    assert_eq!(
        logged(&mut world),
        [
            "created 4 copies of team/r: the hub ordered it (configmaps/a/s0, configmaps/a/s1, configmaps/b/s0 and 1 more)"
        ]
    );
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert_eq!(reported(&mut world), [(CopyAction::Restored, Drift, 1)]);

    let gone = |world: &mut World, name| {
        world.batch(vec![RuleDelta {
            tombstones: vec![tombstone(name)],
            ..RuleDelta::new("r".into())
        }]);
        world.settle();
    };
    gone(&mut world, "s0");
    assert_eq!(reported(&mut world), [(CopyAction::Removed, Hub, 2)]);
    world.set_namespace("b", None);
    world.settle();
    reported(&mut world);
    world.set_namespace("b", Some(world::Namespace::default()));
    world.settle();
    assert_eq!(reported(&mut world), [(CopyAction::Created, Namespace, 1)]);

    // The last report of a removed rule has its removals, too.
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    let removed = reported(&mut world);
    let all: u32 = removed.iter().map(|(_, _, copies)| copies).sum();
    assert_eq!((removed[0].0, all), (CopyAction::Removed, 2));
}

#[test]
fn failing_copy_is_logged_once() {
    let mut world = applied();
    logged(&mut world);
    world.make_foreign(&copy("a", "s2"));
    let delta = RuleDelta {
        upserts: vec![intent("s2", 1)],
        ..RuleDelta::new("r".into())
    };
    world.batch(vec![delta]);
    for _ in 0..3 {
        world.settle();
        world.now += Duration::from_secs(600);
    }
    let lines = logged(&mut world);
    let failed: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("cannot write 1 copy of team/r: Conflict: "))
        .collect();
    assert_eq!(failed.len(), 1, "{lines:?}");
    world.settle();
    assert_eq!(logged(&mut world), [""; 0]);
}
