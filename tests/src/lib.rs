//! The test harness: real Kubernetes control planes and the real binaries.
//! Start with [`fleet::Fleet`] for a hub with its member clusters, or with
//! [`control_plane::ControlPlane`] for a single cluster. [`wait`] has the only functions to wait in
//! a test. All started processes end with the test, even after a `kill -9`.

pub mod all;
pub mod assets;
pub mod audit;
pub mod binaries;
pub mod cargo;
pub mod control_plane;
pub mod corpus;
pub mod demo;
pub mod e2e;
pub mod files;
pub mod fleet;
pub mod guard;
pub mod helm;
pub mod http;
pub mod memory;
pub mod nodes;
pub mod page;
pub mod pod;
pub mod ports;
pub mod program;
pub mod progress;
pub mod prometheus;
pub mod restartable;
pub mod scene;
pub mod scratch;
pub mod simulated;
pub mod specimens;
pub mod speed;
pub mod tenant;
pub mod tunnels;
pub mod turns;
pub mod wait;
