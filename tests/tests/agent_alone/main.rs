//! The agent alone: a real control plane, and a simulated hub that sends what a test sets.
mod adopted;
mod alone;
mod connection;
mod copies;
mod exact;
mod fairness;
mod fake_hub;
mod former;
mod hostile;
mod lease;
mod limited;
mod owned;
mod owner;
mod restart;
mod rights;
mod scaled;
mod stored;

mod unmerged;
