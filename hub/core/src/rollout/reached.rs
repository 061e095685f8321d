//! What is seen of the clusters of a rollout, and which of them were reached.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::ClusterName;

use super::{
    CheckResult, DISCONNECTED_TIMEOUT, LeftOut, Progress, QUIET_FOR, RolloutPosition, Windows,
};

/// The health of a cluster with respect to the target, or to the former state during a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The target is applied without failures, and copies are healthy if the rollout waits for that.
    Applied,
    /// No work is in progress and nothing failed, but the state cannot be compared with the target,
    /// such as when the guard blocks a removal.
    Quiet,
    /// It has it, and copies failed or are unhealthy.
    Failed,
    /// It has it, and copies are not healthy yet.
    Unready,
    /// It is connected and does not have it, or is at work on it.
    Pending,
    /// The cluster is disconnected, cordoned or waits for a confirmation, or its copies wait for their removal.
    Unavailable,
}

/// The observed state of the chosen clusters.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    /// What they should have.
    pub target: &'a str,
    /// The health of each cluster, in rollout order.
    pub clusters: Vec<(RolloutPosition, Health)>,
    /// Whether the hub has just begun and some of them may still connect.
    pub settling: bool,
    /// Clusters that report that they apply the target or return to the former one. Used until this
    /// leader has received the reports of all clusters that an earlier leader admitted.
    pub at_work: BTreeSet<ClusterName>,
    /// Whether the state of the last completed rollout is there, so that a rollback can send it.
    pub has_former: bool,
    /// The digests that the rule's annotation approves.
    pub approval: Option<&'a str>,
    /// The windows of the clusters that have any.
    pub windows: BTreeMap<&'a ClusterName, &'a Windows>,
    /// The last result of a check.
    pub check: Option<&'a CheckResult>,
    /// Whether the hub may not make the checks, so that no wave begins.
    pub is_check_refused: bool,
    /// Whether the rule asked for a pause since the last step, which may have ended again.
    pub was_paused: bool,
    /// Whether some of the clusters are no longer selected and have copies whose removal waits.
    pub removals_wait: bool,
    /// The copies that the target leaves out.
    pub left_out: LeftOut,
    /// The connected clusters that have nothing of the rule.
    pub empty: BTreeSet<ClusterName>,
}

/// The clusters that were reached, by how they are.
#[derive(Default)]
pub(super) struct ReachedClusters {
    /// The clusters that may have the target.
    pub(super) admitted: BTreeMap<ClusterName, Instant>,
    /// The admitted clusters that have not settled.
    pub(super) in_flight: Vec<ClusterName>,
    /// The clusters that are not admitted, in order.
    pub(super) waiting: Vec<ClusterName>,
    /// The admitted clusters that have had the target with healthy copies.
    pub(super) healthy: BTreeSet<ClusterName>,
    pub(super) failed: u64,
}

/// Determines which clusters were reached. One that takes longer than `deadline` has failed. `healthy`: the clusters that have had the target with healthy copies.
pub(super) fn reached_clusters(
    progress: &Progress,
    under_way: &BTreeMap<ClusterName, Instant>,
    healthy: &BTreeSet<ClusterName>,
    observation: &Observation<'_>,
    deadline: Duration,
    now: Instant,
) -> ReachedClusters {
    let mut reached = ReachedClusters::default();
    let counts = |turn: &RolloutPosition| {
        // A cluster without the former state gets it, independent of its current position in the
        // order.
        let all = progress.is_completed() || progress.phase.is_rollback();
        all || under_way.contains_key(&turn.cluster) || progress.has_reached(turn)
    };
    for (turn, health) in observation.clusters.iter().filter(|(turn, _)| counts(turn)) {
        let admitted = under_way.get(&turn.cluster).copied();
        let for_long =
            |limit| admitted.is_some_and(|at| now.saturating_duration_since(at) >= limit);
        let mut keep = |at| {
            reached.admitted.insert(turn.cluster.clone(), at);
        };
        let was_healthy = admitted.is_some() && healthy.contains(&turn.cluster);
        if was_healthy || *health == Health::Applied {
            reached.healthy.insert(turn.cluster.clone());
        }
        match (health, admitted) {
            (Health::Applied, _) => keep(admitted.unwrap_or(now)),
            (Health::Unready, Some(at)) if was_healthy => keep(at),
            (Health::Failed, _) => {
                keep(admitted.unwrap_or(now));
                reached.failed += 1;
            }
            (Health::Pending | Health::Unready, Some(at)) => {
                keep(at);
                if !for_long(deadline) {
                    reached.in_flight.push(turn.cluster.clone());
                    continue;
                }
                reached.failed += 1;
            }
            // Another process admitted the cluster, so it occupies a slot.
            (Health::Pending, None) if observation.at_work.contains(&turn.cluster) => {
                keep(now);
                reached.in_flight.push(turn.cluster.clone());
            }
            // There is nothing of an older change, so it needs no slot.
            (Health::Pending, None)
                if progress.is_completed() && observation.empty.contains(&turn.cluster) =>
            {
                keep(now);
                reached.in_flight.push(turn.cluster.clone());
            }
            (Health::Quiet, Some(at)) => {
                keep(at);
                if !for_long(QUIET_FOR) {
                    reached.in_flight.push(turn.cluster.clone());
                }
            }
            (Health::Pending | Health::Quiet | Health::Unready, None) => {
                reached.waiting.push(turn.cluster.clone());
            }
            // A cluster that reconnects later needs a new slot.
            (Health::Unavailable, Some(at)) if !for_long(DISCONNECTED_TIMEOUT) => {
                keep(at);
                reached.in_flight.push(turn.cluster.clone());
            }
            (Health::Unavailable, _) => {}
        }
    }
    let admitted = &reached.admitted;
    reached
        .healthy
        .retain(|cluster| admitted.contains_key(cluster));
    reached
}

impl ReachedClusters {
    /// Whether no cluster may still get the target later. Those clusters would get it all at once.
    pub(super) fn has_all_clusters(&self, observation: &Observation<'_>) -> bool {
        let is_here = |(_, health): &(RolloutPosition, Health)| *health != Health::Unavailable;
        self.in_flight.is_empty()
            && self.waiting.is_empty()
            && observation.clusters.iter().all(is_here)
    }

    /// Admits waiting clusters whose windows are open, up to the number of free slots.
    pub(super) fn admit(
        &mut self,
        room: usize,
        now: Instant,
        is_open: impl Fn(&ClusterName) -> bool,
    ) {
        for cluster in std::mem::take(&mut self.waiting) {
            if self.in_flight.len() < room && is_open(&cluster) {
                self.admitted.insert(cluster.clone(), now);
                self.in_flight.push(cluster);
            } else {
                self.waiting.push(cluster);
            }
        }
    }
}

/// The counted number, and at least the former number while some of the clusters counted then are
/// not connected.
pub(super) fn at_least(counted: u64, before: u64, observation: &Observation<'_>) -> u64 {
    if observation.settling {
        counted.max(before)
    } else {
        counted
    }
}
