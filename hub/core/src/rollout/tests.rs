use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use jiff::Timestamp;
use runnel_proto::model::ClusterName;

use super::*;
use crate::now::Now;

mod analysis;
mod approval;
mod health;
mod schedules;
mod windows;

/// A rollout in simulated time. Its status is written, and its gate is used, at once.
#[derive(Clone)]
struct World {
    rollout: Rollout,
    target: String,
    clusters: BTreeMap<RolloutPosition, Health>,
    progress: Option<Progress>,
    gate: Option<Gate>,
    settling: bool,
    /// Those that report that they are at work on it.
    at_work: BTreeSet<ClusterName>,
    /// Whether the state of the last completed rollout is stored.
    has_former: bool,
    /// The digests that the rule's annotation approves.
    approval: Option<String>,
    /// The windows of clusters.
    windows: BTreeMap<ClusterName, Windows>,
    /// The last result of the analysis.
    check: Option<CheckResult>,
    is_check_refused: bool,
    was_paused: bool,
    removals_wait: bool,
    left_out: LeftOut,
    empty: BTreeSet<ClusterName>,
    start: Instant,
    seconds: u64,
    /// By how much the wall clock was set back.
    set_back: i64,
}

/// How long a cluster may take in these tests.
const STUCK_LIMIT: Duration = Duration::from_secs(600);

fn rollout() -> Rollout {
    Rollout {
        max_concurrency: Portion::Count(2),
        order_by: None,
        soak: Duration::ZERO,
        progress_deadline: STUCK_LIMIT,
        max_failures: 0,
        paused: false,
        reverts: false,
        history: 0,
        waits_for_health: true,
        needs_approval: false,
        windows: Windows::default(),
        analysis: None,
    }
}

fn turn(value: Option<&str>, cluster: &str) -> RolloutPosition {
    RolloutPosition {
        value: value.map(ToOwned::to_owned),
        cluster: cluster.into(),
    }
}

impl World {
    /// Creates connected clusters c1, c2 and so on, none with the target.
    fn new(clusters: usize, rollout: Rollout) -> Self {
        let clusters = (1..=clusters)
            .map(|number| (turn(None, &format!("c{number}")), Health::Pending))
            .collect();
        Self {
            rollout,
            target: "t1".to_owned(),
            clusters,
            progress: None,
            gate: None,
            settling: false,
            at_work: BTreeSet::new(),
            has_former: true,
            approval: None,
            windows: BTreeMap::new(),
            check: None,
            is_check_refused: false,
            was_paused: false,
            removals_wait: false,
            left_out: LeftOut::Passed,
            empty: BTreeSet::new(),
            start: Instant::now(),
            seconds: 0,
            set_back: 0,
        }
    }

    /// Creates a world after a completed rollout of t0.
    fn after_t0(clusters: usize, rollout: Rollout) -> Self {
        let mut world = Self::new(clusters, rollout);
        let began = world.now().wall;
        let t0 = Progress::begin("t0", &world.rollout, None, began);
        world.progress = Some(Progress {
            phase: Phase::Completed,
            ended_at: Some(began),
            ..t0
        });
        world
    }

    /// Whether it is rolled back, and to what.
    fn rollback_target(&self) -> Option<&str> {
        self.gate.as_ref()?.back_to.as_deref()
    }

    fn now(&self) -> Now {
        let seconds = i64::try_from(self.seconds).unwrap() - self.set_back;
        let wall = Timestamp::from_second(1_800_000_000 + seconds).unwrap();
        Now {
            instant: self.start + Duration::from_secs(self.seconds),
            wall,
        }
    }

    fn step(&mut self) -> Phase {
        let clusters = self
            .clusters
            .iter()
            .map(|(turn, health)| (turn.clone(), *health))
            .collect();
        let (at_work, has_former) = (self.at_work.clone(), self.has_former);
        let approval = self.approval.as_deref();
        let observation = Observation {
            target: &self.target,
            clusters,
            settling: self.settling,
            at_work,
            has_former,
            approval,
            windows: self.windows.iter().collect(),
            check: self.check.as_ref(),
            is_check_refused: self.is_check_refused,
            was_paused: self.was_paused,
            removals_wait: self.removals_wait,
            left_out: self.left_out,
            empty: self.empty.clone(),
        };
        let (progress, gate) = step(
            &self.rollout,
            self.progress.as_ref(),
            self.gate.as_ref(),
            &observation,
            self.now(),
        );
        let phase = progress.phase;
        (self.progress, self.gate) = (Some(progress), Some(gate));
        phase
    }

    fn after(&mut self, seconds: u64) -> Phase {
        self.seconds += seconds;
        self.step()
    }

    fn is(&mut self, cluster: &str, health: Health) {
        let known = self
            .clusters
            .iter_mut()
            .find(|(turn, _)| turn.cluster.as_str() == cluster)
            .unwrap();
        *known.1 = health;
    }

    fn all_are(&mut self, clusters: &[&str], health: Health) {
        clusters.iter().for_each(|cluster| self.is(cluster, health));
    }

