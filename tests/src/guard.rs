//! Processes that end with the test run, even after `kill -9`.
//! Each process has a watchdog: a shell that reads from a pipe whose other end only this test run
//! has. When the test run ends, the pipe closes and the watchdog kills the process. The process
//! waits for a line on its standard input before it becomes the real program, so it never runs
//! without a watchdog.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::memory::{Enforced, MemoryLimit};

const WAITS_FOR_A_MESSAGE: &str = r#"read -r _ && exec "$@" </dev/null"#;
const WATCHES: &str =
    r#"read -r watched || exit 0; read -r _ && exit 0; kill -s KILL -- "-$watched""#;

/// A program with its arguments and environment, ready to be started any number of times.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    inherits: bool,
    log: PathBuf,
    memory: Option<MemoryLimit>,
}

impl Program {
    /// The program at `path`, whose output is appended to the file `log`.
    pub fn new(path: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        let (path, log) = (path.into(), log.into());
        Self {
            path,
            arguments: Vec::new(),
            environment: Vec::new(),
            inherits: true,
            log,
            memory: None,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable; the other variables are inherited, without `KUBECONFIG`.
    #[must_use]
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Removes all inherited environment variables.
    #[must_use]
    pub fn without_inheritance(mut self) -> Self {
        self.inherits = false;
        self
    }

    /// Sets a memory limit.
    #[must_use]
    pub fn memory_limit(mut self, limit: MemoryLimit) -> Self {
        self.memory = Some(limit);
        self
    }

    /// Returns the file with the program's standard output and standard error.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Starts the program.
    ///
    /// # Errors
    /// When there is no such program, or no process can be started.
    pub fn start(&self) -> Result<Guarded> {
        if !self.path.is_file() {
            bail!("there is no program at {}", self.path.display());
        }
        let mut watchdog = watchdog()?;
        let name = format!("the process with the log {}", self.log.display());
        let limit = self
            .memory
            .map(|limit| limit.prepare(&name))
            .transpose()?
            .flatten();
        let mut child = self
            .command(limit.as_ref())?
            .spawn()
            .with_context(|| format!("cannot start {}", self.path.display()))?;
        let pid = pid_of(&child)?;
        writeln!(watchdog.pipe, "{}", pid.as_raw_pid()).context("the watchdog has ended")?;
        // Set before the program starts, so that all of its memory counts.
        limit
            .as_ref()
            .map_or(Ok(()), |limit| limit.enter(pid.as_raw_pid().unsigned_abs()))?;
        let mut word = child
            .stdin
            .take()
            .context("the process has no standard input")?;
        writeln!(word, "go").with_context(|| format!("{} ended at once", self.path.display()))?;
        let inner = Mutex::new(Inner {
            child,
            watchdog: Some(watchdog),
        });
        Ok(Guarded {
            path: self.path.clone(),
            pid,
            inner,
            limit,
        })
    }

    fn command(&self, limit: Option<&Enforced>) -> Result<Command> {
        let log = open_log(&self.log)?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(WAITS_FOR_A_MESSAGE).arg("sh");
        command
            .args(limit.map(Enforced::prefix).unwrap_or_default())
            .arg(&self.path)
            .args(&self.arguments);
        if !self.inherits {
            command.env_clear();
        }
        command
            .env_remove("KUBECONFIG")
            .envs(self.environment.iter().cloned());
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        // In its own process group: Ctrl-C ends the test run, and that ends this process.
        command.process_group(0);
        Ok(command)
    }
}

/// A running process that does not outlive the test run; dropping it kills it.
#[derive(Debug)]
pub struct Guarded {
    path: PathBuf,
    pid: Pid,
    inner: Mutex<Inner>,
    limit: Option<Enforced>,
}

#[derive(Debug)]
struct Inner {
    child: Child,
    watchdog: Option<Watchdog>,
}

#[derive(Debug)]
struct Watchdog {
    shell: Child,
    pipe: ChildStdin,
}

impl Guarded {
    /// The id of the real process, not of a wrapper around it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Kills the process, and returns after its end.
    ///
    /// # Errors
    /// If the operating system refuses. A process that has ended already is no error.
    pub fn kill9(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.ended()?.is_none() {
            // With its children, which are in its group.
            let _ = kill_process_group(self.pid, Signal::KILL);
            inner.child.wait()?;
            inner.disarm();
        }
        Ok(())
    }

    /// Asks the process to end (`SIGTERM`), and returns its exit code. After `deadline` it is
    /// killed.
    ///
    /// # Errors
    /// When it had to be killed.
    pub async fn terminate(&self, deadline: Duration) -> Result<i32> {
        self.signal(Signal::TERM)?;
        let begin = Instant::now();
        while begin.elapsed() < deadline {
            if let Some(code) = self.exit_code()? {
                return Ok(code);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.kill9()?;
        bail!(
            "{} did not end within {deadline:?} of SIGTERM and was killed",
            self.path.display()
        )
    }

    /// Freezes the process (`SIGSTOP`): its connections stay open without answers.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues a stopped process (`SIGCONT`).
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn cont(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether the process has not ended; a frozen one has not.
    ///
    /// # Errors
    /// When the operating system returns an error.
    pub fn is_running(&self) -> Result<bool> {
        Ok(self.exit_code()?.is_none())
    }

    /// The exit code of an ended process: 128 and the signal's number after a signal.
    ///
    /// # Errors
    /// When the operating system returns an error.
    pub fn exit_code(&self) -> Result<Option<i32>> {
        Ok(self.inner.lock().ended()?.map(code))
    }

    /// How the memory limit ended the process, if it did; `None` for one that was killed from here.
    /// Also recorded, so that every failed wait reports it.
    #[must_use]
    pub fn memory_kill(&self) -> Option<String> {
        let code = self.exit_code().unwrap_or_default()?;
        self.limit.as_ref()?.kill(code)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let mut inner = self.inner.lock();
        // The lock prevents a concurrent wait, so the process id is still that of the process.
        if inner.ended()?.is_none() {
            kill_process(self.pid, signal)
                .with_context(|| format!("cannot signal {}", self.path.display()))?;
        }
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.memory_kill();
        let _ = self.kill9();
    }
}

impl Inner {
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            self.disarm();
        }
        Ok(status)
    }

    fn disarm(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            let _ = writeln!(watchdog.pipe, "done");
            let _ = watchdog.shell.wait();
        }
    }
}

/// The last `count` lines of a log, for an error message.
#[must_use]
pub fn last_lines(log: &Path, count: usize) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

// Also in its own group, or Ctrl-C would end the watchdog before the watched process.
fn watchdog() -> Result<Watchdog> {
    let mut shell = Command::new("sh")
        .args(["-c", WATCHES])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot start a shell")?;
    let pipe = shell
        .stdin
        .take()
        .context("the watchdog has no standard input")?;
    Ok(Watchdog { shell, pipe })
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))
}

fn pid_of(child: &Child) -> Result<Pid> {
    Pid::from_raw(i32::try_from(child.id())?).ok_or_else(|| anyhow!("a process with the id 0"))
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
