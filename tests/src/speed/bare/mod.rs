//! The bare programs: each does only the unavoidable work in a few dozen lines, without rules,
//! statuses or failures.

mod broadcast;
mod relay;

pub use broadcast::{ADDRESS, CA, HUB_ID, READY, serve};
pub use relay::{apply_all, keep, relay, watch_names};
