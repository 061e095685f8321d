//! The rollout of a change, and its progress.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Analysis, AnalysisStatus, Window, limits, schema};

/// A rollout in waves: a change is sent to one wave of clusters after the other, while at most
/// maxFailures clusters fail. A change is an edit of a source, or of this rule's sources,
/// namespaces, policies and transformation of copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// How many clusters may be in progress at a time, which is the size of a wave. A number, or a part of the clusters
    /// that the rule chooses, such as 25% (rounded up). At least 1, or 1%.
    #[schemars(with = "i32", transform = schema::portion)]
    pub max_concurrency: CountOrPercent,
    /// The label of the MemberClusters by which they are ordered: the smallest value first (2 before 10), clusters
    /// without the label last, equal values by name. A wave has clusters of one value only. Without this field the
    /// clusters are ordered by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::order_by_label)]
    pub order_by_label: Option<String>,
    /// When a cluster has the change. Healthy: its copies are applied, and those with a health are healthy; an unhealthy copy
    /// is a failure of the cluster. Applied: its copies are applied, whatever their health is. Rollbacks do not wait for health.
    pub gate: RolloutGate,
    /// How long a wave is observed after all of its clusters have the change, before the next one begins. 0 to 604800.
    #[schemars(transform = schema::in_range(0, 604_800))]
    pub soak_seconds: i64,
    /// How long a cluster may take: one that has the change for longer, and whose copies are not applied and healthy, has failed.
    /// 1 to 604800.
    #[schemars(transform = schema::in_range(1, 604_800))]
    pub progress_deadline_seconds: i64,
    /// How many clusters may fail. With one more the rollout stops: nothing further is sent, and the condition
    /// RolloutStopped names the failure. A cluster that is not connected has not failed. 0 to 100000.
    #[schemars(transform = schema::in_range(0, 100_000))]
    pub max_failures: i64,
    /// Whether the rollout is paused: nothing further is sent. Clusters under way continue and are counted.
    pub paused: bool,
    /// How many states of completed rollouts the hub keeps for rollbacks and for `kubectl runnel revert`, the newest ones, where they
    /// fit. 2 by default with onFailure: Revert; otherwise none are kept without this field. With fewer the older ones are deleted. 1 to 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", transform = schema::in_range(1, limits::HISTORY as i64))]
    pub history: Option<i64>,
    /// What happens when more clusters fail than maxFailures. Stop: nothing further is sent. Revert: clusters also get the state of
    /// the last completed rollout again. Copies that the change created are removed; copies that it changed or removed are
    /// restored. If the hub does not have that state, the rollout stops; status.rollout.rollbackBlocker has the cause.
    pub on_failure: OnFailure,
    /// Whether waves wait for a person. None: a wave begins when the one before it has soaked. PerWave: each wave after the
    /// first one also waits until its digest in status.rollout.pendingWave is approved, with `kubectl runnel approve` or the
    /// annotation runnel.dev/approve.
    pub approval: RolloutApproval,
    /// The windows in which waves begin, at most 8; they add up. Outside of them no further cluster gets the change; a cluster that
    /// has begun finishes, and rollbacks do not wait. Without windows waves begin at any time. See also the windows of MemberClusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::WINDOWS))]
    pub windows: Vec<Window>,
    /// A check that has to hold while a wave soaks. The next wave begins only after a check that holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Analysis")]
    pub analysis: Option<Analysis>,
}

/// When a cluster of a wave has the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutGate {
    /// Its copies are applied.
    Applied,
    /// Its copies are applied, and those with a health are healthy.
    #[default]
    Healthy,
}

/// Whether waves wait for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutApproval {
    /// No wave waits for a person.
    #[default]
    None,
    /// Each wave after the first one waits for approval.
    PerWave,
}

/// The action when too many clusters fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// Nothing further is sent.
    #[default]
    Stop,
    /// Clusters are rolled back to the last completed rollout.
    Revert,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            max_concurrency: CountOrPercent::Text("25%".to_owned()),
            order_by_label: None,
            gate: RolloutGate::Healthy,
            soak_seconds: 0,
            progress_deadline_seconds: 600,
            max_failures: 0,
            paused: false,
            history: None,
            on_failure: OnFailure::Stop,
            approval: RolloutApproval::None,
            windows: Vec::new(),
            analysis: None,
        }
    }
}

/// A number of clusters, or a part of them in percent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CountOrPercent {
    /// A number of clusters.
    Count(i64),
    /// A percentage such as `25%`.
    Text(String),
}

