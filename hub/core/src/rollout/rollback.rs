//! Rollback: clusters get the state of the last completed rollout again.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use runnel_proto::model::ClusterName;

use super::reached::{ReachedClusters, at_least, reached_clusters};
use super::{AdmittedClusters, Gate, Health, Observation, Phase, Progress, Rollout};
use crate::now::Now;

/// It begins. Until that is written, no cluster gets the former state, and none the target any more. A cluster that is at work
/// on the target has its room already, and is the first that is rolled back.
pub(super) fn begin(
    progress: Progress,
    at_work: Vec<ClusterName>,
    now: Instant,
) -> (Progress, Gate) {
    let progress = Progress {
        phase: Phase::Reverting,
        reverted: 0,
        pending_wave: None,
        opens_at: None,
        is_blocked: false,
        ..progress
    };
    let gate = gate_to(
        &progress,
        at_work.into_iter().map(|cluster| (cluster, now)).collect(),
        false,
    );
    (progress, gate)
}

/// Returns the next step of a rollback. Each cluster without the former state gets it in order, at
/// most `max_concurrency` at a time, including disconnected ones after they reconnect. The rollback
/// ends when every connected cluster has it or has failed. A newer target supersedes it at any
/// time. A user sets `paused` to retry the same target from the first wave.
/// Without the former state nothing is sent: the rollout is stopped.
pub(super) fn step(
    rollout: &Rollout,
    before: &Progress,
    gate: Option<&Gate>,
    observation: &Observation<'_>,
    now: Now,
) -> (Progress, Gate) {
    let is_paused = rollout.paused || observation.was_paused;
    let nothing = |progress: &Progress, is_settled| {
        let reach = AdmittedClusters::Only(BTreeMap::new());
        Gate {
            revision: progress.revision.clone(),
            reach,
            is_settled,
            wakes_at: None,
            back_to: None,
            healthy: BTreeSet::new(),
            newly_chosen: BTreeSet::new(),
            is_blocked: false,
            is_paused,
        }
    };
    if is_paused && before.phase == Phase::Reverted {
        let again = Progress::begin(observation.target, rollout, Some(before), now.wall);
        let clusters = u64::try_from(observation.clusters.len()).unwrap_or(u64::MAX);
        let gate = nothing(&again, false);
        return (
            Progress {
                phase: Phase::Paused,
                clusters,
                ..again
            },
            gate,
        );
    }
    if !observation.has_former {
        let stopped = Progress {
            phase: Phase::Stopped,
            ended_at: None,
            ..before.clone()
        };
        let gate = nothing(&stopped, false);
        return (stopped, gate);
    }
    let mut progress = before.clone();
    let under_way = gate
        .map(|gate| gate.clusters_in_progress(observation, true, now.instant))
        .unwrap_or_default();
    let mut reached: ReachedClusters = reached_clusters(
        before,
        &under_way,
        &BTreeSet::new(),
        observation,
        rollout.progress_deadline,
        now.instant,
    );
    progress.failing = at_least(reached.failed, before.failing, observation);
    if !is_paused {
        reached.admit(
            rollout.max_concurrency.of(observation.clusters.len()),
            now.instant,
            |_| true,
        );
    }
    let over = reached.in_flight.is_empty() && reached.waiting.is_empty() && !observation.settling;
    // A pause that was set before it has ended does not ask for another try.
    if over && !is_paused && progress.phase == Phase::Reverting {
        (progress.phase, progress.ended_at) = (Phase::Reverted, Some(now.wall));
    }
    count(&mut progress, before, observation);
    let is_settled = reached.in_flight.is_empty() && !observation.settling && (over || is_paused);
    let gate = gate_to(&progress, reached.admitted, is_settled);
    (progress, Gate { is_paused, ..gate })
}

/// Counts the reached clusters, and those of them that are rolled back. A cluster beyond the cursor
/// was reached if it had another position in the order before. Only the number of reached clusters
/// shows that. A new cluster was not reached.
fn count(progress: &mut Progress, before: &Progress, observation: &Observation<'_>) {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let (within, beyond): (Vec<_>, Vec<_>) = observation
        .clusters
        .iter()
        .partition(|(turn, _)| before.has_reached(turn));
    let left_within = number(
        within
            .iter()
            .filter(|(_, health)| *health != Health::Applied)
            .count(),
    );
    let is_left = |health| !matches!(health, Health::Applied | Health::Unavailable);
    let left_beyond = number(beyond.iter().filter(|(_, health)| is_left(*health)).count());
    progress.reached = before.reached.max(number(within.len()));
    let left = left_within + left_beyond.min(progress.reached - number(within.len()));
    progress.reverted = at_least(progress.reached - left, before.reverted, observation);
}

fn gate_to(progress: &Progress, these: BTreeMap<ClusterName, Instant>, is_settled: bool) -> Gate {
    let (revision, back_to) = (
        progress.revision.clone(),
        progress.base.clone().unwrap_or_default(),
    );
    Gate {
        revision,
        reach: AdmittedClusters::Only(these),
        is_settled,
        wakes_at: None,
        back_to: Some(back_to),
        healthy: BTreeSet::new(),
        newly_chosen: BTreeSet::new(),
        is_blocked: false,
        is_paused: false,
    }
}
