//! What the alerts and the dashboard of the hub's chart ask Prometheus.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use runnel_tests::helm::chart;
use serde_json::Value;

/// The rules with alerts that wait for a second instead of minutes.
pub fn at_once(rules: &str) -> String {
    let line = |line: &str| {
        if line.trim_start().starts_with("for: ") {
            format!("{}for: 1s\n", &line[..line.len() - line.trim_start().len()])
        } else {
            format!("{line}\n")
        }
    };
    rules.lines().map(line).collect()
}

/// The expressions of the rules, each of which has what a person needs at night.
pub fn of_rules(rules: &str) -> Result<Vec<String>> {
    let read: Value = serde_saphyr::from_str(rules)?;
    let groups = read["groups"].as_array().context("rules without groups")?;
    let alerts: Vec<_> = groups
        .iter()
        .filter_map(|group| group["rules"].as_array())
        .flatten()
        .collect();
    let runbook = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/manual/src/runbook.md"
    ))?;
    let mut expressions = Vec::new();
    for alert in alerts {
        let name = alert["alert"].as_str().context("a rule that is no alert")?;
        for field in ["summary", "description"] {
            ensure!(
                alert["annotations"][field]
                    .as_str()
                    .is_some_and(|text| text.len() > 20),
                "{name} has no {field}"
            );
        }
        ensure!(
            runbook.contains(&format!("\n## {name}\n")),
            "deploy/manual/src/runbook.md has no entry {name}"
        );
        let anchor = format!("deploy/manual/src/runbook.md#{}", name.to_lowercase());
        ensure!(
            alert["annotations"]["runbook_url"] == *anchor,
            "{name} does not point to {anchor}"
        );
        expressions.push(
            alert["expr"]
                .as_str()
                .context("an alert without expression")?
                .to_owned(),
        );
    }
    Ok(expressions)
}

/// The expressions of the dashboard, with Grafana's own variables filled in.
pub fn of_dashboard() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(chart("runnel-hub").join("dashboards/runnel.json"))?;
    let read: Value = serde_json::from_str(&text)?;
    let panels = read["panels"]
        .as_array()
        .context("a dashboard without panels")?;
    ensure!(
        panels
            .iter()
            .all(|panel| panel["datasource"]["uid"] == "${datasource}"),
        "a panel has a data source of its own"
    );
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let expressions = targets.map(|target| {
        target["expr"]
            .as_str()
            .context("a target without expression")
    });
    let expressions: Vec<_> = expressions.collect::<Result<_>>()?;
    Ok(expressions
        .into_iter()
        .map(|expression| expression.replace("$__rate_interval", "1m"))
        .collect())
}

/// The metrics that an expression names.
pub fn metrics_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("runnel_") || word.starts_with("process_"))
        .map(ToOwned::to_owned)
        .collect()
}