/// The progress of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Opaque identifier of the change that is rolled out, for comparison.
    #[schemars(transform = schema::text(64))]
    pub revision: String,
    /// Progressing: a wave is under way. Soaking: the wave is applied and observed. AwaitingApproval: the
    /// next wave waits until pendingWave is approved. AwaitingWindow: it waits until a window opens. Paused: `spec.rollout.paused` is true. Stopped: more than maxFailures clusters failed. Reverting:
    /// more than maxFailures clusters failed, and clusters are being rolled back. Reverted: all
    /// connected clusters are rolled back or have failed to. Completed: every reachable cluster has
    /// the change; the others get it when they reconnect.
    pub phase: RolloutPhase,
    /// The wave, from 1.
    #[serde(default)]
    pub wave: i64,
    /// The wave that waits for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PendingWave")]
    pub pending_wave: Option<PendingWave>,
    /// The clusters that the rule chooses.
    #[serde(default)]
    pub clusters: i64,
    /// Of these, the clusters that have been reached.
    #[serde(default)]
    pub clusters_reached: i64,
    /// Number of clusters that have the change: applied, and healthy if `spec.rollout.gate` is Healthy.
    #[serde(default)]
    pub clusters_applied: i64,
    /// The clusters that were reached and fail now.
    #[serde(default)]
    pub clusters_failed: i64,
    /// The most clusters that failed at one time since the rollout stopped or its rollback began; before, the same as
    /// clustersFailed. A stopped rollout continues when maxFailures is at least this.
    #[serde(default)]
    pub clusters_failed_max: i64,
    /// Of those that were reached, the clusters that are rolled back.
    #[serde(default)]
    pub clusters_reverted: i64,
    /// Identifier of the last completed change, the target of a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(64))]
    pub former_revision: Option<String>,
    /// The states of completed rollouts that the hub keeps, the newest first. The annotation runnel.dev/revert-to with one of these
    /// revisions, or `kubectl runnel revert`, reverts the rule to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::HISTORY))]
    pub history: Vec<KeptRevision>,
    /// Why a failed rollout would stop, or has stopped, though `spec.rollout.onFailure` is Revert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(limits::MESSAGE))]
    pub rollback_blocker: Option<String>,
    /// The first failure, with its cause, of a rollout that stopped or is rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(limits::MESSAGE))]
    pub failure: Option<String>,
    /// Whether the removal guard blocks removals of this change. Once they are approved, the change goes through the waves again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removals_blocked: bool,
    /// The label by which the clusters are ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::text(317))]
    pub ordered_by: Option<String>,
    /// The last cluster in the order that has been reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ReachedUpTo")]
    pub reached_up_to: Option<ReachedUpTo>,
    /// Start of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub started_at: Option<Time>,
    /// Start of the current wave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub wave_started_at: Option<Time>,
    /// The time at which all of the wave was applied, the start of the soak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub applied_at: Option<Time>,
    /// The checks of the current wave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AnalysisStatus")]
    pub analysis: Option<AnalysisStatus>,
    /// The time of the next opening, if clusters wait for a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub opens_at: Option<Time>,
    /// The time of completion or of the end of the rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub ended_at: Option<Time>,
    /// How many changes in a row, right before this one, were superseded by a newer one before they were completed. Each
    /// begins with the first wave, so that while edits come faster than the waves the last wave gets nothing.
    #[serde(default)]
    pub superseded: i64,
    /// Start of the first unfinished change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub unfinished_since: Option<Time>,
}

/// The state of a completed rollout that the hub keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeptRevision {
    /// Identifier of the completed change.
    #[schemars(transform = schema::text(64))]
    pub revision: String,
    /// The time of completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub completed_at: Option<Time>,
}

/// The next wave of a rollout, which waits for approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingWave {
    /// Identifies exactly this wave of this change: the annotation runnel.dev/approve with this value approves it, and
    /// nothing else. Another edit, or other clusters in the wave, need another approval.
    #[schemars(transform = schema::text(64))]
    pub digest: String,
    /// The number of the wave.
    #[serde(default)]
    pub wave: i64,
    /// Number of clusters of the wave, including those that are not connected.
    #[serde(default)]
    pub clusters: i64,
    /// The first clusters of the wave, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::text_list(limits::STATUS_CLUSTERS, limits::CLUSTER_NAME))]
    pub names: Vec<String>,
    /// The last cluster of the wave in the order.
    pub up_to: ReachedUpTo,
    /// Since when it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub since: Option<Time>,
}

/// The phase of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// A wave is under way.
    #[default]
    Progressing,
    /// It is applied and being watched.
    Soaking,
    /// The next wave waits until a person approves it.
    AwaitingApproval,
    /// The next clusters wait until a window opens.
    AwaitingWindow,
    /// It is paused by `spec.rollout.paused`.
    Paused,
    /// Too many clusters failed.
    Stopped,
    /// More clusters failed, and they are being rolled back.
    Reverting,
    /// All connected clusters are rolled back or have failed to.
    Reverted,
    /// Every reachable cluster has it. A disconnected cluster gets it when it reconnects and there
    /// is a slot.
    Completed,
}

impl RolloutPhase {
    /// Whether it is being rolled back, or has been.
    pub fn is_rollback(self) -> bool {
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
