//! The hub's I/O: watches of the hub's API server, streams to the agents, and writes of statuses.
//! [`runnel_hub_core`] has the decisions.

pub mod analysis;
pub mod ca;
pub mod call;
pub mod config;
pub mod hub_state;
pub mod join;
pub mod lease;
pub mod member_records;
pub mod membership;
pub mod metrics;
pub mod object_cache;
pub mod ordered_lock;
pub mod relist_barrier;
pub mod server;
pub mod token;
pub mod view;
pub mod watch;
pub mod writer;
