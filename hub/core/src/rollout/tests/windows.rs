//! Waves that begin only inside windows.
use super::*;

/// The time of [`World`] at second 0 is 08:00 UTC on a Friday.
fn hourly(minute: u32, minutes: i64) -> Windows {
    let window = runnel_api::Window {
        schedule: format!("{minute} * * * *"),
        duration_seconds: minutes * 60,
        time_zone: "UTC".to_owned(),
    };
    Windows::read(&[window], "spec.rollout.windows")
}

/// Four clusters; waves of two begin from :10 to :20.
fn world() -> World {
    World::after_t0(
        4,
        Rollout {
            windows: hourly(10, 10),
            ..rollout()
        },
    )
}

fn gate(world: &World) -> &Gate {
    world.gate.as_ref().unwrap()
}

/// The second of the world at which it wakes.
fn wakes(world: &World) -> i64 {
    gate(world).wakes_at.unwrap().as_second() - 1_800_000_000
}

#[test]
fn waves_begin_only_inside_windows() {
    let mut world = world();
    assert_eq!(world.step(), Phase::AwaitingWindow);
    assert!(world.admitted().is_empty() && gate(&world).is_settled);
    assert_eq!((wakes(&world), world.reported_progress().wave), (600, 0));
    let (before, at) = (world.now().wall, gate(&world).wakes_at.unwrap());
    assert!(gate(&world).is_idle(before) && !gate(&world).is_idle(at));
    assert_eq!(world.after(599), Phase::AwaitingWindow);
    assert_eq!(world.after(1), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    // The wave ends after its window.
    assert_eq!(world.after(590), Phase::Progressing);
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.after(10), Phase::AwaitingWindow);
    assert_eq!(wakes(&world), 4200);
    let opens = world.reported_progress().opens_at.unwrap();
    assert_eq!(opens.as_second() - 1_800_000_000, 4200);
    assert_eq!(world.after(3000), Phase::Progressing);
    assert!(world.reported_progress().opens_at.is_none());
    world.all_are(&["c3", "c4"], Health::Applied);
    world.seconds += 1200;
    assert_eq!(world.step(), Phase::Completed, "nothing is left to send");
}

#[test]
fn cluster_waits_for_its_own_window_and_the_wave_for_it() {
    let mut world = World::after_t0(4, rollout());
    world.windows.insert("c2".into(), hourly(30, 5));
    world.step();
    assert_eq!(world.admitted(), ["c1"]);
    world.is("c1", Health::Applied);
    assert_eq!(world.step(), Phase::AwaitingWindow);
    assert_eq!((wakes(&world), world.reported_progress().wave), (1800, 1));
    assert_eq!(world.after(1800), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    world.is("c2", Health::Applied);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
}

#[test]
fn rule_and_cluster_must_be_open_together() {
    let mut world = world();
    world.windows.insert("c1".into(), hourly(15, 30));
    world.seconds = 600;
    world.step();
    assert_eq!(world.admitted(), ["c2"]);
    world.is("c2", Health::Applied);
    assert_eq!(world.step(), Phase::AwaitingWindow);
    assert_eq!(wakes(&world), 900);
    world.after(300);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    // They never are.
    let mut world = self::world();
    world.windows.insert("c1".into(), hourly(30, 5));
    world.seconds = 600;
    world.step();
    world.is("c2", Health::Applied);
    assert_eq!(world.step(), Phase::AwaitingWindow);
    assert!(gate(&world).is_settled && gate(&world).wakes_at.is_none());
    assert!(world.reported_progress().opens_at.is_none());
}

#[test]
fn many_waiting_clusters_are_looked_at_each_minute() {
    let mut world = World::after_t0(
        100,
        Rollout {
            max_concurrency: Portion::Count(100),
            ..rollout()
        },
    );
    for number in 1..=100 {
        let minute = if number == 100 { 20 } else { 40 };
        let name = format!("c{number}");
        world
            .windows
            .insert(name.as_str().into(), hourly(minute, 5));
    }
    world.step();
    assert_eq!(world.step(), Phase::AwaitingWindow);
    assert_eq!(wakes(&world), 60);
    world.after(1200);
    assert_eq!(world.admitted(), ["c100"]);
}

#[test]
fn rollback_and_stop_wait_for_no_window() {
    let mut world = world();
    world.rollout.reverts = true;
    world.seconds = 600;
    world.step();
    world.is("c1", Health::Applied);
    world.is("c2", Health::Failed);
    world.seconds = 1800;
    assert_eq!(world.step(), Phase::Reverting);
    world.all_are(&["c1", "c2"], Health::Pending);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2"], "they go back at once");
    assert!(world.reported_progress().opens_at.is_none());
}

#[test]
fn late_cluster_of_a_completed_rollout_waits_for_a_window() {
    let mut world = world();
    world.seconds = 600;
    world.is("c4", Health::Unavailable);
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.step();
    world.is("c3", Health::Applied);
    assert_eq!(world.step(), Phase::Completed);
    world.is("c4", Health::Pending);
    world.seconds = 1800;
    assert_eq!(world.step(), Phase::Completed);
    assert!(!world.admitted().contains(&"c4"));
    assert_eq!(wakes(&world), 4200);
    world.seconds = 4200;
    world.step();
    assert!(world.admitted().contains(&"c4"));
}

#[test]
fn approved_wave_waits_for_its_window_and_stays_approved() {
    let mut world = world();
    world.rollout.needs_approval = true;
    world.seconds = 600;
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.seconds = 1800;
    assert_eq!(world.step(), Phase::AwaitingApproval);
    world.approve();
    assert_eq!(world.step(), Phase::AwaitingWindow);
    let shown = world.reported_progress().pending_wave.clone().unwrap();
    world.is("c3", Health::Unavailable);
    assert_eq!(world.step(), Phase::AwaitingWindow);
    assert_eq!(
        world.reported_progress().pending_wave.as_ref(),
        Some(&shown)
    );
    world.is("c3", Health::Pending);
    world.seconds = 4200;
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
}

#[test]
fn unreadable_windows_are_closed() {
    let mut world = world();
    let window = runnel_api::Window {
        schedule: "never".to_owned(),
        duration_seconds: 60,
        time_zone: "UTC".to_owned(),
    };
    world.rollout.windows = Windows::read(&[window], "spec.rollout.windows");
    assert_eq!(world.step(), Phase::AwaitingWindow);
    assert!(gate(&world).is_settled && gate(&world).wakes_at.is_none());
    assert_eq!(world.after(1_000_000), Phase::AwaitingWindow);
}
