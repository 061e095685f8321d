//! A cluster that joins again under its name, and two clusters with one identity.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use runnel_hub_core::epoch::REPLACES;
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::stage::{confirm, wait_for_condition, wait_without_condition};

const HOME: &str = "clusters";

async fn kube_system(scene: &Scene, number: usize) -> Result<String> {
    let namespace = scene
        .member(number)
        .get(&Id::namespace("kube-system"))
        .await?;
    Ok(namespace["metadata"]["uid"]
        .as_str()
        .context("no uid")?
        .to_owned())
}

/// Waits until the hub reports a member with this uid.
async fn is_known_as(scene: &Scene, member: &str, uid: &str) -> Result<Value> {
    scene
        .hub
        .sees("the cluster's uid", &Id::member(member), |object| {
            ensure!(
                object["status"]["clusterUid"] == uid,
                "it is {}",
                object["status"]["clusterUid"]
            );
            Ok(())
        })
        .await
}

#[tokio::test]
async fn rejoined_cluster_keeps_copies_and_cloned_one_is_fenced() -> Result<()> {
    let options = FleetOptions {
        members: 2,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start(options.clone()).await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, rule) = (&scene.hub, Id::rule(HOME, "rule"));
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    hub.make(
        &RuleDraft::new(HOME, "rule")
            .everywhere()
            .named(&["app-*"])
            .json(),
    )
    .await?;
    let config = |name, value| Draft::config_map(HOME, name).data("k", value).json();
    let (stays, goes) = (
        hub.make(&config("app-stays", "first")).await?,
        hub.make(&config("app-goes", "first")).await?,
    );
    for source in [&stays, &goes] {
        scene.arrives(source, &rule, &[HOME]).await?;
    }
    hub.all_applied(&rule, 4).await?;

    // The same name, another MemberCluster: desired copies are updated, others are kept.
    fleet.stop_agent(2).await?;
    let former = hub.get(&Id::member("member-2")).await?;
    hub.delete(&Id::member("member-2")).await?;
    hub.delete(&Id::of(&goes)?).await?;
    scene.member(1).lacks(&Id::of(&goes)?).await?;
    let edited = hub
        .change(&Id::of(&stays)?, json!({"data": {"k": "second"}}))
        .await?;
    let kept = scene.member(2).get(&Id::of(&goes)?).await?;
    let join_string = fleet
        .hub_release()
        .join_string("member-2", fleet.binaries(), &options)
        .await?;
    fleet.agent(2).hand_over(&join_string).await?;
    fleet.start_agent(2).await?;
    let message = wait_for_condition(
        hub,
        "member-2",
        "PreviousMembership",
        "CopiesFromPreviousMembership",
    )
    .await?;
    let now = hub.get(&Id::member("member-2")).await?;
    ensure!(
        now["metadata"]["uid"] != former["metadata"]["uid"],
        "it is the former MemberCluster"
    );
    scene.member(2).has_copy(&edited, HOME, &rule).await?;
    scene.member(2).is_untouched(&kept).await?;
    hub.has_event(&Id::member("member-2"), "PreviousMembership")
        .await?;
    hub.wait_for_cluster(&rule, "member-2", "Waiting", "Unconfirmed")
        .await?;
    confirm(fleet.hub(), &message, "member-2").await?;
    scene.member(2).lacks(&Id::of(&goes)?).await?;
    wait_without_condition(hub, "member-2", "PreviousMembership").await?;
    hub.all_applied(&rule, 2).await?;

    // The second cluster connects with the first one's key.
    let uids = [kube_system(&scene, 1).await?, kube_system(&scene, 2).await?];
    is_known_as(&scene, "member-1", &uids[0]).await?;
    fleet.stop_agent(2).await?;
    // A cluster has one MemberCluster, and an agent takes no copies of another one.
    hub.delete(&Id::member("member-2")).await?;
    scene.member(2).delete(&Id::of(&stays)?).await?;
    clone_identity(&scene).await?;
    fleet.start_agent(2).await?;
    let message = wait_for_condition(hub, "member-1", "Duplicate", "SecondCluster").await?;
    ensure!(
        uids.iter().all(|uid| message.contains(uid.as_str())),
        "{message}"
    );
    hub.has_event(&Id::member("member-1"), "Duplicate").await?;
    fleet.connected(1).await?;
    let third = hub
        .change(&Id::of(&stays)?, json!({"data": {"k": "third"}}))
        .await?;
    scene.member(1).has_copy(&third, HOME, &rule).await?;
    scene.member(2).lacks(&Id::of(&stays)?).await?;
    is_known_as(&scene, "member-1", &uids[0]).await?;

    // It has replaced the first one, which is now refused.
    confirm(fleet.hub(), &message, "member-1").await?;
    fleet.kill_agent(2)?;
    fleet.start_agent(2).await?;
    scene.member(2).has_copy(&third, HOME, &rule).await?;
    is_known_as(&scene, "member-1", &uids[1]).await?;
    let of_first = scene.member(1).get(&Id::of(&stays)?).await?;
    eventually("the first cluster to be the other one", SOON, async || {
        let message = wait_for_condition(hub, "member-1", "Duplicate", "SecondCluster").await?;
        Ok(message
            .contains(&format!("uid {} there", uids[0]))
            .then_some(()))
    })
    .await?;
    let fourth = hub
        .change(&Id::of(&stays)?, json!({"data": {"k": "fourth"}}))
        .await?;
    scene.member(2).has_copy(&fourth, HOME, &rule).await?;
    scene.member(1).is_untouched(&of_first).await
}

