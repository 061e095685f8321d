//! The CRD of the grants is deleted, and with it every grant.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_api::crds;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, condition, is_marked};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

const HOME: &str = "granted";
const DEFINITION: &str = "distributiongrants.runnel.dev";

#[tokio::test]
async fn deleted_definition_of_grants_takes_no_copies_away() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default()).await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, member, rule) = (&scene.hub, scene.member(1), Id::rule(HOME, "rule"));
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    // Few enough for any limit of removals.
    let source = hub
        .make(&Draft::config_map(HOME, "app").data("k", "first").json())
        .await?;
    hub.make(
        &RuleDraft::new(HOME, "rule")
            .named(&["app"])
            .everywhere()
            .json(),
    )
    .await?;
    hub.all_applied(&rule, 1).await?;
    let copy = Id::of(&source)?;
    let stays = async || {
        let there = member.get(&copy).await?;
        ensure!(
            is_marked(&there) && there["data"]["k"] == "first",
            "{there}"
        );
        Ok(())
    };
    let granted = async |status: &str| {
        eventually(&format!("Granted={status}"), SOON, async || {
            let shown = condition(&hub.get(&rule).await?, "Granted")?.clone();
            ensure!(shown["status"] == status, "it is {shown}");
            Ok(Some(()))
        })
        .await
    };

    fleet.hub().kubectl(&["delete", "crd", DEFINITION]).await?;
    granted("Unknown").await?;
    steadily(
        "the copy stays without the CRD",
        Duration::from_secs(8),
        stays,
    )
    .await?;

    // It is there again, and its grants are not yet.
    let all = crds();
    let crd: Vec<&_> = all
        .iter()
        .filter(|one| one.metadata.name.as_deref() == Some(DEFINITION))
        .collect();
    ensure!(crd.len() == 1, "no CRD");
    let text = serde_json::to_string(crd[0])?;
    fleet
        .hub()
        .kubectl_stdin(&["apply", "--server-side", "-f", "-"], &text)
        .await?;
    fleet
        .hub()
        .kubectl(&["wait", "--for=condition=Established", "crd", DEFINITION])
        .await?;
    steadily(
        "the copy stays without grants",
        Duration::from_secs(12),
        stays,
    )
    .await?;

    let grant: Value = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "again"},
        "spec": {
            "rules": {"namespaces": {"all": true}}, "resources": ["configmaps", "secrets"],
            "clusters": {"all": true}, "namespaces": {"all": true},
        },
    });
    hub.make(&grant).await?;
    hub.change(&copy, json!({"data": {"k": "second"}})).await?;
    member
        .sees("brought up to date", &copy, |there| {
            ensure!(there["data"]["k"] == "second", "{there}");
            Ok(())
        })
        .await?;
    hub.all_applied(&rule, 1).await.map(drop)
}
