//! Memory limits of processes, and the memory that they used.
//!
//! A limit is enforced by a memory cgroup (version 1 or 2) where this process may create one, which needs root. The
//! kernel kills the process at the limit, as it kills a container. Without such a cgroup, `prlimit --data` refuses
//! allocations beyond the limit, and the process aborts. Every such kill is recorded: [`kills`] lists them, and each
//! wait that fails reports them.

mod cgroup;

use std::process::Command;
use std::sync::{Arc, Weak};

use anyhow::{Context, Result, bail};
use cgroup::Group;
use parking_lot::Mutex;

use crate::speed::process;

/// The signal of `abort`, with which a Rust program ends when an allocation fails.
const ABORTED: i32 = 128 + 6;

static KILLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static GROUPS: Mutex<Vec<Weak<Group>>> = Mutex::new(Vec::new());

/// How the memory limit of a process is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// By a memory cgroup where one can be created, otherwise not at all.
    #[default]
    IfCgroup,
    /// By a memory cgroup where one can be created, otherwise by `prlimit --data`, which counts reserved memory too and
    /// so is a little stricter.
    Always,
    /// The limit is not enforced.
    Never,
}

/// The memory limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// How it is enforced.
    pub enforcement: Enforcement,
}

/// What enforces the limit of one process.
#[derive(Clone, Debug)]
pub(crate) enum Enforced {
    /// A cgroup, removed when the last reference goes.
    Group(Arc<Group>),
    /// `prlimit --data`.
    DataSegment {
        /// The name of the process for messages.
        name: String,
        /// The limit.
        bytes: u64,
    },
}

impl MemoryLimit {
    /// Prepares the limit for a process that is to be started and is called `name` in messages; `None` where it is not
    /// enforced.
    ///
    /// # Errors
    /// When the limit has to be enforced and the system offers no way.
    pub(crate) fn prepare(self, name: &str) -> Result<Option<Enforced>> {
        if self.enforcement == Enforcement::Never {
            return Ok(None);
        }
        if let Some(group) = Group::create(name, self.bytes)? {
            let group = Arc::new(group);
            let mut groups = GROUPS.lock();
            groups.retain(|known| known.strong_count() > 0);
            groups.push(Arc::downgrade(&group));
            return Ok(Some(Enforced::Group(group)));
        }
        if self.enforcement == Enforcement::IfCgroup {
            return Ok(None);
        }
        let found = Command::new("prlimit").arg("--version").output();
        found
            .context("a memory limit needs root (for a memory cgroup) or prlimit of util-linux")?;
        Ok(Some(Enforced::DataSegment {
            name: name.to_owned(),
            bytes: self.bytes,
        }))
    }
}

impl Enforced {
    /// The arguments before the program in its command line.
    pub fn prefix(&self) -> Vec<String> {
        match self {
            Self::Group(_) => Vec::new(),
            Self::DataSegment { bytes, .. } => vec![
                "prlimit".to_owned(),
                format!("--data={bytes}"),
                "--".to_owned(),
            ],
        }
    }

    /// Puts a process under the limit, before it becomes the real program.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self, pid: u32) -> Result<()> {
        match self {
            Self::Group(group) => group.enter(pid),
            Self::DataSegment { .. } => Ok(()),
        }
    }

    /// How a process that ended with this exit code was stopped by the limit, if it was.
    pub fn kill(&self, exit_code: i32) -> Option<String> {
        match self {
            Self::Group(group) => group.kill(),
            Self::DataSegment { name, bytes } if exit_code == ABORTED => {
                let how = format!(
                    "it aborted under its memory limit of {} MiB (prlimit --data)",
                    bytes >> 20
                );
                record_kill(name, &how);
                Some(how)
            }
            Self::DataSegment { .. } => None,
        }
    }
}

/// Records that the process `name` was stopped by its memory limit.
fn record_kill(name: &str, how: &str) {
    let line = format!("{name}: {how}");
    let mut kills = KILLS.lock();
    if !kills.contains(&line) {
        kills.push(line);
    }
}

/// Every process of this test run that was found to be stopped by its memory limit.
#[must_use]
pub fn kills() -> Vec<String> {
    let living: Vec<Arc<Group>> = GROUPS.lock().iter().filter_map(Weak::upgrade).collect();
    for group in living {
        // Recorded when it is read.
        let _ = group.kill();
    }
    KILLS.lock().clone()
}

/// The peak of the resident memory of a process (`VmHWM`), in bytes.
///
/// # Errors
/// When there is no such process.
pub fn peak(pid: u32) -> Result<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number of bytes"
    )]
    process::peak(pid).map(|bytes| bytes as u64)
}

/// Parses a memory quantity of Kubernetes, such as `512Mi`, into bytes.
///
/// # Errors
/// When it is not a whole number with a known suffix.
pub fn parse_quantity(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|character: char| !character.is_ascii_digit());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        suffix => bail!("the memory quantity {text} has the unknown suffix {suffix:?}"),
    };
    let number: u64 = digits
        .parse()
        .with_context(|| format!("the memory quantity {text} is not a whole number"))?;
    number
        .checked_mul(factor)
        .with_context(|| format!("the memory quantity {text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_quantities_parse_as_in_kubernetes() {
        for (text, expected) in [
            ("512Mi", 512 << 20),
            ("1Gi", 1 << 30),
            ("100", 100),
            ("2M", 2_000_000),
        ] {
            assert_eq!(parse_quantity(text).ok(), Some(expected), "{text}");
        }
        for wrong in ["", "Mi", "1.5Gi", "1Pi", "99999999999Gi", "-1"] {
            assert!(parse_quantity(wrong).is_err(), "{wrong}");
        }
    }
}
