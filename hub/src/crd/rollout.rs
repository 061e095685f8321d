//! How a change travels, and how far it has come.
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::whole_seconds;
use super::{limits, schema};
use crate::rollout;

/// How a change travels: to one wave of clusters after the other, as long as they take it well. A change is an edit of a
/// source, or of this rule's sources, namespaces, policies and of what makes copies other than their sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// How many clusters may be under way at a time, and so are in one wave: a number, or a part of those that the rule
    /// chooses, such as 25% (rounded up). At least 1, or 1%.
    #[schemars(with = "i32", transform = schema::portion)]
    pub max_concurrency: CountOrPercent,
    /// The label of the MemberClusters by which they are ordered: those with the smallest value first (2 before 10), those
    /// without it last, and those of equal value by their names. A wave holds clusters of one value. Without it, all are
    /// ordered by their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::order_by_label)]
    pub order_by_label: Option<String>,
    /// How long a wave is watched, from when all of it is applied, before the next one begins. 0 to 604800.
    #[schemars(transform = schema::between(0, 604_800))]
    pub soak_seconds: i64,
    /// How many clusters may fail. With one more the rollout stops: nothing further is sent, and the condition
    /// RolloutStopped says what failed. A cluster that is not connected has not failed. 0 to 100000.
    #[schemars(transform = schema::between(0, 100_000))]
    pub max_failures: i64,
    /// Whether nothing further is sent. What is under way goes on, and is counted.
    pub paused: bool,
    /// What happens when more clusters fail than maxFailures. Stop: nothing further is sent. Revert: besides, the clusters that were
    /// reached go back to what their copies held before; their agents keep that until the rollout is completed. Copies that the
    /// change made, or removed, stay as they are, and so do the rule's terms.
    pub on_failure: OnFailure,
}

/// What happens when too many clusters fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// Nothing further is sent.
    #[default]
    Stop,
    /// The clusters that were reached go back to what they had.
    Revert,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            max_concurrency: CountOrPercent::Text("25%".to_owned()),
            order_by_label: None,
            soak_seconds: 0,
            max_failures: 0,
            paused: false,
            on_failure: OnFailure::Stop,
        }
    }
}

/// A number of clusters, or a part of them in percent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CountOrPercent {
    /// So many.
    Count(i64),
    /// Such as `25%`.
    Text(String),
}

impl From<&CountOrPercent> for rollout::Portion {
    fn from(said: &CountOrPercent) -> Self {
        match said {
            CountOrPercent::Count(count) => Self::Count(u64::try_from(*count).unwrap_or_default()),
            // What the schema lets through and is no number lets one cluster in at a time.
            CountOrPercent::Text(text) => Self::Percent(text.trim_end_matches('%').parse().unwrap_or_default()),
        }
    }
}

impl From<&Rollout> for rollout::Rollout {
    fn from(said: &Rollout) -> Self {
        Self {
            max_concurrency: (&said.max_concurrency).into(),
            order_by: said.order_by_label.clone(),
            soak: Duration::from_secs(u64::try_from(said.soak_seconds).unwrap_or_default()),
            max_failures: u64::try_from(said.max_failures).unwrap_or_default(),
            paused: said.paused,
            reverts: said.on_failure == OnFailure::Revert,
        }
    }
}

/// How far a rollout has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Names what is rolled out. Opaque: compare it, do not read it.
    #[schemars(transform = schema::text(64))]
    pub revision: String,
    /// Progressing: a wave is under way. Soaking: it is applied and being watched. Paused: `spec.rollout.paused` is true.
    /// Stopped: more clusters failed than maxFailures. Reverting: the same, and the clusters that were reached go back to what they
    /// had. Reverted: they have, but for those that are not connected or could not. Completed: every cluster that could be reached has it, and the
    /// others get it when they come back.
    pub phase: RolloutPhase,
    /// The wave, from 1.
    #[serde(default)]
    pub wave: i64,
    /// The clusters that the rule chooses.
    #[serde(default)]
    pub clusters: i64,
    /// Of these, the clusters that have been reached.
    #[serde(default)]
    pub clusters_reached: i64,
    /// The clusters in which what is rolled out is applied.
    #[serde(default)]
    pub clusters_applied: i64,
    /// The clusters that were reached and fail now.
    #[serde(default)]
    pub clusters_failed: i64,
    /// The most clusters that failed at one time since the rollout stopped or clusters began to go back; before, the same as
    /// clustersFailed. A rollout that is stopped goes on when maxFailures is at least this.
    #[serde(default)]
    pub clusters_failed_max: i64,
    /// Of those that were reached, the clusters that have gone back to what they had before.
    #[serde(default)]
    pub clusters_reverted: i64,
    /// Copies in these of which nothing was kept, as where the change made them: they stay as they are.
    #[serde(default)]
    pub copies_left: i64,
    /// When the last one was completed: what agents keep for going back is what copies hold since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub last_completed_at: Option<Time>,
    /// Whether clusters keep what they had before, so that they can go back. They do not where anything was sent since the last
    /// one was completed while `spec.rollout.onFailure` was not Revert: then it stops.
    #[serde(default)]
    pub keeps_former: bool,
    /// Where it went wrong first, and why, once clusters go back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(limits::MESSAGE))]
    pub failure: Option<String>,
    /// The label by which the clusters are ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(317))]
    pub ordered_by: Option<String>,
    /// The last cluster in the order that has been reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ReachedUpTo")]
    pub reached_up_to: Option<ReachedUpTo>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub started_at: Option<Time>,
    /// When the wave began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub wave_started_at: Option<Time>,
    /// When all of the wave was applied, from when it soaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub applied_at: Option<Time>,
    /// When it was completed, or all had gone back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub ended_at: Option<Time>,
    /// How many changes in a row, right before this one, were superseded by a newer one before they were completed. Each
    /// begins with the first wave, so that while edits come faster than the waves the last wave gets nothing.
    #[serde(default)]
    pub superseded: i64,
    /// When the first of these began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub unfinished_since: Option<Time>,
}

