//! The metrics and their bounds. Pure.

use serde::Serialize;

/// A bound on a reading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Bound {
    /// At most this ratio to the bare program.
    RatioAtMost(f64),
    /// At least this ratio to the bare program.
    RatioAtLeast(f64),
    /// An absolute upper bound, independent of the bare program.
    AtMost(f64),
}

impl Bound {
    /// Whether a reading is within the bound; `None` without a baseline. A negative reading, or
    /// none, was not measured well: it is within no bound.
    #[must_use]
    pub fn holds(self, reading: &Reading) -> Option<bool> {
        let is_possible = reading.runnel.is_finite() && reading.runnel >= 0.0;
        let compared = match self {
            Self::RatioAtMost(limit) => reading.ratio().map(|ratio| ratio <= limit),
            Self::RatioAtLeast(limit) => reading.ratio().map(|ratio| ratio >= limit),
            Self::AtMost(limit) => Some(reading.runnel <= limit),
        };
        compared.map(|holds| holds && is_possible)
    }

    /// The bound as the table shows it.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::RatioAtMost(limit) => format!("<= {}x", number(limit)),
            Self::RatioAtLeast(limit) => format!(">= {}x", number(limit)),
            Self::AtMost(limit) => format!("<= {}", number(limit)),
        }
    }
}

/// A metric of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// The metric's description.
    pub what: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// A reading beyond it fails; absent where the row's other lines decide.
    pub gate: Option<Bound>,
    /// The goal.
    pub aim: Option<Bound>,
}

/// The measured value of one metric, at one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// The row's number.
    pub row: u8,
    /// The metric's description.
    pub what: &'static str,
    /// The size, for the chart's axis.
    pub size: f64,
    /// The size in words.
    pub at: String,
    /// Runnel's.
    pub runnel: f64,
    /// The bare program's, where there is one.
    pub bare: Option<f64>,
    /// All measurements of the median, if there were several: Runnel's and the bare program's.
    pub samples: [Vec<f64>; 2],
}

impl Reading {
    /// The medians of these measurements.
    #[must_use]
    pub fn median_of(self, runnel: &[f64], bare: &[f64]) -> Self {
        let bare_one = (!bare.is_empty()).then(|| median(bare));
        Self {
            runnel: median(runnel),
            bare: bare_one,
            ..self
        }
        .sampled(runnel, bare)
    }

    /// It was drawn from these measurements.
    #[must_use]
    pub fn sampled(self, runnel: &[f64], bare: &[f64]) -> Self {
        Self {
            samples: [runnel.to_vec(), bare.to_vec()],
            ..self
        }
    }

    /// Runnel's as a multiple of the bare program's.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.bare
            .filter(|bare| bare.is_finite() && *bare > 0.0)
            .map(|bare| self.runnel / bare)
    }
}

/// A line that was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The row's number.
    pub row: u8,
    /// The metric.
    pub line: Metric,
    /// The reading, or the reason why there is none.
    pub found: Result<Reading, String>,
}

impl Judged {
    /// Whether the gate is met. Without a reading, or without the bare program, it is not.
    #[must_use]
    pub fn passes(&self) -> bool {
        let holds = |reading| {
            self.line
                .gate
                .is_none_or(|gate| gate.holds(reading) == Some(true))
        };
        self.found.as_ref().is_ok_and(holds)
    }

    /// Whether the goal is reached.
    #[must_use]
    pub fn reaches_its_aim(&self) -> bool {
        let holds = |reading| {
            self.line
                .aim
                .is_some_and(|aim| aim.holds(reading) == Some(true))
        };
        self.found.as_ref().is_ok_and(holds)
    }
}

/// Formats a number with its significant digits.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => thousands(value),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => trimmed(format!("{value:.1}")),
        _ => trimmed(format!("{value:.2}")),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// Returns the percentile; NaN for no values, so that no bound is met.
