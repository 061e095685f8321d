//! A hub that may read sources in two namespaces only, with the rights of its chart.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::binaries;
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{FleetOptions, Hub, NAMESPACE};
use runnel_tests::helm::Helm;
use runnel_tests::pod::Site;
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(40);
const ACCOUNT: &str = "system:serviceaccount:runnel-system:runnel-hub";
const SOURCES: [&str; 2] = ["configmaps", "secrets"];

/// A rule in a namespace, and the two sources that it selects.
fn rule(namespace: &str) -> String {
    let labels = json!({"rule": "test"});
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": namespace, "labels": labels}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "two", "namespace": namespace, "labels": labels}}),
        json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "rule", "namespace": namespace},
            "spec": {
                "sources": [{"resources": SOURCES, "selector": {"matchLabels": labels}}],
                "clusters": {"all": true},
            },
        }),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

async fn condition(plane: &ControlPlane, namespace: &str, kind: &str) -> Result<Value> {
    let text = plane
        .kubectl(&["get", "drule", "rule", "-n", namespace, "-o", "json"])
        .await?;
    let object: Value = serde_json::from_str(&text)?;
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found.cloned().with_context(|| {
        format!(
            "the rule of {namespace} has no condition {kind}: {}",
            object["status"]
        )
    })
}

/// Waits until a condition of the namespace's rule has this reason, with all these words in its message.
async fn wait_for_condition(
    plane: &ControlPlane,
    namespace: &str,
    kind: &str,
    reason: &str,
    words: &[&str],
) -> Result<()> {
    eventually(
        &format!("{kind} {reason} of the rule in {namespace}"),
        SOON,
        async || {
            let found = condition(plane, namespace, kind).await?;
            let message = found["message"].as_str().unwrap_or_default();
            ensure!(
                found["reason"] == reason && words.iter().all(|word| message.contains(word)),
                "it is {found}"
            );
            Ok(Some(()))
        },
    )
    .await
}

#[tokio::test]
async fn limited_hub_reads_where_it_may_and_reports_missing_rights() -> Result<()> {
    let built = tokio::task::spawn_blocking(binaries::build).await??;
    let plane = ControlPlane::start(
        "limited",
        Options {
            audit_reads: true,
            ..Options::default()
        },
    )
    .await?;
    for namespace in ["open", "shut"] {
        plane.kubectl(&["create", "namespace", namespace]).await?;
    }
    let limited = json!({"sourceNamespaces": ["open", "shut"]});
    let options = FleetOptions {
        hub_values: limited,
        ..FleetOptions::default()
    };
    let hub = Hub::install(&Helm::find().await?, &Site::from(&plane), &built, &options).await?;
    let binding = plane
        .kubectl(&[
            "get",
            "rolebinding",
            "runnel-hub-sources",
            "-n",
            "shut",
            "-o",
            "json",
        ])
        .await?;
    plane
        .kubectl(&["delete", "rolebinding", "runnel-hub-sources", "-n", "shut"])
        .await?;
    for namespace in ["open", "shut", "outside"] {
        plane
            .kubectl_stdin(&["apply", "-f", "-"], &rule(namespace))
            .await?;
    }
    let mark = plane.mark();
    hub.start().await?;
    let process = hub.replicas()[0].process();

    // One rule is served, one lacks a permission, one is out of scope; none affects the others.
    wait_for_condition(&plane, "open", "Ready", "NoClusters", &[])
        .await
        .with_context(|| process.last_words())?;
    let missing = [
        "configmaps of the namespace shut",
        "get, list and watch",
        "a Role in the namespace shut",
    ];
    wait_for_condition(&plane, "shut", "Stalled", "SourceUnreadable", &missing).await?;
    wait_for_condition(
        &plane,
        "outside",
        "Stalled",
        "SourceUnreadable",
        &["does not watch outside: add it to `sourceNamespaces`"],
    )
    .await?;
    let open: Value = serde_json::from_str(
        &plane
            .kubectl(&["get", "drule", "rule", "-n", "open", "-o", "json"])
            .await?,
    )?;
    ensure!(
        open.pointer("/status/summary/sources") == Some(&json!(2)),
        "the status is {}",
        open["status"]
    );

    // The right is granted, and the hub continues by itself.
    plane
        .kubectl_stdin(&["create", "-f", "-"], &renewed(&binding)?)
        .await?;
    wait_for_condition(&plane, "shut", "Ready", "NoClusters", &[]).await?;

    let asked = plane.writes_since(mark)?;
    let own = asked
        .iter()
        .filter(|ask| ask.user == ACCOUNT && SOURCES.contains(&ask.resource.as_str()));
    let own: Vec<_> = own.filter(|ask| ask.namespace != NAMESPACE).collect();
    let elsewhere: Vec<_> = own
        .iter()
        .filter(|ask| !["open", "shut"].contains(&ask.namespace.as_str()))
        .collect();
    ensure!(
        elsewhere.is_empty(),
        "the hub looked elsewhere: {elsewhere:?}"
    );
    for resource in SOURCES {
        let lists = own.iter().filter(|ask| {
            ask.verb == "list" && ask.resource == resource && ask.namespace == "open"
        });
        ensure!(
            lists.count() == 1,
            "{resource} of one namespace are listed once: {own:?}"
        );
    }
    Ok(())
}

/// An object as it was, without what its API server had put in.
fn renewed(object: &str) -> Result<String> {
    let mut object: Value = serde_json::from_str(object)?;
    let metadata = object["metadata"]
        .as_object_mut()
        .context("an object without metadata")?;
    metadata.retain(|field, _| ["name", "namespace", "labels"].contains(&field.as_str()));
    Ok(object.to_string())
}
