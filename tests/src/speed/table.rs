//! The table of a run. Pure.

use super::verdict::{Bound, Judged, number};

const HEADINGS: [&str; 10] = [
    "row", "what", "at", "unit", "Runnel", "bare", "ratio", "gate", "aim", "",
];
/// The columns of numbers are aligned to the right.
const RIGHT: [usize; 4] = [0, 4, 5, 6];

/// The whole table, with a line for each reading, and below it why others are missing.
#[must_use]
pub fn table(judged: &[Judged]) -> String {
    let heading = HEADINGS.map(ToOwned::to_owned);
    let lines: Vec<[String; 10]> = std::iter::once(heading)
        .chain(judged.iter().map(cells))
        .collect();
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in &lines {
        let padded: Vec<String> = line.iter().zip(&widths).enumerate().map(pad).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    for Judged { row, line, found } in judged {
        if let Err(why) = found {
            text.push_str(&format!("row {row}, {}: {why}\n", line.what));
        }
    }
    text
}

fn pad((column, (cell, width)): (usize, (&String, &usize))) -> String {
    if RIGHT.contains(&column) {
        format!("{cell:>width$}")
    } else {
        format!("{cell:<width$}")
    }
}

fn cells(judged: &Judged) -> [String; 10] {
    let line = &judged.line;
    let bound = |bound: Option<Bound>| bound.map_or("-".to_owned(), Bound::text);
    let none = || "-".to_owned();
    let [at, runnel, bare, ratio] = match &judged.found {
        Ok(reading) => [
            reading.at.clone(),
            number(reading.runnel),
            reading.bare.map_or_else(none, number),
            reading
                .ratio()
                .map_or_else(none, |ratio| format!("{}x", number(ratio))),
        ],
        Err(_) => [none(), none(), none(), none()],
    };
    [
        judged.row.to_string(),
        line.what.to_owned(),
        at,
        line.unit.to_owned(),
        runnel,
        bare,
        ratio,
        bound(line.gate),
        bound(line.aim),
        word(judged).to_owned(),
    ]
}

/// Returns the verdict as one word.
#[must_use]
pub fn word(judged: &Judged) -> &'static str {
    match (
        judged.passes(),
        judged.reaches_its_aim(),
        judged.line.gate.is_some(),
    ) {
        (false, ..) if judged.found.is_err() => "NOT MEASURED",
        (false, ..) => "FAILS",
        (true, true, _) => "aim",
        (true, false, true) => "pass",
        (true, false, false) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::{Metric, Reading};
    use super::*;

    fn judged(runnel: f64, bare: Option<f64>) -> Judged {
        let (gate, aim) = (
            Some(Bound::RatioAtMost(2.0)),
            Some(Bound::RatioAtMost(1.25)),
        );
        let line = Metric {
            what: "edit to last ack",
            unit: "ms",
            gate,
            aim,
        };
        let reading = Reading {
            row: 4,
            what: line.what,
            size: 1000.0,
            at: "1,000 agents".to_owned(),
            runnel,
            bare,
            samples: Default::default(),
        };
        Judged {
            row: 4,
            line,
            found: Ok(reading),
        }
    }

    #[test]
    fn unmeasured_row_has_a_line_and_a_reason() {
        let missing = Judged {
            found: Err("the hub did not start".to_owned()),
            ..judged(1.0, None)
        };
        assert_eq!(
            table(&[missing]),
            "\
row  what              at  unit  Runnel  bare  ratio  gate   aim
  4  edit to last ack  -   ms         -     -      -  <= 2x  <= 1.25x  NOT MEASURED
row 4, edit to last ack: the hub did not start
"
        );
    }

    #[test]
    fn each_reading_has_a_line_with_both_figures_and_the_verdict() {
        let text = table(&[
            judged(30.0, Some(20.0)),
            judged(50.0, Some(20.0)),
            judged(20.0, Some(20.0)),
        ]);
        assert_eq!(
            text,
            "\
row  what              at            unit  Runnel  bare  ratio  gate   aim
  4  edit to last ack  1,000 agents  ms        30    20   1.5x  <= 2x  <= 1.25x  pass
  4  edit to last ack  1,000 agents  ms        50    20   2.5x  <= 2x  <= 1.25x  FAILS
  4  edit to last ack  1,000 agents  ms        20    20     1x  <= 2x  <= 1.25x  aim
"
        );
    }
}
