//! A rollout as a person finds it, in each of its phases: what `kubectl runnel status` prints of it, as a terminal of 80 and of
//! 160 columns shows it.
use std::borrow::Cow;

use super::pages::page;
use super::*;
use crate::rollout::{Gate, Phase, Portion, Progress, Reach, Rollout, Turn};

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
    let turn = Turn { value: Some("1".to_owned()), cluster: "canary-1".into() };
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
    let reach = Reach::Only(BTreeMap::from([("canary-1".into(), world.now().instant)]));
    let gate = Gate { revision: "target".to_owned(), reach, rests: false, travel: Travel::Plain };
    world.rolling = Some(Under { rollout, progress, gate, failing: None });
    world
}

fn progress(world: &mut World) -> &mut Progress {
    &mut world.rolling.as_mut().unwrap().progress
}

/// As a terminal shows it: a line that is too long goes on in the next one.
fn shown(world: &mut World) -> String {
    let page = page(world);
    let folded = |columns: usize| {
        let mut text = format!("{columns:-<columns$}\n");
        for line in page.lines() {
            let letters: Vec<_> = line.chars().collect();
            let parts: Vec<String> = letters.chunks(columns).map(|part| part.iter().collect()).collect();
            text += &parts.iter().map(|part| part.trim_end()).collect::<Vec<_>>().join("\n");
            text.push('\n');
        }
        text
    };
    folded(80) + "\n" + &folded(160)
}

#[test]
fn snapshots_of_a_rollout_in_each_phase() {
    let mut before = world(Phase::Progressing);
    let by_name = Rollout { order_by: None, ..before.rolling.as_ref().unwrap().rollout.clone() };
    *progress(&mut before) = Progress { clusters: 3, ..Progress::begin("target", &by_name, None, at(3590)) };
    before.rolling.as_mut().unwrap().gate.reach = Reach::Only(BTreeMap::new());
    insta::assert_snapshot!("before_the_first_wave", shown(&mut before));

    let mut wave = world(Phase::Progressing);
    wave.report("canary-1", Counts { copies: 2, applied: 1, ..Counts::default() }, vec![]);
    progress(&mut wave).applied = 0;
    insta::assert_snapshot!("a_wave_that_is_under_way", shown(&mut wave));

    insta::assert_snapshot!("a_wave_that_soaks", shown(&mut world(Phase::Soaking)));

    let mut overtaken = world(Phase::Soaking);
    (progress(&mut overtaken).superseded, progress(&mut overtaken).unfinished_since) = (12, Some(at(0)));
    insta::assert_snapshot!("edits_that_come_faster_than_the_waves", shown(&mut overtaken));

    insta::assert_snapshot!("held_by_a_person", shown(&mut world(Phase::Paused)));

    let mut stopped = world(Phase::Stopped);
    let why = "the policy no-poison of this cluster does not want it";
    stopped.report(
        "canary-1",
        Counts { copies: 2, applied: 1, failed: 1, ..Counts::default() },
        vec![failure(Reason::Denied, why)],
    );
    (progress(&mut stopped).applied, progress(&mut stopped).failed) = (0, 1);
    let failing = ("canary-1".into(), format!("configmaps/default/s: {why}"));
    stopped.rolling.as_mut().unwrap().failing = Some(failing);
    insta::assert_snapshot!("stopped_by_a_failure", shown(&mut stopped));

    let mut reverting = world(Phase::Reverting);
    reverting.rolling.as_mut().unwrap().rollout.reverts = true;
    reverting.rolling.as_mut().unwrap().gate.travel =
        Travel::Revert { target: "target".to_owned(), base: String::new() };
    let told = progress(&mut reverting);
    (told.applied, told.failed, told.failure) = (0, 1, Some(format!("canary-1: configmaps/default/s: {why}")));
    insta::assert_snapshot!("going_back", shown(&mut reverting));

    let reverted = &mut reverting;
    reverted.travel = Travel::Revert { target: "target".to_owned(), base: String::new() };
    reverted.applied("canary-1");
    let told = progress(reverted);
    (told.phase, told.reverted, told.left, told.ended_at) = (Phase::Reverted, 1, 2, Some(at(3500)));
    insta::assert_snapshot!("gone_back", shown(reverted));

    let mut completed = world(Phase::Completed);
    completed.rolling.as_mut().unwrap().gate.reach = Reach::All;
    let told = progress(&mut completed);
    (told.wave, told.reached, told.applied, told.ended_at) = (2, 3, 3, Some(at(3500)));
    insta::assert_snapshot!("completed", shown(&mut completed));
}
