//! A frozen replica that takes the lead without having observed the changes meanwhile.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft};
use runnel_tests::simulated::{Holdings, SimulatedAgent};
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{self, SOON};

#[tokio::test]
async fn standby_that_slept_takes_over_and_undoes_nothing() -> Result<()> {
    let stage = stage::stage("slept").await?;
    let leader = stage.revive().await?;
    let standby = 3 - leader;
    let mut credentials = stage
        .join(1, stage.fleet.hub_replica(leader).address())
        .await?;
    let agent = SimulatedAgent::up_to_date(&credentials, Holdings::default()).await?;
    let (source, rule) = stage.rule(1).await?;
    stage.calm(&rule).await?;

    // It has the former source and nothing of what is created now, and its watches will find their
    // connections dead.
    stage.fleet.hub_replica(standby).process().pause()?;
    drop(agent.take_record());
    stage.fleet.hub().stop_api_server()?;
    stage.fleet.hub().start_api_server().await?;
    eventually("the leader to lead", SOON, async || {
        Ok(stage.leads(leader).await.then_some(()))
    })
    .await?;
    agent
        .until("to be served", |state| state.up_to_date)
        .await?;
    stage.edit(&source, "while it slept").await?;
    agent
        .until("the edit", |state| state.record.upserts().len() == 1)
        .await?;
    stage
        .scene
        .hub
        .make(
            &Draft::config_map(&stage.namespace, "late")
                .data("value", "late")
                .json(),
        )
        .await?;
    let late = RuleDraft::new(&stage.namespace, "late").named(&["late"]);
    let late = late.with(
        "clusters",
        json!({"selector": {"matchLabels": {"set": "slept"}}}),
    );
    stage.scene.hub.make(&late.json()).await?;
    agent
        .until("the late one", |state| state.record.upserts().len() == 2)
        .await?;
    stage
        .scene
        .hub
        .wait_ready(&Id::rule(&stage.namespace, "late"), "True", "AllApplied")
        .await?;

    let holdings = agent.stop().await.holdings;
    ensure!(
        stage
            .fleet
            .hub_replica(leader)
            .process()
            .terminate(SOON)
            .await?
            == 0,
        "the leader did not end well"
    );
    credentials.address = stage.fleet.hub_replica(standby).address().to_owned();
    stage.fleet.hub_replica(standby).process().resume()?;
    let agent = SimulatedAgent::up_to_date(&credentials, holdings).await?;
    ensure!(stage.leads(standby).await, "it does not lead");
    let nothing = |what: &str| {
        let state = agent.state();
        let orders = state.record.tombstones().len() + state.record.removals().len();
        ensure!(
            orders == 0,
            "{what}: an order to remove: {}",
            state.record.sketch()
        );
        ensure!(
            state.holdings.sources().count() == 2,
            "{what}: it holds {}",
            state.holdings.sources().count()
        );
        Ok(state.record.upserts().len())
    };
    ensure!(
        nothing("at once")? == 0,
        "content was sent again: {}",
        agent.state().record.sketch()
    );
    stage.edit(&source, "afterwards").await?;
    agent
        .until("the next edit", |state| !state.record.upserts().is_empty())
        .await?;
    ensure!(
        nothing("after an edit")? == 1,
        "content was sent again: {}",
        agent.state().record.sketch()
    );
    agent.check()
}