    /// Its label has another value.
    fn moves(&mut self, cluster: &str, value: &str) {
        let (former, health) = self
            .clusters
            .iter()
            .find(|(turn, _)| turn.cluster.as_str() == cluster)
            .unwrap();
        let (former, health) = (former.clone(), *health);
        self.clusters.remove(&former);
        self.clusters.insert(turn(Some(value), cluster), health);
    }

    fn edit(&mut self, target: &str) {
        self.target = target.to_owned();
        let connected = self
            .clusters
            .values_mut()
            .filter(|health| **health != Health::Unavailable);
        connected.for_each(|health| *health = Health::Pending);
    }

    /// The names of the clusters that may have the target.
    fn admitted(&self) -> Vec<&str> {
        let lets_in = |turn: &&RolloutPosition| {
            self.gate
                .as_ref()
                .is_some_and(|gate| gate.admits(&self.target, &turn.cluster))
        };
        self.clusters
            .keys()
            .filter(lets_in)
            .map(|turn| turn.cluster.as_str())
            .collect()
    }

    /// A person approves the wave that the status shows.
    fn approve(&mut self) {
        let pending = self
            .progress
            .as_ref()
            .and_then(|progress| progress.pending_wave.as_ref());
        if let Some(pending) = pending {
            self.approval = Some(pending.digest.clone());
        }
    }

    fn reported_progress(&self) -> &Progress {
        self.progress.as_ref().unwrap()
    }

    /// Restarts the hub: only the status is left.
    fn restart(&mut self) {
        self.gate = None;
    }
}

#[test]
fn waves_follow_as_each_is_applied_and_all_are_admitted() {
    let mut world = World::new(5, rollout());
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    world.is("c1", Health::Applied);
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(
        world.admitted(),
        ["c1", "c2"],
        "the wave is not applied yet"
    );
    world.is("c2", Health::Applied);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
    world.all_are(&["c3", "c4"], Health::Applied);
    world.step();
    world.is("c5", Health::Applied);
    assert_eq!(world.step(), Phase::Completed);
    let reported_progress = world.reported_progress();
    assert_eq!(
        (
            reported_progress.wave,
            reported_progress.reached,
            reported_progress.applied,
            reported_progress.clusters
        ),
        (3, 5, 5, 5)
    );
    assert!(reported_progress.ended_at.is_some());
    // A newcomer gets the newest at once.
    world.clusters.insert(turn(None, "c0"), Health::Pending);
    assert_eq!(world.step(), Phase::Completed);
    assert!(world.admitted().contains(&"c0"));
}

#[test]
fn wave_has_clusters_of_one_label_value() {
    let mut world = World::new(
        0,
        Rollout {
            order_by: Some("tier".to_owned()),
            ..rollout()
        },
    );
    for (value, cluster) in [
        (Some("2"), "a"),
        (Some("10"), "b"),
        (Some("1"), "c"),
        (None, "d"),
        (Some("10"), "e"),
    ] {
        world.clusters.insert(turn(value, cluster), Health::Pending);
    }
    let mut waves = Vec::new();
    while world.step() != Phase::Completed {
        let wave: Vec<String> = world.admitted().iter().map(ToString::to_string).collect();
        waves.push(wave.join(""));
        world.all_are(
            &wave.iter().map(String::as_str).collect::<Vec<_>>(),
            Health::Applied,
        );
    }
    // In rollout order; `c` is the first.
    assert_eq!(waves, ["c", "ca", "cabe", "cabed"]);
}

#[test]
fn a_wave_soaks_from_when_it_is_applied_also_across_a_restart() {
    let mut world = World::new(
        3,
        Rollout {
            soak: Duration::from_secs(300),
            ..rollout()
        },
    );
    world.step();
    world.seconds += 100;
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::Soaking);
    assert_eq!(world.after(200), Phase::Soaking);
    world.restart();
    assert_eq!(world.after(99), Phase::Soaking);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    assert_eq!(world.after(1), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2", "c3"]);
}

#[test]
fn clock_set_back_lets_a_wave_soak_once_more_and_go_on() {
    let mut world = World::new(
        3,
        Rollout {
            soak: Duration::from_secs(300),
            ..rollout()
        },
    );
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::Soaking);
    world.set_back = 7200;
    assert_eq!(world.after(299), Phase::Soaking);
    assert_eq!(world.after(299), Phase::Soaking);
    assert_eq!(world.after(1), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2", "c3"]);
}

