//! The decisions of the hub: no I/O, no clock, no randomness. Time is an argument.
//!
//! - [`plan`]: the desired copies of one rule in each cluster.
//! - [`index`]: the rules, sources, grants and clusters, and their plans.
//! - [`session`]: the next messages to one agent.
//! - [`rollout`]: the clusters that may have a change now.
//! - [`guard`]: the removals that need an approval.
//! - [`status`]: the contents of the statuses.
//! - [`epoch`]: the history of leaders, and the divergences that it proves.
//! - [`lease`]: the steps of a candidate, and the records of leaders in the Lease.
//! - [`preview`]: the outcome of an unsaved change.
#![cfg_attr(
    not(test),
    deny(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::disallowed_macros
    )
)]

pub mod audit;
pub mod epoch;
pub mod guard;
pub mod index;
pub mod lease;
pub mod now;
pub mod plan;
pub mod preview;
pub mod rate_limit;
pub mod rollout;
pub mod session;
pub mod status;
#[cfg(test)]
mod tests;
