//! Slow links: data arrives, however long it takes, and no member counts as lost.

use std::time::Duration;

use anyhow::{Result, ensure};
use data_encoding::BASE64;
use ring::rand::{SecureRandom, SystemRandom};
use runnel_tests::scene::{Draft, Id};
use runnel_tests::simulated::Proxy;
use runnel_tests::wait::eventually;

use super::cut::lead;
use super::stage::{Stage, stage};

/// Bytes a second each way.
const RATE: u64 = 4_000;
/// Bytes of an object: on its way for far longer than the answer to a ping may take on a link on which nothing moves.
const SIZE: usize = 150_000;
/// Four times as long as it takes.
const ARRIVES: Duration = Duration::from_secs(180);

#[tokio::test]
async fn large_object_arrives_over_a_slow_link() -> Result<()> {
    let stage = stage().await?;
    let result = arrives(&stage).await;
    // Restores the link for the next test.
    lead(&stage, &stage.fleet.hub_address()).await?;
    result
}

async fn arrives(stage: &Stage) -> Result<()> {
    stage.places("slow", &["slow-target"]).await?;
    let proxy = Proxy::start(&stage.fleet.hub_address()).await?;
    proxy.slow_down_to(Some(RATE));
    lead(stage, &proxy.address()).await?;
    eventually("a session over the slow link", ARRIVES, async || {
        Ok((proxy.opened() > 0 && stage.metric("runnel_hub_sessions").await? == 2.0).then_some(()))
    })
    .await?;
    let opened = proxy.opened();

    let mut noise = vec![0; SIZE];
    SystemRandom::new()
        .fill(&mut noise)
        .map_err(|_| anyhow::anyhow!("no random numbers"))?;
    let source = Draft::config_map("slow", "large").data("noise", &BASE64.encode(&noise));
    stage.scene.hub.make(&source.json()).await?;
    let rule = stage
        .rule("slow", "large", |draft| {
            draft.named(&["large"]).into(&["slow-target"])
        })
        .await?;
    eventually("the copy behind the slow link", ARRIVES, async || {
        stage
            .scene
            .member(1)
            .find(&Id::config_map("slow-target", "large"))
            .await
    })
    .await?;
    ensure!(
        proxy.opened() == opened,
        "the connection was closed {} times",
        proxy.opened() - opened
    );
    stage.scene.hub.all_applied(&rule, 2).await?;
    Ok(())
}