/// Gives the second cluster's agent the identity of the first one's.
async fn clone_identity(scene: &Scene) -> Result<()> {
    let secrets =
        |number| -> Api<Secret> { Api::namespaced(scene.member(number).client(), NAMESPACE) };
    let identity = secrets(1).get("runnel-agent-identity").await?.data;
    let patch = Patch::Merge(json!({"data": identity}));
    secrets(2)
        .patch("runnel-agent-identity", &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

#[tokio::test]
async fn renamed_cluster_keeps_its_copies() -> Result<()> {
    let options = FleetOptions {
        members: 1,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start(options.clone()).await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, rule) = (&scene.hub, Id::rule(HOME, "rule"));
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let draft = RuleDraft::new(HOME, "rule").everywhere().named(&["app-*"]);
    hub.make(&draft.json()).await?;
    let source = Draft::config_map(HOME, "app-stays").data("k", "first");
    let source = hub.make(&source.json()).await?;
    scene.arrives(&source, &rule, &[HOME]).await?;
    hub.all_applied(&rule, 1).await?;
    let former = scene.member(1).get(&Id::of(&source)?).await?;

    fleet.stop_agent(1).await?;
    let join_string = fleet
        .hub_release()
        .join_string("renamed", fleet.binaries(), &options)
        .await?;
    let replaces = json!({"metadata": {"annotations": {REPLACES: fleet.member_name(1)}}});
    hub.change(&Id::member("renamed"), replaces).await?;
    fleet.agent(1).hand_over(&join_string).await?;
    let secrets: Api<Secret> = Api::namespaced(scene.member(1).client(), NAMESPACE);
    let without = Patch::Merge(json!({"data": {"tls.crt": null}}));
    secrets
        .patch("runnel-agent-identity", &PatchParams::default(), &without)
        .await?;
    fleet.start_agent(1).await?;
    is_known_as(&scene, "renamed", &kube_system(&scene, 1).await?).await?;
    hub.delete(&Id::member(fleet.member_name(1))).await?;

    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "second"}}))
        .await?;
    scene.member(1).has_copy(&edited, HOME, &rule).await?;
    let copy = scene.member(1).get(&Id::of(&source)?).await?;
    ensure!(
        copy["metadata"]["uid"] == former["metadata"]["uid"],
        "it was created again"
    );
    let member = &copy["metadata"]["annotations"]["runnel.dev/member"];
    ensure!(member == "renamed", "{member}");
    hub.all_applied(&rule, 1).await.map(drop)
}
