//! Attacks on the memory of hub and agents, under the limits of their charts: whatever tenants and strangers create, the
//! processes live, and an honest rule is served.

#[path = "memory/metadata.rs"]
mod metadata;
#[path = "memory/shaped.rs"]
mod shaped;
#[path = "memory/stage.rs"]
mod stage;
