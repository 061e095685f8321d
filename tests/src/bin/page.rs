//! `cargo page`: the page of `kubectl runnel ui` in a real browser.

use std::process::ExitCode;

fn main() -> ExitCode {
    runnel_tests::page::main()
}
