//! Waves that wait for healthy copies.
use super::*;

/// A rollout whose first wave, c1 and c2, is applied.
fn applied_wave() -> World {
    let mut world = World::new(4, rollout());
    world.step();
    world.all_are(&["c1", "c2"], Health::Unready);
    world
}

#[test]
fn wave_waits_until_its_copies_are_healthy() {
    let mut world = applied_wave();
    assert_eq!(world.after(60), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    assert_eq!(world.reported_progress().applied, 0);
    world.is("c1", Health::Applied);
    assert_eq!(world.after(1), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"], "c2 is not healthy yet");
    world.is("c2", Health::Applied);
    world.after(1);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
}

#[test]
fn copies_that_never_become_healthy_are_a_failure() {
    for deadline in [STUCK_LIMIT, Duration::from_secs(30)] {
        let mut world = applied_wave();
        world.rollout.progress_deadline = deadline;
        world.is("c1", Health::Applied);
        assert_eq!(world.after(deadline.as_secs() - 1), Phase::Progressing);
        assert_eq!(world.after(1), Phase::Stopped);
        assert_eq!(world.reported_progress().failed, 1);
        assert_eq!(world.admitted(), ["c1", "c2"]);
    }
}

#[test]
fn unhealthy_copies_stop_the_rollout_or_roll_it_back() {
    for reverts in [false, true] {
        let mut world = World::after_t0(4, rollout());
        world.rollout.reverts = reverts;
        world.step();
        world.is("c1", Health::Applied);
        world.is("c2", Health::Failed);
        let expected = if reverts {
            Phase::Reverting
        } else {
            Phase::Stopped
        };
        assert_eq!(world.after(1), expected);
        assert!(world.rollback_target() == reverts.then_some("t0"));
    }
}

#[test]
fn later_work_of_healthy_copies_holds_no_wave() {
    let mut world = World::new(6, rollout());
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.after(1);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
    // Pods of the first wave restart while the second one is under way, and longer than a wave may take.
    world.is("c1", Health::Unready);
    world.all_are(&["c3", "c4"], Health::Applied);
    world.after(STUCK_LIMIT.as_secs() * 2);
    assert_eq!(world.reported_progress().failed, 0);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4", "c5", "c6"]);
    world.is("c1", Health::Failed);
    assert_eq!(world.after(1), Phase::Stopped);
}

#[test]
fn new_leader_waits_for_health_again() {
    let mut world = World::new(4, rollout());
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.after(1);
    world.restart();
    world.is("c1", Health::Unready);
    world.all_are(&["c3", "c4"], Health::Applied);
    assert_eq!(world.after(1), Phase::Progressing);
    world.is("c1", Health::Applied);
    assert_eq!(world.after(1), Phase::Completed);
}

#[test]
fn wave_of_clusters_that_only_lack_health_needs_no_approval() {
    let mut world = World::new(
        2,
        Rollout {
            max_concurrency: Portion::Count(1),
            needs_approval: true,
            ..rollout()
        },
    );
    world.step();
    world.is("c1", Health::Applied);
    // It has the content already.
    world.is("c2", Health::Unready);
    assert_eq!(world.after(1), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    world.is("c2", Health::Applied);
    assert_eq!(world.after(1), Phase::Completed);
}
