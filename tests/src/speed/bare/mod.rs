//! The bare programs: each does in a few dozen lines only what nobody can avoid, and knows no rule, status or failure.

mod broadcast;
mod relay;

pub use broadcast::{ADDRESS, AUTHORITY, HUB_ID, READY, serve};
pub use relay::{apply_all, keep, relay, watch_names};
