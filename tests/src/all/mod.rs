//! `cargo test-all`: every test that `cargo test --workspace` runs, several test programs at a time.
//!
//! Most of the time of a live test is waiting, and cargo runs one program after another. Here as many run at a time as there are
//! cores and memory for. Every other worker begins with those that took longest the last time, the rest with the shortest: those
//! that take long mostly work their API servers hard, and would starve each other. What a program prints is shown in one piece
//! when it ends, and all of it stays in `target/test-all`.

mod order;
mod programs;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use parking_lot::Mutex;

use crate::cargo;
use order::{Durations, at_once};
use programs::TestProgram;

/// The seconds of the programs that take a minute or more, for the first run on a machine.
const FIRST_RUN: &str = include_str!("seconds.json");

/// How much garbage the Go programs keep, in percent of what they need: they spend a fifth of their time on collecting it by default.
const GARBAGE: &str = "300";

/// Runs all tests, several test programs at a time.
#[derive(Debug, Parser)]
#[command(name = "test-all")]
struct TestOptions {
    /// So many test programs at a time, each with RUST_TEST_THREADS tests. By default one per core, as far as there are 4 GiB
    /// of free memory for each.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    at_once: Option<u16>,
    /// Only programs whose name contains one of these, and no doc tests.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// The shared state of one run.
struct Run {
    folder: PathBuf,
    waiting: Mutex<VecDeque<TestProgram>>,
    ended: Mutex<Vec<ProgramResult>>,
    of: usize,
}

/// A program that has ended.
struct ProgramResult {
    name: String,
    passed: bool,
    took: Duration,
}

/// The whole program.
pub fn main() -> ExitCode {
    match run(&TestOptions::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &TestOptions) -> Result<bool> {
    let begin = Instant::now();
    let mut programs = programs::build()?;
    programs.retain(|program| {
        options.names.is_empty() || options.names.iter().any(|name| program.name.contains(name))
    });
    anyhow::ensure!(
        !programs.is_empty(),
        "no test program is called like {}",
        options.names.join(" or ")
    );
    println!(
        "{} test programs are built after {} s",
        programs.len(),
        begin.elapsed().as_secs()
    );

    let folder = programs::target()?.join("test-all");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let last_run = fs::read_to_string(folder.join("seconds.json"));
    let mut durations = Durations::read(last_run.as_deref().unwrap_or(FIRST_RUN));
    durations.sort(&mut programs, |program| &program.name);

    let at_once = options
        .at_once
        .map_or_else(|| at_once(cores(), free_memory()), usize::from);
    let run = Run {
        of: programs.len(),
        folder,
        waiting: Mutex::new(programs.into()),
        ended: Mutex::default(),
    };
    let failed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once)
            .map(|worker| {
                let run = &run;
                scope.spawn(move || run.work(End::of(worker)))
            })
            .collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok()?.err())
            .next()
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let ended = run.ended.into_inner();
    durations.note(
        ended
            .iter()
            .filter(|one| one.passed)
            .map(|one| (one.name.clone(), one.took.as_secs())),
    );
    fs::write(run.folder.join("seconds.json"), durations.to_string())
        .context("cannot write seconds.json")?;
    let documented = !options.names.is_empty() || programs::doc_tests()?;
    Ok(summary(&ended, documented, begin.elapsed()))
}

/// The end of the queue that a worker takes programs from.
#[derive(Clone, Copy)]
enum End {
    Longest,
    Shortest,
}

impl End {
    fn of(worker: usize) -> Self {
        if worker.is_multiple_of(2) {
            Self::Longest
        } else {
            Self::Shortest
        }
    }

    fn take<T>(self, queue: &mut VecDeque<T>) -> Option<T> {
        match self {
            Self::Longest => queue.pop_front(),
            Self::Shortest => queue.pop_back(),
        }
    }
}

impl Run {
    /// Runs what waits, one program after another.
    fn work(&self, end: End) -> Result<()> {
        while let Some(program) = self.next(end) {
            let log = self.folder.join(format!("{}.log", program.file_name()));
            let begin = Instant::now();
            let passed = execute(&program, &log)?;
            let took = begin.elapsed();
            let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let mut ended = self.ended.lock();
            ended.push(ProgramResult {
                name: program.name.clone(),
                passed,
                took,
            });
            let how = if passed { "passed" } else { "FAILED" };
            let mut out = std::io::stdout().lock();
            let (n, of) = (ended.len(), self.of);
            writeln!(
                out,
                "{text}==> {n}/{of} {} {how} in {} s\n",
                program.name,
                took.as_secs()
            )?;
        }
        Ok(())
    }

    fn next(&self, end: End) -> Option<TestProgram> {
        end.take(&mut self.waiting.lock())
    }
}

/// Runs one program as cargo does. Both of its outputs are written to a file: a pipe might stay
/// open in a child process.
fn execute(program: &TestProgram, log: &Path) -> Result<bool> {
    let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(&program.executable);
    cargo::without_own_package(&mut command);
    command
        .current_dir(&program.package)
        .env("CARGO_MANIFEST_DIR", &program.package)
        .env("GOGC", GARBAGE);
    command
        .stdin(Stdio::null())
        .stderr(out.try_clone()?)
        .stdout(out);
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", program.executable.display()))?;
    Ok(status.success())
}

fn summary(ended: &[ProgramResult], documented: bool, took: Duration) -> bool {
    let failed: Vec<_> = ended
        .iter()
        .filter(|one| !one.passed)
        .map(|one| one.name.as_str())
        .collect();
    let documentation = if documented {
        ""
    } else {
        "the doc tests FAILED; "
    };
    match failed.as_slice() {
        [] => println!(
            "{documentation}all {} test programs passed in {} s",
            ended.len(),
            took.as_secs()
        ),
        _ => println!(
            "{documentation}{} of {} test programs FAILED in {} s: {}",
            failed.len(),
            ended.len(),
            took.as_secs(),
            failed.join(", ")
        ),
    }
    failed.is_empty() && documented
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The free memory in bytes, if the system reports it.
fn free_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let fields: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .collect();
    let kibibytes = fields
        .get("MemAvailable")?
        .trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?;
    Some(kibibytes * 1024)
}
