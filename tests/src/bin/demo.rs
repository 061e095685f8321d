//! `cargo demo`: Runnel on real control planes, told line by line.

use std::process::ExitCode;

fn main() -> ExitCode {
    runnel_tests::demo::main()
}
