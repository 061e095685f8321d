//! `cargo test-all`: all tests, several test programs at a time.

use std::process::ExitCode;

fn main() -> ExitCode {
    runnel_tests::all::main()
}
