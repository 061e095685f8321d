//! The state machine of a rollout.
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::reached::{Health, Observation, ReachedClusters, at_least, reached_clusters};
use super::wave::NextWave;
use super::{AdmittedClusters, Gate, Phase, Progress, Rollout, RolloutPosition};
use crate::now::Now;

/// The next step of a rollout: its new status, and the clusters that may have the target once the
/// status is written.
pub fn step(
    rollout: &Rollout,
    before: Option<&Progress>,
    gate: Option<&Gate>,
    observation: &Observation<'_>,
    now: Now,
) -> (Progress, Gate) {
    if let Some(before) =
        before.filter(|before| before.phase.is_rollback() && before.revision == observation.target)
    {
        return super::rollback::step(rollout, before, gate, observation, now);
    }
    let same = |progress: &&Progress| {
        progress.revision == observation.target && progress.order_by == rollout.order_by
    };
    let fresh = || Progress::begin(observation.target, rollout, before, now.wall);
    let mut progress = before.filter(same).cloned().unwrap_or_else(fresh);
    let gate_to = |reach, is_settled| Gate {
        revision: observation.target.to_owned(),
        reach,
        is_settled,
        back_to: None,
    };
    let completed = progress.is_completed();
    if progress.phase == Phase::Completed
        && gate.is_some_and(|gate| gate.is_open(observation.target))
    {
        return (progress, gate_to(AdmittedClusters::All, true));
    }
    let under_way = gate
        .map(|gate| gate.clusters_in_progress(observation.target, false))
        .unwrap_or_default();
    let mut reached = reached_clusters(&progress, &under_way, observation, now.instant);
    progress.failing = at_least(reached.failed, progress.failing, observation);
    progress.failed = match progress.phase {
        Phase::Stopped if !rollout.paused => progress.failed.max(reached.failed),
        _ => at_least(reached.failed, progress.failed, observation),
    };
    // After a completed rollout only disconnected clusters are left.
    let is_left = !completed || progress.phase == Phase::Stopped || !reached.waiting.is_empty();
    let stopped = progress.failed > rollout.max_failures && is_left;
    // No state before a completed rollout is stored.
    if stopped && rollout.reverts && observation.has_former && !rollout.paused && !completed {
        count(&mut progress, &reached, observation);
        return super::rollback::begin(progress, reached.in_flight, now.instant);
    }
    if !rollout.paused && !stopped {
        let room = rollout.max_concurrency.of(observation.clusters.len());
        reached.admit(room, now.instant);
    }
    let settled =
        reached.in_flight.is_empty() && reached.waiting.is_empty() && !observation.settling;
    // The clock was set back: nothing soaks until it has come so far again.
    progress.applied_at = progress
        .applied_at
        .map(|at| if is_ahead(at, now.wall) { now.wall } else { at });
    if settled && progress.cursor.is_some() {
        progress.applied_at.get_or_insert(now.wall);
    }
    let soaked = progress
        .applied_at
        .is_none_or(|at| since(at, now.wall) >= rollout.soak);
    progress.phase = if rollout.paused && !completed {
        Phase::Paused
    } else if stopped && !rollout.paused {
        Phase::Stopped
    } else if completed {
        Phase::Completed
    } else if settled && soaked {
        advance(&mut progress, rollout, observation, &mut reached, now)
    } else if settled {
        Phase::Soaking
    } else {
        Phase::Progressing
    };
    if progress.phase != Phase::AwaitingApproval {
        progress.pending_wave = None;
    }
    if progress.phase != Phase::Stopped {
        // A rollout that continues counts from now on.
        progress.failed = at_least(reached.failed, progress.failed, observation);
    }
    count(&mut progress, &reached, observation);
    // An admitted cluster that has not settled may still count as failed or as disconnected later,
    // without an event.
    let is_over = matches!(
        progress.phase,
        Phase::Stopped | Phase::Paused | Phase::Completed | Phase::AwaitingApproval
    );
    let is_settled = is_over && reached.in_flight.is_empty() && !observation.settling;
    let has_all_clusters = progress.phase == Phase::Completed
        && !observation.settling
        && reached.has_all_clusters(observation);
    let reach = if has_all_clusters {
        AdmittedClusters::All
    } else {
        AdmittedClusters::Only(reached.admitted)
    };
    (progress, gate_to(reach, is_settled))
}

/// Begins the next wave, or ends.
fn advance(
    progress: &mut Progress,
    rollout: &Rollout,
    observation: &Observation<'_>,
    reached: &mut ReachedClusters,
    now: Now,
) -> Phase {
    let all_away = observation
        .clusters
        .iter()
        .all(|(_, health)| *health == Health::Unavailable);
    if all_away && !observation.clusters.is_empty() {
        // No agent could report about the change.
        return progress
            .cursor
            .as_ref()
            .map_or(Phase::Progressing, |_| Phase::Soaking);
    }
    let room = rollout.max_concurrency.of(observation.clusters.len());
    let next = NextWave::after(progress, room, rollout.needs_approval, observation);
    if rollout.needs_approval && !next.is_approved(progress, observation) {
        progress.pending_wave = Some(next.pending(progress, now.wall));
        return Phase::AwaitingApproval;
    }
    for (turn, _) in next.those_with(&[Health::Applied, Health::Failed]) {
        reached.admitted.insert(turn.cluster.clone(), now.instant);
    }
    let is_over = next.ends_the_rollout();
    progress.cursor = next.end().cloned().or(progress.cursor.take());
    if is_over {
        progress.ended_at = Some(now.wall);
        (progress.superseded, progress.unfinished_since) = (0, None);
        return Phase::Completed;
    }
    (progress.wave, progress.wave_at, progress.applied_at) =
        (progress.wave + 1, Some(now.wall), None);
    let pending = next.those_with(&[Health::Pending, Health::Quiet]);
    reached
        .waiting
        .extend(pending.map(|(turn, _)| turn.cluster.clone()));
    reached.admit(room, now.instant);
    Phase::Progressing
}

fn count(progress: &mut Progress, reached: &ReachedClusters, observation: &Observation<'_>) {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    progress.clusters = number(observation.clusters.len());
    let was_reached = |turn: &RolloutPosition| {
        progress.has_reached(turn) || reached.admitted.contains_key(&turn.cluster)
    };
    let counted = number(
        observation
            .clusters
            .iter()
            .filter(|(turn, _)| was_reached(turn))
            .count(),
    );
    progress.reached = at_least(
        counted,
        progress.reached.min(progress.clusters),
        observation,
    );
    let applied = observation
        .clusters
        .iter()
        .filter(|(_, health)| *health == Health::Applied);
    progress.applied = at_least(
        number(applied.count()),
        progress.applied.min(progress.clusters),
        observation,
    );
}

/// The time since then; zero if the clock was set back. Also whether a stored moment lies in the
/// future, because a status rounds it up to whole seconds.
fn is_ahead(at: Timestamp, now: Timestamp) -> bool {
    at.duration_since(now) > SignedDuration::from_secs(1)
}

fn since(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or_default()
}
