//! The rollout of a rule in waves: which clusters may have the newest change now, and when the next
//! wave begins. Pure: the clock is an argument, and the reports of agents are an [`Observation`].
//!
//! Each change is a new *target*: what the rule selects, how copies are rendered, and its terms
//! (except `suspend`, an emergency stop that takes effect everywhere at once). The chosen clusters,
//! their labels and their grants are no part of the target: a newly chosen cluster waits for its
//! wave during a rollout and gets the newest target at once after it. What the removal guard blocks
//! is no part of it either: removals that pass later go through the waves again, as the same target
//! ([`LeftOut`]).
//!
//! Clusters have one order ([`RolloutPosition`]): by the value of a label, in natural order, then
//! by name. So the progress is one cursor in the rule's status, which survives a restart and a
//! change of leader without a list of clusters. [`step`] is the whole state machine: from the
//! status, the current work and the observation it computes the new status and the clusters that
//! may have the target ([`Gate`]).
//!
//! # Guarantees
//! - Nothing of a target is sent to a cluster that its gate does not admit, and a gate is valid for
//!   one target only: an edit invalidates it. A process that has not read the status has no gate,
//!   and sends nothing.
//! - A gate admits no new cluster beyond the cursor that it was made with. Its user has written
//!   that cursor before.
//! - An admitted cluster stays admitted, and counts, if another label moves it behind the cursor. A
//!   new leader, which does not know that, sends it nothing until its wave comes again. In a
//!   rollback it is rolled back with the others, because it reports that it does not have the
//!   former state. A newly chosen cluster behind the cursor waits for its wave. It keeps its copies
//!   when the rollout is stopped, and gets the former state when it is rolled back.
//! - At no time are more than `maxConcurrency` clusters admitted and not settled, including those
//!   that report their work to a new leader ([`Observation::at_work`]). A cluster that was passed
//!   over while it was disconnected is admitted when there is a slot, so not all of them come at
//!   once when a network returns. The same applies after the rollout was completed without them.
//! - No cluster is admitted while more than `maxFailures` of the reached clusters fail: a completed
//!   rollout stops when returning clusters fail.
//! - With `gate: Healthy` a cluster is done when its copies have been healthy once with the target. Copies that are in
//!   progress later, as in a restart of pods, hold no wave; copies that fail later are a failure. A new leader waits
//!   again. A rollback waits for no health.
//! - With `approval: PerWave` a wave after the first one begins only when its digest is approved
//!   ([`Observation::approval`]). The digest names the target, the begin of its rollout, the number of
//!   the wave, and all its clusters. A cluster that disconnects or returns does not change it. The first wave has at most
//!   `maxConcurrency` clusters, those included that are not connected or whose removal waits: nobody approves it.
//! - No cluster is admitted, in the first wave or later, while no window of the rule or none of the
//!   cluster is open ([`Observation::windows`]). A cluster that was admitted before continues. A
//!   rollback waits for no window, and so does a cluster that is chosen after a complete rollout.
//! - With an analysis a wave ends only after a check that holds, made since it was applied. More failed
//!   checks of one wave than its limit stop the rollout or roll it back, as failed clusters do.
//! - An edit begins with the first wave, however far the rollout before it was, because no cluster
//!   has tried the newest target. So edits that come faster than a wave takes never reach the
//!   second one. The status has the number of such edits in a row, and the time of the first.
//! - It ends, or waits for a user: a disconnected cluster is passed over after [`DISCONNECTED_TIMEOUT`], and
//!   a cluster that does not settle counts as failed after [`Rollout::progress_deadline`]. Only while no cluster
//!   at all is connected does it wait for one.
//! - A cluster whose removal waits, because the rule does not select it or has no grant for it any
//!   more, belongs to the rollout as one that is not available ([`Observation::removals_wait`]). The
//!   rollout does not complete without it. A cluster that is chosen after a completed rollout and has
//!   copies already is admitted as one that was away.
//! - If the removal guard blocks something, the state of a cluster cannot be compared with the
//!   target. Such a cluster counts neither as applied nor as failed, and has settled when it had no
//!   work for [`QUIET_FOR`] after its admission.
//! - With `onFailure: Revert`, too many failures roll the target back: every cluster gets the state
//!   of the last completed rollout again, in order and at most `maxConcurrency` at a time; a
//!   disconnected cluster gets it when it reconnects. No cluster is sent the target from then on,
//!   also after a restart, until a newer one supersedes it or a user retries it.
//! - Without that state a rollout stops instead: none was completed before, it does not fit into
//!   the hub's storage, or the stored state cannot be read. A completed rollout is not rolled back
//!   by later failures.
//! - While only an event can cause the next step, nothing is computed ([`Gate::is_idle`]).
mod allowed_urls;
mod analysis;
mod api;
mod archive;
mod order;
mod progress;
mod reached;
mod rollback;
mod step;
#[cfg(test)]
mod tests;
mod wave;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use runnel_proto::model::ClusterName;

pub use allowed_urls::AllowedUrls;
pub use analysis::{Analysis, Check, CheckResult, CheckedWave, Checks};
pub use archive::{Archive, Full, SLOT_BYTES, Slot, StateId};
pub use order::RolloutPosition;
pub use progress::{PendingWave, Progress};
pub use reached::{Health, Observation};
pub use runnel_api::RolloutPhase as Phase;
pub use step::step;
pub use window::Windows;

/// The time for which a disconnected cluster of the wave is waited for.
pub const DISCONNECTED_TIMEOUT: Duration = Duration::from_secs(60);

