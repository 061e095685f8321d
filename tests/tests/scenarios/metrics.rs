//! What operators watch: a real Prometheus scrapes a hub and an agent (which reaches its hub through a proxy), and knows
//! what the alerts and the dashboard ask for; and logs have the keys that are promised.

#[path = "metrics/questions.rs"]
mod questions;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::helm::chart;
use runnel_tests::prometheus::{Programs, Prometheus, value};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene};
use runnel_tests::tunnels::Tunnels;
use runnel_tests::wait::eventually;
use runnel_transport::ops::LOG_KEYS;
use serde_json::{Value, json};

/// A killed agent counts as connected for a while.
const FIRES: Duration = Duration::from_secs(60);

/// One of everything that is counted: an edit that arrives, a copy that is put back, a conflict, a copy with a health.
async fn live(scene: &Scene) -> Result<()> {
    scene.hub_namespaces(&["watched"]).await?;
    scene.member_namespaces(&["watched-a"]).await?;
    let rule = |name: &str| {
        RuleDraft::new("watched", name)
            .named(&[name])
            .everywhere()
            .into(&["watched-a"])
    };
    let source = scene
        .hub
        .make(
            &Draft::config_map("watched", "edited")
                .data("key", "1")
                .json(),
        )
        .await?;
    let edited = Id::of(&scene.hub.make(&rule("edited").json()).await?)?;
    scene.hub.all_applied(&edited, 1).await?;
    let source = scene
        .hub
        .change(&Id::of(&source)?, json!({"data": {"key": "2"}}))
        .await?;
    scene.arrives(&source, &edited, &["watched-a"]).await?;
    scene
        .member(1)
        .delete(&Id::config_map("watched-a", "edited"))
        .await?;
    scene.arrives(&source, &edited, &["watched-a"]).await?;

    scene
        .member(1)
        .make(
            &Draft::config_map("watched-a", "conflict")
                .data("key", "somebody else's")
                .json(),
        )
        .await?;
    scene
        .hub
        .make(
            &Draft::config_map("watched", "conflict")
                .data("key", "1")
                .json(),
        )
        .await?;
    let conflict = Id::of(&scene.hub.make(&rule("conflict").json()).await?)?;
    scene.hub.wait_ready(&conflict, "False", "Conflict").await?;

    let container = json!({"name": "web", "image": "example.org/web"});
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "watched", "name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
        },
    });
    scene.hub.make(&web).await?;
    // The grant of a new hub does not include such kinds, and a rule of the cluster needs none.
    let entry =
        json!({"resources": ["deployments.apps"], "names": ["web"], "namespaces": ["watched"]});
    let rule = RuleDraft::cluster_scoped("workload")
        .source(entry)
        .everywhere()
        .into(&["watched-a"]);
    let workload = Id::of(&scene.hub.make(&rule.json()).await?)?;
    let waiting = scene.hub.wait_ready(&workload, "False", "AwaitingHealth");
    waiting.await.map(drop)
}

/// Writes the status of the copy of the Deployment as its controller does after the deadline of its pods.
async fn pods_do_not_start(scene: &Scene) -> Result<()> {
    let copy = Id::of(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "watched-a", "name": "web"},
    }))?;
    let member = scene.member(1);
    let generation = member.get(&copy).await?["metadata"]["generation"].clone();
    let condition = json!({
        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out",
    });
    let status =
        json!({"observedGeneration": generation, "replicas": 1, "conditions": [condition]});
    member
        .change_status(&copy, json!({"status": status}))
        .await
        .map(drop)
}

/// A proxy of the environment is not for the API server of a kubeconfig.
async fn around(fleet: &Fleet) -> Result<()> {
    let output = tokio::process::Command::new(&fleet.binaries().hub)
        .args([
            "token",
            "create",
            "another",
            "--advertise=hub.example.com:8443",
            "--kubeconfig",
        ])
        .arg(fleet.hub().kubeconfig())
        .env("HTTPS_PROXY", "http://127.0.0.1:9")
        .output();
    let output = output.await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Never joined, it would count as away.
    let another = Id::member("another");
    Scene::of(fleet).await?.hub.delete(&another).await
}

