//! `runnel-hub`: the hub and its other commands.
mod run;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use runnel_hub::config::{Cli, Command, Token};
use runnel_hub::token;
use runnel_transport::ops::{self, WatchTimes};
use tokio::runtime::Handle;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match start(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("runnel-hub: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints help, the version or a usage error. Wrong usage exits with 1, like any other invalid
/// input.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// The Lease has a thread of its own: whatever the others compute, and whichever lock they wait for, a renewal is sent in time.
const KEEPERS: usize = 1;

fn start(cli: Cli) -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let workers = builder.enable_all().build()?;
    let keepers = builder.worker_threads(KEEPERS).build()?;
    let ended = workers.block_on(command(cli, keepers.handle().clone()));
    keepers.shutdown_background();
    ended
}

async fn command(cli: Cli, keepers: Handle) -> anyhow::Result<()> {
    match cli.command {
        Command::Crds => {
            print!("{}", runnel_api::yaml());
            Ok(())
        }
        Command::Run(options) => {
            ops::init_logs(options.access.log_format)?;
            ops::forbid_core_dumps();
            run::run(*options, keepers).await
        }
        Command::Token(Token::Create(options)) => {
            ops::init_logs(options.access.log_format)?;
            let client = run::client(&options.access, &WatchTimes::default()).await?;
            let request = token::TokenRequest {
                cluster: options.cluster,
                labels: options.labels,
                ttl: options.ttl,
                advertise: options.advertise,
            };
            let namespace = &options.access.namespace;
            let join_string = match options.manifest {
                None => token::create(client, namespace, request).await?,
                Some(path) => {
                    let declared = token::declare(client, namespace, request).await?;
                    let unwritten = || format!("--manifest {} cannot be written", path.display());
                    std::fs::write(&path, declared.manifest).with_context(unwritten)?;
                    declared.join_string
                }
            };
            println!("{join_string}");
            Ok(())
        }
    }
}
