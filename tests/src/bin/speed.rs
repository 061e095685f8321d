//! `cargo speed`: Runnel beside the least that the machine could do.

use std::process::ExitCode;

fn main() -> ExitCode {
    runnel_tests::speed::main()
}
