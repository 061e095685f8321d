//! Converts rollouts between the API and the decision.
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runnel_api::conditions::whole_seconds;
use runnel_api::{
    AnalysisStatus, CountOrPercent, OnFailure, ReachedUpTo, RolloutApproval, RolloutGate,
    RolloutStatus, limits,
};

use super::{Checks, PendingWave, Portion, Progress, Rollout, RolloutPosition, Windows};

impl From<&CountOrPercent> for Portion {
    fn from(spec: &CountOrPercent) -> Self {
        match spec {
            CountOrPercent::Count(count) => Self::Count(u64::try_from(*count).unwrap_or_default()),
            // A value that is accepted by the schema and is not a number admits one cluster at a
            // time.
            CountOrPercent::Text(text) => {
                Self::Percent(text.trim_end_matches('%').parse().unwrap_or_default())
            }
        }
    }
}

impl From<&runnel_api::Rollout> for Rollout {
    fn from(spec: &runnel_api::Rollout) -> Self {
        let reverts = spec.on_failure == OnFailure::Revert;
        let by_default = if reverts { 2 } else { 0 };
        let history = spec.history.and_then(|kept| usize::try_from(kept).ok());
        let history = history.map_or(by_default, |kept| kept.clamp(1, limits::HISTORY));
        Self {
            max_concurrency: (&spec.max_concurrency).into(),
            order_by: spec.order_by_label.clone(),
            soak: Duration::from_secs(u64::try_from(spec.soak_seconds).unwrap_or_default()),
            progress_deadline: Duration::from_secs(
                u64::try_from(spec.progress_deadline_seconds).unwrap_or(u64::MAX),
            ),
            max_failures: u64::try_from(spec.max_failures).unwrap_or_default(),
            paused: spec.paused,
            reverts,
            history,
            waits_for_health: spec.gate == RolloutGate::Healthy,
            needs_approval: spec.approval == RolloutApproval::PerWave,
            analysis: spec.analysis.as_ref().map(Into::into),
            windows: Windows::read(&spec.windows, "spec.rollout.windows"),
        }
    }
}

impl From<&RolloutPosition> for ReachedUpTo {
    fn from(turn: &RolloutPosition) -> Self {
        Self {
            value: turn.value.clone(),
            cluster: turn.cluster.as_str().to_owned(),
        }
    }
}

impl From<&ReachedUpTo> for RolloutPosition {
    fn from(reached: &ReachedUpTo) -> Self {
        Self {
            value: reached.value.clone(),
            cluster: reached.cluster.as_str().into(),
        }
    }
}

impl From<&PendingWave> for runnel_api::PendingWave {
    fn from(pending: &PendingWave) -> Self {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            digest: pending.digest.clone(),
            wave: number(pending.wave),
            clusters: number(pending.clusters),
            names: pending.names.clone(),
            up_to: (&pending.up_to).into(),
            since: Some(whole_seconds(pending.since)),
        }
    }
}

impl From<&runnel_api::PendingWave> for PendingWave {
    fn from(status: &runnel_api::PendingWave) -> Self {
        let number = |count: i64| u64::try_from(count).unwrap_or_default();
        Self {
            digest: status.digest.clone(),
            wave: number(status.wave),
            clusters: number(status.clusters),
            names: status.names.clone(),
            up_to: (&status.up_to).into(),
            since: status.since.as_ref().map(|time| time.0).unwrap_or_default(),
        }
    }
}

impl From<&Checks> for AnalysisStatus {
    fn from(checks: &Checks) -> Self {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            checks: number(checks.made),
            failures: number(checks.failed),
            holds: checks.holds,
            message: checks.message.clone(),
            last_checked_at: Some(whole_seconds(checks.last_at)),
        }
    }
}

impl From<&AnalysisStatus> for Checks {
    fn from(status: &AnalysisStatus) -> Self {
        let number = |count: i64| u64::try_from(count).unwrap_or_default();
        Self {
            made: number(status.checks),
            failed: number(status.failures),
            holds: status.holds,
            message: status.message.clone(),
            last_at: status
                .last_checked_at
                .as_ref()
                .map(|time| time.0)
                .unwrap_or_default(),
        }
    }
}

