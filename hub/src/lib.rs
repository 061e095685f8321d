//! The hub: turns rules and sources into desired sets, streams them to the agents, and tells the truth about the
//! copies in the rules' statuses.
//!
//! A file either decides or does I/O, never both. These decide: [`plan`] (what one rule wants),
//! [`index`] (everything the hub knows), [`session`] (what one agent must be told next), [`rollout`] (which clusters may have a change now), [`status`] (what a rule's
//! status should say), [`whatif`] (what a rule would do).

pub mod brake;
pub mod ca;
pub mod config;
pub mod epoch;
pub mod hub_state;
pub mod index;
pub mod join;
pub mod lease;
pub mod metrics;
pub mod names;
pub mod plan;
pub mod plugin;
pub mod query;
pub mod rate_limit;
pub mod relist_barrier;
pub mod rollout;
pub mod server;
pub mod session;
pub mod status;
pub mod token;
pub mod watch;
pub mod whatif;
pub mod writer;
