//! Attacks on the memory of hub and agents, under the limits of their charts. Whatever tenants and
//! strangers create, the processes keep running and an honest rule is served.

#[path = "memory/metadata.rs"]
mod metadata;
#[path = "memory/nodes.rs"]
mod nodes;
#[path = "memory/shaped.rs"]
mod shaped;
#[path = "memory/stage.rs"]
mod stage;
#[path = "memory/views.rs"]
mod views;