impl From<&Progress> for RolloutStatus {
    fn from(progress: &Progress) -> Self {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            revision: progress.revision.clone(),
            phase: progress.phase,
            wave: number(progress.wave),
            pending_wave: progress.pending_wave.as_ref().map(Into::into),
            clusters: number(progress.clusters),
            clusters_reached: number(progress.reached),
            clusters_applied: number(progress.applied),
            clusters_failed: number(progress.failing),
            clusters_failed_max: number(progress.failed),
            clusters_reverted: number(progress.reverted),
            history: Vec::new(),
            former_revision: progress.base.clone(),
            rollback_blocker: progress.rollback_blocker.clone(),
            failure: progress.failure.clone(),
            removals_blocked: progress.is_blocked,
            ordered_by: progress.order_by.clone(),
            reached_up_to: progress.cursor.as_ref().map(Into::into),
            started_at: Some(whole_seconds(progress.started_at)),
            wave_started_at: progress.wave_at.map(whole_seconds),
            applied_at: progress.applied_at.map(|at| whole_seconds(next_second(at))),
            analysis: progress.checks.as_ref().map(Into::into),
            opens_at: progress.opens_at.map(whole_seconds),
            ended_at: progress.ended_at.map(whole_seconds),
            superseded: number(progress.superseded),
            unfinished_since: progress.unfinished_since.map(whole_seconds),
        }
    }
}

/// A status has whole seconds, and a wave must not soak for less than its time.
fn next_second(at: Timestamp) -> Timestamp {
    let part = at.subsec_nanosecond() > 0;
    at.checked_add(SignedDuration::from_secs(i64::from(part)))
        .unwrap_or(at)
}

impl From<&RolloutStatus> for Progress {
    fn from(status: &RolloutStatus) -> Self {
        let number = |count: i64| u64::try_from(count).unwrap_or_default();
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        Self {
            revision: status.revision.clone(),
            phase: status.phase,
            wave: number(status.wave),
            pending_wave: status.pending_wave.as_ref().map(Into::into),
            order_by: status.ordered_by.clone(),
            cursor: status.reached_up_to.as_ref().map(Into::into),
            clusters: number(status.clusters),
            reached: number(status.clusters_reached),
            applied: number(status.clusters_applied),
            failing: number(status.clusters_failed),
            failed: number(status.clusters_failed_max),
            reverted: number(status.clusters_reverted),
            base: status.former_revision.clone(),
            rollback_blocker: status.rollback_blocker.clone(),
            failure: status.failure.clone(),
            is_blocked: status.removals_blocked,
            started_at: time(&status.started_at).unwrap_or_default(),
            wave_at: time(&status.wave_started_at),
            applied_at: time(&status.applied_at),
            checks: status.analysis.as_ref().map(Into::into),
            opens_at: time(&status.opens_at),
            ended_at: time(&status.ended_at),
            superseded: number(status.superseded),
            unfinished_since: time(&status.unfinished_since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::Phase;

    #[test]
    fn written_progress_reads_back() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let progress = Progress {
            revision: "abc".to_owned(),
            phase: Phase::Soaking,
            wave: 2,
            pending_wave: Some(PendingWave {
                digest: "0123".to_owned(),
                wave: 3,
                clusters: 2,
                names: vec!["eu-4".to_owned(), "eu-5".to_owned()],
                up_to: RolloutPosition {
                    value: None,
                    cluster: "eu-5".into(),
                },
                since: at(7).unwrap(),
            }),
            order_by: Some("tier".to_owned()),
            cursor: Some(RolloutPosition {
                value: Some("1".to_owned()),
                cluster: "eu-3".into(),
            }),
            clusters: 9,
            reached: 4,
            applied: 3,
            failing: 1,
            failed: 2,
            started_at: at(1).unwrap(),
            wave_at: at(2),
            applied_at: at(3),
            checks: Some(Checks {
                made: 3,
                failed: 1,
                last_at: at(9).unwrap(),
                holds: true,
                message: "the value is 1".to_owned(),
            }),
            opens_at: at(60),
            ended_at: None,
            superseded: 4,
            reverted: 2,
            base: Some("def".to_owned()),
            rollback_blocker: Some("why".to_owned()),
            failure: Some("eu-1: why".to_owned()),
            is_blocked: true,
            unfinished_since: at(1),
        };
        let status = RolloutStatus::from(&progress);
        let written = serde_json::to_value(&status).unwrap();
        let read: RolloutStatus = serde_json::from_value(written).unwrap();
        assert_eq!(read, status);
        assert_eq!(Progress::from(&read), progress);
    }

    #[test]
    fn a_part_of_the_clusters_is_rounded_up_and_never_nothing() {
        let of = |spec: serde_json::Value, all| {
            let spec: runnel_api::Rollout =
                serde_json::from_value(serde_json::json!({"maxConcurrency": spec})).unwrap();
            Rollout::from(&spec).max_concurrency.of(all)
        };
        assert_eq!(of("25%".into(), 9), 3);
        assert_eq!(of("1%".into(), 3), 1);
        assert_eq!(of("100%".into(), 7), 7);
        assert_eq!(of(5.into(), 2), 5);
        assert_eq!(of(0.into(), 0), 1);
        assert_eq!(
            Rollout::from(&runnel_api::Rollout::default())
                .max_concurrency
                .of(8),
            2
        );
    }
}
