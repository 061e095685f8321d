//! Checks that have to hold while a wave soaks: what an answer means, and what a wave has seen of them. Pure.
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::now::is_ahead;

/// The most values that a query may return.
const VALUES: usize = 1000;

/// The settings of an analysis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// What is checked.
    pub check: Check,
    /// The time between two checks.
    pub interval: Duration,
    /// The most checks of a wave that may fail.
    pub failure_limit: u64,
}

/// What is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The values of a query are within bounds, which are decimal numbers.
    Prometheus {
        /// The URL of the API.
        address: String,
        /// The query.
        query: String,
        /// The least value.
        min: Option<String>,
        /// The largest value.
        max: Option<String>,
    },
    /// A URL answers with success.
    Http {
        /// The URL.
        url: String,
    },
}

impl From<&runnel_api::Analysis> for Analysis {
    fn from(spec: &runnel_api::Analysis) -> Self {
        let check = match &spec.prometheus {
            Some(prometheus) => Check::Prometheus {
                address: prometheus.address.clone(),
                query: prometheus.query.clone(),
                min: prometheus.min.clone(),
                max: prometheus.max.clone(),
            },
            // No URL is allowed to be empty.
            None => Check::Http {
                url: spec
                    .http
                    .as_ref()
                    .map(|http| http.url.clone())
                    .unwrap_or_default(),
            },
        };
        Self {
            check,
            interval: Duration::from_secs(u64::try_from(spec.interval_seconds).unwrap_or(60)),
            failure_limit: u64::try_from(spec.failure_limit).unwrap_or_default(),
        }
    }
}

impl Check {
    /// Returns the URL that is requested, without the query for Prometheus.
    pub fn url(&self) -> String {
        match self {
            Self::Prometheus { address, .. } => {
                format!("{}/api/v1/query", address.trim_end_matches('/'))
            }
            Self::Http { url } => url.clone(),
        }
    }

    /// Returns the query for Prometheus.
    pub fn query(&self) -> Option<&str> {
        match self {
            Self::Prometheus { query, .. } => Some(query),
            Self::Http { .. } => None,
        }
    }

    /// Judges an answer.
    ///
    /// # Errors
    /// Why the check fails: a number or a fixed text, nothing else of the answer.
    pub fn judge(&self, status: u16, body: &[u8]) -> Result<String, String> {
        if !(200..300).contains(&status) {
            return Err(format!("the answer has the status {status}"));
        }
        let Self::Prometheus { min, max, .. } = self else {
            return Ok(format!("the answer has the status {status}"));
        };
        let values = values(body).ok_or("the answer is not one of a Prometheus API")?;
        if values.is_empty() {
            return Err("the query returned no value".to_owned());
        }
        if values.len() > VALUES {
            return Err(format!("the query returned more than {VALUES} values"));
        }
        let bound = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        let (min, max): (Option<f64>, Option<f64>) = (bound(min), bound(max));
        for value in &values {
            // No comparison with NaN holds.
            let is_least = min.is_none_or(|min| *value >= min);
            let is_most = max.is_none_or(|max| *value <= max);
            if !is_least {
                return Err(format!("the value {} is not at least min", shown(*value)));
            }
            if !is_most {
                return Err(format!("the value {} is not at most max", shown(*value)));
            }
        }
        Ok(match values.as_slice() {
            [value] => format!("the value is {}", shown(*value)),
            more => format!("{} values are within the bounds", more.len()),
        })
    }
}

/// A number of bounded length.
fn shown(value: f64) -> String {
    if value == 0.0 || (1e-4..1e15).contains(&value.abs()) {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}

/// Returns the values of a result: of a vector, or a scalar.
fn values(body: &[u8]) -> Option<Vec<f64>> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let data = answer
        .get("data")
        .filter(|_| answer["status"] == "success")?;
    let value = |pair: &Value| pair.get(1)?.as_str()?.parse::<f64>().ok();
    let result = data.get("result")?;
    match data.get("resultType")?.as_str()? {
        "scalar" => Some(vec![value(result)?]),
        "vector" => {
            let samples = result.as_array()?.iter();
            samples.map(|sample| value(sample.get("value")?)).collect()
        }
        _ => None,
    }
}

/// The wave that a check is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedWave {
    /// The target.
    pub revision: String,
    /// The second at which its rollout began.
    pub started: i64,
    /// The wave.
    pub wave: u64,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// What it is about.
    pub of: CheckedWave,
    /// When it ended, in whole seconds.
    pub at: Timestamp,
    /// What was seen, or why it failed.
    pub result: Result<String, String>,
}

