//! Snapshots of a rollout in each phase: the output of `kubectl runnel status` at 80 and at 160
//! columns.
use std::borrow::Cow;
use std::sync::Arc;

use runnel_proto::model::SetDigest;

use super::pages::page;
use super::*;
use crate::index::{RollbackPlan, StoredState};
use crate::plan::{CompletedState, RollbackBlocker};
use crate::rollout::{
    AdmittedClusters, Analysis, Check, Checks, Gate, LeftOut, PendingWave, Phase, Portion,
    Progress, Rollout, RolloutPosition, Windows,
};
use crate::status::rollout_view::rollout_stopped;

/// A rollout that is under way.
pub(super) struct Under {
    rollout: Rollout,
    progress: Progress,
    gate: Gate,
    former: RollbackPlan,
    refused_url: Option<String>,
}

impl Under {
    pub(super) fn is_rolling_back(&self) -> bool {
        self.gate.is_rolling_back()
    }

    pub(super) fn rolling<'a>(
        &'a self,
        newest: (&'a ClusterPlans, &'a TargetClusters),
    ) -> Rolling<'a> {
        Rolling {
            rollout: &self.rollout,
            target: &self.progress.revision,
            gate: Some(Cow::Borrowed(&self.gate)),
            progress: Some(self.progress.clone()),
            newest,
            former: &self.former,
            check: None,
            refused_url: self.refused_url.clone(),
            was_paused: false,
            left_out: LeftOut::Passed,
            removals_wait: BTreeSet::new(),
        }
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn pending_wave() -> PendingWave {
    PendingWave {
        digest: "0123456789abcdef0123".to_owned(),
        wave: 2,
        clusters: 2,
        names: ["eu-1", "eu-2"].map(ToOwned::to_owned).into(),
        up_to: turn("2", "eu-2"),
        since: at(3540),
    }
}

/// Three clusters, of which the first has been reached and has it.
pub(super) fn world(phase: Phase) -> World {
    let mut world = World::new(&["canary-1", "eu-1", "eu-2"]);
    for cluster in ["canary-1", "eu-1", "eu-2"] {
        world.applied(cluster);
    }
    world.seconds = 3600;
    let rollout = Rollout {
        max_concurrency: Portion::Count(2),
        order_by: Some("tier".to_owned()),
        soak: Duration::from_secs(300),
        progress_deadline: Duration::from_secs(600),
        max_failures: 0,
        paused: phase == Phase::Paused,
        reverts: false,
        history: 0,
        waits_for_health: true,
        needs_approval: phase == Phase::AwaitingApproval,
        windows: Windows::default(),
        analysis: None,
    };
    let turn = RolloutPosition {
        value: Some("1".to_owned()),
        cluster: "canary-1".into(),
    };
    let progress = Progress {
        phase,
        wave: 1,
        cursor: Some(turn),
        clusters: 3,
        reached: 1,
        applied: 1,
        pending_wave: (phase == Phase::AwaitingApproval).then(pending_wave),
        wave_at: Some(at(3300)),
        opens_at: (phase == Phase::AwaitingWindow).then(|| at(7200)),
        applied_at: (phase == Phase::Soaking).then(|| at(3480)),
        ..Progress::begin("target", &rollout, None, at(3300))
    };
    let reach = AdmittedClusters::Only(BTreeMap::from([("canary-1".into(), world.now().instant)]));
    let gate = Gate {
        revision: "target".to_owned(),
        reach,
        is_settled: false,
        wakes_at: None,
        back_to: None,
        healthy: BTreeSet::new(),
        newly_chosen: BTreeSet::new(),
        is_blocked: false,
        is_paused: false,
    };
    world.rolling = Some(Under {
        rollout,
        progress,
        gate,
        former: former(None),
        refused_url: None,
    });
    world
}

/// A rollout whose windows cannot be read.
pub(super) fn with_invalid_window() -> World {
    let mut world = world(Phase::AwaitingWindow);
    let window = runnel_api::Window {
        schedule: "0 22 * * *".to_owned(),
        duration_seconds: 3600,
        time_zone: "Mars/Base".to_owned(),
    };
    let under = world.rolling.as_mut().unwrap();
    under.rollout.windows = Windows::read(&[window], "spec.rollout.windows");
    under.progress.opens_at = None;
    world
}

