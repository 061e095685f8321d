//! Each example works unchanged: it is applied, and its copies arrive.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples");
/// The kinds of rules, as kubectl has them in its answers.
const RULES: [&str; 2] = ["DistributionRule", "ClusterDistributionRule"];

fn examples() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in Path::new(EXAMPLES).read_dir().context(EXAMPLES)? {
        found.push(entry?.path());
    }
    found.sort();
    Ok(found)
}

/// What the examples need in a member besides the namespaces that their sources are in.
fn namespaces() -> Vec<Value> {
    let named = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    vec![
        named("another-test", json!({})),
        named("team-a", json!({})),
        named("team-b", json!({})),
        named("shop", json!({"registry-login": "wanted"})),
    ]
}

/// Waits until a rule reports every copy as applied, and at least one copy.
async fn all_applied(fleet: &Fleet, rule: &Value, file: &str) -> Result<()> {
    let (kind, name) = (
        rule["kind"].as_str().unwrap_or_default(),
        rule["metadata"]["name"].as_str().unwrap_or_default(),
    );
    let namespace = rule["metadata"]["namespace"].as_str().unwrap_or("default");
    let mut last = String::new();
    let waited = eventually("every copy to be applied", SOON, async || {
        let found = fleet
            .hub()
            .kubectl(&["-n", namespace, "get", kind, name, "-o", "json"])
            .await?;
        let found: Value = serde_json::from_str(&found)?;
        let ready = found["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|one| one["type"] == "Ready");
        last = found["status"].to_string();
        let applied =
            ready.is_some_and(|ready| ready["status"] == "True" && ready["reason"] == "AllApplied");
        let some = found["status"]["summary"]["copiesApplied"]
            .as_i64()
            .is_some_and(|copies| copies > 0);
        let newest = found["status"]["observedGeneration"] == found["metadata"]["generation"];
        Ok((applied && some && newest).then_some(()))
    });
    waited
        .await
        .with_context(|| format!("{file}: {kind} {name}: {last}"))
}

#[tokio::test]
async fn every_example_works() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        hub_is_member: true,
        ..FleetOptions::default()
    })
    .await?;
    let wanted = json!({"apiVersion": "v1", "kind": "List", "items": namespaces()}).to_string();
    for number in 1..=fleet.size() {
        fleet
            .member(number)
            .kubectl_stdin(&["apply", "-f", "-"], &wanted)
            .await?;
    }
    let examples = examples()?;
    ensure!(examples.len() >= 4, "only {} examples", examples.len());
    for path in &examples {
        let file = path.to_str().context("a path that is not text")?;
        let apply = [
            "apply",
            "--server-side",
            "--validate=strict",
            "--warnings-as-errors",
            "-o",
            "json",
            "-f",
            file,
        ];
        let output = fleet
            .hub()
            .kubectl(&apply)
            .await
            .with_context(|| file.to_owned())?;
        // One object after the other.
        let objects: Vec<Value> = serde_json::Deserializer::from_str(&output)
            .into_iter()
            .collect::<Result<_, _>>()?;
        let items = objects
            .iter()
            .flat_map(|object| match object["items"].as_array() {
                Some(items) => items.iter().collect::<Vec<_>>(),
                None => vec![object],
            });
        let rules: Vec<&Value> = items
            .filter(|object| RULES.iter().any(|kind| object["kind"] == *kind))
            .collect();
        ensure!(!rules.is_empty(), "{file} holds no rule: {output}");
        for rule in rules {
            all_applied(&fleet, rule, file).await?;
        }
    }
    Ok(())
}
