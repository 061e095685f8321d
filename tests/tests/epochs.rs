//! A hub restored from an older backup, two hubs with one identity, two clusters with one identity,
//! a cluster that joins again: each is detected, and nothing is removed or rolled back before an
//! administrator confirms.
//! Each test has its own fleet, because it affects all members.

#[path = "epochs/clusters.rs"]
mod clusters;
#[path = "epochs/doubled.rs"]
mod doubled;
#[path = "epochs/restored.rs"]
mod restored;
#[path = "epochs/stage.rs"]
mod stage;
