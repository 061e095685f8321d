//! Folders of a test run, which do not outlive it.

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

const OWNER: &str = "owner.lock";
const KEPT: &str = "kept";
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

static LIVING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Keeps the folders of a failed test and prints their paths, so that their logs can be read.
pub fn keep_everything() {
    LIVING.lock().iter().for_each(|path| keep(path));
}

/// A folder that only this user can read.
/// It is removed on drop. It is kept, and its path printed, if the thread is panicking, a wait of
/// this test run failed, or `RUNNEL_KEEP` is set. Folders of killed test runs are removed by the
/// next one, and kept folders after a day.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    // Locked as long as this test run lives: the kernel releases it even after a kill -9.
    owner: Option<File>,
}

impl Scratch {
    /// Creates a new, empty folder whose name contains `name`.
    ///
    /// # Errors
    /// When the temporary folder cannot be written, or belongs to another user.
    pub fn new(name: &str) -> Result<Self> {
        let root = root()?;
        let turn = locked(&root.join("turn.lock"))?;
        sweep(&root);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{name}-{}-{number}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let owner = locked(&path.join(OWNER))?;
        drop(turn);
        LIVING.lock().push(path.clone());
        if std::env::var_os("RUNNEL_KEEP").is_some_and(|value| !value.is_empty()) {
            keep(&path);
        }
        Ok(Self {
            path,
            owner: Some(owner),
        })
    }

    /// A folder of the caller's, created where it does not exist and never removed.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn given(path: &Path) -> Result<Self> {
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            owner: None,
        })
    }

    /// Where the folder is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else {
            return;
        };
        LIVING.lock().retain(|path| *path != self.path);
        if std::thread::panicking() {
            keep(&self.path);
        }
        if !self.path.join(KEPT).exists() {
            let _ = fs::remove_dir_all(&self.path);
        }
        drop(owner);
    }
}

fn keep(folder: &Path) {
    let marked = File::create_new(folder.join(KEPT)).is_ok();
    if marked {
        // Written around the capture of `cargo test`, so that the path is visible.
        let _ = writeln!(std::io::stderr(), "kept {}", folder.display());
    }
}

/// The folder of all test runs of this user.
///
/// # Errors
/// When it cannot be created, or belongs to another user.
pub(crate) fn root() -> Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let root = std::env::temp_dir().join(format!("runnel-tests-{user}"));
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(&root)
        .with_context(|| format!("cannot create {}", root.display()))?;
    let found = fs::symlink_metadata(&root)?;
    if !found.is_dir() || found.uid() != user {
        bail!(
            "{} belongs to someone else: remove it, or set TMPDIR to another folder",
            root.display()
        );
    }
    Ok(root)
}

fn locked(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock()
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

// Both sweeping and creating hold the turn lock, so a new folder is never swept before its owner
// has locked it.
fn sweep(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else {
        return;
    };
    for entry in entries.flatten() {
        if is_stale(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_stale(folder: &Path) -> bool {
    if !folder.is_dir() {
        return false;
    }
    if let Ok(kept) = fs::metadata(folder.join(KEPT)) {
        let since = kept.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        return since.elapsed().is_ok_and(|age| age > KEPT_FOR);
    }
    match File::open(folder.join(OWNER)) {
        Ok(owner) => owner.try_lock().is_ok(),
        Err(_) => true,
    }
}
