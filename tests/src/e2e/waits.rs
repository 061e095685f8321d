//! Waits of the steps, each with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::demo::cluster::Cluster;
use crate::wait::eventually;

/// For actions of a running agent or hub.
pub const SOON: Duration = Duration::from_secs(60);
/// For a new pod, a failover, or the start of a node.
pub const LATER: Duration = Duration::from_secs(180);

/// Returns the output of `kubectl get -o json`.
///
/// # Errors
/// When the API server does not answer, or there is no such object.
pub async fn get(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let output = cluster
        .kubectl(&[&["get", "-o", "json"], arguments].concat(), "")
        .await?;
    serde_json::from_str(&output).context("kubectl did not print JSON")
}

/// Waits until a key of a copy has this value, and prints how long it took.
///
/// # Errors
/// When it has not within `deadline`.
pub async fn holds(
    cluster: &Cluster,
    (namespace, resource, name): (&str, &str, &str),
    (key, value): (&str, &str),
    deadline: Duration,
) -> Result<Duration> {
    let begin = Instant::now();
    let what = format!(
        "{key}={value} in {resource} {namespace}/{name} of {}",
        cluster.name
    );
    eventually(&what, deadline, async || {
        let object = get(cluster, &["-n", namespace, resource, name]).await?;
        ensure!(
            object["data"][key] == value,
            "it has {}",
            object["data"][key]
        );
        Ok(Some(()))
    })
    .await?;
    Ok(begin.elapsed())
}

/// Waits until a condition of an object of the hub is True, and prints how long it took.
///
/// # Errors
/// When it is not within `deadline`; with what was seen last.
pub async fn condition(
    hub: &Cluster,
    object: &[&str],
    condition: &str,
    deadline: Duration,
) -> Result<Duration> {
    let begin = Instant::now();
    eventually(
        &format!("{condition}=True of {}", object.join(" ")),
        deadline,
        async || {
            let object = get(hub, object).await?;
            let conditions = object["status"]["conditions"]
                .as_array()
                .context("it has no conditions yet")?;
            let found = conditions
                .iter()
                .find(|one| one["type"] == condition)
                .context("it has no such condition yet")?;
            ensure!(
                found["status"] == "True",
                "it is {}: {}",
                found["status"],
                found["message"]
            );
            Ok(Some(()))
        },
    )
    .await?;
    Ok(begin.elapsed())
}
