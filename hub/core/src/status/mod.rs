//! The contents of statuses: pure. The reports of the agents are folded into the status of a rule,
//! and sessions into that of a member.
//!
//! - Freshness: a status is never more stale than it states. A cluster without a sign of life for
//!   [`SILENCE`] is Unreachable, and the rule is not Ready.
//! - No noise: a fold that equals the current status is not written, a time changes only with its
//!   subject, and a restart of the hub changes nothing by itself.
//!
//! # Files
//! - `detail`: the state of a rule in one cluster, for the view API.
//! - `fleet`: the overview of the fleet.
//! - `fold`: folds all that is known of a rule into its status.
//! - `granted`: the condition `Granted`.
//! - `member`: the status of a member.
//! - `notices`: the Events.
//! - `report_store`: the last reports of the agents. Detects two agents with one key.
//! - `reports`: takes in the reports of one frame, and measures how long edits take.
//! - `rollout_view`: the state of a rollout, and its part of the status.
//! - `rule_cluster_state`: the state of one rule in one cluster.
//! - `unmatched`: what a rule names or looks for and does not find.
//! - `view`: all that is known of a rule and its clusters.
//! - `write_pace`: when a status is written.
mod detail;
mod fleet;
mod fold;
mod granted;
mod member;
mod notices;
mod report_store;
mod reports;
mod rollout_view;
mod rule_cluster_state;
#[cfg(test)]
mod tests;
mod unmatched;
mod view;
mod write_pace;

use std::time::Duration;

pub use crate::now::Now;
pub use crate::now::SETTLING;
pub use detail::{ClusterDetail, detail};
pub use fleet::{FleetCounts, fold_fleet};
pub use fold::fold;
pub use member::{MemberView, fold_member};
pub use notices::{EventReason, Notice, connection_notice, fleet_notices, notices};
pub use report_store::{ReportStore, SessionFacts, Uncertain, Unconfirmed};
pub use reports::{Deliveries, DeliveryTimes, ReportOutcome, ReportState, prune_requests};
pub use rule_cluster_state::{InProgress, ProofState, SentRule, in_progress};
pub(crate) use view::counted;
pub use view::{Rolling, View};
pub use write_pace::Pace;

/// How long a session may be lost before its cluster counts as unreachable. Keepalives detect a
/// half-open connection within another 25 s, so the hub reports an unreachable cluster within 45 s.
pub const SILENCE: Duration = Duration::from_secs(15);
