//! Whatever duration, level or address a chart takes, its process takes: texts that are made from the schema's own patterns,
//! and the bounds that the processes have, go through both.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use proptest::strategy::{Strategy, ValueTree};
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use runnel_hub::config::{Cli, Command};
use runnel_hub::lease::Timing;
use runnel_tests::helm::{Helm, chart};
use runnel_transport::ops::log_filter;
use serde_json::Value;

use super::arguments::are_known;
use super::render::{container, documents, texts};

/// Texts that are made from each pattern.
const MADE: usize = 6;
/// Around the bounds of the processes.
const DURATIONS: [&str; 12] = [
    "0s",
    "1ms",
    "999ms",
    "1s",
    "4s",
    "1d",
    "24h",
    "23h59m59s999ms",
    "720h",
    "90d",
    "365d",
    "876000h",
];
const ADDRESSES: [&str; 10] = [
    "hub:1",
    "hub.example.com:65535",
    "10.0.0.1:8443",
    "[2001:db8::1]:443",
    "[::1]:1",
    "a..b:1",
    "-a:1",
    "[zz]:1",
    "hub:65536",
    "user@hub:1",
];

/// A text at a place in the values.
struct Sample {
    path: String,
    text: String,
}

impl Sample {
    fn values(&self) -> String {
        let text = if self.path == "advertise" {
            format!("['{}']", self.text)
        } else {
            format!("'{}'", self.text)
        };
        self.path
            .rsplit('.')
            .fold(text, |inner, name| format!("{{{name}: {inner}}}"))
    }
}

fn patterns(schema: &Value, path: &str, found: &mut Vec<(String, String)>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (name, schema) in properties {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        if let Some(pattern) = schema["pattern"].as_str() {
            found.push((path.clone(), pattern.to_owned()));
        }
        patterns(schema, &path, found);
    }
}

/// The fields whose text the process reads, not Kubernetes or Prometheus.
fn is_for_the_process(path: &str, pattern: &str) -> bool {
    let is_duration = pattern.contains("{1,9}ms") && !path.ends_with(".interval");
    is_duration || matches!(path, "log.level" | "listenAddress")
}

fn samples(name: &str) -> Result<Vec<Sample>> {
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(
        chart(name).join("values.schema.json"),
    )?)?;
    let (mut found, mut samples, mut runner) =
        (Vec::new(), Vec::new(), TestRunner::deterministic());
    patterns(&schema, "", &mut found);
    for (path, pattern) in found
        .into_iter()
        .filter(|(path, pattern)| is_for_the_process(path, pattern))
    {
        let made = string_regex(pattern.trim_start_matches('^').trim_end_matches('$'))?;
        for _ in 0..MADE {
            let tree = made
                .new_tree(&mut runner)
                .map_err(|why| anyhow::anyhow!("{pattern}: {why}"))?;
            samples.push(Sample {
                path: path.clone(),
                text: tree.current(),
            });
        }
        if pattern.contains("{1,9}ms") {
            samples.extend(DURATIONS.iter().map(|text| Sample {
                path: path.clone(),
                text: (*text).to_owned(),
            }));
        }
    }
    if name == "runnel-hub" {
        samples.extend(ADDRESSES.iter().map(|text| Sample {
            path: "advertise".to_owned(),
            text: (*text).to_owned(),
        }));
    }
    Ok(samples)
}

#[tokio::test]
async fn text_that_a_chart_takes_is_taken_by_its_process() -> Result<()> {
    let helm = Helm::find().await?;
    for (name, fields) in [("runnel-hub", 9), ("runnel-agent", 2)] {
        let samples = samples(name)?;
        let mut taken: Vec<&str> = Vec::new();
        for sample in &samples {
            let values = sample.values();
            let Ok(documents) = documents(&helm, name, &values).await else {
                continue;
            };
            is_taken(name, container(&documents)?)
                .with_context(|| format!("{name} takes {values}"))?;
            taken.push(&sample.path);
        }
        taken.dedup();
        ensure!(
            taken.len() == fields,
            "of some fields no text at all is taken: {taken:?}"
        );
    }
    Ok(())
}

fn is_taken(name: &str, container: &Value) -> Result<()> {
    are_known(name, container)?;
    let level = container["env"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|variable| variable["name"] == "RUNNEL_LOG");
    let level = level
        .and_then(|level| level["value"].as_str())
        .context("no level")?;
    log_filter(level)?;
    if name != "runnel-hub" {
        return Ok(());
    }
    let given = texts(&container["args"]);
    let given = given.iter().map(|text| {
        text.replace("$(POD_IP)", "10.0.0.1")
            .replace("$(POD_NAME)", "pod")
    });
    let Command::Run(run) =
        Cli::try_parse_from(std::iter::once(name.to_owned()).chain(given))?.command
    else {
        bail!("it does not run");
    };
    Timing::new(run.lease_duration, run.renew_deadline, run.retry_period)
        .map(drop)
        .map_err(anyhow::Error::from)
}
