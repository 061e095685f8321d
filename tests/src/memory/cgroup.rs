//! Memory cgroups of versions 1 and 2, one for each limited process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

const PREFIX: &str = "runnel-tests";
const REMOVAL: Duration = Duration::from_secs(2);

static PARENT: OnceLock<Option<Parent>> = OnceLock::new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A cgroup in which this process may create others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parent {
    version: Version,
    path: PathBuf,
}

/// A memory cgroup with a limit; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Group {
    name: String,
    version: Version,
    path: PathBuf,
    limit: u64,
}

impl Group {
    /// Creates a group with this limit in bytes for the process `name`; `None` where this process may not create groups.
    pub fn create(name: &str, limit: u64) -> Result<Option<Self>> {
        PARENT
            .get_or_init(find_parent)
            .as_ref()
            .map(|parent| Self::create_in(parent, name, limit))
            .transpose()
    }

    fn create_in(parent: &Parent, name: &str, limit: u64) -> Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent
            .path
            .join(format!("{PREFIX}-{}-{number}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let group = Self {
            name: name.to_owned(),
            version: parent.version,
            path,
            limit,
        };
        let (limited, swap, swap_limit) = match group.version {
            Version::One => (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                limit,
            ),
            Version::Two => ("memory.max", "memory.swap.max", 0),
        };
        group.write(limited, &limit.to_string())?;
        // A kernel without accounting of swap has no such file.
        let _ = group.write(swap, &swap_limit.to_string());
        let set: u64 = group
            .read(limited)?
            .trim()
            .parse()
            .context("a limit that is not a number")?;
        ensure!(
            set <= limit,
            "the kernel set a memory limit of {set} bytes instead of {limit}"
        );
        Ok(group)
    }

    /// Moves a process into the group.
    pub fn enter(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Whether the kernel has killed the process at the limit, in words; that is recorded.
    pub fn kill(&self) -> Option<String> {
        if self.kills() == 0 {
            return None;
        }
        let how = format!(
            "the kernel killed it at its memory limit of {} MiB",
            self.limit >> 20
        );
        super::record_kill(&self.name, &how);
        Some(how)
    }

    fn kills(&self) -> u64 {
        let counted = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = self.read(counted).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or_default()
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.kill();
        // A process that has just been killed leaves its group a moment later.
        let begin = Instant::now();
        while fs::remove_dir(&self.path).is_err() && self.path.exists() && begin.elapsed() < REMOVAL
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The first cgroup in which a group with a limit can be created, if there is one.
fn find_parent() -> Option<Parent> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let usable = |parent: &Parent| {
        remove_leftovers(&parent.path);
        if parent.version == Version::Two {
            // Refused for a group with its own processes; a group above it may allow it.
            let _ = fs::write(parent.path.join("cgroup.subtree_control"), "+memory");
        }
        Group::create_in(parent, "a trial", 1 << 30).is_ok()
    };
    candidates(&own, &mounts).into_iter().find(usable)
}

/// Removes groups of test runs that were killed.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').nth(1));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Fails for a group with processes, as intended.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The cgroups in which groups might be created: the own memory cgroup of version 1, else the own one of version 2 and
/// those above it. The arguments are the contents of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn candidates(own: &str, mounts: &str) -> Vec<Parent> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        if controllers.split(',').any(|one| one == "memory") {
            let folder = mounted(mounts, path, |kind, options| {
                kind == "cgroup" && options.split(',').any(|option| option == "memory")
            });
            found.extend(folder.map(|(_, path)| Parent {
                version: Version::One,
                path,
            }));
        } else if controllers.is_empty() {
            let Some((mount, path)) = mounted(mounts, path, |kind, _| kind == "cgroup2") else {
                continue;
            };
            let above = path.ancestors().take_while(|one| one.starts_with(&mount));
            found.extend(above.map(|one| Parent {
                version: Version::Two,
                path: one.to_owned(),
            }));
        }
    }
    found.sort_by_key(|parent| parent.version == Version::Two);
    found
}

/// The mount point of the first matching file system, and where a cgroup's path lies below it.
fn mounted(
    mounts: &str,
    path: &str,
    matches: impl Fn(&str, &str) -> bool,
) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount) = (place.next()?, PathBuf::from(place.next()?));
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1).unwrap_or_default());
        // With a cgroup namespace the mount shows a part of the tree only.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let folder = if below.as_os_str().is_empty() {
            mount.clone()
        } else {
            mount.join(below)
        };
        matches(kind, options).then_some((mount, folder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(own: &str, mounts: &str) -> Vec<(Version, String)> {
        let found = candidates(own, mounts).into_iter();
        found
            .map(|parent| (parent.version, parent.path.display().to_string()))
            .collect()
    }

    #[test]
    fn memory_cgroups_are_found_in_both_versions() {
        let one = "8:pids:/\n4:memory,cpu:/api/x\n0::/\n";
        let mounts = "31 28 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      32 28 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                      33 28 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let first = (Version::One, "/sys/fs/cgroup/memory/api/x".to_owned());
        assert_eq!(
            paths(one, mounts),
            [first, (Version::Two, "/sys/fs/cgroup/unified".to_owned())]
        );

        let two = "0::/user.slice/run-1.scope\n";
        let mounts =
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let folders = [
            "/sys/fs/cgroup/user.slice/run-1.scope",
            "/sys/fs/cgroup/user.slice",
            "/sys/fs/cgroup",
        ];
        assert_eq!(
            paths(two, mounts),
            folders.map(|path| (Version::Two, path.to_owned()))
        );
        // A container's mount shows its own cgroup as the root.
        let container = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(
            paths("0::/docker/abc\n", container),
            [(Version::Two, "/sys/fs/cgroup".to_owned())]
        );
        assert!(paths("", "").is_empty() && paths(two, "broken - line\n").is_empty());
    }
}