/// An analysis whose URL the hub may not request.
pub(super) fn with_refused_analysis() -> World {
    let mut world = world(Phase::Soaking);
    world.rolling.as_mut().unwrap().refused_url = Some("http://prom:9090/api/v1/query".to_owned());
    world
}

/// A rollout of which checks failed.
pub(super) fn with_failed_analysis(phase: Phase) -> World {
    let mut world = if phase.is_rollback() {
        rolled_back(phase)
    } else {
        world(phase)
    };
    let under = world.rolling.as_mut().unwrap();
    under.rollout.analysis = Some(Analysis {
        check: Check::Http {
            url: "http://checks/canary".to_owned(),
        },
        interval: Duration::from_secs(60),
        failure_limit: 2,
    });
    under.progress.checks = Some(Checks {
        made: 5,
        failed: if phase == Phase::Soaking { 1 } else { 3 },
        last_at: at(3540),
        holds: phase == Phase::Soaking,
        message: "the answer has the status 503".to_owned(),
    });
    world
}

/// The stored state: none, or that of t0.
fn former(state: Option<CompletedState>) -> RollbackPlan {
    let state = state.map(Arc::new).ok_or(RollbackBlocker::NoneCompleted);
    let revision = if state.is_ok() {
        "t0".to_owned()
    } else {
        String::new()
    };
    RollbackPlan::new(StoredState { revision, state })
}

/// A rollout that is rolled back: the former state had the source in another revision.
fn rolled_back(phase: Phase) -> World {
    let mut world = world(phase);
    let mut plan = world.plan.clone();
    let content = SourceContent::new(Revision([9; 16]), Payload::encode(b"{}".to_vec()));
    plan.set(
        &SourceRef::new("configmaps", "a", "s"),
        Some(&SourceState::Read(content.into())),
    );
    let reverting = rule(json!({"rollout": {"onFailure": "Revert"}}));
    let state = CompletedState::of(&reverting, &plan, "t0", None).ok();
    let under = world.rolling.as_mut().unwrap();
    under.former = former(state).rendered(&world.rule);
    (under.rollout.reverts, under.progress.base) = (true, Some("t0".to_owned()));
    if phase.is_rollback() {
        under.gate.back_to = Some("t0".to_owned());
    }
    world
}

/// The agent reports the former state.
fn report_former_state(world: &mut World, cluster: &str, counts: Counts) {
    let source = SourceRef::new("configmaps", "a", "s");
    let intents_digest = [(&source, &Revision([9; 16]))].into_iter().collect();
    let state = RuleState {
        intents_digest,
        ..world.state(cluster, counts)
    };
    world.report_store.report(&cluster.into(), 1, state);
}

const ALL_APPLIED: Counts = Counts {
    copies: 2,
    applied: 2,
    failed: 0,
    waiting: 0,
    removing: 0,
    drifted: 0,
    to_create: 0,
    to_update: 0,
    to_delete: 0,
    absent: 0,
    with_health: 0,
    healthy: 0,
    unhealthy: 0,
};

fn progress(world: &mut World) -> &mut Progress {
    &mut world.rolling.as_mut().unwrap().progress
}

