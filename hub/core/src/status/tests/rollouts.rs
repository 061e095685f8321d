//! A rollout as a person finds it, in each of its phases: what `kubectl runnel status` prints of it, as a terminal of 80 and of
//! 160 columns shows it.
use std::borrow::Cow;

use super::pages::page;
use super::*;
use crate::rollout::{AdmittedClusters, Gate, Phase, Portion, Progress, Rollout, RolloutPosition};

/// A rollout that is under way.
pub(super) struct Under {
    rollout: Rollout,
    progress: Progress,
    gate: Gate,
    failing: Option<(ClusterName, String)>,
}

impl Under {
    pub(super) fn rolling(&self) -> Rolling<'_> {
        Rolling {
            rollout: &self.rollout,
            target: &self.progress.revision,
            gate: Some(Cow::Borrowed(&self.gate)),
            progress: Some(self.progress.clone()),
            failing: self.failing.clone(),
        }
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// Three clusters, of which the first has been reached and has it.
fn world(phase: Phase) -> World {
    let mut world = World::new(&["canary-1", "eu-1", "eu-2"]);
    for cluster in ["canary-1", "eu-1", "eu-2"] {
        world.applied(cluster);
    }
    world.seconds = 3600;
    let rollout = Rollout {
        max_concurrency: Portion::Count(2),
        order_by: Some("tier".to_owned()),
        soak: Duration::from_secs(300),
        max_failures: 0,
        paused: phase == Phase::Paused,
        reverts: false,
    };
    let turn = RolloutPosition { value: Some("1".to_owned()), cluster: "canary-1".into() };
    let progress = Progress {
        phase,
        wave: 1,
        cursor: Some(turn),
        clusters: 3,
        reached: 1,
        applied: 1,
        wave_at: Some(at(3300)),
        applied_at: (phase == Phase::Soaking).then(|| at(3480)),
        ..Progress::begin("target", &rollout, None, at(3300))
    };
    let reach = AdmittedClusters::Only(BTreeMap::from([("canary-1".into(), world.now().instant)]));
    let gate = Gate { revision: "target".to_owned(), reach, rests: false, travel: Travel::Plain };
    world.rolling = Some(Under { rollout, progress, gate, failing: None });
    world
}

fn progress(world: &mut World) -> &mut Progress {
    &mut world.rolling.as_mut().unwrap().progress
}

#[test]
fn snapshots_of_a_rollout_in_each_phase() {
    let mut before = world(Phase::Progressing);
    let by_name = Rollout { order_by: None, ..before.rolling.as_ref().unwrap().rollout.clone() };
    *progress(&mut before) = Progress { clusters: 3, ..Progress::begin("target", &by_name, None, at(3590)) };
    before.rolling.as_mut().unwrap().gate.reach = AdmittedClusters::Only(BTreeMap::new());
    insta::assert_snapshot!("before_the_first_wave", page(&mut before));

    let mut wave = world(Phase::Progressing);
    wave.report("canary-1", Counts { copies: 2, applied: 1, ..Counts::default() }, vec![]);
    progress(&mut wave).applied = 0;
    insta::assert_snapshot!("a_wave_that_is_under_way", page(&mut wave));

    insta::assert_snapshot!("a_wave_that_soaks", page(&mut world(Phase::Soaking)));

    let mut overtaken = world(Phase::Soaking);
    (progress(&mut overtaken).superseded, progress(&mut overtaken).unfinished_since) = (12, Some(at(0)));
    insta::assert_snapshot!("edits_that_come_faster_than_the_waves", page(&mut overtaken));

    insta::assert_snapshot!("held_by_a_person", page(&mut world(Phase::Paused)));

    let mut stopped = world(Phase::Stopped);
    let why = "the policy no-poison of this cluster does not want it";
    stopped.report(
        "canary-1",
        Counts { copies: 2, applied: 1, failed: 1, ..Counts::default() },
        vec![failure(Reason::Denied, why)],
    );
    (progress(&mut stopped).applied, progress(&mut stopped).failing, progress(&mut stopped).failed) = (0, 1, 1);
    let failing = ("canary-1".into(), format!("configmaps/default/s: {why}"));
    stopped.rolling.as_mut().unwrap().failing = Some(failing);
    insta::assert_snapshot!("stopped_by_a_failure", page(&mut stopped));

    let mut reverting = world(Phase::Reverting);
    reverting.rolling.as_mut().unwrap().rollout.reverts = true;
    reverting.rolling.as_mut().unwrap().gate.travel =
        Travel::Revert { target: "target".to_owned(), base: String::new() };
    let told = progress(&mut reverting);
    (told.applied, told.failing, told.failed, told.failure) =
        (0, 1, 1, Some(format!("canary-1: configmaps/default/s: {why}")));
    insta::assert_snapshot!("going_back", page(&mut reverting));

    let reverted = &mut reverting;
    reverted.travel = Travel::Revert { target: "target".to_owned(), base: String::new() };
    reverted.applied("canary-1");
    let told = progress(reverted);
    (told.phase, told.reverted, told.left, told.failing) = (Phase::Reverted, 1, 2, 0);
    told.ended_at = Some(at(3500));
    insta::assert_snapshot!("gone_back", page(reverted));

    let mut completed = world(Phase::Completed);
    completed.rolling.as_mut().unwrap().gate.reach = AdmittedClusters::All;
    let told = progress(&mut completed);
    (told.wave, told.reached, told.applied, told.ended_at) = (2, 3, 3, Some(at(3500)));
    insta::assert_snapshot!("completed", page(&mut completed));
}

fn turn(value: &str, cluster: &str) -> RolloutPosition {
    RolloutPosition { value: Some(value.to_owned()), cluster: cluster.into() }
}

/// Who the next step lets in, of the three clusters in their order; by a leader that has just begun, or another.
fn let_in(world: &World, just_begun: bool) -> (Vec<&'static str>, Gate) {
    let turns = vec![turn("1", "canary-1"), turn("2", "eu-1"), turn("2", "eu-2")];
    let mut view = world.view(&world.status);
    if just_begun {
        view.rolling.as_mut().unwrap().gate = None;
    }
    let gate = view.take_step(turns, &world.report_store, world.now()).unwrap();
    let all = ["canary-1", "eu-1", "eu-2"].into_iter();
    (all.filter(|cluster| gate.lets_in("target", &(*cluster).into())).collect(), gate)
}

#[test]
fn cluster_with_failed_content_rolls_back_out_of_order() {
    let mut world = world(Phase::Reverting);
    world.travel = Travel::Revert { target: "target".to_owned(), base: String::new() };
    world.applied("canary-1");
    // It was reached when its label was another.
    world.travel = Travel::Keep(String::new());
    world.applied("eu-1");
    for just_begun in [false, true] {
        let (let_in, gate) = let_in(&world, just_begun);
        assert!(let_in == ["canary-1", "eu-1"] && gate.travel.reverts(), "{let_in:?}");
    }
    // What it kept is of other times, or it holds something else.
    world.travel = Travel::Keep("1".to_owned());
    world.applied("eu-1");
    assert_eq!(let_in(&world, false).0, ["canary-1"]);
    let other = RuleState { terms_digest: None, ..world.state("eu-1", Counts::default()) };
    world.report_store.report(&"eu-1".into(), 1, RuleState { travel: Travel::Keep(String::new()), ..other });
    assert_eq!(let_in(&world, false).0, ["canary-1"]);
}

#[test]
fn new_leader_learns_from_agents_who_is_at_work() {
    for phase in [Phase::Progressing, Phase::Reverting] {
        let mut world = world(phase);
        let under = world.rolling.as_mut().unwrap();
        (under.rollout.max_concurrency, under.progress.cursor) = (Portion::Count(1), Some(turn("2", "eu-1")));
        world.travel = Travel::Keep(String::new());
        world.report("canary-1", Counts { copies: 2, failed: 2, ..Counts::default() }, vec![]);
        world.report("eu-1", Counts { copies: 2, applied: 1, ..Counts::default() }, vec![]);
        assert_eq!(let_in(&world, true).0, ["eu-1"], "{phase:?}");
    }
}

#[test]
fn copies_left_sum_over_clusters_of_this_rollback() {
    let mut world = world(Phase::Reverting);
    let back = |target: &str| Travel::Revert { target: target.to_owned(), base: String::new() };
    for (cluster, travel, left) in
        [("canary-1", back("target"), 2), ("eu-1", back("target"), 3), ("eu-2", back("another"), 7)]
    {
        let counts = Counts { copies: 2, applied: 2, ..Counts::default() };
        let state = RuleState { travel, left, ..world.state(cluster, counts) };
        world.report_store.report(&cluster.into(), 1, state);
    }
    let left = |world: &World, turns: Vec<RolloutPosition>| {
        let mut view = world.view(&world.status);
        view.take_step(turns, &world.report_store, world.now()).unwrap();
        view.progress().unwrap().left
    };
    let all = vec![turn("1", "canary-1"), turn("2", "eu-1"), turn("2", "eu-2")];
    assert_eq!(left(&world, all.clone()), 5);
    // A leader that has just begun says no less than the one before while one is still to connect.
    progress(&mut world).left = 9;
    assert_eq!(left(&world, all.clone()), 5);
    world.target_clusters.clusters.insert("eu-3".into(), world.rule.terms.clone());
    world.seconds = 10;
    assert_eq!(left(&world, [all, vec![turn("2", "eu-3")]].concat()), 9);
}
