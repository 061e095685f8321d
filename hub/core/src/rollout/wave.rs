//! The next wave of a rollout, and its approval.
use jiff::Timestamp;
use ring::digest;
use runnel_api::limits;

use super::reached::{Health, Observation};
use super::{PendingWave, Progress, RolloutPosition};
use crate::guard::approves;

/// The clusters after the cursor that are reached next, in order.
pub(super) struct NextWave<'a> {
    clusters: &'a [(RolloutPosition, Health)],
    /// Whether no cluster comes after it.
    is_last: bool,
}

impl<'a> NextWave<'a> {
    /// Returns the next wave: connected clusters of one value, at most `room`, and the clusters between them and directly
    /// after them that have the target or are not connected. A wave that waits for approval stays as it was shown while its
    /// clusters and their values are the same. All of them have one value, because any may connect before it begins. A first
    /// wave that no person approves has at most `room` clusters, connected or not: they get the target when they are back.
    pub(super) fn after(
        progress: &Progress,
        room: usize,
        needs_approval: bool,
        observation: &'a Observation<'_>,
    ) -> Self {
        let all = &observation.clusters;
        let rest = &all[all.partition_point(|(turn, _)| progress.has_reached(turn))..];
        if let Some(pending) = &progress.pending_wave {
            let end = rest.partition_point(|(turn, _)| *turn <= pending.up_to);
            let shown = Self {
                clusters: &rest[..end],
                is_last: end == rest.len(),
            };
            if shown.digest(progress) == pending.digest {
                return shown;
            }
        }
        let is_trial = needs_approval && progress.wave == 0;
        let takes_room =
            |health: Health| occupies_slot(health) || (is_trial && health == Health::Unavailable);
        let (mut taken, mut value, mut end) = (0, None, 0);
        for (turn, health) in rest {
            let counts = occupies_slot(*health) || (needs_approval && *health != Health::Applied);
            let same_value = value.is_none_or(|value| value == &turn.value);
            let has_room = taken < room || !takes_room(*health);
            if !has_room || !(same_value || (needs_approval && !counts)) {
                break;
            }
            end += 1;
            taken += usize::from(takes_room(*health));
            if counts {
                value.get_or_insert(&turn.value);
            }
        }
        Self {
            clusters: &rest[..end],
            is_last: end == rest.len(),
        }
    }

    /// Returns the last cluster.
    pub(super) fn end(&self) -> Option<&'a RolloutPosition> {
        self.clusters.last().map(|(turn, _)| turn)
    }

    /// Whether nothing is left to begin, in this wave or later. A wave that was approved while its clusters were connected
    /// may have none left before the last one.
    pub(super) fn ends_the_rollout(&self) -> bool {
        self.is_last && !self.has_work()
    }

    /// Whether a connected cluster has not applied the target, or is not healthy with it.
    fn has_work(&self) -> bool {
        self.clusters
            .iter()
            .any(|(_, health)| occupies_slot(*health))
    }

    /// Returns the clusters in one of these states.
    pub(super) fn those_with(
        &self,
        states: &'static [Health],
    ) -> impl Iterator<Item = &'a (RolloutPosition, Health)> + use<'a> {
        self.clusters
            .iter()
            .filter(move |(_, health)| states.contains(health))
    }

    /// Whether the wave may begin. The first wave needs no approval, and neither does one that brings nothing to any
    /// cluster, also not later.
    pub(super) fn is_approved(&self, progress: &Progress, observation: &Observation<'_>) -> bool {
        let brings_nothing = self
            .clusters
            .iter()
            .all(|(_, health)| matches!(health, Health::Applied | Health::Unready));
        progress.wave == 0
            || brings_nothing
            || approves(observation.approval, &self.digest(progress))
    }

    /// Returns the wave in the form of the status.
    pub(super) fn pending(&self, progress: &Progress, now: Timestamp) -> PendingWave {
        let digest = self.digest(progress);
        let shown = progress.pending_wave.as_ref();
        let since = shown
            .filter(|shown| shown.digest == digest)
            .map_or(now, |shown| shown.since);
        let names = self.clusters.iter().take(limits::STATUS_CLUSTERS);
        PendingWave {
            digest,
            wave: progress.wave + 1,
            clusters: u64::try_from(self.clusters.len()).unwrap_or(u64::MAX),
            names: names
                .map(|(turn, _)| turn.cluster.as_str().to_owned())
                .collect(),
            up_to: self.end().cloned().unwrap_or_else(|| RolloutPosition {
                value: None,
                cluster: "".into(),
            }),
            since,
        }
    }

    /// Returns the digest of exactly this wave of this rollout. A later rollout of the same change has another one.
    fn digest(&self, progress: &Progress) -> String {
        let mut context = digest::Context::new(&digest::SHA256);
        let mut line = |part: &str| {
            context.update(part.as_bytes());
            context.update(b"\0");
        };
        line("wave");
        line(&progress.revision);
        line(&progress.started_at.as_second().to_string());
        line(&(progress.wave + 1).to_string());
        for (turn, _) in self.clusters {
            line(turn.value.as_deref().unwrap_or_default());
            line(turn.cluster.as_str());
        }
        data_encoding::HEXLOWER.encode(&context.finish().as_ref()[..10])
    }
}

/// Whether a cluster counts towards the size of a wave.
fn occupies_slot(health: Health) -> bool {
    matches!(
        health,
        Health::Pending | Health::Quiet | Health::Failed | Health::Unready
    )
}