#[test]
fn soaking_rollout_sleeps_until_its_soak_is_over() {
    let mut world = World::new(
        3,
        Rollout {
            soak: Duration::from_secs(300),
            ..rollout()
        },
    );
    let is_idle = |world: &World| world.gate.as_ref().unwrap().is_idle(world.now().wall);
    world.step();
    assert!(!is_idle(&world));
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::Soaking);
    let gate = world.gate.clone();
    for _ in 0..2 {
        world.seconds += 149;
        assert!(is_idle(&world));
        world.step();
        assert_eq!(world.gate, gate, "a step in between changes nothing");
    }
    let mut failed = world.clone();
    failed.is("c1", Health::Failed);
    assert_eq!(failed.step(), Phase::Stopped);
    world.seconds += 2;
    assert!(!is_idle(&world));
    assert_eq!(world.step(), Phase::Progressing);
    // While no cluster is connected, only an event brings the next step.
    world.all_are(&["c3"], Health::Applied);
    assert_eq!(world.step(), Phase::Soaking);
    world.all_are(&["c1", "c2", "c3"], Health::Unavailable);
    assert_eq!(world.after(301), Phase::Soaking);
    assert!(is_idle(&world));
    world.is("c1", Health::Applied);
    assert_eq!(world.step(), Phase::Completed);
}

#[test]
fn pause_that_ended_before_a_step_asks_for_another_try() {
    for reverts in [false, true] {
        let mut world = World::after_t0(
            2,
            Rollout {
                reverts,
                ..rollout()
            },
        );
        world.step();
        world.is("c1", Health::Failed);
        world.is("c2", Health::Applied);
        world.step();
        world.is("c1", Health::Applied);
        let ended = world.step();
        let expected = [Phase::Stopped, Phase::Reverted][usize::from(reverts)];
        assert_eq!(ended, expected);
        world.was_paused = true;
        assert_eq!(world.step(), Phase::Paused);
        assert!(world.gate.as_ref().unwrap().is_paused);
        world.was_paused = false;
        world.step();
        assert!(!matches!(
            world.reported_progress().phase,
            Phase::Stopped | Phase::Reverted | Phase::Paused
        ));
    }
}

#[test]
fn a_failure_that_shows_while_the_wave_soaks_stops_it_too() {
    let mut world = World::new(
        3,
        Rollout {
            soak: Duration::from_secs(300),
            ..rollout()
        },
    );
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::Soaking);
    world.is("c2", Health::Failed);
    assert_eq!(world.after(10), Phase::Stopped);
    assert_eq!(world.after(1000), Phase::Stopped);
    assert_eq!(world.admitted(), ["c1", "c2"]);
}

#[test]
fn rollout_over_its_budget_stops_until_a_person_acts() {
    let stopped = || {
        let mut world = World::new(
            6,
            Rollout {
                max_failures: 1,
                ..rollout()
            },
        );
        world.step();
        world.is("c1", Health::Failed);
        world.is("c2", Health::Applied);
        assert_eq!(world.step(), Phase::Progressing, "one may fail");
        assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
        world.is("c3", Health::Failed);
        assert_eq!(world.step(), Phase::Stopped);
        assert_eq!(world.reported_progress().failed, 2);
        // Also after the failure has ended, or while no agent reports.
        world.is("c3", Health::Applied);
        assert_eq!(world.step(), Phase::Stopped);
        assert_eq!(
            (
                world.reported_progress().failing,
                world.reported_progress().failed
            ),
            (1, 2),
            "one has recovered"
        );
        world.all_are(&["c1", "c3", "c4"], Health::Applied);
        assert_eq!(world.step(), Phase::Stopped);
        assert_eq!(
            (
                world.reported_progress().failing,
                world.reported_progress().failed
            ),
            (0, 2)
        );
        world.restart();
        world.all_are(&["c1", "c2", "c3", "c4", "c5", "c6"], Health::Unavailable);
        assert_eq!(world.after(1000), Phase::Stopped);
        assert_eq!(world.reported_progress().failed, 2);
        world.all_are(&["c1", "c2", "c3", "c4"], Health::Applied);
        world.all_are(&["c5", "c6"], Health::Pending);
        world
    };
    let mut raised = stopped();
    raised.rollout.max_failures = 2;
    assert_eq!(raised.step(), Phase::Progressing);
    assert_eq!(raised.admitted().len(), 6);

    let mut tried = stopped();
    tried.rollout.paused = true;
    assert_eq!(tried.step(), Phase::Paused);
    assert_eq!(
        (tried.reported_progress().failed, tried.admitted().len()),
        (0, 4)
    );
    tried.rollout.paused = false;
    assert_eq!(tried.step(), Phase::Progressing);
    assert_eq!(tried.admitted().len(), 6);

    let mut edited = stopped();
    edited.edit("t2");
    assert_eq!(edited.step(), Phase::Progressing);
    assert_eq!(edited.admitted(), ["c1", "c2"]);
    assert_eq!(edited.reported_progress().failed, 0);
}

#[test]
fn edit_closes_the_gate_and_begins_with_the_first_wave() {
    let mut world = World::new(5, rollout());
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.step();
    world.edit("t2");
    assert!(world.admitted().is_empty(), "before anybody has judged it");
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2"]);
    assert_eq!(world.reported_progress().wave, 1);
}

