//! Going back: who was reached by a change that went wrong gets back what it had before.
use std::collections::BTreeMap;
use std::time::Instant;

use runnel_proto::model::{ClusterName, Travel};

use super::step::{Reached, at_least, look, was_reached};
use super::{AdmittedClusters, Gate, Health, Observation, Phase, Progress, Rollout};
use crate::now::Now;

/// It begins. Until that is written, nobody hears of it, and nobody of the change any more. Who is at work on the change has
/// its room already, and is the first who is told.
pub(super) fn begin(progress: Progress, at_work: Vec<ClusterName>, now: Instant) -> (Progress, Gate) {
    let progress = Progress { phase: Phase::Reverting, reverted: 0, ..progress };
    let gate = gate_to(&progress, at_work.into_iter().map(|cluster| (cluster, now)).collect(), false);
    (progress, gate)
}

/// The next step. Who was reached is told in order, as many at a time as may be under way, also who was away. It ends when
/// everybody who is connected has gone back, or has failed to; a newer target supersedes it at any time, and to try the same
/// one again from the first wave on, a person sets `paused`.
///
/// Who was reached, and who is at work, is not in the status beyond the cursor and need not be: a leader that has read no more
/// than the status hears it from the agents themselves, which say what they hold and what they were told.
pub(super) fn step(
    rollout: &Rollout,
    before: &Progress,
    gate: Option<&Gate>,
    seen: &Observation<'_>,
    now: Now,
) -> (Progress, Gate) {
    if rollout.paused && before.phase == Phase::Reverted {
        let again = Progress::begin(seen.target, rollout, Some(before), now.wall);
        let clusters = u64::try_from(seen.clusters.len()).unwrap_or(u64::MAX);
        let gate = Gate { travel: again.travel(), ..gate_to(&again, BTreeMap::new(), false) };
        return (Progress { phase: Phase::Paused, clusters, ..again }, gate);
    }
    let mut progress = before.clone();
    let under_way = gate.map(|gate| gate.under_way(seen.target, true)).unwrap_or_default();
    let mut reached: Reached = look(before, &under_way, seen, now.instant);
    progress.failing = at_least(reached.failed, before.failing, seen);
    if !rollout.paused {
        reached.let_in(rollout.max_concurrency.of(seen.clusters.len()), now.instant);
    }
    let over = reached.in_flight.is_empty() && reached.waiting.is_empty() && !seen.settling;
    // A pause that was set before it has ended does not say that it is to be tried again.
    if over && !rollout.paused && progress.phase == Phase::Reverting {
        (progress.phase, progress.ended_at) = (Phase::Reverted, Some(now.wall));
    }
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let counted = || seen.clusters.iter().filter(|(turn, _)| was_reached(before, turn, seen));
    let is_back = |(_, health): &&(_, Health)| *health == Health::Applied;
    progress.reached = before.reached.max(number(counted().count()));
    progress.reverted = at_least(number(counted().filter(is_back).count()), before.reverted, seen);
    let rests = reached.in_flight.is_empty() && !seen.settling && (over || rollout.paused);
    let gate = gate_to(&progress, reached.let_in, rests);
    (progress, gate)
}

fn gate_to(progress: &Progress, these: BTreeMap<ClusterName, Instant>, rests: bool) -> Gate {
    let target = progress.revision.clone();
    let travel = Travel::Revert { target: target.clone(), base: progress.base() };
    Gate { revision: target, reach: AdmittedClusters::Only(these), rests, travel }
}