/// The time without changes after which a cluster that cannot be compared counts as updated.
pub const QUIET_FOR: Duration = Duration::from_secs(30);

/// What the removal guard has decided about the copies that a target leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeftOut {
    /// All of them may be removed.
    #[default]
    Passed,
    /// It has not decided yet.
    Undecided,
    /// An earlier process blocked removals, and it is not known which.
    Unknown,
    /// Some of them wait for approval.
    Blocked,
}

/// A number of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// A number of clusters.
    Count(u64),
    /// This part of all that the rule chooses, in percent.
    Percent(u64),
}

impl Portion {
    /// Returns the number of clusters, at least one.
    pub fn of(self, all: usize) -> usize {
        let all = u64::try_from(all).unwrap_or(u64::MAX);
        let part = match self {
            Portion::Count(count) => count,
            Portion::Percent(percent) => all.saturating_mul(percent).div_ceil(100),
        };
        usize::try_from(part).unwrap_or(usize::MAX).max(1)
    }
}

/// The settings of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Maximum number of clusters under way.
    pub max_concurrency: Portion,
    /// The label of the clusters that orders them.
    pub order_by: Option<String>,
    /// The soak time of a wave.
    pub soak: Duration,
    /// How long a cluster may take to settle. One that takes longer counts as failed.
    pub progress_deadline: Duration,
    /// Maximum number of failed clusters.
    pub max_failures: u64,
    /// Whether the rollout is paused.
    pub paused: bool,
    /// Whether, with one more, clusters get the state of the last completed rollout again.
    pub reverts: bool,
    /// How many states of completed rollouts are kept; 0: none.
    pub history: usize,
    /// Whether a cluster has the target only when its copies with a health are healthy.
    pub waits_for_health: bool,
    /// Whether each wave after the first one waits for approval.
    pub needs_approval: bool,
    /// The windows in which clusters are admitted.
    pub windows: Windows,
    /// The check that has to hold while a wave soaks.
    pub analysis: Option<Analysis>,
}

impl Rollout {
    /// The label that orders the clusters for this target. A rollback uses the order in which the
    /// clusters were reached, and not the order of the next rollout.
    pub fn order<'a>(&'a self, before: Option<&'a Progress>, target: &str) -> Option<&'a str> {
        let back = before.filter(|before| before.phase.is_rollback() && before.revision == target);
        back.map_or(&self.order_by, |back| &back.order_by)
            .as_deref()
    }
}

/// The clusters that may have a target now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmittedClusters {
    /// Every cluster: the rollout has ended.
    All,
    /// These clusters, each with the time of its admission.
    Only(BTreeMap<ClusterName, Instant>),
}

/// Lets clusters have one target, and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The target.
    pub revision: String,
    /// The clusters that may have it.
    pub reach: AdmittedClusters,
    /// Whether only an event can cause the next step, or that a window opens.
    pub is_settled: bool,
    /// If it is settled: when a window opens that brings the next step.
    pub wakes_at: Option<Timestamp>,
    /// The completed target whose state the clusters get during a rollback.
    pub back_to: Option<String>,
    /// The admitted clusters that have had the target with healthy copies. A wave waits for no others.
    pub healthy: BTreeSet<ClusterName>,
    /// The clusters that were chosen since it admits all: it is shut to them.
    pub newly_chosen: BTreeSet<ClusterName>,
    /// Whether removals of the target were blocked.
    pub is_blocked: bool,
    /// Whether it is that of a paused step.
    pub is_paused: bool,
}

impl Gate {
    /// Whether the target is rolled back.
    pub fn is_rolling_back(&self) -> bool {
        self.back_to.is_some()
    }

    /// Whether a cluster may have this target.
    pub fn admits(&self, target: &str, cluster: &ClusterName) -> bool {
        self.revision == target
            && match &self.reach {
                AdmittedClusters::All => !self.newly_chosen.contains(cluster),
                AdmittedClusters::Only(these) => these.contains_key(cluster),
            }
    }

    /// Whether nothing brings the next step before an event.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.is_settled && self.wakes_at.is_none_or(|at| at > now)
    }

    /// Whether every cluster may have this target.
    pub fn is_open(&self, target: &str) -> bool {
        self.revision == target
            && self.reach == AdmittedClusters::All
            && self.newly_chosen.is_empty()
    }

    /// The admitted clusters that have had this target with healthy copies. None of a rollback.
    fn healthy_with(&self, target: &str) -> &BTreeSet<ClusterName> {
        static NONE: BTreeSet<ClusterName> = BTreeSet::new();
        if self.revision == target && !self.is_rolling_back() {
            &self.healthy
        } else {
            &NONE
        }
    }

    /// The clusters that apply this target or return from it, with the start of that. A gate that admits all but the newly
    /// chosen ones has admitted the others `now`.
    fn clusters_in_progress(
        &self,
        observation: &Observation<'_>,
        back: bool,
        now: Instant,
    ) -> BTreeMap<ClusterName, Instant> {
        let target = observation.target;
        match &self.reach {
            AdmittedClusters::All if self.revision == target => {
                let here = observation
                    .clusters
                    .iter()
                    .filter(|(_, health)| *health != Health::Unavailable);
                here.map(|(turn, _)| &turn.cluster)
                    .filter(|cluster| self.admits(target, cluster))
                    .map(|cluster| (cluster.clone(), now))
                    .collect()
            }
            AdmittedClusters::Only(these)
                if self.revision == target && self.is_rolling_back() == back =>
            {
                these.clone()
            }
            _ => BTreeMap::new(),
        }
    }
}