#[test]
fn snapshots_of_a_rollout_in_each_phase() {
    let mut before = world(Phase::Progressing);
    let by_name = Rollout {
        order_by: None,
        ..before.rolling.as_ref().unwrap().rollout.clone()
    };
    *progress(&mut before) = Progress {
        clusters: 3,
        ..Progress::begin("target", &by_name, None, at(3590))
    };
    before.rolling.as_mut().unwrap().gate.reach = AdmittedClusters::Only(BTreeMap::new());
    insta::assert_snapshot!("before_the_first_wave", page(&mut before));

    let mut wave = world(Phase::Progressing);
    wave.report(
        "canary-1",
        Counts {
            copies: 2,
            applied: 1,
            ..Counts::default()
        },
        vec![],
    );
    progress(&mut wave).applied = 0;
    insta::assert_snapshot!("a_wave_that_is_under_way", page(&mut wave));

    insta::assert_snapshot!("a_wave_that_soaks", page(&mut world(Phase::Soaking)));

    let mut awaiting = world(Phase::AwaitingApproval);
    insta::assert_snapshot!("a_wave_that_waits_for_approval", page(&mut awaiting));

    insta::assert_snapshot!(
        "a_wave_that_is_checked",
        page(&mut with_failed_analysis(Phase::Soaking))
    );
    insta::assert_snapshot!(
        "stopped_by_its_analysis",
        page(&mut with_failed_analysis(Phase::Stopped))
    );
    let mut back = with_failed_analysis(Phase::Reverting);
    insta::assert_snapshot!("going_back_after_its_analysis", page(&mut back));
    insta::assert_snapshot!(
        "analysis_that_is_refused",
        page(&mut with_refused_analysis())
    );

    let mut closed = world(Phase::AwaitingWindow);
    insta::assert_snapshot!("a_wave_that_waits_for_a_window", page(&mut closed));
    insta::assert_snapshot!(
        "windows_that_cannot_be_read",
        page(&mut with_invalid_window())
    );

    let mut overtaken = world(Phase::Soaking);
    (
        progress(&mut overtaken).superseded,
        progress(&mut overtaken).unfinished_since,
    ) = (12, Some(at(0)));
    insta::assert_snapshot!(
        "edits_that_come_faster_than_the_waves",
        page(&mut overtaken)
    );

    insta::assert_snapshot!("held_by_a_person", page(&mut world(Phase::Paused)));

    let mut stopped = world(Phase::Stopped);
    let why = "the policy no-poison of this cluster does not want it";
    stopped.report(
        "canary-1",
        Counts {
            copies: 2,
            applied: 1,
            failed: 1,
            ..Counts::default()
        },
        vec![failure(Reason::Denied, why)],
    );
    (
        progress(&mut stopped).applied,
        progress(&mut stopped).failing,
        progress(&mut stopped).failed,
    ) = (0, 1, 1);
    progress(&mut stopped).failure = Some(format!("canary-1: configmaps/default/s: {why}"));
    insta::assert_snapshot!("stopped_by_a_failure", page(&mut stopped));

    let mut reverting = rolled_back(Phase::Reverting);
    ["eu-1", "eu-2"]
        .iter()
        .for_each(|cluster| report_former_state(&mut reverting, cluster, ALL_APPLIED));
    let shown_progress = progress(&mut reverting);
    (
        shown_progress.applied,
        shown_progress.failing,
        shown_progress.failed,
        shown_progress.failure,
    ) = (
        0,
        1,
        1,
        Some(format!("canary-1: configmaps/default/s: {why}")),
    );
    insta::assert_snapshot!("going_back", page(&mut reverting));

    let reverted = &mut reverting;
    report_former_state(reverted, "canary-1", ALL_APPLIED);
    let shown_progress = progress(reverted);
    (
        shown_progress.phase,
        shown_progress.reverted,
        shown_progress.failing,
    ) = (Phase::Reverted, 1, 0);
    shown_progress.ended_at = Some(at(3500));
    insta::assert_snapshot!("gone_back", page(reverted));

    let mut blocked = stopped;
    let under = blocked.rolling.as_mut().unwrap();
    (under.rollout.reverts, under.progress.rollback_blocker) =
        (true, Some(RollbackBlocker::TooLarge.message()));
    insta::assert_snapshot!("stopped_as_its_state_does_not_fit", page(&mut blocked));

    let mut completed = world(Phase::Completed);
    completed.rolling.as_mut().unwrap().gate.reach = AdmittedClusters::All;
    let shown_progress = progress(&mut completed);
    (
        shown_progress.wave,
        shown_progress.reached,
        shown_progress.applied,
        shown_progress.ended_at,
    ) = (2, 3, 3, Some(at(3500)));
    insta::assert_snapshot!("completed", page(&mut completed));
}

/// A rollout that was completed without eu-2.
fn completed_without_eu_2() -> World {
    let mut world = world(Phase::Completed);
    let now = world.now().instant;
    let reach = ["canary-1", "eu-1"].map(|cluster| (cluster.into(), now));
    world.rolling.as_mut().unwrap().gate.reach = AdmittedClusters::Only(BTreeMap::from(reach));
    let shown_progress = progress(&mut world);
    (
        shown_progress.clusters,
        shown_progress.reached,
        shown_progress.applied,
    ) = (2, 2, 2);
    world
}

