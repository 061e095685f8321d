//! Two hubs with one identity: the second is a double of the first's cluster, and both run.

use anyhow::{Result, ensure};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{Fleet, FleetOptions, HUB, NAMESPACE};
use runnel_tests::memory::Enforcement;
use runnel_tests::pod::{Pod, Site, Wanted};
use runnel_tests::scene::{Draft, Id, Metrics, RuleDraft, SOON, Scene, TestCluster};
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{remembered, remembers_more, renewed, wait_for_condition};

const HOME: &str = "doubled";

async fn shows(ops_url: &str, metric: &str, wanted: f64) -> Result<()> {
    eventually(&format!("{metric} of {wanted}"), SOON, async || {
        let now = Metrics::of(ops_url).await?.sum(metric)?;
        ensure!(now == wanted, "it is {now}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn second_hub_with_one_identity_rolls_nothing_back() -> Result<()> {
    // Agents have two addresses; the copied hub will be at the second one.
    let fleet = Fleet::start(FleetOptions {
        hub_replicas: 2,
        ..FleetOptions::default()
    })
    .await?;
    fleet.hub_replica(2).process().kill()?;
    shows(&fleet.hub_ops_url(), "runnel_hub_sessions", 1.0).await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, member, rule) = (&scene.hub, scene.member(1), Id::rule(HOME, "rule"));
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    hub.make(
        &RuleDraft::new(HOME, "rule")
            .everywhere()
            .named(&["app"])
            .json(),
    )
    .await?;
    let source = hub
        .make(&Draft::config_map(HOME, "app").data("k", "first").json())
        .await?;
    member.has_copy(&source, HOME, &rule).await?;

    let twin = ControlPlane::start("twin", Options::default()).await?;
    twin.restore(&fleet.hub().back_up("twin").await?).await?;
    let wanted = Wanted {
        namespace: NAMESPACE.to_owned(),
        deployment: HUB.to_owned(),
        name: format!("{HUB}-1"),
        address: fleet.hub_replica(2).pod().address(),
        binary: fleet.binaries().hub.clone(),
        log: "twin.log".to_owned(),
        memory: Enforcement::default(),
    };
    let double = Pod::new(&Site::from(&twin), wanted).await?;
    double.start().await?;
    let double_ops = format!("http://{}", double.port("ops")?);
    shows(&double_ops, "runnel_leader", 1.0).await?;
    shows(&fleet.hub_ops_url(), "runnel_hub_sessions", 1.0).await?;
    // Longer than clocks may differ.
    renewed(&hub.client()).await?;
    renewed(&hub.client()).await?;
    let before = remembered(&member.client()).await?;
    let newer = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "second"}}))
        .await?;
    let copy = member.has_copy(&newer, HOME, &rule).await?;
    remembers_more(member, &before).await?;

    // The first is away for a while: the second may not make use of it.
    fleet.hub_process().kill()?;
    let twin_hub = TestCluster::new("twin", twin.client().await?);
    let message = wait_for_condition(&twin_hub, "member-1", "Duplicate", "SecondHub").await?;
    ensure!(message.contains("second hub"), "{message}");
    twin_hub
        .has_event(&Id::member("member-1"), "Duplicate")
        .await?;
    twin_hub
        .change(&Id::of(&source)?, json!({"data": {"k": "of the double"}}))
        .await?;
    renewed(&twin.client().await?).await?;
    member.is_untouched(&copy).await?;

    // The agent tries the first one, and stays connected.
    fleet.hub_replica(1).pod().start().await?;
    shows(&fleet.hub_ops_url(), "runnel_hub_sessions", 1.0).await?;
    let third = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "third"}}))
        .await?;
    member.has_copy(&third, HOME, &rule).await?;
    wait_for_condition(&twin_hub, "member-1", "Duplicate", "SecondHub").await?;
    Ok(())
}
