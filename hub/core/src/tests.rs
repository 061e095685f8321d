//! Tests of several parts of the core together.
mod histories;
