//! The frame of the programs of this crate: arguments, the runtime and the exit code.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use crate::demo::narrate::Narrator;

/// The exit code of a program that was interrupted.
pub const INTERRUPTED: u8 = 130;

/// Returns the arguments of this process.
///
/// # Errors
/// The exit code, after clap's message: 1 for wrong arguments, 0 for help and version.
pub fn arguments<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        let _ = error.print();
        if error.use_stderr() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    })
}

/// Runs a program to its end. Threads that are left, such as an interrupted compiler's, are not
/// waited for.
pub fn block_on(name: &str, program: impl Future<Output = ExitCode>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{name}: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(program);
    runtime.shutdown_background();
    code
}

/// Prints the last sentence of a program with steps, and returns its exit code. `None`: it was
/// interrupted.
pub fn conclude(
    name: &str,
    narrator: &mut Narrator,
    begin: Instant,
    outcome: Result<Option<()>>,
) -> ExitCode {
    match outcome {
        Ok(Some(())) => {
            narrator.title(&format!(
                "\nDone: {} steps in {} s.",
                narrator.steps(),
                begin.elapsed().as_secs()
            ));
            ExitCode::SUCCESS
        }
        Ok(None) => {
            narrator.title("\nInterrupted; nothing is left behind.");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("\n{name} failed: {}", sentences(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, one on each line.
pub fn sentences(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(":\n  ")
}
