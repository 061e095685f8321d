//! Waves that are checked while they soak.
use super::*;

/// Four clusters, waves of two that soak for 100 seconds and are checked each 30; one check may fail.
fn world() -> World {
    World::after_t0(
        4,
        Rollout {
            soak: Duration::from_secs(100),
            analysis: Some(Analysis {
                check: Check::Http {
                    url: "http://checks/".to_owned(),
                },
                interval: Duration::from_secs(30),
                failure_limit: 1,
            }),
            ..rollout()
        },
    )
}

fn due(world: &World) -> Option<CheckedWave> {
    let analysis = world.rollout.analysis.as_ref()?;
    let now = world.now().wall;
    world
        .reported_progress()
        .check_due(analysis, world.check.as_ref(), now)
}

/// The check that is due has this result; the next step takes it in.
fn checked(world: &mut World, holds: bool) -> Phase {
    let result = if holds {
        Ok(String::new())
    } else {
        Err("bad".to_owned())
    };
    world.check = Some(CheckResult {
        of: due(world).unwrap(),
        at: world.now().wall,
        result,
    });
    assert_eq!(due(world), None, "not twice");
    world.step()
}

/// The first wave is applied.
fn soaking() -> World {
    let mut world = world();
    world.step();
    assert_eq!(due(&world), None, "it is not applied");
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::Soaking);
    world
}

fn counts(world: &World) -> (u64, u64) {
    let checks = world.reported_progress().checks.as_ref();
    checks.map_or((0, 0), |checks| (checks.made, checks.failed))
}

#[test]
fn wave_soaks_until_a_check_holds() {
    let mut world = soaking();
    assert_eq!(world.after(500), Phase::Soaking, "no check was made");
    assert_eq!(checked(&mut world, false), Phase::Soaking);
    assert_eq!((world.after(29), due(&world)), (Phase::Soaking, None));
    world.after(1);
    assert_eq!(checked(&mut world, true), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
    // The next wave is checked by itself.
    assert_eq!(counts(&world), (0, 0));
    world.all_are(&["c3", "c4"], Health::Applied);
    assert_eq!(world.step(), Phase::Soaking);
    assert_eq!(
        checked(&mut world, true),
        Phase::Soaking,
        "the time is not over"
    );
    assert_eq!(world.after(100), Phase::Completed);
    assert_eq!(due(&world), None);
}

#[test]
fn result_counts_once_and_for_its_wave_alone() {
    let mut world = soaking();
    let of = due(&world).unwrap();
    assert_eq!(checked(&mut world, false), Phase::Soaking);
    for _ in 0..3 {
        world.step();
    }
    assert_eq!(counts(&world), (1, 1));
    // As a new leader reads it.
    let status = runnel_api::RolloutStatus::from(world.reported_progress());
    world.progress = Some(Progress::from(&status));
    world.step();
    assert_eq!(counts(&world), (1, 1));
    world.edit("t2");
    world.step();
    let late = CheckResult {
        of,
        at: world.now().wall + jiff::SignedDuration::from_secs(1),
        result: Err("late".to_owned()),
    };
    world.check = Some(late);
    world.step();
    assert_eq!(counts(&world), (0, 0));
}

#[test]
fn too_many_failed_checks_stop_the_rollout() {
    let mut world = soaking();
    checked(&mut world, false);
    world.after(30);
    assert_eq!(checked(&mut world, false), Phase::Stopped);
    assert!(world.gate.as_ref().unwrap().is_settled);
    assert_eq!(world.after(1000), Phase::Stopped);
    assert_eq!((world.admitted(), due(&world)), (vec!["c1", "c2"], None));
    let mut more = world.clone();
    more.rollout.analysis.as_mut().unwrap().failure_limit = 2;
    assert_eq!(more.step(), Phase::Soaking, "a larger limit continues it");
    let mut without = world.clone();
    without.rollout.analysis = None;
    assert_eq!(without.step(), Phase::Progressing);
    // A person tries again.
    world.rollout.paused = true;
    assert_eq!(world.step(), Phase::Paused);
    world.rollout.paused = false;
    assert_eq!((world.step(), counts(&world)), (Phase::Soaking, (0, 0)));
    assert_eq!(checked(&mut world, true), Phase::Progressing);
}

#[test]
fn too_many_failed_checks_roll_back_at_once() {
    let mut world = soaking();
    (world.rollout.reverts, world.rollout.windows) = (true, Windows::default());
    checked(&mut world, false);
    world.after(30);
    assert_eq!(checked(&mut world, false), Phase::Reverting);
    assert_eq!(counts(&world), (2, 2), "the cause stays");
    world.all_are(&["c1", "c2"], Health::Pending);
    world.all_are(&["c3", "c4"], Health::Applied);
    world.step();
    assert_eq!(world.rollback_target(), Some("t0"));
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::Reverted);
}

#[test]
fn check_is_due_again_after_the_clock_was_set_back() {
    let mut world = soaking();
    checked(&mut world, true);
    assert_eq!(due(&world), None);
    world.set_back = 7200;
    assert!(due(&world).is_some());
    // The check that held is in the future, so it lets no wave pass.
    assert_eq!(world.after(101), Phase::Soaking);
    assert_eq!(world.after(101), Phase::Soaking);
    assert_eq!(checked(&mut world, false), Phase::Soaking);
    assert_eq!(counts(&world), (2, 1));
    assert_eq!(due(&world), None, "not each second");
    world.after(30);
    assert_eq!(checked(&mut world, true), Phase::Progressing);
}

#[test]
fn refused_analysis_begins_no_wave() {
    let mut world = world();
    world.is_check_refused = true;
    for _ in 0..3 {
        assert_eq!(world.after(1000), Phase::Progressing);
        assert!(world.admitted().is_empty());
        assert_eq!(world.reported_progress().wave, 0);
        assert!(world.gate.as_ref().unwrap().is_settled);
    }
    world.is_check_refused = false;
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2"]);
}
