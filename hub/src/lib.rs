//! The hub: turns rules and sources into desired sets, streams them to the agents, and tells the truth about the
//! copies in the rules' statuses.
//!
//! A file either decides or does I/O, never both. These decide: [`plan`] (what one rule wants),
//! [`index`] (everything the hub knows), [`session`] (what one agent must be told next), [`rollout`] (which clusters may have a change now), [`status`] (what a rule's
//! status should say), [`whatif`] (what a rule would do).

pub mod ca;
pub mod config;
pub mod hub_state;
pub mod join;
pub mod lease;
pub mod metrics;
pub mod plugin;
pub mod query;
pub mod relist_barrier;
pub mod server;
pub mod token;
pub mod watch;
pub mod writer;
