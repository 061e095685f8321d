//! Scenarios that each have a fleet of their own and wait for much of their time, so they run beside each other.

mod demo;
mod examples;
mod least_rights;
mod metrics;
mod query;
mod quiet;
mod reads;
mod renewal;
mod revoked;
mod rotations;
mod secrets;
mod source_namespaces;
