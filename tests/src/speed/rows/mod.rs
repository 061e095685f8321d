//! Runs the rows and collects their readings.

mod agent;
mod cost;
mod deletes;
mod fanout;
mod goals;
mod heavy;
mod idle;
mod kinds;
mod large;
mod others;
mod pairs;
mod real;
mod reports;
mod restart;
mod shaped;
mod slopes;
mod views;
mod waves;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::crowd::Crowd;
use super::lab::{BareHub, PATIENCE};
use super::sample::Sample;
use super::verdict::{Judged, Reading};
use goals::line;

pub use goals::{ROWS, Row, find};

type Measured = Pin<Box<dyn Future<Output = Result<Vec<Reading>>>>>;

/// Measures the rows of one setup. Its arguments are the requested rows, and whether small sizes
/// are enough.
type Step = fn(Vec<u8>, bool) -> Measured;

/// The setups, each with its rows.
const STEPS: &[(&[u8], Step)] = &[
    (idle::ROWS, |_, quick| Box::pin(idle::run(quick))),
    (pairs::ROWS, |_, quick| Box::pin(pairs::run(quick))),
    (fanout::ROWS, |_, quick| Box::pin(fanout::run(quick))),
    (reports::ROWS, |_, quick| Box::pin(reports::run(quick))),
    (restart::ROWS, |_, quick| Box::pin(restart::run(quick))),
    (others::ROWS, |_, quick| Box::pin(others::run(quick))),
    (slopes::ROWS, |_, quick| Box::pin(slopes::run(quick))),
    (heavy::ROWS, |_, quick| Box::pin(heavy::run(quick))),
    (shaped::ROWS, |_, quick| Box::pin(shaped::run(quick))),
    (large::ROWS, |_, quick| Box::pin(large::run(quick))),
    (real::ROWS, |rows, quick| {
        Box::pin(async move { real::run(&rows, quick).await })
    }),
    (agent::ROWS, |rows, quick| {
        Box::pin(async move { agent::run(&rows, quick).await })
    }),
    (kinds::ROWS, |_, quick| Box::pin(kinds::run(quick))),
    (cost::ROWS, |_, quick| Box::pin(cost::run(quick))),
    (waves::ROWS, |_, quick| Box::pin(waves::run(quick))),
    (deletes::ROWS, |_, quick| Box::pin(deletes::run(quick))),
    (views::ROWS, |rows, quick| {
        Box::pin(async move { views::run(&rows, quick).await })
    }),
];

/// Why a step has ended early, and which rows it would have measured.
struct Broken {
    rows: &'static [u8],
    why: String,
}

/// Runs the steps for these rows, and returns their verdicts in table order. A failed step fails
/// only its own rows.
pub async fn run(rows: &[&Row], quick: bool) -> Vec<Judged> {
    let numbers: Vec<u8> = rows.iter().map(|row| row.number).collect();
    let (mut readings, mut broken) = (Vec::new(), Vec::new());
    for (its, step) in STEPS
        .iter()
        .filter(|(its, _)| numbers.iter().any(|number| its.contains(number)))
    {
        let begin = Instant::now();
        let measured = step(numbers.clone(), quick).await;
        eprintln!("rows {its:?}: {} s", begin.elapsed().as_secs());
        match measured {
            Ok(measured) => readings.extend(observed(measured)),
            Err(error) => {
                let why = format!("{error:#}");
                eprintln!("rows {its:?}: {why}");
                broken.push(Broken { rows: its, why });
            }
        }
    }
    judge(rows, readings, &broken)
}

/// Prints the readings to standard error, because a run takes long and the table is printed at its
/// end.
fn observed(readings: Vec<Reading>) -> Vec<Reading> {
    use super::verdict::number;
    for Reading {
        row,
        what,
        at,
        runnel,
        bare,
        ..
    } in &readings
    {
        let bare = bare.map_or_else(String::new, |bare| format!(", bare {}", number(bare)));
        eprintln!("row {row}: {what}, {at}: {}{bare}", number(*runnel));
    }
    readings
}

/// Matches readings with metrics, in the order of the rows. A metric without a reading is not met,
/// nor is a row with a failed step, nor a reading without a metric.
fn judge(rows: &[&Row], readings: Vec<Reading>, broken: &[Broken]) -> Vec<Judged> {
    let mut judged = Vec::new();
    for row in rows {
        let its: Vec<&Reading> = readings
            .iter()
            .filter(|reading| reading.row == row.number)
            .collect();
        let missing = |line, why: &str| Judged {
            row: row.number,
            line,
            found: Err(why.to_owned()),
        };
        let failures: Vec<&Broken> = broken
            .iter()
            .filter(|broken| broken.rows.contains(&row.number))
            .collect();
        for line in row.lines {
            let of_it: Vec<Judged> = its
                .iter()
                .filter(|reading| reading.what == line.what)
                .map(|reading| Judged {
                    row: row.number,
                    line: *line,
                    found: Ok((*reading).clone()),
                })
                .collect();
            if of_it.is_empty() && line.gate.is_some() && failures.is_empty() {
                judged.push(missing(*line, "nothing was measured"));
            }
            judged.extend(of_it);
        }
        judged.extend(
            failures
                .iter()
                .map(|failure| missing(line(row.name, "-", None, None), &failure.why)),
        );
        let known: BTreeSet<&str> = row.lines.iter().map(|line| line.what).collect();
        let unknown = its.iter().filter(|reading| !known.contains(reading.what));
        judged.extend(unknown.map(|unknown| {
            missing(
                line(unknown.what, "-", None, None),
                "the row has no such line",
            )
        }));
    }
    judged
}

