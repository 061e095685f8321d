//! A run as JSON, to compare runs. Pure.

use serde_json::{Value, json};

use super::table::word;
use super::verdict::{Judged, median, percentile};

/// The whole run.
#[must_use]
pub fn json(judged: &[Judged], quick: bool) -> Value {
    let readings: Vec<Value> = judged.iter().map(one).collect();
    json!({"quick": quick, "passes": judged.iter().all(Judged::passes), "readings": readings})
}

fn one(judged: &Judged) -> Value {
    let line = &judged.line;
    let reading = match &judged.found {
        Ok(reading) => reading,
        Err(why) => {
            return json!({
                "row": judged.row, "what": line.what, "unit": line.unit, "gate": line.gate, "aim": line.aim,
                "verdict": word(judged), "error": why,
            });
        }
    };
    json!({
        "row": reading.row, "what": reading.what, "at": reading.at, "size": reading.size, "unit": line.unit,
        "runnel": reading.runnel, "bare": reading.bare, "ratio": reading.ratio(), "spread": spread(&reading.samples),
        "gate": line.gate, "aim": line.aim, "verdict": word(judged),
    })
}

/// The spread of the measurements of a reading.
fn spread(samples: &[Vec<f64>; 2]) -> Value {
    let of = |values: &Vec<f64>| {
        let (least, median, most) = (
            percentile(values, 0.0),
            median(values),
            percentile(values, 1.0),
        );
        let whole = json!({"of": values.len(), "least": least, "median": median, "most": most});
        if values.is_empty() {
            Value::Null
        } else {
            whole
        }
    };
    if samples.iter().all(Vec::is_empty) {
        return Value::Null;
    }
    json!({"runnel": of(&samples[0]), "bare": of(&samples[1])})
}

#[cfg(test)]
mod tests {
    use super::super::verdict::{Bound, Metric, Reading};
    use super::*;

    #[test]
    fn unmeasured_row_states_the_reason() {
        let line = Metric {
            what: "bytes",
            unit: "B",
            gate: Some(Bound::AtMost(3.0)),
            aim: None,
        };
        let whole = json(
            &[Judged {
                row: 8,
                line,
                found: Err("no hub".to_owned()),
            }],
            false,
        );
        assert_eq!(
            whole,
            json!({"quick": false, "passes": false, "readings": [{
                "row": 8, "what": "bytes", "unit": "B", "gate": {"atMost": 3.0}, "aim": null,
                "verdict": "NOT MEASURED", "error": "no hub",
            }]})
        );
    }

    #[test]
    fn json_has_everything_of_the_table() {
        let line = Metric {
            what: "bytes",
            unit: "B",
            gate: Some(Bound::AtMost(3.0)),
            aim: None,
        };
        let reading = Reading {
            row: 8,
            what: "bytes",
            size: 2.0,
            at: "2 pairs".to_owned(),
            runnel: 4.0,
            bare: None,
            samples: [vec![4.0, 2.0, 9.0], vec![]],
        };
        let whole = json(
            &[Judged {
                row: 8,
                line,
                found: Ok(reading),
            }],
            true,
        );
        assert_eq!(
            whole,
            json!({"quick": true, "passes": false, "readings": [{
                "row": 8, "what": "bytes", "at": "2 pairs", "size": 2.0, "unit": "B", "runnel": 4.0, "bare": null,
                "ratio": null, "spread": {"runnel": {"of": 3, "least": 2.0, "median": 4.0, "most": 9.0}, "bare": null}, "gate": {"atMost": 3.0}, "aim": null, "verdict": "FAILS",
            }]})
        );
    }
}
