//! `cargo page`: the page of `kubectl runnel ui` in a real browser, with a live fleet on local control planes.

mod browser;
mod generated;
mod large;
mod plugin;
mod screenshots;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use self::screenshots::Screenshots;
use crate::binaries;
use crate::demo::narrate::Narrator;
use crate::demo::{unless_interrupted, with_logs};
use crate::program;
use crate::scratch::Scratch;

/// Opens the page of `kubectl runnel ui` in Debian's chromium, and compares it with the API server of a live fleet.
///
/// Where the browser is missing, it is installed if this runs as root.
#[derive(Debug, Parser)]
#[command(name = "cargo page", bin_name = "cargo page")]
pub struct Arguments {
    /// Also takes the pictures of README and manual, light and dark.
    #[arg(long, value_name = "DIR")]
    screenshots: Option<PathBuf>,
    /// Measures the page with 200 rules in 1,000 clusters instead, which a generated API server answers.
    #[arg(long, conflicts_with = "screenshots")]
    large: bool,
}

/// Runs it with the arguments of this process, and returns its exit code: 0 for success, 1 if something
/// failed or the arguments are wrong, 130 when it was interrupted.
pub fn main() -> ExitCode {
    match program::arguments::<Arguments>() {
        Ok(arguments) => program::block_on("cargo page", run(&arguments)),
        Err(code) => code,
    }
}

async fn run(arguments: &Arguments) -> ExitCode {
    let begin = Instant::now();
    let mut narrator = Narrator::new();
    let outcome = unless_interrupted(observed(arguments, &mut narrator)).await;
    program::conclude("cargo page", &mut narrator, begin, outcome)
}

async fn observed(arguments: &Arguments, narrator: &mut Narrator) -> Result<()> {
    tokio::task::spawn_blocking(browser::prepare).await??;
    let built = tokio::task::spawn_blocking(binaries::build).await??;
    let plugin = built.folder.join("kubectl-runnel");
    let scratch = Scratch::new("page")?;
    let folder = scratch.path();
    if arguments.large {
        return with_logs(large::measure(narrator, folder, &plugin).await);
    }
    let screenshots = arguments.screenshots.as_deref();
    let screenshots = screenshots.map(|folder| Screenshots { folder });
    if let Some(screenshots) = &screenshots {
        with_logs(screenshots.matrix(narrator, folder, &plugin).await)?;
    }
    with_logs(story::check(narrator, folder, screenshots).await)
}