/// Measures each kind of objects. Other kinds than the first one have readings only in the rows `of_kinds`.
async fn of_each_sample(
    rows: &[u8],
    quick: bool,
    of_kinds: &[u8],
    measure: impl AsyncFn(Sample) -> Result<Vec<Reading>>,
) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for &sample in Sample::measured(quick) {
        let is_first = sample == Sample::ConfigMap;
        if is_first || of_kinds.iter().any(|row| rows.contains(row)) {
            let measured = measure(sample).await?.into_iter();
            readings.extend(measured.filter(|one| is_first || of_kinds.contains(&one.row)));
        }
    }
    Ok(readings)
}

/// Milliseconds since then.
fn milliseconds_since(begin: Instant) -> f64 {
    milliseconds(begin.elapsed())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

const MIB: f64 = 1024.0 * 1024.0;

/// Longer than the least time between two writes of one status, so that no edit shares its write with another.
const GAP: Duration = Duration::from_millis(1200);

/// Connects agents to a bare hub, all in sync.
async fn gather_at_bare(hub: &BareHub, agents: usize) -> Result<Crowd> {
    let mut crowd = Crowd::new(true);
    crowd.add(hub.members(0..agents)?);
    crowd.up_to_date(PATIENCE).await?;
    Ok(crowd)
}

/// Files that this process may need besides one connection per agent.
const OTHER_FILES: u64 = 500;

/// Whether this process may open this many connections.
fn fits(connections: usize) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.is_none_or(|limit| limit > connections as u64 + OTHER_FILES)
}

/// Creates a reading whose size is a number of items.
fn reading(
    row: u8,
    what: &'static str,
    (size, of): (usize, &str),
    runnel: f64,
    bare: Option<f64>,
) -> Reading {
    let at = format!("{} {of}", super::verdict::number(size as f64));
    Reading {
        row,
        what,
        size: size as f64,
        at,
        runnel,
        bare,
        samples: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_measured_by_something() {
        let measured: BTreeSet<u8> = STEPS
            .iter()
            .flat_map(|(rows, _)| rows.iter().copied())
            .collect();
        assert_eq!(measured, ROWS.iter().map(|row| row.number).collect());
    }

    #[test]
    fn only_requested_rows_are_judged_in_table_order() {
        let some = |row, what| reading(row, what, (1000, "agents"), 1.0, Some(1.0));
        let readings = vec![
            some(4, "edit to last ack, p50"),
            some(6, "last ack to status, p50"),
            some(1, "hub writes per edit"),
        ];
        let rows: Vec<&Row> = [find("1"), find("4")].into_iter().flatten().collect();
        let judged: Vec<u8> = judge(&rows, readings, &[])
            .iter()
            .map(|judged| judged.row)
            .collect();
        assert_eq!(judged, [1, 4]);
    }

    #[test]
    fn gate_without_a_measurement_fails() {
        let rows: Vec<&Row> = [find("6"), find("14")].into_iter().flatten().collect();
        let one = reading(6, "last ack to status, p50", (1000, "agents"), 1.0, None);
        let judged = judge(&rows, vec![one], &[]);
        let passes: Vec<(u8, bool)> = judged
            .iter()
            .map(|judged| (judged.row, judged.passes()))
            .collect();
        assert!(
            passes.contains(&(6, true))
                && passes.contains(&(6, false))
                && passes.contains(&(14, false)),
            "{passes:?}"
        );
    }

    #[test]
    fn failing_step_fails_its_rows_despite_other_measurements() {
        let rows: Vec<&Row> = find("1").into_iter().collect();
        let one = reading(1, rows[0].lines[0].what, (3, "members"), 1.0, None);
        let judged = judge(
            &rows,
            vec![one],
            &[Broken {
                rows: fanout::ROWS,
                why: "no hub".to_owned(),
            }],
        );
        assert!(judged.iter().any(Judged::passes), "{judged:?}");
        assert!(
            judged
                .iter()
                .any(|judged| judged.found == Err("no hub".to_owned()) && !judged.passes()),
            "{judged:?}"
        );
    }

    #[test]
    fn a_reading_of_no_line_is_a_failure_and_not_silence() {
        let rows: Vec<&Row> = find("15").into_iter().collect();
        let judged = judge(
            &rows,
            vec![reading(15, "no such line", (1, "agents"), 1.0, None)],
            &[],
        );
        assert!(
            judged
                .iter()
                .any(|judged| judged.line.what == "no such line" && !judged.passes()),
            "{judged:?}"
        );
    }
}
