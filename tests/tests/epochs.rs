//! A hub that is restored from an older backup, two hubs with one identity, two clusters with one identity, a cluster that
//! joins anew: each is noticed, and nothing is removed or rolled back before an administrator confirms.
//!
//! Each test has a fleet of its own, as the others would notice.

#[path = "epochs/clusters.rs"]
mod clusters;
#[path = "epochs/doubled.rs"]
mod doubled;
#[path = "epochs/restored.rs"]
mod restored;
#[path = "epochs/stage.rs"]
mod stage;
