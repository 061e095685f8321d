//! The delivery time of an edit: which members it waits for, and when it is counted.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::api::DeleteParams;
use runnel_tests::scene::Metrics;
use runnel_tests::simulated::{AgentStream, Holdings, SimulatedAgent};
use runnel_tests::wait::{eventually, steadily};
use serde_json::json;

use super::stage::{SOON, Stage, alone, value};

/// How many edits of the rule were everywhere, and what they took in all, in seconds.
async fn observed(stage: &Stage) -> Result<(f64, f64)> {
    let metrics = Metrics::of(&stage.fleet.hub_ops_url()).await?;
    let labels = r#"{rule_namespace="delivery",rule="all"}"#;
    let of = |part: &str| metrics.sum(&format!("runnel_rule_delivery_seconds_{part}{labels}"));
    Ok((of("count")?, of("sum")?))
}

async fn counts(stage: &Stage, wanted: f64) -> Result<f64> {
    eventually(
        &format!("{wanted} edits that are everywhere"),
        SOON,
        async || {
            let (count, sum) = observed(stage).await?;
            ensure!(count >= wanted, "{count} are counted");
            ensure!(count == wanted, "{count} are counted and not {wanted}");
            Ok(Some(sum))
        },
    )
    .await
}

#[tokio::test]
async fn edit_counts_once_when_the_last_member_has_it() -> Result<()> {
    let stage = alone("delivery").await?;
    let source = stage.write("settings", "first").await?;
    let names = [
        "delivery-1",
        "delivery-2",
        "delivery-slow",
        "delivery-never",
    ];
    stage
        .rule("all", &["settings"], json!({"clusters": {"names": names}}))
        .await?;
    let joined = try_join_all(names.map(|name| stage.join(name))).await?;
    let up = joined[..2]
        .iter()
        .map(|credentials| SimulatedAgent::up_to_date(credentials, Holdings::default()));
    let agents = try_join_all(up).await?;
    let arrives = async |text: &str| -> Result<()> {
        for agent in &agents {
            let arrived = |holdings: &Holdings| value(holdings, &source).as_deref() == Some(text);
            agent.until(text, |state| arrived(&state.holdings)).await?;
        }
        Ok(())
    };
    arrives("first").await?;
    // It is connected and applies nothing.
    let slow = AgentStream::greeted(&joined[2], Vec::new()).await?;
    ensure!(
        observed(&stage).await?.0 == 0.0,
        "what was written before the rule is no edit"
    );

    let begin = Instant::now();
    stage.write("settings", "second").await?;
    arrives("second").await?;
    steadily(
        "one member has not got it",
        Duration::from_secs(2),
        async || {
            let (count, _) = observed(&stage).await?;
            ensure!(count == 0.0, "{count} are counted");
            Ok(())
        },
    )
    .await?;
    let waited = begin.elapsed();
    // Disconnected clusters are not waited for, and the time until the detection is not counted.
    drop(slow);
    let took = counts(&stage, 1.0).await?;
    ensure!(
        took > 0.0 && took < waited.as_secs_f64(),
        "it took {took} s, and {waited:?} were waited"
    );

    stage.write("settings", "third").await?;
    arrives("third").await?;
    counts(&stage, 2.0).await?;

    agents.iter().for_each(|agent| drop(agent.take_record()));
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    for agent in &agents {
        agent
            .until("a session with the new hub", |state| {
                state.record.sessions == 1 && state.up_to_date
            })
            .await?;
    }
    steadily(
        "nothing is counted again",
        Duration::from_secs(1),
        async || {
            let (count, _) = observed(&stage).await?;
            ensure!(count == 0.0, "{count} are counted");
            Ok(())
        },
    )
    .await?;
    stage.write("settings", "fourth").await?;
    arrives("fourth").await?;
    counts(&stage, 1.0).await?;

    stage
        .rules()
        .delete("all", &DeleteParams::default())
        .await?;
    eventually("the series to go with the rule", SOON, async || {
        ensure!(observed(&stage).await?.0 == 0.0);
        Ok(Some(()))
    })
    .await
}
