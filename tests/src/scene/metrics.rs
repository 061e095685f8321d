//! Reads the metrics of a process.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::http;

const ANSWER: Duration = Duration::from_secs(10);

/// The metrics of a process at one moment.
#[derive(Clone, Debug)]
pub struct Metrics(String);

impl Metrics {
    /// Reads the metrics of the process whose operations port is at `url`, as
    /// [`crate::fleet::Fleet::hub_ops_url`] returns it.
    ///
    /// # Errors
    /// When it does not answer with metrics.
    pub async fn of(url: &str) -> Result<Self> {
        let address = url
            .strip_prefix("http://")
            .with_context(|| format!("an odd address: {url}"))?;
        let answer = http::get(address, "/metrics", ANSWER).await?;
        ensure!(answer.status == 200, "{url} answers {}", answer.status);
        Ok(Self(answer.body))
    }

    /// Whether a metric of this name is registered, with or without samples.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let declared = name.trim_end_matches("_total");
        self.0.lines().any(|line| {
            let words = line.split_whitespace().collect::<Vec<_>>();
            matches!(words.as_slice(), ["#", "TYPE", found, ..] if *found == declared || *found == name)
        })
    }

    /// The sum of a metric over all its labels; 0 where it has never been counted.
    ///
    /// # Errors
    /// When its value is not a number.
    pub fn sum(&self, name: &str) -> Result<f64> {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with([' ', '{'])
                .then(|| rest.rsplit(' ').next().unwrap_or_default())
        });
        values
            .map(|value| {
                value
                    .parse::<f64>()
                    .with_context(|| format!("{name} is {value}"))
            })
            .sum()
    }
}
