//! Operations of a process: logs, metrics, health, shutdown.
mod health;
mod logs;
mod metrics;
mod shutdown;
mod watches;

pub use health::{BindError, Liveness, MovingPart, PendingPart, Readiness, bind, router, serve};
pub use logs::{LOG_FILTER, LOG_KEYS, LogError, LogFormat, init_logs, log_filter};
pub use metrics::{Registry, registry};
pub use shutdown::{Aborted, DRAIN_LIMIT, Signals};
pub use watches::{Timed, TimedBody, WatchTimes};

/// Disables core dumps: the memory of hub and agent contains keys and the content of Secrets. The kernel never writes
/// this process's memory to a core dump, and only root may trace it. A
/// limit of zero for core dumps is not enough: a node that pipes dumps into a program ignores it.
pub fn forbid_core_dumps() {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        tracing::warn!(%error, "the kernel does not take it that core dumps are forbidden");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};

    #[test]
    fn forbidden_core_dumps_are_off_in_the_kernel() {
        let before = dumpable_behavior().unwrap();
        forbid_core_dumps();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        set_dumpable_behavior(before).unwrap();
    }
}