/// What a rollout is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// A wave is under way.
    #[default]
    Progressing,
    /// It is applied and being watched.
    Soaking,
    /// A person holds it.
    Paused,
    /// Too many clusters failed.
    Stopped,
    /// The same, and those that were reached go back.
    Reverting,
    /// They have gone back, but for those that are not connected or could not.
    Reverted,
    /// Every cluster that could be reached has it. Who was away takes it when there is room.
    Completed,
}

impl RolloutPhase {
    /// Whether those that were reached go back, or have.
    pub fn goes_back(self) -> bool {
        matches!(self, Self::Reverting | Self::Reverted)
    }
}

/// A place in the order of the clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReachedUpTo {
    /// The value of the label; absent where the cluster has none, or nothing orders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(63))]
    pub value: Option<String>,
    /// The cluster.
    #[schemars(transform = schema::text(limits::CLUSTER_NAME))]
    pub cluster: String,
}

impl From<&rollout::Progress> for RolloutStatus {
    fn from(progress: &rollout::Progress) -> Self {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            revision: progress.revision.clone(),
            phase: progress.phase,
            wave: number(progress.wave),
            clusters: number(progress.clusters),
            clusters_reached: number(progress.reached),
            clusters_applied: number(progress.applied),
            clusters_failed: number(progress.failing),
            clusters_failed_max: number(progress.failed),
            clusters_reverted: number(progress.reverted),
            copies_left: number(progress.left),
            last_completed_at: progress.last_completed.map(whole_seconds),
            keeps_former: progress.keeps,
            failure: progress.failure.clone(),
            ordered_by: progress.order_by.clone(),
            reached_up_to: progress
                .cursor
                .as_ref()
                .map(|turn| ReachedUpTo { value: turn.value.clone(), cluster: turn.cluster.as_str().to_owned() }),
            started_at: Some(whole_seconds(progress.started_at)),
            wave_started_at: progress.wave_at.map(whole_seconds),
            applied_at: progress.applied_at.map(|at| whole_seconds(next_second(at))),
            ended_at: progress.ended_at.map(whole_seconds),
            superseded: number(progress.superseded),
            unfinished_since: progress.unfinished_since.map(whole_seconds),
        }
    }
}

/// A status holds whole seconds, and nothing soaks for less than it should.
fn next_second(at: Timestamp) -> Timestamp {
    let part = at.subsec_nanosecond() > 0;
    at.checked_add(SignedDuration::from_secs(i64::from(part))).unwrap_or(at)
}

impl From<&RolloutStatus> for rollout::Progress {
    fn from(status: &RolloutStatus) -> Self {
        let number = |count: i64| u64::try_from(count).unwrap_or_default();
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        Self {
            revision: status.revision.clone(),
            phase: status.phase,
            wave: number(status.wave),
            order_by: status.ordered_by.clone(),
            cursor: status.reached_up_to.as_ref().map(|reached| rollout::RolloutPosition {
                value: reached.value.clone(),
                cluster: reached.cluster.as_str().into(),
            }),
            clusters: number(status.clusters),
            reached: number(status.clusters_reached),
            applied: number(status.clusters_applied),
            failing: number(status.clusters_failed),
            failed: number(status.clusters_failed_max),
            reverted: number(status.clusters_reverted),
            left: number(status.copies_left),
            last_completed: time(&status.last_completed_at),
            keeps: status.keeps_former,
            failure: status.failure.clone(),
            started_at: time(&status.started_at).unwrap_or_default(),
            wave_at: time(&status.wave_started_at),
            applied_at: time(&status.applied_at),
            ended_at: time(&status.ended_at),
            superseded: number(status.superseded),
            unfinished_since: time(&status.unfinished_since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_into_the_status_is_read_again() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let progress = rollout::Progress {
            revision: "abc".to_owned(),
            phase: rollout::Phase::Soaking,
            wave: 2,
            order_by: Some("tier".to_owned()),
            cursor: Some(rollout::RolloutPosition { value: Some("1".to_owned()), cluster: "eu-3".into() }),
            clusters: 9,
            reached: 4,
            applied: 3,
            failing: 1,
            failed: 2,
            started_at: at(1).unwrap(),
            wave_at: at(2),
            applied_at: at(3),
            ended_at: None,
            superseded: 4,
            reverted: 2,
            left: 5,
            last_completed: at(9),
            keeps: true,
            failure: Some("eu-1: why".to_owned()),
            unfinished_since: at(1),
        };
        let status = RolloutStatus::from(&progress);
        let written = serde_json::to_value(&status).unwrap();
        let read: RolloutStatus = serde_json::from_value(written).unwrap();
        assert_eq!(read, status);
        assert_eq!(rollout::Progress::from(&read), progress);
    }

    #[test]
    fn a_part_of_the_clusters_is_rounded_up_and_never_nothing() {
        let of = |said: serde_json::Value, all| {
            let said: Rollout = serde_json::from_value(serde_json::json!({"maxConcurrency": said})).unwrap();
            rollout::Rollout::from(&said).max_concurrency.of(all)
        };
        assert_eq!(of("25%".into(), 9), 3);
        assert_eq!(of("1%".into(), 3), 1);
        assert_eq!(of("100%".into(), 7), 7);
        assert_eq!(of(5.into(), 2), 5);
        assert_eq!(of(0.into(), 0), 1);
        assert_eq!(rollout::Rollout::from(&Rollout::default()).max_concurrency.of(8), 2);
    }
}
