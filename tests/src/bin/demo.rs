//! `cargo demo`: Runnel on real control planes, explained line by line.

use std::process::ExitCode;

fn main() -> ExitCode {
    runnel_tests::demo::main()
}