#[test]
fn too_fast_edits_never_reach_the_second_wave_and_count() {
    let mut world = World::new(
        4,
        Rollout {
            soak: Duration::from_secs(60),
            ..rollout()
        },
    );
    world.step();
    let began = world.reported_progress().started_at;
    for edit in 2..=5 {
        world.after(1);
        world.all_are(&["c1", "c2"], Health::Applied);
        assert_eq!(world.after(58), Phase::Soaking);
        world.edit(&format!("t{edit}"));
        world.step();
        assert_eq!(
            world.admitted(),
            ["c1", "c2"],
            "nobody else has tried the newest"
        );
    }
    assert_eq!(
        (
            world.reported_progress().superseded,
            world.reported_progress().unfinished_since
        ),
        (4, Some(began))
    );
    // Another order is no newer change.
    world.rollout.order_by = Some("tier".to_owned());
    world.step();
    assert_eq!(
        (
            world.reported_progress().superseded,
            world.reported_progress().unfinished_since
        ),
        (4, Some(began))
    );
    world.all_are(&["c1", "c2", "c3", "c4"], Health::Applied);
    world.step();
    assert_eq!(world.after(60), Phase::Completed);
    assert_eq!(
        (
            world.reported_progress().superseded,
            world.reported_progress().unfinished_since
        ),
        (0, None)
    );
    world.edit("t6");
    world.step();
    assert_eq!(
        world.reported_progress().superseded,
        0,
        "the one before was completed"
    );
}

#[test]
fn rollout_waiting_for_an_event_has_no_timer() {
    let is_settled = |world: &World| world.gate.as_ref().unwrap().is_settled;
    let mut world = World::new(4, rollout());
    world.step();
    assert!(!is_settled(&world));
    world.is("c1", Health::Failed);
    assert_eq!(world.step(), Phase::Stopped);
    assert!(!is_settled(&world), "who is under way may come to no end");
    assert_eq!(world.after(600), Phase::Stopped);
    assert_eq!(world.reported_progress().failed, 2);
    assert!(is_settled(&world));
    world.rollout.paused = true;
    assert_eq!(world.step(), Phase::Paused);
    assert!(is_settled(&world));
    world.rollout.paused = false;
    world.all_are(&["c1", "c2"], Health::Applied);
    assert_eq!(world.step(), Phase::Progressing);
    assert!(!is_settled(&world));
    world.all_are(&["c3", "c4"], Health::Unavailable);
    assert_eq!(world.after(60), Phase::Completed);
    assert!(
        is_settled(&world) && !world.admitted().contains(&"c3"),
        "who is away comes with a word"
    );
    world.is("c3", Health::Pending);
    world.step();
    assert!(!is_settled(&world));
}

#[test]
fn updated_cluster_takes_no_slot() {
    let mut world = World::new(6, rollout());
    world.all_are(&["c1", "c3", "c5"], Health::Applied);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4", "c5"]);
    // A ready rule that gets a rollout has nothing to roll out.
    let mut world = World::new(4, rollout());
    world.all_are(&["c1", "c2", "c3", "c4"], Health::Applied);
    assert_eq!(world.step(), Phase::Completed);
}

#[test]
fn disconnected_cluster_is_skipped_until_a_slot_is_free() {
    let mut world = World::new(6, rollout());
    world.all_are(&["c1", "c2", "c3"], Health::Unavailable);
    world.step();
    assert_eq!(world.admitted(), ["c4", "c5"], "who is away takes no room");
    // A network failure ends.
    world.all_are(&["c1", "c2", "c3"], Health::Pending);
    world.step();
    assert_eq!(world.admitted(), ["c4", "c5"]);
    world.is("c4", Health::Applied);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c4", "c5"]);
    // A cluster that disconnects while under way is waited for, up to a limit.
    world.is("c5", Health::Applied);
    world.is("c1", Health::Unavailable);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c4", "c5"]);
    world.all_are(&["c2"], Health::Applied);
    world.step();
    world.is("c3", Health::Applied);
    assert_eq!(world.after(30), Phase::Progressing);
    assert!(!world.admitted().contains(&"c6"));
    world.after(30);
    assert!(world.admitted().contains(&"c6"));
    assert!(
        !world.admitted().contains(&"c1"),
        "when it comes back it needs room again"
    );
    world.is("c6", Health::Applied);
    assert_eq!(world.step(), Phase::Completed);
    // A cluster that reconnects after that still needs a slot.
    assert!(!world.admitted().contains(&"c1"));
    world.is("c1", Health::Pending);
    assert_eq!(world.step(), Phase::Completed);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4", "c5", "c6"]);
}

#[test]
fn absent_cluster_is_admitted_later_and_can_stop_the_rollout() {
    let mut world = World::new(6, rollout());
    world.all_are(&["c2", "c3", "c4", "c5", "c6"], Health::Unavailable);
    world.step();
    world.is("c1", Health::Applied);
    assert_eq!(world.after(600), Phase::Completed);
    assert_eq!(world.admitted(), ["c1"]);
    world.all_are(&["c2", "c3", "c4", "c5", "c6"], Health::Pending);
    assert_eq!(world.step(), Phase::Completed);
    assert_eq!(world.admitted(), ["c1", "c2", "c3"]);
    // Also by a hub that began in between.
    world.restart();
    assert_eq!(world.step(), Phase::Completed);
    assert_eq!(world.admitted(), ["c1", "c2", "c3"]);
    world.all_are(&["c2", "c3"], Health::Failed);
    assert_eq!(world.step(), Phase::Stopped);
    assert_eq!(world.admitted(), ["c1", "c2", "c3"]);
}

