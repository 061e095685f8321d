//! `cargo speed`: compares each path of Runnel with the minimum on this machine.
//! Absolute times mean little on a shared machine, so every row has a bare program ([`bare`]) that
//! does only the unavoidable work, and runs alternately with Runnel. [`rows`] has the metrics and
//! their bounds; [`verdict`], [`table`], [`json`] and [`chart`] are pure; [`lab`] and [`crowd`] are
//! a hub with many simulated agents.

pub mod bar;
pub mod bare;
pub mod chart;
pub mod counted;
pub mod crowd;
mod goal;
pub mod json;
pub mod lab;
pub mod process;
pub mod rows;
pub mod sample;
pub mod seen;
mod states;
pub mod table;
pub mod text;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;

use crate::control_plane::client_of;
use crate::demo::unless_interrupted;
use crate::program;
use rows::{ROWS, Row};
use verdict::Judged;

const INTERRUPTED: u8 = 130;
/// The time limit of the short form.
const QUICK: Duration = Duration::from_secs(300);

/// Measures Runnel beside bare programs that do only the unavoidable work, and prints a table of ratios.
#[derive(Debug, Parser)]
#[command(name = "cargo speed", bin_name = "cargo speed", after_help = rows_help())]
pub struct SpeedArguments {
    /// The rows to measure, by number or name; all of them otherwise.
    #[arg(value_name = "ROW", value_parser = row)]
    rows: Vec<&'static Row>,
    /// Measures at smaller sizes, in less than five minutes; the rows with a star only where they are named.
    #[arg(long)]
    quick: bool,
    /// Writes the readings as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw a chart of the cost by size.
    #[arg(long, value_name = "FILE.svg")]
    chart: Option<PathBuf>,
    /// Run the bare hub; `cargo speed` starts it.
    #[arg(long, value_name = "FOLDER", hide = true, exclusive = true)]
    bare_hub: Option<PathBuf>,
    /// Run the bare watch of a cluster; `cargo speed` starts it.
    #[arg(long, num_args = 3.., value_names = ["KUBECONFIG", "FILE", "KIND"], hide = true, exclusive = true)]
    bare_watch: Option<Vec<String>>,
}

fn row(text: &str) -> Result<&'static Row, String> {
    rows::find(text).ok_or_else(|| "there is no such row; see the list below".to_owned())
}

fn rows_help() -> String {
    let star = |row: &Row| if row.is_long() { '*' } else { ' ' };
    let one = |row: &Row| {
        format!(
            "  {:>2}{} {:<12} {}",
            row.number,
            star(row),
            row.name,
            row.meaning
        )
    };
    format!(
        "Rows:\n{}",
        ROWS.iter().map(one).collect::<Vec<_>>().join("\n")
    )
}

/// Measures with the arguments of this process, and returns its exit code: 0 when every gate holds, 1 when one does not or
/// something could not be measured, 2 when the arguments are wrong, 130 when it was interrupted.
pub fn main() -> ExitCode {
    let arguments = SpeedArguments::parse();
    program::block_on("speed", async {
        run(arguments).await.unwrap_or_else(|error| {
            eprintln!("speed: {error:#}");
            ExitCode::FAILURE
        })
    })
}

