//! Streams that are cut anywhere.

use anyhow::{Result, ensure};
use data_encoding::BASE64;
use ring::rand::{SecureRandom, SystemRandom};
use runnel_tests::fleet::NAMESPACE;
use runnel_tests::scene::{Id, Recorder, SOON};
use runnel_tests::simulated::Proxy;
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{MEMBERS, Stage, stage};

const SOURCES: usize = 40;
/// Bytes from the hub after which the link breaks: in the handshake, between frames, and anywhere in a snapshot.
const CUTS: [u64; 12] = [
    0, 1_000, 2_000, 2_600, 3_000, 3_500, 4_500, 6_000, 9_000, 14_000, 30_000, 55_000,
];

fn noise() -> Result<String> {
    let mut noise = [0; 1500];
    SystemRandom::new()
        .fill(&mut noise)
        .map_err(|_| anyhow::anyhow!("no random numbers"))?;
    Ok(BASE64.encode(&noise))
}

/// Tells the agent of member 1 another address of its hub, and starts it again.
pub(super) async fn lead(stage: &Stage, address: &str) -> Result<()> {
    let identity = Id::secret(NAMESPACE, "runnel-agent-identity");
    let text = BASE64.encode(address.as_bytes());
    stage.fleet.kill_agent(1)?;
    stage
        .scene
        .member(1)
        .change(&identity, json!({"data": {"hub-addresses": text}}))
        .await?;
    stage.fleet.start_agent(1).await
}

#[tokio::test]
async fn a_snapshot_that_is_cut_anywhere_removes_nothing() -> Result<()> {
    let stage = stage().await?;
    let result = cut_everywhere(&stage).await;
    // Restores the link for the next test.
    lead(&stage, &stage.fleet.hub_address()).await?;
    result
}

async fn cut_everywhere(stage: &Stage) -> Result<()> {
    stage.places("cut", &["cut-target"]).await?;
    let mut sources = Vec::new();
    for number in 0..SOURCES {
        sources.push(
            stage
                .source("cut", &format!("source-{number}"), &noise()?)
                .await?,
        );
    }
    let rule = stage
        .rule("cut", "all", |draft| {
            draft.named(&["source-*"]).into(&["cut-target"])
        })
        .await?;
    stage
        .scene
        .hub
        .all_applied(&rule, MEMBERS * SOURCES)
        .await?;
    let recorder =
        Recorder::start(stage.scene.member(1), &Id::config_map("cut-target", "any")).await?;

    let proxy = Proxy::start(&stage.fleet.hub_address()).await?;
    for (round, bytes) in CUTS.into_iter().enumerate() {
        stage.fleet.kill_agent(1)?;
        // Everything must be sent again, and the hub must start over, too.
        for source in &mut sources {
            *source = stage.edit(source, &noise()?).await?;
        }
        if round % 3 == 0 {
            stage.fleet.kill_hub()?;
            stage.fleet.start_hub().await?;
        }
        proxy.cut_after(Some(bytes));
        let before = proxy.cuts();
        lead(stage, &proxy.address()).await?;
        eventually(&format!("the cut after {bytes} bytes"), SOON, async || {
            Ok((proxy.cuts() > before).then_some(()))
        })
        .await?;
        for number in 0..SOURCES {
            recorder.was_never_missing("cut-target", &format!("source-{number}"))?;
        }
    }
    proxy.cut_after(None);
    lead(stage, &proxy.address()).await?;
    for source in &sources {
        stage
            .scene
            .member(1)
            .has_copy(source, "cut-target", &rule)
            .await?;
    }
    for number in 0..SOURCES {
        recorder.was_never_missing("cut-target", &format!("source-{number}"))?;
    }
    stage
        .scene
        .hub
        .all_applied(&rule, MEMBERS * SOURCES)
        .await?;
    ensure!(proxy.cuts() >= CUTS.len());
    Ok(())
}
