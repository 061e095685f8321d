//! The decisions of the agent. The crate has no I/O, clock or randomness: time is an argument.
//!
//! [`reconciler`] combines the other modules: it receives events and returns jobs and frames.
#![cfg_attr(
    not(test),
    deny(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::disallowed_macros
    )
)]

pub mod audit;
pub mod backoff;
pub mod body;
pub mod classify;
pub mod contained;
pub mod contention;
pub mod copy;
pub mod decide;
pub mod delete_limit;
pub mod desired;
pub mod diff;
pub mod feedback;
pub mod field_set;
pub mod health;
pub mod leader_fence;
pub mod live;
pub mod managed_fields;
pub mod phase;
pub mod policy;
pub mod preview;
pub mod reconciler;
pub mod records;
pub mod recreation;
pub mod replacement;
pub mod report;
pub mod seal;
pub mod small_set;
