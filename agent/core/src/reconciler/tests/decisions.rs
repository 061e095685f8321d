//! How often a copy is decided. A decision is one run of the pipeline for one copy; a preview counts,
//! too. The end of a job that did what was decided needs none.
use super::world::*;
use super::*;

/// More copies than jobs run at once.
const COPIES: usize = 3 * PARALLEL;

/// Returns a cluster with one source, applied in each of [`COPIES`] namespaces.
fn applied() -> World {
    let names: Vec<_> = (0..COPIES).map(|n| format!("n{n:02}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut world = World::new(&[&["team"], names.as_slice()].concat());
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &names))
    }]);
    world.settle_now();
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 24);
    world
}

/// Returns the number of decisions of a change, until nothing is left to do.
fn decisions(world: &mut World, change: impl FnOnce(&mut World)) -> usize {
    let before = world.core.member.runs.get();
    change(world);
    world.settle_now();
    world.core.member.runs.get() - before
}

fn edit(revision: u8) -> Vec<RuleDelta> {
    vec![RuleDelta {
        upserts: vec![intent("s0", revision)],
        ..RuleDelta::new("r".into())
    }]
}

fn all_hold(world: &World, revision: u8) -> bool {
    let mut copies = world.objects.keys().filter(|copy| &*copy.name == "s0");
    world.objects.len() == COPIES && copies.all(|copy| world.holds(copy, "r", "s0", revision))
}

#[test]
fn edit_decides_each_copy_once() {
    let mut world = applied();
    let count = decisions(&mut world, |world| world.batch(edit(2)));
    assert_eq!(count, COPIES);
    assert!(all_hold(&world, 2) && world.undelivered.is_empty());
}

#[test]
fn echo_before_the_answer_decides_nothing() {
    let mut world = applied();
    let count = decisions(&mut world, |world| {
        world.batch(edit(2));
        for _ in 0..COPIES / PARALLEL {
            world.dispatch();
            world.work_all_after_the_watches();
        }
    });
    assert_eq!(count, COPIES);
    assert!(all_hold(&world, 2) && world.undelivered.is_empty());
}

#[test]
fn removal_decides_each_copy_once() {
    let mut world = applied();
    let removal = vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }];
    // The first decision waits until the tombstone is stored, and the second one acts.
    let count = decisions(&mut world, |world| world.batch(removal));
    assert_eq!(count, 2 * COPIES);
    assert!(world.objects.is_empty());
}

#[test]
fn correction_decides_once() {
    let mut world = applied();
    let count = decisions(&mut world, |world| {
        world.edit(&copy("n00", "s0"), |object| object.live.intact = false);
    });
    assert_eq!(count, 1);
    assert!(all_hold(&world, 1));
}

#[test]
fn queued_copies_are_decided_again_after_an_edit() {
    let mut world = applied();
    let count = decisions(&mut world, |world| {
        world.batch(edit(2));
        world.dispatch();
        world.batch(edit(3));
    });
    // The copies with a job under way are decided a third time, by the result of that job.
    assert_eq!(count, 2 * COPIES + PARALLEL);
    assert!(all_hold(&world, 3));
}

#[test]
fn quick_edit_is_reported_once_and_slow_one_while_under_way() {
    let mut world = applied();
    world.now += Duration::from_secs(1);
    let before = world.reported_states("r").len();
    world.batch(edit(2));
    world.settle_now();
    assert_eq!(world.reported_states("r").len(), before + 1);
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 24);

    world.now += Duration::from_secs(1);
    world.batch(edit(3));
    world.dispatch();
    assert_eq!(world.reported_states("r").len(), before + 1);
    world.now += crate::report::INTERVAL;
    world.dispatch();
    let counts = world.reported_state("r").unwrap().counts;
    assert_eq!((counts.copies, counts.applied), (24, 0));
    world.settle_now();
    assert_eq!(world.reported_states("r").len(), before + 3);
    assert!(all_hold(&world, 3));
}