#[test]
fn incomparable_plan_does_not_count_as_applied() {
    let mut world = World::new(4, rollout());
    world.all_are(&["c1", "c2", "c3", "c4"], Health::Quiet);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2"]);
    assert_eq!(world.after(29), Phase::Progressing);
    assert_eq!(world.admitted(), ["c1", "c2"]);
    world.after(1);
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
    assert_eq!(world.after(30), Phase::Completed);
}

#[test]
fn rollout_pauses_while_no_cluster_is_connected() {
    let mut world = World::new(3, rollout());
    world.all_are(&["c1", "c2", "c3"], Health::Unavailable);
    world.step();
    assert_eq!(world.after(10_000), Phase::Progressing);
    assert_eq!(world.reported_progress().reached, 0);
    world.is("c2", Health::Pending);
    world.step();
    assert_eq!(world.admitted(), ["c2"]);
    assert_eq!(World::new(0, rollout()).step(), Phase::Completed);
}

#[test]
fn unfinished_cluster_has_failed() {
    let mut world = World::new(3, rollout());
    world.step();
    world.is("c1", Health::Applied);
    assert_eq!(world.after(599), Phase::Progressing);
    assert_eq!(world.after(1), Phase::Stopped);
    assert_eq!(world.admitted(), ["c1", "c2"]);
}

#[test]
fn new_leader_admits_no_wave_before_all_can_connect() {
    let mut world = World::new(6, rollout());
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.step();
    world.restart();
    assert!(world.admitted().is_empty());
    world.settling = true;
    world.all_are(&["c1", "c2", "c3", "c4", "c5", "c6"], Health::Unavailable);
    world.step();
    assert!(world.admitted().is_empty());
    // It continues with the wave that was in progress.
    world.all_are(&["c3", "c4", "c5"], Health::Pending);
    world.step();
    assert_eq!(world.admitted(), ["c3", "c4"]);
    world.all_are(&["c3", "c4"], Health::Applied);
    world.after(20);
    assert_eq!(world.admitted(), ["c3", "c4"]);
    assert_eq!(world.reported_progress().wave, 2);
    world.settling = false;
    world.step();
    assert_eq!(world.admitted(), ["c3", "c4", "c5"]);
    assert_eq!(world.reported_progress().wave, 3);
}

#[test]
fn pause_sends_nothing_further_and_counts_work_under_way() {
    let mut world = World::new(5, rollout());
    world.step();
    world.rollout.paused = true;
    world.is("c1", Health::Applied);
    assert_eq!(world.step(), Phase::Paused);
    world.is("c2", Health::Failed);
    assert_eq!(world.step(), Phase::Paused);
    assert_eq!(
        (
            world.reported_progress().applied,
            world.reported_progress().failed
        ),
        (1, 1)
    );
    assert_eq!(world.admitted(), ["c1", "c2"]);
    world.edit("t2");
    assert_eq!(world.step(), Phase::Paused);
    assert!(world.admitted().is_empty());
    world.rollout.paused = false;
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2"]);
}

/// Six clusters, of which four were sent a target that failed and begin to be rolled back.
fn rolling_back() -> World {
    let mut world = World::after_t0(
        6,
        Rollout {
            reverts: true,
            ..rollout()
        },
    );
    world.step();
    assert_eq!(world.rollback_target(), None);
    world.all_are(&["c1", "c2"], Health::Applied);
    world.step();
    world.is("c3", Health::Failed);
    assert_eq!(world.step(), Phase::Reverting);
    assert_eq!(
        world.admitted(),
        ["c4"],
        "who is at work on it has its room, and no more are told at once"
    );
    assert_eq!(world.rollback_target(), Some("t0"));
    assert_eq!(
        (
            world.reported_progress().failed,
            world.reported_progress().reached
        ),
        (1, 4)
    );
    // From here on clusters are compared with the former state.
    world.all_are(&["c1", "c2", "c3", "c4"], Health::Pending);
    world.all_are(&["c5", "c6"], Health::Applied);
    world
}

