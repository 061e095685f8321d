//! Waves that begin only while windows are open.
use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use runnel_tests::scene::{Id, condition};
use runnel_tests::wait::steadily;
use serde_json::{Value, json};

use super::{A_WHILE, Stage};

/// A window of two hours around now plus so many hours, in a time zone without clock changes.
fn window(hours: i64) -> Value {
    let opens = Timestamp::now() + SignedDuration::from_hours(hours - 1);
    let (hour, minute) = (opens.strftime("%H"), opens.strftime("%M"));
    json!({"schedule": format!("{minute} {hour} * * *"), "durationSeconds": 7200, "timeZone": "UTC"})
}

#[tokio::test]
async fn waves_wait_for_the_windows_of_rule_and_cluster() -> Result<()> {
    let stage = Stage::start(2).await?;
    let first = Id::member("member-2");
    let hub = &stage.scene.hub;
    let before = hub.get(&stage.source).await?;
    let unseen = async || {
        for member in [1, 2] {
            let seen = stage.scene.member(member).get(&stage.source).await?;
            ensure!(seen["data"] == before["data"], "member-{member} has it");
        }
        Ok(())
    };
    let waits = async |wave: u64| {
        let observed = stage.is_in_phase("AwaitingWindow", wave).await?;
        let opens: Timestamp = observed["opensAt"].as_str().unwrap_or_default().parse()?;
        ensure!(opens > Timestamp::now(), "{observed}");
        let rule = hub.get(&stage.rule).await?;
        let ready = condition(&rule, "Ready")?;
        let message = ready["message"].as_str().unwrap_or_default();
        ensure!(
            ready["reason"] == "AwaitingWindow" && message.contains("a window opens at"),
            "{ready}"
        );
        Ok(())
    };
    // The window of the rule is closed, also for the first wave.
    stage.wants(json!({"windows": [window(6)]})).await?;
    let newest = stage.edit("k", "1").await?;
    waits(0).await?;
    steadily("nothing is sent", A_WHILE, unseen).await?;
    stage.kill_leader().await?;
    steadily("nothing is sent under another leader", A_WHILE, unseen).await?;
    stage.fleet.start_hub().await?;

    // The window of the rule opens, and the one of the cluster is closed.
    hub.change(&first, json!({"spec": {"windows": [window(5)]}}))
        .await?;
    stage
        .wants(json!({"windows": [window(6), window(0)]}))
        .await?;
    waits(1).await?;
    steadily("the cluster gets nothing", A_WHILE, unseen).await?;
    hub.change(&first, json!({"spec": {"windows": [window(0)]}}))
        .await?;
    stage.has(stage.first(), &newest).await?;
    stage.has(stage.last(), &newest).await?;
    stage.is_completed(2).await?;

    // Windows that cannot be read.
    let mut unknown = window(0);
    unknown["timeZone"] = json!("Mars/Base");
    stage.wants(json!({"windows": [unknown]})).await?;
    let rule = hub
        .wait_ready(&stage.rule, "False", "InvalidWindow")
        .await?;
    let stalled = condition(&rule, "Stalled")?;
    let message = stalled["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with("spec.rollout.windows[0].timeZone: `Mars/Base`"),
        "{stalled}"
    );
    stage.wants(json!({"windows": null})).await?;
    hub.change(&first, json!({"spec": {"windows": [unknown]}}))
        .await?;
    let member = hub.wait_ready(&first, "False", "InvalidWindow").await?;
    let ready = condition(&member, "Ready")?;
    let message = ready["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("spec.windows[0].timeZone:"), "{ready}");
    hub.change(&first, json!({"spec": {"windows": null}}))
        .await?;
    stage.is_completed(2).await.map(drop)
}
