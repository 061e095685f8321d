//! The status of a rule says what it does not deliver, and why.

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, condition};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

async fn fleet() -> Result<&'static Fleet> {
    FLEET
        .get_or_try_init(|| {
            Fleet::start(FleetOptions {
                members: 1,
                ..FleetOptions::default()
            })
        })
        .await
}

fn message_of<'a>(object: &'a Value, kind: &str) -> Result<&'a str> {
    Ok(condition(object, kind)?["message"]
        .as_str()
        .unwrap_or_default())
}

/// The message of the rule's condition Ready, once it has this reason.
async fn wait_for_condition(
    scene: &Scene,
    rule: &Id,
    status: &str,
    reason: &str,
) -> Result<String> {
    let observed = scene.hub.wait_ready(rule, status, reason).await?;
    Ok(message_of(&observed, "Ready")?.to_owned())
}

#[tokio::test]
async fn name_that_matches_nothing_is_named_until_it_exists() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, home) = (&scene.hub, "names");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let settings = Draft::config_map(home, "settings").data("app.yaml", "a");
    hub.make(&settings.json()).await?;
    let rule = Id::rule(home, "names");
    let draft = RuleDraft::new(home, "names")
        .named(&["settings", "not-there"])
        .to(&["member-1", "ghost"])
        .with("substitute", json!({"keys": ["app.yaml", "nokey"]}));
    hub.make(&draft.json()).await?;

    let message = wait_for_condition(&scene, &rule, "False", "UnknownClusters").await?;
    for part in [
        "no MemberCluster is called ghost",
        "no configmap or secret `not-there` in namespace names",
        "no source has the key nokey (spec.substitute.keys)",
    ] {
        ensure!(message.contains(part), "{message}");
    }
    let observed = hub.get(&rule).await?;
    ensure!(condition(&observed, "Applied")?["status"] == "True");

    // A cluster that never connected is no error of the rule.
    let ghost = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster", "metadata": {"name": "ghost"}, "spec": {}});
    hub.make(&ghost).await?;
    wait_for_condition(&scene, &rule, "False", "MissingSources").await?;
    let missing = Draft::config_map(home, "not-there").data("nokey", "n");
    hub.make(&missing.json()).await?;
    let message = wait_for_condition(&scene, &rule, "True", "AllApplied").await?;
    ensure!(message.contains("ghost has never connected"), "{message}");
    let shown = fleet()
        .await?
        .hub()
        .kubectl(&["-n", home, "get", "drule", "-o", "wide"])
        .await?;
    let header: Vec<_> = shown
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(
        header[7..]
            == [
                "APPLIED",
                "HEALTHY",
                "WAITING",
                "DRIFTED",
                "SUSPENDED",
                "MESSAGE"
            ],
        "{shown}"
    );

    hub.delete(&Id::of(&missing.json())?).await?;
    wait_for_condition(&scene, &rule, "False", "MissingSources").await?;
    hub.delete(&Id::member("ghost")).await?;
    wait_for_condition(&scene, &rule, "False", "UnknownClusters").await?;
    Ok(())
}

#[tokio::test]
async fn rule_without_target_namespaces_is_not_ready() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, home) = (&scene.hub, "no-targets");
    scene.hub_namespaces(&[home]).await?;
    hub.make(&Draft::config_map(home, "settings").json())
        .await?;
    let rule = Id::rule(home, "typo");
    let draft = RuleDraft::new(home, "typo")
        .named(&["*"])
        .to(&["member-1"])
        .into(&["taem-*"]);
    hub.make(&draft.json()).await?;
    let message = wait_for_condition(&scene, &rule, "False", "NoNamespaces").await?;
    ensure!(message.contains("is called taem-*"), "{message}");
    scene
        .member(1)
        .make(&Draft::namespace("taem-a").json())
        .await?;
    wait_for_condition(&scene, &rule, "True", "AllApplied").await?;
    Ok(())
}

#[tokio::test]
async fn copies_that_wait_name_their_namespaces() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, home) = (&scene.hub, "waits");
    scene.hub_namespaces(&[home]).await?;
    hub.make(&Draft::config_map(home, "settings").json())
        .await?;
    let rule = Id::rule(home, "waits");
    let draft = RuleDraft::new(home, "waits")
        .named(&["settings"])
        .to(&["member-1"])
        .into(&["waits-a", "waits-b", "waits-c", "waits-d"]);
    hub.make(&draft.json()).await?;
    let message = wait_for_condition(&scene, &rule, "False", "CopiesWaiting").await?;
    ensure!(
        message
            .ends_with("the namespaces waits-a, waits-b, waits-c and 1 other do not exist there"),
        "{message}"
    );
    Ok(())
}

#[tokio::test]
async fn copies_are_selected_by_the_uid_of_their_rule() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, home) = (&scene.hub, "labels");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let source = hub.make(&Draft::config_map(home, "mine").json()).await?;
    hub.make(&Draft::config_map(home, "other").json()).await?;
    for name in ["mine", "other"] {
        let draft = RuleDraft::new(home, name).named(&[name]).to(&["member-1"]);
        hub.make(&draft.json()).await?;
    }
    let (mine, other) = (Id::rule(home, "mine"), Id::rule(home, "other"));
    let rule = hub.all_applied(&mine, 1).await?;
    hub.all_applied(&other, 1).await?;
    let uid = rule["metadata"]["uid"].as_str().unwrap_or_default();
    let label = format!("runnel.dev/rule-uid={uid}");
    let member = fleet.member(1);
    let selected = member
        .kubectl(&[
            "get",
            "configmaps,secrets",
            "-A",
            "-l",
            &label,
            "-o",
            "name",
        ])
        .await?;
    ensure!(selected.trim() == "configmap/mine", "{selected}");
    // Without the label the copy is corrected as after any other change.
    let copy = Id::config_map(home, "mine");
    let change = json!({"metadata": {"labels": {"runnel.dev/rule-uid": null}}});
    scene.member(1).change(&copy, change).await?;
    scene.member(1).has_copy(&source, home, &mine).await?;
    Ok(())
}

#[tokio::test]
async fn member_is_ready_by_its_connection_and_shows_its_state() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let hub = &scene.hub;
    let absent = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster", "metadata": {"name": "absent"}, "spec": {}});
    hub.make(&absent).await?;
    let wait = [
        "wait",
        "--for=condition=Ready",
        "member/member-1",
        "--timeout=60s",
    ];
    fleet.hub().kubectl(&wait).await?;
    let is_ready = |status: &'static str, reason: &'static str| {
        move |member: &Value| {
            let ready = condition(member, "Ready")?;
            ensure!(
                ready["status"] == status && ready["reason"] == reason,
                "{ready}"
            );
            Ok(())
        }
    };
    let never = is_ready("False", "NeverConnected");
    hub.sees("not ready", &Id::member("absent"), never).await?;
    let cordon = |cordoned: bool| json!({"spec": {"cordoned": cordoned}});
    hub.change(&Id::member("member-1"), cordon(true)).await?;
    hub.sees(
        "cordoned",
        &Id::member("member-1"),
        is_ready("True", "Cordoned"),
    )
    .await?;
    let shown = fleet.hub().kubectl(&["get", "member", "member-1"]).await?;
    ensure!(shown.contains("Cordoned"), "{shown}");
    hub.change(&Id::member("member-1"), cordon(false)).await?;
    hub.sees(
        "ready",
        &Id::member("member-1"),
        is_ready("True", "MemberReady"),
    )
    .await?;
    hub.delete(&Id::member("absent")).await?;
    Ok(())
}
