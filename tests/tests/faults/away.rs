//! While the hub is unreachable, members keep their copies in sync.

use anyhow::{Context, Result, ensure};
use runnel_tests::scene::{Draft, Id, RETAINED, RuleDraft, SOON, is_marked};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::stage::{MEMBERS, Stage, stage};

/// Every kind of damage to a copy; each must be corrected.
async fn spoil_and_heal(stage: &Stage, source: &Value, target: &str, rule: &Id) -> Result<()> {
    let member = stage.scene.member(1);
    let copy = Id::of(source)?.within(target);
    member
        .change(&copy, json!({"data": {"value": "tampered"}}))
        .await?;
    member
        .has_copy(source, target, rule)
        .await
        .context("a changed value")?;
    member
        .change(&copy, json!({"data": {"more": "added"}}))
        .await?;
    member
        .has_copy(source, target, rule)
        .await
        .context("an added key")?;
    member
        .change(&copy, json!({"data": {"other": null}}))
        .await?;
    member
        .has_copy(source, target, rule)
        .await
        .context("a removed key")?;
    member
        .change(
            &copy,
            json!({"metadata": {"labels": null, "annotations": null}}),
        )
        .await?;
    member
        .has_copy(source, target, rule)
        .await
        .context("stripped marks")?;
    member.delete(&copy).await?;
    member
        .has_copy(source, target, rule)
        .await
        .context("a deleted copy")?;
    Ok(())
}

#[tokio::test]
async fn drift_is_corrected_and_namespaces_filled_without_hub() -> Result<()> {
    let stage = stage().await?;
    stage
        .places("no-hub", &["no-hub-1", "no-hub-2", "lonely"])
        .await?;
    let twice = stage.source("no-hub", "twice", "right").await?;
    let once = stage.source("no-hub", "once", "right").await?;
    let many = stage
        .rule("no-hub", "many", |draft| {
            draft.named(&["twice"]).into(&["no-hub-*"])
        })
        .await?;
    let lone = stage
        .rule("no-hub", "lone", |draft| {
            draft.named(&["once"]).into(&["lonely"])
        })
        .await?;
    stage.scene.hub.all_applied(&many, 2 * MEMBERS).await?;
    stage.scene.hub.all_applied(&lone, MEMBERS).await?;
    stage.fleet.kill_hub()?;

    spoil_and_heal(&stage, &twice, "no-hub-1", &many).await?;
    spoil_and_heal(&stage, &once, "lonely", &lone).await?;
    stage
        .scene
        .member(1)
        .make(&Draft::namespace("no-hub-3").json())
        .await?;
    stage
        .scene
        .member(1)
        .has_copy(&twice, "no-hub-3", &many)
        .await?;

    stage.fleet.kill_agent(1)?;
    stage.fleet.start_agent(1).await?;
    spoil_and_heal(&stage, &twice, "no-hub-2", &many)
        .await
        .context("after a restart of the agent")?;
    stage
        .scene
        .member(1)
        .make(&Draft::namespace("no-hub-4").json())
        .await?;
    stage
        .scene
        .member(1)
        .has_copy(&twice, "no-hub-4", &many)
        .await
        .context("after a restart of the agent")?;
    spoil_and_heal(&stage, &once, "lonely", &lone)
        .await
        .context("a copy without twin, after a restart of the agent")?;

    // Copies damaged while the agent was stopped are restored from an intact one, or wait for the
    // hub.
    stage.fleet.kill_agent(1)?;
    let (paired, single) = (
        Id::config_map("no-hub-1", "twice"),
        Id::config_map("lonely", "once"),
    );
    for copy in [&paired, &single] {
        stage
            .scene
            .member(1)
            .change(copy, json!({"data": {"value": "tampered"}}))
            .await?;
    }
    stage.fleet.start_agent(1).await?;
    stage
        .scene
        .member(1)
        .has_copy(&twice, "no-hub-1", &many)
        .await?;
    stage.fleet.start_hub().await?;
    // The other one has retried for so long that its backoff is long.
    stage.fleet.kill_agent(2)?;
    stage.fleet.start_agent(2).await?;
    stage.connected(MEMBERS).await?;
    stage
        .scene
        .member(1)
        .has_copy(&once, "lonely", &lone)
        .await?;
    stage.scene.hub.all_applied(&lone, MEMBERS).await?;
    stage.scene.hub.all_applied(&many, 2 * MEMBERS + 2).await?;
    stage.calm().await?;
    ensure!(
        stage.sent().await? <= 1.0,
        "the hub sent {} payloads for one that was lacking",
        stage.sent().await?
    );
    Ok(())
}

#[tokio::test]
async fn rule_deleted_while_a_member_is_away_is_settled_on_return() -> Result<()> {
    let stage = stage().await?;
    stage.places("orders", &["orders-target"]).await?;
    let into =
        |name: &'static str| move |draft: RuleDraft| draft.named(&[name]).into(&["orders-target"]);
    let delete = stage.rule("orders", "delete", into("delete")).await?;
    let retain = stage.rule("orders", "retain", |draft| {
        into("retain")(draft).with("deletionPolicy", json!("Retain"))
    });
    let retain = retain.await?;
    let keep = stage.rule("orders", "keep", into("keep")).await?;
    let mut sources = Vec::new();
    for (name, rule) in [("delete", &delete), ("retain", &retain), ("keep", &keep)] {
        sources.push(stage.source("orders", name, "first").await?);
        stage.scene.hub.all_applied(rule, MEMBERS).await?;
    }
    stage.fleet.kill_agent(1)?;
    for rule in [&delete, &retain] {
        stage.scene.hub.delete(rule).await?;
    }
    // Removed although a member is disconnected; the order is stored for that one only.
    for rule in [&delete, &retain] {
        stage.scene.hub.lacks(rule).await?;
    }
    let pending = async |number: usize| {
        let record = Id::member_record(stage.fleet.member_name(number));
        let record = stage.scene.hub.get(&record).await?;
        let list = record
            .pointer("/spec/pendingRemovals")
            .and_then(Value::as_array)
            .cloned();
        anyhow::Ok(list.unwrap_or_default().len())
    };
    ensure!(
        pending(1).await? == 2 && pending(2).await? == 0,
        "{} and {}",
        pending(1).await?,
        pending(2).await?
    );
    let (gone, left) = (
        Id::config_map("orders-target", "delete"),
        Id::config_map("orders-target", "retain"),
    );
    stage.scene.member(2).lacks(&gone).await?;
    for copy in [&gone, &left] {
        ensure!(
            is_marked(&stage.scene.member(1).get(copy).await?),
            "{copy} was touched while its agent was away"
        );
    }

    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    stage.fleet.start_agent(1).await?;
    for member in &stage.scene.members {
        member.lacks(&gone).await?;
        let retained = member.sees("left on purpose", &left, |object| {
            ensure!(
                !is_marked(object),
                "it carries marks: {}",
                object["metadata"]
            );
            ensure!(
                object["metadata"]["annotations"][RETAINED] == "orders/retain",
                "{}",
                object["metadata"]
            );
            Ok(())
        });
        ensure!(retained.await?["data"] == sources[1]["data"]);
        member.has_copy(&sources[2], "orders-target", &keep).await?;
    }
    eventually("the orders to be struck out", SOON, async || {
        Ok((pending(1).await? == 0).then_some(()))
    })
    .await
}