/// The checks of one wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Number of checks.
    pub made: u64,
    /// Those that failed.
    pub failed: u64,
    /// When the last one ended.
    pub last_at: Timestamp,
    /// Whether the last one held.
    pub holds: bool,
    /// What the last one saw, or why it failed.
    pub message: String,
}

impl Checks {
    /// Counts from now on; earlier results count no more.
    pub(super) fn restarted(self) -> Self {
        Self {
            made: 0,
            failed: 0,
            holds: false,
            message: String::new(),
            ..self
        }
    }

    /// Adds a result to the checks of its wave, once.
    pub(super) fn add(before: Option<Self>, result: &CheckResult, now: Timestamp) -> Option<Self> {
        let is_counted =
            |before: &Self| before.last_at >= result.at && !is_ahead(before.last_at, now);
        if before.as_ref().is_some_and(is_counted) {
            return before;
        }
        let (holds, message) = match &result.result {
            Ok(seen) => (true, seen),
            Err(why) => (false, why),
        };
        let count = |of: fn(&Self) -> u64| before.as_ref().map_or(0, of);
        Some(Self {
            made: count(|before| before.made) + 1,
            failed: count(|before| before.failed) + u64::from(!holds),
            last_at: result.at,
            holds,
            message: message.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prometheus(min: Option<&str>, max: Option<&str>) -> Check {
        Check::Prometheus {
            address: "http://prom/".to_owned(),
            query: "up".to_owned(),
            min: min.map(ToOwned::to_owned),
            max: max.map(ToOwned::to_owned),
        }
    }

    fn vector(values: &[&str]) -> Vec<u8> {
        let samples: Vec<_> = values
            .iter()
            .map(|value| serde_json::json!({"metric": {"secret": "s3cr3t"}, "value": [1.5, value]}))
            .collect();
        let data = serde_json::json!({"resultType": "vector", "result": samples});
        serde_json::to_vec(&serde_json::json!({"status": "success", "data": data})).unwrap()
    }

    #[test]
    fn values_of_a_query_are_compared_with_the_bounds() {
        let check = prometheus(Some("0.5"), Some("2"));
        assert_eq!(check.url(), "http://prom/api/v1/query");
        for values in [&["0.5"][..], &["2"], &["1", "1.5", "2"]] {
            assert!(check.judge(200, &vector(values)).is_ok(), "{values:?}");
        }
        for (values, part) in [
            (&["0.49"][..], "0.49 is not at least min"),
            (&["2.01"], "2.01 is not at most max"),
            (&["1", "3"], "3 is not at most max"),
            (&["NaN"], "NaN is not at least min"),
            (&["+Inf"], "not at most max"),
            (&["1e300"], "1e300 is not at most max"),
            (&[], "no value"),
            (&["x"], "not one of a Prometheus API"),
        ] {
            let why = check.judge(200, &vector(values)).unwrap_err();
            assert!(why.contains(part) && !why.contains("s3cr3t"), "{why}");
        }
        let scalar = br#"{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}"#;
        assert_eq!(check.judge(200, scalar), Ok("the value is 1".to_owned()));
        let none = prometheus(None, Some("0"));
        assert!(none.judge(200, &vector(&["NaN"])).is_err());
        let many = vec!["1"; VALUES + 1];
        assert!(check.judge(200, &vector(&many)).is_err());
        assert!(check.judge(200, &vector(&many[1..])).is_ok());
    }

    #[test]
    fn answer_without_success_fails_without_its_content() {
        let secret = b"s3cr3t";
        for check in [
            prometheus(Some("0"), None),
            Check::Http {
                url: "http://a/".to_owned(),
            },
        ] {
            for status in [199, 302, 404, 503] {
                let why = check.judge(status, secret).unwrap_err();
                assert_eq!(why, format!("the answer has the status {status}"));
            }
        }
        let http = Check::Http {
            url: "http://a/".to_owned(),
        };
        assert!(http.judge(204, secret).is_ok());
        for body in [&b""[..], b"s3cr3t", b"[]", b"{\"status\":\"error\"}"] {
            let why = prometheus(Some("0"), None).judge(200, body).unwrap_err();
            assert!(!why.contains("s3cr3t"), "{why}");
        }
    }
}
