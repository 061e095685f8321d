//! The agent: one process per member cluster. It keeps the copies there as the hub says, also while the hub is away.
//!
//! Files that decide (pure: no I/O, no clock): [`seal`], [`live`], [`records`], [`desired`], [`decide`], [`report`],
//! [`policy`] but for its file, [`rights`], [`queue`], [`backoff`], [`cache`], [`room`], [`body`], [`classify`], [`differ`],
//! [`fight`], [`foresee`], [`ignore`], [`previous`], [`takeovers`] and [`core`], which puts them together. Files that do I/O: the
//! others.
pub mod apply;
pub mod backoff;
pub mod body;
pub mod cache;
pub mod call;
pub mod classify;
pub mod config;
pub mod contention;
pub mod core;
pub mod decide;
mod deletes;
pub mod desired;
pub mod differ;
pub mod event_loop;
pub mod events;
pub mod fence;
pub mod foresee;
pub mod ignore;
pub mod inflight_budget;
pub mod job;
pub mod join;
pub mod keep;
pub mod lease;
pub mod link;
pub mod live;
pub mod metrics;
pub mod policy;
pub mod previous;
pub mod queue;
pub mod records;
pub mod report;
pub mod rights;
pub mod run;
pub mod seal;
pub mod small_set;
pub mod store;
pub mod takeovers;
pub mod watch;
pub mod worker;