async fn run(arguments: SpeedArguments) -> Result<ExitCode> {
    if let Some(folder) = &arguments.bare_hub {
        return bare::serve(folder).await.map(|()| ExitCode::SUCCESS);
    }
    if let Some([kubeconfig, file, kinds @ ..]) = arguments.bare_watch.as_deref() {
        let kinds: Option<Vec<_>> = kinds.iter().map(|text| sample::kind_of(text)).collect();
        let kinds = kinds.context("a kind is written as `apps/v1/Deployment`")?;
        // A missing column is visible in the table.
        let knows = |known: usize| drop(std::fs::write(file, known.to_string()));
        bare::watch_names(
            client_of(Path::new(kubeconfig)).await?,
            &kinds,
            lab::SOURCES,
            knows,
        )
        .await;
        return Ok(ExitCode::FAILURE);
    }
    if cfg!(debug_assertions) {
        eprintln!("This is a debug build: its ratios say nothing about what is shipped.");
    }
    raise_files();
    let begin = Instant::now();
    let wanted: Vec<&Row> = ROWS.iter().filter(|row| wants(&arguments, row)).collect();
    let Some(judged) =
        unless_interrupted(async { Ok(rows::run(&wanted, arguments.quick).await) }).await?
    else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    print!("{}", table::table(&judged));
    println!(
        "{}; {} s in all",
        summary(&judged),
        begin.elapsed().as_secs()
    );
    let is_short = arguments.quick && !wanted.iter().any(|row| row.is_long());
    if is_short && begin.elapsed() > QUICK {
        eprintln!(
            "The short form is meant to take less than {} s.",
            QUICK.as_secs()
        );
    }
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&json::json(&judged, arguments.quick))?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = &arguments.chart {
        let svg = chart::chart(&judged)
            .context("none of these rows is measured at several sizes: no chart")?;
        std::fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let passes = !judged.is_empty() && judged.iter().all(Judged::passes);
    Ok(if passes {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Ten thousand agents are ten thousand connections: as many files as this process may have.
fn raise_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, less is compared at once, and rows that need more report that they cannot
    // connect.
    let _ = setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

fn wants(arguments: &SpeedArguments, row: &Row) -> bool {
    if arguments.rows.is_empty() {
        !(arguments.quick && row.is_long())
    } else {
        arguments
            .rows
            .iter()
            .any(|chosen| chosen.number == row.number)
    }
}

/// Returns the numbers of met gates and reached goals.
fn summary(judged: &[Judged]) -> String {
    let gates = judged
        .iter()
        .filter(|judged| judged.line.gate.is_some())
        .count();
    let hold = judged
        .iter()
        .filter(|judged| judged.line.gate.is_some() && judged.passes())
        .count();
    let missing = judged.iter().filter(|judged| judged.found.is_err()).count();
    let aims = judged
        .iter()
        .filter(|judged| judged.line.aim.is_some())
        .count();
    let reached = judged
        .iter()
        .filter(|judged| judged.reaches_its_aim())
        .count();
    let missing = if missing == 0 {
        String::new()
    } else {
        format!(", {missing} could not be measured")
    };
    format!("{hold} of {gates} gates hold{missing}, {reached} of {aims} aims are reached")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_name_rows_and_the_help_lists_them() {
        SpeedArguments::command().debug_assert();
        let arguments =
            SpeedArguments::try_parse_from(["speed", "4", "idle-memory", "--quick"]).ok();
        let rows = arguments.map(|arguments| {
            arguments
                .rows
                .iter()
                .map(|row| row.number)
                .collect::<Vec<_>>()
        });
        assert_eq!(rows, Some(vec![4, 7]));
        assert!(SpeedArguments::try_parse_from(["speed", "nothing"]).is_err());
        assert!(rows_help().contains("fan-out"));
    }

    #[test]
    fn page_describes_every_row() {
        let page = include_str!("../../SPEED.md");
        for row in ROWS {
            assert!(
                page.contains(&format!("| {} | `{}` |", row.number, row.name)),
                "row {}",
                row.number
            );
        }
    }

    #[test]
    fn all_rows_are_chosen_by_default_and_quick_skips_long_ones() {
        let wanted = |given: &[&str]| -> Vec<u8> {
            let arguments = SpeedArguments::try_parse_from([&["speed"], given].concat()).ok();
            let all = ROWS.iter().filter(|row| {
                arguments
                    .as_ref()
                    .is_some_and(|arguments| wants(arguments, row))
            });
            all.map(|row| row.number).collect()
        };
        assert_eq!(wanted(&[]), (1..=30).collect::<Vec<u8>>());
        assert_eq!(
            wanted(&["--quick"]),
            (1..=18)
                .chain([23, 24, 26, 27, 28, 29, 30])
                .collect::<Vec<u8>>()
        );
        assert_eq!(
            (wanted(&["4"]), wanted(&["20", "4", "--quick"])),
            (vec![4], vec![4, 20])
        );
    }
}
