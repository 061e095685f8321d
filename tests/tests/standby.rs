//! Two replicas of the hub on one control plane, as the chart installs them: one leader and one
//! standby.

#[path = "standby/killed.rs"]
mod killed;
#[path = "standby/lease.rs"]
mod lease;
#[path = "standby/paused.rs"]
mod paused;
#[path = "standby/pinned.rs"]
mod pinned;
#[path = "standby/slept.rs"]
mod slept;
#[path = "standby/stage.rs"]
mod stage;
#[path = "standby/views.rs"]
mod views;
