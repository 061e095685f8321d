//! A hanging copy delays no other.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use runnel_tests::wait::eventually;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::alone::Alone;

/// Longer than others wait for a webhook that hangs, and less than the webhook's own timeout.
const FAIR: Duration = Duration::from_secs(20);

#[tokio::test]
async fn hanging_webhook_of_one_namespace_delays_no_other() -> Result<()> {
    let alone = Alone::start("fair", &["slow", "fast"]).await?;
    alone
        .hub
        .want("q", alone.rule(&["fast"], &[("quick", "1")]));
    alone.hub.wait_applied("q", 1).await?;
    // It accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (port, called) = (listener.local_addr()?.port(), Arc::new(AtomicUsize::new(0)));
    let count = called.clone();
    let silent = tokio::spawn(async move {
        let mut open = vec![];
        while let Ok((connection, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            open.push(connection);
        }
    });
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hangs-in-fair-slow"},
        "webhooks": [{
            "name": "hangs.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/")},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": alone.ns("slow")}},
            "rules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["configmaps"],
            }],
        }],
    });
    alone
        .plane
        .kubectl_stdin(&["apply", "-f", "-"], &webhook.to_string())
        .await?;
    let names: Vec<String> = (0..40).map(|number| format!("n{number:02}")).collect();
    let texts: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    alone.hub.want("r", alone.rule(&["slow"], &texts));
    eventually(
        "all places to hang",
        runnel_tests::scene::SOON,
        async || Ok((called.load(Ordering::Relaxed) >= 8).then_some(())),
    )
    .await?;
    let arrives = async {
        for edit in ["2", "3", "4"] {
            alone
                .hub
                .want("q", alone.rule(&["fast"], &[("quick", edit)]));
            alone.has_value(&alone.id("fast", "quick"), edit).await?;
        }
        anyhow::Ok(())
    };
    let arrived = timeout(FAIR, arrives).await;
    alone
        .plane
        .kubectl(&[
            "delete",
            "validatingwebhookconfiguration",
            "hangs-in-fair-slow",
        ])
        .await?;
    silent.abort();
    arrived?
}
