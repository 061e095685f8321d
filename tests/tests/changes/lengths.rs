//! The longest names and the largest metadata that an API server takes.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft, entry_of};
use serde_json::json;

use super::scene_with;

/// All annotations of an object together, keys and values, in bytes.
const ANNOTATIONS: usize = 256 * 1024;

#[tokio::test]
async fn names_and_metadata_of_any_length_are_sent_or_refused() -> Result<()> {
    let home = format!("long-{}", "n".repeat(58));
    let scene = scene_with(&home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    ensure!(home.len() == 63);
    // A rule, a source and a cluster-scoped rule of 253 bytes each, a label of 63 beside a prefix of 253.
    let (name, rule_name) = (
        format!("s.{}", "s".repeat(251)),
        format!("r.{}", "r".repeat(251)),
    );
    let key = format!("{}.example/{}", "p".repeat(61), "k".repeat(63));
    let source = Draft::config_map(&home, &name)
        .data("k", "v")
        .label(&key, &"v".repeat(63));
    let source = hub.make(&source.annotation(&key, "x").json()).await?;
    let rule = Id::rule(&home, &rule_name);
    hub.make(
        &RuleDraft::new(&home, &rule_name)
            .named(&["s.*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    member.has_copy(&source, &home, &rule).await?;
    hub.all_applied(&rule, 1).await?;
    let cluster_rule = Id::cluster_rule(&rule_name);
    let sources = json!({"namespaces": [home], "resources": ["configmaps"], "names": [name]});
    hub.make(
        &RuleDraft::cluster_scoped(&rule_name)
            .source(sources)
            .to(&["member-1"])
            .json(),
    )
    .await?;
    member.has_copy(&source, &home, &cluster_rule).await?;
    let observed = hub.wait_ready(&rule, "False", "Superseded").await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(message.contains("wins this copy"), "{message}");
    hub.delete(&cluster_rule).await?;
    hub.lacks(&cluster_rule).await?;
    member.has_copy(&source, &home, &rule).await?;

    // Annotations that leave room for Runnel's own are copied; others are reported, and delay
    // nothing else.
    let key = "example.com/note";
    let large =
        Draft::config_map(&home, "s.large").annotation(key, &"x".repeat(ANNOTATIONS - 4096));
    let large = hub.make(&large.json()).await?;
    member.has_copy(&large, &home, &rule).await?;
    let full =
        Draft::config_map(&home, "s.full").annotation(key, &"x".repeat(ANNOTATIONS - key.len()));
    let full = hub.make(&full.json()).await?;
    let observed = hub.wait_counted(&rule, "TooLarge", (2, 1)).await?;
    let entry = entry_of(&observed, "member-1")?;
    let message = entry["message"].as_str().unwrap_or_default();
    ensure!(entry["failed"] == 1 && entry["applied"] == 2, "{entry}");
    ensure!(
        message.contains("s.full") && message.contains("larger than"),
        "{message}"
    );
    ensure!(member.find(&Id::of(&full)?).await?.is_none());
    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "w"}}))
        .await?;
    member.has_copy(&edited, &home, &rule).await?;
    // With them excluded, the copy has room.
    hub.change(
        &rule,
        json!({"spec": {"transform": {"annotations": {"drop": [key]}}}}),
    )
    .await?;
    hub.all_applied(&rule, 3).await.map(|_| ())
}
