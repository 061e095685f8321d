//! What Runnel's tests stand on: real Kubernetes control planes and the real binaries.
//!
//! Start with [`control_plane::ControlPlane`], a cluster without nodes. [`wait`] holds the only ways in
//! which a test may wait. Everything that is started here ends with the test, even after a `kill -9`.

pub mod assets;
pub mod audit;
pub mod control_plane;
pub mod guard;
pub mod ports;
pub mod progress;
pub mod restartable;
pub mod scratch;
pub mod wait;
