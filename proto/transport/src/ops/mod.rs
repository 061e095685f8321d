//! The operator's view of a process: logs, metrics, health, an orderly end.
mod dumps;
mod health;
mod logs;
mod metrics;
mod shutdown;
mod watches;

pub use dumps::forbid_core_dumps;
pub use health::{Awaited, BindError, Readiness, bind, router, serve};
pub use logs::{LOG_FILTER, LOG_KEYS, LogError, LogFormat, init_logs, log_filter};
pub use metrics::{Registry, registry};
pub use shutdown::{Aborted, DRAIN_LIMIT, Signals};
pub use watches::{Timed, TimedBody, WatchTimes};
