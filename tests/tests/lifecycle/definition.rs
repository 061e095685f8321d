//! The CRD of the grants, of the members or of their records is deleted, and with it every object.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_api::crds;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, condition, is_marked};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

const HOME: &str = "granted";
const DEFINITION: &str = "distributiongrants.runnel.dev";
const MEMBERS: &str = "memberclusters.runnel.dev";
const RECORDS: &str = "memberrecords.runnel.dev";
/// More than the time in which a revoked agent deletes its copies.
const QUIET: Duration = Duration::from_secs(8);

/// Installs one of the CRDs of Runnel again.
async fn install(fleet: &Fleet, name: &str) -> Result<()> {
    let all = crds();
    let crd = all
        .iter()
        .find(|one| one.metadata.name.as_deref() == Some(name))
        .context("no CRD")?;
    let text = serde_json::to_string(crd)?;
    let hub = fleet.hub();
    hub.kubectl_stdin(&["apply", "--server-side", "-f", "-"], &text)
        .await?;
    hub.kubectl(&["wait", "--for=condition=Established", "crd", name])
        .await
        .map(drop)
}

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
    install(&fleet, DEFINITION).await?;
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

#[tokio::test]
async fn deleted_definition_of_members_is_no_revocation() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        agent_values: json!({"policy": {"onRevoke": "Purge"}}),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, member, rule) = (&scene.hub, scene.member(1), Id::rule(HOME, "rule"));
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let source = hub
        .make(&Draft::config_map(HOME, "app").data("k", "v").json())
        .await?;
    let draft = RuleDraft::new(HOME, "rule").named(&["app"]).everywhere();
    hub.make(&draft.json()).await?;
    hub.all_applied(&rule, 1).await?;
    let copy = Id::of(&source)?;
    let stays = async |why: &str| {
        steadily(why, QUIET, async || {
            let there = member.get(&copy).await?;
            ensure!(is_marked(&there), "{there}");
            Ok(())
        })
        .await
    };

    fleet.hub().kubectl(&["delete", "crd", MEMBERS]).await?;
    stays("the copy stays without the CRD").await?;
    // Every session begins again, and the new leader finds no member.
    fleet.kill_hub()?;
    fleet.start_hub().await?;
    stays("the copy stays when the hub starts without the CRD").await?;
    install(&fleet, MEMBERS).await?;
    stays("the copy stays without the member").await?;
    // The member is another one now.
    let again = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
        "metadata": {"name": "member-1", "labels": {"env": "prod"}}, "spec": {"accepted": true},
    });
    hub.make(&again).await?;
    eventually("the agent to be refused", SOON, async || {
        let log = std::fs::read_to_string(fleet.agent_log(1))?;
        Ok(log.contains("was created again").then_some(()))
    })
    .await?;
    stays("the copy stays until the cluster joins again").await
}

#[tokio::test]
async fn deleted_definition_of_records_locks_no_member_out() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default()).await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, member, rule) = (&scene.hub, scene.member(1), Id::rule(HOME, "rule"));
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let source = Draft::config_map(HOME, "app").data("k", "v").json();
    let source = hub.make(&source).await?;
    let draft = RuleDraft::new(HOME, "rule").named(&["app"]).everywhere();
    hub.make(&draft.json()).await?;
    hub.all_applied(&rule, 1).await?;
    let record = Id::member_record("member-1");
    let before = hub.get(&record).await?;
    let edited = async |value: &str| {
        let change = json!({"data": {"k": value}});
        let edited = hub.change(&Id::of(&source)?, change).await?;
        member.has_copy(&edited, HOME, &rule).await.map(drop)
    };

    fleet.hub().kubectl(&["delete", "crd", RECORDS]).await?;
    edited("without the CRD").await?;
    install(&fleet, RECORDS).await?;
    hub.sees("written again", &record, |record| {
        ensure!(record["spec"] == before["spec"], "{record}");
        Ok(())
    })
    .await?;
    // The new leader finds the key.
    fleet.kill_hub()?;
    fleet.start_hub().await?;
    edited("after a restart").await
}