#[test]
fn cordoned_cluster_of_a_rollout_is_cordoned() {
    let mut world = completed_without_eu_2();
    world.target_clusters.cordoned.insert("eu-2".into());
    world.fold();
    let ready = condition(&world.status.conditions, ConditionType::Ready).unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.as_str()),
        (
            "Cordoned",
            "eu-2 is cordoned: its copies are left unchanged, and nothing new is sent until spec.cordoned is false"
        )
    );
    assert_eq!(world.status.clusters[0].reason, "Cordoned");
}

#[test]
fn cluster_that_joined_again_gets_what_needs_no_confirmation() {
    let own = completed_without_eu_2().rule.uid.clone();
    let cases = [("of-another-rule".into(), true), (own, false)];
    for (withheld, is_sent) in cases {
        let mut world = completed_without_eu_2();
        let state = RuleState {
            intents_digest: SetDigest::default(),
            ..world.state("eu-2", ALL_APPLIED)
        };
        world.report_store.report(&"eu-2".into(), 1, state);
        let withheld = Some(Unconfirmed::RemovalsOf([withheld].into()));
        world
            .report_store
            .waits_for_confirmation(&"eu-2".into(), withheld);
        let is_admitted = admitted(&world, false).0.contains(&"eu-2");
        assert_eq!(is_admitted, is_sent);
        if !is_sent {
            world.fold();
            assert_eq!(world.status.clusters[0].reason, "Unconfirmed");
        }
    }
}

#[test]
fn late_cluster_of_a_rollout_waits_for_its_turn() {
    let mut world = completed_without_eu_2();
    world.fold();
    let ready = condition(&world.status.conditions, ConditionType::Ready).unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.as_str()),
        (
            "RollingOut",
            "eu-2 waits for its turn in the rollout: it keeps what it has"
        )
    );
}

fn turn(value: &str, cluster: &str) -> RolloutPosition {
    RolloutPosition {
        value: Some(value.to_owned()),
        cluster: cluster.into(),
    }
}

/// The clusters that the next step admits, of the three clusters in their order; by a leader that
/// has just begun, or another.
fn admitted(world: &World, just_begun: bool) -> (Vec<&'static str>, Gate) {
    let turns = vec![turn("1", "canary-1"), turn("2", "eu-1"), turn("2", "eu-2")];
    let mut view = world.view(&world.status);
    if just_begun {
        view.rolling.as_mut().unwrap().gate = None;
    }
    let gate = view
        .take_step(turns, &world.report_store, world.now())
        .unwrap();
    let all = ["canary-1", "eu-1", "eu-2"].into_iter();
    (
        all.filter(|cluster| gate.admits("target", &(*cluster).into()))
            .collect(),
        gate,
    )
}

#[test]
fn gate_decides_whether_unhealthy_copies_fail_a_wave() {
    let healths = [
        (2, 0, Phase::Soaking, Phase::Soaking),
        (1, 0, Phase::Progressing, Phase::Soaking),
        (1, 1, Phase::Stopped, Phase::Soaking),
    ];
    for (healthy, unhealthy, with_health, without) in healths {
        for (waits_for_health, expected) in [(true, with_health), (false, without)] {
            let mut world = world(Phase::Progressing);
            world.rolling.as_mut().unwrap().rollout.waits_for_health = waits_for_health;
            let counts = Counts {
                with_health: 2,
                healthy,
                unhealthy,
                ..ALL_APPLIED
            };
            let why = vec![failure(Reason::Unhealthy, "it has failed"); usize::from(unhealthy > 0)];
            world.report("canary-1", counts, why);
            let turns = vec![turn("1", "canary-1"), turn("2", "eu-1"), turn("2", "eu-2")];
            let mut view = world.view(&world.status);
            view.take_step(turns, &world.report_store, world.now());
            let progress = view.progress().unwrap();
            assert_eq!(progress.phase, expected, "{healthy} {unhealthy}");
            let failure = progress.failure.as_deref();
            let is_named = failure.is_some_and(|why| why.ends_with("reports: it has failed"));
            assert_eq!(is_named, expected == Phase::Stopped, "{failure:?}");
        }
    }
}

