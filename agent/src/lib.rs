//! Runnel agent.
