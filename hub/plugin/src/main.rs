//! `kubectl runnel`: a kubectl plugin, found in PATH under this name.
use std::process::ExitCode;

use clap::Parser;
use include_dir::{Dir, include_dir};
use kubectl_runnel::{
    ExitError, FAILED, USAGE,
    args::{Cli, keep_near_suggestions},
};

/// The charts of this version.
static CHARTS: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/../../deploy/charts");

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            keep_near_suggestions(&mut error);
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let Err(error) = kubectl_runnel::run(cli, &CHARTS).await else {
        return ExitCode::SUCCESS;
    };
    let (code, text) = match error.downcast_ref::<ExitError>() {
        Some(ended) => (ended.code, ended.text.clone()),
        None => (FAILED, format!("{error:#}")),
    };
    if !text.is_empty() {
        kubectl_runnel::note(&format!("error: {text}"));
    }
    ExitCode::from(code)
}
