//! `cargo e2e`: Runnel's images and charts on clusters with real nodes.

use std::process::ExitCode;

fn main() -> ExitCode {
    runnel_tests::e2e::main()
}
