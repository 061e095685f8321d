//! What the hub decides: no I/O, no clock, no randomness. Time is an argument.
//!
//! - [`plan`]: what one rule wants in each cluster.
//! - [`index`]: everything that the hub knows of rules, sources, grants and clusters.
//! - [`session`]: what one agent is sent next.
//! - [`rollout`]: which clusters may have a change now.
//! - [`guard`]: what may not be removed without approval.
//! - [`status`]: what a rule's status says.
//! - [`epoch`]: the history of leaders, and what it says about a hub that was restored.
//! - [`lease`]: what a candidate does to lead, and what the Lease records of leaders.
//! - [`preview`]: what a rule would do.
#![cfg_attr(
    not(test),
    deny(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::disallowed_macros
    )
)]

pub mod epoch;
pub mod guard;
pub mod index;
pub mod lease;
pub mod names;
pub mod now;
pub mod plan;
pub mod preview;
pub mod rate_limit;
pub mod rollout;
pub mod session;
pub mod status;