#[test]
fn stopped_rollout_keeps_its_first_failure_until_it_continues() {
    let mut world = world(Phase::Progressing);
    let turns = || vec![turn("1", "canary-1"), turn("2", "eu-1"), turn("2", "eu-2")];
    let failed = Counts {
        copies: 2,
        applied: 1,
        failed: 1,
        ..Counts::default()
    };
    let why = "the kind is not allowed";
    let phases = [
        (failed, vec![failure(Reason::Denied, why)], false, true),
        // The cause is gone, and the rollout stays as it is.
        (ALL_APPLIED, vec![], false, true),
        (ALL_APPLIED, vec![], true, false),
    ];
    for (counts, failures, paused, is_kept) in phases {
        world.report("canary-1", counts, failures);
        world.rolling.as_mut().unwrap().rollout.paused = paused;
        let mut view = world.view(&world.status);
        view.take_step(turns(), &world.report_store, world.now());
        let progress = view.progress().unwrap().clone();
        let kept = progress.failure.as_deref();
        let is_named =
            kept.is_some_and(|kept| kept.starts_with("canary-1: ") && kept.ends_with(why));
        assert_eq!(is_named, is_kept, "{kept:?}");
        let stopped = rollout_stopped(&view);
        assert_eq!(stopped.is_some(), is_kept);
        assert!(stopped.is_none_or(|stopped| stopped.message.contains(why)));
        world.rolling.as_mut().unwrap().progress = progress;
    }
}

#[test]
fn cluster_without_the_former_state_rolls_back_out_of_order() {
    let mut world = rolled_back(Phase::Reverting);
    // It was reached when its label was another.
    report_former_state(&mut world, "eu-2", ALL_APPLIED);
    for just_begun in [false, true] {
        let (admitted, gate) = admitted(&world, just_begun);
        assert!(
            admitted == ["canary-1", "eu-1", "eu-2"] && gate.back_to.as_deref() == Some("t0"),
            "{admitted:?}"
        );
    }
    for cluster in ["canary-1", "eu-1"] {
        report_former_state(&mut world, cluster, ALL_APPLIED);
    }
    let turns = vec![turn("1", "canary-1"), turn("2", "eu-1"), turn("2", "eu-2")];
    let mut view = world.view(&world.status);
    view.take_step(turns, &world.report_store, world.now())
        .unwrap();
    let shown_progress = view.progress().unwrap();
    assert_eq!(
        (
            shown_progress.phase,
            shown_progress.reverted,
            shown_progress.rollback_blocker.as_ref()
        ),
        (Phase::Reverted, 1, None)
    );
}

#[test]
fn rollback_to_a_damaged_state_stops_with_a_message() {
    let mut world = rolled_back(Phase::Reverted);
    let damaged = StoredState {
        revision: String::new(),
        state: Err(RollbackBlocker::Damaged),
    };
    world.rolling.as_mut().unwrap().former = RollbackPlan::new(damaged);
    let (admitted, gate) = admitted(&world, false);
    assert!(
        admitted.is_empty() && !gate.is_rolling_back(),
        "{admitted:?}"
    );
    let turns = vec![turn("1", "canary-1"), turn("2", "eu-1"), turn("2", "eu-2")];
    let mut view = world.view(&world.status);
    view.take_step(turns, &world.report_store, world.now())
        .unwrap();
    let shown_progress = view.progress().unwrap();
    let blocker = shown_progress.rollback_blocker.as_ref().unwrap();
    assert!(
        shown_progress.phase == Phase::Stopped && blocker.contains("damaged"),
        "{blocker}"
    );
}

#[test]
fn new_leader_learns_progress_from_agents() {
    for phase in [Phase::Progressing, Phase::Reverting] {
        let mut world = rolled_back(phase);
        let under = world.rolling.as_mut().unwrap();
        (under.rollout.max_concurrency, under.progress.cursor) =
            (Portion::Count(1), Some(turn("2", "eu-1")));
        let (failed, busy) = (
            Counts {
                copies: 2,
                failed: 2,
                ..Counts::default()
            },
            Counts {
                copies: 2,
                applied: 1,
                ..Counts::default()
            },
        );
        if phase.is_rollback() {
            report_former_state(&mut world, "eu-1", busy);
            report_former_state(&mut world, "eu-2", ALL_APPLIED);
        } else {
            world.report("eu-1", busy, vec![]);
        }
        world.report("canary-1", failed, vec![]);
        let expected: &[&str] = if phase.is_rollback() {
            &["eu-1", "eu-2"]
        } else {
            &["eu-1"]
        };
        assert_eq!(admitted(&world, true).0, expected, "{phase:?}");
    }
}
