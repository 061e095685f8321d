//! A guarded program that a test stops, kills and starts again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use crate::guard::{Guarded, Program, last_lines};
use crate::memory;

/// A program that runs at most once at a time; dropping it kills it.
#[derive(Debug)]
pub struct Restartable {
    name: String,
    program: Mutex<Program>,
    log: PathBuf,
    running: Mutex<Option<Guarded>>,
}

impl Restartable {
    /// `program`, not started yet, called `name` in messages.
    pub fn new(name: impl Into<String>, program: Program) -> Self {
        let log = program.log().to_owned();
        Self {
            name: name.into(),
            program: Mutex::new(program),
            log,
            running: Mutex::new(None),
        }
    }

    /// Changes the program for the next start; the log is unchanged.
    pub fn set_program(&self, program: Program) {
        *self.program.lock() = program;
    }

    /// Starts the program, with the same arguments each time and the same log.
    ///
    /// # Errors
    /// When it runs already, cannot be started, or was ended by its memory limit the last time.
    pub fn start(&self) -> Result<()> {
        let mut running = self.running.lock();
        if let Some(process) = running.as_ref()
            && process.is_running()?
        {
            bail!("{} runs already", self.name);
        }
        running
            .as_ref()
            .map_or(Ok(()), |process| self.within_memory(process))?;
        *running = Some(self.program.lock().start()?);
        Ok(())
    }

    /// Kills the program with `kill -9` and returns when it is gone. No error when it does not run.
    ///
    /// # Errors
    /// When the operating system refuses, or the memory limit has ended the program.
    pub fn kill(&self) -> Result<()> {
        match self.running.lock().take() {
            Some(process) => self.within_memory(&process).and_then(|()| process.kill9()),
            None => Ok(()),
        }
    }

    /// Asks the program to end and returns its exit code; after `deadline` it is killed.
    ///
    /// # Errors
    /// When it did not run, or had to be killed.
    pub async fn terminate(&self, deadline: Duration) -> Result<i32> {
        let process = self.running.lock().take();
        let process = process.with_context(|| format!("{} does not run", self.name))?;
        self.within_memory(&process)?;
        process.terminate(deadline).await
    }

    /// Freezes the program: its connections stay open without answers.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        self.with(Guarded::stop)
    }

    /// Lets a frozen program go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.with(Guarded::cont)
    }

    /// The id of the running process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        self.with(|process| Ok(process.pid()))
    }

    /// The peak of the running program's resident memory (`VmHWM`), in bytes.
    ///
    /// # Errors
    /// When it does not run.
    pub fn peak_memory(&self) -> Result<u64> {
        memory::peak(self.pid()?)
    }

    /// Whether the program runs; a frozen one does.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running
            .lock()
            .as_ref()
            .is_some_and(|process| process.is_running().unwrap_or(false))
    }

    /// The exit code of a program that ended by itself; `None` while it runs and after it was
    /// stopped from here.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        self.running
            .lock()
            .as_ref()
            .and_then(|process| process.exit_code().unwrap_or(None))
    }

    /// The file to which the program writes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Checks that the program has not ended by itself.
    ///
    /// # Errors
    /// If it has; with its exit code and the end of its log.
    pub fn check(&self) -> Result<()> {
        let Some(code) = self.exit_code() else {
            return Ok(());
        };
        let kill = self.running.lock().as_ref().and_then(Guarded::memory_kill);
        let kill = kill.map(|how| format!(": {how}")).unwrap_or_default();
        bail!(
            "{} ended by itself with exit code {code}{kill}; {}",
            self.name,
            self.last_words()
        )
    }

    /// Returns the end of the log with its path, for an error message.
    #[must_use]
    pub fn last_words(&self) -> String {
        format!(
            "the end of {}:\n{}",
            self.log().display(),
            last_lines(self.log(), 15)
        )
    }

    /// Fails where the memory limit has ended the process: a test that ends or restarts it would hide that.
    fn within_memory(&self, process: &Guarded) -> Result<()> {
        match process.memory_kill() {
            Some(how) => bail!(
                "{} had ended before: {how}; {}",
                self.name,
                self.last_words()
            ),
            None => Ok(()),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&Guarded) -> Result<T>) -> Result<T> {
        let running = self.running.lock();
        act(running
            .as_ref()
            .with_context(|| format!("{} does not run", self.name))?)
    }
}