#[test]
fn rollout_over_its_budget_rolls_back_a_few_at_a_time() {
    let mut world = rolling_back();
    assert_eq!(world.step(), Phase::Reverting);
    assert_eq!(world.admitted(), ["c1", "c4", "c5", "c6"]);
    assert_eq!(world.rollback_target(), Some("t0"));
    world.is("c1", Health::Applied);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c4", "c5", "c6"]);
    // Also by the next leader, which has read only the status.
    world.restart();
    world.is("c3", Health::Unavailable);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c4", "c5", "c6"]);
    world.all_are(&["c2", "c4"], Health::Applied);
    assert_eq!(world.step(), Phase::Reverted);
    assert_eq!(
        (
            world.reported_progress().reverted,
            world.reported_progress().failed
        ),
        (3, 1)
    );
    assert!(world.gate.as_ref().unwrap().is_settled);
    // A disconnected cluster is rolled back when it reconnects.
    world.is("c3", Health::Pending);
    assert_eq!(world.step(), Phase::Reverted);
    assert!(world.admitted().contains(&"c3"));
    world.is("c3", Health::Failed);
    assert_eq!(world.step(), Phase::Reverted);
    assert_eq!(world.reported_progress().reverted, 3);
    // Neither another order nor a larger budget sends it again.
    (world.rollout.order_by, world.rollout.max_failures) = (Some("tier".to_owned()), 9);
    assert_eq!(world.after(1000), Phase::Reverted);
    assert_eq!(world.rollback_target(), Some("t0"));
}

#[test]
fn newer_edit_supersedes_a_rollback_and_retry_is_possible() {
    let mut edited = rolling_back();
    edited.step();
    edited.edit("t2");
    assert!(edited.admitted().is_empty());
    assert_eq!(edited.step(), Phase::Progressing);
    assert_eq!(
        (
            edited.admitted(),
            edited.reported_progress().failed,
            edited.reported_progress().superseded
        ),
        (vec!["c1", "c2"], 0, 0)
    );
    assert_eq!(
        (
            edited.rollback_target(),
            edited.reported_progress().base.as_deref()
        ),
        (None, Some("t0"))
    );

    let mut again = rolling_back();
    again.step();
    again.rollout.paused = true;
    assert_eq!(again.step(), Phase::Reverting, "who goes back goes back");
    assert_eq!(again.admitted(), ["c1", "c4", "c5", "c6"]);
    again.all_are(&["c1", "c4"], Health::Applied);
    assert_eq!(
        again.step(),
        Phase::Reverting,
        "nobody else is told while it is paused"
    );
    assert_eq!(again.admitted(), ["c1", "c4", "c5", "c6"]);
    again.rollout.paused = false;
    again.step();
    again.all_are(&["c2", "c3"], Health::Applied);
    assert_eq!(again.step(), Phase::Reverted);
    again.rollout.paused = true;
    assert_eq!(again.step(), Phase::Paused);
    assert!(again.admitted().is_empty());
    again.all_are(&["c1", "c2", "c3", "c4", "c5", "c6"], Health::Pending);
    again.rollout.paused = false;
    assert_eq!(again.step(), Phase::Progressing);
    assert_eq!(
        (again.admitted(), again.reported_progress().wave),
        (vec!["c1", "c2"], 1)
    );
}

#[test]
fn completed_rollout_is_not_rolled_back() {
    let mut world = World::new(
        3,
        Rollout {
            reverts: true,
            ..rollout()
        },
    );
    world.all_are(&["c2", "c3"], Health::Unavailable);
    world.step();
    world.is("c1", Health::Applied);
    assert_eq!(world.after(600), Phase::Completed);
    assert_eq!(world.rollback_target(), None);
    world.all_are(&["c2", "c3"], Health::Failed);
    assert_eq!(world.step(), Phase::Completed, "nobody is left");
    let mut world = World::new(
        4,
        Rollout {
            reverts: true,
            ..rollout()
        },
    );
    world.all_are(&["c2", "c3", "c4"], Health::Unavailable);
    world.step();
    world.is("c1", Health::Applied);
    world.after(600);
    world.all_are(&["c2", "c3", "c4"], Health::Pending);
    world.step();
    world.is("c2", Health::Failed);
    for _ in 0..3 {
        assert_eq!(world.after(10), Phase::Stopped);
        assert_eq!(world.rollback_target(), None);
        world.restart();
    }
    // The state does not change while no cluster is left to reach.
    world.all_are(&["c3", "c4"], Health::Unavailable);
    assert_eq!(world.after(700), Phase::Stopped);
    world.all_are(&["c3", "c4"], Health::Pending);
    assert_eq!(world.step(), Phase::Stopped);
    // The next rollback restores this target.
    world.edit("t2");
    world.step();
    assert_eq!(world.reported_progress().base.as_deref(), Some("t1"));
}

#[test]
fn without_a_former_state_a_failed_rollout_stops() {
    let mut world = World::after_t0(
        4,
        Rollout {
            reverts: true,
            ..rollout()
        },
    );
    world.has_former = false;
    world.step();
    world.is("c1", Health::Applied);
    world.is("c2", Health::Failed);
    for _ in 0..3 {
        assert_eq!(
            (world.step(), world.rollback_target()),
            (Phase::Stopped, None)
        );
        world.restart();
    }
    // Once one is completed, there is a state again.
    world.edit("t2");
    world.step();
    for wave in [["c1", "c2"], ["c3", "c4"]] {
        world.all_are(&wave, Health::Applied);
        world.step();
    }
    assert_eq!(world.reported_progress().phase, Phase::Completed);
    world.has_former = true;
    world.edit("t3");
    world.step();
    world.is("c1", Health::Failed);
    assert_eq!(
        (world.step(), world.rollback_target()),
        (Phase::Reverting, Some("t2"))
    );
}

