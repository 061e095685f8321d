//! The agent alone: a real control plane, and a hub written by hand that says what the agent shall do.
mod alone;
mod back;
mod connection;
mod copies;
mod fake_hub;
mod hostile;
mod limited;
mod restart;
mod rights;
