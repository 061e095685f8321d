//! The progress of a rollout, as stored in the rule's status.
use std::time::Duration;

use jiff::Timestamp;

use crate::now::is_ahead;

use super::{Analysis, CheckResult, CheckedWave, Checks, LeftOut, Phase, Rollout, RolloutPosition};

/// The progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The target.
    pub revision: String,
    /// The phase.
    pub phase: Phase,
    /// The wave, from 1; 0 before the first.
    pub wave: u64,
    /// The next wave, while it waits for approval.
    pub pending_wave: Option<PendingWave>,
    /// The label that orders.
    pub order_by: Option<String>,
    /// Clusters up to this one have been reached.
    pub cursor: Option<RolloutPosition>,
    /// The clusters that the rule chooses.
    pub clusters: u64,
    /// Number of reached clusters.
    pub reached: u64,
    /// Those that have the target applied.
    pub applied: u64,
    /// Those that were reached and fail now.
    pub failing: u64,
    /// The most that failed at one time since it stopped or its rollback began; before, those that fail now. It decides.
    pub failed: u64,
    /// Start of the rollout.
    pub started_at: Timestamp,
    /// Start of the current wave.
    pub wave_at: Option<Timestamp>,
    /// The time at which all reached clusters had settled.
    pub applied_at: Option<Timestamp>,
    /// The checks of the current wave.
    pub checks: Option<Checks>,
    /// The next opening, if clusters wait for a window.
    pub opens_at: Option<Timestamp>,
    /// End of the rollout.
    pub ended_at: Option<Timestamp>,
    /// Number of changes in a row that were superseded before they were completed.
    pub superseded: u64,
    /// Start of the first unfinished change.
    pub unfinished_since: Option<Timestamp>,
    /// Number of reached clusters that have been rolled back.
    pub reverted: u64,
    /// The last completed target, whose state a rollback restores.
    pub base: Option<String>,
    /// The reason why a requested rollback is not possible.
    pub rollback_blocker: Option<String>,
    /// The first failure, with its cause, of a rollout that stopped or is rolled back.
    pub failure: Option<String>,
    /// Whether the removal guard blocked removals of this change.
    pub is_blocked: bool,
}

/// The next wave, while it waits for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWave {
    /// Identifies exactly this wave of this change.
    pub digest: String,
    /// The number of the wave.
    pub wave: u64,
    /// Number of clusters of the wave, including those that are not connected.
    pub clusters: u64,
    /// The names of the first clusters.
    pub names: Vec<String>,
    /// The last cluster.
    pub up_to: RolloutPosition,
    /// Since when it waits.
    pub since: Timestamp,
}

impl Progress {
    /// A rollout that begins, after `before`, if there was one.
    pub fn begin(revision: &str, rollout: &Rollout, before: Option<&Self>, now: Timestamp) -> Self {
        // A rollout that has ended is not superseded.
        let is_under_way = |before: &&Self| {
            matches!(
                before.phase,
                Phase::Progressing
                    | Phase::Soaking
                    | Phase::AwaitingApproval
                    | Phase::AwaitingWindow
                    | Phase::Paused
            )
        };
        let unfinished = before.filter(is_under_way);
        // The same change in another order supersedes nothing.
        let is_newer = |before: &Self| before.revision != revision;
        Self {
            revision: revision.to_owned(),
            phase: Phase::Progressing,
            wave: 0,
            pending_wave: None,
            order_by: rollout.order_by.clone(),
            cursor: None,
            clusters: 0,
            reached: 0,
            applied: 0,
            failing: 0,
            failed: 0,
            started_at: now,
            wave_at: None,
            applied_at: None,
            checks: None,
            opens_at: None,
            ended_at: None,
            superseded: unfinished
                .map_or(0, |before| before.superseded + u64::from(is_newer(before))),
            reverted: 0,
            base: before.and_then(|before| before.completed_target().map(ToOwned::to_owned)),
            rollback_blocker: None,
            failure: None,
            is_blocked: false,
            unfinished_since: unfinished
                .map(|before| before.unfinished_since.unwrap_or(before.started_at)),
        }
    }

    /// Whether removals have passed that were blocked before. A rollout that failed does not begin again with them.
    pub(super) fn begins_again(&self, left_out: LeftOut) -> bool {
        let has_failed = self.phase == Phase::Stopped || self.phase.is_rollback();
        self.is_blocked && left_out == LeftOut::Passed && !has_failed
    }

    /// Whether the rollout was completed, independent of clusters that were added later.
    pub fn is_completed(&self) -> bool {
        self.phase == Phase::Completed || (self.ended_at.is_some() && !self.phase.is_rollback())
    }

    /// The target of the last rollout that was completed, this one included.
    pub fn completed_target(&self) -> Option<&str> {
        if self.is_completed() {
            Some(&self.revision)
        } else {
            self.base.as_deref()
        }
    }

    /// The wave that a check is about now.
    fn checked_wave(&self) -> CheckedWave {
        CheckedWave {
            revision: self.revision.clone(),
            started: self.started_at.as_second(),
            wave: self.wave,
        }
    }

    /// Returns the wave for which a check is due; `last` is the last result.
    pub fn check_due(
        &self,
        analysis: &Analysis,
        last: Option<&CheckResult>,
        now: Timestamp,
    ) -> Option<CheckedWave> {
        if self.phase != Phase::Soaking || self.applied_at.is_none() {
            return None;
        }
        let wave = self.checked_wave();
        let last = last.filter(|last| last.of == wave).map(|last| last.at);
        let before = self.checks.as_ref().map(|checks| checks.last_at);
        // A check in the future does not count: the clock was set back.
        let known = [last, before].into_iter().flatten();
        let newest = known.filter(|at| !is_ahead(*at, now)).max();
        let is_recent = |at: Timestamp| {
            Duration::try_from(now.duration_since(at)).is_ok_and(|since| since < analysis.interval)
        };
        (!newest.is_some_and(is_recent)).then_some(wave)
    }

    /// Adds the result of a check, if it is about this wave.
    pub(super) fn add_check(&mut self, result: Option<&CheckResult>, now: Timestamp) {
        let is_of_now =
            |result: &&CheckResult| result.of == self.checked_wave() && !is_ahead(result.at, now);
        if let Some(result) = result.filter(is_of_now) {
            self.checks = Checks::add(self.checks.take(), result, now);
        }
    }

    /// Whether the last check of the wave held. A check in the future does not count: the clock was set back.
    pub(super) fn holds(&self, now: Timestamp) -> bool {
        let checks = self.checks.as_ref();
        checks.is_some_and(|checks| checks.holds && !is_ahead(checks.last_at, now))
    }

    /// Whether more checks of the wave failed than may.
    pub fn has_failed_analysis(&self, rollout: &Rollout) -> bool {
        let failed = self.checks.as_ref().map_or(0, |checks| checks.failed);
        let analysis = rollout.analysis.as_ref();
        analysis.is_some_and(|analysis| failed > analysis.failure_limit)
    }

    /// Whether a cluster has been reached.
    pub fn has_reached(&self, turn: &RolloutPosition) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| turn <= cursor)
    }
}
