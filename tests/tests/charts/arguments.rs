//! The arguments of the charts, parsed by the binaries themselves: pods would crash on an argument,
//! variable or policy that a binary does not support.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use clap::{Command, CommandFactory};
use runnel_agent_core::policy::Policy;
use serde_json::Value;

use super::render::texts;

/// The values that a kubelet inserts for the references.
const KNOWN: [(&str, &str); 2] = [
    ("$(POD_NAME)", "runnel-hub-5d8f7c9b6d-x2x4q"),
    ("$(POD_IP)", "10.1.2.3"),
];
/// Ours, but read by no command line.
const LOG: &str = "RUNNEL_LOG";

fn command(chart: &str) -> Command {
    if chart == "runnel-hub" {
        runnel_hub::config::Cli::command()
    } else {
        runnel_agent::config::Cli::command()
    }
}

/// Checks that the binary of a chart accepts the arguments and variables of this container.
pub fn are_known(chart: &str, container: &Value) -> Result<()> {
    let filled = texts(&container["args"]).into_iter().map(|mut text| {
        for (reference, value) in KNOWN {
            text = text.replace(reference, value);
        }
        text
    });
    let arguments: Vec<String> = std::iter::once(chart.to_owned()).chain(filled).collect();
    ensure!(
        !arguments.iter().any(|text| text.contains("$(")),
        "a reference that no pod knows: {arguments:?}"
    );
    let read = command(chart).try_get_matches_from(&arguments);
    let read = read.with_context(|| format!("{chart} does not take {arguments:?}"))?;
    ensure!(read.subcommand_name() == Some("run"), "{arguments:?}");

    let command = command(chart);
    let run = command
        .find_subcommand("run")
        .context("no subcommand run")?;
    let variables: BTreeSet<&str> = run
        .get_arguments()
        .filter_map(|argument| argument.get_env())
        .filter_map(|name| name.to_str())
        .collect();
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        let ours = name.starts_with("RUNNEL_") && name != LOG;
        ensure!(
            !ours || variables.contains(name),
            "{chart} does not know the variable {name}"
        );
    }
    Ok(())
}

/// Checks that the agent reads the policy that its chart mounts.
pub fn is_a_policy(documents: &[Value]) -> Result<()> {
    let texts: Vec<&str> = documents
        .iter()
        .filter_map(|document| document["data"]["policy.yaml"].as_str())
        .collect();
    let [text] = texts.as_slice() else {
        bail!("{} policies are mounted", texts.len())
    };
    Policy::parse(text)
        .map(drop)
        .with_context(|| format!("the policy\n{text}"))
}

/// Checks that the policy of a chart's default values equals that of an agent without a policy
/// file.
pub fn is_the_default_policy(documents: &[Value]) -> Result<()> {
    let text = documents
        .iter()
        .find_map(|document| document["data"]["policy.yaml"].as_str());
    let policy = Policy::parse(text.context("no policy is mounted")?)?;
    ensure!(policy == Policy::default(), "{policy:?}");
    Ok(())
}
