//! The agent's I/O: watches and writes of the member's API server, the stream to the hub, and the
//! store. [`runnel_agent_core`] contains the decisions.

pub mod apply;
pub mod call;
pub mod config;
pub mod event_loop;
pub mod events;
pub mod join;
pub mod kinds;
pub mod lease;
pub mod link;
pub mod metrics;
pub mod newest_object;
pub mod policy_file;
pub mod run;
pub mod store;
pub mod watch;