#[test]
fn rollback_without_former_state_stops() {
    for is_over in [false, true] {
        let mut world = rolling_back();
        world.step();
        if is_over {
            world.all_are(&["c1", "c2", "c3", "c4"], Health::Applied);
            assert_eq!(world.step(), Phase::Reverted);
        }
        world.has_former = false;
        for _ in 0..3 {
            assert_eq!(
                (world.step(), world.rollback_target()),
                (Phase::Stopped, None)
            );
            world.restart();
            // A cluster that was rolled back does not have the target, and does not get it again.
            world.all_are(&["c1", "c2", "c3", "c4"], Health::Pending);
            assert!(!world.reported_progress().is_completed() && world.admitted().is_empty());
        }
        world.edit("t2");
        assert_eq!(
            (world.step(), world.admitted()),
            (Phase::Progressing, vec!["c1", "c2"])
        );
    }
}

#[test]
fn rollback_follows_the_order_of_the_rollout() {
    let world = rolling_back();
    let other = Rollout {
        order_by: Some("tier".to_owned()),
        ..rollout()
    };
    assert_eq!(other.order(world.progress.as_ref(), "t1"), None);
    assert_eq!(other.order(world.progress.as_ref(), "t2"), Some("tier"));
    assert_eq!(other.order(None, "t1"), Some("tier"));
}

#[test]
fn new_leader_reports_no_less_until_all_can_connect() {
    let all = ["c1", "c2", "c3", "c4", "c5", "c6"];
    let mut world = rolling_back();
    world.step();
    world.all_are(&["c1", "c4"], Health::Applied);
    world.step();
    assert_eq!(
        (
            world.reported_progress().reverted,
            world.reported_progress().applied
        ),
        (2, 2)
    );
    world.restart();
    world.settling = true;
    world.all_are(&all, Health::Unavailable);
    world.step();
    assert_eq!(
        (
            world.reported_progress().reverted,
            world.reported_progress().applied
        ),
        (2, 2)
    );
    world.settling = false;
    world.step();
    assert_eq!(world.reported_progress().reverted, 0);

    let mut world = World::new(6, rollout());
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.step();
    world.restart();
    world.settling = true;
    world.all_are(&all, Health::Unavailable);
    world.step();
    assert_eq!(world.reported_progress().applied, 2);
    world.edit("t2");
    world.step();
    assert_eq!(
        world.reported_progress().applied,
        0,
        "of another target nothing was counted"
    );

    // A cluster that moved behind the cursor counts as well, and so does a failed one.
    let mut world = World::new(
        2,
        Rollout {
            max_failures: 1,
            ..rollout()
        },
    );
    world.step();
    world.is("c1", Health::Applied);
    world.is("c2", Health::Failed);
    assert_eq!(world.step(), Phase::Completed);
    world.clusters.insert(turn(None, "c0"), Health::Applied);
    world.restart();
    world.step();
    assert_eq!(
        (
            world.reported_progress().reached,
            world.reported_progress().failed
        ),
        (3, 1)
    );
    world.restart();
    world.settling = true;
    world.all_are(&["c0", "c1", "c2"], Health::Unavailable);
    world.step();
    assert_eq!(
        (
            world.reported_progress().reached,
            world.reported_progress().failed
        ),
        (3, 1)
    );
}

#[test]
fn changed_order_restarts_the_rollout() {
    let mut world = World::new(4, rollout());
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.step();
    world.rollout.order_by = Some("tier".to_owned());
    world.all_are(&["c3", "c4"], Health::Applied);
    assert_eq!(world.step(), Phase::Completed);
    assert_eq!(world.reported_progress().order_by.as_deref(), Some("tier"));
}

/// Two clusters of tier 1, two of tier 2 and two of tier 4; those of tier 1 have the target, those of tier 2 are at work.
fn in_the_second_wave() -> World {
    let mut world = World::after_t0(
        0,
        Rollout {
            order_by: Some("tier".to_owned()),
            reverts: true,
            ..rollout()
        },
    );
    for (tier, cluster) in [
        ("1", "c1"),
        ("1", "c2"),
        ("2", "c3"),
        ("2", "c4"),
        ("4", "c5"),
        ("4", "c6"),
    ] {
        world
            .clusters
            .insert(turn(Some(tier), cluster), Health::Pending);
    }
    world.step();
    world.all_are(&["c1", "c2"], Health::Applied);
    world.step();
    assert_eq!(world.admitted(), ["c1", "c2", "c3", "c4"]);
    world
}

