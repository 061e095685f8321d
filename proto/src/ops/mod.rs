//! What each process owes its operator: logs, metrics, health, an orderly end.
mod health;
mod logs;
mod metrics;
mod shutdown;

pub use health::{bind, router, serve, Awaited, BindError, Readiness};
pub use logs::{init_logs, LogError, LogFormat, LOG_FILTER};
pub use metrics::{registry, Registry};
pub use shutdown::{Aborted, Signals, DRAIN_LIMIT};
