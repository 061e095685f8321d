//! The state machine of a rollout.
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use runnel_proto::model::ClusterName;

use super::reached::{Health, Observation, ReachedClusters, at_least, reached_clusters};
use super::wave::NextWave;
use super::{
    AdmittedClusters, Checks, Gate, LeftOut, Phase, Progress, Rollout, RolloutPosition, Windows,
};
use crate::now::{Now, is_ahead};

/// Waiting clusters whose windows are compared to find the next opening.
const WAITING_COMPARED: usize = 32;

/// The next step of a rollout: its new status, and the clusters that may have the target once the
/// status is written.
pub fn step(
    rollout: &Rollout,
    before: Option<&Progress>,
    gate: Option<&Gate>,
    observation: &Observation<'_>,
    now: Now,
) -> (Progress, Gate) {
    // A pause that has ended already asks for another try, too.
    let is_paused = rollout.paused || observation.was_paused;
    if let Some(before) =
        before.filter(|before| before.phase.is_rollback() && before.revision == observation.target)
    {
        return super::rollback::step(rollout, before, gate, observation, now);
    }
    let same = |progress: &&Progress| {
        progress.revision == observation.target
            && progress.order_by == rollout.order_by
            && !progress.begins_again(observation.left_out)
    };
    let fresh = || Progress::begin(observation.target, rollout, before, now.wall);
    // Removals that were blocked have passed: they go through the waves, too.
    let gate =
        gate.filter(|_| !before.is_some_and(|before| before.begins_again(observation.left_out)));
    let mut progress = before.filter(same).cloned().unwrap_or_else(fresh);
    progress.is_blocked = match observation.left_out {
        LeftOut::Blocked => true,
        LeftOut::Passed => false,
        LeftOut::Undecided | LeftOut::Unknown => progress.is_blocked,
    };
    let is_blocked = progress.is_blocked;
    let gate_to = |reach, is_settled, wakes_at, healthy| Gate {
        revision: observation.target.to_owned(),
        reach,
        is_settled,
        wakes_at,
        back_to: None,
        healthy,
        newly_chosen: BTreeSet::new(),
        is_blocked,
        is_paused,
    };
    let completed = progress.is_completed();
    if progress.phase == Phase::Completed
        && gate.is_some_and(|gate| gate.is_open(observation.target))
    {
        let none = BTreeSet::new();
        return (progress, gate_to(AdmittedClusters::All, true, None, none));
    }
    let under_way = gate
        .map(|gate| gate.clusters_in_progress(observation, false, now.instant))
        .unwrap_or_default();
    let none = BTreeSet::new();
    let healthy = gate.map_or(&none, |gate| gate.healthy_with(observation.target));
    let mut reached = reached_clusters(
        &progress,
        &under_way,
        healthy,
        observation,
        rollout.progress_deadline,
        now.instant,
    );
    progress.failing = at_least(reached.failed, progress.failing, observation);
    progress.failed = match progress.phase {
        Phase::Stopped if !is_paused => progress.failed.max(reached.failed),
        _ => at_least(reached.failed, progress.failed, observation),
    };
    if rollout.analysis.is_none() {
        progress.checks = None;
    } else if is_paused {
        // A pause asks for another try.
        progress.checks = progress.checks.map(Checks::restarted);
    } else if !completed {
        progress.add_check(observation.check, now.wall);
    }
    let is_bad = progress.has_failed_analysis(rollout) && !completed;
    // After a completed rollout only disconnected clusters are left.
    let is_left = !completed || progress.phase == Phase::Stopped || !reached.waiting.is_empty();
    let stopped = (progress.failed > rollout.max_failures || is_bad) && is_left;
    // No state before a completed rollout is stored.
    if stopped && rollout.reverts && observation.has_former && !is_paused && !completed {
        count(&mut progress, &reached, observation);
        return super::rollback::begin(progress, reached.in_flight, now.instant);
    }
    if !is_paused && !stopped {
        let room = rollout.max_concurrency.of(observation.clusters.len());
        let is_open = is_open_to(rollout, observation, now.wall);
        reached.admit(room, now.instant, is_open);
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
    let is_checked =
        progress.cursor.is_none() || rollout.analysis.is_none() || progress.holds(now.wall);
    let soaked = is_checked
        && progress
            .applied_at
            .is_none_or(|at| since(at, now.wall) >= rollout.soak);
    let wave = progress.wave;
    progress.phase = if is_paused && !completed {
        Phase::Paused
    } else if stopped && !is_paused {
        Phase::Stopped
    } else if completed {
        Phase::Completed
    } else if settled && soaked {
        advance(&mut progress, rollout, observation, &mut reached, now)
    } else if settled {
        Phase::Soaking
    } else if reached.in_flight.is_empty() && !observation.settling {
        // There is room, so the windows of those that wait are closed.
        Phase::AwaitingWindow
    } else {
        Phase::Progressing
    };
    if !matches!(
        progress.phase,
        Phase::AwaitingApproval | Phase::AwaitingWindow
    ) {
        progress.pending_wave = None;
    }
    if progress.phase != Phase::Stopped {
        // A rollout that continues counts from now on.
        progress.failed = at_least(reached.failed, progress.failed, observation);
    }
    let awaits_window = progress.phase == Phase::AwaitingWindow
        || (progress.phase == Phase::Completed && !reached.waiting.is_empty());
    let opening = awaits_window
        .then(|| next_opening(rollout, observation, &reached.waiting, now.wall))
        .flatten();
    progress.opens_at = opening.as_ref().map(|opening| opening.at);
    count(&mut progress, &reached, observation);
    // The next wave cannot begin: no cluster is connected, or removals wait.
    let awaits_event =
        progress.phase == Phase::Progressing && settled && soaked && progress.wave == wave;
    // An admitted cluster that has not settled may still count as failed or as disconnected later,
    // without an event.
    let is_over = matches!(
        progress.phase,
        Phase::Stopped
            | Phase::Paused
            | Phase::Completed
            | Phase::AwaitingApproval
            | Phase::AwaitingWindow
            | Phase::Soaking
    );
    let is_settled = (is_over || observation.is_check_refused || awaits_event)
        && reached.in_flight.is_empty()
        && !observation.settling;
    let has_all_clusters = progress.phase == Phase::Completed
        && !observation.settling
        && reached.has_all_clusters(observation);
    let (reach, healthy) = if has_all_clusters {
        (AdmittedClusters::All, BTreeSet::new())
    } else {
        (AdmittedClusters::Only(reached.admitted), reached.healthy)
    };
    let soak = SignedDuration::try_from(rollout.soak).unwrap_or(SignedDuration::MAX);
    let soaks_until = progress
        .applied_at
        .filter(|_| progress.phase == Phase::Soaking && !soaked)
        .map(|at| at.checked_add(soak).unwrap_or(Timestamp::MAX))
        .filter(|until| *until > now.wall);
    let wakes_at = opening.map(|opening| opening.wakes_at).or(soaks_until);
    (progress, gate_to(reach, is_settled, wakes_at, healthy))
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
    let is_unobserved = all_away && !observation.clusters.is_empty();
    if is_unobserved || observation.is_check_refused {
        // No agent could report about the change, or no check could be made.
        return progress
            .cursor
            .as_ref()
            .map_or(Phase::Progressing, |_| Phase::Soaking);
    }
    let room = rollout.max_concurrency.of(observation.clusters.len());
    let next = NextWave::after(progress, room, rollout.needs_approval, observation);
    let is_over = next.ends_the_rollout() && !observation.removals_wait;
    if rollout.needs_approval && !next.is_approved(progress, observation) {
        progress.pending_wave = Some(next.pending(progress, now.wall));
        return Phase::AwaitingApproval;
    }
    if !next.ends_the_rollout() && !rollout.windows.is_open(now.wall) {
        progress.pending_wave = rollout
            .needs_approval
            .then(|| next.pending(progress, now.wall));
        return Phase::AwaitingWindow;
    }
    progress.pending_wave = None;
    for (turn, health) in next.those_with(&[Health::Applied, Health::Failed]) {
        reached.admitted.insert(turn.cluster.clone(), now.instant);
        if *health == Health::Applied {
            reached.healthy.insert(turn.cluster.clone());
        }
    }
    progress.cursor = next.end().cloned().or(progress.cursor.take());
    if is_over {
        progress.ended_at = Some(now.wall);
        (progress.superseded, progress.unfinished_since) = (0, None);
        return Phase::Completed;
    }
    if next.ends_the_rollout() {
        return Phase::Progressing;
    }
    (progress.wave, progress.wave_at, progress.applied_at) =
        (progress.wave + 1, Some(now.wall), None);
    progress.checks = None;
    let pending = next.those_with(&[Health::Pending, Health::Quiet, Health::Unready]);
    reached
        .waiting
        .extend(pending.map(|(turn, _)| turn.cluster.clone()));
    reached.admit(
        room,
        now.instant,
        is_open_to(rollout, observation, now.wall),
    );
    Phase::Progressing
}

/// Returns whether a cluster may be admitted: a window of the rule and one of the cluster are open.
fn is_open_to(
    rollout: &Rollout,
    observation: &Observation<'_>,
    now: Timestamp,
) -> impl Fn(&ClusterName) -> bool {
    let is_rule_open = rollout.windows.is_open(now);
    move |cluster| {
        let own = observation.windows.get(cluster);
        is_rule_open && own.is_none_or(|own| own.is_open(now))
    }
}

/// The next opening of windows.
struct Opening {
    /// The first one that is known.
    at: Timestamp,
    /// When to look again.
    wakes_at: Timestamp,
}

/// Returns when the next cluster may be admitted: the first opening for the clusters that wait in the wave, or for the next
/// wave. `None` while no opening is known.
fn next_opening(
    rollout: &Rollout,
    observation: &Observation<'_>,
    waiting: &[ClusterName],
    now: Timestamp,
) -> Option<Opening> {
    let none = Windows::default();
    if waiting.is_empty() {
        let at = rollout.windows.open_from(now)?;
        return Some(Opening { at, wakes_at: at });
    }
    // Many clusters have the same windows, and a search is long.
    let mut distinct: Vec<&Windows> = vec![];
    for cluster in waiting.iter().take(WAITING_COMPARED) {
        let own = observation.windows.get(cluster).copied().unwrap_or(&none);
        if !distinct.contains(&own) {
            distinct.push(own);
        }
    }
    let openings = distinct.into_iter();
    let openings = openings.filter_map(|own| rollout.windows.both_open_from(own, now));
    let at = openings.min();
    if waiting.len() <= WAITING_COMPARED {
        let at = at?;
        return Some(Opening { at, wakes_at: at });
    }
    // The windows of the others may open earlier.
    let soon = now.checked_add(SignedDuration::from_mins(1)).ok()?;
    let at = at.unwrap_or(soon);
    Some(Opening {
        at,
        wakes_at: at.min(soon),
    })
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

/// The time since then; zero if the clock was set back.
fn since(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or_default()
}
