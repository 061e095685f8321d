//! The hub's wire interface: authentication, data isolation of members, and cost. The members are
//! simulated; the hub, its API server and every byte between them are real.

#[path = "wire/costs.rs"]
mod costs;
#[path = "wire/delivery.rs"]
mod delivery;
#[path = "wire/frames.rs"]
mod frames;
#[path = "wire/greedy.rs"]
mod greedy;
#[path = "wire/handover.rs"]
mod handover;
#[path = "wire/identity.rs"]
mod identity;
#[path = "wire/isolation.rs"]
mod isolation;
#[path = "wire/joining.rs"]
mod joining;
#[path = "wire/proof.rs"]
mod proof;
#[path = "wire/resume.rs"]
mod resume;
#[path = "wire/revoked.rs"]
mod revoked;
#[path = "wire/shared_key.rs"]
mod shared_key;
#[path = "wire/stage.rs"]
mod stage;
#[path = "wire/tokens.rs"]
mod tokens;
