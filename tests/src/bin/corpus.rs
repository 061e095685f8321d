//! `cargo corpus`: manifests of a folder through Runnel, compared with a plain `kubectl apply`.

use std::process::ExitCode;

fn main() -> ExitCode {
    runnel_tests::corpus::main()
}