#[must_use]
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(place.saturating_sub(1).min(last))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Returns the median; NaN for no values, so that no bound is met.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (middle, is_even) = (sorted.len() / 2, sorted.len().is_multiple_of(2));
    match (sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (Some(below), Some(above)) if is_even => (below + above) / 2.0,
        (_, middle) => middle.copied().unwrap_or(f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(runnel: f64, bare: Option<f64>, gate: Bound, aim: Bound) -> Judged {
        let line = Metric {
            what: "time",
            unit: "ms",
            gate: Some(gate),
            aim: Some(aim),
        };
        let reading = Reading {
            row: 4,
            what: "time",
            size: 1.0,
            at: "1".to_owned(),
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
    fn median_of_measurements_is_reported() {
        let one = judged(0.0, None, Bound::AtMost(1.0), Bound::AtMost(1.0))
            .found
            .unwrap_or_else(|why| panic!("{why}"));
        let of = one.clone().median_of(&[9.0, 1.0, 4.0], &[2.0, 2.0, 8.0]);
        assert_eq!(
            (of.runnel, of.bare, of.ratio()),
            (4.0, Some(2.0), Some(2.0))
        );
        assert_eq!(of.samples, [vec![9.0, 1.0, 4.0], vec![2.0, 2.0, 8.0]]);
        assert_eq!(
            one.clone().median_of(&[1.0, 5.0], &[3.0, 1.0]).ratio(),
            Some(1.5)
        );
        assert_eq!(one.median_of(&[1.0], &[]).bare, None);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_gate_compares_the_ratio_or_the_figure_itself() {
        let ratio = |runnel| {
            judged(
                runnel,
                Some(10.0),
                Bound::RatioAtMost(2.0),
                Bound::RatioAtMost(1.25),
            )
        };
        assert!(ratio(12.0).passes() && ratio(12.0).reaches_its_aim());
        assert!(ratio(20.0).passes() && !ratio(20.0).reaches_its_aim());
        assert!(!ratio(20.1).passes());
        let least = |runnel| {
            judged(
                runnel,
                Some(10.0),
                Bound::RatioAtLeast(0.4),
                Bound::RatioAtLeast(0.7),
            )
        };
        assert!(least(4.0).passes() && !least(4.0).reaches_its_aim() && !least(3.9).passes());
        assert!(judged(2.0, None, Bound::AtMost(2.0), Bound::AtMost(1.0)).passes());
    }

    #[test]
    fn a_ratio_without_the_bare_program_does_not_pass() {
        assert!(!judged(1.0, None, Bound::RatioAtMost(2.0), Bound::RatioAtMost(1.0)).passes());
        assert!(
            !judged(
                1.0,
                Some(0.0),
                Bound::RatioAtMost(2.0),
                Bound::RatioAtMost(1.0)
            )
            .passes()
        );
    }

    #[test]
    fn impossible_measurement_does_not_pass() {
        for odd in [-0.1, f64::NAN, f64::INFINITY, percentile(&[], 0.5)] {
            let most = judged(odd, Some(1.0), Bound::AtMost(2.0), Bound::AtMost(1.0));
            let ratio = judged(
                odd,
                Some(1.0),
                Bound::RatioAtMost(2.0),
                Bound::RatioAtLeast(0.0),
            );
            assert!(
                !most.passes()
                    && !most.reaches_its_aim()
                    && !ratio.passes()
                    && !ratio.reaches_its_aim(),
                "{odd}"
            );
            assert!(
                !judged(
                    1.0,
                    Some(odd),
                    Bound::RatioAtMost(2.0),
                    Bound::RatioAtMost(1.0)
                )
                .passes(),
                "{odd}"
            );
        }
        let whole = judged(1.0, None, Bound::AtMost(2.0), Bound::AtMost(1.0));
        let missing = Judged {
            found: Err("the hub did not start".to_owned()),
            ..whole
        };
        assert!(!missing.passes() && !missing.reaches_its_aim());
        let without_gate = Judged {
            line: Metric {
                gate: None,
                ..missing.line
            },
            ..missing
        };
        assert!(!without_gate.passes());
    }

    #[test]
    fn numbers_have_significant_digits() {
        let texts = [0.0, 0.254, 1.0, 12.34, 123.4, 1234.5, 1_234_567.0].map(number);
        assert_eq!(
            texts,
            ["0", "0.25", "1", "12.3", "123", "1,234", "1,234,567"]
        );
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(
            [0.5, 0.99, 1.0].map(|share| percentile(&values, share)),
            [50.0, 99.0, 100.0]
        );
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
