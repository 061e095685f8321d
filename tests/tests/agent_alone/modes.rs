//! Copies that are kept exact, and copies that are only created.
use anyhow::{Context, Result, ensure};
use runnel_proto::model::{CopyMode, DeletionPolicy, DriftPolicy, FieldPath, Reason};
use runnel_tests::wait::steadily;
use serde_json::{Value, json};
use std::time::Duration;

use crate::fake_hub::Wanted;
use crate::owned::Kept;

const NETWORK_POLICY: (&str, &str, &str) = (
    "networkpolicies.networking.k8s.io",
    "networking.k8s.io/v1",
    "NetworkPolicy",
);

/// A policy that lets nothing in, unless somebody adds a peer.
fn deny_all() -> Value {
    json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}})
}

/// What opens it: an apply of another manager adds a field beside those of the rule.
fn opened(kept: &Kept) -> Value {
    json!({
        "apiVersion": NETWORK_POLICY.1, "kind": NETWORK_POLICY.2,
        "metadata": {"name": "one", "namespace": kept.alone.ns("a"), "labels": {"by": "them"}},
        "spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
    })
}

impl Kept {
    fn in_mode(&self, mode: Option<CopyMode>, fields: Value, change: impl Fn(&mut Wanted)) {
        let mut wanted = self.rule(fields);
        for content in wanted.intents.values_mut() {
            content.mode = mode;
        }
        change(&mut wanted);
        self.alone.hub.want("r", wanted);
    }
}

#[tokio::test]
async fn exact_copy_loses_what_others_add() -> Result<()> {
    let (resource, api_version, kind) = NETWORK_POLICY;
    let kept = Kept::start("exact", resource, api_version, kind).await?;
    // A copy that is not exact keeps the field of another manager.
    kept.in_mode(None, deny_all(), |_| {});
    kept.applied().await?;
    kept.alone.place.apply_as("team", &opened(&kept)).await?;
    let cidr = "/spec/ingress/0/from/0/ipBlock/cidr";
    steadily(
        "the field of others stays",
        Duration::from_secs(1),
        async || {
            let copy = kept.get().await?;
            ensure!(copy.pointer(cidr).is_some(), "{copy}");
            Ok(())
        },
    )
    .await?;
    // It goes when the rule asks for exactness, and each time that it comes again, however it comes.
    kept.in_mode(Some(CopyMode::Exact), deny_all(), |_| {});
    let closed = [("/spec/ingress", Value::Null)];
    kept.has("a closed policy", &closed).await?;
    kept.applied().await?;
    kept.alone.place.apply_as("team", &opened(&kept)).await?;
    kept.has("a closed policy again", &closed).await?;
    kept.edit(json!({"spec": {"ingress": [{}]}})).await?;
    let copy = kept.has("a closed policy after an edit", &closed).await?;
    ensure!(
        copy["metadata"]["labels"]["by"] == "them",
        "labels of others stay: {copy}"
    );
    kept.applied().await.map(drop)
}

#[tokio::test]
async fn exact_copy_names_what_was_added() -> Result<()> {
    let (resource, api_version, kind) = NETWORK_POLICY;
    let kept = Kept::start("exact-report", resource, api_version, kind).await?;
    let report = |wanted: &mut Wanted| wanted.terms.drift_policy = DriftPolicy::Report;
    kept.in_mode(Some(CopyMode::Exact), deny_all(), report);
    kept.applied().await?;
    kept.alone.place.apply_as("team", &opened(&kept)).await?;
    let state = kept
        .alone
        .hub
        .wait_for_report("the added field", "r", |state| {
            state
                .failures
                .iter()
                .any(|failure| failure.reason == Reason::Drifted)
        })
        .await?;
    let failure = state.failures.first().context("no failure")?;
    ensure!(
        failure.message.contains("/spec/ingress"),
        "{}",
        failure.message
    );
    ensure!(failure.message.contains("team"), "{}", failure.message);
    // A field that the rule ignores does not count.
    kept.in_mode(Some(CopyMode::Exact), deny_all(), |wanted| {
        wanted
            .terms
            .ignore_fields
            .extend(FieldPath::parse("/spec/ingress"));
    });
    let copy = kept.applied().await?;
    ensure!(copy["spec"]["ingress"].is_array(), "{copy}");
    // It stays also when another addition goes.
    kept.edit(json!({"spec": {"egress": [{}]}})).await?;
    let copy = kept
        .has("no egress", &[("/spec/egress", Value::Null)])
        .await?;
    ensure!(copy["spec"]["ingress"].is_array(), "{copy}");
    kept.applied().await.map(drop)
}

#[tokio::test]
async fn copy_that_is_only_created_is_left_alone() -> Result<()> {
    let (resource, api_version, kind) = NETWORK_POLICY;
    let mut kept = Kept::start("once", resource, api_version, kind).await?;
    let only = Some(CopyMode::CreateOnly);
    kept.in_mode(only, deny_all(), |_| {});
    kept.applied().await?;
    kept.edit(json!({"spec": {"policyTypes": ["Egress"]}}))
        .await?;
    let source =
        json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]}});
    kept.in_mode(only, source.clone(), |_| {});
    kept.applied().await?;
    kept.restart().await?;
    let copy = kept.get().await?;
    ensure!(
        copy["spec"] == json!({"podSelector": {}, "policyTypes": ["Egress"]}),
        "{copy}"
    );
    // A copy that is gone is made again, with the content of now.
    kept.alone.place.delete(&kept.id).await?;
    kept.has(
        "a copy of now",
        &[("/spec/podSelector/matchLabels/a", json!("b"))],
    )
    .await?;
    // The rule has it followed again.
    kept.edit(json!({"spec": {"policyTypes": ["Egress"]}}))
        .await?;
    kept.in_mode(None, source, |_| {});
    kept.has(
        "a followed copy",
        &[("/spec/policyTypes", json!(["Ingress"]))],
    )
    .await?;
    kept.alone.hub.remove("r", DeletionPolicy::Delete);
    kept.alone.hub.wait_gone("r").await?;
    ensure!(
        kept.alone.place.find(&kept.id).await?.is_none(),
        "the copy is there"
    );
    Ok(())
}
