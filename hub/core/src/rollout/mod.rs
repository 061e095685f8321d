//! A change of a rule that travels in waves: which clusters may have it now, and when the next wave begins. Pure: the
//! clock is an argument, and what the agents said is an [`Observation`].
//!
//! A change is another *target*: what the rule selects, how copies are made of it, and its terms (but for `suspend`, which
//! is an emergency stop and goes everywhere at once). Which clusters are chosen, their labels and what is granted there are
//! no part of it: who is newly chosen waits for its turn while a rollout is under way and gets the newest at once after it.
//! What the removal guard blocks is no part of it either; when it is approved, that is another target.
//!
//! Clusters stand in one order ([`RolloutPosition`]): by the value of a label, in natural order, then by name. So what has been
//! reached is one cursor, which stands in the rule's status and survives a restart and a change of leader without a list of
//! clusters. [`step`] is the whole machine: from what stands in the status, what is under way and what is seen it makes
//! what the status should say and which clusters may have the target ([`Gate`]).
//!
//! # Guarantees
//! - Nothing of a target is sent to a cluster that its gate does not let in, and a gate is good for one target only: an
//!   edit shuts it by itself. A process that has not read the status has no gate, and so sends nothing.
//! - A gate lets in nobody new beyond the cursor that it was made with; whoever uses it has written that cursor down before.
//! - Who was let in stays so, and counts, where another label moves it behind the cursor. A new leader, which does not know
//!   that, sends it nothing until its turn comes again; when the rollout is rolled back, it is rolled back with the others, as it
//!   reports that it does not have the former state. Who is newly chosen and stands behind the cursor waits for its turn. Where the rollout is
//!   stopped it keeps what it has, and where it is rolled back it gets the former state.
//! - At no time have more than `maxConcurrency` clusters been let in without having settled, those included of which a new
//!   leader hears that they are at work ([`Observation::at_work`]). A cluster that was passed over
//!   because it was away comes in when there is room, and not all of them at once when a network comes back; also when the
//!   rollout has been completed without them.
//! - Nobody is let in while more than `maxFailures` of the clusters that were reached fail: a rollout that was completed
//!   stops when those who come back fail.
//! - An edit begins with the first wave, however far the one before was: nobody else has tried the newest. So edits that come
//!   faster than a wave takes never reach the second one; how often in a row that happened, and since when, is told.
//! - It ends, or waits for a person: who is away is passed over after [`AWAY_LIMIT`], and who does not settle counts as
//!   failed after [`STUCK_LIMIT`]. Only while no cluster at all is connected does it wait for one.
//! - Where the removal guard blocks something, what a cluster has cannot be compared with the target. Such a cluster counts neither as
//!   applied nor as failed, and has settled when it was at no work for [`QUIET_FOR`] after it was let in.
//! - With `onFailure: Revert`, too many failures roll the target back: every cluster gets the state of the last completed rollout
//!   again, in order and no more at a time than `maxConcurrency`; a cluster that was away gets it when it is back. No cluster is
//!   sent the target from then on, also after a restart, until a newer one supersedes it or a person tries it again.
//! - Without that state a rollout stops instead: none was completed before, it does not fit into the hub's storage, or what is
//!   stored cannot be read. A rollout that was completed is not rolled back, whatever fails later.
//! - While only an event can bring the next step, nothing is computed ([`Gate::is_settled`]).
mod api;
mod archive;
mod back;
mod gate;
mod order;
mod progress;
mod step;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use archive::{Archive, Full, SLOT_BYTES, Slot};
pub use gate::{AdmittedClusters, Gate};
pub use order::RolloutPosition;
pub use progress::Progress;
pub use runnel_api::RolloutPhase as Phase;
pub use step::{Health, Observation, step};

/// How long a cluster that was let in and is not connected any more is waited for.
pub const AWAY_LIMIT: Duration = Duration::from_secs(60);
/// How long a connected cluster may take until its copies are applied or have failed.
pub const STUCK_LIMIT: Duration = Duration::from_secs(600);

/// How long a cluster that was let in must be quiet to count as having taken what cannot be compared.
pub const QUIET_FOR: Duration = Duration::from_secs(30);

/// A number of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// So many.
    Count(u64),
    /// This part of all that the rule chooses, in percent.
    Percent(u64),
}

impl Portion {
    /// Of so many; at least one.
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
    /// How many clusters may be under way at a time.
    pub max_concurrency: Portion,
    /// The label of the clusters that orders them.
    pub order_by: Option<String>,
    /// How long a wave is watched before the next one.
    pub soak: Duration,
    /// How many clusters may fail.
    pub max_failures: u64,
    /// Whether nothing further is sent.
    pub paused: bool,
    /// Whether, with one more, clusters get the state of the last completed rollout again.
    pub reverts: bool,
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
