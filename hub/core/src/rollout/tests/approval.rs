//! Waves that wait for a person.
use super::*;

/// Six clusters; waves of two that wait for approval.
fn world() -> World {
    World::after_t0(
        6,
        Rollout {
            needs_approval: true,
            ..rollout()
        },
    )
}

/// The first wave is applied, and the second one waits.
fn awaiting() -> World {
    let mut world = world();
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"], "the first wave");
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::AwaitingApproval);
    world
}

fn pending(world: &World) -> &PendingWave {
    world.reported_progress().pending_wave.as_ref().unwrap()
}

#[test]
fn each_wave_after_the_first_waits_for_its_approval() {
    let mut world = awaiting();
    for (wave, names) in [(2, ["c3", "c4"]), (3, ["c5", "c6"])] {
        let shown = pending(&world).clone();
        assert_eq!((shown.wave, shown.clusters), (wave, 2));
        assert_eq!(
            (shown.names, shown.up_to.cluster.as_str()),
            (names.map(ToOwned::to_owned).into(), names[1])
        );
        assert!(world.gate.as_ref().unwrap().is_settled);
        assert_eq!(world.after(100_000), Phase::AwaitingApproval);
        assert_eq!(pending(&world).digest, shown.digest);
        world.approve();
        assert_eq!(world.step(), Phase::Progressing);
        assert!(world.reported_progress().pending_wave.is_none());
        world.all_are(&names, Health::Applied);
        world.step();
    }
    assert_eq!(world.reported_progress().phase, Phase::Completed);
}

#[test]
fn first_wave_counts_clusters_that_are_not_connected() {
    let mut world = world();
    world.all_are(&["c2", "c3", "c4"], Health::Unavailable);
    world.step();
    world.is("c1", Health::Applied);
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(pending(&world).names, ["c3", "c4", "c5", "c6"]);
    // They are back: nobody has approved more than the first wave.
    world.all_are(&["c2", "c3", "c4"], Health::Pending);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2"]);
}

#[test]
fn approval_of_several_digests_names_the_wave_among_them() {
    let mut world = awaiting();
    world.approval = Some(format!("0123, {}", pending(&world).digest));
    assert_eq!(world.step(), Phase::Progressing);
}

#[test]
fn wave_with_other_clusters_needs_another_approval() {
    let mut world = awaiting();
    let shown = pending(&world).digest.clone();
    world.clusters.insert(turn(None, "c3-b"), Health::Pending);
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(pending(&world).names, ["c3", "c3-b"]);
    world.approval = Some(shown.clone());
    assert_eq!(world.step(), Phase::AwaitingApproval, "of the wave before");
    world.clusters.remove(&turn(None, "c3-b"));
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
}

#[test]
fn clusters_that_disconnect_or_return_keep_the_digest() {
    let mut world = awaiting();
    let shown = pending(&world).clone();
    for health in [Health::Unavailable, Health::Pending] {
        world.is("c3", health);
        assert_eq!(world.step(), Phase::AwaitingApproval);
        assert_eq!(pending(&world), &shown);
    }
    world.is("c3", Health::Unavailable);
    world.approve();
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2", "c4"]);
    // Its wave was approved with it.
    world.is("c3", Health::Pending);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
}

#[test]
fn wave_of_disconnected_clusters_waits_too() {
    let mut world = awaiting();
    world.all_are(&["c3", "c4", "c5", "c6"], Health::Unavailable);
    world.restart();
    world.progress.as_mut().unwrap().pending_wave = None;
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(pending(&world).clusters, 4);
    world.approve();
    assert_eq!(world.step(), Phase::Completed);
    // They get it when they return.
    world.is("c4", Health::Pending);
    world.step();
    assert!(world.admitted().contains(&"c4"));
}

#[test]
fn approved_wave_whose_clusters_are_gone_passes_on_to_the_next() {
    let mut world = awaiting();
    world.all_are(&["c3", "c4"], Health::Unavailable);
    world.approve();
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(pending(&world).names, ["c5", "c6"]);
}

#[test]
fn wave_of_disconnected_clusters_has_one_value() {
    let mut world = World::after_t0(
        0,
        Rollout {
            needs_approval: true,
            order_by: Some("tier".to_owned()),
            ..rollout()
        },
    );
    for (tier, cluster) in [("1", "c1"), ("2", "c2"), ("3", "c3")] {
        world
            .clusters
            .insert(turn(Some(tier), cluster), Health::Pending);
    }
    world.step();
    world.is("c1", Health::Applied);
    world.is("c2", Health::Unavailable);
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(pending(&world).names, ["c2"]);
    world.approve();
    world.step();
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(pending(&world).names, ["c3"]);
}

#[test]
fn edit_needs_another_approval_also_of_the_same_change() {
    let mut world = awaiting();
    let shown = pending(&world).digest.clone();
    world.approval = Some(shown.clone());
    for target in ["t2", "t1"] {
        world.edit(target);
        world.after(1);
        world.all_are(&["c1", "c2"], Health::Applied);
        assert_eq!(world.step(), Phase::AwaitingApproval, "{target}");
        assert_ne!(pending(&world).digest, shown);
    }
}

#[test]
fn new_leader_shows_and_takes_the_same_approval() {
    let mut world = awaiting();
    let shown = pending(&world).clone();
    let status = runnel_api::RolloutStatus::from(world.reported_progress());
    world.progress = Some(Progress::from(&status));
    world.restart();
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(pending(&world).digest, shown.digest);
    world.approval = Some(shown.digest);
    assert_eq!(world.step(), Phase::Progressing);
}

#[test]
fn failure_while_a_wave_waits_stops_or_rolls_back() {
    for reverts in [false, true] {
        let mut world = awaiting();
        world.rollout.reverts = reverts;
        world.is("c1", Health::Failed);
        let (phase, back) = if reverts {
            (Phase::Reverting, Some("t0"))
        } else {
            (Phase::Stopped, None)
        };
        assert_eq!((world.step(), world.rollback_target()), (phase, back));
        assert!(world.reported_progress().pending_wave.is_none());
    }
}

#[test]
fn rollout_without_approval_begins_the_wave_that_waits() {
    let mut world = awaiting();
    world.rollout.needs_approval = false;
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
}

#[test]
fn pending_wave_is_cut_again_when_a_label_changes() {
    let mut world = World::new(0, rollout());
    world.rollout.needs_approval = true;
    world.rollout.order_by = Some("tier".to_owned());
    for (value, cluster) in [("0", "c1"), ("1", "c2"), ("1", "c3")] {
        let position = turn(Some(value), cluster);
        world.clusters.insert(position, Health::Pending);
    }
    world.step();
    world.is("c1", Health::Applied);
    assert_eq!(world.step(), Phase::AwaitingApproval);
    world.approve();
    // The order of the names is as before, but the wave would have two values.
    world.moves("c2", "0");
    assert_eq!(world.step(), Phase::AwaitingApproval);
    assert_eq!(world.admitted(), ["c1"]);
    world.approve();
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2"]);
}
