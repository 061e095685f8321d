//! The agent alone: a real control plane, and a hub written by hand that says what the agent shall do.
mod adopted;
mod alone;
mod connection;
mod copies;
mod exact;
mod fairness;
mod fake_hub;
mod hostile;
mod lease;
mod limited;
mod restart;
mod rights;
