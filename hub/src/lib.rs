//! Runnel hub.