async fn fires(prometheus: &Prometheus, alert: &str, label: (&str, &str)) -> Result<()> {
    eventually(&format!("the alert {alert}"), FIRES, async || {
        let firing = prometheus.firing().await?;
        let found = firing
            .iter()
            .any(|one| one["labels"]["alertname"] == alert && one["labels"][label.0] == label.1);
        ensure!(found, "firing are {firing:?}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn prometheus_takes_alerts_and_panels_and_one_fires() -> Result<()> {
    let programs = tokio::task::spawn_blocking(Programs::find).await??;
    let proxy = Tunnels::start("runnel:pr0xy-pass")?;
    let kinds = ["configmaps", "secrets", "deployments.apps"];
    let fleet = Fleet::start(FleetOptions {
        hub_values: json!({"sources": {"kinds": kinds}}),
        agent_values: json!({
            "extraEnv": [{"name": "HTTPS_PROXY", "value": proxy.url()}],
            "policy": {"kinds": kinds, "allowPrivileged": ["deployments.apps"]},
        }),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    let targets = proxy.targets();
    ensure!(
        targets.len() >= 2,
        "join and session went through the proxy: {targets:?}"
    );
    ensure!(
        targets.iter().all(|target| *target == fleet.hub_address()),
        "only the hub is behind it: {targets:?}"
    );
    around(&fleet).await?;
    live(&scene).await?;

    let rules = std::fs::read_to_string(chart("runnel-hub").join("rules/runnel.rules.yaml"))?;
    let address = |url: String| url.trim_start_matches("http://").to_owned();
    let targets = [
        ("runnel-hub", address(fleet.hub_ops_url())),
        ("runnel-agent", address(fleet.agent_ops_url(1))),
    ];
    let prometheus = Prometheus::start(&programs, &questions::at_once(&rules), &targets).await?;

    let mut names = BTreeSet::new();
    for expression in questions::of_rules(&rules)?
        .into_iter()
        .chain(questions::of_dashboard()?)
    {
        prometheus.query(&expression).await?;
        names.extend(questions::metrics_in(&expression));
    }
    ensure!(
        names.len() >= 12,
        "only these metrics are asked for: {names:?}"
    );
    for name in names {
        let known = prometheus.query(&format!("count({name})")).await?;
        ensure!(
            value(&known).is_some_and(|count| count > 0.0),
            "nobody tells {name}"
        );
    }
    for (expression, wanted) in [
        ("runnel_member_connected{member=\"member-1\"}", 1.0),
        (
            "runnel_rule_ready{rule_namespace=\"watched\",rule=\"edited\"}",
            1.0,
        ),
        (
            "runnel_rule_ready{rule_namespace=\"watched\",rule=\"conflict\"}",
            0.0,
        ),
        (
            "runnel_rule_copies_health{rule_namespace=\"\",rule=\"workload\",health=\"in_progress\"}",
            1.0,
        ),
        ("sum(runnel_rule_copies_health)", 1.0),
        ("runnel_rule_copies{state=\"applied\"}", 2.0),
        ("runnel_rule_copies{state=\"failed\"}", 1.0),
        ("runnel_removals_blocked", 0.0),
        ("runnel_removals_pending", 0.0),
        ("sum(runnel_delivery_seconds_count)", 1.0),
        (
            "runnel_rule_delivery_seconds_count{rule_namespace=\"watched\",rule=\"edited\"}",
            1.0,
        ),
        ("sum(runnel_drift_corrected_total)", 1.0),
        ("count(runnel_build_info)", 2.0),
    ] {
        let observed = value(&prometheus.query(expression).await?);
        ensure!(
            observed == Some(wanted),
            "{expression} is {observed:?} and not {wanted}"
        );
    }

    fires(&prometheus, "RunnelRuleNotReady", ("rule", "conflict")).await?;
    let firing = prometheus.firing().await?;
    let calm = firing
        .iter()
        .all(|alert| alert["labels"]["alertname"] == "RunnelRuleNotReady");
    ensure!(calm, "while all is well, these fire: {firing:?}");
    pods_do_not_start(&scene).await?;
    fires(&prometheus, "RunnelCopiesUnhealthy", ("rule", "workload")).await?;
    fleet.stop_agent(1).await?;
    fires(
        &prometheus,
        "RunnelMemberDisconnected",
        ("member", "member-1"),
    )
    .await?;
    // A rule that is deleted meanwhile leaves an order for the cluster that is away.
    scene.hub.delete(&Id::rule("watched", "edited")).await?;
    fires(&prometheus, "RunnelRemovalsPending", ("severity", "info")).await?;
    for rule in prometheus.rules().await? {
        ensure!(rule["health"] == "ok", "{rule}");
    }
    for log in [fleet.hub_log(), fleet.agent_log(1)] {
        keys(log)?;
        ensure!(
            !std::fs::read_to_string(log)?.contains("pr0xy-pass"),
            "{} shows a password",
            log.display()
        );
    }
    Ok(())
}

/// Checks that every line of a log is JSON with the promised keys and no others.
fn keys(log: &Path) -> Result<()> {
    let text = std::fs::read_to_string(log)?;
    ensure!(
        text.lines().count() > 5,
        "{} says next to nothing",
        log.display()
    );
    for line in text.lines() {
        let read: Value = serde_json::from_str(line)
            .with_context(|| format!("{}: no JSON: {line}", log.display()))?;
        let entry = read.as_object().context("a line that is no object")?;
        let target = entry
            .get("target")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let strange: Vec<_> = entry
            .keys()
            .filter(|key| !LOG_KEYS.iter().any(|(known, _)| known == key))
            .collect();
        ensure!(
            strange.is_empty() || !target.starts_with("runnel"),
            "{line} has the keys {strange:?}"
        );
        for key in ["timestamp", "level", "target", "message"] {
            ensure!(entry.contains_key(key), "{line} has no {key}");
        }
    }
    Ok(())
}
