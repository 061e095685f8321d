//! Runnel tests.