#[test]
fn cluster_moved_behind_the_cursor_counts_and_rolls_back() {
    let all = ["c1", "c2", "c3", "c4", "c5", "c6"];
    let mut world = in_the_second_wave();
    // One cluster that has it, and one that is applying it.
    world.moves("c1", "3");
    world.moves("c3", "3");
    world.is("c4", Health::Applied);
    assert_eq!(world.step(), Phase::Progressing);
    assert_eq!(
        (world.admitted(), world.reported_progress().wave),
        (vec!["c2", "c4", "c1", "c3"], 2),
        "c3 keeps its room"
    );
    assert_eq!(world.reported_progress().reached, 4);
    world.is("c1", Health::Failed);
    assert_eq!(world.step(), Phase::Reverting, "its failure counts");
    assert_eq!(
        (world.admitted(), world.reported_progress().reached),
        (vec!["c3"], 4)
    );
    for restarts in [false, true] {
        let mut world = world.clone();
        if restarts {
            world.restart();
        }
        world.all_are(&all, Health::Pending);
        world.all_are(&["c5", "c6"], Health::Applied);
        let mut reported_progress = BTreeSet::from(["c5", "c6"].map(ToOwned::to_owned));
        while world.step() == Phase::Reverting {
            let now: Vec<_> = world
                .admitted()
                .into_iter()
                .map(ToOwned::to_owned)
                .collect();
            assert!(
                now.iter()
                    .filter(|name| !reported_progress.contains(*name))
                    .count()
                    <= 2,
                "{now:?} after {reported_progress:?}"
            );
            now.iter().for_each(|name| world.is(name, Health::Applied));
            reported_progress.extend(now);
        }
        assert_eq!(
            Vec::from_iter(reported_progress),
            all,
            "restarts: {restarts}"
        );
        assert_eq!(
            (
                world.reported_progress().reverted,
                world.reported_progress().reached
            ),
            (4, 4)
        );
    }
}

#[test]
fn unfinished_cluster_behind_the_cursor_is_rolled_back() {
    let mut world = in_the_second_wave();
    world.moves("c3", "3");
    world.is("c4", Health::Applied);
    assert_eq!(world.after(600), Phase::Reverting);
    world.step();
    assert!(
        world.admitted().contains(&"c3"),
        "it does not have the former state"
    );
}

#[test]
fn cluster_moved_behind_the_cursor_still_gets_the_change() {
    let mut world = in_the_second_wave();
    world.moves("c3", "3");
    world.restart();
    world.is("c4", Health::Applied);
    world.step();
    assert_eq!(
        (world.admitted(), world.reported_progress().wave),
        (vec!["c1", "c2", "c4", "c3"], 3)
    );
    world.is("c3", Health::Applied);
    world.step();
    world.all_are(&["c5", "c6"], Health::Applied);
    world.moves("c1", "9");
    assert_eq!(world.step(), Phase::Completed);
    assert_eq!(world.gate.as_ref().unwrap().reach, AdmittedClusters::All);
}

#[test]
fn new_cluster_gets_the_former_state_during_a_rollback() {
    let mut world = rolling_back();
    world.all_are(&["c1", "c2", "c3", "c4"], Health::Applied);
    assert_eq!(
        (world.step(), world.reported_progress().reverted),
        (Phase::Reverted, 4)
    );
    for cluster in ["c7", "c8", "c9"] {
        world.clusters.insert(turn(None, cluster), Health::Pending);
    }
    world.step();
    assert_eq!(
        world.admitted(),
        ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"]
    );
    world.is("c7", Health::Applied);
    assert_eq!(
        (
            world.step(),
            world.reported_progress().reverted,
            world.reported_progress().reached
        ),
        (Phase::Reverted, 4, 4)
    );
    assert!(world.admitted().contains(&"c9"));
}

#[test]
fn leader_killed_between_waves_leaves_no_unknown_work() {
    for at_the_turn in [false, true] {
        let mut world = rolling_back();
        if !at_the_turn {
            assert_eq!(world.step(), Phase::Reverting);
            assert_eq!(world.admitted(), ["c1", "c4", "c5", "c6"]);
        }
        world.restart();
        let at_work: &[&str] = if at_the_turn { &["c4"] } else { &["c1", "c4"] };
        world.at_work = at_work
            .iter()
            .map(|name| ClusterName::from(*name))
            .collect();
        world.step();
        assert_eq!(
            world.admitted(),
            ["c1", "c4", "c5", "c6"],
            "at the turn: {at_the_turn}"
        );
    }
    // As above, where the begin of the rollback was not written yet, and where it continues.
    let mut world = in_the_second_wave();
    world.is("c1", Health::Failed);
    world.restart();
    world.at_work.insert("c4".into());
    assert_eq!(world.step(), Phase::Reverting);
    assert_eq!(world.admitted(), ["c4"]);
    let mut world = in_the_second_wave();
    world.is("c1", Health::Pending);
    world.restart();
    world.at_work = ["c3", "c4"].map(ClusterName::from).into();
    world.step();
    assert_eq!(
        world.admitted(),
        ["c2", "c3", "c4"],
        "there is no room for another one"
    );
}
