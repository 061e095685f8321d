//! Runnel hub.

pub mod crd;
